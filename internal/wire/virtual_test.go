package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Topic_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/unary"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// server is a session on a node.
type server struct {
	id      string
	node    cluster.NodeID
	busy    bool
	open    map[string]string // transactions, and the client of each
	retire  func(string)
	gone    bool   // forgotten
	failed  bool   // its status ended it
	user    string // whose credentials it was opened with; "": nobody looks
	table   bool
	of      *backend
	foreign bool // no session of the pool's
}

func (s *server) ID() string { return s.id }
func (s *server) Forget()    { s.gone = true }
func (s *server) Fail()      { s.failed = true }

// Close implements pool.Resource.
func (s *server) Close(context.Context) error {
	b := s.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.gone {
		b.deletes++
	}
	if s.failed {
		b.failed++
	}
	b.rolledBack += len(s.open)
	delete(b.sessions, s.id)
	return nil
}

// backend is a cluster of three nodes that keeps the books: a call that reaches a node which
// is not its session's owner, a session used by two calls at a time or a transaction seen by a
// client that has not begun it is noted as wrong.
type backend struct {
	mu         sync.Mutex
	sessions   map[string]*server
	next       int
	most       int // sessions at a time
	deletes    int
	failed     int // of sessions closed: their status ended them
	rolledBack int // with their session
	wrong      []string
	seen       metadata.MD
	hung       chan struct{}
	asked      int // WhoAmI
	dead       map[cluster.NodeID]bool
	forwards   bool          // any node takes any session
	stuck      bool          // commits and rollbacks get no answer
	tableUsed  bool          // the last ExecuteDataQuery came on a session of the table service
	gate       chan struct{} // nil: answers to it do not wait
	births     chan struct{} // nil: pools of callers are made at once
	proceed    chan struct{} // ends "wait"
	encodings  encodings
}

type queryNode struct {
	Ydb_Query_V1.UnimplementedQueryServiceServer
	id cluster.NodeID
	*backend
}

type tableNode struct {
	Ydb_Table_V1.UnimplementedTableServiceServer
	q *queryNode
}

// Open implements pool.Opener.
func (b *backend) Open(_ context.Context, node cluster.NodeID, retire func(string)) (pool.Resource, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead[node] {
		return nil, errors.New("dead")
	}
	b.next++
	s := &server{id: fmt.Sprintf("ydb://session/3?node_id=%d&id=s%d", node, b.next), node: node, open: map[string]string{}, retire: retire, of: b}
	b.sessions[s.id] = s
	b.most = max(b.most, len(b.sessions))
	return s, nil
}

// mine is Deps.Mine.
func (b *backend) mine(id []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[string(id)]
	return s != nil && !s.foreign
}

func (b *backend) openTx() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sessions {
		n += len(s.open)
	}
	return n
}

// enter begins a call on a session.
func (n *queryNode) enter(ctx context.Context, id, tx string) (*server, string, Ydb.StatusIds_StatusCode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen, _ = metadata.FromIncomingContext(ctx)
	client := strings.Join(n.seen.Get("x-client"), ",")
	s := n.sessions[id]
	switch {
	case s == nil:
		return nil, client, Ydb.StatusIds_BAD_SESSION
	case s.node != n.id && !n.forwards:
		n.wrong = append(n.wrong, fmt.Sprintf("%s came to node %d", id, n.id))
	case s.busy:
		n.wrong = append(n.wrong, id+" is busy")
		return nil, client, Ydb.StatusIds_SESSION_BUSY
	}
	if ticket := strings.Join(n.seen.Get("x-ydb-auth-ticket"), ","); s.user != "" && s.user != userOf(ticket) {
		n.wrong = append(n.wrong, fmt.Sprintf("a call with %q on a session of %q", ticket, s.user))
	}
	for _, owner := range s.open {
		if owner != client {
			n.wrong = append(n.wrong, fmt.Sprintf("client %q on a session with a transaction of %q", client, owner))
		}
	}
	if _, ok := s.open[tx]; tx != "" && !ok {
		return nil, client, Ydb.StatusIds_NOT_FOUND
	}
	s.busy = true
	return s, client, Ydb.StatusIds_SUCCESS
}

func (n *queryNode) leave(s *server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.busy = false
}

func (n *queryNode) begin(s *server, client string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next++
	id := fmt.Sprintf("tx%d", n.next)
	s.open[id] = client
	return id
}

func (n *queryNode) finish(s *server, tx string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(s.open, tx)
}

// run plays a statement: its first word says how it goes.
func (n *queryNode) run(ctx context.Context, s *server, text string) (Ydb.StatusIds_StatusCode, error) {
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "hang":
		n.hung <- struct{}{}
		<-ctx.Done()
		return 0, ctx.Err()
	case "wait":
		n.hung <- struct{}{}
		<-n.proceed
	case "fail":
		return Ydb.StatusIds_StatusCode(Ydb.StatusIds_StatusCode_value[rest]), nil
	case "grpc":
		code := codes.Internal
		_, _ = fmt.Sscan(rest, &code) // if it is named
		return 0, status.Error(code, "broken")
	case "units":
		return Ydb.StatusIds_SUCCESS, grpc.SetTrailer(ctx, metadata.Pairs("x-ydb-consumed-units", rest))
	case "hint":
		return Ydb.StatusIds_SUCCESS, grpc.SetTrailer(ctx, metadata.Pairs("x-ydb-server-hints", "unheard-of", "x-ydb-server-hints", "another, session-close", "x-ydb-consumed-units", "7"))
	}
	return Ydb.StatusIds_SUCCESS, nil
}

