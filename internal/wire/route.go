package wire

import (
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// longestWait is how long a call waits for a session of the pool; a shorter deadline of
// its own counts first.
const longestWait = 30 * time.Second

// keptWait bounds the wait for a session while sessions of mode session keep every session of the pool. A third of the
// client's deadline counts if that is shorter. A longer wait would be useless: such a session comes back only when its
// client closes it.
const keptWait = 5 * time.Second

// patience is the time from one look whether a wait is in vain to the next. left is until the call's deadline, if it has one.
func patience(left time.Duration, limited bool) time.Duration {
	if limited {
		return min(keptWait, left/3)
	}
	return keptWait
}

// use is what is remembered of a call that concerns a virtual session, or a session of
// the pool. It is the call's Observer.
//
// What each call needs of it is two lines of the cache: it is written where the request comes and
// read where the answer does, which is often another processor.
//
// Wide: the order of the fields is that of these lines.
type use struct {
	method *protocol.Method
	virtual.Use
	scan *protocol.Scan // of the request; nil: there was no use for it yet
	skip uint32         // bytes of the request that were looked at before

	stream   uint8   // which of the session's streams the call is: see virtual.Sessions.Attach
	attach   bool    // the call is the session's stream
	named    bool    // a session's id was there, and is replaced
	implicit bool    // the call names no session
	prepares bool    // the answer has the id of text
	scanning bool    // scan is in use
	waited   bool    // inQueue or err was set
	foreign  bool    // the node serves another database
	detour   *detour // around the owner of the session, which cannot be reached; nil
	reroutes hop.Reroutes
	answer   protocol.Scan // the end of it, and what follows, is of calls that are seldom

	text    string // of a query to be prepared
	queryID []byte
	inQueue *waiting // entry in the pool's queue
	err     error    // what came of waiting

	statement statements.Ref // zero: the call has none
}

func requestOf(r *protocol.Found) virtual.Request {
	return virtual.Request{HasTx: r.HasTx, Begin: r.Begin, Commit: r.Commit, Temporary: r.Temporary, Tx: r.Tx}
}

// Observe implements h2.Observer, for a call that uses a session.
func (k *call) Observe(client bool, p []byte) error {
	l := &k.use
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
			k.frames.server.sessions.Tell(&l.Use, tx)
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
func (l *use) scanAll() {
	if l.scan == nil {
		l.scan = new(protocol.Scan)
	}
	l.scanning = true
	l.scan.Start(l.method.Request)
}

// hear keeps the hints about the pool's sessions here.
func (l *use) hear(c *h2.Call) {
	if l.Server == nil || c.Header(headerHints) == nil {
		return
	}
	c.Values(headerHints, func(hints []byte) { l.Closing = l.Closing || protocol.SaysClose(hints) })
	c.Remove(headerHints)
}

// startUse begins the use of a session by the call.
func (k *call) startUse() *use {
	k.uses = true
	return &k.use
}

// forget makes a use fit for the next call.
func (l *use) forget() {
	l.Use, l.skip, l.reroutes = virtual.Use{}, 0, 0
	l.attach, l.named, l.implicit, l.scanning = false, false, false, false
	if l.prepares {
		l.text, l.queryID, l.prepares = "", l.queryID[:0], false
	}
	if l.waited {
		l.inQueue, l.err, l.waited = nil, nil, false
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

// request is what is known of a call's first message.
type request struct {
	message []byte    // as far as it is here
	whole   bool      // message is all of it
	scanned bool      // frames.seen has seen all of it
	inTx    bool      // it names a transaction
	at      sessionAt // of the id of its session
}

// routeVirtual is Route where sessions are virtual.
func (f *frames) routeVirtual(c *h2.Call, k *call) (*h2.Conn, error) {
	if k.method != nil && k.method.Role == protocol.RoleCreate {
		if mode := f.server.modeOf(c); mode != ModePassthrough {
			return nil, f.create(c, k, mode == ModeSession)
		}
	}
	who, err := f.identify(c, k)
	if err != nil {
		return nil, err
	}
	k.join(c)
	m := k.method
	if m == nil || m.Role == protocol.RoleNone || m.Role == protocol.RoleCreate {
		return f.ofNoSession(c, k, who)
	}
	var r request
	if err := f.readRequest(c, k, who, &r); err != nil {
		return nil, err
	}
	if err := k.admit(c, who, m.NeedsOpen() || r.inTx); err != nil {
		return nil, err
	}
	if m.Role == protocol.RoleFree {
		if err := f.pausing.pause(c, k); err != nil {
			return nil, err
		}
		if err, ok := f.locate(c, k, who); ok {
			return nil, err
		}
	}
	if r.at.to == 0 || len(r.at.id) == 0 {
		return f.namesNoSession(c, k, who, &r)
	}
	if k.uses && k.implicit { // the id was not there at first
		return nil, k.refuse(errForm)
	}
	id, ok := virtual.Parse(r.at.id)
	if !ok {
		return f.namesServerSession(c, k, &r)
	}
	switch m.Role {
	case protocol.RoleAttach, protocol.RoleDelete, protocol.RoleKeep:
		return nil, f.care(c, k, who, id)
	case protocol.RoleFree:
		return f.withoutSession(c, k, r.at)
	}
	return f.inSession(c, k, who, id, &r)
}

// ofNoSession routes a call whose method concerns no session of the sidecar.
func (f *frames) ofNoSession(c *h2.Call, k *call, who *caller) (*h2.Conn, error) {
	if k.method == streamWrite {
		if err := f.writeTopic(c, who); err != nil {
			return nil, err
		}
	}
	if err := f.admit(c, k, who, false); err != nil {
		return nil, err
	}
	if err := f.pausing.pause(c, k); err != nil {
		return nil, err
	}
	if err, ok := f.locate(c, k, who); ok {
		return nil, err
	}
	if k.method == streamWrite {
		node, err := f.server.pin(c)
		if err != nil {
			return nil, err
		}
		return f.connectTo(c, k, node)
	}
	return f.connect(c, k, 0)
}

// readRequest finds in a call's first message what its route depends on. The error is h2.ErrNeedMessage if too little of it is here.
func (f *frames) readRequest(c *h2.Call, k *call, who *caller, r *request) error {
	if c.Compressed() {
		if err := f.inflate(c, k, who); err != nil {
			return err
		}
	}
	if n, known := c.Announced(); known && n > mostBytes {
		return k.refuse(errTooLarge)
	}
	enough := true
	r.message, r.whole = c.Message()
	if u := k.unpacking; u != nil {
		r.at, f.seen.Found, r.scanned = u.at, u.found, true
	} else {
		r.at, r.scanned, enough = f.findSession(k.method, r.message, r.whole)
	}
	if !enough {
		return h2.ErrNeedMessage
	}
	if !r.scanned && tooEarly(r.message, r.whole) && k.method.MayNameTx() {
		return h2.ErrNeedMessage
	}
	f.series.look(k, r.message)
	r.inTx = r.scanned && f.seen.HasTx || !r.scanned && k.method.NamesTx(r.message)
	return nil
}

// namesNoSession routes a call that could name a session and does not: to a session of the pool if the server would make
// one for it, too, else to any node.
func (f *frames) namesNoSession(c *h2.Call, k *call, who *caller, r *request) (*h2.Conn, error) {
	if k.method.Role != protocol.RoleImplicit || !f.server.implicit {
		if err := f.pausing.outsideTx(c, k, r); err != nil {
			return nil, err
		}
		return f.pass(c, k, 0, r.scanned, r.at)
	}
	if r.whole && !r.scanned && k.scans() {
		return nil, k.refuse(errForm)
	}
	t, err := f.identityOf(c, k, who)
	if err != nil {
		return nil, err
	}
	l := k.startUse()
	if l.implicit = true; l.Server == nil { // else it is from the pool of the identity that the call waited at
		l.Identity = t
	}
	return f.checkOut(c, k, who, l, r, preparedAt{})
}

// namesServerSession routes a call on a session that is none of the sidecar's virtual ones: to its home node, unless a client must
// not use it.
func (f *frames) namesServerSession(c *h2.Call, k *call, r *request) (*h2.Conn, error) {
	owner := protocol.HomeNode(r.at.id)
	if owner == virtual.NodeID {
		return nil, k.refuse(errNoSession)
	}
	if k.method.Role == protocol.RoleFree {
		return f.connect(c, k, 0)
	}
	if f.server.deps.Mine != nil && f.server.deps.Mine(r.at.id) {
		return nil, k.refuse(errNoSession)
	}
	if err := f.pausing.outsideTx(c, k, r); err != nil {
		return nil, err
	}
	return f.pass(c, k, owner, r.scanned, r.at)
}

// inSession routes a call that runs in a virtual session.
func (f *frames) inSession(c *h2.Call, k *call, who *caller, id virtual.ID, r *request) (*h2.Conn, error) {
	if r.whole && !r.scanned && k.scans() {
		return nil, k.refuse(errForm)
	}
	l := k.startUse()
	if l.Session == nil {
		t, err := f.identityOf(c, k, who)
		if err != nil {
			return nil, err
		}
		e, err := f.server.sessions.Enter(id, &who.Credentials, t, f.server.appOf(who), r.inTx, c.Client())
		if err == virtual.ErrOtherApp { // the session bears the name that it was created with
			if t, err = f.server.identities.ForApp(t, e.App(), mailbox{f, c.Ticket()}); err != nil {
				return nil, k.noIdentity(err)
			}
			e, err = f.server.sessions.Enter(id, &who.Credentials, t, e.App(), r.inTx, c.Client())
		}
		if err != nil {
			return nil, k.refuse(refusalOf(err, 0))
		}
		l.Identity, l.Session, l.Server, l.Bound = e.Identity, e.Session, e.Server, e.Server != nil
		f.giveBack(e.Stale)
	}
	query, enough, known := f.server.texts.prepare(l, r.message, r.whole)
	switch {
	case !known:
		return nil, k.refuse(errForgotten)
	case !enough:
		return nil, h2.ErrNeedMessage
	case query.to > 0:
		k.statement = f.series.statements.Look(query.text)
	}
	return f.checkOut(c, k, who, l, r, query)
}

// scans reports whether findSession scans a request of the call's method that is here whole: if it did not, that is refused
// before it takes a session. One that was compressed was looked at when it was inflated.
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
	v, sure := vs.See(id, &who.Credentials, nil)
	if !sure {
		t, err := f.identityOf(c, k, who)
		if err != nil {
			return err
		}
		v, _ = vs.See(id, &who.Credentials, t)
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
func (s *Server) modeOf(c *h2.Call) string {
	if len(s.apps) > 0 {
		if mode, ok := s.apps[string(c.Header(headerApplication))]; ok {
			return mode
		}
	}
	if s.always {
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
	if err := k.mayCome(c, who); err != nil {
		return err
	}
	isTable := k.method.Style == protocol.StyleOperation
	v := f.server.sessions.Create(f.stripe, &who.Credentials, f.server.appOf(who), always)
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
	l := k.startUse()
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
func (s *uses) findSession(m *protocol.Method, message []byte, whole bool) (at sessionAt, scanned, enough bool) {
	if whole && len(m.Session) == 1 {
		s.seen.Start(m.Request)
		s.seen.At = protocol.Span{}
		if s.seen.Again(message, &s.learned) {
			x := s.seen.At
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
func (s *uses) rename(c *h2.Call, path []int, message []byte, at sessionAt, id, resources string, query preparedAt) {
	number := path[len(path)-1]
	if resources != "" {
		s.scratch = h2.AppendField(h2.AppendField(s.scratch[:0], number, id), protocol.PoolIDOfExecuteQuery, resources)
		c.Splice(at.from, at.to, s.scratch)
		return
	}
	if at.outer == nil && query.to <= at.to {
		c.SpliceField(at.from, at.to, number, id)
		return
	}
	b := s.scratch[:0]
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
	s.scratch = b
	c.Splice(at.from, to, b)
}

// outcome is what a call that is over left behind. A prepared query that it made is kept.
func (l *use) outcome(known *texts, o *h2.Outcome, verdict ydbstatus.Verdict) virtual.Outcome {
	a := &l.answer
	out := virtual.Outcome{Role: l.method.Role, Status: a.Status, HasMeta: a.HasMeta, MetaTx: a.MetaTx}
	if l.Server == nil || o.NotRun() || o.Partial { // a node runs nothing of a request that is not whole
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
		known.keep(string(l.queryID), l.text)
	}
	return out
}

// endsTx reports whether an answer, of which the first bytes are here, shows that a statement failed while it was executed.
// Then a node ends its transaction before it answers (TKqpSessionActor::ReplyQueryError in YDB's kqp_session_actor.cpp). The status
// alone does not show it: a node may refuse a statement before it looks at the transaction, which stays open.
func endsTx(m *protocol.Method, status Ydb.StatusIds_StatusCode, head []byte) (ends bool) {
	if status == Ydb.StatusIds_PRECONDITION_FAILED {
		m.Issues(head, func(code uint32, _ string) { ends = ends || code == protocol.IssueConstraint })
	}
	return ends
}

// correct puts the status of the whole answer in the place of that of its beginning: a statement may fail after its first part.
func (l *use) correct(s *ydbstatus.Signs) {
	if a := &l.answer; a.Messages > 0 && a.Status != s.Status {
		s.Status, s.Congestion, s.Subject = a.Status, cluster.CongestedNothing, ""
		byCode(s)
	}
}

var _ h2.Latecomer = (*frames)(nil)
