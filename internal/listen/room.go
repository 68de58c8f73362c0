package listen

import (
	"time"
)

// A connection of HTTP/2 that finds no room waits for it, and is closed after roomWait: one that was closed at once
// would be back at once, which costs us more than its client. The first one in the queue looks again every roomEach.
const (
	roomEach = 50 * time.Millisecond
	RoomWait = 2 * spareAfter
)

// isSecond takes g in as one of HTTP/2, if need be after a while. False: there was no room, or it was closed meanwhile,
// or its server stops.
func (s *Conns) isSecond(g *Conn) bool {
	if len(s.queue) == 0 && s.hasRoom(g) {
		return true
	}
	until := time.NewTimer(RoomWait)
	defer until.Stop()
	select {
	case s.queue <- struct{}{}:
	case <-until.C:
		s.countRefused()
		return false
	case <-g.closed:
		return false
	}
	defer func() { <-s.queue }()
	each := time.NewTicker(roomEach)
	defer each.Stop()
	for !s.hasRoom(g) {
		if s.until.Load() != nil || s.move.Load() != nil {
			return false
		}
		select {
		case <-each.C:
		case <-until.C:
			s.countRefused()
			return false
		case <-g.closed:
			return false
		}
	}
	return true
}

func (s *Conns) countRefused() {
	if s.refused != nil {
		s.refused.Add(1)
	}
}

// hasRoom takes g in as one of HTTP/2. Where there are as many as there may be, one makes room that has had no request under
// way for a while. False: there is none.
func (s *Conns) hasRoom(g *Conn) bool {
	s.mu.Lock()
	if _, here := s.open[g]; !here || s.most == 0 { // it was closed, or there may be any number
		s.mu.Unlock()
		return here
	}
	now := time.Now()
	var gone *Conn
	if len(s.seconds) >= s.most {
		if gone = s.spareLocked(now); gone == nil {
			s.mu.Unlock()
			return false
		}
		if !gone.idle.Load() {
			s.ended = now
		}
		s.countRefused()
		delete(s.seconds, gone)
	}
	s.seconds[g] = now
	s.mu.Unlock()
	if gone != nil && (s.leaving.Load() >= int64(max(1, s.most/8)) || !gone.sendAway()) {
		gone.leave()
	}
	return true
}

// endsEach is the least time between two connections that make room although requests are arriving on them. Ending these requests is
// work, and the new connection begins as many. Without the pause, 40 connections of 100 requests each kept replacing each other, and
// other calls took 61 ms (p99).
const endsEach = 250 * time.Millisecond

// spareAfter is for how long a connection has had no request under way until it makes room.
const spareAfter = time.Second

// spareLocked returns the connection that makes room; nil: none. First come connections on which no request was ever
// complete, of these the one that has been here for longest; then those without requests, of these the one that has had
// none for longest; then those whose requests are all still arriving.
func (s *Conns) spareLocked(now time.Time) (spare *Conn) {
	rank := func(g *Conn) (rank int, free int64) {
		free = g.free.Load()
		switch {
		case free == g.since.UnixNano():
			return 0, free
		case g.idle.Load():
			return 1, free
		}
		return 2, free
	}
	var least int
	var longest int64
	mayEnd, blocked := now.Sub(s.ended) >= endsEach, 3 // above all ranks: none is
	for g, taken := range s.seconds {
		n, free := rank(g)
		if g.under.Load() > 0 || now.UnixNano()-max(free, taken.UnixNano()) < int64(spareAfter) {
			continue
		}
		if !mayEnd && !g.idle.Load() {
			blocked = min(blocked, n)
			continue
		}
		if spare == nil || n < least || n == least && free < longest {
			spare, least, longest = g, n, free
		}
	}
	if spare != nil && blocked < least {
		return nil // the blocked one may make room soon
	}
	return spare
}

// UnderWay says that one more request has come whole, or that one of these has ended.
func (g *Conn) UnderWay(delta int) {
	if g.under.Add(int32(delta)) == 0 {
		g.free.Store(time.Now().UnixNano())
	}
}
