package h2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

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
		c.own.fails(st)
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
func (h *hand) addHead(pairs []string) {
	h.addField(field{kind: kindStatic, static: 8}) // :status 200
	h.addText(31, "content-type", "application/grpc", kindIndexed)
	h.addPairs(pairs)
}

func (h *hand) addField(fd field) { h.block.add(fd) }

// addPairs adds names and values in turn.
func (h *hand) addPairs(all []string) {
	for i := 0; i+1 < len(all); i += 2 {
		h.addText(0, all[i], all[i+1], kindOnce)
	}
}

func (h *hand) addText(static uint8, name, value string, kind uint8) {
	fd := field{kind: kind, static: static, size: uint32(32 + len(name) + len(value))}
	at := len(h.strings)
	if static == 0 {
		h.strings = appendString(h.strings, name)
	}
	mid := len(h.strings)
	h.strings = appendString(h.strings, value)
	fd.name, fd.value = h.strings[at:mid:mid], h.strings[mid:len(h.strings):len(h.strings)]
	fd.setHash()
	h.addField(fd)
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
