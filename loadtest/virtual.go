package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/peers"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// virtualSessions is the cost of virtual sessions next to that of passthrough, in CPU and
// memory, and what SDKs' protocol beside it costs the plain API: docs/virtual-sessions-cost.md.
func virtualSessions(ctx context.Context, args []string) error {
	o := options{}
	flags := flag.NewFlagSet("virtual", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin", "bin", "directory of sidecar and devcluster")
	flags.StringVar(&o.out, "out", "report/virtual", "directory of the tables")
	flags.IntVar(&o.repeats, "repeats", 5, "runs of each measurement; the medians count")
	flags.DurationVar(&o.duration, "duration", 3*time.Second, "of one run")
	flags.StringVar(&o.before, "before", "", "another sidecar `program`, of before there were virtual sessions: its passthrough is measured too")
	scenarios := flags.String("scenarios", "", "regular `expression` that names of scenarios must match")
	parts := flags.String("parts", "wire,plain,memory", "what is measured")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.repeats < 1 || o.duration < 100*time.Millisecond {
		return fmt.Errorf("arguments %q, repeats %d, duration %v: want none, at least 1, 100ms", flags.Args(), o.repeats, o.duration)
	}
	match, err := regexp.Compile(*scenarios)
	if err != nil {
		return err
	}
	var text strings.Builder
	for part := range strings.SplitSeq(*parts, ",") {
		switch part {
		case "wire":
			err = wireCost(ctx, o, match, &text)
		case "plain":
			err = plainCost(ctx, o, &text)
		case "memory":
			err = memoryCost(ctx, o, &text)
		default:
			err = fmt.Errorf("parts: %q; want wire, plain, memory", part)
		}
		if err != nil {
			return err
		}
	}
	fmt.Print(text.String())
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "virtual.md"), []byte(text.String()), 0o644)
}

// wireCost compares the modes in front of backends that cost little, so that the sidecar is busy.
func wireCost(ctx context.Context, o options, match *regexp.Regexp, out io.Writer) error {
	program := filepath.Join(o.bin, "sidecar")
	roomy := " -set pool.max=100 -set pool.max_per_node=100"
	modes := []string{"passthrough", "transaction", "session"}
	p := peers.Options{Log: os.Stderr, Matrix: peers.Virtual(), Scenarios: match, Repeats: o.repeats, Duration: o.duration, WarmUp: 500 * time.Millisecond, Conns: 1, Only: []string{}}
	for _, mode := range modes {
		p.Own = append(p.Own, program+" -set wire.mode="+mode+roomy)
	}
	if o.before != "" {
		modes = append(modes, "passthrough before")
		p.Own = append(p.Own, o.before)
	}
	for i := range modes {
		p.Only = append(p.Only, fmt.Sprintf("sidecar-%d", i+1))
	}
	defer debug.SetGCPercent(debug.SetGCPercent(peers.Garbage))
	r, err := peers.Run(ctx, p)
	if err != nil {
		return err
	}
	if err := r.Write(o.out); err != nil {
		return err
	}
	fmt.Fprintf(out, "CPU of the sidecar for a forwarded call, us: medians of %d interleaved runs of %v, and of the ratios and differences run by run, with 95 %% of where these medians are; %d cores, %s.\n\n", o.repeats, o.duration, runtime.NumCPU(), runtime.Version())
	fmt.Fprint(out, "| | mode | CPU | of passthrough | more |")
	if o.before != "" {
		fmt.Fprint(out, " of passthrough before | more |")
	}
	fmt.Fprintf(out, " p50 | p99 | calls/s |\n|---|---|--:%s|\n", strings.Repeat("|--:", 3+2*(len(modes)-2)))
	for _, s := range r.Scenarios {
		m := make([]*peers.Series, len(modes))
		for _, one := range r.Series {
			if i := slices.Index(p.Only, one.Target); i >= 0 && one.Scenario == s.Name {
				m[i] = one
			}
		}
		if i := slices.Index(m, nil); i >= 0 {
			return fmt.Errorf("%s: %s was not measured: %v", s.Name, modes[i], r.Left)
		}
		for i, mode := range modes {
			fmt.Fprintf(out, "| %s | %s | %.1f |", s.Name, mode, float64(m[i].Median.CPU)/1e3)
			for _, other := range []int{0, 3}[:len(modes)-2] {
				if i == other {
					fmt.Fprint(out, " | |")
					continue
				}
				fmt.Fprintf(out, " %s | %s |", paired(m[i], m[other], func(a, b float64) float64 { return a / b }), paired(m[i], m[other], func(a, b float64) float64 { return (a - b) / 1e3 }))
			}
			fmt.Fprintf(out, " %d | %d | %.0f |\n", m[i].Median.P50.Microseconds(), m[i].Median.P99.Microseconds(), m[i].Median.PerSecond)
		}
	}
	fmt.Fprintln(out)
	if n := r.Failures(); n > 0 {
		return fmt.Errorf("%d calls failed", n)
	}
	return nil
}

// paired is the median of what two series have to each other run by run, and between what it
// lies with 95 %: by the binomial distribution, as n/2 -+ sqrt(n)*1.96/2 in order of size.
func paired(a, b *peers.Series, f func(a, b float64) float64) string {
	n := min(len(a.Runs), len(b.Runs))
	all := make([]float64, n)
	for i := range all {
		all[i] = f(float64(a.Runs[i].CPU), float64(b.Runs[i].CPU))
	}
	slices.Sort(all)
	off := 0.98 * math.Sqrt(float64(n))
	least, most := max(0, int(float64(n)/2-off)), min(n-1, int(math.Ceil(float64(n)/2+off)))
	return fmt.Sprintf("%.2f (%.2f-%.2f)", all[n/2], all[least], all[most])
}

