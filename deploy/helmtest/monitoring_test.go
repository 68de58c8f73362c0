package helmtest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const monitoring = "../helm/ydb-sidecar-monitoring"

// rule is an alert or a recording of a PrometheusRule.
type rule struct {
	Alert, Record, Expr string
	Labels, Annotations map[string]string
}

// monitored renders the chart of the monitoring and returns its objects.
func monitored(t *testing.T, values string) (rules []rule, labels map[string]map[string]string, monitor map[string]any) {
	t.Helper()
	files, err := render(load(t, monitoring), values)
	if err != nil {
		t.Fatal(err)
	}
	labels = map[string]map[string]string{}
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		known, foreign := objects(t, name, text)
		for _, o := range known {
			m := o.(*corev1.ConfigMap)
			labels["ConfigMap"] = m.Labels
			if board, err := os.ReadFile("../grafana/ydb-sidecar.json"); err != nil ||
				strings.TrimSpace(string(board)) != m.Data["ydb-sidecar.json"] {
				t.Errorf("the dashboard is not deploy/grafana/ydb-sidecar.json (%v)", err)
			}
		}
		for _, o := range foreign {
			var object struct {
				Kind     string
				Metadata struct{ Labels map[string]string }
				Spec     struct{ Groups []struct{ Rules []rule } }
			}
			text, err := yaml.Marshal(o)
			if err == nil {
				err = yaml.Unmarshal(text, &object)
			}
			if err != nil {
				t.Fatal(err)
			}
			labels[object.Kind] = object.Metadata.Labels
			for _, g := range object.Spec.Groups {
				rules = append(rules, g.Rules...)
			}
			if object.Kind == "PodMonitor" {
				monitor = o["spec"].(map[string]any)
			}
		}
	}
	return rules, labels, monitor
}

func TestMonitoringHasTheAlertsAsTheyAre(t *testing.T) {
	rules, labels, monitor := monitored(t, "")
	var file struct{ Groups []struct{ Rules []rule } }
	read(t, "../prometheus/alerts.yaml", &file)
	var want []rule
	for _, g := range file.Groups {
		want = append(want, g.Rules...)
	}
	if len(rules) != len(want) {
		t.Fatalf("%d rules; want %d", len(rules), len(want))
	}
	for i, r := range rules {
		if w := want[i]; r.Alert != w.Alert || r.Expr != w.Expr || r.Labels["severity"] != w.Labels["severity"] ||
			r.Annotations["runbook_url"] != w.Annotations["runbook_url"] {
			t.Errorf("rule %+v; want %+v", r, w)
		}
	}
	if labels["ConfigMap"]["grafana_dashboard"] != "1" {
		t.Errorf("labels of the dashboard %v; want the one that Grafana's helper looks for", labels["ConfigMap"])
	}
	// The pods of the other chart have the label by which the monitor finds them.
	_, all := renderAndCheck(t, load(t, "../helm/ydb-sidecar"), app)
	template, _ := pod(all[1])
	for name, value := range monitor["selector"].(map[string]any)["matchLabels"].(map[string]any) {
		if template.Labels[name] != value {
			t.Errorf("the monitor wants %s=%s; the pods have %v", name, value, template.Labels)
		}
	}
	if any, _ := monitor["namespaceSelector"].(map[string]any)["any"].(bool); !any {
		t.Errorf("namespaces %v; want all", monitor["namespaceSelector"])
	}
}

