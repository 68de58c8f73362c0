package devcluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

func statusCode(err error) Ydb.StatusIds_StatusCode {
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.status
	}
	return Ydb.StatusIds_STATUS_CODE_UNSPECIFIED
}

func newTable(change func(*Config)) *sessions {
	config := Default()
	if change != nil {
		change(&config)
	}
	return newSessions(7, config)
}

func mustCreate(t *testing.T, table *sessions, query bool) *session {
	t.Helper()
	s, err := table.create(query, metadata.MD{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSessionIDNamesItsNode(t *testing.T) {
	id := newSessionID(7)
	if !strings.HasPrefix(id, "ydb://session/3?node_id=7&id=") {
		t.Errorf("id %q", id)
	}
	if owner, err := ownerOf(id); owner != 7 || err != nil {
		t.Errorf("owner %d, %v", owner, err)
	}
}

func TestOwnerOf(t *testing.T) {
	for _, c := range []struct {
		id   string
		want uint32 // 0: BAD_REQUEST
	}{
		{"ydb://session/3?node_id=50001&id=QUJD", 50001},
		{"ydb://session/3?id=QUJD%3D&node_id=2", 2},
		{"ydb://session/3?node_id=2", 2},
		{"ydb://session/3?id=QUJD", 0},
		{"ydb://session/3?node_id=0&id=QUJD", 0},
		{"ydb://session/3?node_id=4294967296&id=QUJD", 0},
		{"ydb://session/3?node_id=x&id=QUJD", 0},
		{"ydb://session/3?%zz", 0},
		{"session", 0},
		{"ydb://session/3?node_id=2&id=" + strings.Repeat("A", maxSessionID), 0},
	} {
		owner, err := ownerOf(c.id)
		if owner != c.want || (c.want == 0) != (statusCode(err) == Ydb.StatusIds_BAD_REQUEST) {
			t.Errorf("ownerOf(%.60q) = %d, %v; want %d", c.id, owner, err, c.want)
		}
	}
}

func FuzzOwnerOf(f *testing.F) {
	f.Add(newSessionID(3))
	f.Add("ydb://session/3?id=%41&node_id=9")
	f.Add("ydb://session/3?node_id=")
	f.Fuzz(func(t *testing.T, id string) {
		owner, err := ownerOf(id)
		if (owner == 0) != (err != nil) {
			t.Errorf("ownerOf(%q) = %d, %v", id, owner, err)
		}
	})
}

func TestUnusedSessionsExpire(t *testing.T) {
	for _, query := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			table := newTable(nil)
			s := mustCreate(t, table, query)
			for range 3 { // each call starts the idle time again
				time.Sleep(table.config.SessionIdle - time.Second)
				if _, err := s.enter(t.Context()); err != nil {
					t.Fatalf("query %v: before its idle time: %v", query, err)
				}
				time.Sleep(2 * table.config.SessionIdle) // a call inside is no idle time
				s.leave()
			}
			time.Sleep(table.config.SessionIdle + time.Second)
			if _, err := s.enter(t.Context()); statusCode(err) != Ydb.StatusIds_BAD_SESSION {
				t.Errorf("query %v: after its idle time: %v", query, err)
			}
			if n := len(table.all()); n != 0 {
				t.Errorf("query %v: %d sessions left", query, n)
			}
		})
	}
}

func TestAttachedSessionsDoNotExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable(nil)
		s := mustCreate(t, table, true)
		if err := s.attach(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if _, err := s.enter(t.Context()); err != nil {
			t.Error(err)
		}
		s.leave()
		s.close(errBadSession(s.id))
	})
}

func TestSessionsThatWereAskedToGoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable(nil)
		s := mustCreate(t, table, false)
		s.ask(hintSession, 15*time.Second)
		s.ask(hintNode, time.Second) // the first word counts
		if s.asked() != hintSession {
			t.Error("no hint")
		}
		time.Sleep(14 * time.Second)
		if _, err := s.enter(t.Context()); err != nil {
			t.Errorf("before the grace is over: %v", err)
		}
		s.leave()
		time.Sleep(2 * time.Second)
		if _, err := s.enter(t.Context()); statusCode(err) != Ydb.StatusIds_BAD_SESSION {
			t.Errorf("after the grace: %v", err)
		}
	})
}

func TestOneCallAtATime(t *testing.T) {
	s := mustCreate(t, newTable(nil), false)
	defer s.close(errBadSession(s.id))
	if _, err := s.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.enter(t.Context()); statusCode(err) != Ydb.StatusIds_SESSION_BUSY {
		t.Errorf("second call: %v", err)
	}
	s.leave()
	if _, err := s.enter(t.Context()); err != nil {
		t.Errorf("after the first left: %v", err)
	}
	s.leave()
}

func TestCloseCancelsTheCallInside(t *testing.T) {
	s := mustCreate(t, newTable(nil), false)
	ctx, err := s.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.keep(&engine.Tx{}); err != nil {
		t.Fatal(err)
	}
	if !s.close(errBadSession(s.id)) || s.close(errBadSession(s.id)) {
		t.Error("a session ends once")
	}
	<-ctx.Done()
	if got := statusOf(ctx, context.Canceled).status; got != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("the call is answered %v", got)
	}
	if len(s.open) != 1 {
		t.Error("the transaction was taken from the call that runs in it")
	}
	s.leave()
	if len(s.open) != 0 {
		t.Error("a transaction outlived its session")
	}
	if _, err := s.table.find(s.id); statusCode(err) != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("find: %v", err)
	}
}

func TestSessionLimit(t *testing.T) {
	table := newTable(func(c *Config) { c.Sessions = 2 })
	first := mustCreate(t, table, true)
	mustCreate(t, table, false)
	if _, err := table.create(true, nil); statusCode(err) != Ydb.StatusIds_OVERLOADED {
		t.Errorf("one too many: %v", err)
	}
	first.close(errBadSession(first.id))
	mustCreate(t, table, true)
	table.refuse(fail(Ydb.StatusIds_UNAVAILABLE, "closing"))
	table.closeAll(fail(Ydb.StatusIds_UNAVAILABLE, "closing"))
	if _, err := table.create(true, nil); statusCode(err) != Ydb.StatusIds_UNAVAILABLE {
		t.Errorf("while closing: %v", err)
	}
	if n := len(table.infos()); n != 0 {
		t.Errorf("%d sessions left", n)
	}
}

func TestTransactionsOfASession(t *testing.T) {
	s := mustCreate(t, newTable(nil), false)
	defer s.close(errBadSession(s.id))
	var last string
	for range maxTransactions {
		id, err := s.keep(&engine.Tx{})
		if err != nil || id == last {
			t.Fatalf("keep: %q, %v", id, err)
		}
		last = id
	}
	if _, err := s.keep(&engine.Tx{}); statusCode(err) != Ydb.StatusIds_PRECONDITION_FAILED {
		t.Errorf("one too many: %v", err)
	}
	if _, err := s.transaction(last); err != nil {
		t.Errorf("open transaction: %v", err)
	}
	if s.forget(last) == nil || s.forget(last) != nil {
		t.Error("forget takes it out, once")
	}
	if _, err := s.transaction(last); statusCode(err) != Ydb.StatusIds_NOT_FOUND {
		t.Errorf("forgotten transaction: %v", err)
	}
}
