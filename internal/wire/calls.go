package wire

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// seenCall is a call of an SDK that is under way, within a turn of its shard.
type seenCall struct {
	call *call
	h2.Look
	ticket h2.Ticket
	conn   uint64 // number of the client's connection
	remote string
}

// eachCall calls f with the calls of SDKs on a shard, in a turn of it. Streams that keep sessions alive are no work and are
// left out; calls of the plain API are listed by that.
func eachCall(c *h2.Conn, remote string, f func(seenCall)) {
	h2.EachCall(c, func(c2 *h2.Call, look h2.Look) {
		if k, ok := c2.Data.(*call); ok && !k.local && (k.method == nil || k.method.Role != protocol.RoleAttach) {
			f(seenCall{k, look, c2.Ticket(), c.Number(), remote})
		}
	})
}

// id names the call; shard is the number of its shard.
func (s *seenCall) id(shard int) string { return fmt.Sprintf("s%d-%d-%d", shard, s.conn, s.Stream) }

// trace is the id of the trace of the call; zero: it is not known.
func (s *seenCall) trace() trace.TraceID {
	if t := s.call.traced; t != nil && t.call.Span().IsValid() {
		return t.call.Span().TraceID()
	}
	return s.call.trace
}

func (s *seenCall) phase() hop.Phase {
	k := s.call
	switch {
	case k.paused:
		return hop.Paused
	case k.uses && k.inQueue != nil:
		return hop.InQueue
	case s.Answering:
		return hop.Answering
	case s.Sent:
		return hop.AtNode
	}
	return hop.InSidecar
}

func (s *seenCall) describe(shard int, hold *hop.Hold) hop.OpenCall {
	k := s.call
	out := hop.OpenCall{ID: s.id(shard), API: "ydb", Name: "other", Class: virtual.Class.String(), Phase: hold.Seen(s.phase()).String(),
		Age: s.Age.Milliseconds(), Node: k.at.Node, From: s.remote}
	if k.method != nil {
		out.Name = k.method.Name()
	}
	if k.app != nil {
		out.App = k.app.Name()
	}
	if id := k.statement.ID; id != 0 { // else it has no statement, or its text could not be read
		out.Digest = id.String()
	}
	if id := s.trace(); id.IsValid() {
		out.Trace = id.String()
	}
	return out
}

// eachShard calls then in a turn of each shard with the calls there that fit. A shard that gives no turn in time is left out.
func (s *Server) eachShard(fits func(shard int, one *seenCall) bool, then func(e *h2.Forwarder, shard int, found []seenCall)) {
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	for _, f := range s.shards {
		var found []seenCall
		if !f.shard.EachClient(ctx, func(c *h2.Conn, remote string) {
			eachCall(c, remote, func(one seenCall) {
				if fits(f.number, &one) {
					found = append(found, one)
				}
			})
		}, func(e *h2.Forwarder) { then(e, f.number, found) }) {
			s.unread.Add(1)
		}
	}
}

// Calls lists the calls of SDKs of an app (empty: of all) that have lasted for least, the oldest first, at most most of each
// shard. more is how many others there are. Those of a shard that gives no turn in time are left out.
func (s *Server) Calls(app string, least time.Duration, most int) (list []hop.OpenCall, more int) {
	s.eachShard(func(_ int, one *seenCall) bool {
		return one.Age >= least && (app == "" || one.call.app != nil && one.call.app.Name() == app)
	}, func(_ *h2.Forwarder, shard int, found []seenCall) {
		slices.SortFunc(found, func(a, b seenCall) int { return cmp.Compare(b.Age, a.Age) })
		more += max(0, len(found)-most)
		for _, one := range found[:min(len(found), most)] {
			list = append(list, one.describe(shard, s.deps.Hold))
		}
	})
	return list, more
}

// EndCalls ends the calls of SDKs of that id, or of the trace of that id, and returns what they were. Their nodes are told that
// they are cancelled.
func (s *Server) EndCalls(id string) (ended []hop.OpenCall) {
	s.eachShard(func(shard int, one *seenCall) bool {
		t := one.trace()
		return one.id(shard) == id || t.IsValid() && t.String() == id
	}, func(e *h2.Forwarder, shard int, found []seenCall) {
		told := make([]hop.OpenCall, len(found)) // before any ends: what a call was is gone once it has ended
		methods := make([]*protocol.Method, len(found))
		for i, one := range found {
			told[i], methods[i] = one.describe(shard, s.deps.Hold), one.call.method
		}
		for i, one := range found {
			if e.Withdraw(one.ticket, endedStatus(methods[i])) {
				ended = append(ended, told[i])
			}
		}
	})
	return ended
}

// endedStatus is the answer to a call that an operator ended: as a node's to a call that was cancelled.
func endedStatus(m *protocol.Method) *h2.Status {
	const text = "ydb-sidecar: ended by an operator"
	if m != nil {
		if body := m.Refusal(Ydb.StatusIds_CANCELLED, text); body != nil {
			return &h2.Status{Body: body, Stream: m.Rows}
		}
	}
	return &h2.Status{Code: int(codes.Canceled), Message: text}
}
