package wire

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/h2/unary"
	"github.com/ydb-sidecar/sidecar/internal/history"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// The headers that are read or set, as h2.Config.Names has them.
var (
	headerNames = []string{traceparent, "grpc-encoding", "x-ydb-application-name", "authorization",
		"x-ydb-consumed-units", apps.HeaderOrigin}
	headerNamesVirtual = append(headerNames, "x-ydb-auth-ticket", "x-ydb-database", protocol.HeaderHints, "grpc-accept-encoding")
)

const (
	headerTraceparent = h2.FirstName + iota
	headerEncoding
	headerApplication
	headerAuthorization
	headerUnits
	headerConnection
	headerTicket
	headerDatabase
	headerHints
	headerAccept
)

// frames is the Router of one shard. The shard calls it in turn with everything
// else that it does: see package driver.
type frames struct {
	server  *Server
	number  int // of the shard, from 0 on
	shard   *driver.Shard
	nodes   map[cluster.NodeID]*link
	local   *driver.Upstream // the server in this process
	series  series
	meter   *history.Meter  // nil: none
	stripe  *virtual.Stripe // where its clients' virtual sessions are made; nil: sessions are the clients' own
	port    *unary.Port     // for calls of the plain API
	partly  atomic.Int64    // bytes of requests of HTTP/1.1 that are not here whole
	detours hop.Detours
	stays   stays
	old     map[*h2.Conn]bool // clients that are told to go because their connections are; see leave
	freeCalls
	parkedCalls
}

// freeCalls are kept for use again.
type freeCalls struct {
	free      *call
	freeCount int
}

// link is what a shard has for one node.
type link struct {
	node cluster.Node
	up   *driver.Upstream
	own  *client.Conn // for statements of the plain API over up; nil: there was none yet
}

// tag is what a node's connection is known by.
type tag struct {
	node   cluster.NodeID
	silent bool // the judge knows
}

// call is what is remembered of a call between Route and Done.
type call struct {
	use            // only method is set, unless the call concerns a virtual session
	traced *traced // kept from call to call; nil: spans are not exported
	callMarks
	at     hop.Entry                // node that it entered
	said   Ydb.StatusIds_StatusCode // by the sidecar; 0: nothing
	app    *apps.Stripe             // it counts as one of it; nil: as nobody's
	next   *call
	trace  trace.TraceID // of the caller, while there is an access log
	served *unary.Call   // it is served here; nil

	unpacking *unpacking   // its first message is large and compressed; nil
	writer    *topicWriter // of its stream's messages to a topic; nil
	frames    *frames      // constant
	stay      *stay        // in the server in this process; nil
}

// callMarks are what is noted of a call in one bit each.
type callMarks struct {
	uses   bool // use is that of this call; else it waits for the next one
	local  bool // it is for the server in this process
	asked  bool // app counts it as one that asks for a session, and nothing else does
	paused bool // it is in pausing.calls
	kept   bool // and pausing counts it as one whose session has its server session
}

// parkedCalls are the calls of a shard that wait here for something else than a node's connection.
type parkedCalls struct {
	uses
	pausing pausing
}

func newFrames(s *Server, number int) *frames {
	f := &frames{server: s, number: number, nodes: map[cluster.NodeID]*link{}, series: s.instruments.series(),
		meter: meterOf(s.deps.History)}
	f.uses.init()
	f.pausing.hold = s.deps.Hold
	f.stays.of = map[*h2.Conn]*stayer{}
	if s.sessions != nil {
		f.stripe = s.sessions.Stripe(number)
	}
	f.shard = driver.New(s.h2, f)
	f.port = s.unary.Port(f.shard, s.h2.Buffered)
	f.local = f.shard.Upstream(s.local.Dial, nil)
	return f
}

// setView makes the connections fit the nodes of v. Each is made when it is first
// used; that of a node which is gone, or has another address, ends after its calls.
func (f *frames) setView(v cluster.View) {
	var old []*link
	for id, l := range f.nodes {
		if n, ok := v.Find(id); !ok || n.Address != l.node.Address || n.TLSName != l.node.TLSName {
			old = append(old, l)
			delete(f.nodes, id)
		}
	}
	for _, n := range v.Nodes {
		if f.nodes[n.ID] == nil {
			node, nodes := n.Node, f.server.deps.Nodes
			f.nodes[n.ID] = &link{node: node,
				up: f.shard.Upstream(func(ctx context.Context) (net.Conn, error) { return nodes.Dial(ctx, node) }, nodes.TLS(node))}
		}
	}
	for _, l := range old { // calls that wait for it look for their node again
		l.up.Close()
	}
	f.detours.SetView(v)
}

