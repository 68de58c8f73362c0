package upstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Auth_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Auth"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// fakeCluster is a handful of fake nodes reached over memory. Each rule of a
// node that a test needs broken has a hook.
type fakeCluster struct {
	t     *testing.T
	nodes map[string]*fakeNode // by address
	byID  map[cluster.NodeID]*fakeNode

	mu   sync.Mutex
	down map[string]bool // dialling is refused
}

func newCluster(t *testing.T, size int) *fakeCluster {
	t.Helper()
	c := &fakeCluster{t: t, nodes: map[string]*fakeNode{}, byID: map[cluster.NodeID]*fakeNode{}, down: map[string]bool{}}
	for i := range size {
		n := &fakeNode{cluster: c, id: cluster.NodeID(i + 1), address: fmt.Sprintf("node%d:2136", i+1), sessions: map[string]*fakeSession{}}
		c.nodes[n.address], c.byID[n.id] = n, n
		n.start()
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.stop()
		}
	})
	return c
}

func (c *fakeCluster) node(id cluster.NodeID) *fakeNode { return c.byID[id] }

func (c *fakeCluster) dial(ctx context.Context, address string) (net.Conn, error) {
	n := c.nodes[address]
	c.mu.Lock()
	down := n == nil || c.down[address]
	c.mu.Unlock()
	if down {
		return nil, errors.New("connection refused")
	}
	n.mu.Lock()
	lis := n.lis
	n.mu.Unlock()
	return lis.DialContext(ctx)
}

func (c *fakeCluster) topology() cluster.Topology {
	var nodes []cluster.Node
	for _, n := range c.nodes {
		nodes = append(nodes, cluster.Node{ID: n.id, Address: n.address, Zone: "zone-a"})
	}
	return cluster.NewTopology(nodes, "zone-a")
}

func (c *fakeCluster) view() cluster.View {
	var v cluster.View
	for _, n := range c.topology().Nodes {
		v.Nodes = append(v.Nodes, cluster.ViewNode{Node: n})
	}
	return v
}

// sessions counts the live sessions of all nodes.
func (c *fakeCluster) sessions() (n int) {
	for _, node := range c.nodes {
		node.mu.Lock()
		n += len(node.sessions)
		node.mu.Unlock()
	}
	return n
}

// fakeNode is one node.
type fakeNode struct {
	Ydb_Query_V1.UnimplementedQueryServiceServer
	Ydb_Discovery_V1.UnimplementedDiscoveryServiceServer
	Ydb_Auth_V1.UnimplementedAuthServiceServer

	cluster *fakeCluster
	id      cluster.NodeID
	address string
	creds   credentials.TransportCredentials

	mu       sync.Mutex
	lis      *bufconn.Listener
	server   *grpc.Server
	sessions map[string]*fakeSession
	last     int
	calls    []fakeCall

	hooks

	unknown atomic.Int64 // calls of methods that it does not know
}

// hooks of a node are set before use; nil means the normal behaviour.
type hooks struct {
	onCreate   func(ctx context.Context) (*Ydb_Query.CreateSessionResponse, error)
	onAttach   func(s grpc.ServerStream) (done bool, err error)
	onExecute  func(req *Ydb_Query.ExecuteQueryRequest, s Ydb_Query_V1.QueryService_ExecuteQueryServer) error
	onCommit   func(ctx context.Context) (Ydb.StatusIds_StatusCode, error)
	onBegin    func() (Ydb.StatusIds_StatusCode, error)
	onRollback func(ctx context.Context) (Ydb.StatusIds_StatusCode, error)
	onNoTx     func() Ydb.StatusIds_StatusCode // the rollback of a transaction that is none
	onDelete   func(ctx context.Context) error
	onForget   func(id string) bool // of sessions of another node
	onList     func() (*Ydb_Discovery.ListEndpointsResult, Ydb.StatusIds_StatusCode, error)
	onLogin    func(r *Ydb_Auth.LoginRequest) (string, Ydb.StatusIds_StatusCode)
	onBulk     func() (Ydb.StatusIds_StatusCode, error)
	bulkUnits  string // units that BulkUpsert reports; "": none
}

