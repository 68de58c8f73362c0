package discovery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// span are the nodes with the ids from first to last.
func span(first, last cluster.NodeID) (all []cluster.Node) {
	for id := first; id <= last; id++ {
		all = append(all, cluster.Node{ID: id, Address: fmt.Sprintf("node-%d:2136", id)})
	}
	return all
}

func topologyOf(nodes ...[]cluster.Node) cluster.Topology {
	return cluster.NewTopology(slices.Concat(nodes...), "")
}

// listing counts the nodes of a topology that are listed and those that are missing.
func listing(t cluster.Topology) [2]int {
	missing := 0
	for _, n := range t.Nodes {
		if n.Missing {
			missing++
		}
	}
	return [2]int{len(t.Nodes) - missing, missing}
}

func TestGuard(t *testing.T) {
	type step struct {
		at     time.Duration
		answer cluster.Topology
		gone   []cluster.NodeID // known to be gone from now on
		want   [2]int           // listed and missing nodes
	}
	moved := span(1, 20)
	for i := range 10 { // other nodes at the addresses of the first ten
		moved[i].ID += 100
	}
	drained := span(1, 20)
	for i := range 10 {
		drained[i].Draining = true
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"a_node_that_vanishes_departs",
			[]step{{0, topologyOf(span(1, 20)), nil, [2]int{20, 0}}, {1, topologyOf(span(2, 20)), nil, [2]int{19, 0}}}},
		{"two_of_three_depart", []step{{0, topologyOf(span(1, 3)), nil, [2]int{3, 0}}, {1, topologyOf(span(3, 3)), nil, [2]int{1, 0}}}},
		{"three_of_twenty_are_held",
			[]step{{0, topologyOf(span(1, 20)), nil, [2]int{20, 0}}, {1, topologyOf(span(4, 20)), nil, [2]int{17, 3}}}},
		{"three_of_four_are_held", []step{{0, topologyOf(span(1, 4)), nil, [2]int{4, 0}}, {1, topologyOf(span(4, 4)), nil, [2]int{1, 3}}}},
		{"a_tenth_departs", []step{{0, topologyOf(span(1, 40)), nil, [2]int{40, 0}}, {1, topologyOf(span(5, 40)), nil, [2]int{36, 0}}}},
		{"more_than_a_tenth_is_held",
			[]step{{0, topologyOf(span(1, 40)), nil, [2]int{40, 0}}, {1, topologyOf(span(6, 40)), nil, [2]int{35, 5}}}},
		{"one_after_the_other_counts_together", []step{
			{0, topologyOf(span(1, 12)), nil, [2]int{12, 0}},
			{1 * time.Second, topologyOf(span(2, 12)), nil, [2]int{11, 0}},
			{2 * time.Second, topologyOf(span(3, 12)), nil, [2]int{10, 0}},
			{3 * time.Second, topologyOf(span(4, 12)), nil, [2]int{9, 1}},
			{4 * time.Second, topologyOf(span(5, 12)), nil, [2]int{8, 2}},
		}},
		{"but_not_over_more_than_the_grace", []step{
			{0, topologyOf(span(1, 12)), nil, [2]int{12, 0}},
			{1 * time.Second, topologyOf(span(2, 12)), nil, [2]int{11, 0}},
			{12 * time.Second, topologyOf(span(3, 12)), nil, [2]int{10, 0}},
			{23 * time.Second, topologyOf(span(4, 12)), nil, [2]int{9, 0}},
		}},
		{"those_that_come_back_are_listed", []step{
			{0, topologyOf(span(1, 200)), nil, [2]int{200, 0}},
			{5 * time.Second, topologyOf(span(1, 20)), nil, [2]int{20, 180}},
			{6 * time.Second, topologyOf(span(1, 150)), nil, [2]int{150, 50}},
			{7 * time.Second, topologyOf(span(1, 200)), nil, [2]int{200, 0}},
			{8 * time.Second, topologyOf(span(1, 20)), nil, [2]int{20, 180}},
			{16 * time.Second, topologyOf(span(1, 20)), nil, [2]int{20, 180}},
		}},
		{"those_that_stay_away_for_the_grace_depart", []step{
			{0, topologyOf(span(1, 200)), nil, [2]int{200, 0}},
			{5 * time.Second, topologyOf(span(1, 20), span(301, 480)), nil, [2]int{200, 180}},
			{14999 * time.Millisecond, topologyOf(span(1, 20), span(301, 480)), nil, [2]int{200, 180}},
			{15 * time.Second, topologyOf(span(1, 20), span(301, 480)), nil, [2]int{200, 0}},
			{16 * time.Second, topologyOf(span(1, 200)), nil, [2]int{200, 180}},
		}},
		{"those_known_to_be_gone_depart", []step{
			{0, topologyOf(span(1, 20)), []cluster.NodeID{1, 2, 3, 4}, [2]int{20, 0}},
			{1, topologyOf(span(11, 20)), nil, [2]int{10, 6}},
			{2, topologyOf(span(11, 20)), []cluster.NodeID{5, 6}, [2]int{10, 4}},
		}},
		{"and_do_not_count", []step{
			{0, topologyOf(span(1, 20)), []cluster.NodeID{1, 2, 3, 4}, [2]int{20, 0}},
			{1, topologyOf(span(7, 20)), nil, [2]int{14, 0}},
		}},
		{"those_that_were_drained_depart",
			[]step{{0, topologyOf(drained), nil, [2]int{20, 0}}, {1, topologyOf(span(11, 20)), nil, [2]int{10, 0}}}},
		{"those_whose_address_another_node_has_depart",
			[]step{{0, topologyOf(span(1, 20)), nil, [2]int{20, 0}}, {1, topologyOf(moved), nil, [2]int{20, 0}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGuard(10 * time.Second)
			gone := map[cluster.NodeID]bool{}
			began := time.Now()
			for i, s := range tc.steps {
				for _, id := range s.gone {
					gone[id] = true
				}
				got := g.take(s.answer, func(id cluster.NodeID) bool { return gone[id] }, began.Add(s.at))
				if listing(got) != s.want {
					t.Errorf("step %d: %v listed and missing; want %v", i, listing(got), s.want)
				}
				if !slices.IsSortedFunc(got.Nodes, func(a, b cluster.Node) int { return int(a.ID) - int(b.ID) }) {
					t.Errorf("step %d: not in order of ID: %v", i, got.Nodes)
				}
				if g.holds() != (s.want[1] > 0) {
					t.Errorf("step %d: holds is %t", i, g.holds())
				}
			}
		})
	}
}

