package hop

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

func TestKey(t *testing.T) {
	execute, attach := protocol.Named(protocol.QueryService+"ExecuteQuery"), protocol.Named(protocol.QueryService+"AttachSession")
	const path = "Ydb.Query.V1.QueryService/ExecuteQuery"
	for _, c := range []struct {
		key             Key
		failed, endless bool
		result          string
		attributes      map[string]string
	}{
		{Key{Method: execute, Status: Ydb.StatusIds_SUCCESS}, false, false, "SUCCESS",
			map[string]string{"db.operation.name": "ExecuteQuery", "rpc.method": path, "rpc.response.status_code": "OK"}},
		{Key{Method: execute}, false, false, "SUCCESS",
			map[string]string{"db.operation.name": "ExecuteQuery", "rpc.method": path, "rpc.response.status_code": "OK"}},
		{Key{Method: execute, Status: Ydb.StatusIds_ABORTED, Code: codes.Unavailable}, true, false, "ABORTED",
			map[string]string{"db.operation.name": "ExecuteQuery", "rpc.method": path, "rpc.response.status_code": "OK",
				"db.response.status_code": "ABORTED", "error.type": "ABORTED"}},
		{Key{Method: execute, Code: codes.Unavailable}, true, false, "UNAVAILABLE",
			map[string]string{"db.operation.name": "ExecuteQuery", "rpc.method": path,
				"rpc.response.status_code": "UNAVAILABLE", "db.response.status_code": "UNAVAILABLE",
				"error.type": "UNAVAILABLE"}},
		{Key{Method: attach}, false, true, "SUCCESS",
			map[string]string{"db.operation.name": "AttachSession",
				"rpc.method": "Ydb.Query.V1.QueryService/AttachSession", "rpc.response.status_code": "OK"}},
		{Key{}, false, false, "SUCCESS",
			map[string]string{"db.operation.name": "other", "rpc.method": "_OTHER", "rpc.response.status_code": "OK"}},
	} {
		c.attributes["db.system.name"] = "ydb"
		got := map[string]string{}
		for _, a := range c.key.attributes() {
			got[string(a.Key)] = a.Value.AsString()
		}
		if diff := cmp.Diff(
			c.attributes, got,
		); diff != "" || c.key.Failed() != c.failed || c.key.Endless() != c.endless || c.key.Result() != c.result {
			t.Errorf("%+v: failed %t, endless %t, %s; want %t, %t, %s\n%s", c.key, c.key.Failed(), c.key.Endless(),
				c.key.Result(), c.failed, c.endless, c.result, diff)
		}
	}
}

func TestFailure(t *testing.T) {
	for _, c := range []struct {
		key          Key
		kind, status string
	}{
		{Key{Status: Ydb.StatusIds_ABORTED}, "ydb_error", "ABORTED"},
		{Key{Code: codes.Unavailable}, "transport_error", "UNAVAILABLE"},
	} {
		got := c.key.Failure()
		if len(got) != 2 || got[0] != attribute.String("error.type", c.kind) ||
			got[1] != attribute.String("db.response.status_code", c.status) {
			t.Errorf("%+v: %v; want %s, %s", c.key, got, c.kind, c.status)
		}
	}
}

// Callers bring about no more series than there may be: past that, the node is left out. However many nodes work well,
// those whose calls fail have series of their own, and the other way round. Each call is counted once.
func TestSeriesAreBounded(t *testing.T) {
	d := latency.NewDurations(nil)
	s, m := NewSeries(d, attribute.String("db.namespace", "/local")), protocol.Named(protocol.QueryService+"ExecuteQuery")
	const nodes = maxSeries + 100
	for _, code := range []codes.Code{codes.OK, codes.Unavailable, codes.OK} {
		for i := range nodes {
			s.Add(Key{Node: cluster.NodeID(i + 1), Method: m, Code: code}, time.Second)
		}
	}
	type counted struct {
		nodes          int // with series of their own
		calls, without uint64
	}
	got := map[string]counted{}
	for _, c := range d.Read() {
		why, _ := c.Set.Value("error.type")
		of := got[why.AsString()]
		if of.calls += c.Counts[0]; c.Set.HasValue("ydb.node.id") {
			of.nodes++
		} else {
			of.without += c.Counts[0]
		}
		got[why.AsString()] = of
		if v, _ := c.Set.Value("db.namespace"); v.AsString() != "/local" {
			t.Errorf("%v", c.Set)
		}
	}
	const well = maxSeries - maxFailed
	want := map[string]counted{"": {well, 2 * nodes, 2 * (nodes - well)}, "UNAVAILABLE": {maxFailed, nodes, nodes - maxFailed}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(counted{})); diff != "" {
		t.Error(diff)
	}
	if n := testing.AllocsPerRun(100, func() { s.Add(Key{Node: 1, Method: m}, time.Second) }); n != 0 {
		t.Errorf("%v allocations to count a call", n)
	}
}
