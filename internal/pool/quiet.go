package pool

// Quiet ends what the pool does while no caller waits for it, or lets it go
// on: opening the minimum, and moving sessions towards an even spread. Callers
// get sessions, and nodes that are to be left are left, all the same.
func (p *Pool) Quiet(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet = on
	p.dueLocked(p.began) // look at once
}
