package officialtest

import (
	"context"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/scripting"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
	"github.com/ydb-platform/ydb-go-sdk/v3/table/options"
	"github.com/ydb-platform/ydb-go-sdk/v3/types"
)

// The table client changes, copies and renames tables.
func TestTablesChange(t *testing.T) {
	db := open(t, startCluster(t, nil).Endpoint())
	ctx := testContext(t)
	execute(t, db, "CREATE TABLE t (id Uint64, v Utf8, PRIMARY KEY (id))")
	execute(t, db, "UPSERT INTO t (id, v) VALUES (1ul, 'a'u), (2ul, 'b'u)")
	made := func(s table.Session, path string) time.Time {
		d, err := s.DescribeTable(ctx, path, options.WithTableStats())
		if err != nil || d.Stats == nil {
			t.Fatalf("%+v, %v", d, err)
		}
		return d.Stats.CreationTime
	}
	err := db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
		before := made(s, "/local/t")
		for !time.Now().After(before.Add(2 * time.Millisecond)) { // so that another time can be told from this one
		}
		if err := s.AlterTable(ctx, "/local/t",
			options.WithAddColumn("n", types.Optional(types.TypeInt32)),
			options.WithAddIndex("by_v", options.WithIndexColumns("v"), options.WithIndexType(options.GlobalIndex()))); err != nil {
			return err
		}
		if after := made(s, "/local/t"); !after.Equal(before) {
			t.Errorf("a table of %v is of %v after a change", before, after)
		}
		//lint:ignore SA1019 the RPC of this name is what is shown
		if err := s.CopyTable(ctx, "/local/copy", "/local/t"); err != nil {
			return err
		}
		if copied := made(s, "/local/copy"); !copied.After(before) {
			t.Errorf("a copy of a table of %v is of %v", before, copied)
		}
		if err := s.CopyTables(ctx, options.CopyTablesItem("/local/t", "/local/bare", true)); err != nil {
			return err
		}
		if err := s.RenameTables(ctx, options.RenameTablesItem("/local/copy", "/local/dir/t", false)); err != nil {
			return err
		}
		d, err := s.DescribeTable(ctx, "/local/dir/t")
		if err == nil && (len(d.Columns) != 3 || len(d.Indexes) != 1 || d.Indexes[0].Name != "by_v") {
			t.Errorf("description %+v", d)
		}
		if err != nil {
			return err
		}
		_, err = s.DescribeTableOptions(ctx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := one[*uint64](t, db, "SELECT id FROM `dir/t` VIEW by_v WHERE v = 'b'u AND n IS NULL"); *got != 2 {
		t.Errorf("id %d", *got)
	}
	wantStatus(t, "the renamed table", db.Query().Exec(ctx, "SELECT * FROM copy"), Ydb.StatusIds_SCHEME_ERROR)
	wantStatus(t, "the omitted index", db.Query().Exec(ctx, "SELECT * FROM bare VIEW by_v"), Ydb.StatusIds_GENERIC_ERROR)
}

// Online and stale transactions may begin with a statement and stay open; alone they may not begin.
func TestSingleStatementModesStayOpen(t *testing.T) {
	db := open(t, startCluster(t, nil).Endpoint())
	ctx := testContext(t)
	for _, mode := range []query.TransactionOption{query.WithOnlineReadOnly(), query.WithStaleReadOnly()} {
		r, err := db.Query().Query(ctx, "SELECT 1", query.WithTxControl(query.TxControl(query.BeginTx(mode))))
		if err == nil {
			err = r.Close(ctx)
		}
		if err != nil {
			t.Error(err)
		}
		err = db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error { return tx.Exec(ctx, "SELECT 1") },
			query.WithTxSettings(query.TxSettings(mode)))
		wantStatus(t, "begin alone", err, Ydb.StatusIds_BAD_REQUEST)
	}
}

// A transaction must name its mode.
func TestTransactionsNeedAMode(t *testing.T) {
	var r recorder
	db := open(t, startCluster(t, nil).Endpoint(), r.option())
	ctx := testContext(t)
	err := db.Query().DoTx(ctx, func(context.Context, query.TxActor) error { return nil }, query.WithTxSettings(query.TxSettings()))
	wantStatus(t, "begin alone", err, Ydb.StatusIds_BAD_REQUEST)
	err = db.Query().Exec(ctx, "SELECT 1", query.WithTxControl(query.TxControl(query.BeginTx(), query.CommitTx())))
	wantStatus(t, "begin with a statement", err, Ydb.StatusIds_BAD_REQUEST)
	if got := len(r.of("DeleteSession")); got != 0 {
		t.Errorf("%d events of DeleteSession: the session is still good", got)
	}
}

