package routing

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// Topologies, verdicts and calls in any order, under every setting: what the
// package comment promises holds after each step.
func TestWalk(t *testing.T) {
	for seed := range uint64(short.Of(60, 12)) {
		w := newWalk(t, seed)
		for range 300 {
			w.step()
			w.check()
		}
		w.end()
	}
}

type walk struct {
	*testing.T
	*rand.Rand
	seed   uint64
	r      *Router
	config Config
	listed []cluster.NodeID
	loads  map[cluster.NodeID]*cluster.Load
	calls  []cluster.NodeID
	heard  []cluster.View
}

func newWalk(t *testing.T, seed uint64) *walk {
	w := &walk{T: t, Rand: rand.New(rand.NewPCG(seed, 1)), seed: seed, loads: map[cluster.NodeID]*cluster.Load{}}
	w.config = Default()
	w.config.Zone = []string{"any", "local", "nearest", "a", "a,b", "nowhere"}[w.IntN(6)]
	w.config.LocalZone = []string{"", "b"}[w.IntN(2)]
	w.config.MaxCallsPerNode = 1 + w.IntN(5)
	w.r = New(w.config)
	w.r.Subscribe(func(v cluster.View) { w.heard = append(w.heard, v) })
	return w
}

func (w *walk) fail(format string, args ...any) {
	w.Helper()
	w.Logf("seed %d, %+v", w.seed, w.config)
	for _, n := range w.r.View().Nodes {
		w.Logf("%+v", n)
	}
	w.Fatalf(format, args...)
}

func (w *walk) step() {
	switch w.IntN(5) {
	case 0:
		w.topology()
	case 1:
		w.conditions()
	case 2, 3:
		n, err := w.r.Pick()
		if err == nil && w.r.Enter(n.ID) {
			w.calls = append(w.calls, n.ID)
		}
	default:
		if len(w.calls) > 0 {
			i := w.IntN(len(w.calls))
			w.leave(w.calls[i])
			w.calls = slices.Delete(w.calls, i, i+1)
		}
	}
}

func (w *walk) leave(id cluster.NodeID) {
	w.r.Leave(cluster.Outcome{
		Node: id, Kind: cluster.CallKind(w.IntN(cluster.CallKindSize)), Blame: cluster.Blame(w.IntN(5)),
		Latency: time.Duration(w.Int64N(int64(time.Second))) - time.Millisecond,
	})
}

func (w *walk) topology() {
	var nodes []cluster.Node
	for id := range cluster.NodeID(9) {
		if w.IntN(4) > 0 {
			n := topology(id + 1).Nodes[0]
			n.Zone = []string{"a", "b", "c", ""}[(id+cluster.NodeID(w.seed))%4]
			n.LoadFactor = []float32{0, 0.3, 5, -1}[w.IntN(4)]
			nodes = append(nodes, n)
		}
	}
	if len(nodes) > 0 {
		w.listed = w.listed[:0]
		for _, n := range nodes {
			w.listed = append(w.listed, n.ID)
		}
	}
	t := cluster.NewTopology(nodes, []string{"", "a", "c"}[w.IntN(3)])
	t.Nearest = []string{"", "b", "gone"}[w.IntN(3)]
	w.r.SetTopology(t)
}

func (w *walk) conditions() {
	v := cluster.Conditions{}
	for id := range cluster.NodeID(9) {
		v[id+1] = cluster.Condition{
			Health:      cluster.Health(w.IntN(4)),
			Draining:    w.IntN(5) == 0,
			Unreachable: w.IntN(3) == 0,
			Banned:      w.IntN(6) == 0,
			Ramp:        []float32{0, 0, 0.05, 0.5, 1, -1}[w.IntN(6)],
			Joined:      w.IntN(2) == 0,
		}
	}
	w.r.SetConditions(v)
}

