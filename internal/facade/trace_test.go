package facade

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/proof/contract"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
)

// traced returns a tracer that records as c and head say, and what it recorded.
func traced(c tracing.Config, head tracing.Sampler) (*tracing.Tracer, *tracetest.SpanRecorder) {
	rec := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec),
		sdktrace.WithIDGenerator(tracing.Generator{}), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	return tracing.New(provider, func() bool { return true }, c, head), rec
}

// tree writes spans as lines, each below its parent and further in, with what the
// attributes say that begin with one of the prefixes.
func tree(spans []sdktrace.ReadOnlySpan, parent string, prefixes ...string) (lines []string) {
	for _, s := range spans {
		if s.Parent().SpanID().String() != parent {
			continue
		}
		line := s.Name()
		for _, a := range s.Attributes() {
			for _, p := range prefixes {
				if strings.HasPrefix(string(a.Key), p) {
					line += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
				}
			}
		}
		lines = append(lines, line)
		for _, below := range tree(spans, s.SpanContext().SpanID().String(), prefixes...) {
			lines = append(lines, "  "+below)
		}
	}
	return lines
}

const noParent = "0000000000000000"

// TestOneTreePerCall: over both faces a call is one span below the caller's, and
// what the driver did is below that; secrets are in none.
func TestOneTreePerCall(t *testing.T) {
	tracer, rec := traced(tracing.Config{}, tracing.Ratio(0))
	w := newWorld(t, Default(), tracer)
	parent := "00-" + traceID + "-" + spanID + "-01"
	const secret = "hunter2"

	conn, err := grpc.NewClient("passthrough:///"+w.target.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", parent, "tracestate", "vendor=1")
	req := &sidecarv1.ExecuteRequest{Sql: "SELECT '" + secret + "', $p", Params: map[string]*sidecarv1.Value{
		"p": {Kind: &sidecarv1.Value_TextValue{TextValue: secret}},
	}, Stats: "basic"}
	res, err := sidecarv1.NewSidecarClient(conn).Execute(ctx, req)
	if err != nil || res.Info.TraceId != traceID {
		t.Fatalf("info %+v, %v; want the caller's trace", res.GetInfo(), err)
	}
	status, _, got := facadetest.Send(
		t, "POST", w.target.HTTP+"/v1/query", `{"sql":"SELEC '`+secret+`'"}`,
		func(r *http.Request) { r.Header.Set("traceparent", parent) },
	)
	if status != 400 || !strings.Contains(got, `"trace_id":"`+traceID+`"`) {
		t.Fatalf("%d %s; want an error with the caller's trace", status, got)
	}
	status, _, got = facadetest.Send(t, "POST", w.target.HTTP+"/v1/query", `{"sql":"SELECT 1"}`, nil)
	if status != 200 || !strings.Contains(got, `"trace_id":""`) {
		t.Fatalf("%d %s; want no trace that nobody recorded", status, got)
	}

	spans := rec.Ended()
	for _, s := range spans {
		text := fmt.Sprint(s.Name(), s.Status(), s.Events())
		for _, a := range s.Attributes() {
			text += fmt.Sprint(" ", a.Key, "=", a.Value.String())
		}
		if strings.Contains(text, secret) || strings.Contains(text, "ydb://session") {
			t.Errorf("a span tells: %s", text)
		}
		if s.SpanContext().TraceID().String() != traceID {
			t.Errorf("span %s of a call that nobody records", s.Name())
		}
	}
	text := strings.Join(tree(spans, spanID, "http.route", "error.type", "ydb.sidecar.answer_", "ydb.sidecar.owner", "db.response"), "\n")
	for _, want := range []string{
		"sidecar.v1.Sidecar/Execute\n  ydb.Try\n    ydb.GetSession\n", "    ydb.ExecuteQuery ydb.sidecar.answer_bytes=",
		" ydb.sidecar.owner=true db.response.returned_rows=1\n",
		"db.response.returned_rows=1",
		"sidecar.v1.Sidecar/Execute http.route=/v1/query error.type=YDB_GENERIC_ERROR db.response.status_code=GENERIC_ERROR",
		"error.type=ydb_error db.response.status_code=GENERIC_ERROR",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, s := range spans {
		if s.Name() == "ydb.ExecuteQuery" && s.Status().Description == "" && s.SpanContext().TraceState().Get("vendor") != "1" {
			t.Errorf("the trace state is lost: %+v", s.SpanContext())
		}
	}
}

// reported is a driver that tells of one attempt that failed and one that did not.
type reported struct {
	*facadetest.Driver
}

func (r reported) Do(ctx context.Context, call upstream.Call, f func(context.Context, core.Session) error) (upstream.Report, error) {
	start := time.Now()
	_, err := r.Driver.Do(ctx, call, f)
	execute, commit := protocol.Named(protocol.QueryService+"ExecuteQuery"), protocol.Named(protocol.QueryService+"CommitTransaction")
	at := &cluster.Node{ID: 2, Address: "node2:2136", Zone: "zone-b"}
	return upstream.Report{
		Node: 2, Attempts: 2,
		Rounds: []upstream.Round{
			{Start: start, Acquire: 30 * time.Millisecond, Queue: 10 * time.Millisecond, Node: 2, Created: true,
				Opening: start.Add(5 * time.Millisecond), Open: 20 * time.Millisecond},
			{Backoff: 7 * time.Millisecond, Start: start.Add(60 * time.Millisecond), Acquire: time.Millisecond, Node: 2},
		},
		Tries: []upstream.Try{
			{Attempt: 1,
				Done: hop.Done{Key: hop.Key{Node: 2, Method: execute, Status: Ydb.StatusIds_OVERLOADED}, Took: 20 * time.Millisecond},
				At:   at, Session: "ydb://session/3?node_id=2&id=x", Start: start.Add(30 * time.Millisecond)},
			{Attempt: 2,
				Done: hop.Done{Key: hop.Key{Node: 2, Method: execute}, Took: 20 * time.Millisecond,
					First: 10 * time.Millisecond, Request: 100, Answer: 1000},
				At: at, Session: "ydb://session/3?node_id=2&id=x",
				Around: true, Start: start.Add(61 * time.Millisecond), Server: 15 * time.Millisecond, Rows: 5},
			{Attempt: 2, Done: hop.Done{Key: hop.Key{Node: 2, Method: commit}, Took: time.Millisecond}, At: at,
				Session: "ydb://session/3?node_id=2&id=x", Start: start.Add(81 * time.Millisecond)},
		},
	}, err
}

// TestTheTreeOfARetriedCall also is what the tail keeps: the call was slow.
func TestTheTreeOfARetriedCall(t *testing.T) {
	tracer, rec := traced(tracing.Config{Slow: time.Nanosecond}, tracing.Ratio(0))
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo}, func(d *core.Deps) {
		d.Driver, d.Tracer = reported{d.Driver.(*facadetest.Driver)}, tracer
	})
	status, _, body := facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S"}`, nil)
	spans := rec.Ended()
	if status != 200 || len(spans) == 0 || !strings.Contains(body, spans[0].SpanContext().TraceID().String()) {
		t.Fatalf("%d %s and %d spans; want the trace of a slow call", status, body, len(spans))
	}
	got := strings.Join(tree(spans, noParent, "ydb.retry", "ydb.sidecar.", "server.", "ydb.node.dc", "db.response", "error.type"), "\n")
	const session = "ydb.sidecar.session="
	// As in /state/sessions, and as sidecar kill takes it.
	hash := upstream.HashOf("ydb://session/3?node_id=2&id=x")
	want := `sidecar.v1.Sidecar/Execute ydb.sidecar.app=default ydb.sidecar.priority=normal ydb.sidecar.transaction.mode=implicit ydb.sidecar.attempts=2 ydb.sidecar.queue_ms=0
  ydb.Try ydb.sidecar.attempt=1
    ydb.GetSession ydb.sidecar.waited=true ydb.sidecar.created=true ydb.sidecar.queue_ms=10
      ydb.sidecar.queue
      ydb.CreateSession
    ydb.ExecuteQuery server.address=node2 server.port=2136 ydb.node.dc=zone-b SESSION ydb.sidecar.owner=true error.type=ydb_error db.response.status_code=OVERLOADED
  ydb.Try ydb.sidecar.attempt=2 ydb.retry.backoff_ms=7
    ydb.GetSession ydb.sidecar.waited=false ydb.sidecar.created=false ydb.sidecar.queue_ms=0
    ydb.ExecuteQuery server.address=node2 server.port=2136 ydb.node.dc=zone-b ydb.sidecar.first_part_ms=10 ydb.sidecar.request_bytes=100 ydb.sidecar.answer_bytes=1000 SESSION ydb.sidecar.owner=false ydb.sidecar.server_ms=15 ydb.sidecar.network_ms=5 db.response.returned_rows=5
    ydb.Commit server.address=node2 server.port=2136 ydb.node.dc=zone-b SESSION ydb.sidecar.owner=true`
	if want = strings.ReplaceAll(want, "SESSION", session+hash); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, s := range spans {
		if s.Name() == tracing.Try && strings.Contains(fmt.Sprint(s.Attributes()), "backoff") &&
			s.EndTime().Sub(s.StartTime()) != 22*time.Millisecond {
			t.Errorf("the second attempt took %v; want 22ms", s.EndTime().Sub(s.StartTime()))
		}
	}
}

