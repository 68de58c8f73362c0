package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Second is what callers saw of half a second, by the time at which calls were due.
type Second struct {
	At     float64        `json:"at_s"`
	Good   float64        `json:"good_per_second"` // operations and streams that succeeded
	P99    float64        `json:"p99_ms"`
	Failed map[string]int `json:"failed,omitempty"` // by class: idempotent, safe, unknown, final
}

const grain = 500 * time.Millisecond

// seconds cuts the run into parts.
func (r *recorder) seconds() []Second {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Second
	var took [][]time.Duration
	for _, s := range r.all {
		i := int(s.due / grain)
		for len(out) <= i {
			out = append(out, Second{At: (time.Duration(len(out)) * grain).Seconds()})
			took = append(took, nil)
		}
		if s.failed == nil {
			out[i].Good += 1 / grain.Seconds()
		} else {
			if out[i].Failed == nil {
				out[i].Failed = map[string]int{}
			}
			class := s.failed.class()
			if s.idempotent {
				class = "idempotent"
			}
			out[i].Failed[class]++
		}
		if s.kind != stream {
			took[i] = append(took[i], s.ended-s.due)
		}
	}
	for i := range out {
		slices.Sort(took[i])
		out[i].P99 = ms(quantile(took[i], 0.99))
	}
	return out
}

// Report is what came of all runs.
type Report struct {
	When     string      `json:"when"`
	Machine  string      `json:"machine"`
	Settings []string    `json:"settings"` // of the sidecar, beside the defaults
	Broken   string      `json:"switched_off,omitempty"`
	Rows     []RowReport `json:"rows"` // in the order of the runs
	Proofs   []Proof     `json:"with_a_mechanism_off,omitempty"`
}

// RowReport is one row with all its seeds.
type RowReport struct {
	Row    string    `json:"row"`
	Event  string    `json:"event"`
	Seeds  []uint64  `json:"seeds"`
	Failed []uint64  `json:"failed,omitempty"` // seeds of runs that missed a goal
	Errors []string  `json:"not_judged,omitempty"`
	Worst  *Result   `json:"worst,omitempty"` // of the runs that could be judged
	Brief  []Summary `json:"runs"`
}

// Proof is a run with a mechanism switched off.
type Proof struct {
	Off    string   `json:"off"`
	Row    string   `json:"row"`
	Found  bool     `json:"found"` // the goal that is about it was missed
	Missed []string `json:"missed"`
}

// Prove runs the rows with mechanisms switched off, one after the other, and adds what they found.
func (r *Report) Prove(ctx context.Context, o Options) error {
	o.Quick, o.Apps = true, false
	for _, p := range Proofs {
		o.Break = p.Break
		result, err := Run(ctx, o, p.Row, 1)
		if err != nil {
			return err
		}
		proof := Proof{Off: p.Break, Row: p.Row}
		for _, g := range result.Failed() {
			proof.Missed = append(proof.Missed, g.Name+": "+g.Got)
			proof.Found = proof.Found || strings.Contains(g.Name, p.Missed)
		}
		r.Proofs = append(r.Proofs, proof)
	}
	return nil
}

// Summary is one run in short.
type Summary struct {
	Seed    uint64         `json:"seed"`
	OK      bool           `json:"ok"`
	Missed  []Goal         `json:"missed,omitempty"`
	Figures map[string]any `json:"figures"`
	Errors  map[string]int `json:"errors,omitempty"`
}

// NewReport begins a report of runs with the given options.
func NewReport(o Options) *Report {
	return &Report{When: time.Now().UTC().Format(time.RFC3339), Machine: fmt.Sprintf("%d cores, %s", runtime.NumCPU(), runtime.Version()),
		Settings: slices.Concat(base, o.Settings, Breaks[o.Break]), Broken: o.Break, Rows: []RowReport{}}
}

// Add adds a run, or the reason why it could not be judged.
func (r *Report) Add(name string, seed uint64, result *Result, err error) {
	i := slices.IndexFunc(r.Rows, func(one RowReport) bool { return one.Row == name })
	if i < 0 {
		i = len(r.Rows)
		r.Rows = append(r.Rows, RowReport{Row: name})
	}
	one := &r.Rows[i]
	one.Seeds = append(one.Seeds, seed)
	if err != nil {
		one.Errors = append(one.Errors, err.Error())
		return
	}
	one.Event = result.Event
	one.Brief = append(one.Brief,
		Summary{Seed: seed, OK: result.OK, Missed: result.Failed(), Figures: result.Figures, Errors: result.Errors})
	if !result.OK {
		one.Failed = append(one.Failed, seed)
	}
	if one.Worst == nil || worse(result, one.Worst) {
		one.Worst = result
	}
}

