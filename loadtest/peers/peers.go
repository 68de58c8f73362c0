// Package peers measures what a proxy spends to forward calls of YDB's protocol: the
// sidecar's data path next to HAProxy, Envoy, nginx, a forwarder made of grpc-go and
// no proxy at all, in one run on one machine; and what the sidecar's plain API spends on
// the same statements.
//
// It owns the three backends, which answer as nodes would, the load, and every
// process that it starts: none is left when Run has returned. What always holds: all
// targets get the same calls, one run each in turn, in an order that changes with the
// repetition; every answer is compared octet for octet with what the node that sent
// it must answer (of the plain API row for row, and answers of many rows are decoded and
// counted), and from targets that route by session id it must come from the owner. The main figure is the CPU time of the proxy's processes for each call,
// which survives a noisy machine better than rates and latencies do.
package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// Options say what Run measures.
type Options struct {
	Self      string         // the program that has the commands Backends and Forward; "" means this one
	Own       []string       // command lines of data paths of the project's: [NAME=VALUE...] program [argument...]
	Faces     bool           // measure the plain API of those too, over gRPC and HTTP
	Tools     string         // directory of what `make peers-deps` installs
	Only      []string       // names of the targets to measure; nil means all
	Matrix    []Scenario     // nil means Scenarios()
	Scenarios *regexp.Regexp // names of the scenarios to measure; nil means all
	Repeats   int            // of each measurement; the medians count
	Duration  time.Duration  // of one run
	WarmUp    time.Duration  // before it
	Conns     int            // connections of the client to a proxy; to each backend if there is none
	Log       io.Writer      // progress
}

// Scenario is one kind of load. InFlight calls are under way all the time or, if
// Rate is not 0, Rate calls begin each second.
type Scenario struct {
	Name     string `json:"name"`
	Stream   bool   `json:"stream"`         // ExecuteQuery, else ExecuteDataQuery
	Size     int    `json:"size"`           // octets of payload in each part of the answer, or of the name in each of its rows
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
			all = append(all, Scenario{Name: fmt.Sprintf("%s-c%d", kind.name, n), Stream: kind.stream, Size: kind.size, Parts: 1, InFlight: n})
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
			all = append(all, Scenario{Name: fmt.Sprintf("%s-c%d", kind.name, n), Stream: kind.stream, Implicit: kind.implicit, Size: 100, Parts: 1, InFlight: n})
		}
	}
	return all
}

// quiet is how many cores other programs may use during a run; with more the run is
// repeated, once, and the calmer of the two counts.
const quiet = 0.2

// Run measures every target in every scenario.
func Run(ctx context.Context, o Options) (*Report, error) {
	matrix := slices.Clone(o.Matrix)
	if matrix == nil {
		matrix = Scenarios()
	}
	scenarios := slices.DeleteFunc(matrix, func(s Scenario) bool { return o.Scenarios != nil && !o.Scenarios.MatchString(s.Name) })
	if len(scenarios) == 0 {
		return nil, fmt.Errorf("no scenario matches %v", o.Scenarios)
	}
	if o.Self == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		o.Self = self
	}
	dir, err := os.MkdirTemp("", "peers")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	f := &field{options: o, dir: dir}
	defer f.stop()
	var where []sides
	for _, s := range scenarios {
		if !slices.Contains(where, s.TLS) {
			where = append(where, s.TLS)
		}
	}
	if err := f.start(ctx, where); err != nil {
		return nil, err
	}
	r := newReport(f, scenarios)
	for repeat := range o.Repeats {
		for _, s := range scenarios {
			for _, i := range lab.Order(len(f.targets), repeat) {
				t := f.targets[i]
				if t.at(s) == nil {
					continue
				}
				one, err := f.calm(ctx, t, s)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", t.Name, s.Name, err)
				}
				r.add(s, t, one)
			}
			fmt.Fprintf(o.Log, "%d of %d: %s\n", repeat+1, o.Repeats, s.Name)
		}
	}
	r.summarize()
	return r, nil
}

// calm makes a run, and one more if other programs disturbed it.
func (f *field) calm(ctx context.Context, t *target, s Scenario) (Measured, error) {
	one, err := f.measure(ctx, t, s)
	if err != nil || one.Others <= quiet {
		return one, err
	}
	again, err := f.measure(ctx, t, s)
	return calmer(one, again), err
}

// calmer returns the run that counts: one in which calls failed always does.
func calmer(one, again Measured) Measured {
	if one.Failed == 0 && (again.Failed > 0 || again.Others < one.Others) {
		one = again
	}
	one.Again = true
	return one
}

// Write writes the report and its tables into a directory.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	data, err := r.json()
	return errors.Join(err,
		os.WriteFile(filepath.Join(dir, "peers.json"), data, 0o644),
		os.WriteFile(filepath.Join(dir, "peers.md"), []byte(r.Markdown()), 0o644))
}
