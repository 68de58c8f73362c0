package devcluster

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

func TestTableSessions(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	id := c.tableSession()
	alive, err := c.table.KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: id})
	if err != nil ||
		unpack[*Ydb_Table.KeepAliveResult](t, alive.GetOperation()).GetSessionStatus() != Ydb_Table.KeepAliveResult_SESSION_STATUS_READY {
		t.Errorf("KeepAlive: %v, %v", alive, err)
	}
	s, err := cluster.Node(1).running().sessions.find(id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive, err = c.table.KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: id})
	if err != nil ||
		unpack[*Ydb_Table.KeepAliveResult](t, alive.GetOperation()).GetSessionStatus() != Ydb_Table.KeepAliveResult_SESSION_STATUS_BUSY {
		t.Errorf("KeepAlive while busy: %v, %v", alive, err)
	}
	busy, err := c.table.BeginTransaction(
		testContext(t), &Ydb_Table.BeginTransactionRequest{SessionId: id, TxSettings: serializableTable()},
	)
	if err != nil || busy.GetOperation().GetStatus() != Ydb.StatusIds_SESSION_BUSY {
		t.Errorf("while busy: %v, %v", busy, err)
	}
	s.leave()
	none, err := c.table.ExecuteDataQuery(testContext(t), &Ydb_Table.ExecuteDataQueryRequest{SessionId: id})
	if err != nil || none.GetOperation().GetStatus() != Ydb.StatusIds_BAD_REQUEST {
		t.Errorf("without tx_control: %v, %v", none, err)
	}
	if state := c.attach(id).next(); state.GetStatus() != Ydb.StatusIds_BAD_REQUEST {
		t.Errorf("attach: %v", state)
	}
	gone, err := c.table.DeleteSession(testContext(t), &Ydb_Table.DeleteSessionRequest{SessionId: id})
	if err != nil || gone.GetOperation().GetStatus() != Ydb.StatusIds_SUCCESS {
		t.Errorf("DeleteSession: %v, %v", gone, err)
	}
	alive, err = c.table.KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: id})
	if err != nil || alive.GetOperation().GetStatus() != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("KeepAlive of a deleted session: %v, %v", alive, err)
	}
}

// A hint comes in the trailer of every call in the session from then on, which KeepAlive is not.
func TestHintsOfTableSessions(t *testing.T) {
	cluster := startCluster(t, nil)
	id := dial(t, cluster.Node(1).Address()).tableSession()
	if err := cluster.Node(1).Kick(id, Drain{Mode: DrainStreams, Limits: Default().kick()}); err != nil {
		t.Fatal(err)
	}
	var trailer metadata.MD
	for _, node := range []uint32{1, 2} {
		through := dial(t, cluster.Node(node).Address())
		if _, err := through.table.KeepAlive(
			testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: id}, grpc.Trailer(&trailer),
		); err != nil {
			t.Fatal(err)
		}
		if got := trailer.Get(headerHints); len(got) != 0 {
			t.Errorf("trailer of KeepAlive through node %d: %v", node, trailer)
		}
		begun, err := through.table.BeginTransaction(
			testContext(t), &Ydb_Table.BeginTransactionRequest{SessionId: id, TxSettings: serializableTable()},
			grpc.Trailer(&trailer),
		)
		if err != nil || begun.GetOperation().GetStatus() != ok {
			t.Fatalf("%v, %v", begun, err)
		}
		if got := trailer.Get(headerHints); len(got) != 1 || got[0] != "session-close" {
			t.Errorf("trailer through node %d: %v", node, trailer)
		}
	}
}

func TestQueryRequestsThatAreRefused(t *testing.T) {
	a := dial(t, startCluster(t, nil).Node(1).Address()).open()
	for name, c := range map[string]struct {
		change func(*Ydb_Query.ExecuteQueryRequest)
		want   Ydb.StatusIds_StatusCode
	}{
		"parse": {func(r *Ydb_Query.ExecuteQueryRequest) { r.ExecMode = Ydb_Query.ExecMode_EXEC_MODE_PARSE },
			Ydb.StatusIds_BAD_REQUEST},
		"validate": {func(r *Ydb_Query.ExecuteQueryRequest) { r.ExecMode = Ydb_Query.ExecMode_EXEC_MODE_VALIDATE },
			Ydb.StatusIds_UNSUPPORTED},
		"no text": {func(r *Ydb_Query.ExecuteQueryRequest) { r.Query = nil }, Ydb.StatusIds_BAD_REQUEST},
		"arrow": {func(r *Ydb_Query.ExecuteQueryRequest) { r.ResultSetFormat = Ydb.ResultSet_FORMAT_ARROW },
			Ydb.StatusIds_UNSUPPORTED},
		"large parts": {func(r *Ydb_Query.ExecuteQueryRequest) { r.ResponsePartLimitBytes = maxPartBytes + 1 },
			Ydb.StatusIds_BAD_REQUEST},
		"open without": {func(r *Ydb_Query.ExecuteQueryRequest) { r.SessionId = ""; r.TxControl = begin(serializable(), false) },
			Ydb.StatusIds_BAD_REQUEST},
		"unknown session":    {func(r *Ydb_Query.ExecuteQueryRequest) { r.SessionId = newSessionID(1) }, Ydb.StatusIds_BAD_SESSION},
		"unknown node":       {func(r *Ydb_Query.ExecuteQueryRequest) { r.SessionId = newSessionID(9) }, Ydb.StatusIds_BAD_SESSION},
		"session without id": {func(r *Ydb_Query.ExecuteQueryRequest) { r.SessionId = "x" }, Ydb.StatusIds_BAD_REQUEST},
		"postgres": {func(r *Ydb_Query.ExecuteQueryRequest) {
			r.Query = &Ydb_Query.ExecuteQueryRequest_QueryContent{
				QueryContent: &Ydb_Query.QueryContent{Syntax: 2 /* PostgreSQL */, Text: "SELECT 1"},
			}
		}, Ydb.StatusIds_UNSUPPORTED},
	} {
		r := &Ydb_Query.ExecuteQueryRequest{SessionId: a.id, Query: text("SELECT 1")}
		c.change(r)
		if e := a.c.execute(r); e.err != nil || e.status != c.want || len(e.parts) != 1 {
			t.Errorf("%s: %v; want %v", name, e, c.want)
		}
	}
	// PARSE is the mode 10, and 0 is no mode.
	stream, err := a.c.query.ExecuteQuery(testContext(t), &Ydb_Query.ExecuteQueryRequest{SessionId: a.id, Query: text("SELECT 1")})
	if err != nil {
		t.Fatal(err)
	}
	if part, err := stream.Recv(); err != nil || part.GetStatus() != Ydb.StatusIds_BAD_REQUEST {
		t.Errorf("no mode: %v, %v", part, err)
	}
}