func TestGuardRechecks(t *testing.T) {
	g := newGuard(10 * time.Second)
	nobody := func(cluster.NodeID) bool { return false }
	g.take(topologyOf(span(1, 20)), nobody, time.Now())
	g.take(topologyOf(span(11, 20)), nobody, time.Now())
	if _, changed := g.recheck(nobody); changed {
		t.Error("it changed though nobody is gone")
	}
	one := func(id cluster.NodeID) bool { return id == 5 || id == 15 }
	if got, changed := g.recheck(one); !changed || listing(got) != [2]int{10, 9} {
		t.Errorf("%v, %t; want 10 listed and 9 missing: node 15 is listed, whatever is known of it", listing(got), changed)
	}
	if _, changed := g.recheck(one); changed {
		t.Error("it changed twice")
	}
}

func TestGuardIsBounded(t *testing.T) {
	g := newGuard(time.Hour)
	for i := range cluster.NodeID(short.Of(10, 4)) { // the fourth would hold three times MaxNodes
		got := g.take(topologyOf(span(1+i*cluster.MaxNodes, (i+1)*cluster.MaxNodes)),
			func(cluster.NodeID) bool { return false }, time.Now())
		if n := listing(got)[1]; n > maxHeld {
			t.Fatalf("%d nodes are held; want at most %d", n, maxHeld)
		}
	}
}

