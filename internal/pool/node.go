package pool

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// node is what the pool has on one node.
type node struct {
	id cluster.NodeID
	front
	guarded
}

// front is the part of a node that every Acquire and Release reads.
type front struct {
	_        [64]byte
	idle     stack
	live     atomic.Int32         // sessions in use, in slots and in idle; not those set aside
	eligible atomic.Bool          // its sessions are checked out, and more may be opened; else idle ones are closed or parked
	most     atomic.Int32         // the load above which slots with its sessions are passed over, see table.reckon
	nearly   atomic.Int32         // the load above which an Ask.Near gets no session here
	high     atomic.Int32         // the most load of late that an Ask.Near has met, with its own, in parts of 1<<highDecay
	peak     atomic.Int32         // the most sessions out since Pool.Use
	shelf    *shelf               // constant
	word     atomic.Pointer[word] // see stock; nil: the pool knows few nodes
	number   int                  // its bit; set before word
	_        [8]byte
}

// guarded is the part of a node that Pool.mu guards.
type guarded struct {
	size      int      // sessions being opened, live and closing: what counts against the cap
	opening   int      // calls of Opener.Open under way
	stalled   int      // openings under way that take too long
	closing   int      // sessions given up whose Resource.Close has not returned
	first     *Session // its live sessions, linked by next
	going     int      // live sessions that are retired
	expired   int      // live sessions that the sweep under way may close
	quota     int      // how many of the expired ones are to be closed
	aside     []uint16 // cells of sessions that Pool.SetLimit leaves without use, or that are parked; the longest unused first
	view      nodeView
	parkUntil time.Time // its idle sessions are parked until then, see park.go; zero: not at all
	balance   balance
	pace      pace
	ending    ending
	counts    Counts // the events
}

// nodeView is what the last view says of a node.
type nodeView struct {
	known  bool          // in the view
	bad    bool          // ejected or unreachable
	weight float64       // above 0: relative to the others; 0: only when those have no room
	part   float64       // of the weight, by which its sessions are chosen; 0: all of it
	cap    int           // cap of sessions; 0 while not eligible
	load   *cluster.Load // may be nil
	keeps  bool          // no session is moved from it or to it: discovery is in doubt about it
	starts bool          // in its slow start: no session is moved from it
	parks  bool          // not eligible, because of its own load alone: see soft

	givesUp uint8 // which openings on it end with the view: see giveUpLocked
}

// chosen is the weight by which the sessions of the node are chosen.
func (p *nodeView) chosen() float64 {
	if p.part > 0 {
		return p.weight * p.part
	}
	return p.weight
}

// out is the sessions of a node that are not on its stack: its load, and the idle ones
// in slots.
func (n *node) out() int { return int(n.live.Load()) - n.idle.len() }

// pop takes the session of the node that was used last, and notes how many are out.
func (n *node) pop() (*Session, bool) {
	i, ok := n.idle.pop(&n.shelf.cells)
	if !ok {
		return nil, false
	}
	if n.idle.len() == 0 {
		n.emptied()
	}
	n.peaks()
	return n.shelf.cells.at(i).session, true
}

// peaks is called when one more session is out. It writes seldom.
func (n *node) peaks() {
	out := int32(n.out())
	for peak := n.peak.Load(); out > peak && !n.peak.CompareAndSwap(peak, out); {
		peak = n.peak.Load()
	}
}

// held is the sessions that a node has and does not delete.
func (n *node) held() int { return n.size - n.closing }

// keeping is the sessions that a node has and will have.
func (n *node) keeping() int { return n.held() - n.going - n.balance.pledged + n.balance.owed }

// link adds a live session.
func (n *node) link(s *Session) {
	s.next = n.first
	if n.first != nil {
		n.first.prev = s
	}
	n.first = s
}

// unlink takes s out of the live sessions.
func (n *node) unlink(s *Session) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		n.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
}

// table is the nodes that Acquire chooses from. Immutable once stored.
type table struct {
	nodes    []*node // eligible, in order of ID
	weighted []choice
	spare    []choice // nodes of weight 0: used when no other has an idle session
	index    [2]index // of weighted and spare
	turns    uint32   // once in this many uses a slot's session goes through a choice by load: a power of two
}

// choice is a node to choose.
type choice struct {
	*node
	load   *cluster.Load
	weight int64 // relative, 1 to weightMax
}

const (
	weightMax = 1 << 10
	// slotMargin is by how many sessions a node may exceed its fair share of the
	// load before slots with its sessions are passed over.
	slotMargin = 2
	// slotTurns is the least number of uses between two choices by load.
	slotTurns = 64
	// costStep is between one cost and the next, see cluster.Load.Cost. A node that costs one step
	// more than another may be hardly slower, and no longer be so a moment later: that alone is no
	// reason to leave it.
	costStep = 2
	// highDecay is the part of node.high above the present load that is forgotten at each
	// reckoning: 1/64.
	highDecay = 6
)

// newTable makes a table of eligible nodes.
func newTable(nodes []*node, words []*word) *table {
	t := &table{nodes: nodes, turns: slotTurns}
	for int(t.turns) < 2*len(nodes) { // the cost of a reckoning stays below half a node for each checkout
		t.turns *= 2
	}
	heaviest := 0.0
	for _, n := range nodes {
		heaviest = max(heaviest, n.view.chosen())
	}
	for _, n := range nodes {
		if w := n.view.chosen(); w > 0 {
			t.weighted = append(t.weighted, choice{n, n.view.load, max(1, int64(w/heaviest*weightMax))})
		} else {
			t.spare = append(t.spare, choice{n, n.view.load, weightMax})
		}
	}
	t.index = [2]index{newIndex(words, t.weighted), newIndex(words, t.spare)}
	t.reckon()
	return t
}

