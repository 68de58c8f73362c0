package xds

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/proof/await"
	rounds "github.com/ydb-sidecar/sidecar/proof/short" // the package has a short of its own
)

// each runs a test for both flavors and both protocols.
func each(t *testing.T, f func(t *testing.T, flavor Flavor, delta bool)) {
	for _, flavor := range flavors {
		for _, delta := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,delta=%v", flavor, delta), func(t *testing.T) { f(t, flavor, delta) })
		}
	}
}

// TestClientsFollow: a client hears of nodes, of one that leaves, and of a new one.
func TestClientsFollow(t *testing.T) {
	each(t, func(t *testing.T, flavor Flavor, delta bool) {
		s := serve(t, Default(), nil)
		s.SetView(view(good(1, "a"), good(2, "a")))
		c := connect(t, s.at, flavor, delta, nil)
		c.shows(map[string]string{"1": "HEALTHY", "2": "HEALTHY"})
		s.SetView(view(good(1, "a"), node(2, "a", cluster.UseOpen, 0, leaving)))
		if flavor == Envoy {
			c.shows(map[string]string{"1": "HEALTHY", "2": "DRAINING"})
		} else {
			c.shows(map[string]string{"1": "HEALTHY"})
		}
		s.SetView(view(good(1, "a"), good(3, "a"), node(2, "a", cluster.UseOpen, 0, leaving)))
		c.until("node 3 comes", func(c *client) bool { return pictureOf(c.assignment())["3"] != "" })
		c.until("two clusters", func(c *client) bool { return len(c.has[resourcev3.ClusterType]) == 2 })
		if n := s.Stats().Nacks; n != 0 {
			t.Errorf("%d refusals", n)
		}
	})
}

// TestComeBack: clients of a process that ended keep their nodes while the next one
// knows none, and then get its own, also where it counts the same.
func TestComeBack(t *testing.T) {
	each(t, func(t *testing.T, flavor Flavor, delta bool) {
		first := serve(t, Default(), nil)
		first.SetView(view(good(1, "a"), good(2, "a")))
		c := connect(t, first.at, flavor, delta, nil)
		c.shows(map[string]string{"1": "HEALTHY", "2": "HEALTHY"})
		c.until("clusters", func(c *client) bool { return len(c.has[resourcev3.ClusterType]) == 2 })
		first.stop()
		c.mu.Lock()
		has, versions := c.has, maps.Clone(c.versions)
		c.mu.Unlock()

		second := serve(t, Default(), nil)
		back := connect(t, second.at, flavor, delta, func(b *client) { b.has, b.versions = has, maps.Clone(versions) })
		back.until("the sidecar's own endpoint", func(b *client) bool {
			return strings.HasPrefix(b.versions[resourcev3.EndpointType], second.boot) &&
				b.versions[resourcev3.ClusterType] != versions[resourcev3.ClusterType]
		})
		if got := back.picture(); len(got) != 2 {
			t.Fatalf("before it knows nodes, the next process leaves %v of two", got)
		}
		second.SetView(view(good(1, "a"), good(3, "a")))
		back.shows(map[string]string{"1": "HEALTHY", "3": "HEALTHY"})
	})
}

// TestRefusal: a version that a client refuses is not sent again, and is named in the
// log once; the next one is sent.
func TestRefusal(t *testing.T) {
	each(t, func(t *testing.T, flavor Flavor, delta bool) {
		var log safeBuffer
		s := serve(t, Default(), func(d *Deps) { d.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		s.SetView(view(good(1, "a")))
		connect(t, s.at, flavor, delta, func(c *client) {
			c.refuse = func(typeURL string) string {
				if typeURL == resourcev3.EndpointType && c.came < 10 {
					return "I do not like it"
				}
				return ""
			}
		})
		for i := uint64(1); i <= 3; i++ {
			await.True(t, "a refusal", func() bool { return s.Stats().Nacks >= i })
			s.SetView(view(good(1, "a"), good(cluster.NodeID(1+i), "a")))
		}
		await.True(t, "another", func() bool { return s.Stats().Nacks >= 4 })
		// Each publication at most once: clusters, and endpoints four times.
		if n := s.Stats().Responses; n > 6 {
			t.Errorf("%d answers for 4 publications: refusals go in circles", n)
		}
		// A refusal is counted before it is logged, and shown after that.
		state := s.State(10).Clients[0].Types["ClusterLoadAssignment"]
		if n := strings.Count(log.String(), "I do not like it"); n != 4 {
			t.Errorf("the log has %d lines of 4 refusals:\n%s", n, log.String())
		}
		if state.Acked != "" || state.Nacked != state.Sent || state.Error != "I do not like it" {
			t.Errorf("/state/xds: %+v", state)
		}
	})
}

// broken is a log that panics when there is an error to tell.
type broken struct{ slog.Handler }

func (b broken) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		panic("broken log")
	}
	return nil
}