func (n *queryNode) ExecuteQuery(r *Ydb_Query.ExecuteQueryRequest, out Ydb_Query_V1.QueryService_ExecuteQueryServer) error {
	control := r.GetTxControl()
	s, client, st := n.enter(out.Context(), r.GetSessionId(), control.GetTxId())
	if s == nil {
		return out.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: st})
	}
	defer n.leave(s)
	st, err := n.run(out.Context(), s, r.GetQueryContent().GetText())
	if err != nil {
		return err
	}
	if st != Ydb.StatusIds_SUCCESS {
		if st == Ydb.StatusIds_ABORTED {
			n.finish(s, control.GetTxId())
		}
		return out.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: st})
	}
	tx := control.GetTxId()
	switch {
	case control == nil, r.GetQueryContent().GetText() == "explain":
	case control.GetCommitTx():
		n.finish(s, tx)
		tx = ""
	case control.GetBeginTx() != nil:
		tx = n.begin(s, client)
	}
	size := 5000
	_, _ = fmt.Sscanf(r.GetQueryContent().GetText(), "large %d", &size) // another text leaves it
	rows := &Ydb.ResultSet{Rows: []*Ydb.Value{{Value: &Ydb.Value_TextValue{TextValue: strings.Repeat("r", size)}}}}
	first := &Ydb_Query.ExecuteQueryResponsePart{Status: st, ResultSet: rows}
	ends, early := strings.CutPrefix(r.GetQueryContent().GetText(), "early ")
	if early {
		first.TxMeta = &Ydb_Query.TransactionMeta{Id: tx}
	}
	if err := out.Send(first); err != nil {
		return err
	}
	if early {
		<-n.proceed
		if strings.HasPrefix(ends, "ABORTED") {
			n.finish(s, tx)
		}
		last := new(Ydb_Query.ExecuteQueryResponsePart)
		if name, none := strings.CutSuffix(ends, " and none"); none {
			ends, last.TxMeta = name, new(Ydb_Query.TransactionMeta)
		}
		last.Status = Ydb.StatusIds_StatusCode(Ydb.StatusIds_StatusCode_value[ends])
		return out.Send(last)
	}
	if r.GetQueryContent().GetText() == "half" {
		return status.Error(codes.Internal, "broken")
	}
	if name, late := strings.CutPrefix(r.GetQueryContent().GetText(), "late "); late {
		return out.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_StatusCode(Ydb.StatusIds_StatusCode_value[name])})
	}
	last := &Ydb_Query.ExecuteQueryResponsePart{Status: st, ResultSet: rows}
	if control != nil { // the last part alone has it
		last.TxMeta = &Ydb_Query.TransactionMeta{Id: tx}
	}
	return out.Send(last)
}

func (n *queryNode) BeginTransaction(ctx context.Context, r *Ydb_Query.BeginTransactionRequest) (*Ydb_Query.BeginTransactionResponse, error) {
	s, client, st := n.enter(ctx, r.GetSessionId(), "")
	if s == nil {
		return &Ydb_Query.BeginTransactionResponse{Status: st}, nil
	}
	defer n.leave(s)
	return &Ydb_Query.BeginTransactionResponse{Status: st, TxMeta: &Ydb_Query.TransactionMeta{Id: n.begin(s, client)}}, nil
}

func (n *queryNode) end(ctx context.Context, id, tx string) Ydb.StatusIds_StatusCode {
	s, _, st := n.enter(ctx, id, tx)
	n.mu.Lock()
	stuck := n.stuck
	n.mu.Unlock()
	if stuck {
		n.hung <- struct{}{}
		<-ctx.Done()
	}
	if s != nil {
		n.finish(s, tx)
		n.leave(s)
	}
	return st
}

func (n *queryNode) CommitTransaction(ctx context.Context, r *Ydb_Query.CommitTransactionRequest) (*Ydb_Query.CommitTransactionResponse, error) {
	return &Ydb_Query.CommitTransactionResponse{Status: n.end(ctx, r.GetSessionId(), r.GetTxId())}, nil
}

func (n *queryNode) RollbackTransaction(ctx context.Context, r *Ydb_Query.RollbackTransactionRequest) (*Ydb_Query.RollbackTransactionResponse, error) {
	return &Ydb_Query.RollbackTransactionResponse{Status: n.end(ctx, r.GetSessionId(), r.GetTxId())}, nil
}

func (t tableNode) ExecuteDataQuery(ctx context.Context, r *Ydb_Table.ExecuteDataQueryRequest) (*Ydb_Table.ExecuteDataQueryResponse, error) {
	n, control := t.q, r.GetTxControl()
	s, client, st := n.enter(ctx, r.GetSessionId(), control.GetTxId())
	if s == nil {
		return &Ydb_Table.ExecuteDataQueryResponse{Operation: operationOf(nil, st, nil)}, nil
	}
	n.mu.Lock()
	n.tableUsed = s.table
	n.mu.Unlock()
	defer n.leave(s)
	st, err := n.run(ctx, s, r.GetQuery().GetYqlText())
	if err != nil || st != Ydb.StatusIds_SUCCESS {
		return &Ydb_Table.ExecuteDataQueryResponse{Operation: operationOf(nil, st, nil)}, err
	}
	tx := control.GetTxId()
	if control.GetCommitTx() {
		n.finish(s, tx)
		tx = ""
	} else if control.GetBeginTx() != nil {
		tx = n.begin(s, client)
	}
	return &Ydb_Table.ExecuteDataQueryResponse{Operation: operationOf(nil, st, &Ydb_Table.ExecuteQueryResult{TxMeta: &Ydb_Table.TransactionMeta{Id: tx}})}, nil
}

func (t tableNode) CommitTransaction(ctx context.Context, r *Ydb_Table.CommitTransactionRequest) (*Ydb_Table.CommitTransactionResponse, error) {
	return &Ydb_Table.CommitTransactionResponse{Operation: operationOf(nil, t.q.end(ctx, r.GetSessionId(), r.GetTxId()), nil)}, nil
}

func (t tableNode) CopyTables(_ context.Context, r *Ydb_Table.CopyTablesRequest) (*Ydb_Table.CopyTablesResponse, error) {
	t.q.free(r)
	return &Ydb_Table.CopyTablesResponse{Operation: operationOf(nil, success, nil)}, nil
}

