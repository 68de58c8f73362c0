package wire

import (
	"context"
	"encoding/binary"
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
	method  *protocol.Method
	tenant  *tenant       // nil: none is needed
	v       *virtual      // nil: the session is implicit
	lease   *pool.Session // the call goes out on it; nil: none yet
	request request
	scan    *protocol.Scan // of the request; nil: there was no use for it yet
	skip    int            // octets of the request that were looked at before

	bound    bool // lease is v's already
	attach   bool // the call is v's stream
	named    bool // a session's id was there, and is replaced
	closing  bool // the node wants the session closed
	implicit bool // the call names no session
	prepares bool // the answer has the id of text
	scanning bool // scan is in use
	waited   bool // place or err was set
	foreign  bool // the node serves another database
	around   uint8
	answer   protocol.Scan // the end of it, and what follows, is of calls that are seldom

	text    string // of a query to be prepared
	queryID []byte
	place   *waiting // in the pool's line
	err     error    // what came of waiting
}

// request is what settles the fate of a call's session, of what the call asked for.
type request struct {
	HasTx, Begin, Commit, Temporary bool
	Tx                              uint64
}

func requestOf(r *protocol.Found) request {
	return request{r.HasTx, r.Begin, r.Commit, r.Temporary, r.Tx}
}

// Observe implements h2.Observer.
func (l *loan) Observe(client bool, p []byte) error {
	if !client {
		if l.around != aroundNot {
			l.around = aroundNot
		}
		l.answer.Write(p) // what is wrong with it is seen when it has ended
		if l.answer.Status == Ydb.StatusIds_UNAUTHORIZED && l.answer.Messages == 1 && ydbstatus.AnswerForeign(p) {
			l.foreign = true
			return errForeign.answer(l.method)
		}
		return nil
	}
	if l.around == aroundQuiet {
		l.around = aroundFresh
	}
	if l.skip == len(p) { // as usual
		l.skip = 0
		return nil
	}
	n := min(l.skip, len(p))
	if l.skip -= n; n == len(p) {
		return nil
	}
	if !l.scanning {
		return errMessages.answer(l.method)
	}
	s := l.scan
	switch {
	case !s.Write(p[n:]) || s.Session && !l.named:
		return errForm.answer(l.method)
	case s.Messages > 0 && (s.Messages > 1 || !s.Whole()):
		return errMessages.answer(l.method)
	}
	l.request = requestOf(&s.Found)
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
	if l.lease == nil {
		return
	}
	if hint := c.Header(headerHints); hint != nil {
		l.closing = l.closing || string(hint) == "session-close"
		c.Remove(headerHints)
	}
}

// waiting is a place in the pool's line.
type waiting struct {
	waiter *pool.Waiter
	tenant *tenant
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

	refused  *tenant // the cluster opens no session for this ticket of its:
	ofTicket string
}

// loans is the part of a shard's router that deals with sessions of the pool.
type loans struct {
	freePlace *waiting
	inflater  inflater
	inLine    waiting // head of the ring of those that wait
	scratch   []byte
	seen      protocol.Scan // of the message in hand, if that is here whole
	learned   [16]protocol.Learned

	wake   chan struct{} // has room for one: there is mail that nobody deals with
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
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// deliver deals with mail that came from outside the shard, until ctx ends.
func (f *frames) deliver(ctx context.Context) {
	for {
		select {
		case <-f.wake:
			f.shard.Do(func(e *h2.Forwarder) {
				f.read()
				e.CatchUp()
			})
		case <-ctx.Done():
			return
		}
	}
}

// kept is virtuals.kept, in the shard's turn. It reads the mail, so that the streams of sessions that are no reason
// any more to keep a connection end while it is told to go, and not after.
func (f *frames) kept() map[*h2.Conn]bool {
	all := f.server.virtual.kept()
	f.read()
	return all
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

// shut deals with the mail that is left, and has later mail dealt with as it is posted. The shard has ended.
func (f *frames) shut() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	f.read()
}

// giveBack is for mail of a shard that has ended: all calls are over, and only a session matters.
func (m mail) giveBack() {
	if p := m.told; p != nil {
		p.app.Cancel(uint8(class))
		p.tenant.letGo(p.grant.Session, fateReleased)
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
		case m.looked != nil:
			f.looked(m.looked, m.turn, m.kept)
		case p == nil:
			f.shard.Later(m.ticket, m.status)
		case p.loan == nil: // its call is over
			t, lease := p.tenant, p.grant.Session
			p.app.Cancel(uint8(class))
			f.freeWaiting(p)
			f.letGo(t, lease, fateReleased)
		default:
			answered(p.app, p.grant, p.err)
			p.loan.lease, p.loan.err, p.loan.place = p.grant.Session, p.err, nil
			f.shard.Later(p.ticket, nil)
			f.freeWaiting(p)
		}
	}
}

