package wire

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// waiting is an entry in the pool's queue.
type waiting struct {
	waiter   *pool.Waiter
	identity *virtual.IdentityPool
	who      *caller
	app      *apps.Stripe
	grant    pool.Grant
	err      error
	ticket   h2.Ticket
	use      *use     // nil: the call is over
	prev     *waiting // in the list of those of the shard that wait
	next     *waiting

	generation uint64        // counts the uses of this entry, which is used again
	look       *time.Timer   // asks whether the wait is in vain; nil: nothing does
	each       time.Duration // between two looks
}

// mail is for a shard, from whatever goroutine.
type mail struct {
	told       *waiting
	looked     *waiting   // it was asked whether the wait is in vain
	generation uint64     // which use of looked was asked about
	kept       bool       // the wait is in vain
	ticket     h2.Ticket  // call that goes on
	status     *h2.Status // if not nil: ends the call

	refused  *virtual.IdentityPool // the cluster opens no session for its ticket ofTicket
	ofTicket string

	woken *inlineState // a call of the plain API that was parked
}

// uses is the part of a shard's router that deals with sessions of the pool.
type uses struct {
	spareWaiting *waiting
	inflater     inflater
	inflated     inflatedNow
	inLine       waiting // head of the ring of those that wait
	scratch      []byte
	seen         protocol.Scan // of the message in hand, if that is here whole
	learned      [16]protocol.Learned

	wake   chan struct{}  // capacity 1; has deliver take a turn
	woken  []*inlineState // parked calls whose mail was read; sent at the end of a turn
	ending bool           // TurnEnds is under way, or comes in this turn
	inTurn atomic.Bool    // the shard will look at its mail in this turn
	some   atomic.Bool    // there is mail
	mu     sync.Mutex     // guards post
	mails  []mail
	over   bool // nobody reads them any more
}

func (q *uses) init() {
	q.wake = make(chan struct{}, 1)
	q.inLine.prev, q.inLine.next = &q.inLine, &q.inLine
}

// post is for any goroutine; it does not block.
func (q *uses) post(m mail) {
	q.mu.Lock()
	if q.over {
		q.mu.Unlock()
		m.giveBack()
		return
	}
	q.mails = append(q.mails, m)
	q.some.Store(true)
	q.mu.Unlock()
	if !q.inTurn.Load() {
		q.ring()
	}
}

// ring has deliver take a turn. It does not block.
func (q *uses) ring() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// deliver deals with mail that came from outside the shard, until ctx ends.
func (f *frames) deliver(ctx context.Context) {
	for {
		select {
		case <-f.wake:
			for behind := true; behind; { // others have their turns in between
				f.shard.Do(func(e *h2.Forwarder) {
					f.readBeforeTheEnd()
					e.CatchUp()
					behind = e.Behind()
				})
			}
		case <-ctx.Done():
			return
		}
	}
}

// mostWoken is how many calls of the plain API that were parked are sent in one turn.
const mostWoken = 64

// TurnEnds implements driver.Ender. It reads the mail that was posted in this turn, and sends up to
// mostWoken parked calls of the plain API.
func (f *frames) TurnEnds(e *h2.Forwarder) {
	mail := f.inTurn.Load()
	if !mail && len(f.woken) == 0 {
		return
	}
	f.ending = true
	defer func() {
		f.ending = false
		if len(f.woken) > 0 || e.Behind() { // also after a panic of a call
			f.ring()
		}
	}()
	if mail {
		f.inTurn.Store(false)
		f.read()
	}
	for n := 0; n < mostWoken && len(f.woken) > 0; n++ {
		b := f.woken[0]
		f.woken[0], f.woken = nil, f.woken[1:]
		b.sendParked()
	}
	e.CatchUp()
}

// kept is Sessions.Kept, in the shard's turn. It reads the mail, so that the streams of sessions that are no reason
// any more to keep a connection end while it is told to go, and not after.
func (f *frames) kept() map[*h2.Conn]bool {
	all := map[*h2.Conn]bool{}
	f.server.sessions.Kept(func(c virtual.Client) { all[c.(*h2.Conn)] = true })
	f.read()
	return all
}

// leave is Sessions.Leave for connections that are too old, in the shard's turn, with the mail read as kept does.
func (f *frames) leave(old map[*h2.Conn]bool) {
	if f.old = old; len(old) > 0 && f.server.sessions != nil {
		f.server.sessions.Leave(func(c virtual.Client) bool { return old[c.(*h2.Conn)] })
		f.read()
	}
}

// read deals with mail, in the shard's turn.
func (f *frames) read() {
	for f.some.Load() {
		f.mu.Lock()
		all := f.mails
		f.mails = nil
		f.some.Store(false)
		f.mu.Unlock()
		f.readAll(all)
	}
}

// readBeforeTheEnd is read where TurnEnds comes in this turn.
func (f *frames) readBeforeTheEnd() {
	f.ending = true
	defer func() { f.ending = false }()
	f.read()
}

