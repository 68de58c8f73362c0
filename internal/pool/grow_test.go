package pool

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

var errRefused = errors.New("refused")

func config(maxSessions int) Config {
	c := Default()
	c.Shed = false // callers wait to the end of their contexts; see shed_test.go
	c.Max = maxSessions
	return c
}

// evenly fails if the nodes' sessions differ by more than 1.
func evenly(t *testing.T, f *servers) {
	t.Helper()
	if live := f.live(); slices.Max(live)-slices.Min(live) > 1 {
		t.Errorf("sessions by node: %v; want them to differ by at most 1", live)
	}
}

func TestGrowsEvenly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		p := start(t, config(50), f, view(1, 2, 3))
		var held []*Session
		for i := range 50 {
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			if !g.Created {
				t.Errorf("session %d was not created for its caller", i)
			}
			held = append(held, g.Session)
			evenly(t, f)
		}
		if f.sum() != 50 || f.most != 50 {
			t.Errorf("%d sessions, at most %d; want 50", f.sum(), f.most)
		}
		for _, s := range held {
			p.Release(s)
		}
		g, err := p.Acquire(t.Context(), Ask{Class: Normal})
		if err != nil || g.Created || g.Waited != 0 {
			t.Errorf("warm: %+v, %v", g, err)
		}
		p.Release(g.Session)
	})
}

func TestGrowsEvenlyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3, 4)
		p := start(t, config(50), f, view(1, 2, 3, 4))
		checkOut(t, p, 0)
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() { useFor(t, p, time.Second) })
		}
		synctest.Wait()
		evenly(t, f)
		st := p.Stats()
		if st.InUse != 50 || st.Waiting[Normal] != 150 || st.Sessions != 50 {
			t.Errorf("%+v; want 50 leased, 150 waiting", st)
		}
		wg.Wait()
		if f.most != 50 {
			t.Errorf("at most %d sessions; want 50", f.most)
		}
	})
}

func TestWarmsUpAndKeepsTheMinimum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		f.set(1, after(50*time.Millisecond, nil), nil)
		cfg := config(50)
		cfg.Min = 10
		const warm = 2 * warmWithin // pauses are random, and twice their mean at most
		p := start(t, cfg, f, view(1, 2, 3))
		synctest.Wait()
		if p.Warm() {
			t.Error("warm before node 1 has opened its sessions")
		}
		time.Sleep(warm)
		synctest.Wait()
		if !p.Warm() || f.sum() != 10 {
			t.Errorf("warm %v with %d sessions; want 10", p.Warm(), f.sum())
		}
		evenly(t, f)
		// A session lost is replaced although nobody asks.
		f.any(2).retire("gone")
		time.Sleep(warm)
		synctest.Wait()
		if f.sum() != 10 {
			t.Errorf("%d sessions after one was lost; want 10", f.sum())
		}
		evenly(t, f)
		// Expiry by disuse spares the minimum, evenly.
		checkOut(t, p, 40)()
		time.Sleep(cfg.Idle * 12 / 10)
		synctest.Wait()
		if f.sum() != 10 {
			t.Errorf("%d sessions after a pause; want the minimum of 10", f.sum())
		}
		evenly(t, f)
	})
}

func TestCapPerNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		f.set(2, after(0, errRefused), nil)
		f.set(3, blackHole, nil)
		p := start(t, config(9), f, view(1, 2, 3))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var held []*Session
		for {
			g, err := p.Acquire(ctx, Ask{Class: Normal})
			if err != nil {
				break
			}
			held = append(held, g.Session)
		}
		if len(held) != 5 || f.node(1).most != 5 {
			t.Errorf("%d sessions on the only node that works; want its cap of 5", len(held))
		}
		for _, s := range held {
			p.Release(s)
		}
	})
}

// The caller who made the pool open a session goes away: the session stays.
func TestOpeningIsDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		f.set(1, after(100*time.Millisecond, nil), nil)
		p := start(t, config(5), f, view(1))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		_, err := p.Acquire(ctx, Ask{Class: Normal})
		late, ok := errors.AsType[*WaitError](err)
		if !ok || late.Waited != 30*time.Millisecond || late.Opening != 1 || late.Open != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Acquire: %v; want a WaitError after 30ms with one session being opened", err)
		}
		time.Sleep(70 * time.Millisecond)
		synctest.Wait()
		if s, ok := p.Try(Ask{Class: Normal}); !ok {
			t.Error("the session that was opened is not there")
		} else {
			p.Release(s)
		}
		if f.node(1).opens != 1 {
			t.Errorf("%d opened; want 1", f.node(1).opens)
		}
	})
}

