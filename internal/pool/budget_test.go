package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// family is pools within one budget, each with a cluster of its own to be counted
// by.
type family struct {
	testing.TB
	*Budget
	pools    []*Pool
	servers  []*servers
	all      *tally
	leaving  bool     // the test is over
	visitors []*stake // of pools that came and went, while one at a time did
	lowered  bool     // a group may have more than it should, for a while
}

// startFamily runs pools until the test ends, which checks the books and that
// every permit came back.
func startFamily(tb testing.TB, limit, pools int, change func(i int, cfg *Config)) *family {
	tb.Helper()
	y := &family{TB: tb, Budget: NewBudget(limit), all: &tally{}}
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
		y.checkEnd()
	})
	for i := range pools {
		cfg := config(50)
		if change != nil {
			change(i, &cfg)
		}
		y.add(startWithin(tb, y.Budget, cfg, y.nodes(), view(1, 2)))
	}
	return y
}

func (y *family) add(p *Pool) { y.pools = append(y.pools, p) }

// nodes adds two nodes for another pool.
func (y *family) nodes() *servers {
	f := newServers(1, 2)
	f.all = y.all
	for id := range f.nodes {
		f.set(id, after(time.Millisecond, nil), after(time.Millisecond, nil))
	}
	y.servers = append(y.servers, f)
	return f
}

func (y *family) stakes() (all []*stake) {
	for _, p := range y.pools {
		all = append(all, p.stake)
	}
	return append(all, y.visitors...)
}

// check compares the books of the budget with those of its pools, while nothing
// moves.
func (y *family) check() {
	y.Helper()
	for _, p := range y.pools {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	sum, leaving, coming := y.free, 0, 0
	used := map[*group]int{}
	for i, k := range y.stakes() {
		sum += k.held
		used[k.group] += k.held
		if k.claim {
			sum++
			used[k.group]++
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
	y.all.mu.Lock()
	defer y.all.mu.Unlock()
	if y.all.most > y.max || y.all.now > y.max-y.free {
		y.Errorf("%d sessions at a time, limit %d; %d now, with %d permits", y.all.most, y.max, y.all.now, y.max-y.free)
	}
	if y.free > 0 && y.nextLocked() != nil {
		y.Errorf("%d permits are free while %d pools are hungry", y.free, len(y.queue))
	}
	for name, g := range y.group {
		if g.used != used[g] || g.used == 0 && g.pools == 0 {
			y.Errorf("group %q has %d permits; want %d; %d pools", name, g.used, used[g], g.pools)
		}
		if g.used > g.max && !y.lowered {
			y.Errorf("group %q has %d permits; at most %d", name, g.used, g.max)
		}
	}
}

// checkEnd checks that nothing is left once all pools are closed.
func (y *family) checkEnd() {
	y.Helper()
	y.check()
	if n := len(y.group); n != 0 {
		y.Errorf("after all pools are closed: %d groups", n)
	}
	if st := y.Stats(); st.Used != 0 || st.Pools != 0 || st.Hungry != 0 {
		y.Errorf("after all pools are closed: %+v", st)
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, k := range y.stakes() {
		if k.held != 0 || k.leaving != 0 || k.coming != 0 || k.claim {
			y.Errorf("after all pools are closed, one has %d permits, %d leaving, %d coming, claim %v", k.held, k.leaving, k.coming, k.claim)
		}
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
				g, err := y.pools[i].Acquire(ctx, Ask{Class: Normal})
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
		// Each in turn: closed, then opened; the last two from those who have no more.
		if took := time.Since(began); took > 5*2*time.Millisecond+2*(hungerFor+lookEvery) {
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
				if settled > uint64(tt.shed+lentAtFirst(tt.callers, tt.want)) {
					t.Errorf("%d sessions moved; want at most %d", settled, tt.shed)
				}
				wg.Wait()
				// Nothing moves any more; but what rests for a moment may be lent.
				lent := 0
				for i, n := range tt.callers {
					if n <= tt.want[i] && tt.limit < 30 {
						lent += 10 * 27
					}
				}
				if st := y.Stats(); st.Shed > settled+uint64(lent) {
					t.Errorf("%d more sessions moved though nothing changed", st.Shed-settled)
				}
			})
		})
	}
}

// lentAtFirst is how many sessions may move, in two seconds, to those who lack some
// from pools whose sessions rest for a moment.
func lentAtFirst(callers, want []int) (n int) {
	for i := range callers {
		if callers[i] <= want[i] {
			n += 20
		}
	}
	return n
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
	for waiting := range 3 {
		t.Run(fmt.Sprint(1+waiting, " callers"), func(t *testing.T) { notForOneSession(t, 1+waiting) })
	}
}

func notForOneSession(t *testing.T, waiting int) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 4, 2, nil)
		release := lease(t, y.pools[0], 2)
		rest := lease(t, y.pools[0], 2)
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
		time.Sleep(shedEvery / 2)
		if n := y.pools[0].stake.goingAway(); n != 1 {
			t.Errorf("%d sessions were asked to go at once; want 1", n)
		}
		time.Sleep(3 * shedEvery)
		synctest.Wait()
		y.check()
		// One a second, until both would have as many.
		if n := y.pools[0].stake.goingAway(); n != 3 {
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

// goingAway returns how many sessions of the pool were asked to go.
func (k *stake) goingAway() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leaving
}

