package systemtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// owner is a client with one virtual session, and one row that is its own.
type owner struct {
	id      uint64
	client  Ydb_Query_V1.QueryServiceClient
	session string
	leave   context.CancelFunc
	n       uint64 // of its row, committed
}

func (o *owner) open(ctx context.Context) error {
	r, err := o.client.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
	if err != nil || r.GetStatus() != Ydb.StatusIds_SUCCESS {
		return fmt.Errorf("create: %v, %w", r.GetStatus(), err)
	}
	o.session = r.GetSessionId()
	ctx, o.leave = context.WithCancel(ctx)
	stream, err := o.client.AttachSession(ctx, &Ydb_Query.AttachSessionRequest{SessionId: o.session})
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

func uint64Value(n uint64) *Ydb.TypedValue {
	return &Ydb.TypedValue{Type: &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_UINT64}},
		Value: &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: n}}}
}

// run executes a statement; rows are those of all parts, tx what is open after it.
func (o *owner) run(
	ctx context.Context, sql string, control *Ydb_Query.TransactionControl, n uint64,
) (rows []*Ydb.Value, tx string, err error) {
	stream, err := o.client.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{
		SessionId: o.session, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, TxControl: control,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: sql},
		},
		Parameters: map[string]*Ydb.TypedValue{"$id": uint64Value(o.id), "$n": uint64Value(n)},
	})
	for err == nil {
		var part *Ydb_Query.ExecuteQueryResponsePart
		if part, err = stream.Recv(); err != nil {
			break
		}
		if part.GetStatus() != Ydb.StatusIds_SUCCESS {
			return nil, "", statusError{part.GetStatus(), fmt.Sprint(part.GetIssues())}
		}
		rows = append(rows, part.GetResultSet().GetRows()...)
		if part.TxMeta != nil {
			tx = part.GetTxMeta().GetId()
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return rows, tx, err
}

// statusError is an answer other than SUCCESS.
type statusError struct {
	status Ydb.StatusIds_StatusCode
	issues string
}

func (e statusError) Error() string { return e.status.String() + " " + e.issues }

const (
	readOwn  = "DECLARE $id AS Uint64; DECLARE $n AS Uint64; SELECT owner, n FROM owned WHERE id = $id AND $n = $n"
	writeOwn = "DECLARE $id AS Uint64; DECLARE $n AS Uint64; UPSERT INTO owned (id, owner, n) VALUES ($id, $id, $n)"
)

var serializable = &Ydb_Query.TransactionControl_BeginTx{BeginTx: &Ydb_Query.TransactionSettings{
	TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}}}}

// round reads the row in a transaction, which must be as the owner left it, and writes it; end
// says how that ends.
func (o *owner) round(ctx context.Context, end int) error {
	rows, tx, err := o.run(ctx, readOwn, &Ydb_Query.TransactionControl{TxSelector: serializable}, o.n)
	if err != nil {
		return err
	}
	if len(rows) != min(1, int(o.n)) {
		return fmt.Errorf("%w: client %d finds %d rows after %d writes", errBooks, o.id, len(rows), o.n)
	}
	if len(rows) == 1 && (rows[0].GetItems()[0].GetUint64Value() != o.id || rows[0].GetItems()[1].GetUint64Value() != o.n) {
		return fmt.Errorf("%w: client %d finds %v after %d writes", errBooks, o.id, rows[0], o.n)
	}
	commit := end == 0
	_, _, err = o.run(
		ctx, writeOwn,
		&Ydb_Query.TransactionControl{CommitTx: commit, TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: tx}}, o.n+1,
	)
	switch {
	case err != nil:
		return err
	case commit:
		o.n++
		return nil
	case end == 1:
		r, err := o.client.RollbackTransaction(ctx, &Ydb_Query.RollbackTransactionRequest{SessionId: o.session, TxId: tx})
		if err == nil && r.GetStatus() != Ydb.StatusIds_SUCCESS {
			err = statusError{r.GetStatus(), fmt.Sprint(r.GetIssues())}
		}
		return err
	default: // the client forgets its session
		o.leave()
		return o.open(context.WithoutCancel(ctx))
	}
}

var errBooks = errors.New("the books are wrong")

// watchSessions counts the attached sessions of the cluster until the greatest number is asked for.
func (c *ydb) watchSessions(ctx context.Context, t *testing.T) (most func() int) {
	watched, watching := make(chan int), make(chan struct{})
	go func() {
		// The nodes are asked one after the other: what is there twice was there in between.
		most, before := 0, map[string]bool{}
		for {
			select {
			case <-watching:
				watched <- most
				return
			case <-time.After(5 * time.Millisecond):
			}
			sessions, err := c.Sessions(ctx)
			if err != nil {
				t.Error(err)
			}
			now, both := map[string]bool{}, 0
			for _, session := range sessions {
				now[session.ID] = isAttached(session)
				if before[session.ID] {
					both++
				}
			}
			most, before = max(most, both), now
		}
	}()
	return func() int { close(watching); return <-watched }
}

// rounds makes transactions until so many are done, and counts in again those that the cluster aborted or refused.
func (o *owner) rounds(ctx context.Context, rounds int, again *atomic.Int64) error {
	r := rand.New(rand.NewPCG(1, o.id))
	for done := 0; done < rounds; {
		err := o.round(ctx, r.IntN(3))
		busy := statusError{}
		switch {
		case err == nil:
			done++
		case errors.As(err, &busy) && (busy.status == Ydb.StatusIds_ABORTED || busy.status == Ydb.StatusIds_OVERLOADED):
			again.Add(1)
		default:
			return err
		}
	}
	return nil
}

// A thousand sessions of clients over twenty of the cluster: no client sees another's work, none
// is left out, the cluster never has more than twenty, and all is clean in the end.
func TestManySessionsOverFew(t *testing.T) {
	const clients, perConn, rounds, most = 1000, 50, 3, 20
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "wire.mode=transaction", fmt.Sprint("pool.max=", most), "pool.queue=2000")
	must(t, openSDK(t, s.sdk()), "CREATE TABLE owned (id Uint64, owner Uint64, n Uint64, PRIMARY KEY (id))")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watched := c.watchSessions(ctx, t)
	var work sync.WaitGroup
	var owners [clients]owner
	var again atomic.Int64
	var conn *grpc.ClientConn
	for i := range owners {
		if i%perConn == 0 {
			var err error
			if conn, err = grpc.NewClient("passthrough:///"+s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func(c *grpc.ClientConn) func() { return func() { c.Close() } }(conn))
		}
		o := &owners[i]
		*o = owner{id: uint64(i + 1), client: Ydb_Query_V1.NewQueryServiceClient(conn)}
		if err := o.open(ctx); err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			if err := o.rounds(ctx, rounds, &again); err != nil {
				t.Errorf("client %d: %v", o.id, err)
			}
		})
	}
	work.Wait()
	if n := watched(); n > most {
		t.Errorf("the cluster had %d sessions; at most %d are allowed", n, most)
	}
	t.Logf("%d transactions were aborted or refused and run again", again.Load())
	for i := range owners {
		o := &owners[i]
		rows, _, err := o.run(ctx, readOwn, nil, o.n)
		if err != nil || len(rows) != min(1, int(o.n)) || len(rows) == 1 && rows[0].GetItems()[1].GetUint64Value() != o.n {
			t.Fatalf("client %d has %v, %v after %d writes", o.id, rows, err, o.n)
		}
		o.leave()
	}
	c.clean(t, nil)
	if n := c.sum(t, "forwarded"); n != 0 {
		t.Errorf("%d calls did not go to the owner of their session", n)
	}
}
