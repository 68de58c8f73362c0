package devcluster

import (
	"context"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// headerCarrier reads and writes trace context in gRPC metadata.
type headerCarrier metadata.MD

// Get implements propagation.TextMapCarrier.
func (h headerCarrier) Get(key string) string {
	if v := metadata.MD(h).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (h headerCarrier) Set(key, value string) { metadata.MD(h).Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (h headerCarrier) Keys() []string {
	keys := make([]string, 0, len(h))
	for k := range h {
		keys = append(keys, k)
	}
	return keys
}

var w3c propagation.TraceContext

// trace starts the span of the call as a child of the caller's. The returned
// function ends it with the status or the gRPC error of the call.
func (c *call) trace() func(Ydb.StatusIds_StatusCode, error) {
	if c.tracer == nil {
		return func(Ydb.StatusIds_StatusCode, error) {}
	}
	ctx := w3c.Extract(c.ctx, headerCarrier(c.header))
	if c.method.short == "ListEndpoints" && !trace.SpanContextFromContext(ctx).IsValid() {
		return func(Ydb.StatusIds_StatusCode, error) {} // each client asks every few seconds, of which a span tells nothing
	}
	ctx, span := c.tracer.Start(ctx, c.method.short, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("db.system.name", "ydb"),
		attribute.String("rpc.method", c.method.name[1:]),
		attribute.Int64("ydb.node.id", int64(c.id)),
		attribute.Bool("ydb.devcluster.from_node", c.from),
	))
	c.ctx = ctx
	return func(s Ydb.StatusIds_StatusCode, err error) {
		span.SetAttributes(attribute.String("db.response.status_code", s.String()))
		switch {
		case err != nil:
			span.SetAttributes(attribute.String("rpc.response.status_code", status.Code(err).String()))
			span.SetStatus(codes.Error, err.Error())
		case s != Ydb.StatusIds_SUCCESS:
			span.SetStatus(codes.Error, s.String())
		}
		span.End()
	}
}

// inject names the call's span as the parent of what the next node does.
func (c *call) inject(header metadata.MD) {
	if c.tracer != nil {
		w3c.Inject(context.WithoutCancel(c.ctx), headerCarrier(header))
	}
}
