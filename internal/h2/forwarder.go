// Package h2 forwards gRPC calls between clients and nodes as HTTP/2 frames. It
// decodes no message and as little of the headers as routing needs.
//
// It owns HTTP/2 (RFC 9113) and HPACK (RFC 7541), and nothing of sockets: bytes go
// in (Conn.Receive) and come out (Conn.Take). A Forwarder joins the connections of
// some clients (Accept) with those of nodes (Connect); a Router says which call
// goes where. Nothing here starts a goroutine, takes a lock or looks at a clock:
// one goroutine at a time may use a Forwarder, its connections and calls, and it
// tells the time (Advance). Package h2/driver is that goroutine's keeper.
//
// What always holds: header strings are passed on as they came, Huffman bits and
// all, with indexes translated between the tables of both sides. Bytes of one
// stream leave in the order they came. A peer gets room for more bytes of a stream
// only when what it sent has left on the other side, so the slowest reader sets
// the pace; a message that is held here whole is the exception (Rewriter, ErrNeedWhole).
// Every table, queue and buffer has a bound in Config, and a peer that
// breaks one is counted in Stats. Router.Done is called once for each call that
// Router.Route has seen. A unary call of a usual size allocates nothing.
package h2

import (
	"slices"
	"time"
)

// Forwarder joins the connections of clients and nodes. See the package comment.
type Forwarder struct {
	config Config
	router Router
	words  *vocabulary
	stats  Stats

	now, ticked time.Duration // since any fixed moment
	conns       []*Conn
	dirty       []*Conn // have output
	released    bool
	keeps       bool          // see Release
	looks       bool          // timeouts are being looked at, and
	left        int           // of so many connections they are still to be; see tickConns
	stoodStill  bool          // before that began
	tight       bool          // memory is short
	output      int           // bytes that wait to be written to clients' sockets, at the last tick
	unfinished  int           // bytes of clients' frames and header blocks that are not whole
	orphans     int           // bytes of stats.Buffered that Hold counted for calls that are over
	roof        int           // bytes of calls beyond which evict looks at all of them
	looked      time.Duration // when it did
	seen        int           // calls that it looked at then
	paused      bool          // it goes on after the next Advance, and
	thins       [2]bool       // with which kinds of calls, see thin
	routing     bool          // the router is being asked
	vanished    []*Conn       // of clients, finished, with calls that are still to end
	leftOver    int           // those
	roomy       []*Conn       // have calls waiting, and may have got room for them
	ending      []Ticket      // calls of connections that are being ended
	later       []later
	laterAt     int   // of later, those that are done
	resumed     int   // what calls that have gone on in this turn hold, see perResume
	wheel       wheel // calls that may not last for ever
	freeCalls   *Call
	freeCount   int
	unusedCalls int // of those, the fewest since spares were looked at
	buffers     [][]byte
	kept        int           // their size
	unused      int           // of buffers, the fewest since then
	sparedAt    time.Duration // when that was
	touched     []*own        // their listeners are to flush

	// What is in hand while a header block is dealt with.
	block   block
	message []byte // the start of the call's body, as far as it is here
	edits   []edit
	strings []byte // backs edits
	memos   []memo // by Name
	name    []byte // of the header in hand
	value   []byte
	spliced []byte

	spareBlock []byte // was Call.block of a call that is held no more; nil: it is in use again
}

// later is what Later was given.
type later struct {
	ticket Ticket
	status *Status // nil: resume
	expels bool    // whatever the call does
}

// edit is a change to a header block. No value: the header is removed.
type edit struct {
	name  Name
	field field
	set   bool
}

// New returns a Forwarder without connections.
func New(config Config, router Router) *Forwarder {
	f := &Forwarder{config: config, router: router, roof: config.Buffered, words: newVocabulary(config.Names)}
	f.memos = make([]memo, int(FirstName)+len(config.Names))
	f.wheel.init()
	return f
}

// Stats returns the counts so far.
func (f *Forwarder) Stats() Stats { return f.stats }

