// Package app is the one place that builds, joins, runs and drains the parts
// of the sidecar.
//
// It owns the nested configuration, the servers, and the order of start and
// stop. What always holds: the configuration is checked before a port
// is bound and all ports are bound before anything runs; a cluster that is away
// stops neither the start nor the life of the process; after Run no goroutine
// and no listener is left, and, unless the error says so, no session.
package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"runtime"
	"time"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/audit"
	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/history"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/lifecycle"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/loopback"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/restart"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	"github.com/ydb-sidecar/sidecar/internal/snapshot/metrics"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/telemetry"
	"github.com/ydb-sidecar/sidecar/internal/wire"
	"github.com/ydb-sidecar/sidecar/internal/xds"
)

// App is one sidecar, built and listening.
type App struct {
	config  Config // at the start; App.now is in force
	version string
	log     *slog.Logger
	lines   *Lines        // where log goes; nil: to a writer of the caller's
	level   slog.LevelVar // of log
	started time.Time

	core core
	room
	edges
	watching

	reload  reloader
	phase   phase
	restart restart.Restart
}

// room is what large requests take: memory and the processor's time.
type room struct {
	memory   *memguard.Guard // nil: none
	requests *memguard.Budget
	lane     *lane.Lane // where large requests are inflated, decoded and encoded
}

// edges are the ways in: what is bound, and what answers there.
type edges struct {
	certs     listenerCerts
	listeners listen.Set
	socket    *listen.AdminSocket // nil: off
	guard     *loopback.Guard
	api       *facade.Service
	grpc      *grpc.Server   // of the plain API
	wire      *wire.Server   // in front of it; nil: clients come to grpc itself
	xds       *xds.Publisher // nil: off
	admin     *admin.Server
	health    *listen.Health // grpc.health.v1
}

// watching is what the process tells of itself.
type watching struct {
	telemetry  *telemetry.Telemetry
	access     *accesslog.Log
	history    *history.Recorder // of the last ten minutes
	statements *statements.Recorder
	views      snapshot.Views
	events     *admin.Events
	findings   *findings.Watch
	judged     chan struct{} // capacity 1: there are new verdicts
}

// Lines is a writer that does not wait for its reader.
type Lines = telemetry.Lines

// NewLines returns Lines to w. Logs that go there are dropped while nobody reads w, and counted.
func NewLines(w io.Writer) *Lines { return telemetry.NewLines(w) }

// assemble is New; from is the process whose place this one takes, nil if none.
func assemble(c *Config, settings *config.Settings, version string, logs io.Writer, from *restart.Inherited) (_ *App, err error) {
	a := &App{config: *c, version: version, started: time.Now()}
	a.health, a.events, a.findings, a.judged = listen.NewHealth(), admin.NewEvents(), findings.New(), make(chan struct{}, 1)
	a.log = telemetry.NewLogger(logs, c.Log, &a.level)
	a.lines, _ = logs.(*Lines)
	panics.LogTo(a.log)
	a.reload.current.Store(&effective{*c, settings})
	warn(a.log, settings)
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if a.guard, err = loopback.New(c.Facade.HTTP.Hosts); err != nil {
		return nil, fmt.Errorf("http.hosts: %w", err)
	}
	defer from.Close()
	if err := a.openListeners(from); err != nil {
		return nil, err
	}
	if err := a.restart.Open(a.config.Takeover, from); err != nil {
		return nil, fmt.Errorf("takeover.socket: %w", err)
	}
	if a.telemetry, err = telemetry.New(context.Background(), c.Telemetry, os.Getenv, c.Tracing, version, a.log); err != nil {
		return nil, err
	}
	a.memory, a.requests = memguard.New(c.Memory, a.log), memguard.NewBudget(c.Memory)
	a.lane = lane.New(runtime.GOMAXPROCS(0) / 2) // the other half is for small requests
	if a.core, err = newCore(a.config, a.telemetry, version, a.log); err != nil {
		return nil, err
	}
	a.core.apps.Measure(a.telemetry.Histogram, snapshot.ClassNames)
	a.core.detector.Subscribe(a.heed)
	a.telemetry.SetEndpoint(a.core.driver.Endpoint())
	a.access, a.history, a.statements = accesslog.New(c.Access, a.log), history.New(a.views.Reading), statements.New(c.Statements)
	if a.api, err = facade.New(c.Facade, a.apiDeps()); err != nil {
		return nil, err
	}
	if err := a.openGRPC(); err != nil {
		return nil, err
	}
	a.openXDS()
	a.views.Source = a.newSource()
	a.admin = a.newAdmin()
	return a, metrics.Observe(a.telemetry.Meters(), &a.views.Source)
}

