package pool

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// TestBudgetWalk drives several pools within one budget through random walks,
// while pools come and go, and compares the books after every step. In the end
// every caller that waits is served.
func TestBudgetWalk(t *testing.T) {
	for seed := range (short.Of(*walks, 6) + 1) / 2 { // each is several
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 2))
			y := &walkFamily{family: &family{TB: t, Budget: NewBudget(1 + r.IntN(12)), all: &tally{}, lowered: true},
				T: t, r: r, seed: seed}
			ctx, cancel := context.WithCancel(t.Context())
			stopped := make(chan error)
			go func() { stopped <- y.Run(ctx) }()
			for range 2 + r.IntN(4) {
				y.join()
			}
			for step := range 400 {
				y.look(y.step(), step)
			}
			y.peace()
			y.checkEnd()
			cancel()
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// walkFamily is several walks within one budget.
type walkFamily struct {
	*family
	T      *testing.T
	r      *rand.Rand
	seed   int
	ws     []*walk
	joined int
}

// join adds a walk with a pool of its own.
func (y *walkFamily) join() {
	w := newWalk(y.T, y.r.Uint64(), y.Budget, []string{"", "a", "b", "a"}[y.joined%4], y.all)
	y.joined++
	y.ws = append(y.ws, w)
	y.pools = append(y.pools, w.p)
}

// step does something with one pool or several. It returns what.
func (y *walkFamily) step() string {
	i := y.r.IntN(len(y.ws))
	switch {
	case y.r.IntN(100) < 2:
		y.ws[i].finish()
		y.ws = append(y.ws[:i], y.ws[i+1:]...)
		y.join()
		return "close and join"
	case y.r.IntN(100) < 20:
		return y.disturb(y.T, y.r, y.ws)
	}
	y.ws[i].advance()
	return y.ws[i].last
}

// look compares the books after a step.
func (y *walkFamily) look(what string, step int) {
	synctest.Wait()
	for _, w := range y.ws {
		w.listen()
		w.check()
		w.together = false
	}
	y.check()
	for _, k := range y.books().Members {
		if k.Reserved {
			y.T.Error("a permit is set aside and its pool does nothing")
		}
	}
	if y.T.Failed() {
		y.T.Fatalf("seed %d, step %d (%s)", y.seed, step, what)
	}
}

// peace ends the walks: the nodes are well, and callers that get a session give it back soon.
func (y *walkFamily) peace() {
	for _, w := range y.ws {
		w.paused = false
		w.p.Pause(false)
		for id := range w.f.nodes {
			w.f.set(id, after(time.Millisecond, nil), after(time.Millisecond, nil))
		}
		w.p.SetView(view(1, 2, 3, 4))
		w.uses, w.opens = map[cluster.NodeID]cluster.Use{1: 0, 2: 0, 3: 0, 4: 0}, nil
	}
	for step := range 1000 {
		for _, w := range y.ws {
			for s := w.drop(); s != nil; s = w.drop() {
				w.p.Release(s)
			}
		}
		time.Sleep(10 * time.Millisecond)
		y.look("the end", step)
	}
	for i, w := range y.ws {
		for c, line := range w.waiting {
			if len(line) > 0 {
				y.T.Errorf("seed %d: %d callers of class %v still wait in pool %d of %d, limit %d", y.seed, len(line),
					Class(c), i, len(y.ws), y.books().Max)
			}
		}
		w.finish()
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

// Asks, releases, deletions and the ends of pools meet in every order. In the end no session is
// promised any more.
func TestBudgetPromises(t *testing.T) {
	for range short.Of(5, 1) {
		synctest.Test(t, func(t *testing.T) {
			const pools, limit, workers, turns = 3, 5, 12, 2000
			y := startFamily(t, limit, pools, nil)
			for _, f := range y.servers { // nothing waits for time, which stands still while looks go on
				f.set(1, nil, nil)
				f.set(2, nil, nil)
			}
			var wg, looks sync.WaitGroup
			done := make(chan struct{})
			looks.Go(func() {
				// Every need lasts, and every pool has kept its sessions for long enough.
				for now := time.Now().Add(time.Hour); ; now = now.Add(2 * budget.GoesIn) {
					select {
					case <-done:
						return
					default:
						y.Look(now)
						runtime.Gosched()
					}
				}
			})
			for i := range workers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(5, uint64(i)))
					for range turns {
						useOrEnd(t, y.pools[i%pools], r)
						for range r.IntN(8) { // sometimes no caller waits, and sessions are idle
							runtime.Gosched()
						}
					}
				})
			}
			wg.Go(func() { // a pool that comes and goes
				r := rand.New(rand.NewPCG(6, 0))
				for range turns / 100 {
					y.comeAndGo(t, func(p *Pool) {
						for range 3 {
							useOrEnd(t, p, r)
						}
					})
				}
			})
			wg.Wait()
			close(done)
			looks.Wait()
			synctest.Wait()
			y.check()
			if st := y.Stats(); st.Yielded == 0 {
				t.Error("no session was yielded: the test tests nothing")
			}
			for i, k := range y.books().Members {
				if k.Leaving != 0 || k.Coming != 0 {
					t.Errorf("pool %d: %d leaving, %d coming; want none in the end", i, k.Leaving, k.Coming)
				}
			}
		})
	}
}

// useOrEnd checks a session out and gives it back, or ends it.
func useOrEnd(t *testing.T, p *Pool, r *rand.Rand) {
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

// comeAndGo has a pool join the budget, be used, and close.
func (y *family) comeAndGo(t *testing.T, use func(*Pool)) {
	p := New(config(3), newServers(1, 2), nil).WithinGroup(y.Budget, "", weightOne)
	p.SetView(view(1, 2))
	ctx, end := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = p.Run(ctx) })
	use(p)
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	end()
	run.Wait()
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
			p := New(config(5), y.nodes(), nil).WithinGroup(y.Budget, "", weightOne)
			p.SetView(view(1))
			stop.Go(func() { _ = p.Run(ctx) })
			y.add(p)
			if i < pools {
				held = append(held, checkOut(t, p, 1))
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
		y.lookAt(2*pools*2*pools/compared+1, compared)
		asked := 0
		for _, k := range y.books().Members[pools:] {
			if k.Coming > 0 {
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

// lookAt has the budget look several times, and checks that no look compares more pools than that.
func (y *family) lookAt(looks, compared int) {
	y.Helper()
	now := time.Now().Add(time.Hour)
	for range looks {
		before := y.books().Compared
		y.Look(now)
		synctest.Wait()
		if n := y.books().Compared - before; n > compared {
			y.Errorf("a look compared %d pools; want at most %d", n, compared)
		}
	}
}
