package h2

import (
	"time"
)

// stream is a call's stream on one of its two connections.
//
// Wide: two of them lie within each call, and the flags of both directions share one word: with a struct for each direction both
// would be larger.
type stream struct {
	call *Call
	conn *Conn // nil: none yet, or closed
	id   uint32

	window  int64  // bytes the peer takes; negative after it has shrunk its window
	pending []byte // bytes for the peer that wait for room
	sent    int    // of pending
	more    pieces // pieces that wait behind pending; none if it is all sent
	trailer []byte // portable header block to follow them

	room     int           // bytes the peer may still send
	moved    time.Duration // when the peer last had taken a frame's worth of pending, or all, or had nothing to take
	took     int           // bytes of pending since then
	since    time.Duration // when bytes last began to wait
	credit   int           // bytes it sent that have left on the other side, not yet given back
	target   int           // its window
	declared int           // bytes of body still to come by content-length; -1: not said

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

// wait keeps bytes until there is room, in several pieces, so that many are not copied while more
// come. The router reads those of a held call in one piece, which gather makes whenever it is asked
// again.
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

// widen makes room in pending of a held call: at most up to askAt, twice what is here, and 64 KiB. If
// n bytes more would not fit in that, append makes the room.
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

// drop forgets the bytes that wait.
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
		s.call.rewriting.forget()
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
func (h *hand) editedNames() (names nameSet) {
	for i := range h.edits {
		names |= 1 << h.edits[i].name
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
		c.nextPiece(c.f)
		c.out, p = fill(c.out, p)
	}
	c.earn(&c.f.config)
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
