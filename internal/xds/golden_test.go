package xds

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	// The messages inside of others.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write the golden files")

// node is one of a view, as routing makes it.
func node(id cluster.NodeID, zone string, use cluster.Use, weight float32, v cluster.Condition) cluster.ViewNode {
	return cluster.ViewNode{
		Node: cluster.Node{ID: id, Address: fmt.Sprintf("10.0.0.%d:2136", id), Zone: zone}, Condition: v, Use: use, Weight: weight,
	}
}

func good(id cluster.NodeID, zone string) cluster.ViewNode {
	return node(id, zone, cluster.UseNew, 1, cluster.Condition{})
}

var (
	slow    = cluster.Condition{Health: cluster.Ejected, Cause: cluster.CauseLatency}
	lost    = cluster.Condition{Health: cluster.Ejected, Cause: cluster.CauseTransport, Unreachable: true}
	leaving = cluster.Condition{Draining: true}
)

func with(n cluster.ViewNode, change func(*cluster.ViewNode)) cluster.ViewNode {
	change(&n)
	return n
}

// addressed has the addresses of what tests call their hosts.
func addressed(host string) []netip.Addr {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}
	}
	switch host {
	case "node1.example":
		return []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")}
	case "node2.example":
		return []netip.Addr{netip.MustParseAddr("fd00::2")}
	}
	return nil
}

// TestGolden holds what is published to files, for people to read. After a change:
// go test ./internal/xds -run TestGolden -update
func TestGolden(t *testing.T) {
	for name, tc := range map[string]struct {
		nodes []cluster.ViewNode
		plan  func(*plan)
	}{
		"three_zones": {nodes: []cluster.ViewNode{
			good(1, "a"), good(2, "a"), with(good(3, "b"), func(n *cluster.ViewNode) { n.Weight = 0.3 }),
			with(good(4, "c"), func(n *cluster.ViewNode) { n.Weight = 0 }), with(good(5, "c"), func(n *cluster.ViewNode) { n.Weight = 0 }),
		}},
		"one_degraded": {nodes: []cluster.ViewNode{good(1, "a"), good(2, "a"), node(3, "a", cluster.UseOpen, 0, slow)}},
		"one_draining": {nodes: []cluster.ViewNode{good(1, "a"), good(2, "a"), node(3, "a", cluster.UseOpen, 0, leaving)}},
		"one_lost":     {nodes: []cluster.ViewNode{good(1, "a"), good(2, "a"), node(3, "b", cluster.UseNone, 0, lost)}},
		"one_banned":   {nodes: []cluster.ViewNode{good(1, "a"), node(2, "a", cluster.UseOpen, 0, cluster.Condition{Banned: true})}},
		"one_returning": {
			nodes: []cluster.ViewNode{good(1, "a"), good(2, "a"), node(3, "a", cluster.UseNew, 0.1, cluster.Condition{Ramp: 0.1})},
		},
		// As routing's rules for panic have it: all get new work.
		"all_bad": {
			nodes: []cluster.ViewNode{node(1, "a", cluster.UseNew, 1, slow), node(2, "a", cluster.UseNew, 1, slow),
				node(3, "b", cluster.UseNone, 0, lost)},
		},
		"one_node": {nodes: []cluster.ViewNode{good(1, "")}},
		"no_node":  {},
		"tls": {nodes: []cluster.ViewNode{
			with(good(1, "a"), func(n *cluster.ViewNode) { n.TLSName = "cert.example" }),
			with(good(2, "a"), func(n *cluster.ViewNode) { n.Address = "node1.example:2135" }),
		}, plan: func(p *plan) { p.tls, p.secure = true, true }},
		"ipv6": {nodes: []cluster.ViewNode{
			with(good(1, "a"), func(n *cluster.ViewNode) { n.Address = "[fd00::7]:2136" }),
			with(good(2, "a"), func(n *cluster.ViewNode) { n.Address = "node1.example:2136" }),
			with(good(3, "a"), func(n *cluster.ViewNode) { n.Address = "node2.example:2136" }),
		}, plan: func(p *plan) { p.sidecar = netip.MustParseAddrPort("[::1]:7400") }},
		// Two names of one address, a name without any: clients refuse a list with these.
		"same_address": {nodes: []cluster.ViewNode{
			with(good(1, "a"), func(n *cluster.ViewNode) { n.Address = "node2.example:2136" }),
			with(good(2, "a"), func(n *cluster.ViewNode) { n.Address = "[fd00::2]:2136" }),
			with(good(3, "a"), func(n *cluster.ViewNode) { n.Address = "nobody.example:2136" }),
		}},
		"sidecar_leaving": {nodes: []cluster.ViewNode{good(1, "a")}, plan: func(p *plan) { p.draining = true }},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, _ := newModel(addressed).advance(time.Now(), cluster.View{Nodes: tc.nodes})
			p := &plan{database: "ydb/ru/home", nodes: nodes, most: 200, sidecar: netip.MustParseAddrPort("127.0.0.1:7400")}
			if tc.plan != nil {
				tc.plan(p)
			}
			for _, f := range flavors {
				got := dump(t, p, f)
				path := filepath.Join("testdata", name+"."+string(f)+".json")
				doctable.Whole(t, *update, path, string(got))
				acceptable(t, p, f)
			}
		})
	}
}

