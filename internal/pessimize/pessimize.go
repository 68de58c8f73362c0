// Package pessimize decides which nodes deserve traffic. Nothing else in the
// project decides about health.
//
// It owns one state machine per node, Healthy → Suspect → Ejected → Probing →
// Healthy, written as a table (docs/concepts/health.md shows it), a second one of the doubts
// about its speed, the flag Leaving and the share of a node that returns beside
// it, and the orders of operators above it. What always holds:
//
//   - Report is lock-free, allocates nothing for successes, and may be called
//     from any goroutine; Run is the only writer of states and the only caller
//     of subscribers.
//   - A node never goes from Ejected to Healthy without answered probes; time
//     alone brings no node back.
//   - Outcomes with BlameNone (a caller's cancel, its deadline, its bad SQL, a
//     conflict) change nothing by themselves: that callers gave up waiting counts
//     only where they wait much longer than on the other nodes.
//   - Latency ejects a node only against at least two others that are faster, and
//     refusals only one that refuses much more than the others; both together
//     never more than Config.SoftMax of the nodes.
//   - Orders of operators stay until they are taken back, or the time is over
//     that was given with them.
//   - At most one probe per node and maxProbes in all are under way, each
//     bounded by Config.ProbeTimeout. Nodes that are lost have places of their own: however
//     many there are, they hold up no probe of another node.
//   - Each step is an event; events and all other memory are bounded.
//
// How many nodes may be ejected for other signs is not decided here: routing
// uses ejected nodes again when too few others are left.
package pessimize

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/latency"
)

// A look reads the signs of all nodes, so a storm of errors must not have one follow the
// other: between two of them is minGap, or restPerNode for each node if that is more. A look
// takes about a tenth of that.
const (
	minGap      = time.Millisecond
	restPerNode = 4 * time.Microsecond
)

func (j *Detector) gap() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(minGap, time.Duration(len(j.nodes))*restPerNode)
}

// Detector is safe for use by any number of goroutines.
type Detector struct {
	prober Prober
	log    *slog.Logger

	signs   atomic.Pointer[map[cluster.NodeID]*signs] // the map is immutable
	wake    chan struct{}                             // capacity 1: there is something to look at
	results chan probeResult                          // capacity maxProbes: a sender never waits

	mu          sync.Mutex // guards all below; never held while a subscriber or a probe runs
	config      Config
	topology    *cluster.Topology
	overrides   map[cluster.NodeID]overrides
	subscribers []func(cluster.Conditions)
	panics      []func()
	state
}

// state is written by Run alone.
type state struct {
	nodes     map[cluster.NodeID]*node
	journal   journal
	stats     Stats
	refusing  *refusing // of this look; nil: not needed yet
	compared  int       // times that a node's latencies were compared with all others'
	probes    underWay
	published cluster.Conditions // what subscribers know
	ejected   int                // listed nodes among them that are ejected
	panicking bool               // more than half
	beatAt    time.Time          // last look at the latencies
	idleFrom  time.Time          // no probe of an idle node before
	heldFrom  time.Time          // no probe of a missing node before
}

// New returns a judge that knows no node. Nothing happens before Run.
func New(config Config, prober Prober, log *slog.Logger) *Detector {
	j := &Detector{
		config:    config,
		prober:    prober,
		log:       log,
		wake:      make(chan struct{}, 1),
		results:   make(chan probeResult, maxProbes),
		overrides: make(map[cluster.NodeID]overrides),
		state:     state{nodes: make(map[cluster.NodeID]*node)},
	}
	j.signs.Store(&map[cluster.NodeID]*signs{})
	return j
}

// Config returns the configuration that is in force.
func (j *Detector) Config() Config {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.config
}

// Reconfigure puts another configuration into force, which must be valid. What has
// been counted and decided stays; the next look judges it again.
func (j *Detector) Reconfigure(c Config) {
	j.mu.Lock()
	j.config = c
	for _, n := range j.nodes {
		n.signs.floor.Store(int64(c.LatencyFloor))
	}
	j.mu.Unlock()
	j.nudge()
}

// Report takes the outcome of one call. Outcomes of unknown nodes are ignored,
// and so are the answers to probes, which Run sees itself, except that the node leaves or
// serves another database. A probe with BlameTransport is a failed probe on a connection
// that had calls outstanding, and ejects at once. Report takes no lock, and allocates only
// for bad signs.
func (j *Detector) Report(o cluster.Outcome) {
	if o.Kind == cluster.CallProbe && o.Blame <= cluster.BlameRefusal {
		return
	}
	if s := (*j.signs.Load())[o.Node]; s != nil && s.add(o) {
		j.nudge()
	}
}

