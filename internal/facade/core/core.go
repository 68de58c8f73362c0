package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/audit"
	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/history"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/lease"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Deps are the parts that a Service works with. Driver and Database must be given.
//
// Wide: it is a flat list of what one caller gives, with one line for each.
type Deps struct {
	Driver   Driver
	Database string         // path of the database, with its leading slash
	Apps     *apps.Registry // of the callers; nil: one of its own, without limits
	// Status tells the state of the whole sidecar for the call of that name; nil
	// leaves all but the transactions out.
	Status  func() *sidecarv1.StatusResponse
	History *history.Recorder    // of all calls; nil: none
	Hold    *hop.Hold            // keeps calls from the nodes while an operator has paused them; nil: none does
	Memory  *memguard.Guard      // nil: there is always enough
	Tracer  *tracing.Tracer      // nil: no spans
	Batches trace.TracerProvider // of what is written for streams of rows; nil: no spans
	Meter   metric.MeterProvider // nil: no metrics
	Log     *slog.Logger         // nil: silence
	Access  *accesslog.Log       // nil: none
	Audit   *audit.Log           // of calls that are denied; nil: none

	Statements *statements.Recorder // nil: none
	Histogram  latency.Maker        // of what is counted with each call

	Lane     *lane.Lane       // where large requests are decoded; nil: one of its own, with a place
	Requests *memguard.Budget // what requests may take; nil: there is always enough
	Caches   int              // bytes that types, tables and plans that are remembered may take; 0: 16 MiB
}

// Service runs the calls of both APIs. It is safe for concurrent use.
type Service struct {
	Cfg    Config
	Deps   Deps
	gate   *gate
	Tx     transactions
	Other  otherProcess
	Cached *caches
	// Deprecated is what callers are told not to use.
	Deprecated Deprecated
	large      *lane.Door // of large requests
	tel        *telemetry
	counts     counts
	meter      *history.Meter // nil: none

	stripes []*statements.Stripe // count statements

	Client  *upstream.Client // is inside Driver; nil: Driver is of another kind, and no call is inline
	Senders sync.WaitGroup   // goroutines that end with handlers: they send and receive for streams, and end transactions
}

// New fills in what deps leave out. cfg is valid.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Meter == nil {
		deps.Meter = noopmetric.NewMeterProvider()
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Apps == nil {
		var err error
		if deps.Apps, err = apps.New(apps.Default(), deps.Log); err != nil {
			return nil, err
		}
	}
	if deps.Lane == nil {
		deps.Lane = lane.New(1)
	}
	tel := newTelemetry(deps.Tracer, deps.Histogram, deps.Database)
	s := &Service{
		Cfg: cfg, Deps: deps, tel: tel,
		gate:   newGate(cfg.API.MaxOpen),
		Cached: newCaches(cfg.API, cmp.Or(deps.Caches, maxCaches)),
		large:  deps.Lane.NewDoor(), stripes: newStripes(deps.Statements, runtime.GOMAXPROCS(0)),

		Deprecated: deprecated,
	}
	s.Tx.leases = lease.New[*transaction, stored](cfg.Tx, func(t *transaction, why lease.Reason) { t.end(why, s) })
	s.Other.core, s.Tx.core = s, s
	if d, ok := deps.Driver.(driver); ok {
		s.Client = d.client
	}
	if deps.History != nil {
		s.meter = deps.History.NewMeter()
	}
	return s, nil
}

// Run ends transactions whose time is up and forgets what the caches need not
// keep, until ctx ends; then it rolls back every transaction that is left, calls closing, and waits for what handlers have
// started. Calls that are still open then must have been cut by Drain or by their servers.
func (s *Service) Run(ctx context.Context, closing func()) error {
	var wg sync.WaitGroup
	s.Cached.run(ctx, &wg)
	err := s.Tx.leases.Run(ctx)
	wg.Wait()
	closing()
	s.Senders.Wait()
	return err
}

// RefuseNew refuses whatever would begin something new from now on.
func (s *Service) RefuseNew() { s.gate.drain() }

