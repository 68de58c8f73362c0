// Package ingest writes streams of rows into tables: it gathers the rows of one
// stream into BulkUpserts, keeps several of them under way, and tells how far the
// stream has come.
//
// It owns the order of writes of one stream, what is merged and what is split,
// and the memory that a stream may use. It knows neither HTTP nor gRPC servers:
// rows come by calls, and go to a Sink, which also retries.
//
// What always holds:
//
//   - Of two rows with one key in a stream the later one is written later, or the
//     two are written as one: column by column the later one counts. A key is in
//     one batch under way at a time. After a batch of which a try got lost, its keys
//     rest until the database cannot carry that try out any more: each request
//     says that it is to be given up after Config.Attempt, and Config.Settle is for
//     clocks that differ.
//   - Progress.Next never passes a row that the sink has not confirmed, or that was
//     not named as refused.
//   - A row that the sink refuses takes no other row with it.
//   - A stream holds at most one batch that is being gathered and Config.Window that
//     are under way, each in one copy as it came and in one as it goes. A caller
//     that adds rows faster than they are written waits.
//   - Every goroutine belongs to a stream, ends with it, and Close waits for all.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Sink is where batches go. It retries by itself, and is safe for concurrent use.
type Sink interface {
	// Describe describes a table; fresh asks for more than a memory of it.
	Describe(ctx context.Context, table string, fresh bool) (*Ydb_Table.DescribeTableResult, error)
	// Upsert writes the rows of an encoded BulkUpsertRequest. Whatever keeps the
	// buffer beyond the call takes a reference of its own. The error is a *Refused
	// when the rows, as they are, will not be taken however often they are sent.
	Upsert(ctx context.Context, request mem.Buffer) (Sent, error)
}

// Sent is what came of an Upsert, whether it failed or not.
type Sent struct {
	Attempts int
	Unsure   bool // of an attempt that failed, rows may still be written
}

// Refused is the error of an Upsert whose rows were looked at and not taken.
type Refused struct {
	Err    error
	Scheme bool // for the sake of the table's form, not of a row
}

func (r *Refused) Error() string { return r.Err.Error() }

func (r *Refused) Unwrap() error { return r.Err }

// MaxOffset is the largest offset that a stream may begin with, and that may stand behind its last row.
const MaxOffset = math.MaxInt64

// Why a stream ends before its rows do.
var (
	ErrDraining = errors.New("ingest: this process is stopping")
	ErrLimit    = errors.New("ingest: as many streams are open as allowed (ingest.max_streams)")
	ErrReplaced = errors.New("ingest: another stream of this name was opened")
	ErrIdle     = errors.New("ingest: no row came for as long as allowed (ingest.idle)")
	ErrClosed   = errors.New("ingest: the stream is closed")
	ErrOffset   = errors.New("ingest: the stream has reached the largest offset")
)

// Deps are the parts that an Engine works with. Sink may be left out if every stream has its own.
type Deps struct {
	Sink   Sink
	Pass   func(context.Context) (leave func(), err error) // waits before a request is sent, until it may be; nil: for nothing
	Tracer trace.TracerProvider
	Meter  metric.MeterProvider
}

// Engine opens streams. It is safe for concurrent use.
type Engine struct {
	config Config
	sink   Sink
	tel    *telemetry
	hash   func(key []byte) uint64
	bound  []byte // Config.Attempt, as a field of a BulkUpsertRequest

	pass func(context.Context) (leave func(), err error)
	cut  context.Context // ends when what is under way is to be given up
	stop context.CancelFunc
	work sync.WaitGroup // the goroutines of streams
	bins sync.Pool      // of *gather
	pens sync.Pool      // of *encoder

	mu       sync.Mutex // guards all below
	streams  map[*Stream]struct{}
	names    map[name]*Stream // the newest of each name, until it is over altogether
	draining bool
}

// name is the name of a stream. Each app has names of its own.
type name struct{ app, table, stream string }

// New returns an engine without streams. Errors are those of Config.Validate, and
// of instruments that cannot be made.
func New(c Config, deps Deps) (*Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	seed := maphash.MakeSeed()
	e := &Engine{
		config: c, sink: deps.Sink, pass: deps.Pass, hash: func(key []byte) uint64 { return maphash.Bytes(seed, key) },
		bins: sync.Pool{New: func() any { return newGather() }}, pens: sync.Pool{New: func() any { return new(encoder) }},
		streams: make(map[*Stream]struct{}), names: make(map[name]*Stream),
	}
	e.cut, e.stop = context.WithCancel(context.Background())
	var err error
	if e.bound, err = proto.Marshal(
		&Ydb_Table.BulkUpsertRequest{OperationParams: &Ydb_Operations.OperationParams{OperationTimeout: durationpb.New(c.Attempt)}},
	); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	if e.tel, err = newTelemetry(deps.Tracer, deps.Meter, e); err != nil {
		return nil, fmt.Errorf("ingest: make instruments: %w", err)
	}
	return e, nil
}

