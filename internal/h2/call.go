package h2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// stream is a call's stream on one of its two connections.
type stream struct {
	call *Call
	conn *Conn // nil: none yet, or closed
	id   uint32

	window  int64  // bytes the peer takes; negative after it has shrunk its window
	pending []byte // bytes for the peer that wait for room
	sent    int    // of pending
	more    pieces // that wait behind those; none if they are all sent
	trailer []byte // portable header block to follow them

	room     int           // bytes the peer may still send
	moved    time.Duration // when the peer last had taken a frame's worth of pending, or all, or had nothing to take
	took     int           // bytes of pending since then
	since    time.Duration // when bytes last began to wait
	credit   int           // bytes it sent that have left on the other side, not yet given back
	target   int           // its window
	declared int           // octets of body still to come by content-length; -1: not said

	endPending bool // nothing follows pending and trailer
	sentHead   bool // final headers are sent
	sentEnd    bool
	gotHead    bool // final headers have come
	gotEnd     bool // the peer has ended its side
	isClient   bool
	sizeable   bool // declared counts
	queued     bool
	headersEnd uint64 // where the request's headers end in the connection's output
	prev, next *stream
}

// Call is one request and its answer: a stream of a client and, once it is
// forwarded, one of a node.
type Call struct {
	Data any // the router's own; cleared when the call is over

	f            *Forwarder
	client, node stream
	generation   uint32
	block        []byte        // portable request headers of a held call
	deadline     time.Duration // the client's; 0: none
	timer        timer
	sum          int     // bytes that wait in it; and of those
	counted      int     // what Forwarder.Hold counted, and those of a message that is the Rewriter's
	growth       timer   // runs while a message is held in part: Config.GrowTimeout
	lost         *Status // for the client when the node is lost; nil: the usual
	isHeld       bool
	heldPrev     *Call // of those of its client's connection that are held, the one before it, and
	heldNext     *Call // the one behind
	isPlain      bool  // not gRPC: answered here
	isBackground bool
	isEndless    bool
	isOpen       bool            // answered here with Status.Open, or to be answered by the router
	room         chan<- struct{} // of whoever writes the answer and waits; nil. See Forwarder.Write
	ending       bool            // the frame in hand behind its headers ends the request
	routed       bool            // the router knows it
	observer     Observer
	framing      framing
	rewriting    *rewriting // nil: messages pass as they come
	own          *own       // it began in this process, and has no client; nil: it has
	askAt        int        // length of the body at which the router is asked again; 0: it waits for something else
	splice       splice
	plain        []byte // goes in the place of the first message, with its prefix, and
	packed       int    // the length of that; 0: nothing does
	lent         bool   // the first message is read by others: see Lend
	outcome      Outcome
	next         *Call // free ones
}

// splice replaces message[from:to] of the first message.
type splice struct {
	from, to int
	set      bool
	headN    uint8
	head     [10]byte // tag and length of text, if that is a field
	text     string
	with     []byte // or this
}

// size is how many octets it puts there.
func (x *splice) size() int { return int(x.headN) + len(x.text) + len(x.with) }

// End says how a call ended.
type End uint8

// The ways in which calls end.
const (
	Answered   End = iota // by the node
	Refused               // here, or by the node, and surely not executed
	Cancelled             // by the client, or its connection was lost
	Expired               // the client's deadline passed, or Config.HoldTimeout, before there was a whole answer
	Broken                // by the node's RST_STREAM, or against the protocol
	Lost                  // the node's connection was lost (Conn.Err says how); it may have been executed
	AnsweredBy            // the sidecar itself
	numEnds
)

// String returns the name used as a metric's label.
func (e End) String() string {
	return [...]string{"answered", "refused", "cancelled", "expired", "broken", "lost", "sidecar"}[e]
}

// Outcome is what became of a call. The node's transport was at fault if it was Broken
// or Lost. Times are as told to Advance; 0: did not happen.
type Outcome struct {
	End    End
	Status int // of gRPC; -1: none
	// Undecoded says that the node could not decode the request: its bytes are the caller's.
	Undecoded bool
	// Of a request that Call.Check has judged: Partial says that the node had no more than a part of it when
	// it answered, or when the call ended without an answer, or that it ended without a message; Packed that it
	// had a compressed message.
	Partial, Packed bool

	Request   int // bytes of body from the client
	Answer    int // bytes of body from the node
	Began     time.Duration
	Forwarded time.Duration
	FirstByte time.Duration // of the answer
	Ended     time.Duration
	Node      *Conn // it was forwarded to; nil: none

	head    [headSize]byte
	headLen uint8
	rest    rest
}

// rest follows the messages of a body.
type rest struct {
	octets  uint32 // of the message under way that are still to come
	prefix  [messagePrefix]byte
	prefixN uint8 // octets of it that are here
}

func (r *rest) skip(p []byte) {
	for len(p) > 0 {
		if r.octets > 0 {
			n := min(int(r.octets), len(p))
			r.octets, p = r.octets-uint32(n), p[n:]
			continue
		}
		n := copy(r.prefix[r.prefixN:], p)
		r.prefixN, p = r.prefixN+uint8(n), p[n:]
		if r.prefixN == messagePrefix {
			r.octets, r.prefixN = binary.BigEndian.Uint32(r.prefix[1:]), 0
		}
	}
}

// none reports whether the body has ended with a message, so far.
func (r *rest) none() bool { return r.octets == 0 && r.prefixN == 0 }

