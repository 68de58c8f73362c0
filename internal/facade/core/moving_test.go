package core

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A stream without a timeout of its caller lasts as long as it moves, up to api.max_timeout. A timeout of its caller is one of the whole.
func TestMovingStreamsLast(t *testing.T) {
	a := API{Timeout: 10 * time.Second, MaxTimeout: time.Hour}
	for name, tc := range map[string]struct {
		timeout string
		every   time.Duration // between parts
		parts   int           // parts before nothing moves any more
		ends    time.Duration
	}{
		"nothing comes":       {"", time.Second, 0, 10 * time.Second},
		"a part, then none":   {"", 9 * time.Second, 1, 19 * time.Second},
		"ten minutes of them": {"", 6 * time.Second, 100, 610 * time.Second},
		"too long a pause":    {"", 11 * time.Second, 100, 10 * time.Second},
		"never ends":          {"", 9 * time.Second, 1000, time.Hour},
		"its own timeout":     {"20s", 6 * time.Second, 100, 20 * time.Second},
		"beyond the most":     {"2h", 6 * time.Second, 1, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, moved, cancel, err := a.Moving(t.Context(), nil, tc.timeout)
				if err != nil {
					t.Fatal(err)
				}
				defer cancel()
				began := time.Now()
				for range tc.parts {
					time.Sleep(tc.every)
					if ctx.Err() == nil {
						moved()
					}
				}
				<-ctx.Done()
				if tc.parts > 0 && tc.every*time.Duration(tc.parts) > tc.ends {
					began = time.Now().Add(-tc.ends) // it ended while the loop went on
				}
				if took := time.Since(began); took != tc.ends || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
					t.Errorf("ended after %v with %v; want %v and the deadline", took, ctx.Err(), tc.ends)
				}
			})
		})
	}
}

// The end of the caller ends its stream, for the same reason.
func TestMovingStreamsEndWithTheirCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, end := context.WithCancelCause(t.Context())
		ctx, _, cancel, err := API{Timeout: time.Second, MaxTimeout: time.Hour}.Moving(parent, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer cancel()
		end(ErrCut)
		<-ctx.Done()
		if !errors.Is(ctx.Err(), context.Canceled) || !errors.Is(context.Cause(ctx), ErrCut) {
			t.Errorf("ended with %v because of %v; want the cut", ctx.Err(), context.Cause(ctx))
		}
	})
}
