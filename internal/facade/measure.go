package facade

import (
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// maxSeries bounds the attribute sets of the histograms: there are some hundred
// that callers can bring about, and statuses that no table knows.
const maxSeries = 1024

// measures are the histograms of calls. Recording allocates nothing once a
// combination of attributes was seen.
type measures struct{ grpc, http *latency.Series[seriesKey] }

// seriesKey is what tells series apart; none of it is a caller's own words.
type seriesKey struct {
	name   string // of the call
	route  *Route // nil: over gRPC, or no route
	method string // of HTTP; "": over gRPC
	status int    // of HTTP
	tls    bool   // of HTTP
	code   string // of the fault; "": none, or one that says what a caller asked for
	grpc   codes.Code
}

func newMeasures(histogram latency.Maker) measures {
	series := func(name, text string) *latency.Series[seriesKey] {
		return latency.NewSeries(histogram.Make(name, "s", text), maxSeries, seriesKey.attributes, func(seriesKey) seriesKey { return seriesKey{} })
	}
	return measures{
		series("rpc.server.call.duration", "Time of one call of the plain API over gRPC."),
		series("http.server.request.duration", "Time of one request of the plain API over HTTP."),
	}
}

// record measures a call that is over.
func (m *measures) record(c *call, f *fault, took time.Duration) {
	k := seriesKey{name: c.name, route: c.route}
	if f != nil {
		k.grpc = f.code.GRPC
		if !f.asked() {
			k.code = f.code.Name
		}
	}
	if c.route == nil {
		m.grpc.Add(k, took)
		return
	}
	k.method, k.status, k.tls = c.route.Method, c.httpStatus(f), c.tls
	m.http.Add(k, took)
}

// stray measures a request that is no call: refused before its route was known.
func (m *measures) stray(r *http.Request, f *fault, took time.Duration) {
	m.http.Add(seriesKey{method: methodName(r.Method), status: f.code.HTTP, tls: r.TLS != nil, code: f.code.Name}, took)
}

// methodName is a method as metrics may have it: one of a few.
func methodName(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodPatch, http.MethodConnect, http.MethodTrace:
		return m
	}
	return "_OTHER"
}

// httpStatus is what the caller got, which may be 200 although the end failed.
func (c *call) httpStatus(f *fault) int {
	switch {
	case c.status != 0:
		return c.status
	case f != nil:
		return f.code.HTTP
	}
	return http.StatusOK
}

func (k seriesKey) attributes() []attribute.KeyValue {
	if k == (seriesKey{}) { // all that exceed maxSeries
		return nil
	}
	attrs := make([]attribute.KeyValue, 0, 5)
	if k.method == "" {
		attrs = append(attrs, attribute.String("rpc.system.name", "grpc"), method(k.name), attribute.String("rpc.response.status_code", ydbstatus.CodeName(k.grpc)))
	} else {
		attrs = append(attrs, attribute.String("http.request.method", k.method), attribute.Int("http.response.status_code", k.status), scheme(k.tls))
		if k.route != nil {
			attrs = append(attrs, attribute.String("http.route", k.route.Path))
		}
	}
	if k.code != "" {
		attrs = append(attrs, attribute.String("error.type", k.code))
	}
	return attrs
}

// logCall writes the call's line into the access log, if it gets one.
func (s *coreService) logCall(c *call, f *fault, took time.Duration) {
	if !s.deps.Access.Wants(f != nil, took) {
		return
	}
	line := accesslog.Call{
		Face: "grpc", Method: fullName(c.name), Status: "OK", Took: took, TraceID: c.traceID, SQL: c.sql,
		Node: c.info.NodeId, Attempts: c.info.Attempts,
	}
	if c.app != nil { // else it was refused before anybody knew whose it is
		line.App, line.Class = c.app.Name(), c.class.String()
	}
	if f != nil {
		line.Status, line.Reason = ydbstatus.CodeName(f.code.GRPC), f.code.Name
	}
	if c.route != nil {
		line.Face, line.Route, line.Status = "http", c.route.Method+" "+c.route.Path, strconv.Itoa(c.httpStatus(f))
	}
	if c.info.Attempts > 0 {
		line.Phases = [4]accesslog.Phase{{Name: "queue_ms", MS: c.info.QueueMs}, {Name: "acquire_ms", MS: c.info.AcquireMs}, {Name: "hop_ms", MS: c.info.HopMs}, {Name: "server_ms", MS: c.info.ServerMs}}
	}
	s.deps.Access.Write(line)
}

// strayed measures and logs a request that is no call.
func (s *coreService) strayed(r *http.Request, f *fault, took time.Duration) {
	s.tel.measures.stray(r, f, took)
	if s.deps.Access.Wants(true, took) {
		s.deps.Access.Write(accesslog.Call{Face: "http", Route: methodName(r.Method), Status: strconv.Itoa(f.code.HTTP), Reason: f.code.Name, Took: took})
	}
}