// turnAway ends the wait of a tenant's calls that came with a ticket.
func (f *frames) turnAway(t *tenant, ticket string) {
	for p := f.inLine.next; p != &f.inLine; {
		next := p.next
		if p.tenant == t && p.who.ticket == ticket && t.pool.Cancel(p.waiter) { // else it is told now
			p.app.Lost(uint8(class), apps.ByOthers)
			p.loan.err, p.loan.place = errTicketRefused, nil
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
		_ = panics.Call("a look at who keeps sessions", func() error { kept = f.server.keepAll(t); return nil }) // then the call waits on
		f.post(mail{looked: p, turn: turn, kept: kept})
	})
}

// looked ends a wait that is in vain.
func (f *frames) looked(p *waiting, turn uint64, kept bool) {
	switch {
	case p.turn != turn || p.loan == nil: // its call is over
	case !kept:
		f.lookAt(p)
	case p.tenant.pool.Cancel(p.waiter): // else it is told now
		f.server.virtual.starved.Add(1)
		p.app.Lost(uint8(class), apps.ByTimeout)
		p.loan.err, p.loan.place = errKept, nil
		f.shard.Later(p.ticket, nil)
		f.freeWaiting(p)
	}
}

// keepAll reports whether sessions of mode session keep every server session that a tenant's pool may have. The
// pools of an identity's apps have st.Max together.
func (s *Server) keepAll(t *tenant) bool {
	mine, identity, all := s.virtual.keeps.of(s.virtual, t)
	if identity == 0 {
		return false
	}
	st, room := t.pool.Stats(), 0
	for _, n := range st.Nodes {
		room += n.Cap
	}
	return !st.Pause && room > 0 && (mine >= min(st.Limit, st.Max, room) || identity >= st.Max || all >= s.virtual.servers)
}

// letGo gives a server session back. Whoever waits for it may be of this shard.
func (f *frames) letGo(t *tenant, lease *pool.Session, what fate) {
	if lease == nil || what == fateKept {
		return
	}
	if f.inLine.next == &f.inLine { // nobody of this shard waits
		t.letGo(lease, what)
		return
	}
	if f.inTurn.Swap(true) {
		t.letGo(lease, what)
		return
	}
	defer f.read() // also after a panic
	defer f.inTurn.Store(false)
	t.letGo(lease, what)
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
	p.loan, p.tenant, p.who, p.app, p.ticket = l, l.tenant, who, app, t
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
	l.tenant, l.v, l.lease, l.request, l.skip = nil, nil, nil, request{}, 0
	l.bound, l.attach, l.named, l.closing, l.implicit, l.scanning = false, false, false, false, false, false
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
	errTicket   = refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE, "ydb-sidecar: the sidecar has no credentials now; the call was not sent"}
	errDatabase = refusal{codes.PermissionDenied, Ydb.StatusIds_UNAUTHORIZED, "ydb-sidecar: this database is not served here: name that of ydb.url, or one of wire.databases"}
	errForm     = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST, "ydb-sidecar: the message has a form that no client of YDB sends: a field that comes twice, or out of order"}
	errTooLarge = refusal{codes.ResourceExhausted, Ydb.StatusIds_BAD_REQUEST, "ydb-sidecar: the request is longer than 64,000,000 bytes, the most that YDB accepts: send less at a time"}
	errMessages = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST, "ydb-sidecar: the request has more than one message, and the method takes one: send each message in a call of its own"}
)

