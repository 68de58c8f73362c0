package facade

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
)

// Calls of open transactions come during a drain, which waits for those too: it does not matter
// that no call was open before.
func TestTheGateWaitsForCallsThatComeDuringADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(10)
		g.drain()
		if err := g.wait(t.Context()); err != nil {
			t.Errorf("no call is open: %v", err)
		}
		for range 2 {
			_, v, err := g.enter(t.Context(), nil, false)
			if err != nil {
				t.Fatal(err)
			}
			waited := make(chan error, 1)
			go func() { waited <- g.wait(t.Context()) }()
			synctest.Wait()
			if len(waited) > 0 {
				t.Error("waited for no call although one is open")
			}
			g.leave(v)
			if err := <-waited; err != nil {
				t.Errorf("the call has ended: %v", err)
			}
		}
	})
}

// Calls that are coming take no place of those that have come.
func TestTheGateBoundsWhatHasCome(t *testing.T) {
	g := newGate(2)
	enter := func(coming bool) *visit {
		t.Helper()
		_, v, err := g.enter(t.Context(), nil, coming)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	coming := []*visit{enter(true), enter(true), enter(true)}
	here := enter(false)
	for i, want := range []bool{true, false, false} {
		if err := g.came(coming[i]); (err == nil) != want {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if _, _, err := g.enter(t.Context(), nil, true); err == nil {
		t.Error("a call begins to come although as many are under way as may be")
	}
	g.leave(here)
	if err := g.came(coming[1]); err != nil {
		t.Error(err)
	}
	for _, v := range coming {
		g.leave(v)
	}
	if len(g.open) > 0 || g.coming != 0 || g.refused != 3 {
		t.Errorf("left: %d open, %d coming; refused %d", len(g.open), g.coming, g.refused)
	}
}

// A call that was begun in a turn has one context, which the gate cuts off and the deadline ends.
func TestOneContextOfATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, api := newGate(3), Default().API
		began := time.Now()
		for name, tc := range map[string]struct {
			end   func(v *visit)
			after time.Duration
			cause error
		}{
			"cut off":  {func(*visit) { g.cutAll() }, 0, errCut},
			"over":     {g.leave, 0, context.Canceled},
			"too late": {func(*visit) {}, time.Second, context.DeadlineExceeded},
		} {
			g.cut, g.draining = false, false
			begun := new(callctx.Context)
			ctx, v, err := g.enter(begun, begun, false)
			if err != nil || ctx != context.Context(begun) {
				t.Fatalf("%s: another context, %v", name, err)
			}
			ctx, _, err = api.deadline(ctx, begun, "2s", "1s", "")
			if end, ok := ctx.Deadline(); err != nil || ctx != context.Context(begun) || !ok || time.Until(end) != time.Second {
				t.Fatalf("%s: another context, or a deadline in %v, %v", name, time.Until(end), err)
			}
			tc.end(v)
			<-ctx.Done()
			if cause := context.Cause(ctx); cause != tc.cause || time.Since(began) != tc.after {
				t.Errorf("%s: ended because of %v after %v", name, cause, time.Since(began))
			}
			begun.Cancel(nil)
			began = time.Now()
		}
	})
}
