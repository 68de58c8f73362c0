package wire

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// broken panics once, at the place that it is told.
type broken struct {
	place atomic.Pointer[string]
	runs  atomic.Int32 // of pools of callers
}

// next has the next call of a method of the Deps panic: "Judge.Report".
func (b *broken) next(place string) { b.place.Store(&place) }

func (b *broken) at(place string) {
	if p := b.place.Load(); p != nil && *p == place && b.place.CompareAndSwap(p, nil) {
		panic("broken " + place)
	}
}

type brokenReporter struct {
	*outcomes
	*broken
}

func (j brokenReporter) Report(o cluster.Outcome) {
	j.at("Judge.Report")
	j.outcomes.Report(o)
}

type brokenRouter struct {
	*routing.Router
	*broken
}

func (r brokenRouter) Pick() (cluster.ViewNode, error) {
	r.at("Router.Pick")
	return r.Router.Pick()
}

func (r brokenRouter) Target(owner cluster.NodeID, openTx bool) (cluster.NodeID, error) {
	r.at("Router.Target")
	return r.Router.Target(owner, openTx)
}

func (r brokenRouter) Enter(node cluster.NodeID) bool {
	r.at("Router.Enter")
	return r.Router.Enter(node)
}

func (r brokenRouter) Leave(o cluster.Outcome) {
	r.Router.Leave(o)
	r.at("Router.Leave")
}

// brokenPool panics before it gives a session, and after it took one back: what it loses itself
// nobody else can give back.
type brokenPool struct {
	*pool.Pool
	*broken
}

func (p brokenPool) Try(by pool.Ask) (*pool.Session, bool) {
	p.at("Pool.Try")
	return p.Pool.Try(by)
}

func (p brokenPool) Wait(w *pool.Waiter, by pool.Ask) (pool.Grant, error) {
	p.at("Pool.Wait")
	return p.Pool.Wait(w, by)
}

func (p brokenPool) Cancel(w *pool.Waiter) bool {
	ok := p.Pool.Cancel(w)
	p.at("Pool.Cancel")
	return ok
}

func (p brokenPool) Release(s *pool.Session) {
	p.Pool.Release(s)
	p.at("Pool.Release")
}

func (p brokenPool) Discard(s *pool.Session) {
	p.Pool.Discard(s)
	p.at("Pool.Discard")
}

func (p brokenPool) Run(ctx context.Context) error {
	p.runs.Add(1)
	p.at("Pool.Run")
	return p.Pool.Run(ctx)
}

func (p brokenPool) Busy() bool {
	p.at("Pool.Busy")
	return p.Pool.Busy()
}

type brokenCluster struct {
	fakeCluster
	*broken
}

func (a brokenCluster) WhoAmI(ctx context.Context, database, ticket string) (string, Ydb.StatusIds_StatusCode) {
	a.at("Accounts.WhoAmI")
	return a.fakeCluster.WhoAmI(ctx, database, ticket)
}

func (a brokenCluster) Pool(c virtual.PoolConfig) virtual.OwnedPool {
	a.at("Accounts.Pool")
	return brokenPool{a.fakeCluster.Pool(c).(*pool.Pool), a.broken}
}

// expectPanics keeps them out of the log, and checks at the end that there were so many.
func expectPanics(t *testing.T, want uint64) {
	var log strings.Builder
	panics.LogTo(slog.New(slog.NewTextHandler(&log, nil)))
	before := panics.Stats().Count
	t.Cleanup(func() {
		panics.LogTo(slog.Default())
		if n := panics.Stats().Count - before; n != want {
			t.Errorf("%d panics were caught; want %d: %s", n, want, log.String())
		}
	})
}

// What a call leaves behind that panicked in Done is of no call after it.
func TestAPanicInDoneHandsNothingOn(t *testing.T) {
	for name, control := range map[string]*Ydb_Query.TransactionControl{"in a transaction": beginTx, "without": nil} {
		t.Run(name, func(t *testing.T) {
			expectPanics(t, 1)
			h := newHouseOn(t, 1, nil, nil)
			a, b := h.guest("a").session(), h.guest("b").session()
			h.broken.next("Judge.Report")
			a.must(success, "select", control) // the client has its answer by then
			b.must(success, "select", beginTx)
			if st := h.server.State().Virtual; st.Bound != 1 || st.InDoubt != 1 {
				t.Errorf("%+v; want one session bound, and one discarded", st)
			}
			a.must(Ydb.StatusIds_BAD_SESSION, "select", nil)
			b.must(success, "select", beginTx)
			a.guest.session().must(success, "select", commitTx)
			b.drop()
			h.resting()
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.deletes == 0 {
				t.Error("the server session of the call was not closed")
			}
		})
	}
}

