package lab

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
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

// Version notes the version of a program of ours: what it says of itself, or
// what it was built from.
func (r *Report) Version(program string) {
	out, err := exec.Command(program, "version").Output()
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
	t := &Table{Name: c.Name, Title: c.Title, Text: c.Text, Baseline: c.Baseline, Figures: c.Figures, Ratios: c.Ratios, Added: c.Added, Chart: c.Chart}
	if t.Figures == nil {
		t.Figures = DefaultFigures
	}
	if t.Ratios == nil && t.Baseline != "" {
		t.Ratios = []string{CPU, P50, P99}
	}
	for _, v := range c.Variants {
		t.Rows = append(t.Rows, &Row{Variant: v.Name})
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

const undecided = "not decided"

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
		v.Verdict = "not measured"
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

// Judge adds a verdict of values that no case made: a sweep's, a search's.
func (t *Table) Judge(text, goal string, met bool, value Estimate) {
	verdict := "missed"
	if met {
		verdict = "met"
	}
	t.Claims = append(t.Claims, &Verdict{Text: text, Goal: goal, Value: value, Verdict: verdict})
}

// Failed counts the calls that failed.
func (r *Report) Failed() (n int64) {
	for _, s := range r.Sections {
		if s.Table == nil {
			continue
		}
		for _, row := range s.Table.Rows {
			n += row.Failed
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

// Markdown returns the report without what is only in files.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n    %s\n\n", r.Title, strings.TrimSpace(r.Question), r.Command)
	fmt.Fprintf(&b, "%s, %d cores (%s, Linux %s, %s), shared by load, sidecar and everything else that an experiment starts; size %s, took %s.\n",
		r.Begun.Format(time.DateOnly), r.Machine.Cores, r.Machine.CPU, r.Machine.Kernel, r.Machine.Go, r.Size, r.Took)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(&b, "%s: %s. ", name, r.Versions[name])
	}
	b.WriteString("\nFigures are medians; in brackets the 95 % interval of the median, or the least and the greatest of fewer than six rounds. Ratios are of runs of the same round.\n\n")
	for _, fault := range r.Faults {
		fmt.Fprintf(&b, "**FAULT: %s**\n\n", fault)
	}
	pictures := 0
	for _, s := range r.Sections {
		if s.Title != "" {
			fmt.Fprintf(&b, "## %s\n\n", s.Title)
		}
		if s.Text != "" {
			fmt.Fprintf(&b, "%s\n\n", strings.TrimSpace(s.Text))
		}
		if s.Table != nil {
			s.Table.markdown(&b)
		}
		if s.Picture != nil {
			pictures++
			fmt.Fprintf(&b, "![%s](%s)\n\n", s.Picture.Title, pictureName(pictures))
		}
	}
	if r.Published != "" {
		fmt.Fprintf(&b, "## Published figures\n\n%s\n", strings.TrimSpace(r.Published))
	}
	return b.String()
}

func pictureName(n int) string { return fmt.Sprintf("picture-%d.svg", n) }

// Markdown returns the table with its title.
func (t *Table) Markdown() string {
	var b strings.Builder
	t.markdown(&b)
	return b.String()
}

func (t *Table) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "### %s\n\n", t.Title)
	if t.Text != "" {
		fmt.Fprintf(b, "%s\n\n", strings.TrimSpace(t.Text))
	}
	if len(t.Rows) > 0 {
		head, line := "| |", "|---|"
		figures := slices.DeleteFunc(slices.Clone(t.Figures), func(name string) bool {
			return !slices.ContainsFunc(t.Rows, func(r *Row) bool { _, ok := r.Figures[name]; return ok })
		})
		for _, name := range figures {
			head, line = head+" "+label(name)+" |", line+"--:|"
		}
		for _, name := range t.Added {
			head, line = head+" "+label(name)+", more than "+t.Baseline+" |", line+"--:|"
		}
		for _, name := range t.Ratios {
			head, line = head+" "+label(name)+", of "+t.Baseline+" |", line+"--:|"
		}
		fmt.Fprintf(b, "%s loop | saturated | failed |\n%s---|---|--:|\n", head, line)
		for _, r := range t.Rows {
			fmt.Fprintf(b, "| %s |", r.Variant)
			for _, name := range figures {
				e, ok := r.Figures[name]
				fmt.Fprintf(b, " %s |", cell(name, e, ok))
			}
			for _, name := range t.Added {
				e, ok := r.Added[name]
				fmt.Fprintf(b, " %s |", cell(name, e, ok))
			}
			for _, name := range t.Ratios {
				e, ok := r.Ratios[name]
				fmt.Fprintf(b, " %s |", ratioCell(e, ok))
			}
			fmt.Fprintf(b, " %s | %s | %s |\n", r.loop(), r.saturated(), r.failed())
		}
		b.WriteString("\n")
		t.cores(b)
	}
	if len(t.Claims) > 0 {
		b.WriteString("| claim | goal | measured | |\n|---|--:|--:|---|\n")
		for _, v := range t.Claims {
			value := ratioCell(v.Value, v.Value.N > 0)
			if v.claim.Kind != Ratio && v.Figure != "" {
				value = cell(v.Figure, v.Value, v.Value.N > 0)
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s |\n", v.Text, v.Goal, value, v.Verdict)
		}
		b.WriteString("\n")
	}
}

// cores writes what each process used of the processors.
func (t *Table) cores(b *strings.Builder) {
	var roles []string
	for _, r := range t.Rows {
		for name := range r.Figures {
			if strings.HasSuffix(name, "-cores") && !slices.Contains(roles, name) {
				roles = append(roles, name)
			}
		}
	}
	if slices.Sort(roles); len(roles) == 0 {
		return
	}
	fmt.Fprintf(b, "Cores used (CPU seconds a second):")
	for _, r := range t.Rows {
		fmt.Fprintf(b, " *%s*", r.Variant)
		for _, name := range roles {
			if e, ok := r.Figures[name]; ok && e.Median >= 0.005 {
				fmt.Fprintf(b, " %s %.2f", strings.TrimSuffix(name, "-cores"), e.Median)
			}
		}
		b.WriteString(";")
	}
	b.WriteString("\n\n")
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

// pictureLink matches a picture in Markdown. report.md names pictures without a
// link, because it is kept in the repository and they are not.
var pictureLink = regexp.MustCompile(`!\[([^\]]*)\]\(([^)]*)\)`)

// Write writes the report into a directory: report.md, report.html,
// summary.json, every run in the format of Go's benchmarks (runs.txt, for
// benchstat) and every run's latencies as an HDR log (latencies.hlog).
func (r *Report) Write(dir string) error {
	r.Took = time.Since(r.Begun).Round(time.Second).String()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	files := maps.Clone(r.files)
	if files == nil {
		files = map[string][]byte{}
	}
	pictures := 0
	for _, s := range r.Sections {
		if s.Picture == nil {
			continue
		}
		svg, err := s.Picture.svg()
		if err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
		pictures++
		files[pictureName(pictures)] = svg
	}
	text := r.Markdown()
	page, err := r.html(text, files)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	summary, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	files["report.md"] = pictureLink.ReplaceAll([]byte(text), []byte("Picture: $1 (`$2`)."))
	files["report.html"], files["summary.json"], files["runs.txt"] = page, append(summary, '\n'), r.runs()
	if files["latencies.hlog"], err = r.latencies(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	var errs []error
	for name, data := range files {
		path := filepath.Join(dir, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644))
	}
	return errors.Join(errs...)
}

var page = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Title}}</title>
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}
td,th{border:1px solid #d0d7de;padding:.25rem .6rem;font-variant-numeric:tabular-nums;white-space:nowrap}th{background:#f6f8fa}pre{background:#f6f8fa;padding:.8rem;overflow-x:auto}svg,img{max-width:100%;height:auto}</style>
{{.Body}}</html>
`))

var image = regexp.MustCompile(`<img src="([^"]+\.svg)"[^>]*>`)

