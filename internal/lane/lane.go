// Package lane owns the processor time of large requests. What takes long (inflating, decoding,
// typing, encoding) is done at a few places in all of the process, so that processors are left to
// small requests. Kinds of work have doors. The door whose finished work took least time is let in
// first: a request does not wait for everything that is queued at another door, but until that door
// has used as much time as its own.
package lane

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Large is the size in bytes above which a request is large: its decoding is work that others notice.
// It is no more than unary.MaxRequest: above that a request counts nowhere else.
const Large = 64 << 10

// Lane has places for those who work. While there are small requests, a place also owes a rest of half of what was worked at it: what is
// done for large requests outside the lane, and what the collector does after them, would use up what is left otherwise. Time in which
// the place is not wanted is rest, so that a caller that sends one large request after the other seldom waits for it.
// It is safe for concurrent use.
type Lane struct {
	slots int

	small atomic.Bool // one has gone by since that was looked at, however long ago

	mu     sync.Mutex // guards what follows, and the doors
	lately time.Time  // when a small request was noticed last
	free   []freeSlot // empty while there are callers at a door
	doors  []*Door
	now    time.Duration // Door.used of the door that was let in last, when it was
}

// freeSlot is a place that is free.
type freeSlot struct {
	owes time.Duration // of rest, when it was given back
	free time.Time     // since when
}

// A place may owe up to mayOwe. It rests for what is above, for leastRest at least, or not at all, and
// for mostRest at most, and only while small requests were noticed within smallAfter.
const (
	mayOwe     = 10 * time.Millisecond
	leastRest  = 200 * time.Microsecond
	mostRest   = 20 * time.Millisecond
	smallAfter = 100 * time.Millisecond
)

// New returns a lane with that number of places, 1 at least.
func New(places int) *Lane {
	places = max(1, places)
	return &Lane{slots: places, free: make([]freeSlot, places)}
}

// Slots are how many may work at a time.
func (l *Lane) Slots() int { return l.slots }

// Small notices that a small request goes by.
func (l *Lane) Small() {
	if !l.small.Load() { // else it is only read, by all processors
		l.small.Store(true)
	}
}

// Door is the queue of one kind of work: first come, first served, after work that paused.
type Door struct {
	lane    *Lane
	waiting list.List     // of *waiter
	used    time.Duration // at places, as far as it matters to the other doors
}

// waiter is a goroutine that waits at a door.
type waiter struct {
	at    *list.Element // nil: it has a place
	begin chan freeSlot // with room for its place
}

// NewDoor adds a door.
func (l *Lane) NewDoor() *Door {
	d := &Door{lane: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doors = append(l.doors, d)
	return d
}

// Slot is a place of the lane that is taken. The zero Slot is none.
type Slot struct {
	door  *Door
	free  freeSlot
	begun time.Time
}

// Held reports whether it is one.
func (p Slot) Held() bool { return p.door != nil }

// Enter waits for a place, which must be left. The error is why ctx ended before.
func (d *Door) Enter(ctx context.Context) (Slot, error) {
	l := d.lane
	l.mu.Lock()
	if d.waiting.Len() == 0 {
		d.used = max(d.used, l.now) // a door earns no credit while its queue is empty
	}
	t := d.waitLocked(d.waiting.PushBack)
	if n := len(l.free); n > 0 {
		s := l.free[n-1]
		l.free = l.free[:n-1]
		l.giveLocked(s)
	}
	l.mu.Unlock()
	return d.await(ctx, t)
}

func (d *Door) waitLocked(push func(any) *list.Element) *waiter {
	t := &waiter{begin: make(chan freeSlot, 1)}
	t.at = push(t)
	return t
}

func (d *Door) await(ctx context.Context, t *waiter) (Slot, error) {
	select {
	case s := <-t.begin:
		return Slot{d, s, time.Now()}, nil
	case <-ctx.Done():
	}
	d.lane.mu.Lock()
	defer d.lane.mu.Unlock()
	if t.at != nil {
		d.waiting.Remove(t.at)
	} else {
		d.lane.giveLocked(<-t.begin)
	}
	return Slot{}, context.Cause(ctx)
}

// Slice is after how much time at a place Pause lets other doors have it.
const Slice = 20 * time.Millisecond

// Pause gives the place up if it was worked at for Slice, and waits for one again: behind doors that
// used less, and before others at its own door. It may have to wait for a rest, too. After an error,
// which is why ctx ended, there is no place.
func (p *Slot) Pause(ctx context.Context) (err error) {
	if !p.Held() || time.Since(p.begun) < Slice {
		return nil
	}
	d := p.door
	d.lane.mu.Lock()
	t := d.waitLocked(d.waiting.PushFront) // before the place is given: if this door used least, the same work goes on
	p.leaveLocked()
	d.lane.mu.Unlock()
	*p, err = d.await(ctx, t)
	return err
}

// Leave gives the place back, at once or after a rest.
func (p Slot) Leave() {
	if !p.Held() {
		return
	}
	p.door.lane.mu.Lock()
	defer p.door.lane.mu.Unlock()
	p.leaveLocked()
}

func (p Slot) leaveLocked() {
	l, now := p.door.lane, time.Now()
	if l.small.Swap(false) {
		l.lately = now
	}
	worked := now.Sub(p.begun)
	p.door.used += worked
	if now.Sub(l.lately) > smallAfter {
		l.giveLocked(freeSlot{})
		return
	}
	owes := max(0, p.free.owes-p.begun.Sub(p.free.free)) + worked/2
	rest := min(owes-mayOwe, mostRest)
	if rest < leastRest {
		l.giveLocked(freeSlot{owes, now})
		return
	}
	time.AfterFunc(rest, func() {
		defer panics.Go("the end of a rest")
		l.mu.Lock()
		defer l.mu.Unlock()
		l.giveLocked(freeSlot{mayOwe, time.Now()})
	})
}

// giveLocked gives a place to the first of the door that used least, or keeps it for whoever comes.
func (l *Lane) giveLocked(s freeSlot) {
	var next *Door
	for _, d := range l.doors {
		if d.waiting.Len() > 0 && (next == nil || d.used < next.used) {
			next = d
		}
	}
	if next == nil {
		l.free = append(l.free, s)
		return
	}
	t := next.waiting.Remove(next.waiting.Front()).(*waiter)
	t.at, l.now = nil, next.used
	t.begin <- s
}
