package rules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Operation_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// part is one message of the answer to a statement.
type part = Ydb_Query.ExecuteQueryResponsePart

// text is the request of a statement in a session, "" for none.
func text(session, sql string, tx *Ydb_Query.TransactionControl) *Ydb_Query.ExecuteQueryRequest {
	return &Ydb_Query.ExecuteQueryRequest{
		SessionId: session, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, TxControl: tx,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: sql},
		},
	}
}

// execute runs a statement to its end: the first part that is not SUCCESS is the answer.
func (n *node) execute(ctx context.Context, r *Ydb_Query.ExecuteQueryRequest, opts ...grpc.CallOption) ([]*part, Seen) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := n.query.ExecuteQuery(ctx, r, opts...)
	if err != nil {
		return nil, seen(0, nil, err)
	}
	var parts []*part
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if len(parts) == 0 {
				return nil, Seen{Answer: "no part"}
			}
			return parts, Seen{Answer: Ydb.StatusIds_SUCCESS.String()}
		}
		if err != nil || p.GetStatus() != Ydb.StatusIds_SUCCESS {
			return parts, seen(p.GetStatus(), p.GetIssues(), err)
		}
		parts = append(parts, p)
	}
}

// run runs a statement without a session.
func (n *node) run(ctx context.Context, sql string) (Seen, error) {
	_, got := n.execute(ctx, text("", sql, nil))
	return got, nil
}

func begin(commit bool) *Ydb_Query.TransactionControl {
	return &Ydb_Query.TransactionControl{CommitTx: commit, TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: serializable()}}
}

func inTx(id string, commit bool) *Ydb_Query.TransactionControl {
	return &Ydb_Query.TransactionControl{CommitTx: commit, TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: id}}
}

func serializable() *Ydb_Query.TransactionSettings {
	return &Ydb_Query.TransactionSettings{
		TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}},
	}
}

// create makes a query session and does not attach to it.
func (n *node) create(ctx context.Context) (string, error) {
	answer, err := n.query.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
	if err := fine(plain(answer, err)); err != nil {
		return "", fmt.Errorf("CreateSession at %s: %w", n.address, err)
	}
	return answer.GetSessionId(), nil
}

// createTable makes a session of the table service.
func (n *node) createTable(ctx context.Context) (string, error) {
	answer, err := n.table.CreateSession(ctx, &Ydb_Table.CreateSessionRequest{})
	result := &Ydb_Table.CreateSessionResult{}
	if err := unpack(answer.GetOperation(), err, result); err != nil {
		return "", fmt.Errorf("CreateSession of the table service at %s: %w", n.address, err)
	}
	return result.GetSessionId(), nil
}

// attach opens the attach stream of a session and reads its first state. The stream lasts
// until cancel is called.
func (n *node) attach(ctx context.Context, id string) (*session, Seen) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := n.query.AttachSession(ctx, &Ydb_Query.AttachSessionRequest{SessionId: id})
	s := &session{node: n, id: id, stream: stream, cancel: cancel}
	if err != nil {
		return s, seen(0, nil, err)
	}
	state, err := stream.Recv()
	return s, seen(state.GetStatus(), state.GetIssues(), err)
}

// open makes a session and attaches to it.
func (n *node) open(ctx context.Context) (*session, error) {
	id, err := n.create(ctx)
	if err != nil {
		return nil, err
	}
	s, got := n.attach(ctx, id)
	if err := fine(got, nil); err != nil {
		s.close()
		return nil, fmt.Errorf("AttachSession at %s: %w", n.address, err)
	}
	return s, nil
}

// delete asks for the end of a session.
func (n *node) delete(ctx context.Context, id string) (Seen, error) {
	answer, err := n.query.DeleteSession(ctx, &Ydb_Query.DeleteSessionRequest{SessionId: id})
	return plain(answer, err)
}

// close ends the session, also after the rule's own time.
func (s *session) close() {
	s.closed.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, _ = s.delete(ctx, s.id) // what the rule is about was seen before
		s.cancel()
	})
}

// do runs a statement in the session.
func (s *session) do(ctx context.Context, sql string, tx *Ydb_Query.TransactionControl) ([]*part, Seen) {
	return s.execute(ctx, text(s.id, sql, tx))
}

// begin opens a transaction.
func (s *session) begin(ctx context.Context, settings *Ydb_Query.TransactionSettings) (string, Seen) {
	answer, err := s.query.BeginTransaction(ctx, &Ydb_Query.BeginTransactionRequest{SessionId: s.id, TxSettings: settings})
	return answer.GetTxMeta().GetId(), seen(answer.GetStatus(), answer.GetIssues(), err)
}

// rollback rolls a transaction back.
func (s *session) rollback(ctx context.Context, tx string) Seen {
	answer, err := s.query.RollbackTransaction(ctx, &Ydb_Query.RollbackTransactionRequest{SessionId: s.id, TxId: tx})
	got, _ := plain(answer, err)
	return got
}

// inSession asks with a session of the first address.
func inSession(ask func(ctx context.Context, c *Cluster, s *session) (Seen, error)) func(context.Context, *Cluster) (Seen, error) {
	return func(ctx context.Context, c *Cluster) (Seen, error) {
		s, err := c.first.open(ctx)
		if err != nil {
			return Seen{}, err
		}
		defer s.close()
		return ask(ctx, c, s)
	}
}

