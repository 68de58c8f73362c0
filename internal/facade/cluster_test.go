package facade

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// world is a service over the real driver and a cluster in this process, with
// real sockets everywhere.
type world struct {
	s       *Service
	cluster *devcluster.Cluster
	target  contract.Target
}

type late struct{ driver *upstream.Driver }

func (l *late) Probe(ctx context.Context, id cluster.NodeID) error { return l.driver.Probe(ctx, id) }

func newWorld(t *testing.T, cfg Config, tracer *tracing.Tracer) *world {
	t.Helper()
	nodes, err := devcluster.Start(devcluster.Default())
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	prober := new(late)
	router := routing.New(routing.Default())
	judge := pessimize.New(pessimize.Default(), prober, log)
	driverConfig := upstream.Default()
	driverConfig.URL = nodes.Endpoint()
	driver, err := upstream.New(driverConfig, upstream.Deps{Router: router, Judge: judge, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	prober.driver = driver
	finder := discovery.New(discovery.Default(), driver, discovery.NewAnswers(), log)
	sessions := pool.New(pool.Default(), driver, log)
	client, err := upstream.NewClient(driver, sessions, upstream.DefaultRetry(), pool.Default().Max)
	if err != nil {
		t.Fatal(err)
	}
	finder.Subscribe(judge.SetTopology)
	finder.Subscribe(router.SetTopology)
	judge.Subscribe(router.SetVerdicts)
	router.Subscribe(driver.SetView)
	router.Subscribe(sessions.SetView)

	s, err := New(cfg, Deps{Driver: NewDriver(client), Database: driver.Database(), Tracer: tracer, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{s: s, cluster: nodes}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{driver.Run, judge.Run, finder.Run, sessions.Run, s.Run} {
		wg.Go(func() { _ = run(ctx) })
	}
	server, web := grpc.NewServer(s.ServerOptions()...), s.HTTPServer()
	s.Register(server)
	for where, serve := range map[*string]func(net.Listener) error{&w.target.GRPC: server.Serve, &w.target.HTTP: web.Serve} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		*where = l.Addr().String()
		wg.Go(func() { _ = serve(l) })
	}
	w.target.HTTP = "http://" + w.target.HTTP
	t.Cleanup(func() {
		end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Drain(end); err != nil {
			t.Errorf("drain: %v", err)
		}
		server.Stop()
		_ = web.Close()
		err := sessions.Close(end)
		if left := nodes.Sessions(); len(left) > 0 {
			t.Errorf("%d sessions are left on the nodes: %v", len(left), left)
		}
		stop()
		wg.Wait()
		if err = errors.Join(err, driver.Close(), nodes.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// client is a face of the world.
func (w *world) client(t *testing.T) contract.Client {
	t.Helper()
	c := contract.OverHTTP(w.target.HTTP)
	t.Cleanup(c.Close)
	return c
}

func TestContract(t *testing.T) {
	cfg := Default()
	settings, err := config.Bind(&cfg)
	if err == nil {
		err = settings.Assign("kv.tables="+contract.KVTables(), "test")
	}
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, cfg, nil)
	w.target.KV = true
	contract.Run(t, w.target)
}

// TestOneCompilationPerNode: parameters never change the text, so the server's
// cache of plans works.
func TestOneCompilationPerNode(t *testing.T) {
	w := newWorld(t, Default(), nil)
	c := w.client(t)
	compiled := func() (n int64) {
		for id := range uint32(3) {
			n += w.cluster.Node(id + 1).Counters().Compilations
		}
		return n
	}
	var wg sync.WaitGroup
	for at := range 10 {
		wg.Go(func() {
			for i := range 100 {
				r, err := c.Execute(t.Context(), contract.Statement{
					SQL: "DECLARE $id AS Uint64; SELECT $id AS id, 'compiled once' AS what", Params: map[string]any{"id": at*100 + i},
				})
				if err != nil || r.Rows[0][0] != fmt.Sprint(at*100+i) {
					t.Errorf("call %d: %v, %v", i, r, err)
				}
			}
		})
	}

	wg.Wait()
	if n := compiled(); n < 1 || n > 3 {
		t.Errorf("%d compilations for 1000 calls on 3 nodes; want at most one each", n)
	}
}
