package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// A pool alone in a budget is like one with that maximum.
func TestBudgetAlone(t *testing.T) {
	tests := map[string]struct{ limit, max, want int }{
		"budget above the maximum": {50, 10, 10},
		"budget below the maximum": {10, 50, 10},
		"budget of one":            {1, 50, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := startFamily(t, tt.limit, 1, func(_ int, cfg *Config) { cfg.Max = tt.max })
				var wg sync.WaitGroup
				served := y.load(&wg, 0, 30, 10*time.Millisecond, time.Second)
				time.Sleep(500 * time.Millisecond)
				synctest.Wait()
				y.check()
				if got := y.sizes(); got[0] != tt.want || y.servers[0].most != tt.want {
					t.Errorf("%v sessions, at most %d; want %d", got, y.servers[0].most, tt.want)
				}
				wg.Wait()
				// All callers were served, in turn.
				if want := tt.want * 95; len(*served) < want {
					t.Errorf("served %d times; want at least %d", len(*served), want)
				}
				if st := y.Stats(); st.Yielded != 0 || st.Used != tt.want {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

func TestBudgetTakesWhatIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 10, 3, nil)
		checkOut(t, y.pools[0], 6)()
		checkOut(t, y.pools[1], 4)()
		began := time.Now()
		defer checkOut(t, y.pools[2], 5)()
		// Each in turn: closed, then opened; the last two from those who have no more.
		if took := time.Since(began); took > 5*2*time.Millisecond+2*(budget.HungerFor+budget.LookEvery) {
			t.Errorf("5 sessions took %v while 10 were idle elsewhere", took)
		}
		synctest.Wait()
		y.check()
		// Of those with most each time: 6 4, 5 4, 4 4, ...
		if got := y.sizes(); got[0]+got[1] != 5 || got[2] != 5 || max(got[0], got[1]) > 3 {
			t.Errorf("sessions by pool %v", got)
		}
	})
}

// One pool has every session and a queue that never ends; the others get their
// parts all the same, and then nothing moves any more.
func TestBudgetIsShared(t *testing.T) {
	tests := map[string]struct {
		limit   int
		callers []int // by pool; the first comes before the others
		want    []int // sessions
		shed    int   // sessions moved, at most
	}{
		"two equals":          {10, []int{50, 50}, []int{5, 5}, 5},
		"three equals":        {12, []int{50, 50, 50}, []int{4, 4, 4}, 8},
		"uneven":              {10, []int{50, 50, 50}, []int{4, 3, 3}, 7},
		"one wants little":    {10, []int{50, 2, 50}, []int{4, 2, 4}, 7},
		"both want little":    {10, []int{50, 1, 2}, []int{7, 1, 2}, 3},
		"a newcomer of many":  {20, []int{50, 50, 50, 50, 50}, []int{4, 4, 4, 4, 4}, 16},
		"one session in all":  {1, []int{5}, []int{1}, 0},
		"enough for everyone": {30, []int{10, 10, 10}, []int{10, 10, 10}, 0},
	}
	quiet := short.Of(27, 7) // seconds without a change
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := startFamily(t, tt.limit, len(tt.callers), nil)
				var wg sync.WaitGroup
				until := time.Duration(3+quiet) * time.Second
				y.load(&wg, 0, tt.callers[0], 7*time.Millisecond, until)
				time.Sleep(time.Second)
				for i := 1; i < len(tt.callers); i++ {
					y.load(&wg, i, tt.callers[i], 7*time.Millisecond, until-time.Second)
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				y.check()
				got := y.sizes()
				for i := range got {
					if got[i] < tt.want[i]-1 || got[i] > tt.want[i]+1 {
						t.Errorf("sessions by pool %v; want about %v", got, tt.want)
					}
				}
				settled := y.Stats().Yielded
				if settled > uint64(tt.shed+movedAtFirst(tt.callers, tt.want)) {
					t.Errorf("%d sessions moved; want at most %d", settled, tt.shed)
				}
				wg.Wait()
				// Nothing moves any more; but sessions that are idle for a moment may move.
				moved := 0
				for i, n := range tt.callers {
					if n <= tt.want[i] && tt.limit < 30 {
						moved += 10 * quiet
					}
				}
				if st := y.Stats(); st.Yielded > settled+uint64(moved) {
					t.Errorf("%d more sessions moved though nothing changed", st.Yielded-settled)
				}
			})
		})
	}
}

// movedAtFirst is how many sessions may move, in two seconds, to pools that lack some
// from pools whose sessions are idle for a moment.
func movedAtFirst(callers, want []int) (n int) {
	for i := range callers {
		if callers[i] <= want[i] {
			n += 20
		}
	}
	return n
}

