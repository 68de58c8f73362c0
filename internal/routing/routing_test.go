package routing

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func topology(ids ...cluster.NodeID) cluster.Topology {
	nodes := make([]cluster.Node, len(ids))
	for i, id := range ids {
		nodes[i] = cluster.Node{ID: id, Address: fmt.Sprintf("node-%d:2136", id)}
	}
	return cluster.NewTopology(nodes, "")
}

var (
	soft    = cluster.Verdict{Health: cluster.Ejected}
	hard    = cluster.Verdict{Health: cluster.Ejected, Unreachable: true}
	probed  = cluster.Verdict{Health: cluster.Probing, Unreachable: true}
	suspect = cluster.Verdict{Health: cluster.Suspect, Unreachable: true}
	leaving = cluster.Verdict{Leaving: true}
	banned  = cluster.Verdict{Banned: true}
	lost    = cluster.Verdict{Banned: true, Health: cluster.Ejected, Unreachable: true}
)

func TestUse(t *testing.T) {
	for _, tc := range []struct {
		name     string
		verdicts cluster.Verdicts // of nodes 1..4
		want     string
		panics   bool
	}{
		{name: "all_healthy", want: "new new new new"},
		{name: "suspects_stay_in_use", verdicts: cluster.Verdicts{1: suspect}, want: "new new new new"},
		{name: "soft_ejection_lets_open_work_finish", verdicts: cluster.Verdicts{1: soft}, want: "open new new new"},
		{name: "unreachable_gets_nothing", verdicts: cluster.Verdicts{1: hard, 2: probed}, want: "none none new new"},
		{name: "leaving_lets_open_work_finish", verdicts: cluster.Verdicts{4: leaving}, want: "new new new open"},
		{name: "half_ejected_is_no_panic", verdicts: cluster.Verdicts{1: soft, 2: soft}, want: "open open new new"},
		{name: "more_than_half_ejected_ignores_soft_ejections", verdicts: cluster.Verdicts{1: soft, 2: soft, 3: hard}, want: "new new none new", panics: true},
		{name: "unreachable_nodes_wait_while_one_answers", verdicts: cluster.Verdicts{1: hard, 2: hard, 3: hard}, want: "none none none new", panics: true},
		{name: "a_refusing_node_comes_before_unreachable_ones", verdicts: cluster.Verdicts{1: hard, 2: hard, 3: hard, 4: soft}, want: "none none none new", panics: true},
		{name: "a_leaving_node_comes_before_unreachable_ones", verdicts: cluster.Verdicts{1: hard, 2: hard, 3: hard, 4: leaving}, want: "none none none new", panics: true},
		{name: "a_refusing_node_comes_before_a_leaving_one", verdicts: cluster.Verdicts{1: soft, 2: leaving, 3: leaving, 4: leaving}, want: "new open open open"},
		{name: "none_answers_so_any_is_tried", verdicts: cluster.Verdicts{1: hard, 2: hard, 3: probed, 4: hard}, want: "new new new new", panics: true},
		{name: "all_refuse_so_all_are_used", verdicts: cluster.Verdicts{1: soft, 2: soft, 3: soft, 4: soft}, want: "new new new new", panics: true},
		{name: "a_banned_node_lets_open_work_finish", verdicts: cluster.Verdicts{1: banned}, want: "open new new new"},
		{name: "a_ban_outlives_trouble_elsewhere", verdicts: cluster.Verdicts{1: banned, 2: hard, 3: hard, 4: hard}, want: "open new new new", panics: true},
		{name: "a_ban_outlives_panic", verdicts: cluster.Verdicts{1: {Banned: true, Health: cluster.Ejected}, 2: soft, 3: soft, 4: soft}, want: "open new new new", panics: true},
		{name: "banned_nodes_do_not_count_for_panic", verdicts: cluster.Verdicts{1: {Banned: true, Health: cluster.Ejected}, 2: {Banned: true, Health: cluster.Ejected}, 3: soft}, want: "open open open new"},
		{name: "the_last_node_is_never_cut_off", verdicts: cluster.Verdicts{1: banned, 2: banned, 3: lost, 4: lost}, want: "new new none none"},
		{name: "not_even_if_it_is_banned_and_lost", verdicts: cluster.Verdicts{1: lost, 2: lost, 3: lost, 4: lost}, want: "new new new new"},
		{name: "all_leave_so_all_are_used", verdicts: cluster.Verdicts{1: leaving, 2: leaving, 3: leaving, 4: leaving}, want: "new new new new"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New(Default())
			r.SetTopology(topology(4, 2, 1, 3))
			r.SetVerdicts(tc.verdicts)
			view := r.View()
			got := ""
			for _, n := range view.Nodes {
				got += n.Use.String() + " "
			}
			if want := tc.want + " "; got != want {
				t.Errorf("uses %q; want %q", got, want)
			}
			if view.Panic != tc.panics {
				t.Errorf("Panic = %v; want %v", view.Panic, tc.panics)
			}
		})
	}
}