// inTransaction asks with an open transaction.
func inTransaction(
	ask func(ctx context.Context, c *Cluster, s *session, tx string) (Seen, error),
) func(context.Context, *Cluster) (Seen, error) {
	return inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
		tx, got := s.begin(ctx, serializable())
		if err := fine(got, nil); err != nil {
			return Seen{}, fmt.Errorf("BeginTransaction: %w", err)
		}
		return ask(ctx, c, s, tx)
	})
}

// longStatement has an answer of 2 GB and more, so that it runs for as long as its reader does not read.
func (c *Cluster) longStatement() string {
	return "SELECT a.pad AS pad, a.id AS id, b.n AS n " + c.pairs()
}

// pairs joins every row with every other one.
func (c *Cluster) pairs() string {
	return "FROM `" + c.path() + "` AS a JOIN `" + c.path() + "` AS b ON a.one = b.one"
}

// running is a statement that has begun to answer, and of which nothing more is read.
type running struct {
	stream Ydb_Query_V1.QueryService_ExecuteQueryClient
	cancel context.CancelFunc
}

func (s *session) start(ctx context.Context, sql string) (*running, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := s.query.ExecuteQuery(ctx, text(s.id, sql, nil))
	if err == nil {
		var first *part
		first, err = stream.Recv()
		err = fine(plain(first, err))
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("a long statement: %w", err)
	}
	return &running{stream, cancel}, nil
}

// end reads what is left.
func (r *running) end() Seen { return r.goesOn(math.MaxInt) }

// beyond is more than a server has ready of an answer that is not read, in bytes.
const beyond = 16 << 20

// goesOn reads the answer until so many bytes came, or to its end.
func (r *running) goesOn(bytes int) Seen {
	for bytes > 0 {
		p, err := r.stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || p.GetStatus() != Ydb.StatusIds_SUCCESS {
			return seen(p.GetStatus(), p.GetIssues(), err)
		}
		bytes -= proto.Size(p)
	}
	return Seen{Answer: success}
}

// whileBusy asks while a statement runs in the session.
func whileBusy(
	ask func(ctx context.Context, c *Cluster, s *session, r *running) (Seen, error),
) func(context.Context, *Cluster) (Seen, error) {
	return inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
		r, err := s.start(ctx, c.longStatement())
		if err != nil {
			return Seen{}, err
		}
		defer r.cancel()
		return ask(ctx, c, s, r)
	})
}

// data is a statement of the table service.
func (n *node) data(ctx context.Context, session, sql string, timeout time.Duration) (*Ydb_Table.ExecuteQueryResult, Seen) {
	r := &Ydb_Table.ExecuteDataQueryRequest{
		SessionId: session, Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: sql}},
		TxControl: &Ydb_Table.TransactionControl{CommitTx: true,
			TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{
				TxMode: &Ydb_Table.TransactionSettings_SerializableReadWrite{
					SerializableReadWrite: &Ydb_Table.SerializableModeSettings{},
				}}}},
	}
	if timeout > 0 {
		r.OperationParams = &Ydb_Operations.OperationParams{OperationTimeout: durationpb.New(timeout)}
	}
	answer, err := n.table.ExecuteDataQuery(ctx, r)
	got, _ := in(answer, err)
	result := &Ydb_Table.ExecuteQueryResult{}
	if answer.GetOperation().GetResult() != nil {
		if err := answer.GetOperation().GetResult().UnmarshalTo(result); err != nil {
			got = Seen{Answer: "a result of another type", Text: err.Error()}
		}
	}
	return result, got
}

// operation asks for an operation by its id.
func (c *Cluster) operation(ctx context.Context, id string) (*Ydb_Operations.GetOperationResponse, error) {
	return Ydb_Operation_V1.NewOperationServiceClient(c.first.conn).GetOperation(ctx, &Ydb_Operations.GetOperationRequest{Id: id})
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) }

// alive asks whether a session is there.
func (n *node) alive(ctx context.Context, id string) (*Ydb_Table.KeepAliveResult, Seen) {
	answer, err := n.table.KeepAlive(ctx, &Ydb_Table.KeepAliveRequest{SessionId: id})
	got, _ := in(answer, err)
	result := &Ydb_Table.KeepAliveResult{}
	if got.Answer == Ydb.StatusIds_SUCCESS.String() {
		if err := answer.GetOperation().GetResult().UnmarshalTo(result); err != nil {
			got = Seen{Answer: "a result of another type", Text: err.Error()}
		}
	}
	return result, got
}

var sessionID = regexp.MustCompile(`^ydb://session/3\?node_id=(\d+)&id=[A-Za-z0-9+/_%=-]+$`)

// nodeOf is the number of the node in a session id, "" for an id of another form.
func nodeOf(id string) string {
	if m := sessionID.FindStringSubmatch(id); m != nil {
		return m[1]
	}
	return ""
}

// other is a node of another number than that of the session.
func (c *Cluster) other(id string) (*node, error) {
	for _, n := range c.nodes {
		if fmt.Sprint(n.id) != nodeOf(id) {
			return n, nil
		}
	}
	return nil, cannotAsk("discovery lists one node, or all nodes at one address")
}
