package pool

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// other returns another configuration for a pool that has c.
func (w *walk) other(c Config) Config {
	c.Max = 1 + w.r.IntN(12)
	c.Min = min(c.Min, c.Max)
	c.MaxPerNode, c.Queue, c.CreateBurst = 0, 30, 3 // what is there already exceeds none of these
	c.MoveRate = w.r.IntN(101)
	c.Idle = []time.Duration{0, time.Second, 2 * time.Second, time.Minute}[w.r.IntN(4)]
	c.Age = []time.Duration{0, 10 * time.Second, time.Minute}[w.r.IntN(3)]
	return c
}

// safe lists the sessions that another configuration must not close.
func (w *walk) safe(c Config) (all []*Session) {
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.size > c.Max || p.closed {
		return nil
	}
	for s := range p.liveLocked() {
		old := p.cfg.Age > 0 && !now.Before(s.expires)
		stale := c.Idle > 0 && now.Sub(s.seenAt) >= c.Idle
		if s.Valid() && !s.gone && !s.aside && !old && !stale {
			all = append(all, s)
		}
	}
	return all
}

// losses counts sessions that were let go for the sake of another node, or of another pool.
func (y *family) losses() (n uint64) {
	n = y.Stats().Yielded
	for _, p := range y.pools {
		n += p.Stats().Moved
	}
	return n
}

// reload puts a configuration into force, in all pools or in one, and checks that it ends no session
// that it does not name.
func (y *family) reload(ws []*walk, c Config, do func()) {
	safe, limits := make([][]*Session, len(ws)), make([]int, len(ws))
	lost := y.losses()
	for i, w := range ws {
		safe[i] = w.safe(c)
		limits[i] = w.p.Stats().Limit
		if limits[i] == w.cfg.Max || limits[i] > c.Max {
			limits[i] = c.Max
		}
		w.set(c)
	}
	lowered := false
	for _, g := range y.books().Groups {
		lowered = lowered || g.Used > c.Max
	}
	do()
	synctest.Wait()
	for i, w := range ws {
		if got := w.p.Stats().Limit; got != limits[i] {
			y.Errorf("the limit of pool %d is %d; want %d", i, got, limits[i])
		}
		if lowered || y.losses() != lost {
			continue
		}
		for _, s := range safe[i] {
			if !s.Valid() || s.gone {
				y.Errorf("a session of pool %d was ended by another configuration: %q", i, s.Retired())
			}
		}
	}
}

// visitor is a pool that comes, has callers, and goes.
func (y *family) visitor(t *testing.T, seed uint64, group string) {
	f := newServers(1, 2)
	f.all = y.all
	p := New(config(3), f, nil).WithinGroup(y.Budget, group, weightOne)
	p.SetView(view(1, 2))
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = p.Run(ctx) })
	for range 2 + seed%3 {
		within, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		if g, err := p.Acquire(within, Ask{Class: Normal}); err == nil {
			p.Release(g.Session)
		}
		cancel()
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	end()
	all.Wait()
	y.visitors = append(y.visitors, p)
}

// disturb does something to several pools. It returns what.
func (y *family) disturb(t *testing.T, r *rand.Rand, ws []*walk) string {
	one := ws[r.IntN(len(ws))]
	ask := func() {
		from, to := ws[r.IntN(len(ws))].p, ws[r.IntN(len(ws))].p
		if from != to {
			from.yield(to.member, r.IntN(2) == 0)
		}
	}
	switch r.IntN(6) {
	case 0:
		c := one.other(one.cfg)
		y.reload(ws, c, func() { y.Reconfigure(c, nil) })
		for _, g := range y.books().Groups {
			if g.Max != c.Max {
				y.Errorf("group %q may have %d sessions; want %d", g.Name, g.Max, c.Max)
			}
		}
		return "reload"
	case 1:
		c := one.other(one.cfg)
		y.reload([]*walk{one}, c, func() { one.p.Reconfigure(c) })
		return "resize"
	case 2:
		y.Look(time.Now().Add(time.Hour)) // every need lasts, and every turn is over
		return "look"
	case 3:
		ask()
		return "yield"
	}
	return y.together(t, r, ws, one, ask)
}

// together does several things at once, ask among them. It returns what.
func (y *family) together(t *testing.T, r *rand.Rand, ws []*walk, one *walk, ask func()) string {
	var wg sync.WaitGroup
	what := "together:"
	c, change := one.other(one.cfg), func() {}
	switch r.IntN(3) {
	case 0:
		what, change = what+" reload", func() { y.Reconfigure(c, nil) }
		for _, w := range ws {
			w.set(c)
		}
	case 1:
		what, change = what+" resize", func() { one.p.Reconfigure(c) }
		one.set(c)
	}
	wg.Go(change)
	for _, w := range ws {
		w.together = true
		if r.IntN(3) > 0 {
			wg.Go(w.advance)
			what += " walk"
		}
	}
	if r.IntN(2) == 0 {
		what += " look"
		wg.Go(func() { y.Look(time.Now().Add(time.Hour)) })
	}
	if r.IntN(4) == 0 {
		what += " visitor"
		seed := r.Uint64()
		wg.Go(func() { y.visitor(t, seed, []string{"", "a", "b"}[seed%3]) })
	}
	ask()
	wg.Wait()
	synctest.Wait()
	for _, w := range ws { // while a node left the view, something was opened there
		w.countOpens()
	}
	return what
}

