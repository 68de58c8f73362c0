package h2

import (
	"encoding/binary"
	"time"
)

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
		c.earn(&c.f.config)
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
		return s.fail(StreamClosed, "DATA after the end of the stream")
	}
	if !c.isClient && !s.gotHead {
		return s.fail(ProtocolError, "DATA before HEADERS")
	}
	if s.room -= n; s.room < 0 {
		c.f.stats.Abuses[WindowOverrun]++
		return s.fail(FlowControlError, "more bytes than the stream's window allows")
	}
	if s.sizeable {
		if s.declared -= len(p); s.declared < 0 || end && s.declared > 0 {
			return s.fail(ProtocolError, "content-length differs from the body")
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
	goesOn := true
	switch {
	case s.isClient:
		p, goesOn = s.takeRequest(p, end)
	case call.own != nil:
		if call.outcome.FirstByte == 0 {
			call.outcome.FirstByte = f.now
		}
		call.outcome.Answer += len(p)
		call.own.hearBody(p, end)
		return
	default:
		goesOn = s.takeAnswer(p)
	}
	if !goesOn {
		return
	}
	generation := call.generation
	if s.isClient && call.rewriting != nil && t.conn != nil {
		call.rewriting.rewrite(p, end)
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
func (e *expected) expect(id uint32) {
	e.recent[e.recentAt%len(e.recent)] = id
	e.recentAt++
}

func (c *Conn) priority(fr frame) *ConnError {
	if fr.stream == 0 {
		return &ConnError{ProtocolError, "PRIORITY on stream 0"}
	}
	if len(fr.payload) != 5 {
		return &ConnError{FrameSizeError, "PRIORITY is not 5 bytes"}
	}
	if binary.BigEndian.Uint32(fr.payload)&maxStreamID == fr.stream {
		if s := c.streams.get(fr.stream); s != nil {
			return s.fail(ProtocolError, "a stream depends on itself")
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
		return &ConnError{FrameSizeError, "RST_STREAM is not 4 bytes"}
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
