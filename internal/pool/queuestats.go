package pool

import "github.com/ydb-sidecar/sidecar/internal/pool/queue"

// QueueStats is the part of one app in one class of the queue.
type QueueStats = queue.Stats

// Queues lists the queues that have waiters, by class and app.
func (p *Pool) Queues() (all []QueueStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Queues(p.clock())
}