// Whatever the verdicts are, new work has somewhere to go, a worse node never
// gets it before a better one, and no order of events changes the outcome.
func TestUseInvariants(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 5_000 {
		n := 1 + random.IntN(6)
		ids := make([]cluster.NodeID, n)
		verdicts := cluster.Verdicts{}
		for i := range ids {
			ids[i] = cluster.NodeID(i + 1)
			verdicts[ids[i]] = cluster.Verdict{
				Health:      cluster.Health(random.IntN(4)),
				Leaving:     random.IntN(3) == 0,
				Unreachable: random.IntN(2) == 0,
				Banned:      random.IntN(4) == 0,
				Share:       float32(random.IntN(2)) / 4,
			}
		}
		r, other := New(Default()), New(Default())
		r.SetTopology(topology(ids...))
		r.SetVerdicts(verdicts)
		other.SetVerdicts(verdicts)
		other.SetTopology(topology(ids...))
		view := r.View()
		if !reflect.DeepEqual(view, other.View()) {
			t.Fatalf("the order of events matters:\n%v\n%v", view, other.View())
		}
		best, reachable := rankGone, false
		for _, node := range view.Nodes {
			if node.Use == cluster.UseNew {
				best = min(best, rankOf(node))
			}
			reachable = reachable || !unreachable(node.Verdict)
		}
		if best == rankGone {
			t.Fatalf("no node may be used: %v", verdicts)
		}
		for _, node := range view.Nodes {
			rank := rankOf(node)
			if rank < best {
				t.Fatalf("node %d is better than those in use: %v", node.ID, view.Nodes)
			}
			if unreachable(node.Verdict) && rank != best && node.Use != cluster.UseNone {
				t.Fatalf("node %d is unreachable and has use %v; another is better", node.ID, node.Use)
			}
			if unreachable(node.Verdict) && !reachable && !node.Verdict.Banned && node.Use != cluster.UseNew {
				t.Fatalf("node %d has use %v, though none answers", node.ID, node.Use)
			}
			want := float32(0)
			if node.Use == cluster.UseNew {
				want = float32(share(node.Verdict))
			}
			if node.Weight != want || node.Load == nil {
				t.Fatalf("node %d has weight %v; want %v: %v", node.ID, node.Weight, want, node)
			}
		}
	}
}

func TestDepartedNode(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2))
	r.SetTopology(topology(1))
	use := func() string {
		n, ok := r.View().Find(2)
		if !ok {
			return "unknown"
		}
		if n.Gone == slices.ContainsFunc(r.builder.topology.Nodes, func(m cluster.Node) bool { return m.ID == 2 }) {
			t.Errorf("node 2 is gone: %t; want the contrary of what discovery lists", n.Gone)
		}
		return n.Use.String()
	}
	steps := []struct {
		name     string
		verdicts cluster.Verdicts
		want     string
	}{
		{"keeps_open_work_before_pessimize_heard_of_it", nil, "open"},
		{"keeps_open_work", cluster.Verdicts{2: leaving}, "open"},
		{"unless_it_is_unreachable", cluster.Verdicts{2: {Health: cluster.Ejected, Unreachable: true, Leaving: true}}, "none"},
		{"until_pessimize_forgets_it", cluster.Verdicts{}, "unknown"},
	}
	for _, step := range steps {
		r.SetVerdicts(step.verdicts)
		if got := use(); got != step.want {
			t.Errorf("%s: use %s; want %s", step.name, got, step.want)
		}
	}
	r.SetTopology(topology(1, 2))
	if got := use(); got != "new" {
		t.Errorf("after it came back: use %s; want new", got)
	}
	r.SetTopology(cluster.Topology{})
	if got := use(); got != "new" {
		t.Errorf("after an empty topology: use %s; want new", got)
	}
	replacement := cluster.NewTopology([]cluster.Node{{ID: 1, Address: "node-1:2136"}, {ID: 3, Address: "node-2:2136"}}, "")
	r.SetTopology(replacement)
	if got := use(); got != "unknown" {
		t.Errorf("after another node took its address: use %s; want unknown", got)
	}
}

