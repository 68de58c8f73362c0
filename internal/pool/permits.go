package pool

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

const (
	lookEvery = 20 * time.Millisecond  // between looks for sessions to take from other pools, while somebody is hungry
	hungerFor = 100 * time.Millisecond // how long a pool with sessions must be hungry before others lose one that they may need
	turnFor   = time.Second            // how long a pool that got a session may keep it: its only one while another pool has none, or one that it hardly uses
	failedFor = time.Second            // how long a pool that panicked is not asked again
	lookMost  = 10_000                 // pools that a look compares, about; with more hungry ones they take turns
)

// Budget bounds the sessions of several pools together: those being opened, live
// and closing. A session has a permit from before it is opened until its deletion
// is over. All methods may be called from any goroutine.
//
// A pool that wants a session and gets no permit is hungry: it stands in the
// queue, once. A permit that comes free goes to the hungry pool that has the
// fewest sessions, first come, first served among equals, and nobody else can take
// it. Run sees to it that some come free: it has other pools shed sessions: at once those that
// they hardly use, as many as the hungry pool has callers for and may have, others one at a time.
//
// Pools may belong to a group, which has a limit of its own below that of the budget: together
// they have at most Config.Max sessions. What is said of hungry pools holds in a group, too.
// "Fewest" counts by the pools' weights.
type Budget struct {
	max  int
	wake chan struct{} // for Run: a pool is hungry

	mu    sync.Mutex // may be locked under Pool.mu, never the other way round
	free  int        // permits that nobody has; none while somebody is in the queue whose group has room
	pools []*stake
	group map[string]*group // that have a pool
	queue []*stake          // hungry pools, in the order they came
	shed  uint64
	round uint64 // of looks at all hungry pools
	seen  int    // pools that looks have compared; tests count them
}

// group is pools that share a limit below that of the budget. Guarded by Budget.mu.
type group struct {
	name  string
	max   int
	used  int // permits of its pools, and those set aside for them
	pools int // not closed
}

// member is a pool, as its budget sees it.
type member interface {
	// waits reports whether callers wait for a session of the pool. It is called under Budget.mu and takes no lock.
	waits() bool
	// rests counts the idle sessions of the pool and, of these, the parked ones. It is called without Budget.mu.
	rests() (idle, parked int)
	// yield has the pool let one session go for the sake of another one, if it can: an idle one, or else, if inUse allows, one
	// that is in use, at its release. The pool calls promise for it. It is called without Budget.mu.
	yield(to *stake, inUse bool)
}

// stake is the part of one pool in a budget. A nil stake is that of a pool
// without one: it has every permit.
type stake struct {
	*Budget
	pool    member
	offer   chan struct{} // for the pool: there is a permit for it
	group   *group        // nil: none; constant
	weighed func() int    // the pool's weight now; constant
	want    atomic.Int32  // sessions that the pool lacks for its callers, while it is hungry
	hungry  bool          // in the queue, or has a permit waiting; guarded by the pool's lock

	// Guarded by Budget.mu.
	weight int       // what weighed said at the last look
	held   int       // permits: the size of the pool
	claim  bool      // a permit is set aside for the pool, which is not in the queue then
	took   time.Time // it last got a permit
	coming int       // sessions of other pools that were promised to it
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

// BudgetStats is the state of a budget at one moment.
type BudgetStats struct {
	Max    int    // sessions of all pools at a time
	Used   int    // opening, live and closing now, and permits on their way to a pool
	Pools  int    // not closed
	Hungry int    // pools that want a session and get none because of the limit
	Shed   uint64 // sessions closed in one pool for the sake of another, since the start
}

// NewBudget returns a budget of so many sessions, at least 1.
func NewBudget(most int) *Budget {
	return &Budget{max: most, free: most, wake: make(chan struct{}, 1), group: map[string]*group{}}
}

// join adds a pool that has no session yet. With a group, the pools of that name have at most so many sessions together, as
// the first of them says. weight may be called from any goroutine.
func (b *Budget) join(pool member, name string, most int, weight func() int) *stake {
	k := &stake{Budget: b, pool: pool, offer: make(chan struct{}, 1), weighed: weight, weight: weight()}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pools = append(b.pools, k)
	if name != "" {
		g := b.group[name]
		if g == nil {
			g = &group{name: name, max: most}
			b.group[name] = g
		}
		g.pools++
		k.group = g
	}
	return k
}

// setMost sets how many sessions the pools of a group have together, in each group. awaken is to follow, once the
// pools know it, too.
func (b *Budget) setMost(most int) {
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

// members lists the pools that are not closed.
func (b *Budget) members() []member {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]member, len(b.pools))
	for i, k := range b.pools {
		all[i] = k.pool
	}
	return all
}

