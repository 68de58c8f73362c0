package devcluster

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Scheme_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Scheme"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
)

// wantOperation checks the status of an operation and the lack of a gRPC error.
func wantOperation(t testing.TB, what string, want Ydb.StatusIds_StatusCode, r interface {
	GetOperation() *Ydb_Operations.Operation
}, err error) *Ydb_Operations.Operation {
	t.Helper()
	if err != nil || r.GetOperation().GetStatus() != want {
		t.Fatalf("%s: %v, %v; want %v", what, r, err, want)
	}
	return r.GetOperation()
}

func typed(id Ydb.Type_PrimitiveTypeId) *Ydb.Type {
	return &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}}
}

func optional(item *Ydb.Type) *Ydb.Type {
	return &Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: item}}}
}

func uint64Value(n uint64) *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: n}}
}

func textValue(s string) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}} }

// list makes a List<Struct<...>>.
func list(members []*Ydb.StructMember, rows ...*Ydb.Value) *Ydb.TypedValue {
	return &Ydb.TypedValue{
		Type: &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: &Ydb.Type{
			Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: members}}}}}},
		Value: &Ydb.Value{Items: rows},
	}
}

func autocommit() *Ydb_Table.TransactionControl {
	return &Ydb_Table.TransactionControl{CommitTx: true, TxSelector: &Ydb_Table.TransactionControl_BeginTx{
		BeginTx: &Ydb_Table.TransactionSettings{
			TxMode: &Ydb_Table.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Table.SerializableModeSettings{}},
		}}}
}

func (c *client) data(r *Ydb_Table.ExecuteDataQueryRequest, sql string) (*Ydb_Table.ExecuteDataQueryResponse, error) {
	if sql != "" {
		r.Query = &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: sql}}
	}
	return c.table.ExecuteDataQuery(testContext(c.t), r)
}

// newTableOf makes /local/dir/t (id Uint64 NOT NULL, v Utf8?) with an index and n rows.
func newTableOf(t testing.TB, c *client, n int) {
	t.Helper()
	session := c.tableSession()
	created, err := c.table.CreateTable(testContext(t), &Ydb_Table.CreateTableRequest{
		SessionId: session, Path: "/local/dir/t", PrimaryKey: []string{"id"},
		Columns: []*Ydb_Table.ColumnMeta{
			{Name: "id", Type: typed(Ydb.Type_UINT64)},
			{Name: "v", Type: optional(typed(Ydb.Type_UTF8))},
		},
		Indexes: []*Ydb_Table.TableIndex{
			{Name: "by_v", IndexColumns: []string{"v"}, Type: &Ydb_Table.TableIndex_GlobalIndex{GlobalIndex: &Ydb_Table.GlobalIndex{}}},
		},
	})
	wantOperation(t, "CreateTable", ok, created, err)
	rows := make([]*Ydb.Value, n)
	for i := range rows {
		rows[i] = &Ydb.Value{Items: []*Ydb.Value{uint64Value(uint64(i)), textValue(fmt.Sprint(i))}}
	}
	upserted, err := c.table.BulkUpsert(testContext(t), &Ydb_Table.BulkUpsertRequest{
		Table: "/local/dir/t", Rows: list([]*Ydb.StructMember{
			{Name: "id", Type: typed(Ydb.Type_UINT64)}, {Name: "v", Type: optional(typed(Ydb.Type_UTF8))}}, rows...),
	})
	wantOperation(t, "BulkUpsert", ok, upserted, err)
}

