package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Topic_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/unary"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/proof/await"
)

// house is a sidecar's gRPC port with virtual sessions.
type house struct {
	*testing.T
	*backend
	pool   *pool.Pool
	server *Server
	addr   string
	ctx    context.Context
	limit  int // of sessions on the nodes
	broken *broken
	nodes  map[cluster.NodeID]*grpc.Server
}

// ownerOf is the node of the server session that stays with s.
func (h *house) ownerOf(s *session) cluster.NodeID {
	h.Helper()
	id, _ := virtual.Parse([]byte(s.id))
	ticket := s.ticket
	if h.server.own {
		ticket = ""
	}
	who := virtual.NewCredentials("/local", ticket)
	bound := h.server.sessions.BoundTo(id, &who, "")
	if bound == "" {
		h.Fatal("nothing is bound")
	}
	return protocol.HomeNode([]byte(bound))
}

// losesNodeOf stops the node that has the server session of s.
func (h *house) losesNodeOf(s *session) {
	h.Helper()
	node := h.ownerOf(s)
	h.mu.Lock()
	h.dead[node] = true
	h.mu.Unlock()
	h.nodes[node].Stop()
}

func newHouse(t *testing.T, change func(*Config, *pool.Config)) *house {
	return newHouseOf(t, nil, change)
}

// newHouseOf is newHouse with apps; nil: nobody has a token.
func newHouseOf(t *testing.T, all *apps.Registry, change func(*Config, *pool.Config)) *house {
	return newHouseOn(t, 2, all, change)
}

// newHouseOn is newHouseOf with a number of shards.
func newHouseOn(t *testing.T, shards int, all *apps.Registry, change func(*Config, *pool.Config)) *house {
	return newHouseWith(t, shards, all, change, nil)
}

// newHouseWith is newHouseOn with bounds of its own, and others of what the server needs.
func newHouseWith(t *testing.T, shards int, all *apps.Registry, change func(*Config, *pool.Config),
	bounds func(*h2.Config), needs ...func(*Deps)) *house {
	return newHouseBy(t, DataPath{Shards: shards}, all, change, bounds, needs...)
}

// newHouseBy is newHouseWith with other connections.
func newHouseBy(t *testing.T, path DataPath, all *apps.Registry, change func(*Config, *pool.Config),
	bounds func(*h2.Config), needs ...func(*Deps)) *house {
	h := &house{T: t, backend: &backend{sessions: map[string]*server{}, hung: make(chan struct{}, 16)},
		nodes: map[cluster.NodeID]*grpc.Server{}, broken: new(broken)}
	h.proceed, h.dead = make(chan struct{}), map[cluster.NodeID]bool{}
	config, pools := Default(), pool.Default()
	config.Mode, config.Auth = ModeTransaction, AuthOwn
	pools.Max, pools.CreateTimeout = 4, 10*time.Minute // after a 20th of that a pool opens another session
	if change != nil {
		change(&config, &pools)
	}
	for _, err := range []error{config.Validate(), pools.Validate()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	h.limit = pools.Max
	list := h.startNodes()
	h.pool = pool.New(pools, h.backend, nil)
	router := routing.New(routing.Default())
	deps := Deps{
		Ways:  hop.Ways{Router: brokenRouter{router, h.broken}, Health: brokenReporter{&outcomes{new: make(chan struct{}, 1)}, h.broken}},
		Nodes: network(list), Apps: all,
		Mine: h.mine, Pool: brokenPool{h.pool, h.broken},
		Cluster: brokenCluster{fakeCluster{h.backend, pools}, h.broken}, Database: "/local",
		Ticket: func() (string, error) { return "own ticket", nil },
		Unary:  map[string]unary.Method{checkPath: largeCheck},
	}
	for _, change := range needs {
		change(&deps)
	}
	inside := grpc.NewServer()
	healthv1.RegisterHealthServer(inside, health.NewServer())
	engine := h2.Default()
	engine.Message = 1 << 20 // bombs of less than 64 MiB are enough
	if bounds != nil {
		bounds(&engine)
	}
	var err error
	if h.server, err = New(config, path, engine, deps, inside); err != nil {
		t.Fatal(err)
	}
	router.Subscribe(h.server.SetView)
	router.Subscribe(h.pool.SetView)
	router.SetTopology(cluster.NewTopology(list, ""))
	h.run(inside)
	h.ctx, err = t.Context(), nil
	return h
}

// startNodes starts the nodes and returns where they are.
func (h *house) startNodes() (list []cluster.Node) {
	for id := cluster.NodeID(1); id <= 3; id++ {
		n, server, l := &queryNode{id: id, backend: h.backend}, grpc.NewServer(
			grpc.StatsHandler(&h.encodings), grpc.MaxRecvMsgSize(mostBytes),
		), listen(h.T)
		Ydb_Query_V1.RegisterQueryServiceServer(server, n)
		Ydb_Table_V1.RegisterTableServiceServer(server, tableNode{q: n})
		Ydb_Topic_V1.RegisterTopicServiceServer(server, topicNode{q: n})
		var wg sync.WaitGroup
		wg.Go(func() { _ = server.Serve(l) })
		h.Cleanup(func() { server.Stop(); wg.Wait() })
		h.nodes[id] = server
		list = append(list, cluster.Node{ID: id, Address: l.Addr().String()})
	}
	return list
}

// run has the server serve until the test ends. Then nothing must be left of its sessions.
func (h *house) run(inside *grpc.Server) {
	l := listen(h.T)
	h.addr = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = h.server.Run(ctx) })
	wg.Go(func() { _ = h.server.Serve(l) })
	wg.Go(func() { _ = inside.Serve(h.server.Local()) })
	wg.Go(func() { _ = h.pool.Run(ctx) })
	h.Cleanup(func() {
		l.Close()
		stop()
		inside.Stop()
		wg.Wait()
		end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(h.pool.Close(end), h.server.ClosePools(end)); err != nil {
			h.Error(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.wrong) > 0 || len(h.sessions) > 0 || h.most > h.limit {
			h.Errorf("%d sessions left, at most %d of %d; wrong: %.1000q", len(h.sessions), h.most, h.limit, h.wrong)
		}
	})
}

