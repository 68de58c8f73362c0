package pool

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
)

// opening is one call of Opener.Open. It is detached from the caller whose need
// began it: the session goes to the caller that is first in the queue when it comes.
type opening struct {
	node    *node
	from    *node // to lose a session once this one is open; nil: none
	begun   time.Time
	stalled bool // took so long that the pool no longer counts on it
	givenUp bool
	cancel  context.CancelFunc
}

// stallAfter is how long the pool counts on an opening. After that those who
// wait for it get another one elsewhere, and its node gets no more until it has
// answered, so that a node that swallows packets costs others nothing.
func (c *Config) stallAfter() time.Duration { return c.CreateTimeout / 20 }

const (
	burstNodes = 4                     // times Config.CreateBurst: openings under way on all nodes
	warmFirst  = 4                     // sessions of the minimum that are opened without a pause
	warmWithin = time.Second           // about the time in which the rest of the minimum is opened
	warmPause  = 50 * time.Millisecond // longest mean pause between two of these openings
)

// wantLocked is how many sessions should be opened, limits aside: for waiting
// callers, and ahead of need.
func (p *state) wantLocked() (waiting, ahead int) {
	if !p.paused.Load() {
		waiting = p.allowedLocked(p.queue.Len() - (len(p.openings) - p.stalled))
	}
	if !p.quiet {
		ahead = p.cfg.Min - p.evictedLocked() - (p.usableLocked() + len(p.openings) - p.stalled)
	}
	return waiting, ahead
}

// growLocked opens the sessions that are wanted as far as the limits and the
// pace allow. Parked sessions make room for waiting callers. It is called whenever there
// may be more need or more room.
func (p *state) growLocked() {
	p.setGateLocked(0)
	p.feelLocked()
	if p.size >= p.cfg.Max && p.limit.parked.Load() == 0 { // the usual case, kept short
		return
	}
	waiting, ahead := p.wantLocked()
	if max(waiting, ahead) <= 0 || p.closed {
		return
	}
	now := time.Now()
	for ; max(waiting, ahead) > 0; waiting, ahead = waiting-1, ahead-1 {
		full := p.size >= p.cfg.Max
		if full && waiting <= 0 {
			return
		}
		if waiting <= 0 && now.Before(p.warmAt) && p.size-p.closing >= warmFirst {
			p.member.Leave()
			p.dueLocked(p.warmAt)
			return
		}
		n, retry := p.targetLocked(now)
		if n == nil {
			p.member.Leave() // others can use what this pool can not
			p.dueLocked(retry)
			return
		}
		if full || !p.permitLocked(now, waiting) {
			p.unparkLocked(waiting)
			return // woken when there is room, or a permit
		}
		p.openLocked(n, nil, now)
		// Processes that start together do not warm up together.
		p.warmAt = now.Add(rand.N(2*min(warmPause, warmWithin/time.Duration(max(1, p.cfg.Min))) + 1))
	}
}

