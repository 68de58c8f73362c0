package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/chaos"
)

// breakThings runs the rows of proof/chaos with each seed, writes the report and
// fails when a goal was missed.
func breakThings(ctx context.Context, args []string) error {
	o := chaos.Options{Log: os.Stderr}
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.StringVar(&o.Bin, "bin", "bin", "directory of sidecar and devcluster")
	flags.BoolVar(&o.Quick, "quick", false, "a low rate and short windows; goals that depend on the machine's speed are shown and not judged")
	flags.BoolVar(&o.Apps, "apps", true, "let the Python and Node apps work as well")
	flags.StringVar(&o.Break, "break", "", "switch a mechanism off (health, drain, affinity, shutdown, forward): the run must then fail")
	flags.DurationVar(&o.Duration, "duration", time.Minute, "of the random mix")
	flags.Func("set", "a setting of the sidecar, as `name=value`; may be repeated", func(text string) error {
		o.Settings = append(o.Settings, text)
		return nil
	})
	var parts []string
	flags.Func("take", "take over the runs of the report in `directory`; may be repeated", func(dir string) error {
		parts = append(parts, dir)
		return nil
	})
	out := flags.String("out", "report/chaos", "directory of report.json, report.svg and report.md, and of the logs of runs that missed a goal")
	seeds := flags.Int("seeds", 1, "how many seeds; the worst of each row is shown")
	first := flags.Uint64("seed", 1, "the first seed")
	prove := flags.Bool("prove", false, "at the end switch mechanisms off, one after the other, and see that it is found")
	only := flags.String("only", "", "rows, separated by commas; all: "+strings.Join(chaos.Rows(), ","))
	if err := flags.Parse(args); err != nil {
		return err
	}
	rows := chaos.Rows()
	if *only != "" {
		rows = strings.Split(*only, ",")
	}
	for _, name := range rows {
		if !slices.Contains(chaos.Rows(), name) {
			return fmt.Errorf("there is no row %q; there are %s", name, strings.Join(chaos.Rows(), ", "))
		}
	}
	o.Logs = *out
	if *seeds < 1 {
		return fmt.Errorf("seeds = %d; must be at least 1", *seeds)
	}
	r := chaos.NewReport(o)
	for _, dir := range parts {
		if err := r.Take(dir); err != nil {
			return err
		}
	}
	for i := range uint64(*seeds) {
		for _, name := range rows {
			if r.Has(name, *first+i) {
				continue
			}
			result, err := chaos.Run(ctx, o, name, *first+i)
			if err == nil && result.Disturbed() {
				fmt.Fprintln(os.Stderr, "again: other programs were busy")
				result, err = chaos.Run(ctx, o, name, *first+i)
			}
			if ctx.Err() != nil {
				return err
			}
			r.Add(name, *first+i, result, err)
			if err := r.Write(*out); err != nil { // so far: a long run that is cut short leaves what it has
				return err
			}
		}
	}
	if *prove {
		if err := r.Prove(ctx, o); err != nil {
			return err
		}
		if err := r.Write(*out); err != nil {
			return err
		}
	}
	fmt.Print(r.Markdown())
	fmt.Printf("\nwritten to %s\n", *out)
	if n := r.Failed(); n > 0 {
		return fmt.Errorf("%d runs missed a goal", n)
	}
	return nil
}
