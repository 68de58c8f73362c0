package facade

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/contract"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The types of bodies of the HTTP API.
const (
	mediaNDJSON  = "application/x-ndjson"
	mediaProblem = "application/problem+json"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a service over a facadetest.Driver, with a client for each face.
type bench struct {
	*facadetest.Driver
	s    *Service
	http contract.Client
	grpc contract.Client
	base string
	conn *grpc.ClientConn
	api  sidecarv1.SidecarClient

	ingest sidecarv1.IngestClient
}

func (b *bench) faces() []contract.Client { return []contract.Client{b.grpc, b.http} }

func small() Config {
	c := Default()
	c.API = facadetest.Small()
	return c
}

// start serves a driver over both faces for the length of the test.
func start(t *testing.T, cfg Config, f *facadetest.Driver, deps ...func(*core.Deps)) *bench {
	t.Helper()
	d := core.Deps{Driver: f, Database: "/local"}
	for _, change := range deps {
		change(&d)
	}
	s, err := New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	server := grpc.NewServer(s.ServerOptions()...)
	s.Register(server)
	wg.Go(func() { _ = s.Run(ctx) })
	web := s.HTTPServer()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { _ = web.Serve(listener) })
	conn, hangUp := facadetest.OverPipe(t, server)
	b := &bench{Driver: f, s: s, base: "http://" + listener.Addr().String(), grpc: contract.OverGRPC(conn), conn: conn,
		api: sidecarv1.NewSidecarClient(conn), ingest: sidecarv1.NewIngestClient(conn)}
	b.http = contract.OverHTTP(b.base)
	t.Cleanup(func() {
		hangUp()
		b.http.Close()
		_ = web.Close()
		cut, now := context.WithCancel(context.Background())
		now()
		_ = s.Drain(cut) // waits for handlers, whose callers may be gone
		cancel()
		wg.Wait()
		f.Mu.Lock()
		defer f.Mu.Unlock()
		if f.Open != 0 {
			t.Errorf("%d sessions are still lent", f.Open)
		}
	})
	return b
}

// each runs a test over both faces.
func (b *bench) each(t *testing.T, test func(t *testing.T, c contract.Client)) {
	t.Helper()
	for _, c := range b.faces() {
		t.Run(c.Name(), func(t *testing.T) { test(t, c) })
	}
}

// refused checks the code of an error, and what it says about the outcome.
func refused(t *testing.T, err error, code string, safe, unknown bool) *contract.Error {
	t.Helper()
	e, ok := errors.AsType[*contract.Error](err)
	if !ok {
		t.Fatalf("got %v; want %s", err, code)
	}
	if e.Code != code || e.Safe != safe || e.Unknown != unknown {
		t.Errorf("got %v; want %s, safe %v, unknown %v", e, code, safe, unknown)
	}
	if e.Hint == "" {
		t.Errorf("%s comes without a hint", e.Code)
	}
	return e
}