// targetLocked returns the node to open a session on: of those that may get one
// now the one that has least for its weight, a random one of several; one without
// weight only if no other can have more. If there is none it returns when to look
// again; zero: when something happens.
func (p *state) targetLocked(now time.Time) (target *node, retry time.Time) {
	nodes, burst := p.table.Load().nodes, p.cfg.CreateBurst
	underWay := len(p.openings) - p.stalled
	if len(nodes) == 0 || underWay >= burstNodes*burst {
		return nil, retry
	}
	later := func(t time.Time) {
		if t.After(now) && (retry.IsZero() || t.Before(retry)) {
			retry = t
		}
	}
	works := func(n *node) bool { return n.pace.failures == 0 }
	down := !slices.ContainsFunc(nodes, works)
	if down && len(nodes) > 1 && !p.pace.allows(now, underWay, burst) {
		// While no node is known to work, one try at a time in all.
		later(p.pace.until)
		return nil, retry
	}
	if n := p.targets.first(now); n != nil && n.size < n.view.cap && n.stalled == 0 && n.pace.allows(now, n.opening, burst) {
		p.walked++
		return n, retry
	}
	p.targets.clear()
	busy, keeps, start := false, true, rand.IntN(len(nodes))
	p.walked += len(nodes)
	for i := range nodes {
		n := nodes[(start+i)%len(nodes)]
		switch {
		case n.size >= n.view.cap || n.stalled > 0:
		case now.Before(n.pace.until):
			later(n.pace.until)
		case !n.pace.allows(now, n.opening, burst):
			keeps = false // it may have one soon
			busy = busy || n.view.weight > 0 && works(n)
		default:
			p.targets.nodes = append(p.targets.nodes, n)
			if target == nil || n.before(target) {
				target = n
			}
		}
	}
	if target != nil && target.view.weight == 0 && busy {
		target = nil
	}
	if target == nil || !keeps {
		p.targets.clear()
		return target, retry
	}
	p.targets.until = retry
	p.targets.less = (*node).before
	heap.Init(&p.targets)
	return p.targets.nodes[0], retry
}

// targets are all nodes that may get a session, as a heap, so that not every opening looks at all nodes. It stands while
// openings on the first one alone change their order.
type targets struct {
	nodeHeap
	until time.Time // another node may get one then; zero: none waits for that
}

func (t *targets) clear() { t.nodes = t.nodes[:0] }

// first returns the node that has least for its weight; nil: look at all.
func (t *targets) first(now time.Time) *node {
	if len(t.nodes) == 0 || !t.until.IsZero() && !now.Before(t.until) {
		return nil
	}
	heap.Fix(t, 0) // it has got one
	return t.nodes[0]
}

// opensOn takes note of an opening.
func (t *targets) opensOn(n *node) {
	if len(t.nodes) > 0 && t.nodes[0] != n {
		t.clear()
	}
}

// before reports whether n is to get a session rather than m.
func (n *node) before(m *node) bool {
	v, w := n.view.weight, m.view.weight
	if v == 0 || w == 0 {
		return v > w || v == w && n.held() < m.held()
	}
	return (float64(n.held())+0.5)*w < (float64(m.held())+0.5)*v // as Sainte-Laguë does with seats
}

// openLocked opens a session on n, in exchange for one of from unless that is nil.
// The caller has taken a permit for it.
func (p *state) openLocked(n, from *node, now time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.CreateTimeout)
	o := &opening{node: n, from: from, begun: now, cancel: cancel}
	p.openings[o] = struct{}{}
	p.targets.opensOn(n)
	if from != nil {
		from.balance.pledged++
	} else if n.balance.owed > 0 {
		n.balance.owed--
	}
	n.opening++
	n.size++
	p.size++
	p.dueLocked(now.Add(p.cfg.stallAfter()))
	p.tasks.Go(func() {
		defer cancel()
		p.worker.open(ctx, o)
	})
}

// open opens one session and finds its first use.
func (p *Pool) open(ctx context.Context, o *opening) {
	n := o.node
	s := &Session{node: n}
	var res Resource
	err := panics.Call("the opening of a session", func() (err error) {
		res, err = p.opener.Open(ctx, n.id, func(reason string) { p.retire(s, reason) })
		return err
	})
	if err == nil && res == nil {
		err = errors.New("the opener returned no session")
	}
	p.mu.Lock()
	now := time.Now()
	o.endLocked(&p.state)
	report := func() {} // to the log, without the lock: its reader may be slow
	if err != nil {
		report = p.failedLocked(o, now, err)
		p.freeLocked(n, nil)
		denied := p.deniedLocked(err)
		p.growLocked()
		p.mu.Unlock()
		p.dismiss(denied)
		report()
		return
	}
	s.expires = p.cfg.expiry(now)
	p.bornLocked(s, res, now)
	if s.Valid() {
		if failures := n.pace.failures; failures > 0 {
			p.targets.clear() // it may have more before its pause is over
			report = func() { p.log.Info("sessions open again", "node", n.id, "failures", failures) }
		}
		n.pace.succeed(p.cfg.CreateBurst)
		p.pace, p.openOK, p.denied.until = pace{}, true, 0
		if o.from != nil {
			p.movedLocked(o.from)
		}
	} else {
		p.goingLocked(s)
		report = p.failedLocked(o, now, fmt.Errorf("retired at once: %s", s.Retired()))
	}
	p.warm = p.warm || p.usableLocked() >= p.cfg.Min
	// In one step, or another would be opened for the one who gets this one.
	w, gone, use := p.nextUseLocked(s)
	p.growLocked() // the pace may allow more than before
	p.mu.Unlock()
	if use {
		p.give(w, s)
	}
	p.dismiss(gone)
	report()
}

