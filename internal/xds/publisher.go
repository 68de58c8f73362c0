// Package xds publishes what the sidecar knows of the nodes to Envoy and to gRPC
// clients, which then call the nodes directly, and the sidecar itself as a service.
//
// It owns the xDS server and what it serves. It judges no node: the view of
// internal/routing does. What always holds:
//
//   - Once a healthy node was published, there is one in every later publication. A
//     view without any changes nothing.
//   - There are at most four publications a second. A node gets worse at the next
//     one; it gets better, and its weight changes, in the pace of model.go.
//   - A node is told as draining before it is left out.
//   - A restart does no harm: versions of two processes are never equal, and until a
//     process knows nodes its clients keep those that they have.
//   - A client that refuses a version (NACK) gets the next one, never the same again.
//   - Streams, and what is kept of each, are bounded. No client waits for another.
package xds

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/log"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Deps is what a Publisher needs from outside.
type Deps struct {
	Database string   // path, with its leading slash
	NodesTLS bool     // the nodes speak TLS
	Sidecar  net.Addr // of the sidecar's gRPC listener
	Secure   bool     // which speaks TLS
	// sessions that the pool may have; a client that goes direct may have as many
	Max      func() int
	Draining func() bool                                         // the sidecar is about to end; nil: never
	Lookup   func(context.Context, string) ([]netip.Addr, error) // addresses of a host; nil: the system's resolver
	TLS      *tls.Config                                         // of the listener; nil: plaintext
	Log      *slog.Logger
}

// interval is the shortest time between two publications.
const interval = 250 * time.Millisecond

// poll is how often Max and Draining are looked at, at least.
const poll = time.Second

// Publisher is the xDS server and what it serves. Safe for use by any number of
// goroutines; Run is the one that publishes.
type Publisher struct {
	config    Config
	deps      Deps
	log       *slog.Logger
	server    *grpc.Server
	protocols *services
	ctx       context.Context // of streams
	stop      context.CancelFunc
	boot      string // begins every version of this process

	view    atomic.Pointer[cluster.View]
	changed chan struct{} // capacity 1: there is another view, or addresses were found
	lookups
	served

	streams streams
	said    published
}

// lookups find the addresses of names.
type lookups struct {
	names   *names
	looking sync.WaitGroup
	busy    atomic.Bool // a goroutine looks names up
}

// served is what streams are answered from.
type served struct {
	snapshots cachev3.SnapshotCache
	linear    map[Flavor]*cachev3.LinearCache
	plan      *plan                               // the last one; of Run alone
	current   map[Flavor]map[string]proto.Message // by type and name; of Run alone
	versions  map[Flavor]map[string]uint64        // by type, of snapshots; of Run alone
}

// published is what was published last.
type published struct {
	sync.Mutex // guards the rest
	at         time.Time
	count      uint64
	nodes      []endpoint
	unresolved int
}

// New returns a publisher that serves nothing before Run and Serve.
func New(config Config, deps Deps) *Publisher {
	p := &Publisher{
		config: config, deps: deps, log: deps.Log, changed: make(chan struct{}, 1), boot: rand.Text()[:13] + "-",
		served: served{
			linear:  map[Flavor]*cachev3.LinearCache{},
			current: map[Flavor]map[string]proto.Message{}, versions: map[Flavor]map[string]uint64{},
		},
	}
	if deps.Lookup == nil {
		deps.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	p.names = newNames(deps.Lookup)
	p.ctx, p.stop = context.WithCancel(context.Background())
	quiet := log.LoggerFuncs{ // of the library: what matters is logged here, once
		ErrorFunc: func(format string, args ...any) { p.log.Error("xds: " + fmt.Sprintf(format, args...)) },
	}
	// Not in the cache's mode for ADS: that answers nobody who asks for some of the names
	// only, as gRPC clients do.
	p.snapshots = cachev3.NewSnapshotCache(false, byFlavor{}, quiet)
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return cacheOf(r.GetNode(), r.GetTypeUrl()) },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return cacheOf(r.GetNode(), r.GetTypeUrl()) },
		Caches:        map[string]cachev3.Cache{rest: p.snapshots},
	}
	for _, f := range flavors {
		p.linear[f] = cachev3.NewLinearCache(resourcev3.EndpointType, cachev3.WithVersionPrefix(p.boot), cachev3.WithLogger(quiet))
		mux.Caches[string(f)] = p.linear[f]
		p.current[f], p.versions[f] = map[string]proto.Message{}, map[string]uint64{}
	}
	p.streams.init(p)
	p.server = p.newServer(mux, quiet)
	return p
}