// lost has, by the method's number, the answer to a call whose node was lost while it ran. An answer without a body is
// gRPC's UNAVAILABLE.
var lost = func() (all [protocol.Methods]h2.Status) {
	for i, m := range protocol.All() {
		all[i].Body, all[i].Stream = lostAnswer(m), m.Rows
	}
	return all
}()

// lostAnswer is that for a method; nil: its answers have no place for it. With an error of gRPC SDKs would drop
// the endpoint, which is the sidecar, and all that they have under way there.
func lostAnswer(m *protocol.Method) []byte {
	if m.Kind == cluster.CallOpen { // a session that nobody knows of ends by itself
		return m.Refusal(Ydb.StatusIds_UNAVAILABLE, "ydb-sidecar: the connection to the node was lost; no session was opened")
	}
	if m.Role == protocol.RoleDelete { // so does this one
		return m.Refusal(Ydb.StatusIds_SUCCESS, "ydb-sidecar: the connection to the node was lost")
	}
	return m.Refusal(Ydb.StatusIds_UNDETERMINED, "ydb-sidecar: the connection to the node was lost; the call may have been executed")
}

// attachSession only keeps a session alive.
var attachSession = protocol.Named(protocol.QueryService + "AttachSession")

// Route implements h2.Router.
func (f *frames) Route(c *h2.Call) (*h2.Conn, error) {
	k, again := c.Data.(*call)
	if !again {
		k = f.begin(c)
		c.Data = k
	} else { // it may have waited for the node's connection, and was not sent
		f.server.deps.Back(&k.at)
		k.whenLost(c)
	}
	if k.local {
		return f.serveHere(c, k)
	}
	if f.server.sessions != nil {
		return f.routeVirtual(c, k)
	}
	who, refused := f.speakerOf(c)
	if refused != nil {
		return nil, k.refuse(*refused)
	}
	if err := f.server.proved(c, k); err != nil {
		return nil, err
	}
	f.server.hide(c, who)
	if err := k.admit(c, who, k.method != nil && k.method.NeedsOpen()); err != nil {
		return nil, err
	}
	if err := f.pausing.own(f, c, k); err != nil {
		return nil, err
	}
	if err, ok := f.locate(c, k, nil); ok {
		return nil, err
	}
	if k.method == streamWrite {
		node, err := f.server.pin(c)
		if err != nil {
			return nil, err
		}
		k.join(c)
		return f.connectTo(c, k, node)
	}
	owner := cluster.NodeID(0)
	if k.method != nil && k.method.Session != nil && k.method.Role != protocol.RoleFree {
		message, whole, err := f.head(c, k)
		if err != nil {
			return nil, err
		}
		session, enough := protocol.SessionOf(message, whole, k.method.Session)
		if !enough {
			return nil, h2.ErrNeedMessage
		}
		f.series.look(k, message)
		owner = protocol.HomeNode(session)
	}
	k.join(c)
	return f.connect(c, k, owner)
}

// serveHere has a call of the server in this process served where it is, or says where else it goes.
func (f *frames) serveHere(c *h2.Call, k *call) (*h2.Conn, error) {
	// of such a request nothing is gathered, inflated or decoded
	if deny := f.server.deps.Denied[string(c.Path())]; deny != nil && k.stay == nil && f.server.unproved(c) {
		headers, _ := unary.Headers(c)
		k.served = f.port.Serve(c, nil, headers, deny)
		return nil, h2.ErrMine
	}
	run := f.server.deps.Unary[string(c.Path())]
	if run == nil {
		return f.comeIn(c, k)
	}
	if c.Compressed() && canInflate(string(c.Header(headerEncoding))) { // else the server knows what to say
		if err := f.inflate(c, k, nil); err != nil {
			return nil, err
		}
		c.Remove(headerEncoding)
	}
	if begin := f.server.deps.Begin[string(c.Path())]; begin != nil {
		if v := f.begun(c, begin); v != nil {
			k.served = v
			return nil, h2.ErrMine
		}
	}
	if _, whole := c.Message(); whole && k.stay == nil && f.server.inside.many[string(c.Path())] {
		if err := k.stayIn(c); err != nil {
			return nil, err
		}
	}
	v, err := f.port.Take(c, run)
	if err == unary.ErrElsewhere {
		return f.comeIn(c, k)
	}
	k.served = v
	return nil, err
}

