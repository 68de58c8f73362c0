package pool

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestReconfigure(t *testing.T) {
	with := func(p *Pool, change func(*Config)) {
		c := p.Config()
		change(&c)
		p.Reconfigure(c)
	}
	tests := map[string]func(t *testing.T, p *Pool, f *servers){
		"raises_the_number_of_sessions": func(t *testing.T, p *Pool, f *servers) {
			with(p, func(c *Config) { c.Max = 25 })
			checkOut(t, p, 25)()
			if got := f.live(); f.sum() != 25 || got[0] > 13 || got[1] > 13 {
				t.Errorf("sessions by node: %v; want 25, half on each: the limit of a node follows", got)
			}
		},
		"serves_the_line_at_once_when_raised": func(t *testing.T, p *Pool, f *servers) {
			defer checkOut(t, p, 10)()
			got := make(chan error, 1)
			go func() {
				g, err := p.Acquire(t.Context(), Ask{Class: Normal})
				if err == nil {
					p.Release(g.Session)
				}
				got <- err
			}()
			synctest.Wait()
			began := time.Now()
			with(p, func(c *Config) { c.Max = 11 })
			if err := <-got; err != nil || time.Since(began) > 0 {
				t.Errorf("Acquire: %v after %v; want a session at once", err, time.Since(began))
			}
		},
		"closes_idle_sessions_beyond_a_lower_number": func(t *testing.T, p *Pool, f *servers) {
			checkOut(t, p, 10)()
			with(p, func(c *Config) { c.Max = 4 })
			synctest.Wait()
			if st, got := p.Stats(), f.live(); got[0] != 2 || got[1] != 2 || st.Max != 4 || st.Limit != 4 || st.Aside != 0 {
				t.Errorf("sessions by node: %v, %+v; want 2 on each and none aside", got, st)
			}
			checkOut(t, p, 4)()
		},
		"closes_of_those_without_use_where_most_are": func(t *testing.T, p *Pool, f *servers) {
			back := checkOut(t, p, 10)
			with(p, func(c *Config) { c.Max = 9 })
			back()
			with(p, func(c *Config) { c.Max = 5 })
			synctest.Wait()
			if got := f.live(); f.sum() != 5 || min(got[0], got[1]) != 2 {
				t.Errorf("sessions by node: %v; want 2 and 3", got)
			}
		},
		"closes_leased_sessions_beyond_it_at_their_release": func(t *testing.T, p *Pool, f *servers) {
			back := checkOut(t, p, 10)
			with(p, func(c *Config) { c.Max = 4 })
			synctest.Wait()
			if f.sum() != 10 {
				t.Errorf("%d sessions; want 10: they are in use", f.sum())
			}
			back()
			synctest.Wait()
			if st := p.Stats(); f.sum() != 4 || st.Idle != 4 || p.gate.Load() != gateOpen {
				t.Errorf("%d sessions, %+v, gate %d; want 4 idle, open", f.sum(), st, p.gate.Load())
			}
		},
		"keeps_a_lower_limit": func(t *testing.T, p *Pool, f *servers) {
			p.SetLimit(3)
			with(p, func(c *Config) { c.Max = 20 })
			if st := p.Stats(); st.Limit != 3 || st.Max != 20 {
				t.Errorf("%+v; want limit 3 of 20", st)
			}
			with(p, func(c *Config) { c.Max = 2 })
			if st := p.Stats(); st.Limit != 2 {
				t.Errorf("%+v; want limit 2", st)
			}
		},
		"opens_a_higher_minimum": func(t *testing.T, p *Pool, f *servers) {
			with(p, func(c *Config) { c.Min = 6 })
			time.Sleep(time.Minute)
			if f.sum() != 6 {
				t.Errorf("%d sessions; want 6", f.sum())
			}
		},
		"shortens_the_line": func(t *testing.T, p *Pool, f *servers) {
			defer checkOut(t, p, 10)()
			with(p, func(c *Config) { c.Queue = 1 })
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = p.Acquire(ctx, Ask{Class: Normal})
			}()
			synctest.Wait()
			if _, err := p.Acquire(ctx, Ask{Class: Normal}); !errors.Is(err, ErrQueueFull) {
				t.Errorf("Acquire: %v; want a full line", err)
			}
			cancel()
			<-done
		},
		"limits_the_age_of_those_who_wait": func(t *testing.T, p *Pool, f *servers) {
			defer checkOut(t, p, 10)()
			with(p, func(c *Config) { c.QueueAge = time.Second })
			_, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if e, ok := errors.AsType[*ShedError](err); !ok || e.Why != ShedAge || e.Limit != time.Second {
				t.Errorf("Acquire: %v; want to be turned away after 1s", err)
			}
		},
		"expires_idle_sessions_by_the_new_time": func(t *testing.T, p *Pool, f *servers) {
			checkOut(t, p, 10)()
			with(p, func(c *Config) { c.Idle = time.Second })
			time.Sleep(5 * time.Second)
			if f.sum() != 0 {
				t.Errorf("%d sessions; want none", f.sum())
			}
		},
		"gives_up_openings_by_the_new_time": func(t *testing.T, p *Pool, f *servers) {
			hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			f.set(1, hang, nil)
			f.set(2, hang, nil)
			with(p, func(c *Config) { c.CreateTimeout = 100 * time.Millisecond })
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			defer cancel()
			_, err := p.Acquire(ctx, Ask{Class: Normal})
			if e, ok := errors.AsType[*WaitError](err); !ok || e.Open == nil {
				t.Errorf("Acquire: %v; want to hear of the opening that failed", err)
			}
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1, 2)
				test(t, start(t, config(10), f, view(1, 2)), f)
			})
		})
	}
}

