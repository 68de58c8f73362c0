// Package discovery asks the cluster for its nodes and tells everybody who
// wants to know.
//
// It owns the current cluster.Topology. What always holds: a failure, or an
// answer without nodes, never takes a topology away; questions are asked one at
// a time, at most one per MinPause, however many goroutines call Refresh; nothing
// but the first question has a fixed time, so that many sidecars started at once
// do not ask in step; subscribers hear each answer in order, from the goroutine
// of Run; nodes that vanish in numbers stay in the topology for a grace: see guard;
// an address that several nodes share is one node with one id: see keys.
// Attention calls Refresh more often while nodes are ejected or gone.
package discovery

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Source is asked for the nodes, by one goroutine; upstream.Driver satisfies it. It
// must honour ctx.
type Source interface {
	ListEndpoints(ctx context.Context) (cluster.Topology, error)
	Database() string
}

// elsewhere is a Source that can ask another server than the one that answered last.
type elsewhere interface {
	ListElsewhere(ctx context.Context) (cluster.Topology, error)
}

// runner is a Source that works between questions. Discovery.Run runs it, and waits
// for it. changed has the question asked soon.
type runner interface {
	run(ctx context.Context, changed func()) error
}

// SourceState is what a source knows beside its answer.
type SourceState struct {
	Version      string         // of the answer, in the words of the control plane
	Unidentified []Unidentified // addresses that are not listed, because their node ids are not known
}

// teller is a Source that has a SourceState.
type teller interface{ state() SourceState }

// Config is the section "discovery".
type Config struct {
	// Source of the list of nodes: ydb (YDB's own discovery), static (discovery.nodes), dns
	// (discovery.dns_name) or xds (a control plane, discovery.xds_url)
	Mode string `yaml:"mode"`
	// Nodes for mode static: a list of ID=host:port, or ID=host:port@zone
	Nodes []Endpoint `yaml:"nodes"`
	// DNS name for mode dns: host:port for its addresses (A, AAAA), or a name without port for its SRV
	// records
	DNSName string `yaml:"dns_name"`
	// DNS server for mode dns, host:port. Empty: the system's servers
	DNSHost string    `yaml:"dns_server"`
	XDS     XDSConfig `yaml:",inline"`
	// Time between two questions for the list of nodes, up to 20 % more or less at random
	Interval time.Duration `yaml:"interval"`
	// Shortest time between two questions for the list of nodes, whatever asks for them
	MinPause time.Duration `yaml:"min_pause"`
	// Pause after a first failure, up to 50 % longer at random; it doubles with each further failure
	RetryMin time.Duration `yaml:"retry_min"`
	RetryMax time.Duration `yaml:"retry_max"` // Longest pause after repeated failures
}

// Default asks every 5 s, so that an added node has its share of sessions within 10 s. The official SDKs
// ask once a minute; a sidecar asks once for all the processes of its host.
func Default() Config {
	return Config{Mode: ModeYDB, Interval: 5 * time.Second, MinPause: 500 * time.Millisecond,
		RetryMin: 500 * time.Millisecond, RetryMax: 4 * time.Second}
}

// Validate reports every fault of c.
func (c Config) Validate() error {
	errs := []error{c.validateMode()}
	for _, d := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"interval", c.Interval, 10 * time.Millisecond},
		{"min_pause", c.MinPause, time.Millisecond},
		{"retry_min", c.RetryMin, time.Millisecond},
		{"retry_max", c.RetryMax, c.RetryMin},
	} {
		if d.value < d.least {
			errs = append(errs, config.Faultf(d.name, " = %v; must be >= %v", d.value, d.least))
		}
	}
	return errors.Join(errs...)
}

// askTimeout bounds one question, all addresses together.
const askTimeout = 30 * time.Second

// State is what discovery knows, for operators.
type State struct {
	Topology cluster.Topology // with nodes that are held: their Missing is set
	Missing  int              // nodes that are held
	Grace    time.Duration    // for which a node is held
	Answered time.Time        // when the last good answer came; zero: never
	Failures int              // in a row since then
	Err      error            // of the last failure; nil after a good answer
	Source   SourceState
}