// connect finds a node and its connection, or says what the client is told.
func (f *frames) connect(c *h2.Call, k *call, owner cluster.NodeID) (*h2.Conn, error) {
	conn, err := f.reach(k, owner, false)
	if err != nil {
		return nil, k.refuse(refusalOf(err, owner))
	}
	if owner == 0 && k.method != nil && k.method.Style != protocol.StyleNone {
		c.Observe(&door{call: k})
	}
	return conn, nil
}

// link is what there is for the node that a call has entered. It may have just come or gone: the router knew it, so it
// is a matter of microseconds.
func (f *frames) link(k *call) (*link, error) {
	if l := f.nodes[k.at.Node]; l != nil {
		return l, nil
	}
	return nil, hop.ErrUnknownNode
}

// reach finds a node and its connection: for a session of owner, which has a transaction open, or not; or, for 0, any.
func (f *frames) reach(k *call, owner cluster.NodeID, openTx bool) (*h2.Conn, error) {
	ways := &f.server.deps.Ways
	to := hop.To{HomeNode: owner, OpenTx: openTx, Uncounted: k.method != nil && k.method.Endless}
	conn, _, err := hop.Reach(ways, to, &k.at, func() (conn *h2.Conn, err error) {
		if k.detour != nil {
			k.detour.waits = false // it was not sent
		}
		aside := k.at.Around && openTx && !ways.Scattered
		if !aside { // it was to go around, and was not sent
			k.endDetour()
		}
		l, err := f.link(k)
		if err != nil {
			return nil, err
		}
		if aside {
			conn, err = f.around(k, owner, l)
		} else {
			conn, err = l.up.Conn()
		}
		if err != nil {
			signs := ydbstatus.Signs{Code: codes.Unavailable, NotSent: true}
			about(&signs, k.method)
			ways.Leave(&k.at, &hop.Done{Key: hop.Key{Method: k.method}}, &signs, nil)
		} else if conn.Tag == nil {
			conn.Tag = &tag{node: k.at.Node}
		}
		return conn, err
	})
	return conn, err
}

// answer is the refusal as the engine sends it.
func (r refusal) answer(m *protocol.Method) error {
	if body := r.body(m); body != nil {
		return &h2.Status{Body: body}
	}
	return &h2.Status{Code: int(r.code), Message: r.text}
}

// begin remembers a call.
func (f *frames) begin(c *h2.Call) *call {
	k := f.free
	if k == nil {
		k = &call{frames: f}
	} else {
		f.free = k.next
		f.freeCount--
	}
	path := c.Path()
	k.method = protocol.Find(path)
	k.local = f.server.isLocal(k.method, path)
	switch {
	case k.method == attachSession:
		c.Background()
	case k.method != nil && k.method.Endless:
		c.Endless()
	}
	k.whenLost(c)
	if k.local {
		c.Check(f.server.rulesInside(c))
	} else {
		c.Check(rulesOf(c, k.method))
	}
	if t := f.server.deps.Tracer; t != nil && !k.local {
		if k.traced == nil {
			k.traced = new(traced)
		}
		k.traced.begin(t, c.Header(headerTraceparent))
	}
	k.trace = trace.TraceID{}
	if f.server.deps.Access.On() {
		k.trace = tracing.Parse(c.Header(headerTraceparent)).TraceID()
	}
	return k
}

// whenLost says what the client is told if the node is lost; see also whenLostAround.
func (k *call) whenLost(c *h2.Call) {
	if k.method != nil && lost[k.method.Row].Body != nil {
		c.WhenLost(&lost[k.method.Row])
	}
}

// join makes the node's part of the trace, if the call is recorded, one below the sidecar's.
func (k *call) join(c *h2.Call) {
	if k.traced != nil && k.traced.parent != "" {
		c.SetOnce(headerTraceparent, []byte(k.traced.parent))
	}
}

// Answer implements h2.Router.
func (f *frames) Answer(c *h2.Call) {
	k := c.Data.(*call)
	if k.app != nil {
		k.consume(c)
	}
	if k.uses {
		k.hear(c)
	}
}

