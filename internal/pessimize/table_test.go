package pessimize

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write the tables into docs/concepts/health.md")

// TestEdges spells every edge out a second time, by hand.
func TestEdges(t *testing.T) {
	want := map[cluster.Health]map[event]cluster.Health{
		cluster.Healthy: {sign: cluster.Suspect, hard: cluster.Ejected, soft: cluster.Ejected, slow: cluster.Ejected,
			failed: cluster.Ejected},
		cluster.Suspect: {good: cluster.Healthy, hard: cluster.Ejected, soft: cluster.Ejected, slow: cluster.Ejected,
			answered: cluster.Healthy, failed: cluster.Ejected},
		cluster.Ejected: {rested: cluster.Probing},
		cluster.Probing: {answered: cluster.Healthy},
	}
	for from := range table {
		for e := range event(events) {
			to, moves := want[cluster.Health(from)][e]
			if !moves {
				to = cluster.Health(from)
			}
			if got := table[from][e]; got != to {
				t.Errorf("%v: %v leads to %v; want %v", cluster.Health(from), e, got, to)
			}
		}
	}
}

func TestDocumentedTable(t *testing.T) {
	const path, end = "../../docs/concepts/health.md", "<!-- end -->"
	for file, table := range map[string]string{"table.go": markdown(), "doubt.go": doubtMarkdown()} {
		doctable.Part(t, *update, path, "<!-- table: internal/pessimize/"+file+" -->\n", end, table)
	}
}

func markdown() string {
	var b strings.Builder
	b.WriteString("| event | healthy | suspect | ejected | probing |\n|---|---|---|---|---|\n")
	for e := range event(events) {
		fmt.Fprintf(&b, "| %v |", e)
		for from := range table {
			if to := table[from][e]; to == cluster.Health(from) {
				b.WriteString(" · |")
			} else {
				fmt.Fprintf(&b, " → %v |", to)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
