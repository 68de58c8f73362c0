package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// flushTime is how long the last spans may take at the end.
const flushTime = 3 * time.Second

// tracing exports spans when OTEL_EXPORTER_OTLP_ENDPOINT is set.
type tracing struct{ sdk *sdktrace.TracerProvider }

func startTracing(ctx context.Context) (tracing, error) {
	endpoint := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") + os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
	if endpoint == "" || os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return tracing{}, nil
	}
	exporter, err := newExporter(ctx)
	if err != nil {
		return tracing{}, fmt.Errorf("trace exporter: %w", err)
	}
	described, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "ydb-devcluster")),
		resource.WithFromEnv(), resource.WithProcessPID())
	if err != nil {
		return tracing{}, fmt.Errorf("trace resource: %w", err)
	}
	return tracing{sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(described))}, nil
}

// newExporter speaks the protocol named by the standard variables, gRPC unless
// they say HTTP.
func newExporter(ctx context.Context) (*otlptrace.Exporter, error) {
	protocol := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
	if protocol == "" {
		protocol = os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	if strings.HasPrefix(protocol, "http") {
		return otlptracehttp.New(ctx)
	}
	return otlptracegrpc.New(ctx)
}

// provider is nil when nothing is exported.
func (t tracing) provider() trace.TracerProvider {
	if t.sdk == nil {
		return nil
	}
	return t.sdk
}

func (t tracing) stop() error {
	if t.sdk == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	if err := t.sdk.Shutdown(ctx); err != nil {
		return fmt.Errorf("flush spans: %w", err)
	}
	return nil
}
