package cluster

import (
	"fmt"
	"slices"
	"testing"
)

func TestZonesOfANode(t *testing.T) {
	for _, tc := range []struct {
		zone  string
		in    []string
		notIn []string
		zones []string
	}{
		{zone: "", in: []string{""}, notIn: []string{"a"}},
		{zone: "a", in: []string{"a"}, notIn: []string{"", "b", "a/b"}, zones: []string{"a"}},
		{zone: "a/b", in: []string{"a", "b", "a/b"}, notIn: []string{"", "c", "a/", "/"}, zones: []string{"a", "b"}},
		{zone: "a//b", in: []string{"a", "b"}, notIn: []string{""}, zones: []string{"a", "b"}},
	} {
		n := Node{Zone: tc.zone}
		for _, z := range tc.in {
			if !n.In(z) {
				t.Errorf("a node in %q is not in %q", tc.zone, z)
			}
		}
		for _, z := range tc.notIn {
			if n.In(z) {
				t.Errorf("a node in %q is in %q", tc.zone, z)
			}
		}
		if got := n.Zones(); !slices.Equal(got, tc.zones) {
			t.Errorf("zones of %q: %q; want %q", tc.zone, got, tc.zones)
		}
	}
}

// Of too many nodes the same ones are kept each time, whatever their order, and about as many of each part of the list.
func TestBounded(t *testing.T) {
	var all []Node
	for i := range 2 * MaxNodes {
		all = append(all, Node{ID: NodeID(i + 1), Address: fmt.Sprintf("h%d:1", i)})
	}
	if kept, left := Bounded(all[:MaxNodes]); len(kept) != MaxNodes || left != 0 {
		t.Errorf("%d kept, %d left out of %d", len(kept), left, MaxNodes)
	}
	kept, left := Bounded(all)
	if len(kept) != MaxNodes || left != MaxNodes {
		t.Errorf("%d kept, %d left out of %d", len(kept), left, len(all))
	}
	slices.Reverse(all)
	again, _ := Bounded(all)
	if !slices.Equal(NewTopology(kept, "").Nodes, NewTopology(again, "").Nodes) {
		t.Error("another choice for another order")
	}
	first := 0
	for _, n := range kept {
		if n.ID <= MaxNodes {
			first++
		}
	}
	if first < MaxNodes*4/10 || first > MaxNodes*6/10 {
		t.Errorf("%d of the first half of the list are kept; want about half of them", first)
	}
}
