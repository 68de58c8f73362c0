package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// cleanupTimeout bounds the deletion of a session that never came to the pool.
const cleanupTimeout = 2 * time.Second

// cleanupPause lies between two tries to delete it.
const cleanupPause = 200 * time.Millisecond

// Open creates a session on node, attaches to it and watches it. It satisfies
// pool.Opener: ctx bounds both steps, and its end is the node's fault. A
// session that the cluster placed elsewhere is deleted, and if it does that
// twice it is an error, because the pool counts sessions by node: unless several
// nodes share the address, or no other node is known. Then the session is that
// address's, and stays on the connection that made it.
func (d *Driver) Open(ctx context.Context, node cluster.NodeID, retire func(reason string)) (pool.Resource, error) {
	return d.openAs(ctx, d.tickets, node, retire)
}

func (d *Driver) openAs(ctx context.Context, owner ticketSource, node cluster.NodeID, retire func(reason string)) (pool.Resource, error) {
	s, err := d.open(ctx, owner, node, retire)
	if e, ok := errors.AsType[*Error](err); ok && e.Op == creates(owner).Name() {
		return nil, ofNode{e}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (d *Driver) open(ctx context.Context, owner ticketSource, node cluster.NodeID, retire func(string)) (*Session, error) {
	c, err := d.conn(node)
	if err != nil {
		return nil, unrouted(methodCreate, node, err, false)
	}
	defer c.drop()
	start := time.Now()
	s, err := d.create(ctx, owner, c, true)
	if errors.Is(err, ErrMisplaced) {
		// The cluster balances the sessions of those who say that they take part in
		// it. The pool spreads them by itself, so say nothing this time.
		s, err = d.create(ctx, owner, c, false)
	}
	if err != nil {
		return nil, err
	}
	if owner.table() { // it has no stream
		d.opened(node, start)
	} else if err := d.attach(ctx, s, retire); err != nil {
		d.orphan(s)
		return nil, err
	}
	s.opening, s.open = start, time.Since(start)
	d.mine.add(s.id)
	d.tel.create.Add(s.open)
	return s, nil
}

// create makes a session. balanced announces that the cluster may place the session
// and ask for its end.
func (d *Driver) create(ctx context.Context, owner ticketSource, c *nodeConn, balanced bool) (*Session, error) {
	start := time.Now()
	k, err := owner.get(ctx)
	if err != nil {
		return nil, d.openFailed(ctx, owner, c, creates(owner), start, false, err)
	}
	headers := k.call
	if balanced {
		headers = k.open
	}
	r, err := d.askSession(ctx, owner, c, headers)
	if err == ErrClosed {
		return nil, err
	}
	if err != nil {
		return nil, d.openFailed(ctx, owner, c, creates(owner), start, true, err)
	}
	if r.err != nil {
		return nil, d.openFailed(ctx, owner, c, creates(owner), start, r.sent.Addr != nil, r.err)
	}
	other := r.at != 0 && r.at != c.node.ID
	if other && d.takes(c.node.ID, balanced) {
		c.several.Store(true)
	} else if other {
		if home, err := d.conn(r.at); err == nil {
			d.orphan(newSession(d, owner, home, r.id))
		} else if c.hold() {
			d.orphan(newSession(d, owner, c, r.id)) // it forwards
		}
		return nil, fmt.Errorf("%w: node %d", ErrMisplaced, r.at)
	}
	c.hold() // cannot fail: open holds a reference
	return newSession(d, owner, c, r.id), nil
}

// takes reports whether a session that names another node is the node's all the same: behind
// its address may be several, and none is known at another address. A cluster that was
// invited to place the session elsewhere is asked once more.
func (d *Driver) takes(node cluster.NodeID, balanced bool) bool {
	v := d.view.Load()
	if n, ok := v.Find(node); ok && n.Shared {
		return true
	}
	return v.Alone && !(balanced && d.config.SessionBalancer)
}

// made is what a node answered to CreateSession.
type made struct {
	id   string
	at   cluster.NodeID // 0 if the answer does not say
	sent peer.Peer
	err  error
}

// askSession asks a node for a session. When ctx ends first, which is the error then, the
// answer is still awaited, in the background and not for long: a session that
// nobody knows of would stay on the node until its idle timeout.
func (d *Driver) askSession(ctx context.Context, owner ticketSource, c *nodeConn, headers metadata.MD) (*made, error) {
	handed, left := make(chan *made), make(chan struct{})
	defer close(left)
	began := d.background(c, func() {
		patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), untilEnd(ctx)+cleanupTimeout)
		defer cancel()
		// It is not cut off, only late: somebody must delete the session that comes.
		d.enter(c, nil, time.Now())
		defer c.leave(nil)
		r := new(made)
		r.id, r.at, r.err = c.createSession(
			metadata.NewOutgoingContext(patient, headers), owner.table(), grpc.Peer(&r.sent), client.Lasts{},
		)
		select {
		case handed <- r:
		case <-left:
			if r.id == "" {
				return
			}
			home := c
			if r.at != 0 && r.at != c.node.ID { // the cluster placed it there
				if at, err := d.conn(r.at); err == nil {
					defer at.drop()
					home = at
				}
			}
			d.deleteOrphan(newSession(d, owner, home, r.id))
		}
	})
	if !began {
		return nil, ErrClosed
	}
	select {
	case r := <-handed:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// untilEnd is how long ctx lasts.
func untilEnd(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return max(time.Until(end), 0)
	}
	return cleanupTimeout
}

// createSession asks the node for a session, of the query or the table service; at is 0 if the answer does not say.
func (c *nodeConn) createSession(ctx context.Context, table bool, options ...grpc.CallOption) (id string, at cluster.NodeID, err error) {
	if !table {
		r, err := c.query.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{}, options...)
		if err == nil {
			err = Check(r.GetStatus(), r.GetIssues())
		}
		if r.GetNodeId() != 0 {
			return r.GetSessionId(), cluster.NodeID(r.GetNodeId()), err
		}
		return r.GetSessionId(), protocol.HomeNode([]byte(r.GetSessionId())), err
	}
	r, err := Ydb_Table_V1.NewTableServiceClient(c.cc).CreateSession(ctx, &Ydb_Table.CreateSessionRequest{}, options...)
	if err == nil {
		err = CheckOperation(r.GetOperation())
	}
	result := new(Ydb_Table.CreateSessionResult)
	if err == nil {
		err = r.GetOperation().GetResult().UnmarshalTo(result)
	}
	return result.GetSessionId(), protocol.HomeNode([]byte(result.GetSessionId())), err
}

