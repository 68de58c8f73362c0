package metrics

import (
	"cmp"
	"slices"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/attribute"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
)

// maxNodeSeries is how many nodes have series of their own in metrics. With four states of each
// that is less than the attribute sets that telemetry keeps of one metric.
const maxNodeSeries = 1000

// otherNodes is the node of the series that all others have together.
const otherNodes = "other"

// nodeSeries is who has series of their own.
type nodeSeries struct {
	mu     sync.Mutex // guards chosen
	chosen map[cluster.NodeID]bool
}

// choose returns the nodes that have series of their own, from now on: all of them, or if they
// are too many, first those with which something is wrong, then those that are in use, and among
// these the ones that had series before.
func (s *nodeSeries) choose(nodes []routing.NodeStats, used map[cluster.NodeID]bool) map[cluster.NodeID]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	type candidate struct {
		id   cluster.NodeID
		rank int
	}
	all := make([]candidate, len(nodes))
	for i, n := range nodes {
		all[i] = candidate{n.Node.ID, 4}
		switch v := n.Node.Condition; {
		case v.Health != cluster.Healthy, v.Draining, v.Unreachable, v.Banned, n.Node.Missing, n.Node.Unwell:
			all[i].rank = 0
		case n.Calls > 0, used[n.Node.ID]:
			all[i].rank = 2
		}
		if !s.chosen[n.Node.ID] {
			all[i].rank++
		}
	}
	if len(all) > maxNodeSeries {
		slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(a.rank-b.rank, cmp.Compare(a.id, b.id)) })
		all = all[:maxNodeSeries]
	}
	s.chosen = make(map[cluster.NodeID]bool, len(all))
	for _, c := range all {
		s.chosen[c.id] = true
	}
	return s.chosen
}

// nodeFigures are levels of one node, or of several together.
type nodeFigures struct {
	id                            string
	one                           *routing.NodeStats // nil: of several
	calls, idle, used, creating   int64
	health                        [cluster.Probing + 1]int64
	banned, draining, unreachable int64
	weight                        float64
}

func (f *nodeFigures) label() attribute.KeyValue { return label("ydb.node.id", f.id) }

func (f *nodeFigures) addSessions(n *pool.NodeStats) {
	f.idle, f.used, f.creating = f.idle+int64(n.Idle), f.used+int64(n.InUse), f.creating+int64(n.Opening)
}

func (f *nodeFigures) addNode(n *routing.NodeStats) {
	v := &n.Node.Condition
	f.calls += n.Calls
	f.health[v.Health]++
	f.banned, f.draining, f.unreachable = f.banned+one(v.Banned), f.draining+one(v.Draining), f.unreachable+one(v.Unreachable)
	f.weight += float64(n.Node.Weight)
}

// figures returns the levels of each series: those of sessions and all others. The last ones are
// of the nodes that have no series of their own, if there are any.
func (s *nodeSeries) figures(sessions []pool.NodeStats, nodes []routing.NodeStats) (ofSessions, ofNodes []nodeFigures) {
	used := make(map[cluster.NodeID]bool, len(sessions))
	for _, n := range sessions {
		used[n.Node] = n.Sessions > 0
	}
	chosen := s.choose(nodes, used)
	others := nodeFigures{id: otherNodes}
	text := func(id cluster.NodeID) string { return strconv.FormatUint(uint64(id), 10) }
	for i := range sessions {
		n := &sessions[i]
		if !chosen[n.Node] && len(chosen) == maxNodeSeries {
			others.addSessions(n)
			continue
		}
		f := nodeFigures{id: text(n.Node)}
		f.addSessions(n)
		ofSessions = append(ofSessions, f)
	}
	for i := range nodes {
		n := &nodes[i]
		if !chosen[n.Node.ID] {
			others.addNode(n)
			continue
		}
		f := nodeFigures{id: text(n.Node.ID), one: n}
		f.addNode(n)
		ofNodes = append(ofNodes, f)
	}
	if len(nodes) > len(chosen) {
		ofSessions, ofNodes = append(ofSessions, others), append(ofNodes, others)
	}
	return ofSessions, ofNodes
}
