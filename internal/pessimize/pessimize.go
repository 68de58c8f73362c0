// Package pessimize decides which nodes deserve traffic. Nothing else in the
// project decides about health.
//
// It owns one state machine per node, Healthy → Suspect → Ejected → Probing →
// Healthy, written as a table (docs/health.md shows it), and one flag beside
// it: Leaving. What always holds:
//
//   - Report is lock-free and may be called from any goroutine; Run is the only
//     writer of states and the only caller of subscribers.
//   - A node never goes from Ejected to Healthy without answered probes; time
//     alone brings no node back.
//   - Outcomes with BlameNone (a caller's cancel, its deadline, its bad SQL, a
//     conflict) change nothing.
//   - At most one probe per node and maxProbes in all are under way, each
//     bounded by Config.ProbeTimeout.
//
// How many nodes may be ejected is not decided here: routing uses ejected nodes
// again when too few others are left.
package pessimize

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

const (
	maxProbes = 32               // bounds the probes under way
	minGap    = time.Millisecond // between two looks at the signs: a storm of errors must not keep a core busy here
)

// ErrRefused is to be wrapped by a Prober's error when the node answered the
// probe but refused it. Every other error means that it could not be reached.
var ErrRefused = errors.New("the node refused the probe")

// Prober makes one cheap call to one node. It returns nil if the node answered
// and honours ctx, which carries Config.ProbeTimeout.
type Prober interface {
	Probe(ctx context.Context, id cluster.NodeID) error
}

// Judge is safe for use by any number of goroutines.
type Judge struct {
	config Config
	prober Prober
	log    *slog.Logger

	signs   atomic.Pointer[map[cluster.NodeID]*signs] // the map is immutable
	wake    chan struct{}                             // capacity 1: there is something to look at
	results chan probeResult                          // capacity maxProbes: a sender never waits

	mu          sync.Mutex // guards all below
	topology    *cluster.Topology
	subscribers []func(cluster.Verdicts)
	panics      []func()

	// Run only:
	nodes     map[cluster.NodeID]*node
	probes    int              // under way
	published cluster.Verdicts // what subscribers know
	ejected   int              // listed nodes among them that are ejected
}

type probeResult struct {
	node  *node
	began time.Time
	err   error
}

func (r probeResult) refused() bool { return errors.Is(r.err, ErrRefused) }

// reason is one line of bounded length.
func (r probeResult) reason() string {
	text := strings.Join(strings.Fields(r.err.Error()), " ")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "..."
	}
	return "probe: " + text
}

// New returns a judge that knows no node. Nothing happens before Run.
func New(config Config, prober Prober, log *slog.Logger) *Judge {
	j := &Judge{
		config:  config,
		prober:  prober,
		log:     log,
		wake:    make(chan struct{}, 1),
		results: make(chan probeResult, maxProbes),
		nodes:   make(map[cluster.NodeID]*node),
	}
	j.signs.Store(&map[cluster.NodeID]*signs{})
	return j
}

// Report takes the outcome of one call. Outcomes of unknown nodes are ignored,
// and so are those of probes, which Run sees itself, but for one: a probe with
// BlameTransport is a failed probe on a connection that had calls outstanding,
// and ejects at once. Report takes no lock, and allocates only for bad signs.
func (j *Judge) Report(o cluster.Outcome) {
	if o.Kind == cluster.CallProbe && o.Blame != cluster.BlameTransport {
		return
	}
	if s := (*j.signs.Load())[o.Node]; s != nil && s.add(o) {
		j.nudge()
	}
}

// SetTopology takes the newest answer of discovery. A node that it no longer
// lists is Leaving and remembered for Config.Forget. An empty topology is no
// answer and is ignored.
func (j *Judge) SetTopology(t cluster.Topology) {
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
func (j *Judge) Subscribe(f func(cluster.Verdicts)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.subscribers = append(j.subscribers, f)
}

// OnPanic has f called by Run when more than half of the listed nodes have come
// to be ejected, and at each further ejection while that lasts: it is time to
// ask discovery. f must not block. Call it before Run.
func (j *Judge) OnPanic(f func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.panics = append(j.panics, f)
}

func (j *Judge) nudge() {
	select {
	case j.wake <- struct{}{}:
	default: // Run has yet to come to the last one
	}
}

// Run judges until ctx ends, and waits for the probes under way. It returns nil.
func (j *Judge) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel()

	timer := time.NewTimer(0)
	defer timer.Stop()
	var looked time.Time
	for {
		changed := false
		select {
		case <-ctx.Done():
			return nil
		case <-j.wake:
			if rest := minGap - time.Since(looked); rest > 0 {
				timer.Reset(rest)
				continue
			}
		case <-timer.C:
		case r := <-j.results:
			j.probes--
			// Published at once: the signs may step the machine again below, and
			// every step is told.
			if j.nodes[r.node.ID] == r.node && r.node.probed(j.config, r, time.Now()) {
				j.publish(ctx)
			}
		}
		now := time.Now()
		looked = now
		changed = j.applyTopology(now) || changed
		for _, n := range j.nodes {
			changed = n.look(j.config, now) || changed
		}
		next := j.startProbes(ctx, &probes, now)
		if changed {
			j.publish(ctx)
		}
		timer.Reset(next.Sub(now))
	}
}