// unknownCalls is how often a connection to the node was checked.
func (n *fakeNode) unknownCalls() int64 { return n.unknown.Load() }

// forwards makes statements and deletions of sessions that live on owner work here.
func (n *fakeNode) forwards(owner *fakeNode) {
	n.onExecute = func(r *Ydb_Query.ExecuteQueryRequest, stream Ydb_Query_V1.QueryService_ExecuteQueryServer) error {
		if owner.session(r.GetSessionId()) != nil {
			return owner.answer(r, stream)
		}
		return n.answer(r, stream)
	}
	n.onForget = owner.forget
}

// refuse lets nobody connect to the node any more, and breaks the connections
// there are without ending its sessions. For use in a bubble.
func (c *fakeCluster) refuse(id cluster.NodeID) {
	n := c.node(id)
	n.mu.Lock()
	sessions := maps.Clone(n.sessions)
	n.mu.Unlock()
	n.kill()
	synctest.Wait() // the ends of attach streams end sessions
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sessions = sessions
}

// fakeSession is one session of a node.
type fakeSession struct {
	id    string
	hints chan *Ydb_Query.SessionState // capacity 4
	ended chan struct{}                // closed when deleted
}

// fakeCall is one call that arrived.
type fakeCall struct {
	method   string
	md       metadata.MD
	deadline bool
	session  string
}

func (n *fakeNode) start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lis = bufconn.Listen(1 << 20)
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage + 1<<20), grpc.MaxSendMsgSize(maxMessage + 1<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			n.note(ctx, info.FullMethod, req)
			return next(ctx, req)
		}),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			n.unknown.Add(1)
			return status.Error(codes.Unimplemented, "no such method")
		}),
	}
	if n.creds != nil {
		options = append(options, grpc.Creds(n.creds))
	}
	n.server = grpc.NewServer(options...)
	Ydb_Query_V1.RegisterQueryServiceServer(n.server, n)
	Ydb_Discovery_V1.RegisterDiscoveryServiceServer(n.server, n)
	Ydb_Auth_V1.RegisterAuthServiceServer(n.server, n)
	Ydb_Table_V1.RegisterTableServiceServer(n.server, &fakeTables{n: n})
	go n.server.Serve(n.lis)
}

// stop cuts all connections and forgets all sessions, as a kill does.
func (n *fakeNode) stop() {
	n.mu.Lock()
	server, lis := n.server, n.lis
	n.mu.Unlock()
	server.Stop()
	lis.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.sessions)
}

func (n *fakeNode) kill() {
	n.cluster.mu.Lock()
	n.cluster.down[n.address] = true
	n.cluster.mu.Unlock()
	n.stop()
}

func (n *fakeNode) revive() {
	n.start()
	n.cluster.mu.Lock()
	delete(n.cluster.down, n.address)
	n.cluster.mu.Unlock()
}

func (n *fakeNode) note(ctx context.Context, method string, req any) {
	md, _ := metadata.FromIncomingContext(ctx)
	_, deadline := ctx.Deadline()
	session := ""
	if s, ok := req.(interface{ GetSessionId() string }); ok {
		session = s.GetSessionId()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, fakeCall{method[strings.LastIndex(method, "/")+1:], md.Copy(), deadline, session})
}

// seen returns the calls of one method so far.
func (n *fakeNode) seen(method string) (out []fakeCall) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.calls {
		if c.method == method {
			out = append(out, c)
		}
	}
	return out
}