// endLocked notes that the call of Opener.Open has returned.
func (o *opening) endLocked(p *state) {
	delete(p.openings, o)
	o.node.opening--
	if o.stalled {
		o.node.stalled--
		p.stalled--
		p.targets.clear()
	}
	if o.from != nil {
		o.from.balance.pledged--
	}
}

// bornLocked makes s, which was just opened, one of its node's live sessions.
func (p *shelf) bornLocked(s *Session, res Resource, now time.Time) {
	n := s.node
	n.counts.Created++
	s.res, s.seenAt = res, now
	if named, ok := res.(interface{ ID() string }); ok {
		s.name = named.ID()
	}
	s.index = p.cellLocked()
	p.cells.at(s.index).session = s
	n.link(s)
	n.live.Add(1)
	n.peaks()
}

// failedLocked takes note of a session that could not be opened, or not be used. It
// returns what tells the log.
func (p *state) failedLocked(o *opening, now time.Time, err error) (report func()) {
	report = func() {}
	if p.closed || o.givenUp {
		return report // cancelled by the pool, says nothing
	}
	n := o.node
	n.counts.Failed++
	if n.pace.fail(o.begun, now, 1) && n.pace.failures&(n.pace.failures-1) == 0 { // else it was one of many
		failures, pause := n.pace.failures, n.pace.until.Sub(now)
		report = func() {
			p.log.Warn("no session opened", "node", n.id, "err", err, "failures", failures, "pause", pause)
		}
	}
	p.lastOpen, p.failedAt, p.openOK = fmt.Errorf("open session on node %d: %w", n.id, err), p.clock(), false
	nodes := p.table.Load().nodes
	if !slices.ContainsFunc(nodes, func(n *node) bool { return n.pace.failures == 0 }) {
		p.pace.fail(o.begun, now, max(1, len(nodes))) // so that each has its turn in time
	}
	return report
}

// denial is the last time that a session could not be opened for want of a right.
type denial struct {
	err   error
	until time.Duration // on the pool's clock: callers that come before then are told at once
}

// deniedFor is how long a missing right is taken to be missing: then a caller's try finds out.
const deniedFor = time.Second

// deniedLocked takes every caller out of the queue if err says that a right is missing, which waiting does not
// change. Sessions that are left still serve the queue.
func (p *state) deniedLocked(err error) (gone *Waiter) {
	var missing interface {
		Denied() bool
		Message() string
	}
	if p.closed || !errors.As(err, &missing) || !missing.Denied() {
		return nil
	}
	now := p.clock()
	lacks := &DeniedError{missing.Message(), p.lastOpen}
	p.denied = denial{lacks, now + deniedFor}
	p.lacks.Store(lacks)
	if p.servesLocked() {
		return nil
	}
	gone = p.queue.Clear(queue.Denied, now)
	p.setGateLocked(0)
	return gone
}

// servesLocked reports whether there are sessions that will serve the queue.
func (p *state) servesLocked() bool { return p.size > len(p.openings)+p.closing }
