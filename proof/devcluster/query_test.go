package devcluster

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

func (e execution) rows() []*Ydb.Value {
	var rows []*Ydb.Value
	for _, p := range e.parts {
		rows = append(rows, p.GetResultSet().GetRows()...)
	}
	return rows
}

// number is the first value of the first row.
func (e execution) number(t testing.TB) int64 {
	t.Helper()
	rows := e.rows()
	if len(rows) == 0 {
		t.Fatalf("no rows in %v", e)
	}
	v := rows[0].GetItems()[0]
	return v.GetInt64Value() + int64(v.GetUint64Value()) + int64(v.GetInt32Value())
}

const ok = Ydb.StatusIds_SUCCESS

func TestSelectOne(t *testing.T) {
	a := dial(t, startCluster(t, nil).Node(1).Address()).open()
	e := a.must(ok, "SELECT 1", nil)
	want := &Ydb_Query.ExecuteQueryResponsePart{Status: ok, ResultSet: &Ydb.ResultSet{
		Columns: []*Ydb.Column{{Name: "column0", Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_INT32}}}},
		Rows:    []*Ydb.Value{{Items: []*Ydb.Value{{Value: &Ydb.Value_Int32Value{Int32Value: 1}}}}},
	}}
	if len(e.parts) != 1 || !proto.Equal(e.parts[0], want) {
		t.Errorf("got %v; want %v", e.parts, want)
	}
}

func TestTxMetaInTheLastPart(t *testing.T) {
	a := dial(t, startCluster(t, nil).Node(1).Address()).open()
	a.must(ok, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))", nil)
	for _, c := range []struct {
		name, sql string
		control   *Ydb_Query.TransactionControl
		meta      bool // there is a tx_meta
		open      bool // with an id
	}{
		{"implicit", "SELECT 1", nil, false, false},
		{"autocommit", "SELECT 1", begin(serializable(), true), true, false},
		{"begin", "SELECT 1", begin(serializable(), false), true, true},
		{"begin without a result", "UPSERT INTO t (id) VALUES (1ul)", begin(serializable(), false), true, true},
		{"autocommit without a result", "UPSERT INTO t (id) VALUES (2ul)", begin(serializable(), true), true, false},
		{"two sets", "SELECT 1; SELECT 2", begin(serializable(), false), true, true},
		{"two sets, autocommit", "SELECT 1; SELECT 2", begin(serializable(), true), true, false},
	} {
		e := a.must(ok, c.sql, c.control)
		last := len(e.parts) - 1
		meta := e.parts[last].GetTxMeta()
		if (meta != nil) != c.meta || (meta.GetId() != "") != c.open {
			t.Errorf("%s: tx_meta %v", c.name, meta)
		}
		for _, p := range e.parts[:last] {
			if p.GetTxMeta() != nil {
				t.Errorf("%s: tx_meta in an earlier part", c.name)
			}
		}
		if c.open {
			e = a.must(ok, "SELECT 1", inside(meta.GetId(), true))
			if m := e.parts[0].GetTxMeta(); m == nil || m.GetId() != "" {
				t.Errorf("%s: tx_meta after the commit: %v", c.name, m)
			}
			a.must(Ydb.StatusIds_NOT_FOUND, "SELECT 1", inside(meta.GetId(), true))
		}
	}
	if got := a.must(ok, "SELECT COUNT(*) FROM t", nil).number(t); got != 2 {
		t.Errorf("%d rows", got)
	}
}

func TestAnyErrorEndsTheTransaction(t *testing.T) {
	cluster := startCluster(t, nil)
	a := dial(t, cluster.Node(1).Address()).open()
	a.must(ok, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))", nil)
	a.must(ok, "UPSERT INTO t (id) VALUES (1ul)", nil)
	for sql, want := range map[string]Ydb.StatusIds_StatusCode{
		"INSERT INTO t (id) VALUES (1ul)":            Ydb.StatusIds_PRECONDITION_FAILED,
		"SELEKT":                                     Ydb.StatusIds_GENERIC_ERROR,
		"SELECT * FROM missing":                      Ydb.StatusIds_SCHEME_ERROR,
		"CREATE TABLE u (id Uint64, PRIMARY KEY id)": Ydb.StatusIds_GENERIC_ERROR,
	} {
		tx := a.begin(serializable()).GetTxMeta().GetId()
		a.must(ok, "UPSERT INTO t (id) VALUES (2ul)", inside(tx, false))
		if e := a.run(sql, inside(tx, false)); e.err != nil || e.status != want {
			t.Errorf("%s: %v; want %v", sql, e, want)
		}
		if got := cluster.Sessions()[0].Transactions; got != 0 {
			t.Errorf("%d open transactions after %s", got, sql)
		}
		if got := a.commit(tx); got != Ydb.StatusIds_NOT_FOUND {
			t.Errorf("commit after %s: %v", sql, got)
		}
	}
	if got := a.must(ok, "SELECT COUNT(*) FROM t", nil).number(t); got != 1 {
		t.Errorf("%d rows; the transactions were rolled back", got)
	}
}