func TestDescribeTable(t *testing.T) {
	c := dial(t, startCluster(t, nil).Node(1).Address())
	newTableOf(t, c, 3)
	r, err := c.table.DescribeTable(testContext(t), &Ydb_Table.DescribeTableRequest{
		SessionId: c.tableSession(), Path: "/local/dir/t", IncludeTableStats: true, IncludePartitionStats: true,
		IncludeShardNodesInfo: true,
	})
	d := unpack[*Ydb_Table.DescribeTableResult](t, wantOperation(t, "DescribeTable", ok, r, err))
	if len(d.GetColumns()) != 2 || d.GetPrimaryKey()[0] != "id" || d.GetSelf().GetName() != "t" ||
		d.GetSelf().GetType() != Ydb_Scheme.Entry_TABLE {
		t.Fatalf("got %v", d)
	}
	id, v := d.GetColumns()[0], d.GetColumns()[1]
	if id.GetType().GetTypeId() != Ydb.Type_UINT64 || !id.GetNotNull() {
		t.Errorf("key column %v", id)
	}
	if v.GetType().GetOptionalType().GetItem().GetTypeId() != Ydb.Type_UTF8 || v.GetNotNull() {
		t.Errorf("nullable column %v", v)
	}
	if i := d.GetIndexes(); len(i) != 1 || i[0].GetName() != "by_v" || i[0].GetStatus() != Ydb_Table.TableIndexDescription_STATUS_READY {
		t.Errorf("indexes %v", i)
	}
	if d.GetTableStats().GetRowsEstimate() != 3 {
		t.Errorf("statistics %v", d.GetTableStats())
	}
	if shards := d.GetTableStats().GetPartitionStats(); len(shards) != 1 || shards[0].GetLeaderNodeId() == 0 {
		t.Errorf("shards %v; want one, on a node", shards)
	}
	missing, err := c.table.DescribeTable(testContext(t), &Ydb_Table.DescribeTableRequest{SessionId: c.tableSession(), Path: "/local/none"})
	wantOperation(t, "a missing table", Ydb.StatusIds_SCHEME_ERROR, missing, err)
	directory, err := c.table.DescribeTable(
		testContext(t), &Ydb_Table.DescribeTableRequest{SessionId: c.tableSession(), Path: "/local/dir"},
	)
	wantOperation(t, "a directory", Ydb.StatusIds_SCHEME_ERROR, directory, err)
	dropped, err := c.table.DropTable(testContext(t), &Ydb_Table.DropTableRequest{SessionId: c.tableSession(), Path: "/local/dir/t"})
	wantOperation(t, "DropTable", ok, dropped, err)
	dropped, err = c.table.DropTable(testContext(t), &Ydb_Table.DropTableRequest{SessionId: c.tableSession(), Path: "/local/dir/t"})
	wantOperation(t, "DropTable again", Ydb.StatusIds_SCHEME_ERROR, dropped, err)
}

// A bloom filter is kept as it was declared, by either way of making a table.
func TestKeyBloomFilter(t *testing.T) {
	c := dial(t, startCluster(t, nil).Node(1).Address())
	described := func(path string) Ydb.FeatureFlag_Status {
		t.Helper()
		r, err := c.table.DescribeTable(testContext(t), &Ydb_Table.DescribeTableRequest{SessionId: c.tableSession(), Path: path})
		return unpack[*Ydb_Table.DescribeTableResult](t, wantOperation(t, "DescribeTable", ok, r, err)).GetKeyBloomFilter()
	}
	scheme := func(text string) {
		t.Helper()
		r, err := c.table.ExecuteSchemeQuery(
			testContext(t), &Ydb_Table.ExecuteSchemeQueryRequest{SessionId: c.tableSession(), YqlText: text},
		)
		wantOperation(t, text, ok, r, err)
	}
	const enabled, disabled, none = Ydb.FeatureFlag_ENABLED, Ydb.FeatureFlag_DISABLED, Ydb.FeatureFlag_STATUS_UNSPECIFIED
	scheme("CREATE TABLE a (id Uint64, PRIMARY KEY (id)) WITH (KEY_BLOOM_FILTER = ENABLED)")
	scheme("CREATE TABLE b (id Uint64, PRIMARY KEY (id))")
	if a, b := described("/local/a"), described("/local/b"); a != enabled || b != none {
		t.Errorf("a %v, b %v; want ENABLED and nothing", a, b)
	}
	scheme("ALTER TABLE a SET (KEY_BLOOM_FILTER = DISABLED)")
	scheme("ALTER TABLE b ADD COLUMN v Utf8")
	if a, b := described("/local/a"), described("/local/b"); a != disabled || b != none {
		t.Errorf("altered: a %v, b %v; want DISABLED and nothing", a, b)
	}
	created, err := c.table.CreateTable(testContext(t), &Ydb_Table.CreateTableRequest{SessionId: c.tableSession(), Path: "/local/c",
		Columns: []*Ydb_Table.ColumnMeta{{Name: "id", Type: typed(Ydb.Type_UINT64)}}, PrimaryKey: []string{"id"}, KeyBloomFilter: enabled})
	wantOperation(t, "CreateTable", ok, created, err)
	altered, err := c.table.AlterTable(
		testContext(t),
		&Ydb_Table.AlterTableRequest{SessionId: c.tableSession(), Path: "/local/b", SetKeyBloomFilter: enabled},
	)
	wantOperation(t, "AlterTable", ok, altered, err)
	if b, c := described("/local/b"), described("/local/c"); b != enabled || c != enabled {
		t.Errorf("by calls: b %v, c %v; want ENABLED", b, c)
	}
}

