package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/pool/queue"
)

// check compares the pool with the invariants. Nothing moves meanwhile: every
// goroutine of the bubble is blocked.
func (w *walk) check() {
	p, f := w.p, w.f
	busy := p.Busy()
	p.mu.Lock()
	defer p.mu.Unlock()
	w.checkConnections()
	found := w.find()
	w.checkCells(found)
	f.mu.Lock()
	defer f.mu.Unlock()
	w.checkLimits()
	w.checkNodes(found)
	w.checkOpenings()
	waiting := w.checkQueue(busy)
	w.checkGate(found, waiting)
	w.checkIdle(found, waiting)
	w.checkHelp(found)
}

// found is where a check has found the sessions of a pool.
type found struct {
	where         map[*Session]string
	idle          map[*node][]*Session
	aside, parked int
}

func (f *found) put(w *walk, s *Session, where string) {
	if was, twice := f.where[s]; twice {
		w.Errorf("a session is %s and %s", was, where)
	}
	f.where[s] = where
}

// checkConnections checks that the sessions count that callers of a connection got in the queue, and have.
func (w *walk) checkConnections() {
	counted := make(map[*queue.Conn]int32)
	for _, s := range w.held {
		if s.conn != nil {
			counted[s.conn]++
		}
	}
	for from, holds := range w.p.queue.Conns() {
		if n := holds.Sessions(); n < counted[holds] { // some are on their way
			w.Errorf("connection %d has %d sessions, and %d count", from, counted[holds], n)
		}
	}
}

// find looks for the sessions of the pool, each of which is in one place (I1).
func (w *walk) find() *found {
	p, at := w.p, &found{where: make(map[*Session]string), idle: make(map[*node][]*Session)}
	for i := range p.slots {
		if number := p.slots[i].Load(); number != 0 {
			s := p.in(number)
			at.put(w, s, "in a slot")
			at.idle[s.node] = append(at.idle[s.node], s)
		}
	}
	for _, n := range p.order {
		w.findOn(n, at)
	}
	w.resting = slices.DeleteFunc(w.resting, func(s *Session) bool { return !s.recovers })
	if p.recovering != len(w.resting) {
		w.Errorf("%d sessions recover; want %d", p.recovering, len(w.resting))
	}
	for _, s := range w.resting {
		at.put(w, s, "recovering")
	}
	for _, s := range w.held {
		at.put(w, s, "in use")
		if s.gone {
			w.Errorf("a session in use is closed")
		}
	}
	return at
}

// findOn looks at the stack of a node, and at what is aside there.
func (w *walk) findOn(n *node, at *found) {
	p, count := w.p, 0
	for top := uint32(n.idle.head.Load() & headTop); top != 0; top = p.cells.at(uint16(top - 1)).next.Load() {
		s := p.cells.at(uint16(top - 1)).session
		at.put(w, s, fmt.Sprintf("on the stack of node %d", n.id))
		if s.node != n {
			w.Errorf("a session of node %d is on the stack of node %d", s.node.id, n.id)
		}
		at.idle[n] = append(at.idle[n], s)
		count++
	}
	if n.idle.len() != count {
		w.Errorf("node %d counts %d idle, has %d", n.id, n.idle.len(), count)
	}
	for _, i := range n.aside {
		s := p.cells.at(i).session
		at.put(w, s, "aside")
		if !s.aside || s.node != n || !s.Valid() || !n.eligible.Load() && !w.soft[n.id] {
			w.Errorf("a session of node %d is aside on node %d: %t, %q, eligible %t, soft %t",
				s.node.id, n.id, s.aside, s.Retired(), n.eligible.Load(), w.soft[n.id])
		}
	}
	at.aside += len(n.aside)
	if !n.eligible.Load() {
		at.parked += len(n.aside)
	}
}

// checkCells checks that each session has a cell, and that no cell has a session that is nowhere.
func (w *walk) checkCells(at *found) {
	p := w.p
	for i := range p.made {
		if s := p.cells.at(uint16(i)).session; s != nil && at.where[s] == "" {
			w.Errorf("a session of node %d is nowhere", s.node.id)
		} else if s != nil && int(s.index) != i {
			w.Errorf("cell %d has the session of cell %d", i, s.index)
		}
	}
	for s, where := range at.where {
		if p.cells.at(s.index).session != s {
			w.Errorf("a session %s has lost its cell", where)
		}
		if s.gone {
			w.Errorf("a session %s is gone", where)
		}
	}
}

// checkLimits checks that there are no more sessions than may be (I3).
func (w *walk) checkLimits() {
	p, f := w.p, w.f
	w.roof = max(w.roof, w.cfg.Max)
	if f.most > w.roof || p.size > w.roof {
		w.Errorf("%d sessions at a time on the nodes, %d counted; max %d, %d at the last look", f.most, p.size, w.cfg.Max, w.roof)
	}
	w.roof, f.most = max(w.cfg.Max, p.size), f.total
	if over := p.size - p.closing - w.cfg.Max; over > len(w.held)+len(w.resting)+len(p.openings) {
		w.Errorf("%d sessions beyond max %d, %d in use, %d opening", over, w.cfg.Max, len(w.held), len(p.openings))
	}
	if got := p.cfg; got != w.cfg {
		w.Errorf("configuration %+v; want %+v", got, w.cfg)
	}
}

