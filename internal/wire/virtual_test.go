package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

func TestVirtualSessionLives(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	s := g.session()
	if h.pool.Stats().Sessions != 0 {
		t.Error("a session was opened for one that does nothing")
	}
	if st, err := g.query.AttachSession(g.with(h.ctx), &Ydb_Query.AttachSessionRequest{SessionId: s.id}); err != nil {
		t.Error(err)
	} else if state, err := st.Recv(); err != nil || state.GetStatus() != Ydb.StatusIds_SESSION_BUSY {
		t.Errorf("attached twice: %v, %v", state, err)
	}
	s.must(success, "select", nil)
	if got := h.seen.Get("x-ydb-auth-ticket"); len(got) != 1 || got[0] != "own ticket" {
		t.Errorf("went with the credentials %q", got)
	}
	s.must(success, "select", commitTx)
	s.must(Ydb.StatusIds_GENERIC_ERROR, "fail GENERIC_ERROR", nil)
	if st, _, _ := g.run(
		metadata.AppendToOutgoingContext(h.ctx, "x-ydb-database", "/other"), s.id, "select", nil,
	); st != Ydb.StatusIds_UNAUTHORIZED && st != success {
		t.Errorf("another database: %v", st)
	}
	for range 2 {
		if r, err := g.query.DeleteSession(g.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id}); err != nil ||
			r.GetStatus() != success {
			t.Errorf("deleted %v, %v", r, err)
		}
	}
	if state, err := s.stream.Recv(); err != nil || state.GetStatus() != success {
		t.Errorf("the last state: %v, %v", state, err)
	}
	if _, err := s.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
	s.must(Ydb.StatusIds_BAD_SESSION, "select", nil)
	h.resting()
	if st := h.server.State().Virtual; st.Sessions != 0 || st.Created != 1 {
		t.Errorf("%+v", st)
	}
	if h.pool.Stats().Sessions != 1 {
		t.Error("not one server session served all")
	}
}

func TestTransactionsBind(t *testing.T) {
	h := newHouse(t, nil)
	a, b := h.guest("a").session(), h.guest("b").session()
	begun, err := a.query.BeginTransaction(a.with(h.ctx), &Ydb_Query.BeginTransactionRequest{SessionId: a.id})
	if err != nil || begun.GetTxMeta().GetId() == "" {
		t.Fatal(begun, err)
	}
	txA, txB := begun.GetTxMeta().GetId(), b.must(success, "select", beginTx)
	a.must(success, "select", inTx(txA, false))
	if h.openTx() != 2 || h.server.State().Virtual.Bound != 2 {
		t.Errorf("%d transactions, %+v", h.openTx(), h.server.State().Virtual)
	}
	a.must(success, "select", inTx(txA, true))
	if r, err := b.query.CommitTransaction(
		b.with(h.ctx), &Ydb_Query.CommitTransactionRequest{SessionId: b.id, TxId: txB},
	); err != nil || r.GetStatus() != success {
		t.Error(r, err)
	}
	h.resting()
	a.must(Ydb.StatusIds_NOT_FOUND, "select", inTx(txA, false))
	// Two at a time, of which one ends.
	one, two := a.must(success, "select", beginTx), a.must(success, "select", beginTx)
	a.must(success, "select", inTx(one, true))
	if h.openTx() != 1 || h.server.State().Virtual.Bound != 1 {
		t.Error("the end of one of two transactions let the session go")
	}
	if r, err := a.query.RollbackTransaction(
		a.with(h.ctx), &Ydb_Query.RollbackTransactionRequest{SessionId: a.id, TxId: two},
	); err != nil || r.GetStatus() != success {
		t.Error(r, err)
	}
	h.resting()
	if h.deletes != 0 {
		t.Errorf("%d sessions deleted", h.deletes)
	}
}

