package pool

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The benchmarks compare the pool with what Go programs use instead, in the same
// run: see peers_test.go. cpu-ns/op is the CPU time of the whole process for one
// acquire and release; with goroutines on several cores it exceeds ns/op, which
// is wall time. "none" is the loop around it. The pool has three nodes and its
// maintenance running.

// BenchmarkSpare: sessions suffice, so nobody waits, and the loop does nothing
// but take and give: the worst case for contention.
func BenchmarkSpare(b *testing.B) {
	for _, g := range []int{1, 2, 16, 500, 1000, 2000} {
		for _, peer := range peers {
			b.Run(fmt.Sprintf("goroutines=%d/%s", g, peer.name), func(b *testing.B) {
				measure(b, peer, g, max(50, g), nil)
			})
		}
	}
}

// BenchmarkSpareYield: the same, but a goroutine yields while it holds a session,
// as it would in a call.
func BenchmarkSpareYield(b *testing.B) {
	for _, g := range []int{2, 16, 500, 2000} {
		for _, peer := range peers {
			b.Run(fmt.Sprintf("goroutines=%d/%s", g, peer.name), func(b *testing.B) {
				measure(b, peer, g, max(50, g), runtime.Gosched)
			})
		}
	}
}

// BenchmarkWait: more goroutines than sessions; each yields while it holds one.
func BenchmarkWait(b *testing.B) {
	for _, g := range []int{500, 1000, 2000} {
		for _, peer := range peers {
			if peer.name == "none" {
				continue
			}
			b.Run(fmt.Sprintf("goroutines=%d/sessions=50/%s", g, peer.name), func(b *testing.B) {
				measure(b, peer, g, 50, runtime.Gosched)
			})
		}
	}
}

