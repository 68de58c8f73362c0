package wire

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// longestWait is how long a call waits for a session of the pool; a shorter deadline of
// its own counts first.
const longestWait = 30 * time.Second

// keptWait is how long a call waits for a session while sessions of mode session keep all that its
// pool may have; a third of the time that the client leaves counts first. Then the wait is in vain:
// such a session goes back only when its client closes it.
const keptWait = 5 * time.Second

// patience is the time from one look whether a wait is in vain to the next. left is until the call's deadline, if it has one.
func patience(left time.Duration, limited bool) time.Duration {
	if limited {
		return min(keptWait, left/3)
	}
	return keptWait
}

// loan is what is remembered of a call that concerns a virtual session, or a session of
// the pool. It is the call's Observer.
//
// What each call needs of it is two lines of the cache: it is written where the request comes and
// read where the answer does, which is often another processor.
type loan struct {
	method *protocol.Method
	virtual.Loan
	scan *protocol.Scan // of the request; nil: there was no use for it yet
	skip uint32         // octets of the request that were looked at before

	stream   uint8   // which of the session's streams the call is: see virtual.Sessions.Attach
	attach   bool    // the call is the session's stream
	named    bool    // a session's id was there, and is replaced
	implicit bool    // the call names no session
	prepares bool    // the answer has the id of text
	scanning bool    // scan is in use
	waited   bool    // place or err was set
	foreign  bool    // the node serves another database
	detour   *detour // around the owner of the session, which cannot be reached; nil
	reroutes hop.Reroutes
	answer   protocol.Scan // the end of it, and what follows, is of calls that are seldom

	text    string // of a query to be prepared
	queryID []byte
	place   *waiting // in the pool's line
	err     error    // what came of waiting
}

func requestOf(r *protocol.Found) virtual.Request {
	return virtual.Request{HasTx: r.HasTx, Begin: r.Begin, Commit: r.Commit, Temporary: r.Temporary, Tx: r.Tx}
}

// Observe implements h2.Observer, for a call that has a loan.
func (k *call) Observe(client bool, p []byte) error {
	l := &k.loan
	if !client {
		if l.detour != nil {
			l.detour.heard(false)
		}
		l.answer.Write(p) // what is wrong with it is seen when it has ended
		if l.answer.Status == Ydb.StatusIds_UNAUTHORIZED && l.answer.Messages == 1 && ydbstatus.AnswerForeign(p) {
			l.foreign = true
			return k.refuse(errForeign)
		}
		if tx := l.answer.Opened(); tx != 0 && tx != l.Request.Tx && l.Told == 0 && l.Session != nil {
			k.frames.server.sessions.Tell(&l.Loan, tx)
		}
		return nil
	}
	if l.detour != nil {
		l.detour.heard(true)
	}
	if int(l.skip) == len(p) { // as usual
		l.skip = 0
		return nil
	}
	n := min(int(l.skip), len(p))
	if l.skip -= uint32(n); n == len(p) {
		return nil
	}
	if !l.scanning {
		return k.refuse(errMessages)
	}
	s := l.scan
	switch {
	case !s.Write(p[n:]) || s.Session && !l.named:
		return k.refuse(errForm)
	case s.Messages > 0 && (s.Messages > 1 || !s.Whole()):
		return k.refuse(errMessages)
	}
	l.Request = requestOf(&s.Found)
	return nil
}

// scanAll has the whole request scanned as it passes: its first message was not when the call was placed.
func (l *loan) scanAll() {
	if l.scan == nil {
		l.scan = new(protocol.Scan)
	}
	l.scanning = true
	l.scan.Start(l.method.Request)
}

// hear keeps the hints about the pool's sessions here.
func (l *loan) hear(c *h2.Call) {
	if l.Lease == nil || c.Header(headerHints) == nil {
		return
	}
	c.Values(headerHints, func(hints []byte) { l.Closing = l.Closing || protocol.SaysClose(hints) })
	c.Remove(headerHints)
}

// waiting is a place in the pool's line.
type waiting struct {
	waiter *pool.Waiter
	tenant *virtual.Tenant
	who    *caller
	app    *apps.Stripe
	grant  pool.Grant
	err    error
	ticket h2.Ticket
	loan   *loan    // nil: the call is over
	prev   *waiting // in the list of those of the shard that wait
	next   *waiting

	turn uint64        // the use of this place; a place is used again
	look *time.Timer   // asks whether the wait is in vain; nil: nothing does
	each time.Duration // between two looks
}

