package snapshot

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
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/wire"
	"github.com/ydb-sidecar/sidecar/internal/xds"
)

// Source is what the views of the process are made of: documents of state, the page,
// findings, the history and metrics. Its fields do not change once the process runs.
type Source struct {
	NodeSources
	EdgeSources
	ProcessSources
}

// NodeSources are the parts that know of nodes and of the sessions there.
type NodeSources struct {
	Pool      *pool.Pool
	Hold      *hop.Hold           // of calls that need no session of a pool
	Pools     func() []*pool.Pool // all pools
	OwnPools  func() []*pool.Pool // pools with the sidecar's own credentials, Pool first
	Limits    func() *LimitsState // of sessions in use; nil: not pool.adaptive
	Router    *routing.Router
	Detector  *pessimize.Detector
	Driver    *upstream.Driver
	Discovery *discovery.Discovery
	Client    *upstream.Client
}

// EdgeSources are the parts that callers meet.
type EdgeSources struct {
	API        *facade.Service
	Wire       *wire.Server // nil: off
	Stalled    func() error // parts of the data path that do not turn
	XDS        *xds.Publisher
	XDSAddress string // empty if XDS is nil
	Apps       *apps.Registry
	Clients    func() map[string]int // connections of clients, by API and transport
	Doors      func() DoorsState
	Access     *accesslog.Log
	Statements *statements.Recorder
}

// ProcessSources are the process itself and what it remembers.
type ProcessSources struct {
	Self     Self
	Started  time.Time
	Starting StartSettings
	Settings func() LiveSettings
	Stage    func() Stage
	Phase    func() PhaseState
	Replaced func() bool     // another process takes the place of this one
	Memory   *memguard.Guard // nil: none
	Requests *memguard.Budget
	History  *history.Recorder
	Events   *admin.Events
	Findings *findings.Watch
	Reloads  func() ReloadsState
	Certs    func() map[string]*certs.Keeper // by section of settings; nil ones are not in use
	Lost     func() uint64                   // lines of the log
}

// StartSettings are settings that count from the start to the end of the process.
type StartSettings struct {
	TraceLink      string        // admin.trace_link
	TxMax          time.Duration // tx.max
	ServerSessions int           // wire.server_sessions
	Discovery      string        // discovery.mode
}

// LiveSettings are settings in force.
type LiveSettings struct {
	PoolMin  int           // pool.min
	Queue    int           // pool.queue
	HeldLong time.Duration // admin.held_long
}

// LimitsState is the state of the adaptive limits.
type LimitsState struct {
	Own     adaptive.State // of the pool of the plain API
	Floor   int            // below which no limit goes
	Changes [adaptive.Reasons]uint64
	Callers float64 // limits of all other pools together
}

// DoorsState counts connections that were not accepted, by listener.
type DoorsState struct {
	Refused map[string]int64
	Failed  map[string]int64
}