// deleteSession deletes a session on its node.
func (c *nodeConn) deleteSession(ctx context.Context, table bool, id string) error {
	var err error
	if !table {
		var r *Ydb_Query.DeleteSessionResponse
		if r, err = c.query.DeleteSession(ctx, &Ydb_Query.DeleteSessionRequest{SessionId: id}); err == nil &&
			r.GetStatus() != Ydb.StatusIds_BAD_SESSION {
			err = Check(r.GetStatus(), r.GetIssues())
		}
		return err
	}
	r, err := Ydb_Table_V1.NewTableServiceClient(c.cc).DeleteSession(ctx, &Ydb_Table.DeleteSessionRequest{SessionId: id})
	if err == nil && r.GetOperation().GetStatus() != Ydb.StatusIds_BAD_SESSION {
		err = CheckOperation(r.GetOperation())
	}
	return err
}

// rollback rolls a transaction of a session back. What the node says is an *answer.
func (c *nodeConn) rollback(ctx context.Context, table bool, id, tx string) error {
	if !table {
		r, err := c.query.RollbackTransaction(ctx, &Ydb_Query.RollbackTransactionRequest{SessionId: id, TxId: tx})
		if err == nil {
			err = Check(r.GetStatus(), r.GetIssues())
		}
		return err
	}
	r, err := Ydb_Table_V1.NewTableServiceClient(c.cc).RollbackTransaction(
		ctx, &Ydb_Table.RollbackTransactionRequest{SessionId: id, TxId: tx},
	)
	if err == nil {
		err = CheckOperation(r.GetOperation())
	}
	return err
}