// ReadRows of the table "wait" waits for proceed.
func (t tableNode) ReadRows(ctx context.Context, r *Ydb_Table.ReadRowsRequest) (*Ydb_Table.ReadRowsResponse, error) {
	t.q.free(r)
	if r.GetPath() == "wait" {
		t.q.hung <- struct{}{}
		select {
		case <-t.q.proceed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &Ydb_Table.ReadRowsResponse{Status: success}, nil
}

// StreamReadTable sends one part, and of the table "wait" another one after proceed.
func (t tableNode) StreamReadTable(r *Ydb_Table.ReadTableRequest, out Ydb_Table_V1.TableService_StreamReadTableServer) error {
	t.q.free(r)
	part := &Ydb_Table.ReadTableResponse{Status: success}
	if err := out.Send(part); err != nil || r.GetPath() != "wait" {
		return err
	}
	select {
	case <-t.q.proceed:
		return out.Send(part)
	case <-out.Context().Done():
		return out.Context().Err()
	}
}

// free notes a call that comes with a virtual session.
func (n *queryNode) free(r interface{ GetSessionId() string }) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id := r.GetSessionId(); protocol.Owner([]byte(id)) == virtual.NodeID {
		n.wrong = append(n.wrong, fmt.Sprintf("%T came with the virtual session %s", r, id))
	}
}

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
	who := virtual.NewCaller("/local", ticket)
	bound := h.server.sessions.BoundTo(id, &who, "")
	if bound == "" {
		h.Fatal("nothing is bound")
	}
	return protocol.Owner([]byte(bound))
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
func newHouseWith(t *testing.T, shards int, all *apps.Registry, change func(*Config, *pool.Config), bounds func(*h2.Config), needs ...func(*Deps)) *house {
	return newHouseBy(t, DataPath{Shards: shards}, all, change, bounds, needs...)
}

// newHouseBy is newHouseWith with other connections.
func newHouseBy(t *testing.T, path DataPath, all *apps.Registry, change func(*Config, *pool.Config), bounds func(*h2.Config), needs ...func(*Deps)) *house {
	h := &house{T: t, backend: &backend{sessions: map[string]*server{}, hung: make(chan struct{}, 16), proceed: make(chan struct{}), dead: map[cluster.NodeID]bool{}}, nodes: map[cluster.NodeID]*grpc.Server{}, broken: new(broken)}
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
	var list []cluster.Node
	for id := cluster.NodeID(1); id <= 3; id++ {
		n, server, l := &queryNode{id: id, backend: h.backend}, grpc.NewServer(grpc.StatsHandler(&h.encodings), grpc.MaxRecvMsgSize(mostBytes)), listen(t)
		Ydb_Query_V1.RegisterQueryServiceServer(server, n)
		Ydb_Table_V1.RegisterTableServiceServer(server, tableNode{q: n})
		Ydb_Topic_V1.RegisterTopicServiceServer(server, topicNode{q: n})
		var wg sync.WaitGroup
		wg.Go(func() { _ = server.Serve(l) })
		t.Cleanup(func() { server.Stop(); wg.Wait() })
		h.nodes[id] = server
		list = append(list, cluster.Node{ID: id, Address: l.Addr().String()})
	}
	h.pool = pool.New(pools, h.backend, nil)
	router := routing.New(routing.Default())
	deps := Deps{Ways: hop.Ways{Router: brokenRouter{router, h.broken}, Judge: brokenJudge{&outcomes{new: make(chan struct{}, 1)}, h.broken}}, Nodes: network(list), Apps: all,
		Mine: h.mine, Pool: brokenPool{h.pool, h.broken}, Accounts: brokenAccounts{accounts{h.backend, pools}, h.broken}, Database: "/local", Ticket: func() (string, error) { return "own ticket", nil }, Unary: map[string]unary.Method{checkPath: largeCheck}}
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
	l := listen(t)
	h.addr = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = h.server.Run(ctx) })
	wg.Go(func() { _ = h.server.Serve(l) })
	wg.Go(func() { _ = inside.Serve(h.server.Local()) })
	wg.Go(func() { _ = h.pool.Run(ctx) })
	t.Cleanup(func() {
		l.Close()
		stop()
		inside.Stop()
		wg.Wait()
		end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(h.pool.Close(end), h.server.ClosePools(end)); err != nil {
			t.Error(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.wrong) > 0 || len(h.sessions) > 0 || h.most > h.limit {
			t.Errorf("%d sessions left, at most %d of %d; wrong: %.1000q", len(h.sessions), h.most, h.limit, h.wrong)
		}
	})
	h.ctx, err = t.Context(), nil
	return h
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
		if st.Leased > 0 || st.Closing > 0 || h.inLine() > 0 || h.openTx() > 0 || h.server.State().Virtual.Bound > 0 || h.server.sessions.InTx() != 0 {
			return fmt.Sprintf("%d busy, %d wait, %d transactions, %+v", st.Leased, h.inLine(), h.openTx(), h.server.State().Virtual)
		}
		return ""
	})
}

func (h *house) eventually(what string, fault func() string) {
	h.Helper()
	eventually(h.T, what, fault)
}