// headSize is how much of an answer's body is remembered: the prefix of a message
// and, of YDB's messages, the status and the start of the first issue.
const headSize = 240

// Head returns the first octets of the answer's body, with the prefix of its first message.
func (o *Outcome) Head() []byte { return o.head[:o.headLen] }

// NotRun reports that the call was surely not executed: it may be sent again.
func (o *Outcome) NotRun() bool { return o.End == Refused || o.Node == nil }

// Ticket names a call that may be over by the time it is resumed.
type Ticket struct {
	call       *Call
	generation uint32
}

// Ticket returns what Forwarder.Resume wants.
func (c *Call) Ticket() Ticket { return Ticket{c, c.generation} }

// Client returns the connection that the call came on.
func (c *Call) Client() *Conn { return c.client.conn }

// Began returns when the call came, as told to Advance.
func (c *Call) Began() time.Duration { return c.outcome.Began }

// Path returns "/service/method", valid until Route returns.
func (c *Call) Path() []byte { return c.Header(namePath) }

// Authority returns the host that the client named, valid until Route returns.
func (c *Call) Authority() []byte { return c.Header(nameAuthority) }

// Header returns the first value of a header, or nil; valid until Route or Answer returns.
func (c *Call) Header(name Name) []byte {
	fd := c.f.block.find(name)
	if fd == nil {
		return nil
	}
	return c.f.memos[name].text(fd)
}

// Headers calls f with each header in turn. What it is given is valid until f returns.
func (c *Call) Headers(f func(name, value []byte)) {
	Headers{c.f}.Each(f)
}

// Values calls f with each value of a header in turn. What it is given is valid until f returns.
func (c *Call) Values(name Name, f func(value []byte)) {
	var value []byte
	for i := range c.f.block.fields {
		if fd := &c.f.block.fields[i]; fd.id == name {
			value = fd.appendValue(value[:0])
			f(value)
		}
	}
}

// Version returns a number that stands for the first value of a header on this Forwarder:
// calls that have the same number have the same value. 0: the header is not there.
func (c *Call) Version(name Name) uint64 {
	fd := c.f.block.find(name)
	switch {
	case fd == nil:
		return 0
	case fd.kind == kindStatic:
		return 1
	}
	m := &c.f.memos[name]
	m.text(fd)
	return m.version
}

// Repeated reports whether a header comes more than once: Set makes it one.
func (c *Call) Repeated(name Name) bool {
	return c.f.block.again.has(name)
}

// memo remembers the text of the last value of a header, which is mostly the same from
// call to call: making text of Huffman codes was 6 % of a call for the path alone.
type memo struct {
	wire, plain []byte
	version     uint64 // of them, from 2
}

func (m *memo) text(fd *field) []byte {
	if fd.kind == kindStatic {
		return []byte(staticTable[fd.static].value) // "/": not gRPC's
	}
	if !bytes.Equal(m.wire, fd.value) {
		m.wire, m.plain = append(m.wire[:0], fd.value...), appendText(m.plain[:0], fd.value)
		m.version = max(m.version, 1) + 1
	}
	return m.plain[:len(m.plain):len(m.plain)]
}

// Set replaces or adds a header whose value recurs from call to call.
func (c *Call) Set(name Name, value []byte) { c.f.edit(name, value, kindIndexed) }

// SetOnce replaces or adds a header whose value is this call's own.
func (c *Call) SetOnce(name Name, value []byte) { c.f.edit(name, value, kindOnce) }

// Remove removes a header.
func (c *Call) Remove(name Name) {
	if c.f.block.find(name) != nil || edited(c.f.edits, name) {
		c.f.edits = append(c.f.edits, edit{name: name})
	}
}

func (f *Forwarder) edit(name Name, value []byte, kind uint8) {
	at := len(f.strings)
	f.strings = appendString(f.strings, f.words.texts[name])
	mid := len(f.strings)
	f.strings = appendString(f.strings, value)
	e := edit{name, field{kind: kind, id: name, name: f.strings[at:mid:mid], value: f.strings[mid:len(f.strings):len(f.strings)],
		size: uint32(32 + len(f.words.texts[name]) + len(value))}, true}
	if kind == kindIndexed {
		e.field.setHash()
	}
	f.edits = append(f.edits, e)
}

// Timeout returns the time the client gives the call, or false.
func (c *Call) Timeout() (time.Duration, bool) {
	f := c.f.block.find(nameTimeout)
	if f == nil {
		return 0, false
	}
	var b [16]byte
	return parseTimeout(f.appendValue(b[:0]))
}

// Left returns how much of the time is left that the client gives the call, or false.
func (c *Call) Left() (time.Duration, bool) {
	if c.deadline == 0 {
		return 0, false
	}
	return c.deadline - c.f.now, true
}

// messagePrefix is the compression flag and length before a gRPC message.
const messagePrefix = 5

// Announced is how many bytes the request's first message has by its prefix; false: that
// is not here yet.
func (c *Call) Announced() (bytes int, known bool) {
	if len(c.f.message) < messagePrefix {
		return 0, false
	}
	return sizeOf(c.f.message) - messagePrefix, true
}

// Message returns what is here of the request's first message, and whether that is
// all of it. It is valid until Route returns. A compressed message is not returned.
func (c *Call) Message() (message []byte, whole bool) {
	if c.Compressed() {
		return nil, false
	}
	return c.Raw()
}

