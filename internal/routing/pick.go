package routing

import (
	"math/rand/v2"
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

// left ends a call. One that entered while its node was being forgotten was counted elsewhere: it must
// not make the count negative, not even for a moment in which another call enters.
func (l *load) left() {
	for {
		n := l.calls.Load()
		if n <= 0 || l.calls.CompareAndSwap(n, n-1) {
			return
		}
	}
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
	k, other := d.nodes[a], d.nodes[b]
	callsK, callsOther := v.loads[k].calls.Load(), v.loads[other].calls.Load()
	fitsK, fitsOther := k != except && callsK < limit, other != except && callsOther < limit
	switch {
	case fitsK && (!fitsOther || !v.lighter(other, callsOther, k, callsK)):
		return k, nil
	case fitsOther:
		return other, nil
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

// lighter reports whether one more call to node i, which has some open already,
// costs less than one to node j. Idle nodes are equal whatever their weight,
// because the draw has heeded it already; the more calls are open, the more they
// are compared with what the weight allows. A node of which nothing is known is
// taken to be as fast as the other: it must not draw all calls, as would one that
// refuses them all and so never shows how fast it is.
func (v *view) lighter(i int, callsI int64, j int, callsJ int64) bool {
	costI, costJ := v.loads[i].Cost(), v.loads[j].Cost()
	if min(costI, costJ) == 1 {
		costI, costJ = 1, 1
	}
	loadI := float64(callsI)/float64(v.Nodes[i].Weight) + 1
	loadJ := float64(callsJ)/float64(v.Nodes[j].Weight) + 1
	return loadI*float64(costI) < loadJ*float64(costJ)
}

// observe takes the latency of a call that did its work.
func (l *load) observe(latency time.Duration) {
	if !l.heard.Load() { // mostly it is set, and needs no write
		l.heard.Store(true)
	}
	l.Observe(latency)
}
