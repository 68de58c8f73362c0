package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/sim"
)

// simulate plays many sidecars with an adaptive limit on a weak cluster, and judges what
// comes of it: docs/adaptive.md.
func simulate(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("sim", flag.ContinueOnError)
	sidecars := flags.Int("sidecars", 10_000, "in the big run")
	nodes := flags.Int("nodes", 1000, "in the big run")
	seed := flags.Uint64("seed", 1, "of all that is random")
	out := flags.String("out", "docs/adaptive.md", "the report; pictures go into a directory of that name without .md")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *nodes < 3 || *sidecars < 10**nodes/4 || *sidecars > 100_000 {
		return fmt.Errorf("arguments %q, %d sidecars, %d nodes: want none, at least 3 nodes, and 2.5 to 100000 sidecars for each", flags.Args(), *sidecars, *nodes)
	}
	c := sim.Default(*sidecars, *nodes)
	c.Seed = *seed
	r := sim.Report{Command: strings.TrimSpace("loadtest sim " + strings.Join(args, " "))}
	fmt.Printf("%d sidecars on %d nodes; this takes a minute or two\n", c.Sidecars, c.Nodes)
	began := time.Now()
	r.World, r.Verdicts = sim.Course(c)
	fmt.Println("it took", time.Since(began).Round(time.Second))
	for _, v := range r.Verdicts {
		fmt.Println(v)
	}
	for _, o := range sim.Others(*seed) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fmt.Println(o.Name)
		_, o.Verdicts = sim.Course(o.Config)
		r.Others = append(r.Others, o)
	}
	if err := r.Write(*out); err != nil {
		return err
	}
	fmt.Println("written to", *out)
	if bad := r.Bad(); len(bad) > 0 {
		return fmt.Errorf("%d of %d judgements failed: %v", len(bad), len(r.Verdicts), bad)
	}
	return nil
}
