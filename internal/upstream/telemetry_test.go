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
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func attrs(s sdktrace.ReadOnlySpan) map[string]string {
	m := map[string]string{}
	for _, a := range s.Attributes() {
		m[string(a.Key)] = a.Value.String()
	}
	return m
}

func TestSpansOfARetriedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := tracetest.NewSpanRecorder()
		tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
		s := newStack(t, 1, func(c *stackConfig) { c.deps.Tracer = tp; c.pool.Max = 1 })
		s.node(1).fail(1, func(stream executeStream) error {
			time.Sleep(2 * time.Millisecond)
			return stream.Send(part(Ydb.StatusIds_OVERLOADED))
		})
		ctx, root := tp.Tracer("test").Start(within(t, time.Minute), "request")
		if _, err := s.query(ctx, Call{}, plain); err != nil {
			t.Fatal(err)
		}
		root.End()
		var names []string
		var hops []sdktrace.ReadOnlySpan
		for _, span := range rec.Ended() {
			names = append(names, span.Name())
			if span.Parent().SpanID() != root.SpanContext().SpanID() && span.Name() != "request" {
				t.Errorf("%s is no child of the request", span.Name())
			}
			if span.Name() == "hop" {
				hops = append(hops, span)
			}
		}
		if want := []string{"acquire", "hop", "acquire", "hop", "request"}; !slices.Equal(names, want) {
			t.Fatalf("spans %v; want %v", names, want)
		}
		first := attrs(rec.Ended()[0])
		if first["ydb.sidecar.waited"] != "true" || first["ydb.sidecar.created"] != "true" || first["ydb.node.id"] != "1" {
			t.Errorf("the first acquire says %v; want a wait and a new session", first)
		}
		if again := attrs(rec.Ended()[2]); again["ydb.sidecar.waited"] != "false" || again["ydb.sidecar.created"] != "false" {
			t.Errorf("the second acquire says %v", again)
		}
		bad, good := attrs(hops[0]), attrs(hops[1])
		for key, want := range map[string]string{
			"db.system.name": "ydb", "db.namespace": "/local", "db.operation.name": "ExecuteQuery", "ydb.node.id": "1", "ydb.node.dc": "zone-a",
			"ydb.sidecar.owner": "true", "ydb.sidecar.attempt": "1", "server.address": "node1", "server.port": "2136",
			"error.type": "ydb_error", "db.response.status_code": "OVERLOADED", "ydb.sidecar.first_part_ms": "2",
		} {
			if bad[key] != want {
				t.Errorf("the first hop has %s = %q; want %q", key, bad[key], want)
			}
		}
		if good["ydb.sidecar.attempt"] != "2" || good["error.type"] != "" {
			t.Errorf("the second hop says %v", good)
		}
		// The node is told about the very hop.
		for i, call := range s.node(1).seen("ExecuteQuery") {
			want := fmt.Sprintf("00-%s-%s-01", root.SpanContext().TraceID(), hops[i].SpanContext().SpanID())
			if got := call.md.Get("traceparent"); !slices.Equal(got, []string{want}) {
				t.Errorf("call %d has traceparent %q; want %q", i, got, want)
			}
			if got := call.md.Get("x-ydb-trace-id"); !slices.Equal(got, []string{root.SpanContext().TraceID().String()}) {
				t.Errorf("call %d has x-ydb-trace-id %q", i, got)
			}
		}
	})
}

// Without a tracer of our own the caller's context still goes through.
func TestTheCallersTraceGoesThroughWithoutATracer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
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
		reader := sdkmetric.NewManualReader()
		s := newStack(t, 1, func(c *stackConfig) {
			c.deps.Meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		})
		s.node(1).fail(1, answers(Ydb.StatusIds_ABORTED))
		for range 3 {
			if _, err := s.query(within(t, time.Second), Call{}, plain); err != nil {
				t.Fatal(err)
			}
		}
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		got := map[string]uint64{}
		for _, m := range all.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					status, _ := p.Attributes.Value("db.response.status_code")
					op, _ := p.Attributes.Value("db.operation.name")
					got[strings.Join([]string{m.Name, op.String(), status.String()}, " ")] += p.Count
					if p.Bounds[0] != 10e-6 || m.Unit != "s" {
						t.Errorf("%s begins at %v %s; want 10 µs", m.Name, p.Bounds[0], m.Unit)
					}
				}
			case metricdata.Sum[int64]:
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

func TestTheSeriesOfTheHopHistogramAreBounded(t *testing.T) {
	tel, err := newTelemetry(noTracer, sdkmetric.NewMeterProvider(), "/local")
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxSeries + 100 {
		tel.options(seriesKey{cluster.NodeID(i + 1), "ExecuteQuery", "SUCCESS", codes.OK})
	}
	if n := len(*tel.series.Load()); n != maxSeries {
		t.Errorf("%d series; want %d", n, maxSeries)
	}
	key := seriesKey{1, "ExecuteQuery", "SUCCESS", codes.OK}
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() { tel.hop.Record(ctx, 0.001, tel.options(key)...) }); n != 0 {
		t.Errorf("%v allocations to record a hop; want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() { tel.acquired(ctx, time.Millisecond, nil) }); n != 0 {
		t.Errorf("%v allocations to record a wait; want 0", n)
	}
}

var noTracer = sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))

func TestNoSpanOrSeriesShowsAStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := tracetest.NewSpanRecorder()
		var log lockedBuffer
		s := newStack(t, 1, func(c *stackConfig) {
			c.deps.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
			c.deps.Log = textLog(&log)
		})
		s.node(1).fail(1, func(stream executeStream) error {
			p := part(Ydb.StatusIds_GENERIC_ERROR)
			p.Issues[0].Message = secret
			return stream.Send(p)
		})
		_, err := s.query(within(t, time.Second), Call{}, plain)
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("got %v", err)
		}
		for _, span := range rec.Ended() {
			text := span.Name() + span.Status().Description + fmt.Sprint(span.Events())
			for _, a := range span.Attributes() {
				text += attributeText(a)
			}
			if strings.Contains(text, secret) || strings.Contains(text, "SELECT") {
				t.Errorf("the span shows %s", text)
			}
		}
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log shows it: %s", log.String())
		}
	})
}

func attributeText(a attribute.KeyValue) string { return string(a.Key) + a.Value.String() }

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
