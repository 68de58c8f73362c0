package h2

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// lagsAfter is how long bytes may wait in a stream without a pause while its reader still counts as
// one that keeps up: a stream that is read as it comes has nothing waiting in between.
const lagsAfter = time.Second

// held is how many bytes wait in the call.
func (c *Call) held() int {
	n := c.client.waits() + c.node.waits() + c.counted
	if c.isHeld {
		n += len(c.block)
	}
	if c.packed > 0 {
		n += len(c.plain)
	}
	if x := c.rewriting; x != nil {
		n += x.held.size + x.behind.size
	}
	return n
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

// holder is a call with bytes that wait.
type holder struct {
	conn    *Conn
	ticket  Ticket
	held    int
	level   int // bytes that its client's connection holds as long as this call does, in calls that keep up, or in those that do not
	keepsUp bool
}

// order puts those first that have to go first.
func (h holder) order(other holder) int {
	switch {
	case h.keepsUp == other.keepsUp:
		return cmp.Compare(other.level, h.level)
	case h.keepsUp:
		return 1
	}
	return -1
}

// appendHolders appends the connection's calls with bytes that wait, each call once: by its client's stream, if it has one.
// sum is what they have.
func (c *Conn) appendHolders(all []holder) (_ []holder, sum int) {
	for _, s := range c.streams.slots {
		if s == nil || s.isClient == (s.call.own != nil) {
			continue
		}
		if n := s.call.held(); n > 0 {
			all = append(all, holder{c, s.call.Ticket(), n, n, s.call.keepsUp()})
			sum += n
		}
	}
	return all, sum
}

// setLevels puts holders of one connection in order, and sets their levels.
func setLevels(all []holder) {
	if !all[0].conn.isClient { // they are this process's own, and their readers have nothing to do with each other
		return
	}
	slices.SortFunc(all, holder.order)
	for i := len(all) - 2; i >= 0; i-- {
		if h, next := &all[i], &all[i+1]; h.keepsUp == next.keepsUp {
			h.level += next.level
		}
	}
}

// crowded reports whether n bytes more would be twice what may wait. Until then evict decides
// who has to go.
func (f *Forwarder) crowded(n int) bool { return f.stats.Buffered+n > 2*f.config.Buffered }

// waits is how many bytes wait in calls, but for those of calls that are over: the goroutines that hold these are about to give
// them back.
func (f *Forwarder) waits() int { return f.stats.Buffered - f.orphans }

var crowded = &Status{Code: resourceExhausted, Message: "there is no memory for the message"}

// evict ends calls, if more bytes wait than Config.Buffered, until an eighth of that is free: those of the connection that holds
// most at the time, and of these the largest, first, and those that keep up last. As many bytes again may wait in calls of no
// more than a frame, of connections that hold little, but an eighth of Config.Buffered stays free of both. One of these calls may be asking's: that one is not ended, and the
// result is true.
//
// It looks at every call, but not again before another eighth of Config.Buffered has come, or after lagsAfter.
func (f *Forwarder) evict(asking *Call) (asked bool) {
	all := f.waits()
	if all <= f.roof {
		return false
	}
	f.looked = f.now
	var many, few []holder
	little := 0 // bytes of few
	for conn := range f.conns {
		at, sum := len(many), 0
		many, sum = conn.appendHolders(many)
		if conn.isClient && sum > f.config.Buffered/littleHeld {
			continue
		}
		rest := many[:at]
		for _, h := range many[at:] {
			if h.held <= minFrameSize {
				few = append(few, h)
				little += h.held
			} else {
				rest = append(rest, h)
			}
		}
		many = rest
	}
	most, step := f.config.Buffered, f.config.Buffered/8
	freed, asked := f.thin(many, most, asking)
	all -= freed
	freed, its := f.thin(few, min(most, 2*most-step-(all-little)), asking)
	all -= freed
	f.roof = max(most, min(all, 2*(most-step))+step)
	return asked || its
}

// littleHeld is the part of Config.Buffered that is little for one connection.
const littleHeld = 64

// thin does what evict says with those of one kind, which may hold so much, and come connection by connection.
func (f *Forwarder) thin(holders []holder, most int, asking *Call) (freed int, asked bool) {
	sum := 0
	for _, h := range holders {
		sum += h.held
	}
	if sum <= most {
		return 0, false
	}
	for at, end := 0, 0; at < len(holders); at = end {
		for end < len(holders) && holders[end].conn == holders[at].conn {
			end++
		}
		setLevels(holders[at:end])
	}
	slices.SortFunc(holders, holder.order)
	for _, h := range holders {
		c := h.ticket.call
		if sum-freed <= most-f.config.Buffered/8 {
			break
		}
		if c.generation != h.ticket.generation {
			continue
		}
		freed += h.held
		f.stats.Abuses[SlowReader]++
		if c == asking {
			asked = true
			continue
		}
		c.expel(f.tooMuch(c, h.held))
	}
	return freed, asked
}

// expelReaders ends connections of clients, if more than half of Config.Buffered waits to be written to clients, until an eighth of
// that is free: those to which most is to be written first, and those that take it last.
func (f *Forwarder) expelReaders() {
	most := f.config.Buffered / 2
	if f.output <= most {
		return
	}
	var readers []*Conn
	for c := range f.conns {
		if c.isClient && c.backlog() > 0 {
			readers = append(readers, c)
		}
	}
	lags := func(c *Conn) bool { return f.now-c.moved >= lagsAfter }
	slices.SortFunc(readers, func(a, b *Conn) int {
		if lags(a) != lags(b) {
			if lags(a) {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.backlog(), a.backlog())
	})
	for _, c := range readers {
		if f.output <= most-most/8 {
			break
		}
		f.output -= c.backlog()
		if !c.finished { // the end of another may have ended it
			f.stats.Abuses[SlowReader]++
			c.expelled = true
			c.unwrite()
			c.refuse(&ConnError{EnhanceYourCalm, "the sidecar's memory for bytes to be written is full, and this connection has taken the least of its own"})
		}
	}
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
func (c *Conn) unfinishedSince() time.Duration {
	if len(c.cont.block) > 0 {
		return c.cont.since
	}
	return c.begun
}

// expelUnfinished ends connections of clients with frames and header blocks that are not whole, the oldest first, if these take
// more than an eighth of Config.Buffered, until an eighth of that is free. Those that began to come within lagsAfter are left
// until they take half of it.
func (f *Forwarder) expelUnfinished() {
	most := f.config.Buffered / 8
	if f.unfinished <= most {
		return
	}
	var conns []*Conn
	for c := range f.conns {
		if c.kept > 0 {
			conns = append(conns, c)
		}
	}
	slices.SortFunc(conns, func(a, b *Conn) int { return cmp.Compare(a.unfinishedSince(), b.unfinishedSince()) })
	for _, c := range conns {
		if f.unfinished <= most-most/8 || f.now-c.unfinishedSince() < lagsAfter && f.unfinished <= f.config.Buffered/2 {
			break
		}
		if !c.finished { // the end of another may have ended it
			f.stats.Abuses[SlowSender]++
			c.refuse(&ConnError{EnhanceYourCalm, "the sidecar's memory for frames and headers that are not whole is full, and those of this connection are the oldest"})
		}
	}
}

// tooMuch is what the client of a call is told that is ended for the bytes that it holds.
func (f *Forwarder) tooMuch(c *Call, held int) *Status {
	st := &Status{Code: resourceExhausted, Message: "try again with less at a time"}
	if !c.unbegun() { // see exhausted
		st = &Status{Code: unavailable, Message: "it may have been executed"}
	}
	st.Message = fmt.Sprintf("the sidecar's memory for waiting bytes (%d) is full, and the connection held the most, this call %d of it; %s", f.config.Buffered, held, st.Message)
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
	var conns []*Conn
	for c := range f.conns {
		if c.parked > 0 {
			conns = append(conns, c)
		}
	}
	slices.SortFunc(conns, func(a, b *Conn) int { return cmp.Compare(b.parked, a.parked) })
	excess := f.stats.Held - f.config.Held + f.config.Held/littleHeld
	level, above := 0, 0 // what each may keep; how many calls are above what the next one has
	for i, c := range conns {
		next := 0
		if i+1 < len(conns) {
			next = conns[i+1].parked
		}
		if left := excess - above; (i+1)*(c.parked-next) >= left {
			level, conns = c.parked-(left+i)/(i+1), conns[:i+1]
			break
		}
		above += (i + 1) * (c.parked - next)
	}
	for _, c := range conns {
		n := min(c.parked-level, excess)
		excess -= n
		c.unpark(n)
	}
}

// unpark ends the newest n calls of a client's that are held.
func (c *Conn) unpark(n int) {
	for ; n > 0 && c.lastHeld != nil; n-- {
		newest := c.lastHeld
		if newest.overload(); c.lastHeld == newest {
			return
		}
	}
}

// park puts a call among those of a client's that are held.
func (c *Conn) park(call *Call) {
	if call.heldPrev = c.lastHeld; c.lastHeld != nil {
		c.lastHeld.heldNext = call
	}
	c.lastHeld = call
	c.parked++
}

// leaveHeld is undone by park.
func (c *Conn) leaveHeld(call *Call) {
	if call.heldPrev != nil {
		call.heldPrev.heldNext = call.heldNext
	}
	if call.heldNext != nil {
		call.heldNext.heldPrev = call.heldPrev
	} else {
		c.lastHeld = call.heldPrev
	}
	call.heldPrev, call.heldNext = nil, nil
	c.parked--
}
