package pool

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		p := start(t, config(10), f, view(1))
		var held []*Session
		for range 4 {
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, g.Session)
		}
		leased := held[0]
		for _, s := range held[1:] {
			p.Release(s)
		}
		// An idle one is closed at once, wherever it is.
		middle := held[2].Resource().(*remote)
		middle.retire("hint")
		middle.retire("hint again")
		synctest.Wait()
		if f.sum() != 3 || held[2].Retired() != "hint" {
			t.Errorf("%d sessions, retired %q; want 3 and the first reason", f.sum(), held[2].Retired())
		}
		// A session in use at its release.
		leased.Resource().(*remote).retire("hint")
		synctest.Wait()
		if f.sum() != 3 || leased.Valid() {
			t.Errorf("%d sessions, valid %v; want the leased one open and not valid", f.sum(), leased.Valid())
		}
		p.Release(leased)
		synctest.Wait()
		if f.sum() != 2 {
			t.Errorf("%d sessions; want 2", f.sum())
		}
		middle.retire("long after")
	})
}

// A deletion that hangs holds up nothing else, and its room only for a time.
func TestDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		cfg := config(1)
		p := start(t, cfg, f, view(1))
		g, err := p.Acquire(t.Context(), Ask{Class: Normal})
		if err != nil {
			t.Fatal(err)
		}
		f.set(1, nil, blackHole)
		began := time.Now()
		p.Discard(g.Session)
		if d := time.Since(began); d > 0 {
			t.Errorf("Discard took %v", d)
		}
		st := p.Stats()
		if st.Closing != 1 || st.Sessions != 1 {
			t.Errorf("%+v; want one closing, which counts", st.Counts)
		}
		next, err := p.Acquire(t.Context(), Ask{Class: Normal})
		if err != nil || next.Waited != cfg.DeleteTimeout || f.most != 1 {
			t.Errorf("next: waited %v, %v, at most %d sessions; want %v and 1", next.Waited, err, f.most, cfg.DeleteTimeout)
		}
		f.set(1, nil, nil)
		p.Release(next.Session)
	})
}

func TestGivingBackTwicePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, config(1), newServers(1), view(1))
		g, err := p.Acquire(t.Context(), Ask{Class: Normal})
		if err != nil {
			t.Fatal(err)
		}
		p.Release(g.Session)
		for name, again := range map[string]func(*Session){"Release": p.Release, "Discard": p.Discard} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s of a session that is not leased did not panic", name)
					}
				}()
				again(g.Session)
			}()
		}
	})
}

// Close tells waiting callers, deletes the idle in parallel, waits for those in use.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		p := start(t, config(20), f, view(1, 2))
		var held []*Session
		for range 20 {
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, g.Session)
		}
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if _, err := p.Acquire(t.Context(), Ask{Class: Batch}); !errors.Is(err, ErrClosed) {
					t.Errorf("in line: %v; want ErrClosed", err)
				}
			})
		}
		told := make(chan error, 1)
		if _, err := p.Wait(NewWaiter(func(_ Grant, err error) { told <- err }), Ask{Class: Normal}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for id := range f.nodes {
			f.set(id, nil, after(time.Second, nil))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began, closed := time.Now(), make(chan error, 2)
		for range 2 { // also twice
			go func() { closed <- p.Close(ctx) }()
		}
		synctest.Wait()
		wg.Wait()
		if err := <-told; !errors.Is(err, ErrClosed) {
			t.Errorf("waiter: %v; want ErrClosed", err)
		}
		for _, s := range held[:19] {
			p.Release(s)
		}
		time.Sleep(5 * time.Second)
		if f.sum() != 1 {
			t.Errorf("%d sessions; want only the leased one", f.sum())
		}
		if _, ok := p.Try(Ask{Class: System}); ok {
			t.Error("Try gave a session of a closed pool")
		}
		p.Discard(held[19])
		for range 2 {
			if err := <-closed; err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		if d := time.Since(began); d != 6*time.Second {
			t.Errorf("Close took %v; want 1s after the last session came back after 5s", d)
		}
	})
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		cfg := config(5)
		p := New(cfg, f, nil)
		p.SetView(view(1))
		var held []*Session
		for range 3 {
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, g.Session)
		}
		p.Release(held[2])
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.Close(ctx)
		if err == nil || !strings.Contains(err.Error(), "2 sessions") || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v; want it to say that 2 sessions were in use", err)
		}
		if f.sum() != 0 {
			t.Errorf("%d sessions left", f.sum())
		}
		p.Release(held[0])
		p.Discard(held[1])
		if err := p.Run(t.Context()); err != nil {
			t.Errorf("Run of a closed pool: %v", err)
		}
	})
}

// A session that arrives during Close ends like any other, and an opening that
// does not arrive is cancelled.
func TestCloseDuringOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		p := start(t, config(5), f, view(1))
		f.set(1, func(context.Context) error { time.Sleep(time.Second); return nil }, nil)
		go func() { _, _ = p.Acquire(t.Context(), Ask{Class: Normal}) }()
		synctest.Wait()
		f.set(1, blackHole, nil)
		go func() { _, _ = p.Acquire(t.Context(), Ask{Class: Normal}) }()
		synctest.Wait()
		began := time.Now()
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("Close took %v; want 1s", d)
		}
		if st := p.Stats(); f.sum() != 0 || st.Created != 1 || st.Closed != 1 || st.Sessions != 0 {
			t.Errorf("%d sessions left, %+v", f.sum(), st.Counts)
		}
	})
}

// A pool that was never used, and one that never runs, close as well.
func TestCloseUnused(t *testing.T) {
	p := New(Default(), newServers(1), nil)
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
