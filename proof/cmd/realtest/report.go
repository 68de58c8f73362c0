package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/rules"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// report is everything that a run found out.
type report struct {
	options options
	target  rules.Target
	secrets []string
	nodes   []string
	began   time.Time
	took    time.Duration

	before, after, left []string // what the database has; left: what came during the run
	rules               []rules.Result
	tests, sdks         []outcome
	restart             *restarted
	wrong               []string // why the run failed
}

func (r *report) fail(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

func (r *report) progress(format string, args ...any) {
	fmt.Fprintln(os.Stderr, r.hide(fmt.Sprintf(format, args...)))
}

// hidden is an error without the secrets.
func hidden(err error, secrets []string) error { return errors.New(without(err.Error(), secrets)) }

func without(text string, secrets []string) string {
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "***")
		}
	}
	return text
}

// hide takes out of a text what is secret, and with -hide-host every address and the database.
func (r *report) hide(text string) string {
	text = without(text, r.secrets)
	if !r.options.hide {
		return text
	}
	replace := func(what, by string) {
		if what != "" {
			text = strings.ReplaceAll(text, what, by)
		}
	}
	addresses := []string{r.target.Address}
	replace(r.target.Address, "(endpoint)")
	for i, n := range r.nodes {
		_, address, _ := strings.Cut(n, " at ")
		addresses = append(addresses, address)
		replace(address, fmt.Sprintf("node-%d", i+1))
	}
	for _, address := range addresses {
		if host, _, err := net.SplitHostPort(address); err == nil {
			replace(host, "(host)")
		}
	}
	replace(r.target.Database, "(database)")
	return text
}

// count counts the rules by verdict.
func (r *report) count(v rules.Verdict) (n int) {
	for _, rule := range r.rules {
		if rule.Verdict == v {
			n++
		}
	}
	return n
}

func passed(tests []outcome) (n int) {
	for _, t := range tests {
		if t.result == "pass" {
			n++
		}
	}
	return n
}

// matrix are the outcomes of the SDK matrix: by client, and there by where it ran, in order. A client that was skipped is there alone.
type matrix struct {
	clients []string
	where   []string
	at      map[[2]string]outcome
}

func newMatrix(tests []outcome) matrix {
	m := matrix{at: map[[2]string]outcome{}}
	for _, t := range tests {
		_, name, _ := strings.Cut(t.name, "/")
		client, where, _ := strings.Cut(name, "/")
		if client == "" {
			continue // the test as a whole
		}
		m.at[[2]string{client, where}] = t
		if where == "" {
			m.clients = append(m.clients, client)
		} else if !slices.Contains(m.where, where) {
			m.where = append(m.where, where)
		}
	}
	return m
}

// ran are the runs of a client in one place, and how many of them passed.
func (m matrix) ran() (passed, all int) {
	for at, t := range m.at {
		if at[1] != "" && t.result != "skip" {
			all++
			if t.result == "pass" {
				passed++
			}
		}
	}
	return passed, all
}

