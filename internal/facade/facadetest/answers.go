package facadetest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Failed is the error of a call that the database answered with a status.
func Failed(kind cluster.CallKind, status Ydb.StatusIds_StatusCode) error {
	v := ydbstatus.Judge(ydbstatus.Signs{Kind: kind, Status: status})
	return &upstream.Error{Op: "ExecuteQuery", Node: 1, Status: status, Verdict: v, Sent: v.Unknown,
		Issues: []*Ydb_Issue.IssueMessage{
			{Message: "because", IssueCode: 7, Severity: 1, Position: &Ydb_Issue.IssueMessage_Position{Row: 1, Column: 2}},
		}}
}

// Exists is the error of a statement that inserts a key that is there.
func Exists() error {
	v := ydbstatus.Judge(ydbstatus.Signs{Kind: cluster.CallExecute, Status: Ydb.StatusIds_PRECONDITION_FAILED})
	inner := &Ydb_Issue.IssueMessage{Message: "because", IssueCode: protocol.IssueConstraint, Severity: 1}
	return &upstream.Error{Op: "ExecuteQuery", Node: 1, Status: Ydb.StatusIds_PRECONDITION_FAILED, Verdict: v,
		Issues: []*Ydb_Issue.IssueMessage{{Severity: 1, IssueCode: 1060, Issues: []*Ydb_Issue.IssueMessage{inner}}}}
}

// Broke is the error of a connection that broke while a call ran.
func Broke(kind cluster.CallKind, undone bool) error {
	v := ydbstatus.Judge(ydbstatus.Signs{Kind: kind, Code: codes.Unavailable, Undone: undone})
	return &upstream.Error{Op: "ExecuteQuery", Node: 1, Code: codes.Unavailable, Verdict: v, Sent: v.Unknown}
}

// Lost is the error of a call whose caller left or whose deadline ended.
func Lost(ctx context.Context, kind cluster.CallKind) error {
	v := ydbstatus.Judge(ydbstatus.Signs{Kind: kind, Code: codes.Canceled, CallerGone: true})
	return fmt.Errorf("%w: %w", &upstream.Error{Op: "ExecuteQuery", Node: 1, Code: codes.Canceled, Verdict: v, Sent: v.Unknown}, ctx.Err())
}

// Part is one piece of a result: set i with columns of the form "name Type", and
// rows whose values are JSON.
func Part(t testing.TB, i int64, columns []string, rows ...[]string) *Ydb_Query.ExecuteQueryResponsePart {
	t.Helper()
	rs := &Ydb.ResultSet{}
	for _, c := range columns {
		name, typ, _ := strings.Cut(c, " ")
		parsed, err := yql.ParseType(typ)
		if err != nil {
			t.Fatal(err)
		}
		rs.Columns = append(rs.Columns, &Ydb.Column{Name: name, Type: parsed})
	}
	for _, row := range rows {
		v := &Ydb.Value{}
		for j, cell := range row {
			parsed, err := yql.ParseJSON([]byte(cell), rs.Columns[j].Type)
			if err != nil {
				t.Fatal(err)
			}
			v.Items = append(v.Items, parsed)
		}
		rs.Rows = append(rs.Rows, v)
	}
	return &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ResultSetIndex: i, ResultSet: rs}
}

// Echo answers with the parameters: a row of name, type, value in JSON for each.
func Echo(_ context.Context, _ *Session, req *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
	rs := &Ydb.ResultSet{
		Columns: []*Ydb.Column{{Name: "name", Type: typeUtf8}, {Name: "type", Type: typeUtf8}, {Name: "value", Type: typeUtf8}},
	}
	var names []string
	for name := range req.GetParameters() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p := req.GetParameters()[name]
		value, err := yql.AppendJSON(nil, p.Value, p.Type, yql.JSONOptions{Ints: yql.IntsAsNumbers})
		if err != nil {
			return nil, err
		}
		rs.Rows = append(rs.Rows, &Ydb.Value{Items: []*Ydb.Value{Text(name), Text(yql.FormatType(p.Type)), Text(string(value))}})
	}
	stats := &Ydb_TableStats.QueryStats{TotalDurationUs: 1500, Compilation: &Ydb_TableStats.CompilationStats{}}
	part := &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ResultSet: rs}
	if req.GetStatsMode() != Ydb_Query.StatsMode_STATS_MODE_NONE {
		part.ExecStats = stats
	}
	return []*Ydb_Query.ExecuteQueryResponsePart{part}, nil
}

var typeUtf8 = &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UTF8}}

// Text is a value of Utf8.
func Text(s string) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}} }

var okOperation = &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_SUCCESS}

// Numbered answers each statement with how many were run before it.
func Numbered(t *testing.T) *Driver {
	n := 0
	f := &Driver{}
	f.Answer = func(_ context.Context, _ *Session, req *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		f.Mu.Lock()
		defer f.Mu.Unlock()
		n++
		if req.GetQueryContent().GetText() == "BIG" {
			return RowsOf(t, 300), nil
		}
		return []*Ydb_Query.ExecuteQueryResponsePart{Part(t, 0, []string{"n Int32"}, []string{strconv.Itoa(n)})}, nil
	}
	return f
}

// Items is a table (id Uint64 NOT NULL, name Utf8, n Int32).
func Items(t testing.TB) *Ydb_Table.DescribeTableResult {
	d := &Ydb_Table.DescribeTableResult{PrimaryKey: []string{"id"}}
	for _, c := range [][2]string{{"id", "Uint64"}, {"name", "Optional<Utf8>"}, {"n", "Optional<Int32>"}} {
		typ, err := yql.ParseType(c[1])
		if err != nil {
			t.Fatal(err)
		}
		d.Columns = append(d.Columns, &Ydb_Table.ColumnMeta{Name: c[0], Type: typ})
	}
	d.Indexes = []*Ydb_Table.TableIndexDescription{{Name: "by_name", IndexColumns: []string{"name"}}}
	return d
}

// RowsOf answers with n rows of a number and a text of 100 bytes, in parts of ten.
func RowsOf(t testing.TB, n int) []*Ydb_Query.ExecuteQueryResponsePart {
	var parts []*Ydb_Query.ExecuteQueryResponsePart
	long := `"` + strings.Repeat("x", 100) + `"`
	columns := []string{"id Uint64", "v Utf8"}
	for at := 0; at < n; at += 10 {
		var rows [][]string
		for i := at; i < min(n, at+10); i++ {
			rows = append(rows, []string{strconv.Itoa(i), long})
		}
		parts = append(parts, Part(t, 0, columns, rows...))
	}
	return parts
}
