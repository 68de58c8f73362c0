package pool

import "github.com/ydb-sidecar/sidecar/internal/cluster"

// Stats is the state of the pool at one moment. Idle and leased sessions are
// counted while they change hands, so under load they are off by a few; all
// other figures are exact.
type Stats struct {
	Max int
	Counts
	Waiting  [ClassSize]int // callers in line by Class
	TimedOut uint64         // callers whose context ended in line
	Refused  uint64         // callers told ErrQueueFull
	Nodes    []NodeStats    // in order of ID: those in the view and those with sessions left
}

// NodeStats is the part of one node.
type NodeStats struct {
	Node     cluster.NodeID
	Eligible bool // gets new sessions
	Cap      int  // limit of sessions here; 0 while the node is not eligible
	Counts
	Failures int // to open a session, in a row
}

// Counts are sessions by state now, and by event since the start.
type Counts struct {
	Sessions int // opening, idle, leased and closing: what the limits count
	Opening  int
	Idle     int
	Leased   int
	Closing  int

	Created uint64 // opened
	Closed  uint64 // deleted, or given up
	Failed  uint64 // not opened
}

func (c *Counts) add(d Counts) {
	c.Sessions += d.Sessions
	c.Opening += d.Opening
	c.Idle += d.Idle
	c.Leased += d.Leased
	c.Closing += d.Closing
	c.Created += d.Created
	c.Closed += d.Closed
	c.Failed += d.Failed
}

// Stats returns the state of the pool.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{Max: p.cfg.Max, Counts: p.past, TimedOut: p.timed, Refused: p.refused}
	for c := range st.Waiting {
		st.Waiting[c] = p.line.queue[c].n
	}
	idle := make(map[*node]int, len(p.order))
	p.idleLocked(idle)
	limit := p.cfg.nodeCap(len(p.table.Load().nodes))
	for _, n := range p.order {
		live := int(n.live.Load())
		ns := NodeStats{Node: n.id, Eligible: n.is(eligible), Failures: n.pace.failures, Counts: n.counts}
		ns.Sessions, ns.Opening, ns.Closing = n.size, n.opening, n.closing
		ns.Idle = min(idle[n], live)
		ns.Leased = live - ns.Idle
		if ns.Eligible {
			ns.Cap = limit
		}
		st.add(ns.Counts)
		st.Nodes = append(st.Nodes, ns)
	}
	return st
}
