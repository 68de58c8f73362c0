package pool

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// shedding returns the refusal in err.
func shedding(t *testing.T, err error) *ShedError {
	t.Helper()
	e, ok := errors.AsType[*ShedError](err)
	if !ok {
		t.Fatalf("error %v; want a ShedError", err)
	}
	return e
}

// passing is a waiter that passes on what it gets, which must be no refusal.
func passing(t *testing.T, to chan<- Grant) *Waiter {
	return NewWaiter(func(g Grant, err error) {
		if err != nil {
			t.Error(err)
		}
		to <- g
	})
}

// Work whose deadline is nearer than the time that such work takes gets no session,
// though one is free.
func TestHopelessWorkGetsNoSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, on := range []bool{true, false} {
			cfg := config(2)
			cfg.Shed = on
			p := start(t, cfg, newServers(1), view(1))
			checkOut(t, p, 2)()
			by := Ask{Class: Normal, Needs: 100 * time.Millisecond, Left: 50 * time.Millisecond}
			if s, ok := p.Try(by); ok {
				t.Error("Try gave a session")
				p.Release(s)
			}
			for name, ask := range map[string]func() (Grant, error){
				"Acquire": func() (Grant, error) { return p.Acquire(t.Context(), by) },
				"Wait":    func() (Grant, error) { return p.Wait(NewWaiter(func(Grant, error) {}), by) },
			} {
				g, err := ask()
				if !on {
					if err != nil {
						t.Errorf("%s without shedding: %v", name, err)
						continue
					}
					p.Release(g.Session)
					continue
				}
				e := shedding(t, err)
				if e.Why != ShedDeadline || e.Waited != 0 || e.Needs != by.Needs || e.Left != by.Left || e.Retry <= 0 {
					t.Errorf("%s: %+v", name, e)
				}
			}
			if n := p.Stats().Shed[ShedDeadline]; on && n != 2 || !on && n != 0 {
				t.Errorf("%d counted", n)
			}
			// In time it gets one.
			by.Left = 100 * time.Millisecond
			g, err := p.Acquire(t.Context(), by)
			if err != nil {
				t.Fatal(err)
			}
			p.Release(g.Session)
		}
	})
}

// A caller that joins a queue that moves too slowly for its deadline is told at once, by the
// pace at which others were served.
func TestForetoldWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(1)
		cfg.Shed = true
		p := start(t, cfg, newServers(1), view(1))
		g, err := p.Acquire(t.Context(), Ask{Class: Normal})
		if err != nil {
			t.Fatal(err)
		}
		next := make(chan Grant, 100)
		for range 50 {
			if _, err := p.Wait(passing(t, next), Ask{Class: Normal}); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 { // 10 ms each
			time.Sleep(10 * time.Millisecond)
			p.Release(g.Session)
			g = <-next
		}
		// 40 wait: 400 ms.
		ctx, cancel := context.WithTimeout(t.Context(), 350*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err = p.Acquire(ctx, Ask{Class: Normal, Needs: 10 * time.Millisecond})
		e := shedding(t, err)
		if e.Why != ShedDeadline || time.Since(began) != 0 || e.Ahead < 390*time.Millisecond ||
			e.Ahead > 410*time.Millisecond || e.Retry != e.Ahead {
			t.Errorf("after %v: %+v", time.Since(began), e)
		}
		// The wait would do, but not the work as well; and there must be something to spare.
		for _, left := range []time.Duration{405 * time.Millisecond, 450 * time.Millisecond} {
			if _, err := p.Wait(
				NewWaiter(func(Grant, error) {}), Ask{Class: Normal, Needs: 10 * time.Millisecond, Left: left},
			); err == nil {
				t.Errorf("joined with %v left", left)
			}
		}
		// Another app has no line of its own yet.
		if _, err := p.Wait(
			passing(t, next), Ask{Class: Normal, App: 1, Needs: 10 * time.Millisecond, Left: 350 * time.Millisecond},
		); err != nil {
			t.Errorf("another app: %v", err)
		}
		for range 41 {
			p.Release(g.Session)
			g = <-next
		}
		p.Release(g.Session)
	})
}

