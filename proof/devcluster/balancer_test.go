package devcluster

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

// merged runs a cluster of three nodes at one address.
func merged(t testing.TB, locations ...string) (c *Cluster, address string) {
	t.Helper()
	c = startCluster(t, func(c *Config) { c.Endpoints, c.Locations = EndpointsMerged, locations })
	u, err := url.Parse(c.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	return c, u.Host
}

func TestMergedEndpointsAreOneEntry(t *testing.T) {
	cluster, address := merged(t, "a", "b", "a")
	for id, load := range map[uint32]float32{1: 0.25, 2: 0.5, 3: 0.125} {
		if err := cluster.Node(id).SetLoad(load); err != nil {
			t.Fatal(err)
		}
	}
	c := dial(t, address)
	last, seen := uint32(0), map[uint32]bool{}
	for range 6 {
		list := c.endpoints()
		if len(list) != 1 {
			t.Fatalf("endpoints %v; want one", list)
		}
		e := list[0]
		host, port, err := splitAddress(address)
		if err != nil {
			t.Fatal(err)
		}
		places := strings.Split(e.GetLocation(), "/")
		slices.Sort(places)
		if e.GetAddress() != host || e.GetPort() != port || e.GetLoadFactor() != 0.875 ||
			!slices.Equal(places, []string{"a", "b"}) || !slices.Equal(e.GetService(), services) {
			t.Errorf("endpoint %v", e)
		}
		if e.GetNodeId() == last {
			t.Errorf("node %d twice in a row", last)
		}
		last = e.GetNodeId()
		seen[last] = true
	}
	if len(seen) != 3 {
		t.Errorf("the ids were %v; want those of three nodes", seen)
	}
	dead := uint32(c.createSession().GetNodeId())%3 + 1 // not the one that the connection goes to
	cluster.Node(dead).Kill()
	for range 4 {
		if list := c.endpoints(); len(list) != 1 || list[0].GetNodeId() == dead {
			t.Errorf("endpoints %v after node %d died", list, dead)
		}
	}
}

// Each connection goes to another node, which sends on calls on sessions of others.
func TestMergedEndpointsForward(t *testing.T) {
	cluster, address := merged(t, "a")
	owner := dial(t, address)
	a := owner.open()
	other := dial(t, address)
	tx := (&attached{c: other, id: a.id}).begin(serializable()).GetTxMeta().GetId()
	if got := (&attached{c: other, id: a.id}).commit(tx); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("commit through another node: %v", got)
	}
	var owned, forwarded, received int64
	for _, n := range cluster.all() {
		counts := n.Counters()
		owned, forwarded, received = owned+counts.Owned, forwarded+counts.Forwarded, received+counts.Received
	}
	if forwarded != 2 || received != 2 {
		t.Errorf("owned %d, forwarded %d, received %d; want 2 forwarded and received", owned, forwarded, received)
	}
}

// A client whose node dies comes to another one by connecting again.
func TestMergedEndpointsSurviveANode(t *testing.T) {
	cluster, address := merged(t, "a")
	c := dial(t, address)
	for range 3 {
		node := cluster.Node(uint32(c.createSession().GetNodeId()))
		node.Kill()
		await.True(t, "another node answers", func() bool {
			_, err := c.discovery.ListEndpoints(testContext(t), &Ydb_Discovery.ListEndpointsRequest{Database: "/local"})
			return err == nil
		})
		if err := node.Start(); err != nil {
			t.Fatal(err)
		}
	}
}
