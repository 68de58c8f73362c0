package pool

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// A caller whose context ends leaves the queue at once, and the error says that the
// pool was busy, not that a server was down.
func TestWaitError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, config(2), newServers(1), view(1))
		release := checkOut(t, p, 2)
		defer release()
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error)
		go func() {
			_, err := p.Acquire(ctx, Ask{Class: Interactive})
			done <- err
		}()
		time.Sleep(2 * time.Second)
		if st := p.Stats(); st.Waiting[Interactive] != 1 {
			t.Errorf("waiting %v; want one", st.Waiting)
		}
		began := time.Now()
		cancel(errors.New("enough"))
		err := <-done
		if st := p.Stats(); !time.Now().Equal(began) || st.Waiting[Interactive] != 0 || st.TimedOut != 1 {
			t.Errorf("left the line after %v, waiting %v, timed out %d", time.Since(began), st.Waiting, st.TimedOut)
		}
		want := "pool: waited 2s for a session: 2 of at most 2 in use: context canceled"
		if err.Error() != want || !errors.Is(err, context.Canceled) {
			t.Errorf("error %q; want %q", err, want)
		}
		if e, ok := errors.AsType[*WaitError](
			err,
		); !ok || e.Class != Interactive || e.Busy != 2 || e.Live != 2 || e.Nodes != 1 || e.Open != nil {
			t.Errorf("error %+v", e)
		}
		// A caller with a dead context does not join.
		if _, err := p.Acquire(ctx, Ask{Class: Batch}); !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire: %v", err)
		}
	})
}

// The failure to open of one wait is not told in another.
func TestWaitErrorForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServers(1)
		f.set(1, after(0, errRefused), nil)
		p := start(t, config(1), f, view(1))
		try := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			g, err := p.Acquire(ctx, Ask{Class: Normal})
			if err == nil {
				p.Release(g.Session)
			}
			return err
		}
		if err := try(); err == nil || !strings.Contains(err.Error(), "open session on node 1: refused") {
			t.Errorf("error %v; want the failure", err)
		}
		f.set(1, nil, nil)
		time.Sleep(time.Second)
		release := checkOut(t, p, 1)
		if err := try(); err == nil || strings.Contains(err.Error(), "refused") {
			t.Errorf("error %v; want no word of the failure", err)
		}
		release()
	})
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(1)
		cfg.Queue = 10
		p := start(t, cfg, newServers(1), view(1))
		release := checkOut(t, p, 1)
		refused := make(map[Class]int)
		var mu sync.Mutex
		var wg sync.WaitGroup
		ask := func(c Class, n int) {
			for range n {
				wg.Go(func() {
					g, err := p.Acquire(t.Context(), Ask{Class: c})
					if err == nil {
						time.Sleep(time.Millisecond)
						p.Release(g.Session)
						return
					}
					if !errors.Is(err, ErrQueueFull) {
						t.Error(err)
					}
					mu.Lock()
					refused[c]++
					mu.Unlock()
				})
			}
			synctest.Wait()
		}
		ask(Batch, 12)
		ask(Interactive, 4)
		if refused[Batch] != 6 || refused[Interactive] != 0 {
			t.Errorf("refused %v; want 2 of batch for the line, 4 for interactive", refused)
		}
		if st := p.Stats(); st.Waiting != [ClassSize]int{Interactive: 4, Batch: 6} || st.InLine() != 10 || st.Refused != 6 {
			t.Errorf("waiting %v, refused %d", st.Waiting, st.Refused)
		}
		release()
		wg.Wait()
	})
}

// Waiting asynchronously costs no goroutine; who is cancelled is not told; the
// others are served in order; a waiter can be used again.
func TestWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, config(1), newServers(1), view(1))
		g, err := p.Acquire(t.Context(), Ask{Class: Normal})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // what opened the session is done
		before := runtime.NumGoroutine()
		var order, want []int
		var waiters []*Waiter
		for i := range 100 {
			waiters = append(waiters, NewWaiter(func(g Grant, err error) {
				if err != nil {
					t.Error(err)
				}
				order = append(order, i)
				p.Release(g.Session) // serves the next, on this goroutine
			}))
		}
		for range 2 {
			order, want = nil, nil
			for _, w := range waiters {
				if g, err := p.Wait(w, Ask{Class: Normal}); g.Session != nil || err != nil {
					t.Fatal(g, err)
				}
			}
			if n := runtime.NumGoroutine(); n > before { // fewer: one of the runtime's ended
				t.Errorf("%d goroutines for 100 waiters", n-before)
			}
			for i, w := range waiters {
				if i%3 == 1 {
					if !p.Cancel(w) || p.Cancel(w) {
						t.Errorf("waiter %d: cancelled never or twice", i)
					}
				} else {
					want = append(want, i)
				}
			}
			p.Release(g.Session)
			if !slices.Equal(order, want) {
				t.Errorf("served %v; want %v", order, want)
			}
			if p.Cancel(waiters[0]) {
				t.Error("a waiter that was told was cancelled")
			}
			// Nobody waits: the session is given at once.
			g, err = p.Wait(waiters[0], Ask{Class: Normal})
			if g.Session == nil || err != nil {
				t.Fatalf("Wait: %+v, %v; want a session", g, err)
			}
		}
		p.Release(g.Session)
	})
}

