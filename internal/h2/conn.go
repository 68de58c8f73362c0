package h2

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Conn is one connection, with a client (Accept) or a node (Connect) at the other
// end: frames in, frames out.
type Conn struct {
	Tag  any // the router's own
	Link any // the driver's own

	Ended func() // if set, called once when it is finished, after its calls have ended

	// Silent, if set, is called when a node does not answer a ping, in place of the connection's end: whoever set
	// it ends the connection, or shelves it. One that drains ends: it has been replaced. It must not block.
	Silent func()

	// Others, if set, are the connections to the same node, this one among them: calls that wait for one of them go to whichever
	// has room.
	Others func() []*Conn

	f *Forwarder
	standing
	charge
	input
	output
	keeping
	load
	expected
	ready queue // streams with bytes to send, and room for them
}

// standing is what the connection is, and what has become of it.
type standing struct {
	number   uint64
	made     time.Duration
	err      error
	index    int  // in Forwarder.conns; -1: none
	isClient bool // the peer is a client
	isOpen   bool // nodes: bytes can be sent
	greeted  bool // our SETTINGS are sent
	vanished bool // in Forwarder.vanished
	finished bool // nothing more is read; it is to be closed once Take is empty
	dirty    bool // in Forwarder.dirty
	draining bool // no new streams
	lingers  bool // see Retire
	shelved  bool // see Shelve
	expelled bool // see Expelled
	roomy    bool // in Forwarder.roomy
}

// charge is what counts against the connection when memory is short.
type charge struct {
	held     int           // bytes that wait in its calls: a client's, or those of this process's own at a node
	small    int           // bytes that wait in such calls of no more than a frame
	plain    int           // requests of a client's that are not gRPC
	unread   int           // bytes that wait in streams of a client's
	looked   time.Duration // at its timeouts: see tickConns
	spared   time.Duration // until then calls of others go first, see thin
	parked   int           // calls of a client's that are held
	lastHeld *Call         // the newest of a client's calls that are held
}

// load is the calls that the connection has, and the ids of their streams.
type load struct {
	streams    streams
	background int      // calls of a client's that are nothing to wait for
	waiting    []Ticket // calls that wait for the connection
	calls      uint64   // so far
	maxStreams uint32   // node: that it allows
	lastID     uint32   // client: the highest it opened
	nextID     uint32   // node: of the next stream
	goneAt     uint32   // client: the last stream told in a GOAWAY; maxStreamID: none
}

// expected are the streams of which frames may still come, since the peer may not know that they are over.
type expected struct {
	recent   [32]uint32
	recentAt int
}

// input is what has been received.
type input struct {
	partial   []byte        // a frame that is not whole yet
	begun     time.Duration // its first bytes came
	kept      int           // bytes of it, and of a header block that goes on, that Forwarder.unfinished counts
	rest      []byte        // what came with the frame in hand, behind it
	greeting  int           // bytes of the preface still to come
	settled   bool          // SETTINGS have come
	settledAt time.Duration // when they came
	decoder   decoder
	cont      struct {
		frame // HEADERS whose block goes on; stream 0: none
		block []byte
		count int
		since time.Duration
	}
	recvRoom, recvCredit int // bytes of DATA the peer may send; bytes to give back
	received             uint64
}

// output is what is to be sent.
type output struct {
	ahead         pieces // pieces that go before out
	out           []byte // the piece in hand
	flying        int    // bytes taken and not yet written
	written       uint64 // bytes written
	encoder       encoder
	window        int64 // bytes of DATA the peer takes on the connection
	initialWindow int64 // and on a new stream
	headerBytes   int   // bytes of headers it takes at once, with 32 added for each field
}

// keeping is what timeouts and allowances look at.
type keeping struct {
	began, heard, moved time.Duration // made, or greeted; last bytes received; last bytes written
	pinged, pingAt      time.Duration // a ping that is not answered went out, 0: none; the next may go out
	drained             time.Duration // Drain was called
	busy                time.Duration // nodes: the newest tick that found a call, open or since the tick before
	busyCalls           uint64        // Conn.calls at that tick
	control, resets     int           // allowances left
	walks               int           // places for streams that may be looked at, which only time gives back
	cancels             int           // clients: streams of theirs at nodes that may be reset before calls are refused
	refilled            time.Duration
	unacked             int // SETTINGS of ours not acknowledged
}

