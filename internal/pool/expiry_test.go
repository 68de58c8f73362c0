package pool

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Sessions nobody needs are closed, wherever they rest: in slots, on top of stacks
// and at their bottoms.
func TestIdleExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		cfg := config(50)
		p := start(t, cfg, f, view(1, 2, 3))
		checkOut(t, p, 50)()
		time.Sleep(cfg.Idle - time.Second)
		if got := f.sum(); got != 50 {
			t.Errorf("%d sessions before their time; want 50", got)
		}
		time.Sleep(cfg.Idle/5 + time.Second)
		synctest.Wait()
		if got := f.sum(); got != 0 {
			t.Errorf("%d sessions after %v; want 0", got, cfg.Idle*12/10)
		}
	})
}

// Steady use by one caller keeps few sessions warm: the last used is used next.
func TestIdleExpiryOfTheSurplus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2, 3)
		cfg := config(50)
		p := start(t, cfg, f, view(1, 2, 3))
		checkOut(t, p, 50)()
		for began := time.Now(); time.Since(began) < 2*cfg.Idle; time.Sleep(time.Second) {
			checkOut(t, p, 1)()
		}
		// One on top of each node, and what is in slots.
		if got := f.sum(); got == 0 || got > 3+len(p.slots) {
			t.Errorf("%d sessions for one caller at a time", got)
		}
		if len(f.opened) != 50 {
			t.Errorf("%d sessions opened; want the first 50, and what is in use kept", len(f.opened))
		}
	})
}

// Sweeps leave the order of a stack as it was: the last used on top.
func TestSweepKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, config(10), newServers(1), view(1))
		checkOut(t, p, 10)()
		sweep := func() (order []*Session) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.siftAllLocked(func(s *Session) bool {
				order = append(order, s)
				return false
			})
			return order
		}
		before := sweep()
		time.Sleep(time.Minute) // several sweeps of Run's
		if after := sweep(); len(before) != 10 || !slices.Equal(before, after) {
			t.Errorf("order from the bottom %p; want %p", after, before)
		}
		s, _ := p.Try(Ask{Class: Normal})
		if s != before[9] {
			t.Error("not the top of the stack was leased")
		}
		p.Release(s)
	})
}

func TestIdleOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		cfg := config(5)
		cfg.Idle, cfg.Age = 0, 0
		p := start(t, cfg, f, view(1))
		checkOut(t, p, 5)()
		time.Sleep(1000 * time.Hour)
		if got := f.sum(); got != 5 {
			t.Errorf("%d sessions; want 5 for ever", got)
		}
	})
}

// However hot a session is, it does not grow older than the limit; nor do those
// that rest; and not all end at the same time.
func TestAgeExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		cfg := config(20)
		cfg.Idle, cfg.Min = 0, 20
		p := start(t, cfg, f, view(1, 2))
		time.Sleep(2 * warmWithin)
		lowest := 20
		for began := time.Now(); time.Since(began) < 5*cfg.Age/2; time.Sleep(5 * time.Second) {
			checkOut(t, p, 2)()
			lowest = min(lowest, f.sum())
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.oldest > cfg.Age+cfg.Age/20 || f.oldest < cfg.Age*8/10 {
			t.Errorf("the oldest session became %v; want at most %v", f.oldest, cfg.Age)
		}
		for id, n := range f.nodes {
			for r := range n.live {
				if age := time.Since(r.born); age > cfg.Age+cfg.Age/20 {
					t.Errorf("a session of node %d is %v old", id, age)
				}
			}
		}
		if lowest < 15 {
			t.Errorf("down to %d sessions at a time; want their ends spread", lowest)
		}
	})
}

// A session that grows too old while it is in use is closed at its release.
func TestAgeExpiryOfLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		cfg := config(1)
		p := start(t, cfg, f, view(1))
		g, err := p.Acquire(t.Context(), Ask{Class: Normal})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(cfg.Age + cfg.Age/20)
		if g.Valid() || g.Retired() != "age" || f.sum() != 1 {
			t.Errorf("retired %q, %d sessions; want it retired by age and open", g.Retired(), f.sum())
		}
		p.Release(g.Session)
		synctest.Wait()
		if f.sum() != 0 {
			t.Error("not closed at its release")
		}
		next, err := p.Acquire(t.Context(), Ask{Class: Normal})
		if err != nil || next.Session == g.Session {
			t.Errorf("the same session again, or %v", err)
		}
		p.Release(next.Session)
	})
}

// A node that has too many sessions asks for those back that nobody uses, which are those of the minimum.
// They are not opened again and again: neither there nor on other nodes.
func TestEvictedSessionsOfTheMinimumStayAwayForATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1, 2)
		cfg := config(20)
		cfg.Idle, cfg.Age, cfg.Min = 5*time.Minute, 0, 4
		p := start(t, cfg, f, view(1, 2))
		time.Sleep(2 * warmWithin)
		evict := func() {
			f.mu.Lock()
			var oldest *remote
			for r := range f.nodes[1].live {
				oldest = r
			}
			f.mu.Unlock()
			oldest.retire("the node asked for the session to be closed")
			synctest.Wait()
		}
		evict() // not idle for long: the balancer may want it elsewhere
		time.Sleep(warmWithin)
		if got := f.sum(); got != 4 {
			t.Fatalf("%d sessions; want 4", got)
		}
		time.Sleep(serverIdle + time.Minute)
		opened := len(f.opened)
		evict()
		time.Sleep(serverIdle - time.Minute)
		if got := f.sum(); got != 3 || len(f.opened) != opened {
			t.Errorf("%d sessions, %d opened; want 3, and none opened ahead of need", got, len(f.opened)-opened)
		}
		checkOut(t, p, 5)() // callers that need one get it
		if got := f.sum(); got < 5 {
			t.Errorf("%d sessions for 5 callers", got)
		}
		time.Sleep(serverIdle)
		if got := f.sum(); got != 4 {
			t.Errorf("%d sessions later; want the minimum again", got)
		}
		evict()
		evict()
		p.SetView(view(2)) // it was about to leave: that says nothing about the minimum
		time.Sleep(warmWithin)
		if got := f.sum(); got != 4 {
			t.Errorf("%d sessions without the node; want 4", got)
		}
	})
}