// Drain waits, after refuseNew, until no call and no transaction is open or ctx ends. Then it cuts off the calls, calls cut, and
// rolls back the transactions that are left. It returns within about CutLimit of the end of ctx.
// The error, if any, says how many of each.
func (s *Service) Drain(ctx context.Context, cut func()) error {
	err := s.Tx.leases.Drain(ctx)
	if err == nil {
		err = s.gate.wait(ctx)
	}
	transactions := s.Tx.leases.Size()
	calls := s.gate.cutAll()
	cut()
	limited, cancel := context.WithTimeout(context.Background(), CutLimit)
	defer cancel()
	closed, over := context.WithCancel(context.Background())
	s.Senders.Go(func() {
		defer over()
		defer panics.Go("the end of all transactions")
		s.Tx.leases.Close()
	})
	late := s.gate.wait(limited)
	select {
	case <-closed.Done():
	case <-limited.Done():
		late = limited.Err()
	}
	// A process that stood still is late though nothing was cut off and nothing is left.
	if state := s.State(); late != nil && calls+transactions+state.OpenCalls+state.Transactions > 0 {
		return fmt.Errorf("facade: %d calls and %d transactions cut off; %d calls and %d transactions did not end within %v",
			calls, transactions, state.OpenCalls, state.Transactions, CutLimit)
	}
	if err == nil || calls+transactions == 0 {
		return nil
	}
	return fmt.Errorf("facade: %d calls cut off and %d transactions rolled back: %w", calls, transactions, err)
}

// CutLimit is how long a call may take to return once it was cut off: its server
// ends what is left.
const CutLimit = time.Second

// State is what admin shows of the API.
type State struct {
	OpenCalls    int    `json:"open_calls"`
	PeakCalls    int    `json:"peak_calls"`
	Calls        uint64 `json:"calls"`       // that were let in
	Refused      uint64 `json:"refused"`     // for the limit of open calls, or while draining
	HandedOver   uint64 `json:"handed_over"` // calls for transactions of the process that this one replaces, or that replaces it
	Draining     bool   `json:"draining"`
	Transactions int    `json:"transactions"` // open ones
	Counts
}

// State returns the counters of this moment.
func (s *Service) State() State {
	s.gate.mu.Lock()
	state := State{
		OpenCalls: s.gate.open, PeakCalls: s.gate.peak, Calls: s.gate.total,
		Refused: s.gate.refused, Draining: s.gate.draining,
	}
	s.gate.mu.Unlock()
	state.Transactions, state.HandedOver, state.Counts = s.Tx.leases.Size(), s.Other.handed.Load(), s.counts.read()
	return state
}

// TransactionState is one open transaction, without its token.
type TransactionState struct {
	Node    uint32 `json:"node_id"`
	Session string `json:"session"` // short hash, as in /state/sessions
	App     string `json:"app"`
	Trace   string `json:"trace_id,omitempty"` // of the call that began it
	Mode    string `json:"mode"`
	Seq     uint64 `json:"seq"`
	Age     int64  `json:"age_ms"`
	Expires int64  `json:"expires_ms"`
	Busy    bool   `json:"busy"`
}

// Transactions lists the open transactions, oldest first.
func (s *Service) Transactions() []TransactionState {
	infos, values := s.Tx.leases.All()
	out := make([]TransactionState, 0, len(infos))
	for i, info := range infos {
		t := TransactionState{Seq: info.Seq, Age: info.Age.Milliseconds(), Expires: info.Expires.Milliseconds(), Busy: info.Busy}
		if v := values[i]; v != nil { // nil while it waits for its session
			t.Node, t.Session, t.Mode, t.App, t.Trace = uint32(v.node), v.hash, v.mode.name, v.app, v.trace
		}
		out = append(out, t)
	}
	return out
}

// Route is a method and a path of the HTTP API.
type Route struct{ Method, Path string }

// OfTx reports whether the calls are about the open transaction alone that their path names. They are let in whatever others hold:
// what waits for a session waits for its end.
func (rt *Route) OfTx() bool { return strings.Contains(rt.Path, "{id}") }

// Call is one call over either API, on its way through.
type Call struct {
	Name     string          // of the gRPC method
	Timeout  string          // from a header; the shorter of this and the request's own counts
	Priority string          // from a header; the request's own field wins
	SQL      string          // the statement, or the first of more
	Info     *sidecarv1.Info // points to told, which saves an allocation
	told     sidecarv1.Info
	Caller   apps.Caller
	From     uint64               // a number for its connection; 0: unknown
	Reserved memguard.Reservation // of the memory for requests
	Large    bool                 // its request is: see inLane
	admission
	deprecation *Deprecation // of what it uses; nil: nothing that it uses is deprecated
	overHTTP
	traced
}

