package discovery

import (
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// When nodes that vanish from the answers are held instead of believed to be gone.
const (
	heldLeast = 3  // fewer nodes that vanish are an ordinary scale-in
	heldPart  = 10 // so is one node in ten
	graceRuns = 3  // intervals for which a node is held,
	graceMin  = 10 * time.Second
	maxHeld   = 2 * cluster.MaxNodes // bounds the nodes held at a time
)

// grace is how long a node must be missing before discovery is believed.
func (c Config) grace() time.Duration { return max(graceMin, graceRuns*c.Interval) }

// guard holds nodes that vanish from the answers in numbers: an answer can come from
// a server that has just started and knows a part of the cluster. A held node stays in
// the topology, marked Missing, until an answer lists it, the grace is over, or it is
// known to be gone. Discovery.Run owns it.
//
// Nodes vanish in numbers if within one grace heldLeast of them do, and more than one
// in heldPart, without those that are known to be gone, those that were drained by
// the server that lists them, and those whose address another node has now.
type guard struct {
	grace    time.Duration
	answer   cluster.Topology // the newest
	known    []cluster.Node   // what take returned last
	since    map[cluster.NodeID]time.Time
	began    uint64      // how often a node came to be held
	departed []time.Time // nodes that departed within the grace, unexplained; oldest first
}

func newGuard(grace time.Duration) guard {
	return guard{grace: grace, since: map[cluster.NodeID]time.Time{}}
}

// holds reports whether a node is held.
func (g *guard) holds() bool { return len(g.since) > 0 }

// take returns the topology to go by after an answer. gone reports whether a node is
// known to be gone for a reason other than the answer.
func (g *guard) take(t cluster.Topology, gone func(cluster.NodeID) bool, now time.Time) cluster.Topology {
	g.answer = t
	g.departed = slices.DeleteFunc(g.departed, func(at time.Time) bool { return now.Sub(at) >= g.grace })
	missing := g.missing(gone)
	var fresh, held []cluster.Node
	for _, n := range missing {
		since, known := g.since[n.ID]
		switch {
		case !known:
			fresh = append(fresh, n)
		case now.Sub(since) < g.grace:
			held = append(held, n)
		}
	}
	count := len(held) + len(fresh) + len(g.departed)
	if many := count >= heldLeast && count*heldPart > len(g.known)+len(g.departed); many {
		held = append(held, fresh...)
	} else {
		for range fresh {
			g.departed = append(g.departed, now)
		}
	}
	held = held[:min(len(held), maxHeld)]
	since := make(map[cluster.NodeID]time.Time, len(held))
	for _, n := range held {
		since[n.ID] = now
		if at, known := g.since[n.ID]; known {
			since[n.ID] = at
		} else {
			g.began++
		}
	}
	g.since = since
	return g.merge(held)
}

// recheck returns the topology to go by after news of nodes that are gone; false if it
// is as before.
func (g *guard) recheck(gone func(cluster.NodeID) bool) (cluster.Topology, bool) {
	if !g.holds() {
		return cluster.Topology{}, false
	}
	held := slices.DeleteFunc(g.missing(gone), func(n cluster.Node) bool {
		_, is := g.since[n.ID]
		return !is
	})
	if len(held) == len(g.since) {
		return cluster.Topology{}, false
	}
	since := make(map[cluster.NodeID]time.Time, len(held))
	for _, n := range held {
		since[n.ID] = g.since[n.ID]
	}
	g.since = since
	return g.merge(held), true
}

// missing are the known nodes that the newest answer lacks, without an explanation.
func (g *guard) missing(gone func(cluster.NodeID) bool) (missing []cluster.Node) {
	ids := make(map[cluster.NodeID]bool, len(g.answer.Nodes))
	addresses := make(map[string]bool, len(g.answer.Nodes))
	for _, n := range g.answer.Nodes {
		ids[n.ID], addresses[n.Address] = true, true
	}
	for _, n := range g.known {
		if !ids[n.ID] && !addresses[n.Address] && !n.Draining && !gone(n.ID) {
			missing = append(missing, n)
		}
	}
	return missing
}

// merge adds the held nodes to the newest answer.
func (g *guard) merge(held []cluster.Node) cluster.Topology {
	t := g.answer
	if len(held) > 0 {
		t.Nodes = slices.Clone(t.Nodes)
		for _, n := range held {
			n.Missing = true
			t.Nodes = append(t.Nodes, n)
		}
		slices.SortFunc(t.Nodes, func(a, b cluster.Node) int { return int(a.ID) - int(b.ID) })
	}
	g.known = t.Nodes
	return t
}
