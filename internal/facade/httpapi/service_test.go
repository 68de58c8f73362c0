package httpapi

import (
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is the HTTP API and what it stands on.
type service struct {
	*facadetest.Service
	api    API
	base   string // the URL, once it is served
	client contract.Client
}

// compose returns a service that is not served.
func compose(t testing.TB, api core.API, deps core.Deps, tables ...kv.Entry) *service {
	t.Helper()
	s := &service{Service: facadetest.Compose(t, api, deps, tables...)}
	if err := s.api.Open(s.Core, &s.KV, &s.Rows, Config{}); err != nil {
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
	var serving sync.WaitGroup
	web := s.api.Server()
	serving.Go(func() { _ = web.Serve(listener) })
	s.base = "http://" + listener.Addr().String()
	s.client = contract.OverHTTP(s.base)
	s.Run(t, d, func() {
		s.client.Close()
		_ = web.Close()
		serving.Wait()
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
