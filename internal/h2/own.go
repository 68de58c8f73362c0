package h2

import (
	"fmt"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Request is a call that begins in this process: it has no client, and its whole body at once.
type Request struct {
	Fields  *Fields       // pseudo-headers first
	More    *Fields       // fields that follow; nil: none
	Once    []string      // names, in lower case, and values in turn that are this call's own
	Timeout time.Duration // the deadline that the node is told; 0: none. Whoever starts the call ends it when it is over
	Lasts   bool          // it goes on when its connection is shelved
	Body    []byte        // its messages with their prefixes; to stay as it is until Listener.Header or End
	Client  *Conn         // a client's, for whose call it is: that the node's stream is reset counts for it; nil: nobody's
	Listener
}

// Listener hears what becomes of a Request. Its methods are called in the forwarder's turn: they must not
// block, nor call the Forwarder, except Later. If one panics, its call ends.
type Listener interface {
	// Going asks whether the request is still to be sent, just before it is: with false nothing of it leaves, and the
	// call ends as Cancelled.
	Going() bool
	// Header is told the headers of the answer, and its trailer: the one that is last.
	Header(h Headers, last bool)
	// Data is told bytes of the answer's body, in order. They are gone when it returns. With ahead, the node may
	// send as many more already, although they count as kept until Forwarder.Consumed: the reader waits for them.
	Data(p []byte) (ahead bool)
	// End says that the call is over, once. st is what the sidecar has to say of it, if it ended the call; else nil.
	End(o *Outcome, st *Status)
	// Flush follows Header and Data, once for all that came with one read.
	Flush()
}

// Fields are headers in the form in which they are sent, for many calls.
type Fields struct {
	all  []field
	size int // with 32 bytes added for each
}

// NewFields takes names, in lower case, and values in turn.
func NewFields(pairs ...string) *Fields {
	fs := &Fields{}
	for i := 0; i+1 < len(pairs); i += 2 {
		fs.all = append(fs.all, newField(pairs[i], pairs[i+1], kindIndexed))
		fs.size += int(fs.all[len(fs.all)-1].size)
	}
	return fs
}

// size is that of the headers, with 32 bytes added for each field.
func (r *Request) size() int {
	n := r.Fields.size
	if r.Timeout > 0 {
		n += 32 + len("grpc-timeout") + 9
	}
	if r.More != nil {
		n += r.More.size
	}
	for i := 0; i+1 < len(r.Once); i += 2 {
		n += 32 + len(r.Once[i]) + len(r.Once[i+1])
	}
	return n
}

// newField makes a field of text. A pair of the static table is sent as such, and a name of it by its number.
func newField(name, value string, kind uint8) field {
	f := field{kind: kind, size: uint32(32 + len(name) + len(value))}
	for i := 1; i < len(staticTable); i++ {
		if t := &staticTable[i]; t.name == name {
			if f.static == 0 {
				f.static = uint8(i)
			}
			if t.value == value {
				f.kind, f.static = kindStatic, uint8(i)
				return f
			}
		}
	}
	if f.static == 0 {
		f.name = appendString(nil, name)
	}
	f.value = appendString(nil, value)
	f.setHash()
	return f
}

// Headers are a header block in hand: valid until the method returns that was given them.
type Headers struct{ f *Forwarder }

// Each calls f with each header in turn. What it is given is valid until f returns.
func (h Headers) Each(f func(name, value []byte)) {
	b := &h.f.block
	name, value := h.f.name[:0], h.f.value[:0]
	for i := range b.fields {
		fd := &b.fields[i]
		if fd.static > 0 {
			name = append(name[:0], staticTable[fd.static].name...)
		} else {
			name = appendText(name[:0], fd.name)
		}
		value = fd.appendValue(value[:0])
		f(name, value)
	}
	h.f.name, h.f.value = name, value
}

// own is the part of a call that only one of this process's own has.
type own struct {
	*Request
	call    *Call
	conn    *Conn
	status  *Status // what the sidecar has to say of its end
	unread  int     // bytes of the answer that Consumed has not heard of
	ahead   int     // unread bytes that the node was given back already
	since   time.Duration
	touched bool // its listener is to flush
}

// Start begins a call on a node's connection. It waits until there is room for it, Config.HoldTimeout at most.
func (f *Forwarder) Start(conn *Conn, r *Request) Ticket {
	c := f.newCall()
	c.own = &own{Request: r, call: c, conn: conn}
	c.client.gotEnd = true
	if r.Timeout > 0 {
		c.deadline = f.now + r.Timeout
	}
	t := c.Ticket()
	c.own.depart()
	return t
}

// Abandon ends a call that Start began, if it is not over: the node's stream is reset.
func (f *Forwarder) Abandon(t Ticket) {
	if c := t.call; f.owns(t) {
		c.outcome.End = Cancelled
		c.finish()
		f.resumeWaiting()
	}
}

// Consumed says that the reader has released n bytes that Listener.Data got. The node may send as many more, unless it
// was allowed to before.
func (f *Forwarder) Consumed(t Ticket, n int) {
	c := t.call
	if !f.owns(t) {
		return
	}
	n = min(n, c.own.unread)
	c.own.unread -= n
	c.counted -= n
	c.count(-n)
	c.own.since = f.now
	before := min(n, c.own.ahead)
	c.own.ahead -= before
	c.node.giveBack(n - before)
}

// Want says that the reader waits for more than is here: the node may send as much again as has come, although that
// is kept.
func (f *Forwarder) Want(t Ticket) {
	if f.owns(t) {
		o := t.call.own
		n := o.unread - o.ahead
		o.ahead = o.unread
		t.call.node.giveBack(n)
	}
}

// owns reports whether a call that Start began goes on.
func (f *Forwarder) owns(t Ticket) bool {
	return t.call != nil && t.call.f == f && t.call.generation == t.generation && t.call.own != nil
}

// depart sends the call to its node, or has it wait for the connection.
func (o *own) depart() {
	c := o.call
	f, s := c.f, &c.node
	conn := o.conn
	switch {
	case !conn.Usable():
		c.refuse()
		return
	case c.deadline > 0 && c.deadline <= f.now:
		c.expire()
		return
	case conn.full():
		if !conn.wait(c, f.config.Held) || !c.isHeld && !o.park() {
			c.overload()
		}
		return
	}
	if st := conn.takesSize(o.size()); st != nil {
		o.fails(st)
		return
	}
	going := false
	if !o.tell(func() { going = o.Going() }) {
		return
	}
	if !going {
		c.outcome.End = Cancelled
		c.finish()
		return
	}
	if c.isHeld {
		c.release()
		c.timer.stop()
	}
	s.forward(conn)
	b := conn.buf()
	at := len(b)
	e := &conn.encoder
	b = e.begin(appendFrame(b, 0, frameHeaders, flagEndHeaders, s.id))
	for i := range o.Fields.all {
		b = e.field(b, &o.Fields.all[i])
	}
	if o.More != nil {
		for i := range o.More.all {
			b = e.field(b, &o.More.all[i])
		}
	}
	if c.deadline > 0 {
		var text [16]byte
		b = f.once(b, e, "grpc-timeout", appendTimeout(text[:0], c.deadline-f.now))
	}
	for i := 0; i+1 < len(o.Once); i += 2 {
		b = f.once(b, e, o.Once[i], []byte(o.Once[i+1]))
	}
	conn.out = splitHeaders(b, at, s.id)
	s.headersEnd = conn.written + uint64(conn.backlog())
	s.send(o.Body, true)
}

// once writes a field that does not recur.
func (h *hand) once(b []byte, e *encoder, name string, value []byte) []byte {
	h.strings = appendString(h.strings[:0], name)
	mid := len(h.strings)
	h.strings = appendString(h.strings, value)
	fd := field{kind: kindOnce, name: h.strings[:mid], value: h.strings[mid:], size: uint32(32 + len(name) + len(value))}
	return e.field(b, &fd)
}

// park has a call of this process's own wait for its connection. False: too many are held.
func (o *own) park() bool {
	c, f := o.call, o.call.f
	if f.stats.Held >= f.config.Held {
		return false
	}
	until := c.outcome.Began + f.config.HoldTimeout
	if c.deadline > 0 {
		until = min(until, c.deadline)
	}
	f.wheel.set(&c.timer, until)
	c.isHeld = true
	f.stats.Held++
	return true
}

// hearHeaders passes headers of the answer on.
func (o *own) hearHeaders(last bool) {
	o.touch()
	if !o.tell(func() { o.Header(Headers{o.call.f}, last) }) {
		return
	}
	if last {
		o.hearEnd()
	}
}

// hearBody passes bytes of the answer on.
func (o *own) hearBody(p []byte, end bool) {
	c := o.call
	if len(p) > 0 {
		o.touch()
		if o.unread == 0 {
			o.since = c.f.now
		}
		o.unread += len(p)
		c.counted += len(p)
		c.count(len(p))
		ahead := false
		if !o.tell(func() { ahead = o.Data(p) }) {
			return
		}
		if ahead {
			o.ahead += len(p)
			c.node.giveBack(len(p))
		}
	}
	if end { // without a trailer
		o.hearEnd()
	}
}

// hearEnd ends a call whose answer is whole.
func (o *own) hearEnd() {
	o.call.client.sentEnd = true
	o.call.settle()
}

// touch has the listener flush when what came with this read has been dealt with.
func (o *own) touch() {
	if !o.touched {
		o.touched = true
		f := o.call.f
		f.touched = append(f.touched, o)
	}
}

// flushListeners tells those that heard something.
func (f *Forwarder) flushListeners() {
	for i, o := range f.touched {
		f.touched[i], o.touched = nil, false
		_ = panics.Call(listenerPlace, func() error { o.Flush(); return nil })
	}
	f.touched = f.touched[:0]
}

// fails ends a call of this process's own with what the sidecar has to say.
func (o *own) fails(st *Status) {
	c := o.call
	o.status = st
	c.outcome.Status = st.Code
	if c.outcome.End == Answered {
		c.outcome.End = AnsweredBy
	}
	c.finish()
}

// ofReset is the code of gRPC that stands for the end of a stream by a node's RST_STREAM
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Errors").
func ofReset(code Code) *Status {
	st := &Status{Code: internal, Message: fmt.Sprintf("the node reset the stream: %d", code)}
	switch code {
	case FlowControlError, EnhanceYourCalm:
		st.Code = resourceExhausted
	case InadequateSecurity:
		st.Code = permissionDenied
	}
	return st
}

// over tells the listener of the end, when the call is off its connection.
func (o *own) over() {
	c := o.call
	c.count(-o.unread)
	c.counted -= o.unread
	o.unread = 0
	_ = panics.Call(listenerPlace, func() error { o.End(&c.outcome, o.status); return nil })
}

const listenerPlace = "the listener of a call"

// tell calls a method of the listener. False: the call is over.
func (o *own) tell(f func()) bool {
	if err := panics.Call(listenerPlace, func() error { f(); return nil }); err != nil {
		o.fails(o.call.failure())
		return false
	}
	return true
}

// Shelve has a node's connection take no more calls, and leaves it alone: it is not pinged, and does not end because
// its peer is silent. Of the calls that began in this process those that are not to last are lost; what else is on it goes on.
func (c *Conn) Shelve() {
	if c.finished || c.draining {
		return
	}
	c.draining, c.shelved, c.err = true, true, ErrSilent
	var lost []Ticket
	for _, s := range c.streams.slots {
		if s != nil && s.call.own != nil && !s.call.own.Lasts {
			lost = append(lost, s.call.Ticket())
		}
	}
	for _, t := range lost {
		if c.f.owns(t) {
			t.call.outcome.End = Lost
			t.call.fail(t.call.whenLost())
		}
	}
	c.makeRoom()
	c.settle()
	c.f.resumeWaiting()
}
