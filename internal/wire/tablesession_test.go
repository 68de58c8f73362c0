package wire

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// selects runs a statement on a session of the table service, and returns its transaction.
func (g *guest) selects(id string, control *Ydb_Table.TransactionControl) (Ydb.StatusIds_StatusCode, string) {
	r, err := g.table.ExecuteDataQuery(
		g.with(g.house.ctx),
		&Ydb_Table.ExecuteDataQueryRequest{SessionId: id, TxControl: control,
			Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "select"}}},
	)
	if err != nil {
		g.house.Fatal(err)
	}
	result := new(Ydb_Table.ExecuteQueryResult)
	if x := r.GetOperation().GetResult(); x != nil && x.UnmarshalTo(result) != nil {
		g.house.Error(r)
	}
	return r.GetOperation().GetStatus(), result.GetTxMeta().GetId()
}

// A session of the table service begins, commits and ends, and its transaction ends with its connection.
//
// Long: it is one session from its begin to its end, and what is left after it.
func TestTableSessions(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	created, err := g.table.CreateSession(g.with(h.ctx), &Ydb_Table.CreateSessionRequest{})
	result := new(Ydb_Table.CreateSessionResult)
	if err != nil || created.GetOperation().GetResult().UnmarshalTo(result) != nil ||
		protocol.HomeNode([]byte(result.GetSessionId())) != virtual.NodeID {
		t.Fatal(created, err)
	}
	id := result.GetSessionId()
	alive, err := g.table.KeepAlive(g.with(h.ctx), &Ydb_Table.KeepAliveRequest{SessionId: id})
	kept := new(Ydb_Table.KeepAliveResult)
	if err != nil || alive.GetOperation().GetResult().UnmarshalTo(kept) != nil ||
		kept.GetSessionStatus() != Ydb_Table.KeepAliveResult_SESSION_STATUS_READY {
		t.Error(alive, err)
	}
	run := func(control *Ydb_Table.TransactionControl) (Ydb.StatusIds_StatusCode, string) {
		return g.selects(id, control)
	}
	begin := &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{}}
	if st, tx := run(&Ydb_Table.TransactionControl{CommitTx: true, TxSelector: begin}); st != success || tx != "" {
		t.Error(st, tx)
	}
	h.resting()
	st, tx := run(&Ydb_Table.TransactionControl{TxSelector: begin})
	if st != success || tx == "" || h.openTx() != 1 {
		t.Error(st, tx, h.openTx())
	}
	if r, err := g.table.CommitTransaction(
		g.with(h.ctx), &Ydb_Table.CommitTransactionRequest{SessionId: id, TxId: tx},
	); err != nil || r.GetOperation().GetStatus() != success {
		t.Error(r, err)
	}
	if r, err := g.table.CopyTables(g.with(h.ctx), &Ydb_Table.CopyTablesRequest{SessionId: id}); err != nil ||
		r.GetOperation().GetStatus() != success {
		t.Error(r, err)
	}
	h.resting()
	// There is no stream: the end of its connection tells that the client is gone.
	if _, tx = run(&Ydb_Table.TransactionControl{TxSelector: begin}); tx == "" {
		t.Error("no transaction")
	}
	g.conn.Close()
	h.resting()
	g = h.guest("a")
	if st, _ := run(
		&Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}},
	); st != Ydb.StatusIds_BAD_SESSION {
		t.Error(st)
	}
	if st, _ := run(&Ydb_Table.TransactionControl{CommitTx: true, TxSelector: begin}); st != success {
		t.Error(st)
	}
	if r, err := g.table.DeleteSession(g.with(h.ctx), &Ydb_Table.DeleteSessionRequest{SessionId: id}); err != nil ||
		r.GetOperation().GetStatus() != success {
		t.Error(r, err)
	}
	if r, err := g.table.KeepAlive(g.with(h.ctx), &Ydb_Table.KeepAliveRequest{SessionId: id}); err != nil ||
		r.GetOperation().GetStatus() != Ydb.StatusIds_BAD_SESSION {
		t.Error(r, err)
	}
}

// In mode session a session outlives its server session if nothing is lost with that.
func TestSessionModeWithoutTheNode(t *testing.T) {
	h := newHouse(t, func(c *Config, p *pool.Config) { c.Mode = ModeSession })
	s := h.guest("a").session()
	// A call that is under way then may be undetermined; after that it is as it will be.
	first := func(control *Ydb_Query.TransactionControl) Ydb.StatusIds_StatusCode {
		st, _, err := s.run(h.ctx, s.id, "select", control)
		if st == Ydb.StatusIds_UNDETERMINED && err == nil {
			st, _, err = s.run(h.ctx, s.id, "select", control)
		}
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	s.must(success, "select", nil)
	h.losesNodeOf(s)
	if st := first(nil); st != success {
		t.Errorf("%v; nothing was lost", st)
	}
	tx := s.must(success, "select", beginTx)
	h.losesNodeOf(s)
	if st := first(inTx(tx, false)); st != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("%v; the transaction was lost", st)
	}
	s.must(success, "select", nil)
}

