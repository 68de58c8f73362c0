package facade

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
)

// TestOneSpanPerCall: over both faces a call is one span below the caller's, and
// whatever the driver does is below that; secrets are in none.
func TestOneSpanPerCall(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	w := newWorld(t, Default(), provider)
	parent := "00-" + traceID + "-" + spanID + "-01"
	const secret = "hunter2"

	conn, err := grpc.NewClient("passthrough:///"+w.target.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", parent)
	req := &sidecarv1.ExecuteRequest{Sql: "SELECT '" + secret + "', $p", Params: map[string]*sidecarv1.Value{
		"p": {Kind: &sidecarv1.Value_TextValue{TextValue: secret}},
	}}
	res, err := sidecarv1.NewSidecarClient(conn).Execute(ctx, req)
	if err != nil || res.Info.TraceId != traceID {
		t.Fatalf("info %+v, %v; want the caller's trace", res.GetInfo(), err)
	}
	status, _, got := send(t, "POST", w.target.HTTP+"/v1/query", `{"sql":"SELEC '`+secret+`'"}`, func(r *http.Request) { r.Header.Set("traceparent", parent) })
	if status != 400 || !strings.Contains(got, `"trace_id":"`+traceID+`"`) {
		t.Fatalf("%d %s; want an error with the caller's trace", status, got)
	}

	calls := map[string]sdktrace.ReadOnlySpan{}
	below := map[string][]string{}
	for _, s := range spans.Ended() {
		if strings.Contains(s.Name(), secret) {
			t.Errorf("a span is named %q", s.Name())
		}
		for _, a := range s.Attributes() {
			if strings.Contains(a.Value.String(), secret) {
				t.Errorf("span %s tells %s = %s", s.Name(), a.Key, a.Value.String())
			}
		}
		if s.SpanContext().TraceID().String() != traceID {
			continue // of sessions that are opened beforehand
		}
		if s.Parent().SpanID().String() == spanID {
			calls[s.SpanContext().SpanID().String()] = s
		} else {
			below[s.Parent().SpanID().String()] = append(below[s.Parent().SpanID().String()], s.Name())
		}
	}
	if len(calls) != 2 {
		t.Fatalf("%d spans below the caller's; want one for each of two calls", len(calls))
	}
	for id, s := range calls {
		if s.Name() != "sidecar.v1.Sidecar/Execute" {
			t.Errorf("a call's span is named %q", s.Name())
		}
		names := strings.Join(below[id], " ")
		if !strings.Contains(names, "acquire") || !strings.Contains(names, "hop") {
			t.Errorf("below the call there are %q; want acquire and hop", names)
		}
		set := attribute.NewSet(s.Attributes()...)
		if v, ok := set.Value("db.system.name"); !ok || v.AsString() != "ydb" {
			t.Errorf("the span says %v", s.Attributes())
		}
		if v, ok := set.Value("http.route"); ok {
			if kind, _ := set.Value("error.type"); v.AsString() != "/v1/query" || kind.AsString() != "YDB_GENERIC_ERROR" {
				t.Errorf("the span of the failed call says %v", s.Attributes())
			}
		}
	}
}

func TestEveryCallIsMeasured(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	b := start(t, small(), &fake{answer: echo}, func(d *Deps) { d.Meter = provider })
	for _, body := range []string{`{"sql":"S"}`, `{"sql":"S"}`, `{}`} {
		send(t, "POST", b.base+"/v1/query", body, nil)
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if h, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "http.server.request.duration" {
				for _, p := range h.DataPoints {
					code, _ := p.Attributes.Value("error.type")
					status, _ := p.Attributes.Value("http.response.status_code")
					route, _ := p.Attributes.Value("http.route")
					got[fmt.Sprint(route.AsString(), " ", status.AsInt64(), " ", code.AsString())] = p.Count
				}
			}
		}
	}
	if got["/v1/query 200 "] != 2 || got["/v1/query 400 BAD_REQUEST"] != 1 {
		t.Errorf("calls by outcome: %v; want 2 good ones and 1 BAD_REQUEST", got)
	}
}