// Raw is Message for one that may be compressed.
func (c *Call) Raw() (message []byte, whole bool) {
	m := c.f.message
	if len(m) < messagePrefix {
		return nil, false
	}
	n := uint64(binary.BigEndian.Uint32(m[1:]))
	if m = m[messagePrefix:]; uint64(len(m)) >= n {
		return m[:n], true
	}
	return m, false
}

// Compressed reports whether the first message is here and compressed.
func (c *Call) Compressed() bool { return len(c.f.message) > 0 && c.f.message[0] != 0 }

// Background says that the call may last as long as its client and is nothing to wait
// for: see Forwarder.Release.
func (c *Call) Background() {
	if !c.isBackground {
		c.isBackground = true
		c.client.conn.background++
	}
}

// Endless is Background for a call that lasts as long as its client wants, and that the client opens again elsewhere
// when it ends with UNAVAILABLE. So it ends when its connection drains and has nothing else to wait for, whatever comes
// of Forwarder.Release; the node's stream is reset.
func (c *Call) Endless() {
	c.Background()
	c.isEndless = true
}

// WhenLost says what the client is told if the node's connection is lost, or the node cancels the call, after
// the call went out, in place of UNAVAILABLE. It may be called by Route; st must not change.
func (c *Call) WhenLost(st *Status) { c.lost = st }

var (
	lost = &Status{Code: unavailable, Message: "the connection to the node was lost; the call may have been executed"}
	cut  = &Status{Code: unavailable, Message: "the node cancelled the call, which may have been executed"}

	stopped = &Status{Code: unavailable, Message: "the sidecar lets its clients go; the call may have been executed"}

	unavailableDigits = []byte("14")
)

// unsent reports that no node has seen the call, nor the router taken it for its own, and that nothing of an answer is here.
func (c *Call) unsent() bool {
	return c.outcome.Node == nil && !c.isOpen && !c.client.sentHead
}

// unbegun reports that the call cannot have been executed: it is unsent, or the node has its headers and nothing of its body yet.
func (c *Call) unbegun() bool {
	x := c.rewriting
	return c.unsent() || x != nil && !x.passed && !c.isOpen && !c.client.sentHead
}

// exhausted is st for the call. Clients repeat RESOURCE_EXHAUSTED whatever the call does (ydb-go-sdk, internal/xerrors), so that
// is for what was not executed.
func (c *Call) exhausted(st *Status) *Status {
	if st.Code != resourceExhausted || c.unbegun() {
		return st
	}
	return &Status{Code: unavailable, Message: st.Message + "; what came before may have been executed"}
}

// whenCut is whenLost for a call that the node cancelled.
func (c *Call) whenCut() *Status {
	if st := c.whenLost(); st != lost {
		return st
	}
	return cut
}

func (c *Call) whenLost() *Status {
	switch {
	case c.isBackground && !c.isEndless && c.outcome.Answer > 0:
		return &Status{} // what it kept is over, too
	case c.lost != nil:
		return c.lost
	}
	return lost
}

// Splice replaces message[from:to] of what Message returned by with, of which it
// keeps a copy. The last call of it counts.
func (c *Call) Splice(from, to int, with []byte) {
	c.splice = splice{from: from, to: to, set: true, with: append(c.splice.with[:0], with...)}
}

// SpliceField is Splice with a length-delimited field of a protobuf message, which is not copied.
func (c *Call) SpliceField(from, to, number int, text string) {
	x := &c.splice
	x.from, x.to, x.set, x.text, x.with = from, to, true, text, x.with[:0]
	x.headN = uint8(len(appendUvarint(appendUvarint(x.head[:0], uint64(number)<<3|2), uint64(len(text)))))
}

// Replace puts in the place of the first message, which is here whole, what with appends
// to b: an uncompressed message, which Message, Splice and the Observer then are about, also when
// the router is asked again. It counts as waiting until it is on its way.
func (c *Call) Replace(with func(b, message []byte) ([]byte, error)) error {
	if c.packed > 0 { // it is replaced already
		return nil
	}
	message, _ := c.Raw()
	b, err := with(append(c.plain[:0], 0, 0, 0, 0, 0), message)
	if err != nil {
		return err
	}
	if c.f.crowded(len(b)) {
		return crowded
	}
	c.count(len(b))
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-messagePrefix))
	c.plain, c.packed, c.lent, c.f.message = b, messagePrefix+len(message), false, b
	return nil
}

// Lend returns the first message, which is here whole and may be compressed, for a goroutine to
// read while the call is parked, or is the router's (ErrMine). It stays as it is until Replace, also when the call is over. Once the call is the
// router's it does not count as waiting.
func (c *Call) Lend() []byte {
	message, _ := c.Raw()
	if !c.isHeld { // it is of a frame in hand
		return bytes.Clone(message)
	}
	c.lent = true
	return message
}

// unpack returns p, the start of the body, with the first message replaced.
func (c *Call) unpack(p []byte) []byte {
	c.count(-len(c.plain))
	b := append(c.plain, p[c.packed:]...)
	c.client.credit -= len(b) - len(p) // room is counted in bytes that came
	c.plain, c.packed = kept(b), 0
	return b
}

// Observe has o shown what comes of the bodies, from the start, if the call is forwarded.
func (c *Call) Observe(o Observer) { c.observer = o }

// keptSpliced is the most that is kept of the buffer for such.
const keptSpliced = 1 << 20

