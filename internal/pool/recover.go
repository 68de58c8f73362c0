package pool

import (
	"context"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Recoverable is a Resource that can tell whether the node is done with a call that was given up.
type Recoverable interface {
	Resource
	// Idle asks the node whether the session is at rest. An error means that it will not be, or
	// that nobody knows. It must return soon after ctx ends.
	Idle(ctx context.Context) (bool, error)
}

// recoverAfter is how long the pool waits before each question whether a session is idle. A node
// rolls back what was given up, usually within some milliseconds. Who waits for a session while all
// are out waits no longer than the sum of these and of recoverTimeout for one that recovers.
var recoverAfter = [...]time.Duration{25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond}

// recoverTimeout bounds one question.
const recoverTimeout = time.Second

// Recover ends a lease whose last call was given up by its caller, or ran out of time: it left nothing
// behind, but the node may still be at work. The session goes back to the pool when the node says that it
// is idle; until then it counts as leased. If that takes too long, or its resource is not Recoverable, it is
// deleted, as by Discard. What recovers is not waited for when the pool closes.
func (p *Pool) Recover(s *Session) {
	r, ok := s.res.(Recoverable)
	p.mu.Lock()
	ok = ok && !p.closed && fit(s)
	if ok {
		p.recovering++
		p.tasks.Go(func() { p.recover(s, r) })
	}
	p.mu.Unlock()
	if !ok {
		p.Discard(s)
	}
}

// recover is Recover for a session that may be kept.
func (p *Pool) recover(s *Session, r Recoverable) {
	idle := p.untilIdle(s, r)
	p.mu.Lock()
	p.recovering--
	if idle {
		p.recovered++
	}
	p.mu.Unlock()
	if idle {
		p.Release(s)
	} else {
		p.Discard(s)
	}
}

// untilIdle waits until the session is idle; false: it is not to be used again.
func (p *Pool) untilIdle(s *Session, r Recoverable) (idle bool) {
	for _, pause := range recoverAfter {
		select {
		case <-time.After(pause):
		case <-p.life.Done():
			return false
		}
		if !s.Valid() {
			return false
		}
		ctx, cancel := context.WithTimeout(p.life, recoverTimeout)
		err := panics.Call("the question whether a session is idle", func() (err error) {
			idle, err = r.Idle(ctx)
			return err
		})
		cancel()
		if err != nil {
			p.log.Debug("session not kept after a call that was given up", "node", s.node.id, "err", err)
			return false
		}
		if idle {
			return true
		}
	}
	return false
}
