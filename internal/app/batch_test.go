package app

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// A batch of an app that may have fewer sessions than api.batch_parallel runs whole, also
// beside others of the app and while a transaction of the app holds one of its sessions.
func TestBatchesOfAnAppWithFewSessions(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "apps.limits=web sessions=2")
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", "web"), time.Minute)
	defer cancel()
	in := &sidecarv1.BatchRequest{}
	for i := range 40 {
		in.Statements = append(in.Statements, &sidecarv1.BatchStatement{Sql: fmt.Sprintf("SELECT %d", i), Idempotent: true})
	}
	batches := func(n int) {
		t.Helper()
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				out, err := s.client.Batch(ctx, in)
				if err != nil {
					t.Error(err)
					return
				}
				for i, r := range out.Results {
					if e := r.GetError(); e != nil {
						t.Errorf("statement %d of %d: %v", i, len(out.Results), e)
						return
					}
				}
			})
		}
		all.Wait()
	}
	batches(1)
	batches(3)
	begun, err := s.client.Begin(ctx, &sidecarv1.BeginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	batches(2)
	if _, err := s.client.Rollback(ctx, &sidecarv1.RollbackRequest{Id: begun.GetTx().GetId()}); err != nil {
		t.Error(err)
	}
}