// missing marks nodes of a topology of ten: the others are listed.
func missing(ids ...cluster.NodeID) cluster.Topology {
	t := topology(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	for _, id := range ids {
		t.Nodes[id-1].Missing = true
	}
	return t
}

// A node that is listed as unhealthy ranks like one that is ejected for a soft sign.
func TestUnwellNodes(t *testing.T) {
	for _, tc := range []struct {
		name     string
		unwell   int // of nodes 1..4, the first ones
		verdicts cluster.Verdicts
		want     string
		panics   bool
	}{
		{name: "it_gets_nothing_new", unwell: 1, want: "open new new new"},
		{name: "half_is_no_panic", unwell: 2, want: "open open new new"},
		{name: "more_than_half_are_used", unwell: 3, want: "new new new new", panics: true},
		{name: "all_are_used", unwell: 4, want: "new new new new", panics: true},
		{name: "with_ejected_ones_it_is_more_than_half", unwell: 2, verdicts: cluster.Verdicts{4: soft}, want: "new new new new", panics: true},
		{name: "one_that_is_ejected_as_well_counts_once", unwell: 2, verdicts: cluster.Verdicts{1: soft}, want: "open open new new"},
		{name: "unreachable_is_worse", unwell: 3, verdicts: cluster.Verdicts{1: hard}, want: "none new new new", panics: true},
		{name: "leaving_is_worse", unwell: 3, verdicts: cluster.Verdicts{1: leaving}, want: "open new new new", panics: true},
		{name: "banned_is_worse_and_does_not_count", unwell: 2, verdicts: cluster.Verdicts{1: banned, 3: hard}, want: "open new none new", panics: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New(Default())
			all := topology(upTo(4)...)
			for i := range tc.unwell {
				all.Nodes[i].Unwell = true
			}
			r.SetTopology(all)
			r.SetVerdicts(tc.verdicts)
			got := ""
			for _, n := range r.View().Nodes {
				got += n.Use.String() + " "
			}
			if want := tc.want + " "; got != want || r.View().Panic != tc.panics {
				t.Errorf("uses %q, panic %v; want %q, %v", got, r.View().Panic, want, tc.panics)
			}
		})
	}
}

func TestMissingNodes(t *testing.T) {
	for _, tc := range []struct {
		name     string
		topology cluster.Topology
		verdicts cluster.Verdicts
		use      cluster.Use // of node 1
		weight   float32
		panics   bool
	}{
		{name: "it_is_a_reserve", topology: missing(1, 2, 3), use: cluster.UseNew},
		{name: "while_half_is_listed", topology: missing(1, 2, 3, 4, 5), use: cluster.UseNew},
		{name: "it_carries_its_part_when_more_are_missing", topology: missing(1, 2, 3, 4, 5, 6), use: cluster.UseNew, weight: 1},
		{name: "or_missing_and_ejected", topology: missing(1, 2, 3), verdicts: cluster.Verdicts{8: soft, 9: hard, 10: soft}, use: cluster.UseNew, weight: 1},
		{name: "an_ejected_one_gets_nothing", topology: missing(1, 2, 3), verdicts: cluster.Verdicts{1: soft}, use: cluster.UseOpen},
		{name: "nor_does_an_unreachable_one", topology: missing(1, 2, 3), verdicts: cluster.Verdicts{1: hard}, use: cluster.UseNone},
		{name: "nor_a_leaving_one", topology: missing(1, 2, 3), verdicts: cluster.Verdicts{1: leaving}, use: cluster.UseOpen},
		{name: "nor_a_banned_one", topology: missing(1, 2, 3, 4, 5, 6), verdicts: cluster.Verdicts{1: banned}, use: cluster.UseOpen},
		{name: "it_comes_before_nodes_that_leave", topology: missing(1), verdicts: cluster.Verdicts{2: leaving, 3: leaving, 4: leaving, 5: leaving, 6: leaving, 7: leaving, 8: leaving, 9: leaving, 10: leaving}, use: cluster.UseNew, weight: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New(Default())
			r.SetTopology(tc.topology)
			r.SetVerdicts(tc.verdicts)
			view := r.View()
			if n := view.Nodes[0]; n.Use != tc.use || n.Weight != tc.weight {
				t.Errorf("use %v, weight %v; want %v, %v", n.Use, n.Weight, tc.use, tc.weight)
			}
			if view.Panic != tc.panics {
				t.Errorf("Panic is %t", view.Panic)
			}
			if _, err := r.Target(1, true); err != nil {
				t.Errorf("Target of an open transaction: %v", err)
			}
		})
	}
}

