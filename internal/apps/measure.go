package apps

import (
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/ydb-sidecar/sidecar/internal/latency"
)

// API is a way in, by which the times of calls are told apart.
type API uint8

// The ways in.
const (
	GRPC API = iota
	HTTP     // the plain API
	YDB      // the SDK proxy
	apis = int(YDB) + 1
)

// String is the word for it in metrics.
func (a API) String() string { return [apis]string{"grpc", "http", "ydb"}[a] }

// maxReasons bounds the reasons of failed calls that an app has series for. Further ones count as otherReason.
const (
	maxReasons  = 12
	otherReason = "_OTHER"
)

// histograms are those of all apps; without any, nobody sees them.
type histograms struct {
	waits, calls *latency.Durations
	classes      [Classes]string
}

// Measure makes the histograms of apps. It must be called before the apps are used. classes are the names of classes.
func (r *Registry) Measure(m latency.Maker, classes [Classes]string) {
	r.histograms = histograms{
		waits: m.Make("ydb.sidecar.app.wait_time", "s",
			"Time until a call got its session, by app and class: 0 if one was idle. Calls that got none are in ydb.sidecar.app.refused."),
		calls: m.Make("ydb.sidecar.app.duration", "s",
			"Time of one call of an app to either API, by way in and why it failed, without streams that last as "+
				"long as their client likes."),
		classes: classes,
	}
	r.each(func(a *App) { a.measure() })
}

// reason is the key of the failed calls of an app.
type reason struct {
	api API
	why string // one of a list in the code
}

// measure makes the series of the failed calls of an app.
func (a *App) measure() {
	calls := a.registry.histograms.calls
	if calls == nil {
		return
	}
	reasons := latency.NewSeries(calls, maxReasons,
		func(k reason) []attribute.KeyValue {
			return []attribute.KeyValue{attribute.String("ydb.sidecar.app", a.name),
				attribute.String("ydb.sidecar.face", k.api.String()), attribute.String("error.type", k.why)}
		},
		func(k reason) reason { return reason{k.api, otherReason} })
	for i := range a.stripes {
		a.stripes[i].cells.reasons = reasons
	}
}

// cells are where a stripe counts in the histograms: each is made when it is first needed.
type cells struct {
	waits [Classes]atomic.Pointer[latency.Cell]
	calls [apis]atomic.Pointer[latency.Cell] // calls that did their work

	reasons *latency.Series[reason] // of calls that failed, of all stripes together; nil: nobody sees them
}

// waited measures the wait for a session.
func (s *Stripe) waited(class uint8, took time.Duration) {
	if s.registry.histograms.waits != nil {
		s.wait(int(class)).Add(took)
	}
}

// Ended measures a call that is over. why says why it failed, in a word of a list in the code; "": it did its work.
func (s *Stripe) Ended(api API, why string, took time.Duration) {
	if s == nil || s.registry.histograms.calls == nil {
		return
	}
	if why != "" {
		s.cells.reasons.Add(reason{api, why}, took)
		return
	}
	s.call(int(api)).Add(took)
}

// makeCell makes a cell of a stripe. Of two that do so at the same time one counts for both.
func (s *Stripe) makeCell(at *atomic.Pointer[latency.Cell], of *latency.Durations, by attribute.KeyValue) *latency.Cell {
	at.CompareAndSwap(nil, of.NewCell(attribute.NewSet(attribute.String("ydb.sidecar.app", s.name), by)))
	return at.Load()
}

// wait returns the cell of waits in a class.
func (s *Stripe) wait(class int) *latency.Cell {
	if c := s.cells.waits[class].Load(); c != nil {
		return c
	}
	h := &s.registry.histograms
	return s.makeCell(&s.cells.waits[class], h.waits, attribute.String("ydb.sidecar.priority", h.classes[class]))
}

// call returns the cell of calls over a api that did their work.
func (s *Stripe) call(api int) *latency.Cell {
	if c := s.cells.calls[api].Load(); c != nil {
		return c
	}
	return s.makeCell(&s.cells.calls[api], s.registry.histograms.calls, attribute.String("ydb.sidecar.face", API(api).String()))
}

// foldLocked has what was measured of an app that loses its place count for Other: sums over all apps go on rising.
func (r *Registry) foldLocked(a *App) {
	h := &r.histograms
	if h.calls == nil {
		return
	}
	rest := &r.all[theRest].stripes[0]
	waits, calls := map[*latency.Cell]*latency.Cell{}, map[*latency.Cell]*latency.Cell{}
	for i := range a.stripes {
		s := &a.stripes[i]
		for class := range s.cells.waits {
			if c := s.cells.waits[class].Load(); c != nil {
				waits[c] = rest.wait(class)
			}
		}
		for api := range s.cells.calls {
			if c := s.cells.calls[api].Load(); c != nil {
				calls[c] = rest.call(api)
			}
		}
	}
	h.waits.Fold(waits)
	h.calls.Fold(calls)
	a.stripes[0].cells.reasons.FoldInto(rest.cells.reasons)
}
