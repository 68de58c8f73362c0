package pessimize

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// A storm of bad signs has the judge look no more often than the size of the cluster allows.
func TestLooksInAStorm(t *testing.T) {
	for _, test := range []struct{ nodes, most int }{{3, 101}, {250, 101}, {2500, 11}} {
		synctest.Test(t, func(t *testing.T) {
			j := New(Default(), newProber(), slog.New(slog.DiscardHandler))
			j.SetTopology(many(test.nodes))
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- j.Run(ctx) }()
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			before := j.Stats().Looks
			for range 1000 {
				j.Report(cluster.Outcome{Node: 1, Kind: cluster.CallOpen, Blame: cluster.BlameRefusal})
				time.Sleep(100 * time.Microsecond)
			}
			if n := int(j.Stats().Looks - before); n < 5 || n > test.most {
				t.Errorf("%d nodes: %d looks in 100 ms of bad signs; want at most %d", test.nodes, n, test.most)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// When all nodes refuse, they are compared with each other once in a look.
func TestRefusalsAreComparedOnceALook(t *testing.T) {
	j := New(Default(), newProber(), slog.New(slog.DiscardHandler))
	j.SetTopology(many(300))
	now := time.Now()
	look := func() {
		var probes sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		j.look(ctx, &probes, now)
		probes.Wait()
	}
	look()
	for id := range cluster.NodeID(300) {
		for range 5 {
			j.Report(cluster.Outcome{Node: id + 1, Kind: cluster.CallExecute, Blame: cluster.BlameRefusal})
		}
	}
	before := j.compared
	look()
	if n := j.compared - before; n != 1 {
		t.Errorf("%d comparisons; want 1", n)
	}
	for id, n := range j.nodes {
		if n.condition.Health != cluster.Suspect {
			t.Fatalf("node %d is %v: %s", id, n.condition.Health, n.condition.Reason)
		}
	}
}

func TestMiddleBut(t *testing.T) {
	sorted := []float64{0, 0, 1, 2, 2, 2, 3}
	for length := range len(sorted) + 1 {
		all := sorted[:length]
		if got, ok := middleBut(all, 9, false); ok != (length > 0) || ok && got != all[(length-1)/2] {
			t.Errorf("of %v: %v, %v", all, got, ok)
		}
		for i, own := range all {
			others := slices.Delete(slices.Clone(all), i, i+1)
			got, ok := middleBut(all, own, true)
			if ok != (len(others) > 0) || ok && got != others[(len(others)-1)/2] {
				t.Errorf("of %v without %v: %v, %v", all, own, got, ok)
			}
		}
	}
}

// steady is a judge of count nodes on which all statements took the same time, after one look.
func steady(t testing.TB, count int, took time.Duration) *Detector {
	j := New(Default(), newProber(), slog.New(slog.DiscardHandler))
	j.SetTopology(many(count))
	now := time.Now()
	look := func() {
		var probes sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		j.look(ctx, &probes, now)
		probes.Wait()
	}
	look()
	for id := range cluster.NodeID(count) {
		for range 30 {
			j.Report(cluster.Outcome{Node: id + 1, Kind: cluster.CallExecute, Blame: cluster.BlameSuccess, Latency: took})
		}
	}
	now = now.Add(beat)
	look()
	return j
}

// Lists of nodes compare no latencies, and say what Why says of each.
func TestListsOfNodes(t *testing.T) {
	j := steady(t, 100, time.Millisecond)
	if err := errors.Join(j.Drain(2), j.Ban(3, time.Hour, "")); err != nil {
		t.Fatal(err)
	}
	before := j.compared
	nexts, stats := j.Nexts(), j.Stats()
	if n := j.compared - before; n != 0 || len(nexts) != 100 || len(stats.Nodes) != 100 {
		t.Fatalf("%d comparisons for %d and %d nodes", n, len(nexts), len(stats.Nodes))
	}
	for _, n := range stats.Nodes {
		why, _ := j.Why(n.Node)
		next := nexts[n.Node]
		if next.Drained != why.Drained || n.Drained != why.Drained || n.Listed != why.Listed || n.Hinted != why.Hinted ||
			next.EjectedUntil != why.EjectedUntil {
			t.Errorf("node %d: %+v and %+v; Why %+v", n.Node, next, n, why)
		}
	}
	if j.compared == before {
		t.Error("Why compared nothing")
	}
}

// Where all nodes are alike, no node's latency is compared with all others', however long statements take.
func TestOrdinaryLatenciesAreNotCompared(t *testing.T) {
	if j := steady(t, 200, time.Second); j.compared != 0 {
		t.Errorf("%d comparisons; want none", j.compared)
	}
}

// What ordinary lets through normal would not eject, whichever nodes it compares with.
func TestOrdinaryIsBelowEveryLimit(t *testing.T) {
	c := Default()
	for k := 3; k < 12; k++ {
		all := make([]voice, k)
		for i := range all {
			all[i].median = time.Duration(i+1) * 10 * time.Millisecond
		}
		limit := c.ordinary(all)
		for x := range all {
			others := slices.Delete(slices.Clone(all), x, x+1)
			for set := range 1 << len(others) {
				var some []voice
				for i, v := range others {
					if set>>i&1 == 1 {
						some = append(some, v)
					}
				}
				if len(some) < 2 || 2*len(some) < len(others) {
					continue
				}
				if n := c.normOf("", some, len(others)); n.limit < limit {
					t.Fatalf("of %d nodes %v are below %v, and the limit of %d is %v", k, limit, limit, len(some), n.limit)
				}
			}
		}
	}
}

// Latencies of nodes without calls are not read at each beat; what is counted late is not lost.
func TestLatenciesAreReadWhereThereAreCalls(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		s := (*w.signs.Load())[1]
		recent := func() int { return w.Stats().Nodes[0].Recent }
		s.succeeded.Add(1) // as add does it, step by step
		time.Sleep(beat)
		s.took(cluster.CallExecute, time.Millisecond)
		time.Sleep(beat)
		w.settle()
		if n := recent(); n != 1 {
			t.Errorf("%d latencies; want 1, of a call that was counted before the beat", n)
		}
		w.Report(cluster.Outcome{Node: 1, Kind: cluster.CallExecute, Waited: time.Second}) // given up
		time.Sleep(beat)
		w.settle()
		if n := recent(); n != 2 {
			t.Errorf("%d latencies; want 2, one of a call that was given up", n)
		}
		time.Sleep(2 * beat)
		s.took(cluster.CallExecute, time.Millisecond) // no call
		time.Sleep(2 * beat)
		w.settle()
		if n := recent(); n != 2 {
			t.Errorf("%d latencies; want 2: nothing was to be read", n)
		}
		time.Sleep(Default().LatencyWindow)
		w.settle()
		if n := recent(); n != 0 {
			t.Errorf("%d latencies; want none, they are too old", n)
		}
	})
}

// BenchmarkLook is a look at 5,000 nodes without calls.
func BenchmarkLook(b *testing.B) {
	j := New(Default(), newProber(), slog.New(slog.DiscardHandler))
	j.SetTopology(many(5000))
	now, probes := time.Now(), new(sync.WaitGroup)
	j.look(context.Background(), probes, now)
	b.Run("storm", func(b *testing.B) {
		for b.Loop() {
			j.Report(cluster.Outcome{Node: 1, Kind: cluster.CallOpen, Blame: cluster.BlameRefusal})
			j.look(context.Background(), probes, now)
			j.publish(context.Background())
		}
	})
	b.Run("beat", func(b *testing.B) {
		for b.Loop() {
			j.mu.Lock()
			j.weigh(now)
			j.mu.Unlock()
		}
	})
}
