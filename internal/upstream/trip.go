package upstream

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// The methods that are called, except what Client.Any is given.
var (
	methodWhoAmI      = protocol.Named("/Ydb.Discovery.V1.DiscoveryService/WhoAmI")
	methodCreateTable = protocol.Named(protocol.TableService + "CreateSession")
	methodCreate      = protocol.Named(protocol.QueryService + "CreateSession")
	methodAttach      = protocol.Named(protocol.QueryService + "AttachSession")
	methodExecute     = protocol.Named(protocol.QueryService + "ExecuteQuery")
	methodBegin       = protocol.Named(protocol.QueryService + "BeginTransaction")
	methodCommit      = protocol.Named(protocol.QueryService + "CommitTransaction")
	methodRollback    = protocol.Named(protocol.QueryService + "RollbackTransaction")
)

// trip is one call to one node, from start to end.
type trip struct {
	d      *Driver
	entry  hop.Entry
	conn   *nodeConn // a reference is held
	as     ticketSource
	method *protocol.Method
	weight
	around  bool         // not on the owner of the session: the node forwards the call
	homed   bool         // on a session
	detour  *hop.Detour  // around the owner of the session, if that is bounded; else nil
	session string       // the session's id
	tries   *tries       // of the attempt; nil for calls outside one
	app     *apps.Stripe // app that pays; nil: none
	carried
	observed
}

// carried is how a trip goes.
type carried struct {
	caller  context.Context         // as the caller gave it
	ctx     context.Context         // with headers and cancel
	cancel  context.CancelCauseFunc // nil over h2
	cause   atomic.Pointer[error]   // over h2: why it was cut; nil: it was not
	flight  flight                  // on the wire of conn
	lost    uint64                  // wire.lost at the start
	headers client.Headers          // for a line over h2
	span    trace.SpanID            // zero: the request is not recorded
}

// observed is what is known of a trip when it has ended.
type observed struct {
	start  time.Time
	first  time.Duration // to the first part; 0: none came
	server time.Duration // by the server's own clock; 0: unknown
	sent   bool          // a stream was opened
	units  uint64        // request units that the node reported
	priced bool          // it reported them
	sizes  [2]int        // bytes of request and answer
	rows   int
	peer   peer.Peer // of a unary call, set by gRPC when it ends; without Addr nothing was sent
}

// target says where a hop goes and for whom.
type target struct {
	method *protocol.Method
	weight
	home   *nodeConn // of the session's owner; nil without a session
	openTx bool      // the session has a transaction open
	id     string    // of the session
	tries  *tries
	as     ticketSource // nil: the driver's own
	app    *apps.Stripe // nil: nobody's
	here   bool         // it goes to the session's node now, or not at all
}

// start enters the node of a call and takes a connection. The error,
// an *Error, means that nothing was sent.
func (d *Driver) start(ctx context.Context, t target) (*trip, error) {
	if err := ctx.Err(); err != nil {
		return nil, unsent(ctx, t, err)
	}
	if t.as == nil {
		t.as = d.tickets
	}
	ticket, err := t.as.get(ctx) // which may wait: before the call counts for a node
	if err != nil {
		return nil, unsent(ctx, t, err)
	}
	entry, to := hop.Entry{}, hop.To{OpenTx: t.openTx}
	if t.home != nil {
		to.HomeNode = t.home.node.ID
	}
	c, node, err := hop.Reach(&d.deps.Ways, to, &entry, func() (*nodeConn, error) { return d.connFor(entry.Node, t.home) })
	if err != nil {
		return nil, unrouted(t.method, node, err, t.home != nil && !hop.Busy(err))
	}
	if t.here && entry.Around {
		d.deps.Back(&entry)
		c.drop()
		return nil, errElsewhere
	}
	h := &trip{d: d, entry: entry, conn: c, as: t.as, session: t.id, method: t.method, weight: t.weight, tries: t.tries,
		app: t.app, carried: carried{caller: ctx}, observed: observed{start: time.Now()}}
	h.around, h.homed, h.lost = entry.Around, t.home != nil, c.wire.lost.Load()
	parent := trace.SpanContextFromContext(ctx)
	if parent.IsSampled() && !parent.IsRemote() {
		h.span = tracing.NewSpanID()
	}
	if c.watched {
		h.ctx, h.cancel = context.WithCancelCause(traced(metadata.NewOutgoingContext(ctx, ticket.call), parent, h.span))
		h.flight.cut = h.cancel
	} else {
		h.ctx = ctx
		h.headers.Fields, h.headers.Once = ticket.fields(), traceHeaders(parent, h.span)
	}
	d.enter(c, &h.flight, h.start)
	h.tries.at(hop.AtNode, node)
	if h.around && !d.deps.Scattered {
		h.goAround(t.home.node.ID)
	}
	return h, nil
}

// goAround has the call end when the owner of its session has left the cluster, or when it waits for too long.
func (h *trip) goAround(owner cluster.NodeID) {
	var left bool
	if h.detour, left = h.d.detours.Begin(owner, h.d.deps.ForwardSilence, h.cut); left {
		h.cut(hop.ErrHomeNodeLeft)
	}
}

// cut ends the call for a reason, whatever its goroutine does.
func (h *trip) cut(cause error) {
	if h.cancel != nil {
		h.cancel(cause)
		return
	}
	h.cause.CompareAndSwap(nil, &cause)
	h.headers.Cancel()
}

// why is the reason of cut, or what ended the context; nil: neither.
func (h *trip) why() error {
	if h.cancel != nil {
		return context.Cause(h.ctx)
	}
	if cause := h.cause.Load(); cause != nil {
		return *cause
	}
	return nil
}

