package pool

import "sync/atomic"

// What the gate says: a caller waits in the queue, or the pool is closed; or else that more
// sessions are in use than SetLimit allows, so that each is looked at when it comes back.
const (
	gateOpen = iota
	gateQueue
	gateLimit
)

// limit is what SetLimit has set. Sessions beyond it are set aside: open, and in no
// place where Acquire looks, so that it need not know of the limit. Sessions of a node
// that is not eligible for the moment are set aside as well: they are parked, see park.go.
// Guarded by Pool.mu.
type limit struct {
	most   int          // sessions that are not aside, at most; Config.Max: no limit
	aside  atomic.Int32 // sessions, parked ones included; changed under Pool.mu
	parked atomic.Int32 // sessions aside that are parked; changed under Pool.mu
	felt   bool         // a caller waited because of it, since Use
}

// held is how many sessions are aside because of the limit.
func (l *limit) held() int { return int(l.aside.Load() - l.parked.Load()) }

// SetLimit bounds the sessions in use at a time from now on, within 1 and Config.Max.
// Those in use beyond it stay so until their release. Sessions that it leaves without
// use are kept, until they expire.
func (p *Pool) SetLimit(n int) {
	p.mu.Lock()
	p.limit.most = min(max(n, 1), p.cfg.Max)
	p.trimLocked()
	p.growLocked()
	p.mu.Unlock()
	p.refill()
}

// Use returns how many sessions were in use at a time since the last call, at most, and
// whether callers have waited because of the limit meanwhile, or would have to now. The
// peak is the sum of those of the nodes: it may be too high, where they were not at the
// same time or sessions were in slots. It misses uses of a moment while sessions of
// their node are sifted (siftLocked), which keeps the peak from before it and what is out after it.
func (p *Pool) Use() (peak int, limited bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	inUse, peaks := -p.idleLocked(), 0
	for _, n := range p.order {
		inUse += int(n.live.Load()) + len(n.aside)
		peaks += int(n.peak.Swap(int32(n.out())))
	}
	limited = p.limit.felt || inUse >= p.limit.most
	p.limit.felt = false
	return max(inUse, peaks), limited
}

// Busy reports whether a session is in use or a caller waits. It may miss a session that changes hands meanwhile.
func (p *Pool) Busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Len() > 0 || p.size-len(p.openings)-p.closing > p.idleLocked()
}

// surplusLocked is how many sessions more than the limit are not aside; negative: so
// many may come back.
func (p *state) surplusLocked() int {
	return p.usableLocked() - p.limit.held() - p.limit.most
}

// allowedLocked is how many of the sessions that are wanted for the queue may be opened:
// those aside come first, unless they are parked.
func (p *state) allowedLocked(want int) int {
	held := p.limit.held()
	if p.limit.most == p.cfg.Max && held == 0 {
		return want
	}
	return min(want-held, p.limit.most-(p.usableLocked()+len(p.openings)-p.stalled))
}

// feelLocked takes note of whether the queue waits because of the limit, and has Run
// bring back sessions if there is room for them.
func (p *state) feelLocked() {
	held := p.limit.held()
	if p.limit.most == p.cfg.Max && held == 0 {
		return
	}
	surplus := p.surplusLocked()
	p.limit.felt = p.limit.felt || p.queue.Len() > 0 && surplus >= 0
	if surplus < 0 && held > 0 {
		p.dueLocked(p.began)
	}
}

// trimLocked sets idle sessions aside that are beyond the limit, and closes those that
// are beyond Config.Max.
func (p *state) trimLocked() {
	for p.surplusLocked() > 0 {
		s := p.pickLocked()
		if s == nil {
			return
		}
		if p.overLocked() {
			p.closeLocked(s)
		} else {
			p.asideLocked(s)
		}
	}
}

// asideLocked sets a session aside that is in the caller's hand.
func (p *state) asideLocked(s *Session) {
	s.aside = true
	s.node.live.Add(-1)
	s.node.aside = append(s.node.aside, s.index)
	p.limit.aside.Add(1)
	if !s.node.eligible.Load() {
		p.limit.parked.Add(1)
		p.dueLocked(s.node.parkUntil)
	}
}

// backLocked takes a session that was set aside, of the node that has the fewest others
// in proportion to its weight, if the limit allows one more.
func (p *state) backLocked() *Session {
	if p.closed || p.surplusLocked() >= 0 {
		return nil
	}
	var from *node
	for _, n := range p.table.Load().nodes {
		if len(n.aside) > 0 && (from == nil || n.emptier(from)) {
			from = n
		}
	}
	if from == nil {
		return nil
	}
	last := len(from.aside) - 1
	s := p.cells.at(from.aside[last]).session
	from.aside = from.aside[:last]
	p.limit.aside.Add(-1)
	s.aside = false
	from.live.Add(1)
	from.peaks()
	return s
}

// emptier reports whether n is to get a session back rather than m.
func (n *node) emptier(m *node) bool {
	v, w := n.view.weight, m.view.weight
	if v == 0 || w == 0 {
		return v > w
	}
	return (float64(n.live.Load())+0.5)*w < (float64(m.live.Load())+0.5)*v
}

// refill brings back what the limit allows.
func (p *Pool) refill() {
	for p.limit.aside.Load() > 0 {
		p.mu.Lock()
		s := p.backLocked()
		if s == nil {
			p.mu.Unlock()
			return
		}
		w, gone, use := p.nextUseLocked(s)
		p.mu.Unlock()
		if use {
			p.give(w, s)
		}
		p.dismiss(gone)
	}
}
