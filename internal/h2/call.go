package h2

import (
	"encoding/binary"
	"errors"
	"time"
)

// Call is one request and its answer: a stream of a client and, once it is
// forwarded, one of a node.
type Call struct {
	Data any // the router's own; cleared when the call is over

	inHand
	client, node stream
	generation   uint32
	marks
	deadline time.Duration // the client's; 0: none
	timer    timer
	holding
	answering
	lookers
	replacing
	own     *own // it began in this process, and has no client; nil: it has
	outcome Outcome
	next    *Call // free ones
}

// marks are what a call is.
type marks struct {
	isHeld       bool // it waits for a message, a decision or a node's connection
	isPlain      bool // not gRPC: answered here
	isBackground bool
	isEndless    bool
	isOpen       bool // answered here with Status.Open, or to be answered by the router
	ending       bool // the frame in hand behind its headers ends the request
	routed       bool // the router knows it
	lent         bool // the first message is read by others: see Lend
}

// holding is what a call holds while it waits, and what it counts for.
type holding struct {
	block    []byte // portable request headers of a held call
	sum      int    // bytes that wait in the call
	counted  int    // bytes of sum that Forwarder.Hold counted, and those of a message that is the Rewriter's
	growth   timer  // runs while a message is held in part: Config.GrowTimeout
	askAt    int    // length of the body at which the router is asked again; 0: it waits for something else
	heldPrev *Call  // the held call of the client's connection that is before this one
	heldNext *Call  // the held call behind this one
}

// answering is how a call is answered here.
type answering struct {
	lost *Status         // for the client when the node is lost; nil: the usual
	room chan<- struct{} // of the writer of the answer, while it waits for room; nil. See Forwarder.Write
}

// lookers look at the bodies of a call as they pass.
type lookers struct {
	observer  Observer
	framing   framing
	rewriting *rewriting // nil: messages pass as they come
}

// replacing is what the node gets in place of the start of the request's body.
type replacing struct {
	splice splice
	plain  []byte // goes in the place of the first message, with its prefix
	packed int    // the length of the first message, for which plain goes; 0: nothing does
}

// messagePrefix is the compression flag and length before a gRPC message.
const messagePrefix = 5

// Announced is how many bytes the request's first message has by its prefix; false: that
// is not here yet.
func (c *inHand) Announced() (bytes int, known bool) {
	if len(c.f.message) < messagePrefix {
		return 0, false
	}
	return sizeOf(c.f.message) - messagePrefix, true
}

// Message returns what is here of the request's first message, and whether that is
// all of it. It is valid until Route returns. A compressed message is not returned.
func (c *inHand) Message() (message []byte, whole bool) {
	if c.Compressed() {
		return nil, false
	}
	return c.Raw()
}

// Raw is Message for one that may be compressed.
func (c *inHand) Raw() (message []byte, whole bool) {
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
func (c *inHand) Compressed() bool { return len(c.f.message) > 0 && c.f.message[0] != 0 }

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

// Observe has o shown what comes of the bodies, from the start, if the call is forwarded.
func (c *Call) Observe(o Observer) { c.observer = o }

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
		if !conn.wait(c, f.config.Held) {
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
	var tail []byte // follows the first message, and is not copied
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
	s.forward(conn)
	s.endPending = c.client.gotEnd
	s.headers(f.block.fields, c.client.gotEnd && len(body) == 0)
	s.headersEnd = conn.written + uint64(conn.backlog())
	if len(body) > 0 {
		s.forwardBody(body, tail)
	}
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
		c.own.over()
	}
	f.orphans += c.counted
	with, plain := kept(c.splice.with), kept(c.plain)
	client, node := stream{
		call: c, isClient: true, pending: c.client.pending, trailer: kept(c.client.trailer),
	}, stream{call: c, pending: c.node.pending}
	*c = Call{inHand: inHand{f}, generation: c.generation + 1, timer: timer{call: c}, client: client, node: node}
	c.growth = timer{call: c, grows: true}
	c.splice.with, c.plain = with, plain
	if f.freeCount < maxFreeCalls {
		f.freeCount++
		c.next, f.freeCalls = f.freeCalls, c
	}
}

// maxFreeCalls bounds the calls kept for use again.
const maxFreeCalls = 1024
