package main

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// session is an attached query session.
type session struct {
	t      testing.TB
	client Ydb_Query_V1.QueryServiceClient
	id     string
}

func attach(t testing.TB, address string) session {
	t.Helper()
	client := Ydb_Query_V1.NewQueryServiceClient(dial(t, address))
	created, err := client.CreateSession(testContext(t), &Ydb_Query.CreateSessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	states, err := client.AttachSession(testContext(t), &Ydb_Query.AttachSessionRequest{SessionId: created.GetSessionId()})
	if err == nil {
		_, err = states.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	return session{t, client, created.GetSessionId()}
}

// run executes a statement; tx "" lets the server decide. It returns the first number of the result.
func (s session) run(tx, sql string) (int64, error) {
	request := &Ydb_Query.ExecuteQueryRequest{SessionId: s.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, Query: text(sql)}
	if tx != "" {
		request.TxControl = &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: tx}}
	}
	stream, err := s.client.ExecuteQuery(testContext(s.t), request)
	if err != nil {
		return 0, err
	}
	var number int64
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return number, nil
		}
		if err != nil {
			return 0, err
		}
		if part.GetStatus() != Ydb.StatusIds_SUCCESS {
			return 0, fmt.Errorf("%v", part)
		}
		for _, row := range part.GetResultSet().GetRows() {
			v := row.GetItems()[0]
			number = v.GetInt64Value() + int64(v.GetUint64Value())
		}
	}
}

func (s session) must(tx, sql string) int64 {
	s.t.Helper()
	n, err := s.run(tx, sql)
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (s session) begin() string {
	s.t.Helper()
	r, err := s.client.BeginTransaction(
		testContext(s.t),
		&Ydb_Query.BeginTransactionRequest{SessionId: s.id, TxSettings: &Ydb_Query.TransactionSettings{
			TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}},
		}},
	)
	if err != nil || r.GetStatus() != Ydb.StatusIds_SUCCESS {
		s.t.Fatalf("begin: %v, %v", r, err)
	}
	return r.GetTxMeta().GetId()
}

func (s session) commit(tx string) Ydb.StatusIds_StatusCode {
	s.t.Helper()
	r, err := s.client.CommitTransaction(testContext(s.t), &Ydb_Query.CommitTransactionRequest{SessionId: s.id, TxId: tx})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.GetStatus()
}

// Nodes in separate processes share the data: an open transaction stops no other,
// transactions on different keys do not disturb each other, and of two that
// write what both read, the second is aborted.
func TestTransactionsOfSeparateProcesses(t *testing.T) {
	p := launch(t, "-control", "", "-processes", "-nodes", "2")
	a, b := attach(t, p.ready.Nodes[0].Address), attach(t, p.ready.Nodes[1].Address)
	a.must("", "CREATE TABLE t (id Uint64, n Int64, PRIMARY KEY (id))")
	a.must("", "UPSERT INTO t (id, n) VALUES (1ul, 0l), (2ul, 0l)")

	open := a.begin()
	a.must(open, "SELECT n FROM t WHERE id = 1ul")
	a.must(open, "UPDATE t SET n = n + 1l WHERE id = 1ul")

	other := b.begin() // on another key, while the first is open
	b.must(other, "UPDATE t SET n = n + 10l WHERE id = 2ul")
	if got := b.commit(other); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("commit on another key: %v", got)
	}
	if got := b.must("", "SELECT n FROM t WHERE id = 1ul"); got != 0 {
		t.Errorf("an open transaction shows itself: %d", got)
	}
	if got := a.must(open, "SELECT n FROM t WHERE id = 1ul"); got != 1 {
		t.Errorf("a transaction does not see its own write: %d", got)
	}

	b.must("", "UPDATE t SET n = n + 100l WHERE id = 1ul") // the open one holds no lock
	if got := a.commit(open); got != Ydb.StatusIds_ABORTED {
		t.Errorf("commit after a conflict: %v", got)
	}
	if n, m := a.must("", "SELECT n FROM t WHERE id = 1ul"), a.must("", "SELECT n FROM t WHERE id = 2ul"); n != 100 || m != 10 {
		t.Errorf("n = %d, %d; want 100, 10", n, m)
	}
}

// SIGKILL in the middle of commits: what was acknowledged is there, and nothing
// half.
func TestSIGKILLUnderLoad(t *testing.T) {
	p := launch(t, "-control", "127.0.0.1:0", "-processes", "-nodes", "2", "-data", t.TempDir()+"/data")
	keeper := attach(t, p.ready.Nodes[1].Address)
	keeper.must("", "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
	const writers = 4
	var acknowledged [writers]int64
	var all sync.WaitGroup
	for w := range writers {
		s := attach(t, p.ready.Nodes[0].Address)
		all.Go(func() {
			for i := 0; ; i += 2 { // two rows at a time
				if _, err := s.run(
					"", fmt.Sprintf("UPSERT INTO t (id) VALUES (%dul), (%dul)", w*1_000_000+i, w*1_000_000+i+1),
				); err != nil {
					return
				}
				acknowledged[w] += 2
			}
		})
	}
	await.True(t, "the load runs", func() bool { return keeper.must("", "SELECT COUNT(*) FROM t") > 50 })
	if err := syscall.Kill(p.nodes()[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	var sum int64
	for _, n := range acknowledged {
		sum += n
	}
	if got := keeper.must("", "SELECT COUNT(*) FROM t"); got%2 != 0 || got < sum || got > sum+2*writers {
		t.Errorf("%d rows of %d acknowledged by %d writers", got, sum, writers)
	}
	p.post("/nodes/1/start", "")
	if got := attach(t, p.ready.Nodes[0].Address).must("", "SELECT COUNT(*) FROM t"); got < sum {
		t.Errorf("%d rows after the node came back", got)
	}
}

// A node that was killed from outside starts again at once, also while the end of its process is not noticed yet.
func TestStartRightAfterAKill(t *testing.T) {
	p := launch(t, "-control", "127.0.0.1:0", "-processes", "-nodes", "1")
	for range 20 {
		before := p.nodes()[0].PID
		if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.post("/nodes/1/start", "")
		if n := p.nodes()[0]; n.State != devcluster.Up || n.PID == before {
			t.Fatalf("%+v after process %d", n, before)
		}
	}
}