// connFor returns a connection to node with a reference: the session's own if
// it goes there and works, which serves even after the node left the view.
func (d *Driver) connFor(node cluster.NodeID, home *nodeConn) (*nodeConn, error) {
	if home != nil && home.node.ID == node && !home.wire.abandoned.Load() && home.hold() {
		return home, nil
	}
	return d.conn(node)
}

// arrived notes the time of the first part.
func (h *trip) arrived() {
	if h.first == 0 {
		h.tries.at(hop.Answering, 0)
		h.first = max(time.Since(h.start), 1)
	}
}

// price takes the request units that the node reports in the trailer of the call.
func (h *trip) price(trailer metadata.MD) {
	for _, v := range trailer[headerUnits] {
		if n, err := strconv.ParseUint(v, 10, 63); err == nil {
			h.units, h.priced = h.units+n, true
		}
	}
}

// end judges the outcome, tells everybody, and gives back what the hop held. It
// returns nil for success, else an *Error. One of end and abandon is called, once.
func (h *trip) end(err error) *Error {
	signs, e := ydbstatus.Signs{}, (*Error)(nil)
	if err != nil {
		signs, e = failure(h.caller, err, false)
		if n := h.conn.wire.lost.Load(); n != h.lost {
			signs.Lost = n
		}
		if silent, ok := errors.AsType[*client.Error](err); ok && silent.Silent && !signs.CallerGone {
			e.cause = errSilent
		}
		if !signs.CallerGone && signs.Code == codes.Canceled && h.why() == errSilent {
			signs.Code, e.Code, e.cause = codes.Unavailable, codes.Unavailable, errSilent
		}
		if cause := h.why(); !signs.CallerGone && signs.Code == codes.Canceled &&
			(cause == hop.ErrHomeNodeLeft || cause == hop.ErrUnanswered) {
			signs.Code, e.Code, e.cause = codes.Unavailable, codes.Unavailable, cause
		}
		if !signs.CallerGone && h.why() == ErrKilled {
			signs.Code, e.Code, e.cause = codes.Unavailable, codes.Unavailable, ErrKilled
		}
		signs.NotSent = signs.NotSent || (signs.Status == 0 && !h.sent && h.peer.Addr == nil)
		switch {
		case e.cause == ErrKilled:
			signs.Cause = ydbstatus.CauseProcess
		case e.cause == hop.ErrUnanswered && signs.NotSent:
			signs.Cause = ydbstatus.CauseUnknown // it was the connection to the node that was silent
		case e.cause == hop.ErrHomeNodeLeft, e.cause == hop.ErrUnanswered:
			signs.Cause = ydbstatus.CauseHomeNode
		}
	}
	h.finish(signs, e)
	return e
}

// guard runs f, which makes the call. If it panics, the call is cut and the hop ends.
func (h *trip) guard(f func() error) error {
	done := false
	defer func() {
		if !done {
			h.cut(context.Canceled)
			h.abandon()
		}
	}()
	err := f()
	done = true
	return err
}

// abandon ends a hop whose answer nobody wants any more.
func (h *trip) abandon() {
	h.finish(ydbstatus.Signs{CallerGone: true, Code: codes.Canceled}, &Error{Code: codes.Canceled, cause: context.Canceled})
}

func (h *trip) finish(signs ydbstatus.Signs, e *Error) {
	took := time.Since(h.start)
	signs.Kind, signs.Undone, signs.InParts, signs.Schema = h.kind, h.undone, h.inParts, h.schema
	if h.detour != nil {
		h.detour.End()
	}
	if h.cancel != nil {
		h.cancel(nil)
	} else if e != nil {
		h.headers.Cancel() // nothing, if it is over
	}
	h.conn.leave(&h.flight)
	h.conn.drop()
	done := hop.Done{
		Key:  hop.Key{Method: h.method, Status: signs.Status, Code: signs.Code},
		Sent: !signs.NotSent, Left: signs.CallerGone && signs.Code == codes.Canceled,
		Took: took, First: h.first, Request: h.sizes[0], Answer: h.sizes[1], App: h.app,
	}
	var meter hop.HealthReporter
	if h.homed {
		meter = h.d.meter
	}
	h.d.deps.Leave(&h.entry, &done, &signs, meter)
	if e != nil {
		e.Op, e.Node, e.Verdict, e.Sent = h.method.Name(), done.Node, done.Verdict, done.Verdict.Unknown
		e.unreached = signs.NotSent && done.Verdict.Blame == cluster.BlameTransport
		if e.Unauthorized() {
			h.as.reject()
		}
	}
	h.d.tel.hop.Add(done.Key, took)
	if h.app != nil && h.units > 0 {
		h.app.Consume(h.units)
	}
	h.tries.price(h)
	h.tries.add(Try{
		Done: done, At: &h.conn.node, Session: h.session, Around: h.around, Commits: h.kind == cluster.CallCommit,
		Span: h.span, Start: h.start, Server: h.server, Rows: h.rows,
	})
}

// unsent judges a call that ended before it had a node.
func unsent(ctx context.Context, t target, err error) *Error {
	signs, e := failure(ctx, err, false)
	signs.Kind, signs.Undone, signs.NotSent = t.kind, t.undone, true
	e.Op, e.Verdict = t.method.Name(), ydbstatus.Judge(signs)
	return e
}

// unrouted is the error of a call that found no node to go to; lost: only the owner of its session could serve it.
func unrouted(m *protocol.Method, node cluster.NodeID, err error, lost bool) *Error {
	signs := ydbstatus.Signs{Unrouted: true, HomeNodeLost: lost}
	return &Error{Op: m.Name(), Node: node, Code: codes.Unavailable, Verdict: ydbstatus.Judge(signs), unrouted: true, cause: err}
}
