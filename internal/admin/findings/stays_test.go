package findings

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// told shows a watch one Picture a second and lists what began and ended.
func told(pictures int, change func(i int, p *Picture)) (all []string, w *Watch) {
	w = New()
	for i := range pictures {
		p := calm(i)
		change(i, &p)
		began, ended := w.Look(p)
		for _, f := range began {
			all = append(all, fmt.Sprintf("%d began %s", i, f.Code))
		}
		for _, f := range ended {
			all = append(all, fmt.Sprintf("%d ended %s", i, f.Code))
		}
	}
	return all, w
}

// A figure that goes up and down around a limit makes one finding and not many.
func TestFindingsDoNotFlap(t *testing.T) {
	swing := func(i int, low, high time.Duration) time.Duration {
		if i%2 == 0 {
			return low
		}
		return high
	}
	for name, tc := range map[string]struct {
		change func(i int, p *Picture) // from second 5 to 24
		code   Code
	}{
		"a slow node": {func(i int, p *Picture) {
			slow(p, 1, 30*time.Millisecond)
			if i > 10 {
				slow(p, 1, swing(i, 5*time.Millisecond, 8*time.Millisecond))
			}
		}, NodeSlow},
		"a slow cluster": {func(i int, p *Picture) {
			all(p, 30*time.Millisecond)
			if i > 12 {
				all(p, swing(i, 5*time.Millisecond, 8*time.Millisecond))
			}
		}, ClusterSlow},
		"an overload": {func(i int, p *Picture) {
			full(p)
			all(p, swing(i, 5*time.Millisecond, 8*time.Millisecond))
			if i < 10 {
				all(p, 30*time.Millisecond)
			}
		}, Overload},
		"a pool that is full at times": {func(i int, p *Picture) {
			if i < 10 || i%5 < 2 {
				full(p)
			}
		}, PoolSmall},
		"an app that holds sessions": {func(i int, p *Picture) {
			full(p)
			hold(p, "reports", 10, 5*time.Second)
			if i > 10 {
				p.SessionUses = p.SessionUses[:7+i%2]
			}
			p.SessionUses[i%7].Held, p.SessionUses[i%7].Node = 9*time.Second, uint32(1+i%3)
		}, SessionsHeld},
		"a cluster that rejects calls": {func(i int, p *Picture) {
			p.Nodes[0].Refused = uint64(70*min(i, 15) + 40*max(0, i-15))
		}, ClusterOverloaded},
	} {
		t.Run(name, func(t *testing.T) {
			all, _ := told(45, func(i int, p *Picture) {
				if i >= 5 && i < 25 {
					tc.change(i, p)
				}
			})
			if len(all) != 2 || !strings.HasSuffix(all[0], "began "+string(tc.code)) ||
				!strings.HasSuffix(all[1], "ended "+string(tc.code)) {
				t.Errorf("told %q; want that %s begins and ends once", all, tc.code)
			}
		})
	}
}

// Nothing begins of a queue that is empty by now.
func TestOverloadDoesNotBeginAfterTheFlood(t *testing.T) {
	all, _ := told(30, func(i int, p *Picture) {
		if i >= 10 && i < 13 {
			full(p)
			p.Pool.Waiting = 0
			if i < 12 {
				p.Pool.Waiting = 7
			}
		}
	})
	if len(all) > 0 {
		t.Errorf("told %q; want nothing", all)
	}
}

// What comes and goes says how often it did in the last ten minutes.
func TestRepeatsAreCounted(t *testing.T) {
	ban := func(i int, p *Picture) { p.Nodes[1].Banned = i%20 < 10 }
	_, w := told(65, ban)
	if all := w.Report().Findings; len(all) != 1 || all[0].Times != 4 {
		t.Errorf("the fourth ban within a minute: %+v", all)
	}
	_, w = told(2000, func(i int, p *Picture) { p.Nodes[1].Banned = i%400 < 10 || i > 1990 })
	if all := w.Report().Findings; len(all) != 1 || all[0].Times != 2 {
		t.Errorf("two bans within ten minutes: %+v", all)
	}
	if len(w.began) != 1 {
		t.Errorf("%d findings are remembered; want 1", len(w.began))
	}
}

