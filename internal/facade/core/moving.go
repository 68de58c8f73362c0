package core

import (
	"context"
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
	p.look(a.Timeout)
	return own, p.end, func() {
		stop()
		own.Cancel(nil)
		p.timer.Load().Stop()
	}, nil
}

// silence ends a context when nothing has moved for too long.
type silence struct {
	of    *callctx.Context
	most  time.Duration
	began time.Time
	moved atomic.Int64 // when something moved last, in nanoseconds since began
	timer atomic.Pointer[time.Timer]
}

// end ends one pause and begins the next. It only notes the time: pieces are many, and shards call it.
func (p *silence) end() { p.moved.Store(int64(time.Since(p.began))) }

// look ends the context after d, unless something moves before.
func (p *silence) look(d time.Duration) {
	p.timer.Store(time.AfterFunc(d, func() {
		defer panics.Go("the longest pause of a stream")
		if p.of.Err() != nil {
			return
		}
		rest := p.most - (time.Since(p.began) - time.Duration(p.moved.Load()))
		if rest > 0 {
			p.look(rest)
			return
		}
		p.of.LimitAt(time.Now(), nil)
	}))
}
