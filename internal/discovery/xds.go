package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ydb-sidecar/sidecar/internal/awake"
	"github.com/ydb-sidecar/sidecar/internal/certs"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// XDSConfig is the part of the section "discovery" for a control plane.
type XDSConfig struct {
	URL string `yaml:"xds_url"` // Control plane (ADS) for mode xds: grpc[s]://host:port
	// Name of the endpoints (EDS) to ask for. Empty: ydb and the path of the database, as another sidecar
	// names them
	Cluster string `yaml:"xds_cluster"`
	// Node id that the sidecar sends to the control plane. Empty: ydb-sidecar/ and the host name
	Node string `yaml:"xds_node"`
	// PEM file with further roots for grpcs. Empty: the system's roots. All three files are read again
	// when they change
	CAFile string `yaml:"xds_ca_file"`
	// PEM file with the certificate that the sidecar shows to the control plane; needs xds_key_file
	CertFile string `yaml:"xds_cert_file"`
	KeyFile  string `yaml:"xds_key_file"` // PEM file with the key of xds_cert_file
	// Server name to verify in the control plane's certificate. Empty: the host of xds_url
	ServerName string `yaml:"xds_server_name"`
	// Bearer token sent with each stream; needs grpcs or a loopback address
	Token string `yaml:"xds_token"`
	// File with the bearer token, read for each stream, in place of xds_token
	TokenFile string `yaml:"xds_token_file"`
}

// set is the first setting that is set.
func (c XDSConfig) set() string {
	return cmp.Or(textIf(c.URL != "", "xds_url"), textIf(c.Cluster != "", "xds_cluster"),
		textIf(c.Node != "", "xds_node"), textIf(c.CAFile != "", "xds_ca_file"),
		textIf(c.CertFile != "", "xds_cert_file"), textIf(c.KeyFile != "", "xds_key_file"), textIf(c.ServerName != "", "xds_server_name"),
		textIf(c.Token != "", "xds_token"), textIf(c.TokenFile != "", "xds_token_file"))
}

// maxXDSName bounds names that go to the control plane, in bytes.
const maxXDSName = 1024

func (c XDSConfig) validate() error {
	var errs []error
	fault := func(bad bool, setting, format string, args ...any) {
		if bad {
			errs = append(errs, config.Faultf(setting, format, args...))
		}
	}
	address, secure, err := parseXDS(c.URL)
	fault(err != nil, "xds_url", " must be grpc[s]://host:port, without anything else")
	fault(max(len(c.Cluster), len(c.Node)) > maxXDSName || !utf8.ValidString(c.Cluster+c.Node),
		"xds_cluster", " and xds_node must be UTF-8 of at most %d bytes", maxXDSName)
	fault((c.CertFile == "") != (c.KeyFile == ""), "xds_cert_file", " and xds_key_file are set together or not at all")
	if err == nil {
		fault(!secure && c.CAFile+c.CertFile+c.ServerName != "",
			"xds_ca_file",
			", xds_cert_file or xds_server_name is set, but xds_url is grpc:// and no TLS is spoken; write grpcs:// or drop it")
		fault(!secure && c.Token+c.TokenFile != "" && !isLoopback(address),
			"xds_token", " or xds_token_file is set, but xds_url is grpc:// to another machine, where everybody could "+
				"read the token on its way; write grpcs://")
	}
	fault(c.Token != "" && c.TokenFile != "", "xds_token", " and xds_token_file are both set; want one")
	if _, err := c.token(); err != nil {
		errs = append(errs, err)
	}
	if (c.CertFile == "") == (c.KeyFile == "") {
		if _, err := certs.New("discovery.xds", c.files(), nil, nil); err != nil {
			errs = append(errs, config.Under("xds_", err))
		}
	}
	return errors.Join(errs...)
}

func (c XDSConfig) files() certs.Files {
	return certs.Files{Cert: c.CertFile, Key: c.KeyFile, CA: c.CAFile, System: true}
}

// token is the token as it is now; "": none. Errors do not hold it.
func (c XDSConfig) token() (string, error) {
	if c.TokenFile == "" {
		if !isToken(c.Token) {
			return "", config.Faultf("xds_token", " must be printable ASCII")
		}
		return c.Token, nil
	}
	text, err := config.ReadSecret(c.TokenFile, config.MaxToken)
	token := strings.TrimSpace(string(text))
	if err == nil && !isToken(token) {
		err = fmt.Errorf("%s must hold one line of printable ASCII", c.TokenFile)
	}
	if err != nil {
		return "", config.Faultf("xds_token_file", ": %w", err)
	}
	return token, nil
}