func (w *walk) check() {
	v := w.r.View()
	most, unbanned, freshBanned := float32(0), false, false
	for i, n := range v.Nodes {
		listed := slices.Contains(w.listed, n.ID)
		switch {
		case i > 0 && v.Nodes[i-1].ID >= n.ID:
			w.fail("the nodes are not in order")
		case !(n.Weight >= 0 && n.Weight <= 1):
			w.fail("node %d has weight %v", n.ID, n.Weight)
		case n.Weight > 0 && n.Use != cluster.UseNew:
			w.fail("node %d has weight %v and use %v", n.ID, n.Weight, n.Use)
		case n.Use == cluster.UseNew && !listed:
			w.fail("node %d is not listed and gets new work", n.ID)
		case n.Load == nil, w.loads[n.ID] != nil && w.loads[n.ID] != n.Load:
			w.fail("node %d has another load than before", n.ID)
		}
		w.loads[n.ID] = n.Load
		most = max(most, n.Weight)
		unbanned = unbanned || listed && !n.Condition.Banned
		freshBanned = freshBanned || n.Condition.Banned && n.Use == cluster.UseNew
	}
	if len(w.listed) == 0 {
		return
	}
	if most == 0 {
		w.fail("no node gets new work")
	}
	if unbanned && freshBanned {
		w.fail("a banned node gets new work, though others are left")
	}
	w.checkParts(v)
	w.checkPick(v)
	if last := w.heard[len(w.heard)-1]; !sameView(last, v) {
		w.fail("the subscriber knows another view: %+v", last)
	}
	if n := len(w.heard); n > 1 && sameView(w.heard[n-1], w.heard[n-2]) {
		w.fail("the subscriber was told twice")
	}
}

func sameView(a, b cluster.View) bool { return a.Panic == b.Panic && slices.Equal(a.Nodes, b.Nodes) }

// checkParts compares the weights inside and outside of the preferred zones with
// what Stats says, and what either side may carry.
func (w *walk) checkParts(v cluster.View) {
	s := w.r.Stats()
	near, far, nearNodes, farFresh := 0.0, 0.0, 0, 0
	for _, n := range v.Nodes {
		if len(s.Preferred) == 0 || slices.Contains(s.Preferred, n.Zone) {
			near += float64(n.Weight)
			if n.Use == cluster.UseNew {
				nearNodes++
			}
		} else {
			far += float64(n.Weight)
			if n.Use == cluster.UseNew {
				farFresh++
			}
		}
	}
	if got := near / (near + far); math.Abs(got-s.Local) > 1e-3 {
		w.fail("%.4f of the weight is local; Stats says %.4f", got, s.Local)
	}
	if nearNodes > 0 && near == 0 || nearNodes == 0 && near > 0 || farFresh == 0 && s.Local != 1 {
		w.fail("local %.4f with %d nodes here, %d elsewhere", s.Local, nearNodes, farFresh)
	}
}

func (w *walk) checkPick(v cluster.View) {
	room, spare := false, false
	for _, n := range w.r.Stats().Nodes {
		if n.Node.Use == cluster.UseNew && n.Calls < int64(w.config.MaxCallsPerNode) {
			room = room || n.Node.Weight > 0
			spare = spare || n.Node.Weight == 0
		}
	}
	n, err := w.r.Pick()
	switch {
	case room && (err != nil || n.Weight == 0), !room && spare && (err != nil || n.Weight != 0):
		w.fail("Pick = %d, %v; nodes with a weight have room: %v, without: %v", n.ID, err, room, spare)
	case !room && !spare && err != ErrBusy:
		w.fail("Pick = %d, %v; all are full", n.ID, err)
	}
}

// end lets all calls go, also those on nodes that left.
func (w *walk) end() {
	for _, id := range w.calls {
		w.leave(id)
	}
	for id := range cluster.NodeID(9) {
		if l := w.r.builder.loads[id+1]; l != nil && l.calls.Load() != 0 {
			w.fail("%d calls open on node %d after all left", l.calls.Load(), id+1)
		}
	}
}
