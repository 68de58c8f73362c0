package panics

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

func breaks() { panic("broken") }

// A panic becomes an error, a line with the stack of where it was, and a count.
func TestCaught(t *testing.T) {
	var out bytes.Buffer
	LogTo(slog.New(slog.NewTextHandler(&out, nil)))
	before := Stats().Count
	err := Call("a test", func() error { breaks(); return nil })
	if e, ok := errors.AsType[*Error](err); !ok || e.Where != "a test" || err.Error() != "panic in a test: broken" {
		t.Errorf("Call = %v", err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		defer Go("a goroutine")
		breaks()
	})
	work.Wait()
	fine := errors.New("no panic")
	if err := Call("a test", func() error { return fine }); err != fine {
		t.Errorf("Call = %v; want what f returns", err)
	}
	if s := Stats(); s.Count != before+2 || s.Where != "a goroutine" || s.At.IsZero() {
		t.Errorf("%+v after two panics, %d before", s, before)
	}
	if lines := strings.Count(out.String(), "level=ERROR"); lines != 2 || strings.Count(out.String(), "panics.breaks") < 2 {
		t.Errorf("%d lines:\n%s", lines, out.String())
	}
}

// A panic of a handler ends its connection, and the server goes on.
func TestHandler(t *testing.T) {
	LogTo(slog.New(slog.DiscardHandler))
	before := Stats().Count
	server := httptest.NewServer(Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/breaks":
			breaks()
		case "/aborts":
			panic(http.ErrAbortHandler)
		}
	})))
	defer server.Close()
	// Each on a connection of its own: a GET on one that was used before is sent again.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, fine := range map[string]bool{"/breaks": false, "/aborts": false, "/": true} {
		res, err := client.Get(server.URL + path)
		if (err == nil) != fine {
			t.Errorf("%s: %v", path, err)
		}
		if err == nil {
			res.Body.Close()
		}
	}
	if n := Stats().Count - before; n != 1 {
		t.Errorf("%d panics were counted; want 1", n)
	}
}