// text is the matrix as a table.
func (m matrix) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| client | %s |\n|---|%s\n", strings.Join(m.where, " | "), strings.Repeat("---|", len(m.where)))
	for _, client := range m.clients {
		fmt.Fprintf(&b, "| %s |", strings.ReplaceAll(client, "_", " "))
		for _, where := range m.where {
			switch t, ok := m.at[[2]string{client, where}]; {
			case !ok:
				fmt.Fprintf(&b, " left out: %s |", cell(m.at[[2]string{client, ""}].why))
			case t.result == "skip":
				fmt.Fprintf(&b, " left out: %s |", cell(t.why))
			case t.result == "pass":
				fmt.Fprintf(&b, " passes, %.1f s |", t.took)
			default:
				fmt.Fprintf(&b, " **%s** |", t.result)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// summary is one line.
func (r *report) summary() string {
	good, all := newMatrix(r.sdks).ran()
	return fmt.Sprintf(
		"%d rules as expected, %d differ, %d not asked, %d failed; %d of %d tests passed; %d of %d runs of SDKs passed; the report is %s",
		r.count(rules.Same), r.count(rules.Differs), r.count(rules.NotAsked), r.count(rules.Failed), passed(r.tests),
		len(r.tests), good, all, r.options.report,
	)
}

var lineEnd = regexp.MustCompile(`\s*\n\s*`)

// cell makes a text fit into a table.
func cell(text string) string {
	return strings.ReplaceAll(cut(lineEnd.ReplaceAllString(strings.TrimSpace(text), " "), 300), "|", `\|`)
}

// printer writes a line.
type printer func(format string, args ...any)

// text is the report.
func (r *report) text() string {
	var b strings.Builder
	p := printer(func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) })
	sdks := newMatrix(r.sdks)
	r.subject(p)
	r.result(p, sdks)
	r.findings(p)
	r.answers(p)
	r.runs(p, sdks)
	p("\n## The database before and after\n")
	p("%d entries before, %d after; the names of those that were there before are not listed. New: %s.", len(r.before),
		len(r.after), cmp.Or(strings.Join(r.left, ", "), "none"))
	return r.hide(b.String())
}

// subject is what was asked, by what.
func (r *report) subject(p printer) {
	p("# ydb-sidecar against a YDB cluster\n")
	p("Written by `make test-real` (docs/dev/real-ydb.md). It has no token, user or password.\n")
	p("| | |\n|---|---|")
	p("| date | %s, took %v |", r.began.UTC().Format(time.RFC3339), r.took.Round(time.Second))
	p("| cluster | `%s`, database `%s` |", r.target.Address, r.target.Database)
	p("| TLS, ticket | %s, %s |", yes(r.target.TLS != nil), yes(r.target.Ticket != ""))
	p("| nodes of discovery | %d: %s |", len(r.nodes), cell(strings.Join(r.nodes, ", ")))
	p("| server | %s |", cell(r.server()))
	p("| sidecar | %s |", cell(version()))
	p("| Go, system | %s, %s/%s |", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	p("| SDKs of the tests | %s |", cell(versions()))
	p("| directory | `%s` |", r.options.directory)
}

// result is a line for each kind of proof.
func (r *report) result(p printer, sdks matrix) {
	p("\n## Result\n")
	p("| | |\n|---|---|")
	p("| rules as expected | %d |", r.count(rules.Same))
	p("| rules that differ | %d |", r.count(rules.Differs))
	p("| rules not asked | %d |", r.count(rules.NotAsked))
	p("| questions that failed | %d |", r.count(rules.Failed))
	if r.options.tests {
		p("| tests passed | %d of %d |", passed(r.tests), len(r.tests))
	} else {
		p("| tests | not run |")
	}
	if good, all := sdks.ran(); r.options.sdks {
		p("| runs of SDKs passed | %d of %d |", good, all)
	} else {
		p("| SDK matrix | not run |")
	}
	if r.restart != nil {
		p("| calls during the restart | %d, %d of them failed |", r.restart.calls, r.restart.failed())
	} else {
		p("| rolling restart | not run |")
	}
	p("| left in the database | %s |", cell(cmp.Or(strings.Join(r.left, ", "), "nothing")))
	for _, w := range r.wrong {
		p("| **failed** | %s |", cell(w))
	}
}

// findings are the rules that the cluster does not follow.
func (r *report) findings(p printer) {
	if r.count(rules.Differs)+r.count(rules.Failed) > 0 {
		p("\n## Findings\n")
		p("A finding is a rule of the server's sources that this cluster does not follow, or that could not be " +
			"asked for. The development cluster or the sidecar may be wrong there. Please send these in any case.\n")
		p("| rule | wanted | saw | text |\n|---|---|---|---|")
		for _, got := range r.rules {
			if got.Verdict == rules.Differs || got.Verdict == rules.Failed {
				p("| %s | %s | %s | %s |", cell(got.Rule.Says), cell(wanted(got.Rule)),
					cell(cmp.Or(got.Seen.Answer, string(got.Verdict))), cell(got.Seen.Text))
			}
		}
	}
}

// answers are what the cluster said to each question.
func (r *report) answers(p printer) {
	p("\n## Rules\n")
	p("| rule | wanted | saw | text | | ms |\n|---|---|---|---|---|---|")
	for _, got := range r.rules {
		if got.Verdict != rules.Told && len(got.Rule.Want) > 0 {
			verdict := string(got.Verdict)
			if got.Verdict == rules.Differs && got.Seen.Answer == got.Rule.Here {
				verdict += ", as the development cluster"
			}
			p("| %s | %s | %s | %s | %s | %.1f |", cell(got.Rule.Says), cell(wanted(got.Rule)), cell(got.Seen.Answer),
				cell(got.Seen.Text), verdict, got.Took.Seconds()*1000)
		}
	}
	p("\n## Facts\n")
	p("| question | answer | text |\n|---|---|---|")
	for _, got := range r.rules {
		if len(got.Rule.Want) == 0 {
			p("| %s | %s | %s |", cell(got.Rule.Says), cell(cmp.Or(got.Seen.Answer, string(got.Verdict))), cell(got.Seen.Text))
		}
	}
}

// runs are the tests, the matrix of SDKs and the restart.
func (r *report) runs(p printer, sdks matrix) {
	outputs := func(tests []outcome) {
		for _, t := range tests {
			if len(t.output) > 0 {
				p("\n`%s`:\n\n```\n%s\n```", t.name, cut(strings.Join(t.output, "\n"), 6000))
			}
		}
	}
	if len(r.tests) > 0 {
		p("\n## Tests\n")
		p("| test | result | s |\n|---|---|---|")
		for _, t := range r.tests {
			p("| `%s` | %s | %.1f |", t.name, t.result, t.took)
		}
		outputs(r.tests)
	}
	if len(r.sdks) > 0 {
		p("\n## SDK matrix\n")
		p("The steps of docs/reference/sdk-matrix.md with a table of 2,000 rows (20 MiB), directly and through a sidecar in " +
			"each mode. Left out, since they need control of the cluster: the columns with a node killed and with " +
			"one address for all nodes, the counts of sessions and of calls that took a hop, and the look for " +
			"sessions and transactions that were left.\n")
		p("%s", sdks.text())
		outputs(r.sdks)
	}
	if r.restart != nil {
		p("\n## Rolling restart\n")
		p("%s", r.restart.text())
	}
}

// wanted is the answer that follows the rule.
func wanted(rule rules.Rule) string {
	text := strings.Join(rule.Want, " or ")
	if rule.Text != "" {
		text += fmt.Sprintf(", with %q", rule.Text)
	}
	return text
}

// server is what the cluster told of its version.
func (r *report) server() string {
	for _, got := range r.rules {
		if got.Rule.Name == "version" && got.Seen.Text == "" && got.Verdict == rules.Told {
			return got.Seen.Answer
		}
	}
	return "it does not tell its version"
}

func version() string {
	root, err := stand.Root()
	if err != nil {
		return err.Error()
	}
	cmd := exec.Command("tools/version.sh")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(out))
}

// versions are those of the SDKs that the tests use.
func versions() string {
	root, err := stand.Root()
	if err != nil {
		return err.Error()
	}
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Path}} {{.Version}}", "github.com/ydb-platform/ydb-go-sdk/v3",
		"google.golang.org/grpc")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", ", ")
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}