// Everything happens at once. In the end the books are right, every caller is served and nothing is left.
func TestAllTogether(t *testing.T) {
	for seed := range uint64(short.Of(4, 1)) {
		synctest.Test(t, func(t *testing.T) {
			const pools, limit, turns = 4, 7, 400
			y := startFamily(t, limit, pools, func(i int, cfg *Config) { cfg.Max = 3 + i })
			y.lowered = true
			for _, f := range y.servers { // nothing waits for time, which stands still while looks go on
				f.set(1, nil, nil)
				f.set(2, nil, nil)
			}
			var others sync.WaitGroup
			done := make(chan struct{})
			for _, do := range y.changes() {
				others.Go(func() {
					r := rand.New(rand.NewPCG(seed, rand.Uint64()))
					for {
						select {
						case <-done:
							return
						default:
							do(r)
							runtime.Gosched()
						}
					}
				})
			}
			y.work(t, seed, turns)
			close(done)
			others.Wait()
			for _, p := range y.pools {
				p.Pause(false)
				p.SetView(view(1, 2))
			}
			synctest.Wait()
			y.check()
			y.checkIdle()
			if !slices.ContainsFunc(y.pools, func(p *Pool) bool { return p.Stats().Created > turns/20 }) {
				t.Error("hardly a session was opened: the test tests nothing")
			}
		})
	}
}

// changes are what others do to the pools while these are used.
func (y *family) changes() []func(*rand.Rand) {
	any := func(r *rand.Rand) *Pool { return y.pools[r.IntN(len(y.pools))] }
	now := time.Now().Add(time.Hour)
	return []func(*rand.Rand){
		func(*rand.Rand) { now = now.Add(2 * budget.GoesIn); y.Look(now) },
		func(r *rand.Rand) {
			c := config(1 + r.IntN(8))
			c.Min, c.Age = r.IntN(2), []time.Duration{0, time.Hour}[r.IntN(2)]
			if r.IntN(3) == 0 {
				y.Reconfigure(c, nil)
			} else {
				any(r).Reconfigure(c)
			}
		},
		func(r *rand.Rand) { any(r).SetLimit(1 + r.IntN(6)) },
		func(r *rand.Rand) { p := any(r); p.Pause(true); runtime.Gosched(); p.Pause(false) },
		func(r *rand.Rand) {
			v := view(1, 2)
			v.Nodes[r.IntN(2)].Use = cluster.Use(r.IntN(3))
			any(r).SetView(v)
		},
		func(r *rand.Rand) {
			p := any(r)
			if all := p.Sessions(); len(all) > 0 && r.IntN(10) == 0 {
				p.Kill(all[r.IntN(len(all))].Session, "killed")
			}
			p.Stats()
			p.Use()
		},
	}
}

// work has callers use the pools, each for that many turns, while other pools come and go.
func (y *family) work(t *testing.T, seed uint64, turns int) {
	const workers = 12
	var callers sync.WaitGroup
	for i := range workers {
		callers.Go(func() {
			r, p := rand.New(rand.NewPCG(seed, uint64(i))), y.pools[i%len(y.pools)]
			for range turns {
				g, err := p.Acquire(t.Context(), Ask{Class: Class(r.IntN(ClassSize))})
				if err != nil {
					continue // there was no node
				}
				for range r.IntN(4) {
					runtime.Gosched()
				}
				if r.IntN(20) == 0 {
					p.Discard(g.Session)
				} else {
					p.Release(g.Session)
				}
			}
		})
	}
	callers.Go(func() {
		for i := range uint64(turns / 20) {
			y.visitor(t, i, "")
		}
	})
	callers.Wait()
}

// checkIdle checks that nothing is under way, and that every session is idle and may be used.
func (y *family) checkIdle() {
	y.Helper()
	for i, k := range y.books().Members[:len(y.pools)] {
		p := y.pools[i]
		if k.Leaving != 0 || k.Coming != 0 || p.going != 0 {
			y.Errorf("pool %d: %d leaving, %d coming, %d going; want none in the end", i, k.Leaving, k.Coming, p.going)
		}
		if st := p.Stats(); st.InLine() > 0 || st.InUse > 0 || st.Sessions > st.Max {
			y.Errorf("pool %d in the end: %+v", i, st)
		}
		for _, s := range p.Sessions() {
			if s.Retired != "" || s.InUse {
				y.Errorf("pool %d has in the end a session that is retired (%q) or in use (%t)", i, s.Retired, s.InUse)
			}
		}
	}
}
