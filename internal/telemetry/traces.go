package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

const scope = "github.com/ydb-sidecar/sidecar/internal/telemetry"

func (t *Telemetry) setUpTraces(ctx context.Context, res *resource.Resource, c tracing.Config, log *slog.Logger) error {
	head, err := t.sampler(c)
	if err != nil {
		return err
	}
	limits, err := readBatching(t.getenv)
	if err != nil {
		return err
	}
	exporter, err := newExporter(ctx, t.getenv)
	if err != nil || exporter == nil {
		return err
	}
	t.queue = newQueue(exporter, limits, log)
	pick := new(picker)
	t.exported = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(t.queue), sdktrace.WithResource(res),
		sdktrace.WithIDGenerator(tracing.Generator{}), sdktrace.WithSampler(pick))
	t.traces = t.exported
	t.tracer = tracing.New(t.exported, t.queue.room, c, head)
	pick.tracer = t.tracer
	return nil
}

// SetTracing changes which calls are recorded from now on.
func (t *Telemetry) SetTracing(c tracing.Config) error {
	head, err := t.sampler(c)
	if err == nil && t.tracer != nil {
		t.tracer.Set(c, head)
	}
	return err
}

// sampler is what decides about calls when they begin.
func (t *Telemetry) sampler(c tracing.Config) (tracing.Sampler, error) {
	return tracing.ParseSampler(strings.TrimSpace(t.getenv("OTEL_TRACES_SAMPLER")),
		strings.TrimSpace(t.getenv("OTEL_TRACES_SAMPLER_ARG")), tracing.Ratio(c.Ratio))
}

// picker is the sampler of the SDK: spans of calls have been decided about when
// they come here; all others are decided about as calls are.
type picker struct{ tracer *tracing.Tracer }

// ShouldSample satisfies the SDK's Sampler.
func (p *picker) ShouldSample(s sdktrace.SamplingParameters) sdktrace.SamplingResult {
	parent := trace.SpanContextFromContext(s.ParentContext)
	result := sdktrace.SamplingResult{Decision: sdktrace.Drop, Tracestate: parent.TraceState()}
	if tracing.Forced(s.ParentContext) || p.tracer.Picks(parent, s.TraceID) {
		result.Decision = sdktrace.RecordAndSample
	}
	return result
}

// Description satisfies the SDK's Sampler.
func (p *picker) Description() string { return "ydb-sidecar" }

// newExporter returns the exporter of spans that the environment asks for, or
// nil for none. It does not try again by itself: the queue does.
func newExporter(ctx context.Context, getenv func(string) string) (sdktrace.SpanExporter, error) {
	first := func(names ...string) (value string) {
		for _, name := range names {
			if value = strings.TrimSpace(getenv(name)); value != "" {
				break
			}
		}
		return value
	}
	if strings.EqualFold(first("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	endpoint := first("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	switch kind := first("OTEL_TRACES_EXPORTER"); kind {
	case "otlp": // at the default endpoint, if there is no other
	case "":
		if endpoint == "" {
			return nil, nil
		}
	case "none":
		return nil, nil
	default:
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER = %.40q; want otlp or none", kind)
	}
	protocol, err := protocolOf(getenv, "TRACES", endpoint)
	if err != nil {
		return nil, err
	}
	// The exporters read endpoint, headers, timeout, compression and TLS from
	// the same variables. Neither connects before there is something to send.
	if protocol == "grpc" {
		return otlptracegrpc.New(ctx, otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{}))
	}
	return otlptracehttp.New(ctx, otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}))
}

// protocolOf is how a signal, TRACES or METRICS, goes to an endpoint: grpc or
// http/protobuf.
func protocolOf(getenv func(string) string, signal, endpoint string) (string, error) {
	name := "OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL"
	protocol := strings.TrimSpace(getenv(name))
	if protocol == "" {
		name = "OTEL_EXPORTER_OTLP_PROTOCOL"
		protocol = strings.TrimSpace(getenv(name))
	}
	switch protocol {
	case "":
		// The standard's default is HTTP, but the port says what people meant.
		if u, err := url.Parse(endpoint); err == nil && u.Port() == "4317" {
			return "grpc", nil
		}
		return "http/protobuf", nil
	case "grpc", "http/protobuf":
		return protocol, nil
	}
	return "", fmt.Errorf("%s = %.40q; want grpc or http/protobuf", name, protocol)
}

// batching is what the OTEL_BSP_* variables say.
type batching struct {
	queue, batch   int // spans
	delay, timeout time.Duration
}

func readBatching(getenv func(string) string) (b batching, err error) {
	number := func(name string, standard int) int {
		text := strings.TrimSpace(getenv(name))
		if text == "" {
			return standard
		}
		n, bad := strconv.Atoi(text)
		if bad != nil || n < 1 || n > 1<<24 {
			err = errors.Join(err, fmt.Errorf("%s = %.40q; want a number from 1 to %d", name, text, 1<<24))
		}
		return n
	}
	b.queue, b.batch = number("OTEL_BSP_MAX_QUEUE_SIZE", 2048), number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)
	b.delay = time.Duration(number("OTEL_BSP_SCHEDULE_DELAY", 5000)) * time.Millisecond
	b.timeout = time.Duration(number("OTEL_BSP_EXPORT_TIMEOUT", 30000)) * time.Millisecond
	b.batch = min(b.batch, b.queue)
	return b, err
}

const (
	// maxExports is how often a batch is sent before it is given up.
	maxExports = 5
	// maxPause is the longest pause between two of these.
	maxPause = 30 * time.Second
	// flushTime bounds the sending of the last spans to a collector that answered so far.
	flushTime = 2 * time.Second
)

