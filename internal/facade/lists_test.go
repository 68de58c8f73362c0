package facade

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

func TestTransactIsRetriedWhole(t *testing.T) {
	f := &facadetest.Driver{}
	var runs []string
	f.Answer = func(
		_ context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		c := req.GetTxControl()
		f.Mu.Lock()
		defer f.Mu.Unlock()
		runs = append(runs,
			req.GetQueryContent().GetText()+map[bool]string{true: " begin"}[c.GetBeginTx() != nil]+
				map[bool]string{true: " commit"}[c.GetCommitTx()])
		if len(runs) == 3 { // the commit of the first try meets a conflict
			return nil, facadetest.Failed(cluster.CallCommit, Ydb.StatusIds_ABORTED)
		}
		return []*Ydb_Query.ExecuteQueryResponsePart{facadetest.Part(t, 0, []string{"n Int32"}, []string{itoa(len(runs))})}, nil
	}
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		f.Mu.Lock()
		runs = nil
		f.Mu.Unlock()
		got, err := face.Transact(t.Context(), contract.Transaction{Statements: []contract.Statement{{SQL: "A"}, {SQL: "B"}, {SQL: "C"}}})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"A begin", "B", "C commit", "A begin", "B", "C commit"}, runs); diff != "" {
			t.Errorf("statements (-want +got):\n%s", diff)
		}
		for i, r := range got {
			if len(r.Rows) != 1 || r.Rows[0][0] != itoa(4+i) {
				t.Errorf("result %d is %v; want that of the second try alone", i, r.Rows)
			}
			if r.Info.Attempts != 2 || !strings.HasPrefix(r.Info.Timing, "queue;dur=") {
				t.Errorf("info %+v; want 2 attempts", r.Info)
			}
		}
	})
}

func TestTransactLimits(t *testing.T) {
	cfg := small()
	cfg.API.MaxRows = 25
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return facadetest.RowsOf(t, 10), nil
		},
	}
	b := start(t, cfg, f)
	b.each(t, func(t *testing.T, face contract.Client) {
		got, err := face.Transact(t.Context(), contract.Transaction{Statements: []contract.Statement{{SQL: "A"}, {SQL: "B"}, {SQL: "C"}}})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{10, 10, 5} {
			if len(got[i].Rows) != want || got[i].Truncated != (want < 10) {
				t.Errorf("result %d: %d rows, truncated %v; want %d", i, len(got[i].Rows), got[i].Truncated, want)
			}
		}
		_, err = face.Transact(t.Context(), contract.Transaction{})
		refused(t, err, "BAD_REQUEST", false, false)
		_, err = face.Transact(t.Context(), contract.Transaction{Statements: make([]contract.Statement, 5)})
		if e := refused(t, err, "LIMIT_EXCEEDED", false, false); !contains(e.Message, "api.max_statements") {
			t.Errorf("%q does not name the setting", e.Message)
		}
		_, err = face.Transact(t.Context(), contract.Transaction{Statements: []contract.Statement{{SQL: "A"}, {}}})
		if e := refused(t, err, "BAD_REQUEST", false, false); !contains(e.Message, "statements[1]") {
			t.Errorf("%q does not name the statement", e.Message)
		}
		_, err = face.Transact(t.Context(), contract.Transaction{Mode: "stale_ro", Statements: []contract.Statement{{SQL: "A"}}})
		refused(t, err, "BAD_REQUEST", false, false)
	})
}

func TestBatchHasAnOutcomeForEach(t *testing.T) {
	f := &facadetest.Driver{
		Answer: func(
			_ context.Context, _ *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
		) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			if req.GetQueryContent().GetText() == "BAD" {
				return nil, facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_GENERIC_ERROR)
			}
			return []*Ydb_Query.ExecuteQueryResponsePart{
				facadetest.Part(t, 0, []string{"q Utf8"}, []string{`"` + req.GetQueryContent().GetText() + `"`}),
			}, nil
		},
	}
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		got, err := face.Batch(t.Context(), []contract.Statement{{SQL: "A"}, {SQL: "BAD"}, {SQL: "B", Mode: "nonsense"}, {SQL: "C"}})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"A", "", "", "C"} {
			if want != "" && (got[i].Error != nil || got[i].Rows[0][0] != want) {
				t.Errorf("result %d: %v, %v; want %s", i, got[i].Rows, got[i].Error, want)
			}
		}
		if e := got[1].Error; e == nil || e.Code != "YDB_GENERIC_ERROR" || e.Issues != 1 {
			t.Errorf("the bad one: %v", e)
		}
		if e := got[2].Error; e == nil || e.Code != "BAD_REQUEST" {
			t.Errorf("the one without a good mode: %v", e)
		}
		_, err = face.Batch(t.Context(), nil)
		refused(t, err, "BAD_REQUEST", false, false)
	})
}

