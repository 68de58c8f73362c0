package app

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Metrics and labels that pages for operators name, as Prometheus writes them, are in the reference of metrics.
func TestNamedMetricsExist(t *testing.T) {
	reference, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, name := range regexp.MustCompile(`[a-z_.]*ydb[a-z_.]+`).FindAllString(string(reference), -1) {
		known[strings.ReplaceAll(name, ".", "_")] = true
	}
	series := regexp.MustCompile(`\bydb_sidecar_[a-z_]+`)
	seen := 0
	for _, folder := range []string{"operations", "how-to", "tutorials", "concepts"} {
		pages, err := filepath.Glob("../../docs/" + folder + "/*.md")
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range series.FindAllString(string(text), -1) {
				seen++
				bare := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
				if !known[name] && !known[bare] && !strings.HasSuffix(name, "_") {
					t.Errorf("%s names %s, which is no metric and no label", page, name)
				}
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d names were looked at", seen)
	}
}
