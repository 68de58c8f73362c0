package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Ahead is the first attempt of a request whose first call on its session is known, begun by
// Client.Ahead before the Do or BeginTx to which it is given, or by TxSession.Ahead before the Run.
// That must be called, once, and make the same call first.
type Ahead struct {
	tries tries
	asked bool // the app was allowed to ask the pool, or was refused by err
	start time.Time
	by    pool.Ask
	wait  *wait    // its place in the queue; nil: it does not wait
	held  *held    // nil: there is no session yet
	out   *Stream  // of the call, if it was sent
	reply response // of a call that is no statement: what its answer is to be; nil: it is one
	err   error    // of the quota, the pool or the sending; nil: it was sent, or left to Do
}

// wait is a place in the pool's queue.
type wait struct {
	pool   parking
	waiter *pool.Waiter
	told   chan struct{} // closed once the pool has answered
	grant  pool.Grant
	err    error
}

// parking is a Pool that also serves callers that must not block; *pool.Pool satisfies it.
type parking interface {
	Try(pool.Ask) (*pool.Session, bool)
	Wait(*pool.Waiter, pool.Ask) (pool.Grant, error)
	Leave(context.Context, *pool.Waiter) error
}

// response is an answer of one message.
type response interface {
	proto.Message
	GetStatus() Ydb.StatusIds_StatusCode
}

// FirstCall makes the first call of a request on its session: Execute, Begin, Commit or Rollback.
type FirstCall func(ctx context.Context, s *Session) error

// Via is the turn of a shard in which a request is begun.
type Via interface {
	// To returns a connection that carries a call to a node at once, or nil.
	To(cluster.NodeID) grpc.ClientConnInterface
	// Park says that the request waits for a session. After Wake, call send once, in a turn of the
	// shard. If it is not called, the Do that has the Ahead waits for the session.
	Park(send func())
	// Wake is called on any goroutine, once, after Park or shortly before it. It must not block.
	Wake()
}

// Ahead takes a session for a request that Do is to make, and sends its first call by via: at once, or
// in a later turn if the request has to wait for the session. It does not block; Do does whatever is
// left.
func (c *Client) Ahead(ctx context.Context, call *Call, via Via, first FirstCall) *Ahead {
	a := new(Ahead)
	p, ok := c.pool.(parking)
	if !ok || call.Patient || c.d.deps.Scattered { // something else may have to wait, or another node than the session's be chosen
		return a
	}
	a.tries.progress = call.Progress
	a.tries.begin()
	a.asked = true
	if a.err = call.allowed(ctx); a.err != nil {
		return a
	}
	a.start = time.Now()
	a.by = call.ask(ctx, a.start)
	session, ok := p.Try(a.by)
	g, err := pool.Grant{Session: session}, error(nil)
	if !ok {
		if ctx.Err() != nil { // Acquire returns the error
			return a
		}
		w := &wait{pool: p, told: make(chan struct{})}
		w.waiter = pool.NewWaiter(func(g pool.Grant, err error) {
			w.grant, w.err = g, err
			close(w.told)
			via.Wake()
		})
		a.tries.at(hop.InQueue, 0)
		if g, err = p.Wait(w.waiter, a.by); g.Session == nil && err == nil {
			a.wait = w
			via.Park(func() { a.begin(ctx, c, call, w.grant, w.err, via, first) })
			return a
		}
	}
	a.begin(ctx, c, call, g, err, via, first)
	return a
}

// begin notes what the pool said, and has the first call sent if that was a session.
func (a *Ahead) begin(ctx context.Context, c *Client, call *Call, g pool.Grant, err error, via Via, first FirstCall) {
	a.held, a.err = c.answered(ctx, *call, &a.tries, a.start, g, err)
	if a.err != nil || !c.d.tickets.lasts() { // no session, or a new ticket may have to be waited for
		return
	}
	whole := false
	defer func() {
		if !whole {
			a.held.finish()
			a.held = nil
		}
	}()
	a.send(ctx, a.held.s, call.Effects, via, first)
	whole = true
}

// over waits for the pool's answer until ctx ends, as Acquire does.
func (w *wait) over(ctx context.Context) (pool.Grant, error) {
	select {
	case <-w.told:
	case <-ctx.Done():
		if err := w.pool.Leave(ctx, w.waiter); err != nil {
			return pool.Grant{}, err
		}
		<-w.told // on its way
	}
	return w.grant, w.err
}

// Ahead is Client.Ahead for a call on the session of a transaction.
func (l *TxSession) Ahead(ctx context.Context, call *Call, via Via, first FirstCall) *Ahead {
	a, d, s := new(Ahead), l.c.d, l.held.s
	if !d.tickets.lasts() || d.deps.Scattered || d.outOfUse(s.Node()) {
		return a
	}
	a.tries.progress = call.Progress
	a.tries.begin()
	a.send(ctx, s, call.Effects, via, first)
	return a
}

