package discovery

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// answer reads "id@address" or "id@address@zone".
func answer(t *testing.T, entries ...string) cluster.Topology {
	t.Helper()
	var nodes []cluster.Node
	for _, e := range entries {
		var n cluster.Node
		var id uint32
		if _, err := fmt.Sscanf(e, "%d@%1s", &id, &n.Address); err != nil {
			t.Fatalf("%s: %v", e, err)
		}
		n.ID = cluster.NodeID(id)
		if at := len(fmt.Sprintf("%d@%s@", id, n.Address)); len(e) > at {
			n.Zone = e[at:]
		}
		nodes = append(nodes, n)
	}
	return cluster.NewTopology(nodes, "here")
}

func TestKeys(t *testing.T) {
	type step struct{ says, want []string } // a star: the address is shared
	listed := func(entries ...string) step { return step{entries, entries} }
	for _, tc := range []struct {
		name   string
		chosen bool
		steps  []step
	}{
		{name: "one_address_whose_id_changes", steps: []step{
			listed("2@a"),
			{[]string{"3@a"}, []string{"2@a*"}},
			{[]string{"1@a"}, []string{"2@a*"}},
			{[]string{"2@a"}, []string{"2@a*"}},
			{[]string{"1@a"}, []string{"2@a*"}},
		}},
		{name: "an_id_that_the_source_chose", chosen: true, steps: []step{listed("2@a"), listed("3@a"), listed("4@a")}},
		{name: "another_address", steps: []step{listed("1@a"), listed("2@b"), listed("1@a"), listed("2@b")}},
		{name: "an_address_that_another_node_took_over", steps: []step{
			listed("1@a", "2@b", "3@c"), listed("1@a", "4@b", "3@c"), listed("1@a", "4@b", "3@c", "2@d"), listed("1@a", "5@b", "3@c"),
		}},
		{name: "an_address_among_others_after_the_only_one",
			steps: []step{listed("1@a"), listed("2@a", "3@b"), listed("4@a", "3@b"), listed("4@a"), {[]string{"5@a"}, []string{"4@a*"}}}},
		{name: "two_addresses_to_which_ids_come_back", steps: []step{
			listed("1@a", "3@b"), listed("2@a", "3@b"),
			{[]string{"1@a", "4@b"}, []string{"2@a*", "4@b"}},
			{[]string{"2@a", "3@b"}, []string{"2@a*", "4@b*"}},
			{[]string{"1@a", "3@b"}, []string{"2@a*", "4@b*"}},
		}},
		{name: "a_node_that_gets_an_address_of_its_own", steps: []step{
			listed("1@a"),
			{[]string{"2@a"}, []string{"1@a*"}},
			{[]string{"2@a", "3@c"}, []string{"1@a*", "3@c"}},
			{[]string{"2@a", "1@b", "3@c"}, []string{"1@b", "2@a*", "3@c"}},
			{[]string{"4@a", "1@b", "3@c"}, []string{"1@b", "2@a*", "3@c"}},
			{[]string{"4@a", "1@b", "3@c", "2@d"}, []string{"1@b", "2@d", "3@c", "4@a*"}},
			listed("1@b", "2@d", "3@c", "4@e"),
		}},
		{name: "an_address_that_lists_the_id_of_a_shared_one", steps: []step{
			listed("1@a"),
			{[]string{"2@a"}, []string{"1@a*"}},
			{[]string{"2@a", "1@b"}, []string{"1@b", "2@a*"}},
		}},
		{name: "zones_in_another_order", steps: []step{
			listed("1@a@x/y"),
			{[]string{"2@a@y/x"}, []string{"1@a@x/y*"}},
			{[]string{"3@a@x/y/z"}, []string{"1@a@x/y/z*"}},
			{[]string{"1@a@z"}, []string{"1@a@z*"}},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := keys{}
			if tc.chosen {
				k.chosen = func(string) bool { return true }
			}
			for i, s := range tc.steps {
				got := k.take(answer(t, s.says...))
				if got.Zone != "here" {
					t.Errorf("step %d: the zone of the node that answered is %q", i+1, got.Zone)
				}
				want := make([]cluster.Node, 0, len(s.want))
				for _, e := range s.want {
					shared := e[len(e)-1] == '*'
					if shared {
						e = e[:len(e)-1]
					}
					n := answer(t, e).Nodes[0]
					n.Shared = shared
					want = append(want, n)
				}
				if diff := cmp.Diff(cluster.NewTopology(want, "here"), got); diff != "" {
					t.Errorf("step %d, after %v: %s", i+1, s.says, diff)
				}
				// What was told is remembered: it is the same for the next process of these keys.
				again := keys{}
				if diff := cmp.Diff(got, again.take(got)); diff != "" {
					t.Errorf("step %d, of what is remembered: %s", i+1, diff)
				}
			}
		})
	}
}

// What is remembered of an address is bounded.
func TestKeysAreBounded(t *testing.T) {
	k := keys{}
	for id := range 10 * maxFormer {
		k.take(answer(t, fmt.Sprintf("%d@a", id+1), "100000@b"))
	}
	if n := len(k.known["a"].former); n != maxFormer {
		t.Errorf("%d ids are remembered; want %d", n, maxFormer)
	}
	k.take(answer(t, "100000@b"))
	if len(k.known) != 1 {
		t.Errorf("%d addresses are remembered; want the one that is listed", len(k.known))
	}
}
