package knee

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// kneeAllocs is the index of the allocations: what a collection of garbage after the run knows and one before did not.
// A profile of what was allocated in between would be that of up to two collections ago.
const kneeAllocs = 1

// The three rates of the profiles.
var kneeRates = [...]string{"below", "knee", "above"}

// kneeProfiles are the profiles of one rate, by the index of their kind.
type kneeProfiles struct {
	all   [len(kneeKinds)][]*pprof.Profile
	calls [len(kneeKinds)]float64 // that were answered while they were taken
}

func (c *kneeCase) rates() [3]int {
	at := cmp.Or(c.knee, c.over)
	return [3]int{max(1, at*85/100), at, at * 115 / 100}
}

// profile takes the profiles of a case and says what they show.
func (k *kneeBench) profile(ctx context.Context, l *lab.Lab, c *kneeCase) error {
	rates := c.rates()
	var taken [3]kneeProfiles
	text := fmt.Sprintf(
		"%d, %d and %d calls a second. The profiles are taken in these runs, which costs the sidecar a few percent; "+
			"what it spends on that is left out of them. Flame graphs, and their differences: `go tool pprof -http "+
			": -diff_base BEFORE.pb.gz THIS.pb.gz`.",
		rates[0], rates[1], rates[2],
	)
	if c.knee == 0 {
		text += " There is no knee: not even the least rate holds, and these are around it."
	}
	table := lab.Case{Name: c.id(), Title: c.name + ": below, at and above the knee", Baseline: kneeRates[0],
		Text:    text,
		Figures: []string{lab.PerSecond, lab.P50, lab.P99, lab.Mean, lab.CPU, "sidecar-cores", kneeWay},
		Ratios:  []string{lab.CPU, lab.Mean}}
	for i, name := range kneeRates {
		v := c.variant(name, rates[i])
		load := v.Run
		v.WarmUp = func(ctx context.Context) error { _, err := load(ctx, l.WarmUp); return err }
		v.Run = func(ctx context.Context, d time.Duration) (lab.Result, error) {
			return taken[i].take(ctx, c, rates[i], d)
		}
		table.Variants = append(table.Variants, v)
	}
	t, err := l.Compare(ctx, table)
	if err != nil {
		return err
	}
	return k.show(l, c, t, table.Name, &taken)
}

// kneeWay is a figure: calls under way, by Little's law.
const kneeWay = "calls under way"

// take makes a run with profiles of it.
func (p *kneeProfiles) take(ctx context.Context, c *kneeCase, rate int, d time.Duration) (lab.Result, error) {
	length := max(time.Second, d.Round(time.Second)) // profiles take whole seconds
	before, _, err := lab.Profile(ctx, c.sidecar.Admin, kneeKinds[kneeAllocs].name, 0)
	if err != nil {
		return lab.Result{}, err
	}
	var got [len(kneeKinds)]*pprof.Profile
	var errs [len(kneeKinds)]error
	var taking sync.WaitGroup
	for i, kind := range kneeKinds {
		if i != kneeAllocs {
			taking.Go(func() { got[i], _, errs[i] = lab.Profile(ctx, c.sidecar.Admin, kind.name, length) })
		}
	}
	result := c.load(ctx, rate, max(d, length))
	taking.Wait()
	after, _, err := lab.Profile(ctx, c.sidecar.Admin, kneeKinds[kneeAllocs].name, 0)
	if err := errors.Join(append(errs[:], err)...); err != nil {
		return result, err
	}
	before.Scale(-1)
	if got[kneeAllocs], err = pprof.Merge([]*pprof.Profile{after, before}); err != nil {
		return result, fmt.Errorf("subtract profiles: %w", err)
	}
	for i, one := range got {
		withoutProfiling(one)
		p.all[i] = append(p.all[i], one)
		p.calls[i] += float64(result.Calls) * min(1, length.Seconds()/result.Took.Seconds())
	}
	p.calls[kneeAllocs] += float64(result.Calls) * max(0, 1-length.Seconds()/result.Took.Seconds())
	result.Figures = lab.Figures{kneeWay: result.Offered * result.Mean().Seconds()}
	return result, nil
}

// withoutProfiling takes what the taking of profiles costs out of one.
func withoutProfiling(p *pprof.Profile) {
	p.Sample = slices.DeleteFunc(p.Sample, func(s *pprof.Sample) bool {
		return slices.ContainsFunc(s.Location, func(l *pprof.Location) bool {
			return slices.ContainsFunc(l.Line, func(line pprof.Line) bool {
				return line.Function != nil &&
					(strings.HasPrefix(line.Function.Name, "net/http/pprof.") || strings.HasPrefix(line.Function.Name, "runtime/pprof."))
			})
		})
	})
}

