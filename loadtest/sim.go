package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ydb-sidecar/sidecar/loadtest/sim"
)

// simulate plays many sidecars with an adaptive limit on a weak cluster, and judges what
// comes of it: docs/adaptive.md.
func simulate(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("sim", flag.ContinueOnError)
	sidecars := flags.Int("sidecars", 10_000, "in the big run")
	nodes := flags.Int("nodes", 1000, "in the big run")
	seed := flags.Uint64("seed", 1, "of all that is random")
	bigs := flags.Int("big-seeds", 2, "how many further seeds the big run is played with")
	smalls := flags.Int("seeds", 8, "how many further seeds a run of a tenth of the size is played with")
	out := flags.String("out", "docs/adaptive.md", "the report; pictures go into a directory of that name without .md")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *nodes < 3 || *sidecars < 10**nodes/4 || *sidecars > 100_000 || *bigs < 0 || *smalls < 0 {
		return fmt.Errorf("arguments %q, %d sidecars, %d nodes, %d and %d seeds: want none, at least 3 nodes, 2.5 to 100000 sidecars for each, and no less than 0", flags.Args(), *sidecars, *nodes, *bigs, *smalls)
	}
	c := sim.Default(*sidecars, *nodes)
	c.Seed = *seed
	r := sim.Report{Command: strings.TrimSpace("loadtest sim " + strings.Join(args, " ")), Others: sim.Others(*seed), Seeds: sim.Seeds(c, *bigs, *smalls)}
	fmt.Printf("%d sidecars on %d nodes, and %d other courses; this takes some minutes\n", c.Sidecars, c.Nodes, len(r.Others)+len(r.Seeds))
	began := time.Now()
	var courses errgroup.Group
	courses.SetLimit(runtime.GOMAXPROCS(0))
	play := func(o *sim.Other) {
		courses.Go(func() error {
			if ctx.Err() == nil {
				_, o.Verdicts = sim.Course(o.Config)
				fmt.Printf("%s, seed %d: after %v\n", o.Name, o.Config.Seed, time.Since(began).Round(time.Second))
			}
			return ctx.Err()
		})
	}
	courses.Go(func() error { r.World, r.Verdicts = sim.Course(c); return ctx.Err() })
	for i := range r.Seeds {
		play(&r.Seeds[i])
	}
	for i := range r.Others {
		play(&r.Others[i])
	}
	if err := courses.Wait(); err != nil {
		return err
	}
	fmt.Println("it took", time.Since(began).Round(time.Second))
	for _, v := range r.Verdicts {
		fmt.Println(v)
	}
	if err := r.Write(*out); err != nil {
		return err
	}
	fmt.Println("written to", *out)
	if bad := r.Bad(); len(bad) > 0 {
		return fmt.Errorf("%d judgements failed: %v", len(bad), bad)
	}
	return nil
}
