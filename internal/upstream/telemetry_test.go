package upstream

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/latency"
)

// TestTheReportOfARetriedCall has all that spans are made of; and the nodes are told of
// the spans to come, if the request is recorded.
func TestTheReportOfARetriedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, func(c *stackConfig) { c.pool.Max = 1 })
		s.node(1).fail(1, func(stream executeStream) error {
			time.Sleep(2 * time.Millisecond)
			return stream.Send(part(Ydb.StatusIds_OVERLOADED))
		})
		state, _ := trace.ParseTraceState("vendor=1")
		root := trace.NewSpanContext(
			trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, TraceState: state},
		)
		began := time.Now()
		r, err := s.query(trace.ContextWithSpanContext(within(t, time.Minute), root), Call{}, plain)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Rounds) != 2 || len(r.Tries) != 2 {
			t.Fatalf("%d rounds and %d tries; want 2 and 2", len(r.Rounds), len(r.Tries))
		}
		first, again := r.Rounds[0], r.Rounds[1]
		if !first.Start.Equal(began) || !first.Created || first.Node != 1 || first.Backoff != 0 || first.Opening.Before(began) {
			t.Errorf("the first attempt: %+v; want a new session", first)
		}
		if again.Created || again.Backoff == 0 || again.Start.Sub(first.Start) < again.Backoff+2*time.Millisecond {
			t.Errorf("the second attempt: %+v; want a pause and the same session", again)
		}
		for i, try := range r.Tries {
			want := Try{
				Done: hop.Done{
					Key: hop.Key{Node: 1, Method: methodExecute}, Verdict: try.Verdict, Sent: true, Took: try.Took,
					First: try.First, Request: try.Request, Answer: try.Answer,
				},
				Attempt: i + 1, Session: try.Session, Span: try.Span, Start: try.Start, At: try.At, Rows: try.Rows,
			}
			if i == 0 {
				want.Status = Ydb.StatusIds_OVERLOADED
			}
			if try != want || try.At.Address != "node1:2136" || try.Session == "" || try.Request < len(try.Session) || try.Answer == 0 {
				t.Errorf("try %d: %+v; want %+v", i, try, want)
			}
			if try.First == 0 || try.Start.Before(r.Rounds[i].Start) {
				t.Errorf("try %d began at %v, with a first part after %v", i, try.Start, try.First)
			}
		}
		for i, call := range s.node(1).seen("ExecuteQuery") {
			want := fmt.Sprintf("00-%s-%s-01", root.TraceID(), r.Tries[i].Span)
			if got := call.md.Get("traceparent"); !slices.Equal(got, []string{want}) {
				t.Errorf("call %d has traceparent %q; want %q", i, got, want)
			}
			if got := call.md.Get("tracestate"); !slices.Equal(got, []string{"vendor=1"}) {
				t.Errorf("call %d has tracestate %q", i, got)
			}
			if got := call.md.Get("x-ydb-trace-id"); !slices.Equal(got, []string{root.TraceID().String()}) {
				t.Errorf("call %d has x-ydb-trace-id %q", i, got)
			}
		}
		if r.Tries[0].Span == r.Tries[1].Span {
			t.Error("two calls to nodes are one span")
		}
	})
}

// Without a tracer of our own the caller's context still goes through.
func TestTheCallersTraceGoesThroughWithoutATracer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		sc := trace.NewSpanContext(
			trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true},
		)
		if _, err := s.query(trace.ContextWithRemoteSpanContext(within(t, time.Second), sc), Call{}, plain); err != nil {
			t.Fatal(err)
		}
		if _, err := s.query(within(t, time.Second), Call{}, plain); err != nil {
			t.Fatal(err)
		}
		calls := s.node(1).seen("ExecuteQuery")
		if got := strings.Join(calls[0].md.Get("traceparent"), ""); got != "00-01000000000000000000000000000000-0200000000000000-01" {
			t.Errorf("traceparent %q", got)
		}
		if got := calls[1].md.Get("traceparent"); got != nil {
			t.Errorf("traceparent %q without a trace", got)
		}
	})
}

func TestHistograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, all := sdkmetric.NewManualReader(), map[string]*latency.Durations{}
		s := newStack(t, 1, func(c *stackConfig) {
			c.deps.Meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
			c.deps.Histogram = func(name, unit, _ string, bounds ...float64) *latency.Durations {
				all[name] = latency.NewDurations(nil)
				if (unit == "s") != (bounds == nil) {
					t.Errorf("%s in %s has the bounds %v", name, unit, bounds)
				}
				return all[name]
			}
		})
		s.node(1).fail(1, answers(Ydb.StatusIds_ABORTED))
		for range 3 {
			if _, err := s.query(within(t, time.Second), Call{}, plain); err != nil {
				t.Fatal(err)
			}
		}
		var counters metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &counters); err != nil {
			t.Fatal(err)
		}
		got := map[string]uint64{}
		for name, d := range all {
			for _, c := range d.Read() {
				status, _ := c.Set.Value("db.response.status_code")
				op, _ := c.Set.Value("db.operation.name")
				got[strings.Join([]string{name, op.String(), status.String()}, " ")] += c.Counts[0]
				if name == "ydb.client.retry.attempts" && c.Sum != 4*time.Second {
					t.Errorf("%v attempts; want 4", c.Sum)
				}
			}
		}
		for _, m := range counters.ScopeMetrics[0].Metrics {
			if data, ok := m.Data.(metricdata.Sum[int64]); ok {
				for _, p := range data.DataPoints {
					got[m.Name] += uint64(p.Value)
				}
			}
		}
		for name, want := range map[string]uint64{
			"db.client.operation.duration ExecuteQuery ":        3,
			"db.client.operation.duration ExecuteQuery ABORTED": 1,
			"db.client.connection.create_time  ":                1,
			"ydb.sidecar.retry.decisions":                       1,
			"ydb.client.retry.duration  ":                       3,
			"ydb.client.retry.attempts  ":                       3,
			"db.client.connection.use_time  ":                   4,
		} {
			if got[name] != want {
				t.Errorf("%s = %d; want %d", name, got[name], want)
			}
		}
		if n := got["db.client.connection.wait_time  "]; n != 4 {
			t.Errorf("%d waits; want 4", n)
		}
	})
}

func TestNoReportOrLogShowsAStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer
		s := newStack(t, 1, func(c *stackConfig) { c.deps.Log = textLog(&log) })
		s.node(1).fail(1, func(stream executeStream) error {
			p := part(Ydb.StatusIds_GENERIC_ERROR)
			p.Issues[0].Message = secret
			return stream.Send(p)
		})
		r, err := s.query(within(t, time.Second), Call{}, plain)
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("got %v", err)
		}
		if text := fmt.Sprintf("%+v", r); len(r.Tries) != 1 || strings.Contains(text, secret) || strings.Contains(text, "SELECT") {
			t.Errorf("the report shows %s", text)
		}
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log shows it: %s", log.String())
		}
	})
}

// hole is a connection that can be made to swallow everything.
type hole struct {
	net.Conn
	dark *atomic.Bool
}

func (h hole) Write(b []byte) (int, error) {
	if h.dark.Load() {
		return len(b), nil
	}
	return h.Conn.Write(b)
}

func TestABlackHoleIsFoundByKeepaliveAndOnlyThenBlamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dark atomic.Bool
		b := newBench(t, 1, func(_ *Config, d *Deps) {
			dial := d.Dial
			d.Dial = func(ctx context.Context, address string) (net.Conn, error) {
				c, err := dial(ctx, address)
				return hole{c, &dark}, err
			}
		})
		s, gone := b.mustOpen(1)
		time.Sleep(20 * time.Minute) // pings are answered, and allowed
		if got := gone.list(); got != nil {
			t.Fatalf("retired %v on a good connection", got)
		}
		dark.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := run(ctx, s, plain()); err == nil {
			t.Error("an answer out of a black hole")
		}
		if got := b.judge.take(); len(got) != 1 || !strings.Contains(got[0], "execute none") {
			t.Errorf("reported %q; a caller's deadline blames nobody", got)
		}
		time.Sleep(16 * time.Second)
		synctest.Wait()
		if got := gone.list(); !slices.Equal(got, []string{"the connection to the node broke"}) {
			t.Errorf("retired %v; want the keepalive to find out", got)
		}
		if got := b.judge.take(); !slices.Equal(got, []string{"1 control transport UNAVAILABLE"}) {
			t.Errorf("reported %q", got)
		}
	})
}