// Nodes that left stay addressable for what is open on them, however many left at once.
func TestDepartedNodesWithSomethingOpenStay(t *testing.T) {
	r := New(Default())
	sessions := map[cluster.NodeID]bool{}
	r.KeepWhile(func(id cluster.NodeID) bool { return sessions[id] })
	var all []cluster.NodeID
	for id := range cluster.NodeID(1000) {
		all = append(all, id+1)
	}
	r.SetTopology(topology(all...))
	for id := range cluster.NodeID(300) {
		if !r.Enter(id + 1) {
			t.Fatal("Enter refused")
		}
		sessions[id+301] = true
	}
	r.SetTopology(topology(1000))
	gone := cluster.Verdicts{}
	for _, id := range all[:999] {
		gone[id] = leaving
	}
	r.SetVerdicts(gone)
	for round := range 3 {
		for id := range cluster.NodeID(600) {
			if _, err := r.Target(id+1, true); err != nil {
				t.Fatalf("round %d: node %d: %v", round, id+1, err)
			}
		}
		if got := r.Stats().Departed; got != 600 {
			t.Errorf("round %d: %d departed nodes are kept; want those 600 on which something is open", round, got)
		}
		r.SetVerdicts(nil) // it has forgotten them
		r.SetTopology(topology(1000))
	}
	for id := range cluster.NodeID(300) {
		r.Leave(cluster.Outcome{Node: id + 1})
	}
	clear(sessions)
	r.SetTopology(topology(1000))
	if got := r.Stats().Departed; got != 0 {
		t.Errorf("%d departed nodes are kept when nothing is open; want none", got)
	}
}

func TestDepartedNodesAreBounded(t *testing.T) {
	r := New(Default())
	for id := range cluster.NodeID(500) {
		r.SetTopology(topology(id + 1))
	}
	if got := len(r.View().Nodes); got != 1+minDeparted {
		t.Errorf("%d nodes in the view; want %d", got, 1+minDeparted)
	}
	for id := range cluster.NodeID(2 * maxLoads) {
		r.SetTopology(topology(id + 1))
	}
	if got := len(r.builder.loads); got > maxLoads+1 {
		t.Errorf("%d counters kept; want at most %d", got, maxLoads+1)
	}
}

// A call that enters a node while that is being forgotten leaves no count below zero when the node is back.
func TestACallThatEntersAForgottenNode(t *testing.T) {
	r := New(Default())
	var ids []cluster.NodeID
	for id := range cluster.NodeID(maxLoads + 1) {
		ids = append(ids, id+1)
	}
	r.SetTopology(topology(append(ids, 5000)...))
	old := r.current.Load() // Enter reads it ...
	i, _ := old.index(5000)
	r.SetVerdicts(cluster.Verdicts{5000: {Leaving: true}})
	r.SetTopology(topology(ids...))
	r.SetVerdicts(cluster.Verdicts{5000: {Leaving: true}})
	r.SetVerdicts(cluster.Verdicts{})
	if _, known := r.current.Load().index(5000); known || r.builder.loads[5000] != nil {
		t.Fatal("the node is not forgotten")
	}
	old.loads[i].calls.Add(1) // ... and counts
	r.SetTopology(topology(append(ids, 5000)...))
	r.Leave(cluster.Outcome{Node: 5000})
	if !r.Enter(5000) {
		t.Fatal("the node takes no call")
	}
	nodes := r.Stats().Nodes
	if n := nodes[len(nodes)-1]; n.Node.ID != 5000 || n.Calls != 1 {
		t.Errorf("node %d has %d calls open; want 1", n.Node.ID, n.Calls)
	}
	r.Leave(cluster.Outcome{Node: 5000})
}

