package core

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
)

// maxReports bounds what is kept of one call for its spans.
const maxReports = 64

// begin decides about the trace of a call, and returns the context of what it does.
func (t *telemetry) begin(in context.Context, c *Call) context.Context {
	c.began = time.Now()
	c.tel = t
	parent := trace.SpanContextFromContext(in)
	c.trace = t.tracer.Begin(parent)
	if c.trace.Sampled() {
		in = trace.ContextWithSpanContext(in, c.trace.Span())
	} else if !parent.IsValid() {
		return in // nobody would find what the id of such a trace leads to
	}
	c.lead(trace.SpanContextFromContext(in))
	return in
}

// lead says where the call can be found.
func (c *Call) lead(to trace.SpanContext) {
	c.leadsTo, c.TraceID = to.TraceID(), to.TraceID().String()
}

// keep decides whether the call becomes spans, as soon as that is sure: its answer
// names the trace then. failed says that it will fail.
func (c *Call) keep(failed bool) bool {
	if c.asked || c.tel == nil || !c.trace.Span().IsValid() {
		return c.kept
	}
	took := time.Since(c.began)
	if c.Name == CallIngest {
		took = 0 // as long as its caller likes
	}
	if !c.tel.tracer.Wants(&c.trace, failed, took) {
		return false
	}
	if c.asked, c.kept = true, c.tel.tracer.Keep(&c.trace, failed, took); c.kept && c.TraceID == "" {
		c.lead(c.trace.Span())
	}
	return c.kept
}

// Failing is the id of the trace for the error of a call, or of a part of it, that is
// told before the call has ended.
func (c *Call) Failing() string {
	c.keep(true)
	return c.TraceID
}

// spans makes the spans of a call that has ended.
func (t *telemetry) spans(c *Call, f *Fault, took time.Duration) {
	s := hop.Request(fullName(c.Name), c.Name, c.App, c.began, took)
	attrs := append(s.Attributes, t.database)
	if c.Route != nil {
		attrs[1] = attribute.String("http.request.method", c.Route.Method) // instead of the system of the RPC
		attrs = append(attrs, attribute.String("http.route", c.Route.Path), attribute.String("url.path", c.path()), scheme(c.TLS),
			attribute.Int("http.response.status_code", c.httpStatus(f)))
	}
	if c.Collection != "" {
		attrs = append(attrs, attribute.String("db.collection.name", c.Collection))
	}
	if c.App != nil {
		attrs = append(attrs, attribute.String("ydb.sidecar.priority", c.Class.String()))
	}
	if mode := c.modeName(); mode != "" {
		attrs = append(attrs, attribute.String("ydb.sidecar.transaction.mode", mode))
	}
	if c.handed {
		attrs = append(attrs, attribute.Bool("ydb.sidecar.handed_over", true))
	}
	if c.Info.NodeId != 0 {
		attrs = append(attrs, hop.NodeID(cluster.NodeID(c.Info.NodeId)),
			attribute.Int64("ydb.sidecar.attempts", int64(c.Info.Attempts)),
			attribute.Float64("ydb.sidecar.queue_ms", c.Info.QueueMs))
	}
	if f != nil {
		if !f.Asked() {
			attrs = append(attrs, attribute.String("error.type", f.Code.Name))
		}
		if f.YDB != "" {
			attrs = append(attrs, attribute.String("db.response.status_code", f.YDB))
		}
		if f.Code.HTTP >= 500 {
			s.Failed = f.Code.Name
		}
	}
	s.Attributes = attrs
	if c.txTrace != nil && c.txTrace.span.IsValid() {
		c.txTrace.kept.Store(true)
		if !c.opens {
			s.Links = []trace.Link{{SpanContext: c.txTrace.span}}
		}
	}
	root := t.tracer.Root(&c.trace, s)
	for i := range c.reports {
		t.report(root, &c.reports[i])
	}
}

// maxSpanPath bounds what a span has of a path, in bytes.
const maxSpanPath = 256

// path is the path of a request over HTTP. Who knows the id of a transaction may use it,
// so there the template stands for it.
func (c *Call) path() string {
	if c.Route.OfTx() {
		return c.Route.Path
	}
	return Clip(c.URL, maxSpanPath)
}

// scheme is that of a URL.
func scheme(tls bool) attribute.KeyValue {
	if tls {
		return attribute.String("url.scheme", "https")
	}
	return attribute.String("url.scheme", "http")
}