// dump writes the resources of a flavor; clusters, listeners and routes only where
// they are not what they always are.
func dump(t *testing.T, p *plan, f Flavor) []byte {
	t.Helper()
	all := map[string][]json.RawMessage{}
	add := func(kind string, m proto.Message) {
		text, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		all[kind] = append(all[kind], text)
	}
	for _, r := range p.clusters(f) {
		add("clusters", r)
	}
	for _, r := range p.listeners(f) {
		add("listeners", r)
	}
	for _, r := range p.routeConfigs(f) {
		add("routes", r)
	}
	for _, r := range p.assignments(f) {
		add("endpoints", r)
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", " "); err != nil {
		t.Fatal(err)
	}
	return append(out.Bytes(), '\n')
}

// acceptable holds a plan to what clients refuse: see grpc-go's
// internal/xds/xdsclient/xdsresource, and the constraints in Envoy's own messages.
func acceptable(t *testing.T, p *plan, f Flavor) {
	t.Helper()
	for _, a := range p.assignments(f) {
		acceptableEndpoints(t, a, f, p.draining)
	}
	for _, c := range p.clusters(f) {
		if err := c.ValidateAll(); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
	for _, r := range p.routeConfigs(f) {
		if err := r.ValidateAll(); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
	for _, l := range p.listeners(f) {
		if err := l.ValidateAll(); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// acceptableEndpoints holds the endpoints of one cluster to what clients refuse.
func acceptableEndpoints(t *testing.T, a *endpointv3.ClusterLoadAssignment, f Flavor, leaving bool) {
	t.Helper()
	if err := a.ValidateAll(); err != nil {
		t.Errorf("%s: %v", f, err)
	}
	addresses, places, priorities := map[string]bool{}, map[string]bool{}, map[uint32]bool{}
	usable := 0
	for _, l := range a.GetEndpoints() {
		priorities[l.GetPriority()] = true
		if l.GetLocality() == nil || l.GetLoadBalancingWeight().GetValue() == 0 || len(l.GetLbEndpoints()) == 0 {
			t.Errorf("%s: a locality without name, weight or endpoint: %v", f, l)
		}
		if key := fmt.Sprint(l.GetPriority(), l.GetLocality().String()); places[key] {
			t.Errorf("%s: locality %s twice", f, key)
		} else {
			places[key] = true
		}
		for _, e := range l.GetLbEndpoints() {
			if e.GetLoadBalancingWeight().GetValue() == 0 {
				t.Errorf("%s: weight 0: %v", f, e)
			}
			if e.GetHealthStatus().String() == "HEALTHY" {
				usable++
			} else if f == GRPC {
				t.Errorf("%s: %v", f, e)
			}
			all := []string{e.GetEndpoint().GetAddress().String()}
			for _, more := range e.GetEndpoint().GetAdditionalAddresses() {
				all = append(all, more.GetAddress().String())
			}
			for _, address := range all {
				if addresses[address] {
					t.Errorf("%s: address %s twice", f, address)
				}
				addresses[address] = true
			}
		}
	}
	for i := range uint32(len(priorities)) {
		if !priorities[i] {
			t.Errorf("%s: priority %d is missing", f, i)
		}
	}
	if usable == 0 && !leaving {
		t.Errorf("%s: %s has no healthy endpoint", f, a.GetClusterName())
	}
}
