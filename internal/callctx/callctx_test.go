package callctx

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errCut = errors.New("cut off")

// A Context ends once, for the first reason, and so do its functions and the contexts made of it.
func TestEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		do    func(c *Context)
		at    time.Duration
		err   error
		cause error
	}{
		"cancelled": {func(c *Context) { c.Cancel(nil) }, 0, context.Canceled, context.Canceled},
		"cut off":   {func(c *Context) { c.Cancel(errCut) }, 0, context.Canceled, errCut},
		"twice": {func(c *Context) {
			c.Cancel(errCut)
			c.Cancel(nil)
			c.Limit(time.Second)
		}, 0, context.Canceled, errCut},
		"deadline": {func(c *Context) { c.Limit(time.Second) }, time.Second, context.DeadlineExceeded, context.DeadlineExceeded},
		"earlier deadline": {func(c *Context) {
			c.Limit(time.Minute)
			c.Limit(time.Second)
		}, time.Second, context.DeadlineExceeded, context.DeadlineExceeded},
		"later deadline": {func(c *Context) {
			c.Limit(time.Second)
			c.Limit(time.Minute)
		}, time.Second, context.DeadlineExceeded, context.DeadlineExceeded},
		"cut off before the deadline": {func(c *Context) {
			c.Limit(time.Minute)
			time.AfterFunc(time.Second, func() { c.Cancel(errCut) })
		}, time.Second, context.Canceled, errCut},
		"deadline of the past": {func(c *Context) { c.Limit(-time.Second) }, 0, context.DeadlineExceeded, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, c := time.Now(), new(Context)
				before, cancel := context.WithTimeout(c, time.Hour)
				defer cancel()
				tc.do(c)
				ended, ran, ranToo, watched := c.Err() != nil, 0, 0, 0
				c.Watch(func() { watched = -1 })
				if c.Unwatch(); !ended {
					c.Watch(func() { watched++ })
				}
				stop := context.AfterFunc(c, func() { ran++ })
				stopToo := c.AfterFunc(func() { ranToo++ })
				if stopToo() == ended {
					t.Error("a function is stopped after the end, or cannot be before")
				}
				after, cancel := context.WithCancel(c)
				defer cancel()
				<-c.Done()
				if got := time.Since(began); got != tc.at {
					t.Errorf("ended after %v, want %v", got, tc.at)
				}
				synctest.Wait()
				if c.Unwatch(); !ended && watched != 1 || ended && watched != -1 {
					t.Errorf("the watcher: %d", watched)
				}
				if ran != 1 || stop() || stopToo() || ended != (ranToo == 1) {
					t.Errorf("the functions ran %d and %d times, or can be stopped", ran, ranToo)
				}
				for name, ctx := range map[string]context.Context{"it": c, "one that was made before": before,
					"one that was made after": after} {
					if ctx.Err() != tc.err || context.Cause(ctx) != tc.cause {
						t.Errorf("%s: %v because of %v, want %v because of %v", name, ctx.Err(), context.Cause(ctx), tc.err, tc.cause)
					}
				}
				c.Cancel(nil)
				if c.Err() != tc.err {
					t.Errorf("it ended again: %v", c.Err())
				}
			})
		})
	}
}

// Contexts that are made of a Context need no goroutine, and its values are found with and without a cause.
func TestMadeOf(t *testing.T) {
	type key struct{}
	parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	defer cancel()
	c := &Context{Values: parent}
	if end, ok := c.Deadline(); ok {
		t.Errorf("a deadline without Limit: %v", end)
	}
	before := runtime.NumGoroutine()
	for range 10 {
		_, cancel := context.WithTimeout(c, time.Hour)
		defer cancel()
	}
	if n := runtime.NumGoroutine() - before; n > 0 {
		t.Errorf("%d goroutines for 10 contexts", n)
	}
	c.Limit(time.Hour)
	if end, ok := c.Deadline(); !ok || time.Until(end) > time.Hour || time.Until(end) < 59*time.Minute {
		t.Errorf("deadline %v, %v", end, ok)
	}
	for _, cause := range []error{nil, errCut} {
		c := &Context{Values: parent}
		c.Cancel(cause)
		if v := c.Value(key{}); v != "value" {
			t.Errorf("cancelled because of %v: value %v", cause, v)
		}
		if got := context.Cause(c); cause != nil && got != cause || cause == nil && got != context.Canceled {
			t.Errorf("cause %v, want %v", got, cause)
		}
	}
	c.Cancel(nil)
}

