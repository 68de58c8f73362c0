package app

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// Each way to name the zone that comes first has all sessions opened there, and
// the others take over when it is gone.
func TestZones(t *testing.T) {
	for _, tc := range []struct {
		zone, local string
		want        string // "": whichever is measured
	}{
		{zone: "local", want: "a"}, // that of node 1, which ydb.url names
		{zone: "local", local: "b", want: "b"},
		{zone: "c", want: "c"},
		{zone: "nearest"},
	} {
		t.Run(tc.zone+tc.local, func(t *testing.T) {
			config := devcluster.Default()
			config.Nodes, config.Locations = 9, []string{"a", "b", "c"}
			c, err := devcluster.Start(config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			s := start(t, c.Endpoint(), "pool.min=6", "routing.zone="+tc.zone, "routing.local_zone="+tc.local)
			var nodes nodesState
			var elsewhere int
			spread := func() (sessions int) {
				nodes, elsewhere = nodesState{}, 0
				s.state("/state/nodes", &nodes)
				for _, n := range nodes.Nodes {
					sessions += n.Sessions
					if len(nodes.Preferred) == 1 && n.Zone != nodes.Preferred[0] {
						elsewhere += n.Sessions
					}
				}
				return sessions
			}
			s.eventually("warm", func() bool { return spread() >= 6 })
			if len(nodes.Preferred) != 1 || tc.want != "" && nodes.Preferred[0] != tc.want || nodes.Local != 1 || elsewhere != 0 {
				t.Fatalf("preferred %v (want %s), %v of the load there, %d sessions elsewhere", nodes.Preferred, tc.want, nodes.Local, elsewhere)
			}
			for i := range 9 {
				if config.Locations[i%3] == nodes.Preferred[0] {
					c.Node(uint32(i + 1)).Kill()
				}
			}
			s.eventually("elsewhere", func() bool { spread(); return elsewhere >= 6 && nodes.Local == 0 })
		})
	}
}
