package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.uber.org/goleak"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	database = "/ru/home"
	resource = "ydb/ru/home"
)

// serving is a publisher on a port of its own.
type serving struct {
	*Publisher
	at   string
	stop func()
}

func serve(t testing.TB, c Config, change func(*Deps)) *serving {
	t.Helper()
	return serveBy(t, c, change, true)
}

// serveBy publishes by itself only if it runs; else a test calls step.
func serveBy(t testing.TB, c Config, change func(*Deps), runs bool) *serving {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := New(c, depsOf(change))
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	if runs {
		group.Go(func() { _ = p.Run(ctx) })
	}
	group.Go(func() { _ = p.Serve(l) })
	s := &serving{Publisher: p, at: l.Addr().String(), stop: sync.OnceFunc(func() {
		cancel()
		p.Stop()
		group.Wait()
	})}
	t.Cleanup(s.stop)
	return s
}

func dial(t testing.TB, at string, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(at, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func nodeOf(f Flavor) *corev3.Node {
	return &corev3.Node{Id: "test", UserAgentName: "test",
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"flavor": structpb.NewStringValue(string(f))}}}
}

// client has one stream with ADS, and acknowledges what comes unless refuse says why
// not.
type client struct {
	t      testing.TB
	delta  bool
	refuse func(typeURL string) string

	sotw discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	incr discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient

	mu       sync.Mutex // guards the rest
	names    map[string][]string
	has      map[string]map[string]proto.Message // by type and name
	versions map[string]string                   // by type; of what was accepted
	came     int                                 // answers
	change   chan struct{}                       // closed at the next answer
	err      error                               // of the stream
}