// The first in the queue gets what comes first, which may be a session that was opened
// because of somebody else.
func TestOpenedSessionGoesToTheFirstInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		p := start(t, config(2), f, view(1))
		release := checkOut(t, p, 1)
		f.set(1, after(100*time.Millisecond, nil), nil)
		grants := make(chan Grant, 2)
		for range 2 {
			w := NewWaiter(func(g Grant, err error) {
				if err != nil {
					t.Error(err)
				}
				grants <- g
			})
			if g, err := p.Wait(w, Ask{Class: Normal}); g.Session != nil || err != nil {
				t.Fatal(g, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		release()
		if g := <-grants; g.Created || g.Waited != 20*time.Millisecond {
			t.Errorf("first: created %v, waited %v; want the session that came back after 20ms", g.Created, g.Waited)
		} else {
			defer p.Release(g.Session)
		}
		if g := <-grants; !g.Created || g.Waited != 90*time.Millisecond {
			t.Errorf("second: created %v, waited %v; want the session opened for the first, after 90ms", g.Created, g.Waited)
		} else {
			defer p.Release(g.Session)
		}
	})
}

// While nothing works waiters wait, the tries become rare, one at a time, and when
// nodes work again they come back in doubling numbers.
func TestPacesAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		for id := range f.nodes {
			f.set(id, after(time.Millisecond, errRefused), nil)
		}
		p := start(t, config(50), f, view(1, 2, 3))
		var wg sync.WaitGroup
		wait := func(n int, timeout time.Duration) {
			for range n {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), timeout)
					defer cancel()
					g, err := p.Acquire(ctx, Ask{Class: Normal})
					if err == nil {
						p.Release(g.Session)
						return
					}
					late, ok := errors.AsType[*WaitError](err)
					if !ok || late.Waited != timeout || !errors.Is(late.Open, errRefused) || !strings.Contains(err.Error(), "refused") {
						t.Errorf("Acquire: %v; want a WaitError with the failure to open", err)
					}
				})
			}
		}
		opens := f.allOpens
		wait(50, time.Minute)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		// What fails on one node is tried on another, until all have failed.
		first := opens()
		if first < 3*16 || first > 100 {
			t.Errorf("%d tries at first; want one for each caller and node at most", first)
		}
		time.Sleep(time.Minute)
		wg.Wait()
		if n := opens() - first; n < 100 || n > 3*2*60 {
			t.Errorf("%d more tries in a minute; want one or two a second on each node", n)
		}

		// Now they work, slowly.
		for id := range f.nodes {
			f.set(id, after(10*time.Millisecond, nil), nil)
		}
		wait(50, 30*time.Second)
		began, before := time.Now(), opens()
		for opens() == before {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if n := opens() - before; n != 1 {
			t.Errorf("%d tries at once after failures; want 1", n)
		}
		wg.Wait()
		if d := time.Since(began); d > time.Second {
			t.Errorf("served %v after the first node came back; want less than a second", d)
		}
	})
}

// allOpens returns how many openings there were, on all nodes.
func (f *servers) allOpens() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.nodes {
		n += s.opens
	}
	return n
}

// A node that swallows everything costs waiting callers a twentieth of the timeout
// at most, and others nothing.
func TestBlackHoleDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		f.set(2, blackHole, blackHole)
		p := start(t, config(10), f, view(1, 2))
		for i := range 5 { // the cap of node 1
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			if g.Waited > p.cfg.stallAfter() {
				t.Errorf("caller %d waited %v; want at most %v", i, g.Waited, p.cfg.stallAfter())
			}
			defer p.Release(g.Session)
		}
		st := p.Stats()
		if n := st.Nodes[1]; n.Opening == 0 || n.Opening > 2 {
			t.Errorf("node 2 has %d openings under way; want one or two", n.Opening)
		}
		time.Sleep(time.Minute)
		if n := f.node(2).opens; n > 6 {
			t.Errorf("%d tries on node 2", n)
		}
	})
}

