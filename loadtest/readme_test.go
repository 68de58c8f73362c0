package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/overhead"
	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write README's table of what the sidecar costs")

// README's first table is that of the committed runs.
func TestReadmeHasTheFiguresOfTheRuns(t *testing.T) {
	want := costTable(t, readRuns(t, "../docs/dev/benchmarks/overhead/runs.txt"))
	doctable.Part(t, *update, "../README.md", "<!-- overhead -->\n", "<!-- /overhead -->", want)
}

// runs is a file in the format of Go's benchmarks: its settings, and the figures
// of each benchmark in the order of its runs.
type runs struct {
	config  map[string]string
	figures map[string]map[string][]float64
}

func readRuns(t *testing.T, path string) runs {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := runs{config: map[string]string{}, figures: map[string]map[string][]float64{}}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(line, "Benchmark") {
			r.config[key] = value
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		name := strings.TrimPrefix(fields[0], "Benchmarkoverhead/")
		if r.figures[name] == nil {
			r.figures[name] = map[string][]float64{}
		}
		for pair := range slices.Chunk(fields[2:], 2) {
			value, err := strconv.ParseFloat(pair[0], 64)
			if err != nil || len(pair) != 2 {
				t.Fatalf("%s: %q: want values, each with its unit", path, line)
			}
			r.figures[name][pair[1]] = append(r.figures[name][pair[1]], value)
		}
	}
	return r
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// costTable makes README's table.
func costTable(t *testing.T, r runs) string {
	figure := func(name, unit string) []float64 {
		values := r.figures[name][unit]
		if len(values) == 0 {
			t.Fatalf("the runs have no %s of %s", unit, name)
		}
		return values
	}
	us := func(values []float64) string { return fmt.Sprintf("%.0f", median(values)/1e3) }
	added := func(variant, unit string) string {
		direct, values := figure("faces-500/direct", unit), figure("faces-500/"+variant, unit)
		if len(direct) != len(values) {
			t.Fatalf("%d runs of direct, %d of %s: want pairs", len(direct), len(values), variant)
		}
		more := slices.Clone(values)
		for i := range more {
			more[i] -= direct[i]
		}
		return us(more)
	}
	var b strings.Builder
	fmt.Fprintf(&b,
		"| a point read on the development cluster | p50 and p99 at 500 a second, us | more than direct, us | p50 "+
			"with 1 in flight, us | CPU with 64 in flight, us: the app's process | and the sidecar's |\n|---|--:|--:|--:|--:|--:|\n")
	for _, way := range []struct{ variant, name string }{{"direct", "direct, the least a client can do"},
		{"ydb-go-sdk", "YDB's SDK for Go in the app"}, {"plain_gRPC", "plain gRPC through the sidecar"},
		{"HTTP_JSON", "HTTP/JSON through the sidecar"}} {
		more, cpu := "", ""
		if way.variant != "direct" {
			more = added(way.variant, lab.P50) + " and " + added(way.variant, lab.P99)
		}
		if values := r.figures["faces-c64/"+way.variant][lab.CPU]; len(values) > 0 {
			cpu = us(values)
		}
		fmt.Fprintf(&b, "| %s | %s and %s | %s | %s | %s | %s |\n", way.name,
			us(figure("faces-500/"+way.variant, lab.P50)), us(figure("faces-500/"+way.variant, lab.P99)), more,
			us(figure("faces-c1/"+way.variant, lab.P50)), us(figure("faces-c64/"+way.variant, lab.LoadCPU)), cpu)
	}
	fmt.Fprintf(&b,
		"\nOf the sidecar's CPU %.1f %% is the pool's. Medians of %d interleaved rounds on %s cores (%s) that load, "+
			"sidecar and nodes share, nothing injected: `%s`; docs/dev/benchmarks/overhead has the spread, and other proxies.\n",
		100*median(figure("pool-share/plain_gRPC", overhead.PoolPart)), len(figure("faces-500/direct", lab.P50)),
		r.config["cores"], r.config["cpu"], "make bench-full BENCH=overhead")
	return b.String()
}