// A crowd is told with the app that makes it.
func TestTheAppThatFloodsIsNamed(t *testing.T) {
	flood := func(waiting, lost int) App {
		return App{Name: "flooder", Waiting: int64(waiting), Lost: uint64(lost)}
	}
	for name, tc := range map[string]struct {
		latency time.Duration
		apps    func(i int) []App
		code    Code
		app     string
		text    string
	}{
		"of waiting callers": {40 * time.Millisecond, func(int) []App { return []App{flood(94, 0), {Name: "shop", Waiting: 6}} },
			Overload, "flooder", "; app flooder sent 94 % of them"},
		"of rejected callers": {40 * time.Millisecond, func(i int) []App { return []App{{Name: "shop", Lost: 1e6}, flood(0, 30*i)} },
			Overload, "flooder", "; app flooder sent 100 % of them"},
		"while the nodes are fast": {2 * time.Millisecond, func(int) []App { return []App{flood(94, 0), {Name: "shop", Waiting: 6}} },
			PoolSmall, "flooder", "; app flooder sent 94 % of them"},
		"of many apps alike": {40 * time.Millisecond,
			func(int) []App { return []App{flood(4, 0), {Name: "shop", Waiting: 4}, {Name: "cart", Waiting: 4}} }, Overload, "", "1.2 s"},
		"of the only app": {40 * time.Millisecond, func(int) []App { return []App{flood(94, 0)} }, Overload, "", "1.2 s"},
		"of nobody":       {40 * time.Millisecond, func(int) []App { return []App{flood(0, 0), {Name: "shop"}} }, Overload, "", "1.2 s"},
	} {
		t.Run(name, func(t *testing.T) {
			_, w := told(25, func(i int, p *Picture) {
				if i >= 12 {
					full(p)
					all(p, tc.latency)
					p.Apps = tc.apps(i)
				} else {
					p.Apps = tc.apps(0)
				}
			})
			if f := w.Report().Findings; len(f) != 1 || f[0].Code != tc.code || f[0].App != tc.app ||
				!strings.HasSuffix(f[0].Text, tc.text) {
				t.Errorf("%+v; want %s of %q, ending %q", f, tc.code, tc.app, tc.text)
			}
		})
	}
}

// A slow node is a warning until it is ejected for it, and stands below what is certain.
func TestASlowNodeIsAWarningUntilItIsSure(t *testing.T) {
	for name, ejected := range map[string]bool{"not sure": false, "ejected": true} {
		_, w := told(25, func(i int, p *Picture) {
			if i < 12 {
				return
			}
			full(p)
			hold(p, "reports", 18, 5*time.Second)
			slow(p, 1, 80*time.Millisecond)
			if n := &p.Nodes[1]; ejected {
				n.Health, n.Cause, n.Usable = "ejected", "latency", false
			}
		})
		var codes []Code
		for _, f := range w.Report().Findings {
			codes = append(codes, f.Code)
			if f.Code == NodeSlow && (f.Severity == Problem) != ejected {
				t.Errorf("%s: NODE_SLOW is a %s", name, f.Severity)
			}
			if f.Code == NodeSlow && f.Address != "ydb-2:2136" {
				t.Errorf("%s: NODE_SLOW is about the node at %q", name, f.Address)
			}
		}
		want := []Code{SessionsHeld, NodeSlow}
		if ejected {
			want = []Code{NodeSlow, SessionsHeld}
		}
		if !slices.Equal(codes, want) {
			t.Errorf("%s: %v; want %v", name, codes, want)
		}
	}
}

func TestReasonOfABan(t *testing.T) {
	for reason, want := range map[string]string{
		"":                 "node 2 (ydb-2:2136) is banned by an operator",
		"a disk":           "node 2 (ydb-2:2136) is banned by an operator: a disk",
		"a disk; see: #12": "node 2 (ydb-2:2136) is banned by an operator: a disk; see: #12",
	} {
		_, w := told(3, func(_ int, p *Picture) { p.Nodes[1].Banned, p.Nodes[1].BanReason = true, reason })
		if f := w.Report().Findings; len(f) != 1 || f[0].Text != want {
			t.Errorf("%q: %+v; want %q", reason, f, want)
		}
	}
}

func TestFindingsOfSettings(t *testing.T) {
	for _, tc := range []struct {
		config Config
		want   string
	}{
		{Config{}, "[]"},
		{Config{Fault: `sidecar.yaml:3: pool.max = "sixty"; want an integer`, Faults: 1},
			`[CONFIG_BAD the settings were not reloaded, the old ones stay in force: sidecar.yaml:3: pool.max = "sixty"; want an integer]`},
		{Config{Fault: "a", Faults: 3}, "[CONFIG_BAD the settings were not reloaded, the old ones stay in force: a, and 2 more faults]"},
		{Config{Pending: []string{"grpc.listen"}}, "[CONFIG_PENDING 1 changed setting waits for a restart: grpc.listen]"},
		{Config{Pending: []string{"a", "b", "c", "d", "e", "f", "g"}},
			"[CONFIG_PENDING 7 changed settings wait for a restart: a, b, c, d, e and 2 more]"},
	} {
		_, w := told(1, func(_ int, p *Picture) { p.Config = tc.config })
		got := []string{}
		for _, f := range w.Report().Findings {
			got = append(got, string(f.Code)+" "+f.Text)
		}
		if fmt.Sprint(got) != tc.want {
			t.Errorf("%+v: %v; want %s", tc.config, got, tc.want)
		}
	}
}
