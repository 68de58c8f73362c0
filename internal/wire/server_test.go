package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Scheme_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Topic_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is one node of the cluster: it says who it is.
type node struct {
	Ydb_Query_V1.UnimplementedQueryServiceServer
	id     cluster.NodeID
	server *grpc.Server
	addr   string

	encodings encodings

	mu     sync.Mutex
	status Ydb.StatusIds_StatusCode // that it answers with
	seen   metadata.MD              // of the last call
	ended  chan struct{}            // told when an attached session ends
	hung   chan struct{}            // told when a call begins that does not end
}

// tables is its table service.
type tables struct {
	Ydb_Table_V1.UnimplementedTableServiceServer
	of *node
}

func newNode(t *testing.T, id cluster.NodeID) *node {
	n := &node{id: id, status: Ydb.StatusIds_SUCCESS, ended: make(chan struct{}, 16), hung: make(chan struct{}, 16)}
	n.server = grpc.NewServer(grpc.StatsHandler(&n.encodings))
	Ydb_Query_V1.RegisterQueryServiceServer(n.server, n)
	Ydb_Table_V1.RegisterTableServiceServer(n.server, tables{of: n})
	Ydb_Scheme_V1.RegisterSchemeServiceServer(n.server, schemes{of: n})
	Ydb_Topic_V1.RegisterTopicServiceServer(n.server, topics{})
	l := listen(t)
	n.addr = l.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() { _ = n.server.Serve(l) })
	t.Cleanup(func() { n.server.Stop(); wg.Wait() })
	return n
}

func (n *node) answer(ctx context.Context) Ydb.StatusIds_StatusCode {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen, _ = metadata.FromIncomingContext(ctx)
	return n.status
}

func (n *node) set(s Ydb.StatusIds_StatusCode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status = s
}

func (n *node) saw(name string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen.Get(name)
}

func (n *node) CreateSession(ctx context.Context, _ *Ydb_Query.CreateSessionRequest) (*Ydb_Query.CreateSessionResponse, error) {
	return &Ydb_Query.CreateSessionResponse{Status: n.answer(ctx), SessionId: n.session(), NodeId: int64(n.id)}, nil
}

func (n *node) session() string { return sessionID(n.id) }

func sessionID(n cluster.NodeID) string { return fmt.Sprintf("ydb://session/3?node_id=%d&id=x", n) }

func (n *node) AttachSession(_ *Ydb_Query.AttachSessionRequest, s Ydb_Query_V1.QueryService_AttachSessionServer) error {
	if err := s.Send(&Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS}); err != nil {
		return err
	}
	<-s.Context().Done()
	select {
	case n.ended <- struct{}{}:
	default:
	}
	return s.Context().Err()
}

// ExecuteQuery answers with its id as the commit's "time", in two parts; "begin" sends one and waits, "hang" waits
// for the caller's end.
func (n *node) ExecuteQuery(r *Ydb_Query.ExecuteQueryRequest, s Ydb_Query_V1.QueryService_ExecuteQueryServer) error {
	switch r.GetQueryContent().GetText() {
	case "begin":
		if err := s.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: n.answer(s.Context())}); err != nil {
			return err
		}
		fallthrough
	case "hang":
		n.hung <- struct{}{}
		<-s.Context().Done()
		return s.Context().Err()
	case "Unable to parse request", "a fault of the node":
		return status.Error(codes.Internal, r.GetQueryContent().GetText())
	}
	state := n.answer(s.Context())
	for range 2 {
		if err := s.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: state, ResultSetIndex: int64(n.id)}); err != nil {
			return err
		}
	}
	return nil
}

func (n tables) ExecuteDataQuery(ctx context.Context, _ *Ydb_Table.ExecuteDataQueryRequest) (*Ydb_Table.ExecuteDataQueryResponse, error) {
	return &Ydb_Table.ExecuteDataQueryResponse{Operation: &Ydb_Operations.Operation{Id: fmt.Sprint(n.of.id), Ready: true, Status: n.of.answer(ctx)}}, nil
}

func (n tables) CopyTables(ctx context.Context, _ *Ydb_Table.CopyTablesRequest) (*Ydb_Table.CopyTablesResponse, error) {
	return &Ydb_Table.CopyTablesResponse{Operation: &Ydb_Operations.Operation{Id: fmt.Sprint(n.of.id), Ready: true, Status: n.of.answer(ctx)}}, nil
}

