package core

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/lane"
)

// InLane runs f in the lane, if it is about a large request.
func (s *Service) InLane(ctx context.Context, large bool, f func() error) error {
	place, err := s.enterLane(ctx, large)
	if err != nil {
		return err
	}
	defer place.Leave()
	return f()
}

// enterLane waits for a place in the lane, which must be left. A request that is not large gets none.
func (s *Service) enterLane(ctx context.Context, large bool) (lane.Slot, error) {
	if !large {
		s.Deps.Lane.Small()
		return lane.Slot{}, nil
	}
	wait, cancel := context.WithTimeoutCause(ctx, s.Cfg.API.Timeout, errLane)
	defer cancel()
	place, err := s.large.Enter(wait)
	if errors.Is(err, errLane) {
		return lane.Slot{}, Faultf(CodeBusy,
			"so many large requests are being decoded that this one did not begin within %v: try again, or send less at a time",
			s.Cfg.API.Timeout)
	}
	return place, err
}

var errLane = errors.New("no place in the lane")

// Rest waits. The error is why ctx ended before.
func Rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Pace bounds how many bytes a second go by, whoever takes them. It is safe for concurrent use.
type Pace struct {
	Rate  int // bytes a second
	Burst int // bytes that go by at once after a rest

	mu  sync.Mutex // guards what follows
	due time.Time  // when what was taken has gone by
}

// Take takes n bytes and returns how long to wait before they are used. False: that would be longer than most, and
// none are taken.
func (p *Pace) Take(n int, most time.Duration) (wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	due := now.Add(-p.lasts(p.Burst))
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

// Give gives back n bytes that were taken and not used.
func (p *Pace) Give(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = p.due.Add(-p.lasts(n))
}

func (p *Pace) lasts(n int) time.Duration {
	return time.Duration(n) * time.Second / time.Duration(p.Rate)
}
