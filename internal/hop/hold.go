package hop

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Hold keeps calls away from the nodes while an operator has paused them. Pools hold what needs one of their
// sessions; a Hold is for all other calls: bulk upserts, streams of rows, and calls of SDKs without such a session.
// It is safe for concurrent use. A nil one holds nothing.
type Hold struct {
	resumed atomic.Pointer[chan struct{}] // closed when calls go on; nil: they are not paused
	mu      sync.Mutex                    // one Set at a time
	passed  atomic.Int64                  // calls that Pass let go and that have not ended
}

// PausedError says that a call was not sent: its time was up while an operator had paused calls.
type PausedError struct {
	Waited time.Duration
	Cause  error // of the end of its context
}

// Error names the operator's command that ends the pause.
func (e *PausedError) Error() string {
	return fmt.Sprintf("hop: the call waited %v: calls are paused by an operator (sidecar resume): %v",
		e.Waited.Round(time.Microsecond), e.Cause)
}

// Unwrap returns why the context ended.
func (e *PausedError) Unwrap() error { return e.Cause }

// Set pauses calls, or lets them go on.
func (h *Hold) Set(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch was := h.resumed.Load(); {
	case on && was == nil:
		resumed := make(chan struct{})
		h.resumed.Store(&resumed)
	case !on && was != nil:
		h.resumed.Store(nil)
		close(*was)
	}
}

// PauseAll pauses calls and pools, or lets them go on. While h.On reports a pause all pools are paused: whoever sees
// that and then finds nothing under way may say that all is quiet.
func PauseAll[P interface{ Pause(on bool) }](on bool, h *Hold, pools []P) {
	if !on {
		h.Set(false)
	}
	for _, p := range pools {
		p.Pause(on)
	}
	if on {
		h.Set(true)
	}
}

// On reports whether calls are paused.
func (h *Hold) On() bool { return h != nil && h.resumed.Load() != nil }

// Seen is a phase as operators see it: while calls are paused every pool is (PauseAll), so what is in a queue is paused.
func (h *Hold) Seen(phase Phase) Phase {
	if phase == InQueue && h.On() {
		return Paused
	}
	return phase
}

// Passed is how many calls Pass let go that have not ended. Once it was 0 while calls are paused, none goes until they
// are resumed; one that comes may count for a moment.
func (h *Hold) Passed() int {
	if h == nil {
		return 0
	}
	return int(h.passed.Load())
}

// Pass waits while calls are paused. Call leave when the call has ended. The error is a *PausedError.
func (h *Hold) Pass(ctx context.Context) (leave func(), err error) {
	if h == nil {
		return func() {}, nil
	}
	for {
		// Counted first: whoever pauses sees either the count or a call that waits.
		h.passed.Add(1)
		if h.resumed.Load() == nil {
			return h.leave, nil
		}
		h.passed.Add(-1)
		if err := h.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

func (h *Hold) leave() { h.passed.Add(-1) }

// Wait waits while calls are paused. The error is a *PausedError.
func (h *Hold) Wait(ctx context.Context) error {
	if h == nil {
		return nil
	}
	for began := time.Now(); ; {
		resumed := h.resumed.Load()
		if resumed == nil {
			return nil
		}
		select {
		case <-*resumed:
		case <-ctx.Done():
			return &PausedError{Waited: time.Since(began), Cause: context.Cause(ctx)}
		}
	}
}
