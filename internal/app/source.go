package app

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/accesslog"
	"github.com/ydb-sidecar/sidecar/internal/adaptive"
	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/history"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/wire"
	"github.com/ydb-sidecar/sidecar/internal/xds"
)

// source is what the views of the process are made of: documents of state, the page,
// findings, the history and metrics. Its fields do not change once the process runs.
type source struct {
	nodeSources
	edgeSources
	processSources
}

// nodeSources are the parts that know of nodes and of the sessions there.
type nodeSources struct {
	Pool      *pool.Pool
	OwnPools  func() []*pool.Pool // those with the sidecar's own credentials, Pool first
	Limits    func() *limitsState // of sessions in use; nil: not pool.adaptive
	Router    *routing.Router
	Judge     *pessimize.Judge
	Driver    *upstream.Driver
	Discovery *discovery.Discovery
	Client    *upstream.Client
}

// edgeSources are the parts that callers meet.
type edgeSources struct {
	API        *facade.Service
	Wire       *wire.Server // nil: off
	Stalled    func() error // parts of the data path that do not turn
	XDS        *xds.Publisher
	XDSAddress string // empty if XDS is nil
	Apps       *apps.Registry
	Clients    func() map[string]int // connections of clients, by face
	Doors      func() doorsState
	Access     *accesslog.Log
}

// processSources are the process itself and what it remembers.
type processSources struct {
	Version  string
	Started  time.Time
	Starting startingSettings
	Settings func() liveSettings
	Stage    func() stage
	Left     func() time.Duration // until the deadline of the stage
	Memory   *memguard.Guard      // nil: none
	Requests *memguard.Budget
	History  *history.Recorder
	Events   *admin.Events
	Findings *findings.Watch
	Reloads  func() reloadsState
	Certs    func() map[string]*certs.Keeper // by section of settings; nil ones are not in use
	Lost     func() uint64                   // lines of the log
}

// startingSettings are settings that count from the start to the end of the process.
type startingSettings struct {
	TraceLink      string        // admin.trace_link
	TxMax          time.Duration // tx.max
	ServerSessions int           // wire.server_sessions
}

// liveSettings are settings in force.
type liveSettings struct {
	PoolMin  int           // pool.min
	Queue    int           // pool.queue
	HeldLong time.Duration // admin.held_long
}

// limitsState is the state of the adaptive limits.
type limitsState struct {
	Own     adaptive.State // of the pool of the plain API
	Changes [adaptive.Reasons]uint64
	Callers float64 // limits of all other pools together
}

// doorsState counts connections that were not accepted, by face.
type doorsState struct {
	Refused map[string]int64
	Failed  map[string]int64
}

// reloadsState counts reloads of the configuration.
type reloadsState struct {
	Good, Bad int64
	Pending   int64 // settings that need a restart
}

// newSource says what the views look at. Call it once all parts are made.
func (a *App) newSource() source {
	c := &a.config
	s := source{
		nodeSources: nodeSources{
			Pool: a.core.pool, OwnPools: a.core.ownPools, Limits: a.limitsState, Router: a.core.router, Judge: a.core.judge,
			Driver: a.core.driver, Discovery: a.core.discovery, Client: a.core.client,
		},
		edgeSources: edgeSources{
			API: a.api, Wire: a.wire, Stalled: a.turning, XDS: a.xds, Apps: a.core.apps,
			Clients: a.clientsByFace, Doors: a.doorsState, Access: a.access,
		},
		processSources: processSources{
			Version: a.version, Started: a.started,
			Starting: startingSettings{TraceLink: c.Admin.TraceLink, TxMax: c.Facade.Tx.Max, ServerSessions: c.Wire.ServerSessions},
			Settings: func() liveSettings {
				now := a.now()
				return liveSettings{PoolMin: now.Pool.Min, Queue: now.Pool.Queue, HeldLong: now.Admin.HeldLong}
			},
			Stage: a.phase.get, Left: a.phase.left, Memory: a.memory, Requests: a.requests,
			History: a.history, Events: a.events, Findings: a.findings,
			Reloads: func() reloadsState {
				return reloadsState{Good: a.reload.good.Load(), Bad: a.reload.bad.Load(), Pending: a.reload.pending.Load()}
			},
			Certs: func() map[string]*certs.Keeper {
				return map[string]*certs.Keeper{
					"grpc": a.certs.grpc, "http": a.certs.http, "admin": a.certs.admin, "xds": a.certs.xds,
					"ydb": a.core.driver.Certs(), "discovery.xds": a.core.discovery.Certs(),
				}
			},
			Lost: a.lines.Lost,
		},
	}
	if a.xds != nil {
		s.XDSAddress = a.listeners.XDS.Addr().String()
	}
	return s
}

func (a *App) limitsState() *limitsState {
	if a.core.limits == nil {
		return nil
	}
	out := &limitsState{Own: *a.core.limits.StateOf(a.core.limit)}
	out.Changes, out.Callers = a.core.limits.Sums(a.core.limit)
	return out
}

// clientsByFace is how many connections of clients are open at each listener of the APIs.
func (a *App) clientsByFace() map[string]int {
	all := map[string]int{}
	for face, l := range a.listeners.OfAPI() {
		all[face] = l.Conns.Size()
	}
	return all
}

func (a *App) doorsState() doorsState {
	out := doorsState{Refused: map[string]int64{}, Failed: map[string]int64{}}
	for face, d := range a.doors() {
		out.Refused[face], out.Failed[face] = d.Refused(), d.Failures()
	}
	out.Failed["takeover"] = a.restart.Failures()
	return out
}
