package h2

import (
	"encoding/binary"
	"fmt"
)

// Rewriter looks at the messages of a request as they begin, wherever in the stream.
type Rewriter interface {
	// Hold reports whether the message of so many bytes that begins is kept here until it is
	// whole, and then edited. The others pass on as they come.
	Hold(size int) bool
	// See is shown a message that is held and not compressed, as it comes.
	See(p []byte)
	// Edit appends to edits what changes in that message, in order, now that it is whole. None: it goes on as it came.
	Edit(edits []Edit) []Edit
	// Inflate takes a message that is held and compressed, with its prefix, in pieces that count as
	// waiting. What follows in the stream waits until Forwarder.Rewritten.
	Inflate(t Ticket, pieces [][]byte)
}

// Edit puts With in the place of message[From:To].
type Edit struct {
	From, To int
	With     []byte
}

// rewriting is a Rewriter at work.
type rewriting struct {
	call     *Call
	rewriter Rewriter
	passing  int    // bytes still to come of a message that passes on
	size     int    // of the message that is held, with its prefix; 0: not known yet
	held     pieces // bytes of the message, or of a prefix that is not whole
	lent     bool   // a message is the Rewriter's, by Inflate
	behind   pieces // what came behind it, which nothing of what comes later may pass
	ended    bool   // the request ends with that
	passed   bool   // the node has something of the body, or is to have it
	edits    []Edit
}

// Rewrite has r look at the request's messages, once the call is forwarded. Of one that is
// held the client may send more than the window allows, up to Config.Message.
func (c *Call) Rewrite(r Rewriter) { c.rewriting = &rewriting{call: c, rewriter: r} }

func tooLarge(config *Config) *Status {
	return &Status{Code: resourceExhausted,
		Message: fmt.Sprintf("a message that must be rewritten is longer than %d bytes", config.Message)}
}

// sizeOf is the size of a message with its prefix, which p begins with.
func sizeOf(p []byte) int { return messagePrefix + int(binary.BigEndian.Uint32(p[1:])) }

// holds reports whether a message is held, or its prefix, that is not whole.
func (x *rewriting) holds() bool { return x != nil && x.held.size > 0 }

// queues reports whether what comes of the request's body waits for a message that is the Rewriter's.
func (x *rewriting) queues() bool { return x.lent || x.behind.size > 0 }

// hold asks about the message that begins so.
func (x *rewriting) hold(p []byte) bool {
	size := sizeOf(p)
	if x.rewriter.Hold(size - messagePrefix) {
		x.size = size
		return true
	}
	x.passing = size
	return false
}

// alive reports whether the call is the same, and has a node.
func (c *Call) alive(generation uint32) bool {
	return c.generation == generation && c.node.conn != nil
}

// rewrite sends the node bytes of the request's body, except what is held.
func (x *rewriting) rewrite(p []byte, end bool) {
	c := x.call
	generation := c.generation
	if !x.queues() {
		if p = x.pass(p, end); !c.alive(generation) || !x.lent {
			return
		}
	}
	c.count(len(p))
	x.behind.add(c.f, p)
	x.ended = end
}

// pass is rewrite up to a message that becomes the Rewriter's. It returns what is behind that.
func (x *rewriting) pass(p []byte, end bool) []byte {
	c := x.call
	generation := c.generation
	at := 0 // p[:at] passes on
	for at < len(p) {
		rest := p[at:]
		switch {
		case x.passing > 0:
			n := min(x.passing, len(rest))
			x.passing -= n
			at += n
		case x.held.size == 0 && len(rest) >= messagePrefix && !x.hold(rest):
			// It passes.
		default:
			if at > 0 {
				x.sends(p[:at], false)
			}
			if c.alive(generation) {
				p, at = rest[x.keep(rest):], 0
			}
			switch {
			case !c.alive(generation): // over
				return nil
			case x.lent:
				return p
			}
		}
	}
	switch {
	case !x.holds():
		if len(p) > 0 || end {
			x.sends(p, end)
		}
	case end: // what is not whole is not for us to judge
		held := x.unhold()
		x.sendsAll(&held, true)
	default:
		c.client.allow(max(x.size, messagePrefix) - x.held.size)
	}
	return nil
}

// sends has the node get some of the body, and sendsAll some that was held.
func (x *rewriting) sends(p []byte, end bool) {
	x.passed = true
	x.call.node.send(p, end)
}

func (x *rewriting) sendsAll(q *pieces, end bool) {
	x.passed = true
	x.call.node.sendAll(q, end)
}

// keep holds as much of p as belongs to the message in hand, and sends that once it is
// whole. It returns how much it took.
func (x *rewriting) keep(p []byte) int {
	c := x.call
	f := c.f
	had, want := x.held.size, max(x.size, messagePrefix)
	n := min(want-had, len(p))
	if want-messagePrefix > f.config.Message {
		c.fail(c.exhausted(tooLarge(&f.config)))
		return 0
	}
	x.held.add(f, p[:n])
	c.count(n)
	first := x.held.all[0] // has the whole prefix, if that is here
	if skip := max(0, messagePrefix-had); x.size > 0 && first[0] == 0 && skip < n {
		x.rewriter.See(p[skip:n])
	}
	if had+n < want {
		c.awaitGrowth(true)
		return n
	}
	c.growth.stop()
	switch {
	case x.size == 0 && !x.hold(first): // its prefix came in pieces
		x.passing -= messagePrefix
		held := x.unhold()
		x.sendsAll(&held, false)
	case x.held.size < x.size:
	case first[0] != 0:
		held := x.held
		x.held, x.size, x.lent = pieces{}, 0, true
		c.counted += held.size
		x.rewriter.Inflate(c.Ticket(), held.all)
	default:
		x.edits = x.rewriter.Edit(x.edits[:0])
		held := x.unhold()
		x.sendEdited(&held, held.size, x.edits)
		clear(x.edits)
	}
	return n
}

