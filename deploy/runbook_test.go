package deploy

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
)

const runbook = "../docs/operations/runbook.md"

// anchors are the headings of the runbook, as a link names them.
func anchors(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(runbook)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, strings.ReplaceAll(strings.ToLower(m[1]), " ", "-"))
	}
	for _, m := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(string(text), -1) {
		if !slices.Contains(all, m[1]) {
			t.Errorf("the runbook links to #%s, which it has not", m[1])
		}
	}
	return all
}

// The page, the commands, the alerts and the runbook call a thing by one name.
func TestEachFindingHasItsPageOfTheRunbookAndItsAlert(t *testing.T) {
	text, err := os.ReadFile("prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations struct {
					Runbook string `yaml:"runbook_url"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	known := anchors(t)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			_, anchor, ok := strings.Cut(r.Annotations.Runbook, "/docs/operations/runbook.md#")
			if r.Alert == "" || anchor == "{{ $labels.ydb_sidecar_code | toLower }}" {
				continue // a recording, or a link to the section of whichever finding it is
			}
			if !ok || !slices.Contains(known, anchor) {
				t.Errorf("%s has the runbook %q; want a heading of docs/operations/runbook.md: %q", r.Alert, r.Annotations.Runbook, known)
			}
			if m := regexp.MustCompile(`ydb_sidecar_code="([A-Z_]+)"`).FindStringSubmatch(r.Expr); m != nil {
				if anchor != strings.ToLower(m[1]) {
					t.Errorf("%s is about %s and leads to %q", r.Alert, m[1], anchor)
				}
				if !slices.ContainsFunc(findings.Kinds, func(k findings.Kind) bool { return string(k.Code) == m[1] }) {
					t.Errorf("%s is about %s, which is no finding", r.Alert, m[1])
				}
			}
		}
	}
	for _, k := range findings.Kinds {
		if !slices.Contains(known, strings.ToLower(string(k.Code))) {
			t.Errorf("the runbook says nothing of %s", k.Code)
		}
		if k.Severity != findings.Note && !strings.Contains(string(text), `"`+string(k.Code)+`"`) {
			t.Errorf("no alert is about %s", k.Code)
		}
	}
}

// maxBeforeTable is how many words somebody at night reads before the table that says where to look.
const maxBeforeTable = 150

// Each section of the runbook says what callers feel, why, what to do, when it is over and whom to call, in few
// words, and where to look in a table.
func TestSectionsOfTheRunbookAreShort(t *testing.T) {
	text, err := os.ReadFile(runbook)
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n### ")[1:]
	if len(sections) < len(findings.Kinds) {
		t.Fatalf("%d sections; want one of each finding and more", len(sections))
	}
	for _, section := range sections {
		name, body, _ := strings.Cut(section, "\n")
		before, table, ok := strings.Cut(body, "\n|")
		if n := len(strings.Fields(before)); n > maxBeforeTable || !ok || !strings.Contains(table, "---|---|\n| ") {
			t.Errorf("%s: %d words, then a table: %v; want at most %d", name, n, ok, maxBeforeTable)
		}
		for _, part := range []string{"**Impact.** ", "**Cause.** ", "**Do.** ", "**Recovered** when: ", "**Escalate:** "} {
			if strings.Count(before, part) != 1 {
				t.Errorf("%s: %q is there %d times; want 1", name, part, strings.Count(before, part))
			}
		}
	}
}

// An alert is as bad as what the page says of the finding: of a problem that many sidecars have critical, of a warning
// a ticket, of a note a line in a list.
func TestSeveritiesAgreeWithThePage(t *testing.T) {
	want := map[findings.Severity]string{findings.Problem: "critical", findings.Warning: "warning", findings.Note: "info"}
	seen := 0
	for _, r := range rules(t) {
		m := regexp.MustCompile(`ydb_sidecar_code="([A-Z_]+)"`).FindStringSubmatch(r.Expr)
		if m == nil || r.Alert == "" {
			continue
		}
		seen++
		i := slices.IndexFunc(findings.Kinds, func(k findings.Kind) bool { return string(k.Code) == m[1] })
		if i < 0 || want[findings.Kinds[i].Severity] != r.Labels.Severity {
			t.Errorf("%s is %s; want what %s is on the page", r.Alert, r.Labels.Severity, m[1])
		}
	}
	if seen < 25 {
		t.Errorf("%d alerts are about findings; want more", seen)
	}
}

type rule struct {
	Record, Alert, Expr string
	Labels              struct{ Severity string }
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	text, err := os.ReadFile("prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// serviceError reports whether a call that ends with a code of the plain API failed for a reason that is not its
// caller's: statuses of servers, and too much load. What an app's own limits reject, and what YDB does not have, is
// its own.
func serviceError(c core.Code) bool {
	switch c.Name {
	case "QUOTA_EXCEEDED", "YDB_UNSUPPORTED":
		return false
	case "TX_LOST":
		return true
	}
	return c.HTTP >= 500 || c.HTTP == 429
}

// Alerts and the dashboard know the same service errors, and each code is one or is none.
func TestServiceErrorsAreToldFromThoseOfCallers(t *testing.T) {
	board, err := os.ReadFile("grafana/ydb-sidecar.json")
	if err != nil {
		t.Fatal(err)
	}
	service := ""
	for _, r := range rules(t) {
		if r.Record == "ydb_sidecar:service_errors:rate5m" {
			service = regexp.MustCompile(`error_type=~"([^"]*)"`).FindStringSubmatch(r.Expr)[1]
		}
		if r.Record == "ydb_sidecar:caller_errors:rate5m" && strings.Count(r.Expr, `error_type!~"|CANCELLED|`+service+`"`) != 2 {
			t.Errorf("%s: want all codes but those of %q", r.Record, service)
		}
	}
	if n := strings.Count(string(board), service); service == "" || n < 4 {
		t.Errorf("the dashboard has the service errors %d times; want them as the alerts have them", n)
	}
	known := strings.Split(service, "|")
	for _, c := range core.Codes() {
		if c.Case == "" && slices.Contains(known, c.Name) != serviceError(c) {
			t.Errorf("%s (%d) is a service error: %v; want %v", c.Name, c.HTTP, !serviceError(c), serviceError(c))
		}
	}
}
