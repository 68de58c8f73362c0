package discovery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/discovery/dnstest"
)

// named is the source of a name, whose nodes tell ids.
func named(t *testing.T, s *dnstest.Server, name string, h *hosts) *DNS {
	t.Helper()
	config := Default()
	config.Mode, config.DNSName, config.DNSHost = ModeDNS, name, s.Addr
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	d := NewDNS(config, "/local", nil, quiet)
	d.identities = identified(t, h)
	return d
}

func wantTopology(t *testing.T, s Source, want ...cluster.Node) {
	t.Helper()
	got, err := s.ListEndpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cluster.NewTopology(want, ""), got); diff != "" {
		t.Error(diff)
	}
}

func TestAddressesOfANameAreNodes(t *testing.T) {
	s := dnstest.Start(t)
	h := &hosts{ids: map[string]cluster.NodeID{"10.0.0.1:2136": 50001, "10.0.0.2:2136": 3, "10.0.0.9:2136": 4, "[fd00::1]:2136": 50002}}
	d := named(t, s, "ydb.test:2136", h)
	if _, err := d.ListEndpoints(t.Context()); err == nil || !strings.Contains(err.Error(), "ydb.test on "+s.Addr) {
		t.Errorf("no such name: %v", err)
	}
	node := func(id cluster.NodeID, address string) cluster.Node {
		return cluster.Node{ID: id, Address: address, TLSName: "ydb.test"}
	}
	s.Addresses("ydb.test.", "10.0.0.2", "10.0.0.1", "fd00::1")
	wantTopology(t, d, node(50001, "10.0.0.1:2136"), node(3, "10.0.0.2:2136"), node(50002, "[fd00::1]:2136"))
	s.Addresses("ydb.test.", "10.0.0.9", "10.0.0.1")
	wantTopology(t, d, node(50001, "10.0.0.1:2136"), node(4, "10.0.0.9:2136"))
	s.Break("ydb.test.", true)
	if _, err := d.ListEndpoints(t.Context()); err == nil {
		t.Error("a server that fails is no error")
	}
	if h.questions("10.0.0.1:2136") != 1 {
		t.Errorf("asked %v; want each node once", h.asked)
	}
	if _, tcp := s.Asked(); tcp != 0 {
		t.Errorf("%d questions over TCP for a small answer", tcp)
	}
}

func TestALongAnswerComesOverTCP(t *testing.T) {
	s := dnstest.Start(t)
	h := &hosts{ids: map[string]cluster.NodeID{}}
	var addresses []string
	for k := range 300 {
		addresses = append(addresses, fmt.Sprintf("10.0.%d.%d", k/100, k%100))
		h.ids[addresses[k]+":1"] = cluster.NodeID(k + 1)
	}
	s.Addresses("many.test.", addresses...)
	got, err := named(t, s, "many.test:1", h).ListEndpoints(t.Context())
	if _, tcp := s.Asked(); err != nil || len(got.Nodes) != 300 || tcp == 0 {
		t.Errorf("%d nodes, %v, %d questions over TCP", len(got.Nodes), err, tcp)
	}
}

func TestTargetsOfSRVRecordsAreNodes(t *testing.T) {
	s := dnstest.Start(t)
	h := &hosts{ids: map[string]cluster.NodeID{"10.0.0.1:2136": 1, "10.0.0.1:2137": 2, "10.0.0.2:2136": 3}}
	s.Services("_grpc._tcp.ydb.test.", dnstest.Target{Host: "b.test.", Port: 2136},
		dnstest.Target{Host: "a.test.", Port: 2137}, dnstest.Target{Host: "a.test.", Port: 2136},
		dnstest.Target{Host: "gone.test.", Port: 2136})
	s.Addresses("a.test.", "10.0.0.1")
	s.Addresses("b.test.", "10.0.0.2")
	d := named(t, s, "_grpc._tcp.ydb.test", h)
	a, b := []cluster.Node{
		{ID: 1, Address: "10.0.0.1:2136", TLSName: "a.test"}, {ID: 2, Address: "10.0.0.1:2137", TLSName: "a.test"},
	}, cluster.Node{ID: 3, Address: "10.0.0.2:2136", TLSName: "b.test"}
	wantTopology(t, d, append(a, b)...)
	s.Break("b.test.", true)
	wantTopology(t, d, append(a, b)...)
	s.Break("b.test.", false)
	s.Addresses("b.test.")
	wantTopology(t, d, a...)
	s.Break("a.test.", true)
	wantTopology(t, d, a...)
	s.Break("_grpc._tcp.ydb.test.", true)
	if _, err := d.ListEndpoints(t.Context()); err == nil {
		t.Error("a server that fails is no error")
	}
}

