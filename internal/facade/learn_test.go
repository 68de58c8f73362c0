package facade

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// misfit is YDB's refusal of a row, as it nests it: all columns in one issue, and
// below it the first that does not convert.
func misfit(from, to, column, columnFrom, columnTo string) error {
	issue := func(code uint32, text string, below ...*Ydb_Issue.IssueMessage) *Ydb_Issue.IssueMessage {
		return &Ydb_Issue.IssueMessage{Message: text, IssueCode: code, Severity: 1, Issues: below}
	}
	e := facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_GENERIC_ERROR).(*upstream.Error)
	e.Issues = []*Ydb_Issue.IssueMessage{issue(1030, "Type annotation", issue(0, "At function: KiWriteTable!",
		issue(0, "Failed to convert type: "+from+" to "+to, issue(0, "Failed to convert '"+column+"': "+columnFrom+" to "+columnTo)),
		issue(2031, "Failed to convert input columns types to scheme types")))}
	return e
}

// typedTable answers as a table (id Uint64, n Int32, at Timestamp) does: with misfit, or else
// with echo.
func typedTable(
	ctx context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
	want := map[string]string{"id": "Uint64", "n": "Int32", "at": "Timestamp", "a": "Uint64", "b": "Uint64"}
	for _, name := range []string{"id", "n", "at", "a", "b"} {
		p := req.Parameters["$"+name]
		if p == nil || yql.FormatType(p.Type) == want[name] {
			continue
		}
		column, got := name, yql.FormatType(p.Type)
		if name == "a" || name == "b" {
			column = "id"
		}
		return nil, misfit("Struct<'"+column+"':"+got+">", "Struct<'"+column+"':"+want[name]+"?>", column, got, "Optional<"+want[name]+">")
	}
	if rows := req.Parameters["$rows"]; rows != nil && !strings.Contains(yql.FormatType(rows.Type), "id:Uint64") {
		return nil, misfit("List<Struct<'id':Int64,'n':Int64>>", "List<Struct<'id':Uint64?,'n':Int32?>>", "id", "Int64", "Optional<Uint64>")
	}
	return facadetest.Echo(ctx, s, req)
}

