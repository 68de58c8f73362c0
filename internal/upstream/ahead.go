package upstream

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

// Ahead is the first attempt of a request of one statement, begun by Client.Ahead before the Do to which it is given. Do must
// be called, once.
type Ahead struct {
	tries tries
	asked bool // the app was allowed to ask the pool, or was refused by err
	start time.Time
	by    pool.Ask
	held  *held   // nil: there was no session at once
	out   *Stream // of the statement, if it was sent
	err   error   // of the quota, or of the sending; nil: it was sent, or left to Do
}

// Via finds what carries a call to a node at once; nil: nothing does.
type Via func(cluster.NodeID) grpc.ClientConnInterface

// Ahead takes a session for a request that Do is to make, if one is idle, and sends its statement by via. It does not wait: what it
// does not come to is left to Do.
func (c *Client) Ahead(ctx context.Context, call *Call, via Via, request func() *Ydb_Query.ExecuteQueryRequest) *Ahead {
	a := new(Ahead)
	p, ok := c.pool.(interface {
		Try(pool.Ask) (*pool.Session, bool)
	})
	if !ok || call.Patient || !c.d.tickets.lasts() || c.d.deps.Scattered { // something may have to wait, or another node than the session's be chosen
		return a
	}
	a.tries.begin()
	a.asked = true
	if a.err = call.allowed(ctx); a.err != nil {
		return a
	}
	a.start = time.Now()
	a.by = call.ask(ctx, a.start)
	lease, ok := p.Try(a.by)
	if !ok {
		return a
	}
	a.held, _ = c.answered(ctx, *call, &a.tries, a.start, pool.Grant{Session: lease}, nil)
	s := a.held.s
	defer func() {
		s.via = nil
		if v := recover(); v != nil {
			s.spoiled, s.ahead, s.tries = true, nil, nil
			a.held.finish()
			panic(v) // for whoever's turn it is: its forwarder may be half changed
		}
	}()
	if cc := via(s.Node()); cc != nil {
		s.ahead, s.via, s.tries, s.effects = a, cc, &a.tries, call.Effects
		a.out, a.err = s.Execute(ctx, request())
	}
	return a
}

// Sent is the answer to the statement of a call's Ahead, if it was sent, or why it was not. False: Execute is to send it.
func (s *Session) Sent() (*Stream, bool, error) {
	a := s.ahead
	if a == nil {
		return nil, false, nil
	}
	s.ahead = nil
	return a.out, true, a.err
}

// Here reports whether Do does not wait, given an answer that has ended well, of which the messages are octets with their prefixes:
// it is a success, and nothing in it fails to be read, so that nothing is tried again.
func (a *Ahead) Here(octets []byte) bool {
	if a.out == nil || len(octets) == 0 {
		return false
	}
	for len(octets) > 0 {
		if len(octets) < protocol.PrefixSize || octets[0] != 0 {
			return false
		}
		n := uint64(binary.BigEndian.Uint32(octets[1:]))
		octets = octets[protocol.PrefixSize:]
		if uint64(len(octets)) < n || !a.out.part.plain(octets[:n]) {
			return false
		}
		octets = octets[n:]
	}
	return true
}
