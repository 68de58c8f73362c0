package pool

import "time"

// Config returns the configuration that is in force.
func (p *Pool) Config() Config {
	return *p.inForce.Load()
}

// Reconfigure puts another configuration into force, which must be valid.
// With a lower Max sessions without use are closed at once, and those in
// use beyond it at their release; a limit that SetLimit has set stays, if it is lower.
// Waiting callers keep their places in the queue. With another Age an open session expires when one
// opened now would, or at its own time if that is sooner; with Age 0 it does not.
// Adaptive and AdaptiveFloor are not the pool's.
func (p *Pool) Reconfigure(c Config) {
	p.mu.Lock()
	if p.limit.most == p.cfg.Max {
		p.limit.most = c.Max
	}
	p.limit.most = min(p.limit.most, c.Max)
	if c.Age != p.cfg.Age {
		p.ageLocked(c, time.Now())
	}
	p.cfg = c
	p.inForce.Store(&c)
	p.queue.Configure(c.queue())
	p.viewLocked(p.viewed) // the limits of nodes follow from that of the pool
	p.lowerLocked()
	p.trimLocked()
	p.setGateLocked(0)
	p.sweep.at = p.began // what expires, expires by the new times
	p.mu.Unlock()
	p.refill()
}

// ageLocked puts the Age of c into force for open sessions.
func (p *shelf) ageLocked(c Config, now time.Time) {
	for s := range p.liveLocked() {
		if at := c.expiry(now); at.IsZero() || s.expires.IsZero() || at.Before(s.expires) {
			s.expires = at
		}
	}
}

// lowerLocked closes sessions without use that are beyond Config.Max.
func (p *state) lowerLocked() {
	over := p.size - p.closing - p.cfg.Max
	if over <= 0 {
		return
	}
	p.unslotLocked(nil)
	for _, n := range p.order {
		n.expired = n.idle.len() + len(n.aside)
	}
	p.quotasLocked(over, p.cfg.Max)
	for _, n := range p.order {
		if n.quota > 0 {
			p.siftStackLocked(n, func(*Session) bool {
				n.quota--
				return n.quota >= 0
			})
		}
	}
	p.sweep = sweep{} // if one was under way, what it has found is no more
}

// limitedLocked reports whether there may be sessions that must not be used.
func (p *state) limitedLocked() bool { return p.limit.most < p.cfg.Max || p.overLocked() }

// overLocked reports whether there are more sessions than Config.Max, which was lowered.
func (p *state) overLocked() bool { return p.size-p.closing > p.cfg.Max }
