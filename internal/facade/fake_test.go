package facade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	"github.com/ydb-sidecar/sidecar/proof/contract"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a driver that keeps the rules of one: a session is used by one call at
// a time, knows its transaction, and goes back or is deleted. What statements
// answer is the test's business.
type fake struct {
	answer func(ctx context.Context, s *fakeSession, req *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error)
	commit func(*fakeSession) error // nil: succeeds
	table  func(path string) (*Ydb_Table.DescribeTableResult, error)
	bulk   func(*Ydb_Table.BulkUpsertRequest) error
	fail   func(upstream.Call) error // before a session is lent

	units  uint64 // that nodes report for each attempt
	priced bool   // they report them

	safe bool // panics of what runs on a session are caught, as the driver does

	onNext     func()        // if not nil, called for every part that is asked for
	rolledBack chan struct{} // if not nil, hears of every rollback
	deafNode   bool          // rollbacks get no answer
	opensNone  bool          // what is to begin a transaction succeeds, and none is open
	takenBack  chan struct{} // if not nil, hears of every session that comes back

	mu        sync.Mutex // guards all below
	calls     []upstream.Call
	requests  []*Ydb_Query.ExecuteQueryRequest
	open      int // sessions that are lent
	kept      int // that came back clean
	cut       int // that came back with a call that was cut: the driver asks whether they are at rest
	deleted   int // the others
	rollbacks int
	commits   int
	described int
}

type fakeSession struct {
	f       *fake
	tx      string
	spoiled bool
	busy    bool
	cut     bool        // a call of it was, and it may not be at rest
	effects yql.Effects // of the transaction so far
}

// taken returns the requests since it was asked before.
func (f *fake) taken() []*Ydb_Query.ExecuteQueryRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.requests
	f.requests = nil
	return out
}

func (f *fake) count(n *int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *n
}

func (f *fake) lend() *fakeSession {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open++
	return &fakeSession{f: f}
}

func (f *fake) takeBack(s *fakeSession, keep bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.takenBack != nil {
		f.takenBack <- struct{}{}
	}
	f.open--
	switch {
	case !keep || s.tx != "" || s.spoiled || s.busy:
		f.deleted++
	case s.cut:
		f.cut++
	default:
		f.kept++
	}
}

// on runs do on a session, which is not used again if that panics.
func (f *fake) on(ctx context.Context, s *fakeSession, do func(context.Context, core.Session) error) error {
	if !f.safe {
		return do(ctx, s)
	}
	err := panics.Call("work on a session", func() error { return do(ctx, s) })
	if _, broke := errors.AsType[*panics.Error](err); broke {
		s.spoiled = true
	}
	return err
}

func (f *fake) begin(call upstream.Call) error {
	f.mu.Lock()
	f.calls = append(f.calls, call)
	f.mu.Unlock()
	if f.fail != nil {
		return f.fail(call)
	}
	return nil
}

// maxAttempts is how often the fake tries what may be tried again.
const maxAttempts = 3

