package grpcapi

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secretOfWeb is a token.
const secretOfWeb = "0123456789abcdef0123456789abcdef"

// service is the gRPC API and what it stands on.
type service struct {
	*facadetest.Service
	grpc API

	conn   *grpc.ClientConn // once it is served
	api    sidecarv1.SidecarClient
	ingest sidecarv1.IngestClient
}

// compose returns a service that is not served.
func compose(t testing.TB, api core.API, deps core.Deps, tables ...kv.Entry) *service {
	t.Helper()
	s := &service{Service: facadetest.Compose(t, api, deps, tables...)}
	s.grpc.Open(s.Core, &s.KV, &s.Rows)
	return s
}

// serve serves the API for the length of the test, and makes clients.
func (s *service) serve(t *testing.T, d *facadetest.Driver) *service {
	t.Helper()
	server := grpc.NewServer(s.grpc.ServerOptions()...)
	s.grpc.Register(server)
	conn, hangUp := facadetest.OverPipe(t, server)
	s.conn, s.api, s.ingest = conn, sidecarv1.NewSidecarClient(conn), sidecarv1.NewIngestClient(conn)
	s.Run(t, d, hangUp)
	return s
}
