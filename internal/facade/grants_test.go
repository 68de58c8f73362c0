package facade

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/audit"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// granted is a service whose apps have these lines of apps.limits, with an open table t.
func granted(t *testing.T, f *facadetest.Driver, lines ...string) (*bench, *apps.Registry) {
	t.Helper()
	all, err := apps.New(apps.Config{Max: 9, Quotas: lines}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f.Answer == nil {
		f.Answer = facadetest.Echo
	}
	f.Bulk = func(*Ydb_Table.BulkUpsertRequest) error { return nil }
	f.Table = func(string) (*Ydb_Table.DescribeTableResult, error) { return facadetest.KVTable(t), nil }
	return start(t, withKV(t, plainEntry), f, func(d *core.Deps) { d.Apps = all }), all
}

// grantCalls is one call of each kind that is about table t, over both APIs.
var grantCalls = map[string]struct {
	method, path, body string
	grpc               func(ctx context.Context, b *bench) error
}{
	"select": {"POST", "/v1/query", `{"sql":"SELECT * FROM t"}`, func(ctx context.Context, b *bench) error {
		_, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT * FROM t"})
		return err
	}},
	"upsert": {"POST", "/v1/query", `{"sql":"UPSERT INTO t (id) VALUES (1)"}`, func(ctx context.Context, b *bench) error {
		_, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "UPSERT INTO t (id) VALUES (1)"})
		return err
	}},
	"create": {"POST", "/v1/query", `{"sql":"CREATE TABLE t (id Int32, PRIMARY KEY (id))"}`, func(ctx context.Context, b *bench) error {
		_, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "CREATE TABLE t (id Int32, PRIMARY KEY (id))"})
		return err
	}},
	"stream": {"POST", "/v1/query?stream", `{"sql":"SELECT * FROM t"}`, func(ctx context.Context, b *bench) error {
		stream, err := b.api.ExecuteStream(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT * FROM t"})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}},
	"list": {"POST", "/v1/tx", `{"statements":[{"sql":"SELECT 1"},{"sql":"UPSERT INTO t (id) VALUES (1)"}]}`,
		func(ctx context.Context, b *bench) error {
			_, err := b.api.Transact(ctx, &sidecarv1.TransactRequest{
				Statements: []*sidecarv1.Statement{{Sql: "SELECT 1"}, {Sql: "UPSERT INTO t (id) VALUES (1)"}},
			})
			return err
		}},
	"begin": {"POST", "/v1/tx/begin", `{}`, func(ctx context.Context, b *bench) error {
		_, err := b.api.Begin(ctx, &sidecarv1.BeginRequest{})
		return err
	}},
	"explain": {"POST", "/v1/explain", `{"sql":"UPSERT INTO t (id) VALUES (1)"}`, func(ctx context.Context, b *bench) error {
		_, err := b.api.Explain(ctx, &sidecarv1.ExplainRequest{Sql: "UPSERT INTO t (id) VALUES (1)"})
		return err
	}},
	"describe": {"GET", "/v1/schema/t", "", func(ctx context.Context, b *bench) error {
		_, err := b.api.Describe(ctx, &sidecarv1.DescribeRequest{Path: "t"})
		return err
	}},
	"bulk": {"POST", "/v1/bulk", `{"table":"t","rows":[{"id":1}]}`, func(ctx context.Context, b *bench) error {
		_, err := b.api.BulkUpsert(ctx, &sidecarv1.BulkUpsertRequest{
			Table: "t", Rows: []*sidecarv1.BulkRow{{Columns: map[string]*sidecarv1.Value{"id": kvID().Columns[0]}}},
		})
		return err
	}},
	"ingest": {"POST", "/v1/ingest/t", "{\"id\":1}\n", func(ctx context.Context, b *bench) error {
		stream, err := b.ingest.Ingest(ctx)
		if err == nil {
			err = stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: "t"}}})
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}},
	"get": {"GET", "/v1/kv/plain?id=1", "", func(ctx context.Context, b *bench) error {
		_, err := sidecarv1.NewKeyValueClient(b.conn).Get(ctx, &sidecarv1.KvGetRequest{Table: "plain", Id: kvID()})
		return err
	}},
	"batch get": {"POST", "/v1/kv/plain:batchGet", `{"ids":["1","2","3"]}`, func(ctx context.Context, b *bench) error {
		_, err := sidecarv1.NewKeyValueClient(b.conn).BatchGet(ctx, &sidecarv1.KvBatchGetRequest{
			Table: "plain", Ids: []*sidecarv1.KvId{kvID(), kvID(), kvID()},
		})
		return err
	}},
	"put": {"PUT", "/v1/kv/plain?id=1", "x", func(ctx context.Context, b *bench) error {
		_, err := sidecarv1.NewKeyValueClient(b.conn).Put(ctx, &sidecarv1.KvPutRequest{Table: "plain", Id: kvID()})
		return err
	}},
	"delete": {"DELETE", "/v1/kv/plain?id=1", "", func(ctx context.Context, b *bench) error {
		_, err := sidecarv1.NewKeyValueClient(b.conn).Delete(ctx, &sidecarv1.KvDeleteRequest{Table: "plain", Id: kvID()})
		return err
	}},
}

