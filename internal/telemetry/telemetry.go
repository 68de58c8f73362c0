// Package telemetry sets up what the process says about itself: spans and
// metrics over OTLP, metrics for Prometheus and log lines. Only internal/app imports it;
// everybody else is handed providers of the OpenTelemetry API and a logger.
//
// The standard OTEL_* variables rule the exporter of spans, the sampler and the
// resource. Without an endpoint no span is recorded and nothing is sent. What
// always holds: a collector that is away or slow delays neither a request nor the
// end of the process, spans that do not fit into the bounded queue to it are
// counted and not even made, and Shutdown ends every goroutine that New started.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/time/rate"

	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

// maxSeries bounds the attribute sets of each metric; what exceeds it is
// counted under one common label.
const maxSeries = 5000

// bounds are those of every histogram of durations, in seconds: getting a
// session takes microseconds.
var bounds = []float64{
	10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30,
}

// Telemetry holds the providers.
type Telemetry struct {
	traces   trace.TracerProvider
	figures  *figures
	exported *sdktrace.TracerProvider // nil: spans are not exported
	queue    *queue                   // nil: spans are not exported
	tracer   *tracing.Tracer          // nil: spans are not exported
	getenv   func(string) string
}

// New sets the providers up. getenv reads the OTEL_* variables that choose the
// exporter (os.Getenv; the exporters themselves read the rest from the real
// environment), version is that of the program. It fails on variables that mean
// nothing, never because a collector is away. It also directs OpenTelemetry's
// own errors, which have one handler per process, to log.
func New(ctx context.Context, c Config, getenv func(string) string, spans tracing.Config, version string,
	log *slog.Logger) (*Telemetry, error) {
	res, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "ydb-sidecar"),
			attribute.String("service.version", version),
			attribute.String("service.instance.id", uuid.NewString()),
		),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv(), // last: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
	)
	if err != nil && !errors.Is(err, resource.ErrPartialResource) && !errors.Is(err, resource.ErrSchemaURLConflict) {
		return nil, fmt.Errorf("describe this process: %w", err)
	}
	// A collector that is away fails every few seconds; one line a minute is enough.
	limit := rate.Sometimes{Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		limit.Do(func() { log.Warn("telemetry", "err", err) })
	}))

	t := &Telemetry{traces: noop.NewTracerProvider(), getenv: getenv}
	if err := t.setUpTraces(ctx, res, spans, log); err != nil {
		return nil, err
	}
	if t.figures, err = newFigures(ctx, c, getenv, res); err == nil {
		err = t.countSpans()
	}
	if err != nil {
		return nil, errors.Join(err, t.Shutdown(ctx))
	}
	return t, nil
}

// Tracers provides tracers; they record nothing if spans are not exported.
func (t *Telemetry) Tracers() trace.TracerProvider { return t.traces }

// Tracer makes the spans of calls; nil if spans are not exported.
func (t *Telemetry) Tracer() *tracing.Tracer { return t.tracer }

// Meters provides meters.
func (t *Telemetry) Meters() metric.MeterProvider { return t.figures.meters }

// Exporting reports whether spans are exported.
func (t *Telemetry) Exporting() bool { return t.exported != nil }

// Metrics serves all metrics in Prometheus' formats.
func (t *Telemetry) Metrics() http.Handler { return t.figures.handler }

// SetEndpoint names the address that the cluster is found at, for metrics that show it.
func (t *Telemetry) SetEndpoint(address string) { t.figures.families.endpoint.Store(&address) }

// Shutdown sends what is left, within ctx, and ends all goroutines.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var errs []error
	if t.exported != nil {
		if err := t.exported.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("send the last spans: %w", err))
		}
	}
	if t.figures != nil {
		errs = append(errs, t.figures.shutdown(ctx))
	}
	return errors.Join(errs...)
}
