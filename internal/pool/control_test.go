package pool

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestPauseAndHolders(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, p *Pool, f *servers){
		"callers_wait_and_are_served_in_order_once_it_goes_on": func(t *testing.T, p *Pool, f *servers) {
			back := checkOut(t, p, 2)
			p.Pause(true)
			back() // callers with sessions finish
			if _, ok := p.Try(Ask{Class: Normal}); ok {
				t.Error("Try got a session of a paused pool")
			}
			var wg sync.WaitGroup
			var mu sync.Mutex
			var order []int
			for i := range 5 {
				wg.Go(func() {
					g, err := p.Acquire(t.Context(), Ask{Class: Normal})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					p.Release(g.Session)
				})
				synctest.Wait()
			}
			time.Sleep(5 * time.Second)
			st := p.Stats()
			if !st.Pause || st.Waiting[Normal] != 5 || st.InUse != 0 || len(order) != 0 || st.Oldest < 5*time.Second {
				t.Errorf("%+v, served %v; want five in line and nobody served", st, order)
			}
			if q := p.Queues(); len(q) != 1 || q[0].Waiting != 5 || q[0].Class != Normal || q[0].Oldest != st.Oldest {
				t.Errorf("queues %+v", q)
			}
			p.Pause(false)
			wg.Wait()
			if len(order) != 5 || p.gate.Load() != gateOpen {
				t.Errorf("served %v, gate %d", order, p.gate.Load())
			}
		},
		"a_caller_whose_time_ends_is_told_of_the_pause": func(t *testing.T, p *Pool, f *servers) {
			p.Pause(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := p.Acquire(ctx, Ask{Class: Normal})
			if !Paused(err) {
				t.Errorf("Acquire: %v is not of the pause", err)
			}
			var late *WaitError
			if !errors.As(err, &late) || !late.Paused || !strings.Contains(err.Error(), "paused by an operator") {
				t.Errorf("Acquire: %v", err)
			}
			p.Pause(false)
		},
		"a_full_queue_of_a_paused_pool_says_so": func(t *testing.T, p *Pool, f *servers) {
			c := p.Config()
			c.Queue = 1
			p.Reconfigure(c)
			p.Pause(true)
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if _, err := p.Acquire(ctx, Ask{Class: Normal}); !Paused(err) {
						t.Errorf("Acquire: %v is not of the pause", err)
					}
				})
			}
			wg.Wait()
			if st := p.Stats(); st.Refused != 1 {
				t.Errorf("%d refused; want the one without a place", st.Refused)
			}
			p.Pause(false)
		},
		"nothing_is_opened_for_those_who_wait": func(t *testing.T, p *Pool, f *servers) {
			defer checkOut(t, p, 10)()
			p.Kill(p.Sessions()[0].Session, "gone") // there is room for one more
			p.Pause(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := p.Acquire(ctx, Ask{Class: Normal}); err == nil {
				t.Error("served by a paused pool")
			}
			p.Pause(false)
		},
		"says_who_holds_what": func(t *testing.T, p *Pool, f *servers) {
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			hold := &Hold{App: "reports", Since: time.Now()}
			g.Note(hold)
			leased := 0
			all := p.Sessions()
			for _, s := range all {
				if s.InUse {
					leased++
					if s.Hold != hold || s.Session != g.Session {
						t.Errorf("%+v", s)
					}
				} else if s.Hold != nil {
					t.Errorf("an idle session is held: %+v", s)
				}
			}
			if len(all) != 10 || leased != 1 {
				t.Errorf("%d sessions, %d leased; want 10, 1", len(all), leased)
			}
			g.Note(nil)
			p.Release(g.Session)
		},
		"kills_what_is_idle_at_once_and_what_is_held_at_its_release": func(t *testing.T, p *Pool, f *servers) {
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range p.Sessions() {
				p.Kill(s.Session, "killed")
			}
			synctest.Wait()
			if f.sum() != 1 || g.Valid() || g.Retired() != "killed" {
				t.Errorf("%d sessions left, the held one is valid: %v", f.sum(), g.Valid())
			}
			p.Release(g.Session)
			synctest.Wait()
			for _, s := range p.Sessions() {
				if s.Session == g.Session {
					t.Error("the killed session is still there")
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := Default()
				cfg.Max, cfg.MaxPerNode, cfg.QueueAge = 10, 10, time.Minute
				f := newServers(1, 2)
				p := start(t, cfg, f, view(1, 2))
				checkOut(t, p, 10)()
				test(t, p, f)
			})
		})
	}
}
