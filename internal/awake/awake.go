// Package awake measures how long the process has run.
//
// A stopped process (SIGSTOP, a frozen container, a suspended machine) does no work, yet the
// system's clocks go on. Measured by them, every part of the process has hung when it runs
// again. A Clock counts only time in which the process could run. Run is its only goroutine
// and its only writer; any goroutine may call Now, which takes no lock.
//
// Sleep and Until wait by the system's clock, and end with their context: they are the one
// place for a pause, and for looking at what has no event.
package awake

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	tick = 100 * time.Millisecond
	// most is how much one tick counts at most. Longer gaps are time in which the process did
	// not run, or hardly.
	most = 2 * tick
)

// Clock counts from 1 ns, so that 0 can mean "never". The zero Clock stands still until Run.
type Clock struct{ last atomic.Pointer[reading] }

// reading is a tick. Immutable.
type reading struct {
	at  time.Time
	ran time.Duration // by then
}

// Run has the clock go until ctx ends. It returns nil.
func (c *Clock) Run(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	ran := c.Now()
	for {
		c.last.Store(&reading{time.Now(), ran})
		select {
		case <-ticker.C:
			ran = c.Now()
		case <-ctx.Done():
			return nil
		}
	}
}

// Now returns for how long the process has run since Run began. It never goes back.
func (c *Clock) Now() time.Duration {
	r := c.last.Load()
	if r == nil {
		return 1
	}
	return r.ran + min(time.Since(r.at), most)
}
