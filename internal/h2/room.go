package h2

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"time"
)

// lagsAfter is how long bytes may wait in a stream without a pause while its reader still counts as
// one that keeps up: a stream that is read as it comes has nothing waiting in between.
const lagsAfter = time.Second

// count has n bytes more wait in the call.
func (c *Call) count(n int) {
	c.f.stats.Buffered += n
	c.sum += n
	conn := c.client.conn
	if c.own != nil {
		conn = c.node.conn
	}
	if conn != nil {
		conn.weigh(c.sum-n, c.sum)
	}
}

// weigh counts a call that had so many bytes, and has others.
func (g *charge) weigh(from, to int) {
	g.held += to - from
	if from <= minFrameSize {
		g.small -= from
	}
	if to <= minFrameSize {
		g.small += to
	}
}

// keepsUp reports whether nothing of the call stays here for long: no message of it is held, and what
// waits in its streams has just come.
func (c *Call) keepsUp() bool {
	f, x := c.f, c.rewriting
	switch {
	case c.own != nil:
		return c.own.unread == 0 || f.now-c.own.since < lagsAfter
	case c.isHeld, c.packed > 0, c.counted > 0, x != nil && x.held.size+x.behind.size > 0:
		return false
	case c.node.waits() > f.config.MaxWindow: // a message that was held
		return false
	}
	return !c.client.lags() && !c.node.lags()
}

// lags reports whether bytes have waited in the stream for longer than lagsAfter without a pause.
func (s *stream) lags() bool { return s.waits() > 0 && s.call.f.now-s.since >= lagsAfter }

// heldCall is a call with bytes that wait.
type heldCall struct {
	ticket  Ticket
	held    int
	level   int // bytes that its client's connection holds as long as this call does, in calls that keep up, or in those that do not
	keepsUp bool
}

// order puts those first that have to go first.
func (h heldCall) order(other heldCall) int {
	switch {
	case h.keepsUp == other.keepsUp:
		return cmp.Compare(other.level, h.level)
	case h.keepsUp:
		return 1
	}
	return -1
}

// isFew reports whether bytes in calls of no more than a frame count as those of a connection that holds little.
func (f *Forwarder) isFew(c *Conn) bool { return !c.isClient || c.held <= f.config.Buffered/littleHeld }

// heldCalls returns the connection's calls of that kind with bytes that wait, in order, each call
// once: by its client's stream, if it has one.
func (c *Conn) heldCalls(few bool) []heldCall {
	var all []heldCall
	isFew := c.f.isFew(c)
	for _, s := range c.streams.slots {
		if s == nil || s.isClient == (s.call.own != nil) {
			continue
		}
		if n := s.call.sum; n > 0 && few == (isFew && n <= minFrameSize) {
			all = append(all, heldCall{s.call.Ticket(), n, n, s.call.keepsUp()})
		}
	}
	slices.SortFunc(all, heldCall.order)
	if !c.isClient { // they are this process's own, and their readers have nothing to do with each other
		return all
	}
	for i := len(all) - 2; i >= 0; i-- {
		if h, next := &all[i], &all[i+1]; h.keepsUp == next.keepsUp {
			h.level += next.level
		}
	}
	return all
}

// group are a connection's calls of one kind.
type group struct {
	conn  *Conn
	level int // level of the first call; no less than that before the calls are looked at
	seen  bool
	calls []heldCall
}

// groups is a heap of them, the highest level first.
type groups []group

// Len is of heap.Interface.
func (g groups) Len() int { return len(g) }

// Less is of heap.Interface.
func (g groups) Less(i, j int) bool { return g[i].level > g[j].level }

// Swap is of heap.Interface.
func (g groups) Swap(i, j int) { g[i], g[j] = g[j], g[i] }

// Push is of heap.Interface.
func (g *groups) Push(x any) { *g = append(*g, x.(group)) }

// Pop is of heap.Interface.
func (g *groups) Pop() any {
	last := len(*g) - 1
	x := (*g)[last]
	(*g)[last] = group{}
	*g = (*g)[:last]
	return x
}

