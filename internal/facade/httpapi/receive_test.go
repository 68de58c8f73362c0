package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestAnEndedReceiptEndsItsConnection: a body may have come whole just when the time of its call was
// over. The deadline for reading has come then, and net/http ends every later call of the connection,
// so that must not be kept.
func TestAnEndedReceiptEndsItsConnection(t *testing.T) {
	for _, c := range []struct {
		name  string
		major int
		ended bool
		want  string
	}{
		{"the time is not over", 1, false, ""},
		{"the time is over", 1, true, "close"},
		{"the time is over, in HTTP/2, where a stream is no connection", 2, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := httptest.NewRecorder()
			x := &exchange{w: w, r: &http.Request{ProtoMajor: c.major}, control: http.NewResponseController(w)}
			if c.ended {
				cancel()
			}
			x.receive(ctx)()
			if got := w.Header().Get("Connection"); got != c.want {
				t.Errorf("Connection is %q; want %q", got, c.want)
			}
		})
	}
}