// Take takes over the runs of the report in dir, of rows and seeds that r does not
// have: a long run can be made in parts.
func (r *Report) Take(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		return fmt.Errorf("take over a report: %w", err)
	}
	var from Report
	if err := json.Unmarshal(data, &from); err != nil {
		return fmt.Errorf("take over %s: %w", dir, err)
	}
	if !slices.Equal(from.Settings, r.Settings) || from.Machine != r.Machine {
		return fmt.Errorf("take over %s: it is of %s with %q, this one of %s with %q", dir, from.Machine, from.Settings,
			r.Machine, r.Settings)
	}
	for _, theirs := range from.Rows {
		i := slices.IndexFunc(r.Rows, func(one RowReport) bool { return one.Row == theirs.Row })
		if i < 0 {
			r.Rows = append(r.Rows, theirs)
			continue
		}
		ours := &r.Rows[i]
		if slices.ContainsFunc(theirs.Seeds, func(seed uint64) bool { return slices.Contains(ours.Seeds, seed) }) {
			return fmt.Errorf("take over %s: row %s has seeds that are there already", dir, theirs.Row)
		}
		ours.Event = cmp.Or(ours.Event, theirs.Event)
		ours.Seeds = append(ours.Seeds, theirs.Seeds...)
		ours.Failed = append(ours.Failed, theirs.Failed...)
		ours.Errors = append(ours.Errors, theirs.Errors...)
		ours.Brief = append(ours.Brief, theirs.Brief...)
		if ours.Worst == nil || theirs.Worst != nil && worse(theirs.Worst, ours.Worst) {
			ours.Worst = theirs.Worst
		}
	}
	return nil
}

// Has reports whether the row was run with the seed.
func (r *Report) Has(name string, seed uint64) bool {
	return slices.ContainsFunc(r.Rows, func(one RowReport) bool { return one.Row == name && slices.Contains(one.Seeds, seed) })
}

// worse: more goals missed, then the greater p99 against normal, then the later ejection.
func worse(a, b *Result) bool {
	if x, y := len(a.Failed()), len(b.Failed()); x != y {
		return x > y
	}
	for _, figure := range []string{"p99 after/normal", "ejected after ms", "out of use after ms", "fair after ms", "failed"} {
		x, y := number(a.Figures[figure]), number(b.Figures[figure])
		if x != y {
			return x > y
		}
	}
	return false
}

func number(v any) float64 {
	switch v := v.(type) {
	case float64:
		return v
	case int:
		return float64(v)
	case int64:
		return float64(v)
	}
	return 0
}

// Failed returns how many runs missed a goal or could not be judged.
func (r *Report) Failed() (n int) {
	for _, one := range r.Rows {
		n += len(one.Failed) + len(one.Errors)
	}
	for _, p := range r.Proofs {
		if !p.Found {
			n++
		}
	}
	return n
}

// Write writes report.json, for Take.
func (r *Report) Write(dir string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err == nil {
		err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "report.json"), append(data, '\n'), 0o644))
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// Markdown is a table with the worst run of each row, and what was missed.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Settings beside the defaults: `%s`.\n\n", strings.Join(r.Settings, "` `"))
	b.WriteString("| event | seeds | good | worst seed | figures of the worst |\n|---|--:|--:|--:|---|\n")
	for _, one := range r.Rows {
		seed, figures := "-", strings.Join(one.Errors, "; ")
		if one.Worst != nil {
			seed, figures = fmt.Sprint(one.Worst.Seed), strings.Join(append(one.Worst.lines(), one.Errors...), "; ")
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %s | %s |\n", cmp.Or(one.Event, one.Row), len(one.Seeds),
			len(one.Seeds)-len(one.Failed)-len(one.Errors), seed, cell(figures))
	}
	for _, one := range r.Rows {
		for _, run := range one.Brief {
			for _, g := range run.Missed {
				timed := ""
				if g.Timed {
					timed = " (depends on the machine)"
				}
				fmt.Fprintf(&b, "\n- %s, seed %d missed%s: %s: %s", one.Row, run.Seed, timed, g.Name, g.Got)
			}
		}
	}
	b.WriteString("\n")
	if len(r.Proofs) > 0 {
		b.WriteString("\nWith a mechanism switched off the same harness must fail:\n\n| off | row | found | missed |\n|---|---|---|---|\n")
	}
	for _, p := range r.Proofs {
		fmt.Fprintf(&b, "| %s | %s | %v | %s |\n", p.Off, p.Row, p.Found, cell(strings.Join(p.Missed, "; ")))
	}
	return b.String()
}

func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", `\|`), "\n", " ")
}

// lines are the figures of a run in words.
func (r *Result) lines() []string {
	var out []string
	for name, value := range r.Figures {
		out = append(out, fmt.Sprintf("%s %v", name, value))
	}
	slices.Sort(out)
	if r.Normal != nil {
		out = append(out, fmt.Sprintf("p99 %.1f ms, normal %.1f ms", r.After.P99, r.Normal.P99))
		if r.Others > quiet {
			out = append(out, fmt.Sprintf("other programs used %.1f cores", r.Others))
		}
	}
	if b := r.Books; b != nil {
		out = append(out, fmt.Sprintf("%d writes acknowledged, %d refused, %d unknown", b.Acknowledged, b.Refused, b.Unknown))
	}
	return out
}