func TestDirectories(t *testing.T) {
	conn := dial(t, startCluster(t, nil).Node(1).Address())
	newTableOf(t, conn, 0)
	c := Ydb_Scheme_V1.NewSchemeServiceClient(conn)
	r, err := c.ListDirectory(testContext(t), &Ydb_Scheme.ListDirectoryRequest{Path: "/local"})
	root := unpack[*Ydb_Scheme.ListDirectoryResult](t, wantOperation(t, "list", ok, r, err))
	if root.GetSelf().GetType() != Ydb_Scheme.Entry_DATABASE || root.GetSelf().GetName() != "local" || root.GetSelf().GetOwner() == "" {
		t.Errorf("root %v", root.GetSelf())
	}
	found := false
	for _, child := range root.GetChildren() {
		found = found || child.GetName() == "dir" && child.GetType() == Ydb_Scheme.Entry_DIRECTORY
	}
	if !found {
		t.Errorf("children %v", root.GetChildren())
	}
	removed, err := c.RemoveDirectory(testContext(t), &Ydb_Scheme.RemoveDirectoryRequest{Path: "/local/dir"})
	wantOperation(t, "remove a full directory", Ydb.StatusIds_SCHEME_ERROR, removed, err)
	described, err := c.DescribePath(testContext(t), &Ydb_Scheme.DescribePathRequest{Path: "/local/dir/t"})
	if e := unpack[*Ydb_Scheme.DescribePathResult](
		t, wantOperation(t, "describe", ok, described, err),
	).GetSelf(); e.GetType() != Ydb_Scheme.Entry_TABLE {
		t.Errorf("got %v", e)
	}
}

func TestExecuteDataQuery(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	newTableOf(t, c, maxDataRows+1)
	session := c.tableSession()

	r, err := c.data(&Ydb_Table.ExecuteDataQueryRequest{
		SessionId: session, TxControl: autocommit(), CollectStats: Ydb_Table.QueryStatsCollection_STATS_COLLECTION_BASIC,
	}, "SELECT id FROM `dir/t`; SELECT COUNT(*) FROM `dir/t`")
	result := unpack[*Ydb_Table.ExecuteQueryResult](t, wantOperation(t, "two sets", ok, r, err))
	if sets := result.GetResultSets(); len(sets) != 2 || len(sets[0].GetRows()) != maxDataRows ||
		!sets[0].GetTruncated() || sets[1].GetTruncated() {
		t.Errorf("%d sets; the first has %d rows", len(sets), len(sets[0].GetRows()))
	}
	if result.GetTxMeta() == nil || result.GetTxMeta().GetId() != "" || result.GetQueryStats() == nil || result.GetQueryMeta() != nil {
		t.Errorf("tx_meta %v, query_meta %v, stats %v", result.GetTxMeta(), result.GetQueryMeta(), result.GetQueryStats())
	}

	// The id of a kept or prepared text stands for it, on this node.
	const sql = "DECLARE $id AS Uint64; SELECT v FROM `dir/t` WHERE id = $id"
	params := map[string]*Ydb.TypedValue{"$id": {Type: typed(Ydb.Type_UINT64), Value: uint64Value(7)}}
	r, err = c.data(&Ydb_Table.ExecuteDataQueryRequest{
		SessionId: session, TxControl: autocommit(), Parameters: params, QueryCachePolicy: &Ydb_Table.QueryCachePolicy{KeepInCache: true},
	}, sql)
	kept := unpack[*Ydb_Table.ExecuteQueryResult](t, wantOperation(t, "keep", ok, r, err)).GetQueryMeta()
	prepared, err := c.table.PrepareDataQuery(testContext(t), &Ydb_Table.PrepareDataQueryRequest{SessionId: session, YqlText: sql})
	p := unpack[*Ydb_Table.PrepareQueryResult](t, wantOperation(t, "prepare", ok, prepared, err))
	if kept.GetId() == "" || p.GetQueryId() != kept.GetId() ||
		p.GetParametersTypes()["$id"].GetTypeId() != Ydb.Type_UINT64 || len(kept.GetParametersTypes()) != 1 {
		t.Errorf("kept %v, prepared %v", kept, p)
	}
	byID := &Ydb_Table.Query{Query: &Ydb_Table.Query_Id{Id: kept.GetId()}}
	r, err = c.data(&Ydb_Table.ExecuteDataQueryRequest{SessionId: session, TxControl: autocommit(), Parameters: params, Query: byID}, "")
	if v := unpack[*Ydb_Table.ExecuteQueryResult](
		t, wantOperation(t, "by id", ok, r, err),
	).GetResultSets()[0].GetRows()[0].GetItems()[0]; v.GetTextValue() != "7" {
		t.Errorf("got %v", v)
	}
	other := dial(t, cluster.Node(2).Address())
	r, err = other.data(
		&Ydb_Table.ExecuteDataQueryRequest{SessionId: other.tableSession(), TxControl: autocommit(), Parameters: params, Query: byID},
		"",
	)
	wantOperation(t, "by id on another node", Ydb.StatusIds_NOT_FOUND, r, err)

	// Parameters must be declared here, and DDL has its own call.
	r, err = c.data(
		&Ydb_Table.ExecuteDataQueryRequest{SessionId: session, TxControl: autocommit(), Parameters: params},
		"SELECT v FROM `dir/t` WHERE id = $id",
	)
	wantOperation(t, "an undeclared parameter", Ydb.StatusIds_GENERIC_ERROR, r, err)
	scheme, err := c.table.ExecuteSchemeQuery(
		testContext(t), &Ydb_Table.ExecuteSchemeQueryRequest{SessionId: session, YqlText: "DROP TABLE `dir/t`"},
	)
	wantOperation(t, "scheme query", ok, scheme, err)
	scheme, err = c.table.ExecuteSchemeQuery(testContext(t), &Ydb_Table.ExecuteSchemeQueryRequest{SessionId: session, YqlText: "SELECT 1"})
	wantOperation(t, "a scheme query that is none", Ydb.StatusIds_GENERIC_ERROR, scheme, err)
}

