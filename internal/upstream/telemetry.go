package upstream

import (
	"context"
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/latency"
)

const scope = "github.com/ydb-sidecar/sidecar/internal/upstream"

// telemetry has the histograms of what the plain API does, and its counter. Recording allocates nothing once the
// attributes were seen.
type telemetry struct {
	hop     hop.Series
	whole   *latency.Series[string] // of requests, with their retries, by name
	tries   *latency.Series[string] // of attempts
	wait    *latency.Cell
	failed  *latency.Cell // the wait was in vain
	create  *latency.Cell
	use     *latency.Cell
	retries metric.Int64Counter
}

func newTelemetry(histogram latency.Maker, mp metric.MeterProvider, database string) (*telemetry, error) {
	named := func(d *latency.Durations) *latency.Series[string] {
		attributes := func(name string) []attribute.KeyValue {
			return []attribute.KeyValue{attribute.String("database", database), attribute.String("operation.name", name)}
		}
		return latency.NewSeries(d, math.MaxInt, attributes, nil) // names are ours
	}
	system, pool := attribute.String("db.system.name", "ydb"), attribute.String("db.client.connection.pool.name", database)
	wait := histogram.Make("db.client.connection.wait_time", "s", "Time to get a session from the pool.")
	own := attribute.NewSet(system, pool)
	retries, err := mp.Meter(scope).Int64Counter("ydb.sidecar.retry.decisions", metric.WithUnit("{retry}"),
		metric.WithDescription("Calls sent again, and those not sent again because the retry budget was empty."))
	return &telemetry{
		hop: hop.NewSeries(
			histogram.Make("db.client.operation.duration", "s", "Time of one call to one node, from sending to its last part."),
			attribute.String("db.namespace", database),
		),
		whole: named(histogram.Make("ydb.client.retry.duration", "s", "Time of one request with all its attempts "+
			"and the pauses between.")),
		tries: named(
			histogram.Make("ydb.client.retry.attempts", "{attempt}", "Attempts of one request; 1: the first did.", 1, 2, 3, 5, 10),
		),
		wait:   wait.NewCell(own),
		failed: wait.NewCell(attribute.NewSet(system, pool, attribute.String("error.type", "not_acquired"))),
		create: histogram.Make("db.client.connection.create_time", "s", "Time to create and attach a session.").NewCell(own),
		use: histogram.Make("db.client.connection.use_time", "s",
			"Time that a call or a transaction of the plain API kept a session.").NewCell(
			own,
		),
		retries: retries,
	}, err
}

// asked counts a request and its attempts.
func (t *telemetry) asked(name string, all *tries, start time.Time) {
	t.whole.Add(name, time.Since(start))
	t.tries.Add(name, time.Duration(all.report.Attempts)*time.Second)
}

// acquired counts the wait for a session.
func (t *telemetry) acquired(d time.Duration, err error) {
	if err != nil {
		t.failed.Add(d)
		return
	}
	t.wait.Add(d)
}

var (
	retrySent   = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", "sent")))
	retryDenied = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", "budget_empty")))
)

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