// apply returns p, the start of the body, with the splice made.
func (c *Call) apply(p []byte) []byte {
	x := &c.splice
	x.set = false
	delta := x.size() - (x.to - x.from)
	b := append(c.f.spliced[:0], p[0])
	b = binary.BigEndian.AppendUint32(b, uint32(int(binary.BigEndian.Uint32(p[1:]))+delta))
	b = append(b, p[messagePrefix:messagePrefix+x.from]...)
	b = append(b, x.head[:x.headN]...)
	b = append(b, x.text...)
	b = append(b, x.with...)
	b = append(b, p[messagePrefix+x.to:]...)
	if c.f.spliced = b; cap(b) > keptSpliced {
		c.f.spliced = nil
	}
	c.client.credit -= delta // room is counted in bytes that came
	return b
}

// route asks the router about the call. live: its headers are in hand, just come;
// else they were kept.
func (c *Call) route(live bool) {
	c.f.routing = true
	c.ask(live)
	c.f.routing = false
}

func (c *Call) ask(live bool) {
	f := c.f
	f.edits, f.strings = f.edits[:0], f.strings[:0]
	c.splice.set = false
	if live {
		f.message, c.ending = c.client.conn.peek(c.client.id)
		generation := c.generation
		defer func() {
			if c.generation == generation {
				c.ending = false
			}
		}()
	} else if c.client.conn.finished { // and has more calls than could end at once: nobody waits for this one
		c.outcome.End = Cancelled
		c.finish()
		return
	} else {
		c.client.conn.decoder.readPortable(c.block, &f.block)
		c.node.gather()
		if f.message = c.node.waiting(); c.packed > 0 {
			f.message = c.plain
		}
	}
	c.routed = true
	conn, err := f.askRoute(c)
	if errors.Is(err, ErrNeedMessage) || errors.Is(err, ErrNeedWhole) {
		if st := c.hopeless(); st != nil {
			err = st
		}
	}
	_, whole := c.Raw()
	switch {
	case err == nil && !conn.Usable():
		c.fail(&Status{Code: unavailable, Message: "the node's connection is closing; the call was not sent"})
	case err == nil && conn.full():
		if !conn.wait(c) {
			c.overload()
			return
		}
		c.hold(live, 0)
	case err == nil:
		c.forward(conn)
	case errors.Is(err, ErrPark):
		c.hold(live, 0)
	case errors.Is(err, ErrNeedWhole):
		c.await(live)
	case errors.Is(err, ErrMine):
		c.leave()
	case errors.Is(err, ErrNeedMessage) && (whole || c.client.gotEnd || len(f.message) >= f.config.Window/2):
		c.fail(&Status{Code: internal, Message: "the sidecar finds nothing in the first message to route the call by"})
	case errors.Is(err, ErrNeedMessage):
		// Twice as much next time, so that a trickle is not read from the start each time.
		c.hold(live, min(max(64, 2*len(f.message)), f.config.Window/2))
	default:
		c.fail(err)
	}
}

// await keeps a call here until its first message is whole. Meanwhile the client may send
// more of it than the window allows, up to Config.Message.
func (c *Call) await(live bool) {
	f, size := c.f, messagePrefix
	if len(f.message) >= messagePrefix {
		size = sizeOf(f.message)
	}
	switch {
	case size > messagePrefix+f.config.Message:
		c.fail(tooLarge(&f.config))
	case len(f.message) >= size, c.client.gotEnd:
		c.fail(&Status{Code: internal, Message: "the request ends before its first message does"})
	default:
		c.hold(live, size)
		c.client.allow(size - len(c.node.waiting()))
	}
}

// leave leaves the call to the router. Nothing more of the request is wanted.
func (c *Call) leave() {
	if c.isHeld {
		c.release()
		c.limit()
	}
	c.node.drop()
	c.isOpen = true
}

func (c *Call) overload() {
	c.fail(&Status{Code: resourceExhausted, Message: "too many calls wait in the sidecar"})
}

// hold keeps a call here, until askAt bytes of its body have come or something
// else resumes it. unpark decides which go if too many are held.
func (c *Call) hold(live bool, askAt int) {
	c.askAt = askAt
	if !live {
		c.awaitGrowth(askAt > 0 && len(c.node.waiting()) > 0)
		return
	}
	f := c.f
	if f.crowded(int(f.block.size)) { // which is no less than what is kept
		c.fail(noRoomForHeaders)
		return
	}
	c.block = appendPortable(f.spareBlock, f.block.fields)
	f.spareBlock = nil
	c.count(len(c.block))
	if until := c.outcome.Began + f.config.HoldTimeout; c.deadline == 0 || until < c.deadline {
		f.wheel.set(&c.timer, until)
	}
	c.isHeld = true
	f.stats.Held++
	c.client.conn.park(c)
}

var noRoomForHeaders = &Status{Code: resourceExhausted, Message: "there is no memory for one more call that waits; try again"}

func (c *Call) release() {
	if c.isHeld {
		c.isHeld = false
		c.f.stats.Held--
		if conn := c.client.conn; conn != nil {
			conn.leaveHeld(c)
		}
		c.count(-len(c.block))
		c.f.spareBlock, c.block = kept(c.block), nil // for the next one: this call may last
		c.growth.stop()
	}
}

