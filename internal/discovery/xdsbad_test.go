package discovery

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/await"
)

func TestABadAnswerIsRefusedAndTheLastOneKept(t *testing.T) {
	for name, bad := range map[string]*endpointv3.ClusterLoadAssignment{
		"no port":      assignment(zone("a", endpoint("1", "10.0.0.1", 0, 0))),
		"large port":   assignment(zone("a", endpoint("1", "10.0.0.1", 70000, 0))),
		"no address":   assignment(zone("a", endpoint("1", "", 2136, 0))),
		"odd address":  assignment(zone("a", endpoint("1", "a b", 2136, 0))),
		"odd id":       assignment(zone("a", endpoint("one", "10.0.0.1", 2136, 0))),
		"id 0":         assignment(zone("a", endpoint("0", "10.0.0.1", 2136, 0))),
		"id too large": assignment(zone("a", endpoint("4294967296", "10.0.0.1", 2136, 0))),
		"no endpoint":  assignment(zone("a", &endpointv3.LbEndpoint{})),
		"LEDS": assignment(
			&endpointv3.LocalityLbEndpoints{
				LbConfig: &endpointv3.LocalityLbEndpoints_LedsClusterLocalityConfig{
					LedsClusterLocalityConfig: &endpointv3.LedsClusterLocalityConfig{},
				},
			},
		),
	} {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.put(assignment(zone("a", endpoint("7", "10.0.0.7", 2136, 0))))
			d, heard := p.controlled(nil, nil)
			awaitNodes(t, heard, 7)
			p.put(bad)
			p.requests("a refusal", func(all []*discoveryv3.DiscoveryRequest) bool { return all[len(all)-1].GetErrorDetail() != nil })
			p.mu.Lock()
			last, good := p.asked[len(p.asked)-1], p.asked[1].GetVersionInfo()
			p.mu.Unlock()
			if last.GetVersionInfo() != good || last.GetErrorDetail().GetMessage() == "" {
				t.Errorf("the refusal is %v; want the version before, %s, and a reason", last, good)
			}
			await.True(t, "it is told as a failure", func() bool {
				d.Refresh()
				return d.State().Err != nil
			})
			if s := d.State(); !strings.Contains(s.Err.Error(), "refused") || len(s.Topology.Nodes) != 1 || s.Source.Version != good {
				t.Errorf("state %+v", s)
			}
			p.put(assignment(zone("a", endpoint("8", "10.0.0.8", 2136, 0))))
			awaitNodes(t, heard, 8)
			await.True(t, "the failure is over", func() bool { return d.State().Err == nil })
		})
	}
}

// A server that sends the same bad answer again and again is not answered in a quick loop.
func TestRefusalsDoNotLoop(t *testing.T) {
	asked := make(chan [2]time.Time, 4) // before an answer was sent, and when the next question had come
	s := streams(func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		if _, err := s.Recv(); err != nil {
			return nil
		}
		for nonce := 0; ; nonce++ {
			before := time.Now()
			if err := s.Send(
				&discoveryv3.DiscoveryResponse{TypeUrl: "type.googleapis.com/other", VersionInfo: "1", Nonce: fmt.Sprint(nonce)},
			); err != nil {
				return nil
			}
			if _, err := s.Recv(); err != nil {
				return nil
			}
			select {
			case asked <- [2]time.Time{before, time.Now()}:
			default: // the test has seen enough
			}
		}
	})
	p := &plane{t: t, addr: s.serve(t)}
	p.controlled(nil, func(c *Config) { c.RetryMin, c.RetryMax = 50*time.Millisecond, 10*time.Second })
	for _, pause := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond} {
		// A timer may be early by what clocks differ.
		if at := <-asked; at[1].Sub(at[0]) < pause-5*time.Millisecond {
			t.Errorf("asked again %v after an answer; want a pause of %v", at[1].Sub(at[0]), pause)
		}
	}
}

// streams is a control plane made by hand.
type streams func(discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error

func (f streams) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return f(s)
}

func (f streams) DeltaAggregatedResources(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return nil
}

