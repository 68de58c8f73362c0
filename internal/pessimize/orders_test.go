package pessimize

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func (w *world) do(err error) {
	w.Helper()
	if err != nil {
		w.Error(err)
	}
	w.settle()
}

func TestBan(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.do(w.Ban(1, 0, "disk\nto be "+strings.Repeat("swapped ", 100)))
		v := w.conditions()[1]
		if !v.Banned || v.Health != cluster.Healthy ||
			!strings.HasPrefix(v.Reason, "banned by an operator: disk to be swapped") || len(v.Reason) > 240 ||
			"banned by an operator: "+v.BanReason != v.Reason {
			t.Errorf("verdict %+v", v)
		}
		// The machine goes on underneath, and probes do.
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		if v := w.conditions()[1]; !v.Banned || v.Health != cluster.Ejected || !v.Unreachable {
			t.Errorf("verdict %+v", v)
		}
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
		// It outlives refreshes, another address, and being forgotten.
		w.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: "elsewhere:2136"}, {ID: 2, Address: "node-2:2136"}}, ""))
		w.settle()
		if !w.conditions()[1].Banned {
			t.Error("not banned at another address")
		}
		w.SetTopology(nodes(2, 3))
		time.Sleep(Default().Forget + time.Second)
		if _, known := w.conditions()[1]; known {
			t.Error("not forgotten")
		}
		w.SetTopology(nodes(1, 2, 3))
		w.settle()
		if !w.conditions()[1].Banned {
			t.Error("not banned after it came back")
		}
		w.do(w.Unban(1))
		w.do(w.Unban(1))
		if v := w.conditions()[1]; v.Banned || v.Reason != "" {
			t.Errorf("verdict %+v after Unban", v)
		}
	})
}

func TestABanEnds(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.do(w.Drain(1))
		w.do(w.Ban(1, time.Hour, ""))
		w.do(w.Ban(1, time.Minute, "shorter")) // takes its place
		time.Sleep(59 * time.Second)
		if !w.conditions()[1].Banned {
			t.Error("over too early")
		}
		time.Sleep(time.Second)
		if v := w.conditions()[1]; v.Banned || !v.Draining {
			t.Errorf("verdict %+v after the ban; want drained still", v)
		}
	})
}

func TestDrain(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.do(w.Drain(1))
		w.do(w.Drain(1))
		w.SetTopology(nodes(1, 2, 3))
		time.Sleep(10 * time.Minute) // answered probes do not take it back
		if v := w.conditions()[1]; !v.Draining || v.Health != cluster.Healthy || v.Reason != "drained by an operator" {
			t.Errorf("verdict %+v", v)
		}
		w.report(1, cluster.CallControl, cluster.BlameDraining, 1)
		w.do(w.Undrain(1))
		if v := w.conditions()[1]; !v.Draining || v.Reason != "announced its shutdown" {
			t.Errorf("verdict %+v; want leaving, as it announced itself", v)
		}
		time.Sleep(2 * Default().Leaving)
		if v := w.conditions()[1]; v.Draining {
			t.Errorf("verdict %+v", v)
		}
		var drains int
		for _, e := range w.Events(0) {
			if e.Kind == EventDrain {
				drains++
			}
		}
		if drains != 2 { // idempotent
			t.Errorf("%d events of draining; want 2", drains)
		}
	})
}

func TestOrdersThatMakeNoSense(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		for name, err := range map[string]error{
			"Ban": w.Ban(9, 0, ""), "Unban": w.Unban(9), "Drain": w.Drain(9), "Undrain": w.Undrain(0),
		} {
			if !errors.Is(err, ErrUnknown) {
				t.Errorf("%s of a node that nobody knows: %v", name, err)
			}
		}
		if err := w.Ban(1, -time.Second, ""); err == nil {
			t.Error("banned for less than no time")
		}
		w.SetTopology(nodes(upTo(maxOverrides + 1)...))
		w.settle()
		for _, id := range upTo(maxOverrides) {
			if err := w.Drain(id); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Drain(maxOverrides + 1); err == nil {
			t.Error("no bound")
		}
		if err := w.Undrain(maxOverrides + 1); err != nil {
			t.Errorf("Undrain of a node without orders: %v", err)
		}
	})
}

