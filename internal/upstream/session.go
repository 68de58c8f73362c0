package upstream

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Errors of a session used against its rules.
var (
	errInUse = errors.New("upstream: the session runs another call; read its stream to the end first")
	errNoTx  = errors.New("upstream: the session has no open transaction")

	errUnusable = errors.New("upstream: the session is not to be used again")
)

// Session is one session on one node. Whoever leased it from the pool drives
// it, one call at a time; only Close, ID, Node and the watcher may run beside. While it recovers, the pool asks AtRest instead.
type Session struct {
	d       *Driver
	tickets ticketSource // it was opened with, and is deleted with
	conn    *nodeConn    // of the node that owns it; a reference is held until Close
	id      string
	ended   chan struct{} // closed when no watcher runs

	before  uint64    // wire.lost when the attach stream began
	opening time.Time // when it began to be opened
	open    time.Duration

	marks
	driven
}

// marks are what the watcher and others say of a session, at any time.
type marks struct {
	detach    context.CancelFunc        // ends the attach stream; nil before it exists
	closing   atomic.Bool               // Close has begun
	forgotten atomic.Bool               // the node has no such session any more: nothing to delete
	unwanted  atomic.Bool               // the node asked for it to be closed, and counts it until that is done
	failed    atomic.Bool               // the status of a call in it was one that ends a session
	ending    atomic.Pointer[time.Time] // when the node ended the attach stream without a reason; nil: not, or that was judged
	killed    atomic.Bool               // Kill has begun
	around    atomic.Bool               // the last call went through another node, which forwarded it
	running   atomic.Pointer[trip]      // the call under way, for Kill
}

// driven is of the goroutine, or the turn of a shard, that has the session: it drives it, or asks AtRest while it recovers.
type driven struct {
	busy       bool                     // a call is under way
	stream     *Stream                  // of the call under way, if it has one, or was sent ahead
	tx         string                   // the open transaction; "" if none
	readOnly   bool                     // the open transaction only reads
	spoiled    bool                     // not to be used for new work
	recovering bool                     // the node may still be at work on a call that was given up and leaves nothing behind: see AtRest
	tries      *tries                   // of the current attempt; nil outside one
	effects    yql.Effects              // of its statements: see Call
	app        *apps.Stripe             // app that has the session; nil: none
	ahead      *Ahead                   // its call was sent, or could not be; nil
	via        grpc.ClientConnInterface // connection for the next call, which is not waited for; nil: the driver's own connection
}

func newSession(d *Driver, owner ticketSource, c *nodeConn, id string) *Session {
	s := &Session{d: d, tickets: owner, conn: c, id: id, ended: make(chan struct{})}
	close(s.ended) // until there is a watcher
	return s
}

// ID is the session's id as the node gave it.
func (s *Session) ID() string { return s.id }

// Node is the node that owns the session.
func (s *Session) Node() cluster.NodeID { return s.conn.node.ID }

// Forget says that the node has forgotten the session: Close deletes nothing. It may have ended
// with its node, so discovery is asked.
func (s *Session) Forget() {
	s.forgotten.Store(true)
	s.d.deps.Look()
}

// Fail says that a call in the session had a status that ends sessions on the node: the end of the
// attach stream then says nothing about the node.
func (s *Session) Fail() { s.failed.Store(true) }

// TxID is the id of the open transaction; "" if there is none.
func (s *Session) TxID() string { return s.tx }

// clean tells whether the session can serve the next caller: its last stream
// was read to the end, no transaction is open, nothing ended in the dark.
func (s *Session) clean() bool { return !s.recovering && s.recoverable() }

// recoverable is clean for a session that is as soon as its node is done.
func (s *Session) recoverable() bool {
	return !s.busy && s.tx == "" && !s.spoiled && !s.forgotten.Load() && !s.killed.Load() && !s.conn.wire.abandoned.Load()
}

// Close deletes the session on its node, which rolls back what is open, and
// ends its attach stream. What the node has forgotten is not deleted again, and
// a node out of reach is not asked: there the end of the stream must do. Only
// the first Close does something.
func (s *Session) Close(ctx context.Context) error {
	if s.closing.Swap(true) {
		return nil
	}
	s.streamEnded() // the answer to the last call has come
	err := s.delete(ctx)
	if s.detach != nil {
		s.detach()
	}
	<-s.ended
	s.conn.drop()
	s.d.mine.drop(s.id)
	return err
}

// delete asks the node to delete the session, unless there is nothing to delete.
func (s *Session) delete(ctx context.Context) error {
	if s.forgotten.Load() {
		return nil
	}
	c := s.wayToDelete()
	if c == nil {
		return nil
	}
	defer c.drop()
	k, err := s.tickets.get(ctx)
	if err != nil {
		return err
	}
	if err := c.deleteSession(metadata.NewOutgoingContext(ctx, k.call), s.tickets.table(), s.id); err != nil {
		_, e := failure(ctx, err, true)
		e.Op, e.Node = "DeleteSession", s.conn.node.ID
		return e
	}
	return nil
}