// awaken has Run look at once.
func (b *Budget) awaken() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Stats returns the state of the budget.
func (b *Budget) Stats() BudgetStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return BudgetStats{Max: b.max, Used: b.max - b.free, Pools: len(b.pools), Hungry: len(b.queue), Shed: b.shed}
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
		if b.look(time.Now()) {
			timer.Reset(lookEvery)
		}
	}
}

// keeps is the sessions of a pool that were not asked to go.
func (k *stake) keeps() int {
	if k.claim {
		return k.held - k.leaving + 1
	}
	return k.held - k.leaving
}

// roomy reports whether the pool's group may have another session.
func (k *stake) roomy() bool { return k.group == nil || k.group.used < k.group.max }

// useLocked counts permits in the pool's group.
func (k *stake) useLocked(n int) {
	g := k.group
	if g == nil {
		return
	}
	if g.used += n; g.used == 0 && g.pools == 0 {
		delete(k.Budget.group, g.name)
	}
}

// fewer reports whether a pool that has n sessions has fewer, for its weight, than another that has m.
func (k *stake) fewer(n int, other *stake, m int) bool {
	return n*other.weight < m*k.weight
}

// take takes a permit for a session that is opened at once. If there is none the
// pool is hungry, for as many callers as want says. closing says that it is about to give one back itself.
func (k *stake) take(now time.Time, want int, closing bool) bool {
	if k == nil {
		return true
	}
	k.wants(want)
	ok := k.takeOrQueue(now, closing)
	k.hungry = !ok
	return ok
}

func (k *stake) takeOrQueue(now time.Time, closing bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.claim:
		k.claim = false
	case k.free > 0 && k.roomy():
		k.free--
		k.useLocked(1)
	case k.queued:
		return false
	default:
		k.queued, k.since, k.ripe = true, now, now
		k.queue = append(k.queue, k)
		if closing {
			k.ripe = now.Add(lookEvery)
		}
		k.awaken()
		return false
	}
	k.held++
	k.took = now
	return true
}

// takeSpare takes a permit only if nobody wants it.
func (k *stake) takeSpare(now time.Time) bool {
	if k == nil {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.free == 0 || !k.roomy() {
		return false
	}
	k.free--
	k.useLocked(1)
	k.held++
	k.took = now
	return true
}

// spare reports whether there are permits that nobody wants.
func (k *stake) spare() bool {
	if k == nil {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.free > 0 && k.roomy()
}

// promise notes that a session of the pool goes for the sake of another pool. Each session is promised
// once. put ends the promise.
func (k *stake) promise(to *stake) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaving++
	to.coming++
	k.shed++
}

// put gives back the permit of a session whose place is free. to is the pool for
// whose sake it was asked to go, if it was; the permit is for who needs it most.
func (k *stake) put(to *stake) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held--
	if to != nil {
		k.leaving--
		to.coming--
	}
	k.useLocked(-1)
	k.giveLocked()
}

// giveLocked finds the next use of a permit.
func (b *Budget) giveLocked() {
	to := b.nextLocked()
	if to == nil {
		b.free++
		return
	}
	b.dequeueLocked(to)
	to.claim = true
	to.useLocked(1)
	select {
	case to.offer <- struct{}{}:
	default: // it was told, and has not looked yet
	}
}

// nextLocked returns the hungry pool to be served. Those that merely want their
// minimum come last.
func (b *Budget) nextLocked() (next *stake) {
	for _, k := range b.queue {
		if !k.roomy() {
			continue
		}
		if next == nil || k.needy() && !next.needy() || k.needy() == next.needy() && k.fewer(k.keeps(), next, next.keeps()) {
			next = k
		}
	}
	return next
}

