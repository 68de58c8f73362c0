package memguard

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a guard whose memory the test sets.
type world struct {
	*Guard
	mu        sync.Mutex
	usage     Usage
	pooled    uint64        // of what is used, until it is given back
	took      time.Duration // by giving back
	collected int
	yielded   []time.Time
	log       strings.Builder
	changes   []bool
}

func start(t *testing.T, c Config) *world {
	w := &world{usage: Usage{Held: 20 << 20}}
	w.Guard = WithLimit(c, 100<<20, slog.New(slog.NewTextHandler(&w.log, nil)))
	w.Guard.usage = func() Usage {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.usage
	}
	w.Guard.collect = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.collected++
		w.usage.Collections++
	}
	w.Guard.yield = func() {
		w.mu.Lock()
		took := w.took
		w.mu.Unlock()
		time.Sleep(took)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.yielded = append(w.yielded, time.Now())
		w.usage.Used -= w.pooled
		w.usage.Held, w.pooled = w.usage.Used, 0
		w.usage.Collections += 2
	}
	w.Watch(func(tight bool) { w.changes = append(w.changes, tight) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

// collections is how many the guard has asked for.
func (w *world) collections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.collected
}

// gaveBack is how many times the guard has given memory back.
func (w *world) gaveBack() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.yielded)
}

// use sets the memory in MiB and waits until the guard has seen it.
func (w *world) use(mib uint64) {
	w.mu.Lock()
	w.usage.Used = mib << 20
	w.usage.Collections++
	w.mu.Unlock()
	time.Sleep(2 * lookEvery)
	synctest.Wait()
}

func TestGuard(t *testing.T) {
	tests := map[string]func(t *testing.T, w *world){
		"closes_in_the_headroom_and_opens_well_outside": func(t *testing.T, w *world) {
			for i, step := range []struct {
				mib   uint64
				tight bool
			}{{10, false}, {79, false}, {81, true}, {79, true}, {71, true}, {69, false}, {79, false}, {99, true}, {0, false}} {
				if w.use(step.mib); w.Tight() != step.tight {
					t.Errorf("step %d: tight is %t with %d of 100 MiB", i, w.Tight(), step.mib)
				}
			}
			if len(w.changes) != 4 || !w.changes[0] || w.changes[1] {
				t.Errorf("watchers were told %v", w.changes)
			}
		},
		"refuses_large_work_only_while_tight": func(t *testing.T, w *world) {
			large := w.config.Large
			if why := w.Refuse(large + 1); why != "" {
				t.Errorf("refused for nothing: %s", why)
			}
			w.use(90)
			if why := w.Refuse(large); why != "" {
				t.Errorf("small work refused: %s", why)
			}
			why := w.Refuse(large + 1)
			for _, want := range []string{"memory.headroom", "memory.large", "GOMEMLIMIT", "100 MiB"} {
				if !strings.Contains(why, want) {
					t.Errorf("%q lacks %q", why, want)
				}
			}
			if st := w.State(); st.Refused != 1 || st.Closed != 1 || !st.Tight || st.Limit != 100<<20 || st.Used != 90<<20 {
				t.Errorf("%+v", st)
			}
		},
		"slows_streams_for_a_moment_each": func(t *testing.T, w *world) {
			began := time.Now()
			w.Slow(t.Context())
			if took := time.Since(began); took != 0 {
				t.Errorf("slowed for %v with memory left", took)
			}
			w.use(90)
			began = time.Now()
			w.Slow(t.Context())
			if took := time.Since(began); took != slowFor {
				t.Errorf("slowed for %v; want %v", took, slowFor)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			began = time.Now()
			w.Slow(ctx)
			if took := time.Since(began); took != 0 {
				t.Errorf("slowed for %v though nobody waits any more", took)
			}
		},
		"lets_streams_go_on_as_soon_as_there_is_memory": func(t *testing.T, w *world) {
			w.use(90)
			time.Sleep(lookEvery - slowFor/2) // the next look is half of slowFor away
			w.mu.Lock()
			w.usage.Used = 0
			w.mu.Unlock()
			began := time.Now()
			w.Slow(t.Context())
			if took := time.Since(began); took >= slowFor {
				t.Errorf("slowed for %v; want less than %v", took, slowFor)
			}
		},
		"gives_back_what_a_burst_took_once_it_is_over": func(t *testing.T, w *world) {
			w.use(20)
			burst := func(held uint64) time.Time {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.usage.Held = held << 20
				w.usage.Collections++
				w.yielded = nil
				return time.Now()
			}
			times := func(after time.Duration, most uint64) int {
				began := burst(most)
				time.Sleep(after)
				w.mu.Lock()
				defer w.mu.Unlock()
				for _, at := range w.yielded {
					if d := at.Sub(began); d < restsAfter || d > restsAfter+2*lookEvery {
						t.Errorf("given back after %v; want %v", d, restsAfter)
					}
				}
				return len(w.yielded)
			}
			if n := times(time.Minute, 90); n != 1 {
				t.Errorf("given back %d times; want once", n)
			}
			if n := times(time.Minute, 25); n != 0 {
				t.Errorf("little is given back, %d times", n)
			}
			w.mu.Lock()
			w.usage.Used, w.pooled = 80<<20, 60<<20
			w.mu.Unlock()
			if n := times(time.Minute, 85); n != 1 {
				t.Errorf("pools of a burst are given back %d times; want once", n)
			}
			for range 10 { // it is at work, and collects
				if n := times(restsAfter/2, 90); n != 0 {
					t.Errorf("given back %d times while it is at work", n)
				}
			}
		},
		"gives_back_what_was_in_use_when_it_tried_first": func(t *testing.T, w *world) {
			w.use(20)
			w.mu.Lock()
			w.usage.Used, w.usage.Held = 80<<20, 90<<20
			w.usage.Collections++
			w.mu.Unlock()
			time.Sleep(restsAfter + 2*lookEvery)
			if n := w.gaveBack(); n != 1 {
				t.Fatalf("given back %d times; want once", n)
			}
			w.mu.Lock()
			w.pooled = 60 << 20 // whoever used it has left, and no collection saw that
			w.mu.Unlock()
			time.Sleep(againAfter + 2*lookEvery)
			synctest.Wait()
			if n := w.gaveBack(); n != 2 || w.usage.Held != 20<<20 {
				t.Errorf("given back %d times, and %d MiB are held; want twice, and 20", n, w.usage.Held>>20)
			}
			time.Sleep(10 * againAfter)
			synctest.Wait()
			if n := w.gaveBack(); n != 2 {
				t.Errorf("given back %d times with nothing left to give", n)
			}
		},
		"seeks_what_is_in_use_for_good_now_and_then": func(t *testing.T, w *world) {
			w.use(20)
			w.mu.Lock()
			w.usage.Used, w.usage.Held = 80<<20, 90<<20
			w.mu.Unlock()
			time.Sleep(10 * againAfter)
			w.mu.Lock()
			defer w.mu.Unlock()
			if n := len(w.yielded); n < 9 || n > 10 {
				t.Errorf("sought %d times in %v; want 9 or 10", n, 10*againAfter)
			}
			for i := range len(w.yielded) - 1 {
				if d := w.yielded[i+1].Sub(w.yielded[i]); d < againAfter || d > againAfter+2*lookEvery {
					t.Errorf("sought again after %v; want %v", d, againAfter)
				}
			}
		},
		"gives_back_in_a_small_part_of_the_time": func(t *testing.T, w *world) {
			const took = time.Second
			w.use(20)
			w.mu.Lock()
			w.usage.Used, w.usage.Held, w.took = 80<<20, 90<<20, took
			w.mu.Unlock()
			time.Sleep(10 * againTimes * took)
			synctest.Wait()
			if n := w.gaveBack(); n < 9 || n > 10 {
				t.Errorf("given back %d times in %v, for %v each; want 9 or 10", n, 10*againTimes*took, took)
			}
		},
		"asks_for_a_collection_if_none_comes": func(t *testing.T, w *world) {
			w.use(10)
			time.Sleep(time.Minute)
			if n := w.collections(); n != 0 {
				t.Errorf("%d collections with memory left", n)
			}
			w.use(90)
			time.Sleep(10 * collectEvery)
			if n := w.collections(); n < 8 || n > 11 {
				t.Errorf("%d collections in %v; want about 9", n, 10*collectEvery)
			}
		},
		"logs_now_and_then": func(t *testing.T, w *world) {
			for range 20 {
				w.use(90)
				w.use(10)
			}
			if n := strings.Count(w.log.String(), "memory is short"); n != 1 {
				t.Errorf("%d lines within %v; want 1", n, 40*2*lookEvery)
			}
			time.Sleep(logEvery)
			w.use(90)
			if n := strings.Count(w.log.String(), "times=20"); n != 1 {
				t.Errorf("no line that counts the others: %s", w.log.String())
			}
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, start(t, Default())) })
		})
	}
}

