// Package facade is the plain API: SQL for apps that know nothing of sessions,
// nodes and retries, with one set of semantics and two APIs: gRPC
// (sidecar.v1.Sidecar, sidecar.v1.KeyValue, sidecar.v1.Ingest) and HTTP/JSON.
//
// It owns the settings of the plain API, and composes the packages below it:
// core runs the calls, kv serves rows by key, rows serves streams of rows, and
// grpcapi and httpapi have the forms of calls over gRPC and over HTTP. Sessions,
// retries and nodes are the driver's.
//
// What always holds:
//
//   - Both APIs run the same code between decoding and encoding; one table of
//     cases is run over both (package contract).
//   - Every call that has come whole counts against api.max_open, every call is noted so that it can become spans
//     when it has ended, and its cancel goes down with its context. All but streams of rows have a deadline.
//   - The text that goes to the database is the caller's, byte for byte; the
//     key-value calls have texts of their own, of the settings alone. Neither
//     texts nor parameters are logged or traced.
//   - A numbered statement of a transaction runs at most once. A transaction that
//     no call finishes is rolled back, and its session freed.
//   - Nothing of a streamed result is held beyond one part of the answer.
//   - Every error says whether nothing was kept or the outcome is unknown.
package facade

import (
	"context"
	"errors"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/grpcapi"
	"github.com/ydb-sidecar/sidecar/internal/facade/httpapi"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/facade/rows"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/ingest"
	"github.com/ydb-sidecar/sidecar/internal/lease"
	"github.com/ydb-sidecar/sidecar/internal/loopback"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// Config holds the settings api.*, kv.*, tx.*, ingest.* and http.*.
type Config struct {
	API    core.API       `yaml:"api"`
	KV     kv.Config      `yaml:"kv"`
	Tx     lease.Config   `yaml:"tx"`
	Ingest ingest.Config  `yaml:"ingest"`
	HTTP   httpapi.Config `yaml:"http"`
}

// Default returns the settings of a fresh installation.
func Default() Config {
	return Config{
		API:    core.DefaultAPI(),
		KV:     kv.Default(),
		Tx:     lease.Default(),
		Ingest: ingest.Default(),
	}
}

// Validate names every setting that cannot work.
func (c Config) Validate() error {
	errs := []error{config.Under("api.", c.API.Validate()), config.Under("kv.", c.KV.Validate()), config.Under("tx.", c.Tx.Validate()),
		config.Under("ingest.", c.Ingest.Validate())}
	if _, err := loopback.New(c.HTTP.Hosts); err != nil {
		errs = append(errs, config.Faultf("http.hosts", ": %w", err))
	}
	return errors.Join(errs...)
}

// Service is the plain API. It is safe for concurrent use.
type Service struct {
	core *core.Service
	kv   kv.Service
	rows rows.Service
	grpc grpcapi.API
	http httpapi.API
}

// New returns a service that serves as soon as it is registered; Run must be
// running for transactions to expire. Errors are those of Config.Validate, of
// instruments that cannot be made, and of tables of kv.tables outside of the database.
func New(cfg Config, deps core.Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	calls, err := core.New(core.Config{API: cfg.API, Tx: cfg.Tx}, deps)
	if err != nil {
		return nil, err
	}
	s := &Service{core: calls}
	if err := s.kv.Open(calls, cfg.KV); err != nil {
		return nil, err
	}
	if err := s.rows.Open(calls, cfg.Ingest); err != nil {
		return nil, err
	}
	s.grpc.Open(calls, &s.kv, &s.rows)
	if err := s.http.Open(calls, &s.kv, &s.rows, cfg.HTTP); err != nil {
		return nil, err
	}
	return s, nil
}

// Run ends transactions whose time is up and forgets what the caches need not
// keep, until ctx ends; then it rolls back every transaction that is left. Calls
// that are still open then must have been cut by Drain or by their servers.
func (s *Service) Run(ctx context.Context) error { return s.core.Run(ctx, s.rows.Engine.Close) }

// Drain refuses whatever would begin something new, waits until no call and no
// transaction is open or ctx ends, and then cuts off the calls and rolls back the
// transactions that are left. It returns within a little more than a second of the end of ctx.
// The error, if any, says how many of each.
func (s *Service) Drain(ctx context.Context) error {
	s.core.RefuseNew()
	s.rows.Engine.Drain()
	return s.core.Drain(ctx, s.rows.Engine.Cut)
}

// State returns the counters of this moment.
func (s *Service) State() core.State { return s.core.State() }

// Calls lists the open calls of an app (empty: of all) that have lasted for least, the oldest first, at most most of them.
// more is how many others there are.
func (s *Service) Calls(app string, least time.Duration, most int) (list []hop.OpenCall, more int) {
	return s.core.Calls(app, least, most)
}

// EndIdleTransaction ends the transaction that has the session of that hash, unless a call of it runs: then the call fails and ends it.
func (s *Service) EndIdleTransaction(session string) { s.core.Tx.EndIdle(session) }

// EndCalls ends the open calls of that id, or of the trace of that id, and returns what they were.
func (s *Service) EndCalls(id string) []hop.OpenCall { return s.core.EndCalls(id) }

// Transactions lists the open transactions, oldest first.
func (s *Service) Transactions() []core.TransactionState { return s.core.Transactions() }

// Streams lists the open streams of rows, oldest first.
func (s *Service) Streams() []ingest.State { return s.rows.Engine.State() }

// EndUnused rolls back every transaction for which nothing is sent within the time after from now on, if tx.idle does not do so before.
func (s *Service) EndUnused(after time.Duration) { s.core.EndUnused(after) }

// Instance names this process in the ids of its transactions.
func (s *Service) Instance() string { return s.core.Instance() }

// SetOther makes calls for transactions of the other process go to it; nil ends that.
func (s *Service) SetOther(p *core.OtherProcess) { s.core.SetOther(p) }

// Register makes the gRPC API known to a server made with ServerOptions.
func (s *Service) Register(r grpc.ServiceRegistrar) { s.grpc.Register(r) }

// Unary calls each with every method of the gRPC API that has one request and one answer:
// its path, and what runs it as a server would.
func (s *Service) Unary(each func(path string, run func(ctx context.Context, decode func(any) error) (any, error))) {
	s.grpc.Unary(each)
}

// Streaming calls each with every method of the gRPC API that has one request and many answers:
// its path, and what runs it as a server would.
func (s *Service) Streaming(each func(path string, run func(grpc.ServerStream) error)) {
	s.grpc.Streaming(each)
}

// Denied calls each with every method of the gRPC API: its path, and what answers a call that comes with no token of an app,
// while any app has one.
func (s *Service) Denied(each func(path string, run func(ctx context.Context, decode func(any) error) (any, error))) {
	s.grpc.Denied(each)
}

// ServerOptions bound what a gRPC server reads.
func (s *Service) ServerOptions() []grpc.ServerOption { return s.grpc.ServerOptions() }

// OtherOptions are ServerOptions for the server over which the other process calls.
func (s *Service) OtherOptions() []grpc.ServerOption { return s.grpc.OtherOptions() }

// InlineCalls calls each with the path of every method whose calls may be inline, and what begins one.
func (s *Service) InlineCalls(each func(path string, begin Begin)) { s.grpc.InlineCalls(each) }

// HTTPServer returns a server of Handler whose limits fit the settings; those of
// headers are larger, so that what exceeds the setting a little is still answered
// with an error that names it.
func (s *Service) HTTPServer() *http.Server { return s.http.Server() }

// Handler returns the HTTP API.
func (s *Service) Handler() http.Handler { return s.http.Handler() }

// OtherHandler is the Handler for the server over which the other process calls.
func (s *Service) OtherHandler() http.Handler { return s.http.OtherHandler() }

// BeginHTTP begins a call over HTTP with its whole body, and does not wait. ctx is the request's context, as for Begin. via
// carries its first call to a node. Nil: the request cannot be begun in a turn, and nothing has happened.
// Otherwise Resume must be called. The body is not kept.
func (s *Service) BeginHTTP(ctx *callctx.Context, r *http.Request, body []byte, via upstream.Via) *httpapi.InlineCall {
	return s.http.Begin(ctx, r, body, via)
}

// What a composer of the process needs besides.
type (
	// Deps are the parts that a Service works with.
	Deps = core.Deps
	// Driver is what a Service needs of a driver.
	Driver = core.Driver
	// OtherProcess is how to reach the other process of a hot restart.
	OtherProcess = core.OtherProcess
	// State is what admin shows of the API.
	State = core.State
	// TransactionState is one open transaction, without its token.
	TransactionState = core.TransactionState
	// Connection is one of the HTTP API.
	Connection = core.Connection
	// Code is one row of the error map.
	Code = core.Code
	// Begin begins an inline call over gRPC.
	Begin = grpcapi.Begin
	// Caller is what an inline call over gRPC needs to know of its caller.
	Caller = grpcapi.Caller
)

// NewDriver lets a Service use an upstream.Client.
func NewDriver(c *upstream.Client) Driver { return core.NewDriver(c) }

// Codes lists the error map: the sidecar's own codes, then those of the database.
func Codes() []Code { return core.Codes() }

// WithConnection returns the context of a connection.
func WithConnection(ctx context.Context, c Connection) context.Context {
	return core.WithConnection(ctx, c)
}

// WithUser returns the context of a connection that a program of that user of this
// machine has made, as the kernel says.
func WithUser(ctx context.Context, uid uint32) context.Context { return core.WithUser(ctx, uid) }