// mail is for a shard, from whatever goroutine.
type mail struct {
	told   *waiting
	looked *waiting   // whether the wait is in vain, in
	turn   uint64     // that use of the place:
	kept   bool       // it is
	ticket h2.Ticket  // goes on
	status *h2.Status // if not nil: ends that call

	refused  *virtual.Tenant // the cluster opens no session for this ticket of its:
	ofTicket string

	woken *turned // a call of the plain API that was parked
}

// loans is the part of a shard's router that deals with sessions of the pool.
type loans struct {
	freePlace *waiting
	inflater  inflater
	inflated  inflatedNow
	inLine    waiting // head of the ring of those that wait
	scratch   []byte
	seen      protocol.Scan // of the message in hand, if that is here whole
	learned   [16]protocol.Learned

	wake   chan struct{} // capacity 1; has deliver take a turn
	woken  []*turned     // parked calls whose mail was read; sent at the end of a turn
	ending bool          // TurnEnds is under way, or comes in this turn
	inTurn atomic.Bool   // the shard will look at its mail in this turn
	some   atomic.Bool   // there is mail
	mu     sync.Mutex    // guards post
	mails  []mail
	over   bool // nobody reads them any more
}

func (q *loans) init() {
	q.wake = make(chan struct{}, 1)
	q.inLine.prev, q.inLine.next = &q.inLine, &q.inLine
}

// post is for any goroutine; it does not block.
func (q *loans) post(m mail) {
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
func (q *loans) ring() {
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

// TurnEnds implements driver.Ender. It reads the mail that was posted in this turn, and sends up to mostWoken parked calls of the plain API.
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
		virtual.Return{Tenant: p.tenant, Lease: p.grant.Session, Fate: virtual.Released}.Give()
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
			f.looked(m.looked, m.turn, m.kept)
		case p == nil:
			f.shard.Later(m.ticket, m.status)
		case p.loan == nil: // its call is over
			back := virtual.Return{Tenant: p.tenant, Lease: p.grant.Session, Fate: virtual.Released}
			p.app.Cancel(class)
			f.freeWaiting(p)
			f.giveBack(back)
		default:
			answered(p.app, p.grant, p.err)
			p.loan.Lease, p.loan.err, p.loan.place = p.grant.Session, p.err, nil
			f.shard.Later(p.ticket, nil)
			f.freeWaiting(p)
		}
	}
}

// turnAway ends the wait of a tenant's calls that came with a ticket.
func (f *frames) turnAway(t *virtual.Tenant, ticket string) {
	for p := f.inLine.next; p != &f.inLine; {
		next := p.next
		if p.tenant == t && p.who.Ticket == ticket && t.Pool.Cancel(p.waiter) { // else it is told now
			p.app.Lost(class, apps.ByOthers)
			p.loan.err, p.loan.place = virtual.ErrUnauthorized, nil
			f.shard.Later(p.ticket, nil)
			f.freeWaiting(p)
		}
		p = next
	}
}

// lookAt has somebody look after a while whether a wait is in vain.
func (f *frames) lookAt(p *waiting) {
	t, turn := p.tenant, p.turn
	p.look = time.AfterFunc(p.each, func() {
		kept := false
		_ = panics.Call("a look at who keeps sessions", func() error { kept = f.server.sessions.KeepAll(t); return nil }) // then the call waits on
		f.post(mail{looked: p, turn: turn, kept: kept})
	})
}

// looked ends a wait that is in vain.
func (f *frames) looked(p *waiting, turn uint64, kept bool) {
	switch {
	case p.turn != turn || p.loan == nil: // its call is over
	case !kept:
		f.lookAt(p)
	case p.tenant.Pool.Cancel(p.waiter): // else it is told now
		f.server.sessions.Starved.Add(1)
		p.app.Lost(class, apps.ByTimeout)
		p.loan.err, p.loan.place = errKept, nil
		f.shard.Later(p.ticket, nil)
		f.freeWaiting(p)
	}
}