// crowded reports whether n bytes more would be twice what may wait. Until then evict decides
// who has to go.
func (f *Forwarder) crowded(n int) bool { return f.stats.Buffered+n > 2*f.config.Buffered }

// waits is how many bytes wait in calls, except those of calls that are over: the goroutines that hold these are about to give
// them back.
func (f *Forwarder) waits() int { return f.stats.Buffered - f.orphans }

var crowded = &Status{Code: resourceExhausted, Message: "there is no memory for the message"}

// evict ends calls, if more bytes wait than Config.Buffered, until an eighth of that is free: those of the connection that holds
// most at the time, and of these the largest, first, and those that keep up last. As many bytes again may wait in calls of no
// more than a frame, of connections that hold little, but an eighth of Config.Buffered stays free of both. One of these calls may be
// asking's: that one is not ended, and the result is true.
//
// It looks at every connection and at the calls of those that hold most, but not again before another eighth of Config.Buffered has
// come, or after lagsAfter; and it goes on after the next Advance when it has ended perTurn calls or looked at perLook of them.
func (f *Forwarder) evict(asking *Call) (asked bool) {
	all := f.waits()
	if all <= f.roof || f.paused {
		return false
	}
	f.looked, f.seen = f.now, 0
	many, few := kind{all: make(groups, 0, len(f.conns)), goesOn: &f.thins[0]}, kind{few: true, goesOn: &f.thins[1]}
	for _, conn := range f.conns {
		n := 0
		if f.isFew(conn) {
			n = conn.small
		}
		many.add(conn, conn.held-n, f.now)
		few.add(conn, n, f.now)
	}
	most, step := f.config.Buffered, f.config.Buffered/8
	freed, asked := f.thin(&many, most, asking)
	all -= freed
	freed, its := f.thin(&few, min(most, 2*most-step-(all-few.sum)), asking)
	all -= freed
	if f.roof = max(most, min(all, 2*(most-step))+step); f.paused {
		f.roof = 0
	}
	return asked || its
}

// kind are the calls that hold little, of connections that do too, or the others.
type kind struct {
	few    bool
	goesOn *bool // they are being thinned
	sum    int   // of bytes that wait in them
	all    groups
	later  groups // groups that go when there are no others: their calls keep up
}

func (k *kind) add(c *Conn, n int, now time.Duration) {
	switch k.sum += n; {
	case n == 0:
	case c.spared > now:
		k.later = append(k.later, group{conn: c, level: n})
	default:
		k.all = append(k.all, group{conn: c, level: n})
	}
}

// littleHeld is the part of Config.Buffered that is little for one connection.
const littleHeld = 64

// A turn is bounded: so many calls are ended in it, or connections looked at, and about so many calls looked at to find those that go.
const perTurn, perLook = 256, 8192

// thin does what evict says with calls of one kind, which may hold most bytes.
func (f *Forwarder) thin(k *kind, most int, asking *Call) (freed int, asked bool) {
	if k.sum <= most && !*k.goesOn || f.paused {
		return 0, false
	}
	*k.goesOn = true
	heap.Init(&k.all)
	all, ended := &k.all, 0
	for k.sum-freed > most-f.config.Buffered/8 {
		if len(*all) == 0 {
			if len(k.later) == 0 {
				break
			}
			all = &k.later
			heap.Init(all)
		}
		g := &(*all)[0]
		switch {
		case len(g.calls) > 0:
			h := g.calls[0]
			c := h.ticket.call
			if c.generation != h.ticket.generation {
				g.calls = g.calls[1:]
				break
			}
			if ended++; ended > perTurn {
				f.paused = true
				return freed, asked
			}
			g.calls = g.calls[1:]
			freed += h.held
			f.stats.Abuses[SlowReader]++
			if c == asking {
				asked = true
			} else {
				c.expel(f.tooMuch(c, h.held))
			}
		case g.seen:
		case f.seen < perLook:
			g.calls, g.seen = g.conn.heldCalls(k.few), true
			f.seen += g.conn.streams.n
		case all == &k.all: // calls that were looked at keep up: the next turn begins with others
			for _, g := range k.later {
				g.conn.spared = f.now + lagsAfter
			}
			f.paused = true
			return freed, asked
		case ended > 0: // so do these: the next turn begins with them
			f.paused = true
			return freed, asked
		default:
			g.calls, g.seen = g.conn.heldCalls(k.few), true
			f.seen += g.conn.streams.n
		}
		k.sort(all)
	}
	*k.goesOn = false
	return freed, asked
}