// TestTheTailKeepsFailedCalls: their answers name the trace, whole and in parts, and
// those of others do not.
func TestTheTailKeepsFailedCalls(t *testing.T) {
	tracer, rec := traced(tracing.Config{Errors: true}, tracing.Ratio(0))
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo}, func(d *core.Deps) { d.Tracer = tracer })
	for _, c := range []struct {
		path, body string
		kept       bool
	}{{"/v1/query", `{"sql":"S"}`, false}, {"/v1/query", `{}`, true}, {"/v1/batch", `{"statements":[{"sql":"S"},{"sql":""}]}`, true}} {
		before := len(rec.Ended())
		_, _, body := facadetest.Send(t, "POST", b.base+c.path, c.body, nil)
		spans := rec.Ended()[before:]
		if (len(spans) > 0) != c.kept || !c.kept && !strings.Contains(body, `"trace_id":""`) {
			t.Errorf("%s %s: %d spans and %s", c.path, c.body, len(spans), body)
		}
		if c.kept && len(spans) > 0 && !strings.Contains(body, spans[0].SpanContext().TraceID().String()) {
			t.Errorf("%s does not name the trace %v", body, spans[0].SpanContext().TraceID())
		}
	}
}

// TestTheCallsOfATransactionAreLinkedToIt: its span is below the call that opened it,
// and the others are linked to it.
func TestTheCallsOfATransactionAreLinkedToIt(t *testing.T) {
	for name, c := range map[string]struct {
		end  string // of the path
		want string
	}{"commit": {"/commit", "committed"}, "rollback": {"/rollback", "rolled_back"}} {
		t.Run(name, func(t *testing.T) {
			tracer, rec := traced(tracing.Config{}, tracing.Ratio(1))
			b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo}, func(d *core.Deps) { d.Tracer = tracer })
			_, _, body := facadetest.Send(t, "POST", b.base+"/v1/tx/begin", `{}`, nil)
			id := between(t, body, `"id":"`, `"`)
			facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S","tx":{"id":"`+id+`"}}`, nil)
			if status, _, body := facadetest.Send(t, "POST", b.base+"/v1/tx/"+id+c.end, `{}`, nil); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			spans := map[string]sdktrace.ReadOnlySpan{}
			for _, s := range rec.Ended() {
				spans[s.Name()] = s
			}
			tx, begin := spans[tracing.Transaction], spans["sidecar.v1.Sidecar/Begin"]
			if tx == nil || begin == nil || tx.Parent().SpanID() != begin.SpanContext().SpanID() || len(begin.Links()) != 0 {
				t.Fatalf("the transaction's span is %v below %v", tx, begin)
			}
			if got := tree([]sdktrace.ReadOnlySpan{tx}, begin.SpanContext().SpanID().String(),
				"ydb.sidecar.transaction."); !slices.Equal(got, []string{
				tracing.Transaction + " ydb.sidecar.transaction.mode=serializable_rw ydb.sidecar.transaction.end=" + c.want}) {
				t.Errorf("it says %v", got)
			}
			for _, name := range []string{"sidecar.v1.Sidecar/Execute", "sidecar.v1.Sidecar/" + strings.ToUpper(c.end[1:2]) + c.end[2:]} {
				if s := spans[name]; s == nil || len(s.Links()) != 1 || s.Links()[0].SpanContext.SpanID() != tx.SpanContext().SpanID() {
					t.Errorf("%s is not linked to the transaction", name)
				}
			}
		})
	}
}