func eventually(t testing.TB, what string, fault func() string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		text := fault()
		if text == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s: %s", what, text)
		}
	}
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
	return &guest{h, name, "caller's", "/local", nil, conn, Ydb_Query_V1.NewQueryServiceClient(conn), Ydb_Table_V1.NewTableServiceClient(conn)}
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
	if err != nil || r.GetStatus() != Ydb.StatusIds_SUCCESS || r.GetNodeId() != virtual.NodeID || protocol.Owner([]byte(r.GetSessionId())) != virtual.NodeID {
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
func (g *guest) run(ctx context.Context, session, text string, control *Ydb_Query.TransactionControl) (st Ydb.StatusIds_StatusCode, tx string, err error) {
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

func TestVirtualSessionLives(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	s := g.session()
	if h.pool.Stats().Sessions != 0 {
		t.Error("a session was opened for one that does nothing")
	}
	if st, err := g.query.AttachSession(g.with(h.ctx), &Ydb_Query.AttachSessionRequest{SessionId: s.id}); err != nil {
		t.Error(err)
	} else if state, err := st.Recv(); err != nil || state.GetStatus() != Ydb.StatusIds_SESSION_BUSY {
		t.Errorf("attached twice: %v, %v", state, err)
	}
	s.must(success, "select", nil)
	if got := h.seen.Get("x-ydb-auth-ticket"); len(got) != 1 || got[0] != "own ticket" {
		t.Errorf("went with the credentials %q", got)
	}
	s.must(success, "select", commitTx)
	s.must(Ydb.StatusIds_GENERIC_ERROR, "fail GENERIC_ERROR", nil)
	if st, _, _ := g.run(metadata.AppendToOutgoingContext(h.ctx, "x-ydb-database", "/other"), s.id, "select", nil); st != Ydb.StatusIds_UNAUTHORIZED && st != success {
		t.Errorf("another database: %v", st)
	}
	for range 2 {
		if r, err := g.query.DeleteSession(g.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id}); err != nil || r.GetStatus() != success {
			t.Errorf("deleted %v, %v", r, err)
		}
	}
	if state, err := s.stream.Recv(); err != nil || state.GetStatus() != success {
		t.Errorf("the last state: %v, %v", state, err)
	}
	if _, err := s.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
	s.must(Ydb.StatusIds_BAD_SESSION, "select", nil)
	h.resting()
	if st := h.server.State().Virtual; st.Sessions != 0 || st.Created != 1 {
		t.Errorf("%+v", st)
	}
	if h.pool.Stats().Sessions != 1 {
		t.Error("not one server session served all")
	}
}

func TestTransactionsBind(t *testing.T) {
	h := newHouse(t, nil)
	a, b := h.guest("a").session(), h.guest("b").session()
	begun, err := a.query.BeginTransaction(a.with(h.ctx), &Ydb_Query.BeginTransactionRequest{SessionId: a.id})
	if err != nil || begun.GetTxMeta().GetId() == "" {
		t.Fatal(begun, err)
	}
	txA, txB := begun.GetTxMeta().GetId(), b.must(success, "select", beginTx)
	a.must(success, "select", inTx(txA, false))
	if h.openTx() != 2 || h.server.State().Virtual.Bound != 2 {
		t.Errorf("%d transactions, %+v", h.openTx(), h.server.State().Virtual)
	}
	a.must(success, "select", inTx(txA, true))
	if r, err := b.query.CommitTransaction(b.with(h.ctx), &Ydb_Query.CommitTransactionRequest{SessionId: b.id, TxId: txB}); err != nil || r.GetStatus() != success {
		t.Error(r, err)
	}
	h.resting()
	a.must(Ydb.StatusIds_NOT_FOUND, "select", inTx(txA, false))
	// Two at a time, of which one ends.
	one, two := a.must(success, "select", beginTx), a.must(success, "select", beginTx)
	a.must(success, "select", inTx(one, true))
	if h.openTx() != 1 || h.server.State().Virtual.Bound != 1 {
		t.Error("the end of one of two transactions let the session go")
	}
	if r, err := a.query.RollbackTransaction(a.with(h.ctx), &Ydb_Query.RollbackTransactionRequest{SessionId: a.id, TxId: two}); err != nil || r.GetStatus() != success {
		t.Error(r, err)
	}
	h.resting()
	if h.deletes != 0 {
		t.Errorf("%d sessions deleted", h.deletes)
	}
}

// Whatever leaves a server session in doubt ends it, and what was open on it is rolled back.
func TestNothingDirtyIsHandedOn(t *testing.T) {
	for name, c := range map[string]struct {
		end func(h *house, s *session, tx string)
		bad bool // the virtual session is told that its transaction is lost
	}{
		"stream dropped": {func(_ *house, s *session, _ string) { s.drop() }, true},
		"deleted": {func(_ *house, s *session, _ string) {
			s.query.DeleteSession(s.with(s.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id})
		}, true},
		"client killed": {func(_ *house, s *session, _ string) { s.conn.Close() }, true},
		"statement fails": {func(_ *house, s *session, tx string) {
			s.must(Ydb.StatusIds_PRECONDITION_FAILED, "fail PRECONDITION_FAILED", inTx(tx, false))
		}, false},
		"cancelled in mid stream": {func(h *house, s *session, tx string) {
			ctx, cancel := context.WithCancel(h.ctx)
			go func() { <-h.hung; cancel() }()
			s.run(ctx, s.id, "hang", inTx(tx, false))
		}, true},
		"deadline": {func(h *house, s *session, tx string) {
			left := 100 * time.Millisecond
			h.eventually("a call comes to its node before its time is up", func() string {
				ctx, cancel := context.WithTimeout(h.ctx, left)
				defer cancel()
				left *= 2
				if st, _, err := s.run(ctx, s.id, "hang", inTx(tx, false)); st != Ydb.StatusIds_BAD_SESSION { // the one before it did
					return fmt.Sprint(st, err)
				}
				return ""
			})
		}, true},
		"transport error behind a first part": {func(h *house, s *session, tx string) { s.run(h.ctx, s.id, "half", inTx(tx, false)) }, true},
		"transport error":                     {func(h *house, s *session, tx string) { s.run(h.ctx, s.id, "grpc", inTx(tx, false)) }, true},
		"internal error": {func(h *house, s *session, tx string) {
			s.must(Ydb.StatusIds_INTERNAL_ERROR, "fail INTERNAL_ERROR", inTx(tx, false))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, nil)
			s := h.guest("a").session()
			tx := s.must(success, "select", beginTx)
			c.end(h, s, tx)
			h.resting()
			h.eventually("rolled back", func() string {
				h.mu.Lock()
				defer h.mu.Unlock()
				if h.rolledBack != 1 || len(h.sessions) != 0 {
					return fmt.Sprintf("%d, %d sessions", h.rolledBack, len(h.sessions))
				}
				return ""
			})
			if name == "client killed" {
				return
			}
			h.eventually("says so", func() string { // the end of a stream may come after the next call
				want := Ydb.StatusIds_NOT_FOUND
				if c.bad {
					want = Ydb.StatusIds_BAD_SESSION
				}
				if st, _, err := s.run(h.ctx, s.id, "select", inTx(tx, false)); st != want || err != nil {
					return fmt.Sprintf("%v, %v; want %v", st, err, want)
				}
				return ""
			})
			h.guest("b").session().must(success, "select", nil)
		})
	}
}

func TestAbortedTransactionsLeaveTheSession(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	tx := s.must(success, "select", beginTx)
	s.must(Ydb.StatusIds_ABORTED, "fail ABORTED", inTx(tx, false))
	h.resting()
	if r, err := s.query.RollbackTransaction(s.with(h.ctx), &Ydb_Query.RollbackTransactionRequest{SessionId: s.id, TxId: tx}); err != nil || r.GetStatus() != Ydb.StatusIds_NOT_FOUND {
		t.Error(r, err)
	}
	if h.deletes != 0 {
		t.Error("deleted for nothing")
	}
}

func TestGoneServerSessions(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	s.must(Ydb.StatusIds_BAD_SESSION, "fail BAD_SESSION", nil)
	if _, err := s.stream.Recv(); err != nil {
		t.Error(err)
	}
	if _, err := s.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the client was told that its session is bad, and keeps it: %v", err)
	}
	h.resting()
	if h.deletes != 0 {
		t.Error("a session that the node has forgotten is deleted")
	}
	s.must(success, "select", nil) // by a client that does not listen
	s.drop()
	if st := h.server.State().Virtual; st.Sessions != 1 || st.Attached != 0 {
		t.Errorf("%+v", st)
	}
	if r, err := s.query.DeleteSession(s.with(h.ctx), &Ydb_Query.DeleteSessionRequest{SessionId: s.id}); err != nil || r.GetStatus() != success {
		t.Error(r, err)
	}
	// What was open on it is gone.
	s = h.guest("c").session()
	lost := s.must(success, "select", beginTx)
	s.must(Ydb.StatusIds_BAD_SESSION, "fail BAD_SESSION", inTx(lost, false))
	s.must(Ydb.StatusIds_BAD_SESSION, "select", inTx(lost, false))
	// A hint stays here, and the session is let go after its transaction.
	s = h.guest("b").session()
	tx := s.must(success, "hint", beginTx)
	s.must(success, "select", inTx(tx, true))
	h.resting()
	h.eventually("closed", func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return strings.Repeat("x", 1-h.deletes)
	})
	s.must(success, "select", nil)
}

