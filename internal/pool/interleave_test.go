package pool

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// The tests in this file play, step by step, the races that the lock-free paths
// must win, by calling their halves in the worst order.

// one is a pool with one session in use of node 1.
func one(t *testing.T) (*Pool, *servers, *Session) {
	f := newServers(1, 2)
	p := start(t, config(1), f, view(1))
	g, err := p.Acquire(t.Context(), Ask{Class: Normal})
	if err != nil {
		t.Fatal(err)
	}
	return p, f, g.Session
}

// waiting puts a waiter in the queue that gives back what it gets, and returns whether
// it was served.
func waiting(t *testing.T, p *Pool) func() bool {
	t.Helper()
	served := false
	w := NewWaiter(func(g Grant, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		served = true
		p.Release(g.Session)
	})
	if s, err := p.join(w, Ask{Class: Normal}); s != nil || err != nil {
		t.Fatalf("join: %v, %v; want to wait", s, err)
	}
	return func() bool { return served }
}

func TestInterleavings(t *testing.T) {
	tests := map[string]func(t *testing.T, p *Pool, f *servers, s *Session){
		// Release saw nobody in the queue; then somebody came and found nothing.
		"waiter_comes_before_the_session_is_down": func(t *testing.T, p *Pool, f *servers, s *Session) {
			checkIn(s)
			served := waiting(t, p)
			p.put(s)
			if !served() {
				t.Error("somebody waits beside an idle session")
			}
		},
		// Acquire found nothing; then a session was laid down, for nobody waited.
		"session_is_down_before_the_waiter_says_so": func(t *testing.T, p *Pool, f *servers, s *Session) {
			p.Release(s)
			got, err := p.join(NewWaiter(func(Grant, error) { t.Error("told") }), Ask{Class: Normal})
			if got != s || err != nil {
				t.Fatalf("join: %v, %v; want the idle session", got, err)
			}
			p.Release(got)
		},
		// The same, with the session on its node's stack.
		"session_on_the_stack_before_the_waiter_says_so": func(t *testing.T, p *Pool, f *servers, s *Session) {
			checkIn(s)
			s.node.idle.push(&p.cells, s.index)
			got, err := p.join(NewWaiter(func(Grant, error) { t.Error("told") }), Ask{Class: Normal})
			if got != s || err != nil {
				t.Fatalf("join: %v, %v; want the idle session", got, err)
			}
			p.Release(got)
		},
		// Acquire has a slot's session in hand, to pass it over, while somebody comes
		// to wait and finds nothing.
		"waiter_comes_while_a_session_is_passed_over": func(t *testing.T, p *Pool, f *servers, s *Session) {
			checkIn(s)
			served := waiting(t, p)
			p.passOver(s, p.table.Load())
			if !served() {
				t.Error("somebody waits beside an idle session")
			}
		},
		// The session is retired between the look at its state and its laying down.
		"retired_before_it_is_down": func(t *testing.T, p *Pool, f *servers, s *Session) {
			checkIn(s)
			p.retire(s, "hint")
			p.put(s)
			synctest.Wait()
			if f.sum() != 0 {
				t.Error("a retired session rests")
			}
		},
		"retired_while_it_is_passed_over": func(t *testing.T, p *Pool, f *servers, s *Session) {
			checkIn(s)
			p.retire(s, "hint")
			p.passOver(s, p.table.Load())
			synctest.Wait()
			if f.sum() != 0 {
				t.Error("a retired session rests")
			}
		},
		"retired_before_it_is_leased": func(t *testing.T, p *Pool, f *servers, s *Session) {
			checkIn(s)
			s.node.idle.push(&p.cells, s.index)
			reason := "hint" // the sweep that follows comes too late
			s.retired.Store(&reason)
			if got, ok := p.Try(Ask{Class: Normal}); ok {
				t.Errorf("a session retired because of %q was leased", got.Retired())
				p.Release(got)
			}
			synctest.Wait()
			if f.sum() != 0 {
				t.Error("a retired session rests")
			}
		},
		"node_goes_before_it_is_down": func(t *testing.T, p *Pool, f *servers, s *Session) {
			checkIn(s)
			p.SetView(view(2))
			p.put(s)
			synctest.Wait()
			if f.sum() != 0 {
				t.Error("a session of a node that is gone rests")
			}
		},
		// The session was laid into a slot just as its node became ineligible; who
		// did so has not looked after it yet.
		"node_becomes_ineligible_when_it_is_down": func(t *testing.T, p *Pool, f *servers, s *Session) {
			checkIn(s)
			p.SetView(viewOf(map[cluster.NodeID]cluster.Use{1: cluster.UseOpen, 2: cluster.UseNone}))
			for i := range p.slots {
				p.slots[i].Store(0)
			}
			p.slots[p.slot()].Store(uint32(s.index) + 1)
			if got := p.take(Home{}); got != nil {
				t.Error("a session of a node that is not eligible was leased")
				p.Release(got)
			}
		},
		"pool_closes_before_it_is_down": func(t *testing.T, p *Pool, f *servers, s *Session) {
			checkIn(s)
			closed := make(chan error)
			go func() { closed <- p.Close(t.Context()) }()
			synctest.Wait()
			p.put(s)
			if err := <-closed; err != nil || f.sum() != 0 {
				t.Errorf("Close: %v, %d sessions left", err, f.sum())
			}
		},
		// Close has lost patience with a session that is just being laid down.
		"pool_seizes_it_before_it_is_down": func(t *testing.T, p *Pool, f *servers, s *Session) {
			checkIn(s)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := p.Close(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Close: %v", err)
			}
			p.put(s)
			synctest.Wait()
			if f.sum() != 0 || f.twice > 0 {
				t.Errorf("%d sessions left, %d deleted twice", f.sum(), f.twice)
			}
		},
		// A caller's context ends just as a session is handed to it.
		"context_ends_at_the_hand_over": func(t *testing.T, p *Pool, f *servers, s *Session) {
			w := &Waiter{Handover: handover{done: make(chan struct{}, 1)}}
			if got, err := p.join(w, Ask{Class: Normal}); got != nil || err != nil {
				t.Fatal(got, err)
			}
			p.Release(s)
			if p.Cancel(w) {
				t.Error("taken out of a line it had left")
			}
			<-w.Handover.done
			if w.Handover.session != s {
				t.Errorf("handed over %v; want the session", w.Handover.session)
			}
			p.Release(grant(w).Session)
		},
	}
	for name, play := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, f, s := one(t)
				play(t, p, f, s)
			})
		})
	}
}

// A sweep has every session in its hands: nobody is told that there is none.
func TestSweepHidesNothing(t *testing.T) {
	f := newServers(1)
	cfg := config(3)
	p := New(cfg, f, nil)
	p.SetView(view(1))
	checkOut(t, p, 3)()
	p.mu.Lock()
	var idle []*Session
	for s := p.pick(); s != nil; s = p.pick() {
		idle = append(idle, s)
	}
	got := make(chan bool)
	go func() {
		s, ok := p.Try(Ask{Class: Normal})
		if ok {
			p.Release(s)
		}
		got <- ok
	}()
	for range 1000 {
		select {
		case ok := <-got:
			t.Fatalf("Try = %v while a sweep has all sessions in hand", ok)
		default:
			runtime.Gosched()
		}
	}
	for _, s := range idle {
		s.node.idle.push(&p.cells, s.index)
	}
	p.mu.Unlock()
	if !<-got {
		t.Error("Try found nothing though 3 sessions are idle")
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