// giveBack gives a server session back. Whoever waits for it may be of this shard.
func (f *frames) giveBack(r virtual.Return) {
	if r.Lease == nil || r.Fate == virtual.Kept {
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

func (f *frames) newWaiting(l *loan, who *caller, app *apps.Stripe, t h2.Ticket) *waiting {
	p := f.freePlace
	if p == nil {
		p = new(waiting)
		p.waiter = pool.NewWaiter(func(g pool.Grant, err error) {
			p.grant, p.err = g, err
			f.post(mail{told: p})
		})
	} else {
		f.freePlace = p.next
	}
	p.loan, p.tenant, p.who, p.app, p.ticket = l, l.Tenant, who, app, t
	p.prev, p.next = f.inLine.prev, &f.inLine
	p.prev.next, p.next.prev = p, p
	return p
}

func (f *frames) freeWaiting(p *waiting) {
	if p.turn++; p.look != nil {
		p.look.Stop()
		p.look = nil
	}
	p.prev.next, p.next.prev = p.next, p.prev
	p.grant, p.err, p.loan, p.tenant, p.who, p.app, p.ticket, p.prev = pool.Grant{}, nil, nil, nil, nil, nil, h2.Ticket{}, nil
	p.next, f.freePlace = f.freePlace, p
}

// lend takes the call's loan into use.
func (k *call) lend() *loan {
	k.lends = true
	return &k.loan
}

// forget makes a loan fit for the next call.
func (l *loan) forget() {
	l.Loan, l.skip, l.reroutes = virtual.Loan{}, 0, 0
	l.attach, l.named, l.implicit, l.scanning = false, false, false, false
	if l.prepares {
		l.text, l.queryID, l.prepares = "", l.queryID[:0], false
	}
	if l.waited {
		l.place, l.err, l.waited = nil, nil, false
	}
}

// refuse answers a call here.
func (k *call) refuse(r refusal) error {
	k.said = r.status
	return r.answer(k.method)
}

// say answers a call here, well.
func (k *call) say(typ string, fields []byte) error {
	k.said = Ydb.StatusIds_SUCCESS
	return &h2.Status{Body: k.method.Success(typ, fields)}
}

// mostBytes is how long a message to YDB may be. A node refuses a longer one as it refuses what is too much for it.
const mostBytes = 64_000_000

var (
	errFullHouse = refusal{status: Ydb.StatusIds_OVERLOADED, text: "ydb-sidecar: as many sessions are open as wire.max_virtual_sessions allows"}
	errTicket    = refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE, "ydb-sidecar: the sidecar has no credentials now; the call was not sent"}
	errNoTicket  = refusal{codes.Unauthenticated, Ydb.StatusIds_UNAUTHORIZED, "ydb-sidecar: the call has no credentials (header x-ydb-auth-ticket), and would reach the cluster as the sidecar itself, which shows it a certificate (ydb.cert_file): send a ticket, or set wire.auth=own for everybody to work with the sidecar's credentials"}
	errDatabase  = refusal{codes.PermissionDenied, Ydb.StatusIds_UNAUTHORIZED, "ydb-sidecar: this database is not served here: name that of ydb.url, or one of wire.databases"}
	errForm      = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST, "ydb-sidecar: the message has a form that no client of YDB sends: a field that comes twice, both fields of a oneof, or fields out of order"}
	errTooLarge  = refusal{codes.ResourceExhausted, Ydb.StatusIds_BAD_REQUEST, "ydb-sidecar: the request is longer than 64,000,000 bytes, the most that YDB accepts: send less at a time"}
	errMessages  = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST, "ydb-sidecar: the request has more than one message, and the method takes one: send each message in a call of its own"}
)

// login is how clients get a ticket, which they do not have yet.
const login = "/Ydb.Auth.V1.AuthService/Login"

// proved refuses a call without a ticket where nodes are shown a certificate of the sidecar's: to them the call would be the
// sidecar's own, and with wire.auth=caller nobody works with its credentials.
func (f *frames) proved(c *h2.Call, k *call) error {
	if !f.server.strict || k.method != nil && k.method.Path == login {
		return nil
	}
	ticket := c.Header(headerTicket)
	if len(bytes.TrimSpace(ticket)) == 0 { // a node may not read the blanks
		return k.refuse(errNoTicket)
	}
	if c.Repeated(headerTicket) { // the node must not read another one
		c.Set(headerTicket, ticket)
	}
	return nil
}