// A status that ends a session of the node is told to its watch, which sees the end of its stream.
func TestSessionsThatEndWithAStatus(t *testing.T) {
	h := newHouse(t, nil)
	failed := func() (failed, deletes int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.failed, h.deletes
	}
	s := h.guest("a").session()
	s.must(Ydb.StatusIds_CANCELLED, "fail CANCELLED", nil)
	h.eventually("closed", func() string {
		_, deletes := failed()
		return strings.Repeat("x", 1-deletes)
	})
	if failed, _ := failed(); failed != 0 {
		t.Errorf("%d sessions failed; CANCELLED ends none", failed)
	}
	tx := s.must(success, "select", beginTx)
	s.must(Ydb.StatusIds_INTERNAL_ERROR, "fail INTERNAL_ERROR", inTx(tx, false))
	h.eventually("closed", func() string {
		_, deletes := failed()
		return strings.Repeat("x", 2-deletes)
	})
	if failed, _ := failed(); failed != 1 {
		t.Errorf("%d sessions failed; want that of INTERNAL_ERROR", failed)
	}
	if st, _, _ := s.run(s.with(h.ctx), s.id, "select", inTx(tx, false)); st == success {
		t.Error("the transaction goes on in another session")
	}
	s.must(success, "select", nil)
}

func TestOneCallAtATime(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	ctx, cancel := context.WithCancel(h.ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.run(ctx, s.id, "hang", nil) })
	<-h.hung
	s.must(Ydb.StatusIds_SESSION_BUSY, "select", nil)
	cancel()
	wg.Wait()
	h.resting()
	s.must(success, "select", nil)
}

func TestLineForSessions(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max, p.Queue = 1, 1 })
	a, b, c := h.guest("a").session(), h.guest("b").session(), h.guest("c").session()
	tx := a.must(success, "select", beginTx)
	waits := func(n int) {
		h.eventually("waits", func() string {
			if got := h.inLine(); got != n {
				return fmt.Sprint(got)
			}
			return ""
		})
	}
	// One that goes leaves the line.
	ctx, cancel := context.WithCancel(h.ctx)
	var wg sync.WaitGroup
	wg.Go(func() { b.run(ctx, b.id, "select", nil) })
	waits(1)
	cancel()
	wg.Wait()
	waits(0)
	wg.Go(func() { b.must(success, "select", nil) })
	waits(1)
	c.must(Ydb.StatusIds_OVERLOADED, "select", nil)
	a.must(success, "select", inTx(tx, true))
	wg.Wait()
	h.resting()
	if st := h.server.State().Virtual; st.Sessions != 3 {
		t.Errorf("%+v", st)
	}
}

func TestImplicitSessions(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	for _, text := range []string{"select", strings.Repeat("long ", 20_000)} {
		if st, _, err := g.run(h.ctx, "", text, nil); st != success || err != nil {
			t.Errorf("%v, %v", st, err)
		}
	}
	h.resting()
	if _, tx, _ := g.run(h.ctx, "", "select", beginTx); tx == "" {
		t.Error("no transaction")
	}
	h.eventually("rolled back", func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return strings.Repeat("x", 1-h.rolledBack)
	})
	h.resting()
}

func TestTooManyVirtualSessions(t *testing.T) {
	h := newHouse(t, func(c *Config, _ *pool.Config) { c.Sessions = 1 })
	s := h.guest("a").session()
	if r, err := s.query.CreateSession(s.with(h.ctx), &Ydb_Query.CreateSessionRequest{}); err != nil || r.GetStatus() != Ydb.StatusIds_OVERLOADED {
		t.Error(r, err)
	}
	s.drop()
	h.eventually("free again", func() string {
		if r, err := s.query.CreateSession(s.with(h.ctx), &Ydb_Query.CreateSessionRequest{}); err != nil || r.GetStatus() != success {
			return fmt.Sprint(r, err)
		}
		return ""
	})
}

func TestTableSessions(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	created, err := g.table.CreateSession(g.with(h.ctx), &Ydb_Table.CreateSessionRequest{})
	result := new(Ydb_Table.CreateSessionResult)
	if err != nil || created.GetOperation().GetResult().UnmarshalTo(result) != nil || protocol.Owner([]byte(result.GetSessionId())) != virtual.NodeID {
		t.Fatal(created, err)
	}
	id := result.GetSessionId()
	alive, err := g.table.KeepAlive(g.with(h.ctx), &Ydb_Table.KeepAliveRequest{SessionId: id})
	kept := new(Ydb_Table.KeepAliveResult)
	if err != nil || alive.GetOperation().GetResult().UnmarshalTo(kept) != nil || kept.GetSessionStatus() != Ydb_Table.KeepAliveResult_SESSION_STATUS_READY {
		t.Error(alive, err)
	}
	run := func(control *Ydb_Table.TransactionControl) (Ydb.StatusIds_StatusCode, string) {
		r, err := g.table.ExecuteDataQuery(g.with(h.ctx), &Ydb_Table.ExecuteDataQueryRequest{SessionId: id, TxControl: control, Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "select"}}})
		if err != nil {
			t.Fatal(err)
		}
		result := new(Ydb_Table.ExecuteQueryResult)
		if x := r.GetOperation().GetResult(); x != nil && x.UnmarshalTo(result) != nil {
			t.Error(r)
		}
		return r.GetOperation().GetStatus(), result.GetTxMeta().GetId()
	}
	begin := &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{}}
	if st, tx := run(&Ydb_Table.TransactionControl{CommitTx: true, TxSelector: begin}); st != success || tx != "" {
		t.Error(st, tx)
	}
	h.resting()
	st, tx := run(&Ydb_Table.TransactionControl{TxSelector: begin})
	if st != success || tx == "" || h.openTx() != 1 {
		t.Error(st, tx, h.openTx())
	}
	if r, err := g.table.CommitTransaction(g.with(h.ctx), &Ydb_Table.CommitTransactionRequest{SessionId: id, TxId: tx}); err != nil || r.GetOperation().GetStatus() != success {
		t.Error(r, err)
	}
	if r, err := g.table.CopyTables(g.with(h.ctx), &Ydb_Table.CopyTablesRequest{SessionId: id}); err != nil || r.GetOperation().GetStatus() != success {
		t.Error(r, err)
	}
	h.resting()
	// There is no stream: the end of its connection tells that the client is gone.
	if _, tx = run(&Ydb_Table.TransactionControl{TxSelector: begin}); tx == "" {
		t.Error("no transaction")
	}
	g.conn.Close()
	h.resting()
	g = h.guest("a")
	if st, _ := run(&Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}}); st != Ydb.StatusIds_BAD_SESSION {
		t.Error(st)
	}
	if st, _ := run(&Ydb_Table.TransactionControl{CommitTx: true, TxSelector: begin}); st != success {
		t.Error(st)
	}
	if r, err := g.table.DeleteSession(g.with(h.ctx), &Ydb_Table.DeleteSessionRequest{SessionId: id}); err != nil || r.GetOperation().GetStatus() != success {
		t.Error(r, err)
	}
	if r, err := g.table.KeepAlive(g.with(h.ctx), &Ydb_Table.KeepAliveRequest{SessionId: id}); err != nil || r.GetOperation().GetStatus() != Ydb.StatusIds_BAD_SESSION {
		t.Error(r, err)
	}
}