// Now returns the time Advance was told last.
func (f *Forwarder) Now() time.Duration { return f.now }

// leave takes the connection out of those that there are.
func (f *Forwarder) leave(c *Conn) {
	if c.place < 0 {
		return
	}
	last := len(f.conns) - 1
	f.conns[last].place = c.place
	f.conns[c.place], f.conns[last] = f.conns[last], nil
	f.conns, c.place = f.conns[:last], -1
}

// tick is how often timeouts are looked at.
const tick = 100 * time.Millisecond

// Advance tells the time, which must not go backwards: before each Receive, and at
// least every 100 ms while there are connections. If it comes much later than that,
// the process itself stood still, and nobody else is called silent for it.
//
// It looks at timeouts every 100 ms, at perTurn connections and perTurn calls whose time is up each time that it is called: see Behind.
func (f *Forwarder) Advance(now time.Duration) {
	stoodStill := now-f.now > 10*tick
	f.now, f.resumed = now, 0
	if stoodStill || !f.looks && now-f.ticked >= tick {
		f.looks, f.stoodStill, f.ticked = true, stoodStill, now
		f.left, f.output = len(f.conns), 0
	}
	if !f.Behind() {
		return
	}
	f.paused = false
	f.endSome(perTurn)
	if f.looks {
		f.look()
	}
	f.resumeWaiting()
}

// Behind reports whether Advance has more to do, for which it is to be called again, with turns of others in between.
func (f *Forwarder) Behind() bool {
	return f.looks || f.paused || len(f.vanished) > 0 || f.laterAt < len(f.later) || len(f.roomy) > 0
}

// look goes on with what is looked at every tick.
func (f *Forwarder) look() {
	f.dropSpares()
	late := f.wheel.advance(f.now)
	if f.tickConns() || late || f.expelReaders() || f.expelUnfinished() {
		return
	}
	f.looks = false
	if f.roof == 0 { // evict goes on
		return
	}
	f.roof = max(f.config.Buffered, min(f.roof, f.waits()+f.config.Buffered/8))
	if f.now-f.looked >= lagsAfter { // others lag by now
		f.roof = f.config.Buffered
	}
}

// tickConns looks at some connections' timeouts, and reports whether there are more: from the last one on down, since the last one
// takes the place of one that ends.
func (f *Forwarder) tickConns() (more bool) {
	for n := 0; n < perTurn; n++ {
		if f.left = min(f.left, len(f.conns)); f.left == 0 {
			return false
		}
		f.left--
		c := f.conns[f.left]
		if c.looked == f.ticked {
			continue
		}
		c.looked = f.ticked
		if f.stoodStill && c.pinged > 0 {
			c.pinged = f.now // its answer may be here, unread
		}
		c.tick()
		if f.stats.Buffered > f.config.Buffered/2 {
			n += len(c.streams.slots)/64 + c.relieve(perTurn-n)
		}
		if c.isClient && !c.finished {
			f.output += c.backlog()
		}
	}
	return f.left > 0
}

// Resume asks the router again about a call that it parked. False: the call is over.
func (f *Forwarder) Resume(t Ticket) bool {
	if !f.holds(t) {
		return false
	}
	f.resume(t.call)
	f.resumeWaiting()
	return true
}

// perResume is how many bytes calls hold together that go on in one turn, where a call counts for leastResumed at least: the router
// may read all that a call holds again. The last of them may go beyond that, whatever it holds.
const (
	perResume    = 1 << 20
	leastResumed = perResume / perTurn
)

// resume asks the router again about a call that is held.
func (f *Forwarder) resume(c *Call) {
	f.resumed += max(c.sum, leastResumed)
	c.route(false)
}

// Hold counts n bytes more as waiting here for a call that is parked, or of which the Rewriter has a message.
// False: there is no memory for them, or the call is over, and nothing has changed. The bytes count until
// Unhold, also when the call is over.
func (f *Forwarder) Hold(t Ticket, n int) bool {
	if !f.holds(t) && !f.lends(t) || f.crowded(n) {
		return false
	}
	c := t.call
	c.count(n)
	c.counted += n
	if !f.evict(c) {
		return true
	}
	c.count(-n)
	c.counted -= n
	return false
}