// wayToDelete is the connection, with a reference, over which the session is
// deleted; nil if the end of its attach stream must do. That is so when the node
// cannot be reached, except sessions without a stream, and those that were
// just reached through another node: then such a node is asked again.
func (s *Session) wayToDelete() *nodeConn {
	owner := s.conn.node.ID
	out := s.d.outOfUse(owner)
	if !out && !s.conn.wire.abandoned.Load() {
		if s.conn.hold() {
			return s.conn
		}
		return nil
	}
	if s.detach != nil && !s.around.Load() {
		return nil
	}
	to := owner
	if out {
		n, err := s.d.deps.Router.Pick()
		if err != nil || n.ID == owner {
			return nil
		}
		to = n.ID
	}
	c, err := s.d.conn(to)
	if err != nil {
		return nil
	}
	return c
}

// begin starts a call on the session, on the node that routing names.
func (s *Session) begin(ctx context.Context, m *protocol.Method, w weight) (*trip, error) {
	if s.busy {
		return nil, errInUse
	}
	if s.killed.Load() {
		s.spoiled = true
		return nil, unrouted(m, s.conn.node.ID, ErrKilled, true)
	}
	h, err := s.d.start(
		ctx,
		target{method: m, weight: w, home: s.conn, openTx: s.tx != "", id: s.id, tries: s.tries, app: s.app, here: s.via != nil},
	)
	if err != nil {
		if e, ok := errors.AsType[*Error](err); ok && e.Verdict.DropSession {
			s.spoiled = true
		}
		return nil, err
	}
	s.busy = true
	s.around.Store(h.around)
	s.running.Store(h)
	if s.killed.Load() { // Kill may have looked before
		h.cut(ErrKilled)
	}
	return h, nil
}

// again waits and tells whether to send a call again that failed with err; spoiled is what the session was before it.
func (s *Session) again(ctx context.Context, r *hop.Reroutes, err error, spoiled bool) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || !e.unreached || s.tx == "" || s.via != nil { // or it is a shard's turn, which must not wait
		return false
	}
	if pause, ok := r.Next(); !ok || !awake.Sleep(ctx, pause) {
		return false
	}
	s.spoiled = spoiled
	return true
}

// end ends a call on the session and keeps what the verdict says about it.
func (s *Session) end(h *trip, err error) error {
	s.busy = false
	s.running.Store(nil)
	e := h.end(err)
	if e == nil {
		return nil
	}
	if e.Verdict.DropSession {
		s.inDoubt(h, over(h.caller) && e.Status == 0 || e.Status == Ydb.StatusIds_TIMEOUT)
	}
	if e.Status == Ydb.StatusIds_INTERNAL_ERROR {
		s.Fail()
	}
	if e.Verdict.SessionGone {
		s.forgotten.Store(true)
		s.lost(e)
	}
	switch {
	case e.Status == Ydb.StatusIds_ABORTED,
		e.Status == Ydb.StatusIds_NOT_FOUND && h.method == methodCommit:
		s.tx = "" // ended on the node; after other errors only Rollback or Close makes sure
	}
	return e
}

// inDoubt notes that nobody knows how far the node has come with a call. rollsBack: it rolls back what it
// began, as it does when the caller is gone or the time is up. A call that went around a node out of reach
// leaves nobody to ask: AtRest asks the owner.
func (s *Session) inDoubt(h *trip, rollsBack bool) {
	if rollsBack && h.leavesNoTx && !h.around {
		s.recovering = true
	} else {
		s.spoiled = true
	}
}

// noTx is the id of no transaction, in the form that the node's ids have.
const noTx = "00000000000000000000000000"

// AtRest asks the node whether it is done with the calls on the session, by rolling back a transaction that
// is none: that costs the node nothing, and is refused while it is at work. KeepAlive does not tell: a node says
// that an attached session is busy, whatever it does
// (ydb/core/kqp/proxy_service/kqp_proxy_service.cpp@0057c759, TEvPingSessionRequest).
func (s *Session) AtRest(ctx context.Context) (bool, error) {
	if !s.recoverable() || !s.conn.hold() {
		return false, errUnusable
	}
	defer s.conn.drop()
	k, err := s.tickets.get(ctx)
	if err != nil {
		return false, err
	}
	err = s.conn.rollback(metadata.NewOutgoingContext(ctx, k.call), s.tickets.table(), s.id, noTx)
	a, answered := errors.AsType[*answer](err)
	switch {
	case err == nil:
		return false, errUnusable // there was such a transaction
	case !answered:
		return false, err
	case a.status == Ydb.StatusIds_NOT_FOUND:
		s.recovering = false
		return true, nil
	case a.status == Ydb.StatusIds_SESSION_BUSY:
		return false, nil
	case a.status == Ydb.StatusIds_BAD_SESSION:
		s.forgotten.Store(true)
	}
	return false, err
}

// trailer takes a hint of the server from the trailers of a call.
func (s *Session) trailer(md metadata.MD) {
	for _, hints := range md.Get(protocol.HeaderHints) {
		if protocol.SaysClose([]byte(hints)) {
			s.spoiled = true // once it is let go; what is open may finish
		}
	}
}

