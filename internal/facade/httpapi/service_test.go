package httpapi

import (
	"context"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/internal/facade/rows"
	"github.com/ydb-sidecar/sidecar/internal/ingest"
	"github.com/ydb-sidecar/sidecar/internal/lease"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is the HTTP API and what it stands on.
type service struct {
	core   *core.Service
	kv     kv.Service
	rows   rows.Service
	api    API
	base   string // the URL, once it is served
	client contract.Client
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
	deps.Database = "/local"
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
	if err := s.api.Open(calls, &s.kv, &s.rows, Config{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// serve serves the API over HTTP/1.1 for the length of the test.
func (s *service) serve(t *testing.T, d *facadetest.Driver) *service {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	web := s.api.Server()
	running.Go(func() { _ = web.Serve(listener) })
	running.Go(func() { _ = s.core.Run(ctx, s.rows.Engine.Close) })
	s.base = "http://" + listener.Addr().String()
	s.client = contract.OverHTTP(s.base)
	t.Cleanup(func() {
		s.client.Close()
		_ = web.Close()
		cut, now := context.WithCancel(context.Background())
		now()
		s.refuseNew()
		_ = s.core.Drain(cut, s.rows.Engine.Cut) // waits for handlers, whose callers may be gone
		cancel()
		running.Wait()
		if n := d.Count(&d.Open); n != 0 {
			t.Errorf("%d sessions are still in use", n)
		}
	})
	return s
}

// start serves a driver for the length of the test.
func start(t *testing.T, api core.API, d *facadetest.Driver, change ...func(*core.Deps)) *service {
	t.Helper()
	deps := core.Deps{Driver: d}
	for _, change := range change {
		change(&deps)
	}
	return compose(t, api, deps).serve(t, d)
}

// refuseNew does what a drain does first.
func (s *service) refuseNew() {
	s.core.RefuseNew()
	s.rows.Engine.Drain()
}
