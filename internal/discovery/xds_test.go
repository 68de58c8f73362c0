package discovery

import (
	stdcmp "cmp"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/proof/await"
)

// plane is a real control plane: go-control-plane's server over a linear cache.
type plane struct {
	t     *testing.T
	cache *cachev3.LinearCache

	mu     sync.Mutex // guards all below
	server *grpc.Server
	addr   string
	asked  []*discoveryv3.DiscoveryRequest
	tokens []string
}

func startPlane(t *testing.T) *plane {
	p := &plane{t: t, cache: cachev3.NewLinearCache(typeEDS)}
	p.start()
	t.Cleanup(func() { p.stop() })
	return p
}

// start serves, at the address of before if there was one.
func (p *plane) start() {
	p.t.Helper()
	var l net.Listener
	await.True(p.t, "the address is free", func() bool { // another connection may begin there for a moment
		var err error
		l, err = net.Listen("tcp", stdcmp.Or(p.addr, "127.0.0.1:0"))
		return err == nil
	})
	callbacks := serverv3.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, _ int64, _ string) error {
			md, _ := metadata.FromIncomingContext(ctx)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.tokens = append(p.tokens, strings.Join(md.Get("authorization"), ","))
			return nil
		},
		StreamRequestFunc: func(_ int64, r *discoveryv3.DiscoveryRequest) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.asked = append(p.asked, proto.CloneOf(r))
			return nil
		},
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(context.Background(), p.cache, callbacks))
	p.mu.Lock()
	p.server, p.addr = server, l.Addr().String()
	p.mu.Unlock()
	go func() { _ = server.Serve(l) }() // until stop
}

func (p *plane) stop() { p.server.Stop() }

// put publishes endpoints under a name.
func (p *plane) put(list *endpointv3.ClusterLoadAssignment) {
	p.t.Helper()
	if err := p.cache.UpdateResource(list.GetClusterName(), list); err != nil {
		p.t.Fatal(err)
	}
}

// requests waits until enough tells that those that came are.
func (p *plane) requests(what string, enough func(all []*discoveryv3.DiscoveryRequest) bool) {
	p.t.Helper()
	await.True(p.t, what, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return enough(p.asked)
	})
}

// endpoint is one of a control plane; id "": it does not tell.
func endpoint(id, host string, port uint32, health corev3.HealthStatus) *endpointv3.LbEndpoint {
	e := &endpointv3.LbEndpoint{
		HealthStatus: health,
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
				SocketAddress: &corev3.SocketAddress{Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}},
			}}},
		},
	}
	if id != "" {
		e.Metadata = &corev3.Metadata{
			FilterMetadata: map[string]*structpb.Struct{
				"envoy.lb": {Fields: map[string]*structpb.Value{"node_id": structpb.NewStringValue(id)}},
			},
		}
	}
	return e
}

func zone(name string, endpoints ...*endpointv3.LbEndpoint) *endpointv3.LocalityLbEndpoints {
	return &endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{Zone: name}, LbEndpoints: endpoints}
}

func assignment(zones ...*endpointv3.LocalityLbEndpoints) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{ClusterName: "ydb/local", Endpoints: zones}
}

// controlled runs a discovery by p and collects what it tells.
func (p *plane) controlled(ask Identify, change func(*Config)) (*Discovery, <-chan cluster.Topology) {
	p.t.Helper()
	config := Default()
	config.Mode, config.XDS.URL = ModeXDS, "grpc://"+p.addr
	config.Interval, config.MinPause = time.Hour, time.Millisecond
	config.RetryMin, config.RetryMax = 5*time.Millisecond, 20*time.Millisecond
	if change != nil {
		change(&config)
	}
	if err := config.Validate(); err != nil {
		p.t.Fatal(err)
	}
	x, err := NewXDS(config, "/local", "1.2.3", ask, quiet)
	if err != nil {
		p.t.Fatal(err)
	}
	d := New(config, x, quiet)
	heard := make(chan cluster.Topology, 1000)
	d.Subscribe(func(t cluster.Topology) { heard <- t })
	run(p.t, d)
	return d, heard
}

