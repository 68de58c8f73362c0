package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// opening is one call of Opener.Open. It is detached from the caller whose need
// began it: the session goes to whoever is first in line when it comes.
type opening struct {
	node    *node
	begun   time.Time
	stalled bool // took so long that the pool no longer counts on it
	cancel  context.CancelFunc
}

// stallAfter is how long the pool counts on an opening. After that those who
// wait for it get another one elsewhere, and its node gets no more until it has
// answered, so that a node that swallows packets costs others nothing.
func (p *Pool) stallAfter() time.Duration { return p.cfg.CreateTimeout / 20 }

// wantLocked is how many sessions should be opened, limits aside.
func (p *Pool) wantLocked() int {
	ahead := p.cfg.Min - (p.size - p.closing - p.stalled)
	inLine := p.line.n - (len(p.openings) - p.stalled)
	return max(ahead, inLine)
}

// growLocked opens the sessions that are wanted as far as the limits and the
// pace allow. It is called whenever there may be more need or more room.
func (p *Pool) growLocked() {
	full := p.size >= p.cfg.Max
	if full && !p.strangers { // the usual case, kept short
		return
	}
	want := p.wantLocked()
	if want <= 0 || p.closed {
		return
	}
	if full {
		p.makeRoomLocked(want)
		return
	}
	now := time.Now()
	for ; want > 0 && p.size < p.cfg.Max; want-- {
		n, retry := p.targetLocked(now)
		if n == nil {
			p.dueLocked(retry)
			return
		}
		p.openLocked(n, now)
	}
	if want > 0 {
		p.makeRoomLocked(want)
	}
}

// makeRoomLocked closes idle sessions that cannot be leased, because their node
// is only spared, when the pool is full and others need the room.
func (p *Pool) makeRoomLocked(want int) {
	if !p.strangers {
		return
	}
	p.strangers = false
	for _, n := range p.order {
		if n.is(eligible) || n.live.Load() == 0 {
			continue
		}
		p.strangers = true
		p.siftLocked(n, func(*Session) bool { return p.closing < want })
	}
}

// targetLocked returns the node to open a session on: of those that may get one
// now the one with the fewest, a random one of several. If there is none it
// returns when to look again; zero: when something happens.
func (p *Pool) targetLocked(now time.Time) (target *node, retry time.Time) {
	nodes := p.table.Load().nodes
	if len(nodes) == 0 {
		return nil, retry
	}
	later := func(t time.Time) {
		if t.After(now) && (retry.IsZero() || t.Before(retry)) {
			retry = t
		}
	}
	limit, failing, start := p.cfg.nodeCap(len(nodes)), 0, rand.IntN(len(nodes))
	for i := range nodes {
		n := nodes[(start+i)%len(nodes)]
		if n.pace.failures > 0 {
			failing++
		}
		switch {
		case n.size >= limit || n.stalled > 0:
		case !n.pace.allows(now, n.opening):
			later(n.pace.until)
		case target == nil || n.held() < target.held():
			target = n
		}
	}
	// While no node is known to work, one try at a time in all.
	if len(nodes) > 1 && failing == len(nodes) && !p.pace.allows(now, len(p.openings)-p.stalled) {
		target = nil
		later(p.pace.until)
	}
	return target, retry
}

// held is the sessions that a node has and will keep.
func (n *node) held() int { return n.size - n.closing }

func (p *Pool) openLocked(n *node, now time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.CreateTimeout)
	o := &opening{node: n, begun: now, cancel: cancel}
	p.openings[o] = struct{}{}
	n.opening++
	n.size++
	p.size++
	p.dueLocked(now.Add(p.stallAfter()))
	p.tasks.Go(func() {
		defer cancel()
		p.open(ctx, o)
	})
}

// open opens one session and finds its first use.
func (p *Pool) open(ctx context.Context, o *opening) {
	n := o.node
	s := &Session{node: n}
	res, err := p.opener.Open(ctx, n.id, func(reason string) { p.retire(s, reason) })
	if err == nil && res == nil {
		err = errors.New("the opener returned no session")
	}
	p.mu.Lock()
	now := time.Now()
	delete(p.openings, o)
	n.opening--
	if o.stalled {
		n.stalled--
		p.stalled--
	}
	if err != nil {
		p.failedLocked(o, now, err)
		p.freeLocked(n)
		p.growLocked()
		p.mu.Unlock()
		return
	}
	n.counts.Created++
	s.res, s.seenAt = res, now
	if p.cfg.Age > 0 {
		s.expires = now.Add(p.cfg.Age - rand.N(p.cfg.Age/5))
	}
	s.index = p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.cells[s.index].session = s
	n.live.Add(1)
	p.strangers = p.strangers || !n.is(eligible)
	if s.Valid() {
		n.pace.succeed()
		p.pace, p.openOK = pace{}, true
	} else {
		p.failedLocked(o, now, fmt.Errorf("retired at once: %s", s.Retired()))
	}
	p.warm = p.warm || p.size-len(p.openings)-p.closing >= p.cfg.Min
	p.mu.Unlock()
	p.handOver(s)
	p.mu.Lock()
	p.growLocked() // the pace may allow more than before
	p.mu.Unlock()
}

// failedLocked takes note of a session that could not be opened, or not be used.
func (p *Pool) failedLocked(o *opening, now time.Time, err error) {
	if p.closed {
		return // cancelled by Close, says nothing
	}
	n := o.node
	n.counts.Failed++
	if n.pace.fail(o.begun, now) { // else it was one of many at a time
		p.log.Warn("no session opened", "node", n.id, "err", err, "failures", n.pace.failures, "pause", n.pace.until.Sub(now))
	}
	p.lastOpen, p.failedAt, p.openOK = fmt.Errorf("open session on node %d: %w", n.id, err), p.clock(), false
	works := func(n *node) bool { return n.pace.failures == 0 }
	if !slices.ContainsFunc(p.table.Load().nodes, works) {
		p.pace.fail(o.begun, now)
	}
}