// In mode session a session outlives its server session if nothing is lost with that.
func TestSessionModeWithoutTheNode(t *testing.T) {
	h := newHouse(t, func(c *Config, p *pool.Config) { c.Mode = ModeSession })
	s := h.guest("a").session()
	// A call that is under way then may be undetermined; after that it is as it will be.
	first := func(control *Ydb_Query.TransactionControl) Ydb.StatusIds_StatusCode {
		st, _, err := s.run(h.ctx, s.id, "select", control)
		if st == Ydb.StatusIds_UNDETERMINED && err == nil {
			st, _, err = s.run(h.ctx, s.id, "select", control)
		}
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	s.must(success, "select", nil)
	h.losesNodeOf(s)
	if st := first(nil); st != success {
		t.Errorf("%v; nothing was lost", st)
	}
	tx := s.must(success, "select", beginTx)
	h.losesNodeOf(s)
	if st := first(inTx(tx, false)); st != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("%v; the transaction was lost", st)
	}
	s.must(success, "select", nil)
}

func TestSessionMode(t *testing.T) {
	h := newHouse(t, func(c *Config, p *pool.Config) { c.Mode, p.Max = ModeSession, 2 })
	a, b := h.guest("a").session(), h.guest("b").session()
	a.must(success, "select", nil)
	b.must(success, "select", nil)
	if got := h.server.State().Virtual.Bound; got != 2 {
		t.Errorf("%d bound; want 2", got)
	}
	c := h.guest("c").session()
	var wg sync.WaitGroup
	wg.Go(func() { c.must(success, "select", nil) })
	h.eventually("waits", func() string { return strings.Repeat("x", 1-h.inLine()) })
	a.drop()
	wg.Wait()
	b.must(success, "select", b.must2(beginTx))
	b.drop()
	c.drop()
	h.resting()
	if h.deletes != 0 {
		t.Errorf("%d clean sessions deleted", h.deletes)
	}
}

// must2 begins a transaction and returns the control that ends it.
func (s *session) must2(control *Ydb_Query.TransactionControl) *Ydb_Query.TransactionControl {
	s.Helper()
	return inTx(s.must(success, "select", control), true)
}

func TestTemporaryTableBinds(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	s.must(success, "CREATE TEMPORARY TABLE x (a Int32, PRIMARY KEY (a))", nil)
	if got := h.server.State().Virtual.Bound; got != 1 {
		t.Errorf("%d bound; want 1", got)
	}
	s.must(success, "select", nil)
	s.drop()
	h.resting()
	h.eventually("deleted with its table", func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return strings.Repeat("x", 1-h.deletes)
	})
}

// What a text in PostgreSQL's syntax sets is the session's from when its node reads it: whatever comes of the statement, and if it is only prepared.
func TestSettingsOfPostgresBind(t *testing.T) {
	const set = "\n --!syntax_pg\nSET search_path TO x"
	execute := func(s *session, id, tx string, long int) {
		q := &Ydb_Table.ExecuteDataQueryRequest{SessionId: s.id, Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_Id{Id: id}},
			Parameters: map[string]*Ydb.TypedValue{"$p": {Value: &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: strings.Repeat("v", long)}}}}}
		if tx != "" {
			q.TxControl = &Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}}
		}
		if r, err := s.table.ExecuteDataQuery(s.with(s.ctx), q); err != nil || r.GetOperation().GetStatus() != success {
			s.Error(r, err)
		}
	}
	for name, call := range map[string]func(h *house, s *session){
		"executed": func(_ *house, s *session) { s.must(success, set, nil) },
		"failed": func(_ *house, s *session) {
			out, err := s.query.ExecuteQuery(s.with(s.ctx), &Ydb_Query.ExecuteQueryRequest{SessionId: s.id, Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
				QueryContent: &Ydb_Query.QueryContent{Text: "fail GENERIC_ERROR", Syntax: protocol.SyntaxPG}}})
			for err == nil {
				_, err = out.Recv()
			}
			if !errors.Is(err, io.EOF) {
				s.Error(err)
			}
		},
		"prepared": func(_ *house, s *session) {
			if _, err := s.table.PrepareDataQuery(s.with(s.ctx), &Ydb_Table.PrepareDataQueryRequest{SessionId: s.id, YqlText: set}); err != nil {
				s.Fatal(err)
			}
		},
		"executed by its id": func(h *house, s *session) {
			h.server.texts.keep("id", set)
			execute(s, "id", "", 0)
		},
		"the same, long": func(h *house, s *session) {
			h.server.texts.keep("id", set)
			execute(s, "id", "", 1<<20)
		},
		"nobody knows": func(_ *house, s *session) {
			tx := s.must(success, "select", beginTx)
			execute(s, "of another text", tx, 0)
			s.must(success, "select", inTx(tx, true))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, nil)
			s := h.guest("a").session()
			call(h, s)
			if got := h.server.State().Virtual.Bound; got != 1 {
				t.Fatalf("%d bound; want 1", got)
			}
			s.drop()
			h.resting()
			h.eventually("deleted", func() string {
				h.mu.Lock()
				defer h.mu.Unlock()
				return strings.Repeat("x", 1-h.deletes)
			})
		})
	}
}

