package upstream

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
)

const scope = "github.com/ydb-sidecar/sidecar/internal/upstream"

// bounds of the histograms in seconds: acquiring a session takes microseconds,
// so they begin at 10 µs.
var bounds = []float64{
	10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30,
}

// telemetry feeds the histograms. Recording allocates
// nothing once a combination of attributes has been seen.
type telemetry struct {
	system   attribute.KeyValue
	database attribute.KeyValue

	hop     metric.Float64Histogram
	wait    metric.Float64Histogram
	create  metric.Float64Histogram
	use     metric.Float64Histogram
	whole   metric.Float64Histogram // of requests, with their retries
	tries   metric.Int64Histogram
	retries metric.Int64Counter

	waitOptions []metric.RecordOption
	failOptions []metric.RecordOption

	mu       sync.Mutex // serialises writers of series and requests
	series   atomic.Pointer[map[hop.Key][]metric.RecordOption]
	requests atomic.Pointer[map[string][]metric.RecordOption] // by name
}

func newTelemetry(mp metric.MeterProvider, database string) (*telemetry, error) {
	t := &telemetry{
		system:   attribute.String("db.system.name", "ydb"),
		database: attribute.String("db.namespace", database),
	}
	m := mp.Meter(scope)
	histogram := func(name, text string) (metric.Float64Histogram, error) {
		return m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(text), metric.WithExplicitBucketBoundaries(bounds...))
	}
	var errs [7]error
	t.hop, errs[0] = histogram("db.client.operation.duration", "Time of one call to one node, from sending to its last part.")
	t.wait, errs[1] = histogram("db.client.connection.wait_time", "Time to get a session from the pool.")
	t.create, errs[2] = histogram("db.client.connection.create_time", "Time to create and attach a session.")
	t.use, errs[4] = histogram("db.client.connection.use_time", "Time that a call or a transaction of the plain API kept a session.")
	t.whole, errs[5] = histogram("ydb.client.retry.duration", "Time of one request with all its attempts and the pauses between.")
	t.tries, errs[6] = m.Int64Histogram("ydb.client.retry.attempts", metric.WithUnit("{attempt}"),
		metric.WithDescription("Attempts of one request; 1: the first did."), metric.WithExplicitBucketBoundaries(1, 2, 3, 5, 10))
	t.retries, errs[3] = m.Int64Counter("ydb.sidecar.retry.decisions", metric.WithUnit("{retry}"),
		metric.WithDescription("Calls sent again, and those not sent again because the retry budget was empty."))
	pool := attribute.String("db.client.connection.pool.name", database)
	t.waitOptions = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(t.system, pool))}
	t.failOptions = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(t.system, pool, attribute.String("error.type", "not_acquired")))}
	t.series.Store(&map[hop.Key][]metric.RecordOption{})
	t.requests.Store(&map[string][]metric.RecordOption{})
	return t, errors.Join(errs[:]...)
}

// options returns the prebuilt attributes of one series.
func (t *telemetry) options(k hop.Key) []metric.RecordOption {
	if o, ok := (*t.series.Load())[k]; ok {
		return o
	}
	return t.addOptions(k)
}

func (t *telemetry) addOptions(k hop.Key) []metric.RecordOption {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.series.Load()
	if o, ok := old[k]; ok {
		return o
	}
	attrs := append(k.Attributes(), t.database)
	full := len(old) >= hop.MaxSeries
	if k.Node != 0 && !full {
		attrs = append(attrs, nodeAttr(k.Node))
	}
	o := []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
	if full {
		return o
	}
	next := make(map[hop.Key][]metric.RecordOption, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	next[k] = o
	t.series.Store(&next)
	return o
}

// asked records a request with all its attempts.
func (t *telemetry) asked(ctx context.Context, name string, all *tries, start time.Time) {
	o := t.named(name)
	t.whole.Record(ctx, time.Since(start).Seconds(), o...)
	t.tries.Record(ctx, int64(all.report.Attempts), o...)
}

// named returns the prebuilt attributes of requests of a name, of which there are a few.
func (t *telemetry) named(name string) []metric.RecordOption {
	if o, ok := (*t.requests.Load())[name]; ok {
		return o
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	next := maps.Clone(*t.requests.Load())
	o := []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("database", t.database.Value.AsString()), attribute.String("operation.name", name)))}
	next[name] = o
	t.requests.Store(&next)
	return o
}

// acquired records the wait for a session.
func (t *telemetry) acquired(ctx context.Context, d time.Duration, err error) {
	if err != nil {
		t.wait.Record(ctx, d.Seconds(), t.failOptions...)
		return
	}
	t.wait.Record(ctx, d.Seconds(), t.waitOptions...)
}

var (
	retrySent   = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", "sent")))
	retryDenied = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", "budget_empty")))
)

func nodeAttr(id cluster.NodeID) attribute.KeyValue {
	return attribute.Int64("ydb.node.id", int64(id))
}

// traced tells the node of the caller's span, or of the one that the hop has, if
// its request is recorded: so the server joins the trace.
func traced(ctx context.Context, parent trace.SpanContext, span trace.SpanID) context.Context {
	if !parent.IsValid() {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, traceHeaders(parent, span)...)
}

// traceHeaders are the headers with which traced tells the node; nil: none.
func traceHeaders(parent trace.SpanContext, span trace.SpanID) []string {
	if !parent.IsValid() {
		return nil
	}
	if span.IsValid() {
		parent = parent.WithSpanID(span)
	}
	c := make(pairs, 0, 6)
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), parent), &c)
	c.Set("x-ydb-trace-id", parent.TraceID().String())
	return c
}

// pairs is a propagation.TextMapCarrier in the form that gRPC takes.
type pairs []string

func (p *pairs) Set(key, value string) { *p = append(*p, key, value) }

// Get and Keys belong to extraction, which happens at the edges only.
func (p *pairs) Get(string) string { return "" }

// Keys returns nothing; see Get.
func (p *pairs) Keys() []string { return nil }
