package facadetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// Driver is a driver without a database that keeps the rules of one: a session is used by one call at
// a time, knows its transaction, and goes back or is deleted. The test says what statements answer.
// Wide: each field is one thing that a test sets, or one that it counts.
type Driver struct {
	Answer func(ctx context.Context, s *Session, req *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error)
	Commit func(*Session) error // nil: succeeds
	Table  func(path string) (*Ydb_Table.DescribeTableResult, error)
	Bulk   func(*Ydb_Table.BulkUpsertRequest) error
	Fail   func(upstream.Call) error // before a session is checked out

	Units  uint64 // units that nodes report for each attempt
	Priced bool   // nodes report their units

	Safe bool // panics of what runs on a session are caught, as the driver of the product does

	OnNext     func()        // if not nil, called for every part that is asked for
	RolledBack chan struct{} // if not nil, hears of every rollback
	DeafNode   bool          // rollbacks get no answer
	OpensNone  bool          // what is to begin a transaction succeeds, and none is open
	TakenBack  chan struct{} // if not nil, hears of every session that comes back

	Mu        sync.Mutex // guards all below
	Calls     []upstream.Call
	Requests  []*Ydb_Query.ExecuteQueryRequest
	Open      int // sessions in use
	Kept      int // sessions that came back clean
	Cut       int // sessions that came back with a call that was cut: the driver asks whether they are idle
	Deleted   int // all other sessions
	Rollbacks int
	Commits   int
	Described int // tables
}

// Taken returns the requests since it was asked before.
func (d *Driver) Taken() []*Ydb_Query.ExecuteQueryRequest {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	out := d.Requests
	d.Requests = nil
	return out
}

// Count reads one of the counters of d.
func (d *Driver) Count(n *int) int {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return *n
}

func (d *Driver) lend() *Session {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	d.Open++
	return &Session{d: d}
}

func (d *Driver) takeBack(s *Session, keep bool) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.TakenBack != nil {
		d.TakenBack <- struct{}{}
	}
	d.Open--
	switch {
	case !keep || s.tx != "" || s.spoiled || s.busy:
		d.Deleted++
	case s.cut:
		d.Cut++
	default:
		d.Kept++
	}
}

// on runs do on a session, which is not used again if that panics.
func (d *Driver) on(ctx context.Context, s *Session, do func(context.Context, core.Session) error) error {
	if !d.Safe {
		return do(ctx, s)
	}
	err := panics.Call("work on a session", func() error { return do(ctx, s) })
	if _, broke := errors.AsType[*panics.Error](err); broke {
		s.spoiled = true
	}
	return err
}

func (d *Driver) begin(call upstream.Call) error {
	d.Mu.Lock()
	d.Calls = append(d.Calls, call)
	d.Mu.Unlock()
	if d.Fail != nil {
		return d.Fail(call)
	}
	return nil
}

// maxAttempts is how often the driver tries what may be tried again.
const maxAttempts = 3

// Do implements core.Driver. A fault that may be tried again is tried again at once.
func (d *Driver) Do(ctx context.Context, call upstream.Call, do func(context.Context, core.Session) error) (upstream.Report, error) {
	r := upstream.Report{Node: 1}
	if err := d.begin(call); err != nil {
		return r, err
	}
	for {
		r.Attempts++
		r.Units, r.Priced = r.Units+d.Units, d.Priced
		s := d.lend()
		err := d.on(ctx, s, do)
		if err != nil && s.tx != "" {
			_ = s.Rollback(ctx)
		}
		d.takeBack(s, true)
		if e, ok := errors.AsType[*upstream.Error](err); ok && r.Attempts < maxAttempts {
			r.Unsure = r.Unsure || e.Verdict.Unknown
		}
		// Final hides the error from this assertion, as it shall.
		e, ok := err.(*upstream.Error)
		again := ok && (e.Verdict.Retry == ydbstatus.RetryAlways || e.Verdict.Retry == ydbstatus.RetryIdempotent && call.Idempotent)
		if err == nil || !again || r.Attempts == maxAttempts || ctx.Err() != nil {
			return r, err
		}
	}
}

// BeginTx implements core.Driver.
func (d *Driver) BeginTx(
	ctx context.Context, call upstream.Call, do func(context.Context, core.Session) error,
) (core.TxSession, upstream.Report, error) {
	r := upstream.Report{Node: 1, Attempts: 1, Units: d.Units, Priced: d.Priced}
	if err := d.begin(call); err != nil {
		return nil, r, err
	}
	s := d.lend()
	if err := do(ctx, s); err != nil {
		d.takeBack(s, true)
		return nil, r, err
	}
	return &txSession{s}, r, nil
}

// Any implements core.Driver.
func (d *Driver) Any(
	ctx context.Context, call upstream.Call, do func(context.Context, grpc.ClientConnInterface) error,
) (upstream.Report, error) {
	r := upstream.Report{Node: 1, Attempts: 1, Units: d.Units, Priced: d.Priced}
	if err := d.begin(call); err != nil {
		return r, err
	}
	return r, do(ctx, bulkConn{d, call})
}

type bulkConn struct {
	d    *Driver
	call upstream.Call
}

func (b bulkConn) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	req, describes := args.(*Ydb_Table.DescribeTableRequest)
	if m := b.call.Method; m.Waits == describes || m.Name() != b.call.Name {
		return fmt.Errorf("%s is called %s, and the server waits inside: %t; want it of bulk upserts alone", m.Path, b.call.Name, m.Waits)
	}
	if describes {
		return b.d.describe(req.GetPath(), reply.(*Ydb_Table.DescribeTableResponse))
	}
	rows, ok := args.(*Ydb_Table.BulkUpsertRequest)
	if !ok {
		octets, err := core.EncodedCodec{}.Marshal(args)
		if err != nil {
			return err
		}
		defer octets.Free()
		rows = &Ydb_Table.BulkUpsertRequest{}
		if err := proto.Unmarshal(octets.Materialize(), rows); err != nil {
			return err
		}
	}
	if err := b.d.Bulk(rows); err != nil {
		return err
	}
	reply.(*Ydb_Table.BulkUpsertResponse).Operation = okOperation
	return nil
}

func (d *Driver) describe(path string, reply *Ydb_Table.DescribeTableResponse) error {
	d.Mu.Lock()
	d.Described++
	d.Mu.Unlock()
	table, err := d.Table(path)
	if err != nil {
		return err
	}
	result, err := anypb.New(table)
	if err != nil {
		return err
	}
	reply.Operation = &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_SUCCESS, Result: result}
	return nil
}

func (bulkConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams here")
}