// The whole: a node that is added to the name is told of within an interval, and as
// soon as it has told its id.
func TestDiscoveryByDNS(t *testing.T) {
	s := dnstest.Start(t)
	h := &hosts{ids: map[string]cluster.NodeID{"10.0.0.1:1": 1}}
	s.Addresses("ydb.test.", "10.0.0.1")
	config := Default()
	config.Mode, config.DNSName, config.DNSHost = ModeDNS, "ydb.test:1", s.Addr
	config.Interval, config.MinPause = 20*time.Millisecond, time.Millisecond
	d := New(config, NewDNS(config, "/local", h.identify, quiet), quiet)
	heard := make(chan cluster.Topology, 100)
	d.Subscribe(func(t cluster.Topology) {
		select {
		case heard <- t:
		default: // the test reads only some
		}
	})
	run(t, d)
	awaitNodes(t, heard, 1)
	s.Addresses("ydb.test.", "10.0.0.1", "10.0.0.2")
	for len(d.State().Source.Unidentified) != 1 {
		<-heard
	}
	h.set("10.0.0.2:1", 2)
	awaitNodes(t, heard, 1, 2)
	if left := d.State().Source.Unidentified; len(left) != 0 {
		t.Errorf("unidentified: %v", left)
	}
}

// awaitNodes waits for a topology of these nodes.
func awaitNodes(t *testing.T, heard <-chan cluster.Topology, want ...cluster.NodeID) {
	t.Helper()
	end := time.After(time.Minute)
	for {
		select {
		case got := <-heard:
			var ids []cluster.NodeID
			for _, n := range got.Nodes {
				ids = append(ids, n.ID)
			}
			if cmp.Equal(ids, want) {
				return
			}
		case <-end:
			t.Fatalf("nodes %v do not come", want)
		}
	}
}

func TestFaultsOfDNSSettings(t *testing.T) {
	for name, c := range map[string]struct {
		name, server string
		good         bool
	}{
		"host and port":   {"ydb.example:2136", "", true},
		"service":         {"_grpc._tcp.ydb.example.", "[::1]:53", true},
		"address":         {"10.0.0.1:2136", "", true},
		"nothing":         {"", "", false},
		"server alone":    {"", "127.0.0.1:53", false},
		"no port":         {"10.0.0.1", "", false},
		"port 0":          {"ydb.example:0", "", false},
		"a URL":           {"grpc://ydb.example:2136", "", false},
		"spaces":          {"ydb example:2136", "", false},
		"server, no port": {"ydb.example:2136", "10.0.0.1", false},
	} {
		config := Default()
		config.Mode, config.DNSName, config.DNSHost = ModeDNS, c.name, c.server
		if err := config.Validate(); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
		config.Mode = ModeYDB
		if err := config.Validate(); c.name != "" && (err == nil || !strings.Contains(err.Error(), "mode = dns")) {
			t.Errorf("%s, in another mode: %v", name, err)
		}
	}
}

func FuzzNames(f *testing.F) {
	for _, text := range []string{"a:1", "[::1]:53", "_a._b.c.", "[fe80::1%eth0]:1", "grpc://h:1", "grpcs://[::1]:7403", "..:1", "a:"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if config := (Config{DNSName: text}); config.validateDNS() == nil {
			d := NewDNS(config, "/local", nil, quiet)
			if d.host == "" || d.port == "0" || strings.ContainsAny(d.host+d.port, " /@\n") {
				t.Errorf("%q gives %q %q", text, d.host, d.port)
			}
		}
		if address, _, err := parseXDS(text); err == nil && !isHostPort(address) {
			t.Errorf("%q gives %q", text, address)
		}
	})
}
