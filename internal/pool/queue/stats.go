package queue

import "time"

// Stats is the part of one app in one class of the queue.
type Stats struct {
	Class   Class
	App     uint8
	Waiting int
	Oldest  time.Duration // since its first one joined the queue
}

// Queues lists the queues that have waiters, by class and app.
func (l *Queue[T]) Queues(now time.Duration) (all []Stats) {
	for _, c := range order {
		r := &l.class[c]
		for _, app := range r.order {
			q := &r.queues[app]
			all = append(all, Stats{Class: c, App: app, Waiting: q.n, Oldest: now - q.oldest().since})
		}
	}
	return all
}

// Waiting returns how many wait in each class.
func (l *Queue[T]) Waiting() (all [ClassSize]int) {
	for c := range l.class {
		all[c] = l.class[c].n
	}
	return all
}

// Oldest is how long the caller that joined first has waited; 0: none waits.
func (l *Queue[T]) Oldest(now time.Duration) (longest time.Duration) {
	for c := range l.class {
		r := &l.class[c]
		for _, app := range r.order {
			longest = max(longest, now-r.queues[app].oldest().since)
		}
	}
	return longest
}
