package hop

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
)

// Span is the client span of the call at its node. The node was told id, and sent the call at began. at may be nil if the node is
// no longer known. more are the attributes that only some calls have.
func (d *Done) Span(id trace.SpanID, began time.Time, at *cluster.Node, more ...attribute.KeyValue) tracing.Span {
	attrs := append(make([]attribute.KeyValue, 0, 16+len(more)), System, attribute.String("db.operation.name", d.Op()), NodeID(d.Node))
	if at != nil {
		attrs = append(attrs, tracing.Address(at.Address)...)
		if at.Zone != "" {
			attrs = append(attrs, attribute.String("ydb.node.dc", at.Zone))
		}
	}
	if d.First > 0 {
		attrs = append(attrs, attribute.Float64("ydb.sidecar.first_part_ms", tracing.Milliseconds(d.First)))
	}
	if d.Request > 0 {
		attrs = append(attrs, attribute.Int("ydb.sidecar.request_bytes", d.Request), attribute.Int("ydb.sidecar.answer_bytes", d.Answer))
	}
	s := tracing.Span{ID: id, Name: tracing.Hop(d.Op()), Kind: trace.SpanKindClient, Start: began,
		Took: d.Took - d.Waited, Attributes: append(attrs, more...)}
	if !d.Left && d.Failed() {
		s.Failed, s.Attributes = d.Result(), append(s.Attributes, d.Failure()...)
	}
	return s
}

// Request is the server span of a call, to whose attributes its maker adds. full is the method with its service, op its name
// alone; app may be nil.
func Request(full, op string, app *apps.Stripe, began time.Time, took time.Duration) tracing.Span {
	attrs := append(make([]attribute.KeyValue, 0, 16), System, attribute.String("rpc.system.name", "grpc"),
		attribute.String("rpc.method", full), attribute.String("db.operation.name", op))
	if name := app.Name(); name != "" {
		attrs = append(attrs, attribute.String("ydb.sidecar.app", name))
	}
	return tracing.Span{Name: full, Kind: trace.SpanKindServer, Start: began, Took: took, Attributes: attrs}
}

// System is an attribute of every span.
var System = attribute.String("db.system.name", "ydb")

// NodeID names a node in spans.
func NodeID(id cluster.NodeID) attribute.KeyValue { return attribute.Int64("ydb.node.id", int64(id)) }
