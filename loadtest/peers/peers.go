// Package peers measures what a proxy spends to forward calls of YDB's protocol: the
// sidecar's data path next to HAProxy, Envoy, nginx, a forwarder made of grpc-go and
// no proxy at all, in one run on one machine; and what the sidecar's plain API spends on
// the same statements.
//
// It owns the three backends, which answer as nodes would, the load, and every process that it starts:
// none is left when the lab has stopped. What always holds: all targets get the same calls, one run
// each in turn, in an order that changes with the round; every answer is compared byte for byte with
// what the node that sent it must answer (of the plain API row for row, and answers of many rows are
// decoded and counted), and from targets that route by session id it must come from the owner. The
// main figure is the CPU time of the proxy's processes for each call, which survives a noisy machine
// better than rates and latencies do.
package peers

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// The experiment's name, and those of its children.
const (
	experiment = "peers"
	backends   = "backends"
	forward    = "forward"
)

// Experiment compares the data path and the plain API with other proxies.
func Experiment() lab.Experiment {
	o, targets := Options{APIs: true}, ""
	return lab.Experiment{
		Name:  experiment,
		Title: "What proxies cost to forward a call",
		Question: `What does the sidecar's data path cost next to HAProxy, Envoy, nginx, a forwarder made of grpc-go and no proxy at all, and its plain API on the same statements? The data path alone is *h2forward*. Own programs (-sidecar) are command lines:
[NAME=VALUE...] program [argument...].`,
		Apart: true,
		Flags: func(flags *flag.FlagSet) {
			flags.StringVar(&targets, "targets", "", "names of the targets, separated by commas; all by default")
			flags.IntVar(&o.Conns, "conns", 1, "connections of the client to a proxy")
		},
		Defaults: func(l *lab.Options) {
			l.Sidecars = []string{filepath.Join(l.Bin, "sidecar"), filepath.Join(l.Bin, "h2forward")}
			if l.Rounds == 0 && l.Size > lab.Smoke {
				l.Rounds = 3
			}
			if l.MaxRounds == 0 {
				l.MaxRounds = l.Rounds // no claim needs more
			}
			if l.Duration == 0 && l.Size > lab.Smoke {
				l.Duration = 2 * time.Second
			}
			if l.WarmUp == 0 && l.Size > lab.Smoke {
				l.WarmUp = 300 * time.Millisecond
			}
		},
		Children: map[string]lab.Child{
			backends: func(ctx context.Context, args []string) error { return serveBackends(ctx, os.Stdout, args) },
			forward:  serveForward,
		},
		Run: func(ctx context.Context, l *lab.Lab) error {
			o.Own, o.Matrix = l.Sidecars, Scenarios()
			if targets != "" {
				o.Only = strings.Split(targets, ",")
			}
			if l.Size == lab.Smoke && l.Only == "" {
				o.Matrix = slices.DeleteFunc(o.Matrix,
					func(s Scenario) bool { return s.Name != "unary100-c16" && s.Name != "stream500-c16" })
			}
			return Compare(ctx, l, o)
		},
	}
}

func serveBackends(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("arguments %q; want a directory", args)
	}
	return Backends(ctx, out, args[0])
}

func serveForward(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("arguments %q; want an address to listen on and those of backends", args)
	}
	return Forward(ctx, args[0], args[1:])
}

// Options say what Compare measures.
type Options struct {
	Own    []string   // command lines of data paths of the project's: [NAME=VALUE...] program [argument...]
	Names  []string   // of those; nil: those of the programs
	APIs   bool       // measure the plain API of those too, over gRPC and HTTP
	Only   []string   // names of the targets to measure; nil means all
	Matrix []Scenario // those of them are measured that the lab wants
	Conns  int        // connections of the client to a proxy; to each backend if there is none
}

// Scenario is one kind of load. InFlight calls are under way all the time or, if
// Rate is not 0, Rate calls begin each second.
type Scenario struct {
	Name     string `json:"name"`
	Stream   bool   `json:"stream"`         // ExecuteQuery, else ExecuteDataQuery
	Size     int    `json:"size"`           // bytes of payload in each part of the answer, or of the name in each of its rows
	Rows     int    `json:"rows,omitempty"` // of each part; 0: one, of payload
	Parts    int    `json:"parts"`          // of an answer; 1 if it is no stream
	InFlight int    `json:"in_flight"`
	Rate     int    `json:"rate"` // calls a second
	TLS      sides  `json:"tls,omitempty"`
	Implicit bool   `json:"implicit,omitempty"` // calls name no session
}

// sides are where TLS is spoken.
type sides string

const (
	nowhere sides = ""
	toNodes sides = "nodes" // between proxy and nodes
	both    sides = "both"  // there, and between clients and proxy
)

// bulk tells scenarios that are judged by their throughput.
func (s Scenario) bulk() bool { return s.Parts > 1 }

// MaxInFlight bounds the calls under way in an open loop: one that finds no room
// waits, and the wait counts.
const maxInFlight = 256

