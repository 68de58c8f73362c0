package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// newMerged runs three nodes behind one address until the test ends.
func newMerged(t *testing.T) (c *devcluster.Cluster, address string) {
	t.Helper()
	config := devcluster.Default()
	config.Endpoints, config.Locations = devcluster.EndpointsMerged, []string{"a", "b"}
	c, err := devcluster.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(c.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	return c, u.Host
}

// sdkSession is a session as an SDK has it, attached until the test ends.
type sdkSession struct {
	*sidecar
	Ydb_Query_V1.QueryServiceClient
	id string
}

func (s *sidecar) sdkSession(ctx context.Context) *sdkSession {
	s.Helper()
	q := Ydb_Query_V1.NewQueryServiceClient(s.conn)
	var made *Ydb_Query.CreateSessionResponse
	s.eventually("a session is made", func() bool { // the data path hears of a new node a moment later than the rest
		var err error
		made, err = q.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
		return err == nil && made.GetStatus() == Ydb.StatusIds_SUCCESS
	})
	life, err := q.AttachSession(ctx, &Ydb_Query.AttachSessionRequest{SessionId: made.GetSessionId()})
	if err == nil {
		_, err = life.Recv()
	}
	if err != nil {
		s.Fatalf("AttachSession: %v", err)
	}
	return &sdkSession{s, q, made.GetSessionId()}
}

func (q *sdkSession) begin(ctx context.Context) (tx string) {
	q.Helper()
	begun, err := q.BeginTransaction(ctx, &Ydb_Query.BeginTransactionRequest{SessionId: q.id, TxSettings: &Ydb_Query.TransactionSettings{
		TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}},
	}})
	if err != nil || begun.GetStatus() != Ydb.StatusIds_SUCCESS {
		q.Fatalf("BeginTransaction: %v, %v", begun, err)
	}
	return begun.GetTxMeta().GetId()
}

func (q *sdkSession) execute(ctx context.Context, tx, sql string) {
	q.Helper()
	stream, err := q.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{
		SessionId: q.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		TxControl: &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: tx}},
		Query:     &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: sql}},
	})
	if err != nil {
		q.Fatal(err)
	}
	for { // to its end: the session is busy until then
		part, err := stream.Recv()
		if err == io.EOF {
			return
		}
		if err != nil || part.GetStatus() != Ydb.StatusIds_SUCCESS {
			q.Fatalf("%s: %v, %v", sql, part, err)
		}
	}
}

func (q *sdkSession) commit(ctx context.Context, tx string) {
	q.Helper()
	done, err := q.CommitTransaction(ctx, &Ydb_Query.CommitTransactionRequest{SessionId: q.id, TxId: tx})
	if err != nil || done.GetStatus() != Ydb.StatusIds_SUCCESS {
		q.Fatalf("CommitTransaction: %v, %v", done, err)
	}
}

// With all nodes behind one address, the id that discovery lists changes with each answer, and
// sessions name any node. No session is replaced for that, and open transactions go on.
func TestOneAddressForAllNodes(t *testing.T) {
	for _, source := range []string{"ydb", "static"} {
		for _, mode := range []string{"passthrough", "session", "transaction"} {
			t.Run(source+"_"+mode, func(t *testing.T) { testOneAddress(t, source, mode) })
		}
	}
}

// testOneAddress has a cluster listed at one address, which goes by other ids in
// each answer. Long: transactions stay open from the first step to the last.
func testOneAddress(t *testing.T, source, mode string) {
	c, address := newMerged(t)
	settings := []string{
		"wire.mode=" + mode, "wire.auth=own", "pool.min=6", "pool.max=6", "tx.idle=5m", "tx.max=10m", "health.silence=1m",
		"discovery.interval=20ms", "discovery.min_pause=1ms", "discovery.mode=" + source,
	}
	if source == "static" {
		settings = append(settings, "discovery.nodes=1="+address)
	}
	s := start(t, c.Endpoint(), settings...)
	s.eventually("started", func() bool { status, _ := s.get("/startupz?deep=1"); return status == http.StatusOK })
	s.eventually("warm", func() bool { return len(c.Sessions()) >= 6 })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err := s.query("CREATE TABLE t (id Uint64 NOT NULL, PRIMARY KEY (id))"); err != nil {
		t.Fatal(err)
	}

	begun, err := s.client.Begin(ctx, &sidecarv1.BeginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	seq := uint64(0)
	plain := func(id int) {
		seq++
		if _, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{
			Sql: fmt.Sprintf("UPSERT INTO t (id) VALUES (%dul)", id), Tx: &sidecarv1.TxSelector{Id: begun.Tx.Id, Seq: seq},
		}); err != nil {
			t.Fatalf("statement %d of a transaction: %v", seq, err)
		}
	}
	var sdks [3]*sdkSession
	var txs [3]string
	for k := range sdks {
		sdks[k] = s.sdkSession(ctx)
		txs[k] = sdks[k].begin(ctx)
	}
	had, want := map[string]bool{}, 6
	if mode == "passthrough" {
		want += len(sdks) // sessions of SDKs are none of the pool then
	}
	s.eventually("all sessions are there", func() bool {
		clear(had)
		for _, o := range c.Sessions() {
			if o.Attached {
				had[o.ID] = true
			}
		}
		return len(had) == want
	})

	ids := map[cluster.NodeID]bool{}
	polls := short.Of(30, 10)
	for poll := range polls {
		last := s.core.discovery.State().Answered
		s.eventually("another answer", func() bool { return s.core.discovery.State().Answered.After(last) })
		for _, n := range s.core.router.View().Nodes {
			ids[n.ID] = true
		}
		plain(poll)
		for k := range sdks {
			sdks[k].execute(ctx, txs[k], fmt.Sprintf("UPSERT INTO t (id) VALUES (%dul)", (k+1)*1000+poll))
		}
		if _, err := s.query("SELECT 1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.client.Commit(ctx, &sidecarv1.CommitRequest{Id: begun.Tx.Id}); err != nil {
		t.Fatalf("commit: %v", err)
	}
	for k := range sdks {
		sdks[k].commit(ctx, txs[k])
	}
	reply, err := s.query("SELECT COUNT(*) AS n FROM t")
	if err != nil {
		t.Fatal(err)
	}
	if got := reply.Rows[0].Values[0].GetUint64Value(); got != uint64(4*polls) {
		t.Errorf("%d rows; want %d", got, 4*polls)
	}
	if len(ids) != 1 {
		t.Errorf("the address went by the ids %v; want one", ids)
	}
	for _, o := range c.Sessions() {
		delete(had, o.ID)
	}
	if len(had) != 0 {
		t.Errorf("%d sessions were replaced: %v", len(had), had)
	}
}
