package xds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	rounds "github.com/ydb-sidecar/sidecar/proof/short" // the package has a short of its own
)

// told is what is published, in words.
func told(out []endpoint) string {
	text := ""
	for _, e := range out {
		text += fmt.Sprintf("%d:%v", e.id, e.status)
		if e.status == healthy {
			text += fmt.Sprintf("/%d", e.weight)
		}
		text += " "
	}
	return text
}

// TestPace plays views at times and looks at what is published.
func TestPace(t *testing.T) {
	weight := func(id cluster.NodeID, w float32) cluster.ViewNode {
		return node(id, "a", cluster.UseNew, w, cluster.Condition{})
	}
	bad := func(id cluster.NodeID, v cluster.Condition) cluster.ViewNode {
		use := cluster.UseOpen
		if v.Unreachable {
			use = cluster.UseNone
		}
		return node(id, "a", use, 0, v)
	}
	type at struct {
		ms    int
		nodes []cluster.ViewNode // nil: those of before
		want  string
		wake  int // in milliseconds; 0: none
	}
	nothing := []cluster.ViewNode{}
	for name, steps := range map[string][]at{
		"gets worse at once, and better only after a second": {
			{0, []cluster.ViewNode{good(1, "a"), good(2, "a")}, "1:healthy/100 2:healthy/100 ", 0},
			{10, []cluster.ViewNode{good(1, "a"), bad(2, lost)}, "1:healthy/100 2:unhealthy ", 0},
			{300, []cluster.ViewNode{good(1, "a"), good(2, "a")}, "1:healthy/100 2:unhealthy ", 1010},
			{600, []cluster.ViewNode{good(1, "a"), bad(2, slow)}, "1:healthy/100 2:degraded ", 0},
			{900, []cluster.ViewNode{good(1, "a"), good(2, "a")}, "1:healthy/100 2:degraded ", 1010},
			{1010, nil, "1:healthy/100 2:healthy/100 ", 0},
		},
		"the only one that is well waits for nothing": {
			{0, []cluster.ViewNode{good(1, "a"), good(2, "a")}, "1:healthy/100 2:healthy/100 ", 0},
			{10, []cluster.ViewNode{good(1, "a"), bad(2, lost)}, "1:healthy/100 2:unhealthy ", 0},
			{20, []cluster.ViewNode{bad(1, lost), good(2, "a")}, "1:unhealthy 2:healthy/100 ", 1010},
		},
		"weights move by steps": {
			{0, []cluster.ViewNode{good(1, "a"), good(2, "a")}, "1:healthy/100 2:healthy/100 ", 0},
			{100, []cluster.ViewNode{good(1, "a"), weight(2, 0.4)}, "1:healthy/100 2:healthy/100 ", 1000},
			{1000, nil, "1:healthy/100 2:healthy/75 ", 2000},
			{1500, nil, "1:healthy/100 2:healthy/75 ", 2000},
			{2000, nil, "1:healthy/100 2:healthy/50 ", 3000},
			{3000, nil, "1:healthy/100 2:healthy/40 ", 0},
			{9000, []cluster.ViewNode{good(1, "a"), weight(2, 0.43)}, "1:healthy/100 2:healthy/40 ", 0},
		},
		"the end of a way is reached": {
			{0, []cluster.ViewNode{good(1, "a"), weight(2, 0.97)}, "1:healthy/100 2:healthy/97 ", 0},
			{2000, []cluster.ViewNode{good(1, "a"), weight(2, 1)}, "1:healthy/100 2:healthy/100 ", 0},
		},
		"who returns begins with what it has": {
			{0, []cluster.ViewNode{good(1, "a"), bad(2, lost)}, "1:healthy/100 2:unhealthy ", 0},
			{5000, []cluster.ViewNode{good(1, "a"), weight(2, 0.1)}, "1:healthy/100 2:healthy/10 ", 0},
		},
		"who goes away at once drains first": {
			{0, []cluster.ViewNode{good(1, "a"), good(2, "a")}, "1:healthy/100 2:healthy/100 ", 0},
			{10, []cluster.ViewNode{good(1, "a")}, "1:healthy/100 2:draining ", 5010},
			{5009, nil, "1:healthy/100 2:draining ", 5010},
			{5010, nil, "1:healthy/100 ", 0},
		},
		"an empty view says nothing": {
			{0, []cluster.ViewNode{good(1, "a")}, "1:healthy/100 ", 0},
			{10, nothing, "1:healthy/100 ", 0},
			{99_999, nothing, "1:healthy/100 ", 0},
		},
		"nobody well is no news": {
			{0, []cluster.ViewNode{good(1, "a")}, "1:healthy/100 ", 0},
			{10, []cluster.ViewNode{bad(1, leaving)}, "", 0},
		},
		"an operator's ban drains": {
			{0, []cluster.ViewNode{good(1, "a"), bad(2, cluster.Condition{Banned: true})}, "1:healthy/100 2:draining ", 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(addressed)
			began := time.Unix(1000, 0)
			var nodes []cluster.ViewNode
			for _, step := range steps {
				if step.nodes != nil {
					nodes = step.nodes
				}
				out, wake := m.advance(began.Add(time.Duration(step.ms)*time.Millisecond), cluster.View{Nodes: nodes})
				wakes := 0
				if !wake.IsZero() {
					wakes = int(wake.Sub(began).Milliseconds())
				}
				if got := told(out); got != step.want || wakes != step.wake {
					t.Fatalf("at %d ms: %q, next at %d; want %q, %d", step.ms, got, wakes, step.want, step.wake)
				}
			}
		})
	}
}