// Calls enter and leave while nodes come, leave and are forgotten, and some leave that were counted
// elsewhere: whenever all have left a node, it has no call open, and never less than none.
func TestCountsWhileNodesComeAndGo(t *testing.T) {
	r := New(Default())
	const moving = 4 // nodes that come and go
	var stay []cluster.NodeID
	for id := range cluster.NodeID(maxLoads + 1) {
		stay = append(stay, moving+id+1)
	}
	all, rest, leaves := topology(append(upTo(moving), stay...)...), topology(stay...), cluster.Verdicts{}
	for _, id := range upTo(moving) {
		leaves[id] = cluster.Verdict{Leaving: true}
	}
	r.SetTopology(all)
	open := func(id cluster.NodeID) int64 {
		v := r.current.Load()
		i, ok := v.index(id)
		if !ok {
			return 0
		}
		return v.loads[i].calls.Load()
	}
	var calls, news sync.WaitGroup
	for _, id := range upTo(2 * moving) {
		calls.Go(func() {
			for range 10000 {
				if r.Enter(id) {
					r.Leave(cluster.Outcome{Node: id})
				}
				if n := open(id); n != 0 {
					t.Errorf("node %d has %d calls open; want none", id, n)
					return
				}
			}
		})
		calls.Go(func() {
			for range 10000 {
				r.Leave(cluster.Outcome{Node: id}) // it was counted by a counter that is forgotten
			}
		})
	}
	done := make(chan struct{})
	news.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			r.SetTopology(rest)
			r.SetVerdicts(leaves)
			r.SetVerdicts(nil)
			r.SetTopology(all)
		}
	})
	calls.Wait()
	close(done)
	news.Wait()
	for id, l := range r.builder.loads {
		if n := l.calls.Load(); n != 0 {
			t.Errorf("node %d has %d calls open after all have left", id, n)
		}
	}
}