// forward sends the headers in hand, and what has come of the body, to a node.
func (c *Call) forward(conn *Conn) {
	f, s := c.f, &c.node
	if c.deadline > 0 && c.deadline <= f.now {
		c.expire()
		return
	}
	if c.deadline > 0 && f.now-c.outcome.Began >= time.Millisecond {
		var b [16]byte
		c.SetOnce(nameTimeout, appendTimeout(b[:0], c.deadline-f.now))
	}
	body := s.waiting()
	var behind, tail []byte // follow body, and are not copied
	if c.client.sizeable && (c.splice.set || c.packed > 0 || c.rewriting != nil) {
		f.edits = append(f.edits, edit{name: nameContentLength})
	}
	if f.block.names.has(nameHost) && f.block.names.has(nameAuthority) { // which counts: RFC 9113, 8.3.1
		f.edits = append(f.edits, edit{name: nameHost})
	}
	if st := conn.takesHeaders(); st != nil {
		c.fail(st)
		return
	}
	if len(body) > 0 && c.packed > 0 {
		if c.rewriting == nil {
			body, tail = body[:c.packed], body[c.packed:]
		}
		body = c.unpack(body)
	}
	if !c.takes(body, c.client.gotEnd && len(tail) == 0) || len(tail) > 0 && !c.takes(tail, c.client.gotEnd) {
		return
	}
	if c.isHeld {
		c.release()
		c.limit()
	}
	s.open(conn, conn.nextID)
	if conn.nextID += 2; conn.nextID > maxStreamID {
		conn.Drain()
	}
	c.outcome.Node, c.outcome.Forwarded = conn, f.now
	f.stats.Forwarded++
	s.endPending = c.client.gotEnd
	s.headers(f.block.fields, c.client.gotEnd && len(body) == 0)
	s.headersEnd = conn.written + uint64(conn.backlog())
	if len(body) == 0 {
		return
	}
	if &body[0] != &s.pending[s.sent] && len(body) >= bufferSize && c.rewriting == nil { // a message that was replaced
		at := messagePrefix
		if c.splice.set {
			at += c.splice.to
		}
		body, behind = body[:at], body[at:]
	}
	if c.splice.set {
		body = c.apply(body)
	}
	c.count(-len(s.waiting()))
	s.moved, s.since = f.now, f.now
	if c.rewriting != nil {
		all := s.pending
		s.pending, s.sent, s.endPending = nil, 0, false
		c.rewrite(body, c.client.gotEnd)
		f.Recycle(all)
		return
	}
	c.count(len(body) + len(behind) + len(tail))
	if len(tail) < bufferSize { // the place of the body, which may be large, need not stay for it
		tail = bytes.Clone(tail)
	}
	switch {
	case len(tail) >= bufferSize: // it is where the body was
		s.pending, s.sent = append(f.buffer(), body...), 0
	case &body[0] != &s.pending[s.sent]:
		s.pending, s.sent = append(s.pending[:0], body...), 0
	}
	for _, piece := range [...][]byte{behind, tail} {
		if len(piece) > 0 {
			s.more.push(piece)
		}
	}
	conn.ready.push(s)
	conn.push()
}

// limit has the call end with the client's deadline. There is no other timer.
func (c *Call) limit() {
	if c.timer.stop(); c.deadline > 0 {
		c.f.wheel.set(&c.timer, c.deadline)
	}
}

// expire ends a call whose time is up.
func (c *Call) expire() {
	if c.outcome.End == Answered && !c.node.gotEnd {
		c.outcome.End = Expired
	}
	if l, ok := c.f.router.(Latecomer); ok && c.isHeld && (c.deadline == 0 || c.deadline > c.f.now) {
		c.fail(c.askLate(l))
		return
	}
	c.abandon(&Status{Code: deadlineExceeded, Message: "the call's time is up"})
}

// abandon ends the call at once: with an answer if nothing waits for the client before it.
func (c *Call) abandon(st *Status) {
	if c.outcome.End == Answered && !c.node.gotEnd {
		c.outcome.End = AnsweredBy
	}
	if c.client.sentEnd || len(c.client.waiting()) > 0 { // the client does not end its side, or does not read
		c.client.reset(Cancel)
		c.finish()
		return
	}
	c.fail(st)
}

// awaitGrowth has the call end if no more comes of the message that is held in part.
func (c *Call) awaitGrowth(on bool) {
	if !on {
		c.growth.stop()
		return
	}
	c.f.wheel.set(&c.growth, c.f.now+c.f.config.GrowTimeout)
}

// stopGrowing ends a call of whose message nothing more has come.
func (c *Call) stopGrowing() {
	if c.f.stoodStill { // what has come may be here, unread
		c.awaitGrowth(true)
		return
	}
	c.f.stats.Abuses[SlowSender]++
	c.abandon(c.exhausted(&Status{Code: resourceExhausted, Message: fmt.Sprintf(
		"a message of the request stopped before its end: nothing of it came for %v", c.f.config.GrowTimeout)}))
}

// fail ends the call with an answer of the sidecar's own.
func (c *Call) fail(err error) {
	if c.client.sentEnd { // it has its answer
		c.node.reset(Cancel)
		c.node.drop()
		c.settle()
		return
	}
	var st *Status
	if !errors.As(err, &st) {
		st = &Status{Code: internal, Message: "internal error"}
	}
	code, body := st.Code, st.Body
	if body != nil && c.outcome.Answer > 0 && !(st.Stream && c.outcome.rest.none()) {
		if body = nil; code == 0 {
			code = unavailable
		}
	}
	if c.own != nil {
		c.fails(st)
		return
	}
	c.outcome.Status = code
	if c.outcome.End == Answered {
		c.outcome.End = AnsweredBy
	}
	c.say(st, code, body)
}

