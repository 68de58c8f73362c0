package devcluster

import (
	"encoding/json"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

func faultsOf(t testing.TB, c *Cluster) []Fault {
	t.Helper()
	var answer struct{ Faults []Fault }
	_, text := ask(t, http.MethodGet, "http://"+c.Control()+"/faults", "")
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return answer.Faults
}

func addFault(t testing.TB, c *Cluster, body string) Fault {
	t.Helper()
	code, text := post(t, c, "/faults", body)
	var f Fault
	if err := json.Unmarshal([]byte(text), &f); err != nil || code != http.StatusOK || f.ID == "" {
		t.Fatalf("POST /faults %s: %d %s", body, code, text)
	}
	return f
}

func removeFault(t testing.TB, c *Cluster, id string) {
	t.Helper()
	if code, text := ask(t, http.MethodDelete, "http://"+c.Control()+"/faults/"+id, ""); code != http.StatusOK {
		t.Fatalf("DELETE %s: %d %s", id, code, text)
	}
}

func TestFaultsOverTheControlAPI(t *testing.T) {
	cluster := startCluster(t, nil)
	if list := faultsOf(t, cluster); len(list) != 0 {
		t.Errorf("faults at the start: %v", list)
	}
	first := addFault(t, cluster, `{"kind":"hot_shard","table":"t","share":0.5}`)
	second := addFault(t, cluster, `{"kind":"not_ready","node":2}`)
	want := []Fault{
		{ID: first.ID, Kind: HotShard, Table: "t", Share: 0.5},
		{ID: second.ID, Kind: NotReady, Node: 2, Share: 1},
	}
	if list := faultsOf(t, cluster); len(list) != 2 || list[0] != want[0] || list[1] != want[1] {
		t.Errorf("faults %+v; want %+v", list, want)
	}
	removeFault(t, cluster, first.ID)
	if list := faultsOf(t, cluster); len(list) != 1 || list[0] != want[1] {
		t.Errorf("faults %+v after one was removed", list)
	}
	if code, _ := ask(t, http.MethodDelete, "http://"+cluster.Control()+"/faults/"+first.ID, ""); code != http.StatusNotFound {
		t.Errorf("removing a fault twice: %d", code)
	}
	for body, says := range map[string]string{
		`{"kind":"flood"}`:                          "no such kind",
		`{"kind":"hot_shard","share":1.5}`:          "share",
		`{"kind":"not_ready"}`:                      "node is missing",
		`{"kind":"wrong_tenant"}`:                   "node is missing",
		`{"kind":"compile_queue"}`:                  "node is missing",
		`{"kind":"wrong_tenant","node":9}`:          "no node 9",
		`{"kind":"not_ready","node":1,"table":"t"}`: "table",
		`{"kind":"hot_shard","pool":"olap"}`:        "pool",
		`{"kind":"hot_shard","tabel":"t"}`:          "unknown field",
		`{"kind":"hot_shard","id":"7"}`:             "id",
		`{"kind":"hot_shard","delay":"soon"}`:       "invalid duration",
		`{"kind":"late","status":"SLOW"}`:           "no such YDB status",
		`{"kind":"disk_full","status":"TIMEOUT"}`:   "status",
	} {
		if code, text := post(t, cluster, "/faults", body); code != http.StatusBadRequest || !strings.Contains(text, says) {
			t.Errorf("POST /faults %s: %d %s; want 400 and %q", body, code, text, says)
		}
	}
}

// What strikes before the session leaves its transaction open; what strikes in it rolls it back.
func TestFaultsAndOpenTransactions(t *testing.T) {
	cluster := startCluster(t, nil)
	a := dial(t, cluster.Node(1).Address()).open()
	for _, sql := range []string{"CREATE TABLE t (id Int32 NOT NULL, PRIMARY KEY (id))", "UPSERT INTO t (id) VALUES (1)"} {
		if e := a.c.execute(&Ydb_Query.ExecuteQueryRequest{SessionId: a.id, Query: text(sql)}); e.status != ok {
			t.Fatalf("%s: %v %v", sql, e.status, e.err)
		}
	}
	for _, c := range []struct {
		fault string
		want  Ydb.StatusIds_StatusCode
		open  bool // the transaction, afterwards
	}{
		{`{"kind":"quota","delay":"1ms"}`, Ydb.StatusIds_OVERLOADED, true},
		{`{"kind":"wrong_tenant","node":1}`, Ydb.StatusIds_UNAUTHORIZED, true},
		{`{"kind":"hot_shard","table":"t"}`, Ydb.StatusIds_OVERLOADED, false},
		{`{"kind":"disk_full"}`, Ydb.StatusIds_UNAVAILABLE, false},
		{`{"kind":"pool_full"}`, Ydb.StatusIds_OVERLOADED, false},
		{`{"kind":"compile_queue","node":1}`, Ydb.StatusIds_OVERLOADED, false},
	} {
		begun, err := a.c.query.BeginTransaction(
			testContext(t), &Ydb_Query.BeginTransactionRequest{SessionId: a.id, TxSettings: serializable()},
		)
		if err != nil || begun.GetStatus() != ok {
			t.Fatalf("begin: %v %v", begun, err)
		}
		control := &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: begun.GetTxMeta().GetId()}}
		write := &Ydb_Query.ExecuteQueryRequest{SessionId: a.id, TxControl: control, Query: text("UPSERT INTO t (id) VALUES (2)")}
		f := addFault(t, cluster, c.fault)
		e := a.c.execute(write)
		removeFault(t, cluster, f.ID)
		if e.status != c.want {
			t.Errorf("%s: %v %v; want %v", c.fault, e.status, e.err, c.want)
		}
		rolled, err := a.c.query.RollbackTransaction(
			testContext(t), &Ydb_Query.RollbackTransactionRequest{SessionId: a.id, TxId: begun.GetTxMeta().GetId()},
		)
		want := ok
		if !c.open {
			want = Ydb.StatusIds_NOT_FOUND
		}
		if err != nil || rolled.GetStatus() != want {
			t.Errorf("%s: the transaction is rolled back afterwards with %v %v; want %v", c.fault, rolled.GetStatus(), err, want)
		}
	}
}

