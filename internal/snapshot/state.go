package snapshot

import (
	"math"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/adaptive"
	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/xds"
)

// PoolState is /state/pool. Wide: its figures stand side by side in the document.
type PoolState struct {
	Max      int               `json:"max"`
	Min      int               `json:"min"`
	Paused   bool              `json:"paused"`     // by an operator: callers wait
	OldestMS float64           `json:"oldest_ms"`  // wait of the first caller in the queue; 0: the queue is empty
	OpenErr  string            `json:"open_error"` // why the last session could not be opened; "": it could
	Sessions int               `json:"sessions"`
	Idle     int               `json:"idle"`
	Busy     int               `json:"busy"`
	Creating int               `json:"creating"`
	Closing  int               `json:"closing"`
	Waiting  map[string]int    `json:"waiting"` // by class
	Created  uint64            `json:"created"`
	Closed   uint64            `json:"closed"`
	Failed   uint64            `json:"failed"`    // sessions that could not be opened
	TimedOut uint64            `json:"timed_out"` // callers whose time was up in the queue, or who went away
	Refused  uint64            `json:"refused"`   // callers turned away because the queue was full
	Shed     map[string]uint64 `json:"shed"`      // callers turned away for another reason: deadline, age, delay
	Moved    uint64            `json:"moved"`     // let go for the sake of another node
	Moving   bool              `json:"moving"`    // towards an even spread
	Paced    int               `json:"paced"`     // wanted, and waiting for the pace of opening
	Warm     bool              `json:"warm"`
	Limit    int               `json:"limit"` // of sessions in use now; max without pool.adaptive
	Aside    int               `json:"aside"` // idle ones that the limit leaves without use
	// idle ones of nodes ejected for refusals or latency, kept until those are back
	Parked int `json:"parked"`
	// sessions whose last call was given up, until their nodes say that they are idle; they count
	// as leased
	Recovering int            `json:"recovering"`
	Recovered  uint64         `json:"recovered"`          // sessions that recovered so far
	Adaptive   *adaptiveState `json:"adaptive,omitempty"` // the limit's law; left out without pool.adaptive
}

// adaptiveState is what pool.adaptive knows and did.
type adaptiveState struct {
	Limit     float64           `json:"limit"`      // outside the moments when all sidecars hold back
	BaseMS    float64           `json:"base_ms"`    // latency without queues; 0: not known yet
	LatencyMS float64           `json:"latency_ms"` // mean of the last window
	Changes   map[string]uint64 `json:"changes"`    // of the limit so far, by reason
}

func adaptiveStateOf(l *LimitsState) *adaptiveState {
	if l == nil {
		return nil
	}
	s := &l.Own
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	out := &adaptiveState{Limit: math.Round(s.Limit*100) / 100, BaseMS: ms(s.Base), LatencyMS: ms(s.Latency), Changes: map[string]uint64{}}
	for reason, n := range s.Changes {
		out.Changes[adaptive.Reason(reason).String()] = n
	}
	return out
}

// PoolState returns /state/pool.
func (s *Source) PoolState() PoolState { return s.look(ofPool | ofLimits).PoolState() }

// PoolState returns /state/pool. It needs the pool and the limits.
func (s *Snapshot) PoolState() PoolState {
	p := &s.Pool
	waiting := make(map[string]int, pool.ClassSize)
	for class, n := range p.Waiting {
		waiting[pool.Class(class).String()] = n
	}
	shed := make(map[string]uint64, len(p.Shed))
	for why, n := range p.Shed {
		shed[pool.Shed(why).String()] = n
	}
	return PoolState{
		Max: p.Max, Min: p.Min, Paused: p.Pause, OldestMS: milliseconds(p.Oldest), OpenErr: lineOf(p.OpenErr),
		Sessions: p.Sessions, Idle: p.Idle, Busy: p.InUse, Creating: p.Opening, Closing: p.Closing, Waiting: waiting,
		Created: p.Created, Closed: p.Closed, Failed: p.Failed, TimedOut: p.TimedOut, Refused: p.Refused, Shed: shed,
		Moved: p.Moved, Moving: p.Moving, Paced: p.Paced, Warm: s.Warm, Limit: p.Limit, Aside: p.Aside,
		Parked: p.Parked, Recovering: p.Recovering, Recovered: p.Recovered, Adaptive: adaptiveStateOf(s.Limits),
	}
}

// ClassNames are the classes in the words of /state/apps and of metrics.
var ClassNames = func() (names [apps.Classes]string) {
	var all [pool.ClassSize]string = names // as many as the pool has
	for class := range all {
		names[class] = pool.Class(class).String()
	}
	return names
}()