func isToken(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// parseXDS reads grpc[s]://host:port. The error does not repeat the text.
func parseXDS(text string) (address string, secure bool, err error) {
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Path+u.RawQuery+u.Fragment+u.Opaque != "" ||
		(u.Scheme != "grpc" && u.Scheme != "grpcs") || !isHostPort(u.Host) {
		return "", false, errors.New("not grpc[s]://host:port")
	}
	return u.Host, u.Scheme == "grpcs", nil
}

func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

const (
	// typeEDS is the one type of resource that is asked for.
	typeEDS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

	// maxXDSMessage bounds one answer, in bytes: cluster.MaxNodes with room to spare.
	maxXDSMessage = 16 << 20

	// firstAnswer is how long a control plane that knows the resource may take: the
	// time after which the xDS protocol has clients take it for missing.
	firstAnswer = 15 * time.Second

	// maxReason bounds what a NACK and the log say of a bad answer, in bytes.
	maxReason = 1000
)

// The silence of a control plane means that nothing has changed, so the kernel has to
// find out that it is gone: within 30 s. Pings of HTTP/2 would do it as well, but
// servers of gRPC end connections on which they come more than once in five minutes.
var (
	xdsDialer = net.Dialer{Timeout: 10 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	xdsPings = keepalive.ClientParameters{Time: 5 * time.Minute, Timeout: 20 * time.Second}
)

// XDS is the Source of a control plane: the endpoints of one cluster (EDS), over one
// stream of the aggregated discovery service in its state-of-the-world form.
//
// What always holds: the nodes of the last good answer are kept when the stream breaks
// and when an answer is bad; each answer is accepted or refused with the reason, and
// after a refusal nothing is read for a while, so that no loop is quick.
type XDS struct {
	*identities
	config   XDSConfig
	retry    [2]time.Duration // least and longest pause
	database string
	version  string // of the sidecar
	log      *slog.Logger
	files    *certs.Keeper
	address  string // of the control plane
	creds    credentials.TransportCredentials
	patience time.Duration // firstAnswer, but in tests

	firstly sync.Once
	first   chan struct{} // closed when the first answer came, or did not

	mu sync.Mutex // guards all below
	assigned
}

// assigned is what the control plane answered.
type assigned struct {
	nodes    []cluster.Node
	accepted string // version of nodes; "": none
	fresh    bool   // they, or an id, changed since ListEndpoints
	err      error  // what is wrong now; nil: the stream is there and the last answer was good
}

// NewXDS returns the nodes of a control plane, for a database of that name. version is
// the sidecar's own.
func NewXDS(config Config, database, version string, ask Identify, log *slog.Logger) (*XDS, error) {
	x := &XDS{
		identities: newIdentities(ask, log), config: config.XDS, retry: [2]time.Duration{config.RetryMin, config.RetryMax},
		database: database, version: version, log: log, creds: insecure.NewCredentials(), patience: firstAnswer, first: make(chan struct{}),
	}
	x.config.Cluster = cmp.Or(x.config.Cluster, "ydb"+database)
	if x.config.Node == "" {
		host, _ := os.Hostname() // it is for those who look at the control plane
		x.config.Node = "ydb-sidecar/" + host
	}
	address, secure, err := parseXDS(config.XDS.URL)
	if err != nil {
		return nil, fmt.Errorf("discovery.xds_url: %w", err)
	}
	if x.files, err = certs.New("discovery.xds", config.XDS.files(), nil, log); err != nil {
		return nil, fmt.Errorf("discovery.xds_: %w", err)
	}
	x.address = address
	if secure {
		host, _, _ := net.SplitHostPort(address)
		x.creds = credentials.NewTLS(x.files.Client(cmp.Or(config.XDS.ServerName, host)))
	}
	return x, nil
}

// dial prepares the connection; nothing is sent before the first stream.
func (x *XDS) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("dns:///"+x.address,
		grpc.WithTransportCredentials(x.creds),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return xdsDialer.DialContext(ctx, "tcp", address)
		}),
		grpc.WithKeepaliveParams(xdsPings),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: x.retry[0], Multiplier: 1.6, Jitter: 0.2, MaxDelay: x.retry[1]},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxXDSMessage)),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
		grpc.WithUserAgent("ydb-sidecar/"+x.version),
	)
}

// Database returns the name.
func (x *XDS) Database() string { return x.database }

// ListEndpoints returns the nodes of the last good answer whose ids are known. It waits
// for the first, and is an error while something is wrong with the control plane, once
// what came before was handed over.
func (x *XDS) ListEndpoints(ctx context.Context) (cluster.Topology, error) {
	select {
	case <-x.first:
	case <-ctx.Done():
		return cluster.Topology{}, ctx.Err()
	}
	x.mu.Lock()
	nodes, fresh, err := x.nodes, x.fresh, x.err
	x.fresh = false
	x.mu.Unlock()
	if err != nil && !fresh {
		return cluster.Topology{}, err
	}
	return x.topology(ctx, nodes)
}

