// Package lab is the common frame of the experiments: it starts what they need
// as processes on loopback, runs the variants of an experiment in turn, reads
// what each process used, and writes the reports.
//
// What always holds: variants of a case take turns, and the turn changes from
// round to round; a figure is shown with the number of its runs and what it lies
// between; ratios are of runs of one round, never of two medians of different
// times; a failed call is shown and makes the exit code 1; every run is bounded
// in time, rate and calls under way; what was started is stopped.
package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// Size is how much an experiment measures.
type Size int

// The sizes: Smoke shows that it works and judges nothing, Short is for `make
// bench`, Full for the published reports.
const (
	Smoke Size = iota
	Short
	Full
)

func (s Size) String() string { return [...]string{"smoke", "short", "full"}[s] }

// Experiment is one question with its measurements.
type Experiment struct {
	Name      string // of the subcommand, and of the directory of its report
	Title     string
	Question  string // one paragraph: what is measured, how, and what it is for
	Published string // Markdown: figures that others published, and why ours differ
	Flags     func(*flag.FlagSet)
	Defaults  func(*Options) // sets, by the size, what the command line left open (0), where the frame's values do not fit; nil: they do
	Run       func(ctx context.Context, l *Lab) error
	Children  map[string]Child // by name
	Apart     bool             // left out of `loadtest all`
}

// Options are the flags that all experiments have.
type Options struct {
	Size       Size
	Bin        string        // directory of the built programs
	Sidecars   []string      // programs that take turns; by default the one of Bin
	Tools      string        // directory of what `make peers-deps` installs
	Out        string        // directory of the reports
	Rounds     int           // of each case at least
	MaxRounds  int           // and at most, while a claim is not decided
	Duration   time.Duration // of one run
	WarmUp     time.Duration // before the first run of each variant
	Limit      time.Duration // of the whole experiment
	MaxRate    int           // calls a second of an open loop at most
	Only       string        // regular expression of the cases to measure
	Arguments  []string      // as they were given
	Experiment string
}

// Lab is one run of one experiment.
type Lab struct {
	Options
	Log    io.Writer // progress
	Report *Report

	only      *regexp.Regexp // nil: all
	processes []*Process
	closers   []func()
}

// Main runs the experiment with its command line and writes its report. The
// error says which calls failed, if any did.
func Main(ctx context.Context, e Experiment, args []string) (err error) {
	o := Options{Arguments: args, Experiment: e.Name}
	flags := flag.NewFlagSet(e.Name, flag.ContinueOnError)
	size := flags.String("size", "short", "smoke, short or full")
	sidecars := flags.String("sidecar", "", "sidecar `programs` that take turns, separated by commas (OLD,NEW); by default the one of -bin")
	flags.StringVar(&o.Bin, "bin", "bin", "directory of sidecar and devcluster")
	flags.StringVar(&o.Tools, "tools", ".cache/peers", "directory of what make peers-deps installs")
	flags.StringVar(&o.Out, "out", "report", "directory of the reports; this one's is below it")
	flags.StringVar(&o.Only, "only", "", "regular `expression` that names of cases must match")
	flags.IntVar(&o.Rounds, "rounds", 0, "rounds of each case at least; 0: by the size")
	flags.IntVar(&o.MaxRounds, "max-rounds", 0, "rounds at most, while a claim is not decided; 0: by the size")
	flags.DurationVar(&o.Duration, "duration", 0, "of one run; 0: by the size")
	flags.DurationVar(&o.Limit, "limit", 0, "of the whole experiment; 0: by the size")
	flags.IntVar(&o.MaxRate, "max-rate", 20_000, "calls a second of an open loop at most")
	if e.Flags != nil {
		e.Flags(flags)
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := o.fill(flags.Args(), *size, *sidecars, e.Defaults); err != nil {
		return err
	}
	if e.Run == nil {
		return errors.New("the experiment has nothing to run")
	}
	only, err := regexp.Compile(o.Only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	l := &Lab{Options: o, Log: os.Stderr, Report: newReport(e, o), only: only}
	defer l.Stop()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Limit, fmt.Errorf("the experiment took longer than %v (-limit)", o.Limit))
	defer cancel()
	if err := e.Run(ctx, l); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return err
	}
	dir := filepath.Join(o.Out, e.Name)
	if err := l.Report.Write(dir); err != nil {
		return err
	}
	fmt.Printf("%s\nwritten to %s: report.md, report.html, summary.json, runs.txt, latencies.hlog\n", l.Report.Markdown(), dir)
	if n := l.Report.Failed(); n > 0 {
		err = fmt.Errorf("%d calls failed", n)
	}
	for _, fault := range l.Report.Faults {
		err = errors.Join(err, errors.New(fault))
	}
	return err
}

