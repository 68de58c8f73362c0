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
	Phase    func() phaseState
	Replaced func() bool     // another process takes the place of this one
	Memory   *memguard.Guard // nil: none
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