func TestBulkUpsert(t *testing.T) {
	f := &facadetest.Driver{}
	var sent []string
	f.Table = func(path string) (*Ydb_Table.DescribeTableResult, error) {
		if path != "/local/dir/items" {
			return nil, facadetest.Failed(cluster.CallControl, Ydb.StatusIds_SCHEME_ERROR)
		}
		return facadetest.Items(t), nil
	}
	f.Bulk = func(req *Ydb_Table.BulkUpsertRequest) error {
		b, err := yql.AppendJSON([]byte(req.Table+" "+yql.FormatType(req.Rows.Type)+" "), req.Rows.Value, req.Rows.Type, yql.JSONOptions{})
		f.Mu.Lock()
		defer f.Mu.Unlock()
		sent = append(sent, string(b))
		return err
	}
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		f.Mu.Lock()
		sent, f.Described = nil, 0
		f.Mu.Unlock()
		b.s.core.Cached.ForgetTable("/local/dir/items")
		rows := []map[string]any{{"id": 1, "name": "a"}, {"id": 2, "n": nil}, {"id": 3, "name": nil}}
		n, err := face.BulkUpsert(t.Context(), contract.Bulk{Table: "dir/items", Rows: rows})
		if err != nil || n != 3 {
			t.Fatalf("%d rows, %v; want 3", n, err)
		}
		if diff := cmp.Diff([]string{
			`/local/dir/items List<Struct<id:Uint64,name:Optional<Utf8>>> [{"id":"1","name":"a"},{"id":"3","name":null}]`,
			`/local/dir/items List<Struct<id:Uint64,n:Optional<Int32>>> [{"id":"2","n":null}]`,
		}, sent); diff != "" {
			t.Errorf("sent (-want +got):\n%s", diff)
		}
		if _, err = face.BulkUpsert(t.Context(), contract.Bulk{Table: "/local/dir/items", Rows: rows[:1]}); err != nil || f.Described != 1 {
			t.Errorf("%v; the table was described %d times; want once", err, f.Described)
		}
		// Types for every column: no description is needed.
		_, err = face.BulkUpsert(
			t.Context(),
			contract.Bulk{Table: "other", Rows: []map[string]any{{"k": 1}}, Types: map[string]string{"k": "Uint8"}},
		)
		if err != nil || f.Described != 1 {
			t.Errorf("%v; the table was described %d times; want once", err, f.Described)
		}
		for says, bad := range map[string]contract.Bulk{
			"no column":      {Table: "dir/items", Rows: []map[string]any{{"id": 1, "nope": 1}}},
			"rows[1].name":   {Table: "dir/items", Rows: []map[string]any{{"id": 1, "name": "a"}, {"id": 1, "name": 5}}},
			"rows is empty":  {Table: "dir/items"},
			"table is empty": {Rows: rows},
			"api.max_groups": {Table: "dir/items", Rows: []map[string]any{{"id": 1}, {"n": 1}, {"id": 1, "n": 1}}},
			"outside the":    {Table: "../x", Rows: rows},
		} {
			_, err := face.BulkUpsert(t.Context(), bad)
			code := "BAD_REQUEST"
			if strings.HasPrefix(says, "api.") {
				code = "LIMIT_EXCEEDED"
			}
			if e := refused(t, err, code, false, false); !contains(e.Message, says) {
				t.Errorf("%q does not say %q", e.Message, says)
			}
		}
		_, err = face.BulkUpsert(t.Context(), contract.Bulk{Table: "nowhere", Rows: rows})
		refused(t, err, "YDB_SCHEME_ERROR", false, false)
	})
}

