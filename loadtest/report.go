package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is the whole summary.
type report struct {
	Rate      int       `json:"rate"`
	Repeats   int       `json:"repeats"`
	Duration  string    `json:"duration"`
	Affinity  []*series `json:"affinity"`
	Added     []*series `json:"added"`
	CPU       []*series `json:"cpu"`
	RSSIdle   int64     `json:"rss_idle_bytes"`
	RSSOpen   int64     `json:"rss_open_bytes"`
	OpenCalls int       `json:"open_calls"`
}

// series is one variant with all its runs.
type series struct {
	Name   string     `json:"name"`
	Median measured   `json:"median"` // of each figure by itself; calls and failures are sums
	Runs   []measured `json:"runs"`
}

// measured is one run with what it cost.
type measured struct {
	result
	CPU       time.Duration `json:"sidecar_cpu_ns_per_call,omitempty"`
	Forwarded float64       `json:"forwarded_share"` // of the nodes' calls
	Others    float64       `json:"other_cores"`     // used by other programs meanwhile
}

func (s *series) summarize() {
	s.Median = measured{
		result: result{
			PerSecond: median(s.Runs, func(m measured) float64 { return m.PerSecond }),
			P50:       median(s.Runs, func(m measured) time.Duration { return m.P50 }),
			P99:       median(s.Runs, func(m measured) time.Duration { return m.P99 }),
			Max:       median(s.Runs, func(m measured) time.Duration { return m.Max }),
		},
		CPU:       median(s.Runs, func(m measured) time.Duration { return m.CPU }),
		Forwarded: median(s.Runs, func(m measured) float64 { return m.Forwarded }),
		Others:    median(s.Runs, func(m measured) float64 { return m.Others }),
	}
	for _, run := range s.Runs {
		s.Median.Calls += run.Calls
		s.Median.Failed += run.Failed
		if s.Median.FirstFail == "" {
			s.Median.FirstFail = run.FirstFail
		}
	}
}

// median returns the middle figure of the runs; the lower one of two.
func median[T float64 | time.Duration](runs []measured, figure func(measured) T) T {
	all := make([]T, len(runs))
	for i, run := range runs {
		all[i] = figure(run)
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// spread returns the least and the greatest figure of the runs.
func spread(runs []measured, figure func(measured) time.Duration) (least, most time.Duration) {
	least, most = figure(runs[0]), figure(runs[0])
	for _, run := range runs[1:] {
		least, most = min(least, figure(run)), max(most, figure(run))
	}
	return least, most
}

func (r *report) failures() (n int64) {
	for _, all := range [][]*series{r.Affinity, r.Added, r.CPU} {
		for _, one := range all {
			n += one.Median.Failed
		}
	}
	return n
}

func (r *report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	for name, data := range map[string][]byte{"bench.json": append(data, '\n'), "bench.md": []byte(r.markdown())} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	return nil
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Point reads of 100 bytes; load, sidecar and three nodes share %d cores (%s); medians of %d runs of %s, range in brackets. Other programs used `other cores`; above %.1f a run was repeated once.\n",
		runtime.NumCPU(), runtime.Version(), r.Repeats, r.Duration, quiet)
	fmt.Fprintf(&b, "\nOpen loop, %d calls/s, `POST /v1/query` (vegeta):\n\n", r.Rate)
	table(&b, r.Affinity)
	fmt.Fprintf(&b, "\nOpen loop, %d calls/s, gRPC, latency from the instant at which a call was due:\n\n", r.Rate)
	table(&b, r.Added)
	if len(r.Added) == 2 {
		direct, through := r.Added[0].Median, r.Added[1].Median
		fmt.Fprintf(&b, "\nAdded by the sidecar: p50 %s, p99 %s.\n", us(through.P50-direct.P50), us(through.P99-direct.P99))
	}
	b.WriteString("\nClosed loop, gRPC through the sidecar:\n\n")
	table(&b, r.CPU)
	fmt.Fprintf(&b, "\nResident memory of the sidecar: %.1f MiB at rest, %.1f MiB with %d calls open.\n",
		float64(r.RSSIdle)/(1<<20), float64(r.RSSOpen)/(1<<20), r.OpenCalls)
	return b.String()
}

func table(b *strings.Builder, all []*series) {
	b.WriteString("| | calls/s | p50 | p99 | sidecar CPU a call | forwarded | other cores | failed |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, one := range all {
		m, cpu := one.Median, "-"
		if m.CPU > 0 {
			least, most := spread(one.Runs, func(m measured) time.Duration { return m.CPU })
			cpu = fmt.Sprintf("%s (%d-%d)", us(m.CPU), least.Microseconds(), most.Microseconds())
		}
		failed := fmt.Sprint(m.Failed)
		if m.FirstFail != "" {
			failed += ": " + strings.ReplaceAll(m.FirstFail, "|", `\|`)
		}
		fmt.Fprintf(b, "| %s | %.0f | %s | %s | %s | %.3f | %.2f | %s |\n",
			one.Name, m.PerSecond, us(m.P50), us(m.P99), cpu, m.Forwarded, m.Others, failed)
	}
}

// us writes a duration in microseconds, as the only unit of the tables.
func us(d time.Duration) string { return fmt.Sprintf("%d us", d.Microseconds()) }