func TestTarget(t *testing.T) {
	forward, fail, scatter := Default(), Default(), Default()
	fail.OwnerUnreachable = Fail
	scatter.Affinity = false
	cut := cluster.Verdicts{1: hard, 3: leaving}
	for _, tc := range []struct {
		name      string
		config    Config
		verdicts  cluster.Verdicts
		owner     cluster.NodeID
		openTx    bool
		want      cluster.NodeID
		err       error
		forwarded uint64
	}{
		{name: "the_owner", config: forward, owner: 2, want: 2},
		{name: "the_owner_though_ejected", config: forward, verdicts: cluster.Verdicts{2: soft}, owner: 2, want: 2},
		{name: "the_owner_though_leaving", config: forward, verdicts: cut, owner: 3, want: 3},
		{name: "another_for_an_open_transaction", config: forward, verdicts: cut, owner: 1, openTx: true, want: 2, forwarded: 1},
		{name: "nobody_for_a_call_without_one", config: forward, verdicts: cut, owner: 1, err: ErrUnreachable},
		{name: "nobody_when_forwarding_is_off", config: fail, verdicts: cut, owner: 1, openTx: true, err: ErrUnreachable},
		{name: "the_owner_when_none_answers", config: forward, verdicts: cluster.Verdicts{1: hard, 2: hard, 3: hard}, owner: 1, openTx: true, want: 1},
		{name: "nobody_for_an_unknown_owner", config: forward, owner: 9, openTx: true, err: ErrGone},
		{name: "a_random_node_without_affinity", config: scatter, verdicts: cut, owner: 1, want: 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New(tc.config)
			r.SetTopology(topology(1, 2, 3))
			r.SetVerdicts(tc.verdicts)
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
		verdicts    cluster.Verdicts
		owner       cluster.NodeID
		want        []cluster.NodeID
		err         error
	}{
		"of_two_nodes":                  {now: topology(1, 2), owner: 9, err: ErrGone},
		"the_only_node":                 {now: topology(4), owner: 9, want: []cluster.NodeID{4}},
		"the_only_node_though_lost":     {now: topology(4), verdicts: cluster.Verdicts{4: hard}, owner: 9, want: []cluster.NodeID{4}},
		"the_only_one_that_is_listed":   {before: topology(1, 2, 4), now: topology(4), owner: 9, want: []cluster.NodeID{4}},
		"an_address_that_is_shared":     {now: shared, owner: 9, want: []cluster.NodeID{2}},
		"one_of_two_that_are":           {now: two, owner: 9, want: []cluster.NodeID{2, 5}},
		"the_one_that_can_be_reached":   {now: two, verdicts: cluster.Verdicts{2: hard}, owner: 9, want: []cluster.NodeID{5}},
		"the_owner_beside_a_shared_one": {now: shared, owner: 1, want: []cluster.NodeID{1}},
		"no_longer_shared":              {before: shared, now: topology(1, 3), owner: 9, err: ErrGone},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(Default())
			r.SetTopology(tc.before)
			r.SetTopology(tc.now)
			r.SetVerdicts(tc.verdicts)
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
	r.SetVerdicts(cluster.Verdicts{1: {Health: cluster.Ejected, Unreachable: true, Leaving: true}})
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

func TestPickPrefersTheLessLoadedOfTwo(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2, 3, 4))
	r.SetVerdicts(cluster.Verdicts{4: soft})
	for range 3000 {
		n, err := r.Pick()
		if err != nil {
			t.Fatal(err)
		}
		if n.ID == 4 {
			t.Fatal("picked an ejected node")
		}
		if !r.Enter(n.ID) {
			t.Fatalf("node %d is full", n.ID)
		}
	}
	for _, n := range r.Stats().Nodes[:3] {
		if n.Calls < 980 || n.Calls > 1020 {
			t.Errorf("node %d has %d calls; want about 1000", n.Node.ID, n.Calls)
		}
	}
}

func TestPickPassesOverFullNodes(t *testing.T) {
	config := Default()
	config.MaxCallsPerNode = 2
	r := New(config)
	if _, err := r.Pick(); !errors.Is(err, ErrNoNode) {
		t.Fatalf("Pick without nodes = %v; want ErrNoNode", err)
	}
	r.SetTopology(topology(1, 2, 3, 4, 5))
	for _, id := range []cluster.NodeID{1, 1, 2, 2, 3, 3, 5, 5} {
		if !r.Enter(id) {
			t.Fatalf("Enter(%d) refused", id)
		}
	}
	if r.Enter(3) {
		t.Error("Enter admitted a third call")
	}
	if r.Enter(9) {
		t.Error("Enter admitted a call to an unknown node")
	}
	for range 100 {
		if n, err := r.Pick(); err != nil || n.ID != 4 {
			t.Fatalf("Pick = %d, %v; want the one node with room", n.ID, err)
		}
	}
	r.Enter(4)
	r.Enter(4)
	if _, err := r.Pick(); !errors.Is(err, ErrBusy) {
		t.Errorf("Pick with all full = %v; want ErrBusy", err)
	}
	r.Leave(cluster.Outcome{Node: 2})
	if n, err := r.Pick(); err != nil || n.ID != 2 {
		t.Errorf("Pick after Leave(2) = %d, %v; want 2", n.ID, err)
	}
	if got := r.Stats().Nodes[2].Refused; got != 1 {
		t.Errorf("node 3 refused %d; want 1", got)
	}
}

func TestLeaveOfADepartedNode(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2))
	r.Enter(1)
	r.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 3, Address: "node-1:2136"}}, "")) // at its address
	if _, ok := r.View().Find(1); ok {
		t.Fatal("node 1 is still known")
	}
	r.Leave(cluster.Outcome{Node: 1})
	r.Leave(cluster.Outcome{Node: 9})
	r.SetTopology(topology(1, 2))
	if got := r.Stats().Nodes[0].Calls; got != 0 {
		t.Errorf("%d calls open on node 1; want 0", got)
	}
}

