package routing

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// carriedOut is one statement that the node carried out.
func carriedOut(r *Router, id cluster.NodeID, latency time.Duration) {
	if r.Enter(id) {
		r.Leave(cluster.Outcome{Node: id, Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: latency})
	}
}

// shares returns what part of the calls each node gets when open calls of a
// steady number are under way: the oldest ends when a new one begins.
func shares(t *testing.T, r *Router, open, calls int) map[cluster.NodeID]float64 {
	t.Helper()
	count := map[cluster.NodeID]float64{}
	var underWay []cluster.NodeID
	for range calls {
		if len(underWay) >= max(open, 1) {
			r.Leave(cluster.Outcome{Node: underWay[0]})
			underWay = underWay[1:]
		}
		n, err := r.Pick()
		if err != nil || !r.Enter(n.ID) {
			t.Fatalf("Pick = %d, %v", n.ID, err)
		}
		underWay = append(underWay, n.ID)
		count[n.ID] += 1 / float64(calls)
	}
	for _, id := range underWay {
		r.Leave(cluster.Outcome{Node: id})
	}
	return count
}

func TestPickHeedsWeights(t *testing.T) {
	for _, open := range []int{1, 10, 100} {
		r := New(Default())
		r.SetTopology(topology(1, 2, 3))
		r.SetConditions(cluster.Conditions{3: {Ramp: 0.1}})
		got := shares(t, r, open, 50_000)
		if full := (got[1] + got[2]) / 2; got[3] < 0.05*full || got[3] > 0.2*full || math.Abs(got[1]-got[2]) > 0.05 {
			t.Errorf("%d calls open: shares %v; want a tenth of the others' for node 3", open, got)
		}
	}
}

// Of two nodes with as many calls open, the slower one gets fewer.
func TestPickHeedsLatency(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2, 3))
	for range 100 {
		for id := range cluster.NodeID(3) {
			carriedOut(r, id+1, time.Millisecond<<(2*(id/2))) // node 3: four times the others'
		}
	}
	got := shares(t, r, 60, 50_000)
	if got[3] > 0.2 || got[3] < 0.05 {
		t.Errorf("shares %v; want about a ninth for node 3", got)
	}
}

// A node that never carried out anything looks neither fast nor slow.
func TestUnseenNodesAreTakenForOrdinaryOnes(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2, 3, 4))
	carriedOut(r, 1, 8*time.Millisecond)
	carriedOut(r, 2, 8*time.Millisecond)
	got := shares(t, r, 20, 20_000)
	for id, share := range got {
		if share < 0.2 || share > 0.3 {
			t.Errorf("node %d gets %.2f; want a quarter", id, share)
		}
	}
}

func TestAReturningNodeIsNotAsSlowAsItLeft(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2, 3))
	for range 100 {
		carriedOut(r, 3, time.Second)
	}
	r.SetConditions(cluster.Conditions{3: soft})
	r.SetConditions(nil)
	if got := r.View().Nodes[2].Load.Latency(); got != 0 {
		t.Errorf("taken for %v; want nothing known", got)
	}
}

// A node that is avoided because it was slow shows nothing new: its past must
// not last for ever.
func TestWhatASilentNodeShowedIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Default())
		r.SetTopology(topology(1, 2, 3))
		for id := range cluster.NodeID(3) {
			carriedOut(r, id+1, time.Millisecond)
		}
		for range 100 {
			carriedOut(r, 3, time.Second)
		}
		slow := r.View().Nodes[2].Load
		for i := range 3 { // news of discovery in a hurry are no reason to forget
			r.SetTopology(topology(1, 2, 3))
			if slow.Latency() < 900*time.Millisecond {
				t.Fatalf("forgotten after %d answers in no time", i+1)
			}
		}
		for i := range 2 {
			time.Sleep(silentAfter)
			carriedOut(r, 1, time.Millisecond)
			carriedOut(r, 2, time.Millisecond)
			r.SetTopology(topology(1, 2, 3))
			if forgotten := slow.Latency() == 0; forgotten != (i == 1) {
				t.Errorf("after %v taken for %v", time.Duration(i+1)*silentAfter, slow.Latency())
			}
		}
	})
}

// Nodes of other zones wait until there is no room elsewhere.
func TestPickUsesNodesWithoutWeightLast(t *testing.T) {
	config := Default()
	config.Zone, config.MaxCallsPerNode = "a", 2
	r := New(config)
	r.SetTopology(zoned("aab"))
	var got []cluster.NodeID
	for range 6 {
		n, err := r.Pick()
		if err != nil || !r.Enter(n.ID) {
			t.Fatalf("Pick = %d, %v", n.ID, err)
		}
		got = append(got, n.ID)
	}
	for i, id := range got {
		if (id == 3) != (i >= 4) {
			t.Errorf("picked %v; want node 3 last", got)
			break
		}
	}
	if _, err := r.Pick(); err != ErrBusy {
		t.Errorf("Pick with all full = %v; want ErrBusy", err)
	}
}
