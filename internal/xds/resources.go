package xds

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Flavor is a family of clients that accept the same resources.
type Flavor string

// The flavors. What gRPC clients accept is much less, and one thing that they do not
// has them refuse everything.
const (
	Envoy Flavor = "envoy"
	GRPC  Flavor = "grpc"
)

var flavors = []Flavor{Envoy, GRPC}

const (
	connectTimeout = 2 * time.Second
	retryPercent   = 20 // of the calls under way may be retries, at most

	// Envoy moves load to worse hosts and to further priorities when less than this
	// percentage of hosts is healthy, times the part that is. Where load goes has been
	// decided here: as long as one host in a thousand is healthy, nothing moves.
	overprovisioning = 100_000

	noLimit = 1 << 20 // calls; the default of clients is 1024

	sidecarName = "sidecar" // of the cluster, the listener and the secret
	nodesSecret = "ydb"     // by which Envoy checks the nodes' certificates
)

// plan is all that resources are made of.
type plan struct {
	database string         // name of its resources
	tls      bool           // the nodes speak TLS
	nodes    []endpoint     // none: nothing is known yet
	most     uint32         // calls that one client may have open
	sidecar  netip.AddrPort // its gRPC listener
	secure   bool           // which speaks TLS
	draining bool           // the sidecar is about to end
}

func must(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(fmt.Sprintf("xds: %T cannot be packed: %v", m, err)) // only of messages made here
	}
	return a
}

var ads = &corev3.ConfigSource{
	ResourceApiVersion:    corev3.ApiVersion_V3,
	ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
}

// clusters are that of the database's nodes and that of the sidecar.
func (p *plan) clusters(f Flavor) []*clusterv3.Cluster {
	nodes := newCluster(p.database, p.most)
	self := newCluster(sidecarName, noLimit) // it refuses what is too much itself, and says why
	if f == GRPC {
		return []*clusterv3.Cluster{nodes, self}
	}
	nodes.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	// The owner of a session: x-ydb-node-id of the call. A subset of a single host is not
	// asked how that is, so the owner is found whatever its status, as it must be: the
	// session is nowhere else. Without that header, or if it is gone, any node.
	nodes.LbSubsetConfig = &clusterv3.Cluster_LbSubsetConfig{
		FallbackPolicy: clusterv3.Cluster_LbSubsetConfig_ANY_ENDPOINT,
		SubsetSelectors: []*clusterv3.Cluster_LbSubsetConfig_LbSubsetSelector{
			{Keys: []string{"node_id"}, SingleHostPerSubset: true,
				FallbackPolicy: clusterv3.Cluster_LbSubsetConfig_LbSubsetSelector_ANY_ENDPOINT},
		},
		LocalityWeightAware: true,
	}
	nodes.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{
		HealthyPanicThreshold: &typev3.Percent{}, // panic is decided here
		LocalityConfigSpecifier: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		},
		OverrideHostStatus: &corev3.HealthStatusSet{Statuses: []corev3.HealthStatus{
			corev3.HealthStatus_HEALTHY, corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_DEGRADED, corev3.HealthStatus_DRAINING,
		}},
	}
	for _, c := range []*clusterv3.Cluster{nodes, self} {
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": must(&httpv3.HttpProtocolOptions{
				UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
					ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
						ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
							Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
						},
					},
				},
			}),
		}
	}
	if p.tls {
		nodes.TransportSocket = transportTLS(nodesSecret)
	}
	if p.secure {
		self.TransportSocket = transportTLS(sidecarName)
	}
	return []*clusterv3.Cluster{nodes, self}
}

func newCluster(name string, most uint32) *clusterv3.Cluster {
	limits := func(p corev3.RoutingPriority) *clusterv3.CircuitBreakers_Thresholds {
		return &clusterv3.CircuitBreakers_Thresholds{
			Priority: p, MaxRequests: wrapperspb.UInt32(most), MaxPendingRequests: wrapperspb.UInt32(most),
			RetryBudget: &clusterv3.CircuitBreakers_Thresholds_RetryBudget{BudgetPercent: &typev3.Percent{Value: retryPercent},
				MinRetryConcurrency: wrapperspb.UInt32(3)},
		}
	}
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads},
		LbPolicy:         clusterv3.Cluster_ROUND_ROBIN, // the one policy that gRPC of every language has
		ConnectTimeout:   durationpb.New(connectTimeout),
		CircuitBreakers: &clusterv3.CircuitBreakers{
			Thresholds: []*clusterv3.CircuitBreakers_Thresholds{limits(corev3.RoutingPriority_DEFAULT),
				limits(corev3.RoutingPriority_HIGH)},
		},
	}
}

// transportTLS checks certificates by the authorities of a secret that the client's own
// bootstrap has, and by the hostname of the endpoint.
func transportTLS(secret string) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: must(&tlsv3.UpstreamTlsContext{
			AutoHostSni: true, AutoSniSanValidation: true,
			CommonTlsContext: &tlsv3.CommonTlsContext{
				AlpnProtocols: []string{"h2"},
				ValidationContextType: &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
					ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: secret},
				},
			},
		})}}
}