func listen(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// outcomes is a Judge that remembers.
type outcomes struct {
	mu  sync.Mutex
	all []cluster.Outcome
	new chan struct{}
}

func (o *outcomes) Report(out cluster.Outcome) {
	o.mu.Lock()
	o.all = append(o.all, out)
	o.mu.Unlock()
	select {
	case o.new <- struct{}{}:
	default:
	}
}

// wait returns the first outcome that fits.
func (o *outcomes) wait(t *testing.T, what string, fits func(cluster.Outcome) bool) cluster.Outcome {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		o.mu.Lock()
		i := slices.IndexFunc(o.all, fits)
		if i >= 0 {
			out := o.all[i]
			o.all = slices.Delete(o.all, i, i+1)
			o.mu.Unlock()
			return out
		}
		all := fmt.Sprintf("%+v", o.all)
		o.mu.Unlock()
		select {
		case <-o.new:
		case <-limit:
			t.Fatalf("%s is not reported; %s", what, all)
		}
	}
}

// network reaches nodes directly; it has those that Invoke is for.
type network []cluster.Node

func (network) Dial(ctx context.Context, node cluster.Node) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", node.Address)
}

func (network) TLS(cluster.Node) *tls.Config { return nil }

func (all network) Invoke(ctx context.Context, id cluster.NodeID, method string, in, out any) (s ydbstatus.Signs, err error) {
	i := slices.IndexFunc(all, func(n cluster.Node) bool { return n.ID == id })
	conn, err := grpc.NewClient("passthrough:///"+all[i].Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return s, err
	}
	defer conn.Close()
	err = conn.Invoke(ctx, method, in, out)
	s.Code = status.Code(err)
	return s, err
}

// stack is a sidecar's gRPC port in front of three nodes.
type stack struct {
	nodes  []*node
	router *routing.Router
	judge  *outcomes
	spans  *tracetest.SpanRecorder
	addr   string
	server *Server
	conn   *grpc.ClientConn
	query  Ydb_Query_V1.QueryServiceClient
	table  Ydb_Table_V1.TableServiceClient

	options []grpc.CallOption // of run
}

func newStack(t *testing.T, config Config) *stack { return newStackOf(t, nil, config) }

// newStackOf is newStack with apps; nil: nobody has a token.
func newStackOf(t *testing.T, all *apps.Registry, config Config) *stack {
	routed := routing.Default()
	routed.MaxCallsPerNode = 64
	s := &stack{router: routing.New(routed), judge: &outcomes{new: make(chan struct{}, 1)}, spans: tracetest.NewSpanRecorder()}
	var list []cluster.Node
	for id := cluster.NodeID(1); id <= 3; id++ {
		n := newNode(t, id)
		s.nodes = append(s.nodes, n)
		list = append(list, cluster.Node{ID: id, Address: n.addr})
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans), sdktrace.WithIDGenerator(tracing.Generator{}), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	tracer := tracing.New(provider, func() bool { return true }, tracing.Config{Errors: true}, tracing.Ratio(0))
	deps := Deps{Ways: hop.Ways{Router: s.router, Judge: s.judge}, Nodes: network{}, Tracer: tracer, Database: "/local", Apps: all}
	l := listen(t)
	s.addr = l.Addr().String()
	var wg sync.WaitGroup
	inside := grpc.NewServer()
	healthv1.RegisterHealthServer(inside, health.NewServer())
	path := DefaultDataPath()
	path.Shards = 2
	var err error
	if s.server, err = New(config, path, h2.Default(), deps, inside); err != nil {
		t.Fatal(err)
	}
	s.router.Subscribe(s.server.SetView)
	ctx, stop := context.WithCancel(context.Background())
	wg.Go(func() { _ = s.server.Run(ctx) })
	wg.Go(func() { _ = s.server.Serve(l) })
	wg.Go(func() { _ = inside.Serve(s.server.Local()) })
	t.Cleanup(func() { l.Close(); stop(); inside.Stop(); wg.Wait() })
	s.router.SetTopology(cluster.NewTopology(list, ""))
	s.conn = dial(t, s.addr)
	s.query, s.table = Ydb_Query_V1.NewQueryServiceClient(s.conn), Ydb_Table_V1.NewTableServiceClient(s.conn)
	return s
}