// identify sees to the database and the credentials of a call: the caller's own, or the sidecar's.
func (f *frames) identify(c *h2.Call, k *call) (*caller, error) {
	who, refused := f.callerOf(c)
	if refused != nil {
		return nil, k.refuse(*refused)
	}
	if err := f.proved(c, k); err != nil {
		return nil, err
	}
	f.hide(c, who)
	if who.asked != who.Database || c.Repeated(headerDatabase) { // the node must not read another one than we did
		c.Set(headerDatabase, []byte(who.Database))
	}
	if !f.server.own && c.Repeated(headerTicket) {
		c.Set(headerTicket, []byte(who.Ticket))
	}
	if !f.server.own || k.method != nil && k.method.Path == login {
		return who, nil
	}
	switch ticket, err := f.server.deps.Ticket(); {
	case err != nil:
		return nil, k.refuse(errTicket)
	case ticket != "":
		c.Set(headerTicket, []byte(ticket))
	default:
		c.Remove(headerTicket)
	}
	return who, nil
}

// lend is Route where sessions are virtual.
func (f *frames) lend(c *h2.Call, k *call) (*h2.Conn, error) {
	if k.method != nil && k.method.Role == protocol.RoleCreate {
		if mode := f.modeOf(c); mode != ModePassthrough {
			return nil, f.create(c, k, mode == ModeSession)
		}
	}
	who, err := f.identify(c, k)
	if err != nil {
		return nil, err
	}
	k.join(c)
	m := k.method
	if m == streamWrite {
		if err := f.writeTopic(c, who); err != nil {
			return nil, err
		}
	}
	if m == nil || m.Role == protocol.RoleNone || m.Role == protocol.RoleCreate {
		if err := f.admit(c, k, who, false); err != nil {
			return nil, err
		}
		if err, ok := f.locate(c, k, who); ok {
			return nil, err
		}
		if m == streamWrite {
			node, err := f.pin(c)
			if err != nil {
				return nil, err
			}
			return f.connectTo(c, k, node)
		}
		return f.connect(c, k, 0)
	}
	if c.Compressed() {
		if err := f.inflate(c, k, who); err != nil {
			return nil, err
		}
	}
	if n, known := c.Announced(); known && n > mostBytes {
		return nil, k.refuse(errTooLarge)
	}
	message, whole := c.Message()
	var at sessionAt
	scanned, enough := true, true
	if u := k.unpacking; u != nil {
		at, f.seen.Found = u.at, u.found
	} else {
		at, scanned, enough = f.findSession(m, message, whole)
	}
	if !enough {
		return nil, h2.ErrNeedMessage
	}
	inTx := scanned && f.seen.HasTx || !scanned && m.NamesTx(message)
	if m.Role != protocol.RoleAttach { // which is no load
		if err := f.admit(c, k, who, m.NeedsOpen() || inTx); err != nil {
			return nil, err
		}
	}
	if m.Role == protocol.RoleFree {
		if err, ok := f.locate(c, k, who); ok {
			return nil, err
		}
	}
	if at.to == 0 || len(at.id) == 0 {
		if m.Role != protocol.RoleImplicit || !f.server.implicit {
			return f.pass(c, k, 0, scanned, at)
		}
		if whole && !scanned && k.scans() {
			return nil, k.refuse(errForm)
		}
		t, err := f.tenantOf(c, k, who)
		if err != nil {
			return nil, err
		}
		l := k.lend()
		if l.implicit = true; l.Lease == nil { // else it is from the pool of the tenant that the call waited at
			l.Tenant = t
		}
		return f.borrow(c, k, who, l, message, scanned, at, preparedAt{})
	}
	if k.lends && k.implicit { // it was not there at first
		return nil, k.refuse(errForm)
	}
	id, ok := virtual.Parse(at.id)
	if !ok {
		owner := protocol.Owner(at.id)
		if owner == virtual.NodeID {
			return nil, k.refuse(errNoSession)
		}
		if m.Role == protocol.RoleFree {
			return f.connect(c, k, 0)
		}
		if f.server.deps.Mine != nil && f.server.deps.Mine(at.id) {
			return nil, k.refuse(errNoSession)
		}
		return f.pass(c, k, owner, scanned, at)
	}
	switch m.Role {
	case protocol.RoleAttach, protocol.RoleDelete, protocol.RoleKeep:
		return nil, f.care(c, k, who, id)
	case protocol.RoleFree:
		return f.withoutSession(c, k, at)
	}
	if whole && !scanned && k.scans() {
		return nil, k.refuse(errForm)
	}
	l := k.lend()
	if l.Session == nil {
		t, err := f.tenantOf(c, k, who)
		if err != nil {
			return nil, err
		}
		e, err := f.server.sessions.Enter(id, &who.Caller, t, f.server.appOf(who), inTx, c.Client())
		if err == virtual.ErrOtherApp { // the session bears the name that it was created with
			if t, err = f.server.tenants.ForApp(t, e.App(), mailbox{f, c.Ticket()}); err != nil {
				return nil, k.noTenant(err)
			}
			e, err = f.server.sessions.Enter(id, &who.Caller, t, e.App(), inTx, c.Client())
		}
		if err != nil {
			return nil, k.refuse(refusalOf(err, 0))
		}
		l.Tenant, l.Session, l.Lease, l.Bound = e.Tenant, e.Session, e.Lease, e.Lease != nil
		f.giveBack(e.Stale)
	}
	query, enough, known := f.prepare(l, message, whole)
	switch {
	case !known:
		return nil, k.refuse(errForgotten)
	case !enough:
		return nil, h2.ErrNeedMessage
	}
	return f.borrow(c, k, who, l, message, scanned, at, query)
}