func between(t *testing.T, s, before, after string) string {
	t.Helper()
	_, rest, ok := strings.Cut(s, before)
	found, _, end := strings.Cut(rest, after)
	if !ok || !end {
		t.Fatalf("nothing between %s and %s in %s", before, after, s)
	}
	return found
}

// TestCallsThatAreNotRecordedAllocateNothingForIt compares with no tracing at all.
func TestCallsThatAreNotRecordedAllocateNothingForIt(t *testing.T) {
	answer := facadetest.RowsOf(t, 1)
	db := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return answer, nil
		},
	}
	tracer, _ := traced(tracing.Default(), tracing.Ratio(0))
	var allocs [2]float64
	for i, tracer := range []*tracing.Tracer{nil, tracer} {
		s, err := New(Default(), core.Deps{Driver: db, Database: "/local", Tracer: tracer})
		if err != nil {
			t.Fatal(err)
		}
		req := &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}
		const runs = 500
		allocs[i] = testing.AllocsPerRun(1, func() { // of all runs: pools forget some of what they hold, so the mean is no whole number
			for range runs {
				if _, err := s.grpc.Execute(t.Context(), req); err != nil {
					t.Fatal(err)
				}
				db.Taken()
				db.Calls = nil
			}
		}) / runs
	}
	if allocs[1] > allocs[0]+0.5 {
		t.Errorf("%v allocations with tracing, %v without", allocs[1], allocs[0])
	}
}