// NodesState is /state/nodes.
type NodesState struct {
	Panic     bool            `json:"panic"`     // more than half of the nodes are ejected
	Forwarded uint64          `json:"forwarded"` // calls of open transactions sent around an unreachable owner
	Scattered uint64          `json:"scattered"` // calls sent to a random node: routing.affinity is off
	Preferred []string        `json:"preferred"` // zones that get new load first
	Local     float64         `json:"local"`     // part of new load that stays in them, 0 to 1
	Discovery discoveryState  `json:"discovery"`
	Nodes     []NodeStateItem `json:"nodes"`
}

type discoveryState struct {
	Mode     string    `json:"mode"`              // discovery.mode: where the list comes from
	Answered time.Time `json:"answered,omitzero"` // last good answer
	Failures int       `json:"failures"`          // in a row since then
	Error    string    `json:"error,omitempty"`
	Version  string    `json:"version,omitempty"`  // of the answer, in the words of a control plane
	LeftOut  int       `json:"left_out,omitempty"` // nodes that it lists and that are not used: there are more than 16384

	// Addresses that a source named without a node id, and that did not tell theirs.
	Unidentified []unidentifiedState `json:"unidentified,omitempty"`
}

type unidentifiedState struct {
	Address string `json:"address"`
	Error   string `json:"error,omitempty"`
}

// maxUnidentified bounds the list.
const maxUnidentified = 100

// NodeStateItem is one node of /state/nodes. Wide: the document has all that is
// known of a node on one level.
type NodeStateItem struct {
	ID        cluster.NodeID `json:"id"`
	Address   string         `json:"address"`
	Zone      string         `json:"zone,omitempty"`
	Pile      string         `json:"pile,omitempty"`       // of a cluster in bridge mode
	PileState string         `json:"pile_state,omitempty"` // primary, synchronized, not_synchronized or detached
	Health    string         `json:"health"`
	Draining  bool           `json:"leaving"`
	// as discovery says: the node gets new work only when most nodes are ejected or listed so
	Unwell      bool      `json:"listed_unhealthy"`
	Missing     bool      `json:"missing"` // it vanished from discovery with many others, and is kept until that is sure
	Unreachable bool      `json:"unreachable"`
	Banned      bool      `json:"banned"`          // by an operator
	Drained     bool      `json:"drained"`         // by an operator
	Cause       string    `json:"cause,omitempty"` // of the ejection
	Use         string    `json:"use"`
	Weight      float32   `json:"weight"`          // part of new load, relative to the other nodes
	Ramp        float32   `json:"share,omitempty"` // of its fair share while it returns from an ejection; left out: all of it
	Reason      string    `json:"reason,omitempty"`
	Since       time.Time `json:"since,omitzero"`
	Until       time.Time `json:"until,omitzero"` // end of the ejection time
	Next        string    `json:"next"`           // what happens next, and when
	LatencyMS   float64   `json:"latency_ms"`     // decayed, of calls that did their work
	Cost        int64     `json:"cost"`           // of one more call, relative to the other nodes
	Calls       int64     `json:"calls"`          // open now
	Refused     uint64    `json:"refused"`        // above routing.max_calls_per_node
	Sessions    int       `json:"sessions"`
	Cap         int       `json:"cap"`
	Fair        float64   `json:"fair"` // sessions that it should have of those that there are
	Idle        int       `json:"idle"`
	Busy        int       `json:"busy"`
	Creating    int       `json:"creating"`
	Closing     int       `json:"closing"`
	Created     uint64    `json:"created"`
	Failed      uint64    `json:"failed"`
	Failures    int       `json:"failures"` // to open a session, in a row
}

// NodesState returns /state/nodes.
func (s *Source) NodesState() NodesState {
	return s.look(ofPool | ofNodes).NodesState(s.Detector.Nexts())
}