func TestMonitoringValues(t *testing.T) {
	rules, labels, monitor := monitored(t, `
commonLabels: {release: kube-prometheus-stack}
podMonitor: {namespaces: [shop], interval: 15s, scrapeTimeout: 5s, labels: {a: b}}
prometheusRule:
  labels: {role: alert-rules}
  alertLabels: {team: storage}
  severity: {YdbSidecarNoNode: info}
  severityNames: {critical: page}
  disabled: [YdbSidecarCredentials]
  objective: 99.95
  runbookBaseUrl: https://wiki.example/ydb-sidecar
dashboard: {labels: {grafana_dashboard: "yes"}, annotations: {grafana_folder: YDB}}
`)
	for kind, one := range map[string]string{"PodMonitor": "a", "PrometheusRule": "role", "ConfigMap": "grafana_dashboard"} {
		if l := labels[kind]; l["release"] != "kube-prometheus-stack" || l[one] == "" {
			t.Errorf("labels of the %s %v; want release and %s", kind, l, one)
		}
	}
	severities := map[string]int{}
	for _, r := range rules {
		if r.Alert == "" { // a rule that records
			if r.Record == "ydb_sidecar:error_budget" && r.Expr != "vector(1 - 99.95 / 100)" {
				t.Errorf("the budget is %s; want that of 99.95 %%", r.Expr)
			}
			continue
		}
		severities[r.Labels["severity"]]++
		if r.Alert == "" {
			continue // a recording
		}
		if r.Labels["team"] != "storage" || !strings.HasPrefix(r.Annotations["runbook_url"], "https://wiki.example/ydb-sidecar#") {
			t.Errorf("%s: labels %v, runbook %s", r.Alert, r.Labels, r.Annotations["runbook_url"])
		}
		if r.Alert == "YdbSidecarCredentials" || r.Alert == "YdbSidecarNoNode" && r.Labels["severity"] != "info" {
			t.Errorf("%s has the severity %s; want it disabled, or info", r.Alert, r.Labels["severity"])
		}
	}
	if severities["critical"] > 0 || severities["page"] == 0 || severities["warning"] == 0 {
		t.Errorf("severities %v; want page in place of critical", severities)
	}
	endpoint := monitor["podMetricsEndpoints"].([]any)[0].(map[string]any)
	if endpoint["interval"] != "15s" || endpoint["scrapeTimeout"] != "5s" || monitor["namespaceSelector"].(map[string]any)["any"] != nil {
		t.Errorf("monitor %v; want the values given", monitor)
	}
	if rules, labels, _ := monitored(t, "podMonitor: {enabled: false}\nprometheusRule: {enabled: false}\ndashboard: {enabled: false}"); len(
		rules) > 0 || len(labels) > 0 {
		t.Errorf("with all of it off there is %v", labels)
	}
}

// Prometheus itself reads what the chart makes.
func TestMonitoringRulesAreRules(t *testing.T) {
	files, err := render(load(t, monitoring), "prometheusRule: {alertLabels: {team: storage}, severityNames: {critical: page}}")
	if err != nil {
		t.Fatal(err)
	}
	_, foreign := objects(t, "prometheusrule", files["ydb-sidecar-monitoring/templates/prometheusrule.yaml"])
	text, err := yaml.Marshal(foreign[0]["spec"])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	ran(t, promtool, "check", "rules", path)
}

func TestMonitoringRefuses(t *testing.T) {
	for _, tc := range []struct{ name, values, want string }{
		{"unknown_value", "podMonitors: {}", "'podMonitors'"},
		{"interval_in_words", "podMonitor: {interval: often}", "/podMonitor/interval"},
		{"severity_of_no_alert", "prometheusRule: {severity: {YdbSidecarNodeSloow: info}}", "names the alert YdbSidecarNodeSloow"},
		{"no_such_alert", "prometheusRule: {disabled: [Nope]}", "names the alert Nope"},
		{"runbook_with_an_anchor", "prometheusRule: {runbookBaseUrl: \"https://a/b#c\"}", "/prometheusRule/runbookBaseUrl"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := render(load(t, monitoring), tc.values)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v; want one that says %q", err, tc.want)
			}
		})
	}
}

// The chart cannot reach files outside of it.
func TestMonitoringHasTheSameAlertsAndDashboard(t *testing.T) {
	for inside, outside := range map[string]string{"alerts.yaml": "../prometheus/alerts.yaml",
		"dashboard.json": "../grafana/ydb-sidecar.json"} {
		a, err := os.ReadFile(filepath.Join(monitoring, "files", inside))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(outside)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s and the chart's %s differ: cp %s %s/files/%s", outside, inside, outside, monitoring, inside)
		}
	}
}
