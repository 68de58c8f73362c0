package core

import (
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/apps"
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
		return latency.NewSeries(histogram.Make(name, "s", text), maxSeries, seriesKey.attributes,
			func(seriesKey) seriesKey { return seriesKey{} })
	}
	return measures{
		series("rpc.server.call.duration", "Time of one call of the plain API over gRPC."),
		series("http.server.request.duration", "Time of one request of the plain API over HTTP."),
	}
}

// record measures a call that is over.
func (m *measures) record(c *Call, f *Fault, took time.Duration) {
	k := seriesKey{name: c.Name, route: c.Route}
	if f != nil {
		k.grpc = f.Code.GRPC
		if !f.Asked() {
			k.code = f.Code.Name
		}
	}
	if c.Name != CallIngest {
		c.App.Ended(c.api(), k.code, took)
	}
	if c.Route == nil {
		m.grpc.Add(k, took)
		return
	}
	k.method, k.status, k.tls = c.Route.Method, c.httpStatus(f), c.TLS
	m.http.Add(k, took)
}

// api is the way in.
func (c *Call) api() apps.API {
	if c.Route == nil {
		return apps.GRPC
	}
	return apps.HTTP
}

// stray measures a request that is no call: refused before its route was known.
func (m *measures) stray(r *http.Request, f *Fault, took time.Duration) {
	m.http.Add(seriesKey{method: methodName(r.Method), status: f.Code.HTTP, tls: r.TLS != nil, code: f.Code.Name}, took)
}

// methodName is a method as metrics may have it: one of a few.
func methodName(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions,
		http.MethodPatch, http.MethodConnect, http.MethodTrace:
		return m
	}
	return "_OTHER"
}

// httpStatus is what the caller got, which may be 200 although the end failed.
func (c *Call) httpStatus(f *Fault) int {
	switch {
	case c.Status != 0:
		return c.Status
	case f != nil:
		return f.Code.HTTP
	}
	return http.StatusOK
}

func (k seriesKey) attributes() []attribute.KeyValue {
	if k == (seriesKey{}) { // all that exceed maxSeries
		return nil
	}
	attrs := make([]attribute.KeyValue, 0, 5)
	if k.method == "" {
		attrs = append(attrs, attribute.String("rpc.system.name", "grpc"), method(k.name),
			attribute.String("rpc.response.status_code", ydbstatus.CodeName(k.grpc)))
	} else {
		attrs = append(attrs, attribute.String("http.request.method", k.method),
			attribute.Int("http.response.status_code", k.status), scheme(k.tls))
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
func (s *Service) logCall(c *Call, f *Fault, took time.Duration) {
	sampled := s.Deps.Access.Wants(f != nil && !f.Asked(), took)
	if sampled == 0 {
		return
	}
	line := accesslog.Call{
		API: "grpc", Method: fullName(c.Name), Status: "OK", Took: took, TraceID: c.TraceID, SQL: c.SQL,
		Node: c.Info.NodeId, Attempts: c.Info.Attempts, Sampled: sampled, Mode: c.modeName(),
	}
	if c.App != nil { // else it was refused before anybody knew whose it is
		line.App, line.Class = c.App.Name(), c.Class.String()
	}
	if f != nil {
		line.Status, line.Reason = ydbstatus.CodeName(f.Code.GRPC), f.Code.Name
	}
	if c.Route != nil {
		line.API, line.Route, line.Status = "http", c.Route.Method+" "+c.Route.Path, strconv.Itoa(c.httpStatus(f))
	}
	if c.Info.Attempts > 0 {
		line.Phases = [4]accesslog.Phase{{Name: "queue_ms", MS: c.Info.QueueMs},
			{Name: "acquire_ms", MS: c.Info.AcquireMs}, {Name: "hop_ms", MS: c.Info.HopMs},
			{Name: "server_ms", MS: c.Info.ServerMs}}
	}
	s.Deps.Access.Write(line)
}

// Strayed measures and logs a request that is no call.
func (s *Service) Strayed(r *http.Request, f *Fault, took time.Duration) {
	s.tel.measures.stray(r, f, took)
	if sampled := s.Deps.Access.Wants(true, took); sampled > 0 {
		s.Deps.Access.Write(accesslog.Call{API: "http", Route: methodName(r.Method), Status: strconv.Itoa(f.Code.HTTP),
			Reason: f.Code.Name, Took: took, Sampled: sampled})
	}
}
