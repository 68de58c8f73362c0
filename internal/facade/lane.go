package facade

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// largeRequest is the size in bytes above which the decoding of a request is work that others notice. It is no more than unary.MaxRequest: above that a
// request counts nowhere else.
const largeRequest = 64 << 10

// lane is where large requests are decoded, typed and encoded: a few at a time, so that processors are left to small ones. While there are small
// ones, a place also owes a rest of half of what it worked: what is done for large requests outside the lane, and what the collector
// does after them, would use up what is left otherwise. Time in which the place is not wanted is rest, so that a caller that sends one large request
// after the other seldom waits for it.
type lane struct {
	places chan slot     // those that are free
	wait   time.Duration // for one, at most

	small  atomic.Bool  // one has gone by since that was looked at, however long ago
	lately atomic.Int64 // when one was noticed last, in nanoseconds since the epoch
}

// slot is a place of the lane.
type slot struct {
	owes time.Duration // of rest, when it was given back
	free time.Time     // since when
}

// A place may owe up to mayOwe. It rests for what is above, for leastRest at least, or not at all, and for mostRest at most, and only while small requests
// were noticed within smallAfter.
const (
	mayOwe     = 10 * time.Millisecond
	leastRest  = 200 * time.Microsecond
	mostRest   = 20 * time.Millisecond
	smallAfter = 100 * time.Millisecond
)

func newLane(places int, wait time.Duration) *lane {
	l := &lane{places: make(chan slot, places), wait: wait}
	for range places {
		l.places <- slot{}
	}
	return l
}

// in runs f in the lane, if it is about a large request.
func (l *lane) in(ctx context.Context, large bool, f func() error) error {
	if !large {
		if !l.small.Load() { // else it is only read, by all processors
			l.small.Store(true)
		}
		return f()
	}
	timer := time.NewTimer(l.wait)
	defer timer.Stop()
	var p slot
	select {
	case p = <-l.places:
	case <-timer.C:
		return faultf(codeBusy, "so many large requests are being decoded that this one did not begin within %v: try again, or send less at a time", l.wait)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	begun := time.Now()
	defer func() { l.leave(p, begun) }()
	return f()
}

// leave gives a place back, at once or after a rest.
func (l *lane) leave(p slot, begun time.Time) {
	now := time.Now()
	if l.small.Swap(false) {
		l.lately.Store(now.UnixNano())
	}
	if now.UnixNano()-l.lately.Load() > int64(smallAfter) {
		l.places <- slot{}
		return
	}
	owes := max(0, p.owes-begun.Sub(p.free)) + now.Sub(begun)/2
	rest := min(owes-mayOwe, mostRest)
	if rest < leastRest {
		l.places <- slot{owes, now}
		return
	}
	time.AfterFunc(rest, func() {
		defer panics.Go("the end of a rest")
		l.places <- slot{mayOwe, time.Now()}
	})
}

// rest waits. The error is why ctx ended before.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pace bounds how many bytes a second go by, whoever takes them. It is safe for concurrent use.
type pace struct {
	rate  int // bytes a second
	burst int // bytes that go by at once after a rest

	mu  sync.Mutex // guards what follows
	due time.Time  // when what was taken has gone by
}

// take takes n bytes and returns how long to wait before they are used. False: that would be longer than most, and
// none are taken.
func (p *pace) take(n int, most time.Duration) (wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	due := now.Add(-p.lasts(p.burst))
	if p.due.After(due) {
		due = p.due
	}
	due = due.Add(p.lasts(n))
	if wait = due.Sub(now); wait > most {
		return 0, false
	}
	p.due = due
	return max(0, wait), true
}

// give gives back n bytes that were taken and not used.
func (p *pace) give(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = p.due.Add(-p.lasts(n))
}

func (p *pace) lasts(n int) time.Duration {
	return time.Duration(n) * time.Second / time.Duration(p.rate)
}
