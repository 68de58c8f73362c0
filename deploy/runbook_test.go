package deploy

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
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