// sort puts the first group of all, which was looked at, where it belongs now.
func (k *kind) sort(all *groups) {
	switch g := &(*all)[0]; {
	case len(g.calls) == 0:
		heap.Pop(all)
	case all == &k.all && g.calls[0].keepsUp:
		g.level = g.calls[0].level
		k.later = append(k.later, heap.Pop(all).(group))
	default:
		g.level = g.calls[0].level
		heap.Fix(all, 0)
	}
}

// expelReaders ends connections of clients, if more than half of Config.Buffered waits to be written to clients, until an eighth of
// that is free: those to which most is to be written first, and those that take it last. With more it is to be asked again in another turn.
func (f *Forwarder) expelReaders() (more bool) {
	most := f.config.Buffered / 2
	if f.output <= most {
		return false
	}
	var readers []candidate
	for _, c := range f.conns {
		if n := c.backlog(); c.isClient && n > 0 {
			class := 0
			if f.now-c.moved < lagsAfter {
				class = 1
			}
			readers = append(readers, candidate{c, class, -n})
		}
	}
	slices.SortFunc(readers, candidate.order)
	for i, r := range readers {
		if f.output <= most-most/8 {
			break
		}
		if i == perTurn {
			return true
		}
		c := r.conn
		f.output -= c.backlog()
		if !c.finished { // the end of another may have ended it
			f.stats.Abuses[SlowReader]++
			c.expelled = true
			c.unwrite(c.f)
			c.refuse(&ConnError{EnhanceYourCalm, "the sidecar's memory for bytes to be written is full, and this " +
				"connection has taken the least of its own"})
		}
	}
	return false
}

// candidate is a connection that may have to go. Its place is here, because connections are far apart in memory.
type candidate struct {
	conn       *Conn
	class, key int
}

// order puts those first that go first.
func (a candidate) order(b candidate) int {
	return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.key, b.key))
}

// countUnfinished counts what a client's connection keeps of a frame or a header block that is not whole.
func (c *Conn) countUnfinished() {
	n := 0
	if len(c.partial) > 0 && c.isClient {
		n = cap(c.partial)
	}
	if len(c.cont.block) > 0 && c.isClient {
		n += cap(c.cont.block)
	}
	c.f.unfinished += n - c.kept
	c.kept = n
}

// unfinishedSince is when that began to come.
func (i *input) unfinishedSince() time.Duration {
	if len(i.cont.block) > 0 {
		return i.cont.since
	}
	return i.begun
}

// expelUnfinished ends connections of clients with frames and header blocks that are not whole, the oldest first, if these take
// more than an eighth of Config.Buffered, until an eighth of that is free. Those that began to come within lagsAfter are left
// until they take half of it. With more it is to be asked again in another turn.
func (f *Forwarder) expelUnfinished() (more bool) {
	most := f.config.Buffered / 8
	if f.unfinished <= most {
		return false
	}
	var all []candidate
	for _, c := range f.conns {
		if c.kept > 0 {
			all = append(all, candidate{c, 0, int(c.unfinishedSince())})
		}
	}
	slices.SortFunc(all, candidate.order)
	for i, u := range all {
		if f.unfinished <= most-most/8 || f.now-time.Duration(u.key) < lagsAfter && f.unfinished <= f.config.Buffered/2 {
			break
		}
		if i == perTurn {
			return true
		}
		if c := u.conn; !c.finished { // the end of another may have ended it
			f.stats.Abuses[SlowSender]++
			c.refuse(&ConnError{EnhanceYourCalm, "the sidecar's memory for frames and headers that are not whole is " +
				"full, and those of this connection are the oldest"})
		}
	}
	return false
}