// A short need of a pool that has sessions takes none from those who use theirs.
func TestBudgetLastingNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 8, 2, nil)
		release := lease(t, y.pools[0], 7)
		defer lease(t, y.pools[1], 1)()
		_, told := y.wait(1)
		time.Sleep(hungerFor - time.Millisecond)
		if n := y.pools[0].stake.goingAway(); n != 0 {
			t.Errorf("%d sessions were asked to go for a need of %v", n, hungerFor)
		}
		time.Sleep(2 * lookEvery)
		if n := y.pools[0].stake.goingAway(); n != 1 {
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
		defer lease(t, y.pools[0], 5)()
		defer lease(t, y.pools[1], 4)()
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
			if err := hungry(hungerFor - time.Millisecond); err == nil {
				t.Error("a session was taken at once")
			}
			time.Sleep(time.Second)
		}
		began := time.Now()
		if err := hungry(time.Minute); err != nil || time.Since(began) > hungerFor+2*lookEvery {
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
		release := lease(t, y.pools[1], 6)
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
		time.Sleep(10 * time.Minute) // those that rest expire
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
		lease(t, y.pools[0], 5)()
		for range 10 {
			y.pools[1].Discard(get(t, y.pools[1]))
		}
		s := get(t, y.pools[1])
		if st := y.Stats(); st.Shed != 0 {
			t.Errorf("%+v; want nothing taken from the other pool", st)
		}
		y.servers[1].set(s.Node(), nil, blackHole)
		y.pools[1].Discard(s)
		began := time.Now()
		y.pools[1].Release(get(t, y.pools[1]))
		if took := time.Since(began); took > lookEvery+10*time.Millisecond || y.Stats().Shed != 1 {
			t.Errorf("%v, %+v; a session that is not deleted is in the way", took, y.Stats())
		}
	})
}

// Who waits for the minimum alone comes after those with callers.
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

func get(t *testing.T, p *Pool) *Session {
	t.Helper()
	g, err := p.Acquire(t.Context(), Ask{Class: Normal})
	if err != nil {
		t.Fatal(err)
	}
	return g.Session
}

// wait puts a caller in the line of a pool, and says where what he gets will be.
// What he gets after the test is over he gives back.
func (y *family) wait(i int) (w *Waiter, told **Session) {
	y.Helper()
	return y.waitFor(i, nil)
}

// waitFor is wait for a caller who may be told an error.
func (y *family) waitFor(i int, want error) (w *Waiter, told **Session) {
	y.Helper()
	told = new(*Session)
	w = NewWaiter(func(g Grant, err error) {
		switch {
		case err != nil && !y.leaving && !errors.Is(err, want):
			y.Error(err)
		case err == nil && y.leaving:
			y.pools[i].Release(g.Session)
		default:
			*told = g.Session
		}
	})
	if g, err := y.pools[i].Wait(w, Ask{Class: Normal}); g.Session != nil || err != nil {
		y.Fatalf("Wait: %v, %v; want to wait", g, err)
	}
	return w, told
}