// checkNodes compares what the pool counts on each node with what is there.
func (w *walk) checkNodes(at *found) {
	p := w.p
	live, total, opening, retired := make(map[*node]int), 0, 0, 0
	for s, where := range at.where {
		if where != "aside" {
			live[s.node]++
		}
	}
	for _, n := range p.order {
		w.checkNode(n, live[n])
		retired += n.going
		total += n.size
		opening += n.opening
	}
	if total != p.size || opening != len(p.openings) || retired != p.going {
		w.Errorf("size %d, sum of nodes %d, max %d; opening %d, sum %d; retired %d, sum %d",
			p.size, total, w.cfg.Max, len(p.openings), opening, p.going, retired)
	}
}

// checkNode is checkNodes for one node, on which live sessions were found.
func (w *walk) checkNode(n *node, live int) {
	if got := int(n.live.Load()); got != live {
		w.Errorf("node %d counts %d live sessions, has %d", n.id, got, live)
	}
	fn, sessions := w.f.nodes[n.id], live+len(n.aside)
	if n.size != sessions+n.opening+n.closing || n.opening != fn.opening || sessions+n.closing != len(fn.live) {
		w.Errorf("node %d: size %d, live %d, opening %d, closing %d; the node itself has %d and %d opening",
			n.id, n.size, sessions, n.opening, n.closing, len(fn.live), fn.opening)
	}
	if w.cfg.MaxPerNode > 0 && fn.most > w.cfg.MaxPerNode {
		w.Errorf("node %d had %d sessions; cap %d", n.id, fn.most, w.cfg.MaxPerNode)
	}
	linked, going := 0, 0
	for s := n.first; s != nil; s = s.next {
		if linked++; s.node != n || s.gone || s.prev == nil != (s == n.first) || s.prev != nil && s.prev.next != s {
			w.Errorf("node %d: session %d of its list is of node %d, gone: %t, or badly linked", n.id, linked, s.node.id, s.gone)
		}
		if !s.Valid() {
			going++
		}
	}
	if linked != sessions || going != n.going {
		w.Errorf("node %d: %d sessions linked, %d live, %d aside; %d retired, %d counted", n.id, linked, live, len(n.aside), going, n.going)
	}
}

// checkOpenings checks that nothing begins on a node that gets nothing new (I5), and nothing above the pace.
func (w *walk) checkOpenings() {
	p, f := w.p, w.f
	for id, opens := range w.opens {
		if got := f.nodes[id].opens; got != opens {
			w.Errorf("%d sessions were opened on node %d, which is not eligible", got-opens, id)
		}
	}
	moving := make(map[*node]int)
	for o := range p.openings {
		if o.from == nil {
			continue
		}
		moving[o.from]++
		if w.quiet && o.begun.After(w.quietAt) {
			w.Errorf("a session moves from node %d to node %d, though the pool is to be quiet", o.from.id, o.node.id)
		}
	}
	for id, fn := range f.nodes {
		if fn.mostOpening > w.cfg.CreateBurst {
			w.Errorf("%d openings at a time on node %d; want at most %d", fn.mostOpening, id, w.cfg.CreateBurst)
		}
		if fn.mostDeleting > endsAtATime {
			w.Errorf("%d deletions at a time on node %d; want at most %d", fn.mostDeleting, id, endsAtATime)
		}
	}
	for _, n := range p.order {
		if n.balance.pledged != moving[n] || n.balance.owed < 0 || len(n.ending.queue)+n.ending.underWay != n.closing {
			w.Errorf("node %d: %d pledged, %d are; %d owed; %d and %d of %d closing", n.id,
				n.balance.pledged, moving[n], n.balance.owed, len(n.ending.queue), n.ending.underWay, n.closing)
		}
	}
}

// checkQueue compares the queues with those of the model. It returns how many callers wait.
func (w *walk) checkQueue(busy bool) (waiting int) {
	p := w.p
	for c, got := range p.queue.Waiting() {
		of := 0
		for _, q := range w.waiting[c*walkApps:][:walkApps] {
			of += len(q)
		}
		waiting += of
		if got != of {
			w.Errorf("%d wait in class %v; want %d", got, Class(c), of)
		}
	}
	if p.queue.Len() != waiting || (p.gate.Load() == gateQueue) != (waiting > 0 || w.paused) || waiting > w.cfg.Queue {
		w.Errorf("queue of %d, gate %d, want %d, at most %d", p.queue.Len(), p.gate.Load(), waiting, w.cfg.Queue)
	}
	if busy != (waiting+len(w.held)+len(w.resting) > 0) {
		w.Errorf("busy: %t; %d wait, %d in use, %d recovering", busy, waiting, len(w.held), len(w.resting))
	}
	return waiting
}

