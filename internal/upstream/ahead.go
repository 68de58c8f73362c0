package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Ahead is the first attempt of a request of one statement, begun by Client.Ahead before the Do or Lease to which it is given, or by
// Leased.Ahead before the Run. That must be called, once.
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
	whole := false
	defer func() {
		if !whole {
			a.held.finish()
		}
	}()
	a.send(ctx, a.held.s, call.Effects, via, request)
	whole = true
	return a
}

// Ahead is Client.Ahead for a statement on the leased session.
func (l *Leased) Ahead(ctx context.Context, call *Call, via Via, request func() *Ydb_Query.ExecuteQueryRequest) *Ahead {
	a, d, s := new(Ahead), l.c.d, l.held.s
	if !d.tickets.lasts() || d.deps.Scattered || d.outOfUse(s.Node()) {
		return a
	}
	a.tries.begin()
	a.send(ctx, s, call.Effects, via, request)
	return a
}

// errElsewhere says that a call was not sent because it has to go to another node than its session's.
var errElsewhere = errors.New("upstream: another node has to be asked")

// send sends a statement by via. What would have to wait is left to whoever has the session next.
func (a *Ahead) send(ctx context.Context, s *Session, effects yql.Effects, via Via, request func() *Ydb_Query.ExecuteQueryRequest) {
	spoiled := s.spoiled
	defer func() {
		s.via = nil
		if v := recover(); v != nil {
			s.spoiled, s.ahead, s.tries = true, nil, nil
			panic(v) // for whoever's turn it is: its forwarder may be half changed
		}
	}()
	cc := via(s.Node())
	if cc == nil {
		return
	}
	s.ahead, s.via, s.tries, s.effects = a, cc, &a.tries, effects
	a.out, a.err = s.Execute(ctx, request())
	if e, ok := errors.AsType[*Error](a.err); a.err == errElsewhere || ok && e.unreached && s.tx != "" {
		s.ahead, s.spoiled, a.err = nil, spoiled, nil // see Session.again
	}
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

// Here reports whether what is left to do waits for nothing, given an answer that has ended well, of which the messages are octets with
// their prefixes: it is a success, nothing in it fails to be read, so that nothing is tried again, and it leaves a transaction open if the
// statement was to, and no other one.
func (a *Ahead) Here(octets []byte) bool {
	if a.out == nil || len(octets) == 0 {
		return false
	}
	open, control := false, a.out.control
	for len(octets) > 0 {
		if len(octets) < protocol.PrefixSize || octets[0] != 0 {
			return false
		}
		n := uint64(binary.BigEndian.Uint32(octets[1:]))
		octets = octets[protocol.PrefixSize:]
		if uint64(len(octets)) < n {
			return false
		}
		plain, tx := a.out.part.plain(octets[:n])
		if !plain {
			return false
		}
		open = open || tx
		octets = octets[n:]
	}
	return open == (control != nil && !control.GetCommitTx())
}
