package queue

import (
	"maps"
	"sync/atomic"
	"time"
)

// queue is the waiters of one app.
type queue[T any] struct {
	turn   *turn[T]            // whose it is; the others follow in a ring; nil: nobody waits
	turns  int                 // in the ring
	others map[uint64]*turn[T] // all of the ring by connection, once there are two; then kept
	n      int
	round  int    // that are served while each turn comes once, at most
	at     int    // its place in order
	weight uint32 // since it began to wait
	came   uint32 // breaks ties
	start  uint64 // virtual time of its first waiter
	finish uint64 // virtual time of the last one that was served

	busy   time.Duration // since when somebody waits, but for short gaps in an overload
	moved  time.Duration // when the first one last went: served, or turned away
	rhythm rhythm        // since nobody waited
	losses losses
}

// turn is the waiters of one connection in a queue, first come, first served.
type turn[T any] struct {
	from        uint64
	first, last *Waiter[T]
	n           int
	served      int      // since its turn came
	holds       *Holder  // see line.holds; nil: nobody counts
	prev, next  *turn[T] // in the ring of its queue
}

// Holder counts the sessions that callers of a connection got in line, and have.
type Holder struct {
	sessions atomic.Int32
	turns    int // of the connection in queues; guarded by Pool.mu
}

// Gave ends the lease of a session that counts here.
func (h *Holder) Gave() { h.sessions.Add(-1) }

// Sessions returns how many sessions the connection has.
func (h *Holder) Sessions() int32 { return h.sessions.Load() }

// Turns returns in how many queues the connection waits.
func (h *Holder) Turns() int { return h.turns }

// has reports whether the connection holds so many sessions, or more.
func (t *turn[T]) has(part int) bool { return t.holds != nil && int(t.holds.sessions.Load()) >= part }

// first is who is served next. Somebody must wait.
func (q *queue[T]) first() *Waiter[T] { return q.turn.first }

// find returns the turn of a connection; nil: it has none.
func (q *queue[T]) find(from uint64) *turn[T] {
	if q.turn == nil || q.turn.from == from {
		return q.turn
	}
	return q.others[from]
}

// Waiting is how many callers of a connection wait.
func (q *queue[T]) waiting(from uint64) int {
	if t := q.find(from); t != nil {
		return t.n
	}
	return 0
}

// before is how many are served, at most, before the next caller of a connection that comes now, if that does not hold its part
// of the sessions.
func (l *Line[T]) before(q *queue[T], from uint64) int {
	return min(q.n, (q.waiting(from)/l.inTurn+1)*l.round(q))
}

// round is how many are served while each turn comes once, at most. Of many connections it is not looked at which pass their turns on.
func (l *Line[T]) round(q *queue[T]) int {
	if q.turns > passes {
		return q.round
	}
	n, part := 0, l.part(q)
	for t, left := q.turn, q.turns; left > 0; t, left = t.next, left-1 {
		if !t.has(part) {
			n += min(t.n, l.inTurn)
		}
	}
	return n
}

// part is the sessions of the whole pool divided by the connections that wait in a queue, and perTurn at least.
func (l *Line[T]) part(q *queue[T]) int { return max(l.inTurn, l.serves/max(1, q.turns)) }

// pass goes on to the next connection that does not hold its part, among the few whose turns are next. If all of
// these do, the last of them is served.
func (l *Line[T]) pass(q *queue[T]) {
	part := l.part(q)
	for left := min(q.turns, passes); left > 1 && q.turn.has(part); left-- {
		q.turn.served, q.turn = 0, q.turn.next
	}
}

// holder is where sessions count that callers of a connection get; nil: nowhere.
func (l *Line[T]) holder(from uint64) *Holder {
	if from == 0 {
		return nil
	}
	h := l.holds[from]
	if h == nil {
		if len(l.holds) >= l.kept {
			maps.DeleteFunc(l.holds, func(_ uint64, h *Holder) bool { return h.turns == 0 && h.sessions.Load() == 0 })
			l.kept = max(mostHolders, 2*len(l.holds))
		}
		if l.holds == nil {
			l.holds = map[uint64]*Holder{}
		}
		h = new(Holder)
		l.holds[from] = h
	}
	return h
}

// oldest is who joined first. Somebody must wait.
func (q *queue[T]) oldest() *Waiter[T] {
	first := q.turn.first
	for t := q.turn.next; t != q.turn; t = t.next {
		if t.first.since < first.since {
			first = t.first
		}
	}
	return first
}

// longest is the turn with most waiters. Somebody must wait.
func (q *queue[T]) longest() *turn[T] {
	most := q.turn
	for t := q.turn.next; t != q.turn; t = t.next {
		if t.n > most.n {
			most = t
		}
	}
	return most
}

// take returns the turn of a connection, which is the last one in the ring if it is a new one.
func (l *Line[T]) take(q *queue[T], from uint64) *turn[T] {
	if t := q.find(from); t != nil {
		return t
	}
	t := l.spare
	if t == nil {
		t = new(turn[T])
	} else {
		l.spare = t.next
	}
	*t = turn[T]{from: from, holds: l.holder(from)}
	if t.holds != nil {
		t.holds.turns++
	}
	q.turns++
	if q.turn == nil {
		t.prev, t.next, q.turn = t, t, t
		return t
	}
	if q.turns == 2 {
		if q.others == nil {
			q.others = map[uint64]*turn[T]{}
		}
		q.others[q.turn.from] = q.turn
	}
	q.others[from] = t
	t.prev, t.next = q.turn.prev, q.turn
	t.prev.next, t.next.prev = t, t
	return t
}

// drop takes a turn out of the ring in which nobody waits.
func (l *Line[T]) drop(q *queue[T], t *turn[T]) {
	q.turns--
	if t.holds != nil {
		t.holds.turns--
	}
	delete(q.others, t.from)
	if q.turn == t {
		q.turn = t.next
	}
	t.prev.next, t.next.prev = t.next, t.prev
	switch q.turns {
	case 0:
		q.turn = nil
	case 1:
		delete(q.others, q.turn.from)
	}
	t.prev, t.next, l.spare = nil, l.spare, t
}
