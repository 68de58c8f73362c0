package lab

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

// stacks is a profile of stacks, written root;...;leaf, with their values.
func stacks(all map[string]int64) *profile.Profile {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}}
	for text, value := range all {
		s := &profile.Sample{Value: []int64{1, value}}
		for _, name := range strings.Split(text, ";") {
			s.Location = append([]*profile.Location{{Line: []profile.Line{{Function: &profile.Function{Name: name}}}}}, s.Location...)
		}
		p.Sample = append(p.Sample, s)
	}
	return p
}

func TestShares(t *testing.T) {
	p := stacks(
		map[string]int64{"main.main;a/b.(*T).f;runtime.mallocgc": 30,
			"main.main;a/b.(*T).f;sync.(*Mutex).Unlock;internal/sync.(*Mutex).Unlock": 50, "main.main": 20},
	)
	for name, tc := range map[string]struct {
		by   func([]string) string
		want map[string]float64
	}{
		"leaf":    {Leaf, map[string]float64{"runtime.mallocgc": .3, "internal/sync.(*Mutex).Unlock": .5, "main.main": .2}},
		"package": {Package, map[string]float64{"runtime": .3, "internal/sync": .5, "main": .2}},
		"waiter":  {Waiter, map[string]float64{"a/b.(*T).f": .8, "main.main": .2}},
	} {
		if got := Shares(p, tc.by); !maps.EqualFunc(got, tc.want, func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }) {
			t.Errorf("%s: got %v; want %v", name, got, tc.want)
		}
	}
	if Total(p) != 100 || len(Shares(&profile.Profile{}, Leaf)) != 0 {
		t.Errorf("got %d in all; want 100, and no share of nothing", Total(p))
	}
	p.SampleType[0].Type = "alloc_space"
	if Total(p) != 3 {
		t.Errorf("got %d; want the sum of what was allocated", Total(p))
	}
}

func TestPackageOf(t *testing.T) {
	for name, want := range map[string]string{"runtime.mallocgc": "runtime", "a.b/c/d.(*T[e.f/g.H]).m": "a.b/c/d",
		"a/b.f[...]": "a/b", "syscall": "syscall"} {
		if got := packageOf(name); got != want {
			t.Errorf("%s: got %s; want %s", name, got, want)
		}
	}
}
