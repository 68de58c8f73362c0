package pool

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	lookEvery = 20 * time.Millisecond  // between looks for sessions to take from other pools, while somebody is hungry
	hungerFor = 100 * time.Millisecond // how long a pool with sessions must be hungry before others lose one that they may need
	turnFor   = time.Second            // how long a pool may keep its only session while another pool has none
)

// Budget bounds the sessions of several pools together: those being opened, live
// and closing. A session has a permit from before it is opened until its deletion
// is over. All methods may be called from any goroutine.
//
// A pool that wants a session and gets no permit is hungry: it stands in the
// queue, once. A permit that comes free goes to the hungry pool that has the
// fewest sessions, first come, first served among equals, and nobody else can take
// it. Run sees to it that some come free: it has other pools shed a session,
// each hungry pool one at a time.
type Budget struct {
	max  int
	wake chan struct{} // for Run: a pool is hungry

	mu    sync.Mutex // may be locked under Pool.mu, never the other way round
	free  int        // permits that nobody has; none while somebody is in the queue
	pools []*stake
	queue []*stake // hungry pools, in the order they came
	shed  uint64
}

// stake is the part of one pool in a budget. A nil stake is that of a pool
// without one: it has every permit.
type stake struct {
	*Budget
	pool  *Pool
	offer chan struct{} // for Pool.Run: there is a permit for it

	// Guarded by Budget.mu.
	held    int       // permits: the size of the pool
	queued  bool      // it is in the queue
	claim   bool      // a permit is set aside for it; it is not in the queue then
	leaving int       // of those held, sessions that were asked to go
	coming  int       // sessions of others that were asked to go for its sake
	asked   time.Time // when the last of these was
	since   time.Time // it is hungry
	ripe    time.Time // others are asked from then on
	took    time.Time // it last got a permit
	idle    int       // sessions, at the last look
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
	return &Budget{max: most, free: most, wake: make(chan struct{}, 1)}
}

// Within makes the pool take its sessions from b, beside its own limits, and
// returns it. It must be called before the pool is used. A nil b is no limit. The
// pool has to be closed, or what it holds is lost to the others.
func (p *Pool) Within(b *Budget) *Pool {
	if b == nil {
		return p
	}
	p.stake = &stake{Budget: b, pool: p, offer: make(chan struct{}, 1)}
	p.offer = p.stake.offer
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pools = append(b.pools, p.stake)
	return p
}

