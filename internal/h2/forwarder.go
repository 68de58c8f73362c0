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
	"errors"
	"fmt"
	"slices"
	"time"
)

// Config bounds what peers may do. Default has values that suit a sidecar.
type Config struct {
	Names []string // request and answer headers that the router reads or sets: FirstName, FirstName+1 ...
	Page  string   // body of the answer to requests that are not gRPC

	Connections int    // of clients, those that shake hands included
	Streams     uint32 // open streams of one client connection
	Held        int    // calls in all that wait for a message, a decision or a node's connection; beyond it those of the connections that have most are ended
	HeaderBytes uint32 // of one header block, decoded, with 32 octets added for each field
	Window      int    // bytes a peer may send ahead on a stream at first
	MaxWindow   int    // what that grows to while the reader keeps up
	ConnWindow  int    // bytes a peer may send ahead on a connection
	Output      int    // bytes waiting to be written on a connection before data waits in its streams
	Buffered    int    // bytes waiting in all calls; from half of it on, streams whose reader has taken less than 16 KB in 10 s are ended; beyond it calls of the connections that hold most are ended; half as much may wait in Output of all clients, beyond which the connections that hold most are ended; an eighth of it may be frames and header blocks that are not whole, beyond which the connections with the oldest are ended
	Message     int    // bytes of a message that is held whole, for ErrNeedWhole or a Rewriter
	Control     int    // frames a second that carry nothing (PING, SETTINGS ...), above those that traffic explains
	Resets      int    // streams a second that a client may reset within 100 ms, or that are reset at nodes for it: calls that end well earn more

	HandshakeTimeout time.Duration // for a client's preface and SETTINGS, or the rest of a header block
	HoldTimeout      time.Duration // for a call to wait here; a shorter deadline of its own counts first
	GrowTimeout      time.Duration // for a client to send more of a message that is held until it is whole, once its first byte is here
	StallTimeout     time.Duration // for a peer to take what is written to it at once, about Output
	DrainTimeout     time.Duration // for a client to answer that it has read that its connection drains
	Silence          time.Duration // of a node, with calls open, after which it is pinged
	Keepalive        time.Duration // between pings while it sends nothing but their answers: servers do not like many
	KeepaliveTimeout time.Duration // silence after a ping, which ends the connection
	Idle             time.Duration // without a call, after which a node's connection ends; 0: never
	ClientSilence    time.Duration // of a client, after which it is pinged: one that has vanished would hold its calls for ever
	ClientTimeout    time.Duration // silence after that, which ends the connection
}

// Default returns the shipped bounds.
func Default() Config {
	return Config{
		Page:        "This port speaks gRPC.\n",
		Connections: 16384, Streams: 4096, Held: 16384, HeaderBytes: 64 << 10,
		Window: 256 << 10, MaxWindow: 4 << 20, ConnWindow: 16 << 20, Output: 256 << 10, Buffered: 128 << 20, Message: 64_000_000,
		Control: 1000, Resets: 1000,
		HandshakeTimeout: 10 * time.Second, HoldTimeout: time.Minute, GrowTimeout: 5 * time.Second, StallTimeout: time.Minute, DrainTimeout: 5 * time.Second,
		Silence: 2 * time.Second, Keepalive: 10 * time.Second, KeepaliveTimeout: time.Second, Idle: 2 * time.Minute,
		ClientSilence: 30 * time.Second, ClientTimeout: 10 * time.Second,
	}
}

// Validate reports every value out of range.
func (c Config) Validate() error {
	var errs []error
	inRange := func(name string, v, least, most int) {
		if v < least || v > most {
			errs = append(errs, fmt.Errorf("%s = %d; must be between %d and %d", name, v, least, most))
		}
	}
	inRange("connections", c.Connections, 1, maxWindow)
	inRange("streams", int(c.Streams), 1, maxWindow)
	inRange("held", c.Held, 1, maxWindow)
	inRange("header_bytes", int(c.HeaderBytes), 4096, 16<<20)
	inRange("window", c.Window, defaultWindow, maxWindow)
	inRange("max_window", c.MaxWindow, c.Window, maxWindow/2)
	inRange("conn_window", c.ConnWindow, defaultWindow, maxWindow/2)
	inRange("output", c.Output, minFrameSize, 1<<30)
	inRange("buffered", c.Buffered, c.Window, 1<<40)
	inRange("message", c.Message, 1, 1<<30)
	inRange("control", c.Control, 1, maxWindow)
	inRange("resets", c.Resets, 1, maxWindow)
	inRange("names", len(c.Names), 0, maxNames-int(FirstName))
	for name, d := range map[string]time.Duration{"handshake_timeout": c.HandshakeTimeout, "hold_timeout": c.HoldTimeout, "grow_timeout": c.GrowTimeout, "stall_timeout": c.StallTimeout,
		"drain_timeout": c.DrainTimeout, "silence": c.Silence, "keepalive": c.Keepalive, "keepalive_timeout": c.KeepaliveTimeout,
		"client_silence": c.ClientSilence, "client_timeout": c.ClientTimeout} {
		if d < tick {
			errs = append(errs, fmt.Errorf("%s = %v; must be at least %v", name, d, tick))
		}
	}
	return errors.Join(errs...)
}

