// Package panics turns a panic into an error, a log line and a count.
//
// A panic in the work for one caller, or in one piece of background work, must not end the
// process. The owner of that work recovers, gives back what the work held, and passes the
// value to Caught.
//
// The logger and the counts are package variables: any goroutine can panic, and operators
// read one count for the process. What always holds: Caught logs each panic with its stack
// and counts it.
package panics

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Error is a panic that was caught.
type Error struct {
	Where string // what panicked, in words that are few and fixed
	Value any
}

func (e *Error) Error() string { return fmt.Sprintf("panic in %s: %v", e.Where, e.Value) }

// Seen is what is known of the panics so far.
type Seen struct {
	Count uint64
	Where string    // of the last one
	At    time.Time // of the last one; zero: there was none
}

var (
	count atomic.Uint64
	last  atomic.Pointer[Seen]
	log   atomic.Pointer[slog.Logger]
)

// LogTo has panics logged to l from now on; before, they go to slog's default.
func LogTo(l *slog.Logger) { log.Store(l) }

// Stats returns what was caught so far.
func Stats() Seen {
	s := Seen{}
	if l := last.Load(); l != nil {
		s = *l
	}
	s.Count = count.Load()
	return s
}

// Caught notes a panic whose value recover has returned, and makes an error of it. It
// must be called by the function that was deferred, so that the stack is that of the panic.
func Caught(place string, value any) error {
	count.Add(1)
	last.Store(&Seen{Where: place, At: time.Now()})
	l := log.Load()
	if l == nil {
		l = slog.Default()
	}
	e := &Error{place, value}
	l.Error("a panic was caught: this is a fault of the sidecar; report it", "place", place, "panic", fmt.Sprint(value),
		"stack", string(debug.Stack()))
	return e
}

// Go is for goroutines of one piece of work, whose owner needs no more than that it is over:
// defer panics.Go("place") in them catches what they panic with.
func Go(place string) {
	if v := recover(); v != nil {
		_ = Caught(place, v)
	}
}

// Call calls f and returns its error, or its panic as one.
func Call(place string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = Caught(place, v)
		}
	}()
	return f()
}

// keepPause is the time before a loop that panicked goes on.
const keepPause = 100 * time.Millisecond

// Keep runs a loop until it returns, or ctx ends; one that panics goes on after a pause.
func Keep(ctx context.Context, place string, loop func()) {
	for Call(place, func() error { loop(); return nil }) != nil {
		select {
		case <-time.After(keepPause):
		case <-ctx.Done():
			return
		}
	}
}

// Handler is next whose panics are caught. What was sent by then cannot be taken back, so
// the answer breaks off, and the caller sees that.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v != http.ErrAbortHandler {
				_ = Caught("an HTTP handler", v)
			}
			panic(http.ErrAbortHandler) // the server ends the connection without a word
		}()
		next.ServeHTTP(w, r)
	})
}