func dial(t *testing.T, addr string) *grpc.ClientConn {
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// run executes a statement and returns the parts' status and the node that sent them.
func (s *stack) run(ctx context.Context, session, text string) (Ydb.StatusIds_StatusCode, cluster.NodeID, error) {
	stream, err := s.query.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{SessionId: session,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: text}}}, s.options...)
	if err != nil {
		return 0, 0, err
	}
	var last *Ydb_Query.ExecuteQueryResponsePart
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return last.GetStatus(), cluster.NodeID(last.GetResultSetIndex()), nil
		}
		if err != nil {
			return 0, 0, err
		}
		last = part
	}
}

// hanging is a network in which one address does not answer.
type hanging struct {
	network
	address string
}

func (n hanging) Dial(ctx context.Context, node cluster.Node) (net.Conn, error) {
	if node.Address != n.address {
		return n.network.Dial(ctx, node)
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// callWaits waits until a call waits in the sidecar.
func (s *stack) callWaits(t *testing.T) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); stateOf(s.server).Held == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("no call waits")
		}
	}
}

// blamesNone checks that no call failed for the fault of a node.
func (s *stack) blamesNone(t *testing.T) {
	t.Helper()
	s.judge.mu.Lock()
	defer s.judge.mu.Unlock()
	for _, o := range s.judge.all {
		if o.Blame == cluster.BlameTransport {
			t.Errorf("a node is blamed: %+v", o)
		}
	}
}

// A call that waits for the connection to a node goes to the address that the node has now.
func TestWaitingCallsFollowTheirNode(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	lost := hanging{address: "lost:1"}
	s.server.deps.Nodes = lost
	at := func(address string) {
		s.router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: address}, {ID: 2, Address: s.nodes[1].addr}}, ""))
	}
	at(lost.address)
	done := make(chan error, 1)
	go func() {
		st, node, err := s.run(t.Context(), sessionID(1), "SELECT 1")
		if err == nil && (st != Ydb.StatusIds_SUCCESS || node != 1) {
			err = fmt.Errorf("%v by node %d", st, node)
		}
		done <- err
	}()
	s.callWaits(t)
	at(s.nodes[0].addr)
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.blamesNone(t)
}

// A node is not to blame for calls that were not sent to it because the sidecar stops.
func TestAStopBlamesNoNode(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	lost := hanging{address: "lost:1"}
	s.server.deps.Nodes = lost
	s.router.SetTopology(cluster.NewTopology([]cluster.Node{{ID: 1, Address: lost.address}}, ""))
	done := make(chan error, 1)
	go func() {
		_, _, err := s.run(t.Context(), sessionID(1), "SELECT 1")
		done <- err
	}()
	s.callWaits(t)
	s.server.Stop()
	if err := <-done; err == nil {
		t.Error("the call succeeded")
	}
	s.blamesNone(t)
}

func TestCallsGoToTheOwner(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-ydb-auth-ticket", "secret", "x-ydb-database", "/local", "x-bin", "b")
	for i := range 30 {
		owner := cluster.NodeID(i%3 + 1)
		if state, node, err := s.run(ctx, sessionID(owner), "SELECT 1"); err != nil || node != owner || state != Ydb.StatusIds_SUCCESS {
			t.Fatalf("a call of node %d: %v from node %d, %v", owner, state, node, err)
		}
		r, err := s.table.ExecuteDataQuery(ctx, &Ydb_Table.ExecuteDataQueryRequest{SessionId: sessionID(owner)})
		if err != nil || r.GetOperation().GetId() != fmt.Sprint(owner) {
			t.Fatalf("a call of node %d to its table service: %v, %v", owner, r, err)
		}
	}
	for name, want := range map[string]string{"x-ydb-auth-ticket": "secret", "x-ydb-database": "/local", "x-bin": "b"} {
		if got := s.nodes[0].saw(name); !slices.Equal(got, []string{want}) {
			t.Errorf("%s arrives as %q", name, got)
		}
	}
	spread := map[cluster.NodeID]int{}
	for range 60 {
		_, node, err := s.run(ctx, "", "SELECT 1")
		if err != nil {
			t.Fatal(err)
		}
		spread[node]++
	}
	if len(spread) < 2 { // which ones depends on how fast they were so far
		t.Errorf("calls without a session go to %v", spread)
	}
	s.settled(t)
}