// Whatever leaves a server session in doubt ends it, and what was open on it is rolled back.
func TestNothingDirtyIsHandedOn(t *testing.T) {
	for name, c := range map[string]struct {
		end func(h *house, s *session, tx string)
		bad bool // the virtual session is told that its transaction is lost
	}{
		"stream dropped": {func(_ *house, s *session, _ string) { s.drop() }, true},
		"deleted": {func(_ *house, s *session, _ string) {
			s.query.DeleteSession(s.with(s.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id})
		}, true},
		"client killed": {func(_ *house, s *session, _ string) { s.conn.Close() }, true},
		"statement fails": {func(_ *house, s *session, tx string) {
			s.must(Ydb.StatusIds_PRECONDITION_FAILED, "fail PRECONDITION_FAILED", inTx(tx, false))
		}, false},
		"cancelled in mid stream": {func(h *house, s *session, tx string) {
			ctx, cancel := context.WithCancel(h.ctx)
			go func() { <-h.hung; cancel() }()
			s.run(ctx, s.id, "hang", inTx(tx, false))
		}, true},
		"deadline": {func(h *house, s *session, tx string) {
			left := 100 * time.Millisecond
			h.eventually("a call comes to its node before its time is up", func() string {
				ctx, cancel := context.WithTimeout(h.ctx, left)
				defer cancel()
				left *= 2
				if st, _, err := s.run(ctx, s.id, "hang", inTx(tx, false)); st != Ydb.StatusIds_BAD_SESSION { // the one before it did
					return fmt.Sprint(st, err)
				}
				return ""
			})
		}, true},
		"transport error behind a first part": {func(h *house, s *session, tx string) { s.run(h.ctx, s.id, "half", inTx(tx, false)) },
			true},
		"transport error": {func(h *house, s *session, tx string) { s.run(h.ctx, s.id, "grpc", inTx(tx, false)) },
			true},
		"internal error": {func(h *house, s *session, tx string) {
			s.must(Ydb.StatusIds_INTERNAL_ERROR, "fail INTERNAL_ERROR", inTx(tx, false))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, nil)
			s := h.guest("a").session()
			tx := s.must(success, "select", beginTx)
			c.end(h, s, tx)
			h.resting()
			h.eventually("rolled back", func() string {
				h.mu.Lock()
				defer h.mu.Unlock()
				if h.rolledBack != 1 || len(h.sessions) != 0 {
					return fmt.Sprintf("%d, %d sessions", h.rolledBack, len(h.sessions))
				}
				return ""
			})
			if name == "client killed" {
				return
			}
			h.eventually("says so", func() string { // the end of a stream may come after the next call
				want := Ydb.StatusIds_NOT_FOUND
				if c.bad {
					want = Ydb.StatusIds_BAD_SESSION
				}
				if st, _, err := s.run(h.ctx, s.id, "select", inTx(tx, false)); st != want || err != nil {
					return fmt.Sprintf("%v, %v; want %v", st, err, want)
				}
				return ""
			})
			h.guest("b").session().must(success, "select", nil)
		})
	}
}

func TestAbortedTransactionsLeaveTheSession(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	tx := s.must(success, "select", beginTx)
	s.must(Ydb.StatusIds_ABORTED, "fail ABORTED", inTx(tx, false))
	h.resting()
	if r, err := s.query.RollbackTransaction(
		s.with(h.ctx), &Ydb_Query.RollbackTransactionRequest{SessionId: s.id, TxId: tx},
	); err != nil || r.GetStatus() != Ydb.StatusIds_NOT_FOUND {
		t.Error(r, err)
	}
	if h.deletes != 0 {
		t.Error("deleted for nothing")
	}
}

func TestGoneServerSessions(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	s.must(Ydb.StatusIds_BAD_SESSION, "fail BAD_SESSION", nil)
	if _, err := s.stream.Recv(); err != nil {
		t.Error(err)
	}
	if _, err := s.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the client was told that its session is bad, and keeps it: %v", err)
	}
	h.resting()
	if h.deletes != 0 {
		t.Error("a session that the node has forgotten is deleted")
	}
	s.must(success, "select", nil) // by a client that does not listen
	s.drop()
	if st := h.server.State().Virtual; st.Sessions != 1 || st.Attached != 0 {
		t.Errorf("%+v", st)
	}
	if r, err := s.query.DeleteSession(s.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id}); err != nil ||
		r.GetStatus() != success {
		t.Error(r, err)
	}
	// What was open on it is gone.
	s = h.guest("c").session()
	lost := s.must(success, "select", beginTx)
	s.must(Ydb.StatusIds_BAD_SESSION, "fail BAD_SESSION", inTx(lost, false))
	s.must(Ydb.StatusIds_BAD_SESSION, "select", inTx(lost, false))
	// A hint stays here, and the session is let go after its transaction.
	s = h.guest("b").session()
	tx := s.must(success, "hint", beginTx)
	s.must(success, "select", inTx(tx, true))
	h.resting()
	h.eventually("closed", func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return strings.Repeat("x", 1-h.deletes)
	})
	s.must(success, "select", nil)
}

// A status that ends a session of the node is told to its watch, which sees the end of its stream.
func TestSessionsThatEndWithAStatus(t *testing.T) {
	h := newHouse(t, nil)
	failed := func() (failed, deletes int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.failed, h.deletes
	}
	s := h.guest("a").session()
	s.must(Ydb.StatusIds_CANCELLED, "fail CANCELLED", nil)
	h.eventually("closed", func() string {
		_, deletes := failed()
		return strings.Repeat("x", 1-deletes)
	})
	if failed, _ := failed(); failed != 0 {
		t.Errorf("%d sessions failed; CANCELLED ends none", failed)
	}
	tx := s.must(success, "select", beginTx)
	s.must(Ydb.StatusIds_INTERNAL_ERROR, "fail INTERNAL_ERROR", inTx(tx, false))
	h.eventually("closed", func() string {
		_, deletes := failed()
		return strings.Repeat("x", 2-deletes)
	})
	if failed, _ := failed(); failed != 1 {
		t.Errorf("%d sessions failed; want that of INTERNAL_ERROR", failed)
	}
	if st, _, _ := s.run(s.with(h.ctx), s.id, "select", inTx(tx, false)); st == success {
		t.Error("the transaction goes on in another session")
	}
	s.must(success, "select", nil)
}