// errElsewhere says that a call was not sent because it has to go to another node than its session's.
var errElsewhere = errors.New("upstream: another node has to be asked")

// send has a call sent by via. What would have to wait is left to whoever has the session next.
func (a *Ahead) send(ctx context.Context, s *Session, effects yql.Effects, via Via, first FirstCall) {
	spoiled := s.spoiled
	defer func() {
		s.via = nil
		if v := recover(); v != nil {
			s.spoiled, s.ahead, s.tries = true, nil, nil
			a.err = &panics.Error{Where: "the first call of a request", Value: v} // for Do, if the call goes on after the panic
			// for whoever's turn it is: its forwarder may be half changed
			panic(v)
		}
	}()
	cc := via.To(s.Node())
	if cc == nil {
		return
	}
	s.ahead, s.via, s.tries, s.effects = a, cc, &a.tries, effects
	if a.err = first(ctx, s); a.err == errSent {
		a.err = nil
	}
	if a.out = s.stream; a.out == nil && a.err == nil { // there was nothing to send
		s.ahead = nil
		return
	}
	if e, ok := errors.AsType[*Error](a.err); a.err == errElsewhere || ok && e.unreached && s.tx != "" {
		s.ahead, s.spoiled, a.err = nil, spoiled, nil // see Session.again
	}
}

// errSent says that a call of one message was sent ahead. Whoever makes it again has the answer.
var errSent = errors.New("upstream: the call was sent")

// sendAhead sends a call of one message by s.via: f makes it.
func (s *Session) sendAhead(ctx context.Context, m *protocol.Method, w weight,
	f func(context.Context, grpc.ClientConnInterface) error) error {
	h, err := s.begin(ctx, m, w)
	if err != nil {
		return err
	}
	to := sendOnly{via: s.via, options: &h.headers}
	if err = h.guard(func() error { return f(h.ctx, &to) }); err != errSent {
		return s.end(h, err)
	}
	h.sent, s.ahead.reply = true, to.reply
	s.stream = &Stream{s: s, h: h, rpc: to.rpc}
	return errSent
}

// sendOnly sends one call, and does not wait for the answer: Invoke returns errSent.
type sendOnly struct {
	grpc.ClientConnInterface // nil
	via                      grpc.ClientConnInterface
	options                  grpc.CallOption
	rpc                      grpc.ClientStream
	reply                    response
}

// Invoke implements grpc.ClientConnInterface.
func (c *sendOnly) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) (err error) {
	c.reply = reply.(response)
	if c.rpc, err = openStream(ctx, c.via, &oneMessage, method, args, c.options); err == nil {
		err = errSent
	}
	return err
}

// receiveOnly is a call of one message whose request was sent: Invoke waits for the answer.
type receiveOnly struct {
	grpc.ClientConnInterface // nil
	rpc                      grpc.ClientStream
	trailer                  *metadata.MD
}

// Invoke implements grpc.ClientConnInterface.
func (c *receiveOnly) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	err := c.rpc.RecvMsg(reply)
	*c.trailer = c.rpc.Trailer()
	return err
}

// Sent is the answer to the call of an Ahead, if that was sent, or why it was not. False: it is to be made.
func (s *Session) Sent() (*Stream, bool, error) {
	a := s.ahead
	if a == nil {
		return nil, false, nil
	}
	s.ahead = nil
	return a.out, true, a.err
}

// Here reports whether what is left to do waits for nothing, given an answer that has ended well, of which the messages are bytes with
// their prefixes: it is a success, nothing in it fails to be read, so that nothing is tried again, and it leaves a transaction open if the
// statement was to, and no other one. Of a call that is no statement: it is one message, which says that all is well.
func (a *Ahead) Here(raw []byte) bool {
	if a.out == nil || len(raw) == 0 {
		return false
	}
	if a.reply != nil {
		message := raw[min(protocol.PrefixSize, len(raw)):]
		return len(raw) >= protocol.PrefixSize && raw[0] == 0 && uint64(len(message)) == uint64(binary.BigEndian.Uint32(raw[1:])) &&
			proto.Unmarshal(message, a.reply) == nil && a.reply.GetStatus() == Ydb.StatusIds_SUCCESS
	}
	open, st, part := false, &a.out.sent, &a.out.part
	var message []byte
	for whole := len(raw); len(raw) > 0; {
		if len(raw) < protocol.PrefixSize || raw[0] != 0 {
			return false
		}
		n := uint64(binary.BigEndian.Uint32(raw[1:]))
		raw = raw[protocol.PrefixSize:]
		if uint64(len(raw)) < n {
			return false
		}
		ok, tx := part.succeeds(raw[:n])
		if !ok {
			return false
		}
		open = open || tx
		if message = raw[:n]; protocol.PrefixSize+len(message) < whole {
			message = nil // there are more
		}
		raw = raw[n:]
	}
	if open != (st.controlled() && !st.Commit) {
		return false
	}
	part.read = message // Next need not read it again
	return true
}
