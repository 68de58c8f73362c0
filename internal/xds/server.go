package xds

import (
	"context"
	"crypto/subtle"
	"errors"
	"net"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/log"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/config"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

const (
	maxRequest     = 256 << 10 // bytes of one message of a client
	perConnection  = 100       // streams of one connection
	handshakeLimit = 10 * time.Second
)

func emptyAssignment(name string) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{ClusterName: name}
}

func (p *Publisher) newServer(cache cachev3.Cache, quiet log.Logger) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}), // finds clients that vanished
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.WaitForHandlers(true),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxConcurrentStreams(perConnection),
		grpc.ChainUnaryInterceptor(func(
			ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler,
		) (answer any, err error) {
			err = p.guard(ctx, func() (err error) {
				answer, err = next(ctx, req)
				return err
			})
			return answer, err
		}),
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return p.guard(s.Context(), func() error { return next(srv, s) })
		}),
	}
	if p.deps.TLS != nil {
		options = append(options, grpc.Creds(certs.Credentials(p.deps.TLS)))
	}
	server := grpc.NewServer(options...)
	// Endpoints and routes are asked for by name: a client that takes its last name back
	// does not want all of them.
	protocol := []config.XDSOption{
		func(o *config.Opts) { o.Logger = quiet }, sotw.WithOrderedADS(),
		config.DeactivateLegacyWildcardForTypes([]string{resourcev3.EndpointType, resourcev3.RouteType}),
	}
	p.protocols = &services{sotw: sotw.NewServer(p.ctx, cache, &p.streams, protocol...),
		delta: delta.NewServer(p.ctx, cache, &p.streams, protocol...)}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, p.protocols)
	endpointservice.RegisterEndpointDiscoveryServiceServer(server, p.protocols)
	clusterservice.RegisterClusterDiscoveryServiceServer(server, p.protocols)
	listenerservice.RegisterListenerDiscoveryServiceServer(server, p.protocols)
	routeservice.RegisterRouteDiscoveryServiceServer(server, p.protocols)
	return server
}

// services are the streams of all types and those of one. What the protocol has for
// single requests is not served.
type services struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	endpointservice.UnimplementedEndpointDiscoveryServiceServer
	clusterservice.UnimplementedClusterDiscoveryServiceServer
	listenerservice.UnimplementedListenerDiscoveryServiceServer
	routeservice.UnimplementedRouteDiscoveryServiceServer
	sotw  sotw.Server
	delta delta.Server
}

func (s *services) StreamAggregatedResources(st discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.sotw.StreamHandler(st, resourcev3.AnyType)
}

func (s *services) DeltaAggregatedResources(st discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.delta.DeltaStreamHandler(st, resourcev3.AnyType)
}

func (s *services) StreamEndpoints(st endpointservice.EndpointDiscoveryService_StreamEndpointsServer) error {
	return s.sotw.StreamHandler(st, resourcev3.EndpointType)
}

func (s *services) DeltaEndpoints(st endpointservice.EndpointDiscoveryService_DeltaEndpointsServer) error {
	return s.delta.DeltaStreamHandler(st, resourcev3.EndpointType)
}

func (s *services) StreamClusters(st clusterservice.ClusterDiscoveryService_StreamClustersServer) error {
	return s.sotw.StreamHandler(st, resourcev3.ClusterType)
}

func (s *services) DeltaClusters(st clusterservice.ClusterDiscoveryService_DeltaClustersServer) error {
	return s.delta.DeltaStreamHandler(st, resourcev3.ClusterType)
}

func (s *services) StreamListeners(st listenerservice.ListenerDiscoveryService_StreamListenersServer) error {
	return s.sotw.StreamHandler(st, resourcev3.ListenerType)
}

func (s *services) DeltaListeners(st listenerservice.ListenerDiscoveryService_DeltaListenersServer) error {
	return s.delta.DeltaStreamHandler(st, resourcev3.ListenerType)
}

func (s *services) StreamRoutes(st routeservice.RouteDiscoveryService_StreamRoutesServer) error {
	return s.sotw.StreamHandler(st, resourcev3.RouteType)
}

func (s *services) DeltaRoutes(st routeservice.RouteDiscoveryService_DeltaRoutesServer) error {
	return s.delta.DeltaStreamHandler(st, resourcev3.RouteType)
}

// guard runs a call if its client is admitted. A panic ends the call alone, which grpc-go does not see to.
func (p *Publisher) guard(ctx context.Context, call func() error) error {
	err := panics.Call("a call over xDS", func() error {
		if err := p.admit(ctx); err != nil {
			return err
		}
		return call()
	})
	if _, broke := errors.AsType[*panics.Error](err); broke {
		return status.Error(codes.Internal, "the xDS server failed: see its log")
	}
	return err
}

// admit asks for the token, if there is one.
func (p *Publisher) admit(ctx context.Context) error {
	want, err := p.config.bearer()
	if err != nil {
		p.log.Error("clients of xDS are turned away: their token cannot be read", "err", err)
		return status.Error(codes.Unavailable, "the token of the xDS server cannot be read: see its log")
	}
	if want == "" {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	for _, header := range md.Get("authorization") {
		if subtle.ConstantTimeCompare([]byte(apps.Bearer(header)), []byte(want)) == 1 {
			return nil
		}
	}
	return status.Error(codes.Unauthenticated, "a token is needed: header Authorization: Bearer, with what xds.token or xds.token_file has")
}

// Serve accepts clients until the listener is closed or Stop.
func (p *Publisher) Serve(l net.Listener) error { return p.server.Serve(l) }

// Stop ends all streams, and returns when they have ended.
func (p *Publisher) Stop() {
	p.stop()
	p.server.Stop()
}

// noFlavor is what a client hears that does not say what it is.
var noFlavor = status.Error(codes.InvalidArgument,
	`who asks? Set "flavor" in the node's metadata to "envoy" or "grpc"; without it user_agent_name must begin with envoy or grpc`)

// maxText bounds what is kept of a client's words, in bytes.
const maxText = 200

func short(text string) string {
	if len(text) > maxText {
		text = text[:maxText]
	}
	return strings.ToValidUTF8(text, "�")
}

const flavorKey = "flavor"

// flavorOf reads the flavor of a client; "": it does not say.
func flavorOf(node *corev3.Node) Flavor {
	switch f := Flavor(strings.ToLower(node.GetMetadata().GetFields()[flavorKey].GetStringValue())); f {
	case Envoy, GRPC:
		return f
	}
	switch agent := strings.ToLower(node.GetUserAgentName()); {
	case strings.HasPrefix(agent, "envoy"):
		return Envoy
	case strings.HasPrefix(agent, "grpc"):
		return GRPC
	}
	return ""
}

// trim leaves of what a client says of itself what is needed: the library keeps it for
// as long as the stream lives.
func trim(node *corev3.Node) {
	if node == nil {
		return
	}
	f := flavorOf(node)
	id, agent, version := short(node.GetId()), short(node.GetUserAgentName()), short(node.GetUserAgentVersion())
	node.Reset()
	node.Id, node.UserAgentName = id, agent
	if version != "" {
		node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: version}
	}
	if f != "" {
		node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{flavorKey: structpb.NewStringValue(string(f))}}
	}
}
