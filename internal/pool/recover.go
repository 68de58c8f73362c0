package pool

import (
	"context"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Recoverable is a Resource that can tell whether the node is done with a call that was given up.
type Recoverable interface {
	Resource
	// AtRest asks the node whether the session is idle. An error means that it will not be, or
	// that the answer is unknown. It must return soon after ctx ends.
	AtRest(ctx context.Context) (bool, error)
}

// recoverAfter is how long the pool waits before each question whether a session is idle. A node
// rolls back what was given up, usually within some milliseconds.
var recoverAfter = [...]time.Duration{25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond}

// recoverWithin bounds a recovery, pauses and answers together: a session that is deleted in the end takes
// room in the pool until then.
const recoverWithin = time.Second

// Recover checks a session in whose last call was given up by its caller, or ran out of time: it left nothing
// behind, but the node may still be at work. The session goes back to the pool when the node says that it
// is idle; until then it counts as in use. If that takes too long, or its resource is not Recoverable, it
// is deleted, as by Discard. The pool does not wait for a recovery when it closes.
func (p *Pool) Recover(s *Session) {
	if !s.inUse || s.recovers {
		panic("pool: a session that is not leased is to recover")
	}
	r, ok := s.res.(Recoverable)
	p.mu.Lock()
	ok = ok && !p.closed && s.Valid() && (s.node.eligible.Load() || p.parksLocked(s.node, time.Now()))
	if ok {
		p.recovering++
		s.recovers = true
		p.tasks.Go(func() { p.recover(s, r) })
	}
	p.mu.Unlock()
	if !ok {
		p.Discard(s)
	}
}

// recover is Recover for a session that may be kept.
func (p *Pool) recover(s *Session, r Recoverable) {
	rests := p.untilAtRest(s, r)
	p.mu.Lock()
	s.recovers = false
	p.recovering--
	if rests {
		p.recovered++
	}
	p.mu.Unlock()
	if rests {
		p.Release(s)
	} else {
		p.Discard(s)
	}
}

// untilAtRest waits until the node says that the session is idle; false: it is not to be used again.
func (p *Pool) untilAtRest(s *Session, r Recoverable) (rests bool) {
	ctx, cancel := context.WithTimeout(p.life, recoverWithin)
	defer cancel()
	for _, pause := range recoverAfter {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
		if !s.Valid() {
			return false
		}
		err := panics.Call("the question whether a session is idle", func() (err error) {
			rests, err = r.AtRest(ctx)
			return err
		})
		if err != nil {
			p.log.Debug("session not kept after a call that was given up", "node", s.node.id, "err", err)
			return false
		}
		if rests {
			return true
		}
	}
	return false
}
