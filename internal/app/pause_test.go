package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Scheme_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Scheme"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// pausable is a call that a pause holds.
type pausable struct {
	name string
	run  func(ctx context.Context, s *sidecar) error
}

// pausables are the calls of every API, those of SDKs on the session of that id last.
func pausables(session string) []pausable {
	post := func(path, body string) func(context.Context, *sidecar) error {
		return func(_ context.Context, s *sidecar) error {
			status, text := s.fetch(http.MethodPost, "http://"+s.at.HTTP+path, body)
			if status != http.StatusOK {
				return fmt.Errorf("%d %s", status, text)
			}
			return nil
		}
	}
	return []pausable{
		{"a statement over HTTP", post("/v1/query", `{"sql":"SELECT 1","timeout":"1m"}`)},
		{"a statement over gRPC", func(_ context.Context, s *sidecar) error { _, err := s.query("SELECT 1"); return err }},
		{"rows of a bulk upsert", post("/v1/bulk", `{"table":"paused","rows":[{"id":1}],"types":{"id":"Uint64"},"timeout":"1m"}`)},
		{"a stream of rows", func(ctx context.Context, s *sidecar) error {
			stream, err := sidecarv1.NewIngestClient(s.conn).Ingest(ctx)
			if err != nil {
				return err
			}
			open := &sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: "paused"}}}
			if err := stream.Send(open); err != nil {
				return err
			}
			row := &sidecarv1.Row{Values: []*sidecarv1.Value{{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: 7}}}}
			rows := &sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Rows{Rows: &sidecarv1.IngestRows{
				Columns: []string{"id"}, Rows: []*sidecarv1.Row{row}}}}
			if err := stream.Send(rows); err != nil {
				return err
			}
			if err := stream.CloseSend(); err != nil {
				return err
			}
			for err == nil {
				_, err = stream.Recv()
			}
			if err == io.EOF {
				return nil
			}
			return err
		}},
		{"a bulk upsert of an SDK", func(ctx context.Context, s *sidecar) error {
			out, err := Ydb_Table_V1.NewTableServiceClient(s.conn).BulkUpsert(s.sdk(ctx, "shop").ctx, &Ydb_Table.BulkUpsertRequest{
				Table: "/local/paused"}) // without rows: any node's answer will do
			return notSent(out.GetOperation(), err)
		}},
		{"a list of a directory", func(ctx context.Context, s *sidecar) error {
			out, err := Ydb_Scheme_V1.NewSchemeServiceClient(s.conn).ListDirectory(s.sdk(ctx, "shop").ctx,
				&Ydb_Scheme.ListDirectoryRequest{Path: "/local"})
			return notSent(out.GetOperation(), err)
		}},
		{"a statement of an SDK", func(ctx context.Context, s *sidecar) error { return s.sdk(ctx, "shop").run(session, "SELECT 1") }},
	}
}

// notSent is the error of an answer that no node gave.
func notSent(op *Ydb_Operations.Operation, err error) error {
	if s := op.GetStatus(); err == nil && (s == Ydb.StatusIds_OVERLOADED || s == Ydb.StatusIds_CANCELLED) {
		return fmt.Errorf("%v %v", s, op.GetIssues())
	}
	return err
}