// Options say what a stream is.
type Options struct {
	Table  string // absolute path
	Offset uint64 // of the first row
	App    string // the app that opens it
	Name   string // "": none. A stream of the same name, table and app is ended first
	Sink   Sink   // of this stream; nil: that of the engine
}

// name is what no other stream has at the same time.
func (o Options) name() name { return name{o.App, o.Table, o.Name} }

// Open opens a stream, which must be closed. ctx is that of the whole stream.
func (e *Engine) Open(ctx context.Context, o Options) (*Stream, error) {
	if o.Sink == nil {
		o.Sink = e.sink
	}
	s := &Stream{
		engine: e, ctx: ctx, options: o, opened: time.Now(),
		signals: signals{
			room: make(chan struct{}, 1), wake: make(chan struct{}, 1), news: make(chan struct{}, 1),
			landed: make(chan struct{}), over: make(chan struct{}),
		},
		sending: sending{flying: make(map[uint64]struct{})},
		counted: counted{next: o.Offset, told: o.Offset, floor: math.MaxUint64, seen: make(chan struct{})},
	}
	s.cut, s.giveUp = context.WithCancel(e.cut)
	before, err := e.enter(s)
	if err != nil {
		return nil, err
	}
	if before != nil {
		before.Stop(ErrReplaced)
		select {
		case <-before.over:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err == nil {
		var d *Ydb_Table.DescribeTableResult
		if d, err = o.Sink.Describe(ctx, o.Table, false); err == nil {
			err = s.describe(d)
		}
	}
	if err != nil {
		e.leave(s)
		e.work.Go(func() {
			if before != nil {
				<-before.over // whoever waits for this stream waits for that one
			}
			e.forget(s)
		})
		return nil, err
	}
	s.mu.Lock() // State has known it since enter
	s.gather = e.bins.Get().(*gather)
	s.quiet = time.Now()
	s.mu.Unlock()
	e.work.Go(s.run)
	return s, nil
}

// enter counts a stream in, and returns the one that it takes the place of.
func (e *Engine) enter(s *Stream) (before *Stream, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.draining:
		return nil, ErrDraining
	case len(e.streams) >= e.config.MaxStreams:
		return nil, ErrLimit
	}
	e.streams[s] = struct{}{}
	if s.options.Name != "" {
		key := s.options.name()
		before, e.names[key] = e.names[key], s
	}
	return before, nil
}

// leave counts a stream out.
func (e *Engine) leave(s *Stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.streams, s)
}

// forget lets others of the name of a stream begin at once.
func (e *Engine) forget(s *Stream) {
	e.mu.Lock()
	if key := s.options.name(); e.names[key] == s {
		delete(e.names, key)
	}
	e.mu.Unlock()
	s.giveUp()
	close(s.over)
}

// Drain has every stream take no more rows and write what it took, and refuses
// new ones. It does not wait.
func (e *Engine) Drain() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.draining = true
	for s := range e.streams {
		s.Stop(ErrDraining)
	}
}

// Cut gives up what is under way, after Drain.
func (e *Engine) Cut() { e.stop() }

// Close ends everything and waits until nothing runs any more.
func (e *Engine) Close() {
	e.Drain()
	e.Cut()
	e.work.Wait()
}

// State is what admin shows of a stream.
type State struct {
	App     string `json:"app,omitempty"`
	Table   string `json:"table"`
	Name    string `json:"name,omitempty"`
	Age     int64  `json:"age_ms"`
	Next    uint64 `json:"next"`    // offset of the row that comes next
	Done    uint64 `json:"done"`    // every row before this offset is written or refused
	Rows    uint64 `json:"rows"`    // written
	Refused uint64 `json:"refused"` // rows
	Waiting int    `json:"waiting"` // rows that are gathered
	Flights int    `json:"flights"` // batches under way
	Bytes   int    `json:"bytes"`   // of all of them, as they came
	Ending  string `json:"ending,omitempty"`
}

// State lists the open streams, oldest first.
func (e *Engine) State() []State {
	out := []State{}
	for _, s := range e.all() {
		out = append(out, s.state())
	}
	slices.SortFunc(out, func(a, b State) int { return int(b.Age - a.Age) })
	return out
}

func (e *Engine) all() []*Stream {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*Stream, 0, len(e.streams))
	for s := range e.streams {
		all = append(all, s)
	}
	return all
}