func (f *fake) Do(ctx context.Context, call upstream.Call, do func(context.Context, core.Session) error) (upstream.Report, error) {
	r := upstream.Report{Node: 1}
	if err := f.begin(call); err != nil {
		return r, err
	}
	for {
		r.Attempts++
		r.Units, r.Priced = r.Units+f.units, f.priced
		s := f.lend()
		err := f.on(ctx, s, do)
		if err != nil && s.tx != "" {
			_ = s.Rollback(ctx)
		}
		f.takeBack(s, true)
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

func (f *fake) BeginTx(
	ctx context.Context, call upstream.Call, do func(context.Context, core.Session) error,
) (core.TxSession, upstream.Report, error) {
	r := upstream.Report{Node: 1, Attempts: 1, Units: f.units, Priced: f.priced}
	if err := f.begin(call); err != nil {
		return nil, r, err
	}
	s := f.lend()
	if err := do(ctx, s); err != nil {
		f.takeBack(s, true)
		return nil, r, err
	}
	return &fakeTxSession{s}, r, nil
}

func (f *fake) Any(
	ctx context.Context, call upstream.Call, do func(context.Context, grpc.ClientConnInterface) error,
) (upstream.Report, error) {
	r := upstream.Report{Node: 1, Attempts: 1, Units: f.units, Priced: f.priced}
	if err := f.begin(call); err != nil {
		return r, err
	}
	return r, do(ctx, bulkConn{f, call})
}

type bulkConn struct {
	f    *fake
	call upstream.Call
}

func (b bulkConn) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	req, describes := args.(*Ydb_Table.DescribeTableRequest)
	if m := b.call.Method; m.Waits == describes || m.Name() != b.call.Name {
		return fmt.Errorf("%s is called %s, and the server waits inside: %t; want it of bulk upserts alone", m.Path, b.call.Name, m.Waits)
	}
	if describes {
		return b.f.describe(req.GetPath(), reply.(*Ydb_Table.DescribeTableResponse))
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
	if err := b.f.bulk(rows); err != nil {
		return err
	}
	reply.(*Ydb_Table.BulkUpsertResponse).Operation = okOperation
	return nil
}

func (f *fake) describe(path string, reply *Ydb_Table.DescribeTableResponse) error {
	f.mu.Lock()
	f.described++
	f.mu.Unlock()
	d, err := f.table(path)
	if err != nil {
		return err
	}
	result, err := anypb.New(d)
	if err != nil {
		return err
	}
	reply.Operation = &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_SUCCESS, Result: result}
	return nil
}

func (bulkConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams here")
}

type fakeTxSession struct{ s *fakeSession }

func (*fakeTxSession) Node() cluster.NodeID { return 1 }

func (*fakeTxSession) Hash() string { return "5e55" }

func (l *fakeTxSession) Run(
	ctx context.Context, call upstream.Call, do func(context.Context, core.Session) error,
) (upstream.Report, error) {
	err := l.s.f.begin(call)
	l.s.effects = call.Effects
	if err == nil {
		err = do(ctx, l.s)
	}
	return upstream.Report{Node: 1, Attempts: 1, Units: l.s.f.units, Priced: l.s.f.priced}, err
}

func (l *fakeTxSession) Release(keep bool) { l.s.f.takeBack(l.s, keep) }

func (*fakeSession) Node() cluster.NodeID { return 1 }

func (s *fakeSession) TxID() string { return s.tx }

func (s *fakeSession) Begin(context.Context, *Ydb_Query.TransactionSettings) error {
	if !s.f.opensNone {
		s.tx = "t1"
	}
	return nil
}

func (s *fakeSession) Commit(context.Context) error {
	s.f.mu.Lock()
	s.f.commits++
	s.f.mu.Unlock()
	if s.tx == "" {
		return failed(cluster.CallCommit, Ydb.StatusIds_NOT_FOUND)
	}
	if s.f.commit != nil {
		if err := s.f.commit(s); err != nil {
			return err
		}
	}
	s.tx = ""
	return nil
}

func (s *fakeSession) Rollback(ctx context.Context) error {
	s.f.mu.Lock()
	s.f.rollbacks++
	s.f.mu.Unlock()
	if s.f.deafNode {
		<-ctx.Done()
		return lost(ctx, cluster.CallControl)
	}
	if s.f.rolledBack != nil {
		s.f.rolledBack <- struct{}{}
	}
	s.tx = ""
	if s.spoiled {
		return errors.New("the session is gone")
	}
	return nil
}

// requestOf is what a node is sent of a statement.
func requestOf(st upstream.Statement) *Ydb_Query.ExecuteQueryRequest {
	req := &Ydb_Query.ExecuteQueryRequest{ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, StatsMode: st.Stats,
		ResponsePartLimitBytes: st.Part, PoolId: st.Pool,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: st.Text},
		}}
	if st.Explain {
		req.ExecMode = Ydb_Query.ExecMode_EXEC_MODE_EXPLAIN
	}
	switch {
	case st.Begin != nil:
		req.TxControl = &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: st.Begin},
			CommitTx: st.Commit}
	case st.Within:
		req.TxControl = &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: st.TxID}, CommitTx: st.Commit}
	}
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(st.Params.Encoded(), req); err != nil {
		panic(err)
	}
	return req
}

