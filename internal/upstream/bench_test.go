package upstream

import (
	"context"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// What a call through Do costs beside the same call on the bare stub, to a node
// in the same process: the difference is the driver's own.
func BenchmarkSelect1(b *testing.B) {
	c, err := devcluster.Start(devcluster.Default())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	config := shipped()
	config.URL = c.Endpoint()
	router := routing.New(routing.Default())
	d, err := New(config, Deps{Ways: hop.Ways{Router: router, Health: &silent{}}})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	top, err := d.ListEndpoints(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	router.SetTopology(top)
	d.SetView(router.View())
	p := pool.New(pool.Default(), d, nil)
	p.SetView(router.View())
	defer p.Close(context.Background())
	client, err := NewClient(d, p, DefaultRetry(), pool.Default().Max)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("do", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := client.Do(b.Context(), Call{Class: pool.Normal}, func(ctx context.Context, s *Session) error {
				_, err := run(ctx, s, statement("SELECT 1"))
				return err
			}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stub", func(b *testing.B) {
		benchmarkStub(b, d, top.Nodes[0].ID)
	})
}

func benchmarkStub(b *testing.B, d *Driver, node cluster.NodeID) {
	res, err := d.Open(b.Context(), node, func(string) {})
	if err != nil {
		b.Fatal(err)
	}
	defer res.Close(b.Context())
	s := res.(*Session)
	stub := Ydb_Query_V1.NewQueryServiceClient(s.conn.cc)
	md, _ := d.headers("")
	ctx := metadata.NewOutgoingContext(b.Context(), md)
	b.ReportAllocs()
	for b.Loop() {
		req := &Ydb_Query.ExecuteQueryRequest{SessionId: s.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
			Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}}
		stream, err := stub.ExecuteQuery(ctx, req)
		for err == nil {
			_, err = stream.Recv()
		}
		if !isEOF(err) {
			b.Fatal(err)
		}
	}
}

type silent struct{}

func (*silent) Report(cluster.Outcome) {}