// attach opens the stream that keeps the session alive, waits for its first
// state as long as ctx allows, and leaves a watcher behind.
func (d *Driver) attach(ctx context.Context, s *Session, retire func(string)) error {
	start := time.Now()
	k, err := s.tickets.get(ctx)
	if err != nil {
		return d.openFailed(ctx, s.tickets, s.conn, methodAttach, start, false, err)
	}
	// The stream lives as long as the session, so it must not end with ctx; only
	// the wait for the first state does.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	hurry := context.AfterFunc(ctx, cancel)
	s.before = s.conn.wire.lost.Load()
	d.enter(s.conn, nil, start) // until the first state
	defer s.conn.leave(nil)
	stream, err := openStream(metadata.NewOutgoingContext(life, k.call), s.conn.cc, &serverStream, methodAttach.Path,
		&Ydb_Query.AttachSessionRequest{SessionId: s.id}, client.Lasts{})
	sent := err == nil
	state := new(Ydb_Query.SessionState)
	if err == nil {
		err = stream.RecvMsg(state)
	}
	if !hurry() {
		err = ctx.Err()
	}
	switch {
	case errors.Is(err, io.EOF):
		err = &answer{status: Ydb.StatusIds_BAD_SESSION}
		s.unwantedNow("stream ended")
	case err == nil && state.GetSessionHint() != nil:
		err = &answer{status: Ydb.StatusIds_UNAVAILABLE} // it leaves before it came
		if state.GetNodeShutdown() != nil {
			s.report(cluster.BlameDraining, "node_shutdown")
		}
	case err == nil:
		err = Check(state.GetStatus(), state.GetIssues())
		if state.GetStatus() == Ydb.StatusIds_NOT_FOUND { // it was made, and is to be closed already
			s.unwantedNow("session to be closed")
		}
	}
	if err != nil {
		cancel()
		return d.openFailed(ctx, s.tickets, s.conn, methodAttach, start, sent, err)
	}
	if !d.watchLife(s, stream, cancel, retire) {
		cancel()
		return ErrClosed
	}
	d.opened(s.conn.node.ID, start)
	return nil
}

// opened reports that a node made a session, or attached to it, which it was asked for at start.
func (d *Driver) opened(node cluster.NodeID, start time.Time) {
	d.deps.Report(node, &hop.Done{First: time.Since(start)}, &ydbstatus.Signs{Kind: cluster.CallOpen})
}

// watchLife starts the watcher; false if the driver is closed.
func (d *Driver) watchLife(s *Session, stream grpc.ClientStream, cancel context.CancelFunc, retire func(string)) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	s.detach, s.ended = cancel, make(chan struct{})
	d.watchers.Go(func() {
		defer close(s.ended)
		defer cancel()
		silent := flight{cut: func(error) { retire("the connection to the node went silent") }}
		s.conn.wire.join(&silent)
		defer s.conn.wire.part(&silent)
		defer panics.Go("the watch of a session")
		s.watch(stream, retire)
	})
	return true
}

// watch reads the attach stream to its end and retires the session at the first
// sign that it will not last.
func (s *Session) watch(stream grpc.ClientStream, retire func(string)) {
	for {
		state := new(Ydb_Query.SessionState)
		err := stream.RecvMsg(state)
		if s.closing.Load() {
			return // the pool is deleting it: the end is what it asked for
		}
		switch {
		case errors.Is(err, io.EOF):
			// It lives on until a limit of the node's: what is open may go on, then it is deleted. Or
			// it ended with the status of the call in it, which has come or is about to.
			if !s.unwanted.Swap(true) {
				s.d.deps.Look()
				now := time.Now()
				s.ending.Store(&now)
				time.AfterFunc(answerBehind, func() {
					defer panics.Go("the end of an attach stream")
					s.streamEnded()
				})
			}
			retire("the node asked for the session to be closed")
			return
		case err != nil && s.conn.wire.abandoned.Load():
			return // the judge and the pool know, the node perhaps not
		case err != nil:
			// The node deletes a session whose stream breaks.
			s.forgotten.Store(true)
			s.reportLife(err)
			retire("the connection to the node broke")
			return
		case state.GetStatus() != Ydb.StatusIds_SUCCESS:
			s.reportLife(Check(state.GetStatus(), state.GetIssues()))
			retire("the node reported " + ydbstatus.StatusName(state.GetStatus()))
		case state.GetNodeShutdown() != nil:
			s.unwanted.Store(true)
			s.report(cluster.BlameDraining, "node_shutdown")
			retire("the node announced its shutdown")
		case state.GetSessionShutdown() != nil:
			s.unwanted.Store(true)
			retire("the node asked for the session to be closed")
		}
	}
}

// unwantedNow notes that the node asks for the session to be closed without saying why. A second such request within a
// second means that the node shuts down. Discovery is asked in either case.
func (s *Session) unwantedNow(sign string) {
	if s.unwanted.Swap(true) {
		return // it was known
	}
	s.d.deps.Look()
	if s.conn.asked.again(time.Now()) {
		s.report(cluster.BlameDraining, sign)
	}
}

