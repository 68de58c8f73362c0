package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/adaptive"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/telemetry"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/wire"
)

// core is what sits below the APIs.
type core struct {
	router    *routing.Router
	detector  *pessimize.Detector
	driver    *upstream.Driver
	discovery *discovery.Discovery
	ways      hop.Ways // Refresh is nil if health.shutdown is off
	attention *discovery.Attention
	pool      *pool.Pool
	apps      *apps.Registry
	budget    *pool.Budget     // of the pools of callers
	own       *pool.Budget     // of pool and those of apps with the sidecar's own credentials; nil: there are none
	limits    *adaptive.Limits // of all pools; nil: not pool.adaptive
	limit     *adaptive.Limit  // of pool
	client    *upstream.Client
}

// probing breaks the circle between the judge, which probes through the driver,
// and the driver, which reports to the judge.
type probing struct{ driver *upstream.Driver }

func (p *probing) Probe(ctx context.Context, id cluster.NodeID) error { return p.driver.Probe(ctx, id) }

// newCore builds the parts below the APIs and joins them as ARCHITECTURE.md
// shows: who tells whom.
func newCore(c Config, tel *telemetry.Telemetry, version string, log *slog.Logger) (k core, err error) {
	prober := new(probing)
	k.router = routing.New(c.Routing)
	k.detector = pessimize.New(healthOf(&c), prober, log)
	judge := pessimize.Deaf{Detector: k.detector, To: func(cluster.NodeID) bool { return true }}
	k.ways = hop.Ways{Router: k.router, ForwardSilence: c.Routing.ForwardSilence, Scattered: !c.Routing.Affinity, Hold: new(hop.Hold)}
	if c.Health.Shutdown {
		judge.To = func(id cluster.NodeID) bool { n, ok := k.router.View().Find(id); return ok && n.Shared }
		k.ways.Refresh = func() { k.discovery.Refresh() } // nothing is called before the end of newCore
	}
	k.ways.Health = judge
	k.driver, err = upstream.New(c.YDB, upstream.Deps{
		Ways:  k.ways,
		Meter: tel.Meters(), Histogram: tel.Histogram, Log: log, Version: version,
		Silence: c.Health.Silence, ProbeTimeout: c.Health.ProbeTimeout, Buffered: bufferedFor(memoryLimit(), 1),
	})
	if err != nil {
		return core{}, err
	}
	prober.driver = k.driver
	if k.apps, err = apps.New(c.Apps, log); err != nil {
		return core{}, errors.Join(fmt.Errorf("apps: %w", err), k.driver.Close())
	}
	source, err := newSource(c.Discovery, k.driver, version, log)
	if err != nil {
		return core{}, errors.Join(err, k.driver.Close())
	}
	k.discovery = discovery.New(c.Discovery, source, log)
	if c.Routing.Zone == routing.ZoneNearest {
		k.discovery.MeasureNearest()
	}
	k.attention = discovery.NewAttention(k.discovery.Refresh)
	k.pool, k.budget = pool.New(c.Pool, k.driver, log), pool.NewBudget(c.Wire.ServerSessions)
	if ownNamed(&c) {
		k.own = pool.NewBudget(math.MaxInt32) // its group is the limit
		k.pool.WithinGroup(k.own, ownGroup, func() int { return k.apps.Weight("") })
	}
	if k.limits = limitsFor(c.Pool); k.limits != nil {
		k.limit = k.limits.Add(k.pool, boundsOfOwn(k.pool))
		k.driver.Meter(k.limit.Meter())
	}
	if k.client, err = upstream.NewClient(k.driver, k.pool, c.Retry, c.Pool.Max); err != nil {
		return core{}, errors.Join(err, k.driver.Close())
	}

	k.join(k.driver)
	return k, nil
}

// ownNamed reports whether apps may have sessions of their own with the sidecar's credentials.
func ownNamed(c *Config) bool {
	return c.Wire.Virtual() && c.Wire.Auth == wire.AuthOwn && c.Apps.Named()
}