// Reads and deletes work on a full disk, and so do the tables that are not concerned.
func TestFaultsSpareTheRest(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(3).Address())
	run := func(sql string, pool string) Ydb.StatusIds_StatusCode {
		t.Helper()
		e := c.execute(&Ydb_Query.ExecuteQueryRequest{Query: text(sql), PoolId: pool})
		if e.err != nil {
			t.Fatalf("%s: %v", sql, e.err)
		}
		return e.status
	}
	for _, table := range []string{"t", "other"} {
		run("CREATE TABLE "+table+" (id Int32 NOT NULL, PRIMARY KEY (id))", "")
	}
	for _, c := range []struct {
		fault, sql, pool string
		want             Ydb.StatusIds_StatusCode
	}{
		{`{"kind":"disk_full"}`, "SELECT * FROM t", "", ok},
		{`{"kind":"disk_full"}`, "DELETE FROM t WHERE id = 1", "", ok},
		{`{"kind":"disk_full","table":"/local/t"}`, "UPSERT INTO other SELECT id FROM t", "", ok},
		{`{"kind":"disk_full","table":"/local/t"}`, "UPSERT INTO t SELECT id FROM other", "", Ydb.StatusIds_UNAVAILABLE},
		{`{"kind":"hot_shard","table":"t"}`, "SELECT * FROM other", "", ok},
		{`{"kind":"hot_shard","table":"t"}`, "SELECT 1", "", ok},
		{`{"kind":"hot_shard","table":"t"}`, "SELECT o.id FROM other AS o JOIN t AS t ON o.id = t.id", "", Ydb.StatusIds_OVERLOADED},
		{`{"kind":"hot_shard","table":"t","share":0}`, "SELECT * FROM t", "", ok},
		{`{"kind":"hot_shard","table":"t","node":1}`, "SELECT * FROM t", "", ok},
		{`{"kind":"pool_full","pool":"olap"}`, "SELECT 1", "", ok},
		{`{"kind":"pool_full","pool":"olap"}`, "SELECT 1", "olap", Ydb.StatusIds_OVERLOADED},
		{`{"kind":"pool_full"}`, "SELECT 1", "olap", ok},
		{`{"kind":"pool_full"}`, "SELECT 1", "default", Ydb.StatusIds_OVERLOADED},
		{`{"kind":"pool_full","table":"t"}`, "SELECT * FROM other", "", ok},
		{`{"kind":"pool_full","table":"t"}`, "SELECT * FROM t", "", Ydb.StatusIds_OVERLOADED},
		{`{"kind":"quota","table":"t","delay":"1ms"}`, "SELECT * FROM other", "", ok},
		{`{"kind":"quota","table":"t","delay":"1ms"}`, "SELECT * FROM t", "", Ydb.StatusIds_OVERLOADED},
		{`{"kind":"compile_queue","node":1}`, "SELECT 1", "", ok},
		{`{"kind":"not_ready","node":3}`, "SELECT 1", "", Ydb.StatusIds_UNAVAILABLE}, // it needs a session for the moment
		{`{"kind":"not_ready","node":2}`, "SELECT 1", "", ok},
	} {
		f := addFault(t, cluster, c.fault)
		if got := run(c.sql, c.pool); got != c.want {
			t.Errorf("%s: %s: %v; want %v", c.fault, c.sql, got, c.want)
		}
		removeFault(t, cluster, f.ID)
	}
}

