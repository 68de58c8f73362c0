package systemtest

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"
)

// span is one received span.
type span struct {
	service, name string
	id, parent    string
	trace         string
	attributes    map[string]string
	took          time.Duration
}

// receiver is an OTLP collector that keeps what it gets.
type receiver struct {
	collector.UnimplementedTraceServiceServer

	mu    sync.Mutex // guards spans
	spans map[string]span
}

// startReceiver serves OTLP over gRPC and returns the environment that sends
// a program's spans to it.
func startReceiver(t *testing.T) (*receiver, []string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, server := &receiver{spans: map[string]span{}}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return r, []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + listener.Addr().String(),
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		"OTEL_BSP_SCHEDULE_DELAY=100",
		"OTEL_TRACES_SAMPLER=parentbased_always_on",
	}
}

// Export implements the collector's service.
func (r *receiver) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, from := range request.ResourceSpans {
		service := attributes(from.GetResource().GetAttributes())["service.name"]
		for _, scope := range from.ScopeSpans {
			for _, s := range scope.Spans {
				id := hex.EncodeToString(s.SpanId)
				r.spans[id] = span{service: service, name: s.Name, id: id, parent: hex.EncodeToString(s.ParentSpanId),
					trace: hex.EncodeToString(s.TraceId), attributes: attributes(s.Attributes),
					took: time.Duration(s.EndTimeUnixNano - s.StartTimeUnixNano)}
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func attributes(list []*common.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range list {
		switch v := a.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			all[a.Key] = v.StringValue
		case *common.AnyValue_BoolValue:
			all[a.Key] = fmt.Sprint(v.BoolValue)
		case *common.AnyValue_IntValue:
			all[a.Key] = fmt.Sprint(v.IntValue)
		case *common.AnyValue_DoubleValue:
			all[a.Key] = fmt.Sprint(v.DoubleValue)
		}
	}
	return all
}

// requests returns every request of the Python app as one row of spans: the
// app's span, the sidecar's, and below its attempts the sessions that were got, hops, and the nodes' spans.
func (r *receiver) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	children := map[string][]span{}
	for _, s := range r.spans {
		children[s.parent] = append(children[s.parent], s)
	}
	var all []request
	for _, server := range r.spans {
		app, ok := r.spans[server.parent]
		if !ok || app.service != "shop-python" || !strings.HasPrefix(server.name, "sidecar.v1.Sidecar/") {
			continue
		}
		q := request{app: app, server: server}
		for _, try := range children[server.id] {
			for _, child := range children[try.id] {
				if child.name == "ydb.GetSession" {
					q.acquires = append(q.acquires, child)
					continue
				}
				child.attributes["ydb.sidecar.attempt"] = try.attributes["ydb.sidecar.attempt"]
				q.hops = append(q.hops, child)
				q.nodes = append(q.nodes, children[child.id]...)
			}
		}
		all = append(all, q)
	}
	return all
}

// request is one request of the app, as its spans tell it.
type request struct {
	app, server           span
	acquires, hops, nodes []span
}

func (q request) String() string {
	return fmt.Sprintf("%s → %s → %d acquire, %d hop, %d node", q.app.name, q.server.name, len(q.acquires), len(q.hops), len(q.nodes))
}

// complete says whether the spans lead from the app to a node in one trace,
// and tell what an operator asks for.
func (q request) complete() bool {
	if len(q.acquires) == 0 || len(q.hops) == 0 || len(q.nodes) < len(q.hops) {
		return false
	}
	for _, s := range slices.Concat(q.acquires, q.hops, q.nodes) {
		if s.trace != q.app.trace {
			return false
		}
	}
	acquire, hop, node := q.acquires[0], q.hops[0], q.nodes[0]
	return acquire.attributes["ydb.node.id"] != "" && hop.attributes["ydb.sidecar.owner"] == "true" &&
		hop.attributes["ydb.node.id"] != "" && node.attributes["ydb.node.id"] == hop.attributes["ydb.node.id"] &&
		node.service == "ydb-devcluster"
}

func TestOneTraceFromTheAppToTheNode(t *testing.T) {
	r, env := startReceiver(t)
	c := startCluster(t, env)
	// Two sessions for six workers: they wait in line for one another.
	s := startSidecar(t, c, env, "pool.max=2")
	shop := python(t, "grpc://"+s.grpc)
	shop.run(t, "init")
	// Some statements are refused: what is safe to send again is sent again.
	c.everywhere(t, "errors", map[string]any{"status": "UNAVAILABLE", "share": 0.2, "methods": []string{"ExecuteQuery", "BeginTransaction"}})
	web := python(t, "http://"+s.http)
	overGRPC, overHTTP := shop.start(t, env, "run", "--seconds", "3", "--workers", "4"), web.start(t, env, "run", "--seconds", "3", "--workers", "2")
	shop.finish(t, overGRPC)
	web.finish(t, overHTTP)
	c.everywhere(t, "clear", nil)

	wanted := map[string]func(request) bool{
		"a query over gRPC": func(q request) bool {
			return q.complete() && q.app.name == "history" && len(q.hops) == 1 && q.server.attributes["http.route"] == ""
		},
		"a query over HTTP": func(q request) bool {
			return q.complete() && q.app.name == "history" && len(q.hops) == 1 && q.server.attributes["http.route"] == "/v1/query"
		},
		"a statement of a transaction": func(q request) bool {
			return q.complete() && q.app.name == "place order" && len(q.hops) == 1
		},
		"a wait in line": func(q request) bool {
			return q.complete() && q.acquires[0].attributes["ydb.sidecar.waited"] == "true" && q.acquires[0].took > time.Millisecond
		},
		"a call sent again": func(q request) bool {
			numbers := map[string]bool{}
			for _, hop := range q.hops {
				numbers[hop.attributes["ydb.sidecar.attempt"]] = true
			}
			return q.complete() && len(q.hops) >= 2 && numbers["1"] && numbers["2"]
		},
	}
	// The programs export their spans after the fact.
	eventually(t, 15*time.Second, "the spans of every kind of request", func() string {
		missing := maps.Clone(wanted)
		all := r.requests()
		for _, q := range all {
			for kind, is := range missing {
				if is(q) {
					delete(missing, kind)
				}
			}
		}
		if len(missing) == 0 {
			return ""
		}
		return fmt.Sprintf("none of %v among %d requests, such as %v", slices.Sorted(maps.Keys(missing)), len(all), all[:min(5, len(all))])
	})
}
