package findings

import (
	"fmt"
	"slices"
	"testing"
)

// What has a cause of its own is reported beside NO_NODE; what follows from it is not, and comes back with it.
func TestNoNodeHidesWhatFollows(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(p *Picture)
		beside []Code
	}{
		"nothing else":   {func(*Picture) {}, nil},
		"short memory":   {func(p *Picture) { p.MemoryTight = true }, []Code{MemoryShort}},
		"bad settings":   {func(p *Picture) { p.Config.Fault = "sidecar.yaml:3: pool.max" }, []Code{ConfigBad}},
		"credentials":    {func(p *Picture) { p.Credentials = "UNAUTHENTICATED" }, []Code{CredentialsBad}},
		"a pause":        {func(p *Picture) { p.Pool.Paused = true }, []Code{PoolPaused}},
		"another reason": {func(p *Picture) { p.Nodes[1].Cause = "latency" }, []Code{NodeSlow}},
	} {
		t.Run(name, func(t *testing.T) {
			began, w := told(25, func(i int, p *Picture) {
				if i >= 15 {
					lost(p)
					tc.change(p)
				}
			})
			var codes []Code
			for _, f := range w.Report().Findings {
				if f.Code != NoNode {
					codes = append(codes, f.Code)
				}
			}
			if len(codes) == len(w.Report().Findings) || !slices.Equal(codes, tc.beside) {
				t.Errorf("beside NO_NODE: %v; want %v", codes, tc.beside)
			}
			if !slices.Contains(began, "15 began NODE_DEAD") || slices.Contains(began, "16 ended NODE_DEAD") {
				t.Errorf("told %q; want that nodes are dead from the beginning", began)
			}
			// The first node returns: the others are still dead.
			p := calm(25)
			one := p.Nodes[0]
			lost(&p)
			p.Nodes[0] = one
			began2, _ := w.Look(p)
			dead := 0
			for _, f := range w.Report().Findings {
				if f.Code == NodeDead && f.Times == 1 {
					dead++
				}
			}
			if want := 2; dead != want {
				t.Errorf("%d nodes are dead for the first time; want %d: %v, began %v", dead, want, w.Report(), fmt.Sprint(began2))
			}
		})
	}
}
