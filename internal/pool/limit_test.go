package pool

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestSetLimit(t *testing.T) {
	tests := map[string]func(t *testing.T, p *Pool, f *servers){
		"bounds_the_sessions_in_use_and_keeps_the_others": func(t *testing.T, p *Pool, f *servers) {
			checkOut(t, p, 10)()
			p.SetLimit(3)
			back := checkOut(t, p, 3)
			if _, ok := p.Try(Ask{Class: Normal}); ok {
				t.Error("a fourth session was leased")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := p.Acquire(ctx, Ask{Class: Normal})
			var late *WaitError
			if !errors.As(err, &late) || late.Limit != 3 || late.Busy != 3 || late.Live != 10 ||
				!strings.Contains(err.Error(), "3 allowed now") {
				t.Errorf("Acquire: %v, %+v; want 3 of 10 in use, by the limit", err, late)
			}
			if st := p.Stats(); st.Limit != 3 || st.Aside != 7 || st.InUse != 3 || st.Idle != 7 || f.sum() != 10 {
				t.Errorf("%+v; want 7 aside", st)
			}
			back()
		},
		"leaves_alone_what_is_in_use_when_it_is_lowered": func(t *testing.T, p *Pool, f *servers) {
			back := checkOut(t, p, 10)
			p.SetLimit(4)
			if n := p.Stats().InUse; n != 10 {
				t.Errorf("%d in use; want 10 until they come back", n)
			}
			served := 0
			w := NewWaiter(func(g Grant, err error) {
				served++
				p.Release(g.Session)
			})
			if s, err := p.join(w, Ask{Class: Normal}); s != nil || err != nil {
				t.Fatalf("join: %v, %v; want to wait", s, err)
			}
			back()
			if served != 1 || f.sum() != 10 {
				t.Errorf("served %d times, %d sessions left; want 1, 10", served, f.sum())
			}
			if st := p.Stats(); st.Aside != 6 || p.gate.Load() != gateOpen {
				t.Errorf("%d aside, gate %d; want 6, open", st.Aside, p.gate.Load())
			}
		},
		"serves_the_line_at_once_when_it_is_raised": func(t *testing.T, p *Pool, f *servers) {
			checkOut(t, p, 10)()
			p.SetLimit(1)
			defer checkOut(t, p, 1)()
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() { useFor(t, p, time.Second) })
			}
			synctest.Wait()
			began := time.Now()
			p.SetLimit(6)
			wg.Wait()
			if took := time.Since(began); took != time.Second {
				t.Errorf("five callers were served within %v; want all at once", took)
			}
		},
		"opens_no_more_than_it_allows": func(t *testing.T, p *Pool, f *servers) {
			p.SetLimit(2)
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { useFor(t, p, time.Second) })
			}
			wg.Wait()
			if f.most > 2 {
				t.Errorf("%d sessions; want 2", f.most)
			}
		},
		"takes_from_those_aside_for_one_that_is_lost": func(t *testing.T, p *Pool, f *servers) {
			checkOut(t, p, 10)()
			p.SetLimit(1)
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			p.Discard(g.Session)
			began := time.Now()
			if g, err = p.Acquire(t.Context(), Ask{Class: Normal}); err != nil {
				t.Fatal(err)
			}
			p.Release(g.Session)
			synctest.Wait()
			if took := time.Since(began); took > 0 || f.sum() != 9 {
				t.Errorf("another one after %v, %d sessions; want at once, 9", took, f.sum())
			}
		},
		"lets_those_aside_expire": func(t *testing.T, p *Pool, f *servers) {
			checkOut(t, p, 10)()
			p.SetLimit(2)
			for range 700 {
				time.Sleep(time.Second)
				checkOut(t, p, 2)()
			}
			if st := p.Stats(); f.sum() != 2 || st.Aside != 0 {
				t.Errorf("%d sessions, %d aside after 700 s; want 2, 0", f.sum(), st.Aside)
			}
		},
		"closes_those_aside_on_a_node_that_goes": func(t *testing.T, p *Pool, f *servers) {
			checkOut(t, p, 10)()
			p.SetLimit(2)
			p.SetView(view(2))
			synctest.Wait()
			if got := f.live(); got[0] != 0 || got[1] != 5 {
				t.Errorf("sessions by node: %v; want 0, 5", got)
			}
		},
		"spreads_those_that_come_back": func(t *testing.T, p *Pool, f *servers) {
			checkOut(t, p, 10)()
			p.SetLimit(1)
			p.SetLimit(6)
			for _, n := range p.order {
				if live := n.live.Load(); live != 3 {
					t.Errorf("%d in circulation on node %d; want 3", live, n.id)
				}
			}
		},
		"tells_whether_it_is_felt": func(t *testing.T, p *Pool, f *servers) {
			checkOut(t, p, 10)()
			p.SetLimit(4)
			p.Use()
			back := checkOut(t, p, 3)
			if n, limited := p.Use(); n < 3 || n > 4 || limited {
				t.Errorf("Use: %d, %t; want 3 or a bit more, false", n, limited)
			}
			also := checkOut(t, p, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, _ = p.Acquire(ctx, Ask{Class: Normal}) // waits in vain
			also()
			back()
			if n, limited := p.Use(); n != 4 || !limited {
				t.Errorf("Use: %d, %t; want 4, true: somebody waited", n, limited)
			}
			if n, limited := p.Use(); n > len(p.slots) || limited {
				t.Errorf("Use: %d, %t; want none, or what is in slots, and false: nobody came since", n, limited)
			}
		},
		"tells_the_peak_between_two_looks": func(t *testing.T, p *Pool, f *servers) {
			checkOut(t, p, 10)()
			p.Use()
			checkOut(t, p, 7)()
			checkOut(t, p, 2)()
			for _, n := range p.order {
				p.reap(n) // takes all that is idle in hand
			}
			if n, _ := p.Use(); n < 7 || n > 7+len(p.slots) {
				t.Errorf("Use: %d; want 7, and what is in slots at most", n)
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

// A session that was laid down just before the limit was lowered, by one who saw no
// limit, is set aside.
func TestLimitMeetsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		p := start(t, config(4), f, view(1))
		g, err := p.Acquire(t.Context(), Ask{Class: Normal})
		if err != nil {
			t.Fatal(err)
		}
		defer checkOut(t, p, 1)()
		checkIn(g.Session)
		p.SetLimit(1)
		p.put(g.Session)
		if st := p.Stats(); st.Aside != 1 {
			t.Errorf("%d aside; want 1", st.Aside)
		}
	})
}

