package cluster

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Load is how long calls to one node take, decayed: the part of a node's load
// that counting calls does not show. internal/routing writes it, internal/pool
// reads it. Its methods take no lock and do not allocate; nil is a Load that
// nobody observed.
type Load struct {
	latency atomic.Uint32 // decayed, in microseconds; 0: nothing seen
	factor  atomic.Uint32 // in percent on top of the latency
	_       [56]byte      // every call writes it
}

// decay is the weight of the past against one new observation, as in TCP's
// smoothed round trip time (RFC 6298): seven eighths.
const decay = 3 // a shift

// Observe takes the latency of one call that did its work. Refusals must not be
// told: they are fast. Observations that race may be lost.
func (l *Load) Observe(latency time.Duration) {
	if l == nil || latency <= 0 {
		return
	}
	next := uint32(min(max(latency.Microseconds(), 1), 1<<28))
	if old := l.latency.Load(); old != 0 {
		next = old - old>>decay + next>>decay
	}
	l.latency.Store(max(next, 1))
}

// SetFactor takes the cluster's own estimate of the node's load, from discovery:
// 0 for none, 1 for twice the cost of a node without. It is bounded to 0 to 10.
func (l *Load) SetFactor(f float32) {
	if l == nil {
		return
	}
	if !(f > 0) { // also not a number
		f = 0
	}
	l.factor.Store(uint32(100 * min(f, 10)))
}

// Forget drops what was observed; the factor stays.
func (l *Load) Forget() {
	if l != nil {
		l.latency.Store(0)
	}
}

// Latency is the decayed latency; 0 if nothing was seen.
func (l *Load) Latency() time.Duration {
	if l == nil {
		return 0
	}
	return time.Duration(l.latency.Load()) * time.Microsecond
}

// Cost is what one more call to the node costs, relative to other nodes: at
// least 1, doubling whenever latency times load factor doubles. Differences of
// less than a factor of two mostly do not show: noise must not steer load.
func (l *Load) Cost() int64 {
	if l == nil {
		return 1
	}
	us := uint64(l.latency.Load()) * uint64(100+l.factor.Load()) / 100
	return 1 << (bits.Len64(us|1) - 1)
}
