package facade

import (
	"context"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/pool"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// TestSystemIsGranted: an app has the class system only where apps.limits gives it.
func TestSystemIsGranted(t *testing.T) {
	all, err := apps.New(apps.Config{Max: 5, Quotas: []string{"ops class=system", "shop class=interactive"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &facadetest.Driver{Answer: facadetest.Echo}
	b := start(t, small(), f, func(d *core.Deps) { d.Apps = all })
	last := func() pool.Class {
		b.Mu.Lock()
		defer b.Mu.Unlock()
		return b.Calls[len(b.Calls)-1].Class
	}
	for _, c := range []struct {
		app, asks string
		want      pool.Class
	}{
		{"ops", "system", pool.System}, {"ops", "batch", pool.Batch}, {"ops", "", pool.Normal},
		{"shop", "system", pool.Interactive}, {"web", "system", pool.Interactive}, {"", "System", pool.Interactive},
		{"web", "interactive", pool.Interactive},
	} {
		for _, body := range []string{`{"sql":"S"}`, `{"sql":"S","priority":"` + c.asks + `"}`} {
			h := facadetest.Header("X-Sidecar-App", c.app, "X-Ydb-Priority", c.asks)
			if status, _, got := facadetest.Send(t, "POST", b.base+"/v1/query", body, h); status != 200 || last() != c.want {
				t.Errorf("http: %s asks for %q: %d %s, class %v; want %v", c.app, c.asks, status, got, last(), c.want)
			}
		}
		if _, _, got := facadetest.Send(
			t, "POST", b.base+"/v1/batch", `{"statements":[{"sql":"S"}],"priority":"`+c.asks+`"}`,
			facadetest.Header("X-Sidecar-App", c.app),
		); last() != c.want {
			t.Errorf("batch: %s asks for %q: %s, class %v; want %v", c.app, c.asks, got, last(), c.want)
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", c.app, "x-ydb-priority", c.asks)
		if _, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "S"}); err != nil || last() != c.want {
			t.Errorf("grpc: %s asks for %q: %v, class %v; want %v", c.app, c.asks, err, last(), c.want)
		}
	}
	lowered := map[string]uint64{}
	for _, s := range all.State([apps.Classes]string{"a", "b", "c", "d"}) {
		lowered[s.App] = s.Lowered
	}
	if lowered["ops"] != 0 || lowered["shop"] != 4 || lowered["web"] != 4 || lowered["default"] != 4 {
		t.Errorf("lowered: %v; want 4 calls each of shop, web and default", lowered)
	}
}

// TestEarlyRefusalsCountInTheirClass: a call that is refused before its body is read counts in the class
// that its headers name, and a class above that of its app is counted once a call.
func TestEarlyRefusalsCountInTheirClass(t *testing.T) {
	all, err := apps.New(apps.Config{Max: 5, Quotas: []string{"greedy bytes_per_second=1 bytes_burst=1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &facadetest.Driver{Answer: facadetest.Echo}
	f.Table = func(string) (*Ydb_Table.DescribeTableResult, error) { return facadetest.KVTable(t), nil }
	b := start(t, withKV(t, plainEntry), f, func(d *core.Deps) { d.Apps = all })
	facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"`+strings.Repeat("S", 1000)+`"}`, facadetest.Header("X-Sidecar-App", "greedy"))
	calls := []struct{ method, path, body string }{
		{"POST", "/v1/tx/begin", `{}`}, {"POST", "/v1/bulk", `{"table":"t","rows":[{"id":1}]}`}, {"POST", "/v1/explain", `{"sql":"S"}`},
		{"PUT", "/v1/kv/plain?id=1", `x`}, {"POST", "/v1/kv/plain:batchGet", `{"ids":["1"]}`},
	}
	for _, c := range calls {
		media := core.MediaJSON
		if c.method == "PUT" {
			media = core.MediaOctets
		}
		h := facadetest.Header("Content-Type", media, "X-Sidecar-App", "greedy", "X-Ydb-Priority", "batch")
		if status, _, got := facadetest.Send(t, c.method, b.base+c.path, c.body, h); status != 429 {
			t.Errorf("%s: %d %s; want 429", c.path, status, got)
		}
	}
	facadetest.Send(t, "POST", b.base+"/v1/explain", `{"sql":"S"}`, facadetest.Header("X-Sidecar-App", "web", "X-Ydb-Priority", "system"))
	var names [apps.Classes]string
	for i := range names {
		names[i] = pool.Class(i).String()
	}
	for _, s := range all.State(names) {
		if s.App == "web" && s.Lowered != 1 {
			t.Errorf("%d calls of web were lowered; want 1", s.Lowered)
		}
		for _, c := range s.Classes {
			if n := c.Refused["bytes_per_second"]; s.App == "greedy" && (n != 0) != (c.Class == "batch") ||
				n != 0 && n != uint64(len(calls)) {
				t.Errorf("%s, class %s: refused %v; want %d in class batch", s.App, c.Class, c.Refused, len(calls))
			}
		}
	}
}

// TestIngestRunsAsItsApp: what a stream of rows asks the cluster for, it does as its app, in its class.
func TestIngestRunsAsItsApp(t *testing.T) {
	w := facadetest.NewWriter(t)
	b := start(t, small(), w.Driver)
	status, _, got := facadetest.Send(
		t, "POST", b.base+"/v1/ingest/dir/items", `{"id":1,"name":"a"}`+"\n",
		facadetest.Header("Content-Type", mediaNDJSON, "X-Sidecar-App", "web", "X-Ydb-Priority", "batch"),
	)
	if status != 200 || w.Row(1) != "a" {
		t.Fatalf("%d %s", status, got)
	}
	b.Mu.Lock()
	for _, c := range b.Calls {
		if c.Class != pool.Batch || c.App == nil || c.App.Name() != "web" {
			t.Errorf("%+v; want class batch, app web", c)
		}
	}
	if len(b.Calls) != 2 {
		t.Errorf("%d calls; want a description and a write", len(b.Calls))
	}
	b.Mu.Unlock()
	if status, _, got := facadetest.Send(
		t, "POST", b.base+"/v1/ingest/dir/items", "{}", facadetest.Header("Content-Type", mediaNDJSON, "X-Ydb-Priority", "urgent"),
	); status != 400 {
		t.Errorf("class urgent: %d %s; want 400", status, got)
	}
}

// TestTheClassArrives: the class that a header names is what the pool is asked for, in every
// call of both APIs, and for the statements of a list.
func TestTheClassArrives(t *testing.T) {
	f := &facadetest.Driver{Answer: facadetest.Echo}
	f.Table = func(string) (*Ydb_Table.DescribeTableResult, error) { return facadetest.KVTable(t), nil }
	f.Bulk = func(*Ydb_Table.BulkUpsertRequest) error { return nil }
	b := start(t, withKV(t, plainEntry), f)
	check := func(t *testing.T, want int) {
		t.Helper()
		b.Mu.Lock()
		defer b.Mu.Unlock()
		calls := 0
		for _, c := range b.Calls {
			if c.Name == "Rollback" {
				continue // on a session that is there
			}
			calls++
			if c.Class != pool.Batch || c.App == nil || c.App.Name() != "web" {
				t.Errorf("%+v; want class batch, app web", c)
			}
		}
		if b.Calls = nil; calls < want {
			t.Errorf("%d calls; want at least %d", calls, want)
		}
	}
	for _, c := range []struct {
		name, method, path, body string
		calls                    int
	}{
		{"query", "POST", "/v1/query", `{"sql":"S"}`, 1},
		{"transact", "POST", "/v1/tx", `{"statements":[{"sql":"S"}]}`, 1},
		{"begin", "POST", "/v1/tx/begin", `{}`, 1},
		{"batch", "POST", "/v1/batch", `{"statements":[{"sql":"S"},{"sql":"S"}]}`, 2},
		{"bulk", "POST", "/v1/bulk", `{"table":"t","rows":[{"id":1}]}`, 2},
		{"explain", "POST", "/v1/explain", `{"sql":"S"}`, 1},
		{"describe", "GET", "/v1/schema/u", "", 1},
		{"kv_get", "GET", "/v1/kv/plain?id=1", "", 1},
		{"kv_put", "PUT", "/v1/kv/plain?id=1", "", 1},
		{"kv_delete", "DELETE", "/v1/kv/plain?id=1", "", 1},
		{"kv_batch", "POST", "/v1/kv/plain:batchGet", `{"ids":["1"]}`, 1},
	} {
		t.Run("http/"+c.name, func(t *testing.T) {
			facadetest.Send(t, c.method, b.base+c.path, c.body, facadetest.Header("X-Ydb-Priority", "batch", "X-Sidecar-App", "web"))
			check(t, c.calls)
		})
	}
	kv := sidecarv1.NewKeyValueClient(b.conn)
	id := &sidecarv1.KvId{Columns: []*sidecarv1.Value{{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: 1}}}}
	for name, c := range map[string]struct {
		call  func(context.Context) error
		calls int
	}{
		"execute": {func(ctx context.Context) error {
			_, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "S"})
			return err
		}, 1},
		"stream": {func(ctx context.Context) error {
			stream, err := b.api.ExecuteStream(ctx, &sidecarv1.ExecuteRequest{Sql: "S"})
			for err == nil {
				_, err = stream.Recv()
			}
			return err
		}, 1},
		"transact": {func(ctx context.Context) error {
			_, err := b.api.Transact(ctx, &sidecarv1.TransactRequest{Statements: []*sidecarv1.Statement{{Sql: "S"}}})
			return err
		}, 1},
		"begin": {func(ctx context.Context) error { _, err := b.api.Begin(ctx, &sidecarv1.BeginRequest{}); return err }, 1},
		"batch": {func(ctx context.Context) error {
			_, err := b.api.Batch(ctx, &sidecarv1.BatchRequest{Statements: []*sidecarv1.BatchStatement{{Sql: "S"}, {Sql: "S"}}})
			return err
		}, 2},
		"bulk": {func(ctx context.Context) error {
			_, err := b.api.BulkUpsert(
				ctx,
				&sidecarv1.BulkUpsertRequest{Table: "w",
					Rows: []*sidecarv1.BulkRow{{Columns: map[string]*sidecarv1.Value{"id": id.Columns[0]}}}},
			)
			return err
		}, 2},
		"explain": {func(ctx context.Context) error {
			_, err := b.api.Explain(ctx, &sidecarv1.ExplainRequest{Sql: "T"})
			return err
		}, 1},
		"describe": {func(ctx context.Context) error {
			_, err := b.api.Describe(ctx, &sidecarv1.DescribeRequest{Path: "v"})
			return err
		}, 1},
		"kv_get": {func(ctx context.Context) error {
			_, err := kv.Get(ctx, &sidecarv1.KvGetRequest{Table: "plain", Id: id})
			return err
		}, 1},
		"kv_put": {func(ctx context.Context) error {
			_, err := kv.Put(ctx, &sidecarv1.KvPutRequest{Table: "plain", Id: id})
			return err
		}, 1},
		"kv_delete": {func(ctx context.Context) error {
			_, err := kv.Delete(ctx, &sidecarv1.KvDeleteRequest{Table: "plain", Id: id})
			return err
		}, 1},
		"kv_batch": {func(ctx context.Context) error {
			_, err := kv.BatchGet(ctx, &sidecarv1.KvBatchGetRequest{Table: "plain", Ids: []*sidecarv1.KvId{id}})
			return err
		}, 1},
	} {
		t.Run("grpc/"+name, func(t *testing.T) {
			_ = c.call(metadata.AppendToOutgoingContext(t.Context(), "x-ydb-priority", "batch", "x-sidecar-app", "web"))
			check(t, c.calls)
		})
	}
}
