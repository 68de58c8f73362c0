package core

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/dbconv"
	"go.opentelemetry.io/otel/semconv/v1.43.0/httpconv"
	"go.opentelemetry.io/otel/semconv/v1.43.0/rpcconv"
	"go.opentelemetry.io/otel/trace"
	grpccodes "google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// known are the attributes of OpenTelemetry's conventions 1.43.0 that the sidecar uses, with the types that they have there.
var known = func() map[attribute.Key]attribute.Type {
	out := map[attribute.Key]attribute.Type{}
	for _, a := range []attribute.KeyValue{
		semconv.DBSystemNameKey.String(""), semconv.DBNamespace(""), semconv.DBOperationName(""), semconv.DBCollectionName(""),
		semconv.DBResponseStatusCode(""), semconv.DBResponseReturnedRows(0), semconv.ErrorTypeKey.String(""),
		semconv.HTTPRequestMethodKey.String(""), semconv.HTTPResponseStatusCode(0), semconv.HTTPRoute(""),
		semconv.URLPath(""), semconv.URLScheme(""), semconv.RPCSystemNameGRPC, semconv.RPCMethod(""),
		semconv.RPCResponseStatusCode(""), semconv.ServerAddress(""), semconv.ServerPort(0),
	} {
		out[a.Key] = a.Value.Type()
	}
	return out
}()

// conform checks attributes: those of the conventions have their types, all others begin with ydb., and the needed ones are there.
func conform(t *testing.T, attrs []attribute.KeyValue, need ...attribute.Key) {
	t.Helper()
	have := map[attribute.Key]bool{}
	for _, a := range attrs {
		if have[a.Key] {
			t.Errorf("%s is there twice", a.Key)
		}
		have[a.Key] = true
		if kind, ok := known[a.Key]; !ok && !strings.HasPrefix(string(a.Key), "ydb.") {
			t.Errorf("%s is in no convention", a.Key)
		} else if ok && kind != a.Value.Type() {
			t.Errorf("%s is %v; want %v", a.Key, a.Value.Type(), kind)
		}
	}
	for _, key := range need {
		if !have[key] {
			t.Errorf("%s is missing in %v", key, attrs)
		}
	}
}

// Needed attributes, by OpenTelemetry's requirement levels.
var (
	needHTTP = []attribute.Key{semconv.HTTPRequestMethodKey, semconv.URLSchemeKey, semconv.HTTPRouteKey, semconv.HTTPResponseStatusCodeKey}
	needRPC  = []attribute.Key{semconv.RPCSystemNameKey, semconv.RPCMethodKey, semconv.RPCResponseStatusCodeKey}
	needDB   = []attribute.Key{semconv.DBSystemNameKey, semconv.DBOperationNameKey, semconv.DBNamespaceKey}
)

// outcomes are ends of calls of either API, and whether they are errors of the server.
var outcomes = map[string]struct {
	fault         *Fault
	isError, fail bool // error.type; the status of the span
}{
	"well":             {nil, false, false},
	"no such row":      {Faultf(CodeKeyNotFound, "x"), false, false},
	"condition failed": {Faultf(CodeCondition, "x"), false, false},
	"bad request":      {Faultf(codeBadRequest, "x"), true, false},
	"no node":          {Faultf(codeNoNode, "x"), true, true},
}

// The histograms of calls have the names, units and attributes of the conventions.
func TestMetricsFollowTheConventions(t *testing.T) {
	made := map[string]*latency.Durations{}
	m := newMeasures(func(name, unit, _ string, _ ...float64) *latency.Durations {
		if unit != "s" {
			t.Errorf("the unit of %s is %s", name, unit)
		}
		made[name] = latency.NewDurations(nil)
		return made[name]
	})
	read := func(name string) []latency.Counted {
		if made[name] == nil {
			t.Fatalf("nobody makes %s", name)
		}
		return made[name].Read()
	}
	for name, one := range outcomes {
		for _, route := range []*Route{nil, {"GET", "/v1/kv/{table}"}} {
			m.record(&Call{Name: "KeyValue/Get", overHTTP: overHTTP{Route: route}}, one.fault, 0)
			metric, need := rpcconv.ServerCallDuration{}.Name(), needRPC
			if route != nil {
				metric, need = httpconv.ServerRequestDuration{}.Name(), needHTTP
			}
			all := read(metric)
			attrs := all[len(all)-1].Set.ToSlice()
			if name == "well" || one.isError {
				conform(t, attrs, need...)
			}
		}
	}
	for _, metric := range []string{rpcconv.ServerCallDuration{}.Name(), httpconv.ServerRequestDuration{}.Name()} {
		withError := 0
		for _, c := range read(metric) {
			if c.Set.HasValue(semconv.ErrorTypeKey) {
				withError++
			}
		}
		if want := 2; withError != want {
			t.Errorf("%s has %d series of errors; want %d", metric, withError, want)
		}
	}
}

