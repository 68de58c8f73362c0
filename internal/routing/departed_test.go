package routing

import (
	"slices"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

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
		verdicts cluster.Conditions
		want     string
	}{
		{"keeps_open_work_before_pessimize_heard_of_it", nil, "open"},
		{"keeps_open_work", cluster.Conditions{2: leaving}, "open"},
		{"unless_it_is_unreachable", cluster.Conditions{2: {Health: cluster.Ejected, Unreachable: true, Draining: true}}, "none"},
		{"until_pessimize_forgets_it", cluster.Conditions{}, "unknown"},
	}
	for _, step := range steps {
		r.SetConditions(step.verdicts)
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
	gone := cluster.Conditions{}
	for _, id := range all[:999] {
		gone[id] = leaving
	}
	r.SetConditions(gone)
	for round := range 3 {
		for id := range cluster.NodeID(600) {
			if _, err := r.Target(id+1, true); err != nil {
				t.Fatalf("round %d: node %d: %v", round, id+1, err)
			}
		}
		if got := r.Stats().Departed; got != 600 {
			t.Errorf("round %d: %d departed nodes are kept; want those 600 on which something is open", round, got)
		}
		r.SetConditions(nil) // it has forgotten them
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
	r.SetConditions(cluster.Conditions{5000: {Draining: true}})
	r.SetTopology(topology(ids...))
	r.SetConditions(cluster.Conditions{5000: {Draining: true}})
	r.SetConditions(cluster.Conditions{})
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
