package app

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
)

// Findings of slowness end soon after the calls that showed it, whether fast ones follow
// or none.
func TestFindingsOfSlownessEnd(t *testing.T) {
	fast, slow := 2*time.Millisecond, 15*time.Millisecond
	type phase struct {
		length  time.Duration
		latency [3]time.Duration // of the calls of each node; 0: none
		code    findings.Code    // what is found at its end; "": nothing
	}
	all := func(d time.Duration) [3]time.Duration { return [3]time.Duration{d, d, d} }
	calm := phase{30 * time.Second, all(fast), ""}
	for name, phases := range map[string][]phase{
		"the_cluster_and_then_no_calls":   {calm, {7 * time.Second, all(slow), findings.ClusterSlow}, {12 * time.Second, all(0), ""}},
		"the_cluster_and_then_fast_calls": {calm, {7 * time.Second, all(slow), findings.ClusterSlow}, {4 * time.Second, all(fast), ""}},
		"the_cluster_for_long": {calm, {time.Minute, all(slow), findings.ClusterSlow},
			{time.Minute, all(slow), findings.ClusterSlow}},
		"a_node_and_then_no_calls": {calm,
			{7 * time.Second, [3]time.Duration{fast, slow, fast}, findings.NodeSlow}, {12 * time.Second, all(0), ""}},
		"a_node_and_then_no_calls_on_it": {calm,
			{7 * time.Second, [3]time.Duration{fast, slow, fast}, findings.NodeSlow},
			{12 * time.Second, [3]time.Duration{fast, 0, fast}, ""}},
		"a_node_and_then_fast_calls": {calm,
			{7 * time.Second, [3]time.Duration{fast, slow, fast}, findings.NodeSlow}, {4 * time.Second, all(fast), ""}},
		"a_node_for_long": {calm, {time.Minute, [3]time.Duration{fast, slow, fast}, findings.NodeSlow},
			{time.Minute, [3]time.Duration{fast, slow, fast}, findings.NodeSlow}},
		"calls_again_after_a_slow_end": {calm, {7 * time.Second, all(slow), findings.ClusterSlow},
			{time.Minute, all(0), ""}, {4 * time.Second, all(fast), ""}},
		"slow_calls_again_after_slow_ones": {calm, {7 * time.Second, all(slow), findings.ClusterSlow},
			{time.Minute, all(0), ""}, {8 * time.Second, all(slow), findings.ClusterSlow}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := pool.Default()
				c.Min = 0
				k, stop := newFleet(func(int) []cluster.NodeID { return ids(1, 3) }).run(t, c)
				defer stop()
				watch := findings.New()
				tick := 0
				for i, p := range phases {
					for range int(p.length / (50 * time.Millisecond)) {
						for node, latency := range p.latency {
							o := cluster.Outcome{Node: cluster.NodeID(node + 1), Kind: cluster.CallExecute,
								Blame: cluster.BlameSuccess, Latency: latency}
							if latency == 0 { // sessions come and go
								o.Kind, o.Latency = cluster.CallOpen, time.Millisecond
							}
							k.router.Enter(o.Node)
							k.detector.Report(o)
							k.router.Leave(o)
						}
						time.Sleep(50 * time.Millisecond)
						synctest.Wait()
						if tick++; tick%20 == 0 {
							watch.Look(findings.Picture{
								At: time.Now(), Stage: "serving", Pool: findings.Pool{Max: 50, Limit: 50, Sessions: 9, Idle: 9},
								Nodes: snapshot.NodePictures(k.router.Stats(), k.detector.Stats()),
							})
						}
					}
					var codes, want []findings.Code
					for _, f := range watch.Report().Findings {
						codes = append(codes, f.Code)
					}
					if p.code != "" {
						want = []findings.Code{p.code}
					}
					if !slices.Equal(codes, want) {
						t.Errorf("phase %d: found %v; want %v", i, watch.Report().Findings, want)
					}
				}
			})
		})
	}
}
