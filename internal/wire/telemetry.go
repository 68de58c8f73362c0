package wire

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

const scope = "github.com/ydb-sidecar/sidecar/internal/wire"

// instruments are shared by all forwarders.
type instruments struct {
	tracer   trace.Tracer // nil: spans are not exported
	wait     metric.Float64Histogram
	duration metric.Float64Histogram
}

func newInstruments(tp trace.TracerProvider, mp metric.MeterProvider, exporting bool) (*instruments, error) {
	t := &instruments{}
	if exporting {
		t.tracer = tp.Tracer(scope)
	}
	m := mp.Meter(scope)
	var errs [2]error
	t.wait, errs[0] = m.Float64Histogram("ydb.sidecar.forward.wait", metric.WithUnit("s"),
		metric.WithDescription("Time in the sidecar of forwarded calls that had to wait, until they went to a node."))
	t.duration, errs[1] = m.Float64Histogram("ydb.sidecar.forward.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of a forwarded call, from its coming to its last part."))
	return t, errors.Join(errs[:]...)
}

// maxSeries bounds the attribute sets of a histogram; past it, the node is left out.
const maxSeries = 1024

// seriesKey is what tells series apart.
type seriesKey struct {
	node   cluster.NodeID
	method *Method // nil: not one of YDB's
	status Ydb.StatusIds_StatusCode
	code   codes.Code // counts without a status
}

// series holds prebuilt attributes, so that recording allocates nothing. One
// goroutine at a time may use it.
type series map[seriesKey][]metric.RecordOption

func (s series) options(k seriesKey) []metric.RecordOption {
	o, ok := s[k]
	if ok {
		return o
	}
	attrs := []attribute.KeyValue{attribute.String("db.system.name", "ydb"), attribute.String("db.operation.name", nameOf(k.method))}
	if k.status != Ydb.StatusIds_SUCCESS && (k.status != 0 || k.code != codes.OK) {
		attrs = append(attrs, attribute.String("db.response.status_code", statusName(k.status, k.code)))
	}
	// For gRPC's own family, which internal/telemetry makes of this one.
	path, code := "_OTHER", codes.OK
	if k.method != nil {
		path = k.method.Path[1:]
	}
	if k.status == 0 {
		code = k.code
	}
	attrs = append(attrs, attribute.String("rpc.method", path), attribute.String("rpc.response.status_code", ydbstatus.CodeName(code)))
	full := len(s) >= maxSeries
	if k.node != 0 && !full {
		attrs = append(attrs, attribute.String("ydb.node.id", strconv.FormatUint(uint64(k.node), 10)))
	}
	o = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
	if !full {
		s[k] = o
	}
	return o
}

func nameOf(m *Method) string {
	if m == nil {
		return "other"
	}
	return m.Name()
}

func statusName(status Ydb.StatusIds_StatusCode, code codes.Code) string {
	if status != 0 {
		return ydbstatus.StatusName(status)
	}
	return ydbstatus.CodeName(code)
}

// oneHeader carries a trace context as one header.
type oneHeader string

const traceparent = "traceparent"

func (h *oneHeader) Get(key string) string {
	if key == traceparent {
		return string(*h)
	}
	return ""
}

func (h *oneHeader) Set(key, value string) {
	if key == traceparent {
		*h = oneHeader(value)
	}
}

func (h *oneHeader) Keys() []string { return []string{traceparent} }

// begin starts the span of a call, below the caller's, and returns the traceparent
// that the node gets in place of the caller's.
func (t *instruments) begin(m *Method, caller string) (trace.Span, string) {
	h := oneHeader(caller)
	ctx := propagation.TraceContext{}.Extract(context.Background(), &h)
	ctx, span := t.tracer.Start(ctx, "forward "+nameOf(m), trace.WithSpanKind(trace.SpanKindClient))
	propagation.TraceContext{}.Inject(ctx, &h)
	return span, string(h)
}

// end finishes a span.
func (t *instruments) end(span trace.Span, k seriesKey, address string, waited, first time.Duration, request, answer int) {
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("db.system.name", "ydb"), attribute.String("db.operation.name", nameOf(k.method)),
			attribute.Float64("ydb.sidecar.wait_ms", milliseconds(waited)), attribute.Float64("ydb.sidecar.first_part_ms", milliseconds(first)),
			attribute.Int("ydb.sidecar.request_bytes", request), attribute.Int("ydb.sidecar.answer_bytes", answer),
		)
		if k.node != 0 { // else it was answered here
			span.SetAttributes(attribute.Int64("ydb.node.id", int64(k.node)), attribute.String("server.address", address))
		}
		left := k.method == attachSession && k.code == codes.Canceled // the client has let its session go, as usual
		if !left && k.status != Ydb.StatusIds_SUCCESS && (k.status != 0 || k.code != codes.OK) {
			name := statusName(k.status, k.code)
			span.SetAttributes(attribute.String("db.response.status_code", name))
			span.SetStatus(otelcodes.Error, name)
		}
	}
	span.End()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
