package ingest

import (
	"context"
	"errors"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

const scope = "github.com/ydb-sidecar/sidecar/internal/ingest"

// telemetry counts for all streams together.
type telemetry struct {
	tracer trace.Tracer

	rowsWritten, rowsRefused, rowsMerged      atomic.Uint64
	batches, failures, requests, retries, out atomic.Uint64
	flights                                   atomic.Int64
}

func newTelemetry(tp trace.TracerProvider, mp metric.MeterProvider, e *Engine) (*telemetry, error) {
	if tp == nil {
		tp = nooptrace.NewTracerProvider()
	}
	if mp == nil {
		mp = noopmetric.NewMeterProvider()
	}
	t := &telemetry{tracer: tp.Tracer(scope)}
	meter := mp.Meter(scope)
	var errs []error
	result := func(name string) metric.ObserveOption {
		return metric.WithAttributes(attribute.String("ydb.sidecar.result", name))
	}
	count := func(name, unit, text string, read func(o metric.Int64Observer)) {
		_, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(text),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error { read(o); return nil }))
		errs = append(errs, err)
	}
	level := func(name, unit, text string, read func() int64) {
		_, err := meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(text),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error { o.Observe(read()); return nil }))
		errs = append(errs, err)
	}
	count("ydb.sidecar.ingest.rows", "{row}",
		"Rows of Ingest streams: written, refused, and of the written ones those that went as one with a later row of their key (merged).",
		func(o metric.Int64Observer) {
			o.Observe(int64(t.rowsWritten.Load()), result("written"))
			o.Observe(int64(t.rowsRefused.Load()), result("refused"))
			o.Observe(int64(t.rowsMerged.Load()), result("merged"))
		})
	count("ydb.sidecar.ingest.batches", "{batch}", "Batches of Ingest streams, by result.", func(o metric.Int64Observer) {
		o.Observe(int64(t.batches.Load()), result("good"))
		o.Observe(int64(t.failures.Load()), result("failed"))
	})
	count("ydb.sidecar.ingest.requests", "{request}", "BulkUpserts of Ingest streams, without retries.",
		func(o metric.Int64Observer) { o.Observe(int64(t.requests.Load())) })
	count("ydb.sidecar.ingest.retries", "{retry}", "BulkUpserts of Ingest streams that were sent again.",
		func(o metric.Int64Observer) { o.Observe(int64(t.retries.Load())) })
	count("ydb.sidecar.ingest.bytes", "By", "Bytes of BulkUpserts of Ingest streams.",
		func(o metric.Int64Observer) { o.Observe(int64(t.out.Load())) })
	level("ydb.sidecar.ingest.flights", "{batch}", "Batches of Ingest streams under way.", t.flights.Load)
	level("ydb.sidecar.ingest.streams", "{stream}", "Open Ingest streams.", func() int64 { return int64(len(e.all())) })
	return t, errors.Join(errs...)
}

// wrote counts a batch that is over.
func (t *telemetry) wrote(b *batch, err error) {
	if err != nil {
		t.failures.Add(1)
	} else {
		t.batches.Add(1)
	}
	t.rowsWritten.Add(b.written)
	t.rowsMerged.Add(uint64(max(0, int(b.written)+b.refused-len(b.g.slots))))
	t.requests.Add(uint64(b.requests))
	t.out.Add(uint64(b.bytes))
}