// answerBehind is how long the answer that ended a session may come behind the end of its attach stream. The
// node sends both at the same moment.
const answerBehind = 50 * time.Millisecond

// streamEnded judges the end of the attach stream, once.
func (s *Session) streamEnded() {
	defer panics.Go("the end of an attach stream")
	if !s.failed.Load() && !s.forgotten.Load() {
		s.leaves("streams ended")
	}
}

// leaves counts the end of the attach stream as a sign that the node leaves, if it was not counted.
func (s *Session) leaves(sign string) {
	if at := s.ending.Swap(nil); at != nil && s.conn.asked.again(*at) {
		s.report(cluster.BlameDraining, sign)
	}
}

// lost takes note that the node knows the session no more. One that was not used, and whose end
// was not announced, may have ended with its node.
func (s *Session) lost(e *Error) {
	if e.closing() {
		s.leaves("sessions closed")
		s.unwantedNow("sessions closed")
	} else if s.tx == "" {
		s.d.deps.Look()
	}
}

// reportLife judges the end of an attach stream.
func (s *Session) reportLife(err error) {
	signs, e := failure(context.Background(), err, true)
	signs.Kind = cluster.CallControl
	if n := s.conn.wire.lost.Load(); n != s.before {
		signs.Lost = n
	}
	s.tell(cluster.Outcome{Blame: ydbstatus.Judge(signs).Blame, Detail: e.StatusName(), Lost: signs.Lost})
}

func (s *Session) report(blame cluster.Blame, detail string) {
	s.tell(cluster.Outcome{Blame: blame, Detail: detail})
}

// tell reports what the session's life shows of its node.
func (s *Session) tell(o cluster.Outcome) {
	if o.Blame == cluster.BlameDraining {
		s.d.renew(s.conn)
	}
	o.Node, o.Kind = s.conn.node.ID, cluster.CallControl
	s.d.deps.Health.Report(o)
}

// creates is the method that makes sessions of an owner.
func creates(owner ticketSource) *protocol.Method {
	if owner.table() {
		return methodCreateTable
	}
	return methodCreate
}

// openFailed judges a failure to create or attach a session and reports it.
func (d *Driver) openFailed(ctx context.Context, owner ticketSource, c *nodeConn, m *protocol.Method, start time.Time,
	sent bool, err error) error {
	signs, e := failure(ctx, err, true)
	signs.Kind = cluster.CallOpen
	signs.NotSent = signs.NotSent || (signs.Status == 0 && !sent)
	if errors.Is(ctx.Err(), context.Canceled) { // the pool closes
		signs.Cause = ydbstatus.CauseProcess
	}
	done := hop.Done{Key: hop.Key{Method: m, Status: signs.Status, Code: signs.Code}, Took: time.Since(start)}
	d.deps.Report(c.node.ID, &done, &signs)
	e.Op, e.Node, e.Verdict = m.Name(), done.Node, done.Verdict
	if e.Unauthorized() {
		owner.reject()
	}
	if e.Verdict.Blame == cluster.BlameDraining {
		d.renew(c)
	}
	d.tel.hop.Add(done.Key, done.Took)
	return e
}

// orphan deletes a session that does not come to the pool, in the background:
// else it would stay on the node until its idle timeout. It takes over s.
func (d *Driver) orphan(s *Session) {
	if !d.background(s.conn, func() { d.deleteOrphan(s) }) {
		d.log.Debug("closed before a session that failed to open was deleted", "node", s.conn.node.ID)
	}
	s.conn.drop()
}

// deleteOrphan tries more than once: what kept the session from opening was often
// a broken connection, and that needs a moment to come back.
func (d *Driver) deleteOrphan(s *Session) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	for {
		err := s.delete(ctx)
		if err == nil {
			return
		}
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != codes.Unavailable || !awake.Sleep(ctx, cleanupPause) {
			d.log.Debug("cannot delete a session that failed to open", "node", s.conn.node.ID, "err", err)
			return
		}
	}
}

// background runs f, which must be bounded, with a reference to c; Close waits
// for it. It returns false, and runs nothing, once the driver is closed.
func (d *Driver) background(c *nodeConn, f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || !c.hold() {
		return false
	}
	d.loose.Go(func() {
		defer c.drop()
		defer panics.Go("clean-up on a node")
		f()
	})
	return true
}
