package pool

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// family is pools within one budget, each with a cluster of its own to be counted
// by.
type family struct {
	testing.TB
	*Budget
	pools   []*Pool
	servers []*servers
}

// startFamily runs pools until the test ends, which checks the books and that
// every permit came back.
func startFamily(tb testing.TB, limit, pools int, change func(i int, cfg *Config)) *family {
	tb.Helper()
	y := &family{TB: tb, Budget: NewBudget(limit)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := y.Run(ctx); err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(func() { // after the pools are closed
		cancel()
		wg.Wait()
		y.check()
		if st := y.Stats(); st.Used != 0 || st.Pools != 0 || st.Hungry != 0 {
			tb.Errorf("after all pools are closed: %+v", st)
		}
		for _, k := range y.stakes() {
			if k.held != 0 || k.leaving != 0 || k.coming != 0 || k.claim {
				tb.Errorf("after all pools are closed, one has %d permits, %d leaving, %d coming, claim %v", k.held, k.leaving, k.coming, k.claim)
			}
		}
	})
	for i := range pools {
		cfg := config(50)
		if change != nil {
			change(i, &cfg)
		}
		f := newServers(1, 2)
		f.set(1, after(time.Millisecond, nil), after(time.Millisecond, nil))
		f.set(2, after(time.Millisecond, nil), after(time.Millisecond, nil))
		y.servers = append(y.servers, f)
		y.pools = append(y.pools, startWithin(tb, y.Budget, cfg, f, view(1, 2)))
	}
	return y
}

func (y *family) stakes() (all []*stake) {
	for _, p := range y.pools {
		all = append(all, p.stake)
	}
	return all
}

// check compares the books of the budget with those of its pools, while nothing
// moves.
func (y *family) check() {
	y.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	sum, leaving, coming := y.free, 0, 0
	for i, k := range y.stakes() {
		sum += k.held
		if k.claim {
			sum++
		}
		leaving += k.leaving
		coming += k.coming
		if k.held != k.pool.size || k.leaving < 0 || k.leaving > k.held || k.coming < 0 {
			y.Errorf("pool %d has %d permits for %d sessions, %d leaving, %d coming", i, k.held, k.pool.size, k.leaving, k.coming)
		}
		if k.queued && k.claim || k.queued != slices.Contains(y.queue, k) || (k.queued || k.claim) != k.pool.hungry {
			y.Errorf("pool %d: queued %v, claim %v, in the queue %v, hungry %v", i, k.queued, k.claim, slices.Contains(y.queue, k), k.pool.hungry)
		}
		if inLine, ahead := k.pool.wantLocked(); k.queued && max(inLine, ahead) <= 0 {
			y.Errorf("pool %d is in the queue and wants nothing", i)
		}
	}
	if sum != y.max || leaving != coming {
		y.Errorf("%d permits; want %d; %d leaving, %d coming", sum, y.max, leaving, coming)
	}
	if y.free > 0 && len(y.queue) > 0 {
		y.Errorf("%d permits are free while %d pools are hungry", y.free, len(y.queue))
	}
}

// sizes returns the sessions of each pool.
func (y *family) sizes() (sizes []int) {
	for _, f := range y.servers {
		sizes = append(sizes, f.sum())
	}
	return sizes
}

// load keeps callers busy with a pool: each takes a session, holds it for a while
// and comes again, until the time is over. It returns how often each was served.
func (y *family) load(wg *sync.WaitGroup, i, callers int, hold, until time.Duration) *[]time.Time {
	ctx, cancel := context.WithTimeout(context.Background(), until)
	var mu sync.Mutex
	served := new([]time.Time)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for {
				g, err := y.pools[i].Acquire(ctx, Normal)
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						y.Error(err)
					}
					return
				}
				mu.Lock()
				*served = append(*served, time.Now())
				mu.Unlock()
				time.Sleep(hold)
				y.pools[i].Release(g.Session)
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	wg.Go(func() {
		all.Wait()
		cancel()
	})
	return served
}

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
				if st := y.Stats(); st.Shed != 0 || st.Used != tt.want {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

func TestBudgetTakesWhatIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 10, 3, nil)
		lease(t, y.pools[0], 6)()
		lease(t, y.pools[1], 4)()
		began := time.Now()
		defer lease(t, y.pools[2], 5)()
		// Each in turn: closed, then opened; the last one from those who have no more.
		if took := time.Since(began); took > 5*2*time.Millisecond+restFor {
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

// One pool has every session and a line that never ends; the others get their
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
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := startFamily(t, tt.limit, len(tt.callers), nil)
				var wg sync.WaitGroup
				y.load(&wg, 0, tt.callers[0], 7*time.Millisecond, 30*time.Second)
				time.Sleep(time.Second)
				for i := 1; i < len(tt.callers); i++ {
					y.load(&wg, i, tt.callers[i], 7*time.Millisecond, 29*time.Second)
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
				settled := y.Stats().Shed
				if settled > uint64(tt.shed) {
					t.Errorf("%d sessions moved; want at most %d", settled, tt.shed)
				}
				wg.Wait()
				if st := y.Stats(); st.Shed != settled {
					t.Errorf("%d more sessions moved though nothing changed", st.Shed-settled)
				}
				most := 0
				for _, f := range y.servers {
					most += f.most
				}
				if len(tt.callers) == 1 && most > tt.limit {
					t.Errorf("%d sessions at a time; limit %d", most, tt.limit)
				}
			})
		})
	}
}

