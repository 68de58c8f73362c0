package pool

import (
	"context"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool/budget"
	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
)

// Release checks a session in. It goes to the first caller in the queue, or is idle until
// the next Acquire; it is closed if it must not be used again. The caller must
// be done with it, with nothing open or running on it. Releasing a session that
// is not in use panics.
func (p *Pool) Release(s *Session) {
	checkIn(s)
	if p.gate.Load() == 0 {
		p.put(s)
		return
	}
	p.handOver(s)
}

// Discard checks a session in, and the session: it is deleted on its node, detached
// from the caller and bounded by Config.DeleteTimeout.
func (p *Pool) Discard(s *Session) {
	checkIn(s)
	p.mu.Lock()
	if !s.gone { // else Close took it from its caller
		p.closeLocked(s)
		p.growLocked()
	}
	p.mu.Unlock()
}

func checkIn(s *Session) {
	if !s.inUse {
		panic("pool: a session was given back twice")
	}
	s.inUse = false
	if s.conn != nil {
		s.conn.Gave()
		s.conn = nil
	}
}

// put lays a session down: in its slot, or on its node's stack.
func (p *Pool) put(s *Session) {
	h := &p.slots[s.slot]
	if h.Load() != 0 || !h.CompareAndSwap(0, uint32(s.index)+1) {
		p.shelve(s)
	} else if p.gate.Load() != 0 || !fit(s) {
		p.lookAfter(s)
	}
}

// shelve lays a session on its node's stack.
func (p *Pool) shelve(s *Session) {
	s.node.push(s.index)
	p.lookAfter(s)
}

// lookAfter makes up for what others missed because they looked before s was put down: it serves the queue, and closes or
// parks s and others of its node if they must not be used now. Callers and views announce themselves before they look, so one
// side always sees the other. s may be in use again by now.
func (p *Pool) lookAfter(s *Session) {
	if p.gate.Load() != 0 {
		p.serve()
	}
	if !fit(s) {
		p.reap(s.node)
	}
}

// handOver finds the next use of a session that may not just be laid down.
func (p *Pool) handOver(s *Session) {
	p.mu.Lock()
	w, gone, use := p.nextUseLocked(s)
	p.mu.Unlock()
	if use {
		p.give(w, s)
	}
	p.dismiss(gone)
}

// nextUseLocked takes the waiter that gets s out of the queue, nil if none waits.
// If s must not be used now it is closed instead, or set aside if it is beyond the
// limit or its node parks, and use is false. gone are to be dismissed.
func (p *state) nextUseLocked(s *Session) (w, gone *Waiter, use bool) {
	switch {
	case s.gone: // Close took it from its caller
		return nil, nil, false
	case p.closed || !fit(s):
		p.dropLocked(s)
		p.growLocked()
		return nil, nil, false
	case p.overLocked():
		p.closeLocked(s)
		p.setGateLocked(0)
		return nil, nil, false
	case p.limitedLocked() && p.surplusLocked() > 0:
		p.asideLocked(s)
		p.setGateLocked(0)
		return nil, nil, false
	}
	w, gone = p.nextLocked()
	return w, gone, true
}

// give gives s to w, or lays it on its node's stack if w is nil.
func (p *Pool) give(w *Waiter, s *Session) {
	if w == nil {
		p.shelve(s)
		return
	}
	p.tell(w, s)
}

// nextLocked takes the waiter to be served out of the queue; nil: none. gone are to
// be dismissed.
func (p *state) nextLocked() (w, gone *Waiter) {
	if p.queue.Len() == 0 || p.paused.Load() {
		p.setGateLocked(0)
		return nil, nil
	}
	w, gone = p.queue.Pop(p.clock())
	p.countLocked(gone)
	p.setGateLocked(0)
	return w, gone
}

// countLocked counts the callers that the queue rejected.
func (p *refusals) countLocked(gone *Waiter) {
	for ; gone != nil; gone = gone.Next() {
		p.shed[gone.Why()-queue.Late]++
	}
}

// serve gives idle sessions to waiting callers.
func (p *Pool) serve() {
	for {
		p.mu.Lock()
		if p.closed {
			p.siftAllLocked(func(*Session) bool { return true })
		}
		p.trimLocked()
		var s *Session
		if p.queue.Len() > 0 && !p.paused.Load() {
			s = p.pickLocked()
		}
		if s == nil {
			p.mu.Unlock()
			return
		}
		w, gone := p.nextLocked()
		p.mu.Unlock()
		p.give(w, s)
		p.dismiss(gone)
	}
}