func (s *fakeSession) Execute(ctx context.Context, st upstream.Statement) (core.Stream, error) {
	if st.Within && st.TxID == "" {
		return nil, errors.New("the session has no open transaction") // as a Session does
	}
	req := requestOf(st)
	s.f.mu.Lock()
	s.f.requests = append(s.f.requests, req)
	s.f.mu.Unlock()
	if s.busy {
		panic("a session is used by two calls at a time")
	}
	parts, err := s.f.answer(ctx, s, req)
	c := req.GetTxControl()
	if err == nil && c != nil {
		if c.GetCommitTx() {
			s.tx = ""
		} else if c.GetBeginTx() != nil {
			s.tx = "t1"
			if s.f.opensNone {
				s.tx = ""
			}
		} else if c.GetTxId() != s.tx {
			return nil, failed(cluster.CallExecute, Ydb.StatusIds_NOT_FOUND)
		}
		parts = append(parts, &Ydb_Query.ExecuteQueryResponsePart{TxMeta: &Ydb_Query.TransactionMeta{Id: s.tx}})
	}
	if err != nil {
		var e *upstream.Error
		if errors.As(err, &e) && e.Verdict.DropSession {
			s.spoiled = true
		}
		if errors.As(err, &e) && e.Status != 0 {
			s.tx = ""
		}
	}
	s.busy = true
	return &fakeStream{ctx: ctx, s: s, parts: parts, err: err}, nil
}

// fakeStream hands out the parts, then the error or the end.
type fakeStream struct {
	ctx   context.Context
	s     *fakeSession
	parts []*Ydb_Query.ExecuteQueryResponsePart
	err   error
}

func (t *fakeStream) Next() (*upstream.Part, error) {
	if err := t.ctx.Err(); err != nil {
		t.s.busy, t.s.spoiled = false, true
		return nil, lost(t.ctx, cluster.CallExecute)
	}
	if t.s.f.onNext != nil {
		t.s.f.onNext()
	}
	if len(t.parts) > 0 {
		p := t.parts[0]
		t.parts = t.parts[1:]
		octets, err := proto.Marshal(p)
		if err != nil {
			return nil, err
		}
		part := new(upstream.Part)
		return part, part.Unmarshal(octets)
	}
	t.s.busy = false
	if t.err != nil {
		return nil, t.err
	}
	return nil, io.EOF
}

func (t *fakeStream) Close() {
	if t.s.busy {
		t.s.busy, t.s.cut = false, true
	}
}

// failed is the error of a call that the database answered with a status.
func failed(kind cluster.CallKind, status Ydb.StatusIds_StatusCode) error {
	v := ydbstatus.Judge(ydbstatus.Signs{Kind: kind, Status: status})
	return &upstream.Error{Op: "ExecuteQuery", Node: 1, Status: status, Verdict: v, Sent: v.Unknown,
		Issues: []*Ydb_Issue.IssueMessage{
			{Message: "because", IssueCode: 7, Severity: 1, Position: &Ydb_Issue.IssueMessage_Position{Row: 1, Column: 2}},
		}}
}

// broke is the error of a connection that broke while a call ran.
func broke(kind cluster.CallKind, undone bool) error {
	v := ydbstatus.Judge(ydbstatus.Signs{Kind: kind, Code: codes.Unavailable, Undone: undone})
	return &upstream.Error{Op: "ExecuteQuery", Node: 1, Code: codes.Unavailable, Verdict: v, Sent: v.Unknown}
}

// lost is the error of a call whose caller left or whose deadline ended.
func lost(ctx context.Context, kind cluster.CallKind) error {
	v := ydbstatus.Judge(ydbstatus.Signs{Kind: kind, Code: codes.Canceled, CallerGone: true})
	return fmt.Errorf("%w: %w", &upstream.Error{Op: "ExecuteQuery", Node: 1, Code: codes.Canceled, Verdict: v, Sent: v.Unknown}, ctx.Err())
}

// part is one piece of a result: set i with columns of the form "name Type", and
// rows whose values are JSON.
func part(t testing.TB, i int64, columns []string, rows ...[]string) *Ydb_Query.ExecuteQueryResponsePart {
	t.Helper()
	rs := &Ydb.ResultSet{}
	for _, c := range columns {
		name, typ, _ := strings.Cut(c, " ")
		parsed, err := yql.ParseType(typ)
		if err != nil {
			t.Fatal(err)
		}
		rs.Columns = append(rs.Columns, &Ydb.Column{Name: name, Type: parsed})
	}
	for _, row := range rows {
		v := &Ydb.Value{}
		for j, cell := range row {
			parsed, err := yql.ParseJSON([]byte(cell), rs.Columns[j].Type)
			if err != nil {
				t.Fatal(err)
			}
			v.Items = append(v.Items, parsed)
		}
		rs.Rows = append(rs.Rows, v)
	}
	return &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ResultSetIndex: i, ResultSet: rs}
}