// patience is how long a stream's reader may take less than a frame while memory is short.
const patience = 10 * time.Second

// relieve ends streams with bytes for readers that take next to none, at most so many, and returns how many.
func (c *Conn) relieve(most int) int {
	var stale []Ticket
	for _, s := range c.streams.slots {
		if s != nil && len(s.waiting()) > 0 && c.f.now-s.moved >= patience && len(stale) < most {
			stale = append(stale, s.call.Ticket())
		}
	}
	for _, t := range stale {
		if t.call.generation == t.generation { // the end of another may have ended it
			c.f.stats.Abuses[SlowReader]++
			t.call.abandon(&Status{Code: resourceExhausted, Message: "bytes wait too long for their reader"})
		}
	}
	return len(stale)
}

// tooMuch is what the client of a call is told that is ended for the bytes that it holds.
func (f *Forwarder) tooMuch(c *Call, held int) *Status {
	st := &Status{Code: resourceExhausted, Message: "try again with less at a time"}
	if !c.unbegun() { // see exhausted
		st = &Status{Code: unavailable, Message: "it may have been executed"}
	}
	st.Message = fmt.Sprintf(
		"the sidecar's memory for waiting bytes (%d) is full, and the connection held the most, this call %d of it; %s",
		f.config.Buffered, held, st.Message,
	)
	return st
}

// expel ends the call so that nothing of it waits. The client is told so if it has nothing of an answer's body yet.
func (c *Call) expel(st *Status) {
	switch {
	case c.client.sentEnd:
		c.fail(st)
		return
	case c.client.waits() == 0:
	case c.client.waits() == c.outcome.Answer:
		c.client.drop()
	default:
		if c.outcome.End == Answered {
			c.outcome.End = AnsweredBy
		}
		c.outcome.Status = internal // as gRPC reads the reset; ENHANCE_YOUR_CALM would be RESOURCE_EXHAUSTED
		c.client.reset(InternalError)
		c.finish()
		return
	}
	if c.outcome.End == Answered && !c.node.gotEnd {
		c.outcome.End = AnsweredBy
	}
	c.fail(st)
}

// unpark ends calls that are held, if there are more than Config.Held, until some places are free: the newest ones of the
// connection that has most at the time.
func (f *Forwarder) unpark() {
	if f.stats.Held <= f.config.Held {
		return
	}
	most := 0
	for _, c := range f.conns {
		most = max(most, c.parked)
	}
	having := make([]int, most+1) // connections, by how many they have
	for _, c := range f.conns {
		having[c.parked]++
	}
	excess := f.stats.Held - f.config.Held + f.config.Held/littleHeld
	keep, conns := most, 0 // conns have as many or more
	for ; keep > 0 && conns+having[keep] < excess; keep-- {
		conns += having[keep]
		excess -= conns
	}
	var above []*Conn
	for _, c := range f.conns {
		if c.parked > 0 && c.parked >= keep {
			above = append(above, c)
		}
	}
	for _, c := range above {
		n := c.parked - keep
		if excess > 0 {
			n, excess = n+1, excess-1
		}
		c.unpark(n)
	}
}

// unpark ends the newest n calls of a client's that are held.
func (g *charge) unpark(n int) {
	for ; n > 0 && g.lastHeld != nil; n-- {
		newest := g.lastHeld
		if newest.overload(); g.lastHeld == newest {
			return
		}
	}
}

// park puts a call among those of a client's that are held.
func (g *charge) park(call *Call) {
	if call.heldPrev = g.lastHeld; g.lastHeld != nil {
		g.lastHeld.heldNext = call
	}
	g.lastHeld = call
	g.parked++
}

// leaveHeld is undone by park.
func (g *charge) leaveHeld(call *Call) {
	if call.heldPrev != nil {
		call.heldPrev.heldNext = call.heldNext
	}
	if call.heldNext != nil {
		call.heldNext.heldPrev = call.heldPrev
	} else {
		g.lastHeld = call.heldPrev
	}
	call.heldPrev, call.heldNext = nil, nil
	g.parked--
}
