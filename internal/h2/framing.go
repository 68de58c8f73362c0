package h2

import (
	"encoding/binary"
	"fmt"
)

// Rules are what a request must be like, message by message, while its bytes go to the node.
type Rules struct {
	One    bool    // exactly one message; else any number of them
	Most   int     // bytes that a message may have
	Packed *Status // what a client is told whose message is compressed; nil: compressed messages go on as they came
}

// Check has a request judged as its bytes go to the node. One that breaks the rules, or that ends
// within a message, ends its call with the status that a server of gRPC gives.
func (c *Call) Check(r Rules) { c.framing.Rules, c.framing.on = r, true }

// framing follows the messages of a request: a flag, a length and as many bytes,
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. It keeps none of them.
type framing struct {
	Rules
	on      bool
	began   bool // a message has
	packed  bool // a compressed one was let pass
	prefixN uint8
	prefix  [messagePrefix]byte // as much of it as is here
	left    uint32              // bytes still to come of the message under way
}

// What servers of gRPC say of such requests, in C++ (frame_data.cc, message_size_filter.cc) or in Go.
var (
	cutMessage  = &Status{Code: internal, Message: "Truncated message: the request ends within it"}
	noMessage   = &Status{Code: internal, Message: "cardinality violation: received no request message from non-client-streaming RPC"}
	twoMessages = &Status{Code: internal, Message: "cardinality violation: received multiple request messages for non-client-streaming RPC"}
)

func tooLong(size uint32, most int) *Status {
	return &Status{Code: resourceExhausted, Message: fmt.Sprintf("Received message larger than max (%d vs. %d)", size, most)}
}

// see looks at more bytes of the request.
func (x *framing) see(p []byte) *Status {
	for len(p) > 0 {
		if x.left > 0 {
			n := min(int(x.left), len(p))
			x.left, p = x.left-uint32(n), p[n:]
			continue
		}
		if x.prefixN == 0 {
			if st := x.begin(p[0]); st != nil {
				return st
			}
		}
		n := copy(x.prefix[x.prefixN:], p)
		if x.prefixN, p = x.prefixN+uint8(n), p[n:]; x.prefixN < messagePrefix {
			return nil
		}
		size := binary.BigEndian.Uint32(x.prefix[1:])
		if uint64(size) > uint64(x.Most) {
			return tooLong(size, x.Most)
		}
		x.left, x.prefixN = size, 0
	}
	return nil
}

// begin looks at the flag of a message.
func (x *framing) begin(flag byte) *Status {
	switch {
	case x.One && x.began:
		return twoMessages
	case flag > 1:
		return &Status{Code: internal, Message: fmt.Sprintf("Bad GRPC frame type 0x%02x", flag)}
	case flag == 1 && x.Packed != nil:
		return x.Packed
	}
	x.began, x.packed = true, x.packed || flag == 1
	return nil
}

// between reports whether no message is under way.
func (x *framing) between() bool { return x.left == 0 && x.prefixN == 0 }

// end looks at the request when all of it has come.
func (x *framing) end() *Status {
	switch {
	case !x.between():
		return cutMessage
	case x.One && !x.began:
		return noMessage
	}
	return nil
}

// takes shows bytes of the request to the call's observer and judges them. end: they are the last. False:
// that has ended the call.
func (c *Call) takes(p []byte, end bool) bool {
	if !c.observe(true, p) {
		return false
	}
	x := &c.framing
	if !x.on || c.node.gotEnd { // what comes behind the answer changes nothing
		return true
	}
	st := x.see(p)
	if st == nil && end {
		st = x.end()
	}
	if st != nil {
		c.outcome.Partial = true
		c.fail(st)
	}
	return st == nil
}

// hopeless is what is wrong with the first message of a call that waits for more of it.
func (c *Call) hopeless() *Status {
	if !c.framing.on {
		return nil
	}
	x, first := c.framing, c.f.message
	if len(first) >= messagePrefix {
		first = first[:min(len(first), sizeOf(first))]
	}
	st := x.see(first)
	if st == nil && c.client.gotEnd {
		st = x.end()
	}
	return st
}

// judged notes in the outcome what is known of the request when the node's part in it is over.
func (c *Call) judged() {
	x, o := &c.framing, &c.outcome
	empty := c.client.gotEnd && !x.began // also of a stream, which few methods have any use for
	o.Partial, o.Packed = o.Partial || x.on && (empty || x.end() != nil), x.packed
}
