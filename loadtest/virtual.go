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
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"

	"github.com/ydb-sidecar/sidecar/internal/proc"
	"github.com/ydb-sidecar/sidecar/loadtest/peers"
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
	for i, mode := range modes {
		p.Own = append(p.Own, program+" -set wire.mode="+mode+roomy)
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
	fmt.Fprintf(out, "CPU of the sidecar for a forwarded call; medians of %d interleaved runs of %v; %d cores, %s.\n\n", o.repeats, o.duration, runtime.NumCPU(), runtime.Version())
	fmt.Fprintf(out, "| | %s, us | %s, us | ratio | more, us | %s, us | ratio | p50, us | p99, us | calls/s |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n", modes[0], modes[1], modes[2])
	for _, s := range r.Scenarios {
		var m [3]*peers.Series
		for _, one := range r.Series {
			for i := range m {
				if one.Scenario == s.Name && one.Target == p.Only[i] {
					m[i] = one
				}
			}
		}
		if m[0] == nil || m[1] == nil || m[2] == nil {
			return fmt.Errorf("%s: a mode was not measured: %v", s.Name, r.Left)
		}
		cpu := func(i int) string {
			one := m[i]
			least, most := one.Runs[0].CPU, one.Runs[0].CPU
			for _, run := range one.Runs {
				least, most = min(least, run.CPU), max(most, run.CPU)
			}
			us := func(d time.Duration) float64 { return float64(d) / 1e3 }
			return fmt.Sprintf("%.1f (%.1f-%.1f)", us(one.Median.CPU), us(least), us(most))
		}
		ratio := func(i int) float64 { return float64(m[i].Median.CPU) / float64(m[0].Median.CPU) }
		fmt.Fprintf(out, "| %s | %s | %s | %.2f | %.1f | %s | %.2f | %d, %d | %d, %d | %.0f, %.0f |\n", s.Name, cpu(0), cpu(1), ratio(1), float64(m[1].Median.CPU-m[0].Median.CPU)/1e3, cpu(2), ratio(2),
			m[0].Median.P50.Microseconds(), m[1].Median.P50.Microseconds(), m[0].Median.P99.Microseconds(), m[1].Median.P99.Microseconds(), m[0].Median.PerSecond, m[1].Median.PerSecond)
	}
	fmt.Fprintln(out)
	if n := r.Failures(); n > 0 {
		return fmt.Errorf("%d calls failed", n)
	}
	return nil
}

// plainCost compares the plain API with and without SDKs' protocol beside it.
func plainCost(ctx context.Context, o options, out io.Writer) error {
	s, err := startStack(ctx, o.bin)
	if err != nil {
		return err
	}
	defer s.stop()
	var variants []variant
	for _, n := range []int{1, 16, 64} {
		for _, mode := range []string{"off", "passthrough"} {
			side, err := s.sidecar(ctx, "pool.min=50", "wire.mode="+mode)
			if err != nil {
				return err
			}
			if err := fill(ctx, side.client); err != nil {
				return err
			}
			variants = append(variants, variant{fmt.Sprintf("%d in flight, wire.mode=%s", n, mode), side.process.Pid(), func(ctx context.Context, d time.Duration) result {
				return closedLoop(ctx, n, d, overSidecar(side.client))
			}})
		}
	}
	all, err := measure(ctx, s, o, variants)
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "The plain API over gRPC, %d runs of %v:\n\n", o.repeats, o.duration)
	table(&text, all)
	for i := 0; i+1 < len(all); i += 2 {
		fmt.Fprintf(&text, "\n%s: %.3f of the CPU without.", all[i+1].Name, float64(all[i+1].Median.CPU)/float64(all[i].Median.CPU))
	}
	fmt.Fprintln(&text)
	_, err = io.WriteString(out, text.String()+"\n")
	return err
}

// memoryCost counts what is allocated for a forwarded call, and what virtual sessions at rest take.
func memoryCost(ctx context.Context, o options, out io.Writer) error {
	const inFlight, atRest = 16, 1000
	s, err := startStack(ctx, o.bin)
	if err != nil {
		return err
	}
	defer s.stop()
	fmt.Fprintf(out, "Allocations of the sidecar for a forwarded ExecuteQuery, %d in flight:\n\n| | objects | octets |\n|---|--:|--:|\n", inFlight)
	for _, mode := range []string{"passthrough", "transaction", "session"} {
		side, err := s.sidecar(ctx, "pool.min=16", "wire.mode="+mode, "admin.pprof=true")
		if err != nil {
			return err
		}
		if err := fill(ctx, side.client); err != nil {
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
			closedLoop(ctx, inFlight, warmUp, d.read)
			before, err := readHeap(ctx, side.admin)
			if err != nil {
				return err
			}
			r := closedLoop(ctx, inFlight, o.duration, d.read)
			after, err := readHeap(ctx, side.admin)
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
		before, err := proc.ReadUsage(side.process.Pid())
		if err != nil {
			return err
		}
		d, err := dialWire(ctx, side, atRest, false)
		if err != nil {
			return err
		}
		after, err := proc.ReadUsage(side.process.Pid())
		if err != nil {
			return err
		}
		defer fmt.Fprintf(out, "\n%d attached virtual sessions at rest: %.1f KiB of resident memory each.\n", atRest, float64(after.RSS-before.RSS)/atRest/1024)
		d.close()
	}
	return nil
}

// dialWire opens sessions through a sidecar, as an SDK would, on one connection.
func dialWire(ctx context.Context, side *sidecar, sessions int, implicit bool) (*direct, error) {
	ctx, cancel := context.WithCancel(ctx)
	d := &direct{sessions: make(chan directSession, sessions), cancel: cancel}
	client := Ydb_Query_V1.NewQueryServiceClient(side.conn)
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
