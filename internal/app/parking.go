package app

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// parkAfter is for how long a connection of HTTP/1.1 has had no request until it is parked: its server, which has a goroutine and buffers for it,
// some 20 KB, takes it for closed, and the poller of a shard watches its socket until something comes. Then it comes to the server as a new one. A
// connection with TLS is not parked: its state is in its server. A variable for tests.
var parkAfter = 5 * time.Second

// parking is where the guests of one listener rest.
type parking struct {
	after time.Duration
	park  func(conn net.Conn, until time.Time, ready func(came bool)) *driver.Parked // see driver.Shard.Park
	back  *hatch                                                                     // to their server
	over  atomic.Bool                                                                // no guest is parked any more
}

func newParking(park func(net.Conn, time.Time, func(bool)) *driver.Parked) *parking {
	return &parking{after: parkAfter, park: park, back: newHatch()}
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

// park parks the guest: another one has its socket then. False: its server is to read on.
func (g *guest) park() bool {
	s := g.of
	p := s.parking
	if p.over.Load() || s.move.Load() != nil || g.stream.SetReadDeadline(time.Time{}) != nil {
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
	if !s.replace(g, rests) {
		return false
	}
	g.left.Store(true)
	parked := p.park(g.stream, until, func(came bool) { rests.wasParked(came, until) })
	if parked == nil {
		g.left.Store(false)
		if !s.replace(rests, g) {
			_ = g.stream.Close() // whoever ended rests thinks that it has
		}
		return false
	}
	rests.parked.Store(parked)
	// Whoever had all of them go meanwhile may not have seen this one.
	if (p.over.Load() || s.move.Load() != nil) && rests.recall() {
		rests.goOn()
	}
	return true
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

// recall takes the guest from where it is parked; false: it is not, or comes back anyway.
func (g *guest) recall() bool {
	parked := g.parked.Load()
	return parked != nil && parked.Stop()
}

// wasParked is what the poller calls: see driver.Shard.Park.
func (g *guest) wasParked(came bool, until time.Time) {
	if !came {
		g.leave() // its server would have closed it now
		return
	}
	if !until.IsZero() {
		g.patience = time.Until(until) // for its server the next request is the first
	}
	go func() {
		defer panics.Go("a connection that was parked")
		g.goOn()
	}()
}

// goOn has a guest that was parked go on in another process, if guests move now, else with its server, which may have ended.
func (g *guest) goOn() {
	if g.depart() || !g.of.parking.back.pass(g) {
		g.leave()
	}
}

// closeParked closes the guests that are parked, and has none parked from now on. Their server stops.
func (s *guests) closeParked() {
	if s.parking == nil {
		return
	}
	s.parking.over.Store(true)
	for _, g := range s.all() {
		if g.recall() {
			g.leave()
		}
	}
}
