package pessimize

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// TestRandomWalk throws everything that can happen at the judge, in random
// order, and checks every pair of successive verdicts.
func TestRandomWalk(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		inBubble(t, Default(), func(w *world) {
			check := &walkCheck{T: t, seed: seed, prober: w.prober, last: w.verdicts(), answered: map[cluster.NodeID]int{}}
			w.Subscribe(check.next)
			for range 1500 {
				id := cluster.NodeID(1 + random.IntN(4))
				switch random.IntN(12) {
				case 0, 1, 2, 3:
					w.report(id, cluster.CallKind(random.IntN(cluster.CallKindSize)), cluster.Blame(random.IntN(5)), 1+random.IntN(6))
				case 4, 5:
					w.prober.fail(id, []error{nil, nil, ErrRefused, errors.New("down")}[random.IntN(4)])
				case 6:
					w.SetTopology([]cluster.Topology{nodes(1, 2, 3), nodes(1, 2, 3, 4), nodes(2, 3), nodes(4)}[random.IntN(4)])
				case 7:
					w.prober.mu.Lock()
					w.prober.hang = random.IntN(4) == 0
					w.prober.mu.Unlock()
				default:
					time.Sleep(rand.N(3 * time.Second))
				}
				w.settle()
			}
			// Peace: every node still listed comes back.
			w.prober.mu.Lock()
			w.prober.hang = false
			clear(w.prober.err)
			w.prober.mu.Unlock()
			w.SetTopology(nodes(1, 2, 3, 4))
			time.Sleep(Default().Forget + 2*Default().EjectionMax)
			for id, v := range w.verdicts() {
				if v.Health != cluster.Healthy || v.Leaving || v.Unreachable {
					t.Errorf("seed %d: node %d is %+v after a long peace", seed, id, v)
				}
			}
		})
	}
}

// walkCheck holds each verdict against the one before.
type walkCheck struct {
	*testing.T
	seed     uint64
	prober   *prober
	last     cluster.Verdicts
	answered map[cluster.NodeID]int // probes asked when the node was last seen Ejected
}

func (c *walkCheck) next(verdicts cluster.Verdicts) {
	for id, v := range verdicts {
		was, known := c.last[id]
		if !known {
			was = cluster.Verdict{}
		}
		if v.Health == cluster.Ejected || !known {
			c.answered[id] = c.prober.count(id)
		}
		edge := [2]cluster.Health{was.Health, v.Health}
		if was.Health != v.Health && !edges[edge] {
			c.Errorf("seed %d: node %d went from %v to %v (%s)", c.seed, id, was.Health, v.Health, v.Reason)
		}
		if edge == [2]cluster.Health{cluster.Probing, cluster.Healthy} {
			if n := c.prober.count(id) - c.answered[id]; n < Default().Probes {
				c.Errorf("seed %d: node %d is back after %d probes", c.seed, id, n)
			}
		}
		if was.Health != v.Health && v.Reason == "" {
			c.Errorf("seed %d: node %d is %v without a reason", c.seed, id, v.Health)
		}
		if v.Health == cluster.Healthy && v.Unreachable {
			c.Errorf("seed %d: node %d is healthy and unreachable", c.seed, id)
		}
	}
	c.last = verdicts
}

// edges are the ways between two published verdicts. Two steps of the machine
// may come together where time passed unobserved, but never one that skips
// Probing on the way back.
var edges = map[[2]cluster.Health]bool{
	{cluster.Healthy, cluster.Suspect}: true,
	{cluster.Healthy, cluster.Ejected}: true,
	{cluster.Suspect, cluster.Healthy}: true,
	{cluster.Suspect, cluster.Ejected}: true,
	{cluster.Ejected, cluster.Probing}: true,
	{cluster.Probing, cluster.Healthy}: true,
}

// TestStorm has many goroutines report while the judge runs; -race watches.
func TestStorm(t *testing.T) {
	inBubble(t, Default(), func(w *world) {
		var wait sync.WaitGroup
		for g := range uint64(8) {
			wait.Go(func() {
				random := rand.New(rand.NewPCG(g, 9))
				for range 5000 {
					w.Report(cluster.Outcome{
						Node:  cluster.NodeID(1 + random.IntN(3)),
						Kind:  cluster.CallExecute,
						Blame: cluster.Blame(random.IntN(5)),
					})
				}
			})
		}
		wait.Wait()
		w.settle()
		time.Sleep(5 * time.Minute)
		for id := range cluster.NodeID(3) {
			w.is(id+1, cluster.Healthy)
		}
	})
}
