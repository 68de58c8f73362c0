package routing

import (
	"errors"
	"slices"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func TestTarget(t *testing.T) {
	forward, fail, scatter := Default(), Default(), Default()
	fail.OwnerUnreachable = Fail
	scatter.Affinity = false
	cut := cluster.Conditions{1: hard, 3: leaving}
	for _, tc := range []struct {
		name      string
		config    Config
		verdicts  cluster.Conditions
		owner     cluster.NodeID
		openTx    bool
		want      cluster.NodeID
		err       error
		forwarded uint64
	}{
		{name: "the_owner", config: forward, owner: 2, want: 2},
		{name: "the_owner_though_ejected", config: forward, verdicts: cluster.Conditions{2: soft}, owner: 2, want: 2},
		{name: "the_owner_though_leaving", config: forward, verdicts: cut, owner: 3, want: 3},
		{name: "another_for_an_open_transaction", config: forward, verdicts: cut, owner: 1, openTx: true, want: 2, forwarded: 1},
		{name: "nobody_for_a_call_without_one", config: forward, verdicts: cut, owner: 1, err: ErrUnreachable},
		{name: "nobody_when_forwarding_is_off", config: fail, verdicts: cut, owner: 1, openTx: true, err: ErrUnreachable},
		{name: "the_owner_when_none_answers", config: forward, verdicts: cluster.Conditions{1: hard, 2: hard, 3: hard},
			owner: 1, openTx: true, want: 1},
		{name: "nobody_for_an_unknown_owner", config: forward, owner: 9, openTx: true, err: ErrGone},
		{name: "a_random_node_without_affinity", config: scatter, verdicts: cut, owner: 1, want: 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New(tc.config)
			r.SetTopology(topology(1, 2, 3))
			r.SetConditions(tc.verdicts)
			got, err := r.Target(tc.owner, tc.openTx)
			if got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("Target = %d, %v; want %d, %v", got, err, tc.want, tc.err)
			}
			if stats := r.Stats(); stats.Forwarded != tc.forwarded {
				t.Errorf("Forwarded = %d; want %d", stats.Forwarded, tc.forwarded)
			}
		})
	}
}

// A session can name a node that is not known by itself: one behind an address that several
// nodes share, or behind the only address that is known. Any of them forwards the call.
func TestTargetOfAnUnknownOwner(t *testing.T) {
	shared, two := topology(1, 2, 5), topology(1, 2, 5)
	shared.Nodes[1].Shared = true
	two.Nodes[1].Shared, two.Nodes[2].Shared = true, true
	for name, tc := range map[string]struct {
		before, now cluster.Topology
		verdicts    cluster.Conditions
		owner       cluster.NodeID
		want        []cluster.NodeID
		err         error
	}{
		"of_two_nodes":                  {now: topology(1, 2), owner: 9, err: ErrGone},
		"the_only_node":                 {now: topology(4), owner: 9, want: []cluster.NodeID{4}},
		"the_only_node_though_lost":     {now: topology(4), verdicts: cluster.Conditions{4: hard}, owner: 9, want: []cluster.NodeID{4}},
		"the_only_one_that_is_listed":   {before: topology(1, 2, 4), now: topology(4), owner: 9, want: []cluster.NodeID{4}},
		"an_address_that_is_shared":     {now: shared, owner: 9, want: []cluster.NodeID{2}},
		"one_of_two_that_are":           {now: two, owner: 9, want: []cluster.NodeID{2, 5}},
		"the_one_that_can_be_reached":   {now: two, verdicts: cluster.Conditions{2: hard}, owner: 9, want: []cluster.NodeID{5}},
		"the_owner_beside_a_shared_one": {now: shared, owner: 1, want: []cluster.NodeID{1}},
		"no_longer_shared":              {before: shared, now: topology(1, 3), owner: 9, err: ErrGone},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(Default())
			r.SetTopology(tc.before)
			r.SetTopology(tc.now)
			r.SetConditions(tc.verdicts)
			for range 20 {
				got, err := r.Target(tc.owner, false)
				if !errors.Is(err, tc.err) || err == nil && !slices.Contains(tc.want, got) {
					t.Errorf("Target = %d, %v; want one of %v, %v", got, err, tc.want, tc.err)
				}
			}
			if alone := r.View().Alone; alone != (len(tc.now.Nodes) == 1) {
				t.Errorf("Alone = %t with %d nodes", alone, len(tc.now.Nodes))
			}
		})
	}
}

func TestTargetOfADepartedOwnerIsNotForwarded(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2))
	r.SetTopology(topology(2))
	r.SetConditions(cluster.Conditions{1: {Health: cluster.Ejected, Unreachable: true, Draining: true}})
	if _, err := r.Target(1, true); !errors.Is(err, ErrUnreachable) {
		t.Errorf("Target = %v; want ErrUnreachable: nobody forwards to a node that left", err)
	}
}

func TestTargetWithoutAffinityIsEven(t *testing.T) {
	config := Default()
	config.Affinity = false
	r := New(config)
	r.SetTopology(topology(1, 2, 3))
	const calls = 30_000
	count := map[cluster.NodeID]int{}
	for range calls {
		id, err := r.Target(1, false)
		if err != nil {
			t.Fatal(err)
		}
		count[id]++
	}
	for id, n := range count {
		if share := float64(n) / calls; share < 0.32 || share > 0.35 {
			t.Errorf("node %d got %.3f of the calls; want a third", id, share)
		}
	}
	if got := r.Stats().Scattered; got != calls {
		t.Errorf("Scattered = %d; want %d", got, calls)
	}
}
