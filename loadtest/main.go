// Command loadtest measures the sidecar from outside, over the wire: it starts
// a development cluster and sidecars as processes on free ports, loads them,
// reads their CPU time and memory from the kernel and the nodes' own counters
// of forwarded calls, and writes a summary as JSON and as a Markdown table.
//
//	loadtest NAME           one experiment: docs/dev/benchmarks has the list, or call it without a name
//	loadtest all            those that are not apart, one after the other
//
// Everything on one machine shares its cores, so a figure means something only
// next to the others of the same run: all variants are interleaved, and
// medians are shown with what they lie between. A run in which a call failed
// is shown as such and makes the exit code 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/ydb-sidecar/sidecar/loadtest/acquire"
	"github.com/ydb-sidecar/sidecar/loadtest/affinity"
	"github.com/ydb-sidecar/sidecar/loadtest/chaos"
	"github.com/ydb-sidecar/sidecar/loadtest/churn"
	"github.com/ydb-sidecar/sidecar/loadtest/fleet"
	"github.com/ydb-sidecar/sidecar/loadtest/hostile"
	"github.com/ydb-sidecar/sidecar/loadtest/ingest"
	"github.com/ydb-sidecar/sidecar/loadtest/knee"
	"github.com/ydb-sidecar/sidecar/loadtest/kv"
	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/overhead"
	"github.com/ydb-sidecar/sidecar/loadtest/overload"
	"github.com/ydb-sidecar/sidecar/loadtest/peers"
	"github.com/ydb-sidecar/sidecar/loadtest/poolsize"
	"github.com/ydb-sidecar/sidecar/loadtest/read"
	"github.com/ydb-sidecar/sidecar/loadtest/sdks"
	"github.com/ydb-sidecar/sidecar/loadtest/shares"
	"github.com/ydb-sidecar/sidecar/loadtest/sim"
	"github.com/ydb-sidecar/sidecar/loadtest/soak"
	"github.com/ydb-sidecar/sidecar/loadtest/stock"
	"github.com/ydb-sidecar/sidecar/loadtest/xds"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "loadtest:", err)
		os.Exit(1)
	}
}

// experiments are those in the common frame, in the order of `all`.
var experiments = []lab.Experiment{
	acquire.Experiment(),
	overhead.Experiment,
	affinity.Experiment,
	read.One, read.Many, read.Tasks,
	poolsize.Experiment,
	fleet.Experiment(),
	churn.Experiment,
	soak.Experiment(),
	ingest.Experiment,
	stock.Experiment,
	sdks.Experiment,
	knee.Experiment(),
	shares.Experiment,
	kv.Experiment,
	kv.Entity(),
	hostile.Experiment(),
	peers.Experiment(),
	overload.Experiment(),
	sim.Experiment(),
	chaos.Experiment(),
	xds.Experiment(),
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		if args[0] == lab.ChildCommand {
			return lab.RunChild(ctx, experiments, args[1:])
		}
		if args[0] == "all" {
			return allExperiments(ctx, args[1:])
		}
		for _, e := range experiments {
			if e.Name == args[0] {
				return lab.Main(ctx, e, args[1:])
			}
		}
	}
	var names []string
	for _, e := range experiments {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return fmt.Errorf("want: loadtest all|%s [flags]; -h behind it shows its flags", strings.Join(names, "|"))
}

// allExperiments runs every experiment with the same flags, one after the other, and goes on when one fails.
func allExperiments(ctx context.Context, args []string) error {
	var errs []error
	for _, e := range experiments {
		if e.Apart {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		if err := lab.Main(ctx, e, args); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.Name, err))
		}
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}