// say ends the call with st, of which code and body are what there is a place for.
func (c *Call) say(st *Status, code int, body []byte) {
	c.release()
	c.node.reset(Cancel)
	c.node.drop()
	s := &c.client
	f := c.f
	f.edits, f.strings = f.edits[:0], f.strings[:0]
	f.block.reset()
	if !s.sentHead {
		f.addHead(st.Header)
	}
	if body != nil {
		if !s.sentHead {
			s.headers(f.block.fields, false)
			f.block.reset()
		}
		s.moved = f.now
		s.wait(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))))
		s.wait(body)
	}
	s.sentHead = true
	if c.isOpen = st.Open; c.isOpen {
		c.limit()
		s.ripen()
		return
	}
	var digits [4]byte
	f.addText(0, "grpc-status", string(strconv.AppendInt(digits[:0], int64(code), 10)), kindIndexed)
	if st.Message != "" {
		f.addText(0, "grpc-message", percentEncode(st.Message), kindOnce)
	}
	f.addPairs(st.Trailer)
	if len(s.waiting()) > 0 {
		s.trailer, s.endPending = appendPortable(s.trailer[:0], f.block.fields), true
		s.ripen() // settles the call with the last byte
		return
	}
	s.headers(f.block.fields, true)
	c.settle()
}

// addHead adds the headers of an answer that is made here, with those pairs.
func (f *Forwarder) addHead(pairs []string) {
	f.addField(field{kind: kindStatic, static: 8}) // :status 200
	f.addText(31, "content-type", "application/grpc", kindIndexed)
	f.addPairs(pairs)
}

func (f *Forwarder) addField(fd field) { f.block.add(fd) }

// addPairs adds names and values in turn.
func (f *Forwarder) addPairs(all []string) {
	for i := 0; i+1 < len(all); i += 2 {
		f.addText(0, all[i], all[i+1], kindOnce)
	}
}

func (f *Forwarder) addText(static uint8, name, value string, kind uint8) {
	fd := field{kind: kind, static: static, size: uint32(32 + len(name) + len(value))}
	at := len(f.strings)
	if static == 0 {
		f.strings = appendString(f.strings, name)
	}
	mid := len(f.strings)
	f.strings = appendString(f.strings, value)
	fd.name, fd.value = f.strings[at:mid:mid], f.strings[mid:len(f.strings):len(f.strings)]
	fd.setHash()
	f.addField(fd)
}

// page answers a request that is not gRPC.
func (c *Call) page() {
	f, s := c.f, &c.client
	f.edits, f.strings = f.edits[:0], f.strings[:0]
	f.block.reset()
	f.addField(field{kind: kindStatic, static: 8}) // :status 200
	f.addText(31, "content-type", "text/plain; charset=utf-8", kindOnce)
	c.outcome.End = AnsweredBy
	s.headers(f.block.fields, false)
	s.sentHead = true
	s.send([]byte(f.config.Page), true)
	c.settle()
}

// settle ends the call if nothing more can come of it.
func (c *Call) settle() {
	switch {
	case !c.client.sentEnd:
		if c.node.conn != nil && c.node.gotEnd && c.node.sentEnd {
			c.node.close()
		}
	case !c.client.gotEnd && c.node.conn != nil:
		// The node has answered early; it or the client will end the stream.
	default:
		switch {
		case c.client.gotEnd:
		case c.ending:
			c.client.conn.expect(c.client.id)
		default:
			c.client.reset(NoError)
		}
		c.finish()
	}
}

// caller is the connection of the client for which the call's node has work; nil: there is none.
func (c *Call) caller() *Conn {
	if c.own != nil {
		return c.own.Client
	}
	return c.client.conn
}

// finish forgets the call. A stream still open is reset.
func (c *Call) finish() {
	f := c.f
	c.release()
	c.timer.stop()
	c.growth.stop()
	if c.node.conn != nil && !(c.node.gotEnd && c.node.sentEnd) {
		c.node.reset(Cancel)
	}
	if conn := c.client.conn; conn != nil && c.outcome.End == Answered { // ending well earns the right to reset
		conn.resets = min(conn.resets+1, 2*f.config.Resets)
	}
	if conn := c.caller(); conn != nil && c.outcome.End == Answered {
		conn.cancels = min(conn.cancels+1, 4*f.config.Resets)
	}
	c.client.close()
	c.node.close()
	c.client.drop()
	c.node.drop()
	if c.outcome.Ended = f.now; c.outcome.End != Answered {
		c.judged()
	}
	f.stats.Ends[c.outcome.End]++
	if c.routed {
		f.askDone(c)
	}
	if c.own != nil {
		c.over()
	}
	f.orphans += c.counted
	with, plain := kept(c.splice.with), kept(c.plain)
	client, node := stream{call: c, isClient: true, pending: c.client.pending, trailer: kept(c.client.trailer)}, stream{call: c, pending: c.node.pending}
	*c = Call{f: f, generation: c.generation + 1, splice: splice{with: with}, plain: plain, timer: timer{call: c}, growth: timer{call: c, grows: true}, client: client, node: node}
	if f.freeCount < maxFreeCalls {
		f.freeCount++
		c.next, f.freeCalls = f.freeCalls, c
	}
}

// maxFreeCalls bounds the calls kept for use again.
const maxFreeCalls = 1024

