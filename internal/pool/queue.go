package pool

import "time"

// QueueStats is the part of one app in one class of the line.
type QueueStats struct {
	Class   Class
	App     uint8
	Waiting int
	Oldest  time.Duration // since its first one joined the line
}

// Queues lists who waits, by class and app; nobody who does not.
func (p *Pool) Queues() (all []QueueStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.line.queues(p.clock())
}

// queues lists the queues that have waiters, by class and app.
func (l *line) queues(now time.Duration) (all []QueueStats) {
	for _, c := range order {
		r := &l.class[c]
		for _, app := range r.order {
			q := &r.queue[app]
			all = append(all, QueueStats{Class: c, App: app, Waiting: q.n, Oldest: now - q.oldest().since})
		}
	}
	return all
}

// waiting returns how many wait in each class.
func (l *line) waiting() (all [ClassSize]int) {
	for c := range l.class {
		all[c] = l.class[c].n
	}
	return all
}

// oldest is how long who joined first has waited; 0: nobody waits.
func (l *line) oldest(now time.Duration) (longest time.Duration) {
	for c := range l.class {
		r := &l.class[c]
		for _, app := range r.order {
			longest = max(longest, now-r.queue[app].oldest().since)
		}
	}
	return longest
}
