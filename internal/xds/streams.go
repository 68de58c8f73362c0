package xds

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// maxNames is how many resources a stream may ask for by name, of each type.
const maxNames = 1000

// streams follows what clients do, for people, and keeps refusals from going in
// circles. It is what go-control-plane calls back.
type streams struct {
	p *Publisher

	mu  sync.Mutex // guards all
	all map[streamKey]*stream

	opened, refused, nacks, responses atomic.Uint64
}

// streamKey tells streams apart: the library counts those of each protocol by themselves.
type streamKey struct {
	delta bool
	id    int64
}

type stream struct {
	peer  string
	since time.Time
	delta bool
	only  string // the type of all requests; "": each has its own

	mu     sync.Mutex // guards the rest
	node   string
	agent  string
	flavor Flavor
	types  map[string]*typeState
}

// typeState is what a stream has of one type of resource.
type typeState struct {
	names  int    // asked for by name; 0: all
	sent   string // version
	nonce  string // the one that goes with it
	acked  string
	nacked string // version that was refused last
	reason string // of the refusal
}

func (s *streams) init(p *Publisher) { s.p, s.all = p, map[streamKey]*stream{} }

func (s *streams) get(key streamKey) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[key]
}

func (s *streams) open(ctx context.Context, key streamKey, typeURL string) error {
	from := "?"
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr.String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= s.p.config.MaxStreams {
		s.refused.Add(1)
		return status.Error(codes.ResourceExhausted,
			"as many streams are open already as there may be (xds.max_streams); connect to another sidecar")
	}
	s.opened.Add(1)
	s.all[key] = &stream{peer: from, since: time.Now(), delta: key.delta, only: typeURL, types: map[string]*typeState{}}
	return nil
}

func (s *streams) close(key streamKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, key)
}