// login is how clients get a ticket, which they do not have yet.
const login = "/Ydb.Auth.V1.AuthService/Login"

// identify sees to the database and the credentials of a call: the caller's own, or the sidecar's.
func (f *frames) identify(c *h2.Call, k *call) (*caller, error) {
	who, refused := f.callerOf(c)
	if refused != nil {
		return nil, k.refuse(*refused)
	}
	f.hide(c, who)
	if who.asked != who.database || c.Repeated(headerDatabase) { // the node must not read another one than we did
		c.Set(headerDatabase, []byte(who.database))
	}
	if !f.server.tenants.own && c.Repeated(headerTicket) {
		c.Set(headerTicket, []byte(who.ticket))
	}
	if !f.server.tenants.own || k.method != nil && k.method.Path == login {
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
			return f.connect(c, k, 0)
		}
		t, err := f.tenantOf(c, k, who)
		if err != nil {
			return nil, err
		}
		l := k.lend()
		l.tenant, l.implicit = t, true
		return f.borrow(c, k, who, l, message, scanned, at, preparedAt{})
	}
	if k.lends && k.implicit { // it was not there at first
		return nil, k.refuse(errForm)
	}
	id, ok := parseVirtual(at.id)
	if !ok {
		owner := protocol.Owner(at.id)
		if owner == endpointID {
			return nil, k.refuse(*errNoSession)
		}
		if m.Role == protocol.RoleFree {
			owner = 0
		}
		return f.connect(c, k, owner)
	}
	switch m.Role {
	case protocol.RoleAttach, protocol.RoleDelete, protocol.RoleKeep:
		return nil, f.care(c, k, who, id)
	case protocol.RoleFree:
		return f.withoutSession(c, k, at)
	}
	l := k.lend()
	if l.v == nil {
		t, err := f.tenantOf(c, k, who)
		if err != nil {
			return nil, err
		}
		e, refused := f.server.virtual.enter(id, who, t, f.server.appOf(who), inTx, c.Client())
		if refused == errOtherApp { // the session bears the name that it was created with
			if t = f.server.tenants.forApp(t, e.app, f.server); t == nil {
				return nil, k.refuse(errTenants)
			}
			e, refused = f.server.virtual.enter(id, who, t, e.app, inTx, c.Client())
		}
		if refused != nil {
			return nil, k.refuse(*refused)
		}
		t = e.tenant
		l.tenant, l.v, l.lease, l.bound = t, e.virtual, e.lease, e.lease != nil
		f.letGo(t, e.stale, fateReleased)
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
func (f *frames) care(c *h2.Call, k *call, who *caller, id virtualID) error {
	vs := f.server.virtual
	v, sure := vs.see(id, who, nil)
	if !sure {
		t, err := f.tenantOf(c, k, who)
		if err != nil {
			return err
		}
		v, _ = vs.see(id, who, t)
	}
	switch {
	case k.method.Role == protocol.RoleDelete:
		if v != nil {
			t, lease, fate := vs.end(v, false)
			f.letGo(t, lease, fate)
			f.read()
		}
		return k.say("", nil)
	case v == nil:
		return k.refuse(*errNoSession)
	case k.method.Role == protocol.RoleAttach:
		return f.attach(c, k, v)
	}
	state := uint64(1)
	if vs.touch(v) {
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
	if f.server.virtual.keep {
		return ModeSession
	}
	return ModeTransaction
}

// create answers CreateSession.
func (f *frames) create(c *h2.Call, k *call, keep bool) error {
	who, refused := f.callerOf(c)
	if refused != nil {
		return k.refuse(*refused)
	}
	isTable := k.method.Style == protocol.StyleOperation
	v := f.server.virtual.create(f.stripe, who, f.server.appOf(who), keep)
	if v == nil {
		return k.refuse(*errFullHouse)
	}
	id := v.id.append(f.scratch[:0])
	f.scratch = id
	if isTable {
		return k.say("Ydb.Table.CreateSessionResult", protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), id))
	}
	fields := protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), id)
	return k.say("", protowire.AppendVarint(protowire.AppendTag(fields, 4, protowire.VarintType), endpointID))
}

