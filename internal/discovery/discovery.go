// Package discovery asks the cluster for its nodes and tells everybody who
// wants to know.
//
// It owns the current cluster.Topology. What always holds: a failure, or an
// answer without nodes, never takes a topology away; questions are asked one at
// a time, at most one per MinPause, however many goroutines call Refresh; nothing
// but the first question has a fixed time, so that many sidecars started at once
// do not ask in step; subscribers hear each answer in order, from the goroutine
// of Run.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ydb-sidecar/sidecar/internal/cache"
	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Source is asked for the nodes, by one goroutine; upstream.Driver satisfies it. It
// must honour ctx.
type Source interface {
	ListEndpoints(ctx context.Context) (cluster.Topology, error)
	Database() string
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
	Mode     string        `yaml:"mode"`       // where the nodes come from: ydb (YDB's own discovery), static (discovery.nodes), dns (discovery.dns_name) or xds (a control plane, discovery.xds_url)
	Nodes    []Endpoint    `yaml:"nodes"`      // for static: a list of ID=host:port, or ID=host:port@zone
	DNSName  string        `yaml:"dns_name"`   // for dns: host:port, whose addresses (A, AAAA) are the nodes, or a name without port, whose SRV records are
	DNSHost  string        `yaml:"dns_server"` // for dns: host:port of the server to ask; empty: those of the system
	XDS      XDSConfig     `yaml:",inline"`
	Interval time.Duration `yaml:"interval"`  // time between questions, give or take a fifth at random
	MinPause time.Duration `yaml:"min_pause"` // least time between two questions, asked for or not
	RetryMin time.Duration `yaml:"retry_min"` // pause after a first failure, up to half of it longer at random; doubles
	RetryMax time.Duration `yaml:"retry_max"` // pause that doubling ends at
}

// Default asks every 5 s, so that an added node has its share of sessions within 10 s. The official SDKs
// ask once a minute; a sidecar asks once for all the processes of its host.
func Default() Config {
	return Config{Mode: ModeYDB, Interval: 5 * time.Second, MinPause: 500 * time.Millisecond, RetryMin: 500 * time.Millisecond, RetryMax: 4 * time.Second}
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
			errs = append(errs, fmt.Errorf("%s = %v; must be >= %v", d.name, d.value, d.least))
		}
	}
	return errors.Join(errs...)
}

// askTimeout bounds one question, all addresses together.
const askTimeout = 30 * time.Second

// Answers remembers the last answer of each database.
type Answers = cache.Cache[cluster.Topology]

// NewAnswers returns a memory for a few databases; an answer is good for an hour.
func NewAnswers() *Answers {
	return cache.New[cluster.Topology](cache.Config{Max: 64, TTL: time.Hour})
}

// State is what discovery knows, for operators.
type State struct {
	Topology cluster.Topology
	Answered time.Time // when the last good answer came; zero: never
	Failures int       // in a row since then
	Err      error     // of the last failure; nil after a good answer
	Source   SourceState
}

// Discovery is safe for concurrent use.
type Discovery struct {
	config  Config
	source  Source
	answers *Answers
	log     *slog.Logger
	kick    chan struct{} // capacity 1: somebody wants a question asked now
	nearest *nearest      // nil: nobody wants to know

	mu          sync.Mutex // guards all below; never held while a subscriber runs
	state       State
	subscribers []func(cluster.Topology)
}

// New returns a discovery that has asked nothing yet. answers may be shared
// with others; an answer in it is told to subscribers when Run begins.
func New(config Config, source Source, answers *Answers, log *slog.Logger) *Discovery {
	return &Discovery{config: config, source: source, answers: answers, log: log, kick: make(chan struct{}, 1)}
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
	if s, ok := d.source.(teller); ok {
		state.Source = s.state()
	}
	return state
}

// Certs are the files of TLS to the control plane; nil if there is none.
func (d *Discovery) Certs() *certs.Keeper {
	if x, ok := d.source.(*XDS); ok {
		return x.files
	}
	return nil
}

// Refresh has Run ask soon: at once, or MinPause after the last question. Calls
// that come meanwhile count as one. It does not wait.
func (d *Discovery) Refresh() {
	select {
	case d.kick <- struct{}{}:
	default: // one is waiting already
	}
}

// Run asks until ctx ends, and runs the source if that works between questions. It
// returns nil.
func (d *Discovery) Run(ctx context.Context) error {
	if r, ok := d.source.(runner); ok {
		var source errgroup.Group
		source.Go(func() error { return r.run(ctx, d.Refresh) })
		return errors.Join(d.run(ctx), source.Wait())
	}
	return d.run(ctx)
}

func (d *Discovery) run(ctx context.Context) error {
	if t, ok := d.answers.Get(d.source.Database()); ok {
		if d.nearest != nil {
			d.nearest.zone = t.Nearest
		}
		d.tell(t)
	}
	retry := d.config.RetryMin
	for {
		pause := d.config.Interval*4/5 + rand.N(d.config.Interval*2/5+1)
		switch err := d.ask(ctx); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
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

// wait lets pause go by, or less if Refresh is called; false if ctx ended.
func (d *Discovery) wait(ctx context.Context, pause time.Duration) bool {
	least := min(d.config.MinPause, pause)
	if !sleep(ctx, least, nil) {
		return false
	}
	return sleep(ctx, pause-least, d.kick)
}

// sleep waits for pause or for early; false if ctx ended.
func sleep(ctx context.Context, pause time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-early:
		return true
	case <-ctx.Done():
		return false
	}
}

var errNoNodes = errors.New("the answer names no node")

// ask asks once and keeps the answer.
func (d *Discovery) ask(ctx context.Context) error {
	asked, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	t, err := d.source.ListEndpoints(asked)
	if err == nil && len(t.Nodes) == 0 {
		err = errNoNodes
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
	d.mu.Lock()
	recovered := d.state.Failures > 0
	d.state = State{Topology: t, Answered: time.Now()}
	d.mu.Unlock()
	if recovered {
		d.log.InfoContext(ctx, "discovery works again", "nodes", len(t.Nodes))
	}
	d.answers.Set(d.source.Database(), t)
	d.tell(t)
	return nil
}

func (d *Discovery) failed(ctx context.Context, err error) {
	d.mu.Lock()
	d.state.Failures++
	d.state.Err = err
	n, known := d.state.Failures, len(d.state.Topology.Nodes)
	d.mu.Unlock()
	d.log.WarnContext(ctx, "discovery failed; keeping the last topology", "err", err, "failures", n, "nodes", known)
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