// TestAlwaysAcceptable: whatever views come, clients of both flavors accept what is
// made of them, and some node is healthy.
func TestAlwaysAcceptable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	hosts := []string{"node1.example", "node2.example", "nobody.example", "10.1.0.1", "fd00::2", "10.0.0.9"}
	for range rounds.Of(50, 15) {
		m, now := newModel(addressed), time.Unix(1000, 0)
		var last []endpoint
		for range 20 {
			var nodes []cluster.ViewNode
			for id := range cluster.NodeID(12) {
				if rng.IntN(4) == 0 {
					continue
				}
				n := node(id+1, string(rune('a'+rng.IntN(3))), cluster.Use(rng.IntN(3)), 0,
					[]cluster.Condition{{}, slow, lost, leaving}[rng.IntN(4)])
				if n.Use == cluster.UseNew {
					n.Weight = []float32{0, 0.001, 0.5, 1, 1000}[rng.IntN(5)]
				}
				n.Address = fmt.Sprintf("[%s]:%d", hosts[rng.IntN(len(hosts))], 2136+rng.IntN(2))
				nodes = append(nodes, n)
			}
			if out, _ := m.advance(now, cluster.View{Nodes: nodes}); out != nil {
				last = out
			}
			now = now.Add(time.Duration(rng.IntN(2000)) * time.Millisecond)
			if last == nil {
				continue
			}
			p := &plan{database: resource, nodes: last, most: 10, sidecar: netip.MustParseAddrPort("127.0.0.1:7400")}
			for _, f := range flavors {
				if acceptable(t, p, f); t.Failed() {
					t.Fatalf("of %s", told(last))
				}
			}
		}
	}
}