// A queue that waited long for its first sessions, and moves fast since, foretells no
// long wait: neither before there is a pace nor when there is one.
func TestStallForetellsNothing(t *testing.T) {
	for _, served := range []int{1, queue.PaceLeast, 2 * queue.PaceLeast} {
		synctest.Test(t, func(t *testing.T) {
			cfg := config(1)
			cfg.Shed = true
			p := start(t, cfg, newServers(1), view(1))
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			next := make(chan Grant, 100)
			joined := 0
			wait := func(left time.Duration) {
				if _, err := p.Wait(passing(t, next), Ask{Class: Normal, Left: left}); err != nil {
					t.Errorf("%d served: %v", served, err)
					return
				}
				joined++
			}
			for range 50 {
				wait(0)
			}
			time.Sleep(2 * time.Second)
			for range served {
				p.Release(g.Session)
				g = <-next
				time.Sleep(time.Millisecond)
			}
			wait(time.Second)
			for range joined - served {
				p.Release(g.Session)
				g = <-next
			}
			p.Release(g.Session)
		})
	}
}

// A caller that comes to the head of the queue too late for the work is told, and the session
// goes to the next.
func TestTooLateAtTheHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, on := range []bool{true, false} {
			cfg := config(1)
			cfg.Shed = on
			p := start(t, cfg, newServers(1), view(1))
			g, err := p.Acquire(t.Context(), Ask{Class: Normal})
			if err != nil {
				t.Fatal(err)
			}
			var told []error
			var got []Grant
			for range 3 {
				w := NewWaiter(func(g Grant, err error) { told, got = append(told, err), append(got, g) })
				if _, err := p.Wait(w, Ask{Class: Normal, Needs: 50 * time.Millisecond, Left: 200 * time.Millisecond}); err != nil {
					t.Fatal(err)
				}
			}
			patient := NewWaiter(func(g Grant, err error) { told, got = append(told, err), append(got, g) })
			if _, err := p.Wait(patient, Ask{Class: Normal}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(160 * time.Millisecond)
			p.Release(g.Session)
			if !on {
				if len(got) != 1 || told[0] != nil {
					t.Errorf("without shedding: %v", told)
				}
				for len(got) < 4 {
					p.Release(got[len(got)-1].Session)
				}
				p.Release(got[3].Session)
				continue
			}
			if len(got) != 4 {
				t.Fatalf("%d were told; want all four", len(got))
			}
			served := 0
			for i, err := range told {
				if err == nil {
					served++
					if got[i].Waited != 160*time.Millisecond {
						t.Errorf("waited %v", got[i].Waited)
					}
					p.Release(got[i].Session)
					continue
				}
				if e := shedding(
					t, err,
				); e.Why != ShedDeadline || e.Waited != 160*time.Millisecond || e.Left != 40*time.Millisecond ||
					e.Needs != 50*time.Millisecond {
					t.Errorf("%+v", e)
				}
			}
			if served != 1 {
				t.Errorf("%d were served; want the patient one", served)
			}
		}
	})
}

// Nobody waits for longer than queue_age, also while no session comes back.
func TestQueueAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(1)
		cfg.QueueAge = 2 * time.Second
		p := start(t, cfg, newServers(1), view(1))
		release := checkOut(t, p, 1)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				began := time.Now()
				_, err := p.Acquire(t.Context(), Ask{Class: Class(i % ClassSize), App: uint8(i % 3)})
				e := shedding(t, err)
				if took := time.Since(began); e.Why != ShedAge || took < cfg.QueueAge || took > cfg.QueueAge+time.Millisecond {
					t.Errorf("after %v: %+v", took, e)
				}
			})
		}
		wg.Wait()
		if st := p.Stats(); st.Shed[ShedAge] != 20 || st.Waiting != [ClassSize]int{} {
			t.Errorf("shed %v, waiting %v", st.Shed, st.Waiting)
		}
		release()
		checkOut(t, p, 1)() // the gate is open again
	})
}

