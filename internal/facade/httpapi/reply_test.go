package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
)

// TestRetryAfter: the header has whole seconds. Callers that are told to slow down always get it; others only when they
// should wait for about a second or more.
func TestRetryAfter(t *testing.T) {
	for after, want := range map[time.Duration][2]string{ // of a call that is too many, of one that was not sent
		0: {"", ""}, time.Millisecond: {"1", ""}, 100 * time.Millisecond: {"1", ""}, 499 * time.Millisecond: {"1", ""},
		500 * time.Millisecond: {"1", "1"}, time.Second: {"1", "1"}, 1001 * time.Millisecond: {"2", "2"},
	} {
		for i, code := range []*core.Code{core.CodeBusy, core.CodeDraining} {
			w := httptest.NewRecorder()
			writeProblem(w, core.Faultf(code, "busy").With(func(f *core.Fault) { f.After = after }), "")
			if got := w.Header().Get("Retry-After"); got != want[i] {
				t.Errorf("%s after %v: Retry-After %q; want %q", code.Name, after, got, want[i])
			}
		}
	}
}

// timedReply is a reply whose connection keeps the deadlines that it is given.
type timedReply struct {
	*httptest.ResponseRecorder
	all []time.Time
}

func (d *timedReply) SetReadDeadline(at time.Time) error {
	d.all = append(d.all, at)
	return nil
}

func (d *timedReply) SetWriteDeadline(at time.Time) error { return d.SetReadDeadline(at) }

// A call that the stop cut off sets no deadline behind its last moment.
func TestNoDeadlineIsLaterThanTheStop(t *testing.T) {
	s := start(t, facadetest.Small(), facadetest.NewWriter(t).Driver)
	for name, do := range map[string]func(x *exchange){
		"body": func(x *exchange) { x.receive(t.Context())() },
		"send": func(x *exchange) { x.sendBy(time.Time{}); x.sendBy(time.Now().Add(replyTimeout)) },
		"ingest": func(x *exchange) {
			_ = (&ingestLines{api: &s.api, x: x, fed: make(chan struct{})}).Opened(t.Context())
		},
		"refuse": func(x *exchange) { s.api.refuse(x, core.Faultf(core.CodeDeadline, "test"), "", true) },
	} {
		t.Run(name, func(t *testing.T) {
			d := &timedReply{ResponseRecorder: httptest.NewRecorder()}
			x := &exchange{w: d,
				r:       httptest.NewRequestWithContext(t.Context(), "POST", "/v1/query", strings.NewReader("{}")),
				control: http.NewResponseController(d),
				ctx:     t.Context(), call: new(core.Call), last: time.Now().Add(time.Millisecond)}
			do(x)
			if len(d.all) == 0 {
				t.Error("no deadline was set: this proves nothing")
			}
			for _, at := range d.all {
				if at.IsZero() || at.After(x.last) {
					t.Errorf("deadline %v; want at most %v", at, x.last)
				}
			}
		})
	}
}