func TestOrdersFromManyGoroutines(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		var wait sync.WaitGroup
		for g := range 8 {
			wait.Go(func() {
				for i := range 200 {
					id := cluster.NodeID(1 + i%3)
					err := []func() error{
						func() error { return w.Ban(id, time.Duration(i%2)*time.Second, "") },
						func() error { return w.Unban(id) },
						func() error { return w.Drain(id) },
						func() error { return w.Undrain(id) },
					}[(i+g)%4]()
					if err != nil {
						t.Error(err)
					}
					w.Why(id)
					w.Events(0)
					w.Stats()
				}
			})
		}
		wait.Wait()
		for _, id := range upTo(3) {
			w.do(w.Unban(id))
			w.do(w.Undrain(id))
			if v := w.conditions()[id]; v.Banned || v.Draining {
				t.Errorf("node %d: %+v", id, v)
			}
		}
	})
}

func TestPanicIsAnEvent(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		for id := range cluster.NodeID(2) {
			w.prober.fail(id+1, errors.New("down"))
			w.report(id+1, cluster.CallExecute, cluster.BlameTransport, 2)
		}
		if s := w.Stats(); !s.Panic || s.Panics != 1 {
			t.Errorf("stats %+v", s)
		}
		w.prober.fail(1, nil)
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
		var panics []string
		for _, e := range w.Events(0) {
			if e.Kind == EventPanic {
				panics = append(panics, fmt.Sprintf("%s→%s: %s", e.From, e.To, e.Reason))
			}
		}
		want := []string{"→panic: 2 of 3 nodes are ejected; ejections for refusals and latency are ignored",
			"panic→: 1 of 3 nodes are ejected"}
		if strings.Join(panics, "\n") != strings.Join(want, "\n") {
			t.Errorf("events %q; want %q", panics, want)
		}
		if w.Stats().Panic {
			t.Error("still in panic")
		}
		// Of the two that are not banned, one is down: that is half, not more. A
		// ban of the good one makes it all.
		w.do(w.Ban(1, 0, ""))
		if w.Stats().Panic {
			t.Error("a ban of one of two good nodes makes a panic")
		}
		w.do(w.Ban(3, 0, ""))
		if !w.Stats().Panic {
			t.Error("no panic though the only node that is not banned is down")
		}
	})
}

func TestEventsAreBoundedAndNumbered(t *testing.T) {
	config := Default()
	config.SlowStart = 0 // its steps are events as well
	inBubble(t, config, func(w *world) {
		if got := len(w.Events(0)); got != 3 {
			t.Errorf("%d events; want that 3 nodes became known", got)
		}
		for range maxEvents {
			w.do(w.Drain(1))
			w.do(w.Undrain(1))
		}
		all := w.Events(0)
		if len(all) != maxEvents || all[len(all)-1].Seq != 3+2*maxEvents {
			t.Errorf("%d events up to %d", len(all), all[len(all)-1].Seq)
		}
		for i, e := range all[1:] {
			if e.Seq != all[i].Seq+1 {
				t.Fatalf("a gap after %d", all[i].Seq)
			}
		}
		last := all[len(all)-1].Seq
		if got := w.Events(last - 3); len(got) != 3 || got[0].Seq != last-2 {
			t.Errorf("the last three: %v", got)
		}
		if got := w.Events(last + 5); len(got) != 0 {
			t.Errorf("after the end: %v", got)
		}
		if why, _ := w.Why(1); len(why.History) != maxHistory {
			t.Errorf("a history of %d", len(why.History))
		}
		if why, _ := w.Why(2); len(why.History) != 1 {
			t.Errorf("node 2 has the history of another: %v", why.History)
		}
	})
}

