package chaos

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// fault is one thing that may happen to a node in the random mix.
type fault struct {
	what string
	body map[string]any
	undo string // "" if it ends by itself
}

// faults are what the mix chooses from.
var faults = []fault{
	{what: "kill", undo: "start"},
	{what: "stop", undo: "start"},
	{what: "pause", undo: "resume"},
	{what: "blackhole", undo: "clear"},
	{what: "refuse", undo: "clear"}, // connections are reset and not accepted
	{what: "cut the link to", undo: "mend the link to"},
	{what: "freeze the link to", undo: "mend the link to"},
	{what: "delay", body: map[string]any{"delay": "100ms"}, undo: "clear"},
	{what: "delay", body: map[string]any{"delay": "300ms", "share": 0.2}, undo: "clear"},
	{what: "throttle", body: map[string]any{"bytes_per_second": 200000}, undo: "clear"},
	{what: "errors", body: map[string]any{"status": "OVERLOADED"}, undo: "clear"},
	{what: "errors", body: map[string]any{"status": "UNAVAILABLE", "share": 0.2}, undo: "clear"},
	{what: "errors", body: map[string]any{"status": "UNDETERMINED", "share": 0.1, "after": true, "methods": []string{"ExecuteQuery", "CommitTransaction"}}, undo: "clear"},
	{what: "errors", body: map[string]any{"status": "BAD_SESSION", "share": 0.1, "methods": []string{"ExecuteQuery"}}, undo: "clear"},
	{what: "cut", body: map[string]any{"share": 0.05}, undo: "clear"},
	{what: "limit", body: map[string]any{"sessions": 3}, undo: "clear"},
	{what: "drain", body: map[string]any{"mode": "streams", "soft": "1s", "hard": "3s"}, undo: "start"},
	{what: "drain", body: map[string]any{"mode": "silent", "soft": "1s", "hard": "3s"}, undo: "start"},
	{what: "drain", body: map[string]any{"mode": "hints", "soft": "1s", "hard": "3s"}, undo: "start"},
}

// mix breaks one or two nodes at a time, in an order that the seed decides, until the
// time is over; some node is always left alone.
func mix(ctx context.Context, r *run) (func(), error) {
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	begun := r.rec.now()
	added := false
	for r.rec.now() < begun+r.o.Duration {
		nodes, err := r.up(ctx)
		if err != nil {
			return nil, err
		}
		if !added && len(nodes) == 3 && r.random.IntN(8) == 0 {
			added = true
			r.line.event("add node 4")
			if _, err := r.stack.control.Add(ctx, ""); err != nil {
				return nil, err
			}
		}
		var ids []uint32
		for _, n := range nodes {
			ids = append(ids, n.ID)
		}
		slices.Sort(ids)
		broken := 1
		if r.random.IntN(4) == 0 {
			broken = 2
		}
		var undo []func() error
		for _, i := range r.random.Perm(len(ids))[:min(broken, len(ids)-1)] {
			f := faults[r.random.IntN(len(faults))]
			if _, _, err := r.act(ctx, ids[i], f.what, f.body); err != nil {
				return nil, err
			}
			undo = append(undo, func() error {
				_, _, err := r.act(ctx, ids[i], f.undo, nil)
				return err
			})
		}
		if err := sleep(ctx, time.Duration(300+r.random.IntN(4000))*time.Millisecond); err != nil {
			return nil, err
		}
		for _, f := range undo {
			if err := f(); err != nil {
				return nil, err
			}
		}
		if err := sleep(ctx, time.Duration(100+r.random.IntN(2000))*time.Millisecond); err != nil {
			return nil, err
		}
	}
	healed := r.rec.now()
	r.line.event("all healed")
	if err := r.stack.heal(ctx); err != nil {
		return nil, err
	}
	// It is over when nothing has failed for two seconds.
	calm, ok, err := r.until(ctx, healed, 30*time.Second, func() (bool, error) {
		now := r.rec.now()
		return now > healed+2*time.Second && len(r.failures(now-2*time.Second)) == 0, nil
	})
	if err != nil {
		return nil, err
	}
	return func() {
		n, idempotent := 0, 0
		for _, s := range r.failures(begun) {
			if n++; s.idempotent {
				idempotent++
			}
		}
		r.figure("operations", len(r.rec.all))
		r.figure("failed", n)
		r.figure("failed idempotent", idempotent)
		r.goal("nothing fails any more when all is healed", ok, "after %v", fmt.Sprint(calm))
	}, nil
}
