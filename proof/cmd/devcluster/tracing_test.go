package main

import (
	"context"
	"net"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// receiver is an OTLP collector that hands on what it gets.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (r *receiver) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.got <- request
	return &collector.ExportTraceServiceResponse{}, nil
}

func valueOf(list []*common.KeyValue, key string) *common.AnyValue {
	for _, kv := range list {
		if kv.GetKey() == key {
			return kv.GetValue()
		}
	}
	return nil
}

func TestSpansAreExported(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, r := grpc.NewServer(), &receiver{got: make(chan *collector.ExportTraceServiceRequest, 16)}
	collector.RegisterTraceServiceServer(server, r)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	p := launch(t, "-control", "", "-processes", "-nodes", "2")
	c, err := grpc.NewClient("passthrough:///"+p.ready.Nodes[1].Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	listed(t, p.ready.Nodes[1].Address) // in no trace: no span
	if _, err := Ydb_Discovery_V1.NewDiscoveryServiceClient(c).WhoAmI(testContext(t), &Ydb_Discovery.WhoAmIRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := p.terminate(); err != nil { // flushes
		t.Fatal(err)
	}
	for {
		select {
		case request := <-r.got:
			for _, resource := range request.GetResourceSpans() {
				if got := valueOf(resource.GetResource().GetAttributes(), "service.name").GetStringValue(); got != "ydb-devcluster" {
					t.Errorf("service.name %q", got)
				}
				for _, scope := range resource.GetScopeSpans() {
					for _, span := range scope.GetSpans() {
						if span.GetName() == "ListEndpoints" {
							t.Error("discovery is traced")
						}
						if span.GetName() == "WhoAmI" && valueOf(span.GetAttributes(), "ydb.node.id").GetIntValue() == 2 {
							return
						}
					}
				}
			}
		case <-testContext(t).Done():
			t.Fatal("the span of the call never came")
		}
	}
}