// While more come than can be served, queue_target keeps the wait of those who are
// short, loses no session, and leaves batch alone; a burst is not refused.
func TestQueueTarget(t *testing.T) {
	const sessions, service = 10, 10 * time.Millisecond
	length := time.Duration(short.Of(10, 6)) * time.Second
	run := func(target time.Duration, class Class) (waits []time.Duration, shed int) {
		synctest.Test(t, func(t *testing.T) {
			cfg := config(sessions)
			cfg.QueueTarget, cfg.Queue = target, 100_000
			p := start(t, cfg, newServers(1, 2), view(1, 2))
			checkOut(t, p, sessions)()
			var mu sync.Mutex
			var wg sync.WaitGroup
			r := rand.New(rand.NewPCG(1, 1))
			for until := time.Now().Add(length); time.Now().Before(until); {
				wg.Go(func() { // three times what can be done
					g, err := p.Acquire(t.Context(), Ask{Class: class})
					mu.Lock()
					if err != nil {
						if shedding(t, err).Why != ShedDelay {
							t.Error(err)
						}
						shed++
						mu.Unlock()
						return
					}
					waits = append(waits, g.Waited)
					mu.Unlock()
					time.Sleep(service)
					p.Release(g.Session)
				})
				time.Sleep(time.Duration(r.ExpFloat64() * float64(service) / sessions / 3))
			}
			mu.Lock()
			good := len(waits)
			mu.Unlock()
			if most := int(length / service * sessions); good < most*98/100 {
				t.Errorf("target %v: %d served in the time; at most %d could have been", target, good, most)
			}
			wg.Wait()
		})
		slices.Sort(waits)
		return waits, shed
	}
	p99 := func(d []time.Duration) time.Duration { return d[len(d)*99/100] }
	with, shed := run(8*time.Millisecond, Normal)
	// In the first tenth of a second, less than two hundredths of the time, nobody knows that it is no burst.
	if late := with[len(with)*98/100]; late > 8*time.Millisecond || shed < len(with)*9/5 {
		t.Errorf("p98 of the wait %v, %d of %d refused; want at most 8ms, and two thirds", late, shed, shed+len(with))
	}
	without, none := run(0, Normal)
	if none != 0 || p99(without) < time.Second {
		t.Errorf("without: p99 %v, %d refused; the test shows nothing", p99(without), none)
	}
	if _, none := run(8*time.Millisecond, Batch); none != 0 {
		t.Errorf("%d of batch were refused; want none", none)
	}
}

// One app's flood does not raise the p99 wait of another by more than half while that
// has no more than its share. Both want all that they can get at first; then one of
// them comes with twenty times as many callers, and with longer calls.
func TestAppFlood(t *testing.T) {
	const sessions = 20
	length := time.Duration(short.Of(20, 8)) * time.Second
	type app struct {
		callers int
		app     uint8
		service time.Duration
	}
	run := func(all ...app) (waits []time.Duration) { // of the first
		synctest.Test(t, func(t *testing.T) {
			p := start(t, config(sessions), newServers(1, 2), view(1, 2))
			checkOut(t, p, sessions)()
			ctx, cancel := context.WithTimeout(t.Context(), length)
			defer cancel()
			var mu sync.Mutex
			var wg sync.WaitGroup
			for n, a := range all {
				for i := range a.callers {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(uint64(n), uint64(i)))
						for ctx.Err() == nil {
							g, err := p.Acquire(ctx, Ask{Class: Normal, App: a.app, Needs: a.service})
							if err != nil {
								return
							}
							if n == 0 {
								mu.Lock()
								waits = append(waits, g.Waited)
								mu.Unlock()
							}
							time.Sleep(a.service/2 + time.Duration(r.Int64N(int64(a.service))))
							p.Release(g.Session)
						}
					})
				}
			}
			wg.Wait()
		})
		slices.Sort(waits)
		return waits
	}
	p99 := func(d []time.Duration) time.Duration { return d[len(d)*99/100] }
	const service = 10 * time.Millisecond
	calm := p99(run(app{15, 1, service}, app{15, 2, service}))
	for _, tt := range []struct {
		name string
		app
	}{{"more_callers", app{500, 2, service}}, {"longer_calls", app{100, 2, 5 * service}}} {
		wild := p99(run(app{15, 1, service}, tt.app))
		t.Logf("p99 wait of an app: %v beside an equal, %v beside a flood of %s", calm, wild, tt.name)
		if wild > calm*3/2 {
			t.Errorf("%s: %v, %v in the flood; want at most 1.5 times", tt.name, calm, wild)
		}
	}
	if one := p99(run(app{15, 1, service}, app{500, 1, service})); one < 3*calm { // no shares: they are one app
		t.Errorf("beside a flood of its own the wait is %v; the test shows nothing", one)
	}
}
