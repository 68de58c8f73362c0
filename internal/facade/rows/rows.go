package rows

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/ingest"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Request opens a stream of rows, whatever API it came over.
type Request struct {
	Table  string
	Offset uint64
	Stream string
}

// Service are the calls that write rows into a table as they come.
type Service struct {
	core   *core.Service
	Config ingest.Config
	Engine *ingest.Engine
}

// Open makes the engine of the streams.
func (r *Service) Open(s *core.Service, cfg ingest.Config) (err error) {
	r.core, r.Config = s, cfg
	r.Engine, err = ingest.New(cfg, ingest.Deps{Tracer: s.Deps.Batches, Meter: s.Deps.Meter, Pass: s.Deps.Hold.Pass})
	return err
}

// maxStreamName bounds the name of a stream, in bytes.
const maxStreamName = 256

// Side is what an API does of a stream of rows. Its methods are called by one
// goroutine, Feed by another one.
type Side interface {
	// Opened says that the stream is open, before anything else.
	Opened(ctx context.Context) error
	// Feed adds rows until there are no more, and says why; nil: the caller has sent all.
	// pace must be told of the bytes that came; it holds an app back that sends too fast. added must be called once
	// their rows were added.
	Feed(ctx context.Context, rows *ingest.Stream, pace func(bytes int) error, added func()) error
	Progress(ctx context.Context, p ingest.Progress) error
	End(ctx context.Context, t ingest.Totals) error
}