// A pause holds the calls of every API in every mode, and lets them go on when it ends. What belongs to an open
// transaction goes on meanwhile, and health checks do.
func TestPauseHoldsEveryCall(t *testing.T) {
	for _, mode := range []string{"transaction", "session", "passthrough"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			s := start(t, c.Endpoint(), "wire.mode="+mode)
			s.knowsNodes()
			if _, err := s.query("CREATE TABLE paused (id Uint64, PRIMARY KEY (id))"); err != nil {
				t.Fatal(err)
			}
			shop := s.sdk(t.Context(), "shop")
			session, other := shop.session(), shop.session()
			shop.must(session)
			id := shop.begin(other)
			tx, err := s.client.Begin(t.Context(), &sidecarv1.BeginRequest{})
			if err != nil {
				t.Fatal(err)
			}

			if err := (pools{s.App}).Pause(true); err != nil {
				t.Fatal(err)
			}
			all := pausables(session)
			done := make(chan error, len(all))
			for _, one := range all {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					if err := one.run(ctx, s); err != nil {
						done <- fmt.Errorf("%s: %w", one.name, err)
						return
					}
					done <- nil
				}()
			}
			shop.finish(other, id)
			s.finish(tx.GetTx().GetId())
			if status, text := s.get("/readyz"); status != http.StatusOK {
				t.Errorf("not ready while paused: %s", text)
			}
			s.eventually("all wait", func() bool {
				st := s.wire.Stats()
				return s.api.State().OpenCalls == 4 && st.Held == len(all)-4 && s.views.QuietState().Quiet
			})
			if len(done) > 0 {
				t.Fatalf("a call went on while paused, or failed: %v", <-done)
			}
			s.allPaused()

			if err := (pools{s.App}).Pause(false); err != nil {
				t.Fatal(err)
			}
			for range all {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// allPaused: every call is listed as paused, except streams of rows, of which a batch waits.
func (s *sidecar) allPaused() {
	s.Helper()
	for _, call := range s.openCalls("").Calls {
		if call.Phase != "paused" && call.Name != "Ingest" {
			s.Errorf("a call is listed as %+v", call)
		}
	}
}

// finish runs a statement in a transaction of the plain API, and commits it.
func (s *sidecar) finish(id string) {
	s.Helper()
	in := &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Tx: &sidecarv1.TxSelector{Id: id}}
	if _, err := s.client.Execute(context.Background(), in); err != nil {
		s.Errorf("a statement of an open transaction: %v", err)
	}
	if _, err := s.client.Commit(context.Background(), &sidecarv1.CommitRequest{Id: id}); err != nil {
		s.Errorf("the commit: %v", err)
	}
}

// begin begins a transaction on a session.
func (c sdk) begin(session string) (id string) {
	c.Helper()
	begun, err := Ydb_Query_V1.NewQueryServiceClient(c.conn).BeginTransaction(c.ctx, &Ydb_Query.BeginTransactionRequest{
		SessionId: session, TxSettings: &Ydb_Query.TransactionSettings{TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{}}})
	if err != nil || begun.Status != Ydb.StatusIds_SUCCESS {
		c.Fatal(begun, err)
	}
	return begun.GetTxMeta().GetId()
}

// finish runs a statement in a transaction, and commits it.
func (c sdk) finish(session, id string) {
	c.Helper()
	if err := c.send(&Ydb_Query.ExecuteQueryRequest{
		SessionId: session, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		TxControl: &Ydb_Query.TransactionControl{TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: id}},
		Query:     &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}},
	}); err != nil {
		c.Errorf("a statement of an open transaction of an SDK: %v", err)
	}
	ended, err := Ydb_Query_V1.NewQueryServiceClient(c.conn).CommitTransaction(c.ctx,
		&Ydb_Query.CommitTransactionRequest{SessionId: session, TxId: id})
	if err != nil || ended.Status != Ydb.StatusIds_SUCCESS {
		c.Errorf("the commit of an SDK: %v %v", ended, err)
	}
}

// A call whose time is up while calls are paused is told of the pause.
func TestPausedCallsAreToldOfThePause(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := start(t, c.Endpoint())
	s.knowsNodes()
	if _, err := s.query("CREATE TABLE paused (id Uint64, PRIMARY KEY (id))"); err != nil {
		t.Fatal(err)
	}
	if err := (pools{s.App}).Pause(true); err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string]string{
		"/v1/query": `{"sql":"SELECT 1","timeout":"50ms"}`,
		"/v1/bulk":  `{"table":"paused","rows":[{"id":1}],"types":{"id":"Uint64"},"timeout":"50ms"}`,
	} {
		status, text := s.fetch(http.MethodPost, "http://"+s.at.HTTP+path, body)
		if status != http.StatusServiceUnavailable || !strings.Contains(text, "paused by an operator") ||
			!strings.Contains(text, `"safe_to_retry":true`) {
			t.Errorf("POST %s: %d %s", path, status, text)
		}
	}
	if err := s.stop(); err != nil { // a stop ends the pause
		t.Error(err)
	}
}