// rest names the cache of all but endpoints.
const rest = "rest"

// cacheOf classifies requests.
func cacheOf(node *corev3.Node, typeURL string) string {
	if typeURL == resourcev3.EndpointType {
		return string(flavorOf(node))
	}
	return rest
}

// byFlavor has one snapshot for all clients of a flavor.
type byFlavor struct{}

func (byFlavor) ID(node *corev3.Node) string { return string(flavorOf(node)) }

// SetView takes the newest view. It does not block.
func (p *Publisher) SetView(v cluster.View) {
	p.view.Store(&v)
	p.poke()
}

func (p *Publisher) poke() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends. It returns nil.
func (p *Publisher) Run(ctx context.Context) error {
	defer p.looking.Wait()
	m := newModel(p.names.of)
	var nodes []endpoint
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		case <-timer.C:
		}
		now := time.Now()
		wake := p.step(ctx, now, m, &nodes)
		// Whatever comes next waits until the interval is over.
		pause := time.NewTimer(interval)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
		timer.Reset(min(max(time.Until(wake), 0), poll))
	}
}

// step publishes what has changed, and returns when there may be more to publish.
func (p *Publisher) step(ctx context.Context, now time.Time, m *model, nodes *[]endpoint) (wake time.Time) {
	wake = now.Add(poll)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(wake) {
			wake = t
		}
	}
	if v := p.view.Load(); v != nil {
		hosts := make([]string, len(v.Nodes))
		for i, n := range v.Nodes {
			hosts[i] = hostOf(n.Node)
		}
		due, pending, next := p.names.want(now, hosts)
		earlier(next)
		p.look(ctx, due)
		// The first picture is whole: clients of the process before this one have all nodes.
		if *nodes != nil || pending == 0 {
			next, when := m.advance(now, *v)
			earlier(when)
			if next != nil {
				*nodes = next
			}
		}
	}
	p.publish(now, p.planOf(*nodes))
	return wake
}

// look finds addresses, in a goroutine: a resolver may take its time.
func (p *Publisher) look(ctx context.Context, due []string) {
	if len(due) == 0 || p.busy.Swap(true) {
		return
	}
	p.looking.Go(func() {
		defer p.poke()
		defer p.busy.Store(false)
		defer panics.Go("the look for addresses of nodes")
		unknown := p.names.look(ctx, due)
		p.said.Lock()
		before := p.said.unresolved
		p.said.unresolved = unknown
		p.said.Unlock()
		if unknown > 0 && before == 0 {
			p.log.Warn("nodes are not published over xDS: their names have no address here", "names", unknown)
		}
	})
}

func (p *Publisher) planOf(nodes []endpoint) *plan {
	at, _ := netip.ParseAddrPort(p.deps.Sidecar.String())
	if ip := at.Addr().Unmap(); ip.IsUnspecified() {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	} else {
		at = netip.AddrPortFrom(ip.WithZone(""), at.Port())
	}
	return &plan{
		database: nameOf(p.deps.Database), tls: p.deps.NodesTLS, nodes: nodes,
		most: maxCalls(p.deps.Max()), sidecar: at, secure: p.deps.Secure,
		draining: p.deps.Draining != nil && p.deps.Draining(),
	}
}

// nameOf is the name of a database's resources.
func nameOf(database string) string { return "ydb" + database }

// maxCalls is how many calls a client may have open that has as many sessions: each
// has the stream that it is attached to, and one call.
func maxCalls(sessions int) uint32 { return uint32(2 * min(max(sessions, 1), 1<<20)) }

