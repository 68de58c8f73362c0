package app

import (
	"cmp"
	"slices"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

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
		switch v := n.Node.Verdict; {
		case v.Health != cluster.Healthy, v.Leaving, v.Unreachable, v.Banned, n.Node.Missing, n.Node.Unwell:
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
	calls, idle, used, creating  int64
	health                       [cluster.Probing + 1]int64
	banned, leaving, unreachable int64
	weight                       float64
}

func (f *nodeFigures) addSessions(n pool.NodeStats) {
	f.idle, f.used, f.creating = f.idle+int64(n.Idle), f.used+int64(n.Leased), f.creating+int64(n.Opening)
}

func (f *nodeFigures) addNode(n routing.NodeStats) {
	v := n.Node.Verdict
	f.calls += n.Calls
	f.health[v.Health]++
	f.banned, f.leaving, f.unreachable = f.banned+one(v.Banned), f.leaving+one(v.Leaving), f.unreachable+one(v.Unreachable)
	f.weight += float64(n.Node.Weight)
}

func (f *nodeFigures) observe(o metric.Observer, in *instruments, id string) {
	with := func(more ...attribute.KeyValue) metric.ObserveOption {
		return metric.WithAttributes(append(more, attribute.String("ydb.node.id", id))...)
	}
	o.ObserveInt64(in.calls, f.calls, with())
	for h, n := range f.health {
		o.ObserveInt64(in.health, n, with(attribute.String("ydb.sidecar.health", cluster.Health(h).String())))
	}
	for mark, n := range map[string]int64{"banned": f.banned, "leaving": f.leaving, "unreachable": f.unreachable} {
		o.ObserveInt64(in.marks, n, with(attribute.String("ydb.sidecar.mark", mark)))
	}
	o.ObserveFloat64(in.weight, f.weight, with())
}

func (f *nodeFigures) observeSessions(o metric.Observer, in *instruments, id string) {
	for state, n := range map[string]int64{"idle": f.idle, "used": f.used, "creating": f.creating} {
		o.ObserveInt64(in.ofNode, n, metric.WithAttributes(attribute.String("ydb.node.id", id), attribute.String("db.client.connection.state", state)))
	}
}

// readNodes reads the figures of nodes. What only rises, and latencies, have no sum over nodes
// without series of their own: these are not always the same.
func (a *App) readNodes(o metric.Observer, in *instruments, sessions []pool.NodeStats, nodes []routing.NodeStats) {
	used := make(map[cluster.NodeID]bool, len(sessions))
	for _, n := range sessions {
		used[n.Node] = n.Sessions > 0
	}
	chosen := a.nodeSeries.choose(nodes, used)
	var others nodeFigures
	text := func(id cluster.NodeID) string { return strconv.FormatUint(uint64(id), 10) }
	for _, n := range sessions {
		if !chosen[n.Node] && len(chosen) == maxNodeSeries {
			others.addSessions(n)
			continue
		}
		var f nodeFigures
		f.addSessions(n)
		f.observeSessions(o, in, text(n.Node))
	}
	for _, n := range nodes {
		if !chosen[n.Node.ID] {
			others.addNode(n)
			continue
		}
		var f nodeFigures
		f.addNode(n)
		f.observe(o, in, text(n.Node.ID))
		of := metric.WithAttributes(attribute.String("ydb.node.id", text(n.Node.ID)))
		o.ObserveInt64(in.overload, int64(n.Refused), of)
		o.ObserveFloat64(in.latency, n.Node.Load.Latency().Seconds(), of)
	}
	if len(nodes) > len(chosen) {
		others.observe(o, in, otherNodes)
		others.observeSessions(o, in, otherNodes)
	}
}
