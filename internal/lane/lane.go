// Package lane owns the processor time of large requests. What takes long (inflating, decoding, typing, encoding) is done by a few at a time in all of the
// process, so that processors are left to small requests. Kinds of work have doors, and those take turns: however much waits at a door,
// another door's first waits for no more of it than there are places.
package lane

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Lane has places for those who work. While there are small requests, a place also owes a rest of half of what was worked at it: what is
// done for large requests outside the lane, and what the collector does after them, would use up what is left otherwise. Time in which
// the place is not wanted is rest, so that a caller that sends one large request after the other seldom waits for it.
// It is safe for concurrent use.
type Lane struct {
	places chan slot // those that are free

	small  atomic.Bool  // one has gone by since that was looked at, however long ago
	lately atomic.Int64 // when one was noticed last, in nanoseconds since the epoch
}

// slot is a place that is free.
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

// New returns a lane with so many places, 1 at least.
func New(places int) *Lane {
	l := &Lane{places: make(chan slot, max(1, places))}
	for range cap(l.places) {
		l.places <- slot{}
	}
	return l
}

// Places are how many may work at a time.
func (l *Lane) Places() int { return cap(l.places) }

// Small notices that a small request goes by.
func (l *Lane) Small() {
	if !l.small.Load() { // else it is only read, by all processors
		l.small.Store(true)
	}
}

// Door is where one kind of work waits for its places, first come, first served.
type Door struct {
	lane  *Lane
	first chan struct{} // has those that are next
}

// NewDoor adds a door.
func (l *Lane) NewDoor() *Door {
	return &Door{lane: l, first: make(chan struct{}, cap(l.places))}
}

// Place is a place that is taken.
type Place struct {
	lane  *Lane
	slot  slot
	begun time.Time
}

// Enter waits for a place, which must be left. The error is why ctx ended before.
func (d *Door) Enter(ctx context.Context) (Place, error) {
	select {
	case d.first <- struct{}{}:
	case <-ctx.Done():
		return Place{}, context.Cause(ctx)
	}
	defer func() { <-d.first }()
	select {
	case s := <-d.lane.places:
		return Place{d.lane, s, time.Now()}, nil
	case <-ctx.Done():
		return Place{}, context.Cause(ctx)
	}
}

// Leave gives the place back, at once or after a rest.
func (p Place) Leave() {
	l, now := p.lane, time.Now()
	if l.small.Swap(false) {
		l.lately.Store(now.UnixNano())
	}
	if now.UnixNano()-l.lately.Load() > int64(smallAfter) {
		l.places <- slot{}
		return
	}
	owes := max(0, p.slot.owes-p.begun.Sub(p.slot.free)) + now.Sub(p.begun)/2
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
