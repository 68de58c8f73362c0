package systemtest

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// expressions are what the dashboard and the alerts ask Prometheus.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	open := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(root(t), "deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(open("grafana/ydb-sidecar.json"), &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	var rules struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	if err := yaml.Unmarshal(open("prometheus/alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all = append(all, r.Expr)
		}
	}
	if len(all) < 50 {
		t.Fatalf("%d expressions; want those of the dashboard and the alerts", len(all))
	}
	return all
}

var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring) \(([^)]*)\)`)
	window   = regexp.MustCompile(`\[[^\]]*\]`)
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}`)
	word     = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\b(\s*\()?`)
	label    = regexp.MustCompile(`[a-zA-Z_][a-zA-Z0-9_]*`)
)

// asked takes an expression apart: the metrics in it with the labels that are wanted
// of each, and the labels that are grouped by.
func asked(expr string) (metrics map[string][]string, groups []string) {
	metrics = map[string][]string{}
	rest := quoted.ReplaceAllString(expr, "")
	for _, m := range grouping.FindAllStringSubmatch(rest, -1) {
		groups = append(groups, label.FindAllString(m[1], -1)...)
	}
	rest = window.ReplaceAllString(grouping.ReplaceAllString(rest, ""), "")
	for _, m := range selector.FindAllStringSubmatch(rest, -1) {
		metrics[m[1]] = append(metrics[m[1]], label.FindAllString(m[2], -1)...)
	}
	for _, w := range word.FindAllString(selector.ReplaceAllString(rest, ""), -1) {
		if !strings.HasSuffix(w, "(") && !slices.Contains([]string{"and", "or", "unless", "e15"}, w) {
			metrics[w] = append(metrics[w], "job") // it is named, without a selector
		}
	}
	return metrics, groups
}

// exposed is the labels of each metric of a running sidecar.
func exposed(t *testing.T, url string) map[string][]string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", url, response.Status, err)
	}
	all := map[string][]string{"up": nil} // Prometheus' own
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name := label.FindString(line)
		all[name] = append(all[name], label.FindAllString(quoted.ReplaceAllString(line[len(name):], ""), -1)...)
	}
	return all
}

// Nothing on the dashboard is empty and no alert is silent for ever because a metric
// or a label has another name by now.
func TestDashboardAndAlertsNameWhatThereIs(t *testing.T) {
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "xds.enabled=true", "xds.address=127.0.0.1:0") // which has metrics of its own
	for _, sql := range []string{"SELECT 1", "SELECT nothing"} {
		_, _ = s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: sql}) // the second fails, for the sake of its status
	}
	eventually(t, 20*time.Second, "all metrics are there", func() string {
		there := exposed(t, "http://"+s.admin+"/metrics")
		own := []string{"job", "instance"}
		for _, expr := range expressions(t) {
			metrics, groups := asked(expr)
			if len(metrics) == 0 {
				return "no metric in " + expr
			}
			known := slices.Clone(own)
			for name, labels := range metrics {
				has, ok := there[name]
				if !ok {
					return name + " is no metric: " + expr
				}
				known = append(known, has...)
				for _, l := range labels {
					if !slices.Contains(has, l) && !slices.Contains(own, l) {
						return name + " has no label " + l + ": " + expr
					}
				}
			}
			for _, l := range groups {
				if !slices.Contains(known, l) {
					return "nothing has the label " + l + ": " + expr
				}
			}
		}
		return ""
	})
}
