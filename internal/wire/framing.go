package wire

import (
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// Requests are judged as they pass, because nodes answer broken ones with the codes that also say that the
// node is broken: a client with a fault would have healthy nodes ejected.

// errNotPacked is what a client is told that sends a compressed message and does not say how it is compressed.
var errNotPacked = &h2.Status{Code: int(codes.Internal), Message: "grpc: compressed flag set with identity or empty encoding"}

// rulesOf are what a request must be like; m is nil for a method that is not known. Which encodings there are
// is for the node to say.
func rulesOf(c *h2.Call, m *protocol.Method) h2.Rules {
	r := h2.Rules{One: m != nil && !m.Many, Most: mostBytes}
	switch string(c.Header(headerEncoding)) {
	case "", "identity":
		r.Packed = errNotPacked
	}
	return r
}

// aboutRequest reports whether what a node said may be about the bytes of the request, and then blames no node:
// the request could not be decoded, only a part of it had come, or it holds a compressed message. Those are
// inflated here only if they name a session, so nobody knows whether the others can be. UNAVAILABLE counts: no
// server says so of a request. A node that is at fault is found by its other calls and by probes.
func aboutRequest(o *h2.Outcome, s ydbstatus.Signs) bool {
	switch {
	case o.Undecoded:
		return true
	case o.End == h2.Broken: // so end streams of servers in C++ that have answered
		return o.Packed
	}
	return o.End == h2.Answered && (o.Partial || o.Packed) && s.Status == 0 && s.Code != codes.OK && s.Code != codes.Unavailable
}