// The scripting client runs texts without a session, as one transaction.
func TestScripting(t *testing.T) {
	db := open(t, startCluster(t, nil).Endpoint())
	ctx := testContext(t)
	execute(t, db, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
	params := table.NewQueryParameters(table.ValueParam("$id", types.Uint64Value(7)))
	r, err := db.Scripting().Execute(ctx, "DECLARE $id AS Uint64; UPSERT INTO t (id) VALUES ($id); SELECT id FROM t", params)
	if err != nil {
		t.Fatal(err)
	}
	var id *uint64
	if !r.NextResultSet(ctx) || !r.NextRow() || r.Scan(&id) != nil || *id != 7 {
		t.Errorf("id %v", id)
	}
	stream, err := db.Scripting().StreamExecute(ctx, "SELECT 1 AS a UNION ALL SELECT 2 AS a; SELECT 2 AS b", nil)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for stream.NextResultSet(ctx) {
		for stream.NextRow() {
			rows++
		}
	}
	if err := stream.Err(); err != nil || rows != 3 {
		t.Errorf("%d rows, %v", rows, err)
	}
	plan, err := db.Scripting().Explain(ctx, "SELECT * FROM t", scripting.ExplainModePlan)
	if err != nil || plan.Plan == "" {
		t.Errorf("plan %+v, %v", plan, err)
	}
	_, err = db.Scripting().Execute(ctx, "SELECT $x", nil)
	wantStatus(t, "a parameter that is not declared", err, Ydb.StatusIds_GENERIC_ERROR)
}

// Scripts run as operations, whose results are fetched in parts.
func TestExecuteScript(t *testing.T) {
	db := open(t, startCluster(t, nil).Endpoint())
	ctx := testContext(t)
	var list []types.Value
	for i := range int32(2500) {
		list = append(list, types.StructValue(types.StructFieldValue("i", types.Int32Value(i))))
	}
	op, err := db.Query().ExecuteScript(ctx, "DECLARE $rows AS List<Struct<i:Int32>>; SELECT * FROM AS_TABLE($rows); SELECT 'x'", time.Hour,
		query.WithParameters(ydb.ParamsBuilder().Param("$rows").Any(types.ListValue(list...)).Build()))
	if err != nil {
		t.Fatal(err)
	}
	if status, err := db.Operation().Get(ctx, op.ID); err != nil || !status.Ready || status.Status != Ydb.StatusIds_SUCCESS.String() {
		t.Errorf("%+v, %v", status, err)
	}
	rows, parts := 0, 0
	for token := ""; parts == 0 || token != ""; parts++ {
		r, err := db.Query().FetchScriptResults(
			ctx, op.ID, query.WithResultSetIndex(0), query.WithRowsLimit(1000), query.WithFetchToken(token),
		)
		if err != nil {
			t.Fatal(err)
		}
		for {
			row, err := r.ResultSet.NextRow(ctx)
			if err != nil {
				break
			}
			var i int32
			if err := row.Scan(&i); err != nil || int(i) != rows {
				t.Fatalf("row %d: %d, %v", rows, i, err)
			}
			rows++
		}
		token = r.NextToken
	}
	if rows != 2500 || parts != 3 {
		t.Errorf("%d rows in %d parts", rows, parts)
	}
	if err := db.Operation().Forget(ctx, op.ID); err != nil {
		t.Error(err)
	}
	_, err = db.Query().FetchScriptResults(ctx, op.ID)
	wantStatus(t, "a forgotten operation", err, Ydb.StatusIds_NOT_FOUND)
	if op, err = db.Query().ExecuteScript(ctx, "SELECT Unwrap(Nothing(Int32?))", time.Hour); err != nil {
		t.Fatal(err)
	}
	_, err = db.Query().FetchScriptResults(ctx, op.ID)
	wantStatus(t, "the results of a failure", err, Ydb.StatusIds_PRECONDITION_FAILED)
}

// CSV goes the way of BulkUpsert.
func TestBulkUpsertCSV(t *testing.T) {
	db := open(t, startCluster(t, nil).Endpoint())
	execute(t, db, "CREATE TABLE t (id Uint64, v Utf8, PRIMARY KEY (id))")
	data := table.BulkUpsertDataCsv([]byte("skipped\nv;id\na;1\n-;2\n"), table.WithCsvSkipRows(1), table.WithCsvHeader(),
		table.WithCsvDelimiter([]byte(";")), table.WithCsvNullValue([]byte("-")))
	if err := db.Table().BulkUpsert(testContext(t), "/local/t", data); err != nil {
		t.Fatal(err)
	}
	if got := one[*uint64](t, db, "SELECT id FROM t WHERE v IS NULL"); *got != 2 {
		t.Errorf("id %d", *got)
	}
}

// A parameter that is declared and not used is a warning that comes with the results.
func TestWarnings(t *testing.T) {
	db := open(t, startCluster(t, nil).Endpoint())
	ctx := testContext(t)
	var got []string
	r, err := db.Query().Query(
		ctx, "DECLARE $x AS String; SELECT 42; SELECT 43",
		query.WithIssuesHandler(func(issues []*Ydb_Issue.IssueMessage) {
			for _, i := range issues {
				got = append(got, i.GetMessage())
			}
		}),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
	if len(got) != 1 || got[0] != "Symbol $x is not used" {
		t.Errorf("warnings %q", got)
	}
}
