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
	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write README's table of what the sidecar costs")

// README's table of what the sidecar costs is that of the committed runs.
func TestReadmeHasTheFiguresOfTheRuns(t *testing.T) {
	want := costTable(t, readRuns(t, "../docs/dev/benchmarks/sdks/runs.txt"))
	doctable.Part(t, *update, "../README.md", "<!-- cost -->\n", "<!-- /cost -->", want)
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
		name := strings.TrimPrefix(fields[0], "Benchmarksdks/")
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
	const both = "both-cpu-ns/call"
	figure := func(name, unit string) float64 {
		values := r.figures[name][unit]
		if len(values) == 0 {
			t.Fatalf("the runs have no %s of %s", unit, name)
		}
		return median(values)
	}
	var b strings.Builder
	b.WriteString("| an app in | reads a row by | p50, 1 in flight | CPU of a call: app + sidecar = total | calls a " +
		"second, 16 in flight |\n" +
		"|---|---|--:|--:|--:|\n")
	for _, way := range []struct{ language, name, key string }{
		{"Python", "`ydb`, directly", "ydb"}, {"Python", "`ydb`, through the sidecar", "ydb_sidecar"},
		{"Python", "gRPC", "plain_gRPC"}, {"Python", "HTTP/JSON", "HTTP_JSON"},
		{"Node", "`ydb-sdk`, directly", "ydb-sdk"}, {"Node", "`ydb-sdk`, through the sidecar", "ydb-sdk_sidecar"},
		{"Node", "`@ydbjs/query`, directly", "@ydbjs_query"},
		{"Node", "`@ydbjs/query`, through the sidecar", "@ydbjs_query_sidecar"},
		{"Node", "gRPC", "plain_gRPC"}, {"Node", "HTTP/JSON", "HTTP_JSON"},
		{"Go", "`ydb-go-sdk`, directly", "ydb-go-sdk"}, {"Go", "`ydb-go-sdk`, through the sidecar", "ydb-go-sdk_sidecar"},
		{"Go", "gRPC", "plain_gRPC"}, {"Go", "HTTP/JSON", "HTTP_JSON"},
	} {
		one, many := strings.ToLower(way.language)+"-c1/"+way.key, strings.ToLower(way.language)+"-c16/"+way.key
		app, total := figure(many, "app-cpu-ns/call"), figure(many, both)
		fmt.Fprintf(&b, "| %s | %s | %.2f ms | %.0f + %.0f = %.0f µs | %.0f |\n", way.language, way.name,
			figure(one, lab.P50)/1e6, app/1e3, (total-app)/1e3, total/1e3, figure(many, lab.PerSecond))
	}
	fmt.Fprintf(&b, "\nMedians of %d rounds; app, sidecar and the development cluster share %s cores (%s), so only ratios carry over "+
		"to other machines. `%s`; [all goals, and which are missed](docs/dev/benchmarks/speed.md).\n",
		len(r.figures["go-c1/ydb-go-sdk"][lab.P50]), r.config["cores"], r.config["cpu"], "make bench-full BENCH=sdks")
	return b.String()
}