// Discovery is safe for concurrent use.
type Discovery struct {
	config  Config
	source  Source
	log     *slog.Logger
	kick    chan struct{} // capacity 1: somebody wants a question asked now
	news    chan struct{} // capacity 1: the source has another answer
	kicks   int           // questions in a row that were asked because of a kick; of the goroutine of Run
	nearest *nearest      // nil: nobody wants to know
	keys    keys          // of the goroutine of Run
	guard   guard         // of the goroutine of Run

	held atomic.Uint64 // guard.began

	conditions atomic.Pointer[cluster.Conditions] // the newest
	judged     chan struct{}                      // capacity 1: they are new

	mu          sync.Mutex // guards all below; never held while a subscriber runs
	state       State
	subscribers []func(cluster.Topology)
}

// New returns a discovery that has asked nothing yet.
func New(config Config, source Source, log *slog.Logger) *Discovery {
	d := &Discovery{
		config: config, source: source, log: log,
		kick: make(chan struct{}, 1), news: make(chan struct{}, 1), judged: make(chan struct{}, 1),
		keys: newKeys(source), guard: newGuard(config.grace()),
	}
	d.conditions.Store(&cluster.Conditions{})
	return d
}

// Subscribe has f called by Run with every answer. f must not block. Call it
// before Run.
func (d *Discovery) Subscribe(f func(cluster.Topology)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subscribers = append(d.subscribers, f)
}

// MeasureNearest has Run fill Topology.Nearest: before it tells of an answer, it
// connects to some nodes of each zone and sees which accept first. That takes
// about as long as it takes them, at most nearestTimeout. Call it before Run.
func (d *Discovery) MeasureNearest() { d.nearest = newNearest() }

// State returns what is known now.
func (d *Discovery) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	state := d.state
	state.Grace = d.guard.grace
	for _, n := range state.Topology.Nodes {
		if n.Missing {
			state.Missing++
		}
	}
	if s, ok := d.source.(teller); ok {
		state.Source = s.state()
	}
	return state
}

// Held returns how often nodes came to be held. It only rises, so it also shows nodes that were missing
// for a moment, which State does not.
func (d *Discovery) Held() uint64 { return d.held.Load() }

// Certs are the files of TLS to the control plane; nil if there is none.
func (d *Discovery) Certs() *certs.Keeper {
	if x, ok := d.source.(*XDS); ok {
		return x.files
	}
	return nil
}

// rareKicks is the longest least pause that reasons to ask which do not end come to: a node that comes back
// after its restart is to be found soon, whatever Interval is.
const rareKicks = 2 * time.Second

// Refresh has Run ask soon: at once, or MinPause after the last question, which doubles with
// each such question up to rareKicks, or Interval if that is less, until an interval passes without one. So an ill cluster is
// not asked the more the longer that lasts. Calls that come meanwhile count as one. It does
// not wait.
func (d *Discovery) Refresh() { nudge(d.kick) }

// changed has Run ask soon, because the source has another answer: at once, or MinPause after the last question.
func (d *Discovery) changed() { nudge(d.news) }

func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting already
	}
}

// SetConditions takes the newest conditions. A node that cannot be reached, or leaves, is
// gone as soon as no answer lists it: it is not held. It does not wait.
func (d *Discovery) SetConditions(v cluster.Conditions) {
	d.conditions.Store(&v)
	select {
	case d.judged <- struct{}{}:
	default:
	}
}

// gone reports whether the verdicts confirm that a node which no answer lists is gone.
func (d *Discovery) gone(id cluster.NodeID) bool {
	v := (*d.conditions.Load())[id]
	return v.Draining || v.Unreachable && (v.Health == cluster.Ejected || v.Health == cluster.Probing)
}

// Run asks until ctx ends, and runs the source if that works between questions. It
// returns nil.
func (d *Discovery) Run(ctx context.Context) error {
	if r, ok := d.source.(runner); ok {
		var source errgroup.Group
		source.Go(func() (err error) {
			panics.Keep(ctx, "the source of nodes", func() { err = r.run(ctx, d.changed) })
			return err
		})
		return errors.Join(d.run(ctx), source.Wait())
	}
	return d.run(ctx)
}

