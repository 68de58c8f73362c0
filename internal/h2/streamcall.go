package h2

import (
	"bytes"
)

// takeRequest looks at bytes of a request's body, and returns what goes to the node in their place. goesOn is false if the call was
// answered here or has ended.
func (s *stream) takeRequest(p []byte, end bool) (_ []byte, goesOn bool) {
	c := s.call
	c.outcome.Request += len(p)
	forwarded := c.node.conn != nil
	switch {
	case !forwarded && !c.isHeld: // answered here
		s.giveBack(len(p))
		if c.isPlain && end {
			c.page()
		} else {
			c.settle()
		}
		return nil, false
	case !forwarded:
		return p, true
	}
	if c.packed > 0 {
		p = c.unpack(p)
	}
	if !c.takes(p, end) {
		return nil, false
	}
	if c.splice.set {
		p = c.apply(p)
	}
	return p, true
}

// takeAnswer looks at bytes of the body of a node's answer. False: the call has ended.
func (s *stream) takeAnswer(p []byte) bool {
	c := s.call
	if !c.observe(false, p) {
		return false
	}
	o := &c.outcome
	if o.FirstByte == 0 {
		o.FirstByte = c.f.now
	}
	if o.headLen < headSize {
		o.headLen += uint8(copy(o.head[o.headLen:], p))
	}
	o.Answer += len(p)
	if c.lost != nil && c.lost.Stream {
		o.rest.skip(p)
	}
	return true
}

// forward puts the stream of a call that goes to a node on a connection.
func (s *stream) forward(conn *Conn) {
	c := s.call
	s.open(conn, conn.nextID)
	if conn.nextID += 2; conn.nextID > maxStreamID {
		conn.Drain()
	}
	c.outcome.Node, c.outcome.Forwarded = conn, c.f.now
	c.f.stats.Forwarded++
}

// forwardBody sends what has come of the body, behind the headers: body, with the first message changed if it is to be, and tail.
func (s *stream) forwardBody(body, tail []byte) {
	c, f := s.call, s.call.f
	var behind []byte                                                                    // the rest of body, which is not copied
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
		c.rewriting.rewrite(body, c.client.gotEnd)
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
	s.conn.ready.push(s)
	s.conn.push()
}

// answer deals with headers and trailers from a node.
func (s *stream) answer(end bool) *ConnError {
	c, call, t := s.conn, s.call, s.twin()
	f := c.f
	b := &f.block
	status, bad := s.checkAnswer(end)
	if bad != "" {
		return s.fail(ProtocolError, bad)
	}
	f.strings = f.strings[:0]
	if call.own == nil && b.names>>FirstName != 0 {
		if !f.askAnswer(call) {
			return s.fail(InternalError, "the sidecar failed")
		}
	}
	c.pingAt = 0
	if status/100 == 1 {
		if call.own == nil && t.conn.space() && t.conn.takesHeaders() == nil {
			t.headers(b.fields, false)
		}
		return c.spend()
	}
	c.earn(&c.f.config)
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
		call.own.hearHeaders(end)
		return nil
	}
	if st := t.conn.takesHeaders(); st != nil {
		s.replaceAnswer(st, end)
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

// checkAnswer returns the status of HTTP in headers from a node, or what is wrong with these headers or trailers. It notes the length
// of the body that is to come.
func (s *stream) checkAnswer(end bool) (status int, bad string) {
	c := s.conn
	b := &c.f.block
	status, ok := b.checkAnswer(s.gotHead)
	if !ok || b.size > c.f.config.HeaderBytes || s.gotHead && !end || status/100 == 1 && end {
		return 0, "bad headers"
	}
	if b.names.has(nameContentLength) && !s.gotHead && status/100 != 1 {
		if s.declared, s.sizeable = parseLength(b.find(nameContentLength)); !s.sizeable || b.again.has(nameContentLength) {
			return 0, "bad content-length"
		}
	}
	if end && s.sizeable && s.declared > 0 {
		return 0, "content-length differs from the body"
	}
	return status, ""
}

// replaceAnswer answers a call with st, because its client does not take the headers or, with end, the trailers of the node's answer.
func (s *stream) replaceAnswer(st *Status, end bool) {
	c := s.call
	if !end {
		st.Code = internal
		c.fail(st)
		return
	}
	if st.Code = internal; c.outcome.Status > 0 {
		st.Code = c.outcome.Status
	}
	if s.sentEnd {
		s.close()
	}
	c.say(st, st.Code, nil) // the outcome is the node's own: the call has ended well there
}

// requestTrailer deals with a trailer from a client.
func (s *stream) requestTrailer(end bool) *ConnError {
	f := s.conn.f
	if !end || !f.block.checkTrailer() || s.sizeable && s.declared > 0 {
		return s.fail(ProtocolError, "bad trailer")
	}
	s.gotEnd = true
	// gRPC has no trailers of requests: grpc-go ends a connection on which they come, and they may
	// hold what the headers of a request are stripped of. Only the end goes on.
	f.body(s, nil, true)
	return nil
}

// fail ends a stream whose peer broke the protocol.
func (s *stream) fail(code Code, reason string) *ConnError {
	c := s.conn
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
