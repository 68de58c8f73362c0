package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Scheme_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Topic_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
	"github.com/ydb-sidecar/sidecar/proof/await"
)

// node is one node of the cluster: it says who it is.
type node struct {
	Ydb_Query_V1.UnimplementedQueryServiceServer
	id     cluster.NodeID
	server *grpc.Server
	addr   string

	encodings encodings

	mu     sync.Mutex
	status Ydb.StatusIds_StatusCode // status that it answers with
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
	return &Ydb_Table.ExecuteDataQueryResponse{
		Operation: &Ydb_Operations.Operation{Id: fmt.Sprint(n.of.id), Ready: true, Status: n.of.answer(ctx)},
	}, nil
}

func (n tables) CopyTables(ctx context.Context, _ *Ydb_Table.CopyTablesRequest) (*Ydb_Table.CopyTablesResponse, error) {
	return &Ydb_Table.CopyTablesResponse{
		Operation: &Ydb_Operations.Operation{Id: fmt.Sprint(n.of.id), Ready: true, Status: n.of.answer(ctx)},
	}, nil
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
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans),
		sdktrace.WithIDGenerator(tracing.Generator{}), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	tracer := tracing.New(provider, func() bool { return true }, tracing.Config{Errors: true}, tracing.Ratio(0))
	deps := Deps{Ways: hop.Ways{Router: s.router, Health: s.judge}, Nodes: network{}, Tracer: tracer, Database: "/local", Apps: all}
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
	await.True(t, "a call waits", func() bool { return stateOf(s.server).Held > 0 })
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