func serializableTable() *Ydb_Table.TransactionSettings {
	return &Ydb_Table.TransactionSettings{
		TxMode: &Ydb_Table.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Table.SerializableModeSettings{}},
	}
}

// The table service refuses a transaction without settings, and lets one without a mode through to the session, which ends over it.
func TestTableTransactionsNeedAMode(t *testing.T) {
	c := dial(t, startCluster(t, nil).Node(1).Address())
	newTableOf(t, c, 0)
	session := c.tableSession()
	none, err := c.table.BeginTransaction(testContext(t), &Ydb_Table.BeginTransactionRequest{SessionId: session})
	wantOperation(t, "begin without settings", Ydb.StatusIds_BAD_REQUEST, none, err)
	begun, err := c.table.BeginTransaction(
		testContext(t),
		&Ydb_Table.BeginTransactionRequest{SessionId: session, TxSettings: &Ydb_Table.TransactionSettings{}},
	)
	wantOperation(t, "begin without a mode", Ydb.StatusIds_INTERNAL_ERROR, begun, err)
	alive, err := c.table.KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: session})
	wantOperation(t, "the session afterwards", Ydb.StatusIds_BAD_SESSION, alive, err)
	session = c.tableSession()
	write, err := c.data(&Ydb_Table.ExecuteDataQueryRequest{SessionId: session, TxControl: &Ydb_Table.TransactionControl{
		TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{}}, CommitTx: true,
	}}, "UPSERT INTO `dir/t` (id) VALUES (1ul)")
	wantOperation(t, "a statement without a mode", Ydb.StatusIds_INTERNAL_ERROR, write, err)
	alive, err = c.table.KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: session})
	wantOperation(t, "the session afterwards", Ydb.StatusIds_BAD_SESSION, alive, err)
}

func TestTableTransactions(t *testing.T) {
	c := dial(t, startCluster(t, nil).Node(1).Address())
	newTableOf(t, c, 0)
	session := c.tableSession()
	r, err := c.table.BeginTransaction(
		testContext(t), &Ydb_Table.BeginTransactionRequest{SessionId: session, TxSettings: serializableTable()},
	)
	tx := unpack[*Ydb_Table.BeginTransactionResult](t, wantOperation(t, "begin", ok, r, err)).GetTxMeta().GetId()
	write, err := c.data(&Ydb_Table.ExecuteDataQueryRequest{
		SessionId: session, TxControl: &Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}},
	}, "UPSERT INTO `dir/t` (id) VALUES (1ul)")
	if got := unpack[*Ydb_Table.ExecuteQueryResult](t, wantOperation(t, "write", ok, write, err)).GetTxMeta().GetId(); got != tx {
		t.Errorf("tx_meta %q; want %q", got, tx)
	}
	committed, err := c.table.CommitTransaction(testContext(t), &Ydb_Table.CommitTransactionRequest{SessionId: session, TxId: tx})
	wantOperation(t, "commit", ok, committed, err)
	rolled, err := c.table.RollbackTransaction(testContext(t), &Ydb_Table.RollbackTransactionRequest{SessionId: session, TxId: tx})
	wantOperation(t, "rollback after commit", Ydb.StatusIds_NOT_FOUND, rolled, err)
}

