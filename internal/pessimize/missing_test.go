package pessimize

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// A missing node keeps its state, is asked by one probe whether it is gone, and the
// whole is two events: that nodes vanished, and how it ended.
func TestMissingNodes(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		w.SetTopology(nodes(1, 2, 3, 4, 5, 6))
		time.Sleep(5 * time.Second)
		w.prober.fail(2, errors.New("connection refused"))
		w.prober.fail(3, ErrRefused)
		before := [2]int{w.prober.count(1), w.prober.count(4)}
		first := w.Stats().Events
		vanished := nodes(1, 2, 3, 4, 5, 6)
		for i := range 3 {
			vanished.Nodes[i].Missing = true
		}
		w.SetTopology(vanished)
		time.Sleep(500 * time.Millisecond)
		w.SetTopology(vanished)
		w.settle()
		verdicts := w.conditions()
		if v := verdicts[1]; v.Health != cluster.Healthy || v.Draining || w.prober.count(1) != before[0]+1 {
			t.Errorf("a node that answers is %+v after %d probes; want as it was, after one", v, w.prober.count(1)-before[0])
		}
		if v := verdicts[2]; v.Health != cluster.Ejected || !v.Unreachable || v.Draining {
			t.Errorf("a node that refuses connections is %+v; want ejected and unreachable", v)
		}
		if v := verdicts[3]; v.Health != cluster.Suspect || v.Draining {
			t.Errorf("a node that refuses a session is %+v; want suspect", v)
		}
		if n := w.prober.count(4); n != before[1] {
			t.Errorf("a listed node got %d probes", n-before[1])
		}
		if why, _ := w.Why(1); !why.Missing || why.Listed || why.Draining ||
			!strings.Contains(why.Summary, "newest answer of discovery lacks it") {
			t.Errorf("Why = %+v", why)
		}
		w.SetTopology(nodes(1, 3, 4, 5, 6))
		w.settle()
		if v := w.conditions(); v[1].Draining || v[3].Draining || !v[2].Draining {
			t.Errorf("after the return of two: %+v", v)
		}
		var told []string
		for _, e := range w.Events(first) {
			if e.Kind == EventMissing {
				told = append(told, e.From+" -> "+e.To+": "+e.Reason)
			}
		}
		want := []string{
			" -> missing: 3 of 6 nodes vanished from discovery at once: they are kept until it is sure",
			"missing -> : of the nodes that vanished at once 2 are listed again, 1 left",
		}
		if !slices.Equal(told, want) {
			t.Errorf("events %q; want %q", told, want)
		}
	})
}

// Many missing nodes are probed at a pace.
func TestProbesOfMissingNodesHaveAPace(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		var all []cluster.NodeID
		for id := range cluster.NodeID(200) {
			all = append(all, id+1)
		}
		w.SetTopology(nodes(all...))
		time.Sleep(5 * time.Second)
		vanished := nodes(all...)
		for i := range vanished.Nodes {
			vanished.Nodes[i].Missing = true
		}
		first := w.Stats().Probes
		w.SetTopology(vanished)
		time.Sleep(time.Second)
		w.settle()
		if n := w.Stats().Probes - first; n < 10 || n > 25 {
			t.Errorf("%d probes in the first second; want about 20", n)
		}
		time.Sleep(11 * time.Second)
		w.settle()
		if n := w.Stats().Probes - first; n < 190 || n > 230 {
			t.Errorf("%d probes in all; want about one of each of 200 nodes", n)
		}
	})
}

// A look between the two halves of a sign does not swallow that it is of a dead connection.
func TestASilentConnectionIsSeenByALookInBetween(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		s := (*w.signs.Load())[1]
		s.silent.Add(1) // as add does it, step by step
		w.nudge()
		w.settle()
		w.is(1, cluster.Healthy)
		s.last.Store(&cluster.Outcome{Node: 1, Kind: cluster.CallProbe, Blame: cluster.BlameTransport, Detail: "SILENT"})
		s.broken.Add(1)
		s.brokenRow.Add(1)
		s.bad.Add(1)
		w.nudge()
		w.settle()
		w.is(1, cluster.Ejected)
		if v := w.conditions()[1]; v.Cause != cluster.CauseSilence {
			t.Errorf("verdict %+v", v)
		}
	})
}
