package h2

import (
	"encoding/binary"
	"time"
)

// End says how a call ended.
type End uint8

// The ways in which calls end.
const (
	Answered   End = iota // by the node
	Refused               // here, or by the node, and surely not executed
	Cancelled             // by the client, or its connection was lost
	Expired               // the client's deadline passed, or Config.HoldTimeout, before there was a whole answer
	Broken                // by the node's RST_STREAM, or against the protocol
	Lost                  // the node's connection was lost (Conn.Err says how); it may have been executed
	AnsweredBy            // the sidecar itself
	numEnds
)

// String returns the name used as a metric's label.
func (e End) String() string {
	return [...]string{"answered", "refused", "cancelled", "expired", "broken", "lost", "sidecar"}[e]
}

// Outcome is what became of a call. The node's transport was at fault if it was Broken
// or Lost. Times are as told to Advance; 0: did not happen.
type Outcome struct {
	End    End
	Status int // of gRPC; -1: none
	// Undecoded says that the node could not decode the request: its bytes are the caller's.
	Undecoded bool
	// Of a request that Call.Check has judged: Partial says that the node had no more than a part of it when
	// it answered, or when the call ended without an answer, or that it ended without a message; Packed that it
	// had a compressed message.
	Partial, Packed bool

	Request   int // bytes of body from the client
	Answer    int // bytes of body from the node
	Began     time.Duration
	Forwarded time.Duration
	FirstByte time.Duration // of the answer
	Ended     time.Duration
	Node      *Conn // it was forwarded to; nil: none

	head    [headSize]byte
	headLen uint8
	rest    rest
}

// rest follows the messages of a body.
type rest struct {
	left    uint32 // bytes of the message under way that are still to come
	prefix  [messagePrefix]byte
	prefixN uint8 // bytes of the prefix that are here
}

func (r *rest) skip(p []byte) {
	for len(p) > 0 {
		if r.left > 0 {
			n := min(int(r.left), len(p))
			r.left, p = r.left-uint32(n), p[n:]
			continue
		}
		n := copy(r.prefix[r.prefixN:], p)
		r.prefixN, p = r.prefixN+uint8(n), p[n:]
		if r.prefixN == messagePrefix {
			r.left, r.prefixN = binary.BigEndian.Uint32(r.prefix[1:]), 0
		}
	}
}

// none reports whether the body has ended with a message, so far.
func (r *rest) none() bool { return r.left == 0 && r.prefixN == 0 }

// headSize is how much of an answer's body is remembered: the prefix of a message
// and, of YDB's messages, the status and the start of the first issue.
const headSize = 240

// Head returns the first bytes of the answer's body, with the prefix of its first message.
func (o *Outcome) Head() []byte { return o.head[:o.headLen] }

// NotRun reports that the call was surely not executed: it may be sent again.
func (o *Outcome) NotRun() bool { return o.End == Refused || o.Node == nil }
