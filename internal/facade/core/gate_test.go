package core

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
			c := new(Call)
			_, err := g.enter(t.Context(), c)
			v := &c.open
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
	enter := func(coming bool) *admittedCall {
		t.Helper()
		c := &Call{admission: admission{Coming: coming}}
		_, err := g.enter(t.Context(), c)
		v := &c.open
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	coming := []*admittedCall{enter(true), enter(true), enter(true)}
	here := enter(false)
	for i, want := range []bool{true, false, false} {
		if err := g.came(coming[i]); (err == nil) != want {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if _, err := g.enter(t.Context(), &Call{admission: admission{Coming: true}}); err == nil {
		t.Error("a call begins to come although as many are under way as may be")
	}
	g.leave(here)
	if err := g.came(coming[1]); err != nil {
		t.Error(err)
	}
	for _, v := range coming {
		g.leave(v)
	}
	if g.open > 0 || g.coming != 0 || g.refused != 3 {
		t.Errorf("left: %d open, %d coming; refused %d", g.open, g.coming, g.refused)
	}
}

// The gate cuts off a call that began in a turn, and leaves its context to the shard otherwise. The deadline ends what the call waits for.
func TestTheContextsOfATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			end         func(g *gate, v *admittedCall)
			begun, work error // why they ended
		}{
			"cut off": {func(g *gate, _ *admittedCall) { g.cutAll() }, ErrCut, ErrCut},
			"over":    {(*gate).leave, nil, nil},
			"late":    {func(*gate, *admittedCall) { time.Sleep(2 * time.Second) }, nil, context.DeadlineExceeded},
			"late, and cut off": {func(g *gate, _ *admittedCall) { time.Sleep(2 * time.Second); g.cutAll() }, ErrCut,
				context.DeadlineExceeded},
		} {
			g, begun, work := newGate(1), new(callctx.Context), new(callctx.Context)
			c := &Call{admission: admission{Begun: begun}}
			ctx, err := g.enter(begun, c)
			v := &c.open
			if err != nil || ctx != context.Context(begun) {
				t.Fatalf("%s: another context, %v", name, err)
			}
			work.Under(begun)
			ctx, _, err = DefaultAPI().Deadline(ctx, work, "2s", "1s", "")
			if end, ok := ctx.Deadline(); err != nil || ctx != context.Context(work) || !ok || time.Until(end) != time.Second {
				t.Fatalf("%s: another context, or a deadline in %v, %v", name, time.Until(end), err)
			}
			tc.end(g, v)
			synctest.Wait()
			if b, w := context.Cause(begun), context.Cause(work); b != tc.begun || w != tc.work {
				t.Errorf("%s: ended because of %v and %v; want %v and %v", name, b, w, tc.begun, tc.work)
			}
			begun.Cancel(nil)
		}
	})
}