func cpuTime() time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		panic(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// measure runs goroutines that take a session, hold it and give it back, about
// b.N times in all. Each counts its turns, and the time of one in 16 if
// some have to wait. Long: what is in the loop is measured, and a call more would be measured with it.
func measure(b *testing.B, shape peer, goroutines, sessions int, hold func()) {
	const (
		warming = iota
		measuring
		over
	)
	p, waiting := shape.open(b, sessions), goroutines > sessions
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	step := int64(64)
	if waiting {
		step = 16
	}
	var phase, warm atomic.Int32
	var done atomic.Int64
	ready, finished := make(chan struct{}), make(chan struct{})
	turns := make([]int64, goroutines)
	waits := make([][]time.Duration, goroutines)
	var wg sync.WaitGroup
	for i := range goroutines {
		// The buffer's size bounds the samples, so that none is allocated under way.
		wait := make([]time.Duration, 0, 1<<20/goroutines)
		wg.Go(func() {
			// The scheduler reads the clock at every turn if its P has a timer, as it
			// has in any process whose calls have deadlines.
			deadline := time.AfterFunc(time.Hour, func() {})
			defer deadline.Stop()
			for k := 0; phase.Load() == warming; k++ {
				p.put(p.get(ctx))
				if k == 3 && warm.Add(1) == int32(goroutines) {
					close(ready)
				}
				runtime.Gosched() // let the others warm up
			}
			n := int64(0)
			for phase.Load() == measuring {
				switch {
				case !waiting: // a tight loop, because what is in it is fast
					for range 64 {
						s := p.get(ctx)
						if hold != nil {
							hold()
						}
						p.put(s)
					}
					n += 64
				case n&15 == 8 && len(wait) < cap(wait):
					start := time.Now()
					s := p.get(ctx)
					wait = append(wait, time.Since(start))
					hold()
					p.put(s)
					n++
				default:
					s := p.get(ctx)
					hold()
					p.put(s)
					n++
				}
				if n&15 == 0 && done.Add(step) >= int64(b.N) && phase.CompareAndSwap(measuring, over) {
					close(finished)
				}
			}
			turns[i], waits[i] = n, wait
		})
	}
	<-ready
	runtime.GC()
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	phase.Store(measuring)
	<-finished
	cpu = cpuTime() - cpu
	b.StopTimer()
	wg.Wait()

	reportTurns(b, turns, waits, cpu, waiting)
}

// reportTurns reports the CPU time of a turn and, if some have to wait, how even the turns were and how long a wait took.
func reportTurns(b *testing.B, turns []int64, waits [][]time.Duration, cpu time.Duration, waiting bool) {
	goroutines := len(turns)
	sum := int64(0)
	for _, n := range turns {
		sum += n
	}
	b.ReportMetric(float64(cpu)/float64(sum), "cpu-ns/op")
	if !waiting {
		return
	}
	if least, most := slices.Min(turns), slices.Max(turns); sum >= 100*int64(goroutines) {
		b.ReportMetric(float64(least)/float64(most), "least/most")
	}
	all := slices.Concat(waits...)
	slices.Sort(all)
	if len(all) > 100 {
		b.ReportMetric(float64(all[len(all)/2])/1e3, "p50-us")
		b.ReportMetric(float64(all[len(all)*99/100])/1e3, "p99-us")
	}
}

// BenchmarkFull: what it takes to be refused by a full queue of a thousand, in which 64
// apps wait: by one that has more than its part of it, and by one that takes the place
// of another.
func BenchmarkFull(b *testing.B) {
	for _, name := range []string{"flood", "newcomer"} {
		b.Run(name, func(b *testing.B) {
			cfg := Default()
			cfg.Max, cfg.Queue = 1, 1000
			p := start(b, cfg, newServers(1), view(1))
			g, err := p.Acquire(b.Context(), Ask{Class: Normal})
			if err != nil {
				b.Fatal(err)
			}
			defer p.Release(g.Session)
			waiting := 0
			join := func(app int) (*Waiter, error) {
				w := NewWaiter(func(g Grant, err error) {
					if waiting--; err == nil {
						p.Release(g.Session)
					}
				})
				waiting++
				_, err := p.Wait(w, Ask{Class: Normal, App: uint8(app)})
				return w, err
			}
			for i := range cfg.Queue {
				if _, err := join(i % 64); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			w := NewWaiter(func(Grant, error) {})
			for b.Loop() {
				if name == "flood" {
					if _, err := p.Wait(w, Ask{Class: Normal, App: 1}); err != ErrQueueFull {
						b.Fatal(err)
					}
					continue
				}
				if _, err := p.Wait(w, Ask{Class: Normal, App: 100}); err != nil {
					b.Fatal(err)
				}
				p.Cancel(w)
				b.StopTimer()
				if _, err := join(waiting % 64); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkManyNodes: few sessions on many nodes, most of them in use: what it takes to find one.
func BenchmarkManyNodes(b *testing.B) {
	for _, nodes := range []int{3, 50, 500, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			p := warmPool(b, 50, nodes)
			defer checkOut(b, p, 40)()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					// Not the sessions in slots, which need no choice.
					s := p.pick()
					if s == nil {
						b.Error("no session")
						return
					}
					p.shelve(s)
				}
			})
		})
	}
}

// BenchmarkViewOfMany: a new view of 1,000 nodes with 10,000 sessions, in which one weight changed, or all: what it takes while the
// lock is held.
func BenchmarkViewOfMany(b *testing.B) {
	for _, change := range []string{"nothing", "one_weight", "all_weights"} {
		b.Run(change, func(b *testing.B) {
			p := warmPool(b, manySessions, manyNodes)
			v := p.viewed
			b.ReportAllocs()
			cpu := cpuTime()
			for i := 0; b.Loop(); i++ {
				v.Nodes = slices.Clone(v.Nodes)
				for k := range v.Nodes {
					if change == "all_weights" || change == "one_weight" && k == 7 {
						v.Nodes[k].Weight = 1 + float32(i%2)
					}
				}
				p.mu.Lock()
				p.viewLocked(v)
				p.mu.Unlock()
			}
			b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkOpenOnMany: a pool opens 10,000 sessions on 1,000 nodes, for callers who wait.
func BenchmarkOpenOnMany(b *testing.B) {
	cpu := cpuTime()
	for b.Loop() {
		warmPool(b, manySessions, manyNodes)
	}
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
}

// BenchmarkTargetOfMany: the choice of a node for one more session.
func BenchmarkTargetOfMany(b *testing.B) {
	p := warmPool(b, manySessions, manyNodes)
	p.mu.Lock()
	defer p.mu.Unlock()
	cpu := cpuTime()
	for b.Loop() {
		if n, _ := p.targetLocked(time.Now()); n == nil {
			b.Fatal("none")
		}
	}
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
}