func (n *fakeNode) live() (ids []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.sessions {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (n *fakeNode) session(id string) *fakeSession {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sessions[id]
}

// forget drops a session as a node does at a timeout: its stream ends.
func (n *fakeNode) forget(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.sessions[id]
	if s == nil {
		return false
	}
	delete(n.sessions, id)
	close(s.ended)
	return true
}

func (n *fakeNode) CreateSession(ctx context.Context, _ *Ydb_Query.CreateSessionRequest) (*Ydb_Query.CreateSessionResponse, error) {
	if n.onCreate != nil {
		if r, err := n.onCreate(ctx); r != nil || err != nil {
			return r, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	s := &fakeSession{
		id:    fmt.Sprintf("ydb://session/3?node_id=%d&id=%d", n.id, n.last),
		hints: make(chan *Ydb_Query.SessionState, 4), ended: make(chan struct{}),
	}
	n.sessions[s.id] = s
	return &Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_SUCCESS, SessionId: s.id, NodeId: int64(n.id)}, nil
}

func (n *fakeNode) DeleteSession(ctx context.Context, r *Ydb_Query.DeleteSessionRequest) (*Ydb_Query.DeleteSessionResponse, error) {
	if n.onDelete != nil {
		if err := n.onDelete(ctx); err != nil {
			return nil, err
		}
	}
	status := Ydb.StatusIds_SUCCESS
	if !n.forget(r.GetSessionId()) && (n.onForget == nil || !n.onForget(r.GetSessionId())) {
		status = Ydb.StatusIds_BAD_SESSION
	}
	return &Ydb_Query.DeleteSessionResponse{Status: status}, nil
}

func (n *fakeNode) AttachSession(r *Ydb_Query.AttachSessionRequest, stream Ydb_Query_V1.QueryService_AttachSessionServer) error {
	n.note(stream.Context(), "/AttachSession", r)
	if n.onAttach != nil {
		if done, err := n.onAttach(stream); done || err != nil {
			return err
		}
	}
	s := n.session(r.GetSessionId())
	if s == nil {
		return stream.Send(&Ydb_Query.SessionState{Status: Ydb.StatusIds_BAD_SESSION})
	}
	if err := stream.Send(&Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS}); err != nil {
		return err
	}
	for {
		select {
		case state := <-s.hints:
			if err := stream.Send(state); err != nil {
				return err
			}
		case <-s.ended:
			return stream.Send(&Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS})
		case <-stream.Context().Done():
			n.forget(s.id)
			return nil
		}
	}
}

func (n *fakeNode) ExecuteQuery(r *Ydb_Query.ExecuteQueryRequest, stream Ydb_Query_V1.QueryService_ExecuteQueryServer) error {
	n.note(stream.Context(), "/ExecuteQuery", r)
	if n.onExecute != nil {
		return n.onExecute(r, stream)
	}
	return n.answer(r, stream)
}

// answer is the normal answer to a statement: one row with the node's id.
func (n *fakeNode) answer(r *Ydb_Query.ExecuteQueryRequest, stream Ydb_Query_V1.QueryService_ExecuteQueryServer) error {
	if n.session(r.GetSessionId()) == nil {
		return stream.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_BAD_SESSION})
	}
	part := &Ydb_Query.ExecuteQueryResponsePart{
		Status:    Ydb.StatusIds_SUCCESS,
		ResultSet: &Ydb.ResultSet{Rows: []*Ydb.Value{{Value: &Ydb.Value_Uint32Value{Uint32Value: uint32(n.id)}}}},
	}
	if c := r.GetTxControl(); c != nil {
		part.TxMeta = &Ydb_Query.TransactionMeta{}
		if !c.GetCommitTx() {
			part.TxMeta.Id = "tx-" + strconv.Itoa(int(n.id))
		}
	}
	return stream.Send(part)
}

// errNoID is what onBegin returns for an answer without the id of a transaction.
var errNoID = errors.New("no id")

func (n *fakeNode) BeginTransaction(context.Context, *Ydb_Query.BeginTransactionRequest) (*Ydb_Query.BeginTransactionResponse, error) {
	status := Ydb.StatusIds_SUCCESS
	if n.onBegin != nil {
		var err error
		if status, err = n.onBegin(); err == errNoID {
			return &Ydb_Query.BeginTransactionResponse{Status: status}, nil
		} else if err != nil {
			return nil, err
		}
	}
	return &Ydb_Query.BeginTransactionResponse{Status: status, TxMeta: &Ydb_Query.TransactionMeta{Id: "tx-begun"}}, nil
}