func TestEveryCallIsMeasured(t *testing.T) {
	all := map[string]*latency.Durations{}
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo}, func(d *core.Deps) {
		d.Histogram = func(name, _, _ string, _ ...float64) *latency.Durations {
			all[name] = latency.NewDurations(nil)
			return all[name]
		}
	})
	for _, body := range []string{`{"sql":"S"}`, `{"sql":"S"}`, `{}`} {
		facadetest.Send(t, "POST", b.base+"/v1/query", body, nil)
	}
	facadetest.Send(t, "GET", b.base+"/nowhere", "", nil)
	got := map[string]uint64{}
	for _, c := range all["http.server.request.duration"].Read() {
		if scheme, _ := c.Set.Value("url.scheme"); scheme.AsString() != "http" {
			t.Errorf("%v; want url.scheme", c.Set)
		}
		code, _ := c.Set.Value("error.type")
		status, _ := c.Set.Value("http.response.status_code")
		route, _ := c.Set.Value("http.route")
		got[fmt.Sprint(route.AsString(), " ", status.AsInt64(), " ", code.AsString())] = c.Counts[0]
	}
	if got["/v1/query 200 "] != 2 || got["/v1/query 400 BAD_REQUEST"] != 1 {
		t.Errorf("calls by outcome: %v; want 2 good ones and 1 BAD_REQUEST", got)
	}
}