// A panic in what the library calls back ends the stream that it is for: others go on.
func TestAPanicEndsItsStream(t *testing.T) {
	panics.LogTo(slog.New(slog.DiscardHandler))
	each(t, func(t *testing.T, flavor Flavor, delta bool) {
		s := serve(t, Default(), func(d *Deps) { d.Log = slog.New(broken{slog.NewTextHandler(io.Discard, nil)}) })
		s.SetView(view(good(1, "a")))
		beside := connect(t, s.at, flavor, delta, nil)
		beside.shows(map[string]string{"1": "HEALTHY"})
		before := panics.Stats().Count
		dying := connect(t, s.at, flavor, delta, func(c *client) { c.refuse = func(string) string { return "I do not like it" } })
		await.True(t, "the end of the stream", func() bool {
			dying.mu.Lock()
			defer dying.mu.Unlock()
			return dying.err != nil
		})
		if status.Code(dying.err) != codes.Internal || panics.Stats().Count != before+1 {
			t.Errorf("%v after %d panics; want Internal after one", dying.err, panics.Stats().Count-before)
		}
		s.SetView(view(good(1, "a"), good(2, "a")))
		beside.shows(map[string]string{"1": "HEALTHY", "2": "HEALTHY"})
	})
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestWhoIsAdmitted: a token, a number of streams, a flavor.
func TestWhoIsAdmitted(t *testing.T) {
	config := Default()
	config.Token, config.MaxStreams = "0123456789abcdef", 1
	s := serve(t, config, nil)
	service := discoveryv3.NewAggregatedDiscoveryServiceClient(dial(t, s.at))
	open := func(token string, r *discoveryv3.DiscoveryRequest) (
		discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, error,
	) {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		}
		stream, err := service.StreamAggregatedResources(ctx, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(r)
		_, err = stream.Recv()
		return stream, err
	}
	ask := &discoveryv3.DiscoveryRequest{Node: nodeOf(GRPC), TypeUrl: resourcev3.ClusterType}
	for _, tc := range []struct {
		name, token string
		ask         *discoveryv3.DiscoveryRequest
		want        codes.Code
	}{
		{"no token", "", ask, codes.Unauthenticated},
		{"another token", "0123456789abcdeF", ask, codes.Unauthenticated},
		{"no flavor", config.Token, &discoveryv3.DiscoveryRequest{TypeUrl: resourcev3.ClusterType}, codes.InvalidArgument},
		{"another type", config.Token,
			&discoveryv3.DiscoveryRequest{Node: nodeOf(GRPC), TypeUrl: "type.googleapis.com/x.Y"}, codes.InvalidArgument},
		{"too many names", config.Token,
			&discoveryv3.DiscoveryRequest{Node: nodeOf(GRPC), TypeUrl: resourcev3.EndpointType, ResourceNames: make([]string, maxNames+1)},
			codes.ResourceExhausted},
		{"too large", config.Token,
			&discoveryv3.DiscoveryRequest{Node: nodeOf(GRPC), TypeUrl: strings.Repeat("x", maxRequest)},
			codes.ResourceExhausted},
		{"all well", config.Token, ask, codes.OK},
		{"one too many", config.Token, ask, codes.ResourceExhausted},
	} {
		if _, err := open(tc.token, tc.ask); status.Code(err) != tc.want {
			t.Errorf("%s: %v; want %v", tc.name, err, tc.want)
		}
		if tc.want != codes.OK && s.Stats().Refused == 0 { // a client may hear of the end before the handler does
			await.True(t, "the stream ends", func() bool { return len(s.streams.list()) == 0 })
		}
	}
	if n := s.Stats().Refused; n != 1 {
		t.Errorf("%d streams refused; want 1", n)
	}
}

// TestNamesOfFlavors: what a client may call itself.
func TestNamesOfFlavors(t *testing.T) {
	for agent, want := range map[string]Flavor{"envoy": Envoy, "Envoy": Envoy, "grpc-go": GRPC, "gRPC Go": GRPC,
		"gRPC C-core linux": GRPC, "other": "", "": ""} {
		n := nodeOf("")
		n.UserAgentName = agent
		if got := flavorOf(n); got != want {
			t.Errorf("%q is %q; want %q", agent, got, want)
		}
		n.Metadata = nodeOf("ENVOY").GetMetadata()
		trim(n)
		if got := flavorOf(n); got != Envoy {
			t.Errorf("%q with metadata is %q", agent, got)
		}
	}
	n := nodeOf(GRPC)
	n.Id = strings.Repeat("é", 1000)
	if trim(n); proto.Size(n) > 3*maxText || flavorOf(n) != GRPC {
		t.Errorf("%d bytes of a node are kept", proto.Size(n))
	}
}

// TestDeltaIsSotw: after many random changes, published four at a time, all protocols
// of a flavor show the same, which is what the last view says.
func TestDeltaIsSotw(t *testing.T) {
	changes := rounds.Of(10_000, 1500)
	s := serveBy(t, Default(), nil, false)
	m, now, last := newModel(s.names.of), time.Unix(1000, 0), []endpoint(nil)
	publish := func(nodes ...cluster.ViewNode) {
		s.SetView(view(nodes...))
		s.step(t.Context(), now, m, &last)
		now = now.Add(interval)
	}
	publish(good(1, "a"))
	var clients []*client
	for _, f := range flavors {
		clients = append(clients, connect(t, s.at, f, false, nil), connect(t, s.at, f, true, nil))
	}
	rng := rand.New(rand.NewPCG(9, 9))
	nodes := map[cluster.NodeID]cluster.ViewNode{1: good(1, "a")}
	for i := range changes {
		changeOne(rng, nodes)
		if i%4 != 3 {
			continue
		}
		var all []cluster.ViewNode
		for _, id := range slices.Sorted(maps.Keys(nodes)) {
			all = append(all, nodes[id])
		}
		publish(all...)
	}
	if n := s.Stats().Published; n < uint64(changes)/8 {
		t.Errorf("%d publications of %d changes", n, changes)
	}
	// The end: every node well, so that the picture comes to rest.
	all := []cluster.ViewNode{}
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		all = append(all, good(id, nodes[id].Zone))
	}
	all = append(all, good(99, "last"))
	for range 100 {
		publish(all...)
	}
	want := map[string]string{}
	for _, n := range all {
		want[nodeText(n.ID)] = "0 " + n.Zone + " HEALTHY 100"
	}
	for i, c := range clients {
		c.until(fmt.Sprint("client ", i, " has the last picture"),
			func(c *client) bool { return maps.Equal(pictureOf(c.assignment()), want) })
	}
	for i := 0; i < len(clients); i += 2 {
		alike(t, clients[i], clients[i+1])
	}
	if n := s.Stats().Nacks; n != 0 {
		t.Errorf("%d refusals", n)
	}
}

