package pool

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// standing is what may become of the idle sessions of a node.
type standing uint32

const (
	eligible standing = iota // they are leased, and more may be opened
	spared                   // they are kept, in case the node comes back
	gone                     // they are closed
)

func standingOf(n cluster.ViewNode) standing {
	switch {
	case n.Use == cluster.UseNew:
		return eligible
	case n.Use == cluster.UseNone || n.Verdict.Leaving:
		return gone
	default:
		return spared
	}
}

// node is what the pool has on one node.
type node struct {
	id cluster.NodeID

	// Read by every Acquire and Release.
	_        [64]byte
	idle     stack
	live     atomic.Int32  // sessions leased, in slots and in idle
	standing atomic.Uint32 // a standing
	_        [48]byte

	// Guarded by Pool.mu.
	size    int  // sessions being opened, live and closing: what counts against the cap
	opening int  // calls of Opener.Open under way
	stalled int  // those of them that take too long
	closing int  // calls of Resource.Close under way
	joining bool // became eligible late and has not got its share of the sessions yet
	known   bool // in the view
	pace    pace
	counts  Counts // the events
}

func (n *node) is(s standing) bool { return standing(n.standing.Load()) == s }

// out is the sessions of a node that are not on its stack: its load, give or take
// those that rest in slots.
func (n *node) out() int { return int(n.live.Load()) - n.idle.len() }

// table is the nodes that Acquire chooses from. Immutable once stored.
type table struct {
	nodes []*node // eligible, in order of ID
	turns uint32  // a slot's session goes through a choice by load every so many leases: a power of two
}

const (
	// slotMargin is by how many sessions a node may exceed the mean load before
	// slots with its sessions are passed over.
	slotMargin = 2
	// slotTurns is the least number of leases between two choices by load.
	slotTurns = 64
)

func newTable(nodes []*node) *table {
	t := &table{nodes: nodes, turns: slotTurns}
	for int(t.turns) < 2*len(nodes) { // the cost of a reckoning stays below half a node for each lease
		t.turns *= 2
	}
	return t
}

// fairLoad is the load above which a node's slots are passed over.
func (t *table) fairLoad() int32 {
	if len(t.nodes) < 2 {
		return 1 << 30
	}
	sum := 0
	for _, n := range t.nodes {
		sum += n.out()
	}
	return int32(sum/len(t.nodes) + slotMargin)
}

// choose returns the less loaded of two random nodes with a session on their
// stack, nil if there is none.
func (t *table) choose() *node {
	size := uint64(len(t.nodes))
	switch size {
	case 0:
		return nil
	case 1:
		if t.nodes[0].idle.len() == 0 {
			return nil
		}
		return t.nodes[0]
	}
	r := rand.Uint64()
	a := t.stocked(int(r>>32*size>>32), nil)
	if a == nil {
		return nil
	}
	if b := t.stocked(int(r&(1<<32-1)*size>>32), a); b != nil && b.out() < a.out() {
		return b
	}
	return a
}

// stocked returns the first node from position i on, going round, that has a
// session on its stack and is not other.
func (t *table) stocked(i int, other *node) *node {
	for _, part := range [2][]*node{t.nodes[i:], t.nodes[:i]} {
		for _, n := range part {
			if n != other && n.idle.len() > 0 {
				return n
			}
		}
	}
	return nil
}

// pace slows down the opening of sessions after failures: a pause that doubles,
// then one try at a time, and twice as many after each success.
type pace struct {
	failures int       // in a row
	since    time.Time // of the last failure: tries begun before it say nothing new
	until    time.Time // no try before
	window   int       // tries at a time; 0: no bound
}

const (
	pauseMin  = 100 * time.Millisecond
	pauseMax  = 10 * time.Second
	windowMax = 32 // from here on there is no bound
)

func (c *pace) allows(now time.Time, underWay int) bool {
	return !now.Before(c.until) && (c.window == 0 || underWay < c.window)
}

// fail takes note of the failure of a try begun at the given time. It reports
// false if that says nothing new.
func (c *pace) fail(begun, now time.Time) bool {
	if c.failures > 0 && begun.Before(c.since) {
		return false
	}
	pause := min(pauseMin<<min(c.failures, 10), pauseMax)
	c.failures++
	c.since, c.until = now, now.Add(pause/2+rand.N(pause/2))
	c.window = 1
	return true
}

func (c *pace) succeed() {
	c.failures, c.until = 0, time.Time{}
	if c.window *= 2; c.window >= windowMax {
		c.window = 0
	}
}

// restart lets a node that has just become eligible show what it can, with one
// try at first.
func (c *pace) restart() {
	if c.failures > 0 {
		*c = pace{window: 1}
	}
}
