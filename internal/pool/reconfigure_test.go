package pool

import (
	"context"
	"errors"
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
			lease(t, p, 25)()
			if got := f.live(); f.sum() != 25 || got[0] > 13 || got[1] > 13 {
				t.Errorf("sessions by node: %v; want 25, half on each: the limit of a node follows", got)
			}
		},
		"serves_the_line_at_once_when_raised": func(t *testing.T, p *Pool, f *servers) {
			defer lease(t, p, 10)()
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
			lease(t, p, 10)()
			with(p, func(c *Config) { c.Max = 4 })
			synctest.Wait()
			if st, got := p.Stats(), f.live(); got[0] != 2 || got[1] != 2 || st.Max != 4 || st.Limit != 4 || st.Aside != 0 {
				t.Errorf("sessions by node: %v, %+v; want 2 on each and none aside", got, st)
			}
			lease(t, p, 4)()
		},
		"closes_of_those_without_use_where_most_are": func(t *testing.T, p *Pool, f *servers) {
			back := lease(t, p, 10)
			with(p, func(c *Config) { c.Max = 9 })
			back()
			with(p, func(c *Config) { c.Max = 5 })
			synctest.Wait()
			if got := f.live(); f.sum() != 5 || min(got[0], got[1]) != 2 {
				t.Errorf("sessions by node: %v; want 2 and 3", got)
			}
		},
		"closes_leased_sessions_beyond_it_at_their_release": func(t *testing.T, p *Pool, f *servers) {
			back := lease(t, p, 10)
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
			defer lease(t, p, 10)()
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
			defer lease(t, p, 10)()
			with(p, func(c *Config) { c.QueueAge = time.Second })
			_, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if e, ok := errors.AsType[*ShedError](err); !ok || e.Why != ShedAge || e.Limit != time.Second {
				t.Errorf("Acquire: %v; want to be turned away after 1s", err)
			}
		},
		"expires_idle_sessions_by_the_new_time": func(t *testing.T, p *Pool, f *servers) {
			lease(t, p, 10)()
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

func TestRoom(t *testing.T) {
	for max, want := range map[int]int{1: roomLeast, 1000: 4000, maxSessions: maxSessions} {
		if got := New(config(max), newServers(), nil).Room(); got != want {
			t.Errorf("room of a pool of %d: %d; want %d", max, got, want)
		}
	}
}
