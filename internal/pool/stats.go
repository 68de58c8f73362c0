package pool

import (
	"math"
	"runtime"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Stats is the state of the pool at one moment. Sessions that are idle or in use are
// counted while they change hands, so under load they are off by a few; all
// other figures are exact. With more than 500 nodes, those of nodes, and their sums, are of moments some
// microseconds apart.
//
// Wide: one field for each figure.
type Stats struct {
	Max        int
	Limit      int // of sessions in use, see SetLimit; Max: none
	Min        int
	Pause      bool   // see Pool.Pause
	Aside      int    // idle sessions that the limit leaves without use
	Parked     int    // idle sessions of nodes that are ejected for their own load: kept, but not checked out
	Recovering int    // sessions whose last call was given up, see Recover; they count as in use
	Recovered  uint64 // sessions that recovered: they were idle again
	Counts
	// sessions that are wanted and not being opened, for the sake of the pace or because neither a
	// node nor the budget allows more
	Paced    int
	Moving   bool             // sessions are being moved towards an even spread
	Waiting  [ClassSize]int   // callers in the queue by Class
	Oldest   time.Duration    // wait of the oldest caller in the queue; 0: the queue is empty
	Queued   uint64           // callers that came to the queue so far
	TimedOut uint64           // callers whose context ended in the queue
	Refused  uint64           // callers told ErrQueueFull
	Shed     [shedSize]uint64 // callers told a *ShedError, by its Why
	OpenErr  error            // why the last session could not be opened; nil: it could
	Nodes    []NodeStats      // in order of ID: those in the view and those with sessions left
}

// InLine is how many callers wait, of all classes.
func (s *Stats) InLine() (n int) {
	for _, class := range s.Waiting {
		n += class
	}
	return n
}

// NodeStats is the part of one node.
type NodeStats struct {
	Node     cluster.NodeID
	Eligible bool // gets new sessions
	Cap      int  // limit of sessions here; 0 while the node is not eligible
	Counts
	Failures int     // to open a session, in a row
	Window   int     // sessions that may be opened at a time: it grows after failures; 0 while it pauses
	Weight   float64 // of the view; 0: gets what the others have no room for
	Fair     float64 // sessions that it should have of those that there are
	Surplus  float64 // sessions beyond that; negative: it lacks some
}

// Counts are sessions by state now, and by event since the start.
type Counts struct {
	Sessions int // opening, idle, in use and closing: what the limits count
	Opening  int
	Idle     int
	InUse    int
	Closing  int

	Created uint64 // opened
	Closed  uint64 // deleted, or given up
	Failed  uint64 // not opened
	Moved   uint64 // let go for the sake of another node
}

func (c *Counts) add(d Counts) {
	c.Sessions += d.Sessions
	c.Opening += d.Opening
	c.Idle += d.Idle
	c.InUse += d.InUse
	c.Closing += d.Closing
	c.Created += d.Created
	c.Closed += d.Closed
	c.Failed += d.Failed
	c.Moved += d.Moved
}

// Stats returns the state of the pool.
func (p *Pool) Stats() Stats {
	st, ok := p.stats(statsPiece)
	if !ok {
		st, _ = p.stats(math.MaxInt)
	}
	return st
}

// statsPiece is how many nodes or sessions are looked at for figures before others have Pool.mu.
const statsPiece = 500

// breathLocked lets others have Pool.mu in the midst of a look.
func (p *Pool) breathLocked() {
	if p.breathes != nil {
		p.breathes()
	}
	p.mu.Unlock()
	runtime.Gosched()
	p.mu.Lock()
}

// stats looks at piece nodes at a time. False: in between some went with what they had counted.
func (p *Pool) stats(piece int) (Stats, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{Max: p.cfg.Max, Min: p.cfg.Min, Pause: p.paused.Load(), Limit: p.limit.most, Aside: p.limit.held(),
		Parked: int(p.limit.parked.Load()), Recovering: p.recovering, Recovered: p.recovered, Counts: p.past,
		Moving: p.spread.moving, Queued: p.queue.Joined(), TimedOut: p.timed, Refused: p.refused, Shed: p.shed}
	if waiting, ahead := p.wantLocked(); !p.closed {
		st.Paced = max(0, min(max(waiting, ahead), p.cfg.Max-p.size))
	}
	st.Waiting = p.queue.Waiting()
	st.Oldest = p.queue.Oldest(p.clock())
	if !p.openOK {
		st.OpenErr = p.lastOpen
	}
	slots := map[*node]int{}
	p.slotsLocked(func(s *Session) { slots[s.node]++ })
	p.balanceLocked()
	now, past, large := time.Now(), p.past, len(p.order) > piece
	for i, seen := 0, 0; i < len(p.order); i, seen = i+1, seen+1 {
		if large && seen%piece == 0 {
			next := p.order[i].id
			if p.breathLocked(); p.past != past {
				return st, false
			}
			if i = p.indexOf(next); i == len(p.order) {
				break
			}
		}
		p.walked++
		n := p.order[i]
		live := int(n.live.Load()) + len(n.aside)
		ns := NodeStats{Node: n.id, Eligible: n.eligible.Load(), Failures: n.pace.failures, Counts: n.counts}
		ns.Sessions, ns.Opening, ns.Closing = n.size, n.opening, n.closing
		ns.Idle = min(slots[n]+n.idle.len()+len(n.aside), live)
		ns.InUse = live - ns.Idle
		if ns.Eligible {
			ns.Cap, ns.Weight, ns.Fair, ns.Surplus = n.view.cap, n.view.weight, n.balance.fair, n.balance.surplus
			if !now.Before(n.pace.until) {
				ns.Window = min(n.pace.window, p.cfg.CreateBurst)
				if n.pace.window == 0 {
					ns.Window = p.cfg.CreateBurst
				}
			}
		}
		st.add(ns.Counts)
		st.Nodes = append(st.Nodes, ns)
	}
	return st, true
}
