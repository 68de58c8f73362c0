package budget

import (
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Look has pools yield sessions for hungry ones. It reports whether to look again.
func (b *Budget) Look(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	again := len(b.queue) > 0
	for _, v := range b.beyondLocked(now) {
		again = true
		b.mu.Unlock()
		err := panics.Call("the closing of a session beyond a limit", func() error { v.pool.Yield(v, true); return nil })
		b.mu.Lock()
		if err != nil {
			v.failed = now
		}
	}
	if again {
		b.restLocked()
	}
	most := b.seen + lookMost
	for _, h := range slices.Clone(b.queue) {
		if h.looked > b.round || !h.queued || !h.needy() || now.Before(h.ripe) {
			continue
		}
		if b.seen >= most {
			return again // the others are the first next time
		}
		h.looked = b.round + 1
		stuck := 0
		if now.Sub(h.asked) >= GoesIn {
			stuck = h.coming // what was to go is in use for long
		}
		for n := max(h.lacking(), min(stuck, 1)); n > 0 && h.queued && h.needy(); n = min(n-1, h.lacking()) {
			v, inUse := b.giverLocked(h, now, max(0, h.coming-stuck))
			if v == nil {
				break
			}
			v.idle, v.parked = v.idle-1, v.parked-1
			h.asked = now
			b.mu.Unlock()
			err := panics.Call("the taking of a session for another pool", func() error { v.pool.Yield(h, inUse); return nil })
			b.mu.Lock()
			if err != nil {
				v.failed = now
			}
			if b.seen >= most {
				break
			}
		}
	}
	b.round++
	return again
}

// restLocked notes what is idle in each pool, and its weight. It lets go of the lock
// meanwhile: a pool may have many nodes.
func (b *Budget) restLocked() {
	pools := slices.Clone(b.members)
	b.mu.Unlock()
	type rest struct{ idle, parked, weight int }
	all := make([]rest, len(pools))
	for i, m := range pools {
		idle, parked := m.pool.Rests()
		all[i] = rest{idle, parked, m.weighed()}
	}
	b.mu.Lock()
	for i, m := range pools {
		m.idle, m.parked, m.weight = all[i].idle, all[i].parked, all[i].weight
	}
}

// beyondLocked returns, for each group that has more sessions than it may, the pool that has most.
func (b *Budget) beyondLocked(now time.Time) (all []*Member) {
	leaving, most := map[*group]int{}, map[*group]*Member{}
	for _, m := range b.members {
		if m.group == nil {
			continue
		}
		leaving[m.group] += m.leaving
		if top := most[m.group]; now.Sub(m.failed) >= failedFor && (top == nil || top.fewer(top.keeps(), m, m.keeps())) {
			most[m.group] = m
		}
	}
	for g, m := range most {
		if g.used-leaving[g] > g.max {
			all = append(all, m)
		}
	}
	return all
}

// giverLocked returns the pool to yield a session for h, and whether it may be a session in use; nil: no pool. The one
// with the most idle sessions goes first, then the one with the most sessions. If the group of h is full it is one of that group.
//
// These idle sessions go at once: one of a pool that has at least two more, for its weight; any one for a pool that has none;
// a parked one; and one of a pool that uses less than half of what it has and got none for KeepFor. So pools that work by turns
// do not open theirs for each turn. For other idle sessions the need must last: what is idle for a moment, and queues that are
// short for a moment, move nothing.
//
// A session in use goes only where there are at least two more, so that with even demand nothing moves. If there are
// more pools than permits they take turns.
//
// coming is how many sessions are on their way to h. If there are any, only what goes at once does.
func (b *Budget) giverLocked(h *Member, now time.Time, coming int) (from *Member, inUse bool) {
	var fromRests bool
	will := h.keeps() + coming
	none := will == 0
	b.seen += len(b.members)
	lasts := none || coming == 0 && now.Sub(h.since) >= HungerFor
	for _, v := range b.members {
		if v == h || now.Sub(v.failed) < failedFor || !h.roomy() && v.group != h.group {
			continue
		}
		above := none && v.keeps() > 1 || !v.fewer(v.keeps()-1, h, will+1) // with one less it still has as many
		turn := none && v.keeps() == 1 && v.leaving == 0 && now.Sub(v.took) >= KeepFor
		spare := 2*v.idle > v.keeps() && now.Sub(v.took) >= KeepFor
		rests := v.idle > 0 && !v.lacks() && (above || lasts || v.parked > 0 || spare)
		above = above && lasts
		if !above && !turn && !rests {
			continue
		}
		better := from == nil
		switch {
		case better:
		case rests != fromRests:
			better = rests
		case rests && v.idle != from.idle:
			better = v.idle > from.idle
		case from.fewer(from.keeps(), v, v.keeps()), v.fewer(v.keeps(), from, from.keeps()):
			better = from.fewer(from.keeps(), v, v.keeps())
		default:
			better = v.took.Before(from.took)
		}
		if better {
			from, fromRests, inUse = v, rests, above || turn
		}
	}
	return from, inUse
}
