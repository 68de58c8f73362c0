package upstream

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// whole is everything below the API, on a development cluster over real sockets.
type whole struct {
	t       *testing.T
	cluster *devcluster.Cluster
	router  *routing.Router
	judge   *pessimize.Detector
	driver  *Driver
	pool    *pool.Pool
	client  *Client
	found   *discovery.Discovery

	views   chan struct{} // capacity 1: the view changed
	stopped atomic.Bool
	stop    func()
}

func startWhole(t *testing.T, change func(*devcluster.Config, *Config, *pool.Config, *routing.Config)) *whole {
	t.Helper()
	return startWholeAsking(t, discovery.Default(), change)
}

func startWholeAsking(t *testing.T, asks discovery.Config, change func(*devcluster.Config, *Config, *pool.Config, *routing.Config)) *whole {
	t.Helper()
	nodes, up, p, r := devcluster.Default(), Default(), pool.Default(), routing.Default()
	p.Max = 12
	if change != nil {
		change(&nodes, &up, &p, &r)
	}
	c, err := devcluster.Start(nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	up.URL = c.Endpoint()
	w := &whole{t: t, cluster: c, router: routing.New(r), views: make(chan struct{}, 1)}
	quiet := slog.New(slog.DiscardHandler)
	var d *Driver
	w.judge = pessimize.New(pessimize.Default(),
		prober(func(ctx context.Context, id cluster.NodeID) error { return d.Probe(ctx, id) }), quiet)
	if d, err = New(up, Deps{Ways: hop.Ways{Router: w.router, Health: w.judge}, Dial: nodes.Dial}); err != nil {
		t.Fatal(err)
	}
	w.driver, w.pool = d, pool.New(p, d, quiet)
	if w.client, err = NewClient(d, w.pool, DefaultRetry(), p.Max); err != nil {
		t.Fatal(err)
	}
	w.found = discovery.New(asks, d, quiet)
	w.found.Subscribe(w.judge.SetTopology)
	w.found.Subscribe(w.router.SetTopology)
	w.judge.Subscribe(w.router.SetConditions)
	w.judge.OnPanic(w.found.Refresh)
	w.router.Subscribe(d.SetView)
	w.router.Subscribe(w.pool.SetView)
	w.router.Subscribe(func(cluster.View) {
		select {
		case w.views <- struct{}{}:
		default: // the reader has yet to come to the last one
		}
	})
	w.run(d)
	t.Cleanup(w.stop)
	return w
}

// run runs the parts until stop.
func (w *whole) run(d *Driver) {
	t := w.t
	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{d.Run, w.pool.Run, w.judge.Run, w.found.Run} {
		parts.Go(func() { run(ctx) })
	}
	w.stop = func() {
		if w.stopped.Swap(true) {
			return
		}
		end, done := context.WithTimeout(context.Background(), time.Minute)
		defer done()
		if err := w.pool.Close(end); err != nil {
			t.Errorf("close the pool: %v", err)
		}
		cancel()
		parts.Wait()
		d.Close()
	}
}

type prober func(ctx context.Context, id cluster.NodeID) error

func (p prober) Probe(ctx context.Context, id cluster.NodeID) error { return p(ctx, id) }

func (w *whole) do(idempotent bool, f func(ctx context.Context, s *Session) error) (Report, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	return w.client.Do(ctx, Call{Class: pool.Normal, Idempotent: idempotent}, f)
}

func (w *whole) exec(idempotent bool, req Statement) (Report, error) {
	return w.do(idempotent, func(ctx context.Context, s *Session) error {
		_, err := run(ctx, s, req)
		return err
	})
}

// flood runs calls by n callers until stop is closed, and counts failures.
func (w *whole) flood(n int, stop <-chan struct{}) (wait func() (done, failed int64)) {
	var done, failed atomic.Int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-w.t.Context().Done():
					return // the test failed
				default:
				}
				if _, err := w.exec(true, statement("SELECT 1")); err != nil {
					if w.t.Context().Err() != nil {
						return
					}
					if failed.Add(1) <= 3 {
						w.t.Log(err)
					}
				}
				done.Add(1)
			}
		})
	}
	return func() (int64, int64) { wg.Wait(); return done.Load(), failed.Load() }
}

// load runs a number of calls by 12 callers and returns how many failed.
func (w *whole) load(calls int64) (failed int64) {
	var begun, bad atomic.Int64
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			for begun.Add(1) <= calls {
				if _, err := w.exec(true, statement("SELECT 1")); err != nil {
					bad.Add(1)
					w.t.Log(err)
				}
			}
		})
	}
	wg.Wait()
	return bad.Load()
}

// needs makes calls until a node has sessions.
func (w *whole) needs(node uint32) {
	w.t.Helper()
	for len(w.cluster.Node(node).Sessions()) == 0 {
		if _, err := w.exec(true, statement("SELECT 1")); err != nil {
			w.t.Fatal(err)
		}
	}
}

// until waits for a view that fits.
func (w *whole) until(what string, fits func(cluster.View) bool) {
	w.t.Helper()
	deadline := time.After(time.Minute)
	for !fits(w.router.View()) {
		select {
		case <-w.views:
		case <-deadline:
			w.t.Fatalf("no view with %s; the last: %+v", what, w.router.View())
		}
	}
}

func use(v cluster.View, id cluster.NodeID) cluster.Use {
	n, ok := v.Find(id)
	if !ok {
		return cluster.UseNone
	}
	return n.Use
}

func (w *whole) counts() (owned, forwarded int64) {
	for id := range uint32(3) {
		c := w.cluster.Node(id + 1).Counters()
		owned, forwarded = owned+c.Owned, forwarded+c.Forwarded
	}
	return owned, forwarded
}

// named is a listener with an address of its own.
type named struct {
	net.Listener
	address string
}

func (n named) Addr() net.Addr { return n }

func (n named) Network() string { return "memory" }

func (n named) String() string { return n.address }
