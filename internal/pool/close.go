package pool

import (
	"context"
	"fmt"
	"time"
)

// Close ends the pool. No caller gets a session any more; waiting callers are told
// ErrClosed. Idle sessions are deleted at once, in parallel, sessions in use as they
// come back; those that have not when ctx ends are deleted while their callers use them,
// which is what the error says. When Close returns nothing is left but what a
// Resource failed to delete within Config.DeleteTimeout. Further calls wait
// for the same end.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	var waiting []*Waiter
	if !p.closed {
		p.closed, p.closedAt = true, time.Now()
		p.member.Quit()
		waiting = p.queue.Drain()
		p.setGateLocked(0)
		for o := range p.openings {
			o.cancel()
		}
		p.end()
		// What is laid down after this is closed by those who do it, as they look
		// at the gate.
		p.siftAllLocked(func(*Session) bool { return true })
		if p.size == 0 {
			close(p.empty)
		}
		p.dueLocked(p.began) // ends Run
	}
	p.mu.Unlock()
	for _, w := range waiting {
		p.tell(w, nil)
	}

	var err error
	select {
	case <-p.empty:
	case <-ctx.Done():
		if n := p.seize(); n > 0 {
			err = fmt.Errorf("pool: %d sessions were in use and were deleted under their holders: %w", n, ctx.Err())
		}
		<-p.empty // soon: every opening was cancelled, every deletion has its deadline
	}
	p.tasks.Wait()
	return err
}

// seize deletes the sessions that are checked out.
func (p *Pool) seize() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.liveLocked() {
		if !s.gone {
			p.endLocked(s) // its cell stays taken: the caller may be reading it
			n++
		}
	}
	return n
}
