package app

import (
	"context"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/adaptive"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// throttles keeps the adaptive limits of all pools: it tells each pool's law what its
// meter has collected, and the pool what the law says. A nil one is pool.adaptive=false.
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
	pool  *pool.Pool
	own   bool // of the sidecar's own identity
	meter *adaptive.Meter
	law   *adaptive.Law
	next  time.Duration // by the meter's clock: when the law wants to hear again
}

func newThrottles(c pool.Config) *throttles {
	if !c.Adaptive {
		return nil
	}
	return &throttles{config: lawOf(c), wake: make(chan struct{}, 1), all: make(map[*throttle]struct{})}
}

func lawOf(c pool.Config) adaptive.Config {
	return adaptive.Default(min(c.AdaptiveFloor, c.Max), c.Max)
}

// reconfigure puts other bounds into force for all pools, and for those to come.
func (ts *throttles) reconfigure(c pool.Config) {
	if ts == nil {
		return
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.config = lawOf(c)
	for t := range ts.all {
		t.bound(ts.config)
	}
}

// resize puts other bounds into force for the pools of the sidecar's own identity that there are. Those to come have them in their
// configuration.
func (ts *throttles) resize(c pool.Config) {
	if ts == nil {
		return
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for t := range ts.all {
		if t.own {
			t.bound(lawOf(c))
		}
	}
}

// bound is called after Pool.Reconfigure, which may have lifted the limit.
func (t *throttle) bound(c adaptive.Config) {
	t.law.Reconfigure(c)
	t.pool.SetLimit(t.law.Limit())
}

// add begins to limit a pool; calls on its sessions are to be reported to the meter. own: it is of
// the sidecar's own identity.
func (ts *throttles) add(p *pool.Pool, own bool) *throttle {
	ts.mu.Lock() // over all of it: a reconfigure finds the pool here, or its bounds are those of the new law
	c := ts.config
	if own {
		c = lawOf(p.Config()) // see resize
	}
	t := &throttle{pool: p, own: own, meter: adaptive.NewMeter(), law: adaptive.New(c)}
	p.SetLimit(t.law.Limit())
	ts.all[t] = struct{}{}
	ts.mu.Unlock()
	select {
	case ts.wake <- struct{}{}:
	default:
	}
	return t
}

// remove ends that.
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

// throttled is a pool with an adaptive limit.
type throttled struct {
	*pool.Pool
	all *throttles
	own *throttle
}

// Report tells what came of a call on a session of the pool.
func (p throttled) Report(o cluster.Outcome) { p.own.meter.Report(o) }

// Close closes the pool.
func (p throttled) Close(ctx context.Context) error {
	p.all.remove(p.own)
	return p.Pool.Close(ctx)
}
