package devcluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
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

// A timeout is answered while the session still rolls back: until it has, it is busy.
func TestASessionCleansUpAfterATimeout(t *testing.T) {
	cluster := startCluster(t, func(c *Config) { c.Cleanup = time.Hour })
	a := dial(t, cluster.Node(1).Address()).open()
	mustPost(t, cluster, "/nodes/1/errors", `{"status":"TIMEOUT","methods":["ExecuteQuery"]}`)
	a.must(Ydb.StatusIds_TIMEOUT, "SELECT 1", nil)
	mustPost(t, cluster, "/nodes/1/clear", "")
	a.must(Ydb.StatusIds_SESSION_BUSY, "SELECT 1", nil)
	if got := a.rollback(strings.Repeat("0", 26)); got != Ydb.StatusIds_SESSION_BUSY {
		t.Errorf("RollbackTransaction: %v", got)
	}
}

// KeepAlive does not tell whether a session is idle while a stream is attached to it.
func TestAnAttachedSessionIsNeverReady(t *testing.T) {
	a := dial(t, startCluster(t, nil).Node(1).Address()).open()
	r, err := a.c.table.KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: a.id})
	if err != nil ||
		unpack[*Ydb_Table.KeepAliveResult](t, r.GetOperation()).GetSessionStatus() != Ydb_Table.KeepAliveResult_SESSION_STATUS_BUSY {
		t.Errorf("KeepAlive: %v, %v", r, err)
	}
	if got := a.rollback(strings.Repeat("0", 26)); got != Ydb.StatusIds_NOT_FOUND {
		t.Errorf("RollbackTransaction: %v", got)
	}
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

// A session whose client has gone while it was made does not stay.
func TestASessionThatNobodyWaitsForIsDeleted(t *testing.T) {
	cluster := startCluster(t, nil)
	node := cluster.Node(1)
	node.mu.Lock()
	life := node.life
	node.mu.Unlock()
	for _, query := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		c := &call{server: life, ctx: ctx, header: metadata.MD{}}
		s, err := c.createSession(query)
		if err != nil || len(cluster.Sessions()) != 1 {
			t.Fatalf("%v; sessions %v", err, cluster.Sessions())
		}
		s.close(errDeleted())
		cancel()
		if _, err := c.createSession(query); !errors.Is(err, context.Canceled) || len(cluster.Sessions()) != 0 {
			t.Errorf("query %v: %v; sessions %v", query, err, cluster.Sessions())
		}
	}
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
		kick := Drain{Mode: DrainStreams, Limits: Default().kick()}
		s.ask(hintSession, kick)
		s.ask(hintNode, Drain{Mode: DrainHints, Limits: Limits{time.Second, time.Second}}) // the first word counts
		if h, mode := s.asked(); h != hintSession || mode != DrainStreams {
			t.Error("no hint")
		}
		time.Sleep(14 * time.Second)
		if _, err := s.enter(t.Context()); err != nil {
			t.Errorf("before the soft limit: %v", err)
		}
		s.leave()
		if _, err := s.keep(&engine.Tx{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if n := len(table.all()); n != 1 {
			t.Errorf("%d sessions after the soft limit; want one: it ends with its next call", n)
		}
		if _, err := s.enter(t.Context()); statusCode(err) != Ydb.StatusIds_BAD_SESSION || !strings.Contains(err.Error(), textSoft) {
			t.Errorf("after the soft limit: %v", err)
		}
		if n := len(table.all()); n != 0 || s.open != nil {
			t.Errorf("%d sessions after that, and transactions %v", n, s.open)
		}
		running, unused := mustCreate(t, table, false), mustCreate(t, table, false)
		ctx, err := running.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		running.ask(hintSession, kick)
		unused.ask(hintSession, kick)
		time.Sleep(29 * time.Second)
		if ctx.Err() != nil || len(table.all()) != 2 {
			t.Errorf("before the hard limit: %v, %d sessions", context.Cause(ctx), len(table.all()))
		}
		time.Sleep(2 * time.Second)
		if got := statusOf(ctx, context.Canceled); got.status != Ydb.StatusIds_CANCELLED || len(table.all()) != 0 {
			t.Errorf("after the hard limit: %v, %d sessions", got, len(table.all()))
		}
		running.leave()
	})
}

func TestOneCallAtATime(t *testing.T) {
	s := mustCreate(t, newTable(nil), true)
	defer s.close(errBadSession(s.id))
	if _, err := s.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.attach(); statusCode(err) != Ydb.StatusIds_SESSION_BUSY {
		t.Errorf("attached during a call: %v", err)
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
	if _, err := table.worker(); statusCode(err) != Ydb.StatusIds_OVERLOADED {
		t.Errorf("one too many, for a call without a session: %v", err)
	}
	first.close(errBadSession(first.id))
	implicit, err := table.worker()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.create(true, nil); statusCode(err) != Ydb.StatusIds_OVERLOADED {
		t.Errorf("one too many beside that of a call: %v", err)
	}
	implicit.close(errDeleted())
	mustCreate(t, table, true)
	table.refuse(always(fail(Ydb.StatusIds_UNAVAILABLE, "closing")))
	table.closeAll(fail(Ydb.StatusIds_UNAVAILABLE, "closing"))
	if _, err := table.create(true, nil); statusCode(err) != Ydb.StatusIds_UNAVAILABLE {
		t.Errorf("while closing: %v", err)
	}
	if n := len(table.infos()); n != 0 {
		t.Errorf("%d sessions left", n)
	}
}

func TestTheSessionIdleForLongestIsEvicted(t *testing.T) {
	for _, evict := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			table := newTable(func(c *Config) { c.Sessions, c.Evict = 3, evict })
			attached := func() *session {
				s := mustCreate(t, table, true)
				if err := s.attach(); err != nil {
					t.Fatal(err)
				}
				return s
			}
			used, first, second := attached(), attached(), attached()
			full := func() {
				t.Helper()
				if _, err := table.create(true, nil); statusCode(err) != Ydb.StatusIds_OVERLOADED {
					t.Errorf("at the limit: %v", err)
				}
			}
			full()
			if h, _ := first.asked(); h != noHint {
				t.Error("a session was evicted that is not idle yet")
			}
			time.Sleep(table.config.SessionIdle - time.Minute)
			for _, s := range []*session{used, second} {
				if _, err := s.enter(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.leave()
			}
			time.Sleep(2 * time.Minute)
			for range 3 {
				full() // until it is gone
			}
			h, mode := first.asked()
			other, _ := second.asked()
			if (h == hintSession && mode == DrainStreams) != evict || other != noHint {
				t.Errorf("evict %v: asked to go: %v, %v; the other %v", evict, h, mode, other)
			}
			first.close(errDeleted())
			mustCreate(t, table, true)
			table.closeAll(errDeleted())
		})
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
	if _, err := s.keep(&engine.Tx{}); statusCode(err) != Ydb.StatusIds_BAD_SESSION {
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
