package pool

import (
	"container/heap"
	"math"
	"time"
)

const (
	driftEvery  = 2 * time.Second // between looks at the spread; what is uneven for longer is evened out
	driftPart   = 0.2             // part of its fair sessions that a node may have too many or too few
	driftLeast  = 1.5             // sessions that a node may have too many or too few
	moveEvery   = 20 * time.Millisecond
	movesToNode = 4           // openings under way on a node that gets sessions from others, at most
	letGoEvery  = time.Second // if a session that was to make room is in use for longer, another one is let go
)

// spread is what the pool knows of how its sessions lie on the nodes, and does
// about it.
type spread struct {
	moving  bool      // sessions are moved until the spread is as even as can be
	drifted time.Time // since when it is uneven at every look; zero: it was not at the last one
	at      time.Time // of the next look or move
	letGoAt time.Time // a session was last let go to make room
}

// balance is what a node has of the sessions of the pool, and what it should have.
type balance struct {
	pledged int     // sessions to be let go when others are open elsewhere
	owed    int     // sessions let go elsewhere to make room that are not being opened here yet
	keeps   int     // sessions less pledged ones and those let go at their release, and what is owed
	stays   bool    // what it has is what it should have
	fair    float64 // what it should have of those that there are
	surplus float64 // keeps beyond fair; negative: it lacks some; infinite: not eligible
}

// balanceLocked reckons what each node should have: the sessions of the eligible
// ones, divided by weight within their limits. What is left, nodes of weight 0 get.
func (p *shelf) balanceLocked() {
	nodes := p.table.Load().nodes
	p.walked += 4 * len(nodes)
	for _, n := range nodes {
		n.balance.keeps, n.balance.stays = n.keeping(), n.view.keeps
	}
	divide(nodes)
	// In a slow start a node's weight is small for a moment: what it has, it will need.
	again := false
	for _, n := range nodes {
		if n.view.starts && n.balance.surplus > 0 {
			n.balance.stays, again = true, true
		}
	}
	if again {
		divide(nodes)
	}
}

// divide reckons what nodes should have, from what they keep.
func divide(nodes []*node) {
	sum := 0
	for _, n := range nodes {
		if !n.balance.stays {
			sum += n.balance.keeps
		}
	}
	fair(nodes, float64(sum))
	for _, n := range nodes {
		if n.balance.stays {
			n.balance.fair = float64(n.balance.keeps)
		}
		n.balance.surplus = float64(n.balance.keeps) - n.balance.fair
	}
}

// fair divides a number of sessions.
func fair(nodes []*node, sum float64) {
	for _, n := range nodes {
		n.balance.fair = 0
	}
	left := fill(nodes, sum, func(n *node) float64 {
		if n.balance.stays {
			return 0
		}
		return n.view.weight
	})
	fill(nodes, left, func(n *node) float64 {
		if n.view.weight == 0 && !n.balance.stays {
			return 1
		}
		return 0
	})
}