// settled waits until the router counts no call as open.
func (s *stack) settled(t *testing.T) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; {
		open := int64(0)
		for _, n := range s.router.Stats().Nodes {
			open += n.Calls
		}
		if open == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d calls are counted as open for ever", open)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestOutcomesAreReported(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	if _, _, err := s.run(t.Context(), sessionID(1), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	good := s.judge.wait(t, "a good call", func(o cluster.Outcome) bool { return o.Node == 1 })
	if good.Blame != cluster.BlameSuccess || good.Kind != cluster.CallExecute || good.Latency <= 0 || good.Detail != "SUCCESS" {
		t.Errorf("a good call: %+v", good)
	}
	s.nodes[1].set(Ydb.StatusIds_OVERLOADED)
	if state, _, err := s.run(t.Context(), sessionID(2), "SELECT 1"); err != nil || state != Ydb.StatusIds_OVERLOADED {
		t.Errorf("%v, %v", state, err)
	}
	refused := s.judge.wait(t, "a refusal", func(o cluster.Outcome) bool { return o.Node == 2 })
	if refused.Blame != cluster.BlameNone || refused.Detail != "OVERLOADED" || refused.Congestion != cluster.CongestedUnknown {
		t.Errorf("a refusal: %+v", refused)
	}
	if r, err := s.table.ExecuteDataQuery(t.Context(), &Ydb_Table.ExecuteDataQueryRequest{SessionId: sessionID(2)}); err != nil || r.Operation.Status != Ydb.StatusIds_OVERLOADED {
		t.Errorf("%v, %v", r, err)
	}
	if refused = s.judge.wait(t, "a refused operation", func(o cluster.Outcome) bool { return o.Node == 2 }); refused.Detail != "OVERLOADED" {
		t.Errorf("a refused operation: %+v", refused)
	}

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-s.nodes[2].hung
		cancel()
	}()
	if _, _, err := s.run(ctx, sessionID(3), "hang"); status.Code(err) != codes.Canceled {
		t.Errorf("a caller that gave up: %v", err)
	}
	gaveUp := s.judge.wait(t, "a caller that gave up", func(o cluster.Outcome) bool { return o.Node == 3 })
	if gaveUp.Blame != cluster.BlameNone || gaveUp.Waited <= 0 {
		t.Errorf("a caller that gave up: %+v", gaveUp)
	}

	parts, err := s.query.ExecuteQuery(t.Context(), &Ydb_Query.ExecuteQueryRequest{SessionId: sessionID(3),
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "begin"}}})
	if err != nil {
		t.Fatal(err)
	}
	if part, err := parts.Recv(); err != nil || part.Status != Ydb.StatusIds_SUCCESS {
		t.Errorf("the first part: %v, %v", part, err)
	}
	<-s.nodes[2].hung
	hung := make(chan error, 1)
	go func() {
		state, _, err := s.run(t.Context(), sessionID(3), "hang")
		if err == nil && state != Ydb.StatusIds_UNDETERMINED {
			err = errors.New(state.String())
		}
		hung <- err
	}()
	<-s.nodes[2].hung
	s.nodes[2].server.Stop()
	if err := <-hung; err != nil {
		t.Errorf("a call on a node that died: %v; want UNDETERMINED", err)
	}
	// In the middle of a stream that is said in its last message.
	if part, err := parts.Recv(); err != nil || part.Status != Ydb.StatusIds_UNDETERMINED {
		t.Errorf("the last part of a stream of a node that died: %v, %v; want UNDETERMINED", part, err)
	}
	if _, err := parts.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after it: %v", err)
	}
	died := s.judge.wait(t, "the death of a node", func(o cluster.Outcome) bool { return o.Node == 3 })
	if died.Blame == cluster.BlameSuccess || died.Lost == 0 {
		t.Errorf("the death of a node: %+v; want it with the number of the connection that was lost", died)
	}
	for i := range 3 { // and now it cannot be reached
		state, _, err := s.run(t.Context(), sessionID(3), "SELECT 1")
		if err != nil || state != Ydb.StatusIds_BAD_SESSION && state != Ydb.StatusIds_UNDETERMINED {
			t.Errorf("call %d on a session of a dead node: %v, %v", i, state, err)
		}
	}
	away := s.judge.wait(t, "a node that is away", func(o cluster.Outcome) bool { return o.Node == 3 && o.Blame == cluster.BlameTransport })
	if away.Detail != "UNAVAILABLE" {
		t.Errorf("a node that is away: %+v", away)
	}
	s.settled(t)
}