// attach answers AttachSession and keeps its stream.
func (f *frames) attach(c *h2.Call, k *call, v *virtual) error {
	if refused := f.server.virtual.attachTo(v, f, c.Client(), c.Ticket()); refused != nil {
		return k.refuse(*refused)
	}
	l := k.lend()
	l.v, l.attach = v, true
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
		f.scratch = appendField(appendField(f.scratch[:0], number, id), protocol.PoolIDOfExecuteQuery, resources)
		c.Splice(at.from, at.to, f.scratch)
		return
	}
	if at.outer == nil && query.to <= at.to {
		c.SpliceField(at.from, at.to, number, id)
		return
	}
	b := f.scratch[:0]
	if at.outer == nil {
		b = appendField(b, number, id)
	} else {
		inner := append([]byte(nil), at.outer[:at.in]...)
		inner = append(appendField(inner, number, id), at.outer[at.out:]...)
		b = h2.AppendField(b, path[0], inner)
	}
	to := at.to
	if query.to > at.to { // the session's id comes first
		b = append(b, message[at.to:query.from]...)
		b = h2.AppendField(b, protocol.QueryOfExecuteDataQuery, appendField(nil, 1, query.text))
		to = query.to
	}
	f.scratch = b
	c.Splice(at.from, to, b)
}

func appendField(b []byte, number int, value string) []byte {
	b = binary.AppendUvarint(b, uint64(number)<<3|2)
	return append(binary.AppendUvarint(b, uint64(len(value))), value...)
}

