package wire

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

// traced is what is noted of a call for its spans.
type traced struct {
	call   tracing.Call
	hop    trace.SpanID // span that the node is told of; zero: the call is not recorded
	parent string       // the traceparent for the node; "": the caller's own goes on to it
}

// begin decides about a call whose caller sent that traceparent.
func (t *traced) begin(tracer *tracing.Tracer, parent []byte) {
	if t.call = tracer.Begin(tracing.Parse(parent)); t.call.Sampled() {
		t.hop = tracing.NewSpanID()
		t.parent = tracing.Format(t.call.Span().TraceID(), t.hop)
	}
}

// keep decides whether a call that has ended becomes spans. id is the trace in which it
// can be found, if there is one.
func (t *traced) keep(tracer *tracing.Tracer, d *hop.Done) (kept bool, id trace.TraceID) {
	took := d.Took
	if d.Endless() {
		took = 0
	}
	if kept = tracer.Keep(&t.call, !d.Left && d.Failed(), took); kept || t.call.OfCaller() {
		id = t.call.Span().TraceID()
	}
	return kept, id
}

// spans makes the spans of a call that has just ended, at the node that it entered, if that is known.
// pooled: a session of the pool was in use for it.
func (t *traced) spans(tracer *tracing.Tracer, d *hop.Done, at *cluster.Node, pooled bool) {
	start := time.Now().Add(-d.Took)
	s := hop.Request(d.Path("other"), d.Op(), d.App, start, d.Took)
	s.Attributes = append(s.Attributes, attribute.Float64("ydb.sidecar.queue_ms", tracing.Milliseconds(d.Waited)))
	if !d.Left && d.Failed() {
		s.Failed, s.Attributes = d.Result(), append(s.Attributes, d.Failure()...)
	}
	root := tracer.Root(&t.call, s)
	if d.Waited > 0 && pooled {
		tracer.Below(root,
			tracing.Span{Name: tracing.GetSession, Start: start, Took: d.Waited,
				Attributes: []attribute.KeyValue{hop.System, attribute.Bool("ydb.sidecar.waited", true)}})
	}
	if d.Node != 0 && d.Sent { // else it was answered here
		tracer.Below(root, d.Span(t.hop, start.Add(d.Waited), at))
	}
}