func TestBulkUpsertNoticesThatTheTableChanged(t *testing.T) {
	f := &facadetest.Driver{}
	described, writes := 0, 0
	f.Table = func(string) (*Ydb_Table.DescribeTableResult, error) {
		described++
		d := facadetest.Items(t)
		if described == 1 {
			d.Columns = d.Columns[:2] // before the column n was added
		}
		return d, nil
	}
	f.Bulk = func(*Ydb_Table.BulkUpsertRequest) error {
		if writes++; writes == 3 {
			return facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_SCHEME_ERROR)
		}
		return nil
	}
	b := start(t, small(), f)
	bulk := func(row map[string]any) {
		t.Helper()
		if _, err := b.http.BulkUpsert(t.Context(), contract.Bulk{Table: "items", Rows: []map[string]any{row}}); err != nil {
			t.Fatal(err)
		}
	}
	bulk(map[string]any{"id": 1, "name": "x"})
	bulk(map[string]any{"id": 1, "n": 1}) // unknown to the old description
	if described != 2 {
		t.Errorf("described %d times; want 2: the column is new", described)
	}
	bulk(map[string]any{"id": 1, "n": 1}) // refused by the server, as if its type had changed
	if described != 3 || writes != 4 {
		t.Errorf("described %d times, written %d times; want 3, 4", described, writes)
	}
}

func TestDescribe(t *testing.T) {
	f := &facadetest.Driver{}
	f.Table = func(path string) (*Ydb_Table.DescribeTableResult, error) {
		if path != "/local/dir/items" {
			return nil, facadetest.Failed(cluster.CallControl, Ydb.StatusIds_SCHEME_ERROR)
		}
		return facadetest.Items(t), nil
	}
	b := start(t, small(), f)
	want := &contract.Table{
		Path: "/local/dir/items", PrimaryKey: []string{"id"}, Indexes: []string{"by_name"},
		Columns: []contract.TableColumn{{Name: "id", Type: "Uint64", NotNull: true},
			{Name: "name", Type: "Optional<Utf8>"}, {Name: "n", Type: "Optional<Int32>"}},
	}
	b.each(t, func(t *testing.T, face contract.Client) {
		for _, path := range []string{"dir/items", "/local/dir/items", "/dir/items"} {
			got, err := face.Describe(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		}
		_, err := face.Describe(t.Context(), "nowhere")
		refused(t, err, "YDB_SCHEME_ERROR", false, false)
		_, err = face.Describe(t.Context(), strings.Repeat("x", 1100))
		refused(t, err, "BAD_REQUEST", false, false)
	})
	if f.Kept+f.Deleted != 0 {
		t.Errorf("%d sessions were lent; a table is described without", f.Kept+f.Deleted)
	}
}

func TestExplain(t *testing.T) {
	f := &facadetest.Driver{
		Answer: func(
			_ context.Context, _ *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
		) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			if req.GetExecMode() != Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN {
				t.Errorf("mode %v", req.GetExecMode())
			}
			plan := "{}"
			for name, p := range req.GetParameters() {
				plan = name + " " + yql.FormatType(p.GetType())
			}
			return []*Ydb_Query.ExecuteQueryResponsePart{{ExecStats: &Ydb_TableStats.QueryStats{QueryPlan: plan, QueryAst: "ast"}}}, nil
		},
	}
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		for range 2 {
			if plan, err := face.Explain(t.Context(), "SELECT 1", nil); err != nil || plan != "{}" {
				t.Errorf("plan %q, %v; want {}", plan, err)
			}
		}
		if plan, err := face.Explain(t.Context(), "SELECT 1", map[string]string{"a": "Uint64"}); err != nil || plan != "$a Uint64" {
			t.Errorf("plan %q, %v; want one with the type", plan, err)
		}
		_, err := face.Explain(t.Context(), "", nil)
		refused(t, err, "BAD_REQUEST", false, false)
	})
	if n := len(b.Taken()); n != 2 {
		t.Errorf("%d statements were explained; want 2: the others are known", n)
	}
}

func TestPriorityAndIdempotence(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	b.each(t, func(t *testing.T, face contract.Client) {
		_, err := face.Execute(t.Context(), contract.Statement{SQL: "DELETE FROM t", Priority: "batch", Idempotent: true})
		if err != nil {
			t.Fatal(err)
		}
		b.Mu.Lock()
		defer b.Mu.Unlock()
		last := b.Calls[len(b.Calls)-1]
		last.App, last.Work, last.From, last.Progress = nil, 0, 0, nil
		if want := (upstream.Call{Name: "Execute", Class: 3, Idempotent: true}); last != want {
			t.Errorf("call %+v; want %+v", last, want)
		}
	})
}