// shut deals with the mail that is left, and has later mail dealt with as it is posted. The shard has ended.
func (f *frames) shut() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	f.read()
}

// giveBack is for mail of a shard that has ended: all calls are over, and only a session matters. That of a parked call of the plain API is
// returned by the goroutine that ends the call, whose context has ended.
func (m mail) giveBack() {
	if p := m.told; p != nil {
		p.app.Cancel(class)
		virtual.Return{Identity: p.identity, Server: p.grant.Session, Fate: virtual.Released}.Give()
	}
}

func (f *frames) readAll(all []mail) {
	defer func() {
		for _, m := range all { // left after a panic: another turn deals with it
			f.post(m)
		}
	}()
	for len(all) > 0 {
		m := all[0]
		all = all[1:]
		switch p := m.told; {
		case m.refused != nil:
			f.turnAway(m.refused, m.ofTicket)
		case m.woken != nil:
			f.woken = append(f.woken, m.woken) // TurnEnds sends it: this may run where a call must not begin
			if !f.ending {
				f.ring() // TurnEnds may be over in this turn
			}
		case m.looked != nil:
			f.looked(m.looked, m.generation, m.kept)
		case p == nil:
			f.shard.Later(m.ticket, m.status)
		case p.use == nil: // its call is over
			back := virtual.Return{Identity: p.identity, Server: p.grant.Session, Fate: virtual.Released}
			p.app.Cancel(class)
			f.freeWaiting(p)
			f.giveBack(back)
		default:
			answered(p.app, p.grant, p.err)
			p.use.Server, p.use.err, p.use.inQueue = p.grant.Session, p.err, nil
			f.shard.Later(p.ticket, nil)
			f.freeWaiting(p)
		}
	}
}

// turnAway ends the wait of an identity's calls that came with a ticket.
func (f *frames) turnAway(t *virtual.IdentityPool, ticket string) {
	for p := f.inLine.next; p != &f.inLine; {
		next := p.next
		if p.identity == t && p.who.Ticket == ticket && t.Pool.Cancel(p.waiter) { // else it is told now
			p.app.Lost(class, apps.ByOthers)
			p.use.err, p.use.inQueue = virtual.ErrUnauthorized, nil
			f.shard.Later(p.ticket, nil)
			f.freeWaiting(p)
		}
		p = next
	}
}

// lookAt has somebody look after a while whether a wait is in vain.
func (f *frames) lookAt(p *waiting) {
	t, turn := p.identity, p.generation
	p.look = time.AfterFunc(p.each, func() {
		kept := false
		// then the call waits on
		_ = panics.Call("a look at who keeps sessions", func() error { kept = f.server.sessions.KeepAll(t); return nil })
		f.post(mail{looked: p, generation: turn, kept: kept})
	})
}

// looked ends a wait that is in vain.
func (f *frames) looked(p *waiting, turn uint64, kept bool) {
	switch {
	case p.generation != turn || p.use == nil: // its call is over
	case !kept:
		f.lookAt(p)
	case p.identity.Pool.Cancel(p.waiter): // else it is told now
		f.server.sessions.Starved.Add(1)
		p.app.Lost(class, apps.ByTimeout)
		p.use.err, p.use.inQueue = errKept, nil
		f.shard.Later(p.ticket, nil)
		f.freeWaiting(p)
	}
}

// giveBack gives a server session back. Whoever waits for it may be of this shard.
func (f *frames) giveBack(r virtual.Return) {
	if r.Server == nil || r.Fate == virtual.Kept {
		return
	}
	if f.inLine.next == &f.inLine { // nobody of this shard waits
		r.Give()
		return
	}
	if f.inTurn.Swap(true) {
		r.Give()
		return
	}
	defer f.read() // also after a panic
	defer f.inTurn.Store(false)
	r.Give()
}

func (s *uses) newWaiting(l *use, who *caller, app *apps.Stripe, t h2.Ticket) *waiting {
	p := s.spareWaiting
	if p == nil {
		p = new(waiting)
		p.waiter = pool.NewWaiter(func(g pool.Grant, err error) {
			p.grant, p.err = g, err
			s.post(mail{told: p})
		})
	} else {
		s.spareWaiting = p.next
	}
	p.use, p.identity, p.who, p.app, p.ticket = l, l.Identity, who, app, t
	p.prev, p.next = s.inLine.prev, &s.inLine
	p.prev.next, p.next.prev = p, p
	return p
}

func (s *uses) freeWaiting(p *waiting) {
	if p.generation++; p.look != nil {
		p.look.Stop()
		p.look = nil
	}
	p.prev.next, p.next.prev = p.next, p.prev
	p.grant, p.err, p.use, p.identity, p.who, p.app, p.ticket, p.prev = pool.Grant{}, nil, nil, nil, nil, nil, h2.Ticket{}, nil
	p.next, s.spareWaiting = s.spareWaiting, p
}
