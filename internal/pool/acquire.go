package pool

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
)

// Acquire checks out a session for the caller, which must give it to Release or Discard.
// If none is free it waits in the queue; a new session is opened meanwhile if the limits
// allow. Without Ask.Left the time that is left is that until ctx's deadline.
//
// A session that is free is given even if ctx has ended. Otherwise the error is
// ErrNoNode, ErrQueueFull, ErrClosed, a *ShedError or a *DeniedError, or a *WaitError
// when ctx ended first.
func (p *Pool) Acquire(ctx context.Context, by Ask) (Grant, error) {
	if p.gate.Load() == 0 && !by.hopeless() {
		if s := p.take(by.Near); s != nil {
			return Grant{Session: s}, nil
		}
	}
	return p.await(ctx, by)
}

// Try checks out a session if one is free and no caller waits in the queue: none is passed
// over. Nothing is opened. A caller whose deadline is already too close gets
// nothing; Wait returns the reason.
func (p *Pool) Try(by Ask) (*Session, bool) {
	if p.gate.Load() != 0 || by.hopeless() {
		return nil, false
	}
	if s := p.take(by.Near); s != nil {
		return s, true
	}
	p.mu.Lock() // a sweep may have had them all
	defer p.mu.Unlock()
	if p.queue.Len() > 0 || p.closed || p.paused.Load() {
		return nil, false
	}
	s := p.pickLocked()
	if s == nil {
		return nil, false
	}
	s.checkOut(p.slot())
	return s, true
}

// Wait is Acquire for a caller that must not block. It returns an idle session if there is one. If session and error are nil,
// w is in the queue: its function is called once, with a grant or with ErrQueueFull, ErrClosed, a *ShedError or a
// *DeniedError, unless Cancel takes w out before. The function runs on the goroutine that gives the session back. It must not
// block; leave longer work to another goroutine.
func (p *Pool) Wait(w *Waiter, by Ask) (Grant, error) {
	if p.gate.Load() == 0 && !by.hopeless() {
		if s := p.take(by.Near); s != nil {
			return Grant{Session: s}, nil
		}
	}
	s, err := p.join(w, by)
	return Grant{Session: s}, err
}

// Cancel takes w out of the queue. It reports false if w was not in the queue: it was
// told, or is being told now.
func (p *Pool) Cancel(w *Waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.Queued() {
		return false
	}
	p.queue.Lose(w)
	p.setGateLocked(0)
	return true
}

// take checks out an idle session without a lock. It may miss one that a sweep has
// in hand.
func (p *Pool) take(near Home) *Session {
	slot := p.slot()
	if n := near.node; n != nil && n.shelf == &p.shelf && n.eligible.Load() && n.meet() {
		if s := p.takeNear(n); s != nil {
			s.checkOut(slot)
			return s
		}
	}
	h := &p.slots[slot]
	if h.Load() != 0 {
		if i := h.Swap(0); i != 0 {
			s, t := p.in(i), p.table.Load()
			if !t.choiceIsDue(s) && fit(s) && s.node.out() <= int(s.node.most.Load()) {
				s.checkOut(slot)
				return s
			}
			p.passOver(s, t)
		}
	}
	for {
		s := p.pick()
		if s == nil {
			return nil
		}
		if fit(s) {
			s.checkOut(slot)
			return s
		}
		p.handOver(s)
	}
}

// takeNear takes an idle session of n, the caller's last node; nil: none that it may
// use. Calls that follow answers of one batch then go out as one batch, too. When the
// choice by load is due it returns nil, as with slots.
func (p *Pool) takeNear(n *node) *Session {
	s, ok := n.pop()
	if !ok {
		return nil
	}
	t := p.table.Load()
	switch {
	case !s.Valid():
		p.shelve(s) // which sees to it
	case t.choiceIsDue(s):
		p.passOver(s, t)
	default:
		return s
	}
	return nil
}

// choiceIsDue reports whether the next use of s is chosen by load, as is one in
// table.turns.
func (t *table) choiceIsDue(s *Session) bool { return (s.uses+1)&(t.turns-1) == 0 }

// fit reports whether a session may be checked out.
func fit(s *Session) bool { return s.Valid() && s.node.eligible.Load() }

func (s *Session) checkOut(slot uint) {
	s.uses++
	s.slot = uint32(slot)
	s.inUse = true
}

// passOver puts a session from a slot on its node's stack, for a choice by load,
// and one from a random slot as well: that of a P with nothing to do would make
// its node look loaded for ever.
func (p *Pool) passOver(s *Session, t *table) {
	t.reckon()
	p.shelve(s)
	if number := p.slots[rand.IntN(len(p.slots))].Swap(0); number != 0 {
		p.shelve(p.in(number))
	}
}

