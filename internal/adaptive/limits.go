package adaptive

import (
	"context"
	"sync"
	"time"
)

// Pool is a pool whose sessions in use are limited.
type Pool interface {
	// SetLimit sets how many sessions may be in use.
	SetLimit(limit int)
	// Use returns how many sessions were in use at most since the last call, and whether callers waited because of
	// the limit.
	Use() (peak int, limited bool)
}

// Limits keeps the adaptive limits of all pools: it tells each pool's law what its
// meter has collected, and the pool what the law says. A nil one limits no pool.
type Limits struct {
	wake chan struct{} // for Run: there is one more

	mu     sync.Mutex // guards what follows, and the laws
	config Config     // of laws to come
	all    map[*Limit]struct{}
	// What the pools that are closed have left.
	past [Reasons]uint64
}

// Limit is the limit of one pool.
type Limit struct {
	pool  Pool
	own   bool // of the sidecar's own identity
	meter *Meter
	law   *Law
	next  time.Duration // by the meter's clock: when the law wants to hear again
}

// NewLimits returns the keeper of no limit yet. New limits have the bounds c.
func NewLimits(c Config) *Limits {
	return &Limits{config: c, wake: make(chan struct{}, 1), all: make(map[*Limit]struct{})}
}

// Reconfigure puts other bounds into force for all pools, and for those to come.
func (ls *Limits) Reconfigure(c Config) {
	if ls == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.config = c
	for t := range ls.all {
		t.bound(ls.config)
	}
}

// Resize puts other bounds into force for the present pools of the sidecar's own identity. Those to come bring
// theirs along.
func (ls *Limits) Resize(c Config) {
	if ls == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for t := range ls.all {
		if t.own {
			t.bound(c)
		}
	}
}

// Meter returns what the calls on the pool's sessions are to be reported to.
func (t *Limit) Meter() *Meter { return t.meter }

// bound is called after the pool got its configuration, which may have lifted the limit.
func (t *Limit) bound(c Config) {
	t.law.Reconfigure(c)
	t.pool.SetLimit(t.law.Limit())
}

// Add begins to limit a pool; calls on its sessions are to be reported to the meter. For a pool of the sidecar's
// own identity, own returns its bounds, and for other pools own is nil.
func (ls *Limits) Add(p Pool, own func() Config) *Limit {
	ls.mu.Lock() // over all of it: a Reconfigure finds the pool here, or its bounds are those of the new law
	c := ls.config
	if own != nil {
		c = own() // see Resize
	}
	t := &Limit{pool: p, own: own != nil, meter: NewMeter(), law: New(c)}
	p.SetLimit(t.law.Limit())
	ls.all[t] = struct{}{}
	ls.mu.Unlock()
	select {
	case ls.wake <- struct{}{}:
	default:
	}
	return t
}

// Remove ends the limit of a pool that is closed.
func (ls *Limits) Remove(t *Limit) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if _, ok := ls.all[t]; ok {
		delete(ls.all, t)
		for i, n := range t.law.State().Changes {
			ls.past[i] += n
		}
	}
}

// Run keeps the limits until ctx ends. It returns nil.
func (ls *Limits) Run(ctx context.Context) error {
	if ls == nil {
		<-ctx.Done() // a part that ends by itself ends the process
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ls.wake:
		case <-timer.C:
		}
		timer.Reset(ls.step())
	}
}

// step has those laws look that want to, and returns when to do so again.
func (ls *Limits) step() time.Duration {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	wall := time.Duration(time.Now().UnixNano())
	pause := time.Hour
	for t := range ls.all {
		now := t.meter.Now()
		if now >= t.next {
			var u Use
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

// StateOf is the state of one limit; nil: it has none.
func (ls *Limits) StateOf(t *Limit) *State {
	if ls == nil || t == nil {
		return nil
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	st := t.law.State()
	return &st
}

// Sums are the changes of all limits so far, and what the limits of all pools but one
// come to.
func (ls *Limits) Sums(but *Limit) (changes [Reasons]uint64, limit float64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	changes = ls.past
	for t := range ls.all {
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
