package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// The storm: stormRate calls a second are given up after stormAfter each, for stormSpan.
const (
	stormRate  = 1000
	stormSpan  = 10 * time.Second
	stormAfter = 10 * time.Millisecond
	stormShare = 0.05 // of their sessions may be replaced
)

// cancelStorm: calls that are given up do not cost the nodes a session each, and disturb no others.
func cancelStorm(r *script) func() {
	r.normal()
	rate, span := stormRate, stormSpan
	if r.o.Quick {
		rate, span = 200, 3*time.Second
	}
	// So that calls are under way when they are given up.
	r.everywhere("delay", map[string]any{"delay": (3 * stormAfter).String(), "methods": []string{"ExecuteQuery"}})
	begun := r.pool()
	r.log("%d calls a second are given up for %v", rate, span)
	r.line.event("calls are given up")
	given := ask(r, func(ctx context.Context) (int64, error) { return r.giveUp(ctx, rate, span), nil })
	r.sleep(time.Second) // what recovers has recovered
	ended := r.pool()
	r.everywhere("clear", nil)
	return func() {
		kept, replaced := ended.Recovered-begun.Recovered, ended.Closed-begun.Closed
		r.figure("calls given up", given)
		r.figure("sessions kept", kept)
		r.figure("sessions replaced", replaced)
		r.goal("calls are given up while they are under way", kept+replaced > int64(rate)*int64(span/time.Second)/4,
			"%d, of sessions %d were kept and %d replaced", given, kept, replaced)
		r.goal(fmt.Sprintf("less than %.0f %% of their sessions are replaced", 100*stormShare),
			float64(replaced) < stormShare*float64(kept+replaced), "%d of %d", replaced, kept+replaced)
		r.noErrors("no other call fails", r.event)
	}
}

// giveUp begins reads at a constant rate, gives each up soon, and returns how many had no answer by then.
func (r *run) giveUp(ctx context.Context, rate int, span time.Duration) int64 {
	var given, begun atomic.Int64
	apis := *r.load.apis.Load()
	lab.Send(ctx, lab.Rate(rate), span, func(_ context.Context, _ time.Time) {
		f, id := apis[begun.Add(1)%int64(len(apis))], rand.Uint64N(kvRows)
		cut, cancel := context.WithCancel(ctx) // without a deadline: the sidecar learns only that its caller has gone
		defer cancel()
		defer time.AfterFunc(stormAfter, cancel).Stop()
		if _, err := f.execute(
			cut,
			contract.Statement{SQL: readSQL, Params: map[string]any{"id": id}, Idempotent: true, Timeout: callTimeout.String()},
		); err != nil {
			given.Add(1)
		}
	})
	return given.Load()
}
