package traffic

import (
	"context"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// KeptGoroutines of the sidecar serve plain calls and stay for the next (internal/wire).
const KeptGoroutines = 64

// AtRest collects a sidecar's garbage and reads what it holds, again until no caller has or awaits a
// session or patience is over: on a busy machine it hears late that callers are gone.
func AtRest(ctx context.Context, s *lab.Sidecar, patience time.Duration) (lab.Gauges, error) {
	for end := time.Now().Add(patience); ; {
		g, err := s.Gauges(ctx, true)
		if err != nil || g.Busy == 0 && g.Waiting == 0 || time.Now().After(end) {
			return g, err
		}
		if err := Pause(ctx, 200*time.Millisecond); err != nil {
			return g, err
		}
	}
}

// Pause waits, or returns why it could not.
func Pause(ctx context.Context, d time.Duration) error {
	if awake.Sleep(ctx, d) {
		return nil
	}
	return context.Cause(ctx)
}