// fill gives nodes that have nothing yet their part of a sum, by weight and
// within their limits, and returns what is left.
func fill(nodes []*node, sum float64, weight func(*node) float64) (left float64) {
	for full := true; full; {
		weights := 0.0
		for _, n := range nodes {
			if n.balance.fair == 0 {
				weights += weight(n)
			}
		}
		if weights == 0 || sum <= 0 {
			return sum
		}
		full = false
		rest := sum
		for _, n := range nodes {
			limit := float64(n.view.cap)
			if w := weight(n); n.balance.fair == 0 && w > 0 && sum*w/weights > limit {
				n.balance.fair = limit
				rest -= limit
				full = true
			}
		}
		if !full {
			for _, n := range nodes {
				if n.balance.fair == 0 {
					n.balance.fair = sum * weight(n) / weights
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
func (p *state) evenLocked(now time.Time) time.Duration {
	p.balanceLocked()
	if !p.spread.moving {
		far, above := drifts(p.table.Load().nodes)
		switch {
		case !far:
			p.spread.drifted = time.Time{}
		case p.spread.drifted.IsZero():
			p.spread.drifted = now
		}
		if lasts := far && now.Sub(p.spread.drifted) >= driftEvery; !above && !lasts {
			return driftEvery
		}
		p.spread.moving = true
	}
	rate := max(1, float64(p.cfg.Max*p.cfg.MoveRate)/100) // in sessions per second
	every := max(moveEvery, time.Duration(float64(time.Second)/rate))
	if !p.moveLocked(now, int(rate*every.Seconds()+0.5)) {
		p.spread.moving, p.spread.drifted = false, time.Time{}
		return driftEvery
	}
	return every
}

// drifts reports whether some node is far from what it should have, and whether some
// node is above its limit, which is no matter of chance.
func drifts(nodes []*node) (far, above bool) {
	for _, n := range nodes {
		off := max(n.balance.surplus, -n.balance.surplus)
		far = far || off >= driftLeast && off > driftPart*n.balance.fair
		above = above || n.balance.keeps > n.view.cap && !n.balance.stays
	}
	return far, above
}

// moveLocked moves sessions, each from the node with the largest surplus to the one
// that lacks most of those that can have one now, while that makes the spread more even.
// It opens one there first, and lets the other one go when it is open; only if there is no
// room, one is let go before. It reports false if nothing is left to be moved.
func (p *state) moveLocked(now time.Time, most int) bool {
	from, to, lowest, owed := p.candidatesLocked(now)
	helps := func(lowest float64) bool {
		return len(from.nodes) > 0 && from.nodes[0].balance.surplus-lowest > 1+1e-6
	}
	if !helps(lowest) {
		if owed == 0 {
			return false
		}
		for _, n := range to.nodes {
			for n.balance.owed > 0 && most > 0 && n.ready(now, p.cfg.CreateBurst) && p.size < p.cfg.Max && p.member.TakeSpare(now) {
				p.openLocked(n, nil, now)
				most--
			}
		}
		return true
	}
	// If what lacks most can have none now, the others keep theirs.
	for ; most > 0 && len(to.nodes) > 0 && helps(to.nodes[0].balance.surplus); most-- {
		loser, gainer := from.nodes[0], to.nodes[0]
		switch {
		case p.size < p.cfg.Max && p.member.TakeSpare(now):
			p.openLocked(gainer, loser, now)
		case p.closing+p.going <= p.cfg.Max/100 || now.Sub(p.spread.letGoAt) >= letGoEvery:
			p.spread.letGoAt = now
			gainer.balance.owed++
			p.letGoLocked(loser)
		default:
			return true
		}
		loser.balance.surplus--
		gainer.balance.surplus++
		heap.Fix(&from, 0)
		if gainer.ready(now, p.cfg.CreateBurst) {
			heap.Fix(&to, 0)
		} else {
			heap.Pop(&to)
		}
	}
	return true
}

// candidatesLocked returns the nodes with a surplus and those that can have a session now, the lowest surplus
// of all nodes that may get any, and how many sessions are owed. Where others took the room, less is owed.
func (p *state) candidatesLocked(now time.Time) (from, to nodeHeap, lowest float64, owed int) {
	nodes := p.table.Load().nodes
	p.walked += len(nodes)
	leaving := p.closing + p.going
	full := p.size >= p.cfg.Max || !p.member.Spare()
	from.less = func(n, m *node) bool { return n.balance.surplus > m.balance.surplus }
	to.less = func(n, m *node) bool { return n.balance.surplus < m.balance.surplus }
	lowest = math.Inf(1)
	for _, n := range nodes {
		if owed += n.balance.owed; full && owed > leaving {
			n.balance.owed -= owed - leaving // waiting callers took the room
			owed = leaving
		}
		if n.balance.surplus > 0 {
			from.nodes = append(from.nodes, n)
		}
		if n.balance.fair == 0 || n.balance.stays {
			continue
		}
		lowest = min(lowest, n.balance.surplus)
		if n.ready(now, p.cfg.CreateBurst) {
			to.nodes = append(to.nodes, n)
		}
	}
	heap.Init(&from)
	heap.Init(&to)
	return from, to, lowest, owed
}

// ready reports whether a session may be moved to n now; burst is Config.CreateBurst.
func (n *node) ready(now time.Time, burst int) bool {
	return n.size < n.view.cap && n.stalled == 0 && n.pace.failures == 0 &&
		n.pace.allows(now, n.opening, min(movesToNode, burst))
}

// nodeHeap is a heap of nodes.
type nodeHeap struct {
	nodes []*node
	less  func(n, m *node) bool
}

func (h *nodeHeap) Len() int           { return len(h.nodes) }
func (h *nodeHeap) Less(i, j int) bool { return h.less(h.nodes[i], h.nodes[j]) }
func (h *nodeHeap) Swap(i, j int)      { h.nodes[i], h.nodes[j] = h.nodes[j], h.nodes[i] }
func (h *nodeHeap) Push(n any)         { h.nodes = append(h.nodes, n.(*node)) }
func (h *nodeHeap) Pop() any {
	last := len(h.nodes) - 1
	n := h.nodes[last]
	h.nodes = h.nodes[:last]
	return n
}

// movedLocked lets a session of a node go for one that was opened elsewhere,
// unless the node has lost too many meanwhile.
func (p *state) movedLocked(from *node) {
	if from.eligible.Load() && !from.balance.stays && float64(from.keeping()) > from.balance.fair {
		p.letGoLocked(from)
	}
}

// letGoLocked lets one session of n go: the longest unused one, or if none is idle
// a session in use at its release.
func (p *state) letGoLocked(n *node) {
	n.counts.Moved++
	gone := false
	p.siftLocked(n, func(s *Session) bool {
		end := !gone || !s.Valid()
		gone = true
		return end
	})
	if gone {
		return
	}
	reason := "its place is needed on another node"
	p.retireInUseLocked(n, &reason)
}

// retireInUseLocked retires a session of a node that has no idle one; nil: all are retired.
func (p *state) retireInUseLocked(n *node, reason *string) *Session {
	for s := n.first; s != nil; s = s.next {
		p.walked++
		if p.retireLocked(s, reason) {
			return s
		}
	}
	return nil
}
