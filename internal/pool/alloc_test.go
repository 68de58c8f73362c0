package pool

import (
	"context"
	"runtime"
	"testing"
)

// allocatesNothing checks that f does not allocate.
func allocatesNothing(t *testing.T, name string, f func()) {
	t.Helper()
	if n := testing.AllocsPerRun(1000, f); n != 0 {
		t.Errorf("%s: %v allocations; want 0", name, n)
	}
}

// The paths that calls take allocate nothing while sessions are idle.
func TestAllocs(t *testing.T) {
	ctx := context.Background()
	p := warmPool(t, 10, 3)
	count := func(name string, f func()) { t.Helper(); allocatesNothing(t, name, f) }
	count("Acquire and Release", func() {
		g, err := p.Acquire(ctx, Ask{Class: Normal})
		if err != nil {
			t.Fatal(err)
		}
		p.Release(g.Session)
	})
	count("Try and Release", func() {
		s, ok := p.Try(Ask{Class: Normal})
		if !ok {
			t.Fatal("no session")
		}
		p.Release(s)
	})
	var held [3]*Session
	count("several at a time", func() { // past the slots
		for i := range held {
			held[i], _ = p.Try(Ask{Class: Normal})
		}
		for _, s := range held {
			p.Release(s)
		}
	})
}

// The paths that calls take allocate nothing while callers wait.
func TestAllocsInTheQueue(t *testing.T) {
	ctx := context.Background()
	p := warmPool(t, 10, 3)
	count := func(name string, f func()) { t.Helper(); allocatesNothing(t, name, f) }
	defer checkOut(t, p, 9)()
	g, err := p.Acquire(ctx, Ask{Class: Normal})
	if err != nil {
		t.Fatal(err)
	}
	s := g.Session
	w := NewWaiter(func(g Grant, err error) { s = g.Session })
	count("Wait and be told", func() {
		if g, err := p.Wait(w, Ask{Class: Normal}); g.Session != nil || err != nil {
			t.Fatal("did not have to wait")
		}
		given := s
		s = nil
		p.Release(given)
		if s == nil {
			t.Fatal("not told")
		}
	})
	count("Wait and Cancel", func() {
		if g, err := p.Wait(w, Ask{Class: Normal}); g.Session != nil || err != nil || !p.Cancel(w) {
			t.Fatal("did not have to wait")
		}
	})
	p.Release(s)
}

// Two goroutines that block in Acquire in turn, with a cancellable context, allocate nothing.
func TestAllocsOfAcquireInTheQueue(t *testing.T) {
	p := warmPool(t, 10, 3)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer checkOut(t, p, 9)()
	g, err := p.Acquire(ctx, Ask{Class: Normal})
	if err != nil {
		t.Fatal(err)
	}
	s := g.Session
	stop, turn := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stop)
		for range turn {
			g, err := p.Acquire(ctx, Ask{Class: Normal})
			if err != nil {
				t.Error(err)
				return
			}
			p.Release(g.Session)
		}
	}()
	waits := allocatesNothing
	if poolForgets {
		waits = func(_ *testing.T, _ string, f func()) { testing.AllocsPerRun(1000, f) }
	}
	waits(t, "Acquire in the queue", func() {
		turn <- struct{}{}
		for p.gate.Load() == 0 { // until the other waits
			runtime.Gosched()
		}
		p.Release(s)
		g, err := p.Acquire(ctx, Ask{Class: Normal})
		if err != nil {
			t.Fatal(err)
		}
		s = g.Session
	})
	close(turn)
	<-stop
	p.Release(s)
}