// openListeners binds all that clients and operators connect to, or takes it over
// from a process whose place this one takes.
func (a *App) openListeners(from *restart.Inherited) (err error) {
	if a.certs, err = newListenerCerts(&a.config, a.log); err != nil {
		return err
	}
	if err := a.listeners.Bind(addressesOf(a.config, from), a.log); err != nil {
		return err
	}
	if a.socket, err = adminSocketOf(a.config.Admin.Socket, from, a.log); err != nil {
		return fmt.Errorf("admin.socket: %w", err)
	}
	files, _ := listen.OpenFiles()
	memory := memoryLimit()
	most := listen.BoundsOf(a.config.Connections.Each, a.config.Connections.total(), files, memory)
	a.warnClamped(most, files, memory)
	a.bound(most)
	return nil
}

// apiDeps are the parts that the plain API uses.
func (a *App) apiDeps() facade.Deps {
	return facade.Deps{
		Driver: facade.NewDriver(a.core.client), Database: a.core.driver.Database(), Apps: a.core.apps, Status: a.views.Status,
		Hold:   a.core.ways.Hold,
		Memory: a.memory, Requests: a.requests, Lane: a.lane, Caches: textsFor(memoryLimit()),
		History: a.history, Statements: a.statements, Access: a.access, Log: a.log, Audit: audit.New(a.log),
		Tracer: a.telemetry.Tracer(), Batches: a.telemetry.Tracers(), Meter: a.telemetry.Meters(), Histogram: a.telemetry.Histogram,
	}
}

// openGRPC makes what serves the gRPC port.
func (a *App) openGRPC() (err error) {
	c := a.config
	secure := a.certs.grpc.Server()
	deps := wire.Deps{
		Ways: a.core.ways, Nodes: a.core.driver, Own: a.core.driver.Shard(),
		Tracer: a.telemetry.Tracer(), Histogram: a.telemetry.Histogram, Access: a.access, TLS: secure, Apps: a.core.apps,
		Memory: a.memory, Shown: c.YDB.CertFile != "", History: a.history, Unary: a.unary(), Denied: a.denied(),
		Lane: a.lane, Statements: a.statements, Audit: audit.New(a.log),
		Mine:    a.core.driver.Mine,
		Pool:    a.core.ownPool(),
		Cluster: identities{a.core.driver, a.now, &a.reload.births, a.core.budget, a.core.own, a.core.pool, a.core.limits, a.log},
		Log:     a.log, Database: a.core.driver.Database(), Ticket: a.core.driver.Ticket,
		Begin: a.begin(), Plain: a.plain(), Target: a.core.driver.Target, Listen: a.listeners.GRPC.Addr(),
	}
	if c.Apps.Named() {
		deps.Names = func() int { return namesFor(a.now().Pool) }
	}
	if c.Wire.Mode == wire.ModeOff {
		var options []grpc.ServerOption
		if secure != nil {
			options = append(options, grpc.Creds(overTCP{certs.Credentials(secure)}))
		}
		a.grpc = a.newGRPC(options)
		return nil
	}
	engine := h2.Default()
	memory := memoryLimit()
	engine.Buffered = bufferedFor(memory, c.DataPath.Shards)
	deps.Inside = wire.Inside{Message: 2 * c.Facade.API.MaxBody, Streams: streamsInside(2*c.Facade.API.MaxOpen, memory, c.DataPath.Shards)}
	deps.Texts, deps.Pools = textsFor(memory), func(nodes int) int { return poolsFor(memory, nodes) }
	engine.Message = max(engine.Message, deps.Inside.Message)
	if engine.Silence, engine.KeepaliveTimeout = c.Health.Silence, c.Health.ProbeTimeout; c.Health.Silence == 0 {
		engine.Silence = math.MaxInt64 / 2 // it is not looked for; the engine adds to it
	}
	a.grpc = a.newGRPC([]grpc.ServerOption{grpc.InitialWindowSize(windowInside)})
	if a.wire, err = wire.New(c.Wire, c.DataPath, engine, deps, a.grpc); err != nil {
		return err
	}
	a.core.router.Subscribe(a.wire.SetView)
	a.memory.Watch(a.wire.Tight)
	return nil
}