// What the sidecar itself has to say comes as a status of YDB.
func TestRefusalsAreStatuses(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	if state, _, err := s.run(t.Context(), sessionID(77), "SELECT 1"); err != nil || state != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("a session of a node that is gone: %v, %v", state, err)
	}
	s.router.SetVerdicts(cluster.Verdicts{1: {Health: cluster.Ejected, Unreachable: true}})
	if state, _, err := s.run(t.Context(), sessionID(1), "SELECT 1"); err != nil || state != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("a session of a node out of reach: %v, %v", state, err)
	}
	for range 20 {
		if _, node, err := s.run(t.Context(), "", "SELECT 1"); err != nil || node == 1 {
			t.Errorf("a call without a session went to node %d, out of use; %v", node, err)
		}
	}
	r, err := s.table.ExecuteDataQuery(t.Context(), &Ydb_Table.ExecuteDataQueryRequest{SessionId: sessionID(1)})
	if err != nil || r.Operation.Status != Ydb.StatusIds_BAD_SESSION || !strings.Contains(r.Operation.Issues[0].Message, "ydb-sidecar") {
		t.Errorf("an operation on a node out of reach: %v, %v", r, err)
	}
	for _, id := range []string{sessionID(1), sessionID(77)} { // servers do not look at it
		r, err := s.table.CopyTables(t.Context(), &Ydb_Table.CopyTablesRequest{OperationParams: &Ydb_Operations.OperationParams{}, SessionId: id})
		if err != nil || r.Operation.Status != Ydb.StatusIds_SUCCESS || r.Operation.Id == "1" {
			t.Errorf("an operation without a session that names %s: %v, %v", id, r, err)
		}
	}
	for _, id := range []string{sessionID(1), sessionID(77)} { // what is gone is deleted: an SDK ends its process at anything else
		if r, err := s.query.DeleteSession(t.Context(), &Ydb_Query.DeleteSessionRequest{SessionId: id}); err != nil || r.Status != Ydb.StatusIds_SUCCESS {
			t.Errorf("deleting a session that is out of reach: %v, %v", r, err)
		}
		if r, err := s.table.DeleteSession(t.Context(), &Ydb_Table.DeleteSessionRequest{SessionId: id}); err != nil || r.Operation.Status != Ydb.StatusIds_SUCCESS {
			t.Errorf("deleting a table session that is out of reach: %v, %v", r, err)
		}
	}
}

func TestListEndpointsNamesTheSidecar(t *testing.T) {
	for advertise, want := range map[string]string{"": "", "db.example:2136": "db.example:2136"} {
		s := newStack(t, Config{Mode: ModePassthrough, Advertise: advertise})
		if want == "" {
			want = s.addr
		}
		c := Ydb_Discovery_V1.NewDiscoveryServiceClient(dial(t, s.addr))
		r, err := c.ListEndpoints(metadata.AppendToOutgoingContext(t.Context()), &Ydb_Discovery.ListEndpointsRequest{Database: "/local"}, grpc.CallAuthority(s.addr))
		var list Ydb_Discovery.ListEndpointsResult
		if err == nil {
			err = r.GetOperation().GetResult().UnmarshalTo(&list)
		}
		if err != nil || len(list.Endpoints) != 1 || net.JoinHostPort(list.Endpoints[0].Address, fmt.Sprint(list.Endpoints[0].Port)) != want ||
			list.Endpoints[0].Ssl || list.Endpoints[0].NodeId != virtual.NodeID {
			t.Errorf("%v, %v; want %s", &list, err, want)
		}
		if r, err = c.ListEndpoints(t.Context(), &Ydb_Discovery.ListEndpointsRequest{}, grpc.CallAuthority("nowhere")); advertise == "" &&
			(err != nil || r.Operation.Status != Ydb.StatusIds_BAD_REQUEST) {
			t.Errorf("without an address: %v, %v", r, err)
		}
		// The rest of the service is the cluster's.
		if _, err := c.WhoAmI(t.Context(), &Ydb_Discovery.WhoAmIRequest{}); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "unknown service") {
			t.Errorf("WhoAmI: %v; want what the nodes say, who do not have it", err)
		}
		if h, err := healthv1.NewHealthClient(s.conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil || h.Status != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("a service of this process: %v, %v", h, err)
		}
	}
}

