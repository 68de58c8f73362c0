package pool

import (
	"context"
	"math"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

const sweepMax = 10 * time.Second // between looks for expired sessions, at most

// Run does what depends on time, until ctx ends or the pool is closed: it opens
// the minimum and keeps it, closes expired sessions, tries again after failures,
// and keeps the spread over the nodes even. It must run while the pool is in use.
// It returns nil.
func (p *Pool) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-p.offer:
		case <-timer.C:
		}
		next, gone, ok := p.maintain()
		if !ok {
			return nil
		}
		p.dismiss(gone)
		p.refill()
		if p.gate.Load() == gateQueue { // a caller may have missed a session, see word
			p.serve()
		}
		timer.Reset(next)
	}
}

// dueLocked makes Run look at the pool at the given time, if that is earlier than
// it would anyway. The zero time means nothing.
func (p *state) dueLocked(at time.Time) {
	if at.IsZero() || !p.due.IsZero() && !at.Before(p.due) {
		return
	}
	p.due = at
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// maintain does what is due and returns how long nothing will be; false once
// the pool is closed. gone are to be dismissed.
func (p *Pool) maintain() (next time.Duration, gone *Waiter, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, nil, false
	}
	now := time.Now()
	p.due = now.Add(time.Hour)
	earlier := func(t time.Time) {
		if t.Before(p.due) {
			p.due = t
		}
	}

	for o := range p.openings {
		stalls := o.begun.Add(p.cfg.stallAfter())
		if !o.stalled && !now.Before(stalls) {
			o.stalled = true
			o.node.stalled++
			p.stalled++
		}
		if !o.stalled {
			earlier(stalls)
		}
	}
	if p.cfg.sweepEvery() > 0 {
		if !now.Before(p.sweep.at) {
			p.sweep.at = p.sweepLocked(now)
		}
		earlier(p.sweep.at)
	}
	if p.cfg.MoveRate > 0 && !p.quiet && len(p.table.Load().nodes) > 1 {
		if !now.Before(p.spread.at) {
			p.spread.at = now.Add(p.evenLocked(now))
		}
		earlier(p.spread.at)
	} else if p.spread != (spread{}) {
		p.spread = spread{}
		for _, n := range p.order {
			n.balance.owed = 0
		}
	}
	p.parkedLocked(now, earlier)
	gone, oldest := p.queue.Overdue(p.clock())
	if oldest > 0 {
		earlier(p.began.Add(oldest))
	}
	p.countLocked(gone)
	p.setGateLocked(0)
	p.growLocked() // may bring due forward
	select {
	case <-p.wake: // what it says is in due
	default:
	}
	return p.due.Sub(now), gone, true
}

// sweepEvery is the time between looks for expired sessions; 0: none expire.
func (c *Config) sweepEvery() time.Duration {
	every := sweepMax
	if c.Idle == 0 && c.Age == 0 {
		return 0
	}
	if c.Idle > 0 {
		every = min(every, c.Idle/10)
	}
	if c.Age > 0 {
		every = min(every, c.Age/20)
	}
	return every
}

// sweep is a walk over all nodes for sessions that expire, in pieces: no caller waits for Pool.mu
// until all of it is done. First it looks at every node to find them, then again at the nodes
// that are to lose some.
type sweep struct {
	at      time.Time // of the next piece
	begun   bool
	closing bool           // it found all
	from    cluster.NodeID // the next node to be looked at, or the one after it if it is gone
}

// sweepPiece is how much a piece of a sweep looks at before it leaves the rest to the next.
const sweepPiece = 1000

// sweepLocked does a piece of a sweep. It returns when the next one is due.
func (p *state) sweepLocked(now time.Time) time.Time {
	w, began := &p.sweep, p.walked
	if !w.begun {
		w.begun = true
		p.unslotLocked(nil) // what is laid down there from now on, was used
	}
	for {
		for _, n := range p.order[p.indexOf(w.from):] {
			if p.walked-began >= sweepPiece {
				w.from = n.id
				return now
			}
			if w.closing {
				p.expireLocked(n, now)
			} else {
				p.findLocked(n, now)
			}
		}
		w.from = 0
		if w.closing || !p.spareLocked() {
			w.begun, w.closing = false, false
			return now.Add(p.cfg.sweepEvery())
		}
		w.closing = true
	}
}

// findLocked retires the sessions of a node that are too old, and looks for those unused for too
// long. It takes them from slots and stacks to look at them: an Acquire leaves no time stamp, only a
// count of uses, which tells one sweep what happened since the sweep before.
func (p *state) findLocked(n *node, now time.Time) {
	if p.cfg.Age > 0 {
		reason := "age"
		for s := n.first; s != nil; s = s.next {
			p.walked++
			if !now.Before(s.expires) {
				p.retireLocked(s, &reason)
			}
		}
	}
	n.expired = 0
	p.siftStackLocked(n, func(s *Session) bool {
		if s.uses != s.seenUses {
			s.seenUses, s.seenAt = s.uses, now
		}
		if s.Valid() && p.cfg.stale(s, now) {
			if !n.eligible.Load() {
				return true
			}
			n.expired++
		}
		return !s.Valid()
	})
}

// spareLocked decides how many of the sessions that were unused for too long each node loses: the
// minimum is spared. It reports false if none.
func (p *state) spareLocked() bool {
	sum := 0
	for _, n := range p.order {
		n.quota = 0
		sum += n.expired
	}
	usable := p.usableLocked()
	if sum = min(sum, usable-p.cfg.Min); sum <= 0 {
		return false
	}
	p.quotasLocked(sum, usable-sum)
	return true
}

// expireLocked closes what was found on a node, the longest unused first.
func (p *state) expireLocked(n *node, now time.Time) {
	p.walked++
	if n.quota == 0 {
		return
	}
	p.siftStackLocked(n, func(s *Session) bool {
		if n.quota == 0 || !p.cfg.stale(s, now) || p.usableLocked() <= p.cfg.Min {
			return !s.Valid()
		}
		n.quota--
		return true
	})
}

// quotasLocked has each node lose its part of a number of sessions to be closed, see quotas.
func (p *state) quotasLocked(over, left int) {
	p.walked += 4 * len(p.order)
	quotas(p.order, p.table.Load().nodes, over, left)
	p.balanceLocked() // the balance is that of what there is again
}

// quotas divides a number of sessions to be closed among the nodes, each of which has some to
// choose from (node.expired), so that the spread of those that are left is as even as can be: first
// what a node has beyond its share of them, then one more of each, then any. It leaves the balance that the nodes would have then.
func quotas(order, eligible []*node, over, left int) {
	for _, n := range order {
		n.quota, n.balance.fair, n.balance.stays = 0, 0, n.view.keeps
	}
	fair(eligible, float64(left))
	for pass := range 3 {
		for _, n := range order {
			most := n.held() - int(math.Ceil(n.balance.fair)) + pass
			if pass == 2 {
				most = n.expired
			}
			k := max(0, min(most, n.expired)-n.quota)
			k = min(k, over)
			n.quota += k
			over -= k
		}
	}
}

// stale reports whether a session that is in the caller's hand was unused for too long.
func (c *Config) stale(s *Session, now time.Time) bool {
	return c.Idle > 0 && s.uses == s.seenUses && now.Sub(s.seenAt) >= c.Idle
}
