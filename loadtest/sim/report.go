package sim

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Report is what the command writes.
type Report struct {
	Command  string
	World    *World // of the big run
	Verdicts []Verdict
	Others   []Other
	Seeds    []Other
}

// Other is another run, for comparison.
type Other struct {
	Name     string
	Config   Config
	Verdicts []Verdict
}

// Others are the worlds that a report compares.
func Others(seed uint64) []Other {
	with := func(name string, change func(*Config)) Other {
		c := Default(1000, 100)
		c.Seed = seed
		change(&c)
		return Other{Name: name, Config: c}
	}
	return []Other{
		with("as above", func(*Config) {}),
		with("no limit but `pool.max`", func(c *Config) { c.Fixed = true }),
		with("each clock wrong by up to half a period", func(c *Config) { c.Skew = 5 * time.Second }),
		with("times of calls spread twice as much", func(c *Config) { c.Spread *= 2 }),
		with("calls ten times as long", func(c *Config) { c.Service *= 10; c.Spread /= 3 }),
		with("nodes refuse at twice what they can do", func(c *Config) { c.Refuse = 2 }),
	}
}

// Seeds are the big run with so many other seeds, and one of a tenth of its size.
func Seeds(big Config, bigs, smalls int) (all []Other) {
	small := Default(max(big.Sidecars/10, 10), max(big.Nodes/10, 3))
	small.Seed = big.Seed
	for i := range bigs + smalls {
		c := &big
		if i >= bigs {
			c = &small
		}
		c.Seed++
		all = append(all, Other{Name: fmt.Sprintf("%d on %d", c.Sidecars, c.Nodes), Config: *c})
	}
	return all
}

// Bad returns the judgements that the big run failed, with any of its seeds.
func (r *Report) Bad() (bad []Verdict) {
	bad = failed(r.Verdicts)
	for _, o := range r.Seeds {
		bad = append(bad, failed(o.Verdicts)...)
	}
	return bad
}

func failed(all []Verdict) (bad []Verdict) {
	for _, v := range all {
		if !v.OK() {
			bad = append(bad, v)
		}
	}
	return bad
}

// writeSeeds writes what is worst with each seed.
func (r *Report) writeSeeds(text *bytes.Buffer) {
	if len(r.Seeds) == 0 {
		return
	}
	text.WriteString("## Other seeds\n\nThe same course. Of each seed, the least fairness of the four that are judged, and how many judgements it misses.\n\n| sidecars, nodes | seed | least fairness | misses |\n|---|--:|--:|--:|\n")
	lowest := math.Inf(1)
	for _, o := range append([]Other{{Config: r.World.Config, Verdicts: r.Verdicts}}, r.Seeds...) {
		least := math.Inf(1)
		for _, v := range o.Verdicts {
			if strings.HasPrefix(v.What, "fairness") {
				least = min(least, v.Got)
			}
		}
		lowest = min(lowest, least)
		fmt.Fprintf(text, "| %d on %d | %d | %s | %d |\n", o.Config.Sidecars, o.Config.Nodes, o.Config.Seed, figure(least), len(failed(o.Verdicts)))
	}
	fmt.Fprintf(text, "\nThe least of all is %s.\n\n", figure(lowest))
}