// plainCost compares the plain API with and without SDKs' protocol beside it.
func plainCost(ctx context.Context, o options, out io.Writer) error {
	l := lab.New(o.bin, o.repeats, o.duration)
	defer l.Stop()
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "The plain API over gRPC, %d runs of %v:\n\n", o.repeats, o.duration)
	for _, n := range []int{1, 16, 64} {
		c := lab.Case{Name: fmt.Sprint("c", n), Title: fmt.Sprint(n, " in flight"), Baseline: "wire.mode=off", Ratios: []string{lab.CPU}, Figures: []string{lab.PerSecond, lab.P50, lab.P99, lab.CPU}}
		for _, mode := range []string{"off", "passthrough"} {
			side, err := l.Sidecar(ctx, cluster.Endpoint(), "pool.min=50", "wire.mode="+mode)
			if err != nil {
				return err
			}
			defer l.End(side.Process)
			if err := fill(ctx, side.Client); err != nil {
				return err
			}
			read := lab.Call(overSidecar(side.Client))
			c.Variants = append(c.Variants, lab.Variant{Name: "wire.mode=" + mode, Under: []*lab.Process{side.Process}, Run: func(ctx context.Context, d time.Duration) (lab.Result, error) {
				return lab.Closed(ctx, n, d, read), nil
			}})
		}
		t, err := l.Compare(ctx, c)
		if err != nil {
			return err
		}
		fmt.Fprint(out, t.Markdown())
	}
	return nil
}

// memoryCost counts what is allocated for a forwarded call, and what virtual sessions at rest take.
func memoryCost(ctx context.Context, o options, out io.Writer) error {
	const inFlight, atRest = 16, 1000
	l := lab.New(o.bin, o.repeats, o.duration)
	defer l.Stop()
	cluster, err := l.Cluster(ctx, 3)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Allocations of the sidecar for a forwarded ExecuteQuery, %d in flight:\n\n| | objects | octets |\n|---|--:|--:|\n", inFlight)
	for _, mode := range []string{"passthrough", "transaction", "session"} {
		side, err := l.Sidecar(ctx, cluster.Endpoint(), "pool.min=16", "wire.mode="+mode, "admin.pprof=true")
		if err != nil {
			return err
		}
		if err := fill(ctx, side.Client); err != nil {
			return err
		}
		for _, implicit := range []bool{false, true} {
			if implicit && mode != "transaction" {
				continue
			}
			d, err := dialWire(ctx, side, inFlight, implicit)
			if err != nil {
				return err
			}
			lab.Closed(ctx, inFlight, l.WarmUp, d.read)
			before, err := readHeap(ctx, side.Admin)
			if err != nil {
				return err
			}
			r := lab.Closed(ctx, inFlight, o.duration, d.read)
			after, err := readHeap(ctx, side.Admin)
			if err == nil && r.Failed > 0 {
				err = errors.New(r.FirstFail)
			}
			if err != nil {
				return err
			}
			name := mode
			if implicit {
				name += ", no session"
			}
			fmt.Fprintf(out, "| %s | %.2f | %.0f |\n", name, float64(after.Mallocs-before.Mallocs)/float64(r.Calls), float64(after.TotalAlloc-before.TotalAlloc)/float64(r.Calls))
			d.close()
		}
		if mode != "transaction" {
			continue
		}
		before, err := stand.ReadUsage(side.Pid())
		if err != nil {
			return err
		}
		d, err := dialWire(ctx, side, atRest, false)
		if err != nil {
			return err
		}
		after, err := stand.ReadUsage(side.Pid())
		if err != nil {
			return err
		}
		defer fmt.Fprintf(out, "\n%d attached virtual sessions at rest: %.1f KiB of resident memory each.\n", atRest, float64(after.RSS-before.RSS)/atRest/1024)
		d.close()
	}
	return nil
}

// dialWire opens sessions through a sidecar, as an SDK would, on one connection.
func dialWire(ctx context.Context, side *lab.Sidecar, sessions int, implicit bool) (*direct, error) {
	ctx, cancel := context.WithCancel(ctx)
	d := &direct{sessions: make(chan directSession, sessions), cancel: cancel}
	client := Ydb_Query_V1.NewQueryServiceClient(side.Conn)
	for range sessions {
		if implicit {
			d.sessions <- directSession{client, ""}
		} else if err := d.open(ctx, client); err != nil {
			d.close()
			return nil, err
		}
	}
	return d, nil
}

// readHeap asks a sidecar for the counts of its allocations.
func readHeap(ctx context.Context, admin string) (m runtime.MemStats, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/debug/pprof/heap?debug=1", nil)
	if err != nil {
		return m, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return m, fmt.Errorf("read the heap: %w", err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		for name, into := range map[string]*uint64{"# Mallocs = ": &m.Mallocs, "# TotalAlloc = ": &m.TotalAlloc} {
			if value, ok := bytes.CutPrefix(lines.Bytes(), []byte(name)); ok {
				if err := json.Unmarshal(value, into); err != nil {
					return m, fmt.Errorf("read the heap: %w", err)
				}
			}
		}
	}
	if m.Mallocs == 0 {
		return m, errors.Join(fmt.Errorf("read the heap: %s", response.Status), lines.Err())
	}
	return m, nil
}