// borrow sends a call to the owner of its server session, once it has one.
func (f *frames) borrow(c *h2.Call, k *call, who *caller, l *loan, message []byte, scanned bool, at sessionAt, query preparedAt) (*h2.Conn, error) {
	for try := 1; ; try++ {
		if l.lease == nil {
			if err := f.acquire(c, k, who, l); err != nil {
				return nil, err
			}
		}
		conn, err := f.reach(k, l.lease.Node(), l.bound)
		if err == nil {
			f.rename(c, k.method.Session, message, at, l.lease.Name(), k.resourcePool(message[:at.from]), query)
			c.Remove(headerAccept)   // answers are looked at
			c.Remove(headerEncoding) // the request is not compressed any more, and some servers compress if clients do
			l.named = at.to > 0
			l.request, l.skip, l.scanning = request{}, 0, false
			if scanned {
				l.request, l.skip = requestOf(&f.seen.Found), protocol.PrefixSize+len(message)
			} else {
				l.scanAll()
			}
			if l.answer.Start(k.method.Answer); l.prepares {
				l.answer.Into = &l.queryID
			}
			if c.Observe(l); l.around != aroundNot {
				c.WhenLost(whenLostAround(k.method, !undone(k.method, l.request, scanned)))
			}
			return conn, nil
		}
		full := hop.Busy(err)
		switch {
		case l.bound && full:
			return nil, k.refuse(refusalOf(err, 0))
		case l.bound && f.unbind(l):
			return nil, k.refuse(*errLost)
		}
		lease := l.lease
		if l.lease = nil; lease == nil {
			// Nothing lived on it: another one does as well.
		} else if full {
			f.letGo(l.tenant, lease, fateReleased)
		} else {
			f.letGo(l.tenant, lease, fateDiscarded)
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

// unbind takes a server session that is lost from its virtual one, in a call of that, and
// reports whether something was lost with it.
func (f *frames) unbind(l *loan) (lost bool) {
	vs, v := f.server.virtual, l.v
	s := vs.of(v.id)
	s.mu.Lock()
	lost = v.n > 0 || v.temporary
	s.unbindLocked(l)
	v.lost, v.n, v.temporary, v.closing = lost, 0, false, false
	vs.countTxLocked(v)
	if s.count.InDoubt++; lost {
		s.count.Lost++
	}
	s.mu.Unlock()
	lease := l.lease
	l.lease, l.bound = nil, false
	f.letGo(l.tenant, lease, fateDiscarded)
	return lost
}

// acquire takes a session from the pool, or a place in its line: h2.ErrPark.
func (f *frames) acquire(c *h2.Call, k *call, who *caller, l *loan) error {
	if l.waited && l.err != nil {
		err := l.err
		l.err = nil
		return k.refuse(refusalOf(err, 0))
	}
	if err := k.app.Ask(uint8(class)); err != nil {
		return k.refuse(refusalOf(err, 0))
	}
	p, by := l.tenant.pool, k.ask(c)
	if l.v != nil {
		by.Near = l.v.near
	}
	k.asked = true
	s, ok := p.Try(by)
	if ok {
		k.asked, l.lease = false, s
		answered(k.app, pool.Grant{Session: s}, nil)
		return nil
	}
	by.Needs = k.errand().Needs()
	l.tenant.ticket.Store(&who.ticket)
	w := f.newWaiting(l, who, k.app, c.Ticket())
	k.asked, l.place, l.waited = false, w, true
	g, err := p.Wait(w.waiter, by)
	if err == nil && g.Session == nil {
		f.stripe.mu.Lock()
		f.stripe.count.Waited++
		f.stripe.mu.Unlock()
		if f.server.kept {
			w.each = patience(c.Left())
			f.lookAt(w)
		}
		return h2.ErrPark
	}
	l.place, l.lease = nil, g.Session
	f.freeWaiting(w)
	if answered(k.app, g, err); err != nil {
		return k.refuse(refusalOf(err, 0))
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

// repay is Done for a call that has a loan.
func (f *frames) repay(k *call, o *h2.Outcome, verdict ydbstatus.Verdict) {
	l := &k.loan
	if k.app != nil {
		k.remember(o)
	}
	k.lends = false
	if l.waited {
		f.leaveLine(k)
	}
	switch {
	case l.attach:
		f.endAttached(l)
	case l.lease != nil || l.v != nil:
		what := f.server.virtual.settle(f.stripe, l, o, verdict)
		lease := l.lease
		l.v, l.lease = nil, nil
		f.letGo(l.tenant, lease, what)
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
	if !w.tenant.pool.Cancel(w.waiter) {
		return // it is told now
	}
	if k.said == Ydb.StatusIds_OVERLOADED {
		w.app.Lost(uint8(class), apps.ByTimeout)
	} else {
		w.app.Cancel(uint8(class))
	}
	f.freeWaiting(w)
}

// endAttached ends the virtual session whose stream has ended.
func (f *frames) endAttached(l *loan) {
	v := l.v
	l.v = nil
	t, lease, fate := f.server.virtual.end(v, true)
	f.letGo(t, lease, fate)
}

// discard is for a call whose Done panicked: it ends the virtual session and closes the server
// session, of which the state is unknown.
func (f *frames) discard(l *loan) {
	if l.attach {
		if l.v != nil {
			f.endAttached(l)
		}
		return
	}
	v, lease := l.v, l.lease
	l.v, l.lease = nil, nil
	if v != nil {
		f.server.virtual.abandon(v)
	}
	if lease != nil {
		f.stripe.mu.Lock()
		f.stripe.count.InDoubt++
		f.stripe.mu.Unlock()
	}
	f.letGo(l.tenant, lease, fateDiscarded)
}

// settle decides what becomes of the server session of a call that is over. A call without a
// virtual session counts in own, its shard's stripe.
func (vs *virtuals) settle(own *stripe, l *loan, o *h2.Outcome, verdict ydbstatus.Verdict) (what fate) {
	clean, ran, gone, recovers := true, l.lease != nil && !o.NotRun(), false, false
	if ran {
		clean = l.clean(o, verdict)
		if gone = verdict.SessionGone; gone {
			l.lease.Resource().(ServerSession).Forget()
		}
		if l.answer.Status == Ydb.StatusIds_INTERNAL_ERROR {
			l.lease.Resource().(ServerSession).Fail()
		}
		recovers = !clean && !gone && l.recoverable(o)
	}
	if ran && clean && l.prepares {
		vs.texts.keep(string(l.queryID), l.text)
	}
	borrowed := l.lease != nil && !l.bound
	if borrowed && !l.tenant.lent.Load() { // other shards read it for each of their calls
		l.tenant.lent.Store(true)
	}
	v, s := l.v, own
	if v != nil {
		s = vs.of(v.id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if borrowed {
		s.count.Borrowed++
	}
	if v == nil {
		if what = releasedIf(clean && !l.closing && !(ran && l.leavesOpen())); recovers {
			what = fateRecovered
		}
	} else {
		v.busy = false
		if l.lease != nil {
			v.near = l.lease.Place()
			what = vs.settleLocked(s, l, ran, clean, gone, recovers)
			vs.countTxLocked(v)
		}
		if v.n > 0 && vs.unused.Load() != nil {
			v.last = time.Since(vs.began)
		}
		if v.n == 0 && vs.leave.Load() {
			delete(vs.stay[s.number], v)
		}
		s.restLocked(v)
	}
	if what == fateDiscarded || what == fateRecovered { // no count of its own: a stripe's are one cache line
		s.count.InDoubt++
	}
	return what
}

// leavesOpen reports whether a call without a virtual session may have left something on its server session.
func (l *loan) leavesOpen() bool {
	q, a := &l.request, &l.answer
	return q.Temporary || a.MetaTx != 0 || q.Begin && !q.Commit || q.Commit && a.Status == Ydb.StatusIds_SUCCESS && !a.HasMeta
}

// recoverable reports whether a call was given up by its client or ran out of time, and leaves nothing
// on its server session once the node is done with it.
func (l *loan) recoverable(o *h2.Outcome) bool {
	q, a := &l.request, &l.answer
	over := o.End == h2.Cancelled || o.End == h2.Expired || // the node may look at the client's deadline first
		o.End == h2.Answered && (a.Status == Ydb.StatusIds_TIMEOUT || o.Status == int(codes.DeadlineExceeded))
	return over && !l.closing && (!l.scanning || l.scan.Whole()) &&
		(l.method.Role == protocol.RoleUse || l.method.Role == protocol.RoleImplicit) && !q.HasTx && q.Begin == q.Commit && !q.Temporary && a.MetaTx == 0
}

// settleLocked is settle for a call on a virtual session of s that had a server session. ran: a node
// may have run it; clean: nothing of it is in doubt; gone: the node has forgotten the session;
// recovers: nothing will be in doubt once the node is done with it.
func (vs *virtuals) settleLocked(s *stripe, l *loan, ran, clean, gone, recovers bool) fate {
	v := l.v
	had := v.n > 0 || v.temporary
	if ran && clean {
		clean = v.account(l)
	}
	v.closing = v.closing || l.closing
	if !clean {
		s.unbindLocked(l)
		if recovers && !had && !v.closing {
			return fateRecovered
		}
		v.n, v.temporary, v.closing = 0, false, false
		if st := l.answer.Status; st == 0 || st == Ydb.StatusIds_SUCCESS || gone { // else the client was told that it failed
			v.lost = had || l.request.Begin || l.method.Role == protocol.RoleBegin
		}
		if gone {
			s.detachLocked(v)
		}
		return fateDiscarded
	}
	v.lost = v.lost && !ran
	goes := v.n == 0 && v.attached && vs.leave.Load()
	switch {
	case v.ended, goes, v.n == 0 && !v.keep && !v.temporary, v.closing && v.n == 0 && !v.temporary:
		s.unbindLocked(l)
		what := v.fateOfLease()
		v.n, v.temporary, v.closing = 0, false, false
		if goes {
			vs.endLocked(s, v)
		}
		return what
	}
	if v.lease == nil {
		v.lease, v.since = l.lease, time.Now().UnixNano()
		s.bound[v] = struct{}{}
	}
	if conn := v.client; !v.attached && conn.Ended == nil {
		conn.Ended = func() { vs.clientGone(conn) }
	}
	return fateKept
}

// unbindLocked takes a call's server session from its virtual one, if that had it before.
func (s *stripe) unbindLocked(l *loan) {
	if l.bound {
		delete(s.bound, l.v)
		l.v.lease = nil
	}
}

func releasedIf(clean bool) fate {
	if clean {
		return fateReleased
	}
	return fateDiscarded
}

// correct puts the status of the whole answer in the place of that of its beginning: a statement may fail after its first part.
func (l *loan) correct(s *ydbstatus.Signs) {
	if a := &l.answer; a.Messages > 0 && a.Status != s.Status {
		s.Status, s.Congestion, s.Subject = a.Status, cluster.CongestedNothing, ""
		byCode(s)
	}
}

// clean reports whether nothing is in doubt of a call that may have run.
func (l *loan) clean(o *h2.Outcome, verdict ydbstatus.Verdict) bool {
	clean := o.End == h2.Answered && !verdict.DropSession && !verdict.SessionGone
	if o.Status == int(codes.OK) {
		clean = clean && l.answer.Whole() && l.answer.Messages > 0 && (!l.scanning || l.scan.Whole())
	}
	return clean
}

// account notes what a call that was answered has done to the transactions of its session.
// False: nobody knows.
func (v *virtual) account(l *loan) bool {
	q, a := &l.request, &l.answer
	begins := q.Begin && !q.Commit || l.method.Role == protocol.RoleBegin
	switch {
	case a.Status == Ydb.StatusIds_SUCCESS:
		v.temporary = v.temporary || q.Temporary
		switch {
		case a.MetaTx != 0: // whatever the request asked for: EXPLAIN commits nothing
			return v.remember(a.MetaTx)
		case l.method.Role == protocol.RoleEnd, a.HasMeta:
			v.forget(q.Tx)
		case q.Commit: // an answer to it has tx_meta
			return false
		}
		return !begins
	case a.Status == Ydb.StatusIds_ABORTED, a.Status == Ydb.StatusIds_NOT_FOUND && l.method.Role == protocol.RoleEnd:
		v.forget(q.Tx) // the node has ended it
		return true
	}
	return !q.HasTx && !begins // what failed may have left it open
}

// run ends sessions that nobody uses, until ctx ends.
func (vs *virtuals) run(ctx context.Context, ts *tenants) {
	tick := time.NewTicker(sweeps)
	defer tick.Stop()
	look := time.NewTicker(looks)
	defer look.Stop()
	if vs.unused.Load() == nil {
		look.Stop()
	}
	for {
		select {
		case now := <-tick.C:
			vs.expire(now)
			ts.sweep(now)
		case <-vs.ends:
			look.Reset(looks)
		case now := <-look.C:
			vs.rollBack(now)
		case <-ctx.Done():
			return
		}
	}
}

var _ h2.Latecomer = (*frames)(nil)