func (f streams) serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, f)
	go func() { _ = server.Serve(l) }() // until stop
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

func TestNodesAreKeptWhileTheControlPlaneIsAway(t *testing.T) {
	p := startPlane(t)
	p.put(assignment(zone("a", endpoint("7", "10.0.0.7", 2136, 0))))
	d, heard := p.controlled(nil, nil)
	awaitNodes(t, heard, 7)
	p.stop()
	await.True(t, "the failure is told", func() bool { d.Refresh(); return d.State().Failures > 2 })
	if s := d.State(); len(s.Topology.Nodes) != 1 || !strings.Contains(s.Err.Error(), p.addr) {
		t.Errorf("state %+v", s)
	}
	// A new process, which counts its versions from the beginning again.
	p.cache = cachev3.NewLinearCache(typeEDS)
	p.put(assignment(zone("a", endpoint("7", "10.0.0.7", 2136, 0), endpoint("8", "10.0.0.8", 2136, 0))))
	p.start()
	awaitNodes(t, heard, 7, 8)
	await.True(t, "the failure is over", func() bool { return d.State().Failures == 0 })
}

func TestNodesOfAControlPlaneWithoutIDsAreAsked(t *testing.T) {
	p := startPlane(t)
	h := &hosts{ids: map[string]cluster.NodeID{"10.0.0.8:2136": 80}}
	p.put(assignment(zone("a", endpoint("7", "10.0.0.7", 2136, 0), endpoint("", "10.0.0.8", 2136, 0))))
	d, heard := p.controlled(h.identify, nil)
	awaitNodes(t, heard, 7, 80)
	h.set("10.0.0.8:2136", 81)
	d.source.(*XDS).Doubt("10.0.0.8:2136")
	awaitNodes(t, heard, 7, 81)
	p.stop() // what the nodes tell counts without a control plane too
	await.True(t, "the failure is told", func() bool { d.Refresh(); return d.State().Failures > 2 })
	h.set("10.0.0.8:2136", 82)
	d.source.(*XDS).Doubt("10.0.0.8:2136")
	awaitNodes(t, heard, 7, 82)
	if h.questions("10.0.0.7:2136") != 0 {
		t.Error("a node was asked whose id the control plane told")
	}
}

func TestTheTokenOfAFileGoesWithEachStream(t *testing.T) {
	p := startPlane(t)
	p.put(assignment(zone("a", endpoint("7", "10.0.0.7", 2136, 0))))
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	_, heard := p.controlled(nil, func(c *Config) { c.XDS.TokenFile = file })
	awaitNodes(t, heard, 7)
	p.stop()
	write("two")
	p.start()
	await.True(t, "the next stream has the next token", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.tokens[0] == "Bearer one" && p.tokens[len(p.tokens)-1] == "Bearer two"
	})
}

func FuzzAnswer(f *testing.F) {
	add := func(r *discoveryv3.DiscoveryResponse) {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	pack := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			f.Fatal(err)
		}
		return a
	}
	good := pack(assignment(zone("a", endpoint("1", "10.0.0.1", 2136, corev3.HealthStatus_DEGRADED), endpoint("", "h.example", 1, 0))))
	add(&discoveryv3.DiscoveryResponse{TypeUrl: typeEDS, Resources: []*anypb.Any{good}})
	add(&discoveryv3.DiscoveryResponse{TypeUrl: typeEDS, Resources: []*anypb.Any{pack(&discoveryv3.Resource{Resource: good})}})
	add(&discoveryv3.DiscoveryResponse{TypeUrl: typeEDS, Resources: []*anypb.Any{{TypeUrl: typeEDS, Value: []byte{1}}}})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := new(discoveryv3.DiscoveryResponse)
		if proto.Unmarshal(b, r) != nil {
			return
		}
		_, nodes, err := nodesOf(r, "ydb/local")
		if err != nil && len(nodes) > 0 {
			t.Errorf("nodes %v, although %v", nodes, err)
		}
		for _, n := range nodes {
			if !isHostPort(n.Address) || n.TLSName != "" && !isName(n.TLSName) {
				t.Errorf("node %+v", n)
			}
		}
	})
}
