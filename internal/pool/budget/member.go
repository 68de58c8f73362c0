package budget

import (
	"slices"
	"sync/atomic"
	"time"
)

// Pool is a pool, as its budget sees it.
type Pool interface {
	// Waits reports whether callers wait for a session of the pool. It is called under Budget.mu and takes no lock.
	Waits() bool
	// Rests counts the idle sessions of the pool and, of these, the parked ones. It is called without Budget.mu.
	Rests() (idle, parked int)
	// Yield has the pool let one session go for the sake of another one, if it can: an idle one, or else, if inUse allows, one
	// that is in use, at its release. The pool calls Promise for it. It is called without Budget.mu.
	Yield(to *Member, inUse bool)
}

// Member is one pool in a budget. A nil Member is a pool without a budget: it has every permit.
type Member struct {
	budget  *Budget
	pool    Pool
	offer   chan struct{} // for the pool: there is a permit for it
	group   *group        // nil: none; constant
	weighed func() int    // the pool's weight now; constant
	want    atomic.Int32  // sessions that the pool lacks for its callers, while it is hungry
	hungry  bool          // in the queue, or has a permit waiting; guarded by the pool's lock

	// Guarded by Budget.mu.
	weight   int       // what weighed said at the last look
	held     int       // permits: the size of the pool
	reserved bool      // a permit is set aside for the pool, which is not in the queue then
	took     time.Time // it last got a permit
	coming   int       // sessions of other pools that were promised to it
	hunger
	giving
}

// hunger is a pool's wait for a permit.
type hunger struct {
	queued bool      // the pool is in the queue
	since  time.Time // when it joined the queue
	ripe   time.Time // other pools are asked from then on
	asked  time.Time // when another pool was last asked to let a session go for its sake
	looked uint64    // round of the last look in which others were asked for it, counted from 1
}

// giving is what a pool has to give to others.
type giving struct {
	leaving int       // its sessions that were promised to others
	idle    int       // its idle sessions, at the last look
	parked  int       // its parked sessions, which are idle ones, at the last look
	failed  time.Time // when it panicked as it was to let a session go
}

// NewMember returns a member that is to join a budget. weight is the pool's weight next to others, at least 1. It may be
// called from any goroutine and must not call the pool or the budget.
func NewMember(pool Pool, weight func() int) *Member {
	return &Member{pool: pool, offer: make(chan struct{}, 1), weighed: weight, weight: weight()}
}

// Offer tells the pool that there is a permit for it: Take gets it.
func (m *Member) Offer() <-chan struct{} { return m.offer }

// keeps is the sessions of a pool that were not asked to go.
func (m *Member) keeps() int {
	if m.reserved {
		return m.held - m.leaving + 1
	}
	return m.held - m.leaving
}

// roomy reports whether the pool's group may have another session.
func (m *Member) roomy() bool { return m.group == nil || m.group.used < m.group.max }

// useLocked counts permits in the pool's group.
func (m *Member) useLocked(n int) {
	g := m.group
	if g == nil {
		return
	}
	if g.used += n; g.used == 0 && g.pools == 0 {
		delete(m.budget.group, g.name)
	}
}

// fewer reports whether a pool that has n sessions has fewer, for its weight, than another one that has others.
func (m *Member) fewer(n int, other *Member, others int) bool {
	return n*other.weight < others*m.weight
}

// Take takes a permit for a session that is opened at once. If there is none the
// pool is hungry, for as many callers as want says. closing says that it is about to give one back itself.
func (m *Member) Take(now time.Time, want int, closing bool) bool {
	if m == nil {
		return true
	}
	m.Want(want)
	ok := m.takeOrQueue(now, closing)
	m.hungry = !ok
	return ok
}

