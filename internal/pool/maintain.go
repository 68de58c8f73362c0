package pool

import (
	"context"
	"time"
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
		timer.Reset(next)
	}
}

// dueLocked makes Run look at the pool at the given time, if that is earlier than
// it would anyway. The zero time means nothing.
func (p *Pool) dueLocked(at time.Time) {
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
		stalls := o.begun.Add(p.stallAfter())
		if !o.stalled && !now.Before(stalls) {
			o.stalled = true
			o.node.stalled++
			p.stalled++
		}
		if !o.stalled {
			earlier(stalls)
		}
	}
	if every := p.sweepEvery(); every > 0 {
		if !now.Before(p.sweepAt) {
			p.sweepLocked(now)
			p.sweepAt = now.Add(every)
		}
		earlier(p.sweepAt)
	}
	if p.cfg.MoveRate > 0 && !p.quiet && len(p.table.Load().nodes) > 1 {
		if !now.Before(p.spread.at) {
			p.spread.at = now.Add(p.evenLocked(now))
		}
		earlier(p.spread.at)
	} else {
		p.spread = spread{}
		for _, n := range p.order {
			n.share.owed = 0
		}
	}
	p.parkedLocked(now, earlier)
	gone, oldest := p.line.overdue(p.clock())
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

func (p *Pool) sweepEvery() time.Duration {
	every := sweepMax
	if p.cfg.Idle == 0 && p.cfg.Age == 0 {
		return 0
	}
	if p.cfg.Idle > 0 {
		every = min(every, p.cfg.Idle/10)
	}
	if p.cfg.Age > 0 {
		every = min(every, p.cfg.Age/20)
	}
	return every
}

// sweepLocked retires sessions that are too old and closes those unused for too
// long, wherever they rest. It takes them out of their places to look at them:
// an Acquire leaves no time stamp, only a count of turns, which tells one sweep
// what happened since the sweep before.
func (p *Pool) sweepLocked(now time.Time) {
	if p.cfg.Age > 0 {
		reason := "age"
		for s := range p.liveLocked() {
			if !now.Before(s.expires) {
				s.retired.CompareAndSwap(nil, &reason)
			}
		}
	}
	unused := make(map[*node]int)
	p.siftAllLocked(func(s *Session) bool {
		if s.turn != s.seenTurn {
			s.seenTurn, s.seenAt = s.turn, now
		}
		stale := s.Valid() && p.staleLocked(s, now)
		if stale && s.node.eligible.Load() {
			unused[s.node]++
			stale = false
		}
		return stale || !s.Valid()
	})
	// Of nodes with more than their share first, down to the minimum.
	p.shareLocked()
	quota := make(map[*node]int)
	surplus := func(n *node) float64 { return n.share.surplus - float64(quota[n]) }
	for spare := p.usableLocked() - p.cfg.Min; spare > 0; spare-- {
		var most *node
		for n, k := range unused {
			if k > 0 && (most == nil || surplus(n) > surplus(most)) {
				most = n
			}
		}
		if most == nil {
			break
		}
		unused[most]--
		quota[most]++
	}
	for n, k := range quota {
		p.siftLocked(n, func(s *Session) bool {
			k--
			return k >= 0 && p.staleLocked(s, now)
		})
	}
}

func (p *Pool) staleLocked(s *Session, now time.Time) bool {
	return p.cfg.Idle > 0 && s.turn == s.seenTurn && now.Sub(s.seenAt) >= p.cfg.Idle
}
