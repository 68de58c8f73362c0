// Command otelcollector is an OpenTelemetry collector for tests: the collector's
// own OTLP receiver, over gRPC and HTTP, and an exporter that appends what comes to
// a file as lines of OTLP JSON. It serves until SIGTERM.
//
// It is a module of its own, so that the collector's dependencies stay out of the
// product's.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

func main() {
	overGRPC := flag.String("grpc", "127.0.0.1:4317", "`address` of OTLP over gRPC")
	overHTTP := flag.String("http", "127.0.0.1:4318", "`address` of OTLP over HTTP")
	to := flag.String("out", "spans.json", "`file` that the spans are appended to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *overGRPC, *overHTTP, *to); err != nil {
		fmt.Fprintln(os.Stderr, "otelcollector:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. A line on standard output says that it does.
func run(ctx context.Context, overGRPC, overHTTP, to string) (err error) {
	out, err := os.OpenFile(to, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if lost := out.Close(); err == nil {
			err = lost
		}
	}()
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.Protocols.GRPC.GetOrInsertDefault().NetAddr.Endpoint = overGRPC
	config.Protocols.HTTP.GetOrInsertDefault().ServerConfig.NetAddr.Endpoint = overHTTP
	traces, err := consumer.NewTraces((&writer{out: out}).write)
	if err != nil {
		return err
	}
	r, err := factory.CreateTraces(ctx, receiver.Settings{
		ID: component.NewID(factory.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings(),
		BuildInfo: component.NewDefaultBuildInfo(),
	}, config, traces)
	if err != nil {
		return err
	}
	if err := r.Start(ctx, componenttest.NewNopHost()); err != nil {
		return err
	}
	fmt.Printf("{\"ready\":true,\"grpc\":%q,\"http\":%q}\n", overGRPC, overHTTP)
	<-ctx.Done()
	return r.Shutdown(context.WithoutCancel(ctx))
}

// writer is the exporter.
type writer struct {
	mu  sync.Mutex // guards out
	out *os.File
}

func (w *writer) write(_ context.Context, spans ptrace.Traces) error {
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(spans)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err = w.out.Write(append(line, '\n'))
	return err
}