func TestNodesOfAControlPlane(t *testing.T) {
	p := startPlane(t)
	p.put(assignment(
		zone("a", endpoint("1", "10.0.0.1", 2136, corev3.HealthStatus_DEGRADED),
			endpoint("50002", "fd00::1", 2136, corev3.HealthStatus_DRAINING)),
		zone("b", endpoint("4", "10.0.0.4", 2136, corev3.HealthStatus_UNHEALTHY),
			endpoint("5", "10.0.0.5", 2136, corev3.HealthStatus_TIMEOUT)),
	))
	d, heard := p.controlled(nil, nil)
	got := <-heard
	want := cluster.Topology{Nodes: []cluster.Node{
		{ID: 1, Address: "10.0.0.1:2136", Zone: "a"},
		{ID: 4, Address: "10.0.0.4:2136", Zone: "b", Unwell: true}, {ID: 5, Address: "10.0.0.5:2136", Zone: "b", Unwell: true},
		{ID: 50002, Address: "[fd00::1]:2136", Zone: "a", Draining: true},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	p.requests("the answer is accepted", func(all []*discoveryv3.DiscoveryRequest) bool { return len(all) == 2 })
	first, second := p.asked[0], p.asked[1]
	if first.GetNode().GetId() == "" || first.GetNode().GetMetadata().GetFields()["flavor"].GetStringValue() != "envoy" ||
		first.GetNode().GetUserAgentVersion() != "1.2.3" ||
		first.GetVersionInfo() != "" || !cmp.Equal(first.GetResourceNames(), []string{"ydb/local"}) || first.GetTypeUrl() != typeEDS {
		t.Errorf("the first request is %v", first)
	}
	if second.GetVersionInfo() == "" || second.GetResponseNonce() == "" || second.GetErrorDetail() != nil ||
		d.State().Source.Version != second.GetVersionInfo() {
		t.Errorf("the second request is %v; want the version and no error", second)
	}
	for k := range 20 { // each change is told without being asked for
		p.put(assignment(zone("a", endpoint(fmt.Sprint(100+k), "10.0.0.1", 2136, corev3.HealthStatus_HEALTHY))))
		awaitNodes(t, heard, cluster.NodeID(100+k))
	}
	p.put(assignment(zone("a", endpoint("119", "10.0.0.1", 2136, corev3.HealthStatus_UNHEALTHY))))
	await.True(t, "the last node is unhealthy, and listed", func() bool { return d.State().Topology.Nodes[0].Unwell })
	// Nobody is left: that is no answer.
	p.put(assignment(zone("a")))
	await.True(t, "an empty set is a failure", func() bool { return d.State().Failures > 0 })
	if s := d.State(); len(s.Topology.Nodes) != 1 || s.Topology.Nodes[0].ID != 119 {
		t.Errorf("kept %v; want the last node", s.Topology.Nodes)
	}
}

// nodesFrom answers with the nodes of an assignment, however often it is asked.
type nodesFrom struct {
	*endpointv3.ClusterLoadAssignment
}

func (nodesFrom) Database() string { return "/local" }

func (n nodesFrom) ListEndpoints(context.Context) (cluster.Topology, error) {
	nodes, err := nodesIn(n.ClusterLoadAssignment)
	return cluster.NewTopology(nodes, ""), err
}

// Nodes that a control plane says are unhealthy stay: a few get nothing new, and when they are most, they are
// used as before, however long that lasts.
func TestUnhealthyNodesStay(t *testing.T) {
	const count = 20
	for _, tc := range []struct {
		unhealthy, fresh int // fresh: nodes that get new work
		panics           bool
	}{{0, 20, false}, {2, 18, false}, {10, 10, false}, {11, 20, true}, {18, 20, true}, {20, 20, true}} {
		t.Run(fmt.Sprint(tc.unhealthy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				list := func(unhealthy int) nodesFrom {
					var all []*endpointv3.LbEndpoint
					for i := range count {
						health := corev3.HealthStatus_HEALTHY
						if i < unhealthy {
							health = []corev3.HealthStatus{corev3.HealthStatus_UNHEALTHY, corev3.HealthStatus_TIMEOUT}[i%2]
						}
						all = append(all, endpoint(fmt.Sprint(i+1), fmt.Sprintf("10.0.0.%d", i+1), 2136, health))
					}
					return nodesFrom{assignment(zone("a", all...))}
				}
				source := &changing{Source: list(0)}
				d := New(Default(), source, quiet)
				r := routing.New(routing.Default())
				d.Subscribe(r.SetTopology)
				run(t, d)
				synctest.Wait()
				source.set(list(tc.unhealthy))
				time.Sleep(time.Minute)
				synctest.Wait()
				v, fresh := r.View(), 0
				for _, n := range v.Nodes {
					if n.Use == cluster.UseNew && n.Weight == 1 {
						fresh++
					}
					if n.Missing || n.Gone || n.Unwell != (int(n.ID) <= tc.unhealthy) {
						t.Errorf("%+v", n)
					}
				}
				if len(v.Nodes) != count || fresh != tc.fresh || v.Panic != tc.panics {
					t.Errorf("of %d nodes %d get new work, panic %v; want %d of %d, %v", len(v.Nodes), fresh, v.Panic,
						tc.fresh, count, tc.panics)
				}
			})
		})
	}
}

