package hop

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Calls wait while they are paused, go on when that ends, and are told of the pause if their time is up before.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(Hold)
		leave, err := h.Pass(t.Context())
		if err != nil || h.Passed() != 1 || h.On() {
			t.Fatalf("a call that nobody paused: %v, %d passed", err, h.Passed())
		}
		h.Set(true)
		h.Set(true) // twice is once
		if h.Passed() != 1 {
			t.Errorf("%d calls under way, want 1", h.Passed())
		}
		leave()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = h.Pass(ctx)
		var paused *PausedError
		if !errors.As(err, &paused) || paused.Waited != time.Second || !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "paused by an operator") {
			t.Errorf("the time was up: %v", err)
		}
		went := make(chan error, 1)
		go func() {
			leave, err := h.Pass(t.Context())
			if err == nil {
				leave()
			}
			went <- err
		}()
		time.Sleep(time.Hour)
		if len(went) > 0 || h.Passed() != 0 {
			t.Fatalf("a call went on while calls are paused; %d passed", h.Passed())
		}
		h.Set(false)
		if err := <-went; err != nil || h.Passed() != 0 || h.On() {
			t.Errorf("resumed: %v, %d passed", err, h.Passed())
		}
	})
}

// Whoever has paused calls and once sees none under way finds none afterwards.
func TestNothingPassesAHoldThatIsQuiet(t *testing.T) {
	h := new(Hold)
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var inside atomic.Int64
	for range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if leave, err := h.Pass(ctx); err == nil {
					inside.Add(1)
					inside.Add(-1)
					leave()
				}
			}
		})
	}
	for range 200 {
		h.Set(true)
		for h.Passed() > 0 {
			runtime.Gosched()
		}
		for range 10 {
			if n := inside.Load(); n != 0 {
				t.Fatalf("%d calls under way after there were none", n)
			}
			runtime.Gosched()
		}
		h.Set(false)
		runtime.Gosched()
	}
	cancel()
	callers.Wait()
}

// pausedPool is a pool that is paused and resumed only while its Hold reports no pause.
type pausedPool struct {
	t  *testing.T
	h  *Hold
	on *bool
}

func (p pausedPool) Pause(on bool) {
	if *p.on = on; p.h.On() {
		p.t.Error("calls are said to be paused while a pool may not be")
	}
}

// Pools are paused before calls are said to be, and go on after that.
func TestPoolsArePausedWhileCallsAreSaidToBe(t *testing.T) {
	h := new(Hold)
	for _, on := range []bool{true, false, true} {
		paused := !on
		if PauseAll(on, h, []pausedPool{{t, h, &paused}}); paused != on || h.On() != on {
			t.Errorf("PauseAll(%v): the pool is paused: %v, calls: %v", on, paused, h.On())
		}
	}
}
