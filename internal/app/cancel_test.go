package app

import (
	"context"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/clustertest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Calls that their callers give up cost no sessions: nodes say when those are idle again.
func TestCancelledCallsKeepTheirSessions(t *testing.T) {
	c := clustertest.Start(t, nil)
	s := start(t, c.Endpoint(), "wire.mode=transaction", "wire.auth=own", "pool.max=60", "pool.shed=off")
	ctx, end := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-ydb-database", "/local"), 5*time.Minute)
	defer end()
	sdk := s.sdkSession(ctx)
	text := &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}
	ways := map[string]func(ctx context.Context) error{
		"plain API": func(ctx context.Context) error {
			_, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			return err
		},
		"on a session": func(ctx context.Context) error {
			stream, err := sdk.ExecuteQuery(
				ctx,
				&Ydb_Query.ExecuteQueryRequest{SessionId: sdk.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, Query: text},
			)
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"without a session": func(ctx context.Context) error {
			stream, err := Ydb_Query_V1.NewQueryServiceClient(s.conn).ExecuteQuery(
				ctx, &Ydb_Query.ExecuteQueryRequest{ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, Query: text},
			)
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	}
	for name, call := range ways {
		if err := call(ctx); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for id := 1; id <= 3; id++ {
		if err := c.Node(uint32(id)).Delay(devcluster.Delay{Delay: time.Hour, Share: 1, Methods: []string{"ExecuteQuery"}}); err != nil {
			t.Fatal(err)
		}
	}
	before := s.core.pool.Stats()
	given := 0
	for name, call := range ways {
		for range 15 {
			cut, cancel := context.WithTimeout(ctx, 20*time.Millisecond) // which the sidecar is told
			if given%2 == 0 {
				cut, cancel = context.WithCancel(ctx) // it hears that the caller has gone
				time.AfterFunc(20*time.Millisecond, cancel)
			}
			if err := call(cut); err == nil {
				t.Errorf("%s: a call that was given up has an answer", name)
			}
			cancel()
			given++
		}
	}
	s.eventually("all sessions are at rest", func() bool {
		st := s.core.pool.Stats()
		return st.Recovering == 0 && st.InUse == 0
	})
	st := s.core.pool.Stats()
	// A machine that stands still may give a call up before it is sent, or end the wait for a session.
	if kept, closed := st.Recovered-before.Recovered, st.Closed-before.Closed; kept < 30 || closed > 2 {
		t.Errorf("of the sessions of %d calls that were given up %d were kept and %d replaced", given, kept, closed)
	}
	for id := 1; id <= 3; id++ {
		if err := c.Node(uint32(id)).Delay(devcluster.Delay{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, call := range ways { // on the same sessions
		if err := call(ctx); err != nil {
			t.Errorf("%s, afterwards: %v", name, err)
		}
	}
}