// ConnError ends a connection.
type ConnError struct {
	Code   Code
	Reason string
}

func (e *ConnError) Error() string { return fmt.Sprintf("h2: %s (code %d)", e.Reason, e.Code) }

// ErrClosed says that a connection is finished: nothing more is read from it.
var ErrClosed = errors.New("h2: the connection is closing")

// What Conn.Err says besides a *ConnError.
var (
	ErrUnreachable = errors.New("h2: the connection could not be made")
	ErrSilent      = errors.New("h2: the peer did not answer a ping")
	ErrLost        = errors.New("h2: the peer closed the connection, or the network did")
)

// numbered is the number of the newest connection of this process.
var numbered atomic.Uint64

// NextNumber returns a number that no connection of this process has, from 1.
func NextNumber() uint64 { return numbered.Add(1) }

// Number tells the connection from all others of this process.
func (s *standing) Number() uint64 { return s.number }

func (f *Forwarder) newConn(isClient bool) *Conn {
	c := &Conn{f: f}
	c.number, c.isClient, c.made = NextNumber(), isClient, f.now
	c.nextID, c.goneAt, c.maxStreams = 1, maxStreamID, maxWindow
	c.decoder = decoder{words: f.words, max: defaultTableSize}
	c.encoder = encoder{max: defaultTableSize}
	c.window, c.initialWindow, c.headerBytes = defaultWindow, defaultWindow, math.MaxInt
	c.recvRoom = f.config.ConnWindow
	c.began, c.heard, c.moved, c.refilled, c.busy = f.now, f.now, f.now, f.now, f.now
	c.control, c.resets, c.cancels, c.walks, c.unacked = f.config.Control, f.config.Resets, f.config.Resets, walksPerSecond, 1
	c.index = len(f.conns)
	f.conns = append(f.conns, c)
	return c
}

// Accept returns the connection of a client that has just connected. Nothing is sent
// before its first byte has come: until then another process may still take it over.
func (f *Forwarder) Accept() *Conn {
	c := f.newConn(true)
	c.isOpen, c.greeting = true, len(preface)
	f.stats.Clients++
	f.stats.Accepted++
	return c
}

// Connect returns a connection for a node. Calls may be routed to it at once and
// wait until the node has greeted (Open).
func (f *Forwarder) Connect() *Conn {
	f.stats.Nodes++
	return f.newConn(false)
}

// Open says that the node's connection stands. Calls go out once the node's SETTINGS
// have come: before, it might refuse some.
func (c *Conn) Open() {
	if c.isOpen || c.finished {
		return
	}
	c.isOpen, c.heard, c.moved = true, c.f.now, c.f.now
	c.out = append(c.buf(), preface...)
	c.greet()
}

func (c *Conn) greet() {
	b := c.buf()
	at := len(b)
	b = appendFrame(b, 0, frameSettings, 0, 0)
	b = appendSetting(b, settingWindow, uint32(c.f.config.Window))
	b = appendSetting(b, settingHeaderBytes, c.f.config.HeaderBytes)
	if c.isClient {
		b = appendSetting(b, settingStreams, c.f.config.Streams)
	} else {
		b = appendSetting(b, settingPush, 0)
	}
	b[at+2] = byte(len(b) - at - frameHeaderLen)
	if more := c.f.config.ConnWindow - defaultWindow; more > 0 {
		b = appendWindow(b, 0, uint32(more))
	}
	c.out, c.greeted, c.began = b, true, c.f.now
}

// State is what a connection looks like from outside.
type State struct {
	IsClient bool
	Ready    bool          // the peer's SETTINGS have come
	Draining bool          // no new streams
	Age      time.Duration // since Accept or Connect
	Silent   time.Duration // since its last byte
	Streams  int           // open
	Waiting  int           // calls that wait for it
	Calls    uint64        // streams so far
	In, Out  uint64        // bytes received and written
	Buffered int           // bytes for the peer that are not written
	Window   int64         // bytes of DATA it takes now
}