// pick takes an idle session out of its place: by load from the stacks, or else
// from any slot, or from the stacks of nodes that are used when no other has any.
// It takes no lock. The session may have become unfit.
func (p *shelf) pick() *Session {
	t := p.table.Load()
	for n := choose(t.weighted, &t.index[0]); n != nil; n = choose(t.weighted, &t.index[0]) {
		if s, ok := n.pop(); ok {
			return s
		}
	}
	for i := range p.slots {
		h := &p.slots[i]
		if h.Load() != 0 {
			if number := h.Swap(0); number != 0 {
				return p.in(number)
			}
		}
	}
	for n := choose(t.spare, &t.index[1]); n != nil; n = choose(t.spare, &t.index[1]) {
		if s, ok := n.pop(); ok {
			return s
		}
	}
	return nil
}

// pickLocked is pick with the certainty that no sweep hides a session, and that
// the session is fit.
func (p *state) pickLocked() *Session {
	for s := p.pick(); s != nil; s = p.pick() {
		if fit(s) {
			return s
		}
		p.dropLocked(s)
	}
	return nil
}

// join checks out a session or puts w in the queue: nil and no error.
func (p *Pool) join(w *Waiter, by Ask) (*Session, error) {
	w.Begin(by.Class, by.App, by.From, by.Needs, by.Left, p.clock())
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	if by.hopeless() && p.queue.RefusesLate() {
		err := p.refuseLocked(w, by, ShedDeadline, 0)
		p.mu.Unlock()
		return nil, err
	}
	// Callers that lay a session down from now on look into the queue afterwards. What
	// was laid down before is found here. If others wait already, it is theirs.
	if p.queue.Len() == 0 && !p.paused.Load() {
		p.setGateLocked(1)
		s, err := p.pickLocked(), error(nil)
		if s == nil {
			err = p.vainLocked()
		}
		if s != nil || err != nil {
			p.setGateLocked(0)
			p.mu.Unlock()
			if s != nil {
				s.checkOut(p.slot())
			}
			return s, err
		}
	} else if err := p.vainLocked(); err != nil {
		p.mu.Unlock()
		return nil, err
	}
	if why, ahead := p.queue.Arrive(w, p.servingLocked(), by.Needs, by.Left); why != queue.None {
		err := p.refuseLocked(w, by, Shed(why-queue.Late), ahead)
		err.Paused = p.paused.Load()
		p.mu.Unlock()
		return nil, err
	}
	turned := p.queue.Push(w, by.Weight)
	if turned != nil {
		p.refused++
	}
	if age := p.queue.Age(); age > 0 && turned != w {
		p.dueLocked(p.began.Add(w.Since() + age + 1))
	}
	p.growLocked()
	p.mu.Unlock()
	switch turned {
	case nil:
	case w:
		return nil, full(p.paused.Load())
	default:
		p.tell(turned, nil)
	}
	return nil, nil
}

// full is the error of a caller that finds no place in the queue, or loses it to others.
func full(paused bool) error {
	if paused {
		return errFullPaused
	}
	return ErrQueueFull
}

// vainLocked says why a caller would wait in vain; nil: a session may come.
func (p *state) vainLocked() error {
	switch {
	case len(p.table.Load().nodes) == 0:
		return ErrNoNode
	case p.clock() < p.denied.until && !p.servesLocked():
		return p.denied.err
	}
	return nil
}

// refuseLocked refuses a caller as it comes: ahead is its wait, as far as it can be
// foretold.
func (p *refusals) refuseLocked(w *Waiter, by Ask, why Shed, ahead time.Duration) *ShedError {
	p.shed[why]++
	e := &ShedError{Why: why, Class: w.Class(), Ahead: ahead, Needs: by.Needs, Left: by.Left, Retry: retryAfter(ahead)}
	if why == ShedDelay {
		e.Retry = max(e.Retry, queue.Standing) // it will not be over sooner
	}
	return e
}

// servingLocked is how many sessions serve the queue.
func (p *state) servingLocked() int { return min(p.usableLocked(), p.limit.most) }

// dismiss tells the callers that the queue rejected.
func (p *Pool) dismiss(gone *Waiter) {
	for gone != nil {
		w := gone
		gone = w.TakeNext()
		p.tell(w, nil)
	}
}

// tell ends the wait of w, which has left the queue, with a session or, without
// one, with a refusal.
func (p *Pool) tell(w *Waiter, s *Session) {
	w.Handover.session = s
	if conn := w.TakeConn(); s != nil {
		s.conn = conn
	}
	switch {
	case w.Handover.told == nil:
		w.Handover.done <- struct{}{}
	case s == nil:
		w.Handover.told(Grant{}, p.refusal(w))
	default:
		w.Handover.told(grant(w), nil)
	}
}

