// Package callctx is the context of a call that begins in the turn of its shard: one object that ends when the call does, when it is cut off,
// and at its deadline, where package context takes one for each of these, and a lock and a map for each that depends on another.
//
// It owns the timer of the deadline. What always holds: a Context ends once, for the reason that came first, and tells that by Err and
// context.Cause as one of package context does; contexts of package context may be made of it.
package callctx

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Context implements context.Context. The zero value has no deadline. It must not be copied, and lasts until Cancel, which is to be called.
type Context struct {
	Values context.Context // that Value asks; nil: none. It is not to be changed once others have the Context

	cause atomic.Pointer[context.Context] // one of package context that has the cause of the end; nil: that is Err

	mu       sync.Mutex // guards all below
	deadline time.Time  // zero: none
	timer    *time.Timer
	err      error
	done     chan struct{} // nil: it was not asked for
	watcher  func()        // nil: none
	after    []*func()
}

// Limit has the context end after d, if it does not end before.
func (c *Context) Limit(d time.Duration) {
	end := time.Now().Add(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || !c.deadline.IsZero() && c.deadline.Before(end) {
		return
	}
	c.deadline = end
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.late)
	} else {
		c.timer.Reset(d)
	}
}

// late ends the context at its deadline.
func (c *Context) late() {
	defer panics.Go("the deadline of a call")
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.deadline) { // it fired before Limit set it anew
		return
	}
	c.endLocked(context.DeadlineExceeded)
}

// Cancel ends the context, if it has not ended. context.Cause returns the cause, or context.Canceled without any.
func (c *Context) Cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	if cause != nil {
		of, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		c.cause.Store(&of)
	}
	c.endLocked(context.Canceled)
}

func (c *Context) endLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.done != nil {
		close(c.done)
	}
	if c.watcher != nil {
		start(c.watcher)
		c.watcher = nil
	}
	for _, f := range c.after {
		start(*f)
	}
	c.after = nil
}

// start runs f on a goroutine.
func start(f func()) {
	go func() {
		defer panics.Go("the end of a call's context")
		f()
	}()
}

// Deadline implements context.Context.
func (c *Context) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline, !c.deadline.IsZero()
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Value implements context.Context.
func (c *Context) Value(key any) any {
	if of := c.cause.Load(); of != nil {
		if v := (*of).Value(key); v != nil { // what context.Cause looks for
			return v
		}
	}
	if c.Values == nil {
		return nil
	}
	return c.Values.Value(key)
}

// Watch has f run on a goroutine of its own when the context ends, until Unwatch. There may be one such function.
func (c *Context) Watch(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		start(f)
		return
	}
	c.watcher = f
}

// Unwatch has the function of Watch not run any more, if it does not already.
func (c *Context) Unwatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watcher = nil
}

// AfterFunc has f run on a goroutine of its own when the context ends, as context.AfterFunc does, which asks for this method: contexts that
// are made of this one need no goroutine. stop reports whether f is not run any more.
func (c *Context) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		start(f)
		return func() bool { return false }
	}
	c.after = append(c.after, &f)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.after, &f)
		if i < 0 {
			return false
		}
		c.after = slices.Delete(c.after, i, i+1)
		return true
	}
}