// echo answers with the parameters: a row of name, type, value in JSON for each.
func echo(_ context.Context, _ *fakeSession, req *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
	rs := &Ydb.ResultSet{
		Columns: []*Ydb.Column{{Name: "name", Type: typeUtf8}, {Name: "type", Type: typeUtf8}, {Name: "value", Type: typeUtf8}},
	}
	var names []string
	for name := range req.GetParameters() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p := req.GetParameters()[name]
		value, err := yql.AppendJSON(nil, p.Value, p.Type, yql.JSONOptions{Ints: yql.IntsAsNumbers})
		if err != nil {
			return nil, err
		}
		rs.Rows = append(rs.Rows, &Ydb.Value{Items: []*Ydb.Value{text(name), text(yql.FormatType(p.Type)), text(string(value))}})
	}
	stats := &Ydb_TableStats.QueryStats{TotalDurationUs: 1500, Compilation: &Ydb_TableStats.CompilationStats{}}
	part := &Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ResultSet: rs}
	if req.GetStatsMode() != Ydb_Query.StatsMode_STATS_MODE_NONE {
		part.ExecStats = stats
	}
	return []*Ydb_Query.ExecuteQueryResponsePart{part}, nil
}

var typeUtf8 = &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UTF8}}

func text(s string) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}} }

// bench is a service over a fake, with a client for each face.
type bench struct {
	*fake
	s    *Service
	http contract.Client
	grpc contract.Client
	base string
	conn *grpc.ClientConn
	api  sidecarv1.SidecarClient

	ingest sidecarv1.IngestClient
}

func (b *bench) faces() []contract.Client { return []contract.Client{b.grpc, b.http} }

func small() Config {
	c := Default()
	c.API.MaxBody, c.API.MaxHeaders = 64<<10, 4<<10
	c.API.MaxParams, c.API.MaxStatements, c.API.MaxDepth, c.API.MaxGroups = 8, 4, 8, 2
	return c
}

// start serves a fake over both faces for the length of the test.
func start(t *testing.T, cfg Config, f *fake, deps ...func(*core.Deps)) *bench {
	t.Helper()
	d := core.Deps{Driver: f, Database: "/local"}
	for _, change := range deps {
		change(&d)
	}
	s, err := New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	server := grpc.NewServer(s.ServerOptions()...)
	s.Register(server)
	pipe := bufconn.Listen(1 << 20)
	wg.Go(func() { _ = server.Serve(pipe) })
	wg.Go(func() { _ = s.Run(ctx) })
	web := s.HTTPServer()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { _ = web.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{fake: f, s: s, base: "http://" + listener.Addr().String(), grpc: contract.OverGRPC(conn), conn: conn,
		api: sidecarv1.NewSidecarClient(conn), ingest: sidecarv1.NewIngestClient(conn)}
	b.http = contract.OverHTTP(b.base)
	t.Cleanup(func() {
		b.grpc.Close()
		b.http.Close()
		server.Stop()
		_ = web.Close()
		cut, now := context.WithCancel(context.Background())
		now()
		_ = s.Drain(cut) // waits for handlers, whose callers may be gone
		cancel()
		wg.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.open != 0 {
			t.Errorf("%d sessions are still lent", f.open)
		}
	})
	return b
}

// each runs a test over both faces.
func (b *bench) each(t *testing.T, test func(t *testing.T, c contract.Client)) {
	t.Helper()
	for _, c := range b.faces() {
		t.Run(c.Name(), func(t *testing.T) { test(t, c) })
	}
}

// refused checks the code of an error, and what it says about the outcome.
func refused(t *testing.T, err error, code string, safe, unknown bool) *contract.Error {
	t.Helper()
	e, ok := errors.AsType[*contract.Error](err)
	if !ok {
		t.Fatalf("got %v; want %s", err, code)
	}
	if e.Code != code || e.Safe != safe || e.Unknown != unknown {
		t.Errorf("got %v; want %s, safe %v, unknown %v", e, code, safe, unknown)
	}
	if e.Hint == "" {
		t.Errorf("%s comes without a hint", e.Code)
	}
	return e
}

func get(t *testing.T, url string, change func(*http.Request)) (int, http.Header, string) {
	t.Helper()
	return send(t, http.MethodGet, url, "", change)
}

func send(t *testing.T, method, url, body string, change func(*http.Request)) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if change != nil {
		change(req)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range res.Trailer {
		res.Header[name] = v
	}
	return res.StatusCode, res.Header, string(raw)
}

var okOperation = &Ydb_Operations.Operation{Ready: true, Status: Ydb.StatusIds_SUCCESS}