// What does not change the view is no news.
func TestSubscribersHearOfChangesOnly(t *testing.T) {
	r := New(Default())
	heard := 0
	r.Subscribe(func(cluster.View) { heard++ })
	step := func(name string, news bool, change func()) {
		t.Helper()
		before := heard
		change()
		if (heard > before) != news {
			t.Errorf("%s: news is %v; want %v", name, heard > before, news)
		}
	}
	since := time.Now()
	quarter := cluster.Verdict{Health: cluster.Suspect, Share: 0.25, Since: since, Reason: "returns"}
	half := quarter
	half.Share = 0.5
	step("the first topology", true, func() { r.SetTopology(topology(1, 2)) })
	step("the same one", false, func() { r.SetTopology(topology(1, 2)) })
	step("no verdicts", false, func() { r.SetVerdicts(nil) })
	step("a verdict", true, func() { r.SetVerdicts(cluster.Verdicts{1: quarter}) })
	step("the same one, made anew", false, func() { r.SetVerdicts(cluster.Verdicts{1: quarter, 2: {}}) })
	step("a larger share", true, func() { r.SetVerdicts(cluster.Verdicts{1: half}) })
	step("a load", false, func() {
		r.Enter(1)
		r.Leave(cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: time.Second})
		r.SetVerdicts(cluster.Verdicts{1: half})
	})
	step("another zone of the node that answered, which counts for nothing here", false, func() {
		again := topology(1, 2)
		again.Zone = "b"
		r.SetTopology(again)
	})
	step("a node that left", true, func() { r.SetTopology(topology(1)) })
	step("that pessimize heard of, too", false, func() { r.SetVerdicts(cluster.Verdicts{1: half, 2: leaving}) })
	step("leaving nodes", true, func() {
		r.SetTopology(topology(1, 2, 3, 4))
		r.SetVerdicts(cluster.Verdicts{1: hard, 2: hard, 4: leaving})
	})
	step("panic, though no node changed", true, func() { r.SetTopology(topology(1, 2, 3)) })
	late := 0
	r.Subscribe(func(cluster.View) { late++ })
	if late != 1 {
		t.Errorf("a late subscriber heard of %d views; want the current one", late)
	}
}

// Only statements that a node carried out show how long it takes, and what they
// showed outlives views.
func TestLeaveObservesSuccess(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2))
	leave := func(k cluster.CallKind, b cluster.Blame, latency time.Duration) {
		r.Enter(1)
		r.Leave(cluster.Outcome{Node: 1, Kind: k, Blame: b, Latency: latency})
	}
	latency := func() time.Duration { return r.View().Nodes[0].Load.Latency() }
	for _, b := range []cluster.Blame{cluster.BlameNone, cluster.BlameRefusal, cluster.BlameTransport, cluster.BlameLeaving} {
		leave(cluster.CallExecute, b, time.Microsecond)
	}
	for _, k := range []cluster.CallKind{cluster.CallOpen, cluster.CallCommit, cluster.CallControl, cluster.CallProbe} {
		leave(k, cluster.BlameSuccess, time.Microsecond)
	}
	for _, o := range []cluster.Outcome{{Blame: cluster.BlameSuccess, Latency: time.Minute}, {Waited: time.Minute}} {
		o.Node, o.Kind, o.Waits = 1, cluster.CallExecute, true // it may have been a shard's
		r.Enter(1)
		r.Leave(o)
	}
	if got := latency(); got != 0 {
		t.Errorf("latency %v; want none: no statement was carried out", got)
	}
	leave(cluster.CallExecute, cluster.BlameSuccess, 8*time.Millisecond)
	leave(cluster.CallExecute, cluster.BlameRefusal, time.Microsecond)
	silent := func(waited time.Duration) {
		r.Enter(1)
		r.Leave(cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Waited: waited})
	}
	silent(7 * time.Millisecond) // the caller had no patience: the node may be as fast as ever
	if got := latency(); got != 8*time.Millisecond {
		t.Errorf("latency %v after a short wait; want 8ms", got)
	}
	silent(16 * time.Millisecond)
	if got := latency(); got != 9*time.Millisecond {
		t.Errorf("latency %v after a long wait without an answer; want 9ms", got)
	}
	silent(time.Millisecond)
	r.SetVerdicts(cluster.Verdicts{1: suspect})
	r.SetTopology(topology(1, 2, 3))
	if got := latency(); got != 9*time.Millisecond {
		t.Errorf("latency %v; want 9ms, also in later views", got)
	}
}

// The cluster's load factor is a node's load average by its processors.
func TestLoadFactorCounts(t *testing.T) {
	r := New(Default())
	nodes := topology(1, 2).Nodes
	nodes[1].LoadFactor = 1
	r.SetTopology(cluster.Topology{Nodes: nodes})
	for id := range cluster.NodeID(2) {
		r.Enter(id + 1)
		r.Leave(cluster.Outcome{Node: id + 1, Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: time.Millisecond})
	}
	if idle, busy := r.View().Nodes[0].Load.Cost(), r.View().Nodes[1].Load.Cost(); busy != 2*idle {
		t.Errorf("a node with load factor 1 costs %d; want twice the %d of an idle one", busy, idle)
	}
}

