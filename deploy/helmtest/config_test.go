package helmtest

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// A change of the settings reaches running sidecars by the ConfigMap alone, and with configRollout also by new pods.
func TestChartChangesSettingsWithoutNewPods(t *testing.T) {
	for _, tc := range []struct {
		name, more string
		want       []string // what changes
	}{
		{"live", "", []string{"configmap.yaml"}},
		{"rollout", "configRollout: true\n", []string{"configmap.yaml", "workload.yaml"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := make([]map[string]string, 2)
			for i, value := range []string{"5", "6"} {
				var err error
				if files[i], err = render(load(t, "../helm/ydb-sidecar"), app+tc.more+"config: {pool: {max: "+value+"}}"); err != nil {
					t.Fatal(err)
				}
			}
			var changed []string
			for _, name := range slices.Sorted(maps.Keys(files[0])) {
				if files[0][name] != files[1][name] {
					changed = append(changed, strings.TrimPrefix(name, "ydb-sidecar/templates/"))
				}
			}
			if !slices.Equal(changed, tc.want) {
				t.Errorf("another pool.max changes %v; want %v", changed, tc.want)
			}
		})
	}
}

// Nested and with dots, the settings are the same.
func TestChartTakesNestedSettings(t *testing.T) {
	var texts []string
	for _, config := range []string{
		"{pool.max: 7, ydb.auth.kind: metadata, http.hosts: [a, b], log.access: off, drain.grace: 40s}",
		"{pool: {max: 7}, ydb: {auth: {kind: metadata}}, http: {hosts: [a, b]}, log: {access: off}, drain: {grace: 40s}}",
		"{pool: {max: 7}, ydb: {auth.kind: metadata}, http.hosts: [a, b], log: {access: off}, drain: {grace: 40s}}",
	} {
		_, all := renderAndCheck(t, load(t, "../helm/ydb-sidecar"), app+"config: "+config)
		texts = append(texts, all[0].(*corev1.ConfigMap).Data["sidecar.yaml"])
		if template, _ := pod(all[1]); *template.Spec.TerminationGracePeriodSeconds != 75 {
			t.Errorf("%s: terminationGracePeriodSeconds %d; want drain.grace, 5 s and 30 s for the app", config,
				*template.Spec.TerminationGracePeriodSeconds)
		}
	}
	if texts[1] != texts[0] || texts[2] != texts[0] || !strings.Contains(texts[0], "\nlog.access: \"off\"\npool.max: \"7\"\n") {
		t.Errorf("files %q; want them equal", texts)
	}
}

func TestChartComputesTheTimeToEnd(t *testing.T) {
	daemonset := "ydb: {url: " + url + "}\nworkload: daemonset\n"
	for _, tc := range []struct {
		name, values string
		want         int64
	}{
		{"native", app, 60},
		{"native_long", app + "config: {drain.grace: 2m}\ndrain: {appSeconds: 5}", 130},
		{"classic", app + "layout: classic", 50},
		{"classic_slow_app", app + "layout: classic\ndrain: {appSeconds: 90}", 90},
		{"daemonset", daemonset, 50},
		{"daemonset_long", daemonset + "config: {drain: {grace: 59.2s}}\ndrain: {delaySeconds: 1}", 66},
		{"given", app + "drain: {terminationGracePeriodSeconds: 300}", 300},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, all := renderAndCheck(t, load(t, "../helm/ydb-sidecar"), tc.values)
			if template, _ := pod(all[1]); *template.Spec.TerminationGracePeriodSeconds != tc.want {
				t.Errorf("terminationGracePeriodSeconds %d; want %d", *template.Spec.TerminationGracePeriodSeconds, tc.want)
			}
		})
	}
}

// The policy opens what the way of authentication needs, and no more.
func TestChartOpensTheNetworkForCredentials(t *testing.T) {
	for kind, want := range map[string]int32{"metadata": 80, "service_account": 443, "oauth": 443, "static": 0, "anonymous": 0} {
		files, err := render(load(t, "../helm/ydb-sidecar"), app+"networkPolicy: {enabled: true}\nconfig: {ydb: {auth: {kind: "+kind+"}}}")
		if err != nil {
			t.Fatal(err)
		}
		known, _ := objects(t, kind, files["ydb-sidecar/templates/networkpolicy.yaml"])
		rules := known[0].(*networkingv1.NetworkPolicy).Spec.Egress
		var got int32
		if len(rules) > 2 {
			got = rules[2].Ports[0].Port.IntVal
		}
		if got != want || len(rules) > 3 {
			t.Errorf("%s opens port %d in %d rules; want %d", kind, got, len(rules), want)
		}
	}
}

// The values that the README shows are values.
func TestChartReadmeShowsValues(t *testing.T) {
	text, err := os.ReadFile("../helm/ydb-sidecar/README.md")
	if err != nil {
		t.Fatal(err)
	}
	rendered := 0
	for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if strings.HasPrefix(block, "ydb: ") || strings.Contains(block, "\nydb: ") {
			renderAndCheck(t, load(t, "../helm/ydb-sidecar"), block)
			rendered++
		}
	}
	if rendered < 2 {
		t.Errorf("%d files of values in the README; want two", rendered)
	}
}

// The manifest lets out what the chart's policy can: names of every kind of DNS, nodes and tokens over both versions of IP.
func TestNetworkPolicyLetsOut(t *testing.T) {
	text, err := os.ReadFile("../networkpolicy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	known, _ := objects(t, "networkpolicy.yaml", string(text))
	open := map[string][]int32{}
	for _, rule := range known[0].(*networkingv1.NetworkPolicy).Spec.Egress {
		for _, peer := range rule.To {
			name := "pods"
			if peer.IPBlock != nil {
				name = peer.IPBlock.CIDR
			}
			for _, port := range rule.Ports {
				open[name] = append(open[name], port.Port.IntVal)
			}
		}
	}
	for network, port := range map[string]int32{"169.254.20.10/32": 53, "pods": 5353, "fd00::/8": 2135, "10.0.0.0/8": 2136,
		"169.254.169.254/32": 80, "::/0": 443, "0.0.0.0/0": 443} {
		if !slices.Contains(open[network], port) {
			t.Errorf("%s is closed at port %d: %v", network, port, open)
		}
	}
}

// What helm lint says beyond the advice to have an icon.
func TestChartsPassLint(t *testing.T) {
	for name, text := range map[string]string{"ydb-sidecar": app, "ydb-sidecar-monitoring": ""} {
		values, err := chartutil.ReadValues([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		version, err := chartutil.ParseKubeVersion("v1.34.1")
		if err != nil {
			t.Fatal(err)
		}
		result := lint.AllWithKubeVersion("../helm/"+name, values, "default", version)
		for _, m := range result.Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}
