package soak

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
)

// samples are what was held over time.
type samples struct {
	minutes []float64
	lines   map[string][]float64 // by the name of the gauge
}

// nodeSessions is the number of sessions that the nodes list.
const nodeSessions = "sessions-on-nodes"

// sampled are the gauges that must be flat, with what they may grow by over the
// second half: the greater of a tenth of their median and this.
var sampled = []struct {
	name, title string
	scale       float64
	floor       float64
}{
	{lab.Anonymous, "anonymous memory, MB", 1e-6, 4},
	{lab.Heap, "heap, MB", 1e-6, 4},
	{lab.Goroutines, "goroutines", 1, 45}, // two or three for each session
	{lab.Descriptors, "descriptors", 1, 10},
	{lab.Sessions, "sessions of the sidecar", 1, 15}, // pools breathe: two, each with up to pool.max
	{nodeSessions, "sessions on the nodes", 1, 15},
	{lab.Virtual, "sessions of SDKs", 1, 5},
}

// sample looks until ctx ends.
func (k *Soaking) sample(ctx context.Context, every time.Duration) (*samples, error) {
	s, begun := &samples{lines: map[string][]float64{}}, time.Now()
	for {
		g, err := k.Sidecar.Gauges(ctx, false)
		if err == nil {
			var listed int
			listed, err = k.listed(ctx)
			if err == nil {
				s.add(time.Since(begun), g, listed)
			}
		}
		if err != nil && ctx.Err() == nil {
			return s, err
		}
		if traffic.Pause(ctx, every) != nil {
			return s, nil
		}
	}
}

// listed is the number of sessions on the nodes, by their own list.
func (k *Soaking) listed(ctx context.Context) (int, error) {
	sessions, err := k.cluster.Control.Sessions(ctx)
	return len(sessions), err
}

func (s *samples) add(at time.Duration, g lab.Gauges, listed int) {
	s.minutes = append(s.minutes, at.Minutes())
	f := g.Figures()
	f[nodeSessions] = float64(listed)
	for _, one := range sampled {
		s.lines[one.name] = append(s.lines[one.name], f[one.name]*one.scale)
	}
}

func (s *samples) csv() []byte {
	var b bytes.Buffer
	b.WriteString("minute")
	for _, one := range sampled {
		fmt.Fprintf(&b, ",%q", one.title)
	}
	for i, at := range s.minutes {
		fmt.Fprintf(&b, "\n%.3f", at)
		for _, one := range sampled {
			fmt.Fprintf(&b, ",%.6g", s.lines[one.name][i])
		}
	}
	b.WriteString("\n")
	return b.Bytes()
}

// flat tells how much a gauge grew over the second half, and how much it may.
func flat(minutes, values []float64, floor float64) (growth, most float64) {
	growth, median := lab.Growth(minutes, values)
	return growth, max(floor, median/10)
}

// audit looks at every row that changed, when nothing is broken and no caller writes.
func (k *Soaking) audit(ctx context.Context) error {
	for i := range k.slots {
		s := &k.slots[i]
		s.mu.Lock()
		err := Timely(ctx, func(ctx context.Context) error { return k.look(ctx, s, 0) })
		s.mu.Unlock()
		if err := k.told.note("look at the end", err, false); err != nil {
			k.l.Report.Fault("at the end: %v", err)
			if traffic.AsRefusal(err).Code != "WRONG" {
				return err
			}
		}
	}
	return nil
}