func TestSubscribersSeeViewsInOrder(t *testing.T) {
	r := New(Default())
	var mu sync.Mutex // proves that calls never overlap
	seen := map[string][]int{}
	subscribe := func(name string) {
		r.Subscribe(func(v cluster.View) {
			if !mu.TryLock() {
				t.Error("two calls at a time")
				return
			}
			defer mu.Unlock()
			seen[name] = append(seen[name], len(v.Nodes))
		})
	}
	subscribe("early")
	if len(seen["early"]) != 0 {
		t.Error("told of a view before there was one")
	}
	r.SetTopology(topology(1))
	subscribe("late")
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for i := range 200 {
				r.SetVerdicts([]cluster.Verdicts{nil, {1: suspect}}[i%2])
			}
		})
	}
	wait.Wait()
	r.SetTopology(topology(1, 2, 3))
	for name, counts := range seen {
		if !slices.IsSorted(counts) || counts[0] != 1 || counts[len(counts)-1] != 3 {
			t.Errorf("%s saw %v nodes; want 1 ... 3", name, counts)
		}
	}
}

func TestSubscriberMayCallTheRouter(t *testing.T) {
	r := New(Default())
	changed := false
	r.Subscribe(func(v cluster.View) {
		if !changed {
			changed = true
			r.SetVerdicts(cluster.Verdicts{1: hard})
		}
	})
	r.SetTopology(topology(1, 2))
	if n, _ := r.View().Find(1); n.Use != cluster.UseNone {
		t.Errorf("use %v; want none: the change made by the subscriber", n.Use)
	}
}

func TestNoAllocation(t *testing.T) {
	r := New(Default())
	r.SetTopology(topology(1, 2, 3))
	if got := testing.AllocsPerRun(1000, func() { oneCall(r) }); got != 0 {
		t.Errorf("%v allocations per call; want 0", got)
	}
}

func oneCall(r *Router) {
	if n, err := r.Pick(); err == nil {
		if id, err := r.Target(n.ID, false); err == nil {
			carriedOut(r, id, time.Millisecond)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	r := New(Default())
	r.SetTopology(topology(1, 2, 3))
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			oneCall(r)
		}
	})
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	if err := (Config{OwnerUnreachable: "maybe", ForwardSilence: -1}).Validate(); err == nil || len(err.(interface{ Unwrap() []error }).Unwrap()) != 4 {
		t.Errorf("Validate = %v; want four faults", err)
	}
	for zone, valid := range map[string]bool{
		"any": true, "local": true, "nearest": true, "a": true, "a,b": true, "a, b": true,
		"": false, "a,": false, ",": false, "a,any": false, "local,a": false,
	} {
		c := Default()
		c.Zone = zone
		if err := c.Validate(); (err == nil) != valid {
			t.Errorf("zone %q: %v", zone, err)
		}
	}
}

// upTo returns the ids from 1 to n.
func upTo(n int) (ids []cluster.NodeID) {
	for id := range cluster.NodeID(n) {
		ids = append(ids, id+1)
	}
	return ids
}

// An update looks at each node a few times, however many nodes there are.
func TestUpdatesAreLinear(t *testing.T) {
	const most = 12 // times that a node is looked at
	for _, count := range []int{50, 5000} {
		r := New(Default())
		r.KeepWhile(func(cluster.NodeID) bool { return true })
		all := topology(upTo(count)...)
		half := topology(upTo(count / 2)...)
		verdicts := cluster.Verdicts{}
		for _, id := range upTo(count) {
			verdicts[id] = cluster.Verdict{Leaving: int(id) > count/2}
		}
		for name, do := range map[string]func(){
			"all nodes":     func() { r.SetTopology(all) },
			"half of them":  func() { r.SetTopology(half) },
			"verdicts":      func() { r.SetVerdicts(verdicts) },
			"none any more": func() { r.SetVerdicts(nil) },
		} {
			r.SetTopology(all)
			before := r.builder.walked
			do()
			if n := r.builder.walked - before; n == 0 || n > most*count {
				t.Errorf("%s: %d nodes are looked at %d times; want at most %d", name, count, n, most*count)
			}
		}
	}
}