// SetTopology takes the newest answer of discovery. A node that it no longer
// lists is Leaving and remembered for Config.Forget. An empty topology is no
// answer and is ignored.
func (j *Detector) SetTopology(t cluster.Topology) {
	if len(t.Nodes) == 0 {
		return
	}
	j.mu.Lock()
	j.topology = &t
	j.mu.Unlock()
	j.nudge()
}

// Subscribe has f called by Run with every new set of verdicts, which names all
// known nodes. f must not block. Subscribe before Run.
func (j *Detector) Subscribe(f func(cluster.Conditions)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.subscribers = append(j.subscribers, f)
}

// OnPanic has f called by Run when more than half of the listed nodes have come
// to be ejected, without those that operators banned, and at each further
// ejection while that lasts: it is time to ask discovery. f must not block. Call
// it before Run.
func (j *Detector) OnPanic(f func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.panics = append(j.panics, f)
}

// Heard is what all calls to a node have shown since it is known, or came back
// with another address.
type Heard struct {
	Took latency.Counts // of calls that did their work, to the first part of the answer
	Bad  uint64         // transport errors and refusals
}

// Heard reads what the calls to a node have shown into h; nothing for a node that is not known.
func (j *Detector) Heard(id cluster.NodeID, h *Heard) {
	*h = Heard{}
	if s := (*j.signs.Load())[id]; s != nil {
		for k := range s.times {
			s.times[k].AddTo(&h.Took)
		}
		h.Bad = s.bad.Load()
	}
}

func (j *Detector) nudge() {
	select {
	case j.wake <- struct{}{}:
	default: // Run has yet to come to the last one
	}
}

// Run judges until ctx ends, and waits for the probes under way. It returns nil.
func (j *Detector) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel()

	timer := time.NewTimer(0)
	defer timer.Stop()
	var looked time.Time // when the newest look ended
	for {
		var results []probeResult
		select {
		case <-ctx.Done():
			return nil
		case <-j.wake:
		case <-timer.C:
		case r := <-j.results:
			results = append(results, r)
		}
		if rest := j.gap() - time.Since(looked); rest > 0 {
			timer.Reset(rest)
			select {
			case <-ctx.Done():
				return nil
			case <-timer.C:
			}
		}
		for more := true; more; {
			select {
			case r := <-j.results:
				results = append(results, r)
			default:
				more = false
			}
		}
		if len(results) > 0 {
			j.heed(results, time.Now())
			// Published at once: the signs may step the machine again below, and
			// every step is told.
			j.publish(ctx)
		}
		now := time.Now()
		next := j.look(ctx, &probes, now)
		j.publish(ctx)
		looked = time.Now()
		timer.Reset(next.Sub(now))
	}
}

// heed takes the results of probes, at most one of each node.
func (j *Detector) heed(results []probeResult, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range results {
		*j.probes.of(r.lost)--
		if j.nodes[r.node.ID] == r.node {
			j.probed(r, now)
		}
	}
}

// look reads all signs, steps the machines, and starts the probes that are due.
// It returns when to look again, if nothing happens before.
func (j *Detector) look(ctx context.Context, probes *sync.WaitGroup, now time.Time) (next time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stats.Looks++
	j.refusing = nil
	j.applyTopology(now)
	j.obey(now)
	j.begin(now)
	for _, n := range j.nodes {
		n.look(j, now)
	}
	if now.Sub(j.beatAt) >= beat {
		j.weigh(now)
	}
	j.suspect(now)
	return j.startProbes(ctx, probes, now)
}

// applyTopology brings the nodes in line with the newest topology and forgets
// those that left long ago.
func (j *Detector) applyTopology(now time.Time) {
	changed := false
	if j.topology != nil {
		changed = j.setNodes(*j.topology, now)
		j.topology = nil
	}
	maps.DeleteFunc(j.nodes, func(_ cluster.NodeID, n *node) bool {
		forget := !n.departed.IsZero() && now.Sub(n.departed) >= j.config.Forget
		if forget {
			changed = true
			j.journal.add(now, n, EventNode, "known", "", fmt.Sprintf("left discovery %v ago", j.config.Forget))
		}
		return forget
	})
	if changed {
		all := make(map[cluster.NodeID]*signs, len(j.nodes))
		for id, n := range j.nodes {
			all[id] = n.signs
		}
		j.signs.Store(&all)
	}
}

