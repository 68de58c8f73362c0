package httpapi

import (
	"context"
	"errors"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// receive bounds the reading of a body until the function it returns is called:
// a caller that sends slowly, or nothing any more, holds up neither a call nor,
// when ctx ends, the stop of the sidecar.
func (x *exchange) receive(ctx context.Context) (done func()) {
	// Servers without deadlines (in tests) just have none.
	_ = x.receiveBy(time.Now().Add(bodyTimeout))
	stop := whenOver(ctx, func() { _ = x.receiveBy(time.Now()) })
	return func() {
		// Without a deadline, or the server would take its end for the caller's leaving.
		if stop() {
			_ = x.receiveBy(time.Time{})
			return
		}
		// net/http takes the deadline, which has come, for the caller's leaving, and would end every later call of the connection with it.
		if x.r.ProtoMajor == 1 {
			x.w.Header().Set("Connection", "close")
		}
	}
}

// sendBy bounds the sending of what follows. Zero: nothing but the end of the call does.
func (x *exchange) sendBy(at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// Servers without deadlines (in tests) just have none.
	_ = x.control.SetWriteDeadline(x.atLatest(at))
}

// receiveBy bounds the reading of what the body still has. Zero: nothing but the end of the call does.
func (x *exchange) receiveBy(at time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.control.SetReadDeadline(x.atLatest(at))
}

// atLatest is at, or for a call that was cut off its last moment if that is earlier.
func (x *exchange) atLatest(at time.Time) time.Time {
	if !x.last.IsZero() && (at.IsZero() || at.After(x.last)) {
		return x.last
	}
	return at
}

// cutOff ends reading at once and sending soon, if the call was cut off by the stop:
// a caller that reads still gets the last words.
func (x *exchange) cutOff() {
	if !errors.Is(context.Cause(x.ctx), core.ErrCut) {
		return
	}
	x.mu.Lock()
	x.last = time.Now().Add(core.CutLimit / 2)
	x.mu.Unlock()
	_ = x.receiveBy(time.Now())
	x.sendBy(time.Time{})
}

// whenOver runs f when ctx ends, unless the function that it returns is called
// earlier; that one says whether it was, and returns after f. What f does to the
// connection it must not do once the handler has returned.
func whenOver(ctx context.Context, f func()) (stop func() bool) {
	done := make(chan struct{})
	unless := context.AfterFunc(ctx, func() {
		defer close(done)
		defer panics.Go("the end of a request")
		f()
	})
	return func() bool {
		if unless() {
			return true
		}
		<-done
		return false
	}
}