// Reconfigure puts another configuration into force in all pools; see
// Pool.Reconfigure.
func (b *Budget) Reconfigure(c Config) {
	b.mu.Lock()
	pools := slices.Clone(b.pools)
	b.mu.Unlock()
	for _, s := range pools {
		s.pool.Reconfigure(c)
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

// take takes a permit for a session that is opened at once. If there is none the
// pool is hungry. closing says that it is about to give one back itself.
func (k *stake) take(now time.Time, closing bool) bool {
	if k == nil {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.claim:
		k.claim = false
	case k.free > 0:
		k.free--
	case k.queued:
		return false
	default:
		k.queued, k.since, k.ripe = true, now, now
		k.queue = append(k.queue, k)
		if closing {
			k.ripe = now.Add(lookEvery)
		}
		select {
		case k.wake <- struct{}{}:
		default:
		}
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
	if k.free == 0 {
		return false
	}
	k.free--
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
	return k.free > 0
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
	select {
	case to.offer <- struct{}{}:
	default: // it was told, and has not looked yet
	}
}

// nextLocked returns the hungry pool to be served. Those that merely want their
// minimum come last.
func (b *Budget) nextLocked() (next *stake) {
	for _, k := range b.queue {
		if next == nil || k.needy() && !next.needy() || k.needy() == next.needy() && k.keeps() < next.keeps() {
			next = k
		}
	}
	return next
}

// needy reports whether callers wait for a session of the pool.
func (k *stake) needy() bool { return k.pool.gate.Load() == gateLine }

// lacks reports whether the pool is hungry for the sake of callers: what is idle
// there is on its way to them.
func (k *stake) lacks() bool { return (k.queued || k.claim) && k.needy() }

func (b *Budget) dequeueLocked(k *stake) {
	k.queued = false
	b.queue = slices.DeleteFunc(b.queue, func(q *stake) bool { return q == k })
}

// leave ends the pool's hunger: it wants nothing more, or can open nothing now.
func (k *stake) leave() {
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
		k.giveLocked()
	}
}

// quit is for a pool that is being closed: it only gives back from now on.
func (k *stake) quit() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaveLocked()
	k.pools = slices.DeleteFunc(k.pools, func(q *stake) bool { return q == k })
}

// look has pools shed sessions for hungry ones. It reports whether to look again.
func (b *Budget) look(now time.Time) bool {
	type ask struct {
		from, to *stake
		leased   bool
	}
	var asks []ask
	b.mu.Lock()
	again := len(b.queue) > 0
	if again {
		for _, k := range b.pools {
			k.idle = k.pool.resting()
		}
	}
	for _, h := range b.queue {
		if !h.needy() || now.Before(h.ripe) || h.coming > 0 && now.Sub(h.asked) < shedEvery {
			continue
		}
		if v, leased := b.giverLocked(h, now); v != nil {
			v.leaving++
			v.idle--
			h.coming++
			h.asked = now
			asks = append(asks, ask{v, h, leased})
		}
	}
	b.mu.Unlock()
	for _, a := range asks {
		shed := a.from.pool.yield(a.to, a.leased)
		b.mu.Lock()
		if shed {
			b.shed++
		} else { // its sessions found another use meanwhile
			a.from.leaving--
			a.to.coming--
		}
		b.mu.Unlock()
	}
	return again
}

// giverLocked returns the pool to shed a session for h, and whether it may be one
// that is leased; nil: none. The one with the most idle sessions goes first, then
// the one with the most sessions.
//
// An idle session of a pool that has at least two more goes at once, and so does
// any idle one for a pool that has none. Else the need must last: sessions that are
// idle for a moment, and lines that are short for a moment, move nothing. A leased
// one goes only where there are at least two more, so that with even demand nothing
// moves; but if there are more pools than permits they take turns.
func (b *Budget) giverLocked(h *stake, now time.Time) (from *stake, leased bool) {
	var fromRests bool
	none := h.keeps() == 0
	lasts := none || now.Sub(h.since) >= hungerFor
	for _, v := range b.pools {
		if v == h {
			continue
		}
		above := v.keeps() > h.keeps()+1
		turn := none && v.keeps() == 1 && v.leaving == 0 && now.Sub(v.took) >= turnFor
		rests := v.idle > 0 && !v.lacks() && (above || lasts)
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
		case v.keeps() != from.keeps():
			better = v.keeps() > from.keeps()
		default:
			better = v.took.Before(from.took)
		}
		if better {
			from, fromRests, leased = v, rests, above || turn
		}
	}
	return from, leased
}

// permitLocked takes a permit for a session that is wanted in the line or ahead of
// need.
func (p *Pool) permitLocked(now time.Time) bool {
	ok := p.stake.take(now, p.closing > 0)
	p.hungry = !ok
	return ok
}

// fedLocked takes the pool out of the budget's queue if it no longer wants a
// session. It is called whenever that may be.
func (p *Pool) fedLocked() {
	if !p.hungry {
		return
	}
	if inLine, ahead := p.wantLocked(); max(inLine, ahead) <= 0 || p.size >= p.cfg.Max {
		p.leaveBudgetLocked()
	}
}

func (p *Pool) leaveBudgetLocked() {
	if p.hungry {
		p.hungry = false
		p.stake.leave()
	}
}

// resting counts idle sessions without a lock: what changes hands may be missed.
func (p *Pool) resting() (sum int) {
	sum = int(p.limit.aside.Load())
	for _, n := range p.table.Load().nodes {
		sum += n.idle.len()
	}
	for i := range p.slots {
		if p.slots[i].Load() != 0 {
			sum++
		}
	}
	return sum
}

// yield lets one session go for another pool: an idle one of the node that has
// most beyond its share, the longest unused there, or else a leased one at its
// release if that is allowed. It reports false if there is none.
func (p *Pool) yield(to *stake, leased bool) (shed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	defer p.growLocked() // for its minimum
	idle := make(map[*node]int)
	p.idleLocked(idle)
	p.shareLocked()
	var from *node
	for n, k := range idle {
		if k > 0 && (from == nil || n.share.surplus > from.share.surplus) {
			from = n
		}
	}
	if from != nil {
		p.siftLocked(from, func(s *Session) bool {
			if shed {
				return !s.Valid()
			}
			shed, s.shedFor = true, to
			return true
		})
	}
	if shed || !leased {
		return shed
	}
	reason := "its place is needed by another pool"
	for i := range p.cells {
		if s := p.cells[i].session; s != nil && s.retired.CompareAndSwap(nil, &reason) {
			s.shedFor = to
			// It may have been laid down just before.
			p.siftLocked(s.node, func(s *Session) bool { return !s.Valid() })
			return true
		}
	}
	return false
}