// applyTopology brings the nodes in line with the newest topology and forgets
// those that left long ago. It reports whether any verdict changed.
func (j *Judge) applyTopology(now time.Time) (changed bool) {
	j.mu.Lock()
	t := j.topology
	j.topology = nil
	j.mu.Unlock()
	if t != nil {
		changed = j.setNodes(*t, now)
	}
	maps.DeleteFunc(j.nodes, func(_ cluster.NodeID, n *node) bool {
		forget := !n.departed.IsZero() && now.Sub(n.departed) >= j.config.Forget
		changed = changed || forget
		return forget
	})
	if changed {
		all := make(map[cluster.NodeID]*signs, len(j.nodes))
		for id, n := range j.nodes {
			all[id] = n.signs
		}
		j.signs.Store(&all)
	}
	return changed
}

func (j *Judge) setNodes(t cluster.Topology, now time.Time) (changed bool) {
	listed := make(map[cluster.NodeID]bool, len(t.Nodes))
	for _, n := range t.Nodes {
		listed[n.ID] = true
		known := j.nodes[n.ID]
		switch {
		case known == nil || known.Address != n.Address:
			// At another address it is another process.
			j.nodes[n.ID] = newNode(n, now)
			changed = true
		case !known.departed.IsZero():
			known.departed = time.Time{}
			known.stay()
			known.verdict.Reason = "back in discovery"
			changed = true
		}
	}
	for id, n := range j.nodes {
		if !listed[id] && n.departed.IsZero() {
			n.departed = now
			n.verdict.Leaving = true
			n.verdict.Reason = "left discovery"
			changed = true
		}
	}
	return changed
}

// startProbes starts what is due and returns when to look again.
func (j *Judge) startProbes(ctx context.Context, running *sync.WaitGroup, now time.Time) (next time.Time) {
	next = now.Add(j.config.ProbeInterval)
	for _, n := range j.nodes {
		if n.verdict.Health == cluster.Ejected && n.departed.IsZero() && n.until.Before(next) {
			next = n.until
		}
		due := n.wantsProbe(j.config)
		switch {
		case due.IsZero():
		case due.After(now):
			if due.Before(next) {
				next = due
			}
		case j.probes < maxProbes:
			j.probes++
			n.probing = true
			running.Go(func() {
				limited, cancel := context.WithTimeout(ctx, j.config.ProbeTimeout)
				defer cancel()
				began := time.Now()
				j.results <- probeResult{node: n, began: began, err: j.prober.Probe(limited, n.ID)}
			})
		default:
			// The next result brings Run back here.
		}
	}
	return next
}

// publish tells the log and the subscribers, and raises the alarm if it is time.
func (j *Judge) publish(ctx context.Context) {
	verdicts := make(cluster.Verdicts, len(j.nodes))
	listed, ejected := 0, 0
	for id, n := range j.nodes {
		verdicts[id] = n.verdict
		if n.departed.IsZero() {
			listed++
			if n.verdict.Health == cluster.Ejected || n.verdict.Health == cluster.Probing {
				ejected++
			}
		}
		j.logChange(ctx, n)
	}
	more := ejected > j.ejected
	j.published, j.ejected = verdicts, ejected
	j.mu.Lock()
	subscribers, panics := slices.Clone(j.subscribers), slices.Clone(j.panics)
	j.mu.Unlock()
	for _, f := range subscribers {
		f(verdicts)
	}
	if more && ejected*2 > listed {
		for _, f := range panics {
			f()
		}
	}
}

func (j *Judge) logChange(ctx context.Context, n *node) {
	was := j.published[n.ID] // a new node was Healthy
	if was.Health == n.verdict.Health && was.Leaving == n.verdict.Leaving {
		return
	}
	level := slog.LevelInfo
	if n.verdict.Health == cluster.Ejected {
		level = slog.LevelWarn
	}
	j.log.Log(ctx, level, "health of a node changed", "node", n.ID, "address", n.Address,
		"was", was.Health.String(), "is", n.verdict.Health.String(), "leaving", n.verdict.Leaving, "reason", n.verdict.Reason)
}