// Write writes name.md, and the pictures into a directory beside it.
func (r *Report) Write(name string) error {
	dir := strings.TrimSuffix(name, ".md")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var text bytes.Buffer
	c := r.World.Config
	fmt.Fprintf(&text, `# The adaptive limit, simulated

Written by `+"`%s`"+`, which plays sidecars with `+"`pool.adaptive`"+` on a cluster in a time of its own, without a socket: the laws are those of the product (`+"`internal/adaptive`"+`), the nodes and callers
are a model (`+"`loadtest/sim`"+`). The same seed gives the same course. What the setting does is in [pool.md](pool.md#adaptive-limit), why it is so in
[decisions/0011](decisions/0011-adaptive-limit.md). A small course with the same judgements is a test.

**The cluster.** %d nodes. Each works on %d calls at a time at full speed, all of them become slower in proportion beyond, and it refuses from %d on. A call alone takes %v on average
(the deviation of its logarithm is %v).

**The sidecars.** %d with `+"`pool.max=%d`"+`. Nine in ten of them have %[9]d callers each that call again as soon as they are answered, so that together they want %.0[10]f times what the cluster can do; the
others have two. Clocks are wrong by up to %[11]v. A call goes to the less loaded of two random nodes.

**The course.** They start within %[12]d s, but for a tenth that comes at %[13]d s. At %[14]d s a third of the nodes goes, at %[15]d s it comes back. At %[16]d s half of the sidecars have nothing to do any more, at %[17]d s they
have again.

`, r.Command, c.Nodes, c.PerNode, c.PerNode*c.Refuse, c.Service, c.Spread, c.Sidecars, c.Max, c.Max, float64(c.Sidecars)*0.9*float64(c.Max)/float64(c.Nodes*c.PerNode), c.Skew,
		startOver, joined, nodesGone, nodesBack, halfIdle, halfBack)

	text.WriteString("| judgement | is | wanted | |\n|---|---|---|---|\n")
	for _, v := range r.Verdicts {
		fmt.Fprintf(&text, "| %s | %s | %s | %s |\n", v.What, figure(v.Got), v.wanted(), mark(v))
	}
	text.WriteString(`
Fairness is what the one that did least has done, in parts of what the one that did most has done: the two ends of all of them. Marks are the moments at which all hold back; what they cost is in
the part of the capacity that is used.

`)
	for _, p := range r.pictures() {
		file := filepath.Join(dir, p.file)
		if err := os.WriteFile(file, p.svg, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&text, "![%s](%s/%s)\n\n", p.title, filepath.Base(dir), p.file)
	}
	r.writeSeeds(&text)
	text.WriteString("## Compared\n\nThe same course with 1,000 sidecars on 100 nodes. What misses the judgement is bold.\n\n| judgement |")
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
	return os.WriteFile(name, text.Bytes(), 0o644)
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

func mark(v Verdict) string {
	if v.OK() {
		return "yes"
	}
	return "**no**"
}

// picture is one curve or more over the course.
type picture struct {
	file, title string
	svg         []byte
}

func (r *Report) pictures() []picture {
	alone := r.World.Service.Seconds()
	return []picture{
		r.draw("calls.svg", "Calls done a second, in parts of what the nodes can do", 1.2, func(s *Second) float64 { return float64(s.Done) / float64(s.Capacity) }),
		r.draw("latency.svg", "Latency, times that of a call alone", 3, func(s *Second) float64 { return s.Latency / alone }),
		r.draw("limits.svg", "Sum of the limits, in parts of what the nodes work on at full speed", 4, func(s *Second) float64 { return s.Limit / (float64(s.Capacity) * alone) }),
	}
}

const (
	pictureWide = 900
	pictureHigh = 160
	margin      = 34
)

func (r *Report) draw(file, title string, most float64, of func(*Second) float64) picture {
	var b bytes.Buffer
	seconds := r.World.Seconds
	x := func(at float64) float64 { return margin + (pictureWide-2*margin)*at/float64(len(seconds)) }
	y := func(v float64) float64 { return pictureHigh - 24 - (pictureHigh-48)*min(v, most)/most }
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11"><rect width="100%%" height="100%%" fill="#fff"/>`+"\n", pictureWide, pictureHigh)
	fmt.Fprintf(&b, `<text x="%d" y="14" fill="#333">%s</text>`+"\n", margin, html.EscapeString(title))
	for _, step := range []struct {
		at   int
		what string
	}{{joined, "a tenth more"}, {nodesGone, "a third of the nodes goes"}, {nodesBack, "is back"}, {halfIdle, "half want nothing"}, {halfBack, "want again"}} {
		fmt.Fprintf(&b, `<path d="M%.1f 20V%d" stroke="#ccc"/><text x="%.1f" y="30" fill="#888">%s</text>`+"\n", x(float64(step.at)), pictureHigh-24, x(float64(step.at))+3, step.what)
	}
	for i := 0; i <= 4; i++ {
		v := most * float64(i) / 4
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#eee"/><text x="4" y="%.1f" fill="#555">%.3g</text>`+"\n", margin, y(v), pictureWide-margin, y(v)+4, v)
	}
	for at := 0; at <= len(seconds); at += 60 {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" fill="#555" text-anchor="middle">%d s</text>`+"\n", x(float64(at)), pictureHigh-8, at)
	}
	b.WriteString(`<path fill="none" stroke="#2c6fbb" d="`)
	for i := range seconds {
		letter := 'L'
		if i == 0 {
			letter = 'M'
		}
		fmt.Fprintf(&b, "%c%.1f %.1f", letter, x(float64(i)+0.5), y(of(&seconds[i])))
	}
	b.WriteString("\"/>\n</svg>\n")
	return picture{file, title, b.Bytes()}
}
