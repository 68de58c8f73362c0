package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Bounds of what is kept.
const (
	maxTraces = 2048 // the oldest goes first
	maxSpans  = 1000 // of one trace; more are dropped
)

// span is one finished span with the name of the service that sent it.
type span struct {
	*trace.Span
	service string
}

// traces keeps the newest traces. It is an OTLP trace service.
type traces struct {
	collector.UnimplementedTraceServiceServer

	mu    sync.Mutex        // guards all below
	spans map[string][]span // by trace id
	order []string          // trace ids, oldest first
}

// Export implements the service.
func (t *traces) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		service := value(resource.GetResource().GetAttributes(), "service.name")
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				t.addLocked(span{s, service})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (t *traces) addLocked(s span) {
	id := string(s.TraceId)
	if _, known := t.spans[id]; !known {
		if len(t.order) == maxTraces {
			delete(t.spans, t.order[0])
			t.order = t.order[1:]
		}
		t.order = append(t.order, id)
	}
	if len(t.spans[id]) < maxSpans {
		t.spans[id] = append(t.spans[id], s)
	}
}

// print writes the newest n traces as trees, newest first; of those whose trace
// id begins with prefix.
func (t *traces) print(w io.Writer, n int, prefix string) {
	t.mu.Lock()
	var chosen [][]span
	for _, id := range slices.Backward(t.order) {
		if len(chosen) == n {
			break
		}
		if strings.HasPrefix(fmt.Sprintf("%x", id), prefix) {
			chosen = append(chosen, slices.Clone(t.spans[id]))
		}
	}
	t.mu.Unlock()
	for _, spans := range chosen {
		printTrace(w, spans)
	}
	switch {
	case len(chosen) == 0 && prefix != "":
		fmt.Fprintf(w, "no trace %.32q: it was not sent here, is not finished, or is older than the newest %d\n", prefix, maxTraces)
	case len(chosen) == 0:
		fmt.Fprintln(w, "no trace yet")
	}
}

func printTrace(w io.Writer, spans []span) {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.StartTimeUnixNano, b.StartTimeUnixNano) })
	ids := make(map[string]bool, len(spans))
	children := make(map[string][]span)
	for _, s := range spans {
		ids[string(s.SpanId)] = true
		children[string(s.ParentSpanId)] = append(children[string(s.ParentSpanId)], s)
	}
	fmt.Fprintf(w, "trace %x\n", spans[0].TraceId)
	start := spans[0].StartTimeUnixNano
	for _, s := range spans {
		if !ids[string(s.ParentSpanId)] { // a root, or its parent was not sent here
			printSpan(w, s, children, start, 1)
		}
	}
	fmt.Fprintln(w)
}

func printSpan(w io.Writer, s span, children map[string][]span, start uint64, depth int) {
	if depth > maxSpans { // parents in a circle
		return
	}
	failed := ""
	if s.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR {
		failed = " FAILED " + s.GetStatus().GetMessage()
	}
	name := strings.Repeat("  ", depth) + s.Name
	fmt.Fprintf(w, "%-36s %-14s %+10.3f ms %9.3f ms%s", name, s.service,
		millis(s.StartTimeUnixNano-start), millis(s.EndTimeUnixNano-s.StartTimeUnixNano), failed)
	for _, a := range s.Attributes {
		if strings.HasPrefix(a.Key, "ydb.") || a.Key == "server.address" {
			fmt.Fprintf(w, " %s=%s", strings.TrimPrefix(strings.TrimPrefix(a.Key, "ydb."), "sidecar."), text(a.Value))
		}
	}
	fmt.Fprintln(w)
	for _, c := range children[string(s.SpanId)] {
		printSpan(w, c, children, start, depth+1)
	}
}

func millis(ns uint64) float64 { return float64(time.Duration(ns)) / float64(time.Millisecond) }

func value(attributes []*common.KeyValue, key string) string {
	for _, a := range attributes {
		if a.Key == key {
			return text(a.Value)
		}
	}
	return ""
}

func text(v *common.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_IntValue:
		return fmt.Sprint(v.IntValue)
	case *common.AnyValue_DoubleValue:
		return fmt.Sprint(v.DoubleValue)
	case *common.AnyValue_BoolValue:
		return fmt.Sprint(v.BoolValue)
	}
	return "?"
}
