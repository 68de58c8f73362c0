package h2

import (
	"bytes"
	"encoding/binary"
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

	f        *Forwarder
	number   uint64
	place    int           // in Forwarder.conns; -1: none
	held     int           // bytes that wait in its calls: a client's, or those of this process's own at a node
	small    int           // of those, in calls of no more than a frame
	parked   int           // calls of a client's that are held
	plain    int           // requests of a client's that are not gRPC
	looked   time.Duration // at its timeouts: see tickConns
	spared   time.Duration // until then calls of others go first, see thin
	isClient bool          // the peer is a client
	isOpen   bool          // nodes: bytes can be sent
	greeted  bool          // our SETTINGS are sent
	vanished bool          // in Forwarder.vanished
	finished bool          // nothing more is read; it is to be closed once Take is empty
	dirty    bool
	draining bool // no new streams
	lingers  bool // see Retire
	shelved  bool // see Shelve
	expelled bool // see Expelled
	roomy    bool // in Forwarder.roomy
	err      error

	input
	output
	keeping

	streams    streams
	background int   // calls of a client's that are nothing to wait for
	lastHeld   *Call // the newest of a client's calls that are held
	unread     int   // bytes that wait in streams of a client's
	ready      queue // streams with bytes to send, and room for them
	waiting    []Ticket

	lastID     uint32 // client: the highest it opened
	nextID     uint32 // node: of the next stream
	maxStreams uint32 // node: that it allows
	goneAt     uint32 // client: the last stream told in a GOAWAY; maxStreamID: none
	made       time.Duration
	calls      uint64 // so far
	recent     [32]uint32
	recentAt   int
}

