package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"

	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2/client"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/latency"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Errors of a driver that cannot make the call at all.
var (
	ErrClosed    = errors.New("upstream: the driver is closed")
	ErrMisplaced = errors.New("upstream: the cluster placed the session on another node")
)

// Deps are the parts a driver works with. The Ways must be given.
type Deps struct {
	hop.Ways
	Meter   metric.MeterProvider // nil: no metrics
	Log     *slog.Logger         // nil: silence
	Version string               // announced to the cluster; "" means dev

	// A connection with calls under way that brings no byte for Silence is checked
	// with a call of its own, and given up when that brings none for ProbeTimeout.
	// 0: it is not looked for.
	Silence      time.Duration
	ProbeTimeout time.Duration

	// Dial opens connections in place of the network, for tests.
	Dial dialer

	Histogram latency.Maker // of what is counted with each call

	Buffered int // bytes that may wait in calls over h2; 0: as many as h2.Default says
}

// Driver is the client of one cluster. It is safe for concurrent use.
type Driver struct {
	config Config
	deps   Deps
	endpoint
	build   string               // product and version
	meter   hop.HealthReporter   // see Meter; nil: none
	reached func(address string) // see OnConnect; nil: nobody wants to know
	log     *slog.Logger
	tel     *telemetry
	signIn

	conns atomic.Pointer[map[cluster.NodeID]*nodeConn] // of the current view; the map is immutable
	view  atomic.Pointer[cluster.View]
	watching

	mu sync.Mutex // guards all of openConns
	openConns

	goroutines
}

// goroutines are those that the driver starts, and waits for when it closes.
type goroutines struct {
	watchers sync.WaitGroup // one for each attach stream; they end with their connection
	loose    sync.WaitGroup // creations that nobody waits for and deletions; each bounded
}

// signIn is how the driver proves who it is.
type signIn struct {
	certs   *certs.Keeper
	http    *http.Client // for the providers of tokens
	tickets *tickets
}

// watching is what watches over calls, and what is remembered of answers; each part has a lock of its own.
type watching struct {
	guard   guard
	detours hop.Detours
	known   knownSets
	mine    mine
}

// openConns are the driver's connections.
type openConns struct {
	closed    bool
	all       map[*nodeConn]struct{} // every open connection, of nodes that left too
	engine    *client.Client         // of lines over h2; nil until used
	bootstrap []*nodeConn            // parallel to endpoint.addresses; nil until used
	lastGood  int                    // index of the bootstrap address that answered last
}

// New returns a driver that knows no node yet and has connected to nothing.
// Errors are those of Config.Validate, and of instruments that cannot be made.
func New(config Config, deps Deps) (*Driver, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.DiscoveryTimeout = cmp.Or(config.DiscoveryTimeout, config.ConnectTimeout)
	e, err := parseURL(config.URL)
	if err != nil {
		return nil, err
	}
	if deps.Meter == nil {
		deps.Meter = noopmetric.NewMeterProvider()
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Version == "" {
		deps.Version = "dev"
	}
	files, err := certs.New("ydb", config.files(), nil, deps.Log)
	if err != nil {
		return nil, err
	}
	tel, err := newTelemetry(deps.Histogram, deps.Meter, e.database)
	if err != nil {
		return nil, fmt.Errorf("upstream: make instruments: %w", err)
	}
	d := &Driver{
		config: config, deps: deps, endpoint: e,
		build: "ydb-sidecar/" + deps.Version,
		log:   deps.Log, tel: tel,
	}
	d.certs = files
	d.all, d.bootstrap = make(map[*nodeConn]struct{}), make([]*nodeConn, len(e.addresses))
	d.conns.Store(&map[cluster.NodeID]*nodeConn{})
	d.view.Store(&cluster.View{})
	d.guard = newGuard()
	d.http = httpClient(files)
	fetch, err := providers{d}.provider()
	if err != nil {
		return nil, err
	}
	d.tickets = newTickets(fetch, d.headers, d.log)
	return d, nil
}

// Database is the path of the database, with its leading slash.
func (e *endpoint) Database() string { return e.database }

// Endpoint is the first address of ydb.url, as host:port.
func (e *endpoint) Endpoint() string { return e.addresses[0] }

// Addresses are the host:port of ydb.url, at least one.
func (e *endpoint) Addresses() []string { return e.addresses }

// Run keeps the ticket fresh and looks for silent connections until ctx ends.
// Calls wait for the first ticket, so without Run only anonymous credentials and
// fixed tokens work.
func (d *Driver) Run(ctx context.Context) error {
	var watch sync.WaitGroup
	defer watch.Wait()
	if d.deps.Silence > 0 && d.config.Client == ClientGRPC {
		watch.Go(func() { panics.Keep(ctx, "the watch for silent connections", func() { d.watchSilence(ctx) }) })
	}
	watch.Go(func() { panics.Keep(ctx, "the watch of certificates", func() { d.certs.Run(ctx) }) })
	d.tickets.run(ctx)
	return nil
}

// Close waits for the clean-up under way, a few seconds at most, breaks every
// connection and waits for the watchers of sessions that still exist. Close the
// pool first: Close deletes no session that the pool has.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.loose.Wait()
	d.mu.Lock()
	open := make([]*nodeConn, 0, len(d.all))
	for c := range d.all {
		open = append(open, c)
	}
	clear(d.all)
	d.mu.Unlock()
	for _, c := range open {
		c.close()
	}
	d.mu.Lock()
	engine := d.engine
	d.engine = nil
	d.mu.Unlock()
	if engine != nil {
		engine.Close() // also connections that drain
	}
	d.watchers.Wait()
	d.http.CloseIdleConnections()
	return nil
}

