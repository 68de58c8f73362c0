package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// The values of Config.Names.
const (
	NamesOTel = "otel" // db.client.*
	NamesYDB  = "ydb"  // ydb.client.*, ydb.query.*
	NamesBoth = "both"
)

// Config is the section "telemetry" of the configuration.
type Config struct {
	// Names of the metrics of pool and database calls: otel (db.client.*, of OpenTelemetry), ydb
	// (ydb.client.* and ydb.query.*, of YDB's SDKs) or both
	Names string `yaml:"names"`
}

// Default returns the defaults.
func Default() Config { return Config{Names: NamesBoth} }

// Validate returns all faults, joined.
func (c Config) Validate() error {
	if !slices.Contains([]string{NamesOTel, NamesYDB, NamesBoth}, c.Names) {
		return config.Faultf("names", " = %q; must be otel, ydb or both", c.Names)
	}
	return nil
}

// figures are the metrics: one provider measures, another exports what families
// make of that.
type figures struct {
	meters   *sdkmetric.MeterProvider
	families families
	output   *sdkmetric.MeterProvider
	handler  http.Handler
	noted    noted
	direct   direct
	pushes   [2]atomic.Uint64 // exports by OTLP that were good, and that failed
}

// newFigures sets the metrics up. Nothing is pushed unless the environment says so.
func newFigures(ctx context.Context, c Config, getenv func(string) string, res *resource.Resource) (*figures, error) {
	f := &figures{}
	f.families.reader, f.families.names = sdkmetric.NewManualReader(sdkmetric.WithProducer(&producer{direct: &f.direct})), c.Names
	measure := []sdkmetric.Option{
		sdkmetric.WithReader(f.families.reader),
		sdkmetric.WithResource(res),
		sdkmetric.WithCardinalityLimit(maxSeries),
		sdkmetric.WithView(sdkmetric.NewView(
			sdkmetric.Instrument{Kind: sdkmetric.InstrumentKindHistogram, Unit: "s"},
			sdkmetric.Stream{Aggregation: sdkmetric.AggregationExplicitBucketHistogram{Boundaries: bounds}},
		), f.noted.view),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	scraped, err := otelprometheus.New(
		otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo(),
		otelprometheus.WithProducer(&f.families),
	)
	if err != nil {
		return nil, fmt.Errorf("set up the Prometheus exporter: %w", err)
	}
	export := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithReader(scraped)}

	exporter, err := newPush(ctx, getenv)
	if err != nil {
		return nil, err
	}
	if exporter != nil {
		pushed := &f.families
		if exporter.Temporality(sdkmetric.InstrumentKindCounter) != metricdata.CumulativeTemporality {
			// It wants differences, and gets a measure of its own.
			pushed = &families{reader: sdkmetric.NewManualReader(sdkmetric.WithTemporalitySelector(exporter.Temporality),
				sdkmetric.WithProducer(
					&producer{direct: &f.direct, temporality: exporter.Temporality(sdkmetric.InstrumentKindHistogram)},
				)), names: c.Names,
				like: &f.families}
			measure = append(measure, sdkmetric.WithReader(pushed.reader))
		}
		export = append(export,
			sdkmetric.WithReader(sdkmetric.NewPeriodicReader(counted{exporter, &f.pushes}, sdkmetric.WithProducer(pushed))))
	}
	f.meters, f.output = sdkmetric.NewMeterProvider(measure...), sdkmetric.NewMeterProvider(export...)
	f.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	if exporter != nil {
		err = f.observeRuntime()
	}
	return f, err
}

// lastPush bounds the sending of the last figures to a collector that does not answer.
const lastPush = 2 * time.Second

// shutdown sends what is left, within ctx, and ends all goroutines.
func (f *figures) shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lastPush)
	defer cancel()
	err := f.output.Shutdown(ctx)
	if later := f.meters.Shutdown(ctx); err == nil {
		err = later
	}
	if err != nil {
		return fmt.Errorf("send the last metrics: %w", err)
	}
	return nil
}

