package driver

import (
	"context"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// stallLimit is how long a shard may take for a turn before Stalled reports it.
const stallLimit = time.Second

// Stalled returns for how long the shard has not turned: one turn lasts, in the lock or
// outside it, or the goroutine that takes turns is gone. 0 means less than a second, or
// that the shard does not run. An idle shard turns each 100 ms. Time in which the process
// did not run does not count. No lock is taken.
func (s *Shard) Stalled() time.Duration {
	now, still := s.awake.Now(), time.Duration(0)
	for _, since := range []int64{s.turned.Load(), s.polling.Load()} {
		if since != 0 {
			still = max(still, now-time.Duration(since))
		}
	}
	if still < stallLimit {
		return 0
	}
	return still
}

// tryPause is the time between attempts to get a turn.
const tryPause = time.Millisecond

// TryStats is Stats if it gets a turn before ctx ends. Else it returns what the last call
// returned, and false.
func (s *Shard) TryStats(ctx context.Context) (h2.Stats, bool) {
	if s.tryLock(ctx) {
		st := s.statsLocked()
		s.mu.Unlock()
		s.counted.Store(&st)
		return st, true
	}
	if st := s.counted.Load(); st != nil {
		return *st, false
	}
	return h2.Stats{}, false
}

// tryLock locks mu unless ctx ends before. It tries at least once.
func (s *Shard) tryLock(ctx context.Context) bool {
	for !s.mu.TryLock() {
		select {
		case <-time.After(tryPause):
		case <-ctx.Done():
			return false
		}
	}
	return true
}
