package devcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

const (
	maxMessage   = 64_000_000       // bytes, both directions
	planCache    = 1000             // compiled statements of one node
	keepaliveMin = time.Second      // clients may ping this often, also without a call
	clientCheck  = 30 * time.Second // a silent connection is pinged after this time
	windowStream = 1 << 20
	windowConn   = 16 << 20

	headerFrom   = "x-ydb-devcluster-from" // id of the node that forwarded the call
	headerTicket = "x-ydb-auth-ticket"
	headerHints  = "x-ydb-server-hints"

	headerDatabase = "x-ydb-database"
)

// shared is what the nodes of one process have in common.
type shared struct {
	config   Config
	db       *engine.DB
	methods  map[string]*method
	topology topology
	tracer   trace.Tracer // nil: no spans
	tickets  *tickets
	readers  *readers
	scripts  *scripts
	outages  *outages
	listings atomic.Uint64          // answers of discovery with merged endpoints
	piles    atomic.Pointer[[]Pile] // as they are now; nil: none
}

// server is one life of a node: all that dies with it.
type server struct {
	*shared
	id       uint32
	location string
	sessions *sessions
	plans    *engine.PlanCache
	texts    texts
	counters counters
	peers    *peers
	faults   atomic.Pointer[faults]  // nil: none
	turn     atomic.Uint64           // of the next session to place
	life     context.Context         // of calls without a session; ends when a drain is over
	letGo    context.CancelCauseFunc // ends it
	farewell error                   // how calls end that heed ending; set before it is closed
	ending   chan struct{}           // closed when the node stops or dies

	doors
}

// doors are where a node listens: for clients and for the other nodes.
type doors struct {
	clients, inner *grpc.Server
	private        *listener // of inner

	mu      sync.Mutex     // guards public
	public  *listener      // of clients; another one after a refusal was cleared
	serving sync.WaitGroup // the loops that accept
}

// newServer starts a node. Its listeners belong to it from now on.
func newServer(sh *shared, id uint32, location string, public, private net.Listener) *server {
	s := &server{
		shared: sh, id: id, location: location,
		sessions: newSessions(id, sh.config),
		plans:    engine.NewPlanCache(planCache),
		peers:    newPeers(sh.config),
		ending:   make(chan struct{}),
		doors:    doors{private: newListener(private)},
	}
	s.life, s.letGo = context.WithCancelCause(context.Background())
	options := []grpc.ServerOption{
		grpc.UnknownServiceHandler(s.serve), // the one handler of all methods
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.InitialWindowSize(windowStream),
		grpc.InitialConnWindowSize(windowConn),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMin, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: clientCheck, Timeout: clientCheck}),
		grpc.WaitForHandlers(true),
	}
	s.inner = grpc.NewServer(options...)
	if sh.config.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(sh.config.TLS)))
	}
	s.clients = grpc.NewServer(options...)
	s.accept(s.inner, s.private)
	s.listen(public)
	return s
}

func (s *server) accept(g *grpc.Server, l *listener) {
	// Serve ends when its listener is closed, which only this package does.
	s.serving.Go(func() { _ = g.Serve(l) })
}

// listen serves clients on l.
func (s *server) listen(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.public = newListener(l)
	s.accept(s.clients, s.public)
}

func (s *server) publicListener() *listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.public
}

// kill ends everything as the death of a process would. When it returns no
// handler runs any more.
func (s *server) kill() {
	s.publicListener().kill()
	s.private.kill()
	answer := fail(Ydb.StatusIds_UNAVAILABLE, "the node died")
	s.shut(answer, always(answer), answer)
	s.end(answer)
}

// stop ends every session and call with an answer, then the connections.
func (s *server) stop() {
	answer := fail(Ydb.StatusIds_UNAVAILABLE, "the node is shutting down")
	s.goAway(answer, always(answer), answer)
}

// drained ends what is left when a drain is over: statements that run in sessions are told
// that these are closed, all other calls are cut with gRPC's CANCELLED.
func (s *server) drained() {
	s.letGo(errCut())
	s.goAway(errDeleted(), shuttingDown(), errCut())
}

