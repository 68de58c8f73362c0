package app

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/devcluster"
)

// With pool.adaptive what nodes answer moves the limit of the pool that the call had its
// session of: the plain API's, and that of callers with credentials of their own.
func TestAdaptiveLimit(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "pool.adaptive=true", "pool.adaptive_floor=3", "pool.max=40")
	sdk := func() {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "x-ydb-auth-ticket", "somebody"), 10*time.Second)
		defer cancel()
		stream, err := Ydb_Query_V1.NewQueryServiceClient(s.conn).ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{
			ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
			Query:    &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}},
		})
		for err == nil {
			_, err = stream.Recv()
		}
	}
	plain := func() { _, _ = s.query("SELECT 1") }
	limits := func() (own poolState, callers int) {
		s.state("/state/pool", &own)
		var st struct {
			Virtual struct {
				Pools []struct{ Limit int } `json:"pools"`
			} `json:"virtual_sessions"`
		}
		s.state("/state/connections", &st)
		for _, p := range st.Virtual.Pools {
			callers += p.Limit
		}
		return own, callers
	}
	plain()
	sdk()
	if own, callers := limits(); own.Limit != 8 || own.Adaptive == nil || callers != 8 {
		t.Fatalf("limits %d and %d at the start; want a fifth of 40", own.Limit, callers)
	}

	for id := uint32(1); c.Node(id) != nil; id++ {
		if err := c.Node(id).Errors(devcluster.Errors{Status: "OVERLOADED", Share: 1, Methods: []string{"ExecuteQuery"}}); err != nil {
			t.Fatal(err)
		}
	}
	for name, call := range map[string]func(){"plain": plain, "sdk": sdk} {
		s.eventually("the floor for "+name, func() bool {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(call)
			}
			wg.Wait()
			own, callers := limits()
			if name == "plain" {
				return own.Limit == 3
			}
			return callers == 3
		})
	}
	own, _ := limits()
	if own.Adaptive.Changes["refused"] == 0 || own.Max != 40 {
		t.Errorf("%+v of %d; want changes because of refusals", own.Adaptive, own.Max)
	}
	_, text := s.get("/metrics")
	for _, want := range []string{`ydb_sidecar_pool_limit{`, `ydb_sidecar_pool_limit_changes_total{`, `ydb_sidecar_reason="refused"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