// A bulk upsert that comes late fails first, and is written after that, if its time is not over.
func TestBulkUpsertComesLate(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	c.execute(&Ydb_Query.ExecuteQueryRequest{Query: text("CREATE TABLE t (id Int32 NOT NULL, PRIMARY KEY (id))")})
	upsert := func(key int32, timeout time.Duration) (Ydb.StatusIds_StatusCode, error) {
		rows := &Ydb.TypedValue{Type: &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: &Ydb.Type{
			Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: []*Ydb.StructMember{
				{Name: "id", Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_INT32}}}}}}}}}},
			Value: &Ydb.Value{Items: []*Ydb.Value{{Items: []*Ydb.Value{{Value: &Ydb.Value_Int32Value{Int32Value: key}}}}}}}
		r, err := c.table.BulkUpsert(testContext(t), &Ydb_Table.BulkUpsertRequest{
			Table: "/local/t", Rows: rows, OperationParams: &Ydb_Operations.OperationParams{OperationTimeout: durationpb.New(timeout)},
		})
		return r.GetOperation().GetStatus(), err
	}
	f := addFault(t, cluster, `{"kind":"late","table":"t","delay":"1s"}`)
	if got, err := upsert(1, patience); got != Ydb.StatusIds_UNAVAILABLE || err != nil {
		t.Errorf("%v, %v; want UNAVAILABLE", got, err)
	}
	removeFault(t, cluster, f.ID)
	f = addFault(t, cluster, `{"kind":"late","table":"t","delay":"1s","status":"grpc:UNAVAILABLE"}`)
	if _, err := upsert(2, 10*time.Millisecond); status.Code(err) != codes.Unavailable {
		t.Errorf("%v; want an error of the transport", err)
	}
	if n := cluster.Node(1).Counters().Late; n != 2 {
		t.Errorf("%d bulk upserts are late; want 2", n)
	}
	removeFault(t, cluster, f.ID)
	for cluster.Node(1).Counters().Late > 0 {
		runtime.Gosched()
	}
	found := c.execute(&Ydb_Query.ExecuteQueryRequest{Query: text("SELECT id FROM t")}).rows()
	if len(found) != 1 || found[0].GetItems()[0].GetInt32Value() != 1 {
		t.Errorf("%v; want the row whose time was not over", found)
	}
	addFault(t, cluster, `{"kind":"late","delay":"1h"}`)
	if got, err := upsert(3, time.Hour); got != Ydb.StatusIds_UNAVAILABLE || err != nil { // the end of the node does not wait for it
		t.Errorf("%v, %v; want UNAVAILABLE", got, err)
	}
}

// A bulk upsert into a hot shard is no refusal: it waits inside the server, with the rows
// of the other shards written, until the shard has time or the client has none.
func TestBulkUpsertWaitsForAHotShard(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	count := func() uint64 {
		t.Helper()
		e := c.execute(&Ydb_Query.ExecuteQueryRequest{Query: text("SELECT COUNT(*) FROM t")})
		return e.rows()[0].GetItems()[0].GetUint64Value()
	}
	c.execute(&Ydb_Query.ExecuteQueryRequest{Query: text("CREATE TABLE t (id Int32 NOT NULL, PRIMARY KEY (id))")})
	rows := &Ydb.TypedValue{Value: &Ydb.Value{}, Type: &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: &Ydb.Type{
		Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: []*Ydb.StructMember{
			{Name: "id", Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_INT32}}}}}}}}}}}
	for i := range int32(10) {
		rows.Value.Items = append(rows.Value.Items, &Ydb.Value{Items: []*Ydb.Value{{Value: &Ydb.Value_Int32Value{Int32Value: i}}}})
	}
	upsert := func(timeout time.Duration) Ydb.StatusIds_StatusCode {
		t.Helper()
		r, err := c.table.BulkUpsert(testContext(t), &Ydb_Table.BulkUpsertRequest{
			Table: "/local/t", Rows: rows, OperationParams: &Ydb_Operations.OperationParams{OperationTimeout: durationpb.New(timeout)},
		})
		if err != nil {
			t.Error(err)
		}
		return r.GetOperation().GetStatus()
	}
	f := addFault(t, cluster, `{"kind":"hot_shard","table":"t","delay":"5ms"}`)
	if got := upsert(50 * time.Millisecond); got != Ydb.StatusIds_TIMEOUT {
		t.Errorf("bulk upsert into a hot shard: %v; want TIMEOUT when its time is over", got)
	}
	removeFault(t, cluster, f.ID)
	if n := count(); n != 5 {
		t.Errorf("%d rows of 10 are written; want those of the other shards, 5", n)
	}
	f = addFault(t, cluster, `{"kind":"hot_shard","table":"t","delay":"1ms"}`)
	before := cluster.Node(1).Counters().Statements
	done := make(chan Ydb.StatusIds_StatusCode, 1)
	go func() { done <- upsert(patience) }()
	for cluster.Node(1).Counters().Statements == before {
		runtime.Gosched()
	}
	removeFault(t, cluster, f.ID)
	if got := <-done; got != ok {
		t.Errorf("bulk upsert after the shard has time again: %v", got)
	}
	if n := count(); n != 10 {
		t.Errorf("%d rows of 10 are written", n)
	}
	addFault(t, cluster, `{"kind":"shard_busy","table":"t","delay":"1ms"}`)
	if got := upsert(patience); got != Ydb.StatusIds_OVERLOADED {
		t.Errorf("bulk upsert into a shard that splits: %v; want OVERLOADED after its tries", got)
	}
}