// State looks at each of the connection's streams.
func (c *Conn) State() State {
	st := State{IsClient: c.isClient, Ready: c.settled, Draining: c.draining, Age: c.f.now - c.made, Silent: c.f.now - c.heard,
		Streams: c.streams.n, Waiting: len(c.waiting), Calls: c.calls, In: c.received, Out: c.written,
		Buffered: c.backlog(), Window: c.window}
	for _, s := range c.streams.slots {
		if s != nil {
			st.Buffered += s.waits()
		}
	}
	return st
}

// IsOpen reports that bytes can be sent, or could: see Open.
func (s *standing) IsOpen() bool { return s.isOpen }

// Ready reports that the peer's SETTINGS have come.
func (i *input) Ready() bool { return i.settled }

// Settled is when they came, by Forwarder.Now; false: they have not.
func (i *input) Settled() (time.Duration, bool) { return i.settledAt, i.settled }

// Usable reports whether new calls may go to a node's connection.
func (s *standing) Usable() bool { return !s.finished && !s.draining }

// Calls returns how many calls are open on it, those that wait for it included.
func (l *load) Calls() int { return l.streams.n + len(l.waiting) }

// AtLimit reports whether as many calls are open on a node's connection, or wait for it, as the node allows.
func (c *Conn) AtLimit() bool { return c.settled && c.Exceeds(c.maxStreams) }

// Exceeds reports whether so many calls are open on the connection, or wait for it.
func (l *load) Exceeds(calls uint32) bool { return uint32(l.Calls()) >= calls }

// MaxStreams is how many streams the node allows.
func (l *load) MaxStreams() uint32 { return l.maxStreams }

// Waiting is how many calls wait for room on the connection. It looks at each of them.
func (l *load) Waiting() int {
	l.forgetEnded()
	return len(l.waiting)
}

// forgetEnded drops the calls that have ended while they waited.
func (l *load) forgetEnded() {
	l.waiting = slices.DeleteFunc(l.waiting, func(t Ticket) bool { return t.call.generation != t.generation })
}

// Finished reports that the connection is to be closed once Take returns nothing.
func (s *standing) Finished() bool { return s.finished }

// Expelled reports that a connection is finished because of what waits to be written to it, which is to be given up.
func (s *standing) Expelled() bool { return s.expelled }

// Err says why a connection is finished: a *ConnError if the peer broke a rule, or one
// of the errors above; nil if it ended in peace, or has not ended. It is set when the
// router hears of the calls that this ends.
func (s *standing) Err() error { return s.err }

// full reports that no stream can be opened now.
func (c *Conn) full() bool {
	return !c.settled || c.finished || c.draining || uint32(c.streams.n) >= c.maxStreams || c.backlog() >= 4*c.f.config.Output
}

// Unread is how many bytes a client leaves waiting here.
func (c *Conn) Unread() int { return c.backlog() + c.unread }

// backlog is how many bytes the peer's socket has not taken. Data stops at Output;
// headers go beyond it.
func (o *output) backlog() int { return o.ahead.size + len(o.out) + o.flying }

// buf returns the buffer to append frames to, and has it written. There is room in it for
// a frame as they usually are.
func (c *Conn) buf() []byte {
	c.mark()
	if cap(c.out)-len(c.out) < frameRoom {
		c.nextPiece(c.f)
	}
	return c.out
}

// frameRoom is what frames take, except those with data. One that takes more has its
// piece grow.
const frameRoom = 1 << 10

// nextPiece has what follows go into a new piece of the output.
func (o *output) nextPiece(f *Forwarder) {
	if len(o.out) > 0 {
		o.ahead.push(o.out)
	}
	o.out = f.buffer()
}

// unwrite forgets the output that is not taken.
func (o *output) unwrite(f *Forwarder) {
	for b := o.take(); b != nil; b = o.take() {
		f.Recycle(b)
	}
}

// mark has Dirty return the connection.
func (c *Conn) mark() {
	if !c.dirty {
		c.dirty = true
		c.f.dirty = append(c.f.dirty, c)
	}
}

