package upstream

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
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
	err   error   // why it was not; nil: it was left to Do
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
	if !ok || call.Patient || c.d.tickets.working() == nil {
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
	a.held = c.took(ctx, *call, &a.tries, pool.Grant{Session: lease}, a.start)
	s := a.held.s
	if cc := via(s.Node()); cc != nil {
		s.ahead, s.via, s.tries, s.effects = a, cc, &a.tries, call.Effects
		defer func() {
			if v := recover(); v != nil {
				s.spoiled, a.err = true, panics.Caught("work on a session", v)
			}
			s.via = nil
		}()
		a.out, a.err = s.Execute(ctx, request())
	}
	return a
}

// Sent is the answer to the statement of a call's Ahead, if it was sent, or why it was not. False: Execute is to send it.
func (s *Session) Sent() (*Stream, error, bool) { //nolint:staticcheck // ok goes last
	a := s.ahead
	if a == nil {
		return nil, nil, false
	}
	s.ahead = nil
	return a.out, a.err, true
}

const messagePrefix = 5 // flag and length before a message of gRPC

// Succeeded reports whether messages of an answer to a statement, with their prefixes, are whole, and all of them say so.
func Succeeded(octets []byte) bool {
	if len(octets) == 0 {
		return false
	}
	for len(octets) > 0 {
		if len(octets) < messagePrefix || octets[0] != 0 {
			return false
		}
		n := uint64(binary.BigEndian.Uint32(octets[1:]))
		octets = octets[messagePrefix:]
		if uint64(len(octets)) < n || !success(octets[:n]) {
			return false
		}
		octets = octets[n:]
	}
	return true
}

// success reports whether the status of a part is SUCCESS.
func success(part []byte) bool {
	const fieldStatus = 1 // of ExecuteQueryResponsePart
	last := uint64(0)
	for len(part) > 0 {
		number, typ, n := protowire.ConsumeTag(part)
		if n < 0 {
			return false
		}
		size := protowire.ConsumeFieldValue(number, typ, part[n:])
		if size < 0 {
			return false
		}
		if number == fieldStatus && typ == protowire.VarintType {
			last, _ = protowire.ConsumeVarint(part[n:])
		}
		part = part[n+size:]
	}
	return last == uint64(Ydb.StatusIds_SUCCESS)
}