// Calls to nodes are operations of a database's client, and calls of gRPC.
func TestMetricsOfHopsFollowTheConventions(t *testing.T) {
	if got, want := "db.client.operation.duration", (dbconv.ClientOperationDuration{}).Name(); got != want {
		t.Errorf("%s; want %s", got, want)
	}
	d := latency.NewDurations(nil)
	s := hop.NewSeries(d, attribute.String("db.namespace", "/local"))
	method := protocol.Named("/Ydb.Query.V1.QueryService/ExecuteQuery")
	for _, k := range []hop.Key{
		{Node: 1, Method: method, Status: Ydb.StatusIds_SUCCESS}, {Node: 1, Method: method, Status: Ydb.StatusIds_OVERLOADED},
		{Node: 1, Method: method, Code: grpccodes.Unavailable},
	} {
		s.Add(k, 0)
		all := d.Read()
		need := slices.Concat(needDB, []attribute.Key{semconv.RPCMethodKey, semconv.RPCResponseStatusCodeKey})
		if k.Failed() {
			need = append(need, semconv.ErrorTypeKey, semconv.DBResponseStatusCodeKey)
		}
		conform(t, all[len(all)-1].Set.ToSlice(), need...)
	}
}

// The span of a call is one of a server, that of a hop one of a database's client.
func TestSpansFollowTheConventions(t *testing.T) {
	method := protocol.Named("/Ydb.Query.V1.QueryService/ExecuteQuery")
	for name, one := range outcomes {
		for _, route := range []*Route{nil, {"GET", "/v1/kv/{table}"}} {
			t.Run(name, func(t *testing.T) {
				rec := tracetest.NewSpanRecorder()
				provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec), sdktrace.WithIDGenerator(tracing.Generator{}))
				tel := newTelemetry(tracing.New(provider, func() bool { return true }, tracing.Config{}, tracing.Ratio(1)), nil, "/local")
				c := &Call{Name: "KeyValue/Get", overHTTP: overHTTP{Route: route, URL: "/v1/kv/t"}}
				c.Info = new(sidecarv1.Info)
				tel.begin(t.Context(), c)
				status := Ydb.StatusIds_SUCCESS
				if one.fail {
					status = Ydb.StatusIds_OVERLOADED
				}
				c.reports = []upstream.Report{{Rounds: []upstream.Round{{Start: time.Now()}}, Tries: []upstream.Try{{
					Attempt: 1, Start: time.Now(), At: &cluster.Node{ID: 1, Address: "node:2136"},
					Done: hop.Done{Key: hop.Key{Node: 1, Method: method, Status: status}, Sent: true},
				}}}}
				tel.spans(c, one.fault, time.Second)
				for _, s := range rec.Ended() {
					need := []attribute.Key{semconv.DBSystemNameKey}
					fails, isError := one.fail, one.isError
					switch s.SpanKind() {
					case trace.SpanKindServer:
						need = append(need, semconv.RPCMethodKey)
						if route != nil {
							need = slices.Concat(needHTTP, []attribute.Key{semconv.URLPathKey})
						}
					case trace.SpanKindClient:
						need, isError = slices.Concat(needDB, []attribute.Key{semconv.ServerAddressKey, semconv.ServerPortKey}), one.fail
					default:
						continue
					}
					if isError {
						need = append(need, semconv.ErrorTypeKey)
					}
					conform(t, s.Attributes(), need...)
					set := attribute.NewSet(s.Attributes()...)
					if set.HasValue(semconv.ErrorTypeKey) != isError || (s.Status().Code == codes.Error) != fails {
						t.Errorf("%s: status %v, attributes %v", s.Name(), s.Status(), s.Attributes())
					}
				}
				if n := len(rec.Ended()); n < 3 {
					t.Errorf("%d spans", n)
				}
			})
		}
	}
}