// Many clients over few sessions, of which some vanish: nobody sees what is another's, and all
// is clean in the end.
func TestManyOverFew(t *testing.T) {
	h := newHouse(t, func(_ *Config, p *pool.Config) { p.Max = 5 })
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			g := h.guest(fmt.Sprint(i))
			s := g.session()
			for range 30 {
				if r.IntN(10) == 0 {
					s.drop()
					s = g.session()
				}
				ctx, cancel := context.WithCancel(h.ctx)
				if r.IntN(10) == 0 {
					ctx, cancel = context.WithTimeout(h.ctx, time.Duration(r.IntN(5))*time.Millisecond)
				}
				switch r.IntN(5) {
				case 0:
					s.run(ctx, s.id, "select", nil)
				case 1:
					s.run(ctx, s.id, "select", commitTx)
				case 2:
					s.run(ctx, "", "select", nil)
				case 3:
					_, tx, _ := s.run(ctx, s.id, "select", beginTx)
					s.run(ctx, s.id, "fail "+[]string{"SUCCESS", "ABORTED", "PRECONDITION_FAILED", "BAD_SESSION"}[r.IntN(4)], inTx(tx, false))
					s.run(ctx, s.id, "select", inTx(tx, true))
				case 4:
					_, tx, _ := s.run(ctx, s.id, "select", beginTx)
					s.run(ctx, s.id, "select", inTx(tx, true))
				}
				cancel()
			}
			s.drop()
		})
	}
	wg.Wait()
	h.resting()
	if st := h.server.State().Virtual; st.Bound != 0 {
		t.Errorf("%+v", st)
	}
}

func TestDrainLetsSessionsGo(t *testing.T) {
	for _, mode := range []string{ModeTransaction, ModeSession} {
		t.Run(mode, func(t *testing.T) { drainLetsSessionsGo(t, mode) })
	}
}

func drainLetsSessionsGo(t *testing.T, mode string) {
	h := newHouse(t, func(c *Config, _ *pool.Config) { c.Mode = mode })
	a, b := h.guest("a").session(), h.guest("b").session()
	tx := b.must(success, "select", beginTx)
	var wg sync.WaitGroup
	wg.Go(h.server.GracefulStop)
	if state, err := a.stream.Recv(); err != nil || state.GetStatus() != success {
		t.Errorf("told %v, %v", state, err)
	}
	b.must(success, "select", inTx(tx, true))
	if _, err := b.stream.Recv(); err != nil {
		t.Error(err)
	}
	a.conn.Close()
	b.conn.Close()
	wg.Wait()
}

// told waits until the server has told a client to go.
func (g *guest) told() {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.ctx, 20*time.Second)
	defer cancel()
	if !g.conn.WaitForStateChange(ctx, connectivity.Ready) {
		g.Fatalf("client %s hears no GOAWAY", g.name)
	}
}

// stops begins a stop and waits until two idle clients, one of each shard, have been told to go;
// clients then are those that have not. stopped waits for the end of the stop.
func (h *house) stops(clients int) (stopped func()) {
	h.Helper()
	idle := []*session{h.guest("idle 1").session(), h.guest("idle 2").session()} // dealt to the shards in turn
	var wg sync.WaitGroup
	wg.Go(h.server.GracefulStop)
	h.Cleanup(h.server.Stop)
	for _, s := range idle {
		if state, err := s.stream.Recv(); err != nil || state.GetStatus() != success {
			h.Errorf("told %v, %v", state, err)
		}
		s.told()
		s.conn.Close()
	}
	n := 0
	for _, c := range stateOf(h.server).Connections {
		if c.Peer == "client" && !c.Draining {
			n++
		}
	}
	if n != clients {
		h.Errorf("%d clients are not told to go; want %d", n, clients)
	}
	return wg.Wait
}

// A stop leaves a client's connection open to new calls for as long as a transaction needs it that
// was open, or was about to be, and tells all others at once.
func TestStopLetsTransactionsEnd(t *testing.T) {
	for name, begin := range map[string]func(h *house) (needed []*guest, stopped func(), step func(commit bool)){
		"attached": func(h *house) ([]*guest, func(), func(bool)) {
			s := h.guest("a").session()
			tx := s.must(success, "select", beginTx)
			return []*guest{s.guest}, h.stops(1), func(commit bool) { s.must(success, "select", inTx(tx, commit)) }
		},
		"about to begin": func(h *house) ([]*guest, func(), func(bool)) {
			s, tx := h.guest("a").session(), make(chan string)
			go func() {
				_, id, _ := s.run(h.ctx, s.id, "wait", beginTx)
				tx <- id
			}()
			<-h.hung
			stopped := h.stops(1)
			close(h.proceed)
			id := <-tx
			return []*guest{s.guest}, stopped, func(commit bool) { s.must(success, "select", inTx(id, commit)) }
		},
		"on another connection than its session": func(h *house) ([]*guest, func(), func(bool)) {
			s := h.guest("a").session()
			other := &session{guest: h.guest("a"), id: s.id}
			tx := other.must(success, "select", beginTx)
			return []*guest{s.guest, other.guest}, h.stops(2), func(commit bool) { other.must(success, "select", inTx(tx, commit)) }
		},
		"not attached": func(h *house) ([]*guest, func(), func(bool)) {
			g := h.guest("a")
			created, err := g.table.CreateSession(g.with(h.ctx), &Ydb_Table.CreateSessionRequest{})
			session := new(Ydb_Table.CreateSessionResult)
			if err != nil || created.GetOperation().GetResult().UnmarshalTo(session) != nil {
				h.Fatal(created, err)
			}
			run := func(control *Ydb_Table.TransactionControl) string {
				r, err := g.table.ExecuteDataQuery(g.with(h.ctx), &Ydb_Table.ExecuteDataQueryRequest{SessionId: session.GetSessionId(), TxControl: control,
					Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "select"}}})
				result := new(Ydb_Table.ExecuteQueryResult)
				if err != nil || r.GetOperation().GetStatus() != success || r.GetOperation().GetResult().UnmarshalTo(result) != nil {
					h.Fatal(r, err)
				}
				return result.GetTxMeta().GetId()
			}
			tx := run(&Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{}}})
			return []*guest{g}, h.stops(1), func(commit bool) {
				run(&Ydb_Table.TransactionControl{CommitTx: commit, TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}})
			}
		},
	} {
		for _, shards := range []int{1, 2} {
			for _, mode := range []string{ModeTransaction, ModeSession} {
				t.Run(fmt.Sprintf("%s/%d shards/%s", name, shards, mode), func(t *testing.T) {
					h := newHouseOn(t, shards, nil, func(c *Config, _ *pool.Config) { c.Mode = mode })
					needed, stopped, step := begin(h)
					step(false)
					step(false)
					step(true)
					if got := stateOf(h.server).Accepted; got != uint64(len(needed))+2 {
						t.Errorf("%d connections; want none made after the stop began", got)
					}
					for _, g := range needed {
						g.told()
					}
					stopped()
					open := h.openTx()
					h.mu.Lock()
					defer h.mu.Unlock()
					if h.rolledBack != 0 || open != 0 {
						t.Errorf("%d transactions rolled back, %d open", h.rolledBack, open)
					}
				})
			}
		}
	}
}

