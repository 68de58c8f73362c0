package h2

import (
	"slices"
)

// endBackground ends the calls in the background that are left, well: to a client, a
// call that breaks with its connection is a sign that there is nobody any more. One that has
// no message of an answer yet is not done: the client may send it again.
func (c *Conn) endBackground() {
	if c.streams.n == 0 {
		return
	}
	left := make([]*Call, 0, c.streams.n)
	for _, s := range c.streams.slots {
		if s != nil {
			left = append(left, s.call)
		}
	}
	c.finished = true // nothing ends it meanwhile
	for _, call := range left {
		node := &call.node
		if call.unsent() {
			call.refuse()
			continue
		}
		st := &Status{}
		if call.isEndless || !call.isOpen && call.outcome.Answer == 0 {
			st = stopped
		}
		if c.f.keeps && !call.isEndless && node.conn != nil && !node.gotEnd {
			c.f.stats.Kept++
			node.close()
		}
		call.abandon(st)
	}
	c.finished = false
}

// idle is how many of the open streams of a connection that drains are nothing to wait for: once clients are
// released, those in the background. Before that, the endless ones and those that the router keeps open itself
// (Status.Open), if there are no others: their clients cannot send on this connection what those are kept open for.
func (c *Conn) idle() int {
	switch {
	case c.f.released:
		return c.background
	case c.lingers, c.background < c.streams.n:
		return 0
	}
	for _, s := range c.streams.slots {
		if s != nil && !s.call.isOpen && !s.call.isEndless {
			return 0
		}
	}
	return c.background
}

// Ask pings a node's connection, if no ping is under way: an answer that does not come is silence.
func (c *Conn) Ask() {
	if c.isOpen && !c.finished && c.pinged == 0 {
		c.pinged, c.pingAt = c.f.now, c.f.now+c.f.config.Keepalive
		c.out = append(appendFrame(c.buf(), 8, framePing, 0, 0), pingOfKeepalive...)
	}
}

// Close says that the connection is lost, or ends it with all its calls.
func (c *Conn) Close() {
	if !c.finished {
		if c.err = ErrLost; !c.isOpen {
			c.err = ErrUnreachable
		}
		c.end()
	}
	c.unwrite(c.f)
	c.f.resumeWaiting()
}

// end finishes the connection and what is left on it. Of a client with many calls it ends a part of them, and
// Advance the others: it is the client who decides how many there are.
func (c *Conn) end() {
	c.finished = true
	c.mark()
	c.partial, c.cont.block = nil, nil
	c.countUnfinished()
	if c.isClient && c.streams.n > perTurn {
		c.f.vanished = append(c.f.vanished, c)
		c.vanished = true
		c.f.leftOver += c.streams.n
		return
	}
	c.endAll()
}

// mostLeftOver is how many calls of clients that are gone may wait for their end, which is sixteen turns. With more, as many end as begin.
const mostLeftOver = 4096

// endSome ends so many calls of connections that are finished, at most. Each of them is at its client's, which is gone.
func (f *Forwarder) endSome(most int) {
	for n := 0; n < most && len(f.vanished) > 0; {
		c := f.vanished[0]
		for ; n < most && c.streams.n > 0; n++ {
			s := c.streams.any()
			s.close()
			s.call.outcome.End = Cancelled
			s.call.finish()
		}
		if c.streams.n > 0 {
			return
		}
		f.vanished = slices.Delete(f.vanished, 0, 1)
		c.endAll()
	}
}

func (c *Conn) endAll() {
	f := c.f
	if c.isClient {
		f.stats.Clients--
	} else {
		f.stats.Nodes--
	}
	slots := c.streams.slots
	c.streams = streams{}
	c.ready = queue{}
	// All are off the connection before the first call ends: with that, the connection of
	// a client that drains may end, and with it calls that are further down here.
	first := len(f.ending)
	for _, s := range slots {
		if s != nil {
			s.conn, s.queued, s.prev, s.next = nil, false, nil, nil
			f.ending = append(f.ending, s.call.Ticket())
		}
	}
	at := first
	for _, s := range slots {
		if s == nil {
			continue
		}
		call, generation := s.call, f.ending[at].generation
		if at++; call.generation != generation {
			continue
		}
		switch {
		case s.isClient:
			call.outcome.End = Cancelled
			call.finish()
		case s.gotEnd: // answered; only the request was still to be ended
			call.settle()
		case c.written+uint64(c.flying) < s.headersEnd: // what is taken may have arrived
			s.drop()
			call.refuse()
		default:
			s.drop()
			call.outcome.End = Lost
			call.fail(call.whenLost())
		}
	}
	f.leave(c)
	clear(f.ending[first:])
	f.ending = f.ending[:first]
	c.makeRoom()
	c.tellEnded()
}

// tick looks at the timeouts of a connection.
func (c *Conn) tick() {
	f, now := c.f, c.f.now
	if c.Calls() > 0 || c.calls != c.busyCalls {
		c.busy, c.busyCalls = now, c.calls
	}
	switch {
	case c.finished || !c.isOpen || c.shelved:
	case !c.isClient && !c.settled && now-c.began >= f.config.Silence+f.config.KeepaliveTimeout:
		c.err = ErrSilent
		c.refuse(&ConnError{SettingsTimeout, "no SETTINGS in time"})
	case !c.settled && now-c.began > f.config.HandshakeTimeout, c.unacked > 0 && now-c.began > f.config.HandshakeTimeout:
		f.stats.Abuses[SlowHandshake]++
		c.refuse(&ConnError{SettingsTimeout, "no SETTINGS in time"})
	case c.cont.stream != 0 && now-c.cont.since > f.config.HandshakeTimeout:
		f.stats.Abuses[SlowHandshake]++
		c.refuse(&ConnError{EnhanceYourCalm, "a header block does not end"})
	case c.backlog() > 0 && now-c.moved > f.config.StallTimeout, c.backlog() > 16*f.config.Output:
		f.stats.Abuses[Stalled]++
		c.refuse(&ConnError{EnhanceYourCalm, "no bytes are taken"})
	case c.isClient && c.draining && c.goneAt == maxStreamID && now-c.drained >= f.config.DrainTimeout:
		c.goFinally()
		c.settle()
	case c.isClient && c.pinged > 0 && now-c.pinged >= f.config.ClientTimeout:
		c.err = ErrSilent
		c.refuse(&ConnError{NoError, "no answer to a ping"})
	case c.isClient && c.pinged == 0 && c.greeted && now-c.heard >= f.config.ClientSilence:
		c.pinged = now
		c.out = append(appendFrame(c.buf(), 8, framePing, 0, 0), pingOfKeepalive...)
	case !c.isClient && c.pinged > 0 && now-c.pinged >= f.config.KeepaliveTimeout && c.Silent != nil && !c.draining:
		c.pinged = 0
		c.Silent()
	case !c.isClient && c.pinged > 0 && now-c.pinged >= f.config.KeepaliveTimeout:
		c.err = ErrSilent
		c.refuse(&ConnError{NoError, "no answer to a ping"})
	case !c.isClient && c.pinged == 0 && c.streams.n > 0 && now-c.heard >= f.config.Silence && now >= c.pingAt:
		c.Ask()
	case !c.isClient && f.config.Idle > 0 && now-c.busy >= f.config.Idle:
		c.Drain() // the next call has another one made
	}
	if c.backlog() == 0 {
		c.moved = now // nothing to take: no stall
	}
}
