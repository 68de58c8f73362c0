package core

import (
	"context"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// Driver is what facade needs of a driver; NewDriver makes one of an
// upstream.Client, and a fake does in tests. Its errors are those of upstream
// and of the pool below it.
type Driver interface {
	// Do lends f a session until it returns, and calls it again on another one
	// when the verdict on its error allows that.
	Do(ctx context.Context, call upstream.Call, f func(context.Context, Session) error) (upstream.Report, error)
	// BeginTx is Do for f that begins a transaction: the session stays in use.
	BeginTx(ctx context.Context, call upstream.Call, f func(context.Context, Session) error) (TxSession, upstream.Report, error)
	// Any lends f a connection to any good node, with the retries of Do.
	Any(ctx context.Context, call upstream.Call, f func(context.Context, grpc.ClientConnInterface) error) (upstream.Report, error)
}

// The methods of the calls that are made through Any.
var (
	MethodBulkUpsert    = protocol.Named(protocol.TableService + "BulkUpsert")
	methodDescribeTable = protocol.Named(protocol.TableService + "DescribeTable")
)

// Session is a session while it is lent. It knows which transaction is open on
// it, and keeps itself out of further use when a call ended in the dark.
type Session interface {
	Node() cluster.NodeID
	TxID() string // of the open transaction; "" if there is none
	Execute(ctx context.Context, st upstream.Statement) (Stream, error)
	Begin(ctx context.Context, settings *Ydb_Query.TransactionSettings) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error // nil if no transaction is open any more
}

// TxSession is a session that is in use for the length of a transaction.
type TxSession interface {
	Node() cluster.NodeID
	Hash() string // a short name of the session
	// Run lets f use the session once; nothing is retried.
	Run(ctx context.Context, call upstream.Call, f func(context.Context, Session) error) (upstream.Report, error)
	// Release gives the session back. It is kept only if keep is true and nothing
	// is open on it; else it is deleted, which rolls back.
	Release(keep bool)
}

// Stream is the answer to a statement. Next returns io.EOF after the last part.
// Close ends an answer that was not read to its end.
type Stream interface {
	Next() (*upstream.Part, error) // good until the next call of either
	Close()
}

// NewDriver lets a Service use an upstream.Client.
func NewDriver(c *upstream.Client) Driver { return driver{c} }

type driver struct{ client *upstream.Client }

func (d driver) Do(ctx context.Context, call upstream.Call, f func(context.Context, Session) error) (upstream.Report, error) {
	return d.client.Do(ctx, call, asUpstream(f))
}

func (d driver) BeginTx(
	ctx context.Context, call upstream.Call, f func(context.Context, Session) error,
) (TxSession, upstream.Report, error) {
	l, report, err := d.client.BeginTx(ctx, call, asUpstream(f))
	if err != nil {
		return nil, report, err
	}
	return txSession{l}, report, nil
}

func (d driver) Any(
	ctx context.Context, call upstream.Call, f func(context.Context, grpc.ClientConnInterface) error,
) (upstream.Report, error) {
	return d.client.Any(ctx, call, f)
}

type txSession struct{ *upstream.TxSession }

func (l txSession) Node() cluster.NodeID { return l.Session().Node() }

func (l txSession) Hash() string { return l.Session().Hash() }

func (l txSession) Run(ctx context.Context, call upstream.Call, f func(context.Context, Session) error) (upstream.Report, error) {
	return l.TxSession.Run(ctx, call, asUpstream(f))
}

type session struct{ *upstream.Session }

func (s session) Execute(ctx context.Context, st upstream.Statement) (Stream, error) {
	stream, err := s.Session.Execute(ctx, st)
	if err != nil {
		return nil, err
	}
	return stream, nil
}

// Sent is Execute for a statement that was sent ahead.
func (s session) Sent() (Stream, bool, error) {
	stream, ok, err := s.Session.Sent()
	if err != nil || !ok {
		return nil, ok, err
	}
	return stream, true, nil
}

func asUpstream(f func(context.Context, Session) error) func(context.Context, *upstream.Session) error {
	return func(ctx context.Context, s *upstream.Session) error { return f(ctx, session{s}) }
}

// Note keeps where the time of a call went, and what it cost.
func (c *Call) Note(r upstream.Report) {
	c.Info.NodeId, c.Info.Attempts = uint32(r.Node), uint32(r.Attempts)
	c.Info.QueueMs, c.Info.AcquireMs = tracing.Milliseconds(r.Queue), tracing.Milliseconds(r.Acquire)
	c.Info.HopMs, c.Info.ServerMs = tracing.Milliseconds(r.Hop), tracing.Milliseconds(r.Server)
	if r.Priced {
		c.Info.ConsumedUnits = proto.Uint64(c.Info.GetConsumedUnits() + r.Units)
	}
	if !c.trace.Span().IsValid() {
		return // nobody traces
	}
	if c.reports == nil {
		c.reports = c.one[:0]
	}
	if len(c.reports) < maxReports {
		c.reports = append(c.reports, r)
	}
	if c.keep(false) {
		c.Info.TraceId = c.TraceID
	}
}
