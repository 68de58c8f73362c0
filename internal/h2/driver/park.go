package driver

import (
	"net"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Parked is a connection of somebody else's whose socket the poller of a shard watches. Nothing is read of it here.
type Parked struct {
	link  *link
	ready func(came bool)
	came  bool // there is something to read, or the peer has ended it; guarded by shard.mu
	over  bool // it is parked no more; guarded by shard.mu
}

// Park has the poller of the shard watch a connection, which takes neither a goroutine nor a buffer. ready is called once, in no turn, and must
// not block: came says that there is something to read or that the peer has ended the connection; else it is until (zero: never), or the
// shard ends. From then on the connection is the caller's again. Nil: it cannot be parked, because it is no socket, the shard has ended, or the system has no
// poller, and ready is not called.
func (s *Shard) Park(nc net.Conn, until time.Time, ready func(came bool)) *Parked {
	l := &link{shard: s, closeAt: until}
	l.parked = &Parked{link: l, ready: ready}
	l.raw.use(nc)
	if !l.raw.isSocket() {
		return nil
	}
	s.mu.Lock()
	ok := s.add(l, nc)
	s.mu.Unlock()
	if !ok || !s.join(l) && l.parked.Stop() {
		return nil
	}
	return l.parked
}

// Stop takes the connection back. False: ready was called, or is about to be.
func (p *Parked) Stop() bool {
	s := p.link.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.endLocked()
}

// endLocked reports whether it was parked until now. shard.mu is held.
func (p *Parked) endLocked() bool {
	if p.over {
		return false
	}
	p.over = true
	l := p.link
	if l.poller != nil {
		l.poller.leave(l)
		l.poller.forget(l)
	}
	delete(l.shard.links, l)
	l.shard.wg.Done()
	return true
}

// tell gives the connection back. It is for the poller, outside of a turn.
func (p *Parked) tell() {
	s := p.link.shard
	s.mu.Lock()
	was, came := p.endLocked(), p.came
	s.mu.Unlock()
	if was {
		_ = panics.Call("the end of a connection's rest", func() error { p.ready(came); return nil })
	}
}