// What is refused before it reaches the session leaves its transaction as it was.
func TestRefusedRequestsLeaveTheTransactionOpen(t *testing.T) {
	cluster := startCluster(t, nil)
	a := dial(t, cluster.Node(1).Address()).open()
	a.must(ok, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))", nil)
	tx := a.begin(serializable()).GetTxMeta().GetId()
	a.must(ok, "UPSERT INTO t (id) VALUES (1ul)", inside(tx, false))
	a.must(Ydb.StatusIds_BAD_REQUEST, "", inside(tx, false))
	stream, err := a.c.query.ExecuteQuery(
		testContext(t),
		&Ydb_Query.ExecuteQueryRequest{SessionId: a.id, Query: text("SELECT 1"), TxControl: inside(tx, true)},
	)
	if err != nil {
		t.Fatal(err)
	}
	if part, err := stream.Recv(); err != nil || part.GetStatus() != Ydb.StatusIds_BAD_REQUEST { // it has no exec_mode
		t.Fatalf("%v, %v; want BAD_REQUEST", part, err)
	}
	r, err := a.c.table.ExecuteDataQuery(testContext(t), &Ydb_Table.ExecuteDataQueryRequest{
		SessionId: a.id, TxControl: &Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}, CommitTx: true},
		Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{}},
	})
	if err != nil || r.GetOperation().GetStatus() != Ydb.StatusIds_BAD_REQUEST {
		t.Fatalf("%v, %v; want BAD_REQUEST", r, err)
	}
	if got := cluster.Sessions()[0].Transactions; got != 1 {
		t.Errorf("%d open transactions; want 1", got)
	}
	if got := a.commit(tx); got != ok {
		t.Errorf("commit: %v", got)
	}
	if got := a.must(ok, "SELECT COUNT(*) FROM t", nil).number(t); got != 1 {
		t.Errorf("%d rows; want the one of the transaction", got)
	}
}

// The server ends a session that answers INTERNAL_ERROR or BAD_SESSION, with all that is open in it.
func TestFatalStatusesEndTheSession(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	c.open().must(ok, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))", nil)
	through := dial(t, cluster.Node(2).Address())
	sessions := func() int { return len(cluster.Sessions()) }
	before := sessions()
	for status, ends := range map[Ydb.StatusIds_StatusCode]bool{
		Ydb.StatusIds_INTERNAL_ERROR: true, Ydb.StatusIds_BAD_SESSION: true, Ydb.StatusIds_UNAVAILABLE: false, Ydb.StatusIds_ABORTED: false,
	} {
		for _, after := range []bool{false, true} {
			a := c.open()
			tx := a.begin(serializable()).GetTxMeta().GetId()
			a.must(ok, "UPSERT INTO t (id) VALUES (1ul)", inside(tx, false))
			if err := cluster.Node(1).Errors(
				Errors{Status: status.String(), Share: 1, Methods: []string{"ExecuteQuery"}, After: after},
			); err != nil {
				t.Fatal(err)
			}
			e := through.execute(&Ydb_Query.ExecuteQueryRequest{SessionId: a.id, Query: text("SELECT 1")})
			if err := cluster.Node(1).Clear(); err != nil {
				t.Fatal(err)
			}
			if e.status != status {
				t.Fatalf("%v; want %v", e, status)
			}
			if !ends {
				a.must(ok, "SELECT 1", inside(tx, true))
				c.delete(a.id)
				continue
			}
			if got := sessions(); got != before {
				t.Errorf("%v, after %v: %d sessions; want %d", status, after, got, before)
			}
			a.ended()
			a.must(Ydb.StatusIds_BAD_SESSION, "SELECT 1", nil)
		}
	}
	if got := cluster.Node(1).Counters().Open; got != 0 {
		t.Errorf("%d open transactions", got)
	}
}