// TestAppsDoWhatTheyMay: every call of the plain API is checked against every grant, over both APIs.
func TestAppsDoWhatTheyMay(t *testing.T) {
	b, all := granted(
		t, facadetest.NewWriter(t).Driver, "free weight=1", "keys calls=kv", "sql calls=statements",
		"rows calls=bulk,describe",
		"reader read_only=yes", "here tables=t", "there tables=other/*", "few rows=2",
	)
	all14 := "batch get begin bulk create delete describe explain get ingest list put select stream upsert"
	for app, denied := range map[string]string{
		"free":   "",
		"nobody": "",
		"keys":   "begin bulk create describe explain ingest list select stream upsert",
		"sql":    "batch get bulk delete describe get ingest put",
		"rows":   "batch get begin create delete explain get list put select stream upsert",
		"reader": "bulk create delete ingest list put upsert",
		"here":   "create",
		"there":  strings.ReplaceAll(all14, " begin", ""),
		"few":    "batch get",
	} {
		expected := strings.ReplaceAll(" "+denied+" ", " batch get ", " batchget ")
		for name, call := range grantCalls {
			want := strings.Contains(expected, " "+strings.ReplaceAll(name, "batch get", "batchget")+" ")
			header := []string{"X-Sidecar-App", app}
			path := call.path
			if base, ok := strings.CutSuffix(path, "?stream"); ok {
				path = base
				header = append(header, "Accept", mediaNDJSON)
			}
			if name == "put" {
				header = append(header, "Content-Type", "application/octet-stream")
			}
			if name == "ingest" {
				header = append(header, "Content-Type", mediaNDJSON)
			}
			status, _, text := facadetest.Send(t, call.method, b.base+path, call.body, facadetest.Header(header...))
			if got := strings.Contains(text, `"APP_DENIED"`); got != want ||
				got && (status != 403 || strings.Contains(text, `"safe_to_retry":true`)) {
				t.Errorf("http: %s calls %s: %d %.200s; denied is to be %t", app, name, status, text, want)
			}
			if want && !strings.Contains(text, "app "+app+" has ") {
				t.Errorf("http: %s calls %s: %s; want the app and its grant", app, name, text)
			}
			if err := call.grpc(metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", app), b); isDenied(err) != want {
				t.Errorf("grpc: %s calls %s: %v; denied is to be %t", app, name, err, want)
			}
		}
	}
	for _, s := range all.State([apps.Classes]string{"a", "b", "c", "d"}) {
		if s.App == "few" && s.Denied["rows"] != 2 || s.App == "keys" && s.Denied["calls"] != 20 || s.App == "free" && s.Denied != nil {
			t.Errorf("%s: %v", s.App, s.Denied)
		}
	}
}

func kvID() *sidecarv1.KvId {
	return &sidecarv1.KvId{Columns: []*sidecarv1.Value{{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: 1}}}}
}

func isDenied(err error) bool {
	for _, detail := range status.Convert(err).Details() {
		if e, ok := detail.(*sidecarv1.Error); ok {
			return e.Code == "APP_DENIED" && !e.SafeToRetry && !e.OutcomeUnknown
		}
	}
	return false
}

