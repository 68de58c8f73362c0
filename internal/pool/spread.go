package pool

import "time"

const (
	driftEvery  = 2 * time.Second // between looks at the spread; what is uneven at two in a row is evened out
	driftPart   = 0.2             // of its share: what a node may have too many or too few
	driftLeast  = 1.5             // sessions, likewise
	moveEvery   = 20 * time.Millisecond
	movesToNode = 4           // openings under way on a node that gets sessions from others, at most
	shedEvery   = time.Second // if a session that was to make room is in use for longer, another one is let go
)

// spread is what the pool knows of how its sessions lie on the nodes, and does
// about it.
type spread struct {
	moving  bool      // sessions are moved until the spread is as even as can be
	drifted bool      // it was uneven at the last look
	at      time.Time // of the next look or move
	shedAt  time.Time // a session was last let go to make room
}

// share is a node's part in the sessions of the pool.
type share struct {
	pledged int     // sessions to be let go when others are open elsewhere
	owed    int     // sessions let go elsewhere to make room that are not being opened here yet
	keeps   int     // sessions less pledged ones and those let go at their release, and what is owed
	stays   bool    // what it has is what it should have
	fair    float64 // what it should have of those that there are
	surplus float64 // keeps beyond fair; negative: it lacks some; infinite: not eligible
}

// shareLocked reckons what each node should have: the sessions of the eligible
// ones, divided by weight within their limits. What is left, nodes of weight 0 get.
func (p *Pool) shareLocked() {
	nodes := p.table.Load().nodes
	for _, n := range nodes {
		n.share.keeps = n.held() - n.share.pledged + n.share.owed
	}
	for s := range p.liveLocked() {
		if !s.Valid() {
			s.node.share.keeps--
		}
	}
	for _, n := range nodes {
		n.share.stays = n.place.keeps
	}
	divide(nodes)
	// In a slow start a node's weight is small for a moment: what it has, it will need.
	again := false
	for _, n := range nodes {
		if n.place.starts && n.share.surplus > 0 {
			n.share.stays, again = true, true
		}
	}
	if again {
		divide(nodes)
	}
}

// divide reckons the shares of nodes from what they keep.
func divide(nodes []*node) {
	sum := 0
	for _, n := range nodes {
		if !n.share.stays {
			sum += n.share.keeps
		}
	}
	fair(nodes, float64(sum))
	for _, n := range nodes {
		if n.share.stays {
			n.share.fair = float64(n.share.keeps)
		}
		n.share.surplus = float64(n.share.keeps) - n.share.fair
	}
}

// fair divides a number of sessions.
func fair(nodes []*node, sum float64) {
	for _, n := range nodes {
		n.share.fair = 0
	}
	left := fill(nodes, sum, func(n *node) float64 {
		if n.share.stays {
			return 0
		}
		return n.place.weight
	})
	fill(nodes, left, func(n *node) float64 {
		if n.place.weight == 0 && !n.share.stays {
			return 1
		}
		return 0
	})
}

// fill gives nodes that have nothing yet their share of a sum, by weight and
// within their limits, and returns what is left.
func fill(nodes []*node, sum float64, weight func(*node) float64) (left float64) {
	for full := true; full; {
		weights := 0.0
		for _, n := range nodes {
			if n.share.fair == 0 {
				weights += weight(n)
			}
		}
		if weights == 0 || sum <= 0 {
			return sum
		}
		full = false
		rest := sum
		for _, n := range nodes {
			limit := float64(n.place.limit)
			if w := weight(n); n.share.fair == 0 && w > 0 && sum*w/weights > limit {
				n.share.fair = limit
				rest -= limit
				full = true
			}
		}
		if !full {
			for _, n := range nodes {
				if n.share.fair == 0 {
					n.share.fair = sum * weight(n) / weights
				}
			}
			return 0
		}
		sum = rest
	}
	return sum
}

