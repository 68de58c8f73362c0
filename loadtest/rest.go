package main

import (
	"context"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// keptGoroutines of the sidecar serve plain calls and stay for the next (internal/wire).
const keptGoroutines = 64

// atRest collects a sidecar's garbage and reads what it holds, again until nobody has or awaits a
// session or patience is over: on a busy machine it hears late that callers are gone.
func atRest(ctx context.Context, s *lab.Sidecar, patience time.Duration) (lab.Gauges, error) {
	for end := time.Now().Add(patience); ; {
		g, err := s.Gauges(ctx, true)
		if err != nil || g.Busy == 0 && g.Waiting == 0 || time.Now().After(end) {
			return g, err
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return g, err
		}
	}
}

// pause waits, or returns why it could not.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