// Unhold gives back what counted for a call. It does nothing for a call of a Forwarder before Renew:
// what that one counted is forgotten.
func (f *Forwarder) Unhold(t Ticket, n int) {
	switch c := t.call; {
	case c == nil || c.f != f:
		return
	case c.generation == t.generation:
		c.counted -= n
		c.count(-n)
	default:
		f.orphans -= n
		f.stats.Buffered -= n
	}
}

// holds reports whether the call waits here. Calls of a Forwarder before Renew do not.
func (f *Forwarder) holds(t Ticket) bool {
	return t.call != nil && t.call.f == f && t.call.generation == t.generation && t.call.isHeld
}

// End goes on with a call that was answered with Status.Open, or that is the router's by
// ErrMine. It keeps nothing of st. False: the call is over, or neither.
func (f *Forwarder) End(t Ticket, st *Status) bool {
	ok := f.end(t, st)
	f.resumeWaiting()
	return ok
}

func (f *Forwarder) end(t Ticket, st *Status) bool {
	if !f.isOpen(t) {
		return false
	}
	t.call.fail(st)
	return true
}

// isOpen reports whether End has a call to go on with.
func (f *Forwarder) isOpen(t Ticket) bool {
	c := t.call
	return c != nil && c.f == f && c.generation == t.generation && c.isOpen && !c.client.endPending
}

// CatchUp does what Later was given, for those who are not within a Router's method.
func (f *Forwarder) CatchUp() { f.resumeWaiting() }

// Later is Resume, or End if st is not nil, for a Router's methods: it is done when what
// they are part of is done.
func (f *Forwarder) Later(t Ticket, st *Status) {
	f.later = append(f.later, later{ticket: t, status: st})
}

// Expel ends a call as Later does, wherever it is. A client that has a part of an answer may learn of a reset in place of st.
func (f *Forwarder) Expel(t Ticket, st *Status) { f.later = append(f.later, later{t, st, true}) }

// resumeWaiting makes room, does what Later was given, and asks the router again about calls that
// waited for room on a connection, as far as there is some. Not while it is being
// asked about another: the headers in hand are that call's.
func (f *Forwarder) resumeWaiting() {
	if f.routing {
		return
	}
	f.evict(nil)
	f.unpark()
	for f.resumed < perResume && f.laterAt < len(f.later) { // Advance goes on
		l := f.later[f.laterAt]
		if f.laterAt++; f.laterAt == len(f.later) {
			clear(f.later)
			f.later, f.laterAt = f.later[:0], 0
		}
		switch c := l.ticket.call; {
		case l.expels:
			if c.f == f && c.generation == l.ticket.generation {
				c.expel(l.status)
			}
		case l.status != nil:
			f.end(l.ticket, l.status)
		case f.holds(l.ticket):
			f.resume(c)
			continue
		}
		f.resumed += leastResumed
	}
	f.resumeRoomy()
}

func (f *Forwarder) resumeRoomy() {
	for f.resumed < perResume && len(f.roomy) > 0 { // Advance goes on
		last := len(f.roomy) - 1
		c := f.roomy[last]
		f.roomy[last], f.roomy = nil, f.roomy[:last]
		c.roomy = false
		gone := f.resumeFrom(c, c)
		if c.Others != nil && c.Usable() {
			for _, other := range c.Others() {
				if other != c && other.full() {
					gone += f.resumeFrom(other, c)
				}
			}
		}
		if gone > 0 && f.resumed >= perResume { // there may be more, and with none gone it would be for ever
			c.makeRoom()
		}
	}
}