// The steps of a hand-over between pools, played one by one: neither the pools nor
// the budget run by themselves. The first pool has both sessions.
func TestBudgetHandOver(t *testing.T) {
	type stage struct {
		*family
		held []*Session
	}
	// free has the first pool close a session.
	free := func(y *stage) {
		y.pools[0].Discard(y.held[0])
		y.held = y.held[1:]
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
	}
	// run lets a pool do what it is told to by the budget, and checks whether that
	// was anything.
	run := func(y *stage, i int, told bool) {
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
	served := func(y *stage, i int, got **Session) {
		y.Helper()
		if *got == nil {
			y.Errorf("pool %d was not served", i)
			return
		}
		y.pools[i].Release(*got)
	}
	tests := map[string]func(t *testing.T, y *stage){
		// The permit is free, and its pool has not looked yet, when others want one.
		"nobody snatches what is set aside": func(t *testing.T, y *stage) {
			_, first := y.wait(1)
			free(y)
			_, second := y.wait(2)
			w, _ := y.wait(0)
			time.Sleep(10 * time.Millisecond)
			run(y, 0, false)
			run(y, 2, false)
			if got := y.sizes(); got[0] != 1 || got[1]+got[2] != 0 {
				t.Errorf("sessions by pool %v; somebody snatched the permit of another", got)
			}
			run(y, 1, true)
			served(y, 1, first)
			free(y)
			run(y, 2, true)
			served(y, 2, second)
			y.pools[0].Cancel(w)
		},
		"first come, first served": func(t *testing.T, y *stage) {
			_, first := y.wait(2)
			_, second := y.wait(1)
			_, third := y.wait(1) // its pool stands there once
			free(y)
			run(y, 1, false)
			run(y, 2, true)
			served(y, 2, first)
			free(y)
			run(y, 1, true)
			served(y, 1, second)
			served(y, 1, third)
			if st := y.Stats(); st.Hungry != 0 {
				t.Errorf("%+v", st)
			}
		},
		"who has fewer goes first": func(t *testing.T, y *stage) {
			_, second := y.wait(0)
			_, first := y.wait(1)
			free(y)
			run(y, 0, false)
			run(y, 1, true)
			served(y, 1, first)
			served(y, 0, func() **Session { free(y); run(y, 0, true); return second }())
		},
		"who wants no more is not in the way": func(t *testing.T, y *stage) {
			w, _ := y.wait(1)
			_, told := y.wait(2)
			if !y.pools[1].Cancel(w) || y.Stats().Hungry != 1 {
				t.Errorf("%+v after the caller left; want one hungry pool", y.Stats())
			}
			free(y)
			run(y, 1, false)
			run(y, 2, true)
			served(y, 2, told)
		},
		// A session that was promised is laid down, and who did so has not looked after it
		// yet, when another pool asks for one.
		"a session is promised once": func(t *testing.T, y *stage) {
			_, first := y.wait(1)
			y.look(time.Now())
			s := y.held[slices.IndexFunc(y.held, func(s *Session) bool { return !s.Valid() })]
			y.held = slices.DeleteFunc(y.held, func(h *Session) bool { return h == s })
			endLease(s)
			s.node.idle.push(&y.pools[0].cells, s.index)
			w, _ := y.wait(2)
			y.look(time.Now())
			y.pools[0].lookAfter(s)
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			run(y, 1, true)
			served(y, 1, first)
			if st := y.Stats(); st.Shed != 1 {
				t.Errorf("%+v; want one session shed", st)
			}
			for i, k := range y.stakes() {
				if k.leaving != 0 || k.coming != 0 {
					t.Errorf("pool %d: %d leaving, %d coming; want none: what was promised is gone", i, k.leaving, k.coming)
				}
			}
			y.pools[2].Cancel(w)
		},
		"nothing is shed for who wants no more": func(t *testing.T, y *stage) {
			w, _ := y.wait(1)
			y.pools[1].Cancel(w)
			if y.look(time.Now()) || y.Stats().Shed != 0 {
				t.Errorf("%+v", y.Stats())
			}
		},
		"one for each who is hungry": func(t *testing.T, y *stage) {
			y.wait(1)
			y.wait(1)
			for range 3 {
				if !y.look(time.Now()) || y.Stats().Shed != 1 {
					t.Errorf("%+v", y.Stats())
				}
			}
		},
		"who has none gets the turn of another": func(t *testing.T, y *stage) {
			free(y)
			y.pools[1].Release(get(t, y.pools[1])) // one each
			g, err := y.pools[1].Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			w, _ := y.wait(1) // nobody has more
			y.look(time.Now())
			if st := y.Stats(); st.Shed != 0 {
				t.Errorf("%+v; want nothing taken from a pool that has no more", st)
			}
			_, told := y.wait(2)
			time.Sleep(turnFor)
			y.look(time.Now())
			if st := y.Stats(); st.Shed != 1 {
				t.Errorf("%+v; want its turn for who has none", st)
			}
			y.pools[1].Cancel(w)
			free(y)
			run(y, 2, true)
			served(y, 2, told)
			y.pools[1].Release(g.Session)
		},
		// The caller leaves after the permit was set aside.
		"a permit that is not wanted goes on": func(t *testing.T, y *stage) {
			w, _ := y.wait(1)
			_, told := y.wait(2)
			free(y)
			y.pools[1].Cancel(w)
			run(y, 2, true)
			served(y, 2, told)
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
			free(y)
			run(y, 2, true)
			served(y, 2, told)
		},
		"a pool closes with a permit set aside": func(t *testing.T, y *stage) {
			y.waitFor(1, ErrClosed)
			_, told := y.wait(2)
			free(y)
			if err := y.pools[1].Close(t.Context()); err != nil {
				t.Error(err)
			}
			run(y, 2, true)
			served(y, 2, told)
		},
		"a pool whose nodes fail is not in the way": func(t *testing.T, y *stage) {
			refuse := after(time.Millisecond, errRefused)
			y.servers[1].set(1, refuse, nil)
			y.servers[1].set(2, refuse, nil)
			w, _ := y.wait(1)
			_, told := y.wait(2)
			free(y)
			run(y, 1, true) // then it wants to try the other node
			run(y, 2, true)
			served(y, 2, told)
			y.pools[1].Cancel(w)
		},
	}
	for name, play := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := &stage{family: &family{TB: t, Budget: NewBudget(2), all: &tally{}}}
				for range 3 {
					y.add(New(config(50), y.nodes(), nil).Within(y.Budget))
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

// claimed returns the permits that are set aside for the pool.
func (k *stake) claimed() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.claim {
		return 1
	}
	return 0
}

// A node that joins gets its part also when the budget is used up: sessions move
// as those of a pool that is full.
func TestBudgetAndSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 12, 2, nil)
		for _, p := range y.pools {
			p.SetView(view(1))
			lease(t, p, 6)()
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

// TestBudgetWalk drives several pools within one budget through random walks,
// while pools come and go, and compares the books after every step. In the end
// everybody who waits is served.
func TestBudgetWalk(t *testing.T) {
	for seed := range (*walks + 1) / 2 { // each is several
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 2))
			y := &family{TB: t, Budget: NewBudget(1 + r.IntN(12)), all: &tally{}, lowered: true}
			ctx, cancel := context.WithCancel(t.Context())
			stopped := make(chan error)
			go func() { stopped <- y.Run(ctx) }()
			var ws []*walk
			joined := 0
			join := func() {
				w := newWalk(t, r.Uint64(), y.Budget, []string{"", "a", "b", "a"}[joined%4], y.all)
				joined++
				ws = append(ws, w)
				y.pools = append(y.pools, w.p)
			}
			for range 2 + r.IntN(4) {
				join()
			}
			look := func(what string, step int) {
				synctest.Wait()
				for _, w := range ws {
					w.listen()
					w.check()
					w.together = false
				}
				y.check()
				for _, k := range y.stakes() {
					if k.claimed() > 0 {
						t.Error("a permit is set aside and its pool does nothing")
					}
				}
				if t.Failed() {
					t.Fatalf("seed %d, step %d (%s)", seed, step, what)
				}
			}
			for step := range 400 {
				i := r.IntN(len(ws))
				what := "close and join"
				if r.IntN(100) < 2 {
					ws[i].finish()
					ws = append(ws[:i], ws[i+1:]...)
					join()
				} else if r.IntN(100) < 20 {
					what = y.disturb(t, r, ws)
				} else {
					ws[i].advance()
					what = ws[i].last
				}
				look(what, step)
			}
			// The nodes are well, and who gets a session gives it back soon.
			for _, w := range ws {
				w.paused = false
				w.p.Pause(false)
				for id := range w.f.nodes {
					w.f.set(id, after(time.Millisecond, nil), after(time.Millisecond, nil))
				}
				w.p.SetView(view(1, 2, 3, 4))
				w.uses, w.opens = map[cluster.NodeID]cluster.Use{1: 0, 2: 0, 3: 0, 4: 0}, nil
			}
			for step := range 1000 {
				for _, w := range ws {
					for s := w.drop(); s != nil; s = w.drop() {
						w.p.Release(s)
					}
				}
				time.Sleep(10 * time.Millisecond)
				look("the end", step)
			}
			for i, w := range ws {
				for c, line := range w.line {
					if len(line) > 0 {
						t.Errorf("seed %d: %d callers of class %v still wait in pool %d of %d, limit %d", seed, len(line), Class(c), i, len(ws), y.max)
					}
				}
				w.finish()
			}
			y.checkEnd()
			cancel()
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBudgetStress has the callers of several pools do everything at once, in real
// time. Nobody waits for ever.
func TestBudgetStress(t *testing.T) {
	const pools, limit, workers, turns = 5, 7, 8, 150
	y := startFamily(t, limit, pools, func(i int, cfg *Config) {
		cfg.Max = 2 + i
		cfg.Idle, cfg.Age = 100*time.Millisecond, 200*time.Millisecond
	})
	for _, f := range y.servers {
		f.set(1, nil, nil)
		f.set(2, nil, nil)
	}
	var wg sync.WaitGroup
	for i := range pools * workers {
		wg.Go(func() {
			p, r := y.pools[i%pools], rand.New(rand.NewPCG(3, uint64(i)))
			for range turns {
				ctx, cancel := t.Context(), func() {}
				if r.IntN(3) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(500))*time.Microsecond)
				}
				g, err := p.Acquire(ctx, Ask{Class: Class(r.IntN(ClassSize))})
				cancel()
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					continue
				}
				for range r.IntN(3) {
					runtime.Gosched()
				}
				if r.IntN(50) == 0 {
					p.Discard(g.Session)
				} else {
					p.Release(g.Session)
				}
				y.Stats()
			}
		})
	}
	wg.Wait()
	y.all.mu.Lock()
	defer y.all.mu.Unlock()
	if y.all.most > limit {
		t.Errorf("%d sessions at a time; limit %d", y.all.most, limit)
	}
}

