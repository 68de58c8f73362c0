package pessimize

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// many is a topology of n nodes.
func many(n int) cluster.Topology {
	ids := make([]cluster.NodeID, n)
	for i := range ids {
		ids[i] = cluster.NodeID(i + 1)
	}
	return nodes(ids...)
}

// Nodes that have been lost for long hold up neither a suspect nor a node that was lost just now,
// and all of them are probed in turn. The fewer are lost, the sooner each has its turn: all of them had three before
// the test begins.
func TestProbesOfTheLostHoldUpNobody(t *testing.T) {
	lost, while := cluster.NodeID(short.Of(600, 200)), time.Duration(short.Of(30, 20))*time.Second
	synctest.Test(t, func(t *testing.T) {
		p := &slowProber{hangs: map[cluster.NodeID]bool{}, began: map[cluster.NodeID][]time.Time{}}
		for id := range lost + 1 {
			p.hangs[id+1] = true
		}
		config := Default()
		config.IdleProbe = 0
		j := New(config, p, slog.New(slog.DiscardHandler))
		j.SetTopology(many(int(lost) + 10))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- j.Run(ctx) }()
		synctest.Wait()
		broken := func(id cluster.NodeID, times int) {
			for range times {
				j.Report(cluster.Outcome{Node: id, Kind: cluster.CallExecute, Blame: cluster.BlameTransport, Detail: "UNAVAILABLE"})
			}
		}
		for id := range lost {
			broken(id+1, 2)
		}
		time.Sleep(while)
		since := time.Now()
		broken(lost+1, 2)
		broken(lost+2, 1)
		time.Sleep(while)
		wait := func(id cluster.NodeID) time.Duration {
			if times := p.since(id, since); len(times) > 0 {
				return times[0].Sub(since)
			}
			return time.Hour
		}
		if d := wait(lost + 1); d > 3*time.Second {
			t.Errorf("a node that was lost just now got its first probe after %v", d)
		}
		if d := wait(lost + 2); d > config.ProbeInterval+config.ProbeTimeout/2 {
			t.Errorf("a suspect got its probe after %v", d)
		}
		longest := time.Duration(0)
		for id := range lost {
			times := p.since(id+1, since)
			if len(times) < 2 {
				t.Fatalf("node %d got %d probes in %v", id+1, len(times), while)
			}
			longest = max(longest, slices.MaxFunc(gaps(times), func(a, b time.Duration) int { return cmp.Compare(a, b) }))
		}
		if longest > turn*3/2 {
			t.Errorf("a lost node waited %v for its next probe; want about %v", longest, turn)
		}
		if p.most > maxProbes/2+1 {
			t.Errorf("%d probes at a time; want at most %d", p.most, maxProbes/2)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The first one of idle nodes to be probed is the one that has been silent for longest.
func TestIdleNodesTakeTurns(t *testing.T) {
	const count = 90
	synctest.Test(t, func(t *testing.T) {
		p := newProber()
		j := New(Default(), p, slog.New(slog.DiscardHandler))
		j.SetTopology(many(count))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- j.Run(ctx) }()
		time.Sleep(Default().IdleProbe + (count+10)*idleGap)
		for id := range cluster.NodeID(count) {
			if n := p.count(id + 1); n < 1 || n > 2 {
				t.Errorf("node %d got %d probes; want one, or two", id+1, n)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		wanted  int
		timeout time.Duration
		want    int
	}{{1, time.Second, fewProbes}, {320, time.Second, fewProbes}, {1700, time.Second, 170},
		{5000, time.Second, maxProbes / 2}, {100, 10 * time.Second, 100}} {
		if got := workers(c.wanted, c.timeout); got != c.want {
			t.Errorf("%d wanted, %v each: %d places; want %d", c.wanted, c.timeout, got, c.want)
		}
	}
}

// slowProber hangs for some nodes.
type slowProber struct {
	mu        sync.Mutex // guards all
	hangs     map[cluster.NodeID]bool
	began     map[cluster.NodeID][]time.Time
	now, most int
}

func (p *slowProber) Probe(ctx context.Context, id cluster.NodeID) error {
	p.mu.Lock()
	p.began[id] = append(p.began[id], time.Now())
	p.now++
	p.most = max(p.most, p.now)
	hangs := p.hangs[id]
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.now--
		p.mu.Unlock()
	}()
	if hangs {
		<-ctx.Done()
		return fmt.Errorf("lost: %w", ctx.Err())
	}
	return nil
}

func (p *slowProber) since(id cluster.NodeID, at time.Time) (times []time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.began[id] {
		if !t.Before(at) {
			times = append(times, t)
		}
	}
	return times
}

func gaps(times []time.Time) (all []time.Duration) {
	for i := 1; i < len(times); i++ {
		all = append(all, times[i].Sub(times[i-1]))
	}
	return all
}
