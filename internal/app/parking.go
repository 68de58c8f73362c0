package app

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// parkAfter is for how long a connection of HTTP/1.1 has had no request until its server, which has a goroutine and buffers for it, some 20 KB, lets go
// of it: it is parked. A connection with TLS is not: its state is in its server. A variable for tests.
var parkAfter = 5 * time.Second

// parking is where the guests of one listener rest, from their beginning on: with a shard, which serves the ordinary requests that come over them. For
// any other request a guest goes to the server, which takes it for a new one.
type parking struct {
	after  time.Duration
	first  time.Duration                                             // that the first request of a new connection may take; 0: new ones go to the server
	park   func(conn net.Conn, until time.Time, guest *guest) parked // nil: it cannot be parked
	serves func() bool                                               // whether shards are to serve requests now
	// context adds what a handler is to know of a connection to the context of its requests.
	context func(context.Context, net.Conn) context.Context
	back    *hatch       // to the server
	over    atomic.Bool  // no guest is parked any more
	rested  atomic.Int64 // when the last request that was served so ended, in nanoseconds since the epoch
	moving  atomic.Int64 // guests that are about to be parked, or to go to the server
}

// parked is a connection that is parked. Stop takes it back, with what was read of a request that is not whole; false: it comes back through guest.Back.
type parked interface{ Stop() (read []byte, ok bool) }

func (a *App) newParking(first time.Duration) *parking {
	return &parking{
		after: parkAfter, first: first, back: newHatch(), context: peerOf, serves: func() bool { return a.phase.get() < draining },
		park: func(conn net.Conn, until time.Time, guest *guest) parked {
			// A nil *wire.Parked would be a parked that is not nil.
			if p := a.wire.Park(conn, until, guest); p != nil {
				return p
			}
			return nil
		},
	}
}

// parksAt is when a guest is to be parked that its server waits for until then, zero: for ever. False: it is not. g.mu is held.
func (g *guest) parksAt(until time.Time) (at time.Time, ok bool) {
	p := g.of.parking
	if p == nil || g.fixed || !g.heard.Load() || !g.idle.Load() || !g.rest.Load() {
		return at, false
	}
	at = time.Now().Add(p.after)
	return at, until.IsZero() || at.Before(until)
}

// parkNew parks a guest that has just come, or sends it to the server, and does not wait: a shard may have much to do. False: it is for the server.
func (g *guest) parkNew() bool {
	p := g.of.parking
	if p == nil || p.first == 0 {
		return false
	}
	g.idle.Store(true)
	until := time.Now().Add(p.first)
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

// parkUntil parks a guest that has no server.
func (g *guest) parkUntil(until time.Time) bool {
	p := g.of.parking
	if p.over.Load() || g.of.move.Load() != nil {
		return false
	}
	parked := p.park(g.stream, until, g)
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

// parked is how many are parked and have no request under way.
func (s *guests) parked() (n int) {
	for _, g := range s.all() {
		if g.parked.Load() != nil && g.idle.Load() {
			n++
		}
	}
	return n
}

// park parks a guest at rest: another one has its socket then. False: its server is to read on.
func (g *guest) park() bool {
	s := g.of
	if g.stream.SetReadDeadline(time.Time{}) != nil {
		return false
	}
	g.mu.Lock()
	until := g.deadline
	g.mu.Unlock()
	rests := &guest{stream: g.stream, of: s, user: g.user, since: g.since, closed: make(chan struct{})}
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
		_ = g.stream.Close() // whoever ended rests thinks that it has
	}
	return false
}

// replace has one guest in the place of another; false: that one is over.
func (s *guests) replace(old, next *guest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, here := s.open[old]; !here {
		return false
	}
	delete(s.open, old)
	s.open[next] = struct{}{}
	return true
}

// recall takes the guest from where it is parked, with what was read of a request that is not whole; false: it is not parked, or comes back anyway.
func (g *guest) recall() (read []byte, ok bool) {
	if parked := g.parked.Load(); parked != nil {
		return (*parked).Stop()
	}
	return nil, false
}

// Context is that of the requests that are served while the guest is parked, as the other methods below are for whoever has it parked. It does not end.
func (g *guest) Context() context.Context {
	if g.requests == nil {
		g.requests = g.of.parking.context(context.Background(), g)
	}
	return g.requests
}

// Serves reports whether a request that comes now is to be served where the guest is parked.
func (g *guest) Serves() bool {
	p := g.of.parking
	select {
	case <-g.closed:
		return false
	default:
		return p.serves() && !p.over.Load() && g.of.move.Load() == nil
	}
}

// Ends reports whether an answer that goes out now is to be the last of the connection. One that moves goes on in another process.
func (g *guest) Ends() bool {
	p := g.of.parking
	return !p.serves() || p.over.Load()
}

// Busy notes whether a request is under way from now on.
func (g *guest) Busy(on bool) {
	g.heard.Store(true)
	g.asked.Store(true)
	g.idle.Store(!on)
	g.rest.Store(!on)
	if !on {
		g.of.parking.rested.Store(time.Now().UnixNano())
	}
}

// Back takes the guest back, once, with what was read of a request that was not served. came: the client has sent something.
func (g *guest) Back(came bool, read []byte) {
	if !came {
		g.leave()
		return
	}
	p := g.of.parking
	p.moving.Add(1)
	go func() {
		defer p.moving.Add(-1)
		defer panics.Go("a connection that was parked")
		g.goOn(read)
	}()
}

// goOn has a guest that was parked go on in another process, if guests move now, else with its server, which may have ended. What was read is
// the beginning of its next request.
func (g *guest) goOn(read []byte) {
	p := g.of.parking
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
	if !p.back.pass(g) {
		g.leave()
	}
}

// greetParked has those go to the server of which no request has come yet, or a part of one: it lets them go without losing one that is on its way. The
// others, which have rested for long, are closed.
func (s *guests) greetParked(ctx context.Context, track func(net.Conn)) {
	p := s.parking
	if p == nil {
		return
	}
	moved := func() bool { return p.moving.Load() == 0 }
	within(ctx, moved)
	defer within(ctx, moved) // who was being read just now
	for _, g := range s.all() {
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

// closeParked closes the guests that are parked, and has none parked from now on. Those with a request under way are closed after that.
func (s *guests) closeParked() {
	if s.parking == nil {
		return
	}
	s.parking.over.Store(true)
	for _, g := range s.all() {
		if _, ok := g.recall(); ok {
			g.leave()
		}
	}
}

// within looks again and again whether something is so, until ctx ends or quiet has passed.
func within(ctx context.Context, is func() bool) {
	ctx, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	awake.Until(ctx, is)
}