// fleet is a source with another server to ask.
type fleet struct {
	*source
	mu    sync.Mutex
	other []time.Duration // when the other was asked
}

func (f *fleet) ListElsewhere(ctx context.Context) (cluster.Topology, error) {
	f.mu.Lock()
	f.other = append(f.other, time.Since(f.began))
	f.mu.Unlock()
	return f.ListEndpoints(ctx)
}

// run200 runs a discovery of 200 nodes whose answers, from the third on, are those of f.
func run200(t *testing.T, f func(n int) cluster.Topology) (*Discovery, *fleet, func() [][2]int) {
	t.Helper()
	s := &fleet{source: &source{began: time.Now(), answer: func(n int) (cluster.Topology, error) {
		if n < 3 {
			return topologyOf(span(1, 200)), nil
		}
		return f(n), nil
	}}}
	d := New(Default(), s, quiet)
	var mu sync.Mutex
	var heard [][2]int
	d.Subscribe(func(t cluster.Topology) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, listing(t))
	})
	run(t, d)
	return d, s, func() [][2]int {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return slices.Compact(slices.Clone(heard))
	}
}

func TestVanishedNodesAreAskedForElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s, heard := run200(t, func(n int) cluster.Topology {
			if n == 3 {
				return topologyOf(span(1, 20))
			}
			return topologyOf(span(1, 200))
		})
		time.Sleep(20 * time.Second)
		if got, want := heard(), [][2]int{{200, 0}, {20, 180}, {200, 0}}; !slices.Equal(got, want) {
			t.Errorf("heard %v; want %v", got, want)
		}
		asked := s.times()
		if gap := asked[3] - asked[2]; gap > time.Second {
			t.Errorf("asked again after %v; want within a second", gap)
		}
		if len(s.other) != 1 || s.other[0] != asked[3] {
			t.Errorf("asked elsewhere at %v; want once, at %v", s.other, asked[3])
		}
		if state := d.State(); state.Missing != 0 || state.Grace != 15*time.Second || d.Held() != 180 {
			t.Errorf("state %d missing, grace %v, %d were held; want 0, 15s, 180", state.Missing, state.Grace, d.Held())
		}
	})
}

func TestVanishedNodesDepartWhenTheyAreKnownToBeGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, heard := run200(t, func(int) cluster.Topology { return topologyOf(span(1, 20)) })
		for began := time.Now(); len(heard()) < 2; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > 20*time.Second {
				t.Fatal("no node is missing")
			}
		}
		if n := d.State().Missing; n != 180 {
			t.Errorf("%d nodes are missing; want 180", n)
		}
		d.SetConditions(cluster.Conditions{
			100: {Health: cluster.Ejected, Unreachable: true}, 101: {Health: cluster.Probing, Unreachable: true}, 102: {Draining: true},
			103: {Health: cluster.Ejected}, 104: {Health: cluster.Suspect, Unreachable: true}, 5: {Draining: true},
		})
		if got, want := heard(), [][2]int{{200, 0}, {20, 180}, {20, 177}}; !slices.Equal(got, want) {
			t.Errorf("heard %v; want %v: three of them are known to be gone", got, want)
		}
		time.Sleep(14 * time.Second)
		if n := d.State().Missing; n != 177 {
			t.Errorf("%d nodes are missing within the grace; want 177", n)
		}
		time.Sleep(8 * time.Second) // the grace of 15 s, and one question more, of 4 to 6 s
		if got, want := heard(), [][2]int{{200, 0}, {20, 180}, {20, 177}, {20, 0}}; !slices.Equal(got, want) {
			t.Errorf("heard %v; want %v", got, want)
		}
	})
}