// publish makes resources of a plan and gives those that differ to the caches.
func (p *Publisher) publish(now time.Time, plan *plan) {
	before := p.plan
	p.plan = plan
	// all the rest stays for as long as the process
	settled := before != nil && before.most == plan.most && before.draining == plan.draining
	if settled && slices.EqualFunc(before.nodes, plan.nodes, sameEndpoint) {
		return
	}
	news := false
	for _, f := range flavors {
		// Endpoints first: who hears of a cluster asks for them next.
		endpoints := map[string]types.Resource{}
		for _, a := range plan.assignments(f) {
			if p.differs(f, resourcev3.EndpointType, a.GetClusterName(), a) {
				endpoints[a.GetClusterName()] = a
			}
		}
		if len(endpoints) > 0 {
			news = true
			if err := p.linear[f].UpdateResources(endpoints, nil); err != nil {
				p.log.Error("endpoints cannot be published over xDS", "flavor", f, "err", err)
			}
		}
		if settled {
			continue
		}
		all := map[resourcev3.Type][]types.Resource{resourcev3.ClusterType: nil, resourcev3.ListenerType: nil, resourcev3.RouteType: nil}
		for _, r := range plan.clusters(f) {
			all[resourcev3.ClusterType] = append(all[resourcev3.ClusterType], r)
		}
		for _, r := range plan.listeners(f) {
			all[resourcev3.ListenerType] = append(all[resourcev3.ListenerType], r)
		}
		for _, r := range plan.routeConfigs(f) {
			all[resourcev3.RouteType] = append(all[resourcev3.RouteType], r)
		}
		changed, err := p.setSnapshot(f, all)
		if err != nil {
			p.log.Error("clusters and listeners cannot be published over xDS", "flavor", f, "err", err)
		}
		news = news || changed
	}
	if !news {
		return
	}
	p.said.Lock()
	defer p.said.Unlock()
	p.said.at, p.said.nodes = now, plan.nodes
	p.said.count++
}

// differs takes note of a resource, and reports whether it is another than before.
func (p *Publisher) differs(f Flavor, typeURL, name string, r proto.Message) bool {
	key := typeURL + " " + name
	if before := p.current[f][key]; before != nil && proto.Equal(before, r) {
		return false
	}
	p.current[f][key] = r
	return true
}

// setSnapshot publishes what is not endpoints, if it differs.
func (p *Publisher) setSnapshot(f Flavor, all map[resourcev3.Type][]types.Resource) (changed bool, err error) {
	snapshot := new(cachev3.Snapshot)
	for _, typeURL := range []resourcev3.Type{resourcev3.ClusterType, resourcev3.ListenerType, resourcev3.RouteType} {
		news := p.versions[f][typeURL] == 0
		for _, r := range all[typeURL] {
			news = p.differs(f, typeURL, cachev3.GetResourceName(r), r) || news
		}
		if news {
			p.versions[f][typeURL]++
			changed = true
		}
		snapshot.Resources[cachev3.GetResponseType(typeURL)] = cachev3.NewResources(fmt.Sprint(p.boot, p.versions[f][typeURL]),
			all[typeURL])
	}
	if !changed {
		return false, nil
	}
	if err := p.consistent(f, all); err != nil {
		return false, err
	}
	return true, p.snapshots.SetSnapshot(p.ctx, string(f), snapshot)
}

// consistent checks that clusters and endpoints name each other. Routes are not part
// of it: the listeners that name them are in Envoy's own configuration.
func (p *Publisher) consistent(f Flavor, all map[resourcev3.Type][]types.Resource) error {
	check := map[resourcev3.Type][]types.Resource{resourcev3.ClusterType: all[resourcev3.ClusterType],
		resourcev3.ListenerType: all[resourcev3.ListenerType]}
	for _, name := range []string{nameOf(p.deps.Database), sidecarName} {
		check[resourcev3.EndpointType] = append(check[resourcev3.EndpointType], emptyAssignment(name))
	}
	whole, err := cachev3.NewSnapshot("", check)
	if err != nil {
		return err
	}
	if err := whole.Consistent(); err != nil {
		return err
	}
	for name := range p.linear[f].GetResources() {
		if !slices.Contains([]string{nameOf(p.deps.Database), sidecarName}, name) {
			return errors.New("endpoints of a cluster that is not published: " + name)
		}
	}
	return nil
}