// Certs are the files of TLS to the cluster.
func (s *signIn) Certs() *certs.Keeper { return s.certs }

// Meter has calls on sessions reported to m as well. It must be called before the
// driver is used.
func (d *Driver) Meter(m hop.HealthReporter) { d.meter = m }

// OnConnect has f called with the address of each node to which a connection was
// made: another process may listen there now. f must not block. Call it before the
// driver is used.
func (d *Driver) OnConnect(f func(address string)) { d.reached = f }

// SetView makes the connections fit the nodes of v; each is dialled when it is
// first used, because a large cluster has more nodes than a pool has sessions. The connection of a node
// that is gone, or has another address, closes after its calls and sessions.
func (d *Driver) SetView(v cluster.View) {
	d.view.Store(&v)
	d.guard.viewChanged()
	d.detours.SetView(v)
	for _, c := range d.replaceConns(v) {
		c.drop()
	}
}

// replaceConns stores the connections for v and returns those that fell out.
func (d *Driver) replaceConns(v cluster.View) []*nodeConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	old := *d.conns.Load()
	next := make(map[cluster.NodeID]*nodeConn, len(v.Nodes))
	changed := len(v.Nodes) != len(old)
	for _, n := range v.Nodes {
		c := old[n.ID]
		if c == nil || c.node.Address != n.Address || c.node.TLSName != n.TLSName {
			var err error
			if c, err = d.connectLocked(n.Node); err != nil {
				d.log.Error("cannot prepare the connection to a node", "node", n.ID, "err", err)
				continue
			}
			changed = true
		}
		next[n.ID] = c
	}
	if !changed {
		return nil
	}
	d.conns.Store(&next)
	var out []*nodeConn
	for id, c := range old {
		if next[id] != c {
			out = append(out, c)
		}
	}
	return out
}

// connectLocked makes and registers a connection.
func (d *Driver) connectLocked(n cluster.Node) (*nodeConn, error) {
	c := newNodeConn(n)
	if d.config.Client == ClientGRPC {
		l, err := d.lineGRPC(c)
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", n.Address, err)
		}
		c.use(l)
	} else if e := d.engineLocked(); e != nil {
		c.use(d.lineH2(e, c))
	} else {
		return nil, ErrClosed
	}
	c.closed = func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.all, c)
	}
	d.all[c] = struct{}{}
	return c, nil
}

// renew has another connection made to an address that several nodes share, because the node to
// which c leads shuts down: it would refuse every new session. What is open on c goes on there.
func (d *Driver) renew(c *nodeConn) {
	id := c.node.ID
	if n, _ := d.view.Load().Find(id); !n.Shared && !c.several.Load() {
		return
	}
	if d.replace(c) {
		d.log.Info("another connection is made to an address that several nodes share: the node behind the last one shuts down",
			"node", id, "address", c.node.Address)
		c.drop()
	}
}

// Uses reports whether a session, a call or a connection in the making holds the
// connection to a node of the view. It takes no lock.
func (d *Driver) Uses(id cluster.NodeID) bool {
	c := (*d.conns.Load())[id]
	return c != nil && c.refs.Load() > 1
}

// conn returns the connection to a node with a reference that the caller drops.
func (d *Driver) conn(id cluster.NodeID) (*nodeConn, error) {
	// Twice at most: a map just replaced may hold a connection just closed.
	for range 2 {
		if c := (*d.conns.Load())[id]; c != nil && c.hold() {
			return c, nil
		}
	}
	return nil, hop.ErrUnknownNode
}