// setNodes reports whether there is another set of signs now.
func (j *Detector) setNodes(t cluster.Topology, now time.Time) (changed bool) {
	listed := make(map[cluster.NodeID]bool, len(t.Nodes))
	first := len(j.nodes) == 0
	var counted vanished
	for _, n := range t.Nodes {
		listed[n.ID] = true
		known := j.nodes[n.ID]
		counted.count(known != nil && known.Missing, n.Missing)
		switch {
		case known == nil:
			j.nodes[n.ID] = newNode(n, j.config, &j.journal, now)
			if !first {
				j.nodes[n.ID].arrived = arrivedNew
			}
			j.journal.add(now, j.nodes[n.ID], EventNode, "", "known", "discovery lists it")
			changed = true
		case known.Address != n.Address:
			j.replace(known, n, now)
			changed = true
		default:
			known.list(n, now)
		}
	}
	for id, n := range j.nodes {
		if !listed[id] && n.departed.IsZero() {
			n.departed = now
			n.leave(now, leftDiscovery)
			if n.Missing {
				n.Missing = false
				counted.left++
			}
		}
	}
	counted.tell(&j.journal, len(t.Nodes), now)
	return changed
}

// replace puts another process in the place of a node that is listed at another address.
func (j *Detector) replace(known *node, n cluster.Node, now time.Time) {
	replaced := newNode(n, j.config, &j.journal, now)
	replaced.history, replaced.overrides, replaced.arrived = known.history, known.overrides, arrivedMoved
	if !known.departed.IsZero() {
		replaced.arrived = arrivedNew
	}
	j.nodes[n.ID] = replaced
	j.journal.add(now, replaced, EventNode, known.Address, n.Address, "another address, so another process")
}

// list takes what discovery says of a node that it listed before at the same address.
func (n *node) list(as cluster.Node, now time.Time) {
	switch {
	case as.Draining && !n.Draining:
		n.journal.add(now, n, EventDraining, "", "leaving", drained)
	case !as.Draining && n.Draining:
		n.journal.add(now, n, EventDraining, "leaving", "", "no longer drained")
	}
	if as.Missing && !n.Missing {
		n.missing = now
	}
	n.Node = as
	if !n.departed.IsZero() {
		n.departed, n.arrived = time.Time{}, arrivedNew
		n.stay(now, "back in discovery")
	}
}

// vanished counts nodes of one answer of discovery: those that came to be held, that are listed again, and that
// left at last.
type vanished struct{ missing, back, left int }

func (v *vanished) count(was, is bool) {
	switch {
	case is && !was:
		v.missing++
	case was && !is:
		v.back++
	}
}

func (v vanished) tell(j *journal, listed int, now time.Time) {
	if v.missing > 0 {
		j.add(now, nil, EventMissing, "", "missing",
			fmt.Sprintf("%d of %d nodes vanished from discovery at once: they are kept until it is sure", v.missing, listed))
	}
	if v.back+v.left > 0 {
		j.add(now, nil, EventMissing, "missing", "",
			fmt.Sprintf("of the nodes that vanished at once %d are listed again, %d left", v.back, v.left))
	}
}

// publish tells the log and the subscribers what changed, and raises the alarm
// if it is time.
func (j *Detector) publish(ctx context.Context) {
	j.mu.Lock()
	changed := len(j.published) != len(j.nodes)
	for id, n := range j.nodes {
		if was, known := j.published[id]; !known || was != n.shown() {
			changed = true
			break
		}
	}
	alarm := false
	if changed {
		verdicts := make(cluster.Conditions, len(j.nodes))
		for id, n := range j.nodes {
			verdicts[id] = n.shown()
		}
		j.published = verdicts
		alarm = j.alarm(time.Now())
	}
	verdicts, untold := j.published, j.journal.untold
	j.journal.untold = nil
	subscribers, panics := j.subscribers, j.panics
	j.mu.Unlock()

	j.tell(ctx, untold)
	if changed {
		for _, f := range subscribers {
			f(verdicts)
		}
	}
	if alarm {
		for _, f := range panics {
			f()
		}
	}
}

// alarm keeps the count of ejected nodes, and reports whether more than half are
// and more than before.
func (j *Detector) alarm(now time.Time) (more bool) {
	listed, out, _ := j.census()
	more = out > j.ejected
	j.ejected = out
	if panicking := out*2 > listed; panicking != j.panicking {
		j.panicking = panicking
		text := fmt.Sprintf("%d of %d nodes are ejected", out, listed)
		if panicking {
			j.stats.Panics++
			j.journal.add(now, nil, EventPanic, "", "panic", text+"; ejections for refusals and latency are ignored")
		} else {
			j.journal.add(now, nil, EventPanic, "panic", "", text)
		}
	}
	return more && j.panicking
}

// tell logs events.
func (j *Detector) tell(ctx context.Context, events []Event) {
	for _, e := range events {
		level := slog.LevelInfo
		switch {
		case e.Kind == EventRamp, e.Kind == EventNode:
			level = slog.LevelDebug
		case e.To == cluster.Ejected.String(), e.To == "panic", e.To == "missing":
			level = slog.LevelWarn
		}
		j.log.Log(ctx, level, "health of nodes changed", "event", e.Seq, "node", e.Node, "kind", string(e.Kind), "from",
			e.From, "to", e.To, "reason", e.Reason)
	}
}