// runOwn keeps the budget of the pools with the sidecar's own credentials. Once the process ends, calls
// go on if they were paused: who waits is still served.
func (a *App) runOwn(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var resume sync.WaitGroup
	defer resume.Wait()
	defer cancel()
	resume.Go(func() {
		defer panics.Go("the resumption of pools")
		select {
		case <-a.phase.stopping:
			a.reload.births.Lock()
			defer a.reload.births.Unlock()
			a.pause(false)
		case <-ctx.Done():
		}
	})
	if a.core.own == nil {
		<-ctx.Done() // a part that ends by itself ends the process
		return nil
	}
	return a.core.own.Run(ctx)
}

// pause pauses or resumes the calls of every API: all pools, the sidecar's own and those of callers, and what
// needs no session of a pool. Hold reloader.births: a pool that is made meanwhile would be missed.
func (a *App) pause(on bool) {
	hop.PauseAll(on, a.core.ways.Hold, a.core.pools())
	if a.wire != nil && !on {
		a.wire.Resume()
	}
}

// pools are all pools: those with the sidecar's own credentials, and those of callers.
func (k *core) pools() []*pool.Pool { return append(k.ownPools(), k.budget.Pools()...) }

// ownPools are the pools of sessions with the sidecar's own credentials, that of the plain API first.
func (k *core) ownPools() []*pool.Pool {
	all := []*pool.Pool{k.pool}
	if k.own != nil {
		for _, p := range k.own.Pools() {
			if p != k.pool {
				all = append(all, p)
			}
		}
	}
	return all
}

// reconfigure puts bounds into force for all of them.
func (k *core) reconfigure(c pool.Config) {
	if k.own != nil {
		k.own.Reconfigure(poolConfigFor(c), k.pool)
	}
	k.pool.Reconfigure(c)
}

// connections are kept for the nodes of a view; upstream.Driver satisfies it.
type connections interface {
	SetView(cluster.View)
	Uses(cluster.NodeID) bool
}

// join has the parts that know of nodes tell each other.
func (k *core) join(c connections) {
	k.router.KeepWhile(c.Uses)
	k.discovery.Subscribe(k.detector.SetTopology)
	k.discovery.Subscribe(k.router.SetTopology)
	k.detector.Subscribe(k.router.SetConditions)
	k.detector.Subscribe(k.discovery.SetConditions)
	k.detector.Subscribe(k.attention.Set)
	k.detector.OnPanic(k.discovery.Refresh)
	// The driver first: the pool opens sessions on a new node at once.
	k.router.Subscribe(c.SetView)
	k.router.Subscribe(k.pool.SetView)
}

// newSource is where the nodes come from.
func newSource(c discovery.Config, driver *upstream.Driver, version string, log *slog.Logger) (discovery.Source, error) {
	switch c.Mode {
	case discovery.ModeStatic:
		return discovery.NewStatic(c, driver.Database()), nil
	case discovery.ModeDNS:
		source := discovery.NewDNS(c, driver.Database(), driver.Identify, log)
		driver.OnConnect(source.Doubt)
		return source, nil
	case discovery.ModeXDS:
		source, err := discovery.NewXDS(c, driver.Database(), version, driver.Identify, log)
		if err != nil {
			return nil, err
		}
		driver.OnConnect(source.Doubt)
		return source, nil
	}
	return driver, nil
}

// healthOf is what the judge goes by: a lease must not outlive the memory of the node
// it lives on.
func healthOf(c *Config) pessimize.Config {
	health := c.Health
	health.Forget = max(health.Forget, c.Facade.Tx.Max+time.Minute)
	return health
}

// ownPool is the pool as the data path has it.
func (k *core) ownPool() virtual.Pool {
	if k.limit == nil {
		return k.pool
	}
	return throttled{k.pool, k.limits, k.limit}
}
