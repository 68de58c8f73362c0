package core

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
)

// ErrCut is the cause of the end of a call that a drain could not wait for.
var ErrCut = errors.New("facade: cut off by the stop of the sidecar")

// gate counts the calls that are open, bounds those that have come, and lets a drain wait for
// all or cut them off. What bounds calls that are coming is their memory: a limit of their number would be
// filled by whoever sends none whole.
type gate struct {
	limit int // of calls that have come

	mu       sync.Mutex   // guards all below
	ring     admittedCall // head of the ring of open calls, in the order in which they came
	open     int          // calls in it
	coming   int          // of those
	draining bool
	cut      bool
	empty    chan struct{} // while draining: closed, and another one made, whenever the last open call ends
	peak     int
	total    uint64
	refused  uint64
}

// admittedCall is the part of a call that the gate has.
type admittedCall struct {
	of     *Call                   // constant; nil: it was not let in
	trace  trace.TraceID           // constant; zero: none
	number uint64                  // constant: no other call has it
	cancel context.CancelCauseFunc // ends the context; nil: the call has one that began in a turn
	coming bool                    // guarded by gate.mu
	prev   *admittedCall           // in the ring, guarded by gate.mu
	next   *admittedCall
}

func newGate(limit int) *gate {
	g := &gate{limit: limit, empty: make(chan struct{})}
	g.ring.prev, g.ring.next = &g.ring, &g.ring
	return g
}

// cut ends the context of the call for a reason.
func (v *admittedCall) cut(cause error) {
	if v.cancel == nil {
		v.of.Begun.Cancel(cause)
		return
	}
	v.cancel(cause)
}

// over ends the context of a call that is over. That of a call that began in a turn lasts until its answer is out.
func (v *admittedCall) over() {
	if v.cancel != nil {
		v.cancel(nil)
	}
}

// enter lets a call in and returns its context. If the call began in a turn, ctx itself is returned; else a new context
// is made of ctx. leave must be called at its end, and of a call that is coming came when it is here.
func (g *gate) enter(ctx context.Context, c *Call) (context.Context, error) {
	v := &c.open
	v.coming, v.trace = c.Coming, c.traceOf()
	if c.Begun == nil {
		ctx, v.cancel = context.WithCancelCause(ctx)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.roomLocked()
	if g.cut {
		err = Faultf(CodeDraining, "this sidecar is stopping")
	}
	if err != nil {
		g.refused++
		v.over()
		return nil, err
	}
	g.total++
	v.of, v.number = c, g.total
	v.prev, v.next = g.ring.prev, &g.ring
	v.prev.next, v.next.prev = v, v
	g.open++
	if v.coming {
		g.coming++
	}
	g.peak = max(g.peak, g.open)
	return ctx, nil
}

// each calls f with the open calls, those that came first first, until it returns false. f must not block.
func (g *gate) each(f func(*admittedCall) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for v := g.ring.next; v != &g.ring && f(v); v = v.next {
	}
}

// roomLocked says why one more call cannot be under way, if so.
func (g *gate) roomLocked() error {
	if g.open-g.coming >= g.limit {
		return Faultf(CodeBusy, "%d calls are open; no more are allowed (api.max_open)", g.limit)
	}
	return nil
}

// came says that all of a call is here, or why it cannot go on.
func (g *gate) came(v *admittedCall) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !v.coming {
		return nil
	}
	if err := g.roomLocked(); err != nil {
		g.refused++
		return err
	}
	g.coming--
	v.coming = false
	return nil
}

func (g *gate) leave(v *admittedCall) {
	v.over()
	g.mu.Lock()
	defer g.mu.Unlock()
	v.prev.next, v.next.prev = v.next, v.prev
	g.open--
	if v.coming {
		g.coming--
	}
	if g.open == 0 && g.draining {
		close(g.empty)
		g.empty = make(chan struct{})
	}
}

// fresh says whether work that belongs to nothing open may begin.
func (g *gate) fresh() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining {
		g.refused++
		return Faultf(CodeDraining, "this sidecar is stopping")
	}
	return nil
}

// drain makes fresh refuse.
func (g *gate) drain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.draining = true
}

// wait returns when no call is open, or ctx ends. drain must have been called; calls of what is
// open still come then.
func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	open, empty := g.open, g.empty
	g.mu.Unlock()
	if open == 0 {
		return nil
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cutAll cancels every open call and refuses new ones of any kind; it returns
// how many it cut.
func (g *gate) cutAll() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.draining, g.cut = true, true
	for v := g.ring.next; v != &g.ring; v = v.next {
		v.cut(ErrCut)
	}
	return g.open
}

// Deadline gives a call its deadline: the shortest of what its context has,
// what it asked for in its message or its headers ("" is nothing), and the
// setting's maximum; without any, the default. A call that began in a turn has work, which is limited; others (nil) get a new context.
func (a API) Deadline(ctx context.Context, work *callctx.Context, asked ...string) (context.Context, context.CancelFunc, error) {
	timeout := a.MaxTimeout
	_, bounded := ctx.Deadline()
	for _, text := range asked {
		if text == "" {
			continue
		}
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return nil, nil, BadRequest("timeout, or the header Request-Timeout: %.40q is not a duration such as \"800ms\" or \"2s\"", text)
		}
		timeout, bounded = min(timeout, d), true
	}
	if !bounded {
		timeout = a.Timeout
	}
	if work != nil {
		work.Limit(timeout)
		return work, func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, cancel, nil
}