// TestNames: hosts are looked up, again after a while, and keep what they had when
// that fails; who left is forgotten.
func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")}
		var fails, broken bool
		n := newNames(func(context.Context, string) ([]netip.Addr, error) {
			if fails {
				return nil, errors.New("no answer")
			}
			if broken {
				panic("broken")
			}
			return slices.Clone(answers), nil
		})
		want := func(what string, due, pending int, addresses string) {
			t.Helper()
			hosts, left, _ := n.want(time.Now(), []string{"a", "10.9.9.9"})
			if len(hosts) != due || left != pending {
				t.Errorf("%s: %v to look up, %d never; want %d, %d", what, hosts, left, due, pending)
			}
			if unknown := n.look(t.Context(), hosts); (unknown > 0) != (addresses == "[]") {
				t.Errorf("%s: %d without an address", what, unknown)
			}
			if got := fmt.Sprint(n.of("a")); got != addresses {
				t.Errorf("%s: %s; want %s", what, got, addresses)
			}
		}
		fails = true
		want("at first", 1, 1, "[]")
		want("failed just now", 0, 0, "[]")
		time.Sleep(lookupRetry)
		fails = false
		want("again", 1, 0, "[10.0.0.1 fd00::1]")
		time.Sleep(lookupEvery)
		fails = true
		want("the resolver is away", 1, 0, "[10.0.0.1 fd00::1]")
		time.Sleep(lookupRetry)
		fails, broken = false, true
		want("the resolver panics", 1, 0, "[10.0.0.1 fd00::1]")
		n.want(time.Now(), nil)
		if got := n.of("a"); got != nil {
			t.Errorf("a host that left is %v", got)
		}
		if got := fmt.Sprint(n.of("10.9.9.9"), n.of("::ffff:10.0.0.1")); got != "[10.9.9.9] [10.0.0.1]" {
			t.Errorf("addresses are %s", got)
		}
	})
}

// TestPublications: there are at most four a second, whatever comes, and none without
// news.
func TestPublications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Default(), depsOf(nil))
		defer p.Stop()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = p.Run(ctx) }()
		defer func() { cancel(); <-done }()
		for i := range 100 { // 10 seconds
			p.SetView(view(good(1, "a"), good(cluster.NodeID(2+i%50), "a")))
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		n := p.Stats().Published
		if n < 30 || n > 41 {
			t.Errorf("%d publications in 10 s; want about 40", n)
		}
		p.SetView(view(good(1, "a")))
		time.Sleep(10 * time.Second) // all that left has gone
		before := p.Stats().Published
		p.SetView(view(good(1, "a")))
		time.Sleep(10 * time.Second)
		if after := p.Stats().Published; after != before {
			t.Errorf("%d publications without news", after-before)
		}
	})
}

// TestFirstPicture: nothing is published of nodes before all names have been looked up;
// the limit and the end of the sidecar are followed.
func TestFirstPicture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var limit atomic.Int64
		var ends atomic.Bool
		p := New(Default(), depsOf(func(d *Deps) {
			d.Lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
				time.Sleep(time.Second)
				return addressed(host), nil
			}
			d.Max, d.Draining = func() int { return int(limit.Load()) }, ends.Load
		}))
		defer p.Stop()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = p.Run(ctx) }()
		defer func() { cancel(); <-done }()
		named := func(id cluster.NodeID, host string) cluster.ViewNode {
			return with(good(id, "a"), func(n *cluster.ViewNode) { n.Address = host + ":1" })
		}
		p.SetView(view(named(1, "node1.example"), good(2, "a"), named(3, "nobody.example")))
		time.Sleep(900 * time.Millisecond)
		if p.knowsNodes() {
			t.Error("a part of the nodes is published first")
		}
		time.Sleep(time.Second)
		if s := p.State(0); s.Nodes["healthy"] != 2 || s.Unresolved != 1 {
			t.Errorf("%+v; want 2 nodes, and a name without an address", s)
		}
		limit.Store(77)
		ends.Store(true)
		time.Sleep(2 * poll)
		synctest.Wait()
		names := slices.Collect(maps.Keys(p.linear[Envoy].GetResources()))
		if len(names) != 2 {
			t.Errorf("endpoints of %v", names)
		}
		if got := fmt.Sprint(p.current[Envoy]); !containsAll(got, "DRAINING", "154") {
			t.Errorf("neither the limit nor the end is told: %s", got)
		}
	})
}