// html is the Markdown as a page that needs no other file.
func (r *Report) html(text string, files map[string][]byte) ([]byte, error) {
	var body, out bytes.Buffer
	if err := goldmark.New(goldmark.WithExtensions(extension.Table)).Convert([]byte(text), &body); err != nil {
		return nil, err
	}
	whole := image.ReplaceAllFunc(body.Bytes(), func(tag []byte) []byte {
		if svg, ok := files[string(image.FindSubmatch(tag)[1])]; ok {
			return svg[max(0, bytes.Index(svg, []byte("<svg"))):]
		}
		return tag
	})
	// goldmark leaves out HTML that is in the text, so nothing in it can become a script; the pictures are our own.
	err := page.Execute(&out, map[string]any{"Title": r.Title, "Body": template.HTML(whole)})
	return out.Bytes(), err
}

// word makes a name one word of a benchmark's name.
func word(name string) string {
	return strings.Map(func(c rune) rune {
		if c == ' ' || c == '/' || c == ',' || c == '\t' {
			return '_'
		}
		return c
	}, strings.ReplaceAll(name, ", ", "_"))
}

// runs is every run, in the format of Go's benchmarks (golang.org/design/14313-benchmark-format).
func (r *Report) runs() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\npkg: loadtest/%s\ncpu: %s\ncores: %d\n", runtime.GOOS, runtime.GOARCH, r.Experiment, r.Machine.CPU, r.Machine.Cores)
	for _, s := range r.Sections {
		if s.Table == nil {
			continue
		}
		for _, row := range s.Table.Rows {
			for _, run := range row.Runs {
				fmt.Fprintf(&b, "Benchmark%s/%s/%s %d", word(r.Experiment), word(s.Table.Name), word(row.Variant), max(1, run.Calls))
				for _, name := range slices.Sorted(maps.Keys(run.Figures)) {
					fmt.Fprintf(&b, " %.6g %s", run.Figures[name], name)
				}
				fmt.Fprintln(&b)
			}
		}
	}
	return b.Bytes()
}

// latencies is every run's histogram as a log of HdrHistogram's, in units of 100 ns.
func (r *Report) latencies() ([]byte, error) {
	var b bytes.Buffer
	w := hdrhistogram.NewHistogramLogWriter(&b)
	errs := []error{w.OutputLogFormatVersion(), w.OutputLegend()}
	for _, s := range r.Sections {
		if s.Table == nil {
			continue
		}
		for _, row := range s.Table.Rows {
			for i, run := range row.Runs {
				if run.hist == nil || run.hist.TotalCount() == 0 {
					continue
				}
				run.hist.SetTag(fmt.Sprintf("%s/%s/%d", word(s.Table.Name), word(row.Variant), i+1))
				errs = append(errs, w.OutputIntervalHistogram(run.hist))
			}
		}
	}
	return b.Bytes(), errors.Join(errs...)
}