func TestSessionMode(t *testing.T) {
	h := newHouse(t, func(c *Config, p *pool.Config) { c.Mode, p.Max = ModeSession, 2 })
	a, b := h.guest("a").session(), h.guest("b").session()
	a.must(success, "select", nil)
	b.must(success, "select", nil)
	if got := h.server.State().Virtual.Bound; got != 2 {
		t.Errorf("%d bound; want 2", got)
	}
	c := h.guest("c").session()
	var wg sync.WaitGroup
	wg.Go(func() { c.must(success, "select", nil) })
	h.eventually("waits", func() string { return strings.Repeat("x", 1-h.inLine()) })
	a.drop()
	wg.Wait()
	b.must(success, "select", b.must2(beginTx))
	b.drop()
	c.drop()
	h.resting()
	if h.deletes != 0 {
		t.Errorf("%d clean sessions deleted", h.deletes)
	}
}

// must2 begins a transaction and returns the control that ends it.
func (s *session) must2(control *Ydb_Query.TransactionControl) *Ydb_Query.TransactionControl {
	s.Helper()
	return inTx(s.must(success, "select", control), true)
}

func TestTemporaryTableBinds(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	s.must(success, "CREATE TEMPORARY TABLE x (a Int32, PRIMARY KEY (a))", nil)
	if got := h.server.State().Virtual.Bound; got != 1 {
		t.Errorf("%d bound; want 1", got)
	}
	s.must(success, "select", nil)
	s.drop()
	h.resting()
	h.eventually("deleted with its table", func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return strings.Repeat("x", 1-h.deletes)
	})
}

// What a text in PostgreSQL's syntax sets is the session's from when its node reads it: whatever comes
// of the statement, and if it is only prepared.
func TestSettingsOfPostgresBind(t *testing.T) {
	const set = "\n --!syntax_pg\nSET search_path TO x"
	execute := func(s *session, id, tx string, long int) {
		q := &Ydb_Table.ExecuteDataQueryRequest{SessionId: s.id, Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_Id{Id: id}},
			Parameters: map[string]*Ydb.TypedValue{
				"$p": {Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: strings.Repeat("v", long)}}},
			}}
		if tx != "" {
			q.TxControl = &Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}}
		}
		if r, err := s.table.ExecuteDataQuery(s.with(s.ctx), q); err != nil || r.GetOperation().GetStatus() != success {
			s.Error(r, err)
		}
	}
	for name, call := range map[string]func(h *house, s *session){
		"executed": func(_ *house, s *session) { s.must(success, set, nil) },
		"failed": func(_ *house, s *session) {
			out, err := s.query.ExecuteQuery(
				s.with(s.ctx),
				&Ydb_Query.ExecuteQueryRequest{SessionId: s.id, Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
					QueryContent: &Ydb_Query.QueryContent{Text: "fail GENERIC_ERROR", Syntax: protocol.SyntaxPG}}},
			)
			for err == nil {
				_, err = out.Recv()
			}
			if !errors.Is(err, io.EOF) {
				s.Error(err)
			}
		},
		"prepared": func(_ *house, s *session) {
			if _, err := s.table.PrepareDataQuery(
				s.with(s.ctx), &Ydb_Table.PrepareDataQueryRequest{SessionId: s.id, YqlText: set},
			); err != nil {
				s.Fatal(err)
			}
		},
		"executed by its id": func(h *house, s *session) {
			h.server.texts.keep("id", set)
			execute(s, "id", "", 0)
		},
		"the same, long": func(h *house, s *session) {
			h.server.texts.keep("id", set)
			execute(s, "id", "", 1<<20)
		},
		"nobody knows": func(_ *house, s *session) {
			tx := s.must(success, "select", beginTx)
			execute(s, "of another text", tx, 0)
			s.must(success, "select", inTx(tx, true))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, nil)
			s := h.guest("a").session()
			call(h, s)
			if got := h.server.State().Virtual.Bound; got != 1 {
				t.Fatalf("%d bound; want 1", got)
			}
			s.drop()
			h.resting()
			h.eventually("deleted", func() string {
				h.mu.Lock()
				defer h.mu.Unlock()
				return strings.Repeat("x", 1-h.deletes)
			})
		})
	}
}
