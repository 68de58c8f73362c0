package h2

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

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
		return s.fail(StreamClosed, "HEADERS after the end of the stream")
	case fr.kind == framePriority:
		return s.fail(ProtocolError, "a stream depends on itself")
	case c.isClient:
		return s.requestTrailer(end)
	}
	return s.answer(end)
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
	c.earn(&c.f.config)
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
		if c.refill(c.f.now, &c.f.config); c.cancels < 0 {
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
var tooManyCancels = &Status{Code: resourceExhausted,
	Message: "too many calls of the connection were reset at nodes, because they were cancelled or ran out of time; " +
		"the call was not sent: try again in a second"}

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
	return &Status{Code: resourceExhausted,
		Message: fmt.Sprintf("the headers have %d bytes, with 32 for each field, and the %s takes %d; %s", size, to,
			c.headerBytes, executed)}
}

// portableEdited writes the block in hand, with its edits, to wait.
func (h *hand) portableEdited(b []byte) []byte {
	names := h.editedNames()
	for i := range h.block.fields {
		if !names.has(h.block.fields[i].id) {
			b = appendPortable(b, h.block.fields[i:i+1])
		}
	}
	for i := range h.edits {
		if e := &h.edits[i]; e.set && !edited(h.edits[i+1:], e.name) {
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
		c.unwrite(c.f) // calls that have not left are sent elsewhere
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
