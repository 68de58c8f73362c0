package listen

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Parking is where the connections of one listener rest, from their beginning on: with a shard, which serves the
// ordinary requests that come over them. For any other request a connection goes to the server, which takes it for a
// new one.
type Parking struct {
	After time.Duration // the time without a request after which a connection is parked
	First time.Duration // the time that the first request of a new connection may take; 0: new ones go to the server

	Park   func(conn net.Conn, until time.Time, c *Conn) Parked // nil: it cannot be parked
	Serves func() bool                                          // whether shards are to serve requests now
	Back   *Channel                                             // to the server
	// Context adds what a handler is to know of a connection to the context of its requests.
	Context func(context.Context, net.Conn) context.Context

	over   atomic.Bool  // no connection is parked any more
	rested atomic.Int64 // when the last request that was served so ended, in nanoseconds since the epoch
	moving atomic.Int64 // connections that are about to be parked, or to go to the server
}

// Parked is a connection that is parked. Stop takes it back, with what was read of a request that is not whole; false:
// it comes back through Conn.Back.
type Parked interface{ Stop() (read []byte, ok bool) }

// parksAt returns when to park the connection; ok is false if it is not to be parked. until is when its server gives up
// waiting for a request; zero: never. g.mu is held.
func (g *Conn) parksAt(until time.Time) (at time.Time, ok bool) {
	p := g.of.Parking
	if p == nil || g.fixed || !g.heard.Load() || !g.idle.Load() || !g.rest.Load() {
		return at, false
	}
	at = time.Now().Add(p.After)
	return at, until.IsZero() || at.Before(until)
}

// parkNew parks a connection that has just come, or sends it to the server, and does not wait: a shard may have much to
// do. False: it is for the server.
func (g *Conn) parkNew() bool {
	p := g.of.Parking
	if p == nil || p.First == 0 {
		return false
	}
	g.idle.Store(true)
	until := time.Now().Add(p.First)
	p.moving.Add(1)
	go func() {
		defer p.moving.Add(-1)
		defer panics.Go("a new connection")
		if !g.parkUntil(until) {
			g.goOn(nil)
		}
	}()
	return true
}

// parkUntil parks a connection that has no server.
func (g *Conn) parkUntil(until time.Time) bool {
	p := g.of.Parking
	if p.over.Load() || g.of.move.Load() != nil {
		return false
	}
	parked := p.Park(g.Stream, until, g)
	if parked == nil {
		return false
	}
	g.parked.Store(&parked)
	// Whoever had all of them go meanwhile may not have seen this one.
	if p.over.Load() || g.of.move.Load() != nil {
		if read, ok := g.recall(); ok {
			g.goOn(read)
		}
	}
	return true
}

// Parked is how many are parked and have no request under way.
func (s *Conns) Parked() (n int) {
	for _, g := range s.All() {
		if g.parked.Load() != nil && g.idle.Load() {
			n++
		}
	}
	return n
}

// park parks an idle connection: another one has its socket then. False: its server is to read on.
func (g *Conn) park() bool {
	s := g.of
	if g.Stream.SetReadDeadline(time.Time{}) != nil {
		return false
	}
	g.mu.Lock()
	until := g.deadline
	g.mu.Unlock()
	rests := &Conn{Stream: g.Stream, of: s}
	rests.user, rests.since, rests.closed = g.user, g.since, make(chan struct{})
	rests.free.Store(g.free.Load())
	rests.rest.Store(true)
	rests.idle.Store(true)
	rests.asked.Store(true)
	rests.heard.Store(true)
	if !s.replace(g, rests) {
		return false
	}
	g.left.Store(true)
	if rests.parkUntil(until) {
		return true
	}
	g.left.Store(false)
	if !s.replace(rests, g) {
		_ = g.Stream.Close() // whoever ended rests thinks that it has
	}
	return false
}