// admission is how a call was let in, and what its app is charged for.
type admission struct {
	App      *apps.Stripe     // of the caller, once it has entered
	Class    pool.Class       // once begin or freshEarly was called
	Coming   bool             // when it is let in, its body is still to come
	Begun    *callctx.Context // context of a call that is an InlineCall; nil: another call
	Work     *callctx.Context // the same of what it waits for, which has a deadline and ends with Begun
	open     admittedCall
	shown    shown
	entered  bool         // App counts it
	lowered  bool         // it asked for a class above that of its app, which is counted once
	admitted bool         // as fresh
	bytes    atomic.Int64 // of request and answer
	cut      atomic.Bool  // the reply lacks rows, because a limit was reached
}

// overHTTP is what only a call over HTTP has.
type overHTTP struct {
	Route  *Route // nil: over gRPC
	Status int    // once a head has gone out
	URL    string // the path
	TLS    bool
}

// traced is what is noted of a call for its spans.
type traced struct {
	TraceID    string // "": there is nothing to be found
	Collection string // the table of the key-value API
	began      time.Time
	tel        *telemetry
	trace      tracing.Call
	asked      bool          // whether to record it
	kept       bool          // it is recorded
	leadsTo    trace.TraceID // zero: there is nothing to be found
	handed     bool          // over to the other process
	opens      bool          // it opens txTrace's transaction
	txTrace    *txTrace      // of the transaction that it is part of; nil: of none
	reports    []upstream.Report
	one        [1]upstream.Report // room for what most calls need
}

// Serve runs f as one call: counted, bounded, traced, measured. What f returns
// comes out as a fault. in is the caller's context with its trace context.
func (s *Service) Serve(in context.Context, c *Call, f func(context.Context) error) *Fault {
	ctx, err := s.enter(in, c)
	if err == nil {
		err = c.run(func() error { return f(ctx) })
	}
	return s.end(ctx, c, err)
}

// enter lets a call in. end must be called, also with its error.
func (s *Service) enter(in context.Context, c *Call) (ctx context.Context, err error) {
	in = s.tel.begin(in, c)
	c.Info = &c.told
	c.Info.TraceId = c.TraceID
	if ctx, err = s.gate.enter(in, c); err != nil {
		return in, err
	}
	if c.App, err = s.Deps.Apps.Enter(c.Caller, 0); err != nil {
		return ctx, err
	}
	c.shown.app.Store(c.App)
	c.entered = true
	c.Reserved.Begin(s.Deps.Requests, &c.App.Held, c.From)
	return ctx, nil
}

// Came says that all of a call is here, or why it cannot go on.
func (s *Service) Came(c *Call) error { return s.gate.came(&c.open) }

// run runs a part of a call that was let in.
func (c *Call) run(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = FaultOf(panics.Caught("a call of the plain API", v), Deed{Harmless: c.looks()})
		}
	}()
	return f()
}

// end gives back the places of a call, whatever it has come to, and tells everybody what came of it.
func (s *Service) end(ctx context.Context, c *Call, err error) *Fault {
	var out *Fault
	if err != nil {
		out = s.Told(ctx, c, err)
	}
	if c.entered {
		c.depart(err != nil)
		c.Reserved.Release()
	}
	if c.open.of != nil {
		s.gate.leave(&c.open)
	}
	took := time.Since(c.began)
	s.counts.count(c, out)
	s.tel.finish(c, out, took)
	s.logCall(c, out, took)
	s.remember(c, out, took)
	if out != nil && out.Code == CodeInternal {
		s.Deps.Log.ErrorContext(ctx, "a call failed for a reason that callers are not told", "call", c.Name, "trace_id",
			c.TraceID, "err", cmp.Or(out.Cause, errUntold))
	}
	return out
}

// errUntold is logged as the cause of a fault that has only a message: the message may quote a statement, which the log
// must not show.
var errUntold = errors.New("only its answer says why")

// looks reports whether the call changes nothing, whatever it says.
func (c *Call) looks() bool {
	switch c.Name {
	case "GetTransaction", "Describe", "Explain", "Status", "Version", "OpenAPI", CallKVGet, CallKVBatchGet:
		return true
	}
	return false
}
