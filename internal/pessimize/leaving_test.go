package pessimize

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func TestLeavingByHint(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.report(1, cluster.CallControl, cluster.BlameDraining, 3)
		v := w.conditions()[1]
		if v.Health != cluster.Healthy || !v.Draining || v.Reason != "announced its shutdown" {
			t.Errorf("verdict %+v", v)
		}
		time.Sleep(50 * time.Second)
		w.report(1, cluster.CallControl, cluster.BlameDraining, 1)
		time.Sleep(50 * time.Second)
		if !w.conditions()[1].Draining {
			t.Error("stays, 50 s after its last hint")
		}
		time.Sleep(12 * time.Second)
		if w.conditions()[1].Draining {
			t.Error("still leaving, though listed and answering a minute after its last hint")
		}
	})
}

// The answer to a probe may be the first sign that a node shuts down, or that its address is another's now.
func TestLeavingByProbe(t *testing.T) {
	for _, blame := range []cluster.Blame{cluster.BlameDraining, cluster.BlameForeign} {
		inBubble(t, Default(), func(w *world) {
			w.report(1, cluster.CallProbe, blame, 1)
			if v := w.conditions()[1]; v.Health != cluster.Healthy || !v.Draining {
				t.Errorf("%v: verdict %+v; want leaving", blame, v)
			}
		})
	}
}

func TestLeavingNodeThatGoesAway(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.fail(1, errors.New("connection refused"))
		w.report(1, cluster.CallControl, cluster.BlameDraining, 1)
		time.Sleep(Default().Leaving + time.Second)
		if v := w.conditions()[1]; v.Health == cluster.Healthy || !v.Unreachable || !v.Draining {
			t.Errorf("verdict %+v; want ejected, unreachable, leaving", v)
		}
		w.prober.fail(1, nil) // restarted
		w.awaitHealth(1, cluster.Healthy, 4*time.Second)
		if w.conditions()[1].Draining {
			t.Error("still leaving after it was restarted")
		}
	})
}

// The answer to a probe that began before the node left discovery does not bring it back.
func TestANodeThatLeftIsNotBackByAnOldProbe(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.take(1, 50*time.Millisecond)
		for began := time.Now(); w.prober.count(1) == 0; {
			if time.Since(began) > 2*Default().IdleProbe {
				t.Fatal("no probe of an idle node")
			}
			time.Sleep(minGap)
			synctest.Wait()
		}
		w.SetTopology(nodes(2, 3))
		time.Sleep(time.Second)
		if v := w.conditions()[1]; !v.Draining || v.Reason != "left discovery" || w.prober.count(1) != 1 {
			t.Errorf("verdict %+v after %d probes; want it leaving after the one", v, w.prober.count(1))
		}
	})
}

// A node that an operator drained has its slow start when it is undrained, not while it gets nothing new.
func TestADrainedNodeThatStaysHasNoSlowStart(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.report(1, cluster.CallControl, cluster.BlameDraining, 1)
		w.do(w.Drain(1))
		time.Sleep(Default().Leaving + 2*time.Second)
		v := w.conditions()[1]
		if !v.Draining || v.Ramp != 0 || v.Reason != "drained by an operator; still there after it announced its shutdown" {
			t.Errorf("verdict %+v; want it drained, and all of its share", v)
		}
		w.do(w.Undrain(1))
		if v := w.conditions()[1]; v.Draining || v.Ramp != rampFirst {
			t.Errorf("verdict %+v; want a slow start", v)
		}
	})
}

func TestGoneFromDiscovery(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		w.SetTopology(nodes(3, 4))
		w.SetTopology(cluster.Topology{}) // says nothing
		w.settle()
		if v := w.conditions()[2]; !v.Draining || v.Reason != "left discovery" {
			t.Errorf("verdict %+v", v)
		}
		time.Sleep(Default().Forget / 2)
		w.is(1, cluster.Ejected) // no probes any more
		if n := w.prober.count(1); n != 0 {
			t.Errorf("%d probes of a node that left", n)
		}
		w.SetTopology(nodes(2, 3, 4))
		w.settle()
		if v := w.conditions()[2]; v.Draining || v.Reason != "back in discovery" {
			t.Errorf("verdict %+v", v)
		}
		time.Sleep(Default().Forget/2 + 2*time.Second)
		if _, known := w.conditions()[1]; known || len(w.conditions()) != 3 {
			t.Errorf("verdicts %v; want node 1 forgotten", w.conditions())
		}
	})
}

// A control plane that drains a node says so as long as it lists it: no probe takes
// that back, and nobody forgets the node.
func TestListedAsLeaving(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		list := func(leaving bool) {
			all := slices.Clone(nodes(1, 2, 3, 4).Nodes)
			all[1].Draining = leaving
			w.SetTopology(cluster.NewTopology(all, ""))
			w.settle()
		}
		list(true)
		for range 3 {
			if v := w.conditions()[2]; !v.Draining || v.Reason != drained || v.Health != cluster.Healthy {
				t.Errorf("verdict %+v", v)
			}
			if why, _ := w.Why(2); !why.Draining || !why.Listed || !strings.Contains(why.Summary, "drains it") {
				t.Errorf("why %+v", why)
			}
			time.Sleep(2 * Default().Leaving)
			w.settle()
		}
		list(false)
		if v := w.conditions()[2]; v.Draining || v.Reason != "" {
			t.Errorf("verdict %+v", v)
		}
		w.report(2, cluster.CallControl, cluster.BlameDraining, 1) // the node itself
		w.settle()
		list(true)
		list(false)
		if v := w.conditions()[2]; !v.Draining || v.Reason != "announced its shutdown" {
			t.Errorf("verdict %+v", v)
		}
	})
}

func TestAnotherAddressIsAnotherProcess(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.prober.hang = true
		w.report(1, cluster.CallExecute, cluster.BlameTransport, 2)
		w.awaitHealth(1, cluster.Probing, 2*time.Second)
		w.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: "elsewhere:2136"}}, ""))
		w.settle()
		w.is(1, cluster.Healthy)
		time.Sleep(5 * time.Second) // the result of the old probe comes in
		w.is(1, cluster.Healthy)
	})
}