// held is the faults, and what the sidecar had before and after them, as tables.
func (k *Soaking) held(start, end lab.Gauges) string {
	var b strings.Builder
	b.WriteString("| fault | times |\n|---|--:|\n")
	for _, what := range slices.Sorted(maps.Keys(k.faults.count)) {
		fmt.Fprintf(&b, "| %s | %d |\n", what, k.faults.count[what])
	}
	fmt.Fprintf(&b,
		"\n| | goroutines | descriptors | anonymous memory | heap | sessions | in use | of SDKs |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, row := range []struct {
		name string
		g    lab.Gauges
	}{{"at the start, at rest", start}, {"at the end, at rest", end}} {
		g := row.g
		fmt.Fprintf(&b, "| %s | %d | %d | %.1f MB | %.1f MB | %d | %d | %d |\n", row.name, g.Goroutines, g.Descriptors,
			float64(g.Anonymous)/1e6, float64(g.Heap)/1e6, g.Sessions, g.Busy, g.Virtual)
	}
	return b.String()
}

func (k *Soaking) report(run lab.Run, capacity lab.Result, rate int, seen *samples, start, end lab.Gauges, listed int) {
	made, fair, late, _ := k.told.sums()
	t := lab.NewTable(
		lab.Case{Name: "soak", Title: "The load",
			Figures:  []string{lab.PerSecond, lab.Offered, lab.P50, lab.P99, lab.Max, lab.CPU, lab.RSS},
			Variants: []lab.Variant{{Name: "half load"}},
			Text: fmt.Sprintf(
				"16 callers in a closed loop made %.0f operations a second before anything was broken; %d a second "+
					"were due, %d were made in all, of which %d failed in words that the rules have for a fault, "+
					"while there was one, and %d without one for want of time, as happens when other programs take "+
					"the processors. Failed are the others.",
				capacity.Offered, rate, made, fair, late,
			)},
		[][]lab.Run{{run}},
	)
	judge := func(text string, value, most float64, hard bool) {
		t.Judge(text, fmt.Sprintf("<= %.3g", most), value <= most, lab.Estimate{Median: value, Low: value, High: value, N: 1})
		if !(value <= most) && (hard || k.l.Size > lab.Smoke) {
			k.l.Report.Fault("%s: %.3g; want at most %.3g", text, value, most)
		}
	}
	for _, one := range sampled {
		if k.l.Size > lab.Smoke { // some seconds show no slope
			floor := one.floor
			if seen.minutes[len(seen.minutes)-1] < 5 {
				floor *= 4 // pools still grow to what the worst fault asked for
			}
			growth, most := flat(seen.minutes, seen.lines[one.name], floor)
			judge("growth over the second half: "+one.title, growth, most, false)
		}
	}
	// On a machine that does nothing else, half of what it bears is served in time.
	share := 100 * float64(late) / float64(max(1, made))
	t.Judge("percent of the operations that failed without a fault, for want of time", "<= 0.1", share <= 0.1,
		lab.Estimate{Median: share, Low: share, High: share, N: 1})
	if share > 0.1 && k.l.Size > lab.Smoke && run.Figures[lab.Others] < 0.2 {
		k.l.Report.Fault("%.2f %% of the operations failed without a fault, for want of time, and no other program was busy", share)
	}
	judge("sessions in use when nobody calls", float64(end.Busy), 0, true)
	judge("sessions on the nodes that the sidecar does not know", float64(listed-end.Sessions), 0, false)
	judge("descriptors, more than at the start", float64(end.Descriptors-start.Descriptors), 10, false)
	judge("goroutines, more than at the start and two for each new session",
		float64(end.Goroutines-start.Goroutines-2*max(0, end.Sessions-start.Sessions)), 20+traffic.KeptGoroutines, false)
	k.l.Report.Add(lab.Section{Table: t})
	k.l.Report.Add(lab.Section{Title: "What callers were told", Text: k.told.markdown()})
	k.l.Report.Add(lab.Section{Title: "Faults, and what was held at rest", Text: k.held(start, end)})
	for _, one := range sampled {
		k.l.Report.Add(
			lab.Section{
				Picture: &lab.Picture{Title: one.title, X: "minutes", Y: one.title,
					Lines: []lab.Line{{Name: one.title, X: seen.minutes, Y: seen.lines[one.name]}}},
			},
		)
	}
	k.l.Report.File("samples.csv", seen.csv())
}
