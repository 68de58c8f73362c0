package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers statements by their text.
type server struct {
	sidecarv1.UnimplementedSidecarServer

	calls   atomic.Int64
	now     atomic.Int64
	most    atomic.Int64
	told    chan struct{}
	mu      sync.Mutex // guards app
	app     []string
	conns   atomic.Int64
	address string
}

func (s *server) Execute(ctx context.Context, r *sidecarv1.ExecuteRequest) (*sidecarv1.ExecuteResponse, error) {
	s.calls.Add(1)
	if n := s.now.Add(1); n > s.most.Load() {
		s.most.Store(n)
	}
	defer s.now.Add(-1)
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	s.app = append(s.app, md.Get("x-app")...)
	s.mu.Unlock()
	switch r.Sql {
	case "slow":
		time.Sleep(50 * time.Millisecond) // the server's own time, not a wait for something
	case "block": // to its deadline, which the server may see before the client does
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case "gather": // until three were under way
		for s.most.Load() < 3 && ctx.Err() == nil {
			runtime.Gosched()
		}
	case "tell":
		select {
		case s.told <- struct{}{}:
		case <-ctx.Done():
		}
	case "busy":
		return nil, status.Error(codes.ResourceExhausted, "the line is full")
	}
	return &sidecarv1.ExecuteResponse{Rows: []*sidecarv1.Row{{Values: []*sidecarv1.Value{r.Params["a"]}}}}, nil
}

type queries struct {
	Ydb_Query_V1.UnimplementedQueryServiceServer
}

type tables struct {
	Ydb_Table_V1.UnimplementedTableServiceServer
}

func (queries) ExecuteQuery(r *Ydb_Query.ExecuteQueryRequest, out Ydb_Query_V1.QueryService_ExecuteQueryServer) error {
	for range 3 {
		if err := out.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ResultSet: &Ydb.ResultSet{Truncated: true}}); err != nil {
			return err
		}
	}
	if r.GetQueryContent().GetText() == "torn" {
		return out.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_ABORTED, Issues: []*Ydb_Issue.IssueMessage{{Message: "locks were broken"}}})
	}
	return nil
}

func (tables) DescribeTable(context.Context, *Ydb_Table.DescribeTableRequest) (*Ydb_Table.DescribeTableResponse, error) {
	return &Ydb_Table.DescribeTableResponse{Operation: &Ydb_Operations.Operation{Id: "x", Ready: true, Status: Ydb.StatusIds_SCHEME_ERROR,
		Issues: []*Ydb_Issue.IssueMessage{{Message: "no such table"}}}}, nil
}

func (s *server) Accept(l net.Listener) net.Listener { return &counted{l, s} }

type counted struct {
	net.Listener
	s *server
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.s.conns.Add(1)
	}
	return conn, err
}

func serve(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{told: make(chan struct{}, 1000), address: l.Addr().String()}
	g := grpc.NewServer()
	sidecarv1.RegisterSidecarServer(g, s)
	Ydb_Query_V1.RegisterQueryServiceServer(g, queries{})
	Ydb_Table_V1.RegisterTableServiceServer(g, tables{})
	done := make(chan struct{})
	go func() { _ = g.Serve(s.Accept(l)); close(done) }() // it ends by Stop
	t.Cleanup(func() { g.Stop(); <-done })
	return s
}