func TestTheTypeOfAColumnIsLearnt(t *testing.T) {
	const write = `write DECLARE $id AS Uint64; in the statement, or name the type in the request: "types": {"id": "Uint64"}`
	for _, c := range []struct {
		name     string
		in       contract.Statement
		rows     [][]any // of echo; nil: it fails
		hint     string  // then
		requests [2]int  // of the first call, and of the second
	}{
		{"one", contract.Statement{SQL: "INSERT INTO t (id) VALUES ($id)", Params: map[string]any{"id": 1}},
			[][]any{{"$id", "Uint64", "1"}}, "", [2]int{2, 1}},
		{"two", contract.Statement{SQL: "UPSERT INTO t (id, n) VALUES ($id, $n)", Params: map[string]any{"id": 1, "n": -2}},
			[][]any{{"$id", "Uint64", "1"}, {"$n", "Int32", "-2"}}, "", [2]int{3, 1}},
		{"two_of_one_column", contract.Statement{SQL: "UPSERT INTO t (id) VALUES ($a), ($b)", Params: map[string]any{"a": 1, "b": 2}},
			[][]any{{"$a", "Uint64", "1"}, {"$b", "Uint64", "2"}}, "", [2]int{2, 1}},
		{"a_list_of_rows",
			contract.Statement{SQL: "UPSERT INTO t SELECT * FROM AS_TABLE($rows)",
				Params: map[string]any{"rows": []any{map[string]any{"id": 1, "n": 2}}}},
			[][]any{{"$rows", "List<Struct<id:Uint64,n:Int32>>", `[{"id":1,"n":2}]`}}, "", [2]int{2, 1}},
		{"a_value_that_does_not_fit", contract.Statement{SQL: "REPLACE INTO t (id) VALUES ($id)", Params: map[string]any{"id": -1}},
			nil, "column id is Uint64, and its value is Int64, which is $id; " + write, [2]int{1, 1}},
		{"a_value_with_its_type",
			contract.Statement{SQL: "UPDATE t SET id = $id", Params: map[string]any{"id": contract.Typed{Type: "Int64", Value: 1}}},
			nil, write, [2]int{1, 1}},
		{"a_type_of_the_request",
			contract.Statement{SQL: "UPSERT INTO t (id, z) VALUES ($id, 1)", Params: map[string]any{"id": 1},
				Types: map[string]string{"id": "Int64"}},
			nil, write, [2]int{1, 1}},
		{"a_declared_type",
			contract.Statement{SQL: "DECLARE $id AS Int64; UPSERT INTO t (id) VALUES ($id)", Params: map[string]any{"id": 1}},
			nil, write, [2]int{1, 1}},
		{"text", contract.Statement{SQL: "UPSERT INTO t (at) VALUES ($at)", Params: map[string]any{"at": "2024-01-31T10:00:00Z"}},
			nil,
			`column at is Timestamp, and its value is Utf8, which is $at; write DECLARE $at AS Timestamp; in the statement, or name the type in the request: "types": {"at": "Timestamp"}`,
			[2]int{1, 1}},
		{"used_elsewhere_too", contract.Statement{SQL: "UPSERT INTO t (id, z) VALUES ($id, $id - 5)", Params: map[string]any{"id": 1}},
			nil, write, [2]int{1, 1}},
		{"several_statements",
			contract.Statement{SQL: "CREATE TABLE u (a Int32); UPSERT INTO t (id) VALUES ($id)", Params: map[string]any{"id": 1}},
			nil, write, [2]int{1, 1}},
		{"not_certain", contract.Statement{SQL: "UPSERT INTO t (id) VALUES ($a + $c)", Params: map[string]any{"a": 1, "c": 2}},
			nil,
			`column id is Uint64, and its value is Int64, which may be $a or $c; write DECLARE $a AS Uint64; DECLARE $c AS Uint64; in the statement, or name the type in the request: "types": {"a": "Uint64", "c": "Uint64"}`,
			[2]int{1, 1}},
		{"in_a_transaction",
			contract.Statement{SQL: "UPSERT INTO t (id) VALUES ($id) ", Params: map[string]any{"id": 1},
				Tx: &contract.TxSelector{Begin: true}},
			nil, write, [2]int{1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i := range 2 { // a service for each API: nothing is known yet
				b := start(t, small(), &facadetest.Driver{Answer: typedTable})
				face := b.faces()[i]
				for call, want := range c.requests {
					r, err := face.Execute(t.Context(), c.in)
					if n := len(b.Taken()); n != want {
						t.Errorf("%s: call %d made %d requests; want %d", face.Name(), call+1, n, want)
					}
					if c.rows == nil {
						if e := refused(t, err, "YDB_GENERIC_ERROR", false, false); !strings.HasSuffix(e.Hint, c.hint) {
							t.Errorf("%s: hint %q; want %q", face.Name(), e.Hint, c.hint)
						}
						continue
					}
					if err != nil {
						t.Fatalf("%s: %v", face.Name(), err)
					}
					if diff := cmp.Diff(c.rows, r.Rows); diff != "" {
						t.Errorf("%s: parameters as they were sent (-want +got):\n%s", face.Name(), diff)
					}
				}
			}
		})
	}
}

// A statement of a list that is refused has the whole list run again.
func TestTheTypeOfAColumnIsLearntInAList(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: typedTable})
	b.each(t, func(t *testing.T, face contract.Client) {
		sql := "UPSERT INTO t (id) VALUES ($id) -- " + face.Name()
		r, err := face.Transact(
			t.Context(),
			contract.Transaction{Statements: []contract.Statement{{SQL: "S"}, {SQL: sql, Params: map[string]any{"id": 1}}}},
		)
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, req := range b.Taken() {
			texts = append(texts, req.GetQueryContent().GetText())
		}
		if diff := cmp.Diff([]string{"S", sql, "S", sql}, texts); diff != "" || fmt.Sprint(r[1].Rows) != "[[$id Uint64 1]]" {
			t.Errorf("%v; requests (-want +got):\n%s", r[1].Rows, diff)
		}
	})
}