// goAway ends sessions and calls with their answers, then the connections.
func (s *server) goAway(answer *statusError, refused *refusal, rest error) {
	s.shut(answer, refused, rest)
	hurry := time.AfterFunc(s.config.StopGrace, func() {
		s.publicListener().kill()
		s.private.kill()
	})
	defer hurry.Stop()
	var graceful sync.WaitGroup
	graceful.Go(s.clients.GracefulStop)
	graceful.Go(s.inner.GracefulStop)
	graceful.Wait()
	s.end(answer)
}

// shut refuses new sessions and ends those there are, and has rest end all other calls.
func (s *server) shut(answer *statusError, refused *refusal, rest error) {
	s.sessions.refuse(refused)
	s.sessions.closeAll(answer)
	s.farewell = rest
	close(s.ending)
}

func (s *server) end(answer *statusError) {
	s.clients.Stop()
	s.inner.Stop()
	s.sessions.closeAll(answer) // made by calls that were already past the refusal
	s.serving.Wait()
	s.letGo(nil)
	s.peers.close()
}

// call is one RPC on its way through a node.
type call struct {
	*server
	ctx     context.Context
	method  *method
	stream  grpc.ServerStream
	header  metadata.MD // incoming
	from    bool        // another node sent it on
	user    string      // "" if anonymous
	script  script      // faults that concern its answers
	inside  *session    // session that the call runs in, or would have run in; nil: none
	request proto.Message

	anonymous error // why the call has no user; nil: it has one, or another node looked

	warnings []*Ydb_Issue.IssueMessage // for the operation that answers
	cost     *Ydb.CostInfo             // for the operation that answers; nil: it tells no cost
}

// serve handles every RPC: it counts, checks the ticket, plays the faults, sends
// the call to the session's owner or runs it, and turns errors into a last answer.
func (s *server) serve(_ any, stream grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(stream)
	m := s.methods[name]
	if m == nil {
		return status.Errorf(codes.Unimplemented, "no such method: %s", name)
	}
	s.counters.calls.Add(1)
	c := &call{server: s, ctx: stream.Context(), method: m, stream: stream}
	c.header, _ = metadata.FromIncomingContext(c.ctx)
	c.from = len(c.header[headerFrom]) > 0
	// as the server does; gRPC would answer as it was asked. There is a call, and nothing was sent
	_ = grpc.SetSendCompressor(c.ctx, encoding.Identity)
	finish := c.trace()
	err := c.run()
	if cut, ok := errors.AsType[*transportError](context.Cause(c.ctx)); ok && err != nil { // the node went away
		err = cut
	}
	if ended := stream.Context().Err(); err != nil && ended != nil { // the client is gone
		err = &transportError{status.FromContextError(ended).Err()}
	}
	if _, ok := errors.AsType[*transportError](err); ok || err == nil {
		finish(Ydb.StatusIds_SUCCESS, err)
		return err
	}
	failed := statusOf(c.ctx, err)
	s.counters.failures.Add(1)
	if c.inside != nil && failed.fatal() {
		c.inside.close(errBadSession(c.inside.id))
	}
	if failed.status == Ydb.StatusIds_ABORTED {
		s.counters.conflicts.Add(1)
	}
	finish(failed.status, nil)
	if c.script.cut {
		return c.cutConnection()
	}
	return stream.SendMsg(m.failure(failed))
}

// run answers the call. A transportError ends it without an answer; any other
// error is the status of its last answer.
func (c *call) run() error {
	if err := c.wrongTenant(); err != nil {
		return err
	}
	if err := c.authenticate(); err != nil {
		return err
	}
	if c.method.clientStream && c.method.handle == nil { // its client may wait for our word first
		return errUnsupported(c.method)
	}
	var f frame
	if err := c.stream.RecvMsg(&f); err != nil {
		return &transportError{err}
	}
	defer f.free()
	request := c.method.request.New().Interface()
	if err := f.decode(request); err != nil {
		return fail(Ydb.StatusIds_BAD_REQUEST, "%v", err)
	}
	defer c.limit(request)()
	if err := c.atTheDoor(request); err != nil {
		return err
	}
	c.request = request
	if err := c.play(request); err != nil {
		return err
	}
	owner, err := c.owner(request)
	if err != nil {
		return err
	}
	if sessionOf(request) == "" {
		defer c.untilCut()()
	}
	switch {
	case owner != c.id:
		err = c.forward(owner, request, &f)
	case c.method.handle == nil:
		err = errUnsupported(c.method)
	default:
		err = c.method.handle(c, request)
	}
	if err != nil {
		return err
	}
	return c.script.last(c)
}

