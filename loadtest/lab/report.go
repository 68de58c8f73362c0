package lab

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is what an experiment found, in the order in which it is read.
type Report struct {
	Experiment string            `json:"experiment"`
	Title      string            `json:"title"`
	Question   string            `json:"question"`
	Published  string            `json:"published,omitempty"`
	Size       string            `json:"size"`
	Command    string            `json:"command"`
	Machine    Machine           `json:"machine"`
	Versions   map[string]string `json:"versions"` // of the programs that took part
	Begun      time.Time         `json:"begun"`
	Took       string            `json:"took"`
	Sections   []Section         `json:"sections"`
	Faults     []string          `json:"faults,omitempty"` // what must never be, whatever the speed
	files      map[string][]byte
}

// Section is a part of a report: a text, a table, a picture, or several of them.
type Section struct {
	Title   string   `json:"title,omitempty"`
	Text    string   `json:"text,omitempty"` // Markdown
	Table   *Table   `json:"table,omitempty"`
	Picture *Picture `json:"picture,omitempty"`
}

// Table is a case with its runs.
type Table struct {
	Name     string     `json:"name"`
	Title    string     `json:"title"`
	Text     string     `json:"text,omitempty"`
	Baseline string     `json:"baseline,omitempty"`
	Figures  []string   `json:"figures"`
	Ratios   []string   `json:"ratios,omitempty"`
	Added    []string   `json:"added,omitempty"`
	Chart    string     `json:"chart,omitempty"`
	Rows     []*Row     `json:"rows"`
	Claims   []*Verdict `json:"claims,omitempty"`
}

// Row is a variant in a case.
type Row struct {
	Variant   string              `json:"variant"`
	Calls     int64               `json:"calls"`
	Failed    int64               `json:"failed"`
	FirstFail string              `json:"first_failure,omitempty"`
	Closed    bool                `json:"closed_loop"`
	Foreign   bool                `json:"foreign,omitempty"`   // its failures do not fail the experiment
	Saturated map[string]int      `json:"saturated,omitempty"` // in how many runs a role used the processors up
	Disturbed int                 `json:"disturbed,omitempty"` // runs that were made again because of other programs
	Figures   map[string]Estimate `json:"figures"`
	Ratios    map[string]Estimate `json:"ratios,omitempty"` // to the baseline, round by round
	Added     map[string]Estimate `json:"added,omitempty"`  // to the baseline's, round by round
	Runs      []Run               `json:"-"`                // they are in runs.txt
}

// Run is one run with its figures.
type Run struct {
	Closed    bool
	Calls     int64
	Failed    int64
	FirstFail string
	Figures   Figures
	Saturated string
	Again     bool
	hist      *hdrhistogram.Histogram
}

// Verdict is a claim with what was measured.
type Verdict struct {
	Text    string   `json:"text"`
	Variant string   `json:"variant"`
	Figure  string   `json:"figure"`
	Goal    string   `json:"goal"`
	Value   Estimate `json:"value"`
	Verdict string   `json:"verdict"` // met, missed, not measured; with "not decided" if the interval holds the goal
	claim   Claim
}