// Take hands over the next piece of what is to be written, or nil. A frame may go on in the
// piece after it: all are to be taken. Forwarder.Recycle takes them back.
func (c *Conn) Take() []byte {
	b := c.take()
	c.flying += len(b)
	return b
}

func (o *output) take() (b []byte) {
	if b = o.ahead.pop(); b == nil && len(o.out) > 0 {
		b, o.out = o.out, nil
	}
	return b
}

// Sent says that n bytes of those taken are written.
func (c *Conn) Sent(n int) {
	c.flying -= n
	c.written += uint64(n)
	if c.isClient {
		c.f.stats.ClientOut += uint64(n)
	} else {
		c.f.stats.NodeOut += uint64(n)
	}
	c.moved = c.f.now
	c.push()
	c.makeRoom()
	c.f.resumeWaiting()
}

// Touch has Dirty return the connection if it has output or is finished.
func (c *Conn) Touch() {
	if c.ahead.size+len(c.out) > 0 || c.finished {
		c.mark()
	}
}

// space reports whether DATA may be appended to the output.
func (c *Conn) space() bool { return c.backlog() < c.f.config.Output }

// push sends what streams have waiting, as far as there is room, a frame of each in turn.
func (c *Conn) push() {
	for c.ready.first != nil && c.window > 0 && c.space() {
		s := c.ready.first
		c.ready.remove(s)
		generation := s.call.generation
		s.sendSome()
		if s.call.generation == generation && s.conn == c && s.window > 0 && s.sent < len(s.pending) {
			c.ready.push(s)
		}
	}
}

// Receive deals with bytes from the peer, which are not needed afterwards. After an
// error nothing more is read: what Take returns is to be written and the connection
// closed.
func (c *Conn) Receive(p []byte) error {
	if c.finished {
		return ErrClosed
	}
	c.f.resumed = 0 // others had their turns
	c.heard, c.pinged = c.f.now, 0
	c.received += uint64(len(p))
	if c.isClient {
		c.f.stats.ClientIn += uint64(len(p))
	} else {
		c.f.stats.NodeIn += uint64(len(p))
	}
	if !c.greeted {
		c.greet()
		if c.draining {
			c.sayDrain()
		}
	}
	calls := c.calls
	err := c.receive(p)
	if c.f.leftOver > mostLeftOver {
		c.f.endSome(int(c.calls - calls))
	}
	c.rest = nil
	c.countUnfinished()
	if err != nil && !c.finished { // else it ended just before, with its last stream
		c.refuse(err)
	} else {
		c.settle()
	}
	c.f.resumeWaiting()
	c.f.flushListeners()
	if err == nil {
		return nil
	}
	return err
}

func (c *Conn) receive(p []byte) *ConnError {
	if c.greeting > 0 {
		n := min(c.greeting, len(p))
		if at := len(preface) - c.greeting; string(p[:n]) != preface[at:at+n] {
			return &ConnError{ProtocolError, "no HTTP/2 preface"}
		}
		c.greeting -= n
		p = p[n:]
	}
	for len(c.partial) > 0 && len(p) > 0 { // complete the frame begun before
		want := frameHeaderLen
		if len(c.partial) >= want {
			want += frameLen(c.partial)
		}
		n := min(want-len(c.partial), len(p))
		c.begin(p[:n])
		p = p[n:]
		if len(c.partial) < want {
			return nil
		}
		if want == frameHeaderLen {
			if err := checkLen(c.partial); err != nil {
				return err
			}
			if frameLen(c.partial) > 0 {
				continue
			}
		}
		c.rest = p
		err := c.handle(parseFrame(c.partial))
		if c.partial = c.partial[:0]; cap(c.partial) > keptPending {
			c.f.Recycle(c.partial)
			c.partial = nil
		}
		if err != nil || c.finished {
			return err
		}
	}
	for len(p) >= frameHeaderLen {
		if err := checkLen(p); err != nil {
			return err
		}
		n := frameHeaderLen + frameLen(p)
		if len(p) < n {
			break
		}
		c.rest = p[n:]
		if err := c.handle(parseFrame(p)); err != nil || c.finished {
			return err
		}
		p = p[n:]
	}
	c.begin(p)
	return nil
}