// scans reports whether findSession scans a request of the call's method that is here whole: if it did not, that is refused
// before it borrows anything. One that was compressed was looked at when it was inflated.
func (k *call) scans() bool { return len(k.method.Session) == 1 && k.unpacking == nil }

// pass sends a call on a session that is none of the sidecar's to its owner, or one without a session to any node. The rest of a
// message that was not scanned is scanned as it passes, since a node takes the last id that comes; the observer that does so takes the
// place of the one that connect leaves.
func (f *frames) pass(c *h2.Call, k *call, owner cluster.NodeID, scanned bool, at sessionAt) (*h2.Conn, error) {
	conn, err := f.connect(c, k, owner)
	if err == nil && !scanned && k.method.Role != protocol.RoleFree {
		d := &door{call: k, opened: owner != 0, scan: new(protocol.Scan), named: at.to > 0}
		d.scan.Start(k.method.Request)
		c.Observe(d)
	}
	return conn, err
}

// withoutSession sends a call to any node without the id of its virtual session, which may have ended:
// servers do not look at it. So the call runs beside whatever is under way on the session.
func (f *frames) withoutSession(c *h2.Call, k *call, at sessionAt) (*h2.Conn, error) {
	conn, err := f.connect(c, k, 0)
	if err == nil {
		c.Splice(at.from, at.to, nil)
		c.Remove(headerEncoding) // the request is not compressed any more
	}
	return conn, err
}

// care answers a call about a virtual session itself.
func (f *frames) care(c *h2.Call, k *call, who *caller, id virtual.ID) error {
	vs := f.server.sessions
	v, sure := vs.See(id, &who.Caller, nil)
	if !sure {
		t, err := f.tenantOf(c, k, who)
		if err != nil {
			return err
		}
		v, _ = vs.See(id, &who.Caller, t)
	}
	switch {
	case k.method.Role == protocol.RoleDelete:
		if v != nil {
			f.giveBack(vs.End(v))
			f.read()
		}
		return k.say("", nil)
	case v == nil:
		return k.refuse(errNoSession)
	case k.method.Role == protocol.RoleAttach:
		return f.attach(c, k, v)
	}
	state := uint64(1)
	if vs.Touch(v) {
		state = 2
	}
	return k.say("Ydb.Table.KeepAliveResult", protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), state))
}

// modeOf is the mode of sessions that a call creates.
func (f *frames) modeOf(c *h2.Call) string {
	if len(f.server.apps) > 0 {
		if mode, ok := f.server.apps[string(c.Header(headerApplication))]; ok {
			return mode
		}
	}
	if f.server.always {
		return ModeSession
	}
	return ModeTransaction
}