// replace has one connection in the place of another; false: that one is over.
func (s *Conns) replace(old, next *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, here := s.open[old]; !here {
		return false
	}
	delete(s.open, old)
	s.open[next] = struct{}{}
	return true
}

// recall takes the connection from where it is parked, with what was read of a request that is not whole; false: it is
// not parked, or comes back anyway.
func (g *Conn) recall() (read []byte, ok bool) {
	if parked := g.parked.Load(); parked != nil {
		return (*parked).Stop()
	}
	return nil, false
}

// Context is that of the requests that are served while the connection is parked, as the other methods below are for
// whoever has it parked. It does not end.
func (g *Conn) Context() context.Context {
	if g.requests == nil {
		g.requests = g.of.Parking.Context(context.Background(), g)
	}
	return g.requests
}

// Serves reports whether a request that comes now is to be served where the connection is parked.
func (g *Conn) Serves() bool {
	p := g.of.Parking
	select {
	case <-g.closed:
		return false
	default:
		return p.Serves() && !p.over.Load() && g.of.move.Load() == nil
	}
}

// Ends reports whether an answer that goes out now is to be the last of the connection. One that moves goes on in another process.
func (g *Conn) Ends() bool {
	p := g.of.Parking
	return !p.Serves() || p.over.Load()
}

// Busy notes whether a request is under way from now on.
func (g *Conn) Busy(on bool) {
	g.heard.Store(true)
	g.asked.Store(true)
	g.idle.Store(!on)
	g.rest.Store(!on)
	if !on {
		g.of.Parking.rested.Store(time.Now().UnixNano())
	}
}

// Back takes the connection back, once, with what was read of a request that was not served. came: the client has sent something.
func (g *Conn) Back(came bool, read []byte) {
	if !came {
		g.leave()
		return
	}
	p := g.of.Parking
	p.moving.Add(1)
	go func() {
		defer p.moving.Add(-1)
		defer panics.Go("a connection that was parked")
		g.goOn(read)
	}()
}

// goOn has a connection that was parked go on in another process, if connections move now, else with its server, which
// may have ended. What was read is the beginning of its next request.
func (g *Conn) goOn(read []byte) {
	p := g.of.Parking
	g.parked.Store(nil)
	switch {
	case len(read) > 0:
		g.before = read
		g.rest.Store(false)
		g.mixed.Store(read[0] == 'P' && (len(read) == 1 || read[1] == 'R')) // see note
		g.heard.Store(true)
	case g.depart(), p.over.Load():
		g.leave()
		return
	case g.asked.Load():
		g.heard.Store(false)
		g.patience = g.of.resting // for its server the next request is the first
	}
	if !p.Back.Pass(g) {
		g.leave()
	}
}

// GreetParked has those go to the server of which no request has come yet, or a part of one: it lets them go without
// losing one that is on its way. The others, which have rested for long, are closed.
func (s *Conns) GreetParked(ctx context.Context, track func(net.Conn)) {
	p := s.Parking
	if p == nil {
		return
	}
	moved := func() bool { return p.moving.Load() == 0 }
	Within(ctx, moved)
	defer Within(ctx, moved) // for connections that were being read just now
	for _, g := range s.All() {
		read, ok := g.recall()
		switch {
		case !ok:
		case len(read) > 0 || !g.asked.Load():
			track(g)
			g.goOn(read)
		default:
			g.leave()
		}
	}
}

// CloseParked closes the connections that are parked, and has none parked from now on. Those with a request under way
// are closed after that.
func (s *Conns) CloseParked() {
	if s.Parking == nil {
		return
	}
	s.Parking.over.Store(true)
	for _, g := range s.All() {
		if _, ok := g.recall(); ok {
			g.leave()
		}
	}
}

// Within looks again and again whether something is so, until ctx ends or quiet has passed.
func Within(ctx context.Context, is func() bool) {
	ctx, cancel := context.WithTimeout(ctx, Quiet)
	defer cancel()
	awake.Until(ctx, is)
}
