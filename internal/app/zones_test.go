package app

import (
	"slices"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Bridge"

	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/clustertest"
)

// Each way to name the zone that comes first has all sessions opened there, and
// the others take over when it is gone.
func TestZones(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		zone, local string
		want        string // "": whichever is measured
	}{
		{zone: "local", want: "a"}, // the zone of node 1, which ydb.url names
		{zone: "local", local: "b", want: "b"},
		{zone: "c", want: "c"},
		{zone: "nearest"},
	} {
		t.Run(tc.zone+tc.local, func(t *testing.T) {
			zones := []string{"a", "b", "c"}
			c := clustertest.Start(t, func(config *devcluster.Config) {
				config.Nodes, config.Locations = 9, zones
			})
			// Where an opening stalls, for a twentieth of its limit, the pool goes elsewhere: not on a busy machine.
			s := start(t, c.Endpoint(), "pool.min=6", "pool.create_timeout=10m", "routing.zone="+tc.zone, "routing.local_zone="+tc.local)
			var nodes snapshot.NodesState
			var first string // the zone that comes first before any is gone
			var elsewhere int
			spread := func() (sessions int) {
				nodes, elsewhere = snapshot.NodesState{}, 0
				s.state("/state/nodes", &nodes)
				if first == "" && len(nodes.Preferred) == 1 {
					first = nodes.Preferred[0]
				}
				for _, n := range nodes.Nodes {
					sessions += n.Sessions
					if n.Zone != first {
						elsewhere += n.Sessions
					}
				}
				return sessions
			}
			s.eventually("warm", func() bool { return spread() >= 6 })
			if len(nodes.Preferred) != 1 || tc.want != "" && nodes.Preferred[0] != tc.want || nodes.Local != 1 || elsewhere != 0 {
				t.Fatalf("preferred %v (want %s), %v of the load there, %d sessions elsewhere", nodes.Preferred, tc.want,
					nodes.Local, elsewhere)
			}
			for i := range 9 {
				if zones[i%3] == first {
					c.Node(uint32(i + 1)).Kill()
				}
			}
			s.eventually("elsewhere", func() bool {
				spread()
				other := tc.want == "" && !slices.Contains(nodes.Preferred, first) // the nearest zone may be another one by now
				return elsewhere >= 6 && (nodes.Local == 0 || other)
			})
		})
	}
}

// New load goes to the primary pile, and follows a promotion.
func TestPiles(t *testing.T) {
	t.Parallel()
	c := clustertest.Start(t, func(config *devcluster.Config) {
		config.Nodes = 4
		config.Piles = []devcluster.Pile{
			{Name: "a", State: Ydb_Bridge.PileState_PRIMARY}, {Name: "b", State: Ydb_Bridge.PileState_SYNCHRONIZED},
		}
	})
	s := start(t, c.Endpoint(), "pool.min=6", "pool.create_timeout=10m")
	// on reports where the sessions are, and the weights of the nodes.
	on := func() (sessions map[string]int, weights map[string]float32) {
		var nodes snapshot.NodesState
		s.state("/state/nodes", &nodes)
		sessions, weights = map[string]int{}, map[string]float32{}
		for _, n := range nodes.Nodes {
			sessions[n.Pile+" "+n.PileState] += n.Sessions
			weights[n.Pile] += n.Weight
		}
		return sessions, weights
	}
	s.eventually("all sessions are on the primary pile", func() bool {
		sessions, _ := on()
		return sessions["a primary"] >= 6 && sessions["b synchronized"] == 0
	})
	promote := func(states map[string]string) {
		t.Helper()
		if err := c.SetPiles(t.Context(), states); err != nil {
			t.Fatal(err)
		}
	}
	promote(map[string]string{"a": "SYNCHRONIZED", "b": "PRIMARY"})
	s.eventually("the other pile is the primary", func() bool {
		sessions, weights := on()
		return weights["a"] == 0 && weights["b"] == 2 && sessions["b primary"] > 0
	})
	promote(map[string]string{"a": "DISCONNECTED"})
	s.eventually("nothing is left on a pile that is cut off", func() bool {
		sessions, _ := on()
		return sessions["a detached"] == 0 && sessions["b primary"] >= 6
	})
}
