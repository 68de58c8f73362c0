package facade

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/lane"
)

// inLane runs f in the lane, if it is about a large request.
func (s *coreService) inLane(ctx context.Context, large bool, f func() error) error {
	place, err := s.enterLane(ctx, large)
	if err != nil {
		return err
	}
	defer place.Leave()
	return f()
}

// enterLane waits for a place in the lane, which must be left. A request that is not large gets none.
func (s *coreService) enterLane(ctx context.Context, large bool) (lane.Place, error) {
	if !large {
		s.deps.Lane.Small()
		return lane.Place{}, nil
	}
	wait, cancel := context.WithTimeoutCause(ctx, s.cfg.API.Timeout, errLane)
	defer cancel()
	place, err := s.large.Enter(wait)
	if errors.Is(err, errLane) {
		return lane.Place{}, faultf(codeBusy, "so many large requests are being decoded that this one did not begin within %v: try again, or send less at a time", s.cfg.API.Timeout)
	}
	return place, err
}

var errLane = errors.New("no place in the lane")

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
