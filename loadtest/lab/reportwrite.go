package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
)

// Markdown returns the report without what is only in files.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n    %s\n\n", r.Title, strings.TrimSpace(r.Question), r.Command)
	fmt.Fprintf(&b,
		"%s, %d cores (%s, Linux %s, %s), shared by load, sidecar and everything else that an experiment starts; size %s, took %s.\n",
		r.Begun.Format(time.DateOnly), r.Machine.Cores, r.Machine.CPU, r.Machine.Kernel, r.Machine.Go, r.Size, r.Took)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(&b, "%s: %s. ", name, r.Versions[name])
	}
	b.WriteString("\nFigures are medians; in brackets the 95 % interval of the median, or the least and the " +
		"greatest of fewer than six rounds. Ratios are of runs of the same round.\n\n")
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
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\npkg: loadtest/%s\ncpu: %s\ncores: %d\n", runtime.GOOS, runtime.GOARCH,
		r.Experiment, r.Machine.CPU, r.Machine.Cores)
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