// checkGate checks that nothing is idle beyond the limit, and that nothing is aside that the limit allows.
func (w *walk) checkGate(at *found, waiting int) {
	p := w.p
	switch surplus := p.surplusLocked(); {
	case int(p.limit.aside.Load()) != at.aside || int(p.limit.parked.Load()) != at.parked:
		w.Errorf("%d sessions aside, %d parked; counted %d, %d", at.aside, at.parked, p.limit.aside.Load(), p.limit.parked.Load())
	case surplus > 0 && (len(at.idle) > 0 || p.gate.Load() == gateOpen):
		w.Errorf("%d sessions beyond the limit of %d, and on %d nodes some are idle; gate %d", surplus, p.limit.most,
			len(at.idle), p.gate.Load())
	case surplus < 0 && at.aside > at.parked:
		w.Errorf("%d sessions aside, though the limit of %d allows %d more", at.aside, p.limit.most, -surplus)
	case surplus <= 0 && waiting == 0 && !w.paused && p.gate.Load() != gateOpen:
		w.Errorf("gate %d for nothing", p.gate.Load())
	}
}

// checkIdle checks that idle sessions may be used, and that no caller waits beside them (I4).
func (w *walk) checkIdle(at *found, waiting int) {
	for n, list := range at.idle {
		for _, s := range list {
			switch {
			case !s.Valid():
				w.Errorf("an idle session of node %d is not closed: %s", n.id, s.Retired())
			case !n.eligible.Load():
				w.Errorf("a session of node %d is idle though the node is not eligible", n.id)
			case waiting > 0 && !w.paused:
				w.Errorf("a session of node %d is idle while %d wait", n.id, waiting)
			}
		}
	}
}

// checkHelp checks that waiting callers are being helped, unless every node is at its cap, paused
// or does not answer, or the pool is in the queue of its budget.
func (w *walk) checkHelp(at *found) {
	p := w.p
	if waiting, ahead := p.wantLocked(); max(waiting, ahead) > 0 && p.size < w.cfg.Max && (waiting > 0 || !time.Now().Before(p.warmAt)) {
		if n, _ := p.targetLocked(time.Now()); n != nil && !p.member.Hungry() {
			w.Errorf("%d in the queue and %d ahead are wanted, node %d could open one, nothing happens", waiting, ahead, n.id)
		}
	}
	// What is kept for the choice of a node chooses as a look at all nodes does.
	kept := p.targets
	kept.nodes = slices.Clone(kept.nodes)
	chosen, _ := p.targetLocked(time.Now())
	p.targets.clear()
	if best, _ := p.targetLocked(time.Now()); (chosen == nil) != (best == nil) || best != nil && best.before(chosen) {
		w.Errorf("the next session is for another node than that with least: %t, %t", chosen != nil, best != nil)
	}
	p.targets = kept
	// No caller waits for the room or the permit of a parked session.
	if waiting, _ := p.wantLocked(); at.parked > 0 && waiting > p.closing && (p.size >= w.cfg.Max || p.member.Hungry()) {
		if n, _ := p.targetLocked(time.Now()); n != nil {
			w.Errorf("%d in the queue are wanted, node %d could open them, %d are parked, %d closing", waiting, n.id, at.parked, p.closing)
		}
	}
}

// finish closes the pool with some sessions still out.
func (w *walk) finish() {
	for id := range w.f.nodes {
		w.f.set(id, after(time.Millisecond, nil), after(time.Millisecond, nil))
	}
	ctx, cancel := context.WithTimeout(w.Context(), time.Second)
	defer cancel()
	done := make(chan error)
	go func() { done <- w.p.Close(ctx) }()
	synctest.Wait()
	w.listen()
	for c := range w.waiting {
		if len(w.waiting[c]) > 0 {
			w.Errorf("%d still wait in class %v", len(w.waiting[c]), Class(c/walkApps))
		}
	}
	if _, err := w.p.Acquire(w.Context(), Ask{Class: Normal}); !errors.Is(err, ErrClosed) {
		w.Errorf("Acquire after Close: %v", err)
	}
	late := len(w.held) > 2
	for len(w.held) > 2 {
		s := w.drop()
		if w.r.IntN(2) == 0 {
			w.p.Release(s)
		} else {
			w.p.Discard(s)
		}
	}
	err := <-done
	if (err == nil) != (len(w.held) == 0) {
		w.Errorf("Close: %v, with %d sessions held (some came back late: %v)", err, len(w.held), late)
	}
	for _, s := range w.held {
		w.p.Release(s) // must do nothing
	}
	w.stop()
	<-w.stopped
	if left := w.f.live(); slices.Max(left) > 0 {
		w.Errorf("sessions left by node: %v", left)
	}
	if w.f.twice > 0 {
		w.Errorf("%d sessions were deleted twice", w.f.twice)
	}
	if st := w.p.Stats(); st.Sessions != 0 || st.Created != st.Closed {
		w.Errorf("after Close: %+v", st)
	}
	for from, holds := range w.p.queue.Conns() {
		if n := holds.Sessions(); n != 0 || holds.Queues() != 0 {
			w.Errorf("connection %d holds %d sessions at the end", from, n)
		}
	}
}