func (x *XDS) state() SourceState {
	s := SourceState{Unidentified: x.unidentified()}
	x.mu.Lock()
	defer x.mu.Unlock()
	s.Version = x.accepted
	return s
}

// chosen reports whether the control plane told the id of an address.
func (x *XDS) chosen(address string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(x.nodes, func(n cluster.Node) bool { return n.Address == address && n.ID != 0 })
}

// run keeps the stream until ctx ends.
func (x *XDS) run(ctx context.Context, changed func()) error {
	conn, err := x.dial()
	if err != nil {
		return fmt.Errorf("discovery.xds_url: %w", err)
	}
	defer func() { _ = conn.Close() }() // its only error says that it was closed before
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	var parts sync.WaitGroup
	defer parts.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // after a panic, too
	parts.Go(func() { panics.Keep(ctx, "the watch of certificates", func() { x.files.Run(ctx) }) })
	parts.Go(func() {
		panics.Keep(ctx, "the questions for ids of nodes", func() {
			x.identities.run(ctx, func() {
				x.mu.Lock()
				x.fresh = true
				x.mu.Unlock()
				changed()
			})
		})
	})
	pause := x.retry[0]
	for {
		var answered bool
		err := panics.Call("the stream of a control plane", func() (err error) {
			answered, err = x.stream(ctx, client, changed)
			return err
		})
		if ctx.Err() != nil {
			return nil
		}
		x.trouble(fmt.Errorf("the stream to %s ended: %w", x.config.URL, err))
		if answered {
			pause = x.retry[0]
		}
		if !awake.Sleep(ctx, pause+rand.N(pause/2+1)) {
			return nil
		}
		pause = min(2*pause, x.retry[1])
	}
}

// trouble notes what is wrong.
func (x *XDS) trouble(err error) {
	x.mu.Lock()
	x.err = err
	x.mu.Unlock()
	x.firstly.Do(func() { close(x.first) })
}

// accept takes the nodes of a good answer.
func (x *XDS) accept(nodes []cluster.Node, version string) {
	x.mu.Lock()
	x.nodes, x.accepted, x.fresh, x.err = nodes, version, true, nil
	x.mu.Unlock()
	x.firstly.Do(func() { close(x.first) })
}

// stream runs one stream to its end; answered says that a good answer came.
func (x *XDS) stream(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient, changed func()) (answered bool, err error) {
	token, err := x.config.token()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	s, err := client.StreamAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	late := time.AfterFunc(x.patience, func() {
		defer panics.Go("a wait for the control plane")
		x.trouble(
			fmt.Errorf("%s has said nothing of endpoints named %q for %v; is that discovery.xds_cluster?", x.config.URL,
				x.config.Cluster, x.patience),
		)
	})
	defer late.Stop()
	// A new stream says nothing of the version that it knows: so the answer is always
	// whole, also from a control plane that was restarted and counts from one again.
	request := &discoveryv3.DiscoveryRequest{Node: x.node(), TypeUrl: typeEDS, ResourceNames: []string{x.config.Cluster}}
	accepted, pause := "", x.retry[0]
	for {
		if err := s.Send(request); err != nil {
			_, err = s.Recv() // the reason
			return answered, err
		}
		r, err := s.Recv()
		if err != nil {
			return answered, err
		}
		found, nodes, bad := nodesOf(r, x.config.Cluster)
		request = &discoveryv3.DiscoveryRequest{TypeUrl: typeEDS, ResourceNames: request.GetResourceNames(),
			ResponseNonce: r.GetNonce(), VersionInfo: accepted}
		switch {
		case bad != nil:
			late.Stop()
			request.ErrorDetail = x.refuse(ctx, r.GetVersionInfo(), bad)
			if !awake.Sleep(ctx, pause) {
				return answered, ctx.Err()
			}
			pause = min(2*pause, x.retry[1])
		case found:
			late.Stop()
			accepted, answered, pause = r.GetVersionInfo(), true, x.retry[0]
			request.VersionInfo = accepted
			x.accept(nodes, accepted)
			changed()
		default: // it is about others: no news of ours
			accepted = r.GetVersionInfo()
			request.VersionInfo = accepted
		}
	}
}

// node says to the control plane who asks.
func (x *XDS) node() *corev3.Node {
	return &corev3.Node{
		Id: x.config.Node, Cluster: "ydb-sidecar", UserAgentName: "ydb-sidecar",
		UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: x.version},
		// What Envoy gets tells the most: of nodes that are drained and so on.
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"flavor": structpb.NewStringValue("envoy")}},
	}
}

