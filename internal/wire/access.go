package wire

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

// passed is what the access log has of a forwarded call that is over.
type passed struct {
	key                 seriesKey
	app                 *apps.Stripe // nil: nobody's
	trace               trace.TraceID
	end                 h2.End
	took, waited, first time.Duration
	request, answer     int
}

// logCall writes a line of the access log, if the call gets one. It does not block.
func logCall(log *accesslog.Log, p passed) {
	failed, took := p.key.failed(), p.took
	if p.key.method != nil && p.key.method.endless { // a client ends it when it likes
		failed, took = failed && p.key.code != codes.Canceled, 0
	}
	if !log.Wants(failed, took) {
		return
	}
	line := accesslog.Call{
		Face: "ydb", Method: "_OTHER", Status: statusName(p.key.status, p.key.code), Node: uint32(p.key.node), Took: p.took,
		Phases:  [4]accesslog.Phase{{Name: "wait_ms", MS: accesslog.Milliseconds(p.waited)}, {Name: "first_part_ms", MS: accesslog.Milliseconds(p.first)}},
		Request: p.request, Answer: p.answer,
	}
	if p.key.method != nil {
		line.Method = p.key.method.Path[1:]
	}
	if p.app != nil {
		line.App = p.app.Name()
	}
	if p.trace.IsValid() {
		line.TraceID = p.trace.String()
	}
	if failed {
		line.Reason = line.Status
		if p.end != h2.Answered && p.end != h2.AnsweredBy {
			line.Reason = p.end.String()
		}
	}
	log.Write(line)
}

// traceOf is the trace of a caller of grpc-go's server.
func traceOf(ctx context.Context) trace.TraceID {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(traceparent); len(v) > 0 {
		return tracing.Parse([]byte(v[0])).TraceID()
	}
	return trace.TraceID{}
}

// refuse answers a call that is not carried.
func (f *Fallback) refuse(c *carried, r refusal) error {
	key := seriesKey{method: c.method, code: r.code}
	if r.body(c.method) != nil {
		key.status, key.code = r.status, codes.OK
	}
	logCall(f.deps.Access, passed{key: key, app: c.app, trace: traceOf(c.in.Context()), end: h2.AnsweredBy, took: time.Since(c.began), waited: time.Since(c.began)})
	return r.send(c.in, c.method)
}
