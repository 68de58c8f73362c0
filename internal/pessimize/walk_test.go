package pessimize

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// TestRandomWalk throws everything that can happen at the judge, in random
// order, and checks every pair of successive verdicts.
func TestRandomWalk(t *testing.T) {
	var ejections [cluster.CauseSize]uint64
	var doubts [doubtStates]int
	for seed := range uint64(short.Of(12, 2)) {
		random := rand.New(rand.NewPCG(seed, 3))
		inBubble(t, Default(), func(w *world) {
			check := &walkCheck{
				T: t, Detector: w.Detector, seed: seed, prober: w.prober, last: w.conditions(), listed: 3,
				answered: map[cluster.NodeID]int{}, repeats: map[cluster.NodeID]int{},
				returned: map[cluster.NodeID]time.Time{}, orders: map[cluster.NodeID]overrides{},
			}
			w.Subscribe(check.next)
			steps := watchDoubts(check, &doubts)
			defer steps.stop()
			for range 1000 {
				check.disturb(w, random)
				w.settle()
				check.obeyed(w.conditions())
				steps.agree()
			}
			check.peace(w)
			for cause, n := range w.Stats().Ejections {
				ejections[cause] += n
			}
		})
	}
	for cause, n := range ejections[1:] {
		if n == 0 {
			t.Errorf("the walk ejected nobody for %v", cluster.Cause(cause+1))
		}
	}
	for state, n := range doubts {
		if n == 0 && !testing.Short() { // a few seeds lead to two of them
			t.Errorf("the walk led to no doubt that is %v", doubtState(state))
		}
	}
	t.Log(ejections, doubts)
}

// disturb does something to one node or several: calls, probes, topologies and overrides.
func (c *walkCheck) disturb(w *world, random *rand.Rand) {
	id := cluster.NodeID(1 + random.IntN(4))
	switch random.IntN(16) {
	case 0, 1, 2, 3:
		w.report(id, cluster.CallKind(random.IntN(cluster.CallKindSize)), cluster.Blame(random.IntN(5)), 1+random.IntN(6))
	case 4, 5:
		w.prober.fail(id, []error{nil, nil, ErrRefused, errors.New("down")}[random.IntN(4)])
	case 6:
		t := []cluster.Topology{nodes(1, 2, 3), nodes(1, 2, 3, 4), nodes(2, 3), nodes(4)}[random.IntN(4)]
		w.SetTopology(t)
		w.settle()
		c.listed = len(t.Nodes)
	case 7:
		w.prober.mu.Lock()
		w.prober.hang = random.IntN(4) == 0
		w.prober.mu.Unlock()
	case 8:
		w.prober.take(id, []time.Duration{0, 0, 50 * time.Millisecond, 900 * time.Millisecond}[random.IntN(4)])
	case 9, 10, 11: // some are slow, or their callers give up
		load := map[cluster.NodeID][]traffic{}
		for id := range cluster.NodeID(4) {
			t := statements(100, around([]time.Duration{time.Millisecond, 50 * time.Millisecond}[random.IntN(5)/4]))
			t.gives = []time.Duration{0, 0, 30 * time.Millisecond}[random.IntN(3)]
			load[id+1] = []traffic{t}
		}
		w.drive(random.Uint64(), rand.N(3*time.Second), load)
	case 12:
		c.order(id, random.IntN(4), time.Duration(random.IntN(3))*5*time.Second)
	default:
		time.Sleep(rand.N(3 * time.Second))
	}
}

// peace ends the faults: every node still listed comes back.
func (c *walkCheck) peace(w *world) {
	w.prober.mu.Lock()
	w.prober.hang = false
	clear(w.prober.err)
	clear(w.prober.takes)
	w.prober.mu.Unlock()
	w.SetTopology(nodes(1, 2, 3, 4))
	w.settle()
	c.listed = 4
	for id := range cluster.NodeID(4) {
		w.do(w.Unban(id + 1))
		w.do(w.Undrain(id + 1))
	}
	time.Sleep(Default().Forget + 2*Default().EjectionMax)
	for id, v := range w.conditions() {
		if v.Health != cluster.Healthy || v.Draining || v.Unreachable || v.Banned || v.Ramp != 0 {
			c.Errorf("seed %d: node %d is %+v after a long peace", c.seed, id, v)
		}
	}
}

// walkCheck holds each verdict against the one before, and against a model of
// the orders and of the ejection times.
type walkCheck struct {
	*testing.T
	*Detector
	seed     uint64
	prober   *prober
	listed   int // nodes in discovery
	last     cluster.Conditions
	answered map[cluster.NodeID]int // probes asked when the node was last seen Ejected
	repeats  map[cluster.NodeID]int // as the rule has it
	returned map[cluster.NodeID]time.Time
	orders   map[cluster.NodeID]overrides
	event    uint64
	state    map[cluster.NodeID]string // by the events
}

