package wire

import (
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

// traced is what is noted of a call for its spans.
type traced struct {
	call   tracing.Call
	hop    trace.SpanID // that the node is told of; zero: the call is not recorded
	parent string       // the traceparent for the node; "": the caller's own goes on to it
}

// begin decides about a call whose caller sent that traceparent.
func (t *traced) begin(tracer *tracing.Tracer, parent []byte) {
	if t.call = tracer.Begin(tracing.Parse(parent)); t.call.Sampled() {
		t.hop = tracing.NewSpanID()
		t.parent = tracing.Format(t.call.Span().TraceID(), t.hop)
	}
}

// passage is what came of a call.
type passage struct {
	seriesKey
	address         string // of the node
	app             string // that called; ""
	session         bool   // a session was lent for it
	left            bool   // the client has let it go, which is no failure
	took            time.Duration
	waited, first   time.Duration // until it went to the node; from then to the first part
	forwarded       bool
	request, answer int // octets
}

func (k *seriesKey) failed() bool {
	return k.status != Ydb.StatusIds_SUCCESS && (k.status != 0 || k.code != codes.OK)
}

// keep decides whether a call that has ended so becomes spans. id is the trace in which it
// can be found, if there is one.
func (t *traced) keep(tracer *tracing.Tracer, k *seriesKey, left bool, took time.Duration) (kept bool, id trace.TraceID) {
	if k.method != nil && k.method.Endless {
		took = 0
	}
	if kept = tracer.Keep(&t.call, !left && k.failed(), took); kept || t.call.OfCaller() {
		id = t.call.Span().TraceID()
	}
	return kept, id
}

// spans makes the spans of a call that has just ended.
func (t *traced) spans(tracer *tracing.Tracer, p *passage) {
	failed, start := !p.left && p.failed(), time.Now().Add(-p.took)
	name := nameOf(p.method)
	full := "other"
	if p.method != nil {
		full = p.method.Path[1:]
	}
	system, operation := attribute.String("db.system.name", "ydb"), attribute.String("db.operation.name", name)
	s := tracing.Span{Name: full, Kind: trace.SpanKindServer, Start: start, Took: p.took, Attributes: []attribute.KeyValue{
		system, attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.method", full), operation, attribute.Float64("ydb.sidecar.queue_ms", milliseconds(p.waited)),
	}}
	if p.app != "" {
		s.Attributes = append(s.Attributes, attribute.String("ydb.sidecar.app", p.app))
	}
	var said []attribute.KeyValue
	if failed {
		s.Failed = statusName(p.status, p.code)
		kind := "ydb_error"
		if p.status == 0 {
			kind = "transport_error"
		}
		said = []attribute.KeyValue{attribute.String("error.type", kind), attribute.String("db.response.status_code", s.Failed)}
		s.Attributes = append(s.Attributes, said...)
	}
	root := tracer.Root(&t.call, s)
	if p.waited > 0 && p.session {
		tracer.Below(root, tracing.Span{Name: tracing.GetSession, Start: start, Took: p.waited, Attributes: []attribute.KeyValue{system, attribute.Bool("ydb.sidecar.waited", true)}})
	}
	if p.node == 0 || !p.forwarded {
		return // it was answered here
	}
	attrs := append([]attribute.KeyValue{
		system, operation, attribute.Int64("ydb.node.id", int64(p.node)), attribute.Float64("ydb.sidecar.first_part_ms", milliseconds(p.first)),
		attribute.Int("ydb.sidecar.request_bytes", p.request), attribute.Int("ydb.sidecar.answer_bytes", p.answer),
	}, tracing.Address(p.address)...)
	tracer.Below(root, tracing.Span{
		ID: t.hop, Name: tracing.Hop(name), Kind: trace.SpanKindClient, Start: start.Add(p.waited), Took: p.took - p.waited,
		Attributes: append(attrs, said...), Failed: s.Failed,
	})
}