// Asks, releases, deletions and the ends of pools meet in every order; at rest nothing is
// promised any more.
func TestBudgetPromises(t *testing.T) {
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			const pools, limit, workers, turns = 3, 5, 12, 2000
			y := startFamily(t, limit, pools, nil)
			for _, f := range y.servers { // nothing waits for time, which stands still while looks go on
				f.set(1, nil, nil)
				f.set(2, nil, nil)
			}
			use := func(p *Pool, r *rand.Rand) {
				g, err := p.Acquire(t.Context(), Ask{Class: Normal})
				if err != nil {
					t.Error(err)
					return
				}
				for range r.IntN(4) {
					runtime.Gosched()
				}
				switch r.IntN(20) {
				case 0:
					p.Discard(g.Session)
				case 1:
					p.Kill(g.Session, "by an operator")
					fallthrough
				default:
					p.Release(g.Session)
				}
			}
			var wg, looks sync.WaitGroup
			done := make(chan struct{})
			looks.Go(func() {
				// Every need lasts, and every turn is over.
				for now := time.Now().Add(time.Hour); ; now = now.Add(2 * shedEvery) {
					select {
					case <-done:
						return
					default:
						y.look(now)
						runtime.Gosched()
					}
				}
			})
			for i := range workers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(5, uint64(i)))
					for range turns {
						use(y.pools[i%pools], r)
						for range r.IntN(8) { // sometimes nobody waits, and sessions are idle
							runtime.Gosched()
						}
					}
				})
			}
			wg.Go(func() { // one that comes and goes
				r := rand.New(rand.NewPCG(6, 0))
				for range turns / 100 {
					p := New(config(3), newServers(1, 2), nil).Within(y.Budget)
					p.SetView(view(1, 2))
					ctx, end := context.WithCancel(t.Context())
					var run sync.WaitGroup
					run.Go(func() { _ = p.Run(ctx) })
					for range 3 {
						use(p, r)
					}
					if err := p.Close(t.Context()); err != nil {
						t.Error(err)
					}
					end()
					run.Wait()
				}
			})
			wg.Wait()
			close(done)
			looks.Wait()
			synctest.Wait()
			y.check()
			if st := y.Stats(); st.Shed == 0 {
				t.Error("no session was shed: the test tests nothing")
			}
			for i, k := range y.stakes() {
				if k.leaving != 0 || k.coming != 0 {
					t.Errorf("pool %d: %d leaving, %d coming; want none at rest", i, k.leaving, k.coming)
				}
			}
		})
	}
}