func (c *walkCheck) next(verdicts cluster.Conditions) {
	config := Default()
	for id, v := range verdicts {
		was, known := c.last[id]
		if !known {
			was = cluster.Condition{}
			delete(c.repeats, id)
		}
		if v.Health == cluster.Ejected || !known {
			c.answered[id] = c.prober.count(id)
		}
		edge := [2]cluster.Health{was.Health, v.Health}
		if was.Health != v.Health && !edges[edge] {
			c.Errorf("seed %d: node %d went from %v to %v (%s)", c.seed, id, was.Health, v.Health, v.Reason)
		}
		if edge == [2]cluster.Health{cluster.Probing, cluster.Healthy} {
			if n := c.prober.count(id) - c.answered[id]; n < config.Probes {
				c.Errorf("seed %d: node %d is back after %d probes", c.seed, id, n)
			}
			c.returned[id] = v.Since
			if v.Ramp != rampFirst {
				c.Errorf("seed %d: node %d is back with a share of %v", c.seed, id, v.Ramp)
			}
		}
		if was.Health != v.Health && v.Reason == "" {
			c.Errorf("seed %d: node %d is %v without a reason", c.seed, id, v.Health)
		}
		if v.Health == cluster.Healthy && v.Unreachable {
			c.Errorf("seed %d: node %d is healthy and unreachable", c.seed, id)
		}
		out := v.Health == cluster.Ejected || v.Health == cluster.Probing
		if out != (v.Cause != cluster.CauseNone) || out && v.Ramp != 0 || v.Ramp < 0 || v.Ramp >= 1 {
			c.Errorf("seed %d: node %d is %+v", c.seed, id, v)
		}
		if !out && known && was.Ramp == 0 && v.Ramp != 0 && edge[0] != cluster.Probing && !(was.Draining && !v.Draining) {
			c.Errorf("seed %d: node %d has a share of %v after all of it", c.seed, id, v.Ramp)
		}
		if was.Health <= cluster.Suspect && v.Health == cluster.Ejected {
			c.ejected(id, v, verdicts)
		}
	}
	c.last = verdicts
}

// ejected checks the time of an ejection against the rule, and the cap.
func (c *walkCheck) ejected(id cluster.NodeID, v cluster.Condition, all cluster.Conditions) {
	config := Default()
	forgiven := 0
	if c.repeats[id] > 0 {
		forgiven = int(v.Since.Sub(c.returned[id]) / config.Forgive)
	}
	c.repeats[id] = max(0, c.repeats[id]-forgiven) + 1
	why, _ := c.Why(id)
	want := min(config.Ejection<<(c.repeats[id]-1), config.EjectionMax)
	if got := why.EjectedUntil.Sub(v.Since); why.Repeats != c.repeats[id] || got < want*4/5 || got > want*6/5 {
		c.Errorf("seed %d: node %d is ejected for %v, as number %d; want %v ± a fifth, number %d", c.seed, id, got,
			why.Repeats, want, c.repeats[id])
	}
	if v.Cause != cluster.CauseLatency {
		return
	}
	if !strings.Contains(v.Reason, "the limit is") || v.Unreachable {
		c.Errorf("seed %d: node %d: %+v", c.seed, id, v)
	}
	soft := 0
	for id, v := range all {
		if why, _ := c.Why(id); why.Listed && !v.Banned && v.Health > cluster.Suspect && !v.Unreachable && v.Cause == cluster.CauseLatency {
			soft++
		}
	}
	if c.listed < 3 || soft > 1 {
		c.Errorf("seed %d: %d of %d nodes ejected for their latency", c.seed, soft, c.listed)
	}
}

// order gives a random order and notes it in the model.
func (c *walkCheck) order(id cluster.NodeID, what int, d time.Duration) {
	o := c.orders[id]
	var err error
	switch what {
	case 0:
		o.banned, o.until = true, time.Time{}
		if d > 0 {
			o.until = time.Now().Add(d)
		}
		err = c.Ban(id, d, "walk")
	case 1:
		o.banned, o.until = false, time.Time{}
		err = c.Unban(id)
	case 2:
		o.drained = true
		err = c.Drain(id)
	case 3:
		o.drained = false
		err = c.Undrain(id)
	}
	if err == nil {
		c.orders[id] = o
	} else if _, known := c.Why(id); known || !errors.Is(err, ErrUnknown) {
		c.Errorf("seed %d: node %d: %v", c.seed, id, err)
	}
}

// obeyed checks what is published against the orders.
func (c *walkCheck) obeyed(verdicts cluster.Conditions) {
	for id, v := range verdicts {
		o := c.orders[id]
		if banned := o.banned && (o.until.IsZero() || time.Now().Before(o.until)); v.Banned != banned {
			c.Errorf("seed %d: node %d: banned %v; want %v", c.seed, id, v.Banned, banned)
		}
		if o.drained && !v.Draining {
			c.Errorf("seed %d: node %d is drained but not leaving", c.seed, id)
		}
	}
	if c.state == nil {
		c.state = map[cluster.NodeID]string{}
	}
	for _, e := range c.Events(c.event) {
		if e.Seq != c.event+1 {
			c.Errorf("seed %d: event %d follows %d", c.seed, e.Seq, c.event)
		}
		c.event = e.Seq
		switch e.Kind {
		case EventNode:
			c.state[e.Node] = cluster.Healthy.String()
		case EventState:
			if e.From != c.state[e.Node] || e.Reason == "" {
				c.Errorf("seed %d: %+v, but it was %s", c.seed, e, c.state[e.Node])
			}
			c.state[e.Node] = e.To
		}
	}
	for id, v := range verdicts {
		if c.state[id] != v.Health.String() {
			c.Errorf("seed %d: node %d is %v; by the events it is %s", c.seed, id, v.Health, c.state[id])
		}
	}
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