func TestNoGuard(t *testing.T) {
	var g *Guard
	g.Watch(func(bool) { t.Error("told") })
	g.Slow(t.Context())
	if g.Tight() || g.Refuse(1<<40) != "" || g.State() != (State{}) {
		t.Error("a nil guard closes")
	}
	limit := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(limit)
	if New(Default(), slog.New(slog.DiscardHandler)) != nil {
		t.Error("a guard without a limit")
	}
	debug.SetMemoryLimit(1 << 30)
	if New(Config{Headroom: 0, Large: 1 << 20}, nil) != nil {
		t.Error("a guard without headroom")
	}
	if g := New(Default(), nil); g == nil || g.limit != 1<<30 {
		t.Errorf("%+v; want a guard of 1 GiB", g)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{Headroom: -1, Large: 1 << 20}, {Headroom: 81, Large: 1 << 20}, {Headroom: 10, Large: 1000}} {
		if c.Validate() == nil {
			t.Errorf("no fault in %+v", c)
		}
	}
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
}

// What is alive counts, what is garbage does not.
func TestGauge(t *testing.T) {
	g := newGauge()
	runtime.GC()
	before := g.read()
	held := make([]byte, 64<<20)
	for i := range held { // so that it is there
		held[i] = 1
	}
	runtime.GC()
	with := g.read()
	runtime.KeepAlive(held)
	held = nil
	runtime.GC()
	after := g.read()
	if grown := int64(with.Used - before.Used); grown < 60<<20 || grown > 80<<20 {
		t.Errorf("%d bytes more with 64 MiB held", grown)
	}
	if left := int64(after.Used) - int64(before.Used); left > 8<<20 {
		t.Errorf("%d bytes more after they are gone", left)
	}
	if after.Collections < before.Collections+2 {
		t.Errorf("%d collections, then %d", before.Collections, after.Collections)
	}
	if n := testing.AllocsPerRun(100, func() { g.read() }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	garbage := g.read()
	giveBack()
	if given := g.read(); garbage.Held-min(garbage.Held, given.Held) < 50<<20 {
		t.Errorf("the system has %d bytes of it, then %d; want 64 MiB less", garbage.Held, given.Held)
	}
}