// input is what has been received.
type input struct {
	partial   []byte        // a frame that is not whole yet
	begun     time.Duration // its first bytes came
	kept      int           // bytes of it, and of a header block that goes on, that Forwarder.unfinished counts
	rest      []byte        // what came with the frame in hand, behind it
	greeting  int           // octets of the preface still to come
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
	ahead         pieces // that go before out
	out           []byte // the piece in hand
	flying        int    // bytes taken and not yet written
	written       uint64 // bytes written
	encoder       encoder
	window        int64 // bytes of DATA the peer takes on the connection
	initialWindow int64 // and on a new stream
	headerBytes   int   // octets of headers it takes at once, with 32 added for each field
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
func (c *Conn) Number() uint64 { return c.number }

func (f *Forwarder) newConn(isClient bool) *Conn {
	c := &Conn{f: f, number: NextNumber(), isClient: isClient, nextID: 1, goneAt: maxStreamID, maxStreams: maxWindow, made: f.now}
	c.decoder = decoder{words: f.words, max: defaultTableSize}
	c.encoder = encoder{max: defaultTableSize}
	c.window, c.initialWindow, c.headerBytes = defaultWindow, defaultWindow, math.MaxInt
	c.recvRoom = f.config.ConnWindow
	c.began, c.heard, c.moved, c.refilled, c.busy = f.now, f.now, f.now, f.now, f.now
	c.control, c.resets, c.cancels, c.walks, c.unacked = f.config.Control, f.config.Resets, f.config.Resets, walksPerSecond, 1
	c.place = len(f.conns)
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
func (c *Conn) IsOpen() bool { return c.isOpen }

// Ready reports that the peer's SETTINGS have come.
func (c *Conn) Ready() bool { return c.settled }

// Settled is when they came, by Forwarder.Now; false: they have not.
func (c *Conn) Settled() (time.Duration, bool) { return c.settledAt, c.settled }

// Usable reports whether new calls may go to a node's connection.
func (c *Conn) Usable() bool { return !c.finished && !c.draining }

// Calls returns how many calls are open on it, those that wait for it included.
func (c *Conn) Calls() int { return c.streams.n + len(c.waiting) }

// AtLimit reports whether as many calls are open on a node's connection, or wait for it, as the node allows.
func (c *Conn) AtLimit() bool { return c.settled && c.Exceeds(c.maxStreams) }

// Exceeds reports whether so many calls are open on the connection, or wait for it.
func (c *Conn) Exceeds(calls uint32) bool { return uint32(c.Calls()) >= calls }

// MaxStreams is how many streams the node allows.
func (c *Conn) MaxStreams() uint32 { return c.maxStreams }

// Waiting is how many calls wait for room on the connection.
func (c *Conn) Waiting() int { return len(c.waiting) }

// Finished reports that the connection is to be closed once Take returns nothing.
func (c *Conn) Finished() bool { return c.finished }

// Expelled reports that a connection is finished because of what waits to be written to it, which is to be given up.
func (c *Conn) Expelled() bool { return c.expelled }

// Err says why a connection is finished: a *ConnError if the peer broke a rule, or one
// of the errors above; nil if it ended in peace, or has not ended. It is set when the
// router hears of the calls that this ends.
func (c *Conn) Err() error { return c.err }

// full reports that no stream can be opened now.
func (c *Conn) full() bool {
	return !c.settled || c.finished || c.draining || uint32(c.streams.n) >= c.maxStreams || c.backlog() >= 4*c.f.config.Output
}

// Unread is how many bytes a client leaves waiting here.
func (c *Conn) Unread() int { return c.backlog() + c.unread }

// backlog is how many bytes the peer's socket has not taken. Data stops at Output;
// headers go beyond it.
func (c *Conn) backlog() int { return c.ahead.size + len(c.out) + c.flying }

// buf returns the buffer to append frames to, and has it written. There is room in it for
// a frame as they usually are.
func (c *Conn) buf() []byte {
	c.mark()
	if cap(c.out)-len(c.out) < frameRoom {
		c.nextPiece()
	}
	return c.out
}

// frameRoom is what frames take, but for those with data. One that takes more has its
// piece grow.
const frameRoom = 1 << 10

// nextPiece has what follows go into a new piece of the output.
func (c *Conn) nextPiece() {
	if len(c.out) > 0 {
		c.ahead.push(c.out)
	}
	c.out = c.f.buffer()
}

// unwrite forgets the output that is not taken.
func (c *Conn) unwrite() {
	for b := c.take(); b != nil; b = c.take() {
		c.f.Recycle(b)
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

func (c *Conn) take() (b []byte) {
	if b = c.ahead.pop(); b == nil && len(c.out) > 0 {
		b, c.out = c.out, nil
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
			if err := c.checkLen(c.partial); err != nil {
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
		if err := c.checkLen(p); err != nil {
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

func (c *Conn) checkLen(header []byte) *ConnError {
	if frameLen(header) > minFrameSize {
		return &ConnError{FrameSizeError, "a frame is longer than 16384 octets"}
	}
	return nil
}

// peek returns the start of the body of a stream whose headers are in hand, if its
// first DATA frame came with them, and whether that is also the last.
func (c *Conn) peek(id uint32) (p []byte, end bool) {
	if len(c.rest) < frameHeaderLen || len(c.rest) < frameHeaderLen+frameLen(c.rest) {
		return nil, false
	}
	fr := parseFrame(c.rest)
	if fr.kind != frameData || fr.stream != id || fr.flags&flagPadded != 0 || frameLen(c.rest) > minFrameSize {
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

// unpackedPerSpend is how many octets of headers may come out of the table of a header block for what a frame costs that carries
// nothing. Headers of gRPC are less; those of 64 KiB in a few octets each time are copied as often.
const unpackedPerSpend = 4 << 10

// spend counts a frame that carries nothing against the peer's allowance.
func (c *Conn) spend() *ConnError {
	c.refill()
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
	c.refill()
	if c.resets--; c.resets < 0 {
		c.f.stats.Abuses[RapidReset]++
		return &ConnError{EnhanceYourCalm, "too many streams are reset"}
	}
	return nil
}

func (c *Conn) refill() {
	if seconds := (c.f.now - c.refilled) / time.Second; seconds >= 1 {
		c.cancels = max(c.cancels, min(c.cancels+int(min(seconds, 1000))*c.f.config.Resets, c.f.config.Resets)) // the others do not go below 0
		c.refilled = c.f.now
		c.control = max(c.control, c.f.config.Control)
		c.walks = walksPerSecond
		c.resets = max(c.resets, c.f.config.Resets)
	}
}

// earn allows frames for the traffic that explains them: a window update or two,
// and the pings with which some peers measure the connection.
func (c *Conn) earn() { c.control = min(c.control+4, 4*c.f.config.Control) }

func (c *Conn) data(fr frame) *ConnError {
	if fr.stream == 0 {
		return &ConnError{ProtocolError, "DATA on stream 0"}
	}
	c.pingAt = 0
	n := len(fr.payload)
	if c.recvRoom -= n; c.recvRoom < 0 {
		c.f.stats.Abuses[WindowOverrun]++
		return &ConnError{FlowControlError, "more bytes than the connection's window allows"}
	}
	// The connection's room is given back at once: it does not hold back a stream with a
	// fast reader because of one with a slow one.
	if c.recvCredit += n; c.recvCredit >= c.f.config.ConnWindow/4 {
		c.out = appendWindow(c.buf(), 0, uint32(c.recvCredit))
		c.recvRoom += c.recvCredit
		c.recvCredit = 0
	}
	p, ok := fr.unpad()
	if !ok {
		return &ConnError{ProtocolError, "padding as long as the frame"}
	}
	end := fr.flags&flagEndStream != 0
	if len(p) > 0 {
		c.earn()
	} else if !end {
		if err := c.spend(); err != nil {
			return err
		}
	}
	s := c.streams.get(fr.stream)
	if s == nil {
		if len(p) == 0 && end && c.isClient {
			if err := c.spend(); err != nil {
				return err
			}
		}
		return c.unknown(fr)
	}
	if s.gotEnd {
		return c.streamError(s, StreamClosed, "DATA after the end of the stream")
	}
	if !c.isClient && !s.gotHead {
		return c.streamError(s, ProtocolError, "DATA before HEADERS")
	}
	if s.room -= n; s.room < 0 {
		c.f.stats.Abuses[WindowOverrun]++
		return c.streamError(s, FlowControlError, "more bytes than the stream's window allows")
	}
	if s.sizeable {
		if s.declared -= len(p); s.declared < 0 || end && s.declared > 0 {
			return c.streamError(s, ProtocolError, "content-length differs from the body")
		}
	}
	s.gotEnd = end
	s.giveBack(n - len(p)) // padding is not passed on
	c.f.body(s, p, end)
	return nil
}

// body deals with bytes of a call's body, received on s.
func (f *Forwarder) body(s *stream, p []byte, end bool) {
	call, t := s.call, s.twin()
	if s.isClient {
		call.outcome.Request += len(p)
		if t.conn == nil && !call.isHeld { // answered here
			s.giveBack(len(p))
			if call.isPlain && end {
				call.page()
			} else {
				call.settle()
			}
			return
		}
		if call.packed > 0 && t.conn != nil {
			p = call.unpack(p)
		}
		if t.conn != nil && !call.takes(p, end) {
			return
		}
		if call.splice.set && t.conn != nil {
			p = call.apply(p)
		}
	} else if call.own != nil {
		if call.outcome.FirstByte == 0 {
			call.outcome.FirstByte = f.now
		}
		call.outcome.Answer += len(p)
		call.hearBody(p, end)
		return
	} else {
		if !call.observe(false, p) {
			return
		}
		if call.outcome.FirstByte == 0 {
			call.outcome.FirstByte = f.now
		}
		if o := &call.outcome; o.headLen < headSize {
			o.headLen += uint8(copy(o.head[o.headLen:], p))
		}
		call.outcome.Answer += len(p)
		if call.lost != nil && call.lost.Stream {
			call.outcome.rest.skip(p)
		}
	}
	generation := call.generation
	if s.isClient && call.rewriting != nil && t.conn != nil {
		call.rewrite(p, end)
	} else {
		t.send(p, end)
	}
	switch {
	case call.generation != generation: // over
	case !call.isHeld:
		if end {
			call.settle()
		}
	case call.askAt > 0 && (end || t.waits() >= call.askAt || t.whole()):
		call.route(false)
	case call.askAt > 0:
		if len(p) > 0 {
			call.awaitGrowth(true)
		}
		s.allow(call.askAt - t.waits())
	}
}

// observe shows bytes to the call's observer. False: that has ended the call.
func (c *Call) observe(client bool, p []byte) bool {
	if c.observer == nil || len(p) == 0 {
		return true
	}
	err := c.show(client, p)
	if err != nil {
		c.fail(err)
	}
	return err == nil
}

// unknown deals with a frame on a stream that is not open.
func (c *Conn) unknown(fr frame) *ConnError {
	idle := fr.stream%2 == 0 || fr.stream > c.lastID
	if !c.isClient {
		idle = fr.stream%2 == 0 || fr.stream >= c.nextID
	}
	if idle {
		return &ConnError{ProtocolError, "a frame on an idle stream"}
	}
	switch {
	case fr.kind != frameData && fr.kind != frameHeaders, !c.isClient:
		return nil
	case fr.stream > c.goneAt && fr.kind == frameHeaders:
		return c.spend()
	case fr.stream > c.goneAt:
		return nil
	}
	for _, id := range c.recent {
		if id != fr.stream {
			continue
		}
		if fr.kind == frameHeaders { // trailers, once
			return c.spend()
		}
		return nil // it did not know yet that we reset it
	}
	if fr.kind == frameHeaders {
		return &ConnError{StreamClosed, "HEADERS on a closed stream"}
	}
	c.reset(fr.stream, StreamClosed)
	return c.spend()
}

// reset sends RST_STREAM.
func (c *Conn) reset(id uint32, code Code) {
	c.out = appendReset(c.buf(), id, code)
	c.expect(id)
}

// expect has frames ignored that still come on a stream which is closed here.
func (c *Conn) expect(id uint32) {
	c.recent[c.recentAt%len(c.recent)] = id
	c.recentAt++
}

// streamError ends a stream whose peer broke the protocol.
func (c *Conn) streamError(s *stream, code Code, reason string) *ConnError {
	call := s.call
	s.reset(code)
	if s.isClient {
		call.outcome.End = Cancelled
		call.finish()
		return c.spendReset()
	}
	s.drop()
	if s.gotEnd { // the answer is whole
		call.settle()
		return nil
	}
	call.outcome.End = Broken
	call.fail(&Status{Code: internal, Message: "the node broke the protocol: " + reason})
	return nil
}

func (c *Conn) priority(fr frame) *ConnError {
	if fr.stream == 0 {
		return &ConnError{ProtocolError, "PRIORITY on stream 0"}
	}
	if len(fr.payload) != 5 {
		return &ConnError{FrameSizeError, "PRIORITY is not 5 octets"}
	}
	if binary.BigEndian.Uint32(fr.payload)&maxStreamID == fr.stream {
		if s := c.streams.get(fr.stream); s != nil {
			return c.streamError(s, ProtocolError, "a stream depends on itself")
		}
		c.reset(fr.stream, ProtocolError)
	}
	return c.spend()
}

// early is how much before ours a node's clock may say that a call's time is up.
const early = 10 * time.Millisecond

func (c *Conn) peerReset(fr frame) *ConnError {
	if fr.stream == 0 {
		return &ConnError{ProtocolError, "RST_STREAM on stream 0"}
	}
	if len(fr.payload) != resetLen {
		return &ConnError{FrameSizeError, "RST_STREAM is not 4 octets"}
	}
	c.f.stats.Resets++
	s := c.streams.get(fr.stream)
	if s == nil {
		if err := c.unknown(fr); err != nil {
			return err
		}
		return c.spend()
	}
	code, call := Code(binary.BigEndian.Uint32(fr.payload)), s.call
	if s.isClient && call.node.conn != nil { // which is reset below
		c.cancels--
	}
	s.close()
	if s.isClient {
		if call.outcome.End = Cancelled; call.client.sentEnd {
			call.outcome.End = Answered
		}
		age := c.f.now - call.outcome.Began
		call.node.reset(Cancel) // whatever it says: a node judges by the code who is to blame
		if call.finish(); age >= rapid {
			return nil // Config.Streams bounds how many there are
		}
		return c.spendReset()
	}
	s.drop()
	switch {
	case code == RefusedStream:
		call.disown()
	case s.gotEnd: // the answer is whole; the rest of the request is not wanted
		call.settle()
	case code == Cancel && call.deadline > 0 && c.f.now >= call.deadline-early:
		call.expire() // the node was told the deadline, too: grpc-go's server cancels
	case code == Cancel:
		// A node of YDB's that stops does that to what is left (ydb/library/grpc/server/grpc_server.cpp),
		// and few clients repeat CANCELLED. What is left may as well have lost its connection.
		call.outcome.End = Broken
		call.fail(call.whenCut())
	case call.own != nil:
		call.outcome.End = Broken
		call.fail(ofReset(code))
	default:
		call.outcome.End = Broken
		call.client.reset(InternalError) // others stand for refusals in gRPC, and the call may have run
		call.finish()
	}
	return nil
}

func (c *Conn) settings(fr frame) *ConnError {
	if fr.stream != 0 {
		return &ConnError{ProtocolError, "SETTINGS on a stream"}
	}
	p := fr.payload
	if fr.flags&flagAck != 0 {
		if len(p) != 0 {
			return &ConnError{FrameSizeError, "SETTINGS acknowledgement with a payload"}
		}
		if c.unacked > 0 {
			c.unacked--
			return nil
		}
		return c.spend()
	}
	if len(p)%settingLen != 0 {
		return &ConnError{FrameSizeError, "SETTINGS not of whole settings"}
	}
	c.settled, c.settledAt = true, c.f.now
	window := c.initialWindow
	for ; len(p) > 0; p = p[settingLen:] {
		if err := c.spend(); err != nil {
			return err
		}
		id, v := binary.BigEndian.Uint16(p), binary.BigEndian.Uint32(p[2:])
		if id == settingWindow {
			if v > maxWindow {
				return &ConnError{FlowControlError, "bad SETTINGS_INITIAL_WINDOW_SIZE"}
			}
			window = int64(v) // the last one counts
			continue
		}
		if err := c.setting(id, v); err != nil {
			return err
		}
	}
	if window != c.initialWindow {
		if c.walks -= len(c.streams.slots); c.walks < 0 {
			c.f.stats.Abuses[ControlFlood]++
			return &ConnError{EnhanceYourCalm, "the windows of too many streams change"}
		}
	}
	if err := c.resizeWindows(window); err != nil {
		return err
	}
	c.out = appendFrame(c.buf(), 0, frameSettings, flagAck, 0)
	c.push()
	c.makeRoom()
	return c.spend()
}

func (c *Conn) setting(id uint16, v uint32) *ConnError {
	switch id {
	case settingTableSize:
		c.encoder.resize(v)
	case settingPush:
		if v > 1 || v == 1 && !c.isClient {
			return &ConnError{ProtocolError, "bad SETTINGS_ENABLE_PUSH"}
		}
	case settingStreams:
		c.maxStreams = v
	case settingHeaderBytes:
		c.headerBytes = int(v)
	case settingFrameSize:
		if v < minFrameSize || v > 1<<24-1 {
			return &ConnError{ProtocolError, "bad SETTINGS_MAX_FRAME_SIZE"}
		}
	}
	return nil
}

// resizeWindows changes the window of new streams, and what is left of that of each that is open.
func (c *Conn) resizeWindows(to int64) *ConnError {
	delta := to - c.initialWindow
	if delta == 0 {
		return nil
	}
	c.initialWindow = to
	for _, s := range c.streams.slots {
		if s == nil {
			continue
		}
		if s.window += delta; s.window > maxWindow {
			return &ConnError{FlowControlError, "SETTINGS_INITIAL_WINDOW_SIZE overflows a window"}
		}
		if s.window > 0 && s.sent < len(s.pending) {
			c.ready.push(s)
		} else if s.window <= 0 {
			c.ready.remove(s)
		}
	}
	return nil
}

// wait has a call resumed when the connection has room. False: too many wait.
func (c *Conn) wait(call *Call) bool {
	most := 2 * c.f.config.Held // more than unpark leaves
	if len(c.waiting) == cap(c.waiting) || len(c.waiting) >= most {
		c.waiting = slices.DeleteFunc(c.waiting, func(t Ticket) bool { return t.call.generation != t.generation })
	}
	if len(c.waiting) >= most {
		return false
	}
	c.waiting = append(c.waiting, call.Ticket())
	return true
}

// makeRoom looks again at the calls that wait for the connection.
func (c *Conn) makeRoom() {
	if (len(c.waiting) > 0 || c.Others != nil) && !c.roomy {
		c.roomy = true
		c.f.roomy = append(c.f.roomy, c)
	}
}

func (c *Conn) ping(fr frame) *ConnError {
	if fr.stream != 0 {
		return &ConnError{ProtocolError, "PING on a stream"}
	}
	if len(fr.payload) != 8 {
		return &ConnError{FrameSizeError, "PING is not 8 octets"}
	}
	if fr.flags&flagAck == 0 {
		c.out = append(appendFrame(c.buf(), 8, framePing, flagAck, 0), fr.payload...)
	} else if string(fr.payload) == pingOfDrain {
		c.goFinally()
	}
	return c.spend()
}

func (c *Conn) sayGoAway(last uint32, code Code, reason string) {
	b := appendFrame(c.buf(), 8+len(reason), frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	c.out = append(b, reason...)
}

// Drain lets the calls of a connection end and takes no new ones; then it is
// finished. A client is told so, and has a round trip's time to stop opening streams.
func (c *Conn) Drain() {
	if c.lingers {
		c.lingers = false
		c.settle()
	}
	c.drain()
}

// Retire is Drain for a client's connection that has time until Drain is called: streams that are nothing to wait for
// do not end before.
func (c *Conn) Retire() {
	if !c.draining {
		c.lingers = true
		c.drain()
	}
}

func (c *Conn) drain() {
	if c.finished || c.draining {
		return
	}
	c.draining, c.drained = true, c.f.now
	if c.isClient && c.greeted {
		c.sayDrain()
	} else if !c.isClient {
		c.makeRoom()
		c.settle()
	}
	c.f.resumeWaiting()
}

func (c *Conn) sayDrain() {
	c.sayGoAway(maxStreamID, NoError, "")
	c.out = append(appendFrame(c.buf(), 8, framePing, 0, 0), pingOfDrain...)
}

// goFinally ends the time in which a client that drains may open streams.
func (c *Conn) goFinally() {
	if c.draining && c.goneAt == maxStreamID {
		if c.goneAt = c.lastID; c.greeted {
			c.sayGoAway(c.lastID, NoError, "")
		}
	}
}

func (c *Conn) goAway(fr frame) *ConnError {
	if fr.stream != 0 {
		return &ConnError{ProtocolError, "GOAWAY on a stream"}
	}
	if len(fr.payload) < 8 {
		return &ConnError{FrameSizeError, "GOAWAY is too short"}
	}
	c.f.stats.GoAways++
	if c.isClient { // it takes no streams of ours, of which there are none; its own may still come behind this
		return c.spend()
	}
	last := binary.BigEndian.Uint32(fr.payload) & maxStreamID
	c.draining = true
	for _, s := range append([]*stream(nil), c.streams.slots...) {
		if s != nil && s.conn == c && s.id > last {
			s.close()
			s.drop()
			s.call.disown()
		}
	}
	c.makeRoom()
	return c.spend()
}

// disown ends a call of which its node says that it was not executed. That is wrong of one that was answered.
func (c *Call) disown() {
	switch {
	case c.node.gotEnd:
		c.settle()
	case c.outcome.FirstByte != 0:
		c.outcome.End = Broken
		c.fail(c.whenCut())
	default:
		c.refuse()
	}
}

// refuse ends a call that was surely not executed, so that the client may send it again.
func (c *Call) refuse() {
	c.outcome.End = Refused
	c.client.reset(RefusedStream)
	c.finish()
}

func (c *Conn) windowUpdate(fr frame) *ConnError {
	if len(fr.payload) != 4 {
		return &ConnError{FrameSizeError, "WINDOW_UPDATE is not 4 octets"}
	}
	n := int64(binary.BigEndian.Uint32(fr.payload) & maxStreamID)
	if fr.stream == 0 {
		if n == 0 {
			return &ConnError{ProtocolError, "WINDOW_UPDATE of 0"}
		}
		if c.window += n; c.window > maxWindow {
			return &ConnError{FlowControlError, "WINDOW_UPDATE overflows the window"}
		}
		c.push()
		return c.spend()
	}
	s := c.streams.get(fr.stream)
	if s == nil {
		if err := c.unknown(fr); err != nil {
			return err
		}
		return c.spend()
	}
	if n == 0 {
		return c.streamError(s, ProtocolError, "WINDOW_UPDATE of 0")
	}
	if s.window += n; s.window > maxWindow {
		return c.streamError(s, FlowControlError, "WINDOW_UPDATE overflows the window")
	}
	s.ripen()
	return c.spend()
}

func (c *Conn) headers(fr frame) *ConnError {
	if fr.stream == 0 {
		return &ConnError{ProtocolError, "HEADERS on stream 0"}
	}
	p, ok := fr.unpad()
	if !ok {
		return &ConnError{ProtocolError, "padding as long as the frame"}
	}
	if fr.flags&flagPriority != 0 {
		if len(p) < 5 {
			return &ConnError{FrameSizeError, "HEADERS without room for its priority"}
		}
		if binary.BigEndian.Uint32(p)&maxStreamID == fr.stream {
			fr.kind = framePriority // marks it: the block is read, the stream refused
		}
		p = p[5:]
	}
	fr.payload = nil
	if fr.flags&flagEndHeaders != 0 {
		return c.header(fr, p)
	}
	c.cont.frame, c.cont.block, c.cont.count, c.cont.since = fr, append(c.cont.block[:0], p...), 0, c.f.now
	return nil
}

func (c *Conn) continuation(fr frame) *ConnError {
	if c.cont.stream == 0 {
		return &ConnError{ProtocolError, "CONTINUATION without HEADERS"}
	}
	c.cont.count++
	if len(c.cont.block)+len(fr.payload) > int(c.f.config.HeaderBytes) || c.cont.count > 2+len(c.cont.block)/256 {
		c.f.stats.Abuses[ContinuationFlood]++
		return &ConnError{EnhanceYourCalm, "a header block does not end"}
	}
	c.cont.block = append(c.cont.block, fr.payload...)
	if fr.flags&flagEndHeaders == 0 {
		return nil
	}
	head, block := c.cont.frame, c.cont.block
	c.cont.stream, c.cont.block = 0, nil
	return c.header(head, block)
}

// header deals with a whole header block.
func (c *Conn) header(fr frame, p []byte) *ConnError {
	b := &c.f.block
	c.f.edits = c.f.edits[:0]
	if !c.decoder.read(p, b, c.f.config.HeaderBytes) {
		if b.size > bomb*c.f.config.HeaderBytes {
			c.f.stats.Abuses[HeaderBytes]++
			return &ConnError{EnhanceYourCalm, "a header block is much too large"}
		}
		return &ConnError{CompressionError, "a header block cannot be read"}
	}
	if unpacked := (int(b.size) - len(p)) / unpackedPerSpend; c.isClient && unpacked > 0 {
		if c.control -= unpacked; c.control < 0 {
			if err := c.spend(); err != nil {
				return err
			}
		}
	}
	s, end := c.streams.get(fr.stream), fr.flags&flagEndStream != 0
	switch {
	case s == nil && c.isClient && fr.stream%2 == 1 && fr.stream > c.lastID:
		c.lastID = fr.stream
		if err := c.request(fr, end); err != nil {
			return err
		}
		return c.gorged()
	case s == nil:
		return c.unknown(fr)
	case s.gotEnd:
		return c.streamError(s, StreamClosed, "HEADERS after the end of the stream")
	case fr.kind == framePriority:
		return c.streamError(s, ProtocolError, "a stream depends on itself")
	case c.isClient:
		return c.requestTrailer(s, end)
	}
	return c.answer(s, end)
}

// gorged ends a connection whose peer has more written to it than it takes.
func (c *Conn) gorged() *ConnError {
	if c.backlog() <= 16*c.f.config.Output {
		return nil
	}
	c.f.stats.Abuses[Stalled]++
	return &ConnError{EnhanceYourCalm, "no bytes are taken"}
}

// request opens a stream of a client's.
func (c *Conn) request(fr frame, end bool) *ConnError {
	f := c.f
	large := f.block.size > f.config.HeaderBytes
	length, ok := f.block.checkRequest()
	switch {
	case c.goneAt != maxStreamID:
		return c.spend() // it has not read our GOAWAY yet and will send the call elsewhere
	case fr.kind == framePriority || !large && (!ok || end && length > 0):
		c.reset(fr.stream, ProtocolError)
		return c.spendReset()
	case uint32(c.streams.n) >= f.config.Streams:
		f.stats.Abuses[StreamLimit]++
		c.reset(fr.stream, RefusedStream)
		return c.spendReset()
	}
	c.earn()
	call := f.newCall()
	if t, ok := call.Timeout(); ok {
		call.deadline = max(call.outcome.Began+t, 1)
		call.limit()
	}
	s := &call.client
	s.isClient, s.gotEnd, s.gotHead = true, end, true
	s.declared, s.sizeable = length, length >= 0
	s.open(c, fr.stream)
	if call.isPlain = !bytes.HasPrefix(call.Header(nameContentType), []byte("application/grpc")); call.isPlain {
		c.plain++
	}
	switch {
	case large:
		f.stats.Abuses[HeaderBytes]++
		call.fail(&Status{Code: resourceExhausted, Message: "the headers are too large"})
		return c.spendReset()
	case !call.isPlain:
		if st := call.malformed(); st != nil {
			call.fail(st)
			return nil
		}
		if c.refill(); c.cancels < 0 {
			f.stats.Abuses[RapidReset]++
			call.fail(tooManyCancels)
			return nil
		}
		call.route(true)
	case end, c.plain > mostPlain:
		call.page()
	default:
		f.wheel.set(&call.timer, f.now+f.config.HandshakeTimeout)
	}
	return nil
}

// mostPlain is how many requests that are not gRPC may be open on a connection. One more is answered before it ends: RFC 9113, 8.1.
const mostPlain = 100

// tooManyCancels is told for a while to a client whose calls have made many resets of streams at nodes: a node, or a proxy before it, that
// counts these ends the connection, on which the calls of others are, too.
var tooManyCancels = &Status{Code: resourceExhausted, Message: "too many calls of the connection were reset at nodes, because they were cancelled or ran out of time; the call was not sent: try again in a second"}

func (c *Conn) requestTrailer(s *stream, end bool) *ConnError {
	if !end || !c.f.block.checkTrailer() || s.sizeable && s.declared > 0 {
		return c.streamError(s, ProtocolError, "bad trailer")
	}
	s.gotEnd = true
	// gRPC has no trailers of requests: grpc-go ends a connection on which they come, and they may
	// hold what the headers of a request are stripped of. Only the end goes on.
	c.f.body(s, nil, true)
	return nil
}

// answer deals with headers and trailers from a node.
func (c *Conn) answer(s *stream, end bool) *ConnError {
	f, call, t := c.f, s.call, s.twin()
	b := &f.block
	status, ok := b.checkAnswer(s.gotHead)
	if !ok || b.size > f.config.HeaderBytes || s.gotHead && !end || status/100 == 1 && end {
		return c.streamError(s, ProtocolError, "bad headers")
	}
	if b.names.has(nameContentLength) && !s.gotHead && status/100 != 1 {
		if s.declared, s.sizeable = parseLength(b.find(nameContentLength)); !s.sizeable || b.again.has(nameContentLength) {
			return c.streamError(s, ProtocolError, "bad content-length")
		}
	}
	if end && s.sizeable && s.declared > 0 {
		return c.streamError(s, ProtocolError, "content-length differs from the body")
	}
	f.strings = f.strings[:0]
	if call.own == nil && b.names>>FirstName != 0 {
		if !f.askAnswer(call) {
			return c.streamError(s, InternalError, "the sidecar failed")
		}
	}
	c.pingAt = 0
	if status/100 == 1 {
		if call.own == nil && t.conn.space() && t.conn.takesHeaders() == nil {
			t.headers(b.fields, false)
		}
		return c.spend()
	}
	c.earn()
	if call.outcome.FirstByte == 0 {
		call.outcome.FirstByte = f.now
	}
	if end {
		call.outcome.Status = b.grpcStatus()
		call.outcome.Undecoded = call.outcome.Status == internal && b.undecoded()
		call.judged()
		// As in peerReset, with a trailer. One with details was not made by a server that cut calls off, and
		// the details repeat the status.
		if call.own == nil && call.outcome.Status == canceled && b.find(nameStatusDetails) == nil {
			f.edit(nameGRPCStatus, unavailableDigits, kindIndexed)
		}
	}
	s.gotHead, s.gotEnd = true, end
	if call.own != nil {
		call.hearHeaders(end)
		return nil
	}
	if st := t.conn.takesHeaders(); st != nil {
		if st.Code = internal; end && call.outcome.Status > 0 {
			st.Code = call.outcome.Status
		}
		if !end {
			call.fail(st)
			return nil
		}
		if s.sentEnd {
			s.close()
		}
		call.say(st, st.Code, nil) // the outcome is the node's own: the call has ended well there
		return nil
	}
	if len(t.waiting()) > 0 {
		t.trailer, t.endPending = f.portableEdited(t.trailer[:0]), true
	} else {
		t.sentHead = true
		t.headers(b.fields, end)
	}
	if end {
		call.settle()
	}
	return nil
}

// takesHeaders returns what a client is told if the headers in hand, with their edits, are more than the peer takes; else nil.
func (c *Conn) takesHeaders() *Status {
	f := c.f
	size := int(f.block.size)
	for i := range f.edits {
		size += int(f.edits[i].field.size)
	}
	if size <= c.headerBytes { // more than it is where one header replaces another
		return nil
	}
	size = 0
	names := f.editedNames()
	for i := range f.block.fields {
		if fd := &f.block.fields[i]; !names.has(fd.id) {
			size += int(fd.size)
		}
	}
	for i := range f.edits {
		if e := &f.edits[i]; e.set && !edited(f.edits[i+1:], e.name) {
			size += int(e.field.size)
		}
	}
	return c.takesSize(size)
}

// takesSize is takesHeaders for headers of that size.
func (c *Conn) takesSize(size int) *Status {
	if size <= c.headerBytes {
		return nil
	}
	to, executed := "node", "the call was not sent"
	if c.isClient {
		to, executed = "client", "the call may have been executed"
	}
	return &Status{Code: resourceExhausted, Message: fmt.Sprintf("the headers have %d bytes, with 32 for each field, and the %s takes %d; %s", size, to, c.headerBytes, executed)}
}

// portableEdited writes the block in hand, with its edits, to wait.
func (f *Forwarder) portableEdited(b []byte) []byte {
	names := f.editedNames()
	for i := range f.block.fields {
		if !names.has(f.block.fields[i].id) {
			b = appendPortable(b, f.block.fields[i:i+1])
		}
	}
	for i := range f.edits {
		if e := &f.edits[i]; e.set && !edited(f.edits[i+1:], e.name) {
			b = appendPortable(b, []field{e.field})
		}
	}
	return b
}

// refuse ends the connection because of what the peer did.
func (c *Conn) refuse(err *ConnError) {
	if c.err == nil {
		c.err = err
	}
	if !c.isClient {
		c.unwrite() // calls that have not left are sent elsewhere
	}
	if c.greeted {
		c.sayGoAway(min(c.lastID, c.goneAt), err.Code, err.Reason) // what came behind goneAt was not looked at
	}
	c.end()
}

// cut is Forwarder.Cut for a connection.
func (c *Conn) cut() {
	var unsent []Ticket
	for _, s := range c.streams.slots {
		if s != nil && s.call.unsent() {
			unsent = append(unsent, s.call.Ticket())
		}
	}
	for _, t := range unsent {
		if t.call.generation == t.generation { // the end of another may have ended the connection
			t.call.refuse()
		}
	}
	if !c.draining {
		c.draining, c.drained = true, c.f.now
	}
	c.goFinally()
	c.settle()
}

// settle finishes a connection that drains, once nothing is left on it.
func (c *Conn) settle() {
	if c.draining && !c.finished && c.streams.n == c.idle() && len(c.waiting) == 0 && (!c.isClient || c.goneAt != maxStreamID) {
		if !c.isClient && c.isOpen {
			c.sayGoAway(0, NoError, "")
		}
		c.endBackground()
		c.end()
	}
}

// endBackground ends the calls in the background that are left, well: to a client, a
// call that breaks with its connection is a sign that there is nobody any more. One that has
// no message of an answer yet is not done: the client may send it again.
func (c *Conn) endBackground() {
	if c.streams.n == 0 {
		return
	}
	left := make([]*Call, 0, c.streams.n)
	for _, s := range c.streams.slots {
		if s != nil {
			left = append(left, s.call)
		}
	}
	c.finished = true // nothing ends it meanwhile
	for _, call := range left {
		node := &call.node
		if call.unsent() {
			call.refuse()
			continue
		}
		st := &Status{}
		if call.isEndless || !call.isOpen && call.outcome.Answer == 0 {
			st = stopped
		}
		if c.f.keeps && !call.isEndless && node.conn != nil && !node.gotEnd {
			c.f.stats.Kept++
			node.close()
		}
		call.abandon(st)
	}
	c.finished = false
}

// idle is how many of the open streams of a connection that drains are nothing to wait for: once clients are
// released, those in the background. Before that, the endless ones and those that the router keeps open itself
// (Status.Open), if there are no others: their clients cannot send on this connection what those are kept open for.
func (c *Conn) idle() int {
	switch {
	case c.f.released:
		return c.background
	case c.lingers, c.background < c.streams.n:
		return 0
	}
	for _, s := range c.streams.slots {
		if s != nil && !s.call.isOpen && !s.call.isEndless {
			return 0
		}
	}
	return c.background
}

// Ask pings a node's connection, if no ping is under way: an answer that does not come is silence.
func (c *Conn) Ask() {
	if c.isOpen && !c.finished && c.pinged == 0 {
		c.pinged, c.pingAt = c.f.now, c.f.now+c.f.config.Keepalive
		c.out = append(appendFrame(c.buf(), 8, framePing, 0, 0), pingOfKeepalive...)
	}
}

// Close says that the connection is lost, or ends it with all its calls.
func (c *Conn) Close() {
	if !c.finished {
		if c.err = ErrLost; !c.isOpen {
			c.err = ErrUnreachable
		}
		c.end()
	}
	c.unwrite()
	c.f.resumeWaiting()
}

// end finishes the connection and what is left on it. Of a client with many calls it ends a part of them, and
// Advance the others: it is the client who decides how many there are.
func (c *Conn) end() {
	c.finished = true
	c.mark()
	c.partial, c.cont.block = nil, nil
	c.countUnfinished()
	if c.isClient && c.streams.n > perTurn {
		c.f.vanished = append(c.f.vanished, c)
		c.vanished = true
		c.f.leftOver += c.streams.n
		return
	}
	c.endAll()
}

// mostLeftOver is how many calls of clients that are gone may wait for their end, which is sixteen turns. With more, as many end as begin.
const mostLeftOver = 4096

// endSome ends so many calls of connections that are finished, at most. Each of them is at its client's, which is gone.
func (f *Forwarder) endSome(most int) {
	for n := 0; n < most && len(f.vanished) > 0; {
		c := f.vanished[0]
		for ; n < most && c.streams.n > 0; n++ {
			s := c.streams.any()
			s.close()
			s.call.outcome.End = Cancelled
			s.call.finish()
		}
		if c.streams.n > 0 {
			return
		}
		f.vanished = slices.Delete(f.vanished, 0, 1)
		c.endAll()
	}
}

func (c *Conn) endAll() {
	f := c.f
	if c.isClient {
		f.stats.Clients--
	} else {
		f.stats.Nodes--
	}
	slots := c.streams.slots
	c.streams = streams{}
	c.ready = queue{}
	// All are off the connection before the first call ends: with that, the connection of
	// a client that drains may end, and with it calls that are further down here.
	first := len(f.ending)
	for _, s := range slots {
		if s != nil {
			s.conn, s.queued, s.prev, s.next = nil, false, nil, nil
			f.ending = append(f.ending, s.call.Ticket())
		}
	}
	at := first
	for _, s := range slots {
		if s == nil {
			continue
		}
		call, generation := s.call, f.ending[at].generation
		if at++; call.generation != generation {
			continue
		}
		switch {
		case s.isClient:
			call.outcome.End = Cancelled
			call.finish()
		case s.gotEnd: // answered; only the request was still to be ended
			call.settle()
		case c.written+uint64(c.flying) < s.headersEnd: // what is taken may have arrived
			s.drop()
			call.refuse()
		default:
			s.drop()
			call.outcome.End = Lost
			call.fail(call.whenLost())
		}
	}
	f.leave(c)
	clear(f.ending[first:])
	f.ending = f.ending[:first]
	c.makeRoom()
	c.tellEnded()
}

// tick looks at the timeouts of a connection.
func (c *Conn) tick() {
	f, now := c.f, c.f.now
	if c.Calls() > 0 || c.calls != c.busyCalls {
		c.busy, c.busyCalls = now, c.calls
	}
	switch {
	case c.finished || !c.isOpen || c.shelved:
	case !c.isClient && !c.settled && now-c.began >= f.config.Silence+f.config.KeepaliveTimeout:
		c.err = ErrSilent
		c.refuse(&ConnError{SettingsTimeout, "no SETTINGS in time"})
	case !c.settled && now-c.began > f.config.HandshakeTimeout, c.unacked > 0 && now-c.began > f.config.HandshakeTimeout:
		f.stats.Abuses[SlowHandshake]++
		c.refuse(&ConnError{SettingsTimeout, "no SETTINGS in time"})
	case c.cont.stream != 0 && now-c.cont.since > f.config.HandshakeTimeout:
		f.stats.Abuses[SlowHandshake]++
		c.refuse(&ConnError{EnhanceYourCalm, "a header block does not end"})
	case c.backlog() > 0 && now-c.moved > f.config.StallTimeout, c.backlog() > 16*f.config.Output:
		f.stats.Abuses[Stalled]++
		c.refuse(&ConnError{EnhanceYourCalm, "no bytes are taken"})
	case c.isClient && c.draining && c.goneAt == maxStreamID && now-c.drained >= f.config.DrainTimeout:
		c.goFinally()
		c.settle()
	case c.isClient && c.pinged > 0 && now-c.pinged >= f.config.ClientTimeout:
		c.err = ErrSilent
		c.refuse(&ConnError{NoError, "no answer to a ping"})
	case c.isClient && c.pinged == 0 && c.greeted && now-c.heard >= f.config.ClientSilence:
		c.pinged = now
		c.out = append(appendFrame(c.buf(), 8, framePing, 0, 0), pingOfKeepalive...)
	case !c.isClient && c.pinged > 0 && now-c.pinged >= f.config.KeepaliveTimeout && c.Silent != nil && !c.draining:
		c.pinged = 0
		c.Silent()
	case !c.isClient && c.pinged > 0 && now-c.pinged >= f.config.KeepaliveTimeout:
		c.err = ErrSilent
		c.refuse(&ConnError{NoError, "no answer to a ping"})
	case !c.isClient && c.pinged == 0 && c.streams.n > 0 && now-c.heard >= f.config.Silence && now >= c.pingAt:
		c.Ask()
	case !c.isClient && f.config.Idle > 0 && now-c.busy >= f.config.Idle:
		c.Drain() // the next call has another one made
	}
	if c.backlog() == 0 {
		c.moved = now // nothing to take: no stall
	}
}