// changeOne changes one of the nodes 2 to 9 by chance.
func changeOne(rng *rand.Rand, nodes map[cluster.NodeID]cluster.ViewNode) {
	verdicts := []cluster.Condition{slow, lost, leaving}
	id := cluster.NodeID(2 + rng.IntN(8))
	zone := string(rune('a' + id%3))
	switch rng.IntN(4) {
	case 0:
		delete(nodes, id)
	case 1:
		v := verdicts[rng.IntN(len(verdicts))]
		use := cluster.UseOpen
		if v.Unreachable {
			use = cluster.UseNone
		}
		nodes[id] = node(id, zone, use, 0, v)
	default:
		nodes[id] = node(id, zone, cluster.UseNew, float32(rng.IntN(11))/10, cluster.Condition{})
	}
}

// alike fails the test unless two clients have the same resources.
func alike(t *testing.T, a, b *client) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for typeURL, resources := range a.has {
		for name, r := range resources {
			if !proto.Equal(r, b.has[typeURL][name]) {
				t.Errorf("%s %s differs:\n%v\n%v", typeURL, name, r, b.has[typeURL][name])
			}
		}
		if len(resources) != len(b.has[typeURL]) {
			t.Errorf("%s: %d and %d resources", typeURL, len(resources), len(b.has[typeURL]))
		}
	}
}

// TestSlowClient: one that reads nothing delays nobody, and the publisher does not wait
// for it either.
func TestSlowClient(t *testing.T) {
	s := serveBy(t, Default(), nil, false)
	m, now, last := newModel(s.names.of), time.Unix(1000, 0), []endpoint(nil)
	nodes := make([]cluster.ViewNode, 400) // so that one answer fills what flow control lets through
	for i := range nodes {
		nodes[i] = with(good(cluster.NodeID(i+1), strings.Repeat("zone", 50)), func(n *cluster.ViewNode) {
			n.Address = fmt.Sprintf("10.0.%d.%d:1", i/250, i%250)
		})
	}
	publish := func() {
		s.SetView(view(nodes...))
		s.step(t.Context(), now, m, &last)
		now = now.Add(time.Minute)
	}
	publish()
	deaf, err := discoveryv3.NewAggregatedDiscoveryServiceClient(dial(t, s.at)).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := deaf.Send(
		&discoveryv3.DiscoveryRequest{Node: nodeOf(Envoy), TypeUrl: resourcev3.EndpointType, ResourceNames: []string{resource}},
	); err != nil {
		t.Fatal(err)
	}
	await.True(t, "it is answered, and does not read", func() bool { return s.Stats().Responses == 1 })
	c := connect(t, s.at, Envoy, false, nil)
	for i := range 5 {
		nodes = slices.Clone(nodes)
		nodes[0].Zone = fmt.Sprint("z", i)
		publish()
		c.until("what is published", func(c *client) bool { return strings.Contains(pictureOf(c.assignment())["1"], nodes[0].Zone) })
	}
}

