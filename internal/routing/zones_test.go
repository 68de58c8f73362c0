package routing

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// zoned is a topology of one node for each letter, which is its zone; the IDs
// count from 1. A letter "-" is a node that is not listed.
func zoned(zones string) cluster.Topology {
	var nodes []cluster.Node
	for i, zone := range zones {
		if zone != '-' {
			nodes = append(nodes, cluster.Node{ID: cluster.NodeID(i + 1), Address: fmt.Sprintf("node-%d:2136", i+1), Zone: string(zone)})
		}
	}
	return cluster.NewTopology(nodes, zones[:1])
}

func TestWeights(t *testing.T) {
	const nine = "aaabbbccc"
	half := cluster.Condition{Ramp: 0.5}
	joins := cluster.Condition{Ramp: 0.1, Joined: true}
	for _, tc := range []struct {
		name     string
		zone     string
		local    string
		nearest  string
		topology string
		verdicts cluster.Conditions
		part     float64 // of the load that stays in the preferred zones
		want     []float64
	}{
		{name: "all_alike", zone: "any", topology: nine, part: 1, want: []float64{1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{name: "a_returning_node_gets_its_share", zone: "any", topology: "aab", verdicts: cluster.Conditions{2: half},
			part: 1, want: []float64{1, 0.5, 1}},
		{name: "local_is_the_zone_that_answered", zone: "local", topology: nine, part: 1, want: []float64{1, 1, 1, 0, 0, 0, 0, 0, 0}},
		{name: "local_as_the_operator_says", zone: "local", local: "b", topology: nine, part: 1,
			want: []float64{0, 0, 0, 1, 1, 1, 0, 0, 0}},
		{name: "nearest", zone: "nearest", nearest: "c", topology: nine, part: 1, want: []float64{0, 0, 0, 0, 0, 0, 1, 1, 1}},
		{name: "nearest_not_measured_yet", zone: "nearest", topology: nine, part: 1, want: []float64{1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{name: "two_named", zone: "b, c", topology: nine, part: 1, want: []float64{0, 0, 0, 1, 1, 1, 1, 1, 1}},
		{name: "a_name_without_nodes", zone: "z", topology: nine, part: 0, want: []float64{1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{name: "only_one_zone", zone: "a", topology: "aaa", verdicts: cluster.Conditions{1: soft}, part: 1, want: []float64{0, 1, 1}},

		{name: "one_of_four_out_is_no_lack", zone: "a", topology: "aaaabb", verdicts: cluster.Conditions{1: soft},
			part: 1, want: []float64{0, 1, 1, 1, 0, 0}},
		// 2/3 * 1.4 = 0.933 stays on two nodes, 0.067 goes to six.
		{name: "one_of_three_out", zone: "a", topology: nine, verdicts: cluster.Conditions{1: soft}, part: 0.9333,
			want: []float64{0, 0.4667, 0.4667, 0.0111, 0.0111, 0.0111, 0.0111, 0.0111, 0.0111}},
		{name: "one_of_three_unreachable", zone: "a", topology: nine, verdicts: cluster.Conditions{1: hard},
			part: 0.9333, want: []float64{0, 0.4667, 0.4667, 0.0111, 0.0111, 0.0111, 0.0111, 0.0111, 0.0111}},
		{name: "one_of_three_leaves", zone: "a", topology: nine, verdicts: cluster.Conditions{1: leaving}, part: 0.9333,
			want: []float64{0, 0.4667, 0.4667, 0.0111, 0.0111, 0.0111, 0.0111, 0.0111, 0.0111}},
		{name: "one_of_three_banned", zone: "a", topology: nine, verdicts: cluster.Conditions{1: banned}, part: 0.9333,
			want: []float64{0, 0.4667, 0.4667, 0.0111, 0.0111, 0.0111, 0.0111, 0.0111, 0.0111}},
		// 1/3 * 1.4 = 0.467 on one node.
		{name: "two_of_three_out", zone: "a", topology: nine, verdicts: cluster.Conditions{1: soft, 2: soft},
			part: 0.4667, want: []float64{0, 0, 0.4667, 0.0889, 0.0889, 0.0889, 0.0889, 0.0889, 0.0889}},
		// 2.5/3 * 1.4 > 1
		{name: "a_half_share_is_no_lack", zone: "a", topology: nine, verdicts: cluster.Conditions{1: half}, part: 1,
			want: []float64{0.2, 0.4, 0.4, 0, 0, 0, 0, 0, 0}},
		{name: "a_node_that_joins_takes_nothing_from_its_zone", zone: "a", topology: "aabb",
			verdicts: cluster.Conditions{2: joins}, part: 1, want: []float64{0.9091, 0.0909, 0, 0}},
		{name: "the_first_node_of_its_zone_joins", zone: "a", topology: "abb", verdicts: cluster.Conditions{1: joins},
			part: 0.14, want: []float64{0.14, 0.43, 0.43}},
		{name: "a_node_joins_beside_one_that_is_out", zone: "a", topology: "aabb",
			verdicts: cluster.Conditions{1: hard, 2: joins}, part: 0.1273, want: []float64{0, 0.1273, 0.4364, 0.4364}},
		{name: "a_half_share_of_what_spills", zone: "a", topology: "aabb",
			verdicts: cluster.Conditions{1: soft, 3: half}, part: 0.7, want: []float64{0, 0.7, 0.1, 0.2}},

		{name: "the_whole_zone_and_one_more_out", zone: "a", topology: nine,
			verdicts: cluster.Conditions{1: hard, 2: hard, 3: hard, 4: hard}, part: 0,
			want: []float64{0, 0, 0, 0, 0.2, 0.2, 0.2, 0.2, 0.2}},
		{name: "the_whole_zone_and_one_more_gone", zone: "a", topology: "----bbccc", part: 0, want: []float64{0.2, 0.2, 0.2, 0.2, 0.2}},
		{name: "another_zone_and_one_more_out", zone: "a", topology: nine,
			verdicts: cluster.Conditions{4: hard, 5: hard, 6: hard, 1: hard}, part: 0.9333,
			want: []float64{0, 0.4667, 0.4667, 0, 0, 0, 0.0222, 0.0222, 0.0222}},
		{name: "another_zone_and_one_more_gone", zone: "a", topology: "-aa---ccc", part: 1, want: []float64{0.5, 0.5, 0, 0, 0}},
		{name: "any_zone_and_one_more_out", zone: "any", topology: nine,
			verdicts: cluster.Conditions{1: hard, 2: hard, 3: hard, 4: hard}, part: 1,
			want: []float64{0, 0, 0, 0, 1, 1, 1, 1, 1}},

		// Here 0.467, there 0.233 of everything: two thirds and one third.
		{name: "too_little_everywhere", zone: "a", topology: nine,
			verdicts: cluster.Conditions{1: hard, 2: hard, 4: hard, 5: hard, 6: hard, 7: hard, 8: hard}, part: 0.6667,
			want: []float64{0, 0, 0.6667, 0, 0, 0, 0, 0, 0.3333}},
		{name: "nothing_elsewhere", zone: "a", topology: "aaab", verdicts: cluster.Conditions{1: hard, 2: hard, 4: hard},
			part: 1, want: []float64{0, 0, 1, 0}},
		{name: "nobody_answers", zone: "a", topology: "aab", verdicts: cluster.Conditions{1: hard, 2: hard, 3: hard},
			part: 1, want: []float64{0.5, 0.5, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := Default()
			config.Zone, config.LocalZone = tc.zone, tc.local
			r := New(config)
			topology := zoned(tc.topology)
			topology.Nearest = tc.nearest
			r.SetTopology(topology)
			r.SetConditions(tc.verdicts)
			if got := r.Stats().Local; math.Abs(got-tc.part) > 1e-4 {
				t.Errorf("%.4f stays; want %.4f", got, tc.part)
			}
			got, want := normal(weightsOf(r)), normal(tc.want)
			for i := range want {
				if math.Abs(got[i]-want[i]) > 1e-4 {
					t.Fatalf("parts %.4f; want %.4f", got, want)
				}
			}
		})
	}
}

func weightsOf(r *Router) (weights []float64) {
	for _, n := range r.View().Nodes {
		weights = append(weights, float64(n.Weight))
	}
	return weights
}

// normal makes the sum 1.
func normal(weights []float64) []float64 {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	out := make([]float64, len(weights))
	for i, w := range weights {
		out[i] = w / sum
	}
	return out
}

// The primary pile comes first, the synchronized ones take what it cannot carry, and a pile
// that is cut off gets nothing new, whatever else is wrong.
func TestPiles(t *testing.T) {
	letters := map[rune]cluster.PileState{'p': cluster.PilePrimary, 's': cluster.PileInStep, 'n': cluster.PileBehind,
		'd': cluster.PileDetached}
	for _, tc := range []struct {
		name     string
		piles    string // the state of each node's pile
		zone     string // preferred; the zones are a, b, a, b ...
		verdicts cluster.Conditions
		use      string // of each node: new, open or -, which is none
		part     float64
		want     []float64
	}{
		{name: "the_primary_first", piles: "psps", use: "nnnn", part: 1, want: []float64{0.5, 0, 0.5, 0}},
		{name: "one_of_two_out", piles: "psps", verdicts: cluster.Conditions{1: soft}, use: "onnn", part: 0.7,
			want: []float64{0, 0.15, 0.7, 0.15}},
		{name: "the_primary_out", piles: "psps", verdicts: cluster.Conditions{1: hard, 3: hard}, use: "-n-n", part: 0,
			want: []float64{0, 0.5, 0, 0.5}},
		{name: "no_primary_yet", piles: "ssss", use: "nnnn", part: 1, want: []float64{0.25, 0.25, 0.25, 0.25}},
		{name: "the_operators_zone_before_the_primary", piles: "psps", zone: "b", use: "nnnn", part: 1, want: []float64{0, 0.5, 0, 0.5}},
		{name: "not_synchronized_is_for_need", piles: "pnpn", use: "nono", part: 1, want: []float64{0.5, 0, 0.5, 0}},
		{name: "it_is_needed", piles: "pnpn", verdicts: cluster.Conditions{1: hard, 3: hard}, use: "-n-n", part: 0,
			want: []float64{0, 0.5, 0, 0.5}},
		{name: "cut_off", piles: "pdpd", use: "nono", part: 1, want: []float64{0.5, 0, 0.5, 0}},
		{name: "cut_off_and_nobody_else_good", piles: "pdpd", verdicts: cluster.Conditions{1: hard, 3: hard},
			use: "nono", part: 1, want: []float64{0.5, 0, 0.5, 0}},
		{name: "the_operators_zone_is_cut_off", piles: "pdpd", zone: "b", use: "nono", part: 0, want: []float64{0.5, 0, 0.5, 0}},
		{name: "all_cut_off", piles: "dd", use: "oo", part: 0, want: []float64{0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var nodes []cluster.Node
			for i, state := range tc.piles {
				nodes = append(nodes,
					cluster.Node{ID: cluster.NodeID(i + 1), Address: fmt.Sprintf("node-%d:2136", i+1),
						Zone: string("ab"[i%2]), Pile: cluster.Pile{Name: string(state), State: letters[state]}})
			}
			config := Default()
			if tc.zone != "" {
				config.Zone = tc.zone
			}
			r := New(config)
			r.SetTopology(cluster.NewTopology(nodes, ""))
			r.SetConditions(tc.verdicts)
			use := ""
			for _, n := range r.View().Nodes {
				use += string("no-"[n.Use])
			}
			if got := r.Stats().Local; math.Abs(got-tc.part) > 1e-4 || use != tc.use {
				t.Errorf("%.4f stays, uses %s; want %.4f, %s", got, use, tc.part, tc.use)
			}
			got := weightsOf(r)
			if tc.want[0]+tc.want[1] > 0 {
				got = normal(got)
			}
			for i, want := range tc.want {
				if math.Abs(got[i]-want) > 1e-4 {
					t.Fatalf("parts %.4f; want %.4f", got, tc.want)
				}
			}
		})
	}
}

// A host does not move when another node answers discovery.
func TestTheLocalZoneStays(t *testing.T) {
	config := Default()
	config.Zone = ZoneLocal
	r := New(config)
	r.SetTopology(zoned("ab"))
	elsewhere := zoned("ab")
	elsewhere.Zone = "b"
	r.SetTopology(elsewhere)
	if got := r.Stats().Preferred; len(got) != 1 || got[0] != "a" {
		t.Errorf("preferred %v; want a", got)
	}
}

// The picks follow the parts.
func TestPickSpillsOver(t *testing.T) {
	config := Default()
	config.Zone = "a"
	r := New(config)
	r.SetTopology(zoned("aaabbbccc"))
	r.SetConditions(cluster.Conditions{1: soft, 2: soft})
	for _, open := range []int{1, 100} {
		if got := shares(t, r, open, 50_000)[3]; got < 0.4 || got > 0.6 {
			t.Errorf("%d calls open: node 3 gets %.3f; want about 0.467", open, got)
		}
	}
}

// A node at an address that nodes of several zones share is in each of them.
func TestWeightsOfJoinedZones(t *testing.T) {
	for zone, want := range map[string][]float64{
		"a": {1, 0, 0}, "b": {1, 1, 0}, "c": {0, 0, 1}, "a,c": {1, 0, 1}, "a/b": {1, 0, 0}, "any": {1, 1, 1}, "z": {1, 1, 1},
	} {
		config := Default()
		config.Zone = zone
		r := New(config)
		topology := zoned("abc")
		topology.Nodes[0].Zone = "a/b"
		r.SetTopology(topology)
		if got := weightsOf(r); !slices.Equal(got, want) {
			t.Errorf("zone %s: weights %v; want %v", zone, got, want)
		}
	}
}
