package core

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Moving gives a stream its context. Without a deadline and a timeout of its caller, api.timeout
// bounds each pause in which nothing moves, and api.max_timeout the whole. moved ends a pause and begins
// the next one. Any goroutine may call it, for each piece that arrives or that the caller takes, also
// after cancel. With a deadline or a timeout Moving is Deadline, and moved does nothing.
func (a API) Moving(ctx context.Context, work *callctx.Context, asked ...string) (
	_ context.Context, moved func(), cancel context.CancelFunc, err error) {
	_, bounded := ctx.Deadline()
	for _, text := range asked {
		bounded = bounded || text != ""
	}
	if bounded || work != nil {
		ctx, cancel, err = a.Deadline(ctx, work, asked...)
		return ctx, func() {}, cancel, err
	}
	own := &callctx.Context{Values: ctx}
	parent := ctx
	stop := context.AfterFunc(parent, func() {
		defer panics.Go("the end of a stream's caller")
		own.Cancel(context.Cause(parent))
	})
	own.Limit(a.MaxTimeout)
	p := &silence{of: own, most: a.Timeout, began: time.Now()}
	p.timer = time.AfterFunc(math.MaxInt64, p.look) // starts below: look uses the timer
	p.timer.Reset(a.Timeout)
	return own, p.end, func() {
		stop()
		own.Cancel(nil)
		p.timer.Stop()
	}, nil
}

// silence ends a context when nothing has moved for too long.
type silence struct {
	of    *callctx.Context
	most  time.Duration
	began time.Time
	moved atomic.Int64 // when something moved last, in nanoseconds since began
	timer *time.Timer
}

// end ends one pause and begins the next. It only notes the time: pieces are many, and shards call it.
func (p *silence) end() { p.moved.Store(int64(time.Since(p.began))) }

// look ends the context if nothing has moved for too long, and comes again when that could be so if something has.
func (p *silence) look() {
	defer panics.Go("the longest pause of a stream")
	if p.of.Err() != nil {
		return
	}
	if rest := p.most - (time.Since(p.began) - time.Duration(p.moved.Load())); rest > 0 {
		p.timer.Reset(rest)
		return
	}
	p.of.LimitAt(time.Now(), nil)
}