// needy reports whether callers wait for a session of the pool.
func (k *stake) needy() bool { return k.pool.waits() }

// wants notes for how many callers a hungry pool wants sessions: for no more than it may have.
func (k *stake) wants(n int) { k.want.Store(int32(n)) }

// isHungry reports whether the pool waits for a permit. The pool's lock is held.
func (k *stake) isHungry() bool { return k != nil && k.hungry }

// lacking is how many sessions more than those that come the pool's callers want.
func (k *stake) lacking() int { return int(k.want.Load()) - k.coming }

// lacks reports whether the pool is hungry for the sake of callers: what is idle
// there is on its way to them.
func (k *stake) lacks() bool { return (k.queued || k.claim) && k.needy() }

// shared is the limit that a hungry pool has reached with others: that of its group, or of all pools.
func (k *stake) shared() (limit int, grouped bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.roomy() {
		return k.group.max, true
	}
	return k.max, false
}

func (b *Budget) dequeueLocked(k *stake) {
	k.queued = false
	b.queue = slices.DeleteFunc(b.queue, func(q *stake) bool { return q == k })
}

// leave ends the pool's hunger: it wants nothing more, or can open nothing now.
func (k *stake) leave() {
	if !k.isHungry() {
		return
	}
	k.hungry = false
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaveLocked()
}

func (k *stake) leaveLocked() {
	if k.queued {
		k.dequeueLocked(k)
	}
	if k.claim {
		k.claim = false
		k.useLocked(-1)
		k.giveLocked()
	}
}

// quit is for a pool that is being closed: it only gives back from now on.
func (k *stake) quit() {
	if k == nil {
		return
	}
	k.hungry = false
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaveLocked()
	k.pools = slices.DeleteFunc(k.pools, func(q *stake) bool { return q == k })
	if k.group != nil {
		k.group.pools--
		k.useLocked(0)
	}
}

// look has pools shed sessions for hungry ones. It reports whether to look again.
func (b *Budget) look(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	again := len(b.queue) > 0
	for _, v := range b.beyondLocked(now) {
		again = true
		b.mu.Unlock()
		err := panics.Call("the closing of a session beyond a limit", func() error { v.pool.yield(v, true); return nil })
		b.mu.Lock()
		if err != nil {
			v.failed = now
		}
	}
	if again {
		b.restLocked()
	}
	most := b.seen + lookMost
	for _, h := range slices.Clone(b.queue) {
		if h.looked > b.round || !h.queued || !h.needy() || now.Before(h.ripe) {
			continue
		}
		if b.seen >= most {
			return again // the others are the first next time
		}
		h.looked = b.round + 1
		stuck := 0
		if now.Sub(h.asked) >= shedEvery {
			stuck = h.coming // what was to go is in use for long
		}
		for n := max(h.lacking(), min(stuck, 1)); n > 0 && h.queued && h.needy(); n = min(n-1, h.lacking()) {
			v, leased := b.giverLocked(h, now, max(0, h.coming-stuck))
			if v == nil {
				break
			}
			v.idle, v.parked = v.idle-1, v.parked-1
			h.asked = now
			b.mu.Unlock()
			err := panics.Call("the taking of a session for another pool", func() error { v.pool.yield(h, leased); return nil })
			b.mu.Lock()
			if err != nil {
				v.failed = now
			}
			if b.seen >= most {
				break
			}
		}
	}
	b.round++
	return again
}

// restLocked takes note of what rests in each pool, and of its weight. It lets go of the lock
// meanwhile: a pool may have many nodes.
func (b *Budget) restLocked() {
	pools := slices.Clone(b.pools)
	b.mu.Unlock()
	type rest struct{ idle, parked, weight int }
	all := make([]rest, len(pools))
	for i, k := range pools {
		idle, parked := k.pool.rests()
		all[i] = rest{idle, parked, k.weighed()}
	}
	b.mu.Lock()
	for i, k := range pools {
		k.idle, k.parked, k.weight = all[i].idle, all[i].parked, all[i].weight
	}
}

