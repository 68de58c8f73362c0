package h2

import (
	"slices"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// A Router or Observer that panics loses the call that it was asked about: what is here is whole
// whenever they are asked. What the Router itself keeps is its own to mend.

// failed is told to a client whose call was not sent, failedLate to one whose call was.
var (
	failed     = &Status{Code: internal, Message: "the sidecar failed while it dealt with the call, which was not sent"}
	failedLate = &Status{Code: internal, Message: "the sidecar failed while it dealt with the call, which may have been executed"}
)

func (c *Call) failure() *Status {
	if c.outcome.Node != nil {
		return failedLate
	}
	return failed
}

const routerPlace, observerPlace = "the routing of a call", "the observation of a call"

// askRoute is Router.Route.
func (f *Forwarder) askRoute(c *Call) (conn *Conn, err error) {
	defer func() {
		if v := recover(); v != nil {
			_ = panics.Caught(routerPlace, v)
			conn, err = nil, failed
		}
	}()
	return f.router.Route(c)
}

// askAnswer is Router.Answer; false: it panicked.
func (f *Forwarder) askAnswer(c *Call) (ok bool) {
	defer func() {
		if v := recover(); v != nil {
			_ = panics.Caught(routerPlace, v)
		}
	}()
	f.router.Answer(c)
	return true
}

// askDone is Router.Done.
func (f *Forwarder) askDone(c *Call) {
	defer panics.Go(routerPlace)
	f.router.Done(c, &c.outcome)
}

// askLate is Latecomer.Late.
func (c *Call) askLate(l Latecomer) (err error) {
	defer func() {
		if v := recover(); v != nil {
			_ = panics.Caught(routerPlace, v)
			err = failed
		}
	}()
	return l.Late(c)
}

// tellEnded is Conn.Ended, once.
func (c *Conn) tellEnded() {
	defer panics.Go(routerPlace)
	if ended := c.Ended; ended != nil {
		c.Ended = nil
		ended()
	}
}

// show is Observer.Observe.
func (c *Call) show(client bool, p []byte) (err error) {
	defer func() {
		if v := recover(); v != nil {
			_ = panics.Caught(observerPlace, v)
			err = c.failure()
		}
	}()
	return c.observer.Observe(client, p)
}

// Renew returns a Forwarder that goes on in place of f, of which nothing can be relied on
// because it panicked in the middle of something. It has no connections; GiveUp ends those of f.
func (f *Forwarder) Renew() *Forwarder {
	n := New(f.config, f.router)
	n.now, n.ticked, n.released, n.keeps, n.tight = f.now, f.ticked, f.released, f.keeps, f.tight
	n.stats = f.stats
	n.stats.Buffered, n.stats.Answers, n.stats.Held, n.stats.Kept, n.stats.Clients, n.stats.Nodes = 0, 0, 0, 0, 0, 0
	return n
}

// GiveUp ends every connection and call without a word to the peers. The router hears of the end of
// every call, also of those whose connections cannot be ended in order. Clients go first, so the
// calls end as Cancelled: no node is to blame. After that f routes nothing, and its connections take
// and give nothing. to goes on counting how calls ended.
func (f *Forwarder) GiveUp(to *Forwarder) {
	f.routing = true // the router is asked about no call again
	open, all := f.open(), slices.Clone(f.conns)
	for _, c := range all {
		if c.isClient {
			c.giveUp()
		}
	}
	for _, t := range open {
		if t.call.generation == t.generation {
			t.call.lose()
		}
	}
	for _, c := range slices.Clone(f.conns) { // connections of nodes are left
		c.streams = streams{}
		c.giveUp()
	}
	for _, c := range all { // calls that could not be ended in order, and clients whose calls were to end in parts
		c.tellEnded()
	}
	to.stats.Ends = f.stats.Ends
}

// giveUp ends the connection, and leaves nothing on it.
func (c *Conn) giveUp() {
	_ = panics.Call("the end of a connection", func() error { c.Close(); return nil })
	c.finished, c.isOpen = true, false
	c.streams, c.ready, c.waiting, c.ahead, c.out = streams{}, queue{}, nil, pieces{}, nil
}

// open returns the calls that have not ended, some of them twice.
func (f *Forwarder) open() []Ticket {
	open := slices.Clone(f.ending)
	for _, c := range f.conns {
		for _, s := range c.streams.slots {
			if s != nil {
				open = append(open, s.call.Ticket())
			}
		}
		for _, t := range c.waiting {
			if t.call.own != nil && t.call.generation == t.generation {
				open = append(open, t)
			}
		}
	}
	return open
}

// lose has the router hear of the end of a call that could not be ended in order.
func (c *Call) lose() {
	c.isHeld, c.isOpen = false, false
	c.outcome.End, c.outcome.Ended = Cancelled, c.f.now
	c.f.stats.Ends[Cancelled]++
	if c.routed {
		c.f.askDone(c)
	}
	if c.own != nil {
		c.own.over()
	}
	c.generation++
}