func TestOneCallAtATime(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	ctx, cancel := context.WithCancel(h.ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.run(ctx, s.id, "hang", nil) })
	<-h.hung
	s.must(Ydb.StatusIds_SESSION_BUSY, "select", nil)
	cancel()
	wg.Wait()
	h.resting()
	s.must(success, "select", nil)
}

func TestLineForSessions(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max, p.Queue = 1, 1 })
	a, b, c := h.guest("a").session(), h.guest("b").session(), h.guest("c").session()
	tx := a.must(success, "select", beginTx)
	waits := func(n int) {
		h.eventually("waits", func() string {
			if got := h.inLine(); got != n {
				return fmt.Sprint(got)
			}
			return ""
		})
	}
	// One that goes leaves the line.
	ctx, cancel := context.WithCancel(h.ctx)
	var wg sync.WaitGroup
	wg.Go(func() { b.run(ctx, b.id, "select", nil) })
	waits(1)
	cancel()
	wg.Wait()
	waits(0)
	wg.Go(func() { b.must(success, "select", nil) })
	waits(1)
	c.must(Ydb.StatusIds_OVERLOADED, "select", nil)
	a.must(success, "select", inTx(tx, true))
	wg.Wait()
	h.resting()
	if st := h.server.State().Virtual; st.Sessions != 3 {
		t.Errorf("%+v", st)
	}
}

func TestImplicitSessions(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	for _, text := range []string{"select", strings.Repeat("long ", 20_000)} {
		if st, _, err := g.run(h.ctx, "", text, nil); st != success || err != nil {
			t.Errorf("%v, %v", st, err)
		}
	}
	h.resting()
	if _, tx, _ := g.run(h.ctx, "", "select", beginTx); tx == "" {
		t.Error("no transaction")
	}
	h.eventually("rolled back", func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return strings.Repeat("x", 1-h.rolledBack)
	})
	h.resting()
}

func TestTooManyVirtualSessions(t *testing.T) {
	h := newHouse(t, func(c *Config, _ *pool.Config) { c.Sessions = 1 })
	s := h.guest("a").session()
	if r, err := s.query.CreateSession(s.with(h.ctx), &Ydb_Query.CreateSessionRequest{}); err != nil ||
		r.GetStatus() != Ydb.StatusIds_OVERLOADED {
		t.Error(r, err)
	}
	s.drop()
	h.eventually("free again", func() string {
		if r, err := s.query.CreateSession(s.with(h.ctx), &Ydb_Query.CreateSessionRequest{}); err != nil || r.GetStatus() != success {
			return fmt.Sprint(r, err)
		}
		return ""
	})
}

// Many clients over few sessions, of which some vanish: nobody sees what is another's, and all
// is clean in the end.
func TestManyOverFew(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 5 })
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			g := h.guest(fmt.Sprint(i))
			s := g.session()
			for range short.Of(30, 8) {
				if r.IntN(10) == 0 {
					s.drop()
					s = g.session()
				}
				ctx, cancel := context.WithCancel(h.ctx)
				if r.IntN(10) == 0 {
					ctx, cancel = context.WithTimeout(h.ctx, time.Duration(r.IntN(5))*time.Millisecond)
				}
				switch r.IntN(5) {
				case 0:
					s.run(ctx, s.id, "select", nil)
				case 1:
					s.run(ctx, s.id, "select", commitTx)
				case 2:
					s.run(ctx, "", "select", nil)
				case 3:
					_, tx, _ := s.run(ctx, s.id, "select", beginTx)
					s.run(ctx, s.id,
						"fail "+[]string{"SUCCESS", "ABORTED", "PRECONDITION_FAILED", "BAD_SESSION"}[r.IntN(4)],
						inTx(tx, false))
					s.run(ctx, s.id, "select", inTx(tx, true))
				case 4:
					_, tx, _ := s.run(ctx, s.id, "select", beginTx)
					s.run(ctx, s.id, "select", inTx(tx, true))
				}
				cancel()
			}
			s.drop()
		})
	}
	wg.Wait()
	h.resting()
	if st := h.server.State().Virtual; st.Bound != 0 {
		t.Errorf("%+v", st)
	}
}