// One transaction too many costs the session.
func TestTooManyTransactionsEndTheSession(t *testing.T) {
	cluster := startCluster(t, nil)
	a := dial(t, cluster.Node(1).Address()).open()
	for range maxTransactions {
		if r := a.begin(serializable()); r.GetStatus() != ok {
			t.Fatalf("begin: %v", r)
		}
	}
	a.must(Ydb.StatusIds_BAD_SESSION, "SELECT 1", begin(serializable(), false))
	a.ended()
	if got := a.begin(serializable()).GetStatus(); got != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("begin afterwards: %v", got)
	}
	if got := cluster.Node(1).Counters(); got.Open != 0 || got.Sessions != 0 {
		t.Errorf("counters %+v; want nothing open", got)
	}
}

func TestConflictsBetweenNodes(t *testing.T) {
	cluster := startCluster(t, nil)
	a, b := dial(t, cluster.Node(1).Address()).open(), dial(t, cluster.Node(2).Address()).open()
	a.must(ok, "CREATE TABLE t (id Uint64, n Int64, PRIMARY KEY (id))", nil)
	a.must(ok, "UPSERT INTO t (id, n) VALUES (1ul, 0l), (2ul, 0l)", nil)
	first := a.begin(serializable()).GetTxMeta().GetId()
	second := b.begin(serializable()).GetTxMeta().GetId()
	a.must(ok, "SELECT n FROM t WHERE id = 1ul", inside(first, false))
	b.must(ok, "SELECT n FROM t WHERE id = 1ul", inside(second, false))
	a.must(ok, "UPDATE t SET n = 1 WHERE id = 1ul", inside(first, false))
	b.must(ok, "UPDATE t SET n = 2 WHERE id = 1ul", inside(second, false))
	if got := a.commit(first); got != ok {
		t.Errorf("first commit: %v", got)
	}
	if got := b.commit(second); got != Ydb.StatusIds_ABORTED {
		t.Errorf("second commit: %v", got)
	}
	if got := cluster.Node(2).Counters(); got.Conflicts != 1 || got.Open != 0 || got.Commits != 0 {
		t.Errorf("counters %+v", got)
	}
}

func TestSessionIsBusyWhileAnAnswerIsStreamed(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	a := c.open()
	fill(t, a, 80, 100_000)
	for _, node := range []uint32{1, 2} { // at the owner, and through another node
		through := dial(t, cluster.Node(node).Address())
		stream, err := through.query.ExecuteQuery(testContext(t), &Ydb_Query.ExecuteQueryRequest{
			SessionId: a.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, Query: text("SELECT * FROM t"),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		// 8 MB do not fit into the windows: the node waits for its client.
		a.must(Ydb.StatusIds_SESSION_BUSY, "SELECT 1", nil)
		rows := 0
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || part.GetStatus() != ok {
				t.Fatalf("%v, %v", part, err)
			}
			rows += len(part.GetResultSet().GetRows())
		}
		if rows < 50 || rows >= 80 {
			t.Errorf("%d rows after the first part", rows)
		}
		a.must(ok, "SELECT 1", nil)
	}
}

// fill makes a table t of rows with a payload of some bytes each.
func fill(t testing.TB, a *attached, rows, payload int) {
	t.Helper()
	a.must(ok, "CREATE TABLE t (id Uint64, v String, PRIMARY KEY (id))", nil)
	const batch = 500
	for from := 0; from < rows; from += batch {
		var values []string
		for id := from; id < min(from+batch, rows); id++ {
			values = append(values, fmt.Sprintf("(%dul, $v)", id))
		}
		e := a.c.execute(&Ydb_Query.ExecuteQueryRequest{
			SessionId: a.id, Query: text("DECLARE $v AS String; UPSERT INTO t (id, v) VALUES " + strings.Join(values, ", ")),
			Parameters: map[string]*Ydb.TypedValue{"$v": {
				Type:  &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_STRING}},
				Value: &Ydb.Value{Value: &Ydb.Value_BytesValue{BytesValue: make([]byte, payload)}},
			}},
		})
		if e.status != ok {
			t.Fatalf("fill: %v", e)
		}
	}
}