// reckon sets, for each node, the load above which slots with its sessions are passed over: its fair part of the present load,
// by weight and by the cost of a call, plus a margin. For Ask.Near it takes the most load of late instead: where many calls
// end and begin together, the present load says little about the next moment.
func (t *table) reckon() {
	for i := range t.spare {
		t.spare[i].setMost(-1, -1)
	}
	if len(t.weighted) == 1 {
		t.weighted[0].setMost(1<<30, 1<<30)
		return
	}
	out, high, cheapest := 0, 0.0, int64(1)
	for i := range t.weighted {
		c := &t.weighted[i]
		out += c.out()
		high += c.settle()
		if cost := c.load.Cost(); cost > 1 && (cheapest == 1 || cost < cheapest) {
			cheapest = cost
		}
	}
	worth := func(c *choice, slack int64) float64 {
		return float64(c.weight) / float64(max(c.load.Cost()/slack, cheapest)) // of one that was not observed yet the best is assumed
	}
	sum, sumNear := 0.0, 0.0
	for i := range t.weighted {
		sum += worth(&t.weighted[i], 1)
		sumNear += worth(&t.weighted[i], costStep)
	}
	most := func(part, load float64) int32 {
		return int32(part*load + slotMargin*min(1, part*float64(len(t.weighted))) + 1e-6)
	}
	for i := range t.weighted {
		c := &t.weighted[i]
		c.setMost(most(worth(c, 1)/sum, float64(out)), most(worth(c, costStep)/sumNear, max(float64(out), high)))
	}
}

// settle lets high come down, and returns it in sessions.
func (n *node) settle() float64 {
	high := n.high.Load()
	if off := high - int32(n.out())<<highDecay; off > 0 {
		high -= 1 + off>>highDecay
		n.high.Store(high)
	}
	return float64(high) / (1 << highDecay)
}

// meet records the load that an Ask.Near finds on the node, its own call included, and reports whether the caller may have a
// session there: the load is below nearly.
func (n *node) meet() bool {
	out := int32(n.out())
	if high := (out + 1) << highDecay; high > n.high.Load() {
		n.high.Store(high)
	}
	return out < n.nearly.Load()
}

// setMost writes seldom: every Acquire reads it.
func (n *node) setMost(most, nearly int32) {
	if n.most.Load() != most {
		n.most.Store(most)
	}
	if n.nearly.Load() != nearly {
		n.nearly.Store(nearly)
	}
}

// choose returns the less loaded of two random nodes with a session on their
// stack, nil if there is none.
func choose(from []choice, x *index) *node {
	size := uint64(len(from))
	switch size {
	case 0:
		return nil
	case 1:
		if from[0].idle.len() == 0 {
			return nil
		}
		return from[0].node
	}
	if len(x.words) > 0 {
		size = uint64(len(x.at))
	}
	r := rand.Uint64()
	a := stocked(from, x, int(r>>32*size>>32), nil)
	if a == nil {
		return nil
	}
	if b := stocked(from, x, int(r&(1<<32-1)*size>>32), a); b != nil && b.lighter(a) {
		return b.node
	}
	return a.node
}

// lighter reports whether c has less load for its weight than d. Load is
// sessions out, times what a call costs if that is known of both.
func (c *choice) lighter(d *choice) bool {
	mine, other := int64(c.out())*d.weight, int64(d.out())*c.weight
	if costC, costD := c.load.Cost(), d.load.Cost(); min(costC, costD) > 1 {
		mine, other = mine*costC, other*costD
	}
	return mine < other
}

// stocked returns the first node from position i on, going round, that has a
// session on its stack and is not other.
func stocked(from []choice, x *index, i int, other *choice) *choice {
	if len(x.words) > 0 {
		return x.stocked(i, other)
	}
	for _, part := range [2][]choice{from[i:], from[:i]} {
		for k := range part {
			if c := &part[k]; c != other && c.idle.len() > 0 {
				return c
			}
		}
	}
	return nil
}

// pace slows down the opening of sessions after failures: a pause that doubles,
// then one try at a time, and one more after each success.
type pace struct {
	failures int       // in a row
	since    time.Time // of the last failure: tries begun before it say nothing new
	until    time.Time // no try before
	window   int       // tries at a time; 0: as many as Config.CreateBurst
}

const (
	pauseMin = 100 * time.Millisecond
	pauseMax = time.Second // callers may wait for the next try
)

func (c *pace) allows(now time.Time, underWay, burst int) bool {
	if c.window > 0 {
		burst = min(burst, c.window)
	}
	return !now.Before(c.until) && underWay < burst
}

// fail notes the failure of a try that began at the given time. turns is how many nodes share the
// pause in turns. It reports false if that says nothing new.
func (c *pace) fail(begun, now time.Time, turns int) bool {
	if c.failures > 0 && begun.Before(c.since) {
		return false
	}
	pause := min(pauseMin<<min(c.failures, 10), pauseMax) / time.Duration(turns)
	c.failures++
	c.since, c.until = now, now.Add(pause/2+rand.N(pause/2+1))
	c.window = 1
	return true
}

func (c *pace) succeed(burst int) {
	c.failures, c.until = 0, time.Time{}
	if c.window > 0 {
		if c.window++; c.window >= burst {
			c.window = 0
		}
	}
}
