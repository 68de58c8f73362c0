package facade

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// maxSeries bounds the attribute sets of the histograms: there are some hundred
// that callers can bring about, and statuses that no table knows.
const maxSeries = 1024

// measures feeds the histograms of calls. Recording allocates nothing once a
// combination of attributes was seen.
type measures struct {
	grpc metric.Float64Histogram
	http metric.Float64Histogram

	mu     sync.Mutex // serialises writers of series
	series atomic.Pointer[map[seriesKey][]metric.RecordOption]
}

// seriesKey is what tells series apart; none of it is a caller's own words.
type seriesKey struct {
	name   string // of the call
	route  *route // nil: over gRPC, or no route
	method string // of HTTP; "": over gRPC
	status int    // of HTTP
	code   string // of the fault; "": none
}

func newMeasures(mp metric.MeterProvider) (*measures, error) {
	m := &measures{}
	m.series.Store(&map[seriesKey][]metric.RecordOption{})
	meter := mp.Meter(scope)
	var errs [2]error
	m.grpc, errs[0] = meter.Float64Histogram("rpc.server.call.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of one call of the plain API over gRPC."))
	m.http, errs[1] = meter.Float64Histogram("http.server.request.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of one request of the plain API over HTTP."))
	return m, errors.Join(errs[:]...)
}

// record measures a call that is over.
func (m *measures) record(ctx context.Context, c *call, f *fault, took time.Duration) {
	k := seriesKey{name: c.name, route: c.route}
	if f != nil {
		k.code = f.code.name
	}
	if c.route == nil {
		m.grpc.Record(ctx, took.Seconds(), m.options(k, f)...)
		return
	}
	k.method, k.status = c.route.method, c.httpStatus(f)
	m.http.Record(ctx, took.Seconds(), m.options(k, f)...)
}

// stray measures a request that is no call: refused before its route was known.
func (m *measures) stray(r *http.Request, f *fault, took time.Duration) {
	k := seriesKey{method: methodName(r.Method), status: f.code.http, code: f.code.name}
	m.http.Record(r.Context(), took.Seconds(), m.options(k, f)...)
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
		return f.code.http
	}
	return http.StatusOK
}

// options returns the prebuilt attributes of a series.
func (m *measures) options(k seriesKey, f *fault) []metric.RecordOption {
	if o, ok := (*m.series.Load())[k]; ok {
		return o
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.series.Load()
	if len(old) >= maxSeries {
		return nil
	}
	o := []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(k.attributes(f)...))}
	next := maps.Clone(old)
	next[k] = o
	m.series.Store(&next)
	return o
}

func (k seriesKey) attributes(f *fault) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 4)
	if k.method == "" {
		code := "OK"
		if f != nil {
			code = ydbstatus.CodeName(f.code.grpc)
		}
		attrs = append(attrs, attribute.String("rpc.system.name", "grpc"), method(k.name), attribute.String("rpc.response.status_code", code))
	} else {
		attrs = append(attrs, attribute.String("http.request.method", k.method), attribute.Int("http.response.status_code", k.status))
		if k.route != nil {
			attrs = append(attrs, attribute.String("http.route", k.route.path))
		}
	}
	if k.code != "" {
		attrs = append(attrs, attribute.String("error.type", k.code))
	}
	return attrs
}

// logCall writes the call's line into the access log, if it gets one.
func (s *Service) logCall(c *call, f *fault, took time.Duration) {
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
		line.Status, line.Reason = ydbstatus.CodeName(f.code.grpc), f.code.name
	}
	if c.route != nil {
		line.Face, line.Route, line.Status = "http", c.route.method+" "+c.route.path, strconv.Itoa(c.httpStatus(f))
	}
	if c.info.Attempts > 0 {
		line.Phases = [4]accesslog.Phase{{Name: "queue_ms", MS: c.info.QueueMs}, {Name: "acquire_ms", MS: c.info.AcquireMs}, {Name: "hop_ms", MS: c.info.HopMs}, {Name: "server_ms", MS: c.info.ServerMs}}
	}
	s.deps.Access.Write(line)
}

// stray measures and logs a request that is no call, and answers it.
func (s *Service) stray(w http.ResponseWriter, r *http.Request, f *fault, start time.Time) {
	took := time.Since(start)
	s.refuse(&exchange{w: w, r: r, control: http.NewResponseController(w)}, f, "", true)
	s.tel.measures.stray(r, f, took)
	if s.deps.Access.Wants(true, took) {
		s.deps.Access.Write(accesslog.Call{Face: "http", Route: methodName(r.Method), Status: strconv.Itoa(f.code.http), Reason: f.code.name, Took: took})
	}
}
