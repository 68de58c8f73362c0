package h2

import "time"

// Look is what can be seen of a call of a client.
type Look struct {
	Age       time.Duration
	Stream    uint32 // number on the client's connection
	Sent      bool   // a node has it
	Answering bool   // bytes of the answer have come
}

// EachCall calls f with the calls of a client's connection that the router knows. f must not end any: see Withdraw.
func EachCall(c *Conn, f func(*Call, Look)) {
	for _, s := range c.streams.slots {
		if s != nil && s.isClient && s.call.routed {
			o := &s.call.outcome
			f(s.call, Look{Age: c.f.now - o.Began, Stream: s.id, Sent: o.Forwarded != 0, Answering: o.Answer > 0})
		}
	}
}

// Withdraw ends a call as if its client had cancelled it, and tells the client st. A client that leaves a part of an answer
// unread learns of a reset in place of st. False: the call is over.
func (f *Forwarder) Withdraw(t Ticket, st *Status) bool {
	c := t.call
	if c == nil || c.f != f || c.generation != t.generation || c.own != nil {
		return false
	}
	if c.outcome.End == Answered && !c.node.gotEnd {
		c.outcome.End = Cancelled
	}
	c.abandon(st)
	f.resumeWaiting()
	return true
}
