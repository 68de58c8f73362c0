package cluster

import (
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
