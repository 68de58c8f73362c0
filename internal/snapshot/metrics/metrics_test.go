package metrics

import (
	"strings"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/wire"
	"github.com/ydb-sidecar/sidecar/internal/xds"
)

// tables are all rows that a process may have.
func tables() (all []figure) {
	for _, rows := range [][]figure{
		poolRows, limitRows, nodeRows, routingRows, healthRows, apiRows, appRows, wireRows, xdsRows, processRows, memoryRows,
	} {
		all = append(all, rows...)
	}
	return all
}

// A name is in one row, and a row has a unit, a text that ends, and one way to be read.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range tables() {
		if seen[r.name] {
			t.Errorf("%s is in two rows", r.name)
		}
		seen[r.name] = true
		if r.unit == "" || !strings.HasSuffix(r.help, ".") {
			t.Errorf("%s: unit %q, text %q", r.name, r.unit, r.help)
		}
		if (r.kind == isDecimal) != (r.decimals != nil) || (r.ints == nil) == (r.decimals == nil) {
			t.Errorf("%s is not read in the way of its kind", r.name)
		}
	}
}

// All rows are read from one look, whatever it has not seen.
func TestRowsAreReadFromOneLook(t *testing.T) {
	bare := new(snapshot.Snapshot)
	bare.Limits, bare.Memory, bare.XDS = new(snapshot.LimitsState), new(memguard.State), new(xds.Stats)
	forwarding := new(snapshot.Snapshot)
	*forwarding = *bare
	forwarding.Wire = new(wire.State)
	pools := new(snapshot.Snapshot)
	*pools = *bare
	pools.Starting.ServerSessions = 7
	pools.Wire = &wire.State{Virtual: &virtual.State{
		Sessions: 9, Bound: 4, Pools: []virtual.PoolState{{Idle: 1, InUse: 2, Waiting: 3}, {Idle: 4, InUse: 5, Waiting: 6}},
	}}
	for name, test := range map[string]struct {
		seen *snapshot.Snapshot
		want map[string]int64 // sums over all attributes
	}{
		"without the data path": {bare, map[string]int64{
			"db.client.connection.max": 0, "ydb.sidecar.build.info": 1, "ydb.sidecar.drain.stage": 1,
		}},
		"without sessions": {forwarding, map[string]int64{"ydb.sidecar.forward.held": 0}},
		"with pools of callers": {pools, map[string]int64{
			"db.client.connection.count": 12, "db.client.connection.pending_requests": 9, "db.client.connection.max": 7,
			"ydb.sidecar.virtual.sessions": 9, "ydb.sidecar.virtual.pools": 2,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			looks := 0
			got := collect(t, func() *snapshot.Snapshot { looks++; return test.seen })
			if looks != 1 {
				t.Errorf("%d looks", looks)
			}
			for name, want := range test.want {
				if sum, ok := got[name]; !ok || sum != want {
					t.Errorf("%s: %d, %t; want %d", name, sum, ok, want)
				}
			}
			if _, ok := got["ydb.sidecar.virtual.sessions"]; ok != (test.seen == pools) {
				t.Errorf("sessions of SDKs have values: %t", ok)
			}
		})
	}
}

// collect reads all rows once, and returns the sums of those that have values.
func collect(t *testing.T, look func() *snapshot.Snapshot) map[string]int64 {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	if err := register(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), tables(), look); err != nil {
		t.Fatal(err)
	}
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	sums := map[string]int64{}
	for _, m := range got.ScopeMetrics[0].Metrics {
		var points []metricdata.DataPoint[int64]
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			points = data.DataPoints
		case metricdata.Gauge[int64]:
			points = data.DataPoints
		}
		for _, p := range points {
			sums[m.Name] += p.Value
		}
	}
	return sums
}
