package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func environment(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

func set(t *testing.T, variables map[string]string) *Telemetry {
	t.Helper()
	for name, value := range variables {
		t.Setenv(name, value)
	}
	tel, err := New(t.Context(), Default(), environment(variables), tracing.Default(), "1.2.3", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

func shutDown(t *testing.T, tel *Telemetry) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := tel.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// receiver is a collector that keeps what it is sent.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (r *receiver) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.got <- request
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	message := new(collector.ExportTraceServiceRequest)
	if err := proto.Unmarshal(body, message); err != nil || request.URL.Path != "/v1/traces" {
		http.Error(w, "not a trace", http.StatusBadRequest)
		return
	}
	r.got <- message
}

func TestSpansAreExported(t *testing.T) {
	for protocol, serve := range map[string]func(t *testing.T, r *receiver) (address string){
		"grpc": func(t *testing.T, r *receiver) string {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			collector.RegisterTraceServiceServer(server, r)
			done := make(chan error, 1)
			go func() { done <- server.Serve(listener) }()
			t.Cleanup(func() { server.Stop(); <-done })
			return "http://" + listener.Addr().String()
		},
		"http/protobuf": func(t *testing.T, r *receiver) string {
			server := httptest.NewServer(r)
			t.Cleanup(server.Close)
			return server.URL
		},
	} {
		t.Run(protocol, func(t *testing.T) {
			r := &receiver{got: make(chan *collector.ExportTraceServiceRequest, 1)}
			tel := set(t, map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": serve(t, r),
				"OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
				"OTEL_SERVICE_NAME":           "shop",
			})
			_, span := tel.Tracers().Tracer("test").Start(t.Context(), "hop")
			span.End()
			shutDown(t, tel)
			message := <-r.got
			resource := message.ResourceSpans[0].Resource.String()
			if name := message.ResourceSpans[0].ScopeSpans[0].Spans[0].Name; name != "hop" {
				t.Errorf("span %q; want hop", name)
			}
			for _, want := range []string{"shop", "1.2.3", "service.instance.id"} {
				if !strings.Contains(resource, want) {
					t.Errorf("resource %s lacks %s", resource, want)
				}
			}
		})
	}
}

func TestNothingIsExportedUnlessAskedFor(t *testing.T) {
	for name, variables := range map[string]map[string]string{
		"no_endpoint":  {},
		"no_exporter":  {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
		"sdk_disabled": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
	} {
		t.Run(name, func(t *testing.T) {
			tel := set(t, variables)
			defer shutDown(t, tel)
			_, span := tel.Tracers().Tracer("test").Start(t.Context(), "hop")
			if tel.Exporting() || span.IsRecording() {
				t.Error("spans are recorded")
			}
		})
	}
}

func TestBadVariables(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
		"OTEL_TRACES_SAMPLER": "jaeger_remote", "OTEL_BSP_MAX_QUEUE_SIZE": "0", "OTEL_BSP_SCHEDULE_DELAY": "5s",
	} {
		getenv := environment(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", name: value})
		if _, err := New(
			t.Context(), Default(), getenv, tracing.Default(), "", slog.New(slog.DiscardHandler),
		); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v; want an error that names the variable", name, value, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	tel := set(t, nil)
	defer shutDown(t, tel)
	meter := tel.Meters().Meter("test")
	histogram, err := meter.Float64Histogram("db.client.connection.wait_time", metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	histogram.Record(t.Context(), 20e-6)
	recorder := httptest.NewRecorder()
	tel.Metrics().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	text := recorder.Body.String()
	for _, want := range []string{
		`db_client_connection_wait_time_seconds_bucket{le="1e-05"} 0`,
		`db_client_connection_wait_time_seconds_bucket{le="2.5e-05"} 1`,
		"go_goroutines", "target_info",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s:\n%.2000s", want, text)
		}
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log := NewLogger(&out, DefaultLog(), nil).With("part", "pool")
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	log.DebugContext(t.Context(), "not shown")
	log.InfoContext(trace.ContextWithSpanContext(t.Context(), span), "in a span")
	var line map[string]string
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if line["trace_id"] != span.TraceID().String() || line["span_id"] != span.SpanID().String() || line["part"] != "pool" {
		t.Errorf("line %s lacks the ids of its span", out.String())
	}
	out.Reset()
	NewLogger(&out, LogConfig{Format: "text"}, nil).WithGroup("g").Info("hello", "a", 1)
	if got := out.String(); !strings.Contains(got, "level=INFO msg=hello g.a=1") {
		t.Errorf("text %q", got)
	}
}

func TestValidate(t *testing.T) {
	if err := DefaultLog().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	if err := (LogConfig{Format: "xml"}).Validate(); err == nil {
		t.Error("xml is accepted")
	}
}