// A limit costs the warm path nothing but what it is.
func TestLimitAllocatesNothing(t *testing.T) {
	p := warmPool(t, 10, 3)
	p.SetLimit(4)
	if n := testing.AllocsPerRun(1000, func() {
		s, ok := p.Try(Ask{Class: Normal})
		if !ok {
			t.Fatal("no session")
		}
		p.Release(s)
	}); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
	// Up and down with sessions in use.
	defer checkOut(t, p, 3)()
	if n := testing.AllocsPerRun(1000, func() { p.SetLimit(2); p.SetLimit(4) }); n != 0 {
		t.Errorf("SetLimit: %v allocations; want 0", n)
	}
}

// However callers come and go, Use returns no less than there were at a time.
func TestUseIsNoLess(t *testing.T) {
	p := warmPool(t, 12, 3)
	for range 20 {
		var now, most atomic.Int32
		p.Use()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					g, err := p.Acquire(t.Context(), Ask{Class: Normal})
					if err != nil {
						t.Error(err)
						return
					}
					for n := now.Add(1); ; {
						if was := most.Load(); n <= was || most.CompareAndSwap(was, n) {
							break
						}
					}
					runtime.Gosched()
					now.Add(-1)
					p.Release(g.Session)
				}
			})
		}
		wg.Wait()
		if got, _ := p.Use(); got < int(most.Load()) {
			t.Errorf("Use: %d; there were %d", got, most.Load())
		}
	}
}