// A pool that was made while Config.Max was low takes as many sessions as the others
// once it is raised.
func TestRaiseAllPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const low, high = 50, 1000
		b := NewBudget(2 * high)
		cfg := config(high)
		cfg.CreateBurst = 100
		start := func() *Pool {
			return startWithin(t, b, cfg, newServers(1), view(1))
		}
		old := start()
		cfg.Max = low
		b.Reconfigure(cfg, nil)
		young := start()
		cfg.Max = high
		b.Reconfigure(cfg, nil)
		for _, p := range []*Pool{old, young} {
			back := checkOut(t, p, high)
			if st := p.Stats(); st.InUse != high || st.Max != high {
				t.Errorf("%d sessions leased of %d; want %d", st.InUse, st.Max, high)
			}
			back()
		}
	})
}

// Cells suffice for as many sessions as Config.Max may allow, and are used again.
func TestCells(t *testing.T) {
	p := New(config(1), newServers(), nil)
	used := make(map[*cell]bool)
	for range maxSessions {
		i := p.cellLocked()
		used[p.cells.at(i)] = true
	}
	if len(used) != maxSessions {
		t.Errorf("%d cells; want %d", len(used), maxSessions)
	}
	p.free = append(p.free, 7)
	if i := p.cellLocked(); i != 7 || p.made != maxSessions {
		t.Errorf("cell %d of %d; want 7, which was free", i, p.made)
	}
}

// With another Age open sessions expire as those that are opened at that moment, spread
// over a fifth of it, or at their own time if that is sooner.
func TestReconfigureAge(t *testing.T) {
	const sessions = 200
	const never = 100 * time.Hour
	for name, tc := range map[string]struct {
		old, new, at time.Duration // Age, and how old the sessions are when it changes
		first, last  time.Duration // when they expire, from then on
	}{
		"from_none":   {0, time.Hour, 5 * time.Hour, 48 * time.Minute, 63 * time.Minute},
		"to_none":     {time.Hour, 0, 30 * time.Minute, never, never},
		"lowered":     {time.Hour, 10 * time.Minute, 30 * time.Minute, 8 * time.Minute, 630 * time.Second},
		"raised":      {10 * time.Minute, time.Hour, 5 * time.Minute, 3 * time.Minute, 330 * time.Second},
		"almost_over": {time.Hour, 50 * time.Minute, 45 * time.Minute, 3 * time.Minute, 18 * time.Minute},
		"same":        {time.Hour, time.Hour, 30 * time.Minute, 18 * time.Minute, 33 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServers(1)
				cfg := config(sessions)
				cfg.Idle, cfg.Age = 0, tc.old
				p := start(t, cfg, f, view(1))
				checkOut(t, p, sessions)()
				time.Sleep(tc.at)
				if f.sum() != sessions {
					t.Fatalf("%d sessions; want %d", f.sum(), sessions)
				}
				cfg.Age, cfg.Queue = tc.new, 500
				p.Reconfigure(cfg)
				const step = 10 * time.Second
				for now, was := time.Duration(0), sessions; now <= tc.last+step && now <= never/20; now += step {
					synctest.Wait()
					is := f.sum()
					if is < sessions && now < tc.first {
						t.Fatalf("%d sessions after %v; want none to expire before %v", is, now, tc.first)
					}
					if is > 0 && now > tc.last {
						t.Fatalf("%d sessions after %v; want none after %v", is, now, tc.last)
					}
					if was-is > sessions/2 {
						t.Fatalf("%d sessions expired within %v; want them spread", was-is, step)
					}
					was = is
					time.Sleep(step)
				}
			})
		})
	}
}

// A pool may join a budget while another configuration is put into force in all of its pools.
func TestJoinsWhileReconfigured(t *testing.T) {
	b, done := NewBudget(3), make(chan struct{})
	var reloads sync.WaitGroup
	reloads.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				b.Reconfigure(config(3), nil)
				runtime.Gosched()
			}
		}
	})
	for range 200 {
		p := New(config(2), newServers(1), nil).WithinGroup(b, "group", weightOne)
		runtime.Gosched()
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(done)
	reloads.Wait()
}