// TestStatementsOfGrants: what a text does and which tables it names, in a batch and in an open transaction, too.
func TestStatementsOfGrants(t *testing.T) {
	b, _ := granted(t, &facadetest.Driver{}, "shop tables=shop/*,shared", "reader tables=shop/* read_only=yes")
	for _, tc := range []struct{ app, sql, denied string }{
		{"shop", "SELECT * FROM `shop/a` AS a JOIN shared AS s ON a.i = s.i", ""},
		{"shop", "SELECT * FROM `/local/shop/a`", ""},
		{"shop", "PRAGMA TablePathPrefix = '/local/shop'; UPSERT INTO a (i) VALUES (1)", ""},
		{"shop", "SELECT 1", ""},
		{"shop", "SELECT * FROM `shop/../secret`", "an empty part, . or .."},
		{"shop", "SELECT * FROM `/local/secret`", "table \\\"secret\\\" is not one of them"},
		{"shop", "SELECT * FROM `/localshop/a`", "has an empty part"},
		{"shop", "SELECT * FROM shared WHERE i IN (SELECT i FROM secret)", "table \\\"secret\\\""},
		{"shop", "$t = 'secret'; SELECT * FROM $t", "cannot be told with certainty: it reads from a named expression"},
		{"reader", "SELECT * FROM `shop/a`", ""},
		{"reader", "UPSERT INTO `shop/a` (i) VALUES (1)", "does not certainly only read"},
		{"reader", "SELECT * FROM shared", "tables=shop/*"},
	} {
		tx := beginTx(t, b, tc.app)
		for path, body := range map[string]string{
			"/v1/query":    `{"sql":"` + tc.sql + `"}`,
			"/v1/batch":    `{"statements":[{"sql":"SELECT 1"},{"sql":"` + tc.sql + `"}]}`,
			"/v1/query tx": `{"sql":"` + tc.sql + `","tx":{"id":"` + tx + `"}}`,
		} {
			path, _, _ := strings.Cut(path, " ")
			_, _, text := facadetest.Send(t, "POST", b.base+path, body, facadetest.Header("X-Sidecar-App", tc.app))
			if denied := strings.Contains(text, `"APP_DENIED"`); denied != (tc.denied != "") || !strings.Contains(text, tc.denied) {
				t.Errorf("%s, %s: %s: %s; want denied with %q", path, tc.app, tc.sql, text, tc.denied)
			}
			if tc.denied != "" && strings.Contains(text, "WHERE") {
				t.Errorf("%s quotes the statement: %s", path, text)
			}
		}
		// The denial left the transaction open, and its app may end it.
		if status, _, text := facadetest.Send(
			t, "POST", b.base+"/v1/tx/"+tx+"/rollback", "{}", facadetest.Header("X-Sidecar-App", tc.app),
		); status != 200 {
			t.Errorf("rollback: %d %s", status, text)
		}
	}
}

// beginTx begins a transaction of an app, and returns its id.
func beginTx(t *testing.T, b *bench, app string) string {
	t.Helper()
	r, err := b.api.Begin(metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", app), &sidecarv1.BeginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetTx().GetId()
}

// TestDenialsAreInTheLog: the line names the caller, the call and the grant, and neither the text nor the token.
func TestDenialsAreInTheLog(t *testing.T) {
	const secret = "a-token-of-sixteen-bytes"
	all, err := apps.New(apps.Config{Max: 9, Quotas: []string{"shop tables=shop/*"}, Token: []string{"shop=" + secret}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo}, func(d *core.Deps) {
		d.Apps, d.Audit = all, audit.New(slog.New(slog.NewTextHandler(&out, nil)))
	})
	for _, path := range []string{"/v1/query", "/v1/batch", "grpc"} {
		out.Reset()
		body := `{"sql":"SELECT 'planted' FROM secret"}`
		what := "Execute"
		switch path {
		case "grpc":
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secret)
			if _, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 'planted' FROM secret"}); err == nil {
				t.Error("grpc: it was not denied")
			}
		case "/v1/batch":
			body, what = `{"statements":[`+body+`]}`, "Batch"
			fallthrough
		default:
			facadetest.Send(t, "POST", b.base+path, body, facadetest.Header("Authorization", "Bearer "+secret))
		}
		for _, want := range []string{"msg=denied", `who="a token"`, "app=shop", "what=" + what, "outcome=\"tables=shop/*\""} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q; want %s", path, out.String(), want)
			}
		}
		if strings.Count(out.String(), "\n") != 1 || strings.Contains(out.String(), "planted") || strings.Contains(out.String(), secret) {
			t.Errorf("%s: %q; want one line without the text and the token", path, out.String())
		}
	}
}

// TestRowsOfGrantsAreCut: as at the caller's own limit, the answer says that there is more.
func TestRowsOfGrantsAreCut(t *testing.T) {
	b, _ := granted(t, &facadetest.Driver{}, "few rows=2")
	for _, tc := range []struct {
		app, limit, rows string
		cut              bool
	}{{"few", "", "2", true}, {"few", `,"limits":{"rows":1}`, "1", true}, {"few", `,"limits":{"rows":5}`, "2", true},
		{"free", "", "3", false}} {
		body := `{"sql":"S","params":{"a":1,"b":2,"c":3}` + tc.limit + `}`
		for _, media := range []string{"application/json", mediaNDJSON} {
			h := facadetest.Header("X-Sidecar-App", tc.app, "Accept", media)
			_, _, text := facadetest.Send(t, "POST", b.base+"/v1/query", body, h)
			if n := strings.Count(text, `"Int64"`); itoa(n) != tc.rows || strings.Contains(text, `"truncated":true`) != tc.cut {
				t.Errorf("%s%s as %q: %d rows: %s; want %s, cut: %t", tc.app, tc.limit, media, n, text, tc.rows, tc.cut)
			}
		}
	}
}

