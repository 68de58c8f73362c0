package awake

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		for _, want := range []struct {
			whole bool
			at    time.Duration
		}{{true, 2 * time.Second}, {false, 3 * time.Second}, {false, 3 * time.Second}} {
			began, _ := ctx.Deadline()
			if whole := Sleep(ctx, 2*time.Second); whole != want.whole || 3*time.Second-time.Until(began) != want.at {
				t.Errorf("whole %v, over at %v; want %+v", whole, 3*time.Second-time.Until(began), want)
			}
		}
	})
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if !Until(ctx, func() bool { return true }) || time.Since(began) != 0 {
			t.Errorf("seen after %v; want at once", time.Since(began))
		}
		if !Until(ctx, func() bool { return time.Since(began) > 100*time.Millisecond }) || time.Since(began) != 105*time.Millisecond {
			t.Errorf("seen after %v; want 105ms", time.Since(began))
		}
		if Until(ctx, func() bool { return false }) || time.Since(began) != time.Second {
			t.Errorf("ends after %v; want a second", time.Since(began))
		}
		if !Until(ctx, func() bool { return true }) {
			t.Error("what is so is not seen once the context has ended")
		}
	})
}
