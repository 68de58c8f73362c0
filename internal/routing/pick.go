package routing

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// load is what the calls to one node show. It survives views, so that every
// Leave meets its Enter; alone on its cache lines, because every call writes it.
type load struct {
	calls   atomic.Int64 // open now
	refused atomic.Uint64
	heard   atomic.Bool // it carried out a statement since builder.forgetSilent last looked
	_       [44]byte
	cluster.Load
}

// draw draws nodes at random by weight.
type draw struct {
	nodes []int    // indices in View.Nodes of the nodes with UseNew
	sums  []uint64 // parallel: of the weights up to and with this node
	total uint64
}

// unit is the weight 1 in whole numbers.
const unit = 1 << 20

func (d *draw) add(node int, weight float32) {
	if weight > 0 {
		d.total += max(1, uint64(weight*unit))
	}
	d.nodes = append(d.nodes, node)
	d.sums = append(d.sums, d.total)
}

// node returns the index of the node at place x, below total.
func (d *draw) node(x uint64) int { return d.nodes[d.at(x)] }

// at returns the position of place x: that of the first sum above it.
func (d *draw) at(x uint64) int {
	low, high := 0, len(d.sums)-1
	for low < high {
		if middle := (low + high) / 2; d.sums[middle] <= x {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// two returns the positions of two random nodes by weight: different ones, if
// two have a weight.
func (d *draw) two() (a, b int) {
	a = d.at(rand.Uint64N(d.total))
	before := uint64(0)
	if a > 0 {
		before = d.sums[a-1]
	}
	own := d.sums[a] - before
	if own == d.total {
		return a, a
	}
	x := rand.Uint64N(d.total - own)
	if x >= before {
		x += own
	}
	return a, d.at(x)
}

// Pick names a node for a call that is bound to no session: the one with less
// load of two that are drawn by weight. A node at the cap is passed over; nodes
// without a weight are used when all others are full.
// Errors: ErrNoNode, ErrBusy.
func (r *Router) Pick() (cluster.ViewNode, error) {
	v := r.current.Load()
	i, err := r.pick(v, -1)
	if err != nil {
		return cluster.ViewNode{}, err
	}
	return v.Nodes[i], nil
}

// pick returns the index of a node other than except.
func (r *Router) pick(v *view, except int) (int, error) {
	d := &v.draw
	if d.total == 0 {
		return 0, ErrNoNode
	}
	limit := int64(r.config.MaxCallsPerNode)
	a, b := d.two()
	best, least := -1, 0.0
	for _, position := range [2]int{a, b} {
		k := d.nodes[position]
		calls := v.loads[k].calls.Load()
		if k == except || calls >= limit {
			continue
		}
		if load := v.load(k, calls); best < 0 || load < least {
			best, least = k, load
		}
	}
	if best >= 0 {
		return best, nil
	}
	// Both are full, or the exception: any other will do, but fairly, so from a;
	// those without a weight last.
	usable := false
	spare := -1
	for step := range d.nodes {
		k := d.nodes[(a+step)%len(d.nodes)]
		if k == except {
			continue
		}
		usable = true
		if v.loads[k].calls.Load() >= limit {
			continue
		}
		if v.Nodes[k].Weight > 0 {
			return k, nil
		}
		if spare < 0 {
			spare = k
		}
	}
	switch {
	case spare >= 0:
		return spare, nil
	case !usable:
		return 0, ErrNoNode
	}
	return 0, ErrBusy
}

// load is what one more call to the node would cost. Idle nodes are equal
// whatever their weight, because the draw has heeded it already; the more calls
// are open, the more they are compared with what the weight allows.
func (v *view) load(k int, calls int64) float64 {
	n := &v.Nodes[k]
	return (float64(calls)/float64(n.Weight) + 1) * float64(n.Load.Cost())
}

// observe takes the latency of a call that did its work.
func (v *view) observe(l *load, latency time.Duration) {
	if !l.heard.Load() { // mostly it is set, and needs no write
		l.heard.Store(true)
	}
	if l.Latency() == 0 {
		v.assume(latency)
	}
	l.Observe(latency)
}

// assume gives every node of which nothing was seen the latency of others. Else
// it would look faster than any that did some work: a node that never did would
// draw all calls.
func (v *view) assume(latency time.Duration) {
	for _, l := range v.loads {
		if l.Latency() == 0 {
			l.Observe(latency)
		}
	}
}

// median is the middle one of the latencies seen; 0 if there is none.
func (v *view) median() time.Duration {
	var seen []time.Duration
	for _, l := range v.loads {
		if latency := l.Latency(); latency > 0 {
			seen = append(seen, latency)
		}
	}
	if len(seen) == 0 {
		return 0
	}
	slices.Sort(seen)
	return seen[len(seen)/2]
}
