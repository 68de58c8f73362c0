package pool

import "time"

// Waiter is a place in the line for a caller that does not block. It may be used
// again once it was told or cancelled, not before.
type Waiter struct { // one cache line
	told    func(Grant, error) // nil: the caller blocks on done
	done    chan struct{}      // has room for one
	session *Session           // what is handed over; nil: refused
	since   time.Duration      // on the pool's clock

	// Guarded by Pool.mu.
	prev, next *Waiter
	class      Class
	queued     bool
}

// NewWaiter returns a waiter that tells its caller through told, which must not
// be nil. See Pool.Wait.
func NewWaiter(told func(Grant, error)) *Waiter {
	if told == nil {
		panic("pool: a waiter that cannot be told")
	}
	return &Waiter{told: told}
}

// line is the bounded waiting line: a queue for each class. It does no locking.
//
// Whom a session goes to: each class that waits earns its share, in percent, of
// every session given; one that earned a whole session is served first. Else the
// highest class is. So a class with share h is served at least h times in a
// hundred while it waits, and a flood of low ones costs the highest no more than
// their shares.
type line struct {
	n      int
	limit  int
	shares [ClassSize]int
	queue  [ClassSize]queue
	earned [ClassSize]int // in hundredths of a session
}

type queue struct {
	first, last *Waiter
	n           int
}

func newLine(c Config) line { return line{limit: c.Queue, shares: c.Shares.byClass()} }

// push appends w to the queue of its class. If the line is full, it takes the
// place of another, which is returned and has left the line, or push returns w.
//
// A caller may take the place of the youngest of a lower class, and of any class
// while its own has fewer places than its share of the line; but never of a
// class that has no more than its share.
func (l *line) push(w *Waiter) (refused *Waiter) {
	if l.n >= l.limit {
		refused = l.yielding(int(w.class))
		if refused == nil {
			return w
		}
		l.remove(refused)
	}
	q := &l.queue[w.class]
	w.prev, w.next, w.queued = q.last, nil, true
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.n++
	l.n++
	return refused
}

func (l *line) places(class int) int { return l.limit * l.shares[class] / 100 }

func (l *line) yielding(to int) *Waiter {
	short := l.queue[to].n < l.places(to)
	for c := ClassSize - 1; c >= 0; c-- {
		if c != to && (c > to || short) && l.queue[c].n > l.places(c) {
			return l.queue[c].last
		}
	}
	return nil
}

// pop takes out the waiter to be served, nil if the line is empty.
func (l *line) pop() *Waiter {
	if l.n == 0 {
		return nil
	}
	next := -1
	for c := range l.queue {
		if l.queue[c].n == 0 {
			continue
		}
		if l.queue[c].n == l.n { // nobody to compete with
			next = c
			break
		}
		l.earned[c] += l.shares[c]
		if next < 0 || l.earned[c] >= 100 && l.earned[c] > l.earned[next] {
			next = c
		}
	}
	l.earned[next] = max(0, l.earned[next]-100)
	w := l.queue[next].first
	l.remove(w)
	return w
}

// remove takes out a waiter that is in the line.
func (l *line) remove(w *Waiter) {
	q := &l.queue[w.class]
	switch {
	case q.first != w:
		w.prev.next = w.next
		if w.next != nil {
			w.next.prev = w.prev
		} else {
			q.last = w.prev
		}
	case w.next != nil:
		// prev of the first is not looked at, so the next one's cache line, which
		// belongs to another core, is not touched.
		q.first = w.next
	default:
		q.first, q.last = nil, nil
	}
	w.prev, w.next, w.queued = nil, nil, false
	q.n--
	l.n--
}
