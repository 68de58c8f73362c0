package pool

import (
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Pause hands out no session from now on: callers wait in the queue, under its rules,
// and those that have a session finish. Pause(false) ends that.
func (p *Pool) Pause(on bool) {
	p.mu.Lock()
	p.paused.Store(on)
	p.setGateLocked(0)
	p.growLocked()
	p.mu.Unlock()
	if !on {
		p.serve()
	}
}

// Paused reports whether the pool is paused.
func (p *Pool) Paused() bool { return p.paused.Load() }

// Hold says which caller has a session. Immutable once it was noted.
type Hold struct {
	App         string
	Trace       [16]byte // id of the trace that it belongs to; zero: none
	Since       time.Time
	Transaction bool // over several calls
}

// Note says which caller has the session. That caller calls it, with nil before the
// check-in.
func (s *Session) Note(h *Hold) { s.hold.Store(h) }

// SessionStats is one session.
type SessionStats struct {
	Session  *Session // to be named to Kill
	Node     cluster.NodeID
	Resource Resource
	InUse    bool
	Hold     *Hold  // nil: no caller has it, or none has noted it
	Retired  string // why it must not be used again; "": it may
	Expires  time.Time
}

// Sessions lists the sessions that are open. Those that change hands meanwhile may
// be listed in either state.
func (p *Pool) Sessions() []SessionStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := make([]bool, p.made)
	nodes := slices.Clone(p.order)
	p.walked += len(nodes)
	p.slotsLocked(func(s *Session) { idle[s.index] = true })
	for _, n := range nodes {
		for _, i := range n.aside {
			idle[i] = true
		}
	}
	p.mu.Unlock()
	for _, n := range nodes {
		p.restOn(n, idle)
	}
	p.mu.Lock()
	all := make([]SessionStats, 0, p.size)
	for i := range idle { // sessions that were opened since are left out
		if i > 0 && i%statsPiece == 0 {
			p.breathLocked()
		}
		p.walked++
		if s := p.cells.at(uint16(i)).session; s != nil && !s.gone {
			all = append(all,
				SessionStats{Session: s, Node: s.node.id, Resource: s.res, InUse: !idle[i], Hold: s.hold.Load(),
					Retired: s.Retired(), Expires: s.expires})
		}
	}
	return all
}

// restOn marks the cells on a node's stack. Others push and pop meanwhile: it may be off by those.
func (p *shelf) restOn(n *node, idle []bool) {
	top := n.idle.head.Load() & headTop
	for range n.idle.len() {
		if top == 0 || int(top) > len(idle) {
			return
		}
		idle[top-1] = true
		top = uint64(p.cells.at(uint16(top-1)).next.Load()) & headTop
	}
}

// Kill ends a session: it is closed at once if it is idle, else at its release.
// What its holder has under way is the holder's affair.
func (p *Pool) Kill(s *Session, reason string) { p.retire(s, reason) }