// TestAnswersThatWereAskedForAreNoErrors: that there is no row, or another one, is what the caller wanted to know.
func TestAnswersThatWereAskedForAreNoErrors(t *testing.T) {
	all := map[string]*latency.Durations{}
	tracer, rec := traced(tracing.Config{}, tracing.Ratio(1))
	b := start(t, withKV(t, plainEntry), facadetest.Shelf(t), func(d *core.Deps) {
		d.Tracer = tracer
		d.Histogram = func(name, _, _ string, _ ...float64) *latency.Durations {
			all[name] = latency.NewDurations(nil)
			return all[name]
		}
	})
	b.each(t, func(t *testing.T, face contract.Client) {
		_, err := face.Get(t.Context(), contract.KV{Table: "plain", ID: []any{"7"}})
		refused(t, err, "KEY_NOT_FOUND", false, false)
		_, err = face.Get(t.Context(), contract.KV{Table: "nothing", ID: []any{"7"}})
		refused(t, err, "TABLE_NOT_OPEN", false, false)
	})
	for name, face := range all {
		codes := map[string]uint64{}
		for _, c := range face.Read() {
			code, _ := c.Set.Value("error.type")
			codes[code.AsString()] += c.Counts[0]
		}
		if codes[""] != 1 || codes["TABLE_NOT_OPEN"] != 1 || len(codes) != 2 {
			t.Errorf("%s by error.type: %v", name, codes)
		}
	}
	for _, s := range rec.Ended() {
		set := attribute.NewSet(s.Attributes()...)
		if code, ok := set.Value("error.type"); ok && code.AsString() != "TABLE_NOT_OPEN" {
			t.Errorf("%s has error.type %s", s.Name(), code.AsString())
		}
	}
	for unknown, want := range map[bool]bool{false: true, true: false} {
		f := core.Faultf(core.CodeCondition, "").With(func(f *core.Fault) { f.Unknown = unknown })
		if f.Asked() != want {
			t.Errorf("a condition that failed, outcome unknown %t: asked for %t", unknown, f.Asked())
		}
	}
}

// TestSpansOfHTTP: they say what the conventions ask of spans of servers, and no id of a transaction.
func TestSpansOfHTTP(t *testing.T) {
	tracer, rec := traced(tracing.Config{}, tracing.Ratio(1))
	b := start(t, withKV(t, plainEntry), facadetest.Shelf(t), func(d *core.Deps) { d.Tracer = tracer })
	for _, c := range []struct {
		method, path, url, route string
		status                   int64
	}{
		{"GET", "/v1/kv/plain?id=7", "/v1/kv/plain", "/v1/kv/{table}", 404},
		{"GET", "/v1/schema/a/" + strings.Repeat("b", 300), "/v1/schema/a/" + strings.Repeat("b", 243) + "...",
			"/v1/schema/{path...}", 200},
		{"GET", "/v1/tx/secret", "/v1/tx/{id}", "/v1/tx/{id}", 400},
	} {
		rec.Reset()
		status, _, got := facadetest.Send(t, c.method, b.base+c.path, "", nil)
		spans := rec.Ended()
		if int64(status) != c.status || len(spans) == 0 {
			t.Errorf("%s: %d %s, %d spans", c.path, status, got, len(spans))
			continue
		}
		set := attribute.NewSet(spans[len(spans)-1].Attributes()...)
		for _, s := range spans {
			if !s.Parent().IsValid() {
				set = attribute.NewSet(s.Attributes()...)
			}
		}
		for _, want := range []attribute.KeyValue{
			attribute.String("http.request.method", c.method), attribute.String("url.path", c.url), attribute.String("url.scheme", "http"),
			attribute.String("http.route", c.route), attribute.Int64("http.response.status_code", c.status),
		} {
			if v, ok := set.Value(want.Key); !ok || v != want.Value {
				t.Errorf("%s: %s = %s; want %s", c.path, want.Key, v.String(), want.Value.String())
			}
		}
	}
}
