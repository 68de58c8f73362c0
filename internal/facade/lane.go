package facade

import (
	"context"
	"time"
)

// largeRequest is the size from which on the decoding of a request is work that others notice, in bytes.
const largeRequest = 64 << 10

// lane is where large requests are decoded, typed and encoded: a few at a time, so that processors are left to small ones.
type lane struct {
	places chan struct{}
	wait   time.Duration // for one, at most
}

// in runs f in the lane, if it is about a large request.
func (l *lane) in(ctx context.Context, large bool, f func() error) error {
	if !large {
		return f()
	}
	timer := time.NewTimer(l.wait)
	defer timer.Stop()
	select {
	case l.places <- struct{}{}:
	case <-timer.C:
		return faultf(codeBusy, "so many large requests are being decoded that this one did not begin within %v: try again, or send less at a time", l.wait)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.places }()
	return f()
}