// assignments are the endpoints of clusters. That of the database is left out until a
// node is known: clients that come back keep the nodes that they have.
func (p *plan) assignments(f Flavor) []*endpointv3.ClusterLoadAssignment {
	state := corev3.HealthStatus_HEALTHY
	if p.draining && f == Envoy {
		state = corev3.HealthStatus_DRAINING
	}
	self := &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: socket(p.sidecar.Addr(), uint32(p.sidecar.Port())), Hostname: p.sidecar.Addr().String(),
		}},
		HealthStatus: state, LoadBalancingWeight: wrapperspb.UInt32(fullWeight),
	}
	all := []*endpointv3.ClusterLoadAssignment{{ClusterName: sidecarName, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		Locality: &corev3.Locality{}, LoadBalancingWeight: wrapperspb.UInt32(fullWeight), LbEndpoints: []*endpointv3.LbEndpoint{self},
	}}}}
	if len(p.nodes) > 0 {
		all = append(all, assignment(p.database, f, p.nodes))
	}
	return all
}

// place is where an endpoint is put: endpoints of one place share what a locality gets.
type place struct {
	priority uint32
	zone     string
	light    bool // gRPC clients give all endpoints of a locality the same: those that get less have their own
}

// assignment puts nodes with a weight into priority 0, healthy ones without (other
// zones, while the preferred ones have room) into the next, and for gRPC, which knows
// no DEGRADED, those into the last. Envoy gets all nodes, with their status.
func assignment(name string, f Flavor, nodes []endpoint) *endpointv3.ClusterLoadAssignment {
	first, full := map[string]bool{}, map[string]uint32{}
	for _, n := range nodes {
		if n.status == healthy && n.weight > 0 {
			first[n.zone], full[n.zone] = true, max(full[n.zone], n.weight)
		}
	}
	places := map[place][]endpoint{}
	for _, n := range nodes {
		at := place{zone: n.zone}
		switch {
		case n.status == healthy && n.weight > 0:
			at.light = f == GRPC && n.weight < full[n.zone]
		case n.status == healthy:
			at.priority = 1
		case f == GRPC && n.status == degraded:
			at.priority = 2
		case f == GRPC:
			continue
		case !first[n.zone]:
			at.priority = 1
		}
		places[at] = append(places[at], n)
	}
	order := slices.SortedFunc(maps.Keys(places), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.zone, b.zone), compareBool(a.light, b.light))
	})
	out := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	if f == Envoy {
		out.Policy = &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(overprovisioning)}
	}
	priority := -1
	for i, at := range order {
		if i == 0 || at.priority != order[i-1].priority {
			priority++ // a gap is refused
		}
		group := &endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{Zone: at.zone}, Priority: uint32(priority)}
		if at.light {
			group.Locality.SubZone = "light"
		}
		capacity := uint32(0)
		for _, n := range places[at] {
			group.LbEndpoints = append(group.LbEndpoints, lbEndpoint(f, n))
			if n.status == healthy {
				capacity += n.weight
			}
		}
		group.LoadBalancingWeight = wrapperspb.UInt32(max(capacity, 1))
		out.Endpoints = append(out.Endpoints, group)
	}
	return out
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

var envoyStatus = [...]corev3.HealthStatus{
	healthy: corev3.HealthStatus_HEALTHY, degraded: corev3.HealthStatus_DEGRADED, draining: corev3.HealthStatus_DRAINING,
	unhealthy: corev3.HealthStatus_UNHEALTHY,
}

func lbEndpoint(f Flavor, n endpoint) *endpointv3.LbEndpoint {
	state, weight := corev3.HealthStatus_HEALTHY, max(n.weight, 1)
	if f == Envoy {
		state = envoyStatus[n.status]
	}
	if n.status == healthy && n.weight == 0 {
		weight = fullWeight // among themselves reserves are alike
	}
	where := &endpointv3.Endpoint{Address: socket(n.ips[0], n.port), Hostname: n.name}
	for _, ip := range n.ips[1:] {
		where.AdditionalAddresses = append(where.AdditionalAddresses, &endpointv3.Endpoint_AdditionalAddress{Address: socket(ip, n.port)})
	}
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: where},
		HealthStatus:   state, LoadBalancingWeight: wrapperspb.UInt32(weight),
		Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": {Fields: map[string]*structpb.Value{
			"node_id": structpb.NewStringValue(nodeText(n.id)), "dc": structpb.NewStringValue(n.zone),
		}}}},
	}
}

func nodeText(id cluster.NodeID) string { return fmt.Sprint(uint32(id)) }

func socket(ip netip.Addr, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: ip.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func routes(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{{
		Name: name, Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
			// No limit of its own: streams of sessions last for as long as these do, and callers have deadlines.
			Action: &routev3.Route_Route{
				Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: name}, Timeout: durationpb.New(0)},
			},
		}},
	}}}
}

// routeConfigs are what the listeners in Envoy's own configuration ask for by name.
func (p *plan) routeConfigs(f Flavor) []*routev3.RouteConfiguration {
	if f == GRPC {
		return nil
	}
	return []*routev3.RouteConfiguration{routes(p.database), routes(sidecarName)}
}

// listeners are the names that gRPC clients dial: xds:///ydb/a/b and xds:///sidecar.
// Envoy refuses listeners of that kind.
func (p *plan) listeners(f Flavor) (all []*listenerv3.Listener) {
	if f == Envoy {
		return nil
	}
	for _, name := range []string{p.database, sidecarName} {
		all = append(all,
			&listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: must(&hcmv3.HttpConnectionManager{
				RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes(name)},
				HttpFilters: []*hcmv3.HttpFilter{{
					Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: must(&routerv3.Router{})},
				}},
			})}})
	}
	return all
}
