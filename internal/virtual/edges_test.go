package virtual

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write the table of edges into decision 9")

// TestEdges spells every edge out a second time, by hand.
func TestEdges(t *testing.T) {
	want := map[state]map[event]state{
		resting: {enter: calling, end: gone},
		calling: {free: resting, keep: bound, tell: using, end: leaving},
		bound:   {enter: using, drop: resting, end: gone},
		using:   {free: resting, keep: bound, lose: calling, end: leaving},
		leaving: {free: gone},
	}
	for from := range state(states) {
		for e := range event(events) {
			to := edges[from][e]
			if to != want[from][e] {
				t.Errorf("%v: %v leads to %v; want %v", from, e, to, want[from][e])
			}
			s, v := New(Config{}).Stripe(0), &Session{state: from}
			impossible := func() (panicked bool) {
				defer func() { panicked = recover() != nil }()
				s.moveLocked(v, e)
				return false
			}()
			if impossible != (to == none) || !impossible && v.state != to {
				t.Errorf("%v: %v: now %v, panicked %v", from, e, v.state, impossible)
			}
		}
	}
}

func TestDocumentedEdges(t *testing.T) {
	const (
		path  = "../../docs/dev/decisions/0009-virtual-sessions.md"
		begin = "<!-- table: internal/virtual/edges.go -->\n"
		end   = "<!-- end -->"
	)
	doctable.Part(t, *update, path, begin, end, markdown())
}

func markdown() string {
	var b strings.Builder
	b.WriteString("| event | resting | calling | bound | using | leaving |\n|---|---|---|---|---|---|\n")
	for e := range event(events) {
		fmt.Fprintf(&b, "| %v |", e)
		for from := resting; from < gone; from++ {
			if to := edges[from][e]; to == none {
				b.WriteString(" · |")
			} else {
				fmt.Fprintf(&b, " → %v |", to)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