func (h *house) inLine() int {
	st := h.pool.Stats()
	return st.InLine()
}

// resting waits until every server session rests in the pool, with nothing open.
func (h *house) resting() {
	h.Helper()
	h.eventually("all sessions rest", func() string {
		st := h.pool.Stats()
		if st.InUse > 0 || st.Closing > 0 || h.inLine() > 0 || h.openTx() > 0 || h.server.State().Virtual.Bound > 0 ||
			h.server.sessions.InTx() != 0 {
			return fmt.Sprintf("%d busy, %d wait, %d transactions, %+v", st.InUse, h.inLine(), h.openTx(), h.server.State().Virtual)
		}
		return ""
	})
}

func (h *house) eventually(what string, fault func() string) {
	h.Helper()
	await.Right(h.T, what, fault)
}

// guest is a client with one connection.
type guest struct {
	*house
	name, ticket, database string
	options                []grpc.CallOption // of ExecuteQuery

	conn  *grpc.ClientConn
	query Ydb_Query_V1.QueryServiceClient
	table Ydb_Table_V1.TableServiceClient
}

func (h *house) guest(name string) *guest {
	conn := dial(h.T, h.addr)
	return &guest{h, name, "caller's", "/local", nil, conn, Ydb_Query_V1.NewQueryServiceClient(conn),
		Ydb_Table_V1.NewTableServiceClient(conn)}
}

func (g *guest) with(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-client", g.name, "x-ydb-database", g.database, "x-ydb-auth-ticket", g.ticket)
}

// session is a session of the query service, attached.
type session struct {
	*guest
	id     string
	stream Ydb_Query_V1.QueryService_AttachSessionClient
	drop   context.CancelFunc
}

func (g *guest) session() *session {
	g.Helper()
	r, err := g.query.CreateSession(g.with(g.ctx), &Ydb_Query.CreateSessionRequest{})
	if err != nil || r.GetStatus() != Ydb.StatusIds_SUCCESS || r.GetNodeId() != virtual.NodeID ||
		protocol.HomeNode([]byte(r.GetSessionId())) != virtual.NodeID {
		g.Fatalf("created %v, %v", r, err)
	}
	s := &session{guest: g, id: r.GetSessionId()}
	ctx, drop := context.WithCancel(g.ctx)
	s.drop = drop
	g.Cleanup(drop)
	if s.stream, err = g.query.AttachSession(g.with(ctx), &Ydb_Query.AttachSessionRequest{SessionId: s.id}); err != nil {
		g.Fatal(err)
	}
	if state, err := s.stream.Recv(); err != nil || state.GetStatus() != Ydb.StatusIds_SUCCESS {
		g.Fatalf("attached %v, %v", state, err)
	}
	return s
}

var (
	beginTx  = &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: &Ydb_Query.TransactionSettings{}}}
	commitTx = &Ydb_Query.TransactionControl{CommitTx: true, TxSelector: beginTx.TxSelector}
)

func inTx(id string, commit bool) *Ydb_Query.TransactionControl {
	return &Ydb_Query.TransactionControl{CommitTx: commit, TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: id}}
}

// run executes a statement to its end; the status is OK of the last part.
func (g *guest) run(
	ctx context.Context, session, text string, control *Ydb_Query.TransactionControl,
) (st Ydb.StatusIds_StatusCode, tx string, err error) {
	out, err := g.query.ExecuteQuery(g.with(ctx), &Ydb_Query.ExecuteQueryRequest{SessionId: session, TxControl: control,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: text}}}, g.options...)
	for err == nil {
		var part *Ydb_Query.ExecuteQueryResponsePart
		if part, err = out.Recv(); err == nil {
			st = part.GetStatus()
			if part.TxMeta != nil {
				tx = part.GetTxMeta().GetId()
			}
		}
	}
	if errors.Is(err, io.EOF) {
		if hints := out.Trailer().Get("x-ydb-server-hints"); len(hints) > 0 {
			g.Errorf("hints %q about the sidecar's own session", hints)
		}
		err = nil
	}
	return st, tx, err
}

// must is run that must give a status.
func (s *session) must(want Ydb.StatusIds_StatusCode, text string, control *Ydb_Query.TransactionControl) (tx string) {
	s.Helper()
	st, tx, err := s.run(s.ctx, s.id, text, control)
	if st != want || err != nil {
		s.Fatalf("%s: %v, %v; want %v", text, st, err, want)
	}
	return tx
}

const success = Ydb.StatusIds_SUCCESS
