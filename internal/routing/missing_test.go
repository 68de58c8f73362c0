package routing

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// missing marks nodes of a topology of ten: the others are listed.
func missing(ids ...cluster.NodeID) cluster.Topology {
	t := topology(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	for _, id := range ids {
		t.Nodes[id-1].Missing = true
	}
	return t
}

// A node that is listed as unhealthy ranks like one that is ejected for a soft sign.
func TestUnwellNodes(t *testing.T) {
	for _, tc := range []struct {
		name     string
		unwell   int // of nodes 1..4, the first ones
		verdicts cluster.Conditions
		want     string
		panics   bool
	}{
		{name: "it_gets_nothing_new", unwell: 1, want: "open new new new"},
		{name: "half_is_no_panic", unwell: 2, want: "open open new new"},
		{name: "more_than_half_are_used", unwell: 3, want: "new new new new", panics: true},
		{name: "all_are_used", unwell: 4, want: "new new new new", panics: true},
		{name: "with_ejected_ones_it_is_more_than_half", unwell: 2, verdicts: cluster.Conditions{4: soft},
			want: "new new new new", panics: true},
		{name: "one_that_is_ejected_as_well_counts_once", unwell: 2, verdicts: cluster.Conditions{1: soft}, want: "open open new new"},
		{name: "unreachable_is_worse", unwell: 3, verdicts: cluster.Conditions{1: hard}, want: "none new new new", panics: true},
		{name: "leaving_is_worse", unwell: 3, verdicts: cluster.Conditions{1: leaving}, want: "open new new new", panics: true},
		{name: "banned_is_worse_and_does_not_count", unwell: 2, verdicts: cluster.Conditions{1: banned, 3: hard},
			want: "open new none new", panics: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New(Default())
			all := topology(upTo(4)...)
			for i := range tc.unwell {
				all.Nodes[i].Unwell = true
			}
			r.SetTopology(all)
			r.SetConditions(tc.verdicts)
			got := ""
			for _, n := range r.View().Nodes {
				got += n.Use.String() + " "
			}
			if want := tc.want + " "; got != want || r.View().Panic != tc.panics {
				t.Errorf("uses %q, panic %v; want %q, %v", got, r.View().Panic, want, tc.panics)
			}
		})
	}
}

func TestMissingNodes(t *testing.T) {
	for _, tc := range []struct {
		name     string
		topology cluster.Topology
		verdicts cluster.Conditions
		use      cluster.Use // of node 1
		weight   float32
		panics   bool
	}{
		{name: "it_is_a_reserve", topology: missing(1, 2, 3), use: cluster.UseNew},
		{name: "while_half_is_listed", topology: missing(1, 2, 3, 4, 5), use: cluster.UseNew},
		{name: "it_carries_its_part_when_more_are_missing", topology: missing(1, 2, 3, 4, 5, 6), use: cluster.UseNew, weight: 1},
		{name: "or_missing_and_ejected", topology: missing(1, 2, 3),
			verdicts: cluster.Conditions{8: soft, 9: hard, 10: soft}, use: cluster.UseNew, weight: 1},
		{name: "an_ejected_one_gets_nothing", topology: missing(1, 2, 3), verdicts: cluster.Conditions{1: soft}, use: cluster.UseOpen},
		{name: "nor_does_an_unreachable_one", topology: missing(1, 2, 3), verdicts: cluster.Conditions{1: hard}, use: cluster.UseNone},
		{name: "nor_a_leaving_one", topology: missing(1, 2, 3), verdicts: cluster.Conditions{1: leaving}, use: cluster.UseOpen},
		{name: "nor_a_banned_one", topology: missing(1, 2, 3, 4, 5, 6), verdicts: cluster.Conditions{1: banned}, use: cluster.UseOpen},
		{name: "it_comes_before_nodes_that_leave", topology: missing(1),
			verdicts: cluster.Conditions{2: leaving, 3: leaving, 4: leaving, 5: leaving, 6: leaving, 7: leaving,
				8: leaving, 9: leaving, 10: leaving},
			use: cluster.UseNew, weight: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New(Default())
			r.SetTopology(tc.topology)
			r.SetConditions(tc.verdicts)
			view := r.View()
			if n := view.Nodes[0]; n.Use != tc.use || n.Weight != tc.weight {
				t.Errorf("use %v, weight %v; want %v, %v", n.Use, n.Weight, tc.use, tc.weight)
			}
			if view.Panic != tc.panics {
				t.Errorf("Panic is %t", view.Panic)
			}
			if _, err := r.Target(1, true); err != nil {
				t.Errorf("Target of an open transaction: %v", err)
			}
		})
	}
}