// A pool takes from others no more sessions than it may open, however many callers it has, and none
// for callers that were served or went meanwhile.
func TestBudgetTakesNoMoreThanItMayUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startFamily(t, 40, 2, nil)
		full := y.pools[1].Config()
		full.Max = 5
		y.pools[1].Reconfigure(full)
		lease(t, y.pools[0], 38)()
		defer lease(t, y.pools[1], 2)()
		time.Sleep(2 * turnFor) // they rest
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
		time.Sleep(10 * shedEvery)
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
			back := lease(t, from, 10)
			if !inUse {
				back()
			}
			from.SetView(weights(9, 1)) // node 2 should have one of its five
			from.yield(y.pools[1].stake, true)
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

// With many hungry pools a look of the budget compares a bounded number of pools, and all of them
// get their turns.
func TestManyHungryPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pools, compared = 400, 11_000
		y := &family{TB: t, Budget: NewBudget(pools), all: &tally{}}
		var stop sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		var served atomic.Int32
		var held []func()
		for i := range 2 * pools {
			p := New(config(5), y.nodes(), nil).Within(y.Budget)
			p.SetView(view(1))
			stop.Go(func() { _ = p.Run(ctx) })
			y.add(p)
			if i < pools {
				held = append(held, lease(t, p, 1))
				continue
			}
			w := NewWaiter(func(g Grant, err error) {
				if err == nil {
					served.Add(1)
					go p.Release(g.Session)
				}
			})
			if _, err := p.Wait(w, Ask{Class: Normal}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for look, now := 0, time.Now().Add(time.Hour); look < 2*pools*2*pools/compared+1; look++ {
			before := y.seen
			y.look(now)
			synctest.Wait()
			if n := y.seen - before; n > compared {
				t.Errorf("a look compared %d pools; want at most %d", n, compared)
			}
		}
		asked := 0
		for _, k := range y.stakes()[pools:] {
			if k.coming > 0 {
				asked++
			}
		}
		if asked != pools {
			t.Errorf("for %d of %d hungry pools another one was asked", asked, pools)
		}
		for _, back := range held {
			back()
		}
		time.Sleep(time.Second)
		if n := served.Load(); n != pools {
			t.Errorf("%d of %d callers were served", n, pools)
		}
		for _, p := range y.pools {
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		cancel()
		stop.Wait()
		y.checkEnd()
	})
}