// untilCut ends the call's context when a drain is over. The returned function lets go of it.
func (c *call) untilCut() func() {
	ctx, cancel := context.WithCancelCause(c.ctx)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	c.ctx = ctx
	return func() {
		stop()
		cancel(nil)
	}
}

func errUnsupported(m *method) error {
	return fail(Ydb.StatusIds_UNSUPPORTED, "%s is not supported", m.name)
}

// transportError ends a call without an answer: the client is gone, or the
// transport is to fail.
type transportError struct{ error }

func (e *transportError) Unwrap() error { return e.error }

// GRPCStatus lets gRPC see the status inside.
func (e *transportError) GRPCStatus() *status.Status { return status.Convert(e.error) }

// send sends an answer, or a frame of one, to the client.
func (c *call) send(m any) error {
	if send, err := c.script.next(c); err != nil || !send {
		return err
	}
	if err := c.stream.SendMsg(m); err != nil {
		return &transportError{fmt.Errorf("send %T: %w", m, err)}
	}
	return nil
}

// owner says which node must run the request, and counts.
func (c *call) owner(request proto.Message) (uint32, error) {
	id := sessionOf(request)
	if id == "" {
		return c.place(), nil
	}
	owner, err := ownerOf(id)
	if err != nil {
		return 0, err
	}
	switch {
	case c.from && owner != c.id: // the nodes disagree about their ids; never send it round
		return 0, errBadSession(id)
	case c.from:
		c.counters.received.Add(1)
	case owner == c.id:
		c.counters.owned.Add(1)
	default:
		c.counters.forwarded.Add(1)
	}
	return owner, nil
}

// sessionOf is the id of the session that a request belongs to, or "". Some requests have one that no node
// looks at: each node serves them, whatever the session does, and whether it is there or not.
func sessionOf(request proto.Message) string {
	switch r := request.(type) {
	case *Ydb_Table.DescribeTableRequest, *Ydb_Table.CreateTableRequest, *Ydb_Table.AlterTableRequest, *Ydb_Table.DropTableRequest,
		*Ydb_Table.CopyTableRequest, *Ydb_Table.CopyTablesRequest, *Ydb_Table.RenameTablesRequest,
		*Ydb_Table.ReadTableRequest, *Ydb_Table.ReadRowsRequest:
		return ""
	case interface{ GetSessionId() string }:
		return r.GetSessionId()
	case *Ydb_Topic.UpdateOffsetsInTransactionRequest:
		return r.GetTx().GetSession()
	}
	return ""
}

// place says which node runs a call without a session: this one, unless the call
// makes a session that the cluster may balance.
func (c *call) place() uint32 {
	if !c.config.Balance || c.from || c.method.short != "CreateSession" ||
		!slices.Contains(c.header["x-ydb-client-capabilities"], "session-balancer") {
		return c.id
	}
	listed := slices.DeleteFunc(slices.Clone(c.topology.members()), func(m member) bool { return !m.Listed })
	if len(listed) == 0 {
		return c.id
	}
	return listed[c.turn.Add(1)%uint64(len(listed))].ID
}

// remote is the address of the connection that the call came on.
func (c *call) remote() string {
	p, ok := peer.FromContext(c.ctx)
	if !ok {
		return ""
	}
	return p.Addr.String()
}

// secure says whether the call came over TLS.
func (c *call) secure() bool {
	p, ok := peer.FromContext(c.ctx)
	if !ok {
		return false
	}
	_, ok = p.AuthInfo.(credentials.TLSInfo)
	return ok
}
