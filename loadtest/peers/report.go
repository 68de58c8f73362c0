package peers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// Report is the whole summary.
type Report struct {
	Machine   lab.Machine         `json:"machine"`
	Repeats   int                 `json:"repeats"`
	Duration  string              `json:"duration"`
	WarmUp    string              `json:"warm_up"`
	Conns     int                 `json:"client_connections"`
	Targets   []*target           `json:"targets"`
	Left      []string            `json:"left_out,omitempty"`
	Scenarios []Scenario          `json:"scenarios"`
	Series    []*Series           `json:"series"`
	Goals     map[string][]Judged `json:"goals"` // by the project's own targets
}

// Series is one target in one scenario with all its runs.
type Series struct {
	Scenario string     `json:"scenario"`
	Target   string     `json:"target"`
	Median   Measured   `json:"median"` // of each figure by itself; calls and failures are sums
	Runs     []Measured `json:"runs"`
}

func newReport(f *field, scenarios []Scenario) *Report {
	return &Report{Machine: lab.ThisMachine(), Repeats: f.options.Repeats, Duration: f.options.Duration.String(), WarmUp: f.options.WarmUp.String(),
		Conns: f.options.Conns, Targets: f.targets, Left: f.left, Scenarios: scenarios, Goals: map[string][]Judged{}}
}

func (r *Report) find(scenario, target string) *Series {
	for _, one := range r.Series {
		if one.Scenario == scenario && one.Target == target {
			return one
		}
	}
	return nil
}

func (r *Report) add(s Scenario, t *target, one Measured) {
	series := r.find(s.Name, t.Name)
	if series == nil {
		series = &Series{Scenario: s.Name, Target: t.Name}
		r.Series = append(r.Series, series)
	}
	series.Runs = append(series.Runs, one)
}

// median returns the medians of a target in a scenario. Without any call that
// succeeded there are none.
func (r *Report) median(s Scenario, target string) (Measured, bool) {
	series := r.find(s.Name, target)
	if series == nil || series.Median.Calls == 0 {
		return Measured{}, false
	}
	return series.Median, true
}

func (r *Report) summarize() {
	for _, one := range r.Series {
		one.summarize()
	}
	for _, t := range r.Targets {
		if !t.Own {
			continue
		}
		for _, g := range goals(t.face) {
			r.Goals[t.Name] = append(r.Goals[t.Name], g.judge(r, t.Name))
		}
	}
}

func (s *Series) summarize() {
	duration := func(figure func(Measured) time.Duration) time.Duration { return middle(s.Runs, figure) }
	s.Median = Measured{
		PerSecond: middle(s.Runs, func(m Measured) float64 { return m.PerSecond }),
		P50:       duration(func(m Measured) time.Duration { return m.P50 }),
		P99:       duration(func(m Measured) time.Duration { return m.P99 }),
		P999:      duration(func(m Measured) time.Duration { return m.P999 }),
		CPU:       duration(func(m Measured) time.Duration { return m.CPU }),
		User:      duration(func(m Measured) time.Duration { return m.User }),
		LoadCPU:   duration(func(m Measured) time.Duration { return m.LoadCPU }),
		NodeCPU:   duration(func(m Measured) time.Duration { return m.NodeCPU }),
		RSS:       middle(s.Runs, func(m Measured) int64 { return m.RSS }),
		Anonymous: middle(s.Runs, func(m Measured) int64 { return m.Anonymous }),
		Others:    middle(s.Runs, func(m Measured) float64 { return m.Others }),
	}
	for _, run := range s.Runs {
		s.Median.Calls += run.Calls
		s.Median.Failed += run.Failed
		s.Median.FirstFail = cmp.Or(s.Median.FirstFail, run.FirstFail)
	}
}

