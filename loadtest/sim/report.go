package sim

import (
	"context"
	"flag"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// options are the flags of the experiment.
type options struct {
	sidecars, nodes, bigs, smalls int
	seed                          uint64
}

// Experiment returns the experiment: thousands of sidecars with an adaptive limit on a weak cluster, and what is
// judged of it: docs/dev/adaptive.md.
func Experiment() lab.Experiment {
	var o options
	return lab.Experiment{
		Name:  "sim",
		Title: "The adaptive limit, simulated",
		Question: `Sidecars with pool.adaptive play on a cluster in a time of its own, without a socket: the laws are those of the product (internal/adaptive), the nodes and callers are a model (loadtest/sim). The same seed gives the same course.
How even and how good is what they get? Nothing is measured: -rounds, -duration and the like change nothing.`,
		Apart: true,
		Flags: func(flags *flag.FlagSet) {
			flags.IntVar(&o.sidecars, "sidecars", 0, "in the big run; 0: by the size, 10000 in a full one")
			flags.IntVar(&o.nodes, "nodes", 0, "in the big run; 0: by the size, 1000 in a full one")
			flags.Uint64Var(&o.seed, "seed", 1, "of all that is random")
			flags.IntVar(&o.bigs, "big-seeds", 2, "how many further seeds the big run is played with, in a full one")
			flags.IntVar(&o.smalls, "seeds", 8, "how many further seeds a run of a tenth of the size is played with, in a full one")
		},
		Run: o.run,
	}
}

func (o *options) run(ctx context.Context, l *lab.Lab) error {
	if o.sidecars == 0 {
		o.sidecars = lab.At(l, 300, 1000, 10_000)
	}
	if o.nodes == 0 {
		o.nodes = lab.At(l, 30, 100, 1000)
	}
	if l.Size != lab.Full {
		o.bigs, o.smalls = 0, 0
	}
	if o.nodes < 3 || o.sidecars < 10*o.nodes/4 || o.sidecars > 100_000 || o.bigs < 0 || o.smalls < 0 {
		return fmt.Errorf(
			"%d sidecars, %d nodes, %d and %d seeds: want at least 3 nodes, 2.5 to 100000 sidecars for each, and no less than 0",
			o.sidecars, o.nodes, o.bigs, o.smalls,
		)
	}
	c := Default(o.sidecars, o.nodes)
	c.Seed = o.seed
	r := &report{Others: others(o.seed), Seeds: seeds(c, o.bigs, o.smalls)}
	if l.Size == lab.Smoke {
		r.Others = nil
	}
	var courses errgroup.Group
	courses.SetLimit(runtime.GOMAXPROCS(0))
	courses.Go(func() error { r.World, r.Verdicts = Course(c); return ctx.Err() })
	for _, all := range [][]other{r.Seeds, r.Others} {
		for i := range all {
			courses.Go(func() error {
				if ctx.Err() == nil {
					_, all[i].Verdicts = Course(all[i].Config)
					l.Progress("%s, seed %d", all[i].Name, all[i].Config.Seed)
				}
				return ctx.Err()
			})
		}
	}
	if err := courses.Wait(); err != nil {
		return err
	}
	r.add(l.Report)
	return nil
}

// report is what the courses gave.
type report struct {
	World    *World // of the big run
	Verdicts []Verdict
	Others   []other
	Seeds    []other
}

// other is another run, for comparison.
type other struct {
	Name     string
	Config   Config
	Verdicts []Verdict
}

// others are the worlds that a report compares.
func others(seed uint64) []other {
	with := func(name string, change func(*Config)) other {
		c := Default(1000, 100)
		c.Seed = seed
		change(&c)
		return other{Name: name, Config: c}
	}
	return []other{
		with("as above", func(*Config) {}),
		with("no limit but `pool.max`", func(c *Config) { c.Fixed = true }),
		with("each clock wrong by up to half a period", func(c *Config) { c.Skew = 5 * time.Second }),
		with("times of calls spread twice as much", func(c *Config) { c.Spread *= 2 }),
		with("calls ten times as long", func(c *Config) { c.Service *= 10; c.Spread /= 3 }),
		with("nodes refuse at twice what they can do", func(c *Config) { c.Refuse = 2 }),
	}
}

// seeds are the big run with so many other seeds, and one of a tenth of its size.
func seeds(big Config, bigs, smalls int) (all []other) {
	small := Default(max(big.Sidecars/10, 10), max(big.Nodes/10, 3))
	small.Seed = big.Seed
	for i := range bigs + smalls {
		c := &big
		if i >= bigs {
			c = &small
		}
		c.Seed++
		all = append(all, other{Name: fmt.Sprintf("%d on %d", c.Sidecars, c.Nodes), Config: *c})
	}
	return all
}

// add writes the report. What the big run misses, with any of its seeds, is a fault.
func (r *report) add(to *lab.Report) {
	for _, v := range append(failed(r.Verdicts), failedOf(r.Seeds)...) {
		to.Fault("%v", v)
	}
	c := r.World.Config
	to.Note(
		`**The cluster.** %d nodes. Each works on %d calls at a time at full speed, all of them become slower in proportion beyond, and it refuses from %d on. A call alone takes %v on average
(the deviation of its logarithm is %v).

**The sidecars.** %d with pool.max=%d. Nine in ten of them have %[7]d callers each that call again as soon as they are answered, so that together they want %.0[8]f times what the cluster can do; the
others have two. Clocks are wrong by up to %[9]v. A call goes to the less loaded of two random nodes.

**The course.** They start within %[10]d s, except a tenth that comes at %[11]d s. At %[12]d s a third of the nodes goes, at %[13]d s it comes back. At %[14]d s half of the sidecars have nothing to do any more, at %[15]d s they
have again.

Fairness is what the one that did least has done, in parts of what the one that did most has done: the two ends of all of them. Marks are the moments at which all hold back; what they cost is in
the part of the capacity that is used.`,
		c.Nodes, c.PerNode, c.PerNode*c.Refuse, c.Service, c.Spread, c.Sidecars, c.Max,
		float64(c.Sidecars)*0.9*float64(c.Max)/float64(c.Nodes*c.PerNode), c.Skew, startOver, joined, nodesGone,
		nodesBack, halfIdle, halfBack,
	)
	t := lab.NewTable(lab.Case{Name: "course", Title: "The course"}, nil)
	for _, v := range r.Verdicts {
		got := min(v.Got, courseEnds) // which stands for never
		t.Judge(v.What, v.wanted(), v.OK(), lab.Estimate{Median: got, Low: got, High: got, N: 1})
	}
	to.Add(lab.Section{Table: t})
	alone := c.Service.Seconds()
	r.draw(to, "Calls done a second, in parts of what the nodes can do",
		func(s *Second) float64 { return float64(s.Done) / float64(s.Capacity) })
	r.draw(to, "Latency, times that of a call alone", func(s *Second) float64 { return s.Latency / alone })
	r.draw(to, "Sum of the limits, in parts of what the nodes work on at full speed",
		func(s *Second) float64 { return s.Limit / (float64(s.Capacity) * alone) })
	r.addSeeds(to)
	r.addOthers(to)
}

// draw adds a picture of a figure over the course.
func (r *report) draw(to *lab.Report, title string, of func(*Second) float64) {
	line := lab.Line{Name: "all sidecars"}
	for i := range r.World.Seconds {
		line.X, line.Y = append(line.X, float64(i)+0.5), append(line.Y, of(&r.World.Seconds[i]))
	}
	to.Add(lab.Section{Picture: &lab.Picture{Title: title, X: "seconds", Lines: []lab.Line{line}, Marks: []lab.Mark{
		{At: joined, Name: "a tenth more"}, {At: nodesGone, Name: "a third of the nodes goes"}, {At: nodesBack, Name: "is back"},
		{At: halfIdle, Name: "half want nothing"}, {At: halfBack, Name: "want again"}}}})
}

// addSeeds writes what is worst with each seed.
func (r *report) addSeeds(to *lab.Report) {
	if len(r.Seeds) == 0 {
		return
	}
	var text strings.Builder
	text.WriteString("The same course. Of each seed, the least fairness of the four that are judged, and how many " +
		"judgements it misses.\n\n| sidecars, nodes | seed | least fairness | misses |\n|---|--:|--:|--:|\n")
	lowest := math.Inf(1)
	for _, o := range append([]other{{Config: r.World.Config, Verdicts: r.Verdicts}}, r.Seeds...) {
		least := math.Inf(1)
		for _, v := range o.Verdicts {
			if strings.HasPrefix(v.What, "fairness") {
				least = min(least, v.Got)
			}
		}
		lowest = min(lowest, least)
		fmt.Fprintf(&text, "| %d on %d | %d | %s | %d |\n", o.Config.Sidecars, o.Config.Nodes, o.Config.Seed,
			figure(least), len(failed(o.Verdicts)))
	}
	fmt.Fprintf(&text, "\nThe least of all is %s.", figure(lowest))
	to.Add(lab.Section{Title: "Other seeds", Text: text.String()})
}

// addOthers writes what other worlds do to the judgements.
func (r *report) addOthers(to *lab.Report) {
	if len(r.Others) == 0 {
		return
	}
	var text strings.Builder
	text.WriteString("The same course with 1,000 sidecars on 100 nodes. What misses the judgement is bold.\n\n| judgement |")
	for _, o := range r.Others {
		fmt.Fprintf(&text, " %s |", o.Name)
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(r.Others)) + "\n")
	for i, v := range r.Others[0].Verdicts {
		fmt.Fprintf(&text, "| %s: %s |", v.What, v.wanted())
		for _, o := range r.Others {
			got := figure(o.Verdicts[i].Got)
			if !o.Verdicts[i].OK() {
				got = "**" + got + "**"
			}
			fmt.Fprintf(&text, " %s |", got)
		}
		text.WriteString("\n")
	}
	to.Add(lab.Section{Title: "Compared", Text: text.String()})
}

func failed(all []Verdict) (bad []Verdict) {
	for _, v := range all {
		if !v.OK() {
			bad = append(bad, v)
		}
	}
	return bad
}

func failedOf(all []other) (bad []Verdict) {
	for _, o := range all {
		bad = append(bad, failed(o.Verdicts)...)
	}
	return bad
}

func (v Verdict) wanted() string {
	if v.Most {
		return "at most " + figure(v.Want)
	}
	return "at least " + figure(v.Want)
}

func figure(x float64) string {
	if math.IsInf(x, 0) {
		return "never"
	}
	return fmt.Sprintf("%.3g", x)
}
