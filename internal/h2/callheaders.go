package h2

import (
	"bytes"
	"time"
)

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

// inHand is what a Router sees of the call that it is asked about: the headers, and the start of the request's body, which the
// Forwarder has while it asks.
type inHand struct{ f *Forwarder }

// Path returns "/service/method", valid until Route returns.
func (c *inHand) Path() []byte { return c.Header(namePath) }

// Authority returns the host that the client named, valid until Route returns.
func (c *inHand) Authority() []byte { return c.Header(nameAuthority) }

// Header returns the first value of a header, or nil; valid until Route or Answer returns.
func (c *inHand) Header(name Name) []byte {
	fd := c.f.block.find(name)
	if fd == nil {
		return nil
	}
	return c.f.memos[name].text(fd)
}

// Headers calls f with each header in turn. What it is given is valid until f returns.
func (c *inHand) Headers(f func(name, value []byte)) {
	Headers{c.f}.Each(f)
}

// Values calls f with each value of a header in turn. What it is given is valid until f returns.
func (c *inHand) Values(name Name, f func(value []byte)) {
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
func (c *inHand) Version(name Name) uint64 {
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
func (c *inHand) Repeated(name Name) bool {
	return c.f.block.again.has(name)
}

// memo remembers the text of the last value of a header, which is mostly the same from
// call to call: making text of Huffman codes was 6 % of a call for the path alone.
type memo struct {
	raw, plain []byte
	version    uint64 // of raw and plain, from 2
}

func (m *memo) text(fd *field) []byte {
	if fd.kind == kindStatic {
		return []byte(staticTable[fd.static].value) // "/": not gRPC's
	}
	if !bytes.Equal(m.raw, fd.value) {
		m.raw, m.plain = append(m.raw[:0], fd.value...), appendText(m.plain[:0], fd.value)
		m.version = max(m.version, 1) + 1
	}
	return m.plain[:len(m.plain):len(m.plain)]
}

// Set replaces or adds a header whose value recurs from call to call.
func (c *inHand) Set(name Name, value []byte) { c.f.edit(name, value, kindIndexed) }

// SetOnce replaces or adds a header whose value is this call's own.
func (c *inHand) SetOnce(name Name, value []byte) { c.f.edit(name, value, kindOnce) }

// Remove removes a header.
func (c *inHand) Remove(name Name) {
	if c.f.block.find(name) != nil || edited(c.f.edits, name) {
		c.f.edits = append(c.f.edits, edit{name: name})
	}
}

func (h *hand) edit(name Name, value []byte, kind uint8) {
	at := len(h.strings)
	h.strings = appendString(h.strings, h.words.texts[name])
	mid := len(h.strings)
	h.strings = appendString(h.strings, value)
	e := edit{name, field{kind: kind, id: name, name: h.strings[at:mid:mid], value: h.strings[mid:len(h.strings):len(h.strings)],
		size: uint32(32 + len(h.words.texts[name]) + len(value))}, true}
	if kind == kindIndexed {
		e.field.setHash()
	}
	h.edits = append(h.edits, e)
}

// Timeout returns the time the client gives the call, or false.
func (c *inHand) Timeout() (time.Duration, bool) {
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
