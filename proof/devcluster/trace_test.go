package devcluster

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

const (
	callerTrace = "0af7651916cd43dd8448eb211c80319c"
	callerSpan  = "b7ad6b7169203331"
)

func TestSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	cluster := startCluster(t, func(c *Config) { c.Tracer = provider })
	id := dial(t, cluster.Node(1).Address()).tableSession()
	ctx := metadata.AppendToOutgoingContext(testContext(t), "traceparent", "00-"+callerTrace+"-"+callerSpan+"-01")
	other := dial(t, cluster.Node(2).Address())
	if _, err := other.table.KeepAlive(ctx, &Ydb_Table.KeepAliveRequest{SessionId: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.query.RollbackTransaction(
		ctx, &Ydb_Query.RollbackTransactionRequest{SessionId: newSessionID(2), TxId: "x"},
	); err != nil {
		t.Fatal(err)
	}
	await.True(t, "all spans end", func() bool { return len(spans.Ended()) == 4 })
	node := func(s sdktrace.ReadOnlySpan) int64 {
		for _, a := range s.Attributes() {
			if a.Key == "ydb.node.id" {
				return a.Value.AsInt64()
			}
		}
		return 0
	}
	var entry, owner sdktrace.ReadOnlySpan
	for _, s := range spans.Ended() {
		switch {
		case s.Name() == "KeepAlive" && node(s) == 2:
			entry = s
		case s.Name() == "KeepAlive" && node(s) == 1:
			owner = s
		case s.Name() == "RollbackTransaction" && s.Status().Code != codes.Error:
			t.Errorf("BAD_SESSION is no error of the span: %v", s.Status())
		}
	}
	if entry == nil || owner == nil {
		t.Fatalf("spans %v", spans.Ended())
	}
	if entry.SpanContext().TraceID().String() != callerTrace || entry.Parent().SpanID().String() != callerSpan {
		t.Errorf("the first node's span has the parent %v", entry.Parent())
	}
	if owner.Parent().SpanID() != entry.SpanContext().SpanID() || owner.SpanContext().TraceID() != entry.SpanContext().TraceID() {
		t.Errorf("the owner's span has the parent %v; want the first node's span", owner.Parent())
	}
	if entry.SpanKind() != trace.SpanKindServer {
		t.Errorf("kind %v", entry.SpanKind())
	}
}

// Without a tracer the caller's context goes on to the owner untouched.
func TestTraceparentIsForwarded(t *testing.T) {
	cluster := startCluster(t, func(c *Config) { c.Balance = true })
	parent := "00-" + callerTrace + "-" + callerSpan + "-01"
	ctx := metadata.AppendToOutgoingContext(testContext(t), "traceparent", parent,
		"x-ydb-client-capabilities", "session-balancer", "x-ydb-application-name", "app")
	r, err := dial(t, cluster.Node(1).Address()).query.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
	if err != nil || r.GetNodeId() == 1 {
		t.Fatalf("%v, %v; want a session on another node", r, err)
	}
	s, err := cluster.Node(uint32(r.GetNodeId())).running().sessions.find(r.GetSessionId())
	if err != nil {
		t.Fatal(err)
	}
	if got := s.client.Get("traceparent"); len(got) != 1 || got[0] != parent || s.info(1).Application != "app" {
		t.Errorf("the owner saw %v", s.client)
	}
}