// A flood of batch work raises the p99 wait of interactive work by at most half,
// and batch gets at least 95 % of its guaranteed share all the same.
func TestFlood(t *testing.T) {
	const sessions, workers, flood = 20, 60, 500
	length := time.Duration(short.Of(20, 6)) * time.Second
	run := func(t *testing.T, counts [ClassSize]int) (waits [ClassSize][]time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			p := start(t, config(sessions), newServers(1, 2), view(1, 2))
			checkOut(t, p, sessions)()
			ctx, cancel := context.WithTimeout(t.Context(), length)
			defer cancel()
			var mu sync.Mutex
			var wg sync.WaitGroup
			for c, n := range counts {
				for i := range n {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(uint64(c), uint64(i)))
						for ctx.Err() == nil {
							g, err := p.Acquire(ctx, Ask{Class: Class(c)})
							if err != nil {
								return
							}
							mu.Lock()
							waits[c] = append(waits[c], g.Waited)
							mu.Unlock()
							time.Sleep(5*time.Millisecond + time.Duration(r.IntN(10_000))*time.Microsecond)
							p.Release(g.Session)
						}
					})
				}
			}
			wg.Wait()
		})
		for c := range waits {
			slices.Sort(waits[c])
		}
		return waits
	}
	p99 := func(d []time.Duration) time.Duration { return d[len(d)*99/100] }

	calm := run(t, [ClassSize]int{Interactive: workers})
	wild := run(t, [ClassSize]int{Interactive: workers, Batch: flood})
	all := run(t, [ClassSize]int{Interactive: workers, Normal: flood, Batch: flood})
	t.Logf("p99 wait of interactive: %v alone, %v beside batch, %v beside normal and batch",
		p99(calm[Interactive]), p99(wild[Interactive]), p99(all[Interactive]))
	if a, b := p99(calm[Interactive]), p99(wild[Interactive]); b > a*3/2 {
		t.Errorf("p99 wait of interactive: %v alone, %v in the flood; want at most 1.5 times", a, b)
	}
	shares := Default().Shares.byClass()
	for name, waits := range map[string][ClassSize][]time.Duration{"batch": wild, "normal and batch": all} {
		sum := 0
		for _, w := range waits {
			sum += len(w)
		}
		for c, w := range waits {
			if len(w) > 0 && len(w)*100*100 < sum*shares[c]*95 {
				t.Errorf("flood of %s: class %v got %d of %d sessions; want at least 95 %% of its %d %%", name, Class(c),
					len(w), sum, shares[c])
			}
		}
	}
}

// A crowd that is refused at once needs the pool's lock for nothing.
func TestRefusalsTakeNoLock(t *testing.T) {
	p := New(config(1), newServers(1), nil)
	p.lacks.Store(&DeniedError{"no right", errDown})
	told := make(chan error, 10)
	p.mu.Lock()
	go func() {
		for why := queue.None; why <= queue.Denied; why++ {
			l, w := queue.New[handover](queue.Config{Size: 1}), new(Waiter)
			l.Push(w, 1)
			told <- p.refusal(l.Clear(why, 0))
		}
		close(told)
	}()
	for range queue.Denied + 1 {
		select {
		case err := <-told:
			if err == nil {
				t.Error("refused without a reason")
			}
		case <-time.After(10 * time.Second):
			t.Error("who is refused waits for the pool's lock")
		}
		if t.Failed() {
			break
		}
	}
	p.mu.Unlock()
	for range told { // until all are
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Leave returns the error of Acquire for a waiter in the queue, and nil for a waiter that was served.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, config(1), newServers(1), view(1))
		release := checkOut(t, p, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		told := make(chan *Session, 1)
		w := NewWaiter(func(g Grant, err error) { told <- g.Session })
		for _, name := range []string{"the first time", "again"} {
			if g, err := p.Wait(w, Ask{}); g.Session != nil || err != nil {
				t.Fatalf("%s: %v, %v", name, g, err)
			}
			time.Sleep(time.Second)
			if name == "again" {
				release()
				p.Release(<-told)
			}
			cancel()
			err := p.Leave(ctx, w)
			if e, ok := errors.AsType[*WaitError](err); ok != (name != "again") ||
				ok && (e.Waited != time.Second || e.Cause != context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if st := p.Stats(); st.TimedOut != 1 || st.InLine() != 0 || st.Idle != 1 {
			t.Errorf("%d were late, %d wait, %d sessions are idle", st.TimedOut, st.InLine(), st.Idle)
		}
	})
}