func connect(t testing.TB, at string, f Flavor, delta bool, more func(*client)) *client {
	t.Helper()
	c := &client{t: t, delta: delta, names: map[string][]string{}, has: map[string]map[string]proto.Message{},
		versions: map[string]string{}, change: make(chan struct{})}
	if more != nil {
		more(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	service := discoveryv3.NewAggregatedDiscoveryServiceClient(dial(t, at))
	var err error
	if delta {
		c.incr, err = service.DeltaAggregatedResources(ctx)
	} else {
		c.sotw, err = service.StreamAggregatedResources(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	first := nodeOf(f)
	for _, typeURL := range []string{resourcev3.ClusterType, resourcev3.EndpointType} {
		names := c.names[typeURL]
		if typeURL == resourcev3.EndpointType && names == nil {
			names = []string{resource, sidecarName}
		}
		c.names[typeURL] = names
		if delta {
			known := map[string]string{}
			for name := range c.has[typeURL] {
				known[name] = "before"
			}
			err = c.incr.Send(
				&discoveryv3.DeltaDiscoveryRequest{Node: first, TypeUrl: typeURL, ResourceNamesSubscribe: names,
					InitialResourceVersions: known},
			)
		} else {
			err = c.sotw.Send(
				&discoveryv3.DiscoveryRequest{Node: first, TypeUrl: typeURL, ResourceNames: names, VersionInfo: c.versions[typeURL]},
			)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	running.Go(c.run)
	return c
}

func (c *client) run() {
	for {
		var err error
		if c.delta {
			err = c.nextDelta()
		} else {
			err = c.nextSotw()
		}
		if errors.Is(err, io.EOF) { // of a Send: Recv knows why
			_, err = c.recv()
		}
		c.mu.Lock()
		c.came++
		c.err = err
		close(c.change)
		c.change = make(chan struct{})
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *client) recv() (proto.Message, error) {
	if c.delta {
		return c.incr.Recv()
	}
	return c.sotw.Recv()
}

func (c *client) nextSotw() error {
	r, err := c.sotw.Recv()
	if err != nil {
		return err
	}
	ack := &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), ResourceNames: c.names[r.GetTypeUrl()]}
	c.mu.Lock()
	defer c.mu.Unlock()
	if why := c.refusal(r.GetTypeUrl()); why != nil {
		ack.ErrorDetail, ack.VersionInfo = why, c.versions[r.GetTypeUrl()]
		return c.sotw.Send(ack)
	}
	if r.GetTypeUrl() != resourcev3.EndpointType { // whole
		delete(c.has, r.GetTypeUrl())
	}
	for _, a := range r.GetResources() {
		c.put(r.GetTypeUrl(), a)
	}
	ack.VersionInfo, c.versions[r.GetTypeUrl()] = r.GetVersionInfo(), r.GetVersionInfo()
	return c.sotw.Send(ack)
}

func (c *client) nextDelta() error {
	r, err := c.incr.Recv()
	if err != nil {
		return err
	}
	ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ack.ErrorDetail = c.refusal(r.GetTypeUrl()); ack.ErrorDetail == nil {
		for _, a := range r.GetResources() {
			c.put(r.GetTypeUrl(), a.GetResource())
		}
		for _, name := range r.GetRemovedResources() {
			delete(c.has[r.GetTypeUrl()], name)
		}
		c.versions[r.GetTypeUrl()] = r.GetSystemVersionInfo()
	}
	return c.incr.Send(ack)
}

func (c *client) refusal(typeURL string) *rpcstatus.Status {
	if c.refuse == nil {
		return nil
	}
	if why := c.refuse(typeURL); why != "" {
		return &rpcstatus.Status{Code: 3, Message: why}
	}
	return nil
}

func (c *client) put(typeURL string, a interface {
	UnmarshalNew() (proto.Message, error)
}) {
	m, err := a.UnmarshalNew()
	if err != nil {
		c.t.Error(err)
		return
	}
	if c.has[typeURL] == nil {
		c.has[typeURL] = map[string]proto.Message{}
	}
	name := ""
	switch m := m.(type) {
	case *endpointv3.ClusterLoadAssignment:
		name = m.GetClusterName()
	case interface{ GetName() string }:
		name = m.GetName()
	}
	c.has[typeURL][name] = m
}

// until waits for what a client has to be good.
func (c *client) until(what string, ok func(*client) bool) {
	c.t.Helper()
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	for {
		c.mu.Lock()
		good, err, change := ok(c), c.err, c.change
		c.mu.Unlock()
		if good {
			return
		}
		if err != nil {
			c.t.Fatalf("%s: the stream ended: %v", what, err)
		}
		select {
		case <-change:
		case <-patience.C:
			c.t.Fatalf("%s: not after a minute; it has %v", what, c.picture())
		}
	}
}

func (c *client) assignment() *endpointv3.ClusterLoadAssignment {
	a, _ := c.has[resourcev3.EndpointType][resource].(*endpointv3.ClusterLoadAssignment)
	return a
}

// picture is the endpoints that a client has: priority, zone, status and weight by node.
func (c *client) picture() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return pictureOf(c.assignment())
}

func pictureOf(a *endpointv3.ClusterLoadAssignment) map[string]string {
	out := map[string]string{}
	for _, l := range a.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			id := e.GetMetadata().GetFilterMetadata()["envoy.lb"].GetFields()["node_id"].GetStringValue()
			out[id] = fmt.Sprint(l.GetPriority(), " ", l.GetLocality().GetZone(), l.GetLocality().GetSubZone(), " ",
				e.GetHealthStatus(), " ", e.GetLoadBalancingWeight().GetValue())
		}
	}
	return out
}

// shows waits until a client has this picture of the nodes: only their status is told.
func (c *client) shows(want map[string]string) {
	c.t.Helper()
	c.until(fmt.Sprint("shows ", want), func(c *client) bool {
		got := map[string]string{}
		for _, l := range c.assignment().GetEndpoints() {
			for _, e := range l.GetLbEndpoints() {
				got[e.GetMetadata().GetFilterMetadata()["envoy.lb"].GetFields()["node_id"].GetStringValue()] = e.GetHealthStatus().String()
			}
		}
		return maps.Equal(got, want)
	})
}

func view(nodes ...cluster.ViewNode) cluster.View { return cluster.View{Nodes: nodes} }

func containsAll(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

func depsOf(change func(*Deps)) Deps {
	deps := Deps{Database: database, Sidecar: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7400},
		Max: func() int { return 100 }, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&deps)
	}
	return deps
}
