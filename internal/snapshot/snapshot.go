package snapshot

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/internal/wire"
	"github.com/ydb-sidecar/sidecar/internal/xds"
)

// Snapshot is one look at the parts: each is read once, and all that a view shows is made
// of that. Immutable. Parts that were not asked for are zero.
type Snapshot struct {
	At       time.Time
	Stage    Stage
	Settings LiveSettings
	View     cluster.View // of the nodes, as new calls see them
	Version  string
	Database string
	Starting StartSettings
	sessionsSeen
	nodesSeen
	callersSeen
	processSeen
}

// sessionsSeen is the pool of the plain API.
type sessionsSeen struct {
	Pool   pool.Stats   // ofPool
	Warm   bool         // ofPool
	Limits *LimitsState // ofLimits; nil: not pool.adaptive
}

// nodesSeen is what is known of nodes.
type nodesSeen struct {
	Routed    routing.Stats   // ofNodes
	Discovery discovery.State // ofNodes
	Kept      uint64          // ofNodes: nodes that came to be missing so far
	Judged    pessimize.Stats // ofHealth
}

// callersSeen is what is known of callers and their calls.
type callersSeen struct {
	API     facade.State   // ofAPI
	Clients map[string]int // ofClients: connections, by API and transport
	Apps    []apps.State   // ofApps
	Wire    *wire.State    // ofWire; nil: off. It has no list of connections.
	XDS     *xds.Stats     // ofProcess; nil: off
}

// processSeen is what is known of the process. All of it is ofProcess.
type processSeen struct {
	Left        time.Duration // until the deadline of the stage
	RetryBudget float64       // retries that could be sent at once
	Memory      *memguard.State
	Requests    memguard.BudgetState
	Reloads     ReloadsState
	Doors       DoorsState
	Certs       map[string]Readings // by section of settings
	Unlogged    uint64              // lines of the access log
	Lost        uint64              // lines of the log
	Panics      panics.Seen
	Found       []findings.Finding
	Digests     []statements.Series
}

// Readings are how often files of TLS were read again, and the certificate of the last good reading.
type Readings struct {
	Good, Bad int64
	Expires   time.Time // zero: there is no certificate
}

// parts are what a look is at. A view asks for what it shows, because some parts take a
// lock or the turn of a shard.
type parts uint

const (
	ofPool parts = 1 << iota
	ofLimits
	ofNodes
	ofHealth
	ofAPI
	ofClients
	ofApps
	ofWire
	ofProcess

	ofAll = ofPool | ofLimits | ofNodes | ofHealth | ofAPI | ofClients | ofApps | ofWire | ofProcess
)

// Look reads all parts, each once.
func (s *Source) Look() *Snapshot { return s.look(ofAll) }

// look reads parts, each once.
func (s *Source) look(at parts) *Snapshot {
	out := &Snapshot{
		Stage: s.Stage(), Settings: s.Settings(), View: s.Router.View(),
		Version: s.Self.Version, Database: s.Driver.Database(), Starting: s.Starting,
	}
	if at&ofPool != 0 {
		out.Pool, out.Warm = s.Pool.Stats(), s.Pool.Warm()
	}
	if at&ofLimits != 0 {
		out.Limits = s.Limits()
	}
	if at&ofNodes != 0 {
		out.Routed, out.Discovery, out.Kept = s.Router.Stats(), s.Discovery.State(), s.Discovery.Held()
	}
	if at&ofHealth != 0 {
		out.Judged = s.Detector.Stats()
	}
	if at&ofAPI != 0 {
		out.API = s.API.State()
	}
	if at&ofClients != 0 {
		out.Clients = s.Clients()
	}
	if at&ofApps != 0 {
		out.Apps = s.Apps.State(ClassNames)
	}
	if at&ofWire != 0 && s.Wire != nil {
		state := s.Wire.Stats()
		out.Wire = &state
	}
	if at&ofProcess != 0 {
		s.lookAtProcess(out)
	}
	out.At = time.Now() // not before anything that was read
	return out
}

func (s *Source) lookAtProcess(out *Snapshot) {
	out.Left, out.RetryBudget, out.Panics = s.Phase().Left, s.Client.Budget(), panics.Stats()
	out.Requests, out.Reloads, out.Doors = s.Requests.State(), s.Reloads(), s.Doors()
	out.Unlogged, out.Lost = s.Access.Left(), s.Lost()
	out.Found, out.Digests = s.Findings.Report().Findings, s.Statements.Series()
	if s.Memory != nil {
		state := s.Memory.State()
		out.Memory = &state
	}
	if s.XDS != nil {
		state := s.XDS.Stats()
		out.XDS = &state
	}
	out.Certs = map[string]Readings{}
	for section, keeper := range s.Certs() {
		if keeper != nil {
			good, bad := keeper.Readings()
			out.Certs[section] = Readings{good, bad, keeper.Expires()}
		}
	}
}
