package pool

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
)

// stage is three pools of one budget that a test plays step by step. The first one has both sessions.
type stage struct {
	*family
	held []*Session
}

// free has the first pool close a session.
func (y *stage) free() {
	y.pools[0].Discard(y.held[0])
	y.held = y.held[1:]
	time.Sleep(2 * time.Millisecond)
	synctest.Wait()
}

// run lets a pool do what it is told to by the budget, and checks whether that
// was anything.
func (y *stage) run(i int, told bool) {
	y.Helper()
	select {
	case <-y.pools[i].offer:
		if !told {
			y.Errorf("pool %d was woken", i)
		}
		y.pools[i].maintain()
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
	default:
		if told {
			y.Errorf("pool %d was not woken", i)
		}
	}
}

// served checks that a caller of a pool has got a session, and gives it back.
func (y *stage) served(i int, got **Session) {
	y.Helper()
	if *got == nil {
		y.Errorf("pool %d was not served", i)
		return
	}
	y.pools[i].Release(*got)
}

// The steps of a hand-over between pools, played one by one: neither the pools nor
// the budget run by themselves.
func TestBudgetHandOver(t *testing.T) {
	tests := map[string]func(t *testing.T, y *stage){
		// The permit is free, and its pool has not looked yet, when others want one.
		"nobody snatches what is set aside": func(t *testing.T, y *stage) {
			_, first := y.wait(1)
			y.free()
			_, second := y.wait(2)
			w, _ := y.wait(0)
			time.Sleep(10 * time.Millisecond)
			y.run(0, false)
			y.run(2, false)
			if got := y.sizes(); got[0] != 1 || got[1]+got[2] != 0 {
				t.Errorf("sessions by pool %v; somebody snatched the permit of another", got)
			}
			y.run(1, true)
			y.served(1, first)
			y.free()
			y.run(2, true)
			y.served(2, second)
			y.pools[0].Cancel(w)
		},
		"first come, first served": func(t *testing.T, y *stage) {
			_, first := y.wait(2)
			_, second := y.wait(1)
			_, third := y.wait(1) // its pool stands there once
			y.free()
			y.run(1, false)
			y.run(2, true)
			y.served(2, first)
			y.free()
			y.run(1, true)
			y.served(1, second)
			y.served(1, third)
			if st := y.Stats(); st.Hungry != 0 {
				t.Errorf("%+v", st)
			}
		},
		"who has fewer goes first": func(t *testing.T, y *stage) {
			_, second := y.wait(0)
			_, first := y.wait(1)
			y.free()
			y.run(0, false)
			y.run(1, true)
			y.served(1, first)
			y.served(0, func() **Session { y.free(); y.run(0, true); return second }())
		},
		"who wants no more is not in the way": func(t *testing.T, y *stage) {
			w, _ := y.wait(1)
			_, told := y.wait(2)
			if !y.pools[1].Cancel(w) || y.Stats().Hungry != 1 {
				t.Errorf("%+v after the caller left; want one hungry pool", y.Stats())
			}
			y.free()
			y.run(1, false)
			y.run(2, true)
			y.served(2, told)
		},
		// A session that was promised is laid down, and who did so has not looked after it
		// yet, when another pool asks for one.
		"a session is promised once": func(t *testing.T, y *stage) {
			_, first := y.wait(1)
			y.Look(time.Now())
			s := y.held[slices.IndexFunc(y.held, func(s *Session) bool { return !s.Valid() })]
			y.held = slices.DeleteFunc(y.held, func(h *Session) bool { return h == s })
			checkIn(s)
			s.node.idle.push(&y.pools[0].cells, s.index)
			w, _ := y.wait(2)
			y.Look(time.Now())
			y.pools[0].lookAfter(s)
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			y.run(1, true)
			y.served(1, first)
			if st := y.Stats(); st.Yielded != 1 {
				t.Errorf("%+v; want one session yielded", st)
			}
			for i, k := range y.books().Members {
				if k.Leaving != 0 || k.Coming != 0 {
					t.Errorf("pool %d: %d leaving, %d coming; want none: what was promised is gone", i, k.Leaving, k.Coming)
				}
			}
			y.pools[2].Cancel(w)
		},
		"nothing is taken for a pool that wants no more": func(t *testing.T, y *stage) {
			w, _ := y.wait(1)
			y.pools[1].Cancel(w)
			if y.Look(time.Now()) || y.Stats().Yielded != 0 {
				t.Errorf("%+v", y.Stats())
			}
		},
		"one for each who is hungry": func(t *testing.T, y *stage) {
			y.wait(1)
			y.wait(1)
			for range 3 {
				if !y.Look(time.Now()) || y.Stats().Yielded != 1 {
					t.Errorf("%+v", y.Stats())
				}
			}
		},
		"who has none gets the turn of another": func(t *testing.T, y *stage) {
			y.free()
			y.pools[1].Release(get(t, y.pools[1])) // one each
			g, err := y.pools[1].Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			w, _ := y.wait(1) // nobody has more
			y.Look(time.Now())
			if st := y.Stats(); st.Yielded != 0 {
				t.Errorf("%+v; want nothing taken from a pool that has no more", st)
			}
			_, told := y.wait(2)
			time.Sleep(budget.KeepFor)
			y.Look(time.Now())
			if st := y.Stats(); st.Yielded != 1 {
				t.Errorf("%+v; want its turn for who has none", st)
			}
			y.pools[1].Cancel(w)
			y.free()
			y.run(2, true)
			y.served(2, told)
			y.pools[1].Release(g.Session)
		},
		// The caller leaves after the permit was set aside.
		"a permit that is not wanted goes on": func(t *testing.T, y *stage) {
			w, _ := y.wait(1)
			_, told := y.wait(2)
			y.free()
			y.pools[1].Cancel(w)
			y.run(2, true)
			y.served(2, told)
		},
		"a pool closes in the queue": func(t *testing.T, y *stage) {
			y.waitFor(1, ErrClosed)
			_, told := y.wait(2)
			if err := y.pools[1].Close(t.Context()); err != nil {
				t.Error(err)
			}
			if st := y.Stats(); st.Hungry != 1 || st.Pools != 2 {
				t.Errorf("%+v", st)
			}
			y.free()
			y.run(2, true)
			y.served(2, told)
		},
		"a pool closes with a permit set aside": func(t *testing.T, y *stage) {
			y.waitFor(1, ErrClosed)
			_, told := y.wait(2)
			y.free()
			if err := y.pools[1].Close(t.Context()); err != nil {
				t.Error(err)
			}
			y.run(2, true)
			y.served(2, told)
		},
		"a pool whose nodes fail is not in the way": func(t *testing.T, y *stage) {
			refuse := after(time.Millisecond, errRefused)
			y.servers[1].set(1, refuse, nil)
			y.servers[1].set(2, refuse, nil)
			w, _ := y.wait(1)
			_, told := y.wait(2)
			y.free()
			y.run(1, true) // then it wants to try the other node
			y.run(2, true)
			y.served(2, told)
			y.pools[1].Cancel(w)
		},
	}
	for name, play := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := &stage{family: &family{TB: t, Budget: NewBudget(2), all: &tally{}}}
				for range 3 {
					y.add(New(config(50), y.nodes(), nil).WithinGroup(y.Budget, "", weightOne))
				}
				for _, p := range y.pools {
					p.SetView(view(1, 2))
				}
				y.held = []*Session{get(t, y.pools[0]), get(t, y.pools[0])}
				play(t, y)
				y.check()
				y.leaving = true
				for _, s := range y.held {
					y.pools[0].Release(s)
				}
				for _, p := range y.pools {
					if err := p.Close(t.Context()); err != nil {
						t.Error(err)
					}
				}
				y.checkEnd()
			})
		})
	}
}