func (d *Discovery) run(ctx context.Context) error {
	retry := d.config.RetryMin
	for {
		err := panics.Call("a look for nodes", func() error { return d.ask(ctx) })
		interval := d.config.Interval
		if d.bridged() {
			interval = min(interval, bridgeInterval)
		}
		pause := interval*4/5 + rand.N(interval*2/5+1)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil, d.guard.holds():
			pause = retry + rand.N(retry/2+1)
			retry = min(2*retry, d.config.RetryMax)
		default:
			retry = d.config.RetryMin
		}
		if !d.wait(ctx, pause) {
			return nil
		}
	}
}

// bridgeInterval is the interval for a cluster with piles: that another one is the primary now,
// nothing but discovery says, and it is to be followed within a second.
const bridgeInterval = 700 * time.Millisecond

// bridged reports whether the newest answer has piles.
func (d *Discovery) bridged() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.state.Topology.Nodes, func(n cluster.Node) bool { return n.Pile.State != cluster.PileNone })
}

// wait lets pause go by, or less if Refresh or changed is called; false if ctx ended. Meanwhile
// it heeds new verdicts.
func (d *Discovery) wait(ctx context.Context, pause time.Duration) bool {
	least := d.config.MinPause
	for range d.kicks {
		least = min(2*least, max(rareKicks, d.config.MinPause), d.config.Interval)
	}
	over, newsFrom, kickFrom := time.NewTimer(pause), time.NewTimer(min(d.config.MinPause, pause)), time.NewTimer(min(least, pause))
	defer over.Stop()
	defer newsFrom.Stop()
	defer kickFrom.Stop()
	var kick, news <-chan struct{} // nil until then
	for {
		select {
		case <-over.C:
			select {
			case <-d.kick:
			default:
				d.kicks = 0
			}
			return true
		case <-news:
			return true
		case <-kick:
			d.kicks = min(d.kicks+1, 32)
			return true
		case <-newsFrom.C:
			news = d.news
		case <-kickFrom.C:
			kick = d.kick
		case <-d.judged:
			if t, changed := d.guard.recheck(d.gone); changed {
				d.mu.Lock()
				d.state.Topology = t
				d.mu.Unlock()
				d.tell(t)
			}
		case <-ctx.Done():
			return false
		}
	}
}

var errNoNodes = errors.New("the answer names no node")

// ask asks once and keeps the answer.
func (d *Discovery) ask(ctx context.Context) error {
	asked, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	list := d.source.ListEndpoints
	if e, ok := d.source.(elsewhere); ok && d.guard.holds() {
		list = e.ListElsewhere
	}
	t, err := list(asked)
	if err == nil && len(t.Nodes) == 0 {
		err = errNoNodes
	}
	if err == nil {
		t = d.keys.take(t)
	}
	if err == nil && d.nearest != nil {
		t.Nearest = d.nearest.measure(ctx, t)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		d.failed(ctx, err)
		return err
	}
	t = d.guard.take(t, d.gone, time.Now())
	d.held.Store(d.guard.began)
	d.mu.Lock()
	recovered, more := d.state.Failures > 0, t.LeftOut > d.state.Topology.LeftOut
	d.state = State{Topology: t, Answered: time.Now()}
	d.mu.Unlock()
	if recovered {
		d.log.InfoContext(ctx, "discovery works again", "nodes", len(t.Nodes))
	}
	if more {
		d.log.WarnContext(ctx, "discovery lists more nodes than are used; this process has chosen some at random",
			"used", len(t.Nodes), "left_out", t.LeftOut)
	}
	d.tell(t)
	return nil
}

func (d *Discovery) failed(ctx context.Context, err error) {
	d.mu.Lock()
	d.state.Failures++
	d.state.Err = err
	n, known := d.state.Failures, len(d.state.Topology.Nodes)
	d.mu.Unlock()
	consequence := "the last list of nodes stays in use"
	if known == 0 {
		consequence = "no node is known yet"
	}
	d.log.WarnContext(ctx, "discovery failed; "+consequence, "err", err, "failures", n, "nodes", known)
}

func (d *Discovery) tell(t cluster.Topology) {
	d.mu.Lock()
	if len(d.state.Topology.Nodes) == 0 {
		d.state.Topology = t // remembered, not answered
	}
	subscribers := d.subscribers
	d.mu.Unlock()
	for _, f := range subscribers {
		f(t)
	}
}