// request takes note of a request. nonce is that of the answer that it is about, and
// refusal why that is not accepted; nil: it is.
func (s *streams) request(key streamKey, node *corev3.Node, typeURL, nonce string, refusal *rpcstatus.Status,
	names func(before int) int) (version string, err error) {
	if cachev3.GetResponseType(typeURL) == types.UnknownType {
		return "", status.Errorf(codes.InvalidArgument, "type %.100q is not served", typeURL)
	}
	st := s.get(key)
	if st == nil {
		return "", status.Error(codes.Internal, "the stream has ended")
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if node != nil && st.flavor == "" {
		st.node, st.agent, st.flavor = node.GetId(), node.GetUserAgentName(), flavorOf(node)
		if v := node.GetUserAgentVersion(); v != "" {
			st.agent += " " + v
		}
	}
	if st.flavor == "" {
		return "", noFlavor
	}
	t := st.types[typeURL]
	if t == nil {
		t = new(typeState)
		st.types[typeURL] = t
	}
	if t.names = names(t.names); t.names > maxNames {
		return "", status.Errorf(codes.ResourceExhausted, "more than %d names of one type are asked for", maxNames)
	}
	if nonce == "" || nonce != t.nonce {
		return t.sent, nil // the first one, or about an answer that another has followed
	}
	if refusal == nil {
		t.acked = t.sent
		return t.sent, nil
	}
	s.nacks.Add(1)
	reason := short(refusal.GetMessage())
	if t.nacked != t.sent { // once for each version
		s.p.log.Error("a client refuses what was published over xDS; it keeps what it had, and gets the next version",
			"client", st.node, "address", st.peer, "agent", st.agent,
			"flavor", st.flavor, "type", shortType(typeURL), "version", t.sent, "reason", reason)
	}
	t.nacked, t.reason = t.sent, reason
	return t.sent, nil
}

func (s *streams) response(key streamKey, typeURL, version, nonce string) {
	st := s.get(key)
	if st == nil {
		return
	}
	s.responses.Add(1)
	st.mu.Lock()
	defer st.mu.Unlock()
	if t := st.types[typeURL]; t != nil {
		t.sent, t.nonce = version, nonce
	}
}

// The following is what go-control-plane calls.

func (s *streams) OnStreamOpen(ctx context.Context, id int64, typeURL string) error {
	return s.open(ctx, streamKey{false, id}, typeURL)
}

func (s *streams) OnStreamClosed(id int64, _ *corev3.Node) { s.close(streamKey{false, id}) }

func (s *streams) OnStreamRequest(id int64, r *discoveryv3.DiscoveryRequest) error {
	trim(r.GetNode())
	if slices.Contains(r.GetResourceNames(), "*") &&
		(r.GetTypeUrl() == resourcev3.ClusterType || r.GetTypeUrl() == resourcev3.ListenerType) {
		r.ResourceNames = nil // the library looks for a resource of that name
	}
	sent, err := s.request(
		streamKey{false, id}, r.GetNode(), r.GetTypeUrl(), r.GetResponseNonce(), r.GetErrorDetail(),
		func(int) int { return len(r.GetResourceNames()) },
	)
	if r.GetErrorDetail() != nil {
		r.VersionInfo = sent // with the version before it, the library would send the same again, for ever
	}
	return err
}

func (s *streams) OnStreamResponse(_ context.Context, id int64, r *discoveryv3.DiscoveryRequest, out *discoveryv3.DiscoveryResponse) {
	s.response(streamKey{false, id}, r.GetTypeUrl(), out.GetVersionInfo(), out.GetNonce())
}

func (s *streams) OnDeltaStreamOpen(ctx context.Context, id int64, typeURL string) error {
	return s.open(ctx, streamKey{true, id}, typeURL)
}

func (s *streams) OnDeltaStreamClosed(id int64, _ *corev3.Node) { s.close(streamKey{true, id}) }

func (s *streams) OnStreamDeltaRequest(id int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	trim(r.GetNode())
	if st := s.get(streamKey{true, id}); r.GetTypeUrl() == "" && st != nil {
		r.TypeUrl = st.only
	}
	if r.GetTypeUrl() == resourcev3.EndpointType {
		s.keepUnknown(r)
	}
	_, err := s.request(streamKey{true, id}, r.GetNode(), r.GetTypeUrl(), r.GetResponseNonce(), r.GetErrorDetail(), func(before int) int {
		return max(before-len(r.GetResourceNamesUnsubscribe()), 0) + len(r.GetResourceNamesSubscribe())
	})
	return err
}

// keepUnknown leaves out of what a client says that it has, what is not known here yet:
// the library would tell it to drop that.
func (s *streams) keepUnknown(r *discoveryv3.DeltaDiscoveryRequest) {
	if _, ok := r.GetInitialResourceVersions()[nameOf(s.p.deps.Database)]; ok && !s.p.knowsNodes() {
		delete(r.InitialResourceVersions, nameOf(s.p.deps.Database))
	}
}

func (s *streams) OnStreamDeltaResponse(id int64, r *discoveryv3.DeltaDiscoveryRequest, out *discoveryv3.DeltaDiscoveryResponse) {
	s.response(streamKey{true, id}, r.GetTypeUrl(), out.GetSystemVersionInfo(), out.GetNonce())
}

// State is /state/xds.
type State struct {
	Enabled    bool           `json:"enabled"`
	Address    string         `json:"address,omitempty"`
	Cluster    string         `json:"cluster,omitempty"` // the name of the database's resources
	Version    string         `json:"version,omitempty"` // begins all versions of this process
	Published  uint64         `json:"published"`         // times so far
	LastMS     float64        `json:"last_ms"`           // ago; 0: never
	Nodes      map[string]int `json:"nodes"`             // published, by status
	Unresolved int            `json:"unresolved"`        // names of nodes without an address: not published
	Streams    int            `json:"streams"`
	MaxStreams int            `json:"max_streams"`
	Refused    uint64         `json:"refused"` // streams, for max_streams
	Responses  uint64         `json:"responses"`
	Nacks      uint64         `json:"nacks"`
	Clients    []ClientState  `json:"clients"` // one for each stream, the oldest first
	LeftOut    int            `json:"left_out,omitempty"`
}

// ClientState is one stream.
type ClientState struct {
	Node     string               `json:"node"`
	Agent    string               `json:"agent"`
	Flavor   Flavor               `json:"flavor"`
	Peer     string               `json:"peer"`
	Protocol string               `json:"protocol"` // delta or sotw
	SinceMS  float64              `json:"since_ms"`
	Types    map[string]TypeState `json:"types"`
}

// TypeState is what a client has of one type of resource.
type TypeState struct {
	Sent   string `json:"sent"`  // version; "": none
	Acked  string `json:"acked"` // the last one that was accepted
	Nacked string `json:"nacked,omitempty"`
	Error  string `json:"error,omitempty"` // why that was refused
}

// Stats are the figures of State.
type Stats struct {
	Streams                                      map[Flavor]int // open
	Nodes                                        map[string]int // published, by status
	Published, Refused, Responses, Nacks, Opened uint64
}

func shortType(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '.')+1:] }

