package devcluster

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test; nothing takes that long.
const patience = time.Minute

// startCluster runs a cluster for the length of the test.
func startCluster(t testing.TB, change func(*Config)) *Cluster {
	t.Helper()
	config := Default()
	config.Control = "127.0.0.1:0"
	if change != nil {
		change(&config)
	}
	c, err := Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// client speaks to one node without any SDK.
type client struct {
	t testing.TB
	*grpc.ClientConn
	query     Ydb_Query_V1.QueryServiceClient
	table     Ydb_Table_V1.TableServiceClient
	discovery Ydb_Discovery_V1.DiscoveryServiceClient
}

func dial(t testing.TB, address string) *client {
	t.Helper()
	const window = 64 << 10 // as small as it goes: back-pressure comes early
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t, conn, Ydb_Query_V1.NewQueryServiceClient(conn), Ydb_Table_V1.NewTableServiceClient(conn),
		Ydb_Discovery_V1.NewDiscoveryServiceClient(conn)}
}

// attached is a query session of this client's node with its attach stream.
type attached struct {
	c      *client
	id     string
	states Ydb_Query_V1.QueryService_AttachSessionClient
	detach context.CancelFunc
}

func (c *client) createSession() *Ydb_Query.CreateSessionResponse {
	c.t.Helper()
	r, err := c.query.CreateSession(testContext(c.t), &Ydb_Query.CreateSessionRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *client) attach(id string) *attached {
	c.t.Helper()
	ctx, cancel := context.WithCancel(testContext(c.t))
	states, err := c.query.AttachSession(ctx, &Ydb_Query.AttachSessionRequest{SessionId: id})
	if err != nil {
		c.t.Fatal(err)
	}
	return &attached{c, id, states, cancel}
}

// open creates and attaches a session.
func (c *client) open() *attached {
	c.t.Helper()
	a := c.attach(c.createSession().GetSessionId())
	if s := a.next(); s.GetStatus() != Ydb.StatusIds_SUCCESS {
		c.t.Fatalf("first state %v", s)
	}
	return a
}

// next is the next state of the session; nil after an orderly end.
func (a *attached) next() *Ydb_Query.SessionState {
	a.c.t.Helper()
	s, err := a.states.Recv()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		a.c.t.Fatalf("attach stream: %v", err)
	}
	return s
}

// ended waits for the end of the stream after a last SUCCESS.
func (a *attached) ended() {
	a.c.t.Helper()
	if s := a.next(); s.GetStatus() != Ydb.StatusIds_SUCCESS || s.GetSessionHint() != nil {
		a.c.t.Fatalf("state %v; want a last SUCCESS", s)
	}
	if s := a.next(); s != nil {
		a.c.t.Fatalf("state %v; want the end of the stream", s)
	}
}

// execution is what came of an ExecuteQuery.
type execution struct {
	parts  []*Ydb_Query.ExecuteQueryResponsePart
	status Ydb.StatusIds_StatusCode // of the last part
	err    error                    // gRPC
}

func (c *client) execute(r *Ydb_Query.ExecuteQueryRequest) execution {
	c.t.Helper()
	if r.ExecMode == Ydb_Query.ExecMode_EXEC_MODE_UNSPECIFIED {
		r.ExecMode = Ydb_Query.ExecMode_EXEC_MODE_EXECUTE
	}
	stream, err := c.query.ExecuteQuery(testContext(c.t), r)
	if err != nil {
		return execution{err: err}
	}
	var out execution
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			out.err = err
			return out
		}
		out.parts = append(out.parts, part)
		out.status = part.GetStatus()
	}
}

func text(sql string) *Ydb_Query.ExecuteQueryRequest_QueryContent {
	return &Ydb_Query.ExecuteQueryRequest_QueryContent{
		QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: sql},
	}
}

// run executes a statement in the session.
func (a *attached) run(sql string, control *Ydb_Query.TransactionControl) execution {
	a.c.t.Helper()
	return a.c.execute(&Ydb_Query.ExecuteQueryRequest{SessionId: a.id, Query: text(sql), TxControl: control})
}

// must is run that has to end with the given status.
func (a *attached) must(want Ydb.StatusIds_StatusCode, sql string, control *Ydb_Query.TransactionControl) execution {
	a.c.t.Helper()
	e := a.run(sql, control)
	if e.err != nil || e.status != want {
		a.c.t.Fatalf("%s: %v %v; want %v", sql, e.err, e.parts, want)
	}
	return e
}

func (a *attached) begin(settings *Ydb_Query.TransactionSettings) *Ydb_Query.BeginTransactionResponse {
	a.c.t.Helper()
	r, err := a.c.query.BeginTransaction(testContext(a.c.t), &Ydb_Query.BeginTransactionRequest{SessionId: a.id, TxSettings: settings})
	if err != nil {
		a.c.t.Fatal(err)
	}
	return r
}

func (a *attached) commit(tx string) Ydb.StatusIds_StatusCode {
	a.c.t.Helper()
	r, err := a.c.query.CommitTransaction(testContext(a.c.t), &Ydb_Query.CommitTransactionRequest{SessionId: a.id, TxId: tx})
	if err != nil {
		a.c.t.Fatal(err)
	}
	return r.GetStatus()
}

func (a *attached) rollback(tx string) Ydb.StatusIds_StatusCode {
	a.c.t.Helper()
	r, err := a.c.query.RollbackTransaction(testContext(a.c.t), &Ydb_Query.RollbackTransactionRequest{SessionId: a.id, TxId: tx})
	if err != nil {
		a.c.t.Fatal(err)
	}
	return r.GetStatus()
}

func (c *client) delete(id string) Ydb.StatusIds_StatusCode {
	c.t.Helper()
	r, err := c.query.DeleteSession(testContext(c.t), &Ydb_Query.DeleteSessionRequest{SessionId: id})
	if err != nil {
		c.t.Fatal(err)
	}
	return r.GetStatus()
}

func (c *client) tableSession() string {
	c.t.Helper()
	r, err := c.table.CreateSession(testContext(c.t), &Ydb_Table.CreateSessionRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	return unpack[*Ydb_Table.CreateSessionResult](c.t, r.GetOperation()).GetSessionId()
}

func (c *client) endpoints() []*Ydb_Discovery.EndpointInfo {
	c.t.Helper()
	r, err := c.discovery.ListEndpoints(testContext(c.t), &Ydb_Discovery.ListEndpointsRequest{Database: "/local"})
	if err != nil {
		c.t.Fatal(err)
	}
	return unpack[*Ydb_Discovery.ListEndpointsResult](c.t, r.GetOperation()).GetEndpoints()
}

func serializable() *Ydb_Query.TransactionSettings {
	return &Ydb_Query.TransactionSettings{
		TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}},
	}
}

func begin(settings *Ydb_Query.TransactionSettings, commit bool) *Ydb_Query.TransactionControl {
	return &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_BeginTx{BeginTx: settings}, CommitTx: commit}
}

func inside(tx string, commit bool) *Ydb_Query.TransactionControl {
	return &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: tx}, CommitTx: commit}
}

// unpack takes the result out of a successful operation.
func unpack[M proto.Message](t testing.TB, o *Ydb_Operations.Operation) M {
	t.Helper()
	if !o.GetReady() || o.GetStatus() != Ydb.StatusIds_SUCCESS {
		t.Fatalf("operation %v", o)
	}
	m, err := o.GetResult().UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	return m.(M)
}