// openXDS makes the publisher of the nodes, if it is on.
func (a *App) openXDS() {
	c := a.config
	if !c.XDS.Enabled {
		return
	}
	a.xds = xds.New(c.XDS, xds.Deps{
		Database: a.core.driver.Database(),
		NodesTLS: a.core.driver.TLS(cluster.Node{Address: a.core.driver.Endpoint()}) != nil,
		Sidecar:  a.listeners.GRPC.Addr(), Secure: a.certs.grpc != nil,
		Max:      func() int { return a.core.pool.Config().Max },
		Draining: func() bool { return a.phase.get() >= lameDuck && !a.restart.Replaced() },
		TLS:      a.certs.xds.Server(), Log: a.log,
	})
	a.core.router.Subscribe(a.xds.SetView)
}

// Ready is the line that says where a sidecar listens.
type Ready struct {
	Ready  bool   `json:"ready"` // true
	GRPC   string `json:"grpc"`
	HTTP   string `json:"http"`
	Admin  string `json:"admin"`
	Probes string `json:"probes,omitempty"`
	XDS    string `json:"xds,omitempty"`
	PID    int    `json:"pid"`
}

// Ready returns the addresses that are bound.
func (a *App) Ready() Ready {
	text := func(l *listen.Listener) string {
		if l == nil {
			return ""
		}
		return l.Addr().String()
	}
	l := &a.listeners
	return Ready{
		Ready: true, GRPC: text(l.GRPC), HTTP: text(l.HTTP), Admin: text(l.Admin), Probes: text(l.Probes), XDS: text(l.XDS),
		PID: os.Getpid(),
	}
}

// addParts has the group run all parts that are no servers.
func (a *App) addParts(group *lifecycle.Group) {
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"credentials", a.core.driver.Run},
		{"health", a.core.detector.Run},
		{"discovery", a.core.discovery.Run},
		{"attention", a.core.attention.Run},
		{"pool", a.core.pool.Run},
		{"budget", a.core.budget.Run},
		{"budget of apps", a.runOwn},
		{"apps", a.core.apps.Run},
		{"adaptive limits", a.core.limits.Run},
		{"memory", a.memory.Run},
		{"api", a.api.Run},
		{"watchdog", a.admin.Run},
		{"findings", a.watch},
		{"access log", a.access.Run},
		{"history", a.history.Run},
		{"statements", a.statements.Run},
		{"reload", a.watchFile},
		{"certificates", a.certs.run},
	} {
		group.Part(part.name, part.run)
	}
}

// Run serves until ctx ends, writes one line of JSON to ready once requests are
// served, and then stops in the order of ARCHITECTURE.md; when hurry ends it
// stops at once instead. It returns nil if nothing was cut off and nothing
// failed.
func (a *App) Run(ctx, hurry context.Context, ready io.Writer) error {
	group := lifecycle.New(a.log)
	a.addParts(group)
	servers := a.newServers()
	servers.addTo(group)
	if a.socket != nil {
		server := listen.AdminServer(servers.admin.Handler, a.socket.Door)
		group.Part("admin socket", func(ctx context.Context) error {
			if !a.listeners.Await(ctx) {
				return nil
			}
			return listen.ServeUntil(ctx, server, a.socket, false)
		})
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	a.addPhases(ctx, group, servers)

	a.phase.begin(stop)
	serve := func() {
		a.listeners.Start()
		a.listeners.Publish(a.log)
		a.warnOpen()
		a.log.Info("serving", "version", a.version, "database", a.core.driver.Database(), "tracing", a.telemetry.Exporting())
		if err := json.NewEncoder(ready).Encode(a.Ready()); err != nil {
			a.log.Warn("cannot say that it is ready", "err", err)
		}
	}
	if !a.restart.Replaces() {
		serve()
	}
	life := ctx
	group.Part("takeover", func(ctx context.Context) error {
		return a.restart.Succeed(ctx, life, stop, a.restartDeps(servers), serve)
	})
	err := group.Run(ctx, hurry)
	return errors.Join(err, a.Close())
}

// closeLimit bounds the sending of the last spans.
const closeLimit = 5 * time.Second

// Close lets go of what New took. Run calls it.
func (a *App) Close() error {
	a.listeners.Close()
	a.restart.Close()
	if a.socket != nil {
		_ = a.socket.Close() // it may be closed already
	}
	var errs []error
	if a.xds != nil {
		a.xds.Stop() // it may have stopped already
	}
	if a.core.driver != nil {
		if err := a.core.driver.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close connections: %w", err))
		}
	}
	if a.telemetry != nil {
		ctx, cancel := context.WithTimeout(context.Background(), a.phase.within(closeLimit, telemetryTold))
		defer cancel()
		errs = append(errs, a.telemetry.Shutdown(ctx))
	}
	return errors.Join(errs...)
}