// What happens at a time ends a Context once.
func TestAtATime(t *testing.T) {
	for range 200 {
		c := new(Context)
		var ran, wg sync.WaitGroup
		ran.Add(1)
		c.AfterFunc(ran.Done) // panics if it runs twice
		for _, f := range []func(){
			func() { c.Cancel(errCut) }, func() { c.Cancel(nil) }, func() { c.Limit(time.Microsecond) },
			func() { <-c.Done() }, func() { c.Watch(func() {}) }, c.Unwatch, func() { c.AfterFunc(func() {})() },
			func() { _ = context.Cause(c) },
		} {
			wg.Go(f)
		}
		wg.Wait()
		ran.Wait()
	}
}

// A Context ends with its parent, for the same reason, and not the other way round. It has the earliest deadline of both.
func TestUnder(t *testing.T) {
	errLate := errors.New("late")
	for name, tc := range map[string]struct {
		do            func(parent, c *Context)
		at            time.Duration // of the end of c
		parent, cause error         // why they ended then
		err           error
	}{
		"parent is cancelled": {func(parent, _ *Context) { parent.Cancel(nil) }, 0, context.Canceled,
			context.Canceled, context.Canceled},
		"parent is cut off": {func(parent, _ *Context) { parent.Cancel(errCut) }, 0, errCut, errCut, context.Canceled},
		"cancelled":         {func(_, c *Context) { c.Cancel(errCut) }, 0, nil, errCut, context.Canceled},
		"deadline of parent": {func(_, c *Context) { c.Limit(time.Hour) }, time.Minute, context.DeadlineExceeded,
			context.DeadlineExceeded, context.DeadlineExceeded},
		"own deadline": {func(_, c *Context) { c.Limit(time.Second) }, time.Second, nil,
			context.DeadlineExceeded, context.DeadlineExceeded},
		"own deadline of a cause": {func(_, c *Context) { c.LimitAt(time.Now().Add(time.Second), errLate) }, time.Second,
			nil, errLate, context.DeadlineExceeded},
		"two own deadlines": {func(_, c *Context) {
			c.LimitAt(time.Now().Add(2*time.Second), errLate)
			c.Limit(time.Second)
		}, time.Second, nil, context.DeadlineExceeded, context.DeadlineExceeded},
		"two own deadlines, the later of a cause": {func(_, c *Context) {
			c.Limit(time.Second)
			c.LimitAt(time.Now().Add(2*time.Second), errLate)
		}, time.Second, nil, context.DeadlineExceeded, context.DeadlineExceeded},
	} {
		for _, before := range []bool{false, true} { // Under
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					parent, c, began := new(Context), new(Context), time.Now()
					parent.Limit(time.Minute)
					if before && tc.parent != nil && tc.at == 0 {
						tc.do(parent, c)
						c.Under(parent)
					} else {
						c.Under(parent)
						tc.do(parent, c)
					}
					<-c.Done()
					synctest.Wait()
					if end, ok := c.Deadline(); !ok || end.Sub(began) > time.Minute {
						t.Errorf("deadline %v, %v", end, ok)
					}
					if got := time.Since(began); got != tc.at || c.Err() != tc.err || context.Cause(c) != tc.cause ||
						context.Cause(parent) != tc.parent {
						t.Errorf("after %v %v because of %v, parent because of %v", got, c.Err(), context.Cause(c), context.Cause(parent))
					}
					parent.Cancel(nil)
					c.Cancel(nil)
					if context.Cause(c) != tc.cause {
						t.Errorf("later because of %v", context.Cause(c))
					}
				})
			})
		}
	}
}
