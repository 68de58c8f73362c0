package core

import (
	"context"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"

	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// telemetry makes one observation for each call, and the spans of those that are recorded.
type telemetry struct {
	tracer   *tracing.Tracer // nil: none are
	database attribute.KeyValue
	measures measures
}

func newTelemetry(tracer *tracing.Tracer, histogram latency.Maker, database string) *telemetry {
	return &telemetry{tracer, attribute.String("db.namespace", database), newMeasures(histogram)}
}

func method(name string) attribute.KeyValue {
	return attribute.String("rpc.method", fullName(name))
}

// fullName is the name of a call with its service: names of other services than
// Sidecar begin with theirs.
func fullName(name string) string {
	if strings.Contains(name, "/") {
		return "sidecar.v1." + name
	}
	return sidecarv1.Sidecar_ServiceDesc.ServiceName + "/" + name
}

// finish makes the spans of a call, if it is recorded, and records its time.
func (t *telemetry) finish(c *Call, f *Fault, took time.Duration) {
	t.measures.record(c, f, took)
	if c.keep(f != nil && f.Code != codeCancelled && !f.Asked()) {
		t.spans(c, f, took)
	}
}

// Extract joins the trace of the caller, from metadata or headers.
func Extract(ctx context.Context, from propagation.TextMapCarrier) context.Context {
	return propagation.TraceContext{}.Extract(ctx, from)
}

// ServerTiming says where the time of a call went, in the form of the HTTP
// header of that name. It is empty for a call that asked for no session.
func ServerTiming(i *sidecarv1.Info) string {
	if i.GetAttempts() == 0 {
		return ""
	}
	b := make([]byte, 0, 80)
	for _, m := range [...]struct {
		name string
		ms   float64
	}{{"queue", i.QueueMs}, {"acquire", i.AcquireMs}, {"hop", i.HopMs}, {"server", i.ServerMs}} {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = append(b, m.name...)
		b = append(b, ";dur="...)
		b = strconv.AppendFloat(b, m.ms, 'f', 3, 64)
	}
	return string(b)
}