// middle returns the middle figure of the runs; the lower one of two.
func middle[T cmp.Ordered](runs []Measured, figure func(Measured) T) T {
	all := make([]T, len(runs))
	for i, run := range runs {
		all[i] = figure(run)
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// Failures returns how many calls failed straight to the backends and through the
// project's own targets. Those of the peers are shown, and their own matter.
func (r *Report) Failures() (n int64) {
	for _, t := range r.Targets {
		for _, one := range r.Series {
			if one.Target == t.Name && (t.Own || t.Name == direct) {
				n += one.Median.Failed
			}
		}
	}
	return n
}

func (r *Report) json() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// Markdown writes the tables.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# What proxies cost to forward a call\n\n")
	fmt.Fprintf(&b, "Load, proxy and three backends share %d cores (%s, Linux %s, %s). Medians of %d runs of %s after %s of warm-up, the targets in turn; client connections to a proxy: %d. ",
		r.Machine.Cores, r.Machine.CPU, r.Machine.Kernel, r.Machine.Go, r.Repeats, r.Duration, r.WarmUp, r.Conns)
	fmt.Fprintf(&b, "`c`: calls in flight; `k`: thousand calls a second, latency from the moment when a call was due. Every answer was compared with what its node must answer, and came from the owner of the session where a target routes by session (direct and the project's own); answers of the plain API (`-plain`: gRPC, `-http`: HTTP/1.1 and JSON, a connection for each call in flight) were compared row for row. Answers of 100,000 rows (`rows`) were decoded as a client would and counted; their lines of JSON were counted and not decoded. A run in which other programs used more than %.1f cores was made again, once, and the calmer one counts; a star marks figures whose median run was disturbed all the same.\n\n", quiet)
	b.WriteString("| target | version | command |\n|---|---|---|\n")
	for _, t := range r.Targets {
		command := ""
		if t.Command != "" {
			command = "`" + t.Command + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", t.Name, t.Version, command)
	}
	for _, line := range r.Left {
		fmt.Fprintf(&b, "\n%s\n", line)
	}
	for _, t := range r.Targets {
		if all := r.Goals[t.Name]; all != nil {
			fmt.Fprintf(&b, "\n## Goals: %s\n\n| measure | goal | stretch | measured | |\n|---|---|---|---|---|\n", t.Name)
			for _, j := range all {
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", j.Measure, j.Goal, j.Stretch, j.shown(r.Scenarios), j.Verdict)
			}
		}
	}
	micro := func(figure func(Measured) time.Duration) func(Scenario, string, Measured) string {
		return func(_ Scenario, _ string, m Measured) string {
			return fmt.Sprintf("%.1f", float64(figure(m))/float64(time.Microsecond))
		}
	}
	proxied := func(cell func(Scenario, string, Measured) string) func(Scenario, string, Measured) string {
		return func(s Scenario, target string, m Measured) string {
			if target == direct {
				return "-"
			}
			return cell(s, target, m)
		}
	}
	cpu := func(m Measured) time.Duration { return m.CPU }
	r.table(&b, "CPU of the proxy for each call, us (least-most)", proxied(func(s Scenario, target string, m Measured) string {
		least, most := m.CPU, m.CPU
		for _, run := range r.find(s.Name, target).Runs {
			least, most = min(least, run.CPU), max(most, run.CPU)
		}
		mark := ""
		if m.Others > quiet {
			mark = "*"
		}
		us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
		return fmt.Sprintf("%.1f%s (%.1f-%.1f)", us(m.CPU), mark, us(least), us(most))
	}))
	for _, of := range []string{haproxy, envoy} {
		if !slices.ContainsFunc(r.Targets, func(t *target) bool { return t.Name == of }) {
			continue
		}
		r.table(&b, "That of "+of, proxied(func(s Scenario, target string, _ Measured) string {
			value, ok := ratio(func(m Measured) float64 { return float64(cpu(m)) }, of)(r, s, target)
			if !ok {
				return "-"
			}
			return fmt.Sprintf("%.2f", value)
		}))
	}
	r.table(&b, "p50, us", micro(func(m Measured) time.Duration { return m.P50 }))
	r.table(&b, "p99, us", micro(func(m Measured) time.Duration { return m.P99 }))
	r.table(&b, "p99.9, us", micro(func(m Measured) time.Duration { return m.P999 }))
	r.table(&b, "Calls a second; MB or thousand rows a second of the large streams", func(s Scenario, _ string, m Measured) string {
		if s.Rows > 0 {
			return fmt.Sprintf("%.0f krows", m.PerSecond*float64(s.Rows*s.Parts)/1e3)
		}
		if s.bulk() {
			return fmt.Sprintf("%.0f MB", m.PerSecond*float64(s.Size*s.Parts)/1e6)
		}
		return fmt.Sprintf("%.0f", m.PerSecond)
	})
	r.table(&b, "Memory of the proxy under load: anonymous / resident, MB", proxied(func(_ Scenario, _ string, m Measured) string {
		return fmt.Sprintf("%.1f / %.1f", float64(m.Anonymous)/1e6, float64(m.RSS)/1e6)
	}))
	r.table(&b, "CPU of the load / of the backends for each call, us", func(_ Scenario, _ string, m Measured) string {
		return fmt.Sprintf("%.1f / %.1f", float64(m.LoadCPU)/1e3, float64(m.NodeCPU)/1e3)
	})
	r.table(&b, "Cores used by other programs", func(_ Scenario, _ string, m Measured) string { return fmt.Sprintf("%.2f", m.Others) })
	title := "\n## Failures\n\n"
	for _, one := range r.Series {
		if one.Median.Failed > 0 {
			fmt.Fprintf(&b, title+"- %s, %s: %d of %d, first: %s\n", one.Target, one.Scenario, one.Median.Failed, one.Median.Calls+one.Median.Failed, one.Median.FirstFail)
			title = ""
		}
	}
	return b.String()
}

// table writes one figure of all scenarios and targets.
func (r *Report) table(b *strings.Builder, title string, cell func(s Scenario, target string, median Measured) string) {
	fmt.Fprintf(b, "\n## %s\n\n|", title)
	for _, t := range r.Targets {
		fmt.Fprintf(b, " | %s", t.Name)
	}
	b.WriteString(" |\n|---" + strings.Repeat("|--:", len(r.Targets)) + "|\n")
	for _, s := range r.Scenarios {
		fmt.Fprintf(b, "| %s", s.Name)
		for _, t := range r.Targets {
			text := "-"
			if m, ok := r.median(s, t.Name); ok {
				text = cell(s, t.Name, m)
			}
			fmt.Fprintf(b, " | %s", text)
		}
		b.WriteString(" |\n")
	}
}