// attacked runs an attack and returns its results by number.
func attacked(t *testing.T, targets string, args ...string) []vegeta.Result {
	t.Helper()
	results, err := tried(t, targets, args...)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func tried(t *testing.T, targets string, args ...string) (all []vegeta.Result, err error) {
	t.Helper()
	var out bytes.Buffer
	err = Main(t.Context(), args, strings.NewReader(targets), &out)
	for decode := vegeta.NewDecoder(&out); ; {
		var r vegeta.Result
		if decode(&r) != nil {
			break
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b vegeta.Result) int { return int(a.Seq) - int(b.Seq) })
	return all, err
}

func body(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

const execute = "/sidecar.v1.Sidecar/Execute"

func TestGRPCTargetsAreSentInTurn(t *testing.T) {
	s := serve(t)
	ok := body(t, `{"sql":"x","params":{"a":{"uint64_value":"7"}}}`)
	busy := body(t, `{"sql":"busy"}`)
	results := attacked(t, fmt.Sprintf("POST grpc://%s%s\nX-App: web\nContent-Type: application/json\n@%s\n\nPOST grpc://%s%s\n@%s\n", s.address, execute, ok, s.address, execute, busy),
		"-rate", "200", "-duration", "102ms", "-name", "n", "-grpc-connections", "2")
	if len(results) != 20 || s.calls.Load() != 20 || s.conns.Load() != 2 {
		t.Fatalf("got %d results, %d calls, %d connections; want 20, 20, 2", len(results), s.calls.Load(), s.conns.Load())
	}
	for i, r := range results {
		want, text, in := uint16(200), "", uint64(6)
		if i%2 == 1 {
			want, text, in = 429, "gRPC ResourceExhausted: the line is full", 0
		}
		if r.Code != want || r.Error != text || r.Seq != uint64(i) || r.Attack != "n" || r.BytesIn != in || r.BytesOut == 0 || !strings.HasSuffix(r.URL, execute) {
			t.Errorf("result %d is %+v; want code %d, error %q, %d bytes", i, r, want, text, in)
		}
		if gap := r.Timestamp.Sub(results[0].Timestamp); gap != time.Duration(i)*5*time.Millisecond {
			t.Errorf("result %d was due after %v; want %v", i, gap, time.Duration(i)*5*time.Millisecond)
		}
	}
	if len(s.app) != 10 || s.app[0] != "web" {
		t.Errorf("the calls had the metadata %q; want that of the header, ten times", s.app)
	}
}

func TestStreamsAreReadToTheEnd(t *testing.T) {
	s := serve(t)
	part, _ := proto.Marshal(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS, ResultSet: &Ydb.ResultSet{Truncated: true}})
	one := func(method, text string) vegeta.Result {
		t.Helper()
		return attacked(t, fmt.Sprintf("POST grpc://%s/%s\n@%s", s.address, method, body(t, text)), "-rate", "50", "-duration", "30ms")[0]
	}
	if r := one("Ydb.Query.V1.QueryService/ExecuteQuery", `{"queryContent":{"text":"whole"}}`); r.Code != 200 || r.BytesIn != uint64(3*len(part)) || r.Error != "" {
		t.Errorf("got %+v; want three parts of %d bytes", r, len(part))
	}
	if r := one("Ydb.Query.V1.QueryService/ExecuteQuery", `{"queryContent":{"text":"torn"}}`); r.Code != 409 || r.Error != "YDB ABORTED: locks were broken" {
		t.Errorf("got %+v; want the status of the last part", r)
	}
	if r := one("Ydb.Table.V1.TableService/DescribeTable", `{"path":"/local/x"}`); r.Code != 404 || r.Error != "YDB SCHEME_ERROR: no such table" {
		t.Errorf("got %+v; want the status of the operation", r)
	}
	if r := one("Ydb.Table.V1.TableService/KeepAlive", ""); r.Code != 501 {
		t.Errorf("got %+v; want 501 for a method that the server does not have", r)
	}
}

// One worker is kept for 50 ms by each call. Those that wait for it must count from when they were due, over gRPC and over HTTP.
func TestLatencyCountsFromTheInstantARequestWasDue(t *testing.T) {
	s := serve(t)
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		time.Sleep(50 * time.Millisecond) // the server's own time, not a wait for something
	}))
	defer web.Close()
	for name, target := range map[string]string{
		"gRPC": fmt.Sprintf("POST grpc://%s%s\n@%s", s.address, execute, body(t, `{"sql":"slow"}`)),
		"HTTP": "GET " + web.URL,
	} {
		results := attacked(t, target, "-rate", "100", "-duration", "65ms", "-workers", "1", "-max-workers", "1", "-keepalive=false")
		if len(results) != 6 {
			t.Fatalf("%s: got %d results; want 6", name, len(results))
		}
		for i, r := range results {
			// Number i is due after 10*(i+1) ms, and answered after 50*(i+1) at least.
			if least := time.Duration(i)*40*time.Millisecond + 40*time.Millisecond; r.Latency < least || r.Code != 200 {
				t.Errorf("%s: number %d took %v with code %d; want at least %v", name, i, r.Latency, r.Code, least)
			}
		}
	}
	if s.most.Load() != 1 {
		t.Errorf("%d calls were under way; want 1", s.most.Load())
	}
}

