package grpcapi

import (
	"context"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/facade/rows"
	"github.com/ydb-sidecar/sidecar/internal/ingest"
	"github.com/ydb-sidecar/sidecar/internal/lease"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secretOfWeb is a token.
const secretOfWeb = "0123456789abcdef0123456789abcdef"

// service is the gRPC API and what it stands on.
type service struct {
	core *core.Service
	kv   kv.Service
	rows rows.Service
	grpc API

	conn   *grpc.ClientConn // once it is served
	api    sidecarv1.SidecarClient
	ingest sidecarv1.IngestClient
}

func small() core.API {
	c := core.DefaultAPI()
	c.MaxBody, c.MaxHeaders = 64<<10, 4<<10
	c.MaxParams, c.MaxStatements, c.MaxDepth, c.MaxGroups = 8, 4, 8, 2
	return c
}

// compose returns a service that is not served.
func compose(t testing.TB, api core.API, deps core.Deps, tables ...kv.Entry) *service {
	t.Helper()
	calls, err := core.New(core.Config{API: api, Tx: lease.Default()}, deps)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{core: calls}
	keyed := kv.Default()
	keyed.Tables = tables
	if err := s.kv.Open(calls, keyed); err != nil {
		t.Fatal(err)
	}
	if err := s.rows.Open(calls, ingest.Default()); err != nil {
		t.Fatal(err)
	}
	s.grpc.Open(calls, &s.kv, &s.rows)
	return s
}

// serve serves the API for the length of the test, and makes clients.
func (s *service) serve(t *testing.T, d *facadetest.Driver) *service {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	server := grpc.NewServer(s.grpc.ServerOptions()...)
	s.grpc.Register(server)
	pipe := bufconn.Listen(1 << 20)
	running.Go(func() { _ = server.Serve(pipe) })
	running.Go(func() { _ = s.core.Run(ctx, s.rows.Engine.Close) })
	conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	s.conn, s.api, s.ingest = conn, sidecarv1.NewSidecarClient(conn), sidecarv1.NewIngestClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		cut, now := context.WithCancel(context.Background())
		now()
		s.core.RefuseNew()
		s.rows.Engine.Drain()
		_ = s.core.Drain(cut, s.rows.Engine.Cut) // waits for handlers, whose callers may be gone
		cancel()
		running.Wait()
		if n := d.Count(&d.Open); n != 0 {
			t.Errorf("%d sessions are still in use", n)
		}
	})
	return s
}