// There are more pools than permits and all queues never end: they take turns.
func TestBudgetTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pools, limit = 7, 3
		y := startFamily(t, limit, pools, nil)
		var wg sync.WaitGroup
		var served []*[]time.Time
		for i := range pools {
			served = append(served, y.load(&wg, i, 5, 10*time.Millisecond, time.Minute))
		}
		began := time.Now()
		wg.Wait()
		for i, times := range served {
			last, longest := began, time.Duration(0)
			for _, at := range *times {
				longest = max(longest, at.Sub(last))
				last = at
			}
			longest = max(longest, time.Since(last))
			// Three of seven have one for a second each, and some more for the change.
			if longest > 4*budget.KeepFor {
				t.Errorf("pool %d had nothing for %v", i, longest)
			}
		}
		// And nothing more than that: each holds it for its second.
		if st := y.Stats(); st.Yielded > limit*60+pools {
			t.Errorf("%d sessions moved in a minute", st.Yielded)
		}
	})
}

// A session that is held for long does not keep another pool from its part.
func TestBudgetDoesNotWaitForOneSession(t *testing.T) {
	for waiting := range 3 {
		t.Run(fmt.Sprint(1+waiting, " callers"), func(t *testing.T) { notForOneSession(t, 1+waiting) })
	}
}

func notForOneSession(t *testing.T, waiting int) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 4, 2, nil)
		release := checkOut(t, y.pools[0], 2)
		rest := checkOut(t, y.pools[0], 2)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var served sync.WaitGroup
		for range waiting {
			served.Go(func() {
				g, err := y.pools[1].Acquire(ctx, Ask{Class: Normal})
				if err != nil {
					t.Error(err)
					return
				}
				y.pools[1].Release(g.Session)
			})
		}
		time.Sleep(budget.GoesIn / 2)
		if n := y.goingAway(0); n != 1 {
			t.Errorf("%d sessions were asked to go at once; want 1", n)
		}
		time.Sleep(3 * budget.GoesIn)
		synctest.Wait()
		y.check()
		// One a second, until both would have as many.
		if n := y.goingAway(0); n != 3 {
			t.Errorf("%d sessions were asked to go; want 3", n)
		}
		if st := y.Stats(); st.Used != 4 || st.Hungry != 1 || y.servers[0].sum() != 4 {
			t.Errorf("%+v, %d sessions; a session was taken from its holder", st, y.servers[0].sum())
		}
		rest()
		served.Wait()
		release()
		synctest.Wait()
		y.check()
	})
}

// goingAway returns how many sessions of a pool were asked to go.
func (y *family) goingAway(i int) int { return y.books().Members[i].Leaving }

// A short need of a pool that has sessions takes none from those who use theirs.
func TestBudgetLastingNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 8, 2, nil)
		release := checkOut(t, y.pools[0], 7)
		defer checkOut(t, y.pools[1], 1)()
		_, told := y.wait(1)
		time.Sleep(budget.HungerFor - time.Millisecond)
		if n := y.goingAway(0); n != 0 {
			t.Errorf("%d sessions were asked to go for a need of %v", n, budget.HungerFor)
		}
		time.Sleep(2 * budget.LookEvery)
		if n := y.goingAway(0); n != 1 {
			t.Errorf("%d sessions were asked to go; want 1", n)
		}
		release()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if *told == nil {
			t.Fatal("not served")
		}
		y.pools[1].Release(*told)
	})
}

// Of a pool that has no more than its part nothing is taken for a need that does
// not last, and only what is idle for one that does.
func TestBudgetSparesWhoWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 10, 2, nil)
		defer checkOut(t, y.pools[0], 5)()
		defer checkOut(t, y.pools[1], 4)()
		s := get(t, y.pools[1])
		hungry := func(d time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			g, err := y.pools[0].Acquire(ctx, Ask{Class: Normal})
			if err == nil {
				y.pools[0].Release(g.Session)
			}
			return err
		}
		var late *WaitError
		err := hungry(10 * time.Second)
		if !errors.As(err, &late) || late.Shared != 10 || !strings.Contains(err.Error(), "all 10 sessions of all pools taken") {
			t.Errorf("%v; want it to name the limit", err)
		}
		y.pools[1].Release(s)
		for range 10 {
			if err := hungry(budget.HungerFor - time.Millisecond); err == nil {
				t.Error("a session was taken at once")
			}
			time.Sleep(time.Second)
		}
		began := time.Now()
		if err := hungry(time.Minute); err != nil || time.Since(began) > budget.HungerFor+2*budget.LookEvery {
			t.Errorf("%v after %v; want the idle session", err, time.Since(began))
		}
		synctest.Wait()
		y.check()
		if got := y.sizes(); got[0] != 6 || got[1] != 4 {
			t.Errorf("sessions by pool %v; want 6 and 4", got)
		}
	})
}

