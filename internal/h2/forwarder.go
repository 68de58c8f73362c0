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
	stats  Stats

	now time.Duration // since any fixed moment
	connections
	ticking
	memory
	resuming
	wheel   wheel  // calls that may not last for ever
	touched []*own // their listeners are to flush
	spares
	hand
}

// connections are those that there are.
type connections struct {
	conns    []*Conn
	dirty    []*Conn  // have output
	vanished []*Conn  // of clients, finished, with calls that are still to end
	leftOver int      // calls of vanished connections
	ending   []Ticket // calls of connections that are being ended
	released bool
	keeps    bool // see Release
}

// ticking is what is known of timeouts: they are looked at every tick, over several turns.
type ticking struct {
	ticked     time.Duration // when the last tick began
	looks      bool          // timeouts are being looked at
	left       int           // connections that are still to be looked at; see tickConns
	stoodStill bool          // the process did before that began
}

// memory is what waits here, and how far evict is with making room.
type memory struct {
	tight      bool          // memory is short
	output     int           // bytes that wait to be written to clients' sockets, at the last tick
	unfinished int           // bytes of clients' frames and header blocks that are not whole
	orphans    int           // bytes of stats.Buffered that Hold counted for calls that are over
	roof       int           // bytes of calls beyond which evict looks at all of them
	looked     time.Duration // when evict looked
	seen       int           // calls that evict looked at then
	paused     bool          // evict goes on after the next Advance
	thins      [2]bool       // the kinds of calls with which evict goes on, see thin
}

// resuming is what goes on with calls that waited.
type resuming struct {
	later   []later
	laterAt int     // of later, those that are done
	resumed int     // what calls that have gone on in this turn hold, see perResume
	roomy   []*Conn // have calls waiting, and may have got room for them
}

// spares are kept for use again.
type spares struct {
	freeCalls   *Call
	freeCount   int
	unusedCalls int // the fewest spare calls since spares were looked at
	buffers     [][]byte
	kept        int           // bytes of buffers
	unused      int           // the fewest spare buffers since spares were looked at
	sparedAt    time.Duration // when spares were looked at
	spareBlock  []byte        // was Call.block of a call that is held no more; nil: it is in use again
}

// hand is what is in hand while a header block is dealt with.
type hand struct {
	routing bool // the router is being asked
	words   *vocabulary
	block   block
	message []byte // the start of the call's body, as far as it is here
	edits   []edit
	strings []byte // backs edits
	memos   []memo // by Name
	name    []byte // of the header in hand
	value   []byte
	spliced []byte
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
	f := &Forwarder{config: config, router: router}
	f.roof, f.words = config.Buffered, newVocabulary(config.Names)
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
	if c.index < 0 {
		return
	}
	last := len(f.conns) - 1
	f.conns[last].index = c.index
	f.conns[c.index], f.conns[last] = f.conns[last], nil
	f.conns, c.index = f.conns[:last], -1
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
	f.spares.drop(f.now)
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
	if !f.holds(t) && !f.isRewriters(t) || f.crowded(n) {
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
			t.call.own.depart()
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
func (s *spares) buffer() []byte {
	if n := len(s.buffers); n > 0 {
		b := s.buffers[n-1]
		s.buffers, s.kept, s.unused = s.buffers[:n-1], s.kept-cap(b), min(s.unused, n-1)
		return b
	}
	return make([]byte, 0, bufferSize)
}

// Recycle takes back a buffer got from Take, once it is written. One that has held a large message is left to the collector: as what
// was given back last is used first, it would stay for as long as there are calls.
func (s *spares) Recycle(b []byte) {
	if cap(b) >= bufferSize && cap(b) <= 2*bufferSize && s.kept+cap(b) <= keptBuffers {
		s.buffers, s.kept = append(s.buffers, b[:0]), s.kept+cap(b)
	}
}

// spareTime is how long a call or buffer is kept for use again without being used.
const spareTime = 10 * time.Second

// drop leaves to the collector what was not used for spareTime: a crowd has gone.
func (s *spares) drop(now time.Duration) {
	if now-s.sparedAt < spareTime {
		return
	}
	s.sparedAt = now
	for ; s.unusedCalls > 0; s.unusedCalls-- {
		c := s.freeCalls
		s.freeCalls, c.next = c.next, nil
		s.freeCount--
	}
	for _, b := range s.buffers[:s.unused] {
		s.kept -= cap(b)
	}
	s.buffers = slices.Delete(s.buffers, 0, s.unused)
	s.unusedCalls, s.unused = s.freeCount, len(s.buffers)
}

func (f *Forwarder) newCall() *Call {
	c := f.freeCalls
	if c == nil {
		c = &Call{inHand: inHand{f}}
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