// grant checks out the session that was handed over to w.
func grant(w *Waiter) Grant {
	s := w.Handover.session
	g := Grant{Session: s, Waited: w.Waited(), Created: s.uses == 0}
	s.checkOut(uint(s.slot))
	return g
}

// refusal returns the error for a waiter that left the queue without a session.
func (p *Pool) refusal(w *Waiter) error {
	c := p.Config()
	e := ShedError{Class: w.Class(), Waited: w.Waited(), Needs: w.Needs(), Left: w.Left(), Retry: retryAfter(w.Waited()),
		Paused: p.paused.Load()}
	switch w.Why() {
	case queue.None:
		return ErrClosed
	case queue.Denied:
		return p.lacks.Load()
	case queue.Full:
		return full(p.paused.Load())
	case queue.Late:
		e.Why = ShedDeadline
	case queue.Old:
		e.Why, e.Limit = ShedAge, c.QueueAge
	case queue.Slow:
		e.Why, e.Limit = ShedDelay, c.QueueTarget
	}
	return &e
}

// await is kept flat: its frame is what a waiting caller keeps in the cache.
func (p *Pool) await(ctx context.Context, by Ask) (Grant, error) {
	if ctx.Err() != nil {
		return Grant{}, p.tooLate(ctx, by)
	}
	if by.Left == 0 {
		if end, ok := ctx.Deadline(); ok {
			by.Left = time.Until(end)
		}
	}
	w := p.waiters.Get().(*Waiter)
	s, err := p.join(w, by)
	if s != nil || err != nil {
		p.waiters.Put(w)
		return Grant{Session: s}, err
	}
	select {
	case <-w.Handover.done:
	case <-ctx.Done():
		if err = p.Leave(ctx, w); err != nil {
			p.waiters.Put(w)
			return Grant{}, err
		}
		<-w.Handover.done // on its way
	}
	if w.Handover.session == nil {
		err = p.refusal(w)
		p.waiters.Put(w)
		return Grant{}, err
	}
	g := grant(w)
	w.Handover.session = nil
	p.waiters.Put(w)
	return g, nil
}

// Leave is Cancel for a caller whose context has ended. It returns the error that
// Acquire returns then, or nil if w was not in the queue: it was told, or is being told now.
func (p *Pool) Leave(ctx context.Context, w *Waiter) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.Queued() {
		return nil
	}
	p.timed++
	err := p.waitErrorLocked(w, ctx.Err())
	p.queue.Lose(w)
	p.setGateLocked(0)
	return err
}

// tooLate is for a caller whose context had ended before it could join the queue.
func (p *Pool) tooLate(ctx context.Context, by Ask) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := new(Waiter)
	w.Begin(by.Class, by.App, by.From, by.Needs, by.Left, p.clock())
	return p.waitErrorLocked(w, ctx.Err())
}

func (p *state) waitErrorLocked(w *Waiter, cause error) error {
	e := &WaitError{
		Class: w.Class(), Waited: p.clock() - w.Since(), Max: p.cfg.Max,
		Opening: len(p.openings), Nodes: len(p.table.Load().nodes), Cause: cause,
	}
	e.Paused = p.paused.Load()
	if p.member.Hungry() {
		e.Shared, e.Grouped = p.member.Shared()
	}
	if p.limit.most < p.cfg.Max {
		e.Limit = p.limit.most
	}
	e.Live = p.size - len(p.openings) - p.closing
	e.Busy = max(0, e.Live-p.idleLatelyLocked())
	if p.lastOpen != nil && (!p.openOK || p.failedAt >= w.Since()) {
		e.Open = p.lastOpen
	}
	return e
}

// idleFor is for how long a count of idle sessions is good enough for people.
const idleFor = 10 * time.Millisecond

// idleLatelyLocked is how many sessions are idle, or were a moment ago: when the time of a crowd of callers
// is over, they are counted once and not for each of them.
func (p *state) idleLatelyLocked() int {
	if now := p.clock(); now >= p.idleUntil {
		p.idle, p.idleUntil = p.idleLocked(), now+idleFor
	}
	return p.idle
}

// idleLocked counts idle sessions.
func (p *state) idleLocked() (sum int) {
	p.walked += len(p.order)
	for _, n := range p.order {
		sum += n.idle.len() + len(n.aside)
	}
	p.slotsLocked(func(*Session) { sum++ })
	return sum
}

// slotsLocked calls f with the sessions that rest in slots.
func (p *shelf) slotsLocked(f func(*Session)) {
	p.walked += len(p.slots)
	for i := range p.slots {
		if number := p.slots[i].Load(); number != 0 {
			f(p.in(number))
		}
	}
}