// NodesState returns /state/nodes, told what happens next on each node. It needs the pool and the nodes.
func (s *Snapshot) NodesState(nexts map[cluster.NodeID]pessimize.Next) NodesState {
	routed, d := &s.Routed, &s.Discovery
	out := NodesState{
		Panic: routed.Panic, Forwarded: routed.Forwarded, Scattered: routed.Scattered, Preferred: routed.Preferred, Local: routed.Local,
		Discovery: discoveryState{
			Mode: s.Starting.Discovery, Answered: d.Answered, Failures: d.Failures, Version: d.Source.Version, LeftOut: d.Topology.LeftOut,
		},
		Nodes: []NodeStateItem{},
	}
	if d.Err != nil {
		out.Discovery.Error = d.Err.Error()
	}
	for _, u := range d.Source.Unidentified[:min(len(d.Source.Unidentified), maxUnidentified)] {
		item := unidentifiedState{Address: u.Address}
		if u.Err != nil {
			item.Error = u.Err.Error()
		}
		out.Discovery.Unidentified = append(out.Discovery.Unidentified, item)
	}
	sessions := sessionsByNode(&s.Pool)
	for _, n := range routed.Nodes {
		p, next := sessions[n.Node.ID], nexts[n.Node.ID]
		v := n.Node.Condition
		out.Nodes = append(out.Nodes, NodeStateItem{
			ID: n.Node.ID, Address: n.Node.Address, Zone: n.Node.Zone, Pile: n.Node.Pile.Name, PileState: n.Node.Pile.State.String(),
			Health: v.Health.String(), Draining: v.Draining, Missing: n.Node.Missing, Unwell: n.Node.Unwell,
			Unreachable: v.Unreachable, Banned: v.Banned, Drained: next.Drained,
			Use: n.Node.Use.String(), Weight: n.Node.Weight, Ramp: v.Ramp, Reason: v.Reason, Since: v.Since,
			Until: next.EjectedUntil, Next: next.Text,
			Cause:     causeOf(v),
			LatencyMS: float64(n.Node.Load.Latency().Microseconds()) / 1000, Cost: n.Node.Load.Cost(),
			Calls: n.Calls, Refused: n.Refused,
			Sessions: p.Sessions, Cap: p.Cap, Fair: math.Round(10*p.Fair) / 10, Idle: p.Idle, Busy: p.InUse,
			Creating: p.Opening, Closing: p.Closing,
			Created: p.Created, Failed: p.Failed, Failures: p.Failures,
		})
	}
	return out
}

func causeOf(v cluster.Condition) string {
	if v.Cause == cluster.CauseNone {
		return ""
	}
	return v.Cause.String()
}

func sessionsByNode(s *pool.Stats) map[cluster.NodeID]pool.NodeStats {
	byNode := map[cluster.NodeID]pool.NodeStats{}
	for _, n := range s.Nodes {
		byNode[n.Node] = n
	}
	return byNode
}

// TransactionsState is /state/transactions.
type TransactionsState struct {
	API          facade.State              `json:"api"`
	Transactions []facade.TransactionState `json:"transactions"`
}

// TransactionsState returns /state/transactions.
func (s *Source) TransactionsState() TransactionsState {
	return TransactionsState{API: s.look(ofAPI).API, Transactions: s.API.Transactions()}
}

// ConnectionsState returns /state/connections. With wire.mode off it has only the number
// of clients.
func (s *Source) ConnectionsState(q admin.Query) any {
	if s.Wire != nil {
		state := s.Wire.State()
		state.Connections = admin.First(q, state.Connections)
		return state
	}
	clients := s.look(ofClients).Clients
	return map[string]int{"clients": clients["grpc"] + clients["grpc_socket"]}
}

// XDSState returns /state/xds.
func (s *Source) XDSState(q admin.Query) xds.State {
	if s.XDS == nil {
		return xds.State{Nodes: map[string]int{}, Clients: []xds.ClientState{}}
	}
	state := s.XDS.State(q.Limit)
	state.Address = s.XDSAddress
	return state
}

// QueueState is /state/queue.
type QueueState struct {
	Waiting  int         `json:"waiting"`   // callers
	OldestMS float64     `json:"oldest_ms"` // wait of the first of them; 0: nobody waits
	Limit    int         `json:"limit"`     // pool.queue
	Queues   []queueLine `json:"queues"`    // queues that are not empty
}

// queueLine is one app in one class.
type queueLine struct {
	Class    string  `json:"class"`
	App      string  `json:"app"`
	Waiting  int     `json:"waiting"`
	OldestMS float64 `json:"oldest_ms"`
}

// QueueState returns /state/queue.
func (s *Source) QueueState() QueueState {
	out := QueueState{Limit: s.Settings().Queue, Queues: []queueLine{}}
	for _, q := range s.Pool.Queues() {
		out.Waiting += q.Waiting
		out.OldestMS = max(out.OldestMS, milliseconds(q.Oldest))
		out.Queues = append(out.Queues, queueLine{
			Class: q.Class.String(), App: s.Apps.NameOf(q.App), Waiting: q.Waiting, OldestMS: milliseconds(q.Oldest),
		})
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func lineOf(err error) string {
	if err == nil {
		return ""
	}
	return findings.OneLine(err)
}