// One of three nodes swallows calls, openings and deletions, and nobody has said so
// yet. Work arrives at two thirds of what the others can do, and they do it.
func TestBulkhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		p := start(t, config(30), f, view(1, 2, 3))
		checkOut(t, p, 30)()
		const hold, every = 10 * time.Millisecond, 750 * time.Microsecond // 20 sessions do 2000 a second
		var mu sync.Mutex
		served := make(map[cluster.NodeID]int)
		lost := 0
		dead := cluster.NodeID(0)
		run := func(d time.Duration) {
			served, lost = make(map[cluster.NodeID]int), 0
			var wg sync.WaitGroup
			for range int(d / every) {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					g, err := p.Acquire(ctx, Ask{Class: Normal})
					if err != nil {
						mu.Lock()
						lost++
						mu.Unlock()
						return
					}
					if g.Node() == dead {
						<-ctx.Done()
						p.Discard(g.Session)
						return
					}
					time.Sleep(hold)
					p.Release(g.Session)
					mu.Lock()
					served[g.Node()]++
					mu.Unlock()
				})
				time.Sleep(every)
			}
			wg.Wait()
		}
		run(5 * time.Second)
		before := served[1] + served[2]
		dead = 3
		f.set(3, blackHole, blackHole)
		run(5 * time.Second)
		if after := served[1] + served[2]; after < before*9/10 {
			t.Errorf("nodes 1 and 2 served %d calls, then %d; want at least 90 %%", before, after)
		}
		if lost > 0 {
			t.Errorf("%d calls got no session", lost)
		}
		if most := f.node(3).most; most > 15 {
			t.Errorf("node 3 had %d sessions; want at most its cap", most)
		}
		f.set(3, nil, nil)
	})
}

func TestNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		p := start(t, config(5), f, cluster.View{})
		if _, err := p.Acquire(t.Context(), Ask{Class: Normal}); !errors.Is(err, ErrNoNode) {
			t.Errorf("Acquire: %v; want ErrNoNode", err)
		}
		if _, ok := p.Try(Ask{Class: Normal}); ok {
			t.Error("Try gave a session")
		}
		p.SetView(view(1))
		checkOut(t, p, 1)()
	})
}

// A retired session is never counted as a success, however fast nodes make them.
func TestStillborn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		f.stillborn = func() bool { return true }
		p := start(t, config(5), f, view(1))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := p.Acquire(ctx, Ask{Class: Normal})
		if late, ok := errors.AsType[*WaitError](err); !ok || late.Open == nil || !strings.Contains(late.Open.Error(), "stream ended") {
			t.Errorf("Acquire: %v; want a WaitError with the reason", err)
		}
		if n := f.node(1).opens; n > 25 {
			t.Errorf("%d tries in 10s; want one or two a second", n)
		}
	})
}

// lockSeer is a slog.Handler that looks whether the pool is locked while it is called.
type lockSeer struct {
	slog.Handler
	pool   *Pool
	lines  map[string]int
	locked int
}

func (h *lockSeer) Handle(_ context.Context, r slog.Record) error {
	// seconds: another goroutine may have it, and its thread may wait for a processor; in a bubble
	// no time passes meanwhile
	for range 20_000_000 {
		if h.locked > 0 {
			break // one line is enough
		}
		if h.pool.mu.TryLock() {
			h.lines[r.Message]++
			h.pool.mu.Unlock()
			return nil
		}
		runtime.Gosched()
	}
	h.locked++
	return nil
}

func (h *lockSeer) Enabled(context.Context, slog.Level) bool { return true }

// A log that is slow to read does not stop the pool: it is told without the lock.
func TestLogIsToldWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		h := &lockSeer{lines: make(map[string]int)}
		p := New(config(1), f, slog.New(h))
		h.pool = p
		p.SetView(view(1))
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = p.Run(ctx) })
		f.set(1, func(context.Context) error { return errRefused }, nil)
		go func() {
			time.Sleep(time.Second)
			f.set(1, nil, nil)
		}()
		g, err := p.Acquire(t.Context(), Ask{Class: Normal})
		if err != nil {
			t.Fatal(err)
		}
		p.Release(g.Session)
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		cancel()
		run.Wait()
		if h.locked > 0 || h.lines["no session opened"] == 0 || h.lines["sessions open again"] == 0 {
			t.Errorf("%d lines under the lock, %v without; want both kinds, and all without", h.locked, h.lines)
		}
	})
}