// refuse notes that a version cannot be used, and returns what to tell the control plane.
func (x *XDS) refuse(ctx context.Context, version string, bad error) *statuspb.Status {
	reason := bad.Error()
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	x.log.WarnContext(ctx, "refused what the control plane sent; keeping what there was", "version", version, "err", reason)
	x.trouble(fmt.Errorf("version %q of %q was refused: %s", version, x.config.Cluster, reason))
	return &statuspb.Status{Code: int32(codes.InvalidArgument), Message: reason}
}

// nodesOf reads an answer; found is false if it says nothing of the endpoints of that
// name. The error says why the answer must be refused.
func nodesOf(r *discoveryv3.DiscoveryResponse, name string) (found bool, nodes []cluster.Node, err error) {
	if r.GetTypeUrl() != typeEDS {
		return false, nil, fmt.Errorf("it is of the type %.100q, which was not asked for", r.GetTypeUrl())
	}
	for _, resource := range r.GetResources() {
		list, err := assignmentOf(resource)
		if err != nil {
			return false, nil, err
		}
		if list.GetClusterName() != name {
			continue
		}
		if nodes, err = nodesIn(list); err != nil {
			return false, nil, fmt.Errorf("%.100s: %w", name, err)
		}
		found = true
	}
	return found, nodes, nil
}

// assignmentOf reads a resource, which may be wrapped.
func assignmentOf(resource *anypb.Any) (*endpointv3.ClusterLoadAssignment, error) {
	wrapped := new(discoveryv3.Resource)
	if resource.MessageIs(wrapped) {
		if err := resource.UnmarshalTo(wrapped); err != nil {
			return nil, fmt.Errorf("read a resource: %w", err)
		}
		resource = wrapped.GetResource()
	}
	list := new(endpointv3.ClusterLoadAssignment)
	if err := resource.UnmarshalTo(list); err != nil {
		return nil, fmt.Errorf("read a resource: %w", err)
	}
	return list, nil
}

// nodesIn returns the nodes that are listed. Priorities and weights are not heeded:
// the sidecar has its own (zones, load, health). A node that is drained is Leaving, one that
// is unhealthy is Unwell: only one that is not listed has left.
func nodesIn(list *endpointv3.ClusterLoadAssignment) (nodes []cluster.Node, err error) {
	for _, locality := range list.GetEndpoints() {
		if locality.GetLbConfig() != nil {
			return nil, errors.New("it has endpoints elsewhere than in lb_endpoints (LEDS), which the sidecar does not speak")
		}
		for _, e := range locality.GetLbEndpoints() {
			n, err := nodeOf(e)
			if err != nil {
				return nil, err
			}
			n.Zone = cmp.Or(locality.GetLocality().GetZone(), stringIn(e, "dc"))
			switch e.GetHealthStatus() {
			case corev3.HealthStatus_UNHEALTHY, corev3.HealthStatus_TIMEOUT:
				n.Unwell = true
			case corev3.HealthStatus_DRAINING:
				n.Draining = true
			}
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

// nodeOf reads one endpoint. Its id is 0 if the control plane does not tell it.
func nodeOf(e *endpointv3.LbEndpoint) (n cluster.Node, err error) {
	at := e.GetEndpoint().GetAddress().GetSocketAddress()
	port := at.GetPortValue()
	if at.GetAddress() == "" || port == 0 || port > 65535 || at.GetProtocol() != corev3.SocketAddress_TCP {
		return n, errors.New("an endpoint has no socket address with the number of a TCP port; those are the only " +
			"addresses that the sidecar takes")
	}
	n.Address = net.JoinHostPort(at.GetAddress(), strconv.FormatUint(uint64(port), 10))
	if _, ip := netip.ParseAddr(at.GetAddress()); ip != nil && !isName(at.GetAddress()) {
		return n, fmt.Errorf("an endpoint has the address %.100q; must be an IP address or a name", at.GetAddress())
	}
	if n.TLSName = e.GetEndpoint().GetHostname(); n.TLSName != "" && !isName(n.TLSName) {
		return n, fmt.Errorf("the endpoint at %s has the hostname %.100q, which is none", n.Address, n.TLSName)
	}
	id := stringIn(e, "node_id")
	if id == "" {
		return n, nil
	}
	number, err := strconv.ParseUint(id, 10, 32)
	if err != nil || number == 0 {
		return n, fmt.Errorf("the endpoint at %s has the node_id %.30q; must be a number from 1 to 4294967295", n.Address, id)
	}
	n.ID = cluster.NodeID(number)
	return n, nil
}

// stringIn returns a string, or a number as one, of the metadata for load balancers.
func stringIn(e *endpointv3.LbEndpoint, key string) string {
	v := e.GetMetadata().GetFilterMetadata()["envoy.lb"].GetFields()[key]
	if n, ok := v.GetKind().(*structpb.Value_NumberValue); ok {
		return strconv.FormatFloat(n.NumberValue, 'f', -1, 64)
	}
	return v.GetStringValue()
}