func (n *fakeNode) CommitTransaction(
	ctx context.Context, _ *Ydb_Query.CommitTransactionRequest,
) (*Ydb_Query.CommitTransactionResponse, error) {
	status := Ydb.StatusIds_SUCCESS
	if n.onCommit != nil {
		var err error
		if status, err = n.onCommit(ctx); err != nil {
			return nil, err
		}
	}
	return &Ydb_Query.CommitTransactionResponse{Status: status}, nil
}

func (n *fakeNode) RollbackTransaction(
	ctx context.Context, r *Ydb_Query.RollbackTransactionRequest,
) (*Ydb_Query.RollbackTransactionResponse, error) {
	status := Ydb.StatusIds_SUCCESS
	if r.GetTxId() == noTx {
		if status = Ydb.StatusIds_NOT_FOUND; n.onNoTx != nil {
			status = n.onNoTx()
		}
	} else if n.onRollback != nil {
		var err error
		if status, err = n.onRollback(ctx); err != nil {
			return nil, err
		}
	}
	return &Ydb_Query.RollbackTransactionResponse{Status: status}, nil
}

func (n *fakeNode) ListEndpoints(context.Context, *Ydb_Discovery.ListEndpointsRequest) (*Ydb_Discovery.ListEndpointsResponse, error) {
	list, status := &Ydb_Discovery.ListEndpointsResult{SelfLocation: "zone-a"}, Ydb.StatusIds_SUCCESS
	if n.onList != nil {
		var err error
		if list, status, err = n.onList(); err != nil {
			return nil, err
		}
	} else {
		for _, m := range n.cluster.topology().Nodes {
			host, port, _ := net.SplitHostPort(m.Address)
			number, _ := strconv.Atoi(port)
			list.Endpoints = append(list.Endpoints, &Ydb_Discovery.EndpointInfo{
				Address: host, Port: uint32(number), NodeId: uint32(m.ID), Location: m.Zone, Ssl: n.creds != nil,
			})
		}
	}
	return &Ydb_Discovery.ListEndpointsResponse{Operation: operation(status, list)}, nil
}

func (n *fakeNode) Login(_ context.Context, r *Ydb_Auth.LoginRequest) (*Ydb_Auth.LoginResponse, error) {
	if n.onLogin == nil {
		return &Ydb_Auth.LoginResponse{Operation: operation(Ydb.StatusIds_UNAUTHORIZED, nil)}, nil
	}
	token, status := n.onLogin(r)
	return &Ydb_Auth.LoginResponse{Operation: operation(status, &Ydb_Auth.LoginResult{Token: token})}, nil
}

// fakeTables is the table service of a node, apart because both services have
// methods of the same names.
type fakeTables struct {
	Ydb_Table_V1.UnimplementedTableServiceServer
	n *fakeNode
}

func (s *fakeTables) BulkUpsert(ctx context.Context, _ *Ydb_Table.BulkUpsertRequest) (*Ydb_Table.BulkUpsertResponse, error) {
	status := Ydb.StatusIds_SUCCESS
	if s.n.bulkUnits != "" {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-ydb-consumed-units", s.n.bulkUnits)) // fails only outside a call
	}
	if s.n.onBulk != nil {
		var err error
		if status, err = s.n.onBulk(); err != nil {
			return nil, err
		}
	}
	return &Ydb_Table.BulkUpsertResponse{Operation: operation(status, nil)}, nil
}

func operation(status Ydb.StatusIds_StatusCode, result proto.Message) *Ydb_Operations.Operation {
	op := &Ydb_Operations.Operation{Ready: true, Status: status}
	if status != Ydb.StatusIds_SUCCESS {
		op.Issues = []*Ydb_Issue.IssueMessage{{Message: "no"}}
	} else if result != nil {
		op.Result, _ = anypb.New(result)
	}
	return op
}