// FuzzRequest sends what a client might: no request may hurt the process, and what is
// kept of it is bounded.
func FuzzRequest(f *testing.F) {
	for _, r := range []proto.Message{
		&discoveryv3.DiscoveryRequest{Node: nodeOf(GRPC), TypeUrl: resourcev3.ClusterType, ResourceNames: []string{"*"}},
		&discoveryv3.DiscoveryRequest{TypeUrl: resourcev3.EndpointType, ResponseNonce: "1"},
		&discoveryv3.DeltaDiscoveryRequest{Node: nodeOf(Envoy), TypeUrl: resourcev3.EndpointType,
			ResourceNamesSubscribe: []string{resource}, InitialResourceVersions: map[string]string{resource: "x"}},
	} {
		text, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, text)
	}
	s := serveBy(f, Default(), nil, false)
	m, last := newModel(s.names.of), []endpoint(nil)
	s.SetView(view(good(1, "a")))
	s.step(f.Context(), time.Unix(1000, 0), m, &last)
	f.Fuzz(func(t *testing.T, first, second []byte) {
		for _, delta := range []bool{false, true} {
			fake := &fakeStream{ctx: t.Context(), in: [][]byte{first, second}}
			var err error
			if delta {
				err = s.protocols.delta.DeltaStreamHandler(&deltaStream{fakeStream: fake}, resourcev3.AnyType)
			} else {
				err = s.protocols.sotw.StreamHandler(&sotwStream{fakeStream: fake}, resourcev3.AnyType)
			}
			if code := status.Code(err); err != nil && code == codes.Unknown && !strings.Contains(err.Error(), "no cache") {
				t.Errorf("delta=%v: %v", delta, err)
			}
		}
		if n := len(s.streams.list()); n != 0 {
			t.Errorf("%d streams are left", n)
		}
	})
}

// fakeStream is a client that sends messages, takes every answer, and ends.
type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
	in  [][]byte
}

func (f *fakeStream) Context() context.Context { return f.ctx }

func (f *fakeStream) next(m proto.Message) error {
	if len(f.in) == 0 {
		return io.EOF
	}
	text := f.in[0]
	f.in = f.in[1:]
	return proto.Unmarshal(text, m)
}

type sotwStream struct{ *fakeStream }

func (f *sotwStream) Send(*discoveryv3.DiscoveryResponse) error { return nil }

func (f *sotwStream) Recv() (*discoveryv3.DiscoveryRequest, error) {
	r := new(discoveryv3.DiscoveryRequest)
	return r, f.next(r)
}

type deltaStream struct{ *fakeStream }

func (f *deltaStream) Send(*discoveryv3.DeltaDiscoveryResponse) error { return nil }

func (f *deltaStream) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	r := new(discoveryv3.DeltaDiscoveryRequest)
	return r, f.next(r)
}

// TestManyClients: many clients on many nodes hear of every change while many come at
// once. How fast is a figure of loadtest xds.
func TestManyClients(t *testing.T) {
	many, changes := rounds.Of(200, 40), 2
	config := Default()
	config.MaxStreams = many
	s := serve(t, config, nil)
	nodes := make([]cluster.ViewNode, rounds.Of(200, 100))
	for i := range nodes {
		nodes[i] = good(cluster.NodeID(i+1), string(rune('a'+i%3)))
	}
	s.SetView(view(nodes...))
	var clients []*client
	for i := range many {
		clients = append(clients, connect(t, s.at, flavors[i%2], i%4 < 2, nil))
	}
	for i := range changes {
		nodes = slices.Clone(nodes)
		nodes[i].Zone = "moved"
		s.SetView(view(nodes...))
		for _, c := range clients {
			c.until("the change", func(c *client) bool {
				return strings.Contains(pictureOf(c.assignment())[nodeText(nodes[i].ID)], "moved")
			})
		}
	}
	if st := s.Stats(); st.Streams[Envoy] != many/2 || st.Streams[GRPC] != many/2 || st.Nacks != 0 {
		t.Errorf("%+v", st)
	}
}
