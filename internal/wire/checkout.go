package wire

import (
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// checkOut sends a call to the home node of its server session, once it has one.
func (f *frames) checkOut(c *h2.Call, k *call, who *caller, l *use, r *request, query preparedAt) (*h2.Conn, error) {
	for try := 1; ; try++ {
		if l.Server == nil {
			if err := f.acquire(c, k, who, l); err != nil {
				return nil, err
			}
		} else if err := f.pausing.onSession(f.server.sessions, c, k, r); err != nil {
			return nil, err
		}
		conn, err := f.reach(k, l.Server.Node(), l.Bound)
		if err == nil {
			f.rename(c, k.method.Session, r.message, r.at, l.Server.Name(), k.resourcePool(r.message[:r.at.from]), query)
			c.Remove(headerAccept)   // answers are looked at
			c.Remove(headerEncoding) // the request is not compressed any more, and some servers compress if clients do
			l.named = r.at.to > 0
			l.Request, l.skip, l.scanning = virtual.Request{}, 0, false
			if r.scanned {
				l.Request, l.skip = requestOf(&f.seen.Found), uint32(protocol.PrefixSize+len(r.message))
				l.Request.Temporary = l.Request.Temporary || query.leaves
			} else {
				l.scanAll()
				l.scan.Temporary = query.leaves
			}
			if l.answer.Start(k.method.Answer); l.prepares {
				l.answer.Into = &l.queryID
			}
			if c.Observe(k); l.detour != nil {
				c.WhenLost(whenLostAround(k.method, !undone(k.method, l.Request, r.scanned)))
			}
			return conn, nil
		}
		full := hop.Busy(err)
		switch {
		case l.Bound && full:
			return nil, k.refuse(refusalOf(err, 0))
		case l.Bound && f.reroute(c, l, err):
			return nil, h2.ErrPark
		case l.Bound:
			back, lost := f.server.sessions.Lose(&l.Use)
			if f.giveBack(back); lost {
				return nil, k.refuse(errLost)
			}
			// Nothing lived on it: another one does as well.
		default:
			back := virtual.Return{Identity: l.Identity, Server: l.Server, Fate: virtual.Discarded}
			if full {
				back.Fate = virtual.Released
			}
			l.Server = nil
			f.giveBack(back)
		}
		if try == hop.Picks {
			refused := refusalOf(err, 0)
			if refused.status == Ydb.StatusIds_BAD_SESSION { // not the client's
				refused = refusalOf(nil, 0)
			}
			return nil, k.refuse(refused)
		}
	}
}

// reroute has a call routed again after a while that found no connection to go over, if something would be lost without that.
func (f *frames) reroute(c *h2.Call, l *use, err error) bool {
	if _, unreached := err.(*h2.Status); !unreached || !f.server.sessions.Loses(&l.Use) {
		return false
	}
	pause, ok := l.reroutes.Next()
	if ok {
		t := c.Ticket()
		time.AfterFunc(pause, func() { f.post(mail{ticket: t}) })
	}
	return ok
}

// acquire takes a session from the pool, or joins its queue: h2.ErrPark.
func (f *frames) acquire(c *h2.Call, k *call, who *caller, l *use) error {
	if l.waited && l.err != nil {
		err := l.Identity.Refusal(l.err)
		l.err = nil
		return k.refuse(refusalOf(err, 0))
	}
	if err := k.app.Ask(class); err != nil {
		return k.refuse(refusalOf(err, 0))
	}
	left, _ := c.Left()
	p, by := l.Identity.Pool, k.errand().Ask(left)
	by.From = c.Client().Number()
	if l.Session != nil {
		by.Near = l.Session.Near()
	}
	k.asked = true
	s, ok := p.Try(by)
	if ok {
		k.asked, l.Server = false, s
		answered(k.app, pool.Grant{Session: s}, nil)
		return nil
	}
	k.errand().Complete(&by)
	l.Identity.OpensWith(&who.Ticket)
	w := f.newWaiting(l, who, k.app, c.Ticket())
	k.asked, l.inQueue, l.waited = false, w, true
	g, err := p.Wait(w.waiter, by)
	if err == nil && g.Session == nil {
		f.stripe.Waited()
		if f.server.kept {
			w.each = patience(c.Left())
			f.lookAt(w)
		}
		return h2.ErrPark
	}
	l.inQueue, l.Server = nil, g.Session
	f.freeWaiting(w)
	if answered(k.app, g, err); err != nil {
		return k.refuse(refusalOf(l.Identity.Refusal(err), 0))
	}
	return nil
}

// Late implements h2.Latecomer.
func (f *frames) Late(c *h2.Call) error {
	k, ok := c.Data.(*call)
	inQueue := ok && k.uses && k.inQueue != nil
	switch {
	case ok && k.paused, inQueue && f.server.deps.Hold.On():
		return k.refuse(errPaused)
	case inQueue:
		return k.refuse(refusalOf(errWaited, 0))
	}
	return &h2.Status{Code: int(codes.DeadlineExceeded), Message: "the call's time is up"}
}

// checkIn is Done for a call of a client that uses a session.
func (f *frames) checkIn(k *call, o *h2.Outcome, verdict ydbstatus.Verdict) {
	l := &k.use
	if k.app != nil {
		k.remember(o)
	}
	k.uses = false
	if l.waited {
		f.leaveQueue(k)
	}
	switch v := l.Session; {
	case l.attach:
		l.Session = nil
		f.giveBack(f.server.sessions.Detached(v, l.stream))
	case l.Server != nil || v != nil:
		out := l.outcome(&f.server.texts, o, verdict)
		back, watch := f.server.sessions.Settle(f.stripe, &l.Use, &out)
		if client, ok := watch.(*h2.Conn); ok && client.Ended == nil {
			client.Ended = func() {
				if !f.old[client] { // else it was told to go, and comes again
					f.server.sessions.ClientGone(client)
				}
			}
		}
		f.giveBack(back)
	}
	f.read()
	l.forget()
}

// leaveQueue takes the call out of the pool's queue, if it waits there.
func (f *frames) leaveQueue(k *call) {
	w := k.inQueue
	if w == nil {
		return
	}
	k.inQueue, w.use = nil, nil
	if !w.identity.Pool.Cancel(w.waiter) {
		return // it is told now
	}
	if k.said == Ydb.StatusIds_OVERLOADED {
		w.app.Lost(class, apps.ByTimeout)
	} else {
		w.app.Cancel(class)
	}
	f.freeWaiting(w)
}

// discard is for a call whose Done panicked: it ends the virtual session and closes the server
// session, of which the state is unknown.
func (f *frames) discard(l *use) {
	if v := l.Session; l.attach {
		if l.Session = nil; v != nil {
			f.giveBack(f.server.sessions.Detached(v, l.stream))
		}
		return
	}
	f.giveBack(f.server.sessions.Abandon(f.stripe, &l.Use))
}