func TestWhatCannotBeSentIsAResult(t *testing.T) {
	s := serve(t)
	target := fmt.Sprintf("POST grpc://%s%s\n@%s", s.address, execute, body(t, `{"sql":"block"}`))
	results := attacked(t, target, "-rate", "100", "-duration", "105ms", "-max-workers", "1", "-timeout", "300ms")
	var timedOut, notSent int
	for _, r := range results {
		switch {
		case r.Code == 504:
			timedOut++
		case r.Code == 0 && r.Error == lab.NotSent:
			notSent++
		default:
			t.Errorf("got %+v", r)
		}
	}
	// The second call at the latest ends after the attack.
	if len(results) != 10 || notSent < 1 {
		t.Errorf("got %d results, %d timed out, %d not sent; want 10 in all, some of them not sent", len(results), timedOut, notSent)
	}
}

func TestRateOfZeroKeepsWorkersBusy(t *testing.T) {
	s := serve(t)
	target := fmt.Sprintf("POST grpc://%s%s\n@%s", s.address, execute, body(t, `{"sql":"gather"}`))
	for duration := 300 * time.Millisecond; ; duration *= 4 { // the third worker may come when a short one is over
		results := attacked(t, target, "-rate", "0", "-duration", duration.String(), "-max-workers", "3", "-timeout", "5s")
		if s.most.Load() < 3 && duration < 10*time.Second {
			continue
		}
		if len(results) < 3 || results[0].Code != 200 || s.most.Load() != 3 {
			t.Errorf("got %d results, %d under way at most; want more than three, 3", len(results), s.most.Load())
		}
		break
	}
	if _, err := tried(t, target, "-rate", "0", "-duration", "120ms"); err == nil || !strings.Contains(err.Error(), "-max-workers") {
		t.Errorf("got %v; want that -max-workers is needed", err)
	}
}

func TestLazyEndsWithTheTargets(t *testing.T) {
	s := serve(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.Add(1)
		fmt.Fprint(w, strings.Repeat("y", 100))
	}))
	defer web.Close()
	line := func(url, body string) string {
		text, err := json.Marshal(vegeta.Target{Method: "POST", URL: url, Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + "\n"
	}
	call := line("grpc://"+s.address+execute, `{"sql":"x"}`)
	page := line(web.URL+"/a", "b")
	for name, tc := range map[string]struct {
		targets string
		results int
		err     string
	}{
		"calls":              {call + call + call, 3, ""},
		"pages":              {page + page + page, 3, ""},
		"a call among pages": {page + page + call + page, 2, "kind of the first"},
		"a page among calls": {call + page, 1, "kind of the first"},
		"nonsense later":     {call + call + "{", 2, "a target"},
		"a method later":     {call + line("grpc://"+s.address+"/sidecar.v1.Sidecar/Nope", ""), 1, "no method"},
		"nothing":            {"", 0, "no targets"},
	} {
		results, err := tried(t, tc.targets, "-lazy", "-format", "json", "-rate", "100", "-max-body", "10", "-keepalive=false")
		if len(results) != tc.results || tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: got %d results, %v; want %d, %q", name, len(results), err, tc.results, tc.err)
		}
		for _, r := range results {
			if r.Code != 200 || len(r.Body) > 10 {
				t.Errorf("%s: got %+v; want 200 and at most ten bytes", name, r)
			}
		}
	}
}