func (m *Member) takeOrQueue(now time.Time, closing bool) bool {
	m.budget.mu.Lock()
	defer m.budget.mu.Unlock()
	switch {
	case m.reserved:
		m.reserved = false
	case m.budget.free > 0 && m.roomy():
		m.budget.free--
		m.useLocked(1)
	case m.queued:
		return false
	default:
		m.queued, m.since, m.ripe = true, now, now
		m.budget.queue = append(m.budget.queue, m)
		if closing {
			m.ripe = now.Add(LookEvery)
		}
		m.budget.Wake()
		return false
	}
	m.held++
	m.took = now
	return true
}

// TakeSpare takes a permit only if no pool wants it.
func (m *Member) TakeSpare(now time.Time) bool {
	if m == nil {
		return true
	}
	m.budget.mu.Lock()
	defer m.budget.mu.Unlock()
	if m.budget.free == 0 || !m.roomy() {
		return false
	}
	m.budget.free--
	m.useLocked(1)
	m.held++
	m.took = now
	return true
}

// Spare reports whether there are permits that no pool wants.
func (m *Member) Spare() bool {
	if m == nil {
		return true
	}
	m.budget.mu.Lock()
	defer m.budget.mu.Unlock()
	return m.budget.free > 0 && m.roomy()
}

// Promise notes that a session of the pool goes for the sake of another pool. Each session is promised
// once. Put ends the promise.
func (m *Member) Promise(to *Member) {
	m.budget.mu.Lock()
	defer m.budget.mu.Unlock()
	m.leaving++
	to.coming++
	m.budget.yielded++
}

// Put returns the permit of a session that is deleted. to is the pool to which the session was promised, if it was. The permit
// goes to the pool that needs it most, which may be another one.
func (m *Member) Put(to *Member) {
	if m == nil {
		return
	}
	m.budget.mu.Lock()
	defer m.budget.mu.Unlock()
	m.held--
	if to != nil {
		m.leaving--
		to.coming--
	}
	m.useLocked(-1)
	m.budget.giveLocked()
}

// Want notes for how many callers a hungry pool wants sessions: for no more than it may have.
func (m *Member) Want(n int) { m.want.Store(int32(n)) }

// Hungry reports whether the pool waits for a permit. The pool's lock is held.
func (m *Member) Hungry() bool { return m != nil && m.hungry }

// needy reports whether callers wait for a session of the pool.
func (m *Member) needy() bool { return m.pool.Waits() }

// lacking is how many sessions more than those that come the pool's callers want.
func (m *Member) lacking() int { return int(m.want.Load()) - m.coming }

// lacks reports whether the pool is hungry for the sake of callers: what is idle
// there is on its way to them.
func (m *Member) lacks() bool { return (m.queued || m.reserved) && m.needy() }

// Shared is the limit that a hungry pool has reached with others: that of its group, or of all pools.
func (m *Member) Shared() (limit int, grouped bool) {
	m.budget.mu.Lock()
	defer m.budget.mu.Unlock()
	if !m.roomy() {
		return m.group.max, true
	}
	return m.budget.max, false
}

// Leave ends the pool's hunger: it wants nothing more, or can open nothing now. The pool's lock is held.
func (m *Member) Leave() {
	if !m.Hungry() {
		return
	}
	m.hungry = false
	m.budget.mu.Lock()
	defer m.budget.mu.Unlock()
	m.leaveLocked()
}

func (m *Member) leaveLocked() {
	if m.queued {
		m.budget.dequeueLocked(m)
	}
	if m.reserved {
		m.reserved = false
		m.useLocked(-1)
		m.budget.giveLocked()
	}
}

// Quit is for a pool that is being closed: it only gives back from now on. The pool's lock is held.
func (m *Member) Quit() {
	if m == nil {
		return
	}
	m.hungry = false
	m.budget.mu.Lock()
	defer m.budget.mu.Unlock()
	m.leaveLocked()
	m.budget.members = slices.DeleteFunc(m.budget.members, func(q *Member) bool { return q == m })
	if m.group != nil {
		m.group.pools--
		m.useLocked(0)
	}
}