// Router decides about calls. If Route or Answer panics the call fails with INTERNAL, and Done is
// called; if Done panics the client has its answer. Its methods are called from within the Forwarder's
// and must not block; they may use the call until they return, and remember it
// (Call.Ticket) only to resume it.
type Router interface {
	// Route says on which connection, made by Connect, a call goes on. ErrNeedMessage: it
	// is asked again when more of the first message is here, ErrNeedWhole: when all of it
	// is, whatever its length. ErrPark: it is asked again after Resume. ErrMine: the router
	// answers the call itself, by Forwarder.End, however long that takes. Any other error ends the call: a *Status as it is. It is
	// also asked again when the connection it named had no room or went away before
	// the call was sent on it. Changes made to the call count for this answer only.
	Route(*Call) (*Conn, error)
	// Answer is called for each block of headers and trailers of an answer that holds
	// one of Config.Names.
	Answer(*Call)
	// Done is called when a call that Route has seen is over.
	Done(*Call, *Outcome)
}

// Latecomer is what a Router may be besides: Late says what a call is told that has
// waited for Config.HoldTimeout, in place of DEADLINE_EXCEEDED.
type Latecomer interface{ Late(*Call) error }

// Observer is shown the bodies of a call, in order and once: what comes from the client as
// it came, before any splice (but see Call.Replace), and what comes from the node. What Call.Check judges it is
// shown first. An error ends the call like one of Route.
type Observer interface {
	Observe(client bool, p []byte) error
}

// What Route may answer besides a connection.
var (
	ErrNeedMessage = errors.New("h2: the first message is needed")
	ErrNeedWhole   = errors.New("h2: the whole first message is needed")
	ErrPark        = errors.New("h2: the call is to wait")
	ErrMine        = errors.New("h2: the router answers the call")
)

// Status is an answer that the client gets as it is, normally an error.
type Status struct {
	Code    int // of gRPC
	Message string
	Body    []byte // a message that goes before the code, then normally 0. If part of the node's answer has gone out there is no place for it, and code 0 becomes UNAVAILABLE
	Stream  bool   // the answer is a stream of messages: Body has a place behind any of them
	Open    bool   // the call stays open after Body, until the client, its deadline or Forwarder.End ends it

	// Names, in lower case, and values in turn, of what HTTP/2 lets be said before the
	// body, unless something was said already, and behind the code.
	Header, Trailer []string
}

func (s *Status) Error() string { return fmt.Sprintf("code %d: %s", s.Code, s.Message) }

// Codes of gRPC that are made here, or looked for.
const (
	canceled          = 1
	deadlineExceeded  = 4
	permissionDenied  = 7
	resourceExhausted = 8
	internal          = 13
	unavailable       = 14
)

// Abuse is something that peers do only by fault or ill will.
type Abuse uint8

// Each has a counter in Stats.Abuses.
const (
	RapidReset        Abuse = iota // streams opened and reset: the connection ends; or many at nodes: the call is refused
	ControlFlood                   // PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA without end: the connection ends
	ContinuationFlood              // a header block that does not end: the connection ends
	HeaderBytes                    // a header block that is too large, decoded: the call ends
	StreamLimit                    // more streams than allowed: the stream is refused
	WindowOverrun                  // more bytes than the window allows: the stream or connection ends
	SlowHandshake                  // no preface, SETTINGS or end of a header block in time: the connection ends
	Stalled                        // takes no bytes: the connection ends
	SlowReader                     // leaves more bytes waiting than there is memory for: the call ends
	SlowSender                     // stops in the middle of a message that is held until it is whole: the call ends; or of a frame or header block, while much of these is here: the connection ends
	numAbuses
)

// String returns the name used as a metric's label.
func (a Abuse) String() string {
	return [...]string{"rapid_reset", "control_flood", "continuation_flood", "header_bytes", "stream_limit", "window_overrun",
		"slow_handshake", "stalled", "slow_reader", "slow_sender"}[a]
}

// Stats counts since the start, but for Buffered, Answers, Held, Clients and Nodes, which are gauges.
type Stats struct {
	Calls, Forwarded uint64
	Ends             [numEnds]uint64 // of calls, by End
	Resets, GoAways  uint64          // frames received
	ClientIn, NodeIn uint64          // bytes received, and
	ClientOut        uint64          // bytes written, of whole frames
	NodeOut          uint64
	Accepted         uint64 // connections of clients
	Crowded          uint64 // refused because of Config.Connections, which the driver sees to
	Abuses           [numAbuses]uint64
	Buffered         int // bytes waiting in calls
	Answers          int // those of them that wait for clients to read
	Held             int // calls waiting here
	Kept             int // calls that are over for their clients and open at nodes, see Release
	Clients, Nodes   int // connections
}

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
