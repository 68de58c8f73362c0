package pool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
)

// family is pools within one budget, each with a cluster of its own to be counted
// by.
type family struct {
	testing.TB
	*Budget
	pools    []*Pool
	servers  []*servers
	all      *tally
	leaving  bool    // the test is over
	visitors []*Pool // pools that came and went, while one at a time did
	lowered  bool    // a group may have more than it should, for a while
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

// books returns the state of the budget and of all pools.
func (y *family) books() budget.Audit {
	var members []*budget.Member
	for _, p := range slices.Concat(y.pools, y.visitors) {
		members = append(members, p.member)
	}
	return y.Audit(members...)
}

// weightOne is the weight of a pool that has no other.
func weightOne() int { return 1 }

// check compares the books of the budget with those of its pools, while nothing
// moves.
func (y *family) check() {
	y.Helper()
	for _, p := range y.pools {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	books := y.books()
	sum, leaving, coming := books.Free, 0, 0
	used := map[string]int{}
	for i, p := range slices.Concat(y.pools, y.visitors) {
		k := books.Members[i]
		sum += k.Held
		used[k.Group] += k.Held
		if k.Reserved {
			sum++
			used[k.Group]++
		}
		leaving += k.Leaving
		coming += k.Coming
		if k.Held != p.size || k.Leaving < 0 || k.Leaving > k.Held || k.Coming < 0 {
			y.Errorf("pool %d has %d permits for %d sessions, %d leaving, %d coming", i, k.Held, p.size, k.Leaving, k.Coming)
		}
		if k.Queued && k.Reserved || k.Queued != k.InQueue || (k.Queued || k.Reserved) != p.member.Hungry() {
			y.Errorf("pool %d: queued %v, claim %v, in the queue %v, hungry %v", i, k.Queued, k.Reserved, k.InQueue, p.member.Hungry())
		}
		if waiting, ahead := p.wantLocked(); k.Queued && max(waiting, ahead) <= 0 {
			y.Errorf("pool %d is in the queue and wants nothing", i)
		}
	}
	if sum != books.Max || leaving != coming {
		y.Errorf("%d permits; want %d; %d leaving, %d coming", sum, books.Max, leaving, coming)
	}
	y.all.mu.Lock()
	defer y.all.mu.Unlock()
	if y.all.most > books.Max || y.all.now > books.Max-books.Free {
		y.Errorf("%d sessions at a time, limit %d; %d now, with %d permits", y.all.most, books.Max, y.all.now, books.Max-books.Free)
	}
	if books.Free > 0 && books.NextWaits {
		y.Errorf("%d permits are free while %d pools are hungry", books.Free, y.Stats().Hungry)
	}
	for _, g := range books.Groups {
		if g.Used != used[g.Name] || g.Used == 0 && g.Pools == 0 {
			y.Errorf("group %q has %d permits; want %d; %d pools", g.Name, g.Used, used[g.Name], g.Pools)
		}
		if g.Used > g.Max && !y.lowered {
			y.Errorf("group %q has %d permits; at most %d", g.Name, g.Used, g.Max)
		}
	}
}

// checkEnd checks that nothing is left once all pools are closed.
func (y *family) checkEnd() {
	y.Helper()
	y.check()
	books := y.books()
	if n := len(books.Groups); n != 0 {
		y.Errorf("after all pools are closed: %d groups", n)
	}
	if st := y.Stats(); st.Used != 0 || st.Pools != 0 || st.Hungry != 0 {
		y.Errorf("after all pools are closed: %+v", st)
	}
	for _, k := range books.Members {
		if k.Held != 0 || k.Leaving != 0 || k.Coming != 0 || k.Reserved {
			y.Errorf("after all pools are closed, one has %d permits, %d leaving, %d coming, claim %v", k.Held,
				k.Leaving, k.Coming, k.Reserved)
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

func get(t *testing.T, p *Pool) *Session {
	t.Helper()
	g, err := p.Acquire(t.Context(), Ask{Class: Normal})
	if err != nil {
		t.Fatal(err)
	}
	return g.Session
}

// wait puts a caller in the queue of a pool, and says where its session will be.
// A session that comes after the test is over is given back.
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
