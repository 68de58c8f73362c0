// Package callctx has the context of a call that begins in a shard's turn. One object ends when the
// call ends, when it is cut off, or at its deadline. Package context needs an object for each of
// these, and a lock and a map for each parent.
//
// A Context owns the timer of its deadline. It ends once, for the first reason, which Err and
// context.Cause return. Contexts of package context may be derived from it.
package callctx

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Context implements context.Context. The zero value is ready and has no deadline. It must not be
// copied. Call Cancel in the end: it stops the timer.
type Context struct {
	Values context.Context // answers Value; nil: no values. Its end does not end this Context. Set it before others have the Context

	cause atomic.Pointer[context.Context] // ended with the cause of the end, so that context.Cause finds that; nil: the cause is Err

	mu       sync.Mutex // guards all below
	deadline time.Time  // zero: none
	why      error      // the cause if it ends at that; nil: context.DeadlineExceeded
	timer    *time.Timer
	child    *Context // of Under; nil: none
	err      error
	done     chan struct{} // nil: it was not asked for
	watcher  func()        // nil: none
	after    []*func()
}

// Under has c end when parent ends, for the same reason, and gives it the parent's deadline. A parent
// has one such child. It is to be called before others have c.
func (c *Context) Under(parent *Context) {
	parent.mu.Lock()
	defer parent.mu.Unlock()
	parent.child, c.deadline = c, parent.deadline
	if parent.err != nil {
		c.end(parent.err, parent.cause.Load())
	}
}

// Limit has the context end after d, if it does not end before.
func (c *Context) Limit(d time.Duration) { c.limit(time.Now().Add(d), d, nil) }

// LimitAt is Limit for a time, and names the cause of that end.
func (c *Context) LimitAt(end time.Time, cause error) { c.limit(end, time.Until(end), cause) }

func (c *Context) limit(end time.Time, d time.Duration, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || !c.deadline.IsZero() && c.deadline.Before(end) {
		return
	}
	c.deadline, c.why = end, cause
	switch {
	case d <= 0: // at once, as a context of package context does
		c.lateLocked()
	case c.timer == nil:
		c.timer = time.AfterFunc(d, c.late)
	default:
		c.timer.Reset(d)
	}
}

// late ends the context at its deadline.
func (c *Context) late() {
	defer panics.Go("the deadline of a call")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lateLocked()
}

func (c *Context) lateLocked() {
	c.endLocked(context.DeadlineExceeded, causeOf(cmp.Or(c.why, context.DeadlineExceeded)))
}

// causeOf returns a context of package context that ended with a cause.
func causeOf(cause error) *context.Context {
	of, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return &of
}

// Cancel ends the context, if it has not ended. context.Cause returns the cause, or context.Canceled without any.
func (c *Context) Cancel(cause error) {
	var of *context.Context
	if cause != nil {
		of = causeOf(cause)
	}
	c.end(context.Canceled, of)
}

func (c *Context) end(err error, cause *context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(err, cause)
}

func (c *Context) endLocked(err error, cause *context.Context) {
	if c.err != nil {
		return
	}
	if cause != nil {
		c.cause.Store(cause)
	}
	c.err = err
	if c.child != nil {
		c.child.end(err, cause)
	}
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

// Unwatch removes the function of Watch. It has no effect on one that was started.
func (c *Context) Unwatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watcher = nil
}

// AfterFunc has f run on a goroutine of its own when the context ends, as context.AfterFunc does. Package context asks for this method, so
// contexts that are derived from this one need no goroutine. stop reports whether it kept f from running.
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