// newPush returns the exporter of metrics that the environment asks for, or nil
// for none. That OTEL_EXPORTER_OTLP_ENDPOINT is set is not enough: many who want
// their traces there scrape /metrics.
func newPush(ctx context.Context, getenv func(string) string) (sdkmetric.Exporter, error) {
	get := func(name string) string { return strings.TrimSpace(getenv(name)) }
	endpoint := get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
	push := endpoint != ""
	if list := get("OTEL_METRICS_EXPORTER"); list != "" {
		push = false
		for name := range strings.SplitSeq(list, ",") {
			switch strings.TrimSpace(name) {
			case "otlp":
				push = true
			case "none", "prometheus": // which is always there
			default:
				return nil, fmt.Errorf("OTEL_METRICS_EXPORTER = %q; want otlp, prometheus or none, or more of them with commas between",
					list)
			}
		}
	}
	if !push || strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	if endpoint == "" {
		endpoint = get("OTEL_EXPORTER_OTLP_ENDPOINT")
	}
	protocol, err := protocolOf(getenv, "METRICS", endpoint)
	if err != nil {
		return nil, err
	}
	// The exporters read endpoint, headers, timeout, compression, TLS and
	// temporality from the same variables, and the reader its interval. Neither
	// connects before there is something to send.
	if protocol == "grpc" {
		return otlpmetricgrpc.New(ctx)
	}
	return otlpmetrichttp.New(ctx)
}

// counted counts what becomes of exports.
type counted struct {
	sdkmetric.Exporter
	results *[2]atomic.Uint64
}

func (c counted) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	err := c.Exporter.Export(ctx, m)
	if err != nil {
		c.results[1].Add(1)
	} else {
		c.results[0].Add(1)
	}
	return err
}

// observeRuntime adds what /metrics has from Prometheus' own collectors, by the
// names of OpenTelemetry, and what becomes of exports.
func (f *figures) observeRuntime() error {
	meter := f.meters.Meter(scope)
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/goal:bytes"},
	}
	var all []metric.Observable
	var errs []error
	level := func(name, unit, text string) metric.Int64ObservableUpDownCounter {
		i, err := meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		all, errs = append(all, i), append(errs, err)
		return i
	}
	count := func(name, unit, text string) metric.Int64ObservableCounter {
		i, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		all, errs = append(all, i), append(errs, err)
		return i
	}
	memory := level("go.memory.used", "By", "Memory of the Go runtime; with a push alone, like all go.*: /metrics has Prometheus' own.")
	allocated := count("go.memory.allocated", "By", "Memory allocated on the heap so far.")
	allocations := count("go.memory.allocations", "{allocation}", "Allocations on the heap so far.")
	goal := level("go.memory.gc.goal", "By", "Size of the heap at which the next garbage collection ends.")
	goroutines := level("go.goroutine.count", "{goroutine}", "Goroutines that live.")
	processors := level("go.processor.limit", "{thread}", "Threads that run Go code at a time (GOMAXPROCS).")
	exports := count("ydb.sidecar.telemetry.pushes", "{push}", "Pushes of metrics to the collector, by result.")
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		now := slices.Clone(samples) // two may ask at a time
		metrics.Read(now)
		value := func(i int) int64 {
			if now[i].Value.Kind() != metrics.KindUint64 {
				return 0
			}
			return int64(now[i].Value.Uint64())
		}
		o.ObserveInt64(memory, value(0)-value(1))
		o.ObserveInt64(allocated, value(2))
		o.ObserveInt64(allocations, value(3))
		o.ObserveInt64(goal, value(4))
		o.ObserveInt64(goroutines, int64(runtime.NumGoroutine()))
		o.ObserveInt64(processors, int64(runtime.GOMAXPROCS(0)))
		for i, result := range [...]string{"good", "failed"} {
			o.ObserveInt64(exports, int64(f.pushes[i].Load()), metric.WithAttributes(attribute.String("ydb.sidecar.result", result)))
		}
		return nil
	}, all...)
	return err
}