func TestCancelledStatementsFreeTheSession(t *testing.T) {
	cluster := startCluster(t, nil)
	a := dial(t, cluster.Node(1).Address()).open()
	fill(t, a, 80, 100_000)
	tx := a.begin(serializable()).GetTxMeta().GetId()
	ctx := testContext(t)
	other := dial(t, cluster.Node(1).Address())
	stream, err := other.query.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{
		SessionId: a.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, Query: text("SELECT * FROM t"), TxControl: inside(tx, false),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil { // the client vanishes
		t.Fatal(err)
	}
	await.True(t, "the session is free", func() bool { return a.run("SELECT 1", nil).status == ok })
	if got := a.commit(tx); got != Ydb.StatusIds_NOT_FOUND {
		t.Errorf("commit after a cancelled statement: %v", got)
	}
}

func TestPartsOfAnAnswer(t *testing.T) {
	a := dial(t, startCluster(t, nil).Node(1).Address()).open()
	fill(t, a, 1100, 10)
	request := func(change func(*Ydb_Query.ExecuteQueryRequest)) execution {
		r := &Ydb_Query.ExecuteQueryRequest{SessionId: a.id, Query: text("SELECT id, v FROM t; SELECT 1 WHERE false; SELECT 2")}
		change(r)
		return a.c.execute(r)
	}
	for _, first := range []bool{false, true} {
		e := request(func(r *Ydb_Query.ExecuteQueryRequest) {
			r.StatsMode = Ydb_Query.StatsMode_STATS_MODE_BASIC
			if first {
				r.SchemaInclusionMode = Ydb_Query.SchemaInclusionMode_SCHEMA_INCLUSION_MODE_FIRST_ONLY
			}
		})
		seen, last := map[int64]bool{}, int64(0)
		for i, p := range e.parts {
			set := p.GetResultSetIndex()
			columns := len(p.GetResultSet().GetColumns()) > 0
			if set < last || columns != (!first || !seen[set]) {
				t.Errorf("first only %v: part %d of set %d: columns %v", first, i, set, columns)
			}
			seen[set], last = true, set
			if (p.GetExecStats() != nil) != (i == len(e.parts)-1) {
				t.Errorf("statistics in part %d of %d: %v", i, len(e.parts), p.GetExecStats())
			}
		}
		if len(seen) != 3 || len(e.rows()) != 1101 || len(e.parts) < 4 {
			t.Errorf("%d sets, %d rows, %d parts", len(seen), len(e.rows()), len(e.parts))
		}
	}
	small := request(func(r *Ydb_Query.ExecuteQueryRequest) { r.ResponsePartLimitBytes = 2000 })
	for _, p := range small.parts {
		if size := proto.Size(p); size > 4000 {
			t.Errorf("a part of %d bytes", size)
		}
	}
	if len(small.rows()) != 1101 {
		t.Errorf("%d rows in small parts", len(small.rows()))
	}
}

func TestExplain(t *testing.T) {
	cluster := startCluster(t, nil)
	a := dial(t, cluster.Node(1).Address()).open()
	a.must(ok, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))", nil)
	e := a.c.execute(&Ydb_Query.ExecuteQueryRequest{
		SessionId: a.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN, Query: text("UPSERT INTO t (id) VALUES (1ul)"),
	})
	if e.status != ok || len(e.parts) != 1 || e.parts[0].GetResultSet() != nil || e.parts[0].GetExecStats().GetQueryPlan() == "" {
		t.Errorf("got %v", e)
	}
	if got := a.must(ok, "SELECT COUNT(*) FROM t", nil).number(t); got != 0 {
		t.Errorf("EXPLAIN wrote %d rows", got)
	}
	full := a.c.execute(
		&Ydb_Query.ExecuteQueryRequest{SessionId: a.id, Query: text("SELECT 1"), StatsMode: Ydb_Query.StatsMode_STATS_MODE_FULL},
	)
	if full.parts[len(full.parts)-1].GetExecStats().GetQueryPlan() == "" {
		t.Errorf("no plan in full statistics: %v", full)
	}
}

func TestImplicitSessions(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	for _, control := range []*Ydb_Query.TransactionControl{nil, begin(serializable(), true)} {
		if e := c.execute(&Ydb_Query.ExecuteQueryRequest{Query: text("SELECT 1"), TxControl: control}); e.status != ok ||
			len(e.rows()) != 1 {
			t.Errorf("got %v", e)
		}
	}
	if got := cluster.Sessions(); len(got) != 0 {
		t.Errorf("sessions %v", got)
	}
}