// sendEdited sends a message, with its prefix, for one of which so many bytes came.
func (x *rewriting) sendEdited(q *pieces, came int, edits []Edit) {
	if len(edits) > 0 {
		edited := x.call.f.makeEdits(q, edits)
		q = &edited
	}
	x.call.client.credit -= q.size - came // room is counted in bytes that came
	x.sendsAll(q, false)
}

// makeEdits takes a message with its prefix out of q, and returns it edited and not compressed. Pieces
// without an edit are not copied.
func (f *Forwarder) makeEdits(q *pieces, edits []Edit) (out pieces) {
	at := -messagePrefix
	for b := q.pop(); b != nil; b = q.pop() {
		end, rest := at+len(b), b
		if at >= 0 && (len(edits) == 0 || edits[0].From >= end) {
			out.push(b)
			at = end
			continue
		}
		for len(edits) > 0 && edits[0].From < end {
			e := &edits[0]
			if e.From >= at { // it begins here
				out.add(f, rest[:e.From-at])
				out.add(f, e.With)
				rest, at = rest[e.From-at:], e.From
			}
			n := min(e.To, end) - at
			rest, at = rest[n:], at+n
			if at < e.To {
				break
			}
			edits = edits[1:]
		}
		out.add(f, rest)
		at = end
		f.Recycle(b)
	}
	for _, e := range edits {
		if e.From == at {
			out.add(f, e.With)
		}
	}
	out.all[0][0] = 0
	binary.BigEndian.PutUint32(out.all[0][1:], uint32(out.size-messagePrefix))
	return out
}

// Rewritten goes on with a stream of which a message was the Rewriter's: with the message in these pieces, which
// begin with room for its prefix, after those edits. None: it goes on as it came. st, if it is not nil, ends the call. more: there
// is more to do, by GoOn, in another turn. The pieces, and what counted for them, are the caller's no longer.
func (f *Forwarder) Rewritten(t Ticket, came int, message [][]byte, edits []Edit, st *Status) (more bool) {
	defer f.resumeWaiting()
	c := t.call
	if !f.isRewriters(t) {
		return false
	}
	x := c.rewriting
	if x.lent = false; st != nil {
		c.fail(c.exhausted(st))
		return false
	}
	var q pieces
	for _, b := range message {
		q.push(b)
	}
	x.sendEdited(&q, came, edits)
	return x.goOn(t.generation)
}

// GoOn passes on some of what came behind such a message, and reports whether there is more.
func (f *Forwarder) GoOn(t Ticket) (more bool) {
	defer f.resumeWaiting()
	c := t.call
	return c != nil && c.f == f && c.rewriting != nil && !c.rewriting.lent && c.rewriting.goOn(t.generation)
}

func (x *rewriting) goOn(generation uint32) (more bool) {
	c := x.call
	if !c.alive(generation) {
		return false
	}
	p := x.behind.pop()
	c.count(-len(p))
	end := x.ended && x.behind.size == 0
	if len(p) == 0 && !end {
		return false
	}
	rest := x.pass(p, end)
	switch {
	case !c.alive(generation):
		return false
	case len(rest) > 0:
		x.behind.unpop(rest)
		c.count(len(rest))
	case end && !x.lent:
		x.ended = false
		c.settle()
		return false
	}
	return !x.lent && (x.behind.size > 0 || x.ended)
}

// isRewriters reports whether a message of the call is the Rewriter's.
func (f *Forwarder) isRewriters(t Ticket) bool {
	c := t.call
	return c != nil && c.f == f && c.generation == t.generation && c.rewriting != nil && c.rewriting.lent
}

// unhold hands over what is held.
func (x *rewriting) unhold() pieces {
	q := x.held
	x.call.count(-q.size)
	x.call.growth.stop()
	x.held, x.size = pieces{}, 0
	return q
}

// forget drops what is held. What is the Rewriter's stays that.
func (x *rewriting) forget() {
	x.call.count(-x.held.size - x.behind.size)
	x.held, x.size, x.behind, x.ended, x.lent = pieces{}, 0, pieces{}, false, false
}

// sendAll is send for pieces that the stream is to keep if they wait, and that counted as waiting before.
func (s *stream) sendAll(q *pieces, end bool) {
	if len(q.all) == 1 {
		b := q.pop()
		s.send(b, end)
		s.call.f.Recycle(b)
		return
	}
	f := s.call.f
	if len(s.waiting()) == 0 {
		s.moved, s.since = f.now, f.now
	}
	s.call.count(q.size)
	for b := q.pop(); b != nil; b = q.pop() {
		if len(s.waiting()) > 0 {
			s.more.push(b)
			continue
		}
		f.Recycle(s.pending)
		s.pending, s.sent = b, 0
	}
	s.endPending = s.endPending || end
	s.ripen()
}