func (o *Options) fill(rest []string, size, sidecars string, defaults func(*Options)) error {
	at := map[string]Size{"smoke": Smoke, "short": Short, "full": Full}
	var known bool
	if o.Size, known = at[size]; !known || len(rest) > 0 {
		return fmt.Errorf("size %q, arguments %q: want smoke, short or full, and none", size, rest)
	}
	if defaults != nil {
		defaults(o)
	}
	byName := func(values ...time.Duration) time.Duration { return values[o.Size] }
	set := func(v *time.Duration, values ...time.Duration) {
		if *v == 0 {
			*v = byName(values...)
		}
	}
	set(&o.Duration, 200*time.Millisecond, time.Second, 2*time.Second)
	set(&o.WarmUp, 50*time.Millisecond, 300*time.Millisecond, 500*time.Millisecond)
	set(&o.Limit, 3*time.Minute, 10*time.Minute, 90*time.Minute)
	if o.Rounds == 0 {
		o.Rounds = [...]int{1, 3, 5}[o.Size]
	}
	if o.MaxRounds == 0 {
		o.MaxRounds = max(o.Rounds, [...]int{1, 3, 15}[o.Size])
	}
	if sidecars != "" {
		o.Sidecars = strings.Split(sidecars, ",")
	} else if o.Sidecars == nil {
		o.Sidecars = []string{filepath.Join(o.Bin, "sidecar")}
	}
	if o.Rounds < 1 || o.MaxRounds < o.Rounds || o.MaxRounds > 1000 || o.Duration < 50*time.Millisecond ||
		o.Duration > time.Hour || o.MaxRate < 1 || o.MaxRate > 1_000_000 || len(
		o.Sidecars,
	) > 4 {
		return fmt.Errorf(
			"rounds %d to %d, duration %v, max-rate %d, %d sidecars: want 1 to 1000 in order, 50ms to 1h, 1 to 1000000, at most 4",
			o.Rounds, o.MaxRounds, o.Duration, o.MaxRate, len(o.Sidecars),
		)
	}
	return nil
}

// Progress writes a line for who watches.
func (l *Lab) Progress(format string, args ...any) {
	fmt.Fprintf(l.Log, time.Now().Format(time.TimeOnly)+" "+l.Experiment+": "+format+"\n", args...)
}

// At returns the value for the size of this run.
func At[T any](l *Lab, smoke, short, full T) T { return [...]T{smoke, short, full}[l.Size] }

// Defer has f called by Stop, before the processes are stopped.
func (l *Lab) Defer(f func()) { l.closers = append(l.closers, f) }

// Stop ends everything, last started first. Main calls it.
func (l *Lab) Stop() {
	for i := len(l.closers) - 1; i >= 0; i-- {
		l.closers[i]()
	}
	l.closers = nil
	for i := len(l.processes) - 1; i >= 0; i-- {
		l.End(l.processes[i])
	}
	l.processes = nil
}

// Process is a program that was started. Its Role is under which its CPU time is reported:
// sidecar, cluster, a peer's name.
type Process = stand.Process

// Start starts a program and waits for its ready line. What it used is reported
// under its role in every run made while it is there.
func (l *Lab) Start(ctx context.Context, role string, spec stand.Spec) (*Process, error) {
	p, err := stand.Launch(ctx, spec)
	return l.note(role, p, err)
}

// Spawn is Start for a program without a ready line.
func (l *Lab) Spawn(role string, spec stand.Spec) (*Process, error) {
	p, err := stand.Start(spec)
	return l.note(role, p, err)
}

// note makes a process that was started one of the experiment's.
func (l *Lab) note(role string, p *Process, err error) (*Process, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", role, err)
	}
	p.Role = role
	l.processes = append(l.processes, p)
	return p, nil
}

// End stops one process before the others. Whatever its code: the measurements are over.
func (l *Lab) End(p *Process) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, _ = p.Stop(ctx)
}