// Run is the call Ingest. It has no deadline but the caller's: what bounds
// it are ingest.idle and the time of each batch.
func (r *Service) Run(ctx context.Context, c *core.Call, in Request, side Side) error {
	table, err := r.check(c, in)
	if err != nil {
		return err
	}
	if c.Timeout != "" {
		d, err := time.ParseDuration(c.Timeout)
		if err != nil || d <= 0 {
			return core.BadRequest("Request-Timeout: %.40q is not a duration such as \"800ms\" or \"2s\"", c.Timeout)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	if err := r.core.Fresh(c); err != nil {
		return err
	}
	by := upstream.Call{Class: c.Class, App: c.App, From: c.From, Progress: c.Progress()}
	rows, err := r.Engine.Open(ctx, ingest.Options{
		Table: table, Offset: in.Offset, App: c.App.Name(), Name: in.Stream, Sink: Sink{r.core, by},
	})
	if err != nil {
		return FaultOf(err).OfPath()
	}
	defer rows.Close()
	defer context.AfterFunc(ctx, func() {
		defer panics.Go("the end of a stream of rows")
		if errors.Is(context.Cause(ctx), core.ErrEnded) {
			rows.Cut()
		}
	})()
	if err := side.Opened(ctx); err != nil {
		return err
	}
	// A feed that is held back by a quota must not hold up the end of the stream.
	feeding, stop := context.WithCancel(ctx)
	defer stop()
	took := &intake{rows: rows}
	took.reserved.Begin(r.core.Deps.Requests, &c.App.Held, 0)
	r.core.Senders.Go(func() {
		defer took.end()
		took.over(panics.Call("the rows of a stream", func() error { return took.feed(feeding, c, side) }))
		<-feeding.Done() // until the stream is over its rows count
	})
	for {
		p, err := rows.Next(ctx)
		took.settle()
		switch {
		case err == io.EOF:
			return side.End(ctx, rows.Totals())
		case err != nil:
			return FaultOf(err)
		}
		if err := side.Progress(ctx, p); err != nil {
			return err
		}
	}
}

// check says whether a stream can be opened as its caller asks, finds its table, and sets the class of the call.
func (r *Service) check(c *core.Call, in Request) (table string, err error) {
	if table, err = r.core.Absolute(in.Table, "table"); err != nil {
		return "", err
	}
	if err := r.core.Allow(c, core.Wish{Kind: apps.Bulk, Writes: true, Table: table}); err != nil {
		return "", err
	}
	if len(in.Stream) > maxStreamName {
		return "", core.BadRequest("stream has %d bytes; at most %d are allowed", len(in.Stream), maxStreamName)
	}
	if in.Offset > ingest.MaxOffset {
		return "", core.BadRequest("offset: %d; at most %d is allowed", in.Offset, ingest.MaxOffset)
	}
	c.Class, err = core.ClassOf(c, "")
	return table, err
}

// intake counts what a stream of rows holds: the part that came last until its rows are added, and twice the rows that are
// not written yet, which are there as they came and as they go. It is safe for concurrent use.
type intake struct {
	rows *ingest.Stream

	mu       sync.Mutex // guards what follows; not held while a part waits
	reserved memguard.Reservation
	part     int // bytes of what came last; 0: its rows are added
	taken    int // bytes
}

// feed adds the rows of a stream as they come, until there are no more, and says why.
func (i *intake) feed(ctx context.Context, c *core.Call, side Side) error {
	return side.Feed(ctx, i.rows, func(n int) error {
		if err := i.take(ctx, n); err != nil {
			return err
		}
		return c.Pace(ctx, n)
	}, i.added)
}

// over ends a stream whose rows have come. err says why no more come; nil: the caller has sent all.
func (i *intake) over(err error) {
	if err == nil {
		i.rows.Finish()
	} else {
		i.rows.Stop(err)
	}
	i.added()
}

// intakeEvery is how often a part that waits for memory asks again.
const intakeEvery = 50 * time.Millisecond

// take counts a part that has come. While there is no memory for it a small one waits, as for a slow database, and a large one
// ends its stream.
func (i *intake) take(ctx context.Context, n int) error {
	for ask := i.reserved.Take; ; ask = i.reserved.TakeAgain {
		why := i.ask(n, ask)
		if n > lane.Large || why == "" {
			return core.TooMuch(why)
		}
		select {
		case <-time.After(intakeEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (i *intake) ask(n int, take func(int) string) (why string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := n + 2*i.rows.Held()
	if why = take(now - i.taken); why == "" {
		i.part, i.taken = n, now
	}
	return why
}

// added says that the rows of what came last are added.
func (i *intake) added() {
	i.mu.Lock()
	i.part = 0
	i.mu.Unlock()
	i.settle()
}

// settle gives back what is not held any more, so that a stream at rest keeps none from others.
func (i *intake) settle() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if now := i.part + 2*i.rows.Held(); now < i.taken {
		i.reserved.Take(now - i.taken)
		i.taken = now
	}
}

// end gives everything back.
func (i *intake) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reserved.Release()
}

// FaultOf finds the words for what ended a stream, or kept a row from being
// written: whatever was not acknowledged may be sent again.
func FaultOf(err error) *core.Fault {
	switch {
	case errors.Is(err, ingest.ErrDraining):
		return core.Faultf(core.CodeDraining, "this sidecar is stopping; all rows that it took are written and acknowledged")
	case errors.Is(err, ingest.ErrLimit):
		return core.Faultf(core.CodeBusy, "the limit of open streams of rows is reached (ingest.max_streams)")
	case errors.Is(err, ingest.ErrReplaced):
		return core.Faultf(core.CodeStreamEnded, "another stream of this name was opened and took the place of this one").With(
			func(f *core.Fault) { f.Safe = false },
		)
	case errors.Is(err, ingest.ErrIdle):
		return core.Faultf(core.CodeStreamEnded, "no row arrived for the longest time allowed (ingest.idle)")
	case errors.Is(err, ingest.ErrOffset):
		return core.BadRequest("offset: the stream has reached %d, the largest; number its rows from 0 again", ingest.MaxOffset)
	case errors.Is(err, ingest.ErrKey):
		return core.Faultf(core.CodeStreamEnded, "the primary key of the table has changed")
	}
	_, called := errors.AsType[*upstream.Error](err)
	_, paused := errors.AsType[*hop.PausedError](err)
	if !called && !paused && errors.Is(err, context.DeadlineExceeded) {
		return core.Faultf(core.CodeDeadline, "the deadline of the stream ended").With(func(f *core.Fault) { f.Safe = true })
	}
	return core.FaultOf(err, core.Deed{Harmless: true})
}

// Sink writes the batches of a stream.
type Sink struct {
	Core *core.Service
	by   upstream.Call // class and app of the stream
}

// Describe describes a table, from memory unless it has to be fresh.
func (k Sink) Describe(ctx context.Context, table string, fresh bool) (*Ydb_Table.DescribeTableResult, error) {
	if d, ok := k.Core.Cached.Table(table); ok && !fresh {
		return d, nil
	}
	ctx, cancel := context.WithTimeout(ctx, k.Core.Cfg.API.Timeout)
	defer cancel()
	d, err := k.Core.Describe(ctx, &core.Call{Info: new(sidecarv1.Info)}, k.by, table)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Upsert writes the rows of an encoded BulkUpsertRequest. Writing them twice is as
// good as once, so everything is retried.
func (k Sink) Upsert(ctx context.Context, request mem.Buffer) (ingest.Sent, error) {
	call := k.by
	call.Name, call.Method, call.Idempotent, call.Passed = "BulkUpsert", core.MethodBulkUpsert, true, true
	report, err := k.Core.Upsert(ctx, call, request)
	// A node answers as soon as one shard refuses its rows: those of others may still be on their way.
	sent := ingest.Sent{Attempts: report.Attempts, Unsure: report.Unsure || report.Attempts > 1}
	e, ok := errors.AsType[*upstream.Error](err)
	if !ok {
		return sent, err
	}
	sent.Unsure = sent.Unsure || e.Verdict.Unknown || e.Verdict.Retry != ydbstatus.RetryNever
	if e.Verdict.Retry == ydbstatus.RetryNever && !e.Verdict.Unknown && ofRows(e) {
		return sent, &ingest.Refused{Err: err, Scheme: e.Status == Ydb.StatusIds_SCHEME_ERROR}
	}
	return sent, err
}

// ofRows tells whether a refusal may be for the sake of single rows, or because
// there were too many.
func ofRows(e *upstream.Error) bool {
	switch e.Status {
	case Ydb.StatusIds_BAD_REQUEST, Ydb.StatusIds_GENERIC_ERROR, Ydb.StatusIds_PRECONDITION_FAILED, Ydb.StatusIds_UNSUPPORTED,
		Ydb.StatusIds_SCHEME_ERROR, Ydb.StatusIds_ABORTED:
		return true
	case Ydb.StatusIds_STATUS_CODE_UNSPECIFIED:
		return e.Code == codes.ResourceExhausted || e.Code == codes.InvalidArgument
	}
	return false
}
