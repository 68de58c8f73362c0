package chaos

import (
	"fmt"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
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
	{what: "errors",
		body: map[string]any{"status": "UNDETERMINED", "share": 0.1, "after": true,
			"methods": []string{"ExecuteQuery", "CommitTransaction"}},
		undo: "clear"},
	{what: "errors", body: map[string]any{"status": "BAD_SESSION", "share": 0.1, "methods": []string{"ExecuteQuery"}}, undo: "clear"},
	{what: "cut", body: map[string]any{"share": 0.05}, undo: "clear"},
	{what: "limit", body: map[string]any{"sessions": 3}, undo: "clear"},
	{what: "drain", body: map[string]any{"mode": "streams", "soft": "1s", "hard": "3s"}, undo: "start"},
	{what: "drain", body: map[string]any{"mode": "silent", "soft": "1s", "hard": "3s"}, undo: "start"},
	{what: "drain", body: map[string]any{"mode": "hints", "soft": "1s", "hard": "3s"}, undo: "start"},
}

// mix breaks one or two nodes at a time, in an order that the seed decides, until the
// time is over; some node is always left alone.
func mix(r *script) func() {
	r.normal()
	begun := r.rec.now()
	added := false
	for r.err == nil && r.rec.now() < begun+r.o.Duration {
		nodes := r.up()
		if !added && len(nodes) == 3 && r.random.IntN(8) == 0 {
			added = true
			r.add()
		}
		r.breakSome(nodes)
		r.sleep(time.Duration(100+r.random.IntN(2000)) * time.Millisecond)
	}
	healed := r.rec.now()
	r.line.event("all healed")
	r.try(r.stack.heal)
	// It is over when nothing has failed for two seconds.
	calm, ok := r.until(healed, 30*time.Second, func() bool {
		now := r.rec.now()
		return now > healed+2*time.Second && len(r.failures(now-2*time.Second)) == 0
	})
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
	}
}

// breakSome breaks one or two nodes for a while.
func (r *script) breakSome(nodes []stand.Node) {
	if r.err != nil {
		return
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
	var undo []func()
	for _, i := range r.random.Perm(len(ids))[:min(broken, len(ids)-1)] {
		f := faults[r.random.IntN(len(faults))]
		r.act(ids[i], f.what, f.body)
		undo = append(undo, func() { r.act(ids[i], f.undo, nil) })
	}
	r.sleep(time.Duration(300+r.random.IntN(4000)) * time.Millisecond)
	for _, f := range undo {
		f()
	}
}