func TestForwardedCallsAreTraced(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	run := func(spans int, flags string, session string) []sdktrace.ReadOnlySpan {
		t.Helper()
		before := len(s.spans.Ended())
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+id+"-"+parent+"-"+flags, "tracestate", "vendor=1")
		_, _, _ = s.run(ctx, session, "SELECT 1")
		s.settled(t)
		for limit := time.Now().Add(time.Minute); len(s.spans.Ended()) < before+spans && time.Now().Before(limit); {
			time.Sleep(time.Millisecond)
		}
		return s.spans.Ended()[before:]
	}
	spans := run(2, "01", sessionID(2))
	if len(spans) != 2 {
		t.Fatalf("%d spans; want the call and the hop", len(spans))
	}
	call, hop := spans[0], spans[1]
	if call.Parent().TraceID().String() != id || call.Parent().SpanID().String() != parent || call.Name() != "Ydb.Query.V1.QueryService/ExecuteQuery" || call.SpanKind() != trace.SpanKindServer {
		t.Errorf("%s below %v", call.Name(), call.Parent())
	}
	if hop.Parent().SpanID() != call.SpanContext().SpanID() || hop.Name() != "ydb.ExecuteQuery" || hop.SpanKind() != trace.SpanKindClient {
		t.Errorf("%s below %v", hop.Name(), hop.Parent())
	}
	want := []string{"00-" + id + "-" + hop.SpanContext().SpanID().String() + "-01"}
	if got := s.nodes[1].saw("traceparent"); !slices.Equal(got, want) {
		t.Errorf("the node gets %q; want %q", got, want)
	}
	if got := s.nodes[1].saw("tracestate"); !slices.Equal(got, []string{"vendor=1"}) {
		t.Errorf("the node gets %q", got)
	}
	attributes := fmt.Sprint(call.Attributes(), hop.Attributes())
	if !strings.Contains(attributes, "ydb.node.id") || strings.Contains(attributes, "SELECT") || strings.Contains(attributes, "session/3") {
		t.Errorf("attributes %s", attributes)
	}
	// Of a trace that is not recorded, the caller's own span goes on to the node, and nothing is made.
	if spans := run(0, "00", sessionID(2)); len(spans) != 0 {
		t.Errorf("%d spans of a trace that is not recorded", len(spans))
	}
	if got, want := s.nodes[1].saw("traceparent"), []string{"00-" + id + "-" + parent + "-00"}; !slices.Equal(got, want) {
		t.Errorf("the node gets %q; want %q", got, want)
	}
	// Unless it fails.
	if spans := run(1, "00", sessionID(77)); len(spans) != 1 || spans[0].Status().Description == "" || spans[0].Parent().SpanID().String() != parent {
		t.Errorf("spans of a call that failed: %v", spans)
	}
}