// beyondLocked returns, for each group that has more sessions than it may, the pool that has most.
func (b *Budget) beyondLocked(now time.Time) (all []*stake) {
	leaving, most := map[*group]int{}, map[*group]*stake{}
	for _, k := range b.pools {
		if k.group == nil {
			continue
		}
		leaving[k.group] += k.leaving
		if m := most[k.group]; now.Sub(k.failed) >= failedFor && (m == nil || m.fewer(m.keeps(), k, k.keeps())) {
			most[k.group] = k
		}
	}
	for g, m := range most {
		if g.used-leaving[g] > g.max {
			all = append(all, m)
		}
	}
	return all
}

// giverLocked returns the pool to shed a session for h, and whether it may be one
// that is leased; nil: none. The one with the most idle sessions goes first, then
// the one with the most sessions. If the group of h is full it is one of that group.
//
// An idle session of a pool that has at least two more, for its weight, goes at once, and so do any
// idle one for a pool that has none, a parked one, and one of a pool that uses less than half of what it
// has and got none for turnFor: pools that work by turns do not open theirs for each turn. Else the need
// must last: sessions that are idle for a moment, and lines that are short for a moment, move nothing. A
// leased one goes only where there are at least two more, so that with even demand nothing moves; but if
// there are more pools than permits they take turns.
//
// coming are on their way to h. If there are any, only what goes at once does.
func (b *Budget) giverLocked(h *stake, now time.Time, coming int) (from *stake, leased bool) {
	var fromRests bool
	will := h.keeps() + coming
	none := will == 0
	b.seen += len(b.pools)
	lasts := none || coming == 0 && now.Sub(h.since) >= hungerFor
	for _, v := range b.pools {
		if v == h || now.Sub(v.failed) < failedFor || !h.roomy() && v.group != h.group {
			continue
		}
		above := none && v.keeps() > 1 || !v.fewer(v.keeps()-1, h, will+1) // with one less it still has as many
		turn := none && v.keeps() == 1 && v.leaving == 0 && now.Sub(v.took) >= turnFor
		spare := 2*v.idle > v.keeps() && now.Sub(v.took) >= turnFor
		rests := v.idle > 0 && !v.lacks() && (above || lasts || v.parked > 0 || spare)
		above = above && lasts
		if !above && !turn && !rests {
			continue
		}
		better := from == nil
		switch {
		case better:
		case rests != fromRests:
			better = rests
		case rests && v.idle != from.idle:
			better = v.idle > from.idle
		case from.fewer(from.keeps(), v, v.keeps()), v.fewer(v.keeps(), from, from.keeps()):
			better = from.fewer(from.keeps(), v, v.keeps())
		default:
			better = v.took.Before(from.took)
		}
		if better {
			from, fromRests, leased = v, rests, above || turn
		}
	}
	return from, leased
}

// audit is the state of a budget and of some of its pools, for tests.
type audit struct {
	free, max int
	groups    []groupAudit
	stakes    []stakeAudit
	nextWaits bool // a pool is to get the next permit that comes free
	seen      int  // pools that looks have compared
}

// groupAudit is the state of a group.
type groupAudit struct {
	name             string
	max, used, pools int
}

// stakeAudit is the state of a pool in the budget.
type stakeAudit struct {
	held, leaving, coming int
	queued, claim         bool
	inQueue               bool // it is found in the queue
	hungry                bool
	group                 string
}

// audit returns the state of the budget and of some of its pools at one moment. Nothing else may take or want permits meanwhile if hungry is read.
func (b *Budget) audit(stakes ...*stake) audit {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := audit{free: b.free, max: b.max, nextWaits: b.nextLocked() != nil, seen: b.seen}
	for _, g := range b.group {
		a.groups = append(a.groups, groupAudit{g.name, g.max, g.used, g.pools})
	}
	for _, k := range stakes {
		s := stakeAudit{k.held, k.leaving, k.coming, k.queued, k.claim, slices.Contains(b.queue, k), k.hungry, ""}
		if k.group != nil {
			s.group = k.group.name
		}
		a.stakes = append(a.stakes, s)
	}
	return a
}