// A transaction that does not end keeps its client's connection until Stop, and no other.
func TestStopCutsTransactionThatStays(t *testing.T) {
	h := newHouse(t, nil)
	s := h.guest("a").session()
	s.must(success, "select", beginTx)
	stopped := h.stops(1)
	h.server.Stop()
	stopped()
	if _, err := s.stream.Recv(); err == nil {
		t.Error("the session is still attached")
	}
	h.eventually("rolled back", func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.rolledBack != 1 {
			return fmt.Sprint(h.rolledBack)
		}
		return ""
	})
}

// A transaction that begins after the stop keeps no connection: a client that is never idle goes, too.
func TestLaterTransactionsKeepNoConnection(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	first := g.session()
	tx := first.must(success, "select", beginTx)
	stopped := h.stops(1)
	late := g.session()
	late.must(success, "select", beginTx)
	first.must(success, "select", inTx(tx, true))
	g.told()
	g.conn.Close()
	stopped()
}

// A session that is attached, or whose last call fails, after the stop began does not hold up its client's
// connection: the client can send nothing more for it over that.
func TestLaterSessionsKeepNoConnection(t *testing.T) {
	for name, last := range map[string]func(first, late *session, tx string){
		"attached": func(first, _ *session, tx string) { first.must(success, "select", inTx(tx, true)) },
		"with a transaction": func(first, late *session, tx string) {
			late.must(success, "select", beginTx)
			first.must(success, "select", inTx(tx, true))
		},
		"after a failure": func(first, late *session, tx string) {
			late.drop()
			first.must(Ydb.StatusIds_PRECONDITION_FAILED, "fail PRECONDITION_FAILED", inTx(tx, false))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, nil)
			g := h.guest("a")
			first := g.session()
			tx := first.must(success, "select", beginTx)
			stopped := h.stops(1)
			last(first, g.session(), tx)
			g.told()
			var over atomic.Bool
			go func() { stopped(); over.Store(true) }()
			h.eventually("the stop ends", func() string {
				if over.Load() {
					return ""
				}
				return fmt.Sprintf("%+v", h.server.State())
			})
			h.eventually("rolled back", func() string { return strings.Repeat("x", h.openTx()) })
		})
	}
}

// Each octet is a digit in one spelling, wherever it stands, or the id is none.
// A message whose session's id comes after other fields is not sent on with two.
func TestSessionOutOfOrder(t *testing.T) {
	h := newHouse(t, nil)
	g := h.guest("a")
	s := g.session()
	text := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), make([]byte, 100_000))
	b := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), text)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), s.id)
	for range 8 { // at first while the nodes are being connected to
		stream, err := g.conn.NewStream(g.with(h.ctx), anyStream, protocol.QueryService+"ExecuteQuery", grpc.ForceCodecV2(passing))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(b)}}); err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		answer, part := new(message), new(Ydb_Query.ExecuteQueryResponsePart)
		if err := stream.RecvMsg(answer); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(answer.data.Materialize(), part); err != nil || part.GetStatus() != Ydb.StatusIds_BAD_REQUEST {
			t.Errorf("%v, %v", part, err)
		}
		answer.data.Free()
	}
	h.resting()
	s.must(success, "select", nil)
}

// When its connection is too old, a session ends with its stream as soon as nothing is open on it. One without a
// stream keeps its transaction although the connection ends: the client comes again over another one.
func TestSessionsOfOldConnections(t *testing.T) {
	h := newHouseBy(t, DataPath{Shards: 1, MaxAge: 2 * time.Second}, nil, nil, nil)
	idle, busy, g := h.guest("idle").session(), h.guest("busy").session(), h.guest("without a stream")
	created, err := g.table.CreateSession(g.with(h.ctx), &Ydb_Table.CreateSessionRequest{})
	session := new(Ydb_Table.CreateSessionResult)
	if err != nil || created.GetOperation().GetResult().UnmarshalTo(session) != nil {
		t.Fatal(created, err)
	}
	run := func(control *Ydb_Table.TransactionControl) string {
		r, err := g.table.ExecuteDataQuery(g.with(h.ctx), &Ydb_Table.ExecuteDataQueryRequest{SessionId: session.GetSessionId(), TxControl: control,
			Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "select"}}})
		result := new(Ydb_Table.ExecuteQueryResult)
		if err != nil || r.GetOperation().GetStatus() != success || r.GetOperation().GetResult().UnmarshalTo(result) != nil {
			t.Fatal(r, err)
		}
		return result.GetTxMeta().GetId()
	}
	ofBusy := busy.must(success, "select", beginTx)
	tx := run(&Ydb_Table.TransactionControl{TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{}}})
	g.told()
	if state, err := idle.stream.Recv(); err != nil || state.GetStatus() != success {
		t.Errorf("told %v, %v", state, err)
	}
	if _, err := idle.stream.Recv(); err != io.EOF {
		t.Errorf("the stream of the idle one ends with %v", err)
	}
	idle.told()
	busy.told()
	h.eventually("the clients' old connections are over", func() string {
		if n := h.server.shards[0].shard.Clients(); n > 1 {
			return fmt.Sprintf("%d connections", n)
		}
		return ""
	})
	run(&Ydb_Table.TransactionControl{CommitTx: true, TxSelector: &Ydb_Table.TransactionControl_TxId{TxId: tx}})
	busy.must(success, "select", inTx(ofBusy, true))
	if state, err := busy.stream.Recv(); err != nil || state.GetStatus() != success {
		t.Errorf("told %v, %v", state, err)
	}
	h.resting()
}