// twin is the call's stream on the other connection.
func (s *stream) twin() *stream {
	if s.isClient {
		return &s.call.node
	}
	return &s.call.client
}

// open puts the stream on a connection.
func (s *stream) open(conn *Conn, id uint32) {
	s.conn, s.id = conn, id
	s.window, s.room, s.target = conn.initialWindow, conn.f.config.Window, conn.f.config.Window
	conn.streams.put(s)
	conn.calls++
}

// close takes the stream off its connection; nothing more is sent on it.
func (s *stream) close() {
	c := s.conn
	if c == nil {
		return
	}
	c.ready.remove(s)
	c.streams.remove(s)
	if s.isClient {
		c.unread -= s.waits()
	}
	if s.isClient == (s.call.own == nil) {
		c.weigh(s.call.sum, 0)
	}
	if s.isClient && s.call.isBackground {
		c.background--
	}
	if s.isClient && s.call.isPlain {
		c.plain--
	}
	if c.vanished {
		c.f.leftOver--
	}
	if s.isClient && s.call.isHeld {
		c.leaveHeld(s.call)
	}
	s.conn = nil
	c.makeRoom()
	c.settle()
}

// reset ends the stream at its peer.
func (s *stream) reset(code Code) {
	if c := s.conn; c != nil {
		if client := s.call.caller(); !s.isClient && client != nil {
			client.cancels--
		}
		c.reset(s.id, code)
		s.close()
	}
}

// waiting returns the bytes that wait for room: all of those of a held call, else the
// first piece of them.
func (s *stream) waiting() []byte { return s.pending[s.sent:] }

// waits is how many bytes wait for room.
func (s *stream) waits() int { return len(s.pending) - s.sent + s.more.size }

// wait keeps bytes until there is room, in several pieces, so that many are not copied while more come. The router reads those of a held call in one
// piece, which gather makes whenever it is asked again.
func (s *stream) wait(p []byte) {
	f := s.call.f
	s.call.count(len(p))
	if s.isClient {
		f.stats.Answers += len(p)
		if s.conn != nil {
			s.conn.unread += len(p)
		}
	}
	if len(s.pending) == 0 {
		s.moved, s.since = f.now, f.now
	}
	if len(s.pending) == 0 && cap(s.pending) < len(p) && len(p) >= bufferSize/2 {
		s.pending = f.buffer()
	}
	switch {
	case s.conn == nil:
		s.waitHeld(p)
		return
	case s.more.size == 0 && len(s.pending)+len(p) <= bufferSize/2:
		s.pending = append(s.pending, p...)
		return
	case s.more.size == 0:
		s.pending, p = fill(s.pending, p)
	default:
		p = s.more.fill(p)
	}
	for len(p) > 0 {
		var b []byte
		b, p = fill(f.buffer(), p)
		s.more.push(b)
	}
}

// waitHeld is wait for a held call. Of a message that it waits for, what is beyond 64 KiB is kept in further pieces.
func (s *stream) waitHeld(p []byte) {
	if s.more.size > 0 || s.call.askAt > 0 && len(s.pending) >= messagePrefix && len(s.pending)+len(p) > 2*bufferSize {
		s.more.add(s.call.f, p)
		return
	}
	if cap(s.pending)-len(s.pending) < len(p) {
		s.widen(len(p))
	}
	s.pending = append(s.pending, p...)
}

// widen makes room in pending of a held call: at most up to askAt, twice what is here, and 64 KiB. If n bytes more would not fit in that, append makes the room.
func (s *stream) widen(n int) {
	came := len(s.pending)
	room := min(s.call.askAt, 2*came, 2*bufferSize)
	if came == 0 || s.call.lent || room < came+n {
		return // append does
	}
	b := append(make([]byte, 0, room-s.sent), s.waiting()...)
	s.call.f.Recycle(s.pending)
	s.pending, s.sent = b, 0
}

// gather makes one piece of what waits of a held call.
func (s *stream) gather() {
	if s.more.size == 0 {
		return
	}
	f := s.call.f
	all := append(make([]byte, 0, s.waits()), s.waiting()...)
	if s.call.lent && s.call.packed == 0 { // to one who still reads it
		s.pending, s.call.lent = nil, false
	}
	for b := s.more.pop(); b != nil; b = s.more.pop() {
		all = append(all, b...)
		f.Recycle(b)
	}
	f.Recycle(s.pending)
	s.pending, s.sent = all, 0
}

// whole reports whether the message that begins with what waits of a held call is here whole.
func (s *stream) whole() bool {
	return len(s.waiting()) >= messagePrefix && s.waits() >= sizeOf(s.waiting())
}

// drop forgets them.
func (s *stream) drop() {
	f := s.call.f
	s.call.count(-s.waits())
	if s.isClient {
		f.stats.Answers -= s.waits()
		if s.conn != nil {
			s.conn.unread -= s.waits()
		}
	}
	if c := s.call; !s.isClient {
		if c.packed > 0 {
			c.count(-len(c.plain))
			if c.packed = 0; c.lent {
				c.plain = nil
			}
		}
		if c.lent {
			s.pending, c.lent = nil, false
		}
	}
	for b := s.more.pop(); b != nil; b = s.more.pop() {
		f.Recycle(b)
	}
	if s.emptied(); !s.isClient && s.call.rewriting != nil {
		s.call.forget()
	}
	s.endPending, s.trailer = false, s.trailer[:0]
}

