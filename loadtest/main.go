// Command loadtest measures the sidecar from outside, over the wire: it starts
// a development cluster and sidecars as processes on free ports, loads them,
// reads their CPU time and memory from the kernel and the nodes' own counters
// of forwarded calls, and writes a summary as JSON and as a Markdown table.
//
//	loadtest bench          under three minutes
//	loadtest bench -long    longer runs, more of them
//	loadtest chaos          breaks nodes and sidecars under load and keeps the books: docs/chaos.md
//	loadtest overload       more than can be done, and an app that floods another: docs/overload.md
//	loadtest peers          what the data path costs next to HAProxy, Envoy and others
//	loadtest sim            plays thousands of sidecars with an adaptive limit on a weak cluster: docs/adaptive.md
//	loadtest kv             the key-value face next to the same work by statements
//	loadtest virtual        what virtual sessions cost next to passthrough: docs/virtual-sessions-cost.md
//	loadtest ingest         streams of rows next to the other ways to write: docs/ingest.md
//	loadtest xds            how fast changes of nodes reach clients of xDS: docs/decisions/0020-xds.md
//	loadtest ydbjs          a client without a pool, directly and through the sidecar
//
// Everything on one machine shares its cores, so a figure means something only
// next to the others of the same run: all variants are interleaved, and
// medians of repeats are shown with their range. A run in which a call failed
// is shown as such and makes the exit code 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// options are the flags of bench.
type options struct {
	bin      string        // directory of the built programs
	before   string        // virtual: another sidecar
	out      string        // directory of the summary
	repeats  int           // of each measurement; the median counts
	duration time.Duration // of one run
	rate     int           // calls a second of the open loops
	long     bool
	profile  bool // also write the sidecar's CPU profile with 64 calls in flight
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "loadtest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "chaos" {
		return breakThings(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == "peers" {
		return comparePeers(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == "sim" {
		return simulate(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == "virtual" {
		return virtualSessions(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == "ydbjs" {
		return poolless(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == "kv" {
		return keyValue(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == "overload" {
		return overload(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == "xds" {
		return publishXDS(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == "ingest" {
		return compareIngest(ctx, args[1:])
	}
	if len(args) == 0 || args[0] != "bench" {
		return errors.New("want: loadtest bench|chaos|ingest|kv|overload|peers|sim|virtual|xds|ydbjs [flags]")
	}
	o := options{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin", "bin", "directory of sidecar and devcluster")
	flags.StringVar(&o.out, "out", "report", "directory of bench.json and bench.md")
	flags.IntVar(&o.repeats, "repeats", 3, "runs of each measurement; the median counts")
	flags.DurationVar(&o.duration, "duration", 3*time.Second, "of one run")
	flags.IntVar(&o.rate, "rate", 500, "calls a second of the open loops")
	flags.BoolVar(&o.long, "long", false, "5 repeats of 10 s")
	flags.BoolVar(&o.profile, "profile", false, "also write cpu.pprof: the sidecar with 64 calls in flight")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if o.long {
		o.repeats, o.duration = 5, 10*time.Second
	}
	if o.repeats < 1 || o.duration < 100*time.Millisecond || o.rate < 1 {
		return fmt.Errorf("repeats %d, duration %v, rate %d: want at least 1, 100ms, 1", o.repeats, o.duration, o.rate)
	}
	report, err := bench(ctx, o)
	if err != nil {
		return err
	}
	if err := report.write(o.out); err != nil {
		return err
	}
	fmt.Print(report.markdown())
	fmt.Printf("\nwritten to %s and bench.md\n", filepath.Join(o.out, "bench.json"))
	if n := report.failures(); n > 0 {
		return fmt.Errorf("%d calls failed", n)
	}
	return nil
}