// create answers CreateSession.
func (f *frames) create(c *h2.Call, k *call, always bool) error {
	who, refused := f.callerOf(c)
	if refused != nil {
		return k.refuse(*refused)
	}
	isTable := k.method.Style == protocol.StyleOperation
	v := f.server.sessions.Create(f.stripe, &who.Caller, f.server.appOf(who), always)
	if v == nil {
		return k.refuse(errFullHouse)
	}
	id := v.ID().Append(f.scratch[:0])
	f.scratch = id
	if isTable {
		return k.say("Ydb.Table.CreateSessionResult", protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), id))
	}
	fields := protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), id)
	return k.say("", protowire.AppendVarint(protowire.AppendTag(fields, 4, protowire.VarintType), virtual.NodeID))
}

// attach answers AttachSession and keeps its stream.
func (f *frames) attach(c *h2.Call, k *call, v *virtual.Session) error {
	stream, err := f.server.sessions.Attach(v, mailbox{f, c.Ticket()}, c.Client())
	if err != nil {
		return k.refuse(refusalOf(err, 0))
	}
	l := k.lend()
	l.Session, l.attach, l.stream = v, true, stream
	k.said = Ydb.StatusIds_SUCCESS
	return &h2.Status{Body: k.method.Success("", nil), Open: true}
}

// sessionAt is where a message has a session's id.
type sessionAt struct {
	id       []byte // of the client
	from, to int    // the field at the top of the message; to 0: there is none
	outer    []byte // of a path of two, what that field holds; from and to of the id's field in it:
	in, out  int
}

// findSession finds the session's id in a message of which the end may be missing; see
// sessionOf. scanned: f.seen has seen all of it.
func (f *frames) findSession(m *protocol.Method, message []byte, whole bool) (at sessionAt, scanned, enough bool) {
	if whole && len(m.Session) == 1 {
		f.seen.Start(m.Request)
		f.seen.At = protocol.Span{}
		if f.seen.Again(message, &f.learned) {
			x := f.seen.At
			return sessionAt{id: message[x.Value:x.To], from: x.From, to: x.To}, true, true
		}
	}
	at, enough = findSession(message, whole, m.Session)
	return at, false, enough
}

func findSession(message []byte, whole bool, path []int) (at sessionAt, enough bool) {
	at.id, at.from, at.to = protocol.Field(message, path[0])
	if at.to == 0 {
		return at, whole || protocol.FirstField(message) > path[0]
	}
	if len(path) > 1 {
		at.outer = at.id
		at.id, at.in, at.out = protocol.Field(at.outer, path[1])
		if at.out == 0 {
			at.to = 0
		}
	}
	return at, true
}

// resourcePool is what is to be named as the resource pool of a statement: that of its app, if the part of the
// request in front of it names none. What names one behind it wins, as of all fields that come twice. "": none is.
func (k *call) resourcePool(front []byte) string {
	if k.app == nil || k.method != methodExecuteQuery {
		return ""
	}
	name := k.app.ResourcePool()
	if name != "" && len(front) > 0 {
		if _, _, to := protocol.Field(front, protocol.PoolIDOfExecuteQuery); to > 0 {
			return ""
		}
	}
	return name
}

var methodExecuteQuery = protocol.Named(protocol.QueryService + "ExecuteQuery")

// rename replaces the session's id in the call's first message, and a prepared query by its text. resources is
// the resource pool that is named behind the id; "": none is.
func (f *frames) rename(c *h2.Call, path []int, message []byte, at sessionAt, id, resources string, query preparedAt) {
	number := path[len(path)-1]
	if resources != "" {
		f.scratch = h2.AppendField(h2.AppendField(f.scratch[:0], number, id), protocol.PoolIDOfExecuteQuery, resources)
		c.Splice(at.from, at.to, f.scratch)
		return
	}
	if at.outer == nil && query.to <= at.to {
		c.SpliceField(at.from, at.to, number, id)
		return
	}
	b := f.scratch[:0]
	if at.outer == nil {
		b = h2.AppendField(b, number, id)
	} else {
		inner := append([]byte(nil), at.outer[:at.in]...)
		inner = append(h2.AppendField(inner, number, id), at.outer[at.out:]...)
		b = h2.AppendField(b, path[0], inner)
	}
	to := at.to
	if query.to > at.to { // the session's id comes first
		b = append(b, message[at.to:query.from]...)
		b = h2.AppendField(b, protocol.QueryOfExecuteDataQuery, h2.AppendField(nil, 1, query.text))
		to = query.to
	}
	f.scratch = b
	c.Splice(at.from, to, b)
}