func TestOneCompilationForAllParameters(t *testing.T) {
	cluster := startCluster(t, nil)
	for _, id := range []uint32{1, 2} {
		a := dial(t, cluster.Node(id).Address()).open()
		for i := range 50 {
			e := a.c.execute(&Ydb_Query.ExecuteQueryRequest{
				SessionId: a.id, Query: text("DECLARE $n AS Int64; SELECT $n"),
				Parameters: map[string]*Ydb.TypedValue{"$n": {
					Type:  &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_INT64}},
					Value: &Ydb.Value{Value: &Ydb.Value_Int64Value{Int64Value: int64(i)}},
				}},
			})
			if e.number(t) != int64(i) {
				t.Errorf("got %v", e)
			}
		}
		if got := cluster.Node(id).Counters(); got.Compilations != 1 || got.Statements != 50 {
			t.Errorf("node %d: %d compilations of %d statements", id, got.Compilations, got.Statements)
		}
	}
}

// A node that is killed under load leaves no transaction half done and commits
// nothing afterwards.
func TestKillUnderLoad(t *testing.T) {
	cluster := startCluster(t, nil)
	keeper := dial(t, cluster.Node(2).Address()).open()
	keeper.must(ok, "CREATE TABLE t (id Uint64, n Int64, PRIMARY KEY (id))", nil)
	count := func() int64 { return keeper.must(ok, "SELECT COUNT(*) FROM t", nil).number(t) }
	const writers = 8
	var acknowledged [writers]int64
	var all sync.WaitGroup
	for w := range writers {
		a := dial(t, cluster.Node(1).Address()).open()
		all.Go(func() {
			for i := 0; ; i += 2 { // each transaction writes two rows
				sql := fmt.Sprintf("UPSERT INTO t (id, n) VALUES (%dul, 1l), (%dul, 1l)", w*1_000_000+i, w*1_000_000+i+1)
				if e := a.run(sql, begin(serializable(), true)); e.err != nil || e.status != ok {
					return
				}
				acknowledged[w] += 2
			}
		})
	}
	await.True(t, "the load runs", func() bool { return cluster.Node(1).Counters().Commits > 50 })
	cluster.Node(1).Kill()
	after := count()
	all.Wait()
	if got := count(); got != after {
		t.Errorf("%d rows; there were %d when Kill returned", got, after)
	}
	var sum int64
	for _, n := range acknowledged {
		sum += n
	}
	if after%2 != 0 || after < sum || after > sum+2*writers {
		t.Errorf("%d rows of %d acknowledged by %d writers", after, sum, writers)
	}
}

func TestDeleteSessionEndsItsStatement(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	a := c.open()
	fill(t, a, 80, 100_000)
	stream, err := dial(t, cluster.Node(1).Address()).query.ExecuteQuery(testContext(t), &Ydb_Query.ExecuteQueryRequest{
		SessionId: a.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, Query: text("SELECT * FROM t"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if got := c.delete(a.id); got != ok {
		t.Errorf("delete: %v", got)
	}
	a.ended()
	var last Ydb.StatusIds_StatusCode
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last = part.GetStatus()
	}
	if last != Ydb.StatusIds_CANCELLED {
		t.Errorf("the statement ended with %v", last)
	}
}

func TestTimeLimitsOfOperations(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	id := c.tableSession()
	if err := cluster.Node(1).Delay(Delay{Delay: time.Hour, Share: 1, Methods: []string{"KeepAlive"}}); err != nil {
		t.Fatal(err)
	}
	for want, params := range map[Ydb.StatusIds_StatusCode]*Ydb_Operations.OperationParams{
		Ydb.StatusIds_TIMEOUT:   {OperationTimeout: durationpb.New(time.Millisecond), CancelAfter: durationpb.New(time.Hour)},
		Ydb.StatusIds_CANCELLED: {OperationTimeout: durationpb.New(time.Hour), CancelAfter: durationpb.New(time.Millisecond)},
	} {
		r, err := c.table.KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: id, OperationParams: params})
		if err != nil || r.GetOperation().GetStatus() != want {
			t.Errorf("got %v, %v; want %v", r, err, want)
		}
	}
}