// changing is a source that becomes another one.
type changing struct {
	mu sync.Mutex
	Source
}

func (c *changing) set(s Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Source = s
}

func (c *changing) ListEndpoints(ctx context.Context) (cluster.Topology, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Source.ListEndpoints(ctx)
}

func TestAnUnknownNameIsToldSo(t *testing.T) {
	p := startPlane(t)
	p.put(&endpointv3.ClusterLoadAssignment{ClusterName: "other"})
	config := Default()
	config.Mode, config.XDS.URL, config.XDS.Cluster = ModeXDS, "grpc://"+p.addr, "mine"
	x, err := NewXDS(config, "/local", "", nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	x.patience = 20 * time.Millisecond
	d := New(config, x, quiet)
	run(t, d)
	await.True(t, "the error names it", func() bool {
		err := d.State().Err
		return err != nil && strings.Contains(err.Error(), `"mine"`) && strings.Contains(err.Error(), "discovery.xds_cluster")
	})
}

func TestFaultsOfXDSSettings(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, c := range map[string]struct {
		XDSConfig
		good bool
	}{
		"plain": {XDSConfig{URL: "grpc://plane.example:7403"}, true},
		"TLS and a token": {XDSConfig{URL: "grpcs://plane.example:7403", Token: "x", ServerName: "y", Cluster: "ydb/local", Node: "me"},
			true},
		"a token on loopback":   {XDSConfig{URL: "grpc://127.0.0.1:7403", Token: "x"}, true},
		"a token in the clear":  {XDSConfig{URL: "grpc://plane.example:7403", Token: "x"}, false},
		"nothing":               {XDSConfig{}, false},
		"no port":               {XDSConfig{URL: "grpc://plane.example"}, false},
		"a path":                {XDSConfig{URL: "grpc://plane.example:1/x"}, false},
		"a password":            {XDSConfig{URL: "grpc://a:b@plane.example:1"}, false},
		"another scheme":        {XDSConfig{URL: "https://plane.example:1"}, false},
		"TLS files without TLS": {XDSConfig{URL: "grpc://plane.example:1", ServerName: "x"}, false},
		"a certificate alone":   {XDSConfig{URL: "grpcs://plane.example:1", CertFile: missing}, false},
		"no such file":          {XDSConfig{URL: "grpcs://plane.example:1", CAFile: missing}, false},
		"no token there":        {XDSConfig{URL: "grpcs://plane.example:1", TokenFile: missing}, false},
		"two tokens":            {XDSConfig{URL: "grpcs://plane.example:1", Token: "x", TokenFile: missing}, false},
		"a token of two lines":  {XDSConfig{URL: "grpcs://plane.example:1", Token: "x\ny"}, false},
		"a long name":           {XDSConfig{URL: "grpcs://plane.example:1", Cluster: strings.Repeat("x", 2000)}, false},
	} {
		config := Default()
		config.Mode, config.XDS = ModeXDS, c.XDSConfig
		err := config.Validate()
		if (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "a:b") {
			t.Errorf("%s: the error shows the password: %v", name, err)
		}
		config.Mode = ModeYDB
		if err := config.Validate(); c.XDSConfig != (XDSConfig{}) && (err == nil || !strings.Contains(err.Error(), "mode = xds")) {
			t.Errorf("%s, in another mode: %v", name, err)
		}
	}
}

// Of an answer with more endpoints than are used, the ids of those that are used are asked for, and no others.
func TestAnswersAreBounded(t *testing.T) {
	h := &hosts{ids: map[string]cluster.NodeID{}}
	i := identified(t, h)
	var many []*endpointv3.LbEndpoint
	for n := range cluster.MaxNodes {
		many = append(many, endpoint(strconv.Itoa(n+1), "h"+strconv.Itoa(n), 1, 0))
	}
	for n := range 2 {
		many = append(many, endpoint("", "x"+strconv.Itoa(n), 1, 0))
		h.ids["x"+strconv.Itoa(n)+":1"] = cluster.NodeID(1<<20 + n)
	}
	nodes, err := nodesIn(assignment(zone("a", many...)))
	if err != nil {
		t.Fatal(err)
	}
	var before []cluster.Node
	for range 2 {
		got, err := i.topology(t.Context(), nodes)
		if err != nil || len(got.Nodes) != cluster.MaxNodes || got.LeftOut != 2 {
			t.Fatalf("%d nodes, %d left out, %v; want %d and 2", len(got.Nodes), got.LeftOut, err, cluster.MaxNodes)
		}
		if before != nil && !slices.Equal(before, got.Nodes) {
			t.Error("another choice than before")
		}
		before = got.Nodes
	}
}