func TestReads(t *testing.T) {
	c := dial(t, startCluster(t, nil).Node(1).Address())
	newTableOf(t, c, 1100)

	rows, err := c.table.ReadRows(testContext(t), &Ydb_Table.ReadRowsRequest{
		Path: "/local/dir/t", Columns: []string{"v"},
		Keys: list([]*Ydb.StructMember{{Name: "id", Type: typed(Ydb.Type_UINT64)}},
			&Ydb.Value{Items: []*Ydb.Value{uint64Value(5)}}, &Ydb.Value{Items: []*Ydb.Value{uint64Value(5000)}}),
	})
	if err != nil || rows.GetStatus() != ok || len(rows.GetResultSet().GetRows()) != 1 ||
		rows.GetResultSet().GetRows()[0].GetItems()[0].GetTextValue() != "5" {
		t.Errorf("ReadRows: %v, %v", rows, err)
	}

	stream, err := c.table.StreamReadTable(testContext(t), &Ydb_Table.ReadTableRequest{
		SessionId: c.tableSession(), Path: "/local/dir/t", RowLimit: 1000, BatchLimitRows: 150, Ordered: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	total, parts := 0, 0
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || part.GetStatus() != ok {
			t.Fatalf("%v, %v", part, err)
		}
		n := len(part.GetResult().GetResultSet().GetRows())
		if n > 150 {
			t.Errorf("a part of %d rows", n)
		}
		total, parts = total+n, parts+1
	}
	if total != 1000 || parts < 7 {
		t.Errorf("%d rows in %d parts", total, parts)
	}
}

func TestScanQueries(t *testing.T) {
	c := dial(t, startCluster(t, nil).Node(1).Address())
	newTableOf(t, c, 1100)
	for mode, want := range map[Ydb_Table.ExecuteScanQueryRequest_Mode]int{
		Ydb_Table.ExecuteScanQueryRequest_MODE_EXEC: 1100, Ydb_Table.ExecuteScanQueryRequest_MODE_EXPLAIN: 0,
	} {
		scan, err := c.table.StreamExecuteScanQuery(testContext(t), &Ydb_Table.ExecuteScanQueryRequest{
			Mode: mode, CollectStats: Ydb_Table.QueryStatsCollection_STATS_COLLECTION_FULL,
			Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "SELECT * FROM `dir/t`"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		total, plan := 0, ""
		for {
			part, err := scan.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || part.GetStatus() != ok {
				t.Fatalf("%v, %v", part, err)
			}
			total += len(part.GetResult().GetResultSet().GetRows())
			plan += part.GetResult().GetQueryStats().GetQueryPlan()
		}
		if total != want || plan == "" {
			t.Errorf("%v: %d rows, plan %q", mode, total, plan)
		}
	}
	write, err := c.table.StreamExecuteScanQuery(testContext(t), &Ydb_Table.ExecuteScanQueryRequest{
		Mode:  Ydb_Table.ExecuteScanQueryRequest_MODE_EXEC,
		Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "UPSERT INTO `dir/t` (id) VALUES (1ul)"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if part, err := write.Recv(); err != nil || part.GetStatus() == ok {
		t.Errorf("a scan query that writes: %v, %v", part, err)
	}
	explained, err := c.table.ExplainDataQuery(
		testContext(t),
		&Ydb_Table.ExplainDataQueryRequest{SessionId: c.tableSession(), YqlText: "SELECT * FROM `dir/t`"},
	)
	if unpack[*Ydb_Table.ExplainQueryResult](t, wantOperation(t, "explain", ok, explained, err)).GetQueryPlan() == "" {
		t.Error("no plan")
	}
}

func TestPreparedTextsAreBounded(t *testing.T) {
	var kept texts
	for i := range maxTexts + 100 {
		sql := fmt.Sprint(i)
		id := kept.keep(sql)
		if got, found := kept.find(id); !found || got != sql {
			t.Fatalf("the newest text is %q, %v", got, found)
		}
	}
	if len(kept.byID) != maxTexts {
		t.Errorf("%d texts", len(kept.byID))
	}
}
