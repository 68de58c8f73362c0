package systemtest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
	"github.com/ydb-platform/ydb-go-sdk/v3/table/options"
	"github.com/ydb-platform/ydb-go-sdk/v3/trace"
)

// A client of the Go SDK that asks on which node a table's partition is and then prefers that node uses one
// session: with a node that none of its sessions are on it would open one for each call.
func TestNodeHintsOfTables(t *testing.T) {
	for _, mode := range []string{"transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			s := startSidecar(t, startCluster(t, nil), nil, inMode(mode)...)
			var opened atomic.Int64
			db := openSDK(t, s.sdk(), ydbsdk.WithTraceQuery(trace.Query{
				OnSessionCreate: func(trace.QuerySessionCreateStartInfo) func(trace.QuerySessionCreateDoneInfo) {
					opened.Add(1)
					return nil
				},
			}))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			must(t, db, "CREATE TABLE hinted (id Uint64, PRIMARY KEY (id))")
			var node uint32
			err := db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
				d, err := s.DescribeTable(
					ctx, db.Name()+"/hinted", options.WithTableStats(), options.WithPartitionStats(),
					options.WithShardNodesInfo(),
				)
				if err != nil {
					return err
				}
				if d.Stats == nil || len(d.Stats.PartitionStats) != 1 || d.Stats.PartitionStats[0].LeaderNodeID == 0 {
					return errors.New("the description names no node")
				}
				node = d.Stats.PartitionStats[0].LeaderNodeID
				return nil
			}, table.WithIdempotent())
			if err != nil {
				t.Fatal(err)
			}
			opened.Store(0)
			for range 20 {
				err := db.Query().Do(ydbsdk.WithPreferredNodeID(ctx, node), func(ctx context.Context, s query.Session) error {
					return s.Exec(ctx, "SELECT 1")
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if n := opened.Load(); n > 1 {
				t.Errorf("%d sessions were opened for 20 calls that prefer node %d, one after the other", n, node)
			}
		})
	}
}