// The minimum of a pool takes what is free, and nothing from others; and what
// others need, it gives.
func TestBudgetAndMinimum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 10, 2, func(i int, cfg *Config) { cfg.Min, cfg.MoveRate = 8*(1-i), 0 })
		time.Sleep(time.Minute)
		if got := y.sizes(); got[0] != 8 {
			t.Fatalf("sessions by pool %v; want the minimum of the first", got)
		}
		release := checkOut(t, y.pools[1], 6)
		time.Sleep(time.Minute)
		synctest.Wait()
		y.check()
		if got := y.sizes(); got[0] != 4 || got[1] != 6 {
			t.Errorf("sessions by pool %v; want 4 and 6", got)
		}
		release()
		time.Sleep(time.Minute)
		if got, st := y.sizes(), y.Stats(); got[0] != 4 || got[1] != 6 || st.Hungry != 1 {
			t.Errorf("sessions by pool %v, %+v; nobody asks for the minimum", got, st)
		}
		y.pools[0].Quiet(true)
		synctest.Wait()
		if st := y.Stats(); st.Hungry != 0 {
			t.Errorf("%+v; want nobody hungry for a minimum that is not kept", st)
		}
		y.pools[0].Quiet(false)
		time.Sleep(10 * time.Minute) // idle sessions expire
		synctest.Wait()
		y.check()
		if got := y.sizes(); got[0] != 8 || got[1] != 0 {
			t.Errorf("sessions by pool %v; want the minimum", got)
		}
	})
}

// A pool that is about to have a permit back itself takes none from others.
func TestBudgetWaitsForItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 6, 2, nil)
		checkOut(t, y.pools[0], 5)()
		for range 10 {
			y.pools[1].Discard(get(t, y.pools[1]))
		}
		s := get(t, y.pools[1])
		if st := y.Stats(); st.Yielded != 0 {
			t.Errorf("%+v; want nothing taken from the other pool", st)
		}
		y.servers[1].set(s.Node(), nil, blackHole)
		y.pools[1].Discard(s)
		began := time.Now()
		y.pools[1].Release(get(t, y.pools[1]))
		if took := time.Since(began); took > budget.LookEvery+10*time.Millisecond || y.Stats().Yielded != 1 {
			t.Errorf("%v, %+v; a session that is not deleted is in the way", took, y.Stats())
		}
	})
}

// A pool that only lacks its minimum comes after those with callers.
func TestBudgetServesCallersFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 2, 3, func(i int, cfg *Config) { cfg.Min, cfg.MoveRate = 1-min(i, 1), 0 })
		time.Sleep(time.Minute)
		held := []*Session{get(t, y.pools[1]), get(t, y.pools[1])}
		time.Sleep(time.Minute)
		if st := y.Stats(); st.Hungry != 1 {
			t.Fatalf("%+v; want one that lacks its minimum", st)
		}
		_, told := y.wait(1)
		y.pools[1].Discard(held[0])
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if *told == nil {
			t.Fatal("a minimum was opened while a caller waits")
		}
		y.pools[1].Release(*told)
		y.pools[1].Discard(held[1])
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		y.check()
		if got := y.sizes(); got[0] != 1 || got[1] != 1 {
			t.Errorf("sessions by pool %v", got)
		}
	})
}

// A node that joins gets its part also when the budget is used up: sessions move
// as those of a pool that is full.
func TestBudgetAndSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 12, 2, nil)
		for _, p := range y.pools {
			p.SetView(view(1))
			checkOut(t, p, 6)()
		}
		for _, p := range y.pools {
			p.SetView(view(1, 2))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		y.check()
		for i, f := range y.servers {
			if got := f.live(); got[0] != 3 || got[1] != 3 {
				t.Errorf("pool %d has %v sessions by node; want 3 and 3", i, got)
			}
			if st := y.pools[i].Stats(); st.Moving {
				t.Errorf("pool %d still moves sessions", i)
			}
		}
	})
}

// A pool takes from others no more sessions than it may open, however many callers it has, and none
// for callers that were served or went meanwhile.
func TestBudgetTakesNoMoreThanItMayUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 40, 2, nil)
		full := y.pools[1].Config()
		full.Max = 5
		y.pools[1].Reconfigure(full)
		checkOut(t, y.pools[0], 38)()
		defer checkOut(t, y.pools[1], 2)()
		time.Sleep(2 * budget.KeepFor) // they rest
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for range 30 {
			waiting.Go(func() {
				if g, err := y.pools[1].Acquire(ctx, Ask{Class: Normal}); err == nil {
					<-ctx.Done()
					y.pools[1].Release(g.Session)
				}
			})
		}
		time.Sleep(10 * budget.GoesIn)
		if got := y.sizes(); got[0] != 35 || got[1] != 5 {
			t.Errorf("sessions by pool %v; want 35 and 5", got)
		}
		cancel()
		waiting.Wait()
		y.check()
	})
}

// What a pool gives up for another one is of the node that has most beyond its share, also if all
// of its sessions are in use.
func TestYieldsWhatIsBeyondTheShare(t *testing.T) {
	for _, inUse := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			y := startFamily(t, 20, 2, func(_ int, c *Config) { c.MoveRate = 0 })
			from := y.pools[0]
			back := checkOut(t, from, 10)
			if !inUse {
				back()
			}
			from.SetView(weights(9, 1)) // node 2 should have one of its five
			from.yield(y.pools[1].member, true)
			if inUse {
				back()
			}
			synctest.Wait()
			time.Sleep(time.Second)
			if got := y.servers[0].live(); got[0] != 5 || got[1] != 4 {
				t.Errorf("in use %t: sessions by node %v; want 5 and 4", inUse, got)
			}
		})
	}
}
