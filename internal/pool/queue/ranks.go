package queue

import (
	"slices"
)

// ranks are the queues of one class.
type ranks[T any] struct {
	n       int
	weights int           // of the apps in order
	now     uint64        // virtual time: the start of the call that was served last
	came    uint32        // apps that joined order so far
	queues  []appQueue[T] // by app; grows to the highest that ever waited
	order   []uint8       // the apps that wait, a heap: the next one is first
}

// of returns the queue of an app.
func (r *ranks[T]) of(app uint8) *appQueue[T] {
	if int(app) >= len(r.queues) {
		r.queues = append(r.queues, make([]appQueue[T], int(app)+1-len(r.queues))...)
		r.order = slices.Grow(r.order, len(r.queues)-len(r.order))
	}
	return &r.queues[app]
}

// longest is the queue with most waiters for its weight. A caller must wait.
func (r *ranks[T]) longest() *appQueue[T] {
	most := &r.queues[r.order[0]]
	for _, app := range r.order[1:] {
		if q := &r.queues[app]; q.n*int(most.weight) > most.n*int(q.weight) {
			most = q
		}
	}
	return most
}

// charge lets the first of a queue begin, and finds the next in order.
func (r *ranks[T]) charge(q *appQueue[T], w *Waiter[T]) {
	cost := uint64(costUnknown)
	if w.needs > 0 {
		cost = uint64(min(max(w.needs, costLeast), costMost))
	}
	r.now = q.start
	if r.now >= clockMax {
		r.rewind()
	}
	q.finish = q.start + cost<<16/uint64(q.weight)
	q.start = q.finish
	if len(r.order) > 1 {
		r.down(q.at)
	}
}

// rewind sets virtual time back to 0, so that it never wraps around: only differences
// count. What lies in the past is forgotten, as in push.
func (r *ranks[T]) rewind() {
	for i := range r.queues {
		q := &r.queues[i]
		q.start -= min(q.start, r.now)
		q.finish -= min(q.finish, r.now)
	}
	r.now = 0
}

// join puts an app into order.
func (r *ranks[T]) join(app uint8) {
	q := &r.queues[app]
	r.came++
	q.came, q.at = r.came, len(r.order)
	r.weights += int(q.weight)
	r.order = append(r.order, app)
	r.up(q.at)
}

// leave takes an app out of order.
func (r *ranks[T]) leave(app uint8) {
	q := &r.queues[app]
	r.weights -= int(q.weight)
	at, last := q.at, len(r.order)-1
	if at != last {
		r.swap(at, last)
	}
	r.order = r.order[:last]
	if at != last {
		r.up(at)
		r.down(at)
	}
}

// before reports whether the app at index i of order goes before the one at j.
func (r *ranks[T]) before(i, j int) bool {
	a, b := &r.queues[r.order[i]], &r.queues[r.order[j]]
	return a.start < b.start || a.start == b.start && int32(a.came-b.came) < 0
}

func (r *ranks[T]) swap(i, j int) {
	r.order[i], r.order[j] = r.order[j], r.order[i]
	r.queues[r.order[i]].at, r.queues[r.order[j]].at = i, j
}

func (r *ranks[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !r.before(i, parent) {
			return
		}
		r.swap(i, parent)
		i = parent
	}
}

func (r *ranks[T]) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(r.order); child++ {
			if r.before(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		r.swap(i, least)
		i = least
	}
}
