package pool

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
)

// Budget bounds the sessions of several pools together. Its Run must run while the pools are in use.
type Budget struct{ *budget.Budget }

// NewBudget returns a budget of most sessions, at least 1.
func NewBudget(most int) *Budget { return &Budget{budget.New(most)} }

// WithinGroup makes the pool take its sessions from b, beside its own limits, and returns it. The pools
// of one name are a group, and have at most Config.Max sessions together; "": the pool is in no group.
// weight is the pool's weight next to others, at least 1. It may be called from any goroutine and must not
// call the pool or the budget.
//
// WithinGroup must be called before the pool is used. A nil b is no limit. The pool has to be
// closed, or what it holds is lost to the others.
func (p *Pool) WithinGroup(b *Budget, name string, weight func() int) *Pool {
	if b == nil {
		return p
	}
	p.member = budget.NewMember(poolOf{p}, weight)
	p.offer = p.member.Offer()
	b.Join(p.member, name, p.cfg.Max) // from now on others reconfigure the pool and ask it for sessions
	return p
}

// Reconfigure puts another configuration into force in all pools but one, which may be
// nil; see Pool.Reconfigure. If a group has more sessions than the new Max, those without
// use are closed soon, and others at their release.
func (b *Budget) Reconfigure(c Config, but *Pool) {
	b.SetMost(c.Max)
	for _, p := range b.Pools() {
		if p != but {
			p.Reconfigure(c)
		}
	}
	b.Wake()
}

// Pools lists the pools that are not closed.
func (b *Budget) Pools() []*Pool {
	members := b.Members()
	all := make([]*Pool, len(members))
	for i, m := range members {
		all[i] = m.(poolOf).Pool
	}
	return all
}

// poolOf is a pool, as its budget sees it.
type poolOf struct{ *Pool }

// Waits implements budget.Pool.
func (p poolOf) Waits() bool { return p.gate.Load() == gateQueue }

// Rests implements budget.Pool.
func (p poolOf) Rests() (idle, parked int) { return p.resting(), int(p.limit.parked.Load()) }

// Yield implements budget.Pool.
func (p poolOf) Yield(to *budget.Member, inUse bool) { p.yield(to, inUse) }

// permitLocked takes a permit for a session that is wanted, by waiting callers or ahead of need.
func (p *state) permitLocked(now time.Time, waiting int) bool {
	return p.member.Take(now, p.mayUseLocked(waiting), p.closing > 0 || p.limit.parked.Load() > 0)
}

// mayUseLocked is for how many of the callers the pool may have another session.
func (p *state) mayUseLocked(callers int) int { return min(callers, p.cfg.Max-p.size) }

// fedLocked takes the pool out of the budget's queue if it no longer wants a
// session. It is called whenever that may be.
func (p *state) fedLocked() {
	if !p.member.Hungry() {
		return
	}
	waiting, ahead := p.wantLocked()
	if max(waiting, ahead) <= 0 || p.size >= p.cfg.Max {
		p.member.Leave()
		return
	}
	p.member.Want(p.mayUseLocked(waiting))
}

// resting counts idle sessions without a lock: what changes hands may be missed.
func (p *state) resting() (sum int) {
	sum = int(p.limit.aside.Load())
	t := p.table.Load()
	sum += t.index[0].idle(t.weighted) + t.index[1].idle(t.spare)
	for i := range p.slots {
		if p.slots[i].Load() != 0 {
			sum++
		}
	}
	return sum
}

// yield lets one session go for another pool: the longest unused session of the node that has most
// beyond its fair part. If none is idle and inUse allows, it is a session in use of such a node, at its
// release. There may be none: they found another use meanwhile.
func (p *Pool) yield(to *budget.Member, inUse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	defer p.growLocked() // for its minimum
	p.unslotLocked(nil)
	p.balanceLocked()
	p.walked += len(p.order)
	from := mostBeyond(p.order, func(n *node) bool { return n.idle.len()+len(n.aside) > 0 })
	gone := false
	if from != nil {
		p.siftLocked(from, func(s *Session) bool {
			if gone || s.yieldFor != nil { // the session was let go at its release, which is now
				return !s.Valid()
			}
			gone = true
			p.promiseLocked(s, to)
			return true
		})
	}
	if gone || !inUse {
		return
	}
	reason := "its place is needed by another pool"
	p.walked += len(p.order)
	if from = mostBeyond(p.order, func(n *node) bool { return int(n.live.Load()) > n.going }); from == nil {
		return
	}
	if s := p.retireInUseLocked(from, &reason); s != nil {
		p.promiseLocked(s, to)
		// It may have been laid down just before.
		p.siftLocked(from, func(s *Session) bool { return !s.Valid() })
	}
}

// promiseLocked notes that s goes for the sake of another pool.
func (p *state) promiseLocked(s *Session, to *budget.Member) {
	s.yieldFor = to
	p.member.Promise(to)
}

// mostBeyond returns the node that has most beyond its fair part, of those that have something; nil: none.
func mostBeyond(nodes []*node, has func(*node) bool) (most *node) {
	for _, n := range nodes {
		if has(n) && (most == nil || n.balance.surplus > most.balance.surplus) {
			most = n
		}
	}
	return most
}