// show writes the profiles of a case and says what they show.
func (k *kneeBench) show(l *lab.Lab, c *kneeCase, t *lab.Table, dir string, taken *[3]kneeProfiles) error {
	var b strings.Builder
	changed := false
	for i, kind := range kneeKinds {
		var all [3]*pprof.Profile
		for at := range all {
			merged, err := pprof.Merge(taken[at].all[i])
			if err != nil {
				return fmt.Errorf("merge profiles: %w", err)
			}
			all[at] = merged
			var raw bytes.Buffer
			if err := merged.Write(&raw); err != nil {
				return fmt.Errorf("write a profile: %w", err)
			}
			l.Report.File(fmt.Sprintf("%s/%s-%s.pb.gz", dir, kind.file, kneeRates[at]), raw.Bytes())
		}
		facts := compareProfiles(all, [3]float64{taken[0].calls[i], taken[1].calls[i], taken[2].calls[i]}, kind.by)
		fmt.Fprintf(&b, "**%s: %s.** ", c.name, kind.title)
		for at, name := range kneeRates {
			fmt.Fprintf(&b, "%s %.1f %s a call (`%s/%s-%s.pb.gz`); ", name, facts.each[at]*kind.scale, kind.unit, dir, kind.file, name)
		}
		if facts.each[0] > 0 {
			fmt.Fprintf(&b, "from below to above %.2f times. ", facts.each[2]/facts.each[0])
		}
		fmt.Fprintf(&b, "The greatest change of a package's share from the knee to above it: %s from %.1f to %.1f %%. ",
			facts.most, 100*facts.from, 100*facts.to)
		if kind.file == "cpu" {
			changed = facts.changed()
			fmt.Fprintf(&b,
				"By chance, with %d and %d samples, such a share moves by %.1f points two times in three, so %s. ",
				facts.samples[1], facts.samples[2], 100*facts.chance, facts.verdict())
		}
		fmt.Fprintf(&b, "%s\n\n", kind.note)
		facts.table(&b)
	}
	fmt.Fprintf(&b, "**%s: what happens beyond the knee.** %s", c.name, queued(t, changed))
	l.Report.Add(lab.Section{Text: b.String()})
	return nil
}

// queued says whether work or only the queue grew between the knee and above it.
func queued(t *lab.Table, changed bool) string {
	get := func(i int, figure string) float64 { x, _ := t.Median(kneeRates[i], figure); return x }
	work := get(2, lab.CPU) / max(get(1, lab.CPU), 1)
	wait := (get(2, lab.Mean) - get(0, lab.Mean)) / 1e6
	s := fmt.Sprintf(
		"From just below to just above, the mean latency goes from %.2f to %.2f ms, the calls under way (by "+
			"Little's law) from %.0f to %.0f, and the sidecar's cores from %.2f to %.2f. Its CPU for a call above "+
			"is %.2f of that at the knee. ",
		get(0, lab.Mean)/1e6, get(2, lab.Mean)/1e6, get(0, kneeWay), get(2, kneeWay), get(0, "sidecar-cores"),
		get(2, "sidecar-cores"), work,
	)
	switch grew := get(2, lab.Mean) > 1.5*get(0, lab.Mean); {
	case changed && grew:
		s += fmt.Sprintf("The profile changes, and a call waits %.2f ms longer.", wait)
	case changed:
		s += "The profile changes, though the queue hardly grows."
	case grew:
		s += fmt.Sprintf("The profile does not change: only the queue grew, by %.2f ms for a call.", wait)
	default:
		s += "Neither the profile nor the queue changes: the rate above is not far enough beyond the knee, or the " +
			"knee was another program's."
	}
	return s
}

// profileFacts is what changes between three profiles.
type profileFacts struct {
	each      [3]float64            // value of a call
	samples   [3]int                // of the CPU
	shares    [3]map[string]float64 // by function
	most      string                // the package whose share changed most from the second to the third
	from, to  float64               // its shares
	chance    float64               // the standard deviation that such a difference has by chance
	functions []string              // with the greatest shares, the greatest first
}

// changeLeast is the least change of a share that counts as one; it must be four standard deviations as well.
const changeLeast = 0.03

func (f profileFacts) changed() bool {
	by := math.Abs(f.to - f.from)
	return by >= changeLeast && by > 4*f.chance
}

func (f profileFacts) verdict() string {
	if f.changed() {
		return "the profile changed"
	}
	return "the profile did not change"
}

func compareProfiles(all [3]*pprof.Profile, calls [3]float64, by func([]string) string) (f profileFacts) {
	var packages [3]map[string]float64
	for i, p := range all {
		f.each[i] = float64(lab.Total(p)) / max(1, calls[i])
		f.shares[i] = lab.Shares(p, by)
		packages[i] = lab.Shares(p, func(stack []string) string { return lab.Package([]string{by(stack)}) })
		for _, s := range p.Sample {
			f.samples[i] += int(s.Value[0])
		}
	}
	f.most = "none"
	for _, name := range slices.Sorted(maps.Keys(joined(packages[1], packages[2]))) {
		if from, to := packages[1][name], packages[2][name]; math.Abs(to-from) > math.Abs(f.to-f.from) {
			f.most, f.from, f.to = name, from, to
		}
	}
	if f.samples[1] > 0 && f.samples[2] > 0 {
		p := (f.from*float64(f.samples[1]) + f.to*float64(f.samples[2])) / float64(f.samples[1]+f.samples[2])
		f.chance = math.Sqrt(p * (1 - p) * (1/float64(f.samples[1]) + 1/float64(f.samples[2])))
	}
	f.functions = slices.SortedFunc(maps.Keys(joined(f.shares[0], f.shares[1], f.shares[2])), func(a, b string) int {
		most := func(name string) float64 { return max(f.shares[0][name], f.shares[1][name], f.shares[2][name]) }
		return cmp.Or(cmp.Compare(most(b), most(a)), strings.Compare(a, b))
	})
	return f
}

func joined(all ...map[string]float64) map[string]float64 {
	m := map[string]float64{}
	for _, one := range all {
		maps.Copy(m, one)
	}
	return m
}

// table writes the functions with the greatest shares.
func (f profileFacts) table(b *strings.Builder) {
	b.WriteString("| function | below | at the knee | above | above less at the knee |\n|---|--:|--:|--:|--:|\n")
	for _, name := range f.functions[:min(8, len(f.functions))] {
		fmt.Fprintf(b, "| `%s` | %.1f %% | %.1f %% | %.1f %% | %+.1f points |\n", name, 100*f.shares[0][name],
			100*f.shares[1][name], 100*f.shares[2][name], 100*(f.shares[2][name]-f.shares[1][name]))
	}
	b.WriteString("\n")
}
