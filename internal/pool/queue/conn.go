package queue

import (
	"maps"
	"sync/atomic"
	"time"
)

// appQueue is the waiters of one app.
type appQueue[T any] struct {
	current *connQueue[T]            // connection whose turn it is; the others follow in a ring; nil: no caller waits
	conns   int                      // in the ring
	others  map[uint64]*connQueue[T] // all of the ring by connection, once there are two; then kept
	n       int
	round   int    // callers that are served while each turn comes once, at most
	at      int    // its index in order
	weight  uint32 // since it began to wait
	came    uint32 // breaks ties
	start   uint64 // virtual time of its first waiter
	finish  uint64 // virtual time of the last one that was served

	busy   time.Duration // since when callers wait, except short gaps in an overload
	moved  time.Duration // when the first one last went: served, or turned away
	rhythm rhythm        // since nobody waited
	losses losses
}

// connQueue is the waiters of one connection in the queue of an app, first come, first served.
type connQueue[T any] struct {
	from        uint64
	first, last *Waiter[T]
	n           int
	served      int           // since its turn came
	conn        *Conn         // see Queue.connections; nil: not counted
	prev, next  *connQueue[T] // in the ring of its queue
}

// Conn counts the sessions that callers of a connection got in the queue, and have.
type Conn struct {
	sessions atomic.Int32
	queues   int // of the connection in queues; guarded by Pool.mu
}

// Gave notes that a session that counts here is checked in.
func (h *Conn) Gave() { h.sessions.Add(-1) }

// Sessions returns how many sessions the connection has.
func (h *Conn) Sessions() int32 { return h.sessions.Load() }

// Queues returns in how many queues the connection waits.
func (h *Conn) Queues() int { return h.queues }

// has reports whether the connection has at least part sessions.
func (t *connQueue[T]) has(part int) bool {
	return t.conn != nil && int(t.conn.sessions.Load()) >= part
}

// first is the waiter that is served next. A caller must wait.
func (q *appQueue[T]) first() *Waiter[T] { return q.current.first }

// find returns the queue of a connection; nil: it has none.
func (q *appQueue[T]) find(from uint64) *connQueue[T] {
	if q.current == nil || q.current.from == from {
		return q.current
	}
	return q.others[from]
}

// Waiting is how many callers of a connection wait.
func (q *appQueue[T]) waiting(from uint64) int {
	if t := q.find(from); t != nil {
		return t.n
	}
	return 0
}

// before is how many are served, at most, before the next caller of a connection that comes now, if that does not hold its part
// of the sessions.
func (l *Queue[T]) before(q *appQueue[T], from uint64) int {
	return min(q.n, (q.waiting(from)/l.inTurn+1)*l.round(q))
}

// round returns how many callers are served, at most, while each connection has its turn once. With more than passes
// connections it does not check which of them pass their turns on.
func (l *Queue[T]) round(q *appQueue[T]) int {
	if q.conns > passes {
		return q.round
	}
	n, part := 0, l.part(q)
	for t, left := q.current, q.conns; left > 0; t, left = t.next, left-1 {
		if !t.has(part) {
			n += min(t.n, l.inTurn)
		}
	}
	return n
}

// part is the sessions of the whole pool divided by the connections that wait in a queue, and perTurn at least.
func (l *Queue[T]) part(q *appQueue[T]) int { return max(l.inTurn, l.serves/max(1, q.conns)) }

// pass gives the turn to the next connection that holds less than its part of the sessions. It looks at the next passes
// connections; if all hold their part, the last of these is served.
func (l *Queue[T]) pass(q *appQueue[T]) {
	part := l.part(q)
	for left := min(q.conns, passes); left > 1 && q.current.has(part); left-- {
		q.current.served, q.current = 0, q.current.next
	}
}

// connOf is where sessions count that callers of a connection get; nil: nowhere.
func (l *Queue[T]) connOf(from uint64) *Conn {
	if from == 0 {
		return nil
	}
	h := l.connections[from]
	if h == nil {
		if len(l.connections) >= l.kept {
			maps.DeleteFunc(l.connections, func(_ uint64, h *Conn) bool { return h.queues == 0 && h.sessions.Load() == 0 })
			l.kept = max(mostConns, 2*len(l.connections))
		}
		if l.connections == nil {
			l.connections = map[uint64]*Conn{}
		}
		h = new(Conn)
		l.connections[from] = h
	}
	return h
}

// oldest returns the waiter that joined first. The queue must not be empty.
func (q *appQueue[T]) oldest() *Waiter[T] {
	first := q.current.first
	for t := q.current.next; t != q.current; t = t.next {
		if t.first.since < first.since {
			first = t.first
		}
	}
	return first
}

// longest is the queue of the connection with most waiters. A caller must wait.
func (q *appQueue[T]) longest() *connQueue[T] {
	most := q.current
	for t := q.current.next; t != q.current; t = t.next {
		if t.n > most.n {
			most = t
		}
	}
	return most
}

// take returns the queue of a connection. A new one is the last in the ring.
func (l *Queue[T]) take(q *appQueue[T], from uint64) *connQueue[T] {
	if t := q.find(from); t != nil {
		return t
	}
	t := l.spare
	if t == nil {
		t = new(connQueue[T])
	} else {
		l.spare = t.next
	}
	*t = connQueue[T]{from: from, conn: l.connOf(from)}
	if t.conn != nil {
		t.conn.queues++
	}
	q.conns++
	if q.current == nil {
		t.prev, t.next, q.current = t, t, t
		return t
	}
	if q.conns == 2 {
		if q.others == nil {
			q.others = map[uint64]*connQueue[T]{}
		}
		q.others[q.current.from] = q.current
	}
	q.others[from] = t
	t.prev, t.next = q.current.prev, q.current
	t.prev.next, t.next.prev = t, t
	return t
}

// drop takes the queue of a connection out of the ring: no caller waits in it.
func (l *Queue[T]) drop(q *appQueue[T], t *connQueue[T]) {
	q.conns--
	if t.conn != nil {
		t.conn.queues--
	}
	delete(q.others, t.from)
	if q.current == t {
		q.current = t.next
	}
	t.prev.next, t.next.prev = t.next, t.prev
	switch q.conns {
	case 0:
		q.current = nil
	case 1:
		delete(q.others, q.current.from)
	}
	t.prev, t.next, l.spare = nil, l.spare, t
}