// waitInVain has calls wait in the pool's queue until their time is up, once something panics.
func (h *house) waitInVain(ctx context.Context, a *session) {
	hung, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 4 {
		s := a.guest.session()
		wg.Go(func() { _, _, _ = s.run(hung, s.id, "hang", nil) })
	}
	for range 4 {
		<-h.hung
	}
	left := 100 * time.Millisecond
	h.eventually("the panic", func() string {
		if h.broken.place.Load() == nil {
			return ""
		}
		soon, cancel := context.WithTimeout(ctx, left) // which may be up before the call is in the queue
		defer cancel()
		_, _, _ = a.run(soon, a.id, "select", nil)
		left += 100 * time.Millisecond
		return "not yet"
	})
	end()
	wg.Wait()
}

// drains checks that the server ends when its clients are gone.
func (h *house) drains(ctx context.Context, clients ...*guest) {
	for _, g := range clients {
		g.conn.Close()
	}
	drained := make(chan struct{})
	go func() { h.server.GracefulStop(); close(drained) }()
	select {
	case <-drained:
	case <-ctx.Done():
		h.Error("the drain does not end")
	}
}

// A panic in what the frames call out to loses no more than the call: others of the same shard and
// stripe are served, every server session comes back, and a drain ends.
func TestAPanicOutsideLeavesNothingLocked(t *testing.T) {
	for place, text := range map[string]string{
		"Judge.Report": "select", "Router.Enter": "select", "Router.Leave": "select", "Router.Target": "select",
		"Pool.Try": "select", "Pool.Wait": "select", "Pool.Release": "select", "Pool.Discard": "fail BAD_SESSION",
		"Router.Pick": "", "Accounts.WhoAmI": "new", "Accounts.Pool": "new", "Pool.Busy": "sweep", "Pool.Cancel": "late",
	} {
		t.Run(place, func(t *testing.T) {
			expectPanics(t, 1)
			h := newHouseOn(t, 1, nil, func(c *Config, _ *pool.Config) { c.Auth = AuthCaller })
			h.limit *= 4
			a, b := h.comes("a", "a/1").session(), h.comes("b", "b/1").session()
			if place == "Pool.Discard" || text == "late" {
				a.must(success, "select", nil)
				b.must(success, "select", nil)
			}
			h.broken.next(place)
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			switch text {
			case "":
				_ = a.conn.Invoke(a.with(ctx), "/Ydb.Scheme.V1.SchemeService/ListDirectory",
					&Ydb_Query.CreateSessionRequest{}, &Ydb_Query.CreateSessionResponse{})
			case "new":
				g := h.comes("c", "c/1")
				_, _, _ = g.run(ctx, g.session().id, "select", nil)
			case "sweep":
				_ = panics.Call("a sweep", func() error { h.server.identities.Sweep(time.Now()); return nil })
				if h.broken.place.Load() != nil { // nobody has a pool yet
					a.must(success, "select", nil)
					_ = panics.Call("a sweep", func() error { h.server.identities.Sweep(time.Now()); return nil })
				}
			case "late":
				h.waitInVain(ctx, a)
			default:
				_, _, _ = a.run(ctx, a.id, text, nil)
			}
			if ctx.Err() != nil || h.broken.place.Load() != nil {
				t.Fatalf("%v; panicked: %v", ctx.Err(), h.broken.place.Load() == nil)
			}
			b.must(success, "select", inTx(b.must(success, "select", beginTx), true))
			c := h.comes("a", "a/1").session()
			c.must(success, "select", inTx(c.must(success, "select", beginTx), true))
			h.eventually("all sessions rest", func() string {
				for name, p := range h.pools() {
					if p.InUse > 0 || p.Waiting > 0 {
						return name
					}
				}
				return ""
			})
			h.drains(ctx, a.guest, b.guest, c.guest)
		})
	}
}

// The maintenance of a caller's pool goes on after a panic.
func TestAPoolThatPanicsIsMaintainedAgain(t *testing.T) {
	expectPanics(t, 1)
	h := newInn(t, nil)
	s := h.comes("a", "a/1").session()
	h.broken.next("Pool.Run")
	s.must(success, "select", nil)
	h.eventually("the pool is maintained", func() string {
		if n := h.broken.runs.Load(); n < 2 {
			return "Run was not called again"
		}
		return ""
	})
}