func (p *Publisher) knowsNodes() bool {
	p.said.Lock()
	defer p.said.Unlock()
	return len(p.said.nodes) > 0
}

func (p *Publisher) nodesByStatus() map[string]int {
	out := map[string]int{}
	for s := healthy; s <= unhealthy; s++ {
		out[s.String()] = 0
	}
	p.said.Lock()
	defer p.said.Unlock()
	for _, n := range p.said.nodes {
		out[n.status.String()]++
	}
	return out
}

// Stats returns the counts as they are now.
func (p *Publisher) Stats() Stats {
	s := &p.streams
	out := Stats{
		Streams: map[Flavor]int{Envoy: 0, GRPC: 0}, Nodes: p.nodesByStatus(),
		Refused: s.refused.Load(), Responses: s.responses.Load(), Nacks: s.nacks.Load(), Opened: s.opened.Load(),
	}
	for _, st := range s.list() {
		st.mu.Lock()
		if st.flavor != "" {
			out.Streams[st.flavor]++
		}
		st.mu.Unlock()
	}
	p.said.Lock()
	defer p.said.Unlock()
	out.Published = p.said.count
	return out
}

func (s *streams) list() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.all))
}

// State returns what is published and who hears of it, limit clients at most.
func (p *Publisher) State(limit int) State {
	s := &p.streams
	out := State{
		Enabled: true, Cluster: nameOf(p.deps.Database), Version: p.boot, Nodes: p.nodesByStatus(), MaxStreams: p.config.MaxStreams,
		Refused: s.refused.Load(), Responses: s.responses.Load(), Nacks: s.nacks.Load(), Clients: []ClientState{},
	}
	all := s.list()
	out.Streams = len(all)
	slices.SortFunc(all, func(a, b *stream) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.peer, b.peer)) })
	if len(all) > limit {
		out.LeftOut, all = len(all)-limit, all[:limit]
	}
	now := time.Now()
	ms := func(t time.Time) float64 { return float64(now.Sub(t).Microseconds()) / 1000 }
	for _, st := range all {
		st.mu.Lock()
		c := ClientState{Node: st.node, Agent: st.agent, Flavor: st.flavor, Peer: st.peer, Protocol: "sotw",
			SinceMS: ms(st.since), Types: map[string]TypeState{}}
		if st.delta {
			c.Protocol = "delta"
		}
		for url, t := range st.types {
			c.Types[shortType(url)] = TypeState{Sent: t.sent, Acked: t.acked, Nacked: t.nacked, Error: t.reason}
		}
		st.mu.Unlock()
		out.Clients = append(out.Clients, c)
	}
	p.said.Lock()
	defer p.said.Unlock()
	out.Published, out.Unresolved = p.said.count, p.said.unresolved
	if !p.said.at.IsZero() {
		out.LastMS = ms(p.said.at)
	}
	return out
}