// begin keeps bytes of a frame that is not whole.
func (c *Conn) begin(p []byte) {
	if len(c.partial) == 0 {
		c.begun = c.f.now
	}
	if n := len(c.partial) + len(p); n > cap(c.partial) && n > keptPending {
		c.partial = append(c.f.buffer(), c.partial...) // any frame goes into it
	}
	c.partial = append(c.partial, p...)
}

func checkLen(header []byte) *ConnError {
	if frameLen(header) > minFrameSize {
		return &ConnError{FrameSizeError, "a frame is longer than 16384 bytes"}
	}
	return nil
}

// peek returns the start of the body of a stream whose headers are in hand, if its
// first DATA frame came with them, and whether that is also the last.
func (i *input) peek(id uint32) (p []byte, end bool) {
	if len(i.rest) < frameHeaderLen || len(i.rest) < frameHeaderLen+frameLen(i.rest) {
		return nil, false
	}
	fr := parseFrame(i.rest)
	if fr.kind != frameData || fr.stream != id || fr.flags&flagPadded != 0 || frameLen(i.rest) > minFrameSize {
		return nil, false
	}
	return fr.payload, fr.flags&flagEndStream != 0
}

func (c *Conn) handle(fr frame) *ConnError {
	if !c.settled && (fr.kind != frameSettings || fr.flags&flagAck != 0) {
		return &ConnError{ProtocolError, "the first frame is not SETTINGS"}
	}
	if c.cont.stream != 0 && (fr.kind != frameContinuation || fr.stream != c.cont.stream) {
		return &ConnError{ProtocolError, "a header block is interrupted"}
	}
	switch fr.kind {
	case frameData:
		return c.data(fr)
	case frameHeaders:
		return c.headers(fr)
	case framePriority:
		return c.priority(fr)
	case frameReset:
		return c.peerReset(fr)
	case frameSettings:
		return c.settings(fr)
	case framePush:
		return &ConnError{ProtocolError, "PUSH_PROMISE is not allowed"}
	case framePing:
		return c.ping(fr)
	case frameGoAway:
		return c.goAway(fr)
	case frameWindow:
		return c.windowUpdate(fr)
	case frameContinuation:
		return c.continuation(fr)
	}
	return c.spend()
}

// walksPerSecond is how many places for streams may be looked at in a second because windows change: they take some 5 ms.
const walksPerSecond = 250_000

// unpackedPerSpend is how many bytes of headers may come out of the table of a header block for what a frame costs that carries
// nothing. Headers of gRPC are less; those of 64 KiB in a few bytes each time are copied as often.
const unpackedPerSpend = 4 << 10

// spend counts a frame that carries nothing against the peer's allowance.
func (c *Conn) spend() *ConnError {
	c.refill(c.f.now, &c.f.config)
	if c.control--; c.control < 0 {
		c.f.stats.Abuses[ControlFlood]++
		return &ConnError{EnhanceYourCalm, "too many frames that carry nothing"}
	}
	return nil
}

// rapid is the age below which a stream that is reset counts.
const rapid = 100 * time.Millisecond

// spendReset counts a stream that came to nothing.
func (c *Conn) spendReset() *ConnError {
	if !c.isClient {
		return nil
	}
	c.refill(c.f.now, &c.f.config)
	if c.resets--; c.resets < 0 {
		c.f.stats.Abuses[RapidReset]++
		return &ConnError{EnhanceYourCalm, "too many streams are reset"}
	}
	return nil
}

// refill gives the peer its allowances of the seconds that have passed.
func (k *keeping) refill(now time.Duration, config *Config) {
	if seconds := (now - k.refilled) / time.Second; seconds >= 1 {
		// the others do not go below 0
		k.cancels = max(k.cancels, min(k.cancels+int(min(seconds, 1000))*config.Resets, config.Resets))
		k.refilled = now
		k.control = max(k.control, config.Control)
		k.walks = walksPerSecond
		k.resets = max(k.resets, config.Resets)
	}
}

// earn allows frames for the traffic that explains them: a window update or two,
// and the pings with which some peers measure the connection.
func (k *keeping) earn(config *Config) { k.control = min(k.control+4, 4*config.Control) }