// unary runs one unary call that belongs to the session, and judges it. f gets the connection of the
// right node and a context with all headers; it returns transport errors as they are and YDB's through
// Check. In an Ahead the call is only sent, and f is called again for the answer.
func (s *Session) unary(ctx context.Context, m *protocol.Method, w weight, f func(context.Context, grpc.ClientConnInterface) error) error {
	if s.via != nil {
		return s.sendAhead(ctx, m, w, f)
	}
	var r hop.Reroutes
	for {
		spoiled := s.spoiled
		var trailer metadata.MD
		h, conn, err := s.call(ctx, m, w, &trailer)
		if err != nil {
			return err
		}
		err = h.guard(func() error { return f(h.ctx, conn) })
		if _, ok := errors.AsType[*answer](err); ok || err == nil {
			h.arrived()
		}
		s.trailer(trailer)
		h.price(trailer)
		err = s.end(h, err)
		if !s.again(ctx, &r, err, spoiled) {
			return err
		}
	}
}

// call begins a call of one message, unless an Ahead has sent it.
func (s *Session) call(ctx context.Context, m *protocol.Method, w weight, trailer *metadata.MD) (*trip, grpc.ClientConnInterface, error) {
	if t, ahead, err := s.Sent(); err != nil {
		return nil, nil, err
	} else if ahead {
		h := t.h
		t.h, s.stream = nil, nil
		return h, &receiveOnly{rpc: t.rpc, trailer: trailer}, nil
	}
	h, err := s.begin(ctx, m, w)
	if err != nil {
		return nil, nil, err
	}
	return h, &callConn{cc: h.conn.cc, options: []grpc.CallOption{grpc.Peer(&h.peer), &h.headers, grpc.Trailer(trailer)}}, nil
}

// Begin opens a transaction.
func (s *Session) Begin(ctx context.Context, settings *Ydb_Query.TransactionSettings) error {
	return s.unary(ctx, methodBegin, weight{
		kind: cluster.CallControl, undone: true,
	}, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		r := new(Ydb_Query.BeginTransactionResponse)
		err := conn.Invoke(ctx, methodBegin.Path, &Ydb_Query.BeginTransactionRequest{SessionId: s.id, TxSettings: settings}, r)
		if err == nil {
			err = Check(r.GetStatus(), r.GetIssues())
		}
		if err == nil {
			s.tx, s.readOnly = r.GetTxMeta().GetId(), readOnly(settings)
			s.spoiled = s.spoiled || s.tx == "" // one may be open whose id is not known
		}
		return err
	})
}

// Commit commits the open transaction. An error with Sent means that nobody
// knows whether it was committed.
func (s *Session) Commit(ctx context.Context) error {
	if s.tx == "" {
		return errNoTx
	}
	w := weight{kind: cluster.CallCommit}
	if s.readOnly || s.effects == yql.Reads {
		w = weight{kind: cluster.CallExecute, undone: true} // nothing that could be lost
	}
	return s.unary(ctx, methodCommit, w, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		r := new(Ydb_Query.CommitTransactionResponse)
		err := conn.Invoke(ctx, methodCommit.Path, &Ydb_Query.CommitTransactionRequest{SessionId: s.id, TxId: s.tx}, r)
		if err == nil {
			err = Check(r.GetStatus(), r.GetIssues())
		}
		if err == nil {
			s.tx = ""
		}
		return err
	})
}

// Rollback rolls the open transaction back; one that the node has ended already
// is fine. Without an open transaction it does nothing.
func (s *Session) Rollback(ctx context.Context) error {
	if s.tx == "" {
		return nil
	}
	return s.unary(ctx, methodRollback, weight{
		kind: cluster.CallControl, undone: true,
	}, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		r := new(Ydb_Query.RollbackTransactionResponse)
		err := conn.Invoke(ctx, methodRollback.Path, &Ydb_Query.RollbackTransactionRequest{SessionId: s.id, TxId: s.tx}, r)
		if err == nil && r.GetStatus() != Ydb.StatusIds_NOT_FOUND {
			err = Check(r.GetStatus(), r.GetIssues())
		}
		if err == nil {
			s.tx = ""
		}
		return err
	})
}

// readOnly tells whether a transaction of this mode can have no effect.
func readOnly(t *Ydb_Query.TransactionSettings) bool {
	switch t.GetTxMode().(type) {
	case *Ydb_Query.TransactionSettings_OnlineReadOnly,
		*Ydb_Query.TransactionSettings_StaleReadOnly,
		*Ydb_Query.TransactionSettings_SnapshotReadOnly:
		return true
	}
	return false
}

// callConn adds options to the calls of one hop.
type callConn struct {
	cc      grpc.ClientConnInterface
	options []grpc.CallOption
}

// Invoke satisfies grpc.ClientConnInterface.
func (c *callConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.cc.Invoke(ctx, method, args, reply, append(opts, c.options...)...)
}

// NewStream satisfies grpc.ClientConnInterface.
func (c *callConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.cc.NewStream(ctx, desc, method, append(opts, c.options...)...)
}