// Done implements h2.Router.
func (f *frames) Done(c *h2.Call, o *h2.Outcome) {
	k, ok := c.Data.(*call)
	if !ok {
		return // Route panicked before it made one
	}
	whole := false
	defer func() {
		if !whole {
			f.abandon(k, o)
		}
	}()
	var verdict ydbstatus.Verdict
	if !k.local {
		s := signsOf(k.method, o)
		if k.uses && k.Server != nil && o.End == h2.Answered {
			k.correct(&s)
		}
		verdict = f.tell(k, o, s)
		if o.End == h2.Answered && o.Request <= lane.Large {
			f.server.deps.Lane.Small()
		}
	}
	f.pausing.forget(k) // while its session is busy
	if k.uses {
		f.checkIn(k, o, verdict)
	}
	f.forget(k, o)
	whole = true
	if f.freeCount < maxFree {
		f.freeCount++
		k.next, f.free = f.free, k
	}
}

// maxFree bounds the calls kept for use again, as package h2 does.
const maxFree = 1024

// forget gives back what a call holds besides its use of a session.
func (f *frames) forget(k *call, o *h2.Outcome) {
	if k.served != nil {
		k.served.Cancel()
	}
	if u := k.unpacking; u != nil {
		u.over.Store(true)
		if !f.server.unpackers.drop(u.conn, &u.elem) && u.done { // else its goroutine does
			f.shard.Unhold(u.ticket, u.held)
			u.held = 0
		}
	}
	if k.writer != nil {
		k.writer.drop()
	}
	if k.stay != nil {
		k.stay.drop()
		f.stays.leave(k.stay)
	}
	k.endDetour()
	app, asked := k.app, k.asked
	k.foreign = false
	k.said, k.app, k.asked, k.served, k.unpacking, k.writer, k.stay = 0, nil, false, nil, nil, nil, nil
	if k.traced != nil {
		*k.traced = traced{}
	}
	if app != nil {
		if asked {
			app.Cancel(class)
		}
		app.Leave(o.Request + o.Answer)
	}
}

// abandon gives back what is left of a call whose Done panicked. Everything is taken from a call
// before it is given back, so nothing is given back twice. k is not used for another call, nor
// its server session by one: nothing in them can be relied on.
func (f *frames) abandon(k *call, o *h2.Outcome) {
	for _, step := range [...]func(){
		func() { f.server.deps.Back(&k.at) },
		func() { f.pausing.forget(k) },
		func() { f.leaveQueue(k) },
		func() { f.discard(&k.use) },
		func() { f.forget(k, o) },
	} {
		_ = panics.Call("the end of a call that panicked", func() error { step(); return nil })
	}
}

// tell says what came of a call to the router, the judge and the instruments. The verdict is on one that a node had.
func (f *frames) tell(k *call, o *h2.Outcome, s ydbstatus.Signs) ydbstatus.Verdict {
	asked := false // a node, by a call of the sidecar's own
	if k.said != 0 && o.End == h2.AnsweredBy {
		s = ydbstatus.Signs{Status: k.said, Cause: ydbstatus.CauseRequest}
	} else if k.served != nil && o.End == h2.AnsweredBy {
		if signs, ok := k.served.Note.(*ydbstatus.Signs); ok {
			s, asked = *signs, !signs.NotSent
		}
	}
	d := hop.Done{
		Key:  hop.Key{Node: k.at.Node, Method: k.method, Status: s.Status, Code: s.Code},
		Sent: o.Forwarded != 0 || asked, Partial: o.Partial, Left: o.End == h2.Cancelled, Took: o.Ended - o.Began,
		Request: o.Request, Answer: o.Answer, App: k.app,
	}
	switch {
	case o.Forwarded != 0:
		d.Waited = o.Forwarded - o.Began
	case k.said != Ydb.StatusIds_SUCCESS: // else answered here at once, however long its stream lasts
		d.Waited = d.Took
	}
	if o.FirstByte != 0 && o.Forwarded != 0 {
		d.First = o.FirstByte - o.Forwarded
	}
	if k.at.Node != 0 {
		f.server.silence(k.at.Node, o)
		switch {
		case k.foreign: // its client was told something else
			s = ydbstatus.Signs{Status: Ydb.StatusIds_UNAUTHORIZED, Foreign: true}
		case k.detour != nil && k.detour.cut: // its owner is lost, for which no other node is to blame
			s.Cause = ydbstatus.CauseHomeNode
		case aboutRequest(o, s):
			s.Cause = ydbstatus.CauseRequest
		}
		if o.Node != nil && o.Node.Finished() {
			s.Lost = o.Node.Number()
		}
		about(&s, k.method)
		var meter hop.HealthReporter
		if k.uses && k.Server != nil {
			meter = k.Identity.Meter
		}
		if f.server.deps.Leave(&k.at, &d, &s, meter); mayLeave(k.method, o, s) {
			f.server.deps.Look()
		}
	}
	f.series.add(k, o, &d)
	var id trace.TraceID
	if k.traced != nil {
		var kept bool
		if kept, id = k.traced.keep(f.server.deps.Tracer, &d); kept {
			f.spans(k, &d)
		}
	}
	if id.IsValid() {
		k.trace = id
	}
	logCall(f.server.deps.Access, &d, o.End, k.trace)
	remember(f.meter, &d, id)
	return d.Verdict
}

