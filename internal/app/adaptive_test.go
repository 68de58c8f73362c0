package app

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// callAsSomebody makes a call of an SDK that has credentials of its own.
func (s *sidecar) callAsSomebody() {
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

// limits are those of the sidecar's own pool and, added up, of callers' pools.
func (s *sidecar) limits() (own poolState, callers int) {
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

// Another pool.max counts in the pools of callers as in the sidecar's own, and the
// adaptive limits begin anew below it.
func TestReloadReachesEveryPool(t *testing.T) {
	for adaptive, want := range map[string][2]int{"false": {40, 50}, "true": {8, 10}} {
		t.Run(adaptive, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "sidecar.yaml")
			write(t, file, "reload.interval: 0s\npool.max: 40\n")
			s := startWith(t, file, newCluster(t).Endpoint(), "pool.adaptive="+adaptive)
			_, _ = s.query("SELECT 1")
			s.callAsSomebody()
			if own, callers := s.limits(); own.Limit != want[0] || callers != want[0] {
				t.Errorf("limits %d and %d at the start; want %d", own.Limit, callers, want[0])
			}
			write(t, file, "reload.interval: 0s\npool.max: 50\n")
			if _, err := s.Reload("a test", false); err != nil {
				t.Fatal(err)
			}
			if own, callers := s.limits(); own.Limit != want[1] || callers != want[1] {
				t.Errorf("limits %d and %d after the reload; want %d", own.Limit, callers, want[1])
			}
		})
	}
}

// With pool.adaptive what nodes answer moves the limit of the pool that the call had its
// session of: the plain API's, and that of callers with credentials of their own.
func TestAdaptiveLimit(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "pool.adaptive=true", "pool.adaptive_floor=3", "pool.max=40")
	plain := func() { _, _ = s.query("SELECT 1") }
	plain()
	s.callAsSomebody()
	if own, callers := s.limits(); own.Limit != 8 || own.Adaptive == nil || callers != 8 {
		t.Fatalf("limits %d and %d at the start; want a fifth of 40", own.Limit, callers)
	}

	for id := uint32(1); c.Node(id) != nil; id++ {
		if err := c.Node(id).Errors(devcluster.Errors{Status: "OVERLOADED", Share: 1, Methods: []string{"ExecuteQuery"}}); err != nil {
			t.Fatal(err)
		}
	}
	for name, call := range map[string]func(){"plain": plain, "sdk": s.callAsSomebody} {
		s.eventually("the floor for "+name, func() bool {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(call)
			}
			wg.Wait()
			own, callers := s.limits()
			if name == "plain" {
				return own.Limit == 3
			}
			return callers == 3
		})
	}
	own, _ := s.limits()
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