// There are more pools than permits and all lines never end: they take turns.
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
			if longest > 4*turnFor {
				t.Errorf("pool %d had nothing for %v", i, longest)
			}
		}
		// And nothing more than that: each holds it for its second.
		if st := y.Stats(); st.Shed > limit*60+pools {
			t.Errorf("%d sessions moved in a minute", st.Shed)
		}
	})
}

// A session that is held for long does not keep another pool from its part.
func TestBudgetDoesNotWaitForOneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 4, 2, nil)
		release := lease(t, y.pools[0], 2)
		rest := lease(t, y.pools[0], 2)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		got := make(chan *Session)
		go func() {
			g, err := y.pools[1].Acquire(ctx, Normal)
			if err != nil {
				t.Error(err)
			}
			got <- g.Session
		}()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		y.check()
		// One a second, until both would have as many.
		y.mu.Lock()
		if k := y.pools[0].stake; k.leaving != 3 {
			t.Errorf("%d sessions were asked to go; want 3", k.leaving)
		}
		y.mu.Unlock()
		if st := y.Stats(); st.Used != 4 || st.Hungry != 1 || y.servers[0].sum() != 4 {
			t.Errorf("%+v, %d sessions; a session was taken from its holder", st, y.servers[0].sum())
		}
		rest()
		y.pools[1].Release(<-got)
		release()
		synctest.Wait()
		y.check()
	})
}

// Of a pool that has no more than its part, nothing is taken while it works.
func TestBudgetSparesWhoWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 10, 2, nil)
		defer lease(t, y.pools[0], 5)()
		var held []*Session
		for range 5 {
			g, err := y.pools[1].Acquire(t.Context(), Normal)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, g.Session)
		}
		// Each of its sessions rests for a moment now and then.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		denied := make(chan error)
		go func() {
			_, err := y.pools[0].Acquire(ctx, Normal)
			denied <- err
		}()
		for range 40 {
			y.pools[1].Release(held[0])
			time.Sleep(100 * time.Millisecond)
			g, err := y.pools[1].Acquire(t.Context(), Normal)
			if err != nil || g.Created {
				t.Fatalf("%+v, %v; want the session it had", g, err)
			}
			held[0] = g.Session
			time.Sleep(30 * time.Millisecond)
		}
		var late *WaitError
		err := <-denied
		if !errors.As(err, &late) || late.Shared != 10 || !strings.Contains(err.Error(), "all 10 sessions of all pools taken") {
			t.Errorf("%v; want it to name the limit", err)
		}
		// Then one rests for good.
		y.pools[1].Release(held[0])
		began := time.Now()
		g, err := y.pools[0].Acquire(t.Context(), Normal)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < restFor || took > 2*restFor {
			t.Errorf("it was taken after %v; want about %v", took, restFor)
		}
		y.pools[0].Release(g.Session)
		for _, s := range held[1:] {
			y.pools[1].Release(s)
		}
		synctest.Wait()
		y.check()
	})
}
