package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

var update = flag.Bool("update", false, "write README's table of what the sidecar costs")

// README's first table is that of the committed report.
func TestReadmeHasTheFiguresOfTheReport(t *testing.T) {
	data, err := os.ReadFile("../docs/benchmarks/overhead/summary.json")
	if err != nil {
		t.Fatal(err)
	}
	var report lab.Report
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- overhead -->\n", "<!-- /overhead -->"
	before, rest, ok := strings.Cut(string(readme), begin)
	table, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("README has no %s%s", begin, end)
	}
	want := costTable(t, &report)
	if table == want {
		return
	}
	if !*update {
		t.Fatalf("README's table is not that of docs/benchmarks/overhead: go test ./loadtest -run TestReadme -update. It has\n%s\nwant\n%s", table, want)
	}
	if err := os.WriteFile("../README.md", []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// costTable makes README's table.
func costTable(t *testing.T, r *lab.Report) string {
	tables := map[string]*lab.Table{}
	for _, s := range r.Sections {
		if s.Table != nil {
			tables[s.Table.Name] = s.Table
		}
	}
	figure := func(table, variant, name string) lab.Estimate {
		row := (*lab.Row)(nil)
		if tables[table] != nil {
			row = tables[table].Row(variant)
		}
		if row == nil || row.Figures[name].N == 0 {
			t.Fatalf("the report has no %s of %s in %s", name, variant, table)
		}
		return row.Figures[name]
	}
	us := func(e lab.Estimate) string { return fmt.Sprintf("%.0f", e.Median/1e3) }
	var b strings.Builder
	fmt.Fprintf(&b, "| a point read on the development cluster | p50 and p99 at 500 a second, us | more than direct, us | p50 with 1 in flight, us | CPU with 64 in flight, us: the app's process | and the sidecar's |\n|---|--:|--:|--:|--:|--:|\n")
	for _, way := range []struct{ variant, name string }{{"direct", "direct, the least a client can do"}, {"ydb-go-sdk", "YDB's SDK for Go in the app"}, {"plain gRPC", "plain gRPC through the sidecar"}, {"HTTP/JSON", "HTTP/JSON through the sidecar"}} {
		added, cpu := "", ""
		if way.variant != "direct" {
			row := tables["faces-500"].Row(way.variant)
			added = us(row.Added[lab.P50]) + " and " + us(row.Added[lab.P99])
		}
		if row := tables["faces-c64"].Row(way.variant); row != nil && row.Figures[lab.CPU].N > 0 {
			cpu = us(row.Figures[lab.CPU])
		}
		fmt.Fprintf(&b, "| %s | %s and %s | %s | %s | %s | %s |\n", way.name, us(figure("faces-500", way.variant, lab.P50)), us(figure("faces-500", way.variant, lab.P99)), added,
			us(figure("faces-c1", way.variant, lab.P50)), us(figure("faces-c64", way.variant, lab.LoadCPU)), cpu)
	}
	fmt.Fprintf(&b, "\nOf the sidecar's CPU %.1f %% is the pool's. Medians of %d interleaved rounds on %d cores (%s) that load, sidecar and nodes share, nothing injected: `%s`; docs/benchmarks/overhead has the spread, and other proxies.\n",
		100*figure("pool-share", "plain gRPC", poolPart).Median, figure("faces-500", "direct", lab.P50).N, r.Machine.Cores, r.Machine.CPU, "make bench-full BENCH=overhead")
	return b.String()
}