// Machine is what the figures were measured on.
type Machine struct {
	Cores  int    `json:"cores"`
	CPU    string `json:"cpu"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// ThisMachine tells what this is.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	var name syscall.Utsname
	if syscall.Uname(&name) == nil {
		for _, c := range name.Release {
			if c == 0 {
				break
			}
			m.Kernel += string(rune(c))
		}
	}
	data, _ := os.ReadFile("/proc/cpuinfo") // without it there is no name
	for line := range strings.Lines(string(data)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}

func newReport(e Experiment, o Options) *Report {
	r := &Report{Experiment: e.Name, Title: e.Title, Question: e.Question, Published: e.Published, Size: o.Size.String(),
		Command: strings.Join(append([]string{"go run ./loadtest", e.Name}, o.Arguments...), " "),
		Machine: ThisMachine(), Versions: map[string]string{}, Begun: time.Now().UTC().Truncate(time.Second)}
	for _, program := range o.Sidecars {
		r.Version(program)
	}
	return r
}

// versionTime bounds how long a program may take to tell its version: one that does not know the question may serve instead.
const versionTime = 10 * time.Second

// Version notes the version of a program of ours: what it says of itself, or
// what it was built from.
func (r *Report) Version(program string) {
	ctx, cancel := context.WithTimeout(context.Background(), versionTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "version").Output()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil || line == "" {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			line = "unknown"
		} else {
			line = info.GoVersion
		}
	}
	r.Versions[filepath.Base(filepath.Dir(program))+"/"+filepath.Base(program)] = line
}

// Add adds a section.
func (r *Report) Add(s Section) { r.Sections = append(r.Sections, s) }

// Fault notes what must never be, whatever the speed: it is shown first, and the exit code is 1.
func (r *Report) Fault(format string, args ...any) {
	r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
}

// Note adds a paragraph.
func (r *Report) Note(format string, args ...any) { r.Add(Section{Text: fmt.Sprintf(format, args...)}) }

// File adds a file to the directory of the report: a profile, a list.
func (r *Report) File(name string, data []byte) {
	if r.files == nil {
		r.files = map[string][]byte{}
	}
	r.files[name] = data
}

func newTable(c Case) *Table {
	t := &Table{Name: c.Name, Title: c.Title, Text: c.Text, Baseline: c.Baseline, Figures: c.Figures, Ratios: c.Ratios,
		Added: c.Added, Chart: c.Chart}
	if t.Figures == nil {
		t.Figures = DefaultFigures
	}
	if t.Ratios == nil && t.Baseline != "" {
		t.Ratios = []string{CPU, P50, P99}
	}
	for _, v := range c.Variants {
		t.Rows = append(t.Rows, &Row{Variant: v.Name, Foreign: v.Foreign})
	}
	for _, claim := range c.Claims {
		t.Claims = append(t.Claims, &Verdict{Text: claim.Text, Variant: claim.Variant, Figure: claim.Figure, claim: claim})
	}
	return t
}

// NewTable makes a table of runs that were not made by Compare.
func NewTable(c Case, runs [][]Run) *Table {
	t := newTable(c)
	for i, r := range t.Rows {
		r.Runs = runs[i]
	}
	t.summarize()
	return t
}

// Row returns a variant's row, or nil.
func (t *Table) Row(variant string) *Row {
	for _, r := range t.Rows {
		if r.Variant == variant {
			return r
		}
	}
	return nil
}

// Median returns the median of a variant's figure; false if it has none.
func (t *Table) Median(variant, figure string) (float64, bool) {
	if r := t.Row(variant); r != nil {
		e, ok := r.Figures[figure]
		return e.Median, ok
	}
	return 0, false
}

// pairs makes values of the runs of the same round of two rows.
func pairs(a, b *Row, figure string, f func(a, b float64) float64) (all []float64) {
	if a == nil || b == nil {
		return nil
	}
	for i := range min(len(a.Runs), len(b.Runs)) {
		x, has := a.Runs[i].Figures[figure]
		y, have := b.Runs[i].Figures[figure]
		if has && have && y != 0 {
			all = append(all, f(x, y))
		}
	}
	return all
}

func byRatio(a, b float64) float64      { return a / b }
func byDifference(a, b float64) float64 { return a - b }

func (t *Table) summarize() {
	base := t.Row(t.Baseline)
	for _, r := range t.Rows {
		r.Calls, r.Failed, r.Disturbed, r.Saturated = 0, 0, 0, nil
		values := map[string][]float64{}
		for _, run := range r.Runs {
			r.Calls += run.Calls
			r.Failed += run.Failed
			r.FirstFail = cmp.Or(r.FirstFail, run.FirstFail)
			r.Closed = run.Closed
			if run.Again {
				r.Disturbed++
			}
			if run.Saturated != "" {
				if r.Saturated == nil {
					r.Saturated = map[string]int{}
				}
				r.Saturated[run.Saturated]++
			}
			for name, value := range run.Figures {
				values[name] = append(values[name], value)
			}
		}
		r.Figures, r.Ratios, r.Added = map[string]Estimate{}, map[string]Estimate{}, map[string]Estimate{}
		for name, all := range values {
			r.Figures[name] = estimate(all)
		}
		for _, name := range t.Ratios {
			if all := pairs(r, base, name, byRatio); r != base && len(all) > 0 {
				r.Ratios[name] = estimate(all)
			}
		}
		for _, name := range t.Added {
			if all := pairs(r, base, name, byDifference); r != base && len(all) > 0 {
				r.Added[name] = estimate(all)
			}
		}
	}
	for _, v := range t.Claims {
		v.judge(t)
	}
}

// decided tells that more rounds would not change a verdict.
func (t *Table) decided() bool {
	t.summarize()
	for _, v := range t.Claims {
		if strings.Contains(v.Verdict, undecided) {
			return false
		}
	}
	return true
}

const (
	undecided  = "not decided"
	unmeasured = "not measured"
)

func (v *Verdict) judge(t *Table) {
	c := v.claim
	var all []float64
	row := t.Row(c.Variant)
	switch {
	case row == nil:
	case c.Kind == Ratio:
		all = pairs(row, t.Row(c.Of), c.Figure, byRatio)
	case c.Kind == Difference:
		all = pairs(row, t.Row(c.Of), c.Figure, byDifference)
	default:
		for _, run := range row.Runs {
			if x, ok := run.Figures[c.Figure]; ok {
				all = append(all, x)
			}
		}
	}
	limit, sign := c.Most, "<="
	if limit == 0 {
		limit, sign = c.Least, ">="
	}
	shown := fmt.Sprintf("%.2f", limit)
	if c.Kind != Ratio {
		shown = show(c.Figure, limit)
	}
	v.Goal = sign + " " + shown
	if v.Value = estimate(all); v.Value.N == 0 {
		v.Verdict = unmeasured
		return
	}
	v.Verdict = "missed"
	if sign == "<=" && v.Value.Median <= limit || sign == ">=" && v.Value.Median >= limit {
		v.Verdict = "met"
	}
	if !v.Value.decided(limit) {
		v.Verdict += ", " + undecided
	}
}

// Judge adds a verdict of values that no case made: a sweep's, a search's. A value of nothing (N is 0) was not measured.
func (t *Table) Judge(text, goal string, met bool, value Estimate) {
	verdict := "missed"
	if met {
		verdict = "met"
	}
	if value.N == 0 {
		verdict = unmeasured
	}
	t.Claims = append(t.Claims, &Verdict{Text: text, Goal: goal, Value: value, Verdict: verdict})
}

// Failed counts the calls that failed, except those of foreign variants.
func (r *Report) Failed() (n int64) {
	for _, s := range r.Sections {
		if s.Table == nil {
			continue
		}
		for _, row := range s.Table.Rows {
			if !row.Foreign {
				n += row.Failed
			}
		}
	}
	return n
}

// show writes a figure in a unit that its name tells.
func show(name string, x float64) string {
	base, _, _ := strings.Cut(name, "/")
	switch {
	case strings.HasSuffix(base, "-ns"):
		us := x / 1e3
		switch {
		case us >= 100_000 || us <= -100_000:
			return fmt.Sprintf("%.0f ms", us/1e3)
		case us >= 10_000 || us <= -10_000:
			return fmt.Sprintf("%.1f ms", us/1e3)
		case us >= 100 || us <= -100:
			return fmt.Sprintf("%.0f us", us)
		case us < 1 && us > -1:
			return fmt.Sprintf("%.0f ns", x)
		}
		return fmt.Sprintf("%.1f us", us)
	case strings.HasSuffix(base, "-B"):
		return fmt.Sprintf("%.1f MB", x/1e6)
	case strings.HasSuffix(name, "/s") && x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x == float64(int64(x)) && (x >= 10 || x <= -10):
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// label is the name of a figure without its unit.
func label(name string) string {
	base, of, ok := strings.Cut(name, "/")
	for _, unit := range []string{"-ns", "-B"} {
		base = strings.TrimSuffix(base, unit)
	}
	switch {
	case ok && of == "s":
		return base + "/s"
	case ok:
		return base + " a " + of
	}
	return strings.ReplaceAll(base, "-", " ")
}

func cell(name string, e Estimate, ok bool) string {
	switch {
	case !ok:
		return "-"
	case e.N == 1 || e.Low == e.High:
		return show(name, e.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", show(name, e.Median), show(name, e.Low), show(name, e.High))
}

func ratioCell(e Estimate, ok bool) string {
	switch {
	case !ok:
		return "-"
	case e.N == 1:
		return fmt.Sprintf("%.2f", e.Median)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", e.Median, e.Low, e.High)
}

func (r *Row) loop() string {
	if r.Closed {
		return "closed"
	}
	return "open"
}

func (r *Row) saturated() string {
	if len(r.Saturated) == 0 {
		return "no"
	}
	var all []string
	for _, role := range slices.Sorted(maps.Keys(r.Saturated)) {
		all = append(all, fmt.Sprintf("%s %d of %d", role, r.Saturated[role], len(r.Runs)))
	}
	return strings.Join(all, ", ")
}

func (r *Row) failed() string {
	if r.Failed == 0 {
		return "0"
	}
	return fmt.Sprintf("%d: %s", r.Failed, strings.NewReplacer("|", `\|`, "\n", " ").Replace(r.FirstFail))
}
