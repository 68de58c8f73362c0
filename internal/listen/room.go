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

// endsEach is from one connection that makes room with requests on it to the next: each of these is work to end, and as many begin on the
// connection that takes the place. Without it 40 connections of 100 requests each ended and began at a moment, over and over, and calls of
// others took 61 ms (p99).
const endsEach = 250 * time.Millisecond

// spareAfter is for how long a connection has had no request under way until it makes room.
const spareAfter = time.Second

// spareLocked is the one that makes room: of those on which no request has ever come whole the one that has been here
// for longest; else of those without requests the one that has had none for longest; else one whose requests are all
// coming. nil: there is none.
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