// queue takes spans that have ended to the collector: one batch at a time, and not
// more waiting than fit. Unlike the SDK's own, it counts what it drops, says when
// it is full before a span is made, and waits at the end for no collector that is
// known to be away.
type queue struct {
	out    sdktrace.SpanExporter
	limits batching
	log    *slog.Logger
	lines  rate.Sometimes

	spans  chan sdktrace.ReadOnlySpan
	stop   chan struct{} // closed by Shutdown
	once   sync.Once
	done   chan struct{} // closed when run has ended
	life   context.Context
	cancel context.CancelFunc

	away                    atomic.Bool // the last try failed
	exported, lost, dropped atomic.Uint64
}

func newQueue(out sdktrace.SpanExporter, limits batching, log *slog.Logger) *queue {
	q := &queue{
		out: out, limits: limits, log: log, lines: rate.Sometimes{Interval: time.Minute},
		spans: make(chan sdktrace.ReadOnlySpan, limits.queue), stop: make(chan struct{}), done: make(chan struct{}),
	}
	q.life, q.cancel = context.WithCancel(context.Background())
	go q.run()
	return q
}

// room reports whether another span would find a place, and counts it if not.
func (q *queue) room() bool {
	if len(q.spans) < cap(q.spans) {
		return true
	}
	q.dropped.Add(1)
	return false
}

// OnStart satisfies the SDK's SpanProcessor.
func (q *queue) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd takes a span, or counts it.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	select {
	case q.spans <- s:
	default:
		q.dropped.Add(1)
	}
}

// ForceFlush satisfies the SDK's SpanProcessor; only Shutdown sends ahead of time.
func (q *queue) ForceFlush(context.Context) error { return nil }

// Shutdown sends what is left, unless the collector is away, and ends the goroutine.
func (q *queue) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	if q.away.Load() { // said before the goroutine may begin to send what is left
		q.cancel()
	}
	q.once.Do(func() { close(q.stop) })
	defer context.AfterFunc(ctx, q.cancel)()
	<-q.done
	q.cancel()
	return q.out.Shutdown(context.WithoutCancel(ctx))
}

// run is the queue's goroutine.
func (q *queue) run() {
	defer close(q.done)
	batch, tries := make([]sdktrace.ReadOnlySpan, 0, q.limits.batch), 0
	timer := time.NewTimer(q.limits.delay)
	defer timer.Stop()
	for {
		more := q.spans
		if len(batch) == cap(batch) { // one that is sent again
			more = nil
		}
		select {
		case s := <-more:
			if batch = append(batch, s); len(batch) < cap(batch) || tries > 0 {
				continue
			}
		case <-timer.C:
		case <-q.stop:
			q.flush(batch)
			return
		}
		tries++
		if q.export(batch, tries == maxExports) {
			clear(batch)
			batch, tries = batch[:0], 0
		}
		timer.Reset(min(q.limits.delay<<tries, max(maxPause, q.limits.delay)))
	}
}

// flush sends all that is left, until the first failure.
func (q *queue) flush(batch []sdktrace.ReadOnlySpan) {
	for {
		for len(batch) < cap(batch) && len(q.spans) > 0 {
			batch = append(batch, <-q.spans)
		}
		if len(batch) == 0 {
			return
		}
		if q.life.Err() != nil {
			q.lost.Add(uint64(len(batch)))
		} else if q.export(batch, true); q.away.Load() {
			q.cancel()
		}
		batch = batch[:0]
	}
}

// export sends a batch; false: it is to be sent again, which the last time it is not.
func (q *queue) export(batch []sdktrace.ReadOnlySpan, last bool) (over bool) {
	if len(batch) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(q.life, q.limits.timeout)
	defer cancel()
	err := panics.Call("the export of spans", func() error { return q.out.ExportSpans(ctx, batch) })
	if q.away.Swap(err != nil) && err == nil {
		q.log.Info("spans are sent again", "lost", q.lost.Load(), "dropped", q.dropped.Load())
	}
	if err == nil {
		q.exported.Add(uint64(len(batch)))
		return true
	}
	q.lines.Do(func() {
		q.log.Warn("spans cannot be sent; is the collector there? (OTEL_EXPORTER_OTLP_ENDPOINT)", "err", err, "lost",
			q.lost.Load(), "dropped", q.dropped.Load())
	})
	if last {
		q.lost.Add(uint64(len(batch)))
	}
	return last
}

// countSpans makes the counters of what became of spans.
func (t *Telemetry) countSpans() error {
	if t.queue == nil {
		return nil
	}
	m := t.figures.meters.Meter(scope)
	spans, err := m.Int64ObservableCounter("ydb.sidecar.tracing.spans", metric.WithUnit("{span}"),
		metric.WithDescription("Spans by what became of them: exported; lost, as the collector did not take them; "+
			"dropped, as too many waited for it (a call whose spans were not even made counts as one)."))
	if err != nil {
		return err
	}
	limited, err := m.Int64ObservableCounter("ydb.sidecar.tracing.limited", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that failed or were slow and were not recorded because of tracing.tail."))
	if err != nil {
		return err
	}
	outcome := func(name string) metric.ObserveOption {
		return metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", name)))
	}
	exported, lost, dropped := outcome("exported"), outcome("lost"), outcome("dropped")
	_, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(spans, int64(t.queue.exported.Load()), exported)
		o.ObserveInt64(spans, int64(t.queue.lost.Load()), lost)
		o.ObserveInt64(spans, int64(t.queue.dropped.Load()), dropped)
		o.ObserveInt64(limited, int64(t.tracer.Limited()))
		return nil
	}, spans, limited)
	return err
}
