package app

import (
	"context"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/adaptive"
)

// throttledPool is a pool whose sessions in use are limited.
type throttledPool interface {
	// SetLimit sets how many sessions may be in use.
	SetLimit(limit int)
	// Use returns how many sessions were in use at most since the last call, and whether callers waited because of
	// the limit.
	Use() (peak int, limited bool)
}

// throttles keeps the adaptive limits of all pools: it tells each pool's law what its
// meter has collected, and the pool what the law says. A nil one limits no pool.
type throttles struct {
	wake chan struct{} // for run: there is one more

	mu     sync.Mutex      // guards what follows, and the laws
	config adaptive.Config // of laws to come
	all    map[*throttle]struct{}
	// What the pools that are closed have left.
	past [adaptive.Reasons]uint64
}

// throttle is the limit of one pool.
type throttle struct {
	pool  throttledPool
	own   bool // of the sidecar's own identity
	meter *adaptive.Meter
	law   *adaptive.Law
	next  time.Duration // by the meter's clock: when the law wants to hear again
}

func newThrottles(c adaptive.Config) *throttles {
	return &throttles{config: c, wake: make(chan struct{}, 1), all: make(map[*throttle]struct{})}
}

// reconfigure puts other bounds into force for all pools, and for those to come.
func (ts *throttles) reconfigure(c adaptive.Config) {
	if ts == nil {
		return
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.config = c
	for t := range ts.all {
		t.bound(ts.config)
	}
}

// resize puts other bounds into force for the present pools of the sidecar's own identity. Those to come bring
// theirs along.
func (ts *throttles) resize(c adaptive.Config) {
	if ts == nil {
		return
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for t := range ts.all {
		if t.own {
			t.bound(c)
		}
	}
}

// bound is called after the pool got its configuration, which may have lifted the limit.
func (t *throttle) bound(c adaptive.Config) {
	t.law.Reconfigure(c)
	t.pool.SetLimit(t.law.Limit())
}

// add begins to limit a pool; calls on its sessions are to be reported to the meter. For a pool of the sidecar's
// own identity, own returns its bounds, and for other pools own is nil.
func (ts *throttles) add(p throttledPool, own func() adaptive.Config) *throttle {
	ts.mu.Lock() // over all of it: a reconfigure finds the pool here, or its bounds are those of the new law
	c := ts.config
	if own != nil {
		c = own() // see resize
	}
	t := &throttle{pool: p, own: own != nil, meter: adaptive.NewMeter(), law: adaptive.New(c)}
	p.SetLimit(t.law.Limit())
	ts.all[t] = struct{}{}
	ts.mu.Unlock()
	select {
	case ts.wake <- struct{}{}:
	default:
	}
	return t
}

// remove ends the limit of a pool that is closed.
func (ts *throttles) remove(t *throttle) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if _, ok := ts.all[t]; ok {
		delete(ts.all, t)
		for i, n := range t.law.State().Changes {
			ts.past[i] += n
		}
	}
}

// run keeps the limits until ctx ends. It returns nil.
func (ts *throttles) run(ctx context.Context) error {
	if ts == nil {
		<-ctx.Done() // a part that ends by itself ends the process
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ts.wake:
		case <-timer.C:
		}
		timer.Reset(ts.step())
	}
}

// step has those laws look that want to, and returns when to do so again.
func (ts *throttles) step() time.Duration {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	wall := time.Duration(time.Now().UnixNano())
	pause := time.Hour
	for t := range ts.all {
		now := t.meter.Now()
		if now >= t.next {
			var u adaptive.Use
			u.Peak, u.Limited = t.pool.Use()
			was := t.law.Limit()
			t.next = t.law.Step(now, wall, t.meter.Take(), u)
			t.meter.Follow(t.law)
			if is := t.law.Limit(); is != was {
				t.pool.SetLimit(is)
			}
		}
		pause = min(pause, t.next-now)
	}
	return max(pause, time.Millisecond)
}

// stateOf is the state of one limit; nil: it has none.
func (ts *throttles) stateOf(t *throttle) *adaptive.State {
	if ts == nil || t == nil {
		return nil
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	st := t.law.State()
	return &st
}

// sums are the changes of all limits so far, and what the limits of all pools but one
// come to.
func (ts *throttles) sums(but *throttle) (changes [adaptive.Reasons]uint64, limit float64) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	changes = ts.past
	for t := range ts.all {
		st := t.law.State()
		for i, n := range st.Changes {
			changes[i] += n
		}
		if t != but {
			limit += st.Limit
		}
	}
	return changes, limit
}
