package wire

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// A caller that gives up while a session is opened for it leaves none behind that nobody can use:
// what was opened serves the next one.
func TestCallerGivesUpWhileASessionIsOpened(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 1 })
	g := h.guest("a")
	for round := range 40 {
		s := g.session()
		ctx, cancel := context.WithCancel(h.ctx)
		var wg sync.WaitGroup
		h.mu.Lock() // no session is opened
		open := sync.OnceFunc(h.mu.Unlock)
		t.Cleanup(open)
		wg.Go(func() { s.run(ctx, s.id, "select", nil) })
		h.eventually("waits", func() string { return strings.Repeat("x", 1-h.inLine()) })
		if round%2 == 0 { // long before it is there
			cancel()
			h.eventually("has left the line", func() string { return strings.Repeat("x", h.inLine()) })
			open()
		} else { // at that moment
			open()
			cancel()
		}
		wg.Wait()
		h.resting()
		s.must(success, "select", nil)
		s.must(Ydb.StatusIds_BAD_SESSION, "fail BAD_SESSION", nil) // the next round begins without one
		h.resting()
	}
}

// A session that is given to a call at the moment when the server ends goes back to its pool.
func TestASessionGrantedAtTheEndGoesBack(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 1 })
	g, err := h.pool.Acquire(h.ctx, pool.Ask{})
	if err != nil {
		t.Fatal(err)
	}
	f, own := h.server.shards[0], &virtual.IdentityPool{Pool: h.pool}
	app, err := h.server.deps.Apps.Of(apps.Caller{})
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Stripe(0).Ask(uint8(class)); err != nil {
		t.Fatal(err)
	}
	w := f.newWaiting(&use{Use: virtual.Use{Identity: own}}, nil, app.Stripe(0), h2.Ticket{})
	if g, err := h.pool.Wait(w.waiter, pool.Ask{}); err != nil || g.Session != nil {
		t.Fatal(g, err)
	}
	w.use = nil // its call is over
	h.server.Stop()
	h.pool.Release(g.Session)
	if st := h.pool.Stats(); st.InUse != 0 {
		t.Errorf("%d sessions are leased", st.InUse)
	}
}

// A session that a client has made and never attached to, because it had given up, ends by itself,
// but not while it is used.
func TestSessionNobodyAttachedToEnds(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	kept := g.session()
	var ids []string
	for range 3 {
		r, err := g.query.CreateSession(g.with(h.ctx), &Ydb_Query.CreateSessionRequest{})
		if err != nil || r.GetStatus() != success {
			t.Fatal(r, err)
		}
		ids = append(ids, r.GetSessionId())
	}
	const lifetime = 10 * time.Minute
	left := func(after time.Duration, want int) {
		t.Helper()
		h.server.sessions.Expire(time.Now().Add(after))
		if got := h.server.State().Virtual.Sessions; got != want {
			t.Errorf("%d sessions after %v; want %d", got, after, want)
		}
	}
	left(lifetime-time.Minute, 4)
	if st, _, err := g.run(h.ctx, ids[0], "select", nil); st != success || err != nil {
		t.Error(st, err)
	}
	h.resting()
	left(lifetime+time.Minute, 2)
	ctx, cancel := context.WithCancel(h.ctx)
	var wg sync.WaitGroup
	wg.Go(func() { g.run(ctx, ids[0], "hang", nil) })
	<-h.hung
	left(3*lifetime, 2)
	cancel()
	wg.Wait()
	h.resting()
	left(4*lifetime-time.Minute, 2)
	left(4*lifetime+time.Minute, 1)
	kept.must(success, "select", nil)
}