// Attached sessions are no calls, however many.
func TestAttachedSessionsAreNotCounted(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	for range 65 { // one more than routing.max_calls_per_node here
		attached, err := s.query.AttachSession(t.Context(), &Ydb_Query.AttachSessionRequest{SessionId: sessionID(1)})
		if err == nil {
			_, err = attached.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range s.router.Stats().Nodes {
		if n.Calls != 0 {
			t.Errorf("%d calls are counted on node %d", n.Calls, n.Node.ID)
		}
	}
	if state, node, err := s.run(t.Context(), sessionID(1), "SELECT 1"); err != nil || state != Ydb.StatusIds_SUCCESS || node != 1 {
		t.Errorf("a call beside them: %v from node %d, %v", state, node, err)
	}
}

// A stop ends sessions that are only attached, and no other call.
func TestStop(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	attached, err := s.query.AttachSession(t.Context(), &Ydb_Query.AttachSessionRequest{SessionId: sessionID(1)})
	if err == nil {
		_, err = attached.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() {
		_, _, err := s.run(ctx, sessionID(2), "hang")
		hung <- err
	}()
	<-s.nodes[1].hung
	stopped := make(chan struct{})
	go func() {
		s.server.Release(false)
		s.server.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
		t.Error("stopped while a call was open")
	case <-hung:
		t.Error("a call was cut off")
	case <-time.After(100 * time.Millisecond): // only to give a wrong stop its chance
	}
	cancel()
	<-hung
	<-stopped
	<-s.nodes[0].ended
	if _, err := attached.Recv(); err == nil {
		t.Error("the session is still attached")
	}
	s.settled(t)
}

// While another process takes over, a client learns that its session is over, and the node
// does not yet: a call may run in it that came over another connection.
func TestStopKeepsSessions(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	s.server.keeps = time.Hour
	attached, err := s.query.AttachSession(t.Context(), &Ydb_Query.AttachSessionRequest{SessionId: sessionID(1)})
	if err == nil {
		_, err = attached.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		s.server.Release(true)
		s.server.GracefulStop()
		close(stopped)
	}()
	if _, err := attached.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the client heard %v; want the end of the stream", err)
	}
	select {
	case <-s.nodes[0].ended:
		t.Fatal("the node has ended the session")
	case <-stopped:
		t.Fatal("stopped while sessions are kept")
	case <-time.After(100 * time.Millisecond): // only to give a wrong stop its chance
	}
	s.server.Stop()
	<-stopped
	<-s.nodes[0].ended
	s.settled(t)
}

// A stop tells the clients of all shards at once, whatever those of one have under way.
func TestStopTellsAllShards(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan struct{}, 2)
	clients := []*grpc.ClientConn{dial(t, s.addr), dial(t, s.addr)} // dealt to the two shards in turn
	for _, client := range clients {
		s.query = Ydb_Query_V1.NewQueryServiceClient(client)
		one := *s
		go func() {
			_, _, _ = one.run(ctx, sessionID(2), "hang") // it is cancelled
			hung <- struct{}{}
		}()
		<-s.nodes[1].hung
	}
	for i, f := range s.server.shards {
		if n := f.shard.Stats().Clients; n != 1 {
			t.Fatalf("%d clients of shard %d; want 1", n, i)
		}
	}
	stopped := make(chan struct{})
	go func() {
		s.server.GracefulStop()
		close(stopped)
	}()
	limited, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	for i, client := range clients {
		if !client.WaitForStateChange(limited, connectivity.Ready) {
			t.Errorf("client %d hears no GOAWAY while calls of both are open", i)
		}
	}
	cancel()
	<-hung
	<-hung
	<-stopped
	s.settled(t)
}

// stateOf is State with the figures of all shards as they are now, however busy the machine is.
func stateOf(s *Server) State {
	for {
		before := s.unread.Load()
		if st := s.State(); s.unread.Load() == before {
			return st
		}
	}
}

func TestState(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	for range 3 {
		if _, _, err := s.run(t.Context(), sessionID(2), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
	}
	s.judge.wait(t, "the last call", func(o cluster.Outcome) bool { return o.Node == 2 })
	s.settled(t)
	state := stateOf(s.server)
	if state.Clients != 1 || state.Nodes != 1 || state.Calls != 3 || state.Forwarded != 3 || state.Ends["answered"] != 3 || len(state.Connections) != 2 {
		t.Errorf("%+v", state)
	}
	for _, c := range state.Connections {
		if c.Peer == "client" && (c.Node != 0 || c.Calls != 3 || c.BytesIn == 0 || c.BytesOut == 0) || c.Peer == "node" && (c.Node != 2 || c.Calls != 3 || c.Remote != s.nodes[1].addr) {
			t.Errorf("%+v", c)
		}
	}
}

// When clients of one shard have left, the next ones come to it.
func TestClientsAreDealtToTheShardWithFewest(t *testing.T) {
	s := newStack(t, Config{Mode: ModePassthrough})
	come := func() net.Conn {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	have := func(want ...int) {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for {
			var got []int
			for _, f := range s.server.shards {
				got = append(got, f.shard.Clients())
			}
			if slices.Sort(got); slices.Equal(got, want) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d clients of the shards; want %d", got, want)
			}
			runtime.Gosched()
		}
	}
	var all []net.Conn
	for i := range 6 {
		all = append(all, come())
		have((i+1)/2, (i+2)/2)
	}
	for i := 0; i < 6; i += 2 {
		all[i].Close()
	}
	have(0, 3)
	for range 3 {
		come()
	}
	have(3, 3)
}
