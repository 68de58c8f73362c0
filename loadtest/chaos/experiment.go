package chaos

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// command is what the command line says.
type command struct {
	options Options
	parts   []string // directories whose reports are taken over
	seeds   int
	first   uint64
	prove   bool
}

// Experiment runs the rows with each seed: docs/dev/chaos.md.
func Experiment() lab.Experiment {
	var c command
	return lab.Experiment{
		Name:  "chaos",
		Title: "What was broken, and what held",
		Question: `Nodes and sidecars are broken under load, and the books are kept: what callers were told must be what is in
the database. The cases that -only matches are rows: ` + strings.Join(Rows(), ", ") + `. A small run (-size smoke) has a low
rate and short windows; goals that depend on the machine's speed are shown there and not judged.`,
		Apart: true,
		Flags: func(flags *flag.FlagSet) {
			flags.BoolVar(&c.options.Apps, "apps", true, "let the Python and Node apps work as well")
			flags.StringVar(&c.options.Break, "break", "",
				"switch a mechanism off (health, drain, affinity, shutdown, forward): the run must then fail")
			flags.Func("set", "a setting of the sidecar, as `name=value`; may be repeated", func(text string) error {
				c.options.Settings = append(c.options.Settings, text)
				return nil
			})
			flags.Func("take", "take over the runs of the report in `directory`; may be repeated", func(dir string) error {
				c.parts = append(c.parts, dir)
				return nil
			})
			flags.IntVar(&c.seeds, "seeds", 1, "how many seeds; the worst of each row is shown")
			flags.Uint64Var(&c.first, "seed", 1, "the first seed")
			flags.BoolVar(&c.prove, "prove", false, "at the end switch mechanisms off, one after the other, and see that it is found")
		},
		Defaults: func(o *lab.Options) {
			if o.Duration == 0 {
				o.Duration = time.Minute // of the random mix
			}
			if o.Limit == 0 {
				o.Limit = 12 * time.Hour
			}
		},
		Run: c.run,
	}
}

func (c *command) run(ctx context.Context, l *lab.Lab) error {
	if c.seeds < 1 {
		return fmt.Errorf("seeds = %d; must be at least 1", c.seeds)
	}
	out := filepath.Join(l.Out, "chaos")
	o := c.options
	o.Bin, o.Quick, o.Duration, o.Log, o.Logs = l.Bin, l.Size == lab.Smoke, l.Duration, os.Stderr, out
	rows := slices.DeleteFunc(slices.Clone(Rows()), func(name string) bool { return !l.Wanted(name) })
	if len(rows) == 0 {
		return fmt.Errorf("-only matches no row; there are %s", strings.Join(Rows(), ", "))
	}
	r := NewReport(o)
	for _, dir := range c.parts {
		if err := r.Take(dir); err != nil {
			return err
		}
	}
	for i := range uint64(c.seeds) {
		for _, name := range rows {
			if r.Has(name, c.first+i) {
				continue
			}
			result, err := Run(ctx, o, name, c.first+i)
			if err == nil && result.Disturbed() {
				l.Progress("again: other programs were busy")
				result, err = Run(ctx, o, name, c.first+i)
			}
			if ctx.Err() != nil {
				return err
			}
			r.Add(name, c.first+i, result, err)
			if err := r.Write(out); err != nil { // so far: a long run that is cut short leaves what it has
				return err
			}
		}
	}
	if c.prove {
		if err := r.Prove(ctx, o); err != nil {
			return err
		}
		if err := r.Write(out); err != nil {
			return err
		}
	}
	for _, s := range r.sections() {
		l.Report.Add(s)
	}
	if n := r.Failed(); n > 0 {
		l.Report.Fault("%d runs missed a goal", n)
	}
	return nil
}
