package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/peers"
)

// comparePeers runs the benchmark of internal/h2 next to other proxies. Three more
// commands are for itself: the backends, that of knee, and the proxy made of grpc-go.
func comparePeers(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "backends":
		return peers.Backends(ctx, os.Stdout, args[1])
	case len(args) == 2 && args[0] == "paced": // the backend of knee
		service, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		return peers.Paced(ctx, os.Stdout, service)
	case len(args) == 3 && args[0] == "forward":
		return peers.Forward(ctx, args[1], strings.Split(args[2], ","))
	}
	o := peers.Options{Log: os.Stderr, Faces: true}
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	own := flags.String("sidecar", "bin/sidecar,bin/h2forward", "command `lines` of the project's own data paths, separated by commas: [NAME=VALUE...] program [argument...]")
	only := flags.String("only", "", "names of the targets, separated by commas; all by default")
	scenarios := flags.String("scenarios", "", "regular `expression` that names of scenarios must match")
	flags.StringVar(&o.Tools, "tools", ".cache/peers", "directory of what make peers-deps installs")
	flags.IntVar(&o.Repeats, "repeats", 3, "runs of each measurement; the medians count")
	flags.DurationVar(&o.Duration, "duration", 2*time.Second, "of one run")
	flags.DurationVar(&o.WarmUp, "warm", 300*time.Millisecond, "warm-up before each run")
	flags.IntVar(&o.Conns, "conns", 1, "connections of the client to a proxy")
	out := flags.String("out", "report/peers", "directory of peers.json and peers.md")
	quick := flags.Bool("quick", false, "two scenarios, one run of 1 s each, unless other flags say otherwise")
	if err := flags.Parse(args); err != nil {
		return err
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if *quick {
		if !given["repeats"] {
			o.Repeats = 1
		}
		if !given["duration"] {
			o.Duration = time.Second
		}
		if !given["scenarios"] {
			*scenarios = "^(unary100|stream500)-c16$"
		}
	}
	if flags.NArg() > 0 || o.Repeats < 1 || o.Duration < 50*time.Millisecond || o.Duration > time.Minute || o.WarmUp < 0 || o.WarmUp > time.Minute || o.Conns < 1 || o.Conns > 64 {
		return fmt.Errorf("arguments %q, repeats %d, duration %v, warm %v, conns %d: want none, at least 1, 50ms to 1m, at most 1m, 1 to 64",
			flags.Args(), o.Repeats, o.Duration, o.WarmUp, o.Conns)
	}
	var err error
	if o.Scenarios, err = regexp.Compile(*scenarios); err != nil {
		return err
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	if *own != "" {
		o.Own = strings.Split(*own, ",")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(peers.Garbage))
	report, err := peers.Run(ctx, o)
	if err != nil {
		return err
	}
	fmt.Print(report.Markdown())
	if err := report.Write(*out); err != nil {
		return err
	}
	fmt.Printf("\nwritten to %s\n", *out)
	if n := report.Failures(); n > 0 {
		return errors.New(fmt.Sprint(n, " calls failed"))
	}
	return nil
}
