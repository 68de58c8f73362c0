package hop

import (
	"errors"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// Errand is work for an app that needs a session of the pool.
type Errand struct {
	App   *apps.Stripe // nil: nobody's, and nothing is counted
	Class pool.Class   // its priority
	Work  uint64       // one number for one kind of work, whose times are remembered; see apps.Stripe.Needs
}

// Ask returns what to ask the pool for. left is the time until the caller's deadline: negative if it has passed, 0 if
// unknown. With 0, Needs stays unset until Complete.
func (e Errand) Ask(left time.Duration) pool.Ask {
	if left < 0 {
		left = 1
	}
	by := pool.Ask{Class: e.Class, Left: left}
	if e.App == nil {
		return by
	}
	by.App, by.Weight = e.App.Index(), e.App.Weight()
	if left > 0 {
		by.Needs = e.Needs()
	}
	return by
}

// Complete sets Needs in what Ask returned, unless Ask has set it. Needs is looked up once for each call: for work whose
// time was not confirmed for a while, only the first look-up answers "unknown", so that one call tries it.
func (e Errand) Complete(by *pool.Ask) {
	if by.Left == 0 {
		by.Needs = e.Needs()
	}
}

// Needs is how long such work has a session; 0: unknown.
func (e Errand) Needs() time.Duration {
	if e.App == nil {
		return 0
	}
	return e.App.Needs(uint8(e.Class), e.Work)
}

// Answered counts what the pool said after the app was allowed to ask it.
func (e Errand) Answered(waited time.Duration, err error) {
	switch {
	case e.App == nil:
	case err == nil:
		e.App.Got(uint8(e.Class), waited)
	default:
		e.App.Lost(uint8(e.Class), Refused(err))
	}
}

// Took remembers how long the work had a session.
func (e Errand) Took(d time.Duration) {
	if e.App != nil {
		e.App.Took(uint8(e.Class), e.Work, d)
	}
}

// Done counts that the work has a session no longer.
func (e Errand) Done() {
	if e.App != nil {
		e.App.Done(uint8(e.Class))
	}
}

// Refused is why the pool gave no session, in the words of apps.
func Refused(err error) apps.Reason {
	if e, ok := errors.AsType[*pool.ShedError](err); ok {
		return [...]apps.Reason{pool.ShedDeadline: apps.ByDeadline, pool.ShedAge: apps.ByAge, pool.ShedDelay: apps.ByDelay}[e.Why]
	}
	if _, ok := errors.AsType[*pool.WaitError](err); ok {
		return apps.ByTimeout
	}
	if errors.Is(err, pool.ErrQueueFull) {
		return apps.ByQueue
	}
	return apps.ByOthers
}