// retire is what Opener.Open gets, for one session.
func (p *Pool) retire(s *Session, reason string) {
	if !s.retired.CompareAndSwap(nil, &reason) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.res == nil || s.gone { // open sees to it, or another's retirement has
		return
	}
	p.goingLocked(s)
	p.reapLocked(s.node)
}

// retireLocked retires a live session; false: it was before.
func (p *sums) retireLocked(s *Session, reason *string) bool {
	if !s.retired.CompareAndSwap(nil, reason) {
		return false
	}
	p.goingLocked(s)
	return true
}

// goingLocked counts a live session that is retired, once.
func (p *sums) goingLocked(s *Session) {
	if !s.going {
		s.going = true
		s.node.going++
		p.going++
	}
}

// reap closes the idle sessions of a node that have no future, and sets aside those that
// have none for the moment.
func (p *Pool) reap(n *node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reapLocked(n)
}

func (p *state) reapLocked(n *node) {
	now := time.Now()
	p.siftLocked(n, func(s *Session) bool {
		if !s.Valid() && s.uses == s.seenUses && now.Sub(s.seenAt) >= serverIdle && n.eligible.Load() {
			p.evicted = append(p.evicted, eviction{n, now.Add(serverIdle)})
		}
		return !s.Valid() || p.closed || !n.eligible.Load() && !p.parksLocked(n, now)
	})
	p.growLocked()
}

// serverIdle is how long a session must be unused before a node that is at its limit of sessions asks
// for it back. It is the server's default.
const serverIdle = 10 * time.Minute

// eviction is a session of the minimum that its node asked back because it was not used. It is not
// opened again ahead of need for a time, or the two would go on for ever.
type eviction struct {
	node  *node
	until time.Time
}

// evictedLocked is how many sessions fewer than the minimum are to be kept now. What a node asked back
// that is not in use any more says nothing about the others.
func (p *state) evictedLocked() int {
	if len(p.evicted) == 0 {
		return 0
	}
	now := time.Now()
	p.evicted = slices.DeleteFunc(p.evicted, func(e eviction) bool { return !now.Before(e.until) || !e.node.eligible.Load() })
	for _, e := range p.evicted {
		p.dueLocked(e.until)
	}
	return len(p.evicted)
}

// siftLocked goes through the idle sessions of a node, the longest unused first,
// and closes those that end chooses. The others rest on the node's stack then,
// in the order they had; those of a node that is not eligible are set aside.
func (p *state) siftLocked(n *node, end func(*Session) bool) {
	p.unslotLocked(n)
	p.siftStackLocked(n, end)
}

// unslotLocked lays sessions in slots on their nodes' stacks: those of n, or of all nodes if n is nil.
func (p *shelf) unslotLocked(n *node) {
	p.walked += len(p.slots)
	for i := range p.slots {
		h := &p.slots[i]
		number := h.Load()
		if number == 0 {
			continue
		}
		if s := p.in(number); (n == nil || s.node == n) && h.CompareAndSwap(number, 0) {
			s.node.push(s.index)
		}
	}
}

// siftStackLocked is siftLocked without the sessions in slots.
func (p *state) siftStackLocked(n *node, end func(*Session) bool) {
	p.walked += 1 + len(n.aside)
	aside := n.aside[:0]
	for _, i := range n.aside {
		if s := p.cells.at(i).session; end(s) {
			p.closeLocked(s)
		} else {
			aside = append(aside, i)
		}
	}
	n.aside = aside
	peak := n.peak.Load()
	idle := n.idle.takeAll(&p.cells, p.scratch[:0])
	p.walked += len(idle)
	for _, i := range slices.Backward(idle) {
		switch s := p.cells.at(i).session; {
		case s.gone: // Close took it from its caller, which laid it down all the same
		case end(s):
			p.closeLocked(s)
		case !n.eligible.Load():
			p.asideLocked(s)
		default:
			n.push(i)
		}
	}
	p.scratch = idle
	if len(idle) > 0 && n.idle.len() == 0 {
		n.emptied()
	}
	n.peak.Store(max(peak, int32(n.out()))) // sessions in hand looked as if they were out
}