// However many callers share one session, of SDKs and of the plain API: while the line has room, each
// gets its turn, and none is refused.
func TestNobodyIsRefusedWhileSessionsComeFree(t *testing.T) {
	const conns, callers = 4, 8
	calls := short.Of(25, 8)
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 1 })
	first, err := h.pool.Acquire(h.ctx, pool.Ask{Class: pool.Normal})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range conns {
		g := h.guest(fmt.Sprint(i))
		for j := range callers {
			wg.Go(func() {
				id := ""
				if j%2 == 0 {
					id = g.session().id
				}
				for range calls {
					if st, _, err := g.run(h.ctx, id, "select", nil); st != success || err != nil {
						t.Errorf("%v, %v", st, err)
						return
					}
				}
			})
		}
		wg.Go(func() {
			for range 2 * calls {
				grant, err := h.pool.Acquire(h.ctx, pool.Ask{Class: pool.Normal})
				if err != nil {
					t.Error(err)
					return
				}
				h.pool.Release(grant.Session)
			}
		})
	}
	h.eventually("all wait", func() string {
		if n := h.inLine(); n != conns*(callers+1) {
			return fmt.Sprint(n)
		}
		return ""
	})
	h.pool.Release(first.Session)
	wg.Wait()
	h.resting()
}

// blamed makes a call, which goes to a node, and returns what the node is blamed for.
func (h *house) blamed(call func()) cluster.Outcome {
	h.Helper()
	judge := h.server.deps.Health.(brokenReporter)
	judge.mu.Lock()
	judge.all = nil
	judge.mu.Unlock()
	call()
	return judge.wait(h.T, "the call", func(cluster.Outcome) bool { return true })
}

// Callers who cancel, or whose time is up, say nothing about a node.
func TestCallersWhoGiveUpBlameNoNode(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	for range 10 {
		for _, id := range []string{s.id, ""} {
			o := h.blamed(func() {
				ctx, cancel := context.WithCancel(h.ctx)
				go func() { <-h.hung; cancel() }()
				s.run(ctx, id, "hang", nil)
			})
			if o.Blame != cluster.BlameNone {
				t.Errorf("a cancelled call: %+v", o)
			}
		}
		h.resting()
	}
	o := h.blamed(func() {
		left := 50 * time.Millisecond
		h.eventually("a call comes to a node before its time is up", func() string {
			ctx, cancel := context.WithTimeout(h.ctx, left)
			defer cancel()
			left *= 2
			s.run(ctx, s.id, "hang", nil)
			select {
			case <-h.hung:
				return ""
			default:
				return "not yet"
			}
		})
	})
	if o.Blame != cluster.BlameNone {
		t.Errorf("a deadline: %+v", o)
	}
}

// What an answer says about the node that gave it: docs/reference/statuses.md has the table. SDKs disagree on some of it.
func TestWhichAnswersBlameTheNode(t *testing.T) {
	h := newHouse(t, nil)
	for n, name := range Ydb.StatusIds_StatusCode_name {
		st := Ydb.StatusIds_StatusCode(n)
		if st == 0 {
			continue
		}
		want := cluster.BlameNone
		if st == success {
			want = cluster.BlameSuccess
		}
		s := h.guest("a").session()
		o := h.blamed(func() { s.must(st, "fail "+name, nil) })
		if o.Blame != want {
			t.Errorf("%s: %+v; want %v", name, o, want)
		}
	}
	for code, want := range map[codes.Code]cluster.Blame{
		codes.ResourceExhausted: cluster.BlameRefusal, codes.DeadlineExceeded: cluster.BlameNone, codes.Canceled: cluster.BlameNone,
		codes.Unauthenticated: cluster.BlameNone, codes.PermissionDenied: cluster.BlameNone, codes.InvalidArgument: cluster.BlameNone,
		codes.Unavailable: cluster.BlameTransport, codes.Internal: cluster.BlameTransport,
		codes.Unknown: cluster.BlameTransport, codes.DataLoss: cluster.BlameTransport,
		codes.Unimplemented: cluster.BlameNone, // of a method that the client chose
	} {
		s := h.guest("a").session()
		o := h.blamed(func() { s.run(h.ctx, s.id, fmt.Sprint("grpc ", int(code)), nil) })
		if o.Blame != want {
			t.Errorf("%v: %+v; want %v", code, o, want)
		}
	}
}