// resumeFrom has calls go on that wait for one connection, on another one of the node's as far as that has room. It returns how many
// fewer wait then.
func (f *Forwarder) resumeFrom(from, on *Conn) (gone int) {
	had := len(from.waiting)
	for n := had; n > 0 && f.resumed < perResume && len(from.waiting) > 0 && (!on.Usable() || !on.full()); n-- {
		t := from.waiting[0]
		from.waiting = from.waiting[1:]
		switch {
		case !f.holds(t):
		case t.call.own != nil:
			f.resumed += leastResumed
			t.call.own.conn = on
			t.call.depart()
		default:
			f.resume(t.call)
		}
	}
	return had - len(from.waiting)
}

// tightWindow is what a peer may send ahead on a stream while memory is short, once what
// it may send already has come.
const tightWindow = 32 << 10

// Tight says whether memory is short. Then less is taken in ahead of slow readers.
func (f *Forwarder) Tight(on bool) { f.tight = on }

// Release has connections that drain end although calls that Call.Background named
// are open. With keep, their clients are told the end of those and the nodes are not: to a
// node such a call ends with the connection, which Stats.Kept says is worth waiting with.
func (f *Forwarder) Release(keep bool) {
	f.released, f.keeps = true, keep
	for _, c := range slices.Clone(f.conns) {
		c.settle()
	}
}

// Cut is for whoever is about to close all connections with what is left on them. Calls of clients that no node
// has seen are refused, and each client is told the last stream of its that was looked at: what was not executed
// it may send again.
func (f *Forwarder) Cut() {
	for _, c := range slices.Clone(f.conns) {
		if c.isClient && c.greeted && !c.finished {
			c.cut()
		}
	}
}

// Dirty hands over the connections that have something to write, or are finished.
func (f *Forwarder) Dirty(into []*Conn) []*Conn {
	into = append(into, f.dirty...)
	for i, c := range f.dirty {
		c.dirty = false
		f.dirty[i] = nil
	}
	f.dirty = f.dirty[:0]
	return into
}

const (
	bufferSize  = 32 << 10 // the least size of a buffer for output or waiting bytes
	keptBuffers = 2 << 20  // bytes of such buffers kept for use again
)

// buffer returns an empty buffer.
func (f *Forwarder) buffer() []byte {
	if n := len(f.buffers); n > 0 {
		b := f.buffers[n-1]
		f.buffers, f.kept, f.unused = f.buffers[:n-1], f.kept-cap(b), min(f.unused, n-1)
		return b
	}
	return make([]byte, 0, bufferSize)
}

// Recycle takes back a buffer got from Take, once it is written. One that has held a large message is left to the collector: as what
// was given back last is used first, it would stay for as long as there are calls.
func (f *Forwarder) Recycle(b []byte) {
	if cap(b) >= bufferSize && cap(b) <= 2*bufferSize && f.kept+cap(b) <= keptBuffers {
		f.buffers, f.kept = append(f.buffers, b[:0]), f.kept+cap(b)
	}
}

// spareTime is how long a call or buffer is kept for use again without being used.
const spareTime = 10 * time.Second

// dropSpares leaves to the collector what was not used for spareTime: a crowd has gone.
func (f *Forwarder) dropSpares() {
	if f.now-f.sparedAt < spareTime {
		return
	}
	f.sparedAt = f.now
	for ; f.unusedCalls > 0; f.unusedCalls-- {
		c := f.freeCalls
		f.freeCalls, c.next = c.next, nil
		f.freeCount--
	}
	for _, b := range f.buffers[:f.unused] {
		f.kept -= cap(b)
	}
	f.buffers = slices.Delete(f.buffers, 0, f.unused)
	f.unusedCalls, f.unused = f.freeCount, len(f.buffers)
}

func (f *Forwarder) newCall() *Call {
	c := f.freeCalls
	if c == nil {
		c = &Call{f: f}
		c.client, c.node, c.timer, c.growth = stream{call: c, isClient: true}, stream{call: c}, timer{call: c}, timer{call: c, grows: true}
	} else {
		f.freeCalls, c.next = c.next, nil
		f.freeCount--
		f.unusedCalls = min(f.unusedCalls, f.freeCount)
	}
	c.outcome = Outcome{Status: -1, Began: f.now}
	f.stats.Calls++
	return c
}