func (p *state) siftAllLocked(end func(*Session) bool) {
	p.unslotLocked(nil)
	for _, n := range p.order {
		p.siftStackLocked(n, end)
	}
}

// closeLocked begins to delete a session that is in the caller's hand.
func (p *state) closeLocked(s *Session) {
	p.endLocked(s)
	p.cells.at(s.index).session = nil
	p.free = append(p.free, s.index)
}

const (
	endsAtATime   = 16 // calls of Resource.Close under way on one node
	endsAtTheLast = 64 // calls of Resource.Close under way on one node, once the pool is closed
)

// ending is the sessions of one node that were given up and wait for their
// deletion. Guarded by Pool.mu.
type ending struct {
	queue    []ended
	underWay int
	answered time.Time // a deletion was last done in time
}

type ended struct {
	*Session
	since time.Time // it was given up
	by    time.Time // the time for its deletion ends
}

// endsWithin bounds the wait for a deletion and the deletion together, in times of Config.DeleteTimeout.
const endsWithin = 10

// endByLocked returns when the time for a deletion ends that begins now. Sessions that have waited have
// as much of it as others while their node answers. If it does not, their room is needed: then it
// counts from when they were given up, or from the end of the pool.
func (p *state) endByLocked(e ended, now time.Time) time.Time {
	within := p.cfg.DeleteTimeout
	switch {
	case p.closed && e.since.Before(p.closedAt):
		return p.closedAt.Add(within)
	case p.closed || now.Sub(e.node.ending.answered) >= within:
		return e.since.Add(within)
	}
	by, last := now.Add(within), e.since.Add(endsWithin*within)
	if last.Before(by) {
		return last
	}
	return by
}

// endLocked begins to delete a session, or has it wait until others are deleted.
func (p *state) endLocked(s *Session) {
	s.gone = true
	n := s.node
	p.targets.clear() // it holds less
	n.unlink(s)
	if s.going {
		n.going--
		p.going--
	}
	if s.aside {
		s.aside = false
		p.limit.aside.Add(-1)
		if !n.eligible.Load() {
			p.limit.parked.Add(-1)
		}
	} else {
		n.live.Add(-1)
	}
	n.closing++
	p.closing++
	now := time.Now()
	e := ended{Session: s, since: now}
	most := endsAtATime
	if p.closed {
		most = endsAtTheLast
	}
	if n.ending.underWay >= most {
		n.ending.queue = append(n.ending.queue, e)
		return
	}
	n.ending.underWay++
	e.by = p.endByLocked(e, now)
	p.tasks.Go(func() { p.worker.deleteAll(n, e) })
}

// deleteAll deletes a session of n, and then the sessions of n that waited for their deletion meanwhile.
func (p *Pool) deleteAll(n *node, e ended) {
	for more := true; more; {
		p.delete(e)
		e, more = p.nextEnd(n)
	}
}

// nextEnd returns the next session of n to be deleted by the caller, who did one.
func (p *Pool) nextEnd(n *node) (e ended, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(n.ending.queue) == 0 {
		n.ending.underWay--
		n.ending.queue = nil
		return e, false
	}
	e, n.ending.queue = n.ending.queue[0], n.ending.queue[1:]
	e.by = p.endByLocked(e, time.Now())
	return e, true
}

// delete ends the life of a session on its node.
func (p *Pool) delete(s ended) {
	ctx, cancel := context.WithDeadline(context.Background(), s.by)
	err := panics.Call("the deletion of a session", func() error { return s.res.Close(ctx) })
	late := ctx.Err() != nil
	cancel()
	if err != nil {
		p.log.Debug("session not deleted", "node", s.node.id, "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !late {
		s.node.ending.answered = time.Now()
	}
	s.node.closing--
	s.node.counts.Closed++
	p.closing--
	p.freeLocked(s.node, s.yieldFor)
	p.growLocked()
}

// freeLocked gives back the room of one session on n, and its permit. to is the
// pool for whose sake it was let go, if any.
func (p *state) freeLocked(n *node, to *budget.Member) {
	n.size--
	p.size--
	p.targets.clear()
	p.member.Put(to)
	if n.size == 0 && !n.view.known {
		p.past.add(n.counts)
		p.stock.forget(n)
		delete(p.nodes, n.id)
		p.order = slices.Delete(p.order, p.indexOf(n.id), p.indexOf(n.id)+1)
	}
	if p.closed && p.size == 0 {
		close(p.empty)
	}
}
