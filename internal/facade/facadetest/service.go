package facadetest

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/facade/rows"
	"github.com/ydb-sidecar/sidecar/internal/ingest"
	"github.com/ydb-sidecar/sidecar/internal/lease"
)

// Service is what the gRPC API and the HTTP API stand on.
type Service struct {
	Core *core.Service
	KV   kv.Service
	Rows rows.Service
}

// Small are limits that a test reaches with little.
func Small() core.API {
	c := core.DefaultAPI()
	c.MaxBody, c.MaxHeaders = 64<<10, 4<<10
	c.MaxParams, c.MaxStatements, c.MaxDepth, c.MaxGroups = 8, 4, 8, 2
	return c
}

// Compose returns a service that does not run.
func Compose(t testing.TB, api core.API, deps core.Deps, tables ...kv.Entry) *Service {
	t.Helper()
	deps.Database = "/local"
	calls, err := core.New(core.Config{API: api, Tx: lease.Default()}, deps)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{Core: calls}
	keyed := kv.Default()
	keyed.Tables = tables
	if err := s.KV.Open(calls, keyed); err != nil {
		t.Fatal(err)
	}
	if err := s.Rows.Open(calls, ingest.Default()); err != nil {
		t.Fatal(err)
	}
	return s
}

// RefuseNew does what a drain does first.
func (s *Service) RefuseNew() {
	s.Core.RefuseNew()
	s.Rows.Engine.Drain()
}

// Run runs s over a driver for the length of the test. At its end it calls hangUp, which ends the server and its
// clients, and fails the test if a session of the driver is still in use.
func (s *Service) Run(t *testing.T, d *Driver, hangUp func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Core.Run(ctx, s.Rows.Engine.Close) })
	t.Cleanup(func() {
		hangUp()
		cut, now := context.WithCancel(context.Background())
		now()
		s.RefuseNew()
		_ = s.Core.Drain(cut, s.Rows.Engine.Cut) // waits for handlers, whose callers may be gone
		cancel()
		running.Wait()
		if n := d.Count(&d.Open); n != 0 {
			t.Errorf("%d sessions are still in use", n)
		}
	})
}

// OverPipe serves a gRPC server inside of the process, and returns a connection to it. hangUp ends both.
func OverPipe(t testing.TB, server *grpc.Server) (conn *grpc.ClientConn, hangUp func()) {
	t.Helper()
	pipe := bufconn.Listen(1 << 20)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(pipe) })
	conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	return conn, func() {
		_ = conn.Close()
		server.Stop()
		serving.Wait()
	}
}
