// Package budget bounds the sessions of several pools together: those being opened, live and closing. A session has a permit
// from before it is opened until its deletion is over. The package knows no sessions: a pool takes permits and gives them back,
// and yields a session when it is asked to.
//
// A pool that wants a session and gets no permit is hungry: it is in the queue of the budget, once. What always holds:
//
//   - The pools never hold more permits than there are, and those of a group never more than its limit allowed when they took them.
//   - A permit that comes free goes to the hungry pool that has the fewest sessions for its weight, first come, first
//     served among equals, and no other pool can take it. Pools that merely want their minimum come last.
//   - While a pool is hungry, Run asks other pools to let sessions go: at once those that they hardly use, as many as the hungry
//     pool has callers for and may have; others one at a time. With even demand nothing moves.
//
// Budget.mu may be locked under the lock of a pool, never the other way round. A pool learns of its permit through a channel.
// The goroutine of Run is the caller's.
package budget

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	LookEvery = 20 * time.Millisecond  // between looks for sessions to take from other pools, while a pool is hungry
	HungerFor = 100 * time.Millisecond // how long a pool with sessions must be hungry before others lose one that they may need
	KeepFor   = time.Second            // how long a pool that got a session keeps it: its only one, or one that it hardly uses
	GoesIn    = time.Second            // if a session that was promised is in use for longer, another one is asked for

	failedFor = time.Second // how long a pool that panicked is not asked again
	lookMost  = 10_000      // pools that a look compares, about; with more hungry ones they take turns
)

// Budget bounds the sessions of several pools together. All methods may be called from any goroutine.
//
// Pools may belong to a group, which has a limit of its own below that of the budget. What is said of hungry pools holds in a
// group, too.
type Budget struct {
	max  int
	wake chan struct{} // for Run: a pool is hungry

	mu      sync.Mutex
	free    int // permits that no pool has; none while a pool is in the queue whose group has room
	members []*Member
	group   map[string]*group // groups that have a pool
	queue   []*Member         // hungry pools, in the order they came
	yielded uint64
	round   uint64 // of looks at all hungry pools
	seen    int    // pools that looks have compared; tests count them
}

// group is pools that share a limit below that of the budget. Guarded by Budget.mu.
type group struct {
	name  string
	max   int
	used  int // permits of its pools, and those set aside for them
	pools int // not closed
}

// Stats is the state of a budget at one moment.
type Stats struct {
	Max     int    // sessions of all pools at a time
	Used    int    // opening, live and closing now, and permits on their way to a pool
	Pools   int    // not closed
	Hungry  int    // pools that want a session and get none because of the limit
	Yielded uint64 // sessions closed in one pool for the sake of another, since the start
}

// New returns a budget of most sessions, at least 1.
func New(most int) *Budget {
	return &Budget{max: most, free: most, wake: make(chan struct{}, 1), group: map[string]*group{}}
}

// Join adds a pool that has no session yet and knows its Member already: from now on the budget calls the pool. The pools of
// one name are a group, and have at most as many sessions together as the first of them says; "": the pool is in no group.
func (b *Budget) Join(m *Member, name string, most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.budget = b
	b.members = append(b.members, m)
	if name != "" {
		g := b.group[name]
		if g == nil {
			g = &group{name: name, max: most}
			b.group[name] = g
		}
		g.pools++
		m.group = g
	}
}

// SetMost sets how many sessions the pools of a group may have together, in each group. Call Wake once the pools know it, too.
func (b *Budget) SetMost(most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.group {
		g.max = most
	}
	for b.free > 0 && b.nextLocked() != nil { // groups that may have more now
		b.free--
		b.giveLocked()
	}
}

// Members lists the pools that have not quit.
func (b *Budget) Members() []Pool {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]Pool, len(b.members))
	for i, m := range b.members {
		all[i] = m.pool
	}
	return all
}

// Stats returns the state of the budget.
func (b *Budget) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Stats{Max: b.max, Used: b.max - b.free, Pools: len(b.members), Hungry: len(b.queue), Yielded: b.yielded}
}

// Run takes sessions from pools that have more than others need, or do not use
// theirs, while there are hungry ones, until ctx ends. It must run while the pools
// are in use. It returns nil.
func (b *Budget) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		case <-timer.C:
		}
		if b.Look(time.Now()) {
			timer.Reset(LookEvery)
		}
	}
}

// Wake has Run look at once.
func (b *Budget) Wake() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// giveLocked finds the next use of a permit.
func (b *Budget) giveLocked() {
	to := b.nextLocked()
	if to == nil {
		b.free++
		return
	}
	b.dequeueLocked(to)
	to.reserved = true
	to.useLocked(1)
	select {
	case to.offer <- struct{}{}:
	default: // the pool was told, and has not looked yet
	}
}

// nextLocked returns the hungry pool to be served; nil: none. Those that merely want their
// minimum come last.
func (b *Budget) nextLocked() (next *Member) {
	for _, m := range b.queue {
		if !m.roomy() {
			continue
		}
		if next == nil || m.needy() && !next.needy() || m.needy() == next.needy() && m.fewer(m.keeps(), next, next.keeps()) {
			next = m
		}
	}
	return next
}

func (b *Budget) dequeueLocked(m *Member) {
	m.queued = false
	b.queue = slices.DeleteFunc(b.queue, func(q *Member) bool { return q == m })
}
