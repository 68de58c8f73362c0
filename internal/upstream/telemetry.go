package upstream

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

const scope = "github.com/ydb-sidecar/sidecar/internal/upstream"

// bounds of both histograms in seconds: acquiring a session takes microseconds,
// so they begin at 10 µs.
var bounds = []float64{
	10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30,
}

// maxSeries bounds the attribute sets of the hop histogram; past it, the node
// is left out.
const maxSeries = 1024

// telemetry makes the spans and feeds the histograms. Recording allocates
// nothing once a combination of attributes has been seen.
type telemetry struct {
	tracer   trace.Tracer
	system   attribute.KeyValue
	database attribute.KeyValue

	hop     metric.Float64Histogram
	wait    metric.Float64Histogram
	create  metric.Float64Histogram
	retries metric.Int64Counter

	waitOptions []metric.RecordOption
	failOptions []metric.RecordOption

	mu     sync.Mutex // serialises writers of series
	series atomic.Pointer[map[seriesKey][]metric.RecordOption]
}

// seriesKey is what tells the series of the hop histogram apart.
type seriesKey struct {
	node   cluster.NodeID
	op     string
	status string
}

func newTelemetry(tp trace.TracerProvider, mp metric.MeterProvider, database string) (*telemetry, error) {
	t := &telemetry{
		tracer:   tp.Tracer(scope),
		system:   attribute.String("db.system.name", "ydb"),
		database: attribute.String("db.namespace", database),
	}
	m := mp.Meter(scope)
	histogram := func(name, text string) (metric.Float64Histogram, error) {
		return m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(text), metric.WithExplicitBucketBoundaries(bounds...))
	}
	var errs [4]error
	t.hop, errs[0] = histogram("db.client.operation.duration", "Time of one call to one node, from sending to its last part.")
	t.wait, errs[1] = histogram("db.client.connection.wait_time", "Time to get a session from the pool.")
	t.create, errs[2] = histogram("db.client.connection.create_time", "Time to create and attach a session.")
	t.retries, errs[3] = m.Int64Counter("ydb.client.retry.attempts", metric.WithUnit("{attempt}"),
		metric.WithDescription("Calls sent again, and those not sent again because the retry budget was empty."))
	pool := attribute.String("db.client.connection.pool.name", database)
	t.waitOptions = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(t.system, pool))}
	t.failOptions = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(t.system, pool, attribute.String("error.type", "not_acquired")))}
	t.series.Store(&map[seriesKey][]metric.RecordOption{})
	return t, errors.Join(errs[:]...)
}

// options returns the prebuilt attributes of one series.
func (t *telemetry) options(k seriesKey) []metric.RecordOption {
	if o, ok := (*t.series.Load())[k]; ok {
		return o
	}
	return t.addOptions(k)
}

func (t *telemetry) addOptions(k seriesKey) []metric.RecordOption {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.series.Load()
	if o, ok := old[k]; ok {
		return o
	}
	attrs := []attribute.KeyValue{t.system, t.database, attribute.String("db.operation.name", k.op)}
	full := len(old) >= maxSeries
	if k.node != 0 && !full {
		attrs = append(attrs, nodeAttr(k.node))
	}
	if k.status != "SUCCESS" {
		attrs = append(attrs, attribute.String("db.response.status_code", k.status))
	}
	o := []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
	if full {
		return o
	}
	next := make(map[seriesKey][]metric.RecordOption, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	next[k] = o
	t.series.Store(&next)
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
	clientSpan  = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)}
)

func nodeAttr(id cluster.NodeID) attribute.KeyValue {
	return attribute.Int64("ydb.node.id", int64(id))
}

// hopAttributes describes the node of a hop span.
func (t *telemetry) hopAttributes(n cluster.Node, op string, attempt int, owner cluster.NodeID) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 10)
	attrs = append(attrs, t.system, t.database, nodeAttr(n.ID),
		attribute.String("db.operation.name", op),
		attribute.Int("ydb.sidecar.attempt", attempt))
	if owner != 0 {
		attrs = append(attrs, attribute.Bool("ydb.sidecar.owner", owner == n.ID))
	}
	if n.Zone != "" {
		attrs = append(attrs, attribute.String("ydb.node.dc", n.Zone))
	}
	if host, port, err := net.SplitHostPort(n.Address); err == nil {
		number, _ := strconv.Atoi(port)
		attrs = append(attrs, attribute.String("server.address", host), attribute.Int("server.port", number))
	}
	return attrs
}

// traced adds the W3C context of ctx's span to what is sent, so that the
// server joins the trace.
func traced(ctx context.Context) context.Context {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return ctx
	}
	var c pairs
	propagation.TraceContext{}.Inject(ctx, &c)
	c.Set("x-ydb-trace-id", sc.TraceID().String())
	return metadata.AppendToOutgoingContext(ctx, c...)
}

// pairs is a propagation.TextMapCarrier in the form that gRPC takes.
type pairs []string

func (p *pairs) Set(key, value string) { *p = append(*p, key, value) }

// Get and Keys belong to extraction, which happens at the edges only.
func (p *pairs) Get(string) string { return "" }

// Keys returns nothing; see Get.
func (p *pairs) Keys() []string { return nil }