func TestWhy(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		if _, known := w.Why(9); known {
			t.Error("explains a node that nobody knows")
		}
		check := func(name string, parts ...string) Why { t.Helper(); return w.explains(t, name, parts...) }
		check("new", "Node 1 is healthy since 0s. Next: probe in ", " if no call comes before.")
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
		why := check("suspect", "is suspect", "UNAVAILABLE on execute", "healthy after 1s without a bad sign if calls succeed")
		if why.TransportRow != (Row{1, 2}) || *why.LastSign != (LastSign{"execute", "transport", "UNAVAILABLE"}) {
			t.Errorf("%+v", why)
		}
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 1)
		w.prober.fail(1, errors.New("connection refused"))
		why = check("ejected", "is ejected", "2 transport errors in a row", "The cause is transport", "It cannot be reached",
			"probes begin in ", "2 good answers in a row bring it back, then 10s of slow start")
		if why.EjectedUntil.IsZero() || why.Ejections["transport"] != 1 || why.Repeats != 1 {
			t.Errorf("%+v", why)
		}
		w.awaitHealth(1, cluster.Probing, 2*time.Second)
		w.settle()
		why = check("probing", "is probing", "probe: connection refused", "probe in ")
		if why.LastProbe == nil || why.LastProbe.Result != "connection refused" || why.NextProbe.IsZero() {
			t.Errorf("%+v", why.LastProbe)
		}
		w.prober.fail(1, nil)
		w.awaitHealth(1, cluster.Healthy, 5*time.Second)
		check("back", "is healthy", "It gets 10% of its share of load", "full share of load in ")
		w.do(w.Ban(1, time.Hour, "new disk. See No. 7"))
		w.do(w.Drain(1))
		why = check("ordered", "An operator drains it", "the ban ends in 1h0m0s; drained until an operator takes it back")
		if !slices.Contains(why.Parts, "An operator banned it: new disk. See No. 7.") {
			t.Errorf("parts %q", why.Parts)
		}
		w.do(w.Unban(1))
		w.do(w.Undrain(1))
		w.slowNode()
		why = check("slow", "is ejected", "The cause is latency; with earlier ejections that are not forgiven yet it is number 2")
		if len(why.History) < 8 {
			t.Errorf("history %v", why.History)
		}
		w.SetTopology(nodes(2, 3))
		w.settle()
		check("gone", "Discovery does not list it", "forgotten in 6m0s unless discovery lists it again")
	})
}

// explains returns what is said of node 1, and checks that its summary has some parts.
func (w *world) explains(t *testing.T, name string, parts ...string) Why {
	t.Helper()
	why, known := w.Why(1)
	if !known {
		t.Fatalf("%s: unknown", name)
	}
	text, err := json.Marshal(why)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(why.Parts, " "); got != why.Summary || len(why.Parts) < 2 {
		t.Errorf("%s: parts %q; want the sentences of %q", name, why.Parts, why.Summary)
	}
	for _, part := range parts {
		if !strings.Contains(why.Summary, part) {
			t.Errorf("%s: %q does not say %q", name, why.Summary, part)
		}
	}
	if len(text) > 8<<10 {
		t.Errorf("%s: %d bytes", name, len(text))
	}
	return why
}

func TestWhySlow(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		all := everywhere(3, statements(100, around(time.Millisecond)))
		all[1] = []traffic{statements(100, around(50*time.Millisecond))}
		w.drive(1, 800*time.Millisecond, all)
		why, _ := w.Why(1)
		if len(why.Latency) != 1 || why.State != "healthy" {
			t.Fatalf("%+v", why)
		}
		s := why.Latency[0]
		if s.Kind != "execute" || s.Calls < s.Least || s.MedianMS < 40 || s.MedianMS > 70 || s.Others != 2 ||
			s.OthersMS > 1.3 || s.Factor != 10 ||
			s.LimitMS < 10 || s.LimitMS > 13 || s.LowerMS <= s.OthersUpperMS || s.SlowSince.IsZero() || s.EjectedAfter != 1 {
			t.Errorf("%+v", s)
		}
		if !strings.Contains(why.Summary, "Its execute calls take ") {
			t.Error(why.Summary)
		}
		// The others are compared as well, and are not slow.
		if why, _ := w.Why(2); why.Latency[0].Others != 2 || !why.Latency[0].SlowSince.IsZero() {
			t.Errorf("%+v", why.Latency)
		}
	})
}

// Orders that another judge had are in force as soon as discovery lists their nodes, and can be taken back before.
func TestAdoptedOrders(t *testing.T) {
	var all []Override
	inBubble(t, Default(), func(w *world) {
		if err := errors.Join(w.Ban(1, time.Minute, "a disk"), w.Drain(1), w.Ban(2, 0, ""), w.Drain(3)); err != nil {
			t.Fatal(err)
		}
		all = w.Overrides()
		all = append(all, Override{Node: 9, Drained: true}, Override{Node: 8})
	})
	inBubble(t, Default(), func(w *world) {
		w.Adopt(all)
		w.settle()
		v := w.conditions()
		if !v[1].Banned || !v[1].Draining || !v[2].Banned || v[2].Draining || v[3].Banned || !v[3].Draining {
			t.Errorf("verdicts %+v", v)
		}
		if err := w.Undrain(9); err != nil {
			t.Error(err)
		}
		if err := w.Undrain(8); !errors.Is(err, ErrUnknown) {
			t.Errorf("an order of nothing: %v", err)
		}
		time.Sleep(time.Minute)
		w.settle()
		if v := w.conditions(); v[1].Banned || !v[1].Draining || !v[2].Banned {
			t.Errorf("after a minute: %+v", v)
		}
	})
}
