package pool

import (
	"context"
	"time"
)

const (
	sweepMax     = 10 * time.Second       // between looks for expired sessions, at most
	moveEvery    = 100 * time.Millisecond // between moves towards an even spread
	movesAtATime = 2
)

// Run does what depends on time, until ctx ends or the pool is closed: it opens
// the minimum and keeps it, closes expired sessions, tries again after failures,
// and gives nodes that joined late their share. It must run while the pool is in
// use. It returns nil.
func (p *Pool) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-timer.C:
		}
		next, ok := p.maintain()
		if !ok {
			return nil
		}
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
// the pool is closed.
func (p *Pool) maintain() (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, false
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
	if !p.moveAt.IsZero() {
		if !now.Before(p.moveAt) {
			p.moveAt = time.Time{}
			if p.moveLocked(now) {
				p.moveAt = now.Add(moveEvery)
			}
		}
		if !p.moveAt.IsZero() {
			earlier(p.moveAt)
		}
	}
	p.growLocked() // may bring due forward
	select {
	case <-p.wake: // what it says is in due
	default:
	}
	return p.due.Sub(now), true
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
		for i := range p.cells {
			if s := p.cells[i].session; s != nil && !now.Before(s.expires) {
				s.retired.CompareAndSwap(nil, &reason)
			}
		}
	}
	unused := make(map[*node]int)
	p.siftAllLocked(func(s *Session) bool {
		if s.turn != s.seenTurn {
			s.seenTurn, s.seenAt = s.turn, now
		}
		if s.Valid() && p.staleLocked(s, now) {
			unused[s.node]++
		}
		return !s.Valid()
	})
	// Of nodes with many sessions first, down to the minimum.
	quota := make(map[*node]int)
	for spare := p.size - len(p.openings) - p.closing - p.cfg.Min; spare > 0; spare-- {
		var most *node
		for n, k := range unused {
			if k > 0 && (most == nil || n.held()-quota[n] > most.held()-quota[most]) {
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

// moveLocked moves a few sessions towards an even spread, for nodes that became
// eligible when the others had sessions already: while there is room it opens
// one on such a node, else it lets one go elsewhere. It also brings nodes below
// a cap that fell. It reports whether there is more to do.
func (p *Pool) moveLocked(now time.Time) bool {
	nodes := p.table.Load().nodes
	limit := p.cfg.nodeCap(len(nodes))
	doomed := make(map[*node]int) // leased, to be let go at their release
	leaving := p.closing
	for i := range p.cells {
		if s := p.cells[i].session; s != nil && !s.Valid() {
			doomed[s.node]++
			leaving++
		}
	}
	held := func(n *node) int { return n.held() - doomed[n] }
	shed := func(n *node) {
		if p.shedLocked(n) {
			doomed[n]++
		}
		leaving++
	}
	for range movesAtATime {
		var least, most *node
		for _, n := range nodes {
			if n.joining && (least == nil || held(n) < held(least)) {
				least = n
			}
			if most == nil || held(n) > held(most) {
				most = n
			}
		}
		switch {
		case most != nil && held(most) > limit:
			shed(most)
		case least == nil:
			return false
		case held(most)-held(least) <= 1:
			least.joining = false
		case least.stalled > 0 || least.pace.failures > 0 || !least.pace.allows(now, least.opening) || least.size >= limit:
			return true // others keep theirs until it can have more
		case p.size < p.cfg.Max:
			p.openLocked(least, now)
		case leaving < movesAtATime: // else there is room soon
			shed(most)
		}
	}
	return true
}

// shedLocked lets one session of n go: the longest unused one, or if none is idle
// a leased one at its release, which it reports.
func (p *Pool) shedLocked(n *node) (atRelease bool) {
	shed := false
	p.siftLocked(n, func(s *Session) bool {
		end := !shed || !s.Valid()
		shed = true
		return end
	})
	if shed {
		return false
	}
	reason := "its place is needed on another node"
	for i := range p.cells {
		if s := p.cells[i].session; s != nil && s.node == n && s.retired.CompareAndSwap(nil, &reason) {
			return true
		}
	}
	return false
}