// evenLocked looks at the spread and moves sessions if it is uneven. It returns
// when to call it again.
func (p *Pool) evenLocked(now time.Time) time.Duration {
	p.shareLocked()
	if !p.spread.moving {
		was := p.spread.drifted
		drifts, above := p.driftsLocked()
		p.spread.drifted = drifts
		if !above && !(was && drifts) {
			return driftEvery
		}
		p.spread.moving = true
	}
	rate := max(1, float64(p.cfg.Max*p.cfg.MoveRate)/100) // in sessions per second
	every := max(moveEvery, time.Duration(float64(time.Second)/rate))
	for range int(rate*every.Seconds() + 0.5) {
		if !p.moveLocked(now) {
			p.spread.moving, p.spread.drifted = false, false
			return driftEvery
		}
		p.shareLocked()
	}
	return every
}

// driftsLocked reports whether some node has far from its share, and whether some
// node is above its limit, which is no matter of chance.
func (p *Pool) driftsLocked() (drifts, above bool) {
	for _, n := range p.table.Load().nodes {
		off := max(n.share.surplus, -n.share.surplus)
		drifts = drifts || off >= driftLeast && off > driftPart*n.share.fair
		above = above || n.share.keeps > n.place.limit && !n.share.stays
	}
	return drifts, above
}

// moveLocked moves one session from the node with the largest surplus to the one
// that lacks most, if that makes the spread more even. It opens one there first,
// and lets the other one go when it is open; only if there is no room, one is let
// go before. It reports false if nothing is left to be moved.
func (p *Pool) moveLocked(now time.Time) bool {
	var from, to, least, creditor *node
	leaving, owed := p.closing, 0
	for s := range p.liveLocked() {
		if !s.Valid() {
			leaving++
		}
	}
	full := p.size >= p.cfg.Max || !p.stake.spare()
	for _, n := range p.table.Load().nodes {
		if owed += n.share.owed; full && owed > leaving {
			n.share.owed -= owed - leaving // those in line took the room
			owed = leaving
		}
		if from == nil || n.share.surplus > from.share.surplus {
			from = n
		}
		if n.share.fair == 0 || n.share.stays {
			continue
		}
		if least == nil || n.share.surplus < least.share.surplus {
			least = n
		}
		ready := n.size < n.place.limit && n.stalled == 0 && n.pace.failures == 0 &&
			n.pace.allows(now, n.opening, min(movesToNode, p.cfg.CreateBurst))
		if ready && (to == nil || n.share.surplus < to.share.surplus) {
			to = n
		}
		if ready && n.share.owed > 0 {
			creditor = n
		}
	}
	helps := func(to *node) bool { return to != nil && from.share.surplus-to.share.surplus > 1+1e-6 }
	switch {
	case !helps(least) && owed == 0:
		return false
	case !helps(least) && !full && creditor != nil:
		if p.stake.takeSpare(now) {
			p.openLocked(creditor, nil, now)
		}
	case !helps(to): // others keep theirs until it can have more
	case !full:
		if p.stake.takeSpare(now) {
			p.openLocked(to, from, now)
		}
	case leaving <= p.cfg.Max/100 || now.Sub(p.spread.shedAt) >= shedEvery:
		p.spread.shedAt = now
		to.share.owed++
		p.shedLocked(from)
	}
	return true
}

// movedLocked lets a session of a node go for one that was opened elsewhere,
// unless the node has lost too many meanwhile.
func (p *Pool) movedLocked(from *node) {
	if p.shareLocked(); from.eligible.Load() && from.share.surplus > 0 {
		p.shedLocked(from)
	}
}

// shedLocked lets one session of n go: the longest unused one, or if none is idle
// a leased one at its release.
func (p *Pool) shedLocked(n *node) {
	n.counts.Moved++
	shed := false
	p.siftLocked(n, func(s *Session) bool {
		end := !shed || !s.Valid()
		shed = true
		return end
	})
	if shed {
		return
	}
	reason := "its place is needed on another node"
	for s := range p.liveLocked() {
		if s.node == n && s.retired.CompareAndSwap(nil, &reason) {
			return
		}
	}
}