// mayLeave tells whether the outcome of a call about a client's own session may come of the node's
// shutdown: it makes none, or ends the stream of one. Discovery knows.
func mayLeave(m *protocol.Method, o *h2.Outcome, s ydbstatus.Signs) bool {
	switch {
	case m == nil || o.End != h2.Answered:
		return false
	case m == attachSession:
		return s.Code == codes.OK
	}
	return m.Role == protocol.RoleCreate && s.Status == 0 && s.Code == codes.ResourceExhausted
}

// spans makes those of a call.
func (f *frames) spans(k *call, d *hop.Done) {
	var at *cluster.Node
	if l := f.nodes[d.Node]; l != nil {
		at = &l.node
	}
	k.traced.spans(f.server.deps.Tracer, d, at, k.uses)
}

// silence tells the judge, once for each connection, that a node answers no more.
func (s *Server) silence(node cluster.NodeID, o *h2.Outcome) {
	if o.End == h2.Lost && o.Node.Err() == h2.ErrSilent {
		s.silent(node, o.Node)
	}
}

func (s *Server) silent(node cluster.NodeID, conn *h2.Conn) {
	if t, ok := conn.Tag.(*tag); ok && !t.silent {
		t.silent = true
		s.deps.Silent(node)
	}
}

// byCode has gRPC's code count if it is an error, although the first message told of success.
func byCode(s *ydbstatus.Signs) {
	if s.Code != codes.OK && s.Status == Ydb.StatusIds_SUCCESS {
		s.Status = 0
	}
}

// congestion is what the issues in the first bytes of an answer's body say has too much to do, and its name.
func congestion(m *protocol.Method, body []byte) (c cluster.Congestion, subject string) {
	m.Issues(body, func(code uint32, text string) {
		if is, name := ydbstatus.Congested(code, text); is > c {
			c, subject = is, name
		}
	})
	return c, subject
}

// signsOf is what the outcome of a forwarded call says, in the words of ydbstatus.
func signsOf(m *protocol.Method, o *h2.Outcome) (s ydbstatus.Signs) {
	switch o.End {
	case h2.Answered:
		if m != nil {
			s.Status = m.Status(o.Head())
			if s.Status == Ydb.StatusIds_OVERLOADED || s.Status == Ydb.StatusIds_UNAVAILABLE {
				s.Congestion, s.Subject = congestion(m, o.Head())
			}
		}
		s.Code = codes.Unknown
		if o.Status >= 0 {
			s.Code = codes.Code(o.Status)
		}
		byCode(&s)
	case h2.Refused:
		s.Code, s.NotSent = codes.Unavailable, true
		s.Unrouted = o.Node == nil || o.Node.Err() == nil // refused here, or the node takes its leave: no fault of it
	case h2.Cancelled:
		s.Code, s.CallerGone = codes.Canceled, true
	case h2.Expired:
		s.Code, s.CallerGone = codes.DeadlineExceeded, true
	case h2.Broken:
		s.Code = codes.Internal
	case h2.Lost:
		s.Code = codes.Unavailable
	default: // by the sidecar itself: the node is not to blame
		s.Code, s.CallerGone = codes.Unavailable, true
		if o.Status >= 0 {
			s.Code = codes.Code(o.Status)
		}
	}
	return s
}