// borrow sends a call to the owner of its server session, once it has one.
func (f *frames) borrow(c *h2.Call, k *call, who *caller, l *loan, message []byte, scanned bool, at sessionAt, query preparedAt) (*h2.Conn, error) {
	for try := 1; ; try++ {
		if l.Lease == nil {
			if err := f.acquire(c, k, who, l); err != nil {
				return nil, err
			}
		}
		conn, err := f.reach(k, l.Lease.Node(), l.Bound)
		if err == nil {
			f.rename(c, k.method.Session, message, at, l.Lease.Name(), k.resourcePool(message[:at.from]), query)
			c.Remove(headerAccept)   // answers are looked at
			c.Remove(headerEncoding) // the request is not compressed any more, and some servers compress if clients do
			l.named = at.to > 0
			l.Request, l.skip, l.scanning = virtual.Request{}, 0, false
			if scanned {
				l.Request, l.skip = requestOf(&f.seen.Found), uint32(protocol.PrefixSize+len(message))
				l.Request.Temporary = l.Request.Temporary || query.leaves
			} else {
				l.scanAll()
				l.scan.Temporary = query.leaves
			}
			if l.answer.Start(k.method.Answer); l.prepares {
				l.answer.Into = &l.queryID
			}
			if c.Observe(k); l.detour != nil {
				c.WhenLost(whenLostAround(k.method, !undone(k.method, l.Request, scanned)))
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
			back, lost := f.server.sessions.Lose(&l.Loan)
			if f.giveBack(back); lost {
				return nil, k.refuse(errLost)
			}
			// Nothing lived on it: another one does as well.
		default:
			back := virtual.Return{Tenant: l.Tenant, Lease: l.Lease, Fate: virtual.Discarded}
			if full {
				back.Fate = virtual.Released
			}
			l.Lease = nil
			f.giveBack(back)
		}
		if try == hop.Picks {
			r := refusalOf(err, 0)
			if r.status == Ydb.StatusIds_BAD_SESSION { // not the client's
				r = refusalOf(nil, 0)
			}
			return nil, k.refuse(r)
		}
	}
}

// reroute has a call routed again after a while that found no connection to go over, if something would be lost without that.
func (f *frames) reroute(c *h2.Call, l *loan, err error) bool {
	if _, unreached := err.(*h2.Status); !unreached || !f.server.sessions.Loses(&l.Loan) {
		return false
	}
	pause, ok := l.reroutes.Next()
	if ok {
		t := c.Ticket()
		time.AfterFunc(pause, func() { f.post(mail{ticket: t}) })
	}
	return ok
}

// acquire takes a session from the pool, or a place in its line: h2.ErrPark.
func (f *frames) acquire(c *h2.Call, k *call, who *caller, l *loan) error {
	if l.waited && l.err != nil {
		err := l.Tenant.Refusal(l.err)
		l.err = nil
		return k.refuse(refusalOf(err, 0))
	}
	if err := k.app.Ask(class); err != nil {
		return k.refuse(refusalOf(err, 0))
	}
	left, _ := c.Left()
	p, by := l.Tenant.Pool, k.errand().Ask(left)
	by.From = c.Client().Number()
	if l.Session != nil {
		by.Near = l.Session.Near()
	}
	k.asked = true
	s, ok := p.Try(by)
	if ok {
		k.asked, l.Lease = false, s
		answered(k.app, pool.Grant{Session: s}, nil)
		return nil
	}
	k.errand().Complete(&by)
	l.Tenant.OpensWith(&who.Ticket)
	w := f.newWaiting(l, who, k.app, c.Ticket())
	k.asked, l.place, l.waited = false, w, true
	g, err := p.Wait(w.waiter, by)
	if err == nil && g.Session == nil {
		f.stripe.Waited()
		if f.server.kept {
			w.each = patience(c.Left())
			f.lookAt(w)
		}
		return h2.ErrPark
	}
	l.place, l.Lease = nil, g.Session
	f.freeWaiting(w)
	if answered(k.app, g, err); err != nil {
		return k.refuse(refusalOf(l.Tenant.Refusal(err), 0))
	}
	return nil
}

// Late implements h2.Latecomer.
func (f *frames) Late(c *h2.Call) error {
	if k, ok := c.Data.(*call); ok && k.lends && k.place != nil {
		return k.refuse(refusalOf(errWaited, 0))
	}
	return &h2.Status{Code: int(codes.DeadlineExceeded), Message: "the call's time is up"}
}

// repay is Done for a call of a client that has a loan.
func (f *frames) repay(k *call, o *h2.Outcome, verdict ydbstatus.Verdict) {
	l := &k.loan
	if k.app != nil {
		k.remember(o)
	}
	k.lends = false
	if l.waited {
		f.leaveLine(k)
	}
	switch v := l.Session; {
	case l.attach:
		l.Session = nil
		f.giveBack(f.server.sessions.Detached(v, l.stream))
	case l.Lease != nil || v != nil:
		out := f.outcome(l, o, verdict)
		back, watch := f.server.sessions.Settle(f.stripe, &l.Loan, &out)
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

// leaveLine gives up the call's place in the pool's line, if it has one.
func (f *frames) leaveLine(k *call) {
	w := k.place
	if w == nil {
		return
	}
	k.place, w.loan = nil, nil
	if !w.tenant.Pool.Cancel(w.waiter) {
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
func (f *frames) discard(l *loan) {
	if v := l.Session; l.attach {
		if l.Session = nil; v != nil {
			f.giveBack(f.server.sessions.Detached(v, l.stream))
		}
		return
	}
	f.giveBack(f.server.sessions.Abandon(f.stripe, &l.Loan))
}

// outcome is what a call that is over left behind. A prepared query that it made is kept.
func (f *frames) outcome(l *loan, o *h2.Outcome, verdict ydbstatus.Verdict) virtual.Outcome {
	a := &l.answer
	out := virtual.Outcome{Role: l.method.Role, Status: a.Status, HasMeta: a.HasMeta, MetaTx: a.MetaTx}
	if l.Lease == nil || o.NotRun() || o.Partial { // a node runs nothing of a request that is not whole
		return out
	}
	out.Ran, out.Gone = true, verdict.SessionGone
	out.Ended = endsTx(l.method, a.Status, o.Head())
	out.Clean = o.End == h2.Answered && !verdict.DropSession && !verdict.SessionGone
	if o.Status == int(codes.OK) {
		out.Clean = out.Clean && a.Whole() && a.Messages > 0
	}
	out.GivenUp = o.End == h2.Cancelled || o.End == h2.Expired || // the node may look at the client's deadline first
		o.End == h2.Answered && (a.Status == Ydb.StatusIds_TIMEOUT || o.Status == int(codes.DeadlineExceeded))
	if out.Clean && l.prepares {
		f.server.texts.keep(string(l.queryID), l.text)
	}
	return out
}

// endsTx reports whether an answer, of which the first octets are here, shows that a statement failed while it was executed.
// Then a node ends its transaction before it answers (TKqpSessionActor::ReplyQueryError in YDB's kqp_session_actor.cpp). The status
// alone does not show it: a node may refuse a statement before it looks at the transaction, which stays open.
func endsTx(m *protocol.Method, status Ydb.StatusIds_StatusCode, head []byte) (ends bool) {
	if status == Ydb.StatusIds_PRECONDITION_FAILED {
		m.Issues(head, func(code uint32, _ string) { ends = ends || code == protocol.IssueConstraint })
	}
	return ends
}

// correct puts the status of the whole answer in the place of that of its beginning: a statement may fail after its first part.
func (l *loan) correct(s *ydbstatus.Signs) {
	if a := &l.answer; a.Messages > 0 && a.Status != s.Status {
		s.Status, s.Congestion, s.Subject = a.Status, cluster.CongestedNothing, ""
		byCode(s)
	}
}

var _ h2.Latecomer = (*frames)(nil)