// keptPending is the most that is kept of a buffer which is not needed now.
const keptPending = 4 << 10

func kept(b []byte) []byte {
	if cap(b) > keptPending {
		return nil
	}
	return b[:0]
}

// emptied goes on with the next piece of what waits.
func (s *stream) emptied() {
	b := s.more.pop()
	if s.sent = 0; b != nil || cap(s.pending) > keptPending {
		s.call.f.Recycle(s.pending)
		s.pending = b
		return
	}
	s.pending = s.pending[:0]
}

// headers sends a header block, with the edits in hand.
func (s *stream) headers(fields []field, end bool) {
	c := s.conn
	flags := uint8(flagEndHeaders)
	if end {
		flags |= flagEndStream
		s.sentEnd = true
	}
	b := c.buf()
	at := len(b)
	b = c.encoder.begin(appendFrame(b, 0, frameHeaders, flags, s.id))
	edits, names := c.f.edits, c.f.editedNames()
	for i := range fields {
		if !names.has(fields[i].id) {
			b = c.encoder.field(b, &fields[i])
		}
	}
	for i := range edits {
		if e := &edits[i]; e.set && !edited(edits[i+1:], e.name) {
			b = c.encoder.field(b, &e.field)
		}
	}
	c.out = splitHeaders(b, at, s.id)
}

// editedNames are the headers that the edits in hand are about.
func (f *Forwarder) editedNames() (names nameSet) {
	for i := range f.edits {
		names |= 1 << f.edits[i].name
	}
	return names
}

func edited(edits []edit, name Name) bool {
	for i := range edits {
		if edits[i].name == name {
			return true
		}
	}
	return false
}

// send passes bytes of the body on, or keeps them until there is room.
func (s *stream) send(p []byte, end bool) {
	c := s.conn
	n := int64(len(p))
	fits := n == 0 || n <= s.window && n <= c.window && n <= minFrameSize && c.space() // an end alone needs no window: RFC 9113, 6.9
	if c != nil && s.sent == len(s.pending) && fits {
		if n > 0 || end {
			s.data(p, end)
		}
		return
	}
	s.wait(p)
	s.endPending = s.endPending || end
	s.ripen()
}

// ripen queues the stream if it can send something.
func (s *stream) ripen() {
	if s.conn != nil && s.window > 0 && (s.sent < len(s.pending)) {
		s.conn.ready.push(s)
		s.conn.push()
	}
}

// data writes one DATA frame, for which there is room.
func (s *stream) data(p []byte, end bool) {
	c, flags := s.conn, uint8(0)
	if end {
		flags = flagEndStream
		s.sentEnd = true
	}
	n := len(p)
	s.window -= int64(n)
	c.window -= int64(n)
	c.out, p = fill(appendFrame(c.buf(), len(p), frameData, flags, s.id), p)
	for len(p) > 0 {
		c.nextPiece()
		c.out, p = fill(c.out, p)
	}
	c.earn()
	s.twin().giveBack(n)
}

// sendSome writes one frame of what waits, and the trailer after the last.
func (s *stream) sendSome() {
	c, p := s.conn, s.waiting()
	n := min(len(p), int(min(s.window, c.window)), minFrameSize)
	last := n == s.waits()
	s.sent += n
	if s.took += n; last || s.took >= minFrameSize { // some bytes now and then are no progress
		s.moved, s.took = c.f.now, 0
	}
	s.call.count(-n)
	if s.isClient {
		c.f.stats.Answers -= n
		c.unread -= n
	}
	s.data(p[:n], last && s.endPending && len(s.trailer) == 0)
	if n == len(p) {
		s.emptied()
	}
	if s.isClient {
		s.call.tellRoom()
	}
	if !last {
		return
	}
	if len(s.trailer) > 0 {
		c.decoder.readPortable(s.trailer, &c.f.block)
		c.f.edits = c.f.edits[:0]
		s.headers(c.f.block.fields, true)
	}
	if s.sentEnd {
		s.call.settle()
	}
}

// giveBack lets the peer send n bytes more, which have left on the other side. A
// reader that keeps up gets a larger window. While memory is short nothing is given back
// before all that waits has left, and windows shrink to tightWindow.
func (s *stream) giveBack(n int) {
	s.credit += n
	if s.conn == nil || s.gotEnd || s.credit < s.target/2 {
		return
	}
	f, grow := s.conn.f, 0
	if f.tight {
		if s.twin().waits() > 0 {
			return // when all of it has left
		}
		keep := max(0, min(s.credit, s.target-tightWindow))
		if s.target, s.credit = s.target-keep, s.credit-keep; s.credit <= 0 {
			return
		}
	} else if s.twin().waits() == 0 && 2*s.target <= f.config.MaxWindow && f.stats.Buffered < f.config.Buffered/2 {
		grow = s.target
	}
	s.target += grow
	s.room += s.credit + grow
	s.conn.out = appendWindow(s.conn.buf(), s.id, uint32(s.credit+grow))
	s.credit = 0
}

// allow lets the peer send as much as is missing of n bytes, although nothing has left on
// the other side: what is held here whole may be longer than the window.
func (s *stream) allow(n int) {
	if s.conn == nil || s.gotEnd || n <= s.room || s.room >= s.target/2 {
		return
	}
	more := min(n-s.room, s.target)
	s.room += more
	s.credit -= more
	s.conn.out = appendWindow(s.conn.buf(), s.id, uint32(more))
}