// report makes the spans of what the driver did.
func (t *telemetry) report(parent trace.SpanContext, r *upstream.Report) {
	for attempt := 1; attempt <= len(r.Rounds); attempt++ {
		round := &r.Rounds[attempt-1]
		start, end, status := round.Start, round.Start.Add(round.Acquire), round.Refused
		for i := range r.Tries {
			try := &r.Tries[i]
			if try.Attempt != attempt {
				continue
			}
			if start.IsZero() {
				start = try.Start
			}
			if over := try.Start.Add(try.Took); over.After(end) {
				if end, status = over, ""; try.Failed() {
					status = try.Result()
				}
			}
		}
		if start.IsZero() {
			continue
		}
		attrs := []attribute.KeyValue{hop.System, attribute.Int("ydb.sidecar.attempt", attempt)}
		if round.Backoff > 0 {
			attrs = append(attrs, attribute.Float64("ydb.retry.backoff_ms", tracing.Milliseconds(round.Backoff)))
		}
		one := t.tracer.Below(parent,
			tracing.Span{Name: tracing.Try, Start: start, Took: end.Sub(start), Attributes: attrs, Failed: status})
		t.acquire(one, round)
		for i := range r.Tries {
			if r.Tries[i].Attempt == attempt {
				t.hop(one, &r.Tries[i])
			}
		}
	}
}

// acquire makes the spans of how an attempt came to its session.
func (t *telemetry) acquire(parent trace.SpanContext, r *upstream.Round) {
	if r.Start.IsZero() {
		return
	}
	attrs := []attribute.KeyValue{
		hop.System, t.database,
		attribute.Bool("ydb.sidecar.waited", r.Queue > 0 || r.Created), attribute.Bool("ydb.sidecar.created", r.Created),
		attribute.Float64("ydb.sidecar.queue_ms", tracing.Milliseconds(r.Queue)),
	}
	if r.Node != 0 {
		attrs = append(attrs, hop.NodeID(r.Node))
	}
	if r.Refused != "" {
		attrs = append(attrs, attribute.String("ydb.sidecar.shed_reason", r.Refused))
	}
	get := t.tracer.Below(parent,
		tracing.Span{Name: tracing.GetSession, Start: r.Start, Took: r.Acquire, Attributes: attrs, Failed: r.Refused})
	if r.Queue > 0 {
		t.tracer.Below(get, tracing.Span{Name: tracing.Queue, Start: r.Start, Took: r.Queue, Attributes: []attribute.KeyValue{hop.System}})
	}
	if r.Created && r.Open > 0 {
		t.tracer.Below(get,
			tracing.Span{Name: tracing.Create, Kind: trace.SpanKindClient, Start: r.Opening, Took: r.Open,
				Attributes: []attribute.KeyValue{hop.System, t.database, hop.NodeID(r.Node)}})
	}
}

// hop makes the span of a call to a node.
func (t *telemetry) hop(parent trace.SpanContext, r *upstream.Try) {
	more := append(make([]attribute.KeyValue, 0, 7), t.database)
	if r.Session != "" {
		more = append(more, attribute.String("ydb.sidecar.session", upstream.HashOf(r.Session)),
			attribute.Bool("ydb.sidecar.owner", !r.Around))
	}
	if r.Commits {
		more = append(more, attribute.Bool("ydb.sidecar.commit", true))
	}
	if r.Server > 0 {
		more = append(more, attribute.Float64("ydb.sidecar.server_ms", tracing.Milliseconds(r.Server)),
			attribute.Float64("ydb.sidecar.network_ms", tracing.Milliseconds(max(0, r.Took-r.Server))))
	}
	if r.Request > 0 {
		more = append(more, attribute.Int("db.response.returned_rows", r.Rows))
	}
	t.tracer.Below(parent, r.Done.Span(r.Span, r.Start, r.At, more...))
}

// txTrace is the span of an open transaction, to which its calls are linked. The
// zero one is of a transaction that nobody traces.
type txTrace struct {
	span   trace.SpanContext // the transaction's own
	opener tracing.Call      // opened it
	since  time.Time
	kept   atomic.Bool // a call of it is recorded
}

// opened begins the span of a transaction that c opened.
func (c *Call) opened(l *txTrace) {
	if call := c.trace.Span(); call.IsValid() {
		l.span, l.opener, l.since = call.WithSpanID(tracing.NewSpanID()), c.trace, time.Now()
		c.txTrace, c.opens = l, true
	}
}

// within is the context of what ends the transaction without a call.
func (l *txTrace) within(ctx context.Context) context.Context {
	if !l.span.IsSampled() {
		return ctx
	}
	return trace.ContextWithSpanContext(ctx, l.span)
}

// ended makes the span of a transaction that is over.
func (t *telemetry) ended(x *transaction, how TxEnd, r *upstream.Report) {
	l := &x.spans
	if !l.span.IsValid() {
		return
	}
	failed := how != txCommitted && how != txRolledBack
	if !l.kept.Load() && !t.tracer.Keep(&l.opener, failed, 0) {
		return
	}
	s := tracing.Span{
		ID: l.span.SpanID(), Name: tracing.Transaction, Start: l.since, Took: time.Since(l.since),
		Attributes: []attribute.KeyValue{hop.System, t.database, hop.NodeID(x.node),
			attribute.String("ydb.sidecar.transaction.mode", x.mode.name),
			attribute.String("ydb.sidecar.transaction.end", how.String())},
	}
	if failed {
		s.Failed = how.String()
	}
	t.report(t.tracer.Below(l.opener.Span(), s), r)
}
