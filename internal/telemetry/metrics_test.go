package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricsv1 "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/proof/await"
)

// scrape returns the lines of /metrics that begin with one of the prefixes.
func scrape(tel *Telemetry, prefixes ...string) string {
	recorder := httptest.NewRecorder()
	tel.Metrics().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	var out strings.Builder
	for line := range strings.Lines(recorder.Body.String()) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// measured is a Telemetry with some calls and a pool.
func measured(t *testing.T, names string) *Telemetry {
	t.Helper()
	tel, err := New(t.Context(), Config{Names: names}, environment(nil), tracing.Default(), "1.2.3", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shutDown(t, tel) })
	tel.SetEndpoint("ydb:2136")
	feed(t, tel)
	return tel
}

func feed(t *testing.T, tel *Telemetry) {
	t.Helper()
	meter := tel.Meters().Meter("test")
	hop, err := meter.Float64Histogram(hopDuration, metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	call := func(node int, op, status, code string) {
		attrs := []attribute.KeyValue{
			attribute.String("db.namespace", "/local"), attribute.String("db.operation.name", op), attribute.Int("ydb.node.id", node),
			attribute.String(rpcMethod, "Ydb.Query.V1.QueryService/"+op), attribute.String(rpcStatus, code),
		}
		if status != "" {
			attrs = append(attrs, attribute.String("db.response.status_code", status))
		}
		hop.Record(t.Context(), 20e-6, metric.WithAttributes(attrs...))
	}
	call(1, "ExecuteQuery", "", "OK")
	call(2, "ExecuteQuery", "", "OK")
	call(2, "ExecuteQuery", "ABORTED", "OK")
	call(2, "CommitTransaction", "UNAVAILABLE", "UNAVAILABLE")
	create, err := meter.Float64Histogram(createTime, metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	pool := attribute.String("db.client.connection.pool.name", "/local")
	create.Record(t.Context(), 2, metric.WithAttributes(pool))
	count, err := meter.Int64ObservableUpDownCounter(
		"db.client.connection.count", metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(3, metric.WithAttributes(pool, attribute.String("db.client.connection.state", "idle")))
			return nil
		}),
	)
	if err != nil || count == nil {
		t.Fatal(err)
	}
	forward := tel.Histogram(forwardDuration, "s", "of forwarded calls")
	for _, node := range []string{"1", ""} {
		attrs := []attribute.KeyValue{attribute.String("db.operation.name", "ExecuteQuery"),
			attribute.String(rpcMethod, "Ydb.Query.V1.QueryService/ExecuteQuery"), attribute.String(rpcStatus, "OK")}
		if node != "" {
			attrs = append(attrs, attribute.String("ydb.node.id", node))
		}
		forward.NewCell(attribute.NewSet(attrs...)).Add(time.Second)
	}
	calls, err := meter.Float64Histogram(rpcCalls, metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	calls.Record(t.Context(), 1,
		metric.WithAttributes(attribute.String("rpc.system.name", "grpc"),
			attribute.String(rpcMethod, "sidecar.v1.Sidecar/Execute"), attribute.String(rpcStatus, "OK")))
}

// What YDB's own SDKs say of a client is made of what was measured once, with
// their names and labels; gRPC's family has the calls of all sources.
func TestFamilies(t *testing.T) {
	tel := measured(t, NamesBoth)
	got := scrape(tel, "ydb_client_operation_duration_seconds_count", "ydb_client_operation_failed", "ydb_query_session",
		"rpc_client_call_duration_seconds_count", "rpc_server_call_duration_seconds_count",
		"db_client_operation_duration_seconds_count", "ydb_sidecar_forward_duration_seconds_count",
		`ydb_client_operation_duration_seconds_bucket{database="/local",endpoint="ydb:2136",operation_name="ExecuteQuery",le="2.5e-05"}`)
	for _, want := range []string{
		`ydb_client_operation_duration_seconds_count{database="/local",endpoint="ydb:2136",operation_name="ExecuteQuery"} 3`,
		`ydb_client_operation_duration_seconds_bucket{database="/local",endpoint="ydb:2136",operation_name="ExecuteQuery",le="2.5e-05"} 3`,
		`ydb_client_operation_duration_seconds_count{database="/local",endpoint="ydb:2136",operation_name="Commit"} 1`,
		`ydb_client_operation_duration_seconds_count{database="/local",endpoint="ydb:2136",operation_name="CreateSession"} 1`,
		`ydb_client_operation_failed_total{database="/local",endpoint="ydb:2136",operation_name="ExecuteQuery",status_code="ABORTED"} 1`,
		`ydb_client_operation_failed_total{database="/local",endpoint="ydb:2136",operation_name="Commit",status_code="UNAVAILABLE"} 1`,
		`ydb_query_session_count{ydb_query_session_pool_name="/local",ydb_query_session_state="idle"} 3`,
		`ydb_query_session_create_time_seconds_count{ydb_query_session_pool_name="/local"} 1`,
		`rpc_client_call_duration_seconds_count{rpc_method="Ydb.Query.V1.QueryService/ExecuteQuery",rpc_response_status_code="OK",rpc_system_name="grpc",ydb_node_id="1"} 2`,
		`rpc_client_call_duration_seconds_count{rpc_method="Ydb.Query.V1.QueryService/ExecuteQuery",rpc_response_status_code="OK",rpc_system_name="grpc",ydb_node_id="2"} 2`,
		`rpc_client_call_duration_seconds_count{rpc_method="Ydb.Query.V1.QueryService/CommitTransaction",rpc_response_status_code="UNAVAILABLE",rpc_system_name="grpc",ydb_node_id="2"} 1`,
		`rpc_server_call_duration_seconds_count{rpc_method="Ydb.Query.V1.QueryService/ExecuteQuery",rpc_response_status_code="OK",rpc_system_name="grpc"} 2`,
		`rpc_server_call_duration_seconds_count{rpc_method="sidecar.v1.Sidecar/Execute",rpc_response_status_code="OK",rpc_system_name="grpc"} 1`,
		`db_client_operation_duration_seconds_count{db_namespace="/local",db_operation_name="ExecuteQuery",db_response_status_code="ABORTED",ydb_node_id="2"} 1`,
		`ydb_sidecar_forward_duration_seconds_count{db_operation_name="ExecuteQuery",ydb_node_id="1"} 1`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

func TestNamesChooseTheFamily(t *testing.T) {
	for names, want := range map[string]string{NamesOTel: "true false", NamesYDB: "false true", NamesBoth: "true true"} {
		tel := measured(t, names)
		if got := fmt.Sprint(scrape(tel, "db_client_") != "", scrape(tel, "ydb_client_", "ydb_query_") != ""); got != want {
			t.Errorf("%s: db.client.* and ydb.* are there: %s; want %s", names, got, want)
		}
		if scrape(tel, "rpc_client_call_duration") == "" {
			t.Errorf("%s: no rpc.client.call.duration", names)
		}
	}
	if err := (Config{Names: "prometheus"}).Validate(); err == nil || !strings.Contains(err.Error(), "names") {
		t.Errorf("names = prometheus: %v", err)
	}
}

// sink is a collector of metrics.
type sink struct {
	collector.UnimplementedMetricsServiceServer
	got chan *collector.ExportMetricsServiceRequest
}

func (s *sink) Export(_ context.Context, r *collector.ExportMetricsServiceRequest) (*collector.ExportMetricsServiceResponse, error) {
	s.got <- r
	return &collector.ExportMetricsServiceResponse{}, nil
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m := new(collector.ExportMetricsServiceRequest)
	if err := proto.Unmarshal(body, m); err != nil || r.URL.Path != "/v1/metrics" {
		http.Error(w, "no metrics", http.StatusBadRequest)
		return
	}
	s.got <- m
}

func TestMetricsArePushed(t *testing.T) {
	for _, c := range []struct {
		protocol, temporality string
		want                  metricsv1.AggregationTemporality
	}{
		{"grpc", "", metricsv1.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE},
		{"http/protobuf", "", metricsv1.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE},
		{"grpc", "delta", metricsv1.AggregationTemporality_AGGREGATION_TEMPORALITY_DELTA},
	} {
		t.Run(c.protocol+" "+c.temporality, func(t *testing.T) {
			s := &sink{got: make(chan *collector.ExportMetricsServiceRequest, 4)}
			url := ""
			if c.protocol == "grpc" {
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				server := grpc.NewServer()
				collector.RegisterMetricsServiceServer(server, s)
				done := make(chan error, 1)
				go func() { done <- server.Serve(listener) }()
				t.Cleanup(func() { server.Stop(); <-done })
				url = "http://" + listener.Addr().String()
			} else {
				server := httptest.NewServer(s)
				t.Cleanup(server.Close)
				url = server.URL
			}
			tel := set(t, map[string]string{
				"OTEL_METRICS_EXPORTER": "otlp,prometheus", "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": c.protocol,
				"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": c.temporality,
			})
			tel.SetEndpoint("ydb:2136")
			feed(t, tel)
			scrape(tel) // takes nothing away from the push
			shutDown(t, tel)
			found := map[string]*metricsv1.Metric{}
			for _, scope := range (<-s.got).ResourceMetrics[0].ScopeMetrics {
				for _, m := range scope.Metrics {
					found[m.Name] = m
				}
			}
			for _, name := range []string{"ydb.client.operation.duration", hopDuration, "rpc.server.call.duration",
				"go.memory.used", "ydb.sidecar.telemetry.pushes"} {
				if found[name] == nil {
					t.Errorf("no %s", name)
				}
			}
			h := found["ydb.client.operation.duration"].GetHistogram()
			if got := h.GetAggregationTemporality(); got != c.want {
				t.Errorf("temporality %v; want %v", got, c.want)
			}
			if points := h.GetDataPoints(); len(points) != 3 || !strings.Contains(points[0].String(), "ydb:2136") {
				t.Errorf("points %v", points)
			}
		})
	}
}

func TestMetricsAreNotPushedUnlessAskedFor(t *testing.T) {
	for name, variables := range map[string]map[string]string{
		"endpoint_for_traces": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"none":                {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1", "OTEL_METRICS_EXPORTER": "none"},
		"disabled":            {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"},
	} {
		if e, err := newPush(t.Context(), environment(variables)); e != nil || err != nil {
			t.Errorf("%s: %v, %v; want none", name, e, err)
		}
	}
	for name, value := range map[string]string{"OTEL_METRICS_EXPORTER": "statsd", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json"} {
		variables := map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1", name: value}
		if _, err := newPush(t.Context(), environment(variables)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v; want an error that names it", name, value, err)
		}
	}
}

// A collector that takes no answers costs what is pushed, and nothing else: the
// figures are there to be scraped, and the end does not wait for it.
func TestADeadCollectorHarmsNothing(t *testing.T) {
	var asked atomic.Int64
	stuck := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		select {
		case <-stuck:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(stuck)
	tel := set(t, map[string]string{
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": server.URL + "/v1/metrics", "OTEL_METRIC_EXPORT_INTERVAL": "10",
		"OTEL_METRIC_EXPORT_TIMEOUT": "20",
	})
	feed(t, tel)
	await.Right(t, "a push that fails is counted", func() string { // a slow machine may send none in the first 20 ms
		counted := strings.Contains(scrape(tel, "ydb_sidecar_telemetry_pushes"), `result="failed"`)
		if counted && tel.figures.pushes[1].Load() > 0 && asked.Load() > 0 {
			return ""
		}
		return fmt.Sprintf("%d pushes were sent", asked.Load())
	})
	if !strings.Contains(scrape(tel, "db_client_operation"), "db_client_operation_duration") {
		t.Error("/metrics has nothing")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tel.Shutdown(ctx); err == nil {
		t.Error("the last push succeeded")
	}
	if ctx.Err() != nil {
		t.Error("the end waits for the collector")
	}
}
