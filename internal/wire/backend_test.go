package wire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
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
	user    string // user that it was opened for; "": not looked at
	table   bool
	of      *backend
	foreign bool // no session of the pool's
}

func (s *server) ID() string { return s.id }

func (s *server) Forget() { s.gone = true }

func (s *server) Fail() { s.failed = true }

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
	mu        sync.Mutex
	sessions  map[string]*server
	next      int
	most      int // sessions at a time
	wrong     []string
	seen      metadata.MD
	tableUsed bool // the last ExecuteDataQuery came on a session of the table service
	hung      chan struct{}
	counts
	switches
	encodings encodings
}

// counts are what a backend was asked for.
type counts struct {
	deletes    int
	failed     int // of sessions closed: their status ended them
	rolledBack int // with their session
	asked      int // WhoAmI
}

// switches have a backend behave in another way.
type switches struct {
	dead     map[cluster.NodeID]bool
	forwards bool          // any node takes any session
	stuck    bool          // commits and rollbacks get no answer
	gate     chan struct{} // nil: answers to it do not wait
	births   chan struct{} // nil: pools of callers are made at once
	proceed  chan struct{} // ends "wait"
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
	s := &server{id: fmt.Sprintf("ydb://session/3?node_id=%d&id=s%d", node, b.next), node: node,
		open: map[string]string{}, retire: retire, of: b}
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
		return Ydb.StatusIds_SUCCESS, grpc.SetTrailer(ctx,
			metadata.Pairs("x-ydb-server-hints", "unheard-of", "x-ydb-server-hints", "another, session-close", "x-ydb-consumed-units", "7"))
	}
	return Ydb.StatusIds_SUCCESS, nil
}

// endLate sends the last part of an answer, of which the first had the transaction.
func (n *queryNode) endLate(s *server, tx, ends string, out Ydb_Query_V1.QueryService_ExecuteQueryServer) error {
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
		return n.endLate(s, tx, ends, out)
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

func (n *queryNode) BeginTransaction(
	ctx context.Context, r *Ydb_Query.BeginTransactionRequest,
) (*Ydb_Query.BeginTransactionResponse, error) {
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

func (n *queryNode) CommitTransaction(
	ctx context.Context, r *Ydb_Query.CommitTransactionRequest,
) (*Ydb_Query.CommitTransactionResponse, error) {
	return &Ydb_Query.CommitTransactionResponse{Status: n.end(ctx, r.GetSessionId(), r.GetTxId())}, nil
}

func (n *queryNode) RollbackTransaction(
	ctx context.Context, r *Ydb_Query.RollbackTransactionRequest,
) (*Ydb_Query.RollbackTransactionResponse, error) {
	return &Ydb_Query.RollbackTransactionResponse{Status: n.end(ctx, r.GetSessionId(), r.GetTxId())}, nil
}

func (t tableNode) ExecuteDataQuery(
	ctx context.Context, r *Ydb_Table.ExecuteDataQueryRequest,
) (*Ydb_Table.ExecuteDataQueryResponse, error) {
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
	return &Ydb_Table.ExecuteDataQueryResponse{
		Operation: operationOf(nil, st, &Ydb_Table.ExecuteQueryResult{TxMeta: &Ydb_Table.TransactionMeta{Id: tx}}),
	}, nil
}

func (t tableNode) CommitTransaction(
	ctx context.Context, r *Ydb_Table.CommitTransactionRequest,
) (*Ydb_Table.CommitTransactionResponse, error) {
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
	if id := r.GetSessionId(); protocol.HomeNode([]byte(id)) == virtual.NodeID {
		n.wrong = append(n.wrong, fmt.Sprintf("%T came with the virtual session %s", r, id))
	}
}
