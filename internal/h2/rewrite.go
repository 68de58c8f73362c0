package h2

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Rewriter looks at the messages of a request as they begin, wherever in the stream.
type Rewriter interface {
	// Hold reports whether the message of so many bytes that begins is kept here until it is
	// whole, and then shown to Rewrite. The others pass on as they come.
	Hold(size int) bool
	// Rewrite appends to b what goes on, uncompressed, in the place of a message that was held.
	// nil: that goes on as it came.
	Rewrite(b, message []byte, compressed bool) []byte
}

// rewriting is a Rewriter at work.
type rewriting struct {
	rewriter Rewriter
	passing  int           // bytes still to come of a message that passes on
	size     int           // of the message that is held, with its prefix; 0: not known yet
	held     []byte        // of that, or of a prefix that is not whole
	since    time.Duration // when it was begun
}

// Rewrite has r look at the request's messages, once the call is forwarded. Of one that is
// held the client may send more than the window allows, up to Config.Message.
func (c *Call) Rewrite(r Rewriter) { c.rewriting = &rewriting{rewriter: r} }

func tooLarge(config *Config) *Status {
	return &Status{Code: resourceExhausted, Message: fmt.Sprintf("a message that must be rewritten is longer than %d bytes", config.Message)}
}

// sizeOf is the size of a message with its prefix, which p begins with.
func sizeOf(p []byte) int { return messagePrefix + int(binary.BigEndian.Uint32(p[1:])) }

// holds reports whether a message is held, or its prefix.
func (c *Call) holds() bool { return c.rewriting != nil && len(c.rewriting.held) > 0 }

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

// rewrite sends the node bytes of the request's body, but for what is held.
func (c *Call) rewrite(p []byte, end bool) {
	x, s, generation := c.rewriting, &c.node, c.generation
	at := 0 // p[:at] passes on
	for at < len(p) {
		rest := p[at:]
		switch {
		case x.passing > 0:
			n := min(x.passing, len(rest))
			x.passing -= n
			at += n
		case len(x.held) == 0 && len(rest) >= messagePrefix && !x.hold(rest):
			// It passes.
		default:
			if at > 0 {
				s.send(p[:at], false)
			}
			if c.generation == generation && s.conn != nil {
				p, at = rest[c.keep(rest):], 0
			}
			if c.generation != generation || s.conn == nil { // over
				return
			}
		}
	}
	switch {
	case !c.holds():
		if len(p) > 0 || end {
			s.send(p, end)
		}
	case end: // what is not whole is not for us to judge
		b := c.unhold()
		s.send(b, true)
	default:
		c.client.allow(max(x.size, messagePrefix) - len(x.held))
	}
}

// keep holds as much of p as belongs to the message in hand, and sends that once it is
// whole. It returns how much it took.
func (c *Call) keep(p []byte) int {
	x, f := c.rewriting, c.f
	want := max(x.size, messagePrefix)
	n := min(want-len(x.held), len(p))
	switch {
	case want-messagePrefix > f.config.Message:
		c.fail(tooLarge(&f.config))
		return 0
	case f.crowded(len(x.held), n):
		c.fail(crowded)
		return 0
	case len(x.held) == 0:
		if x.since = f.now; cap(x.held) < want && n >= bufferSize/16 {
			x.held = f.buffer()
		}
	}
	x.held = append(x.held, p[:n]...)
	f.stats.Buffered += n
	if len(x.held) < want {
		return n
	}
	if x.size == 0 && !x.hold(x.held) { // its prefix came in pieces
		x.passing -= messagePrefix
		c.node.send(c.unhold(), false)
	} else if len(x.held) == x.size {
		c.sendHeld()
	}
	return n
}

// sendHeld sends the message that is held, or what the Rewriter puts in its place.
func (c *Call) sendHeld() {
	x, f := c.rewriting, c.f
	b := f.buffer()
	out := x.rewriter.Rewrite(append(b, 0, 0, 0, 0, 0), x.held[messagePrefix:], x.held[0] != 0)
	held := c.unhold()
	if out == nil {
		f.Recycle(b)
		c.node.send(held, false)
		f.Recycle(held)
		return
	}
	binary.BigEndian.PutUint32(out[1:], uint32(len(out)-messagePrefix))
	c.client.credit -= len(out) - len(held) // room is counted in bytes that came
	f.Recycle(held)
	x.held = kept(held)
	c.node.send(out, false)
	f.Recycle(out)
}

// unhold hands over what is held.
func (c *Call) unhold() []byte {
	x := c.rewriting
	b := x.held
	c.f.stats.Buffered -= len(b)
	x.held, x.size = nil, 0
	return b
}
