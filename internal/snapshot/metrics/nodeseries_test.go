package metrics

import (
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
)

// Of more nodes than have series of their own, those have some with which something is wrong, then those in use,
// and who had some keeps them as long as nobody of a higher rank needs the place.
func TestNodesWithSeriesOfTheirOwn(t *testing.T) {
	nodes := make([]routing.NodeStats, 3*maxNodeSeries)
	for i := range nodes {
		nodes[i].Node.ID = cluster.NodeID(i + 1)
		nodes[i].Node.Load = new(cluster.Load)
	}
	used := map[cluster.NodeID]bool{}
	var s nodeSeries
	has := func(t *testing.T, want map[cluster.NodeID]bool) {
		t.Helper()
		chosen := s.choose(nodes, used)
		if len(chosen) != maxNodeSeries {
			t.Errorf("%d nodes have series of their own; want %d", len(chosen), maxNodeSeries)
		}
		for id, is := range want {
			if chosen[id] != is {
				t.Errorf("node %d: %t; want %t", id, chosen[id], is)
			}
		}
	}
	const last = 3 * maxNodeSeries
	has(t, map[cluster.NodeID]bool{1: true, maxNodeSeries: true, last: false})
	nodes[last-1].Node.Condition.Health = cluster.Ejected
	nodes[last-2].Calls = 1
	used[last-2] = true
	has(t, map[cluster.NodeID]bool{last: true, last - 1: true, last - 2: true, maxNodeSeries - 3: true, maxNodeSeries - 2: false})
	nodes[last-1].Node.Condition.Health = cluster.Healthy
	nodes[last-2].Calls = 0
	clear(used)
	has(t, map[cluster.NodeID]bool{last: true, maxNodeSeries - 2: false})
	for i := range maxNodeSeries {
		nodes[maxNodeSeries+i].Node.Condition.Draining = true
	}
	has(t, map[cluster.NodeID]bool{1: false, last: false, maxNodeSeries + 1: true, 2 * maxNodeSeries: true})
	few := nodes[:5]
	if chosen := s.choose(few, used); len(chosen) != 5 {
		t.Errorf("%d of 5 nodes have series of their own", len(chosen))
	}
}

// The levels of all nodes add up, whoever has series of their own, and no metric has more series than telemetry keeps.
func TestSeriesOfManyNodes(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	const count = 2*maxNodeSeries + 7
	var nodes []routing.NodeStats
	var sessions []pool.NodeStats
	for i := range count {
		n := routing.NodeStats{Calls: 2}
		n.Node.ID, n.Node.Load = cluster.NodeID(i+1), new(cluster.Load)
		nodes = append(nodes, n)
		sessions = append(sessions, pool.NodeStats{Node: n.Node.ID, Counts: pool.Counts{Sessions: 3, Idle: 2, InUse: 1}})
	}
	seen := new(snapshot.Snapshot)
	seen.Pool.Nodes, seen.Routed.Nodes = sessions, nodes
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	if err := register(provider, nodeRows, func() *snapshot.Snapshot { return seen }); err != nil {
		t.Fatal(err)
	}
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	sums := map[string]int64{}
	for _, m := range got.ScopeMetrics[0].Metrics {
		points := 0
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			points = len(data.DataPoints)
			for _, p := range data.DataPoints {
				sums[m.Name] += p.Value
			}
		case metricdata.Gauge[int64]:
			points = len(data.DataPoints)
			for _, p := range data.DataPoints {
				sums[m.Name] += p.Value
			}
		case metricdata.Gauge[float64]:
			points = len(data.DataPoints)
		}
		if points > 4*(maxNodeSeries+1) {
			t.Errorf("%s has %d series", m.Name, points)
		}
	}
	if sums["ydb.sidecar.node.calls"] != 2*count || sums["ydb.sidecar.node.sessions"] != 3*count {
		t.Errorf("%d calls, %d sessions; want %d, %d", sums["ydb.sidecar.node.calls"], sums["ydb.sidecar.node.sessions"], 2*count, 3*count)
	}
}