// Scenarios returns the whole matrix.
func Scenarios() []Scenario {
	var all []Scenario
	for _, kind := range []struct {
		name   string
		stream bool
		size   int
		counts []int
	}{{"unary100", false, 100, []int{1, 16, 64}}, {"unary2000", false, 2000, []int{16, 64}}, {"stream500", true, 500, []int{1, 16, 64}}} {
		for _, n := range kind.counts {
			all = append(all,
				Scenario{Name: fmt.Sprintf("%s-c%d", kind.name, n), Stream: kind.stream, Size: kind.size, Parts: 1, InFlight: n})
		}
	}
	return append(all,
		Scenario{Name: "unary100-2k", Size: 100, Parts: 1, InFlight: maxInFlight, Rate: 2000},
		Scenario{Name: "unary100-5k", Size: 100, Parts: 1, InFlight: maxInFlight, Rate: 5000},
		// A node sends large answers in parts.
		Scenario{Name: "stream0.3M-c4", Stream: true, Size: 100_000, Parts: 3, InFlight: 4},
		Scenario{Name: "stream3M-c4", Stream: true, Size: 100_000, Parts: 30, InFlight: 4},
		Scenario{Name: "rows100k-c1", Stream: true, Size: 20, Rows: 1000, Parts: 100, InFlight: 1},
		Scenario{Name: "tls-unary100-c1", Size: 100, Parts: 1, InFlight: 1, TLS: both},
		Scenario{Name: "tls-unary100-c16", Size: 100, Parts: 1, InFlight: 16, TLS: both},
		Scenario{Name: "tls-unary100-c64", Size: 100, Parts: 1, InFlight: 64, TLS: both},
		Scenario{Name: "tls-nodes-unary100-c1", Size: 100, Parts: 1, InFlight: 1, TLS: toNodes},
		Scenario{Name: "tls-nodes-unary100-c64", Size: 100, Parts: 1, InFlight: 64, TLS: toNodes},
	)
}

// Virtual returns what virtual sessions are measured with: statements of both services on sessions, and
// without one.
func Virtual() []Scenario {
	var all []Scenario
	for _, kind := range []struct {
		name             string
		stream, implicit bool
	}{{"query", true, false}, {"implicit", true, true}, {"table", false, false}} {
		for _, n := range []int{1, 16, 64} {
			all = append(all,
				Scenario{Name: fmt.Sprintf("%s-c%d", kind.name, n), Stream: kind.stream, Implicit: kind.implicit,
					Size: 100, Parts: 1, InFlight: n})
		}
	}
	return all
}

// The figures that only these cases have.
const (
	anonymous = "anonymous-B" // memory of the process under test that no file is behind
	payloads  = "payload-B/s" // of large streams
)

// Compare measures every target in every scenario and adds the tables, and what they say of the goals, to the report.
func Compare(ctx context.Context, l *lab.Lab, o Options) error {
	scenarios := slices.DeleteFunc(slices.Clone(o.Matrix), func(s Scenario) bool { return !l.Wanted(s.Name) })
	if len(scenarios) == 0 {
		return nil
	}
	if o.Conns < 1 || o.Conns > 64 {
		return fmt.Errorf("%d connections of the client; want 1 to 64", o.Conns)
	}
	dir, err := os.MkdirTemp("", "peers")
	if err != nil {
		return fmt.Errorf("a place for configurations: %w", err)
	}
	l.Defer(func() { _ = os.RemoveAll(dir) })
	defer debug.SetGCPercent(debug.SetGCPercent(Garbage))
	f := &field{lab: l, options: o, dir: dir}
	var where []sides
	for _, s := range scenarios {
		if !slices.Contains(where, s.TLS) {
			where = append(where, s.TLS)
		}
	}
	if err := f.start(ctx, where); err != nil {
		return err
	}
	l.Report.Add(lab.Section{Text: f.text()})
	r := results{scenarios, map[string]*lab.Table{}}
	for _, s := range scenarios {
		if r.tables[s.Name], err = f.compare(ctx, s); err != nil {
			return err
		}
	}
	for _, t := range f.targets {
		if t.Own && o.Names == nil { // goals are of the programs as they come
			r.judge(l, t)
		}
	}
	return nil
}

// compare measures one scenario.
func (f *field) compare(ctx context.Context, s Scenario) (*lab.Table, error) {
	c := lab.Case{Name: s.Name, Title: s.Name, Baseline: f.targets[0].Name, Ratios: []string{lab.CPU}, Added: []string{lab.CPU},
		Figures: []string{lab.PerSecond, lab.RowsPerS, payloads, lab.P50, lab.P99, lab.P999, lab.CPU, anonymous, lab.RSS}}
	if c.Baseline == direct { // which has no proxy
		c.Ratios, c.Added = []string{lab.PerSecond}, []string{lab.P50, lab.P99, lab.P999}
	}
	for _, t := range f.targets {
		if t.at(s) != nil {
			one := &load{field: f, target: t, scenario: s}
			defer one.end()
			c.Variants = append(c.Variants, one.variant())
		}
	}
	return f.lab.Compare(ctx, c)
}

// text says what was measured, and what was left out.
func (f *field) text() string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"Connections of the client to a proxy: %d. In names `c` is calls in flight and `k` thousand calls a second, "+
			"whose latency counts from the moment when a call was due. ",
		f.options.Conns)
	b.WriteString("Every answer was compared with what its node must answer, and came from the owner of the session " +
		"where a target routes by session (direct and the project's own). ")
	b.WriteString("Answers of the plain API (`-plain`: gRPC, `-http`: HTTP/1.1 and JSON, a connection for each call " +
		"in flight) were compared row for row. ")
	b.WriteString("Answers of 100,000 rows (`rows`) were decoded as a client would and counted; their lines of JSON " +
		"were counted and not decoded.\n\n")
	b.WriteString("| target | version | command |\n|---|---|---|\n")
	for _, t := range f.targets {
		command := ""
		if t.Command != "" {
			command = "`" + t.Command + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", t.Name, t.Version, command)
	}
	for _, line := range f.left {
		fmt.Fprintf(&b, "\n%s\n", line)
	}
	return b.String()
}