// TestRepeatsKeepToGrants: an app that repeats the statement or the list of another one gets no more rows than it may.
func TestRepeatsKeepToGrants(t *testing.T) {
	b, _ := granted(t, &facadetest.Driver{}, "few rows=2")
	call := func(app, path, body string) string {
		t.Helper()
		status, _, text := facadetest.Send(t, "POST", b.base+path, body, facadetest.Header("X-Sidecar-App", app))
		if status != 200 {
			t.Fatalf("%s %s: %d %s", path, body, status, text)
		}
		return text
	}
	_, id, _ := strings.Cut(call("free", "/v1/tx/begin", "{}"), `"id":"`)
	id, _, _ = strings.Cut(id, `"`)
	one := `"sql":"S","params":{"a":1,"b":2,"c":3}`
	for _, step := range []struct{ path, body string }{
		{"/v1/query", `{` + one + `,"tx":{"id":"` + id + `","seq":1}}`},
		{"/v1/tx", `{"statements":[{` + one + `}],"tx":{"id":"` + id + `","seq":2}}`},
	} {
		for _, tc := range []struct {
			app  string
			rows int
		}{{"free", 3}, {"few", 2}, {"free", 3}} {
			text := call(tc.app, step.path, step.body)
			if n := strings.Count(text, `"Int64"`); n != tc.rows || strings.Contains(text, `"truncated":true`) != (n < 3) {
				t.Errorf("%s for %s: %d rows: %s; want %d", step.path, tc.app, n, text, tc.rows)
			}
		}
	}
}

// TestTimeoutsOfGrants: a call takes no longer than its app may, whatever it asks for, and hears why.
func TestTimeoutsOfGrants(t *testing.T) {
	f := &facadetest.Driver{}
	f.Answer = func(ctx context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest) (
		[]*Ydb_Query.ExecuteQueryResponsePart, error,
	) {
		until, _ := ctx.Deadline()
		if time.Until(until) > time.Second {
			return facadetest.Echo(ctx, s, req)
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	b, _ := granted(t, f, "quick timeout=20ms")
	for _, timeout := range []string{"", `,"timeout":"30s"`} {
		body := `{"sql":"S"` + timeout + `}`
		_, _, text := facadetest.Send(t, "POST", b.base+"/v1/query", body, facadetest.Header("X-Sidecar-App", "quick"))
		if !strings.Contains(text, "DEADLINE_EXCEEDED") || !strings.Contains(text, "timeout=20ms in apps.limits") {
			t.Errorf("%s: %s; want the end of its time, by the grant", body, text)
		}
		if status, _, text := facadetest.Send(t, "POST", b.base+"/v1/query", body, nil); status != 200 {
			t.Errorf("another app: %d %s", status, text)
		}
	}
	_, _, text := facadetest.Send(t, "POST", b.base+"/v1/batch", `{"statements":[{"sql":"S"}],"timeout":"30s"}`,
		facadetest.Header("X-Sidecar-App", "quick"))
	if !strings.Contains(text, "DEADLINE_EXCEEDED") || !strings.Contains(text, "timeout=20ms in apps.limits") {
		t.Errorf("a statement of a batch: %s; want the end of its time, by the grant", text)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", "quick")
	if _, err := b.api.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "S", Timeout: "1m"}); err == nil ||
		!strings.Contains(err.Error(), "timeout=20ms") {
		t.Errorf("grpc: %v", err)
	}
}

// TestClassesOfGrants: no call has a class above the highest of its app.
func TestClassesOfGrants(t *testing.T) {
	b, _ := granted(t, &facadetest.Driver{}, "night class=batch", "plain class=normal", "ops class=system")
	for _, tc := range []struct{ app, asks, want string }{
		{"night", "interactive", "batch"}, {"night", "", "batch"}, {"night", "batch", "batch"}, {"plain", "system", "normal"},
		{"plain", "batch", "batch"}, {"ops", "system", "system"}, {"free", "system", "interactive"}, {"free", "", "normal"},
	} {
		facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S"}`, facadetest.Header("X-Sidecar-App", tc.app, "X-Ydb-Priority", tc.asks))
		b.Mu.Lock()
		if got := b.Calls[len(b.Calls)-1].Class.String(); got != tc.want {
			t.Errorf("%s asks for %q and has %s; want %s", tc.app, tc.asks, got, tc.want)
		}
		b.Mu.Unlock()
	}
}
