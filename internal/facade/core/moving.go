package core

import (
	"context"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/callctx"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Moving gives a stream its context. Without a deadline and a timeout of its caller, api.timeout
// bounds the time to the first part and then each pause between parts, and api.max_timeout the whole:
// moved begins the next pause. Otherwise it is Deadline, and moved does nothing.
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
	pause := time.AfterFunc(a.Timeout, func() {
		defer panics.Go("the longest pause of a stream")
		own.LimitAt(time.Now(), nil)
	})
	return own, func() { pause.Reset(a.Timeout) }, func() {
		stop()
		pause.Stop()
		own.Cancel(nil)
	}, nil
}
