package helmtest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestChart(t *testing.T) {
	for _, tc := range []struct {
		name, values string
		want         []string // kinds
	}{
		{"defaults", app, []string{"Deployment"}},
		{"classic", app + "layout: classic", []string{"Deployment"}},
		{"less_grace", app + "settings: {drain.grace: 0}\ndrain: {terminationGracePeriodSeconds: 10}", []string{"Deployment"}},
		{"job", app + "workload: job", []string{"Job"}},
		{"daemonset",
			"ydb: {url: " + url +
				"}\nworkload: daemonset\nsettings: {pool.max: 200}\npodAnnotations: {a: b}\ntolerations: " +
				"[{operator: Exists}]\nnodeSelector: {kubernetes.io/os: linux}",
			[]string{"DaemonSet"}},
		{"nothing", "ydb: {url: " + url + "}\nworkload: none", nil},
		{"everything", `
ydb: {url: "` + url + `"}
image: {repository: registry.example/ydb-sidecar, digest: "sha256:` + strings.Repeat("a", 64) + `"}
imagePullSecrets: [{name: registry}]
settings: {pool.max: 20, pool.adaptive: on, wire.mode: session, ydb.auth.kind: token_file, drain.idle: 5s}
secretSettings: [{setting: apps.token, secret: shop, key: app}]
secretFiles: [{setting: ydb.auth.token_file, secret: ydb, key: token}, {setting: admin.token_file, secret: admin, key: token}]
app:
  containers: [{name: shop, image: "shop:1", volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, emptyDir: {}}]
  labels: {team: shop}
  annotations: {a: b}
podAnnotations: {c: d}
metrics: {podMonitor: true, prometheusRule: true, dashboard: true}
networkPolicy: {enabled: true, appPorts: [8080], ydbCIDRs: [10.0.0.0/8, "fd00::/8"], extraEgress: [{ports: [{port: 4317}]}]}
`, []string{"ConfigMap", "Deployment", "NetworkPolicy", "PodMonitor", "PrometheusRule"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kinds, _ := renderAndCheck(t, load(t, "../helm/ydb-sidecar"), tc.values)
			if !slices.Equal(kinds, tc.want) {
				t.Errorf("kinds %v; want %v", kinds, tc.want)
			}
		})
	}
}

// renderAndCheck returns the kinds of what a chart makes, in order, and the objects.
func renderAndCheck(t *testing.T, c *chart.Chart, values string) (kinds []string, all []runtime.Object) {
	t.Helper()
	files, err := render(c, values)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		known, foreign := objects(t, name, files[name])
		for _, o := range known {
			kinds = append(kinds, o.GetObjectKind().GroupVersionKind().Kind)
			check(t, o)
			if p, ok := o.(*networkingv1.NetworkPolicy); ok && len(p.Spec.PolicyTypes) != 2 {
				t.Errorf("policy for %v; want both directions", p.Spec.PolicyTypes)
			}
		}
		all = append(all, known...)
		for _, o := range foreign {
			kinds = append(kinds, fmt.Sprint(o["kind"]))
			if o["kind"] == "PrometheusRule" && len(o["spec"].(map[string]any)["groups"].([]any)) != 2 {
				t.Errorf("rules %v; want the groups of deploy/prometheus/alerts.yaml", o["spec"])
			}
		}
	}
	slices.Sort(kinds)
	return kinds, all
}

func TestChartRefuses(t *testing.T) {
	for _, tc := range []struct{ name, values, want string }{
		{"no_url", "app: {containers: [{name: a, image: b}]}", "ydb.url is missing: set it to your database, as grpcs://"},
		{"not_a_url", "ydb: {url: http://ydb}", "ydb.url is http://ydb; must be grpc[s]://"},
		{"unknown_value", app + "pool: {max: 5}", "pool"},
		{"unknown_workload", app + "workload: statefulset", "workload"},
		{"url_without_a_database", "ydb: {url: grpcs://ydb}", "ydb.url is grpcs://ydb; must be"},
		{"setting_without_a_dot", app + "settings: {pool: 5}", "'pool'"},
		{"setting_misspelt", app + "settings: {pool.mx: 5}", "'pool.mx'"},
		{"setting_that_is_a_list", app + "settings: {pool.max: [1]}", "/settings/pool.max"},
		{"setting_that_is_a_map", app + "settings: {http.hosts: {a: b}}", "/settings/http.hosts"},
		{"setting_that_is_nothing", app + "settings: {pool.max: null}", "/settings/pool.max"},
		{"word_for_a_number", app + "settings: {pool.max: lots}", "/settings/pool.max"},
		{"fraction_for_a_whole_number", app + "settings: {pool.max: 5.5}", "/settings/pool.max"},
		{"duration_in_words", app + "settings: {pool.idle: 5 minutes}", "/settings/pool.idle"},
		{"duration_without_a_unit", app + "settings: {pool.idle: 300}", "/settings/pool.idle"},
		{"number_for_a_switch", app + "settings: {pool.adaptive: 1}", "/settings/pool.adaptive"},
		{"comma_in_an_entry", app + "settings: {http.hosts: [\"a,b\"]}", "http.hosts has the entry a,b"},
		{"secret_setting_misspelt", app + "secretSettings: [{setting: apps.tken, secret: a, key: b}]", "/secretSettings/0/setting"},
		{"secret_file_of_no_setting", app + "secretFiles: [{setting: foo.bar, secret: a, key: b}]", "/secretFiles/0/setting"},
		{"secret_in_the_open_of_xds", app + "settings: {xds.token: 0123456789abcdef}", "xds.token is a secret: use secretSettings"},
		{"setting_of_the_chart", app + "settings: {admin.probes: \"0.0.0.0:1\"}", "admin.probes is set by the chart"},
		{"secret_in_the_open", app + "settings: {ydb.auth.token: abc}", "ydb.auth.token is a secret: use secretSettings"},
		{"secret_without_a_key", app + "secretFiles: [{setting: ydb.ca_file, secret: a}]", "key"},
		{"no_limit_of_memory", app + "resources: {limits: {memory: null}}", "memory"},
		{"digest", app + "image: {digest: sha256:1}", "digest"},
		{"port", app + "networkPolicy: {ydbPorts: [99999]}", "ydbPorts"},
		{"no_app", "ydb: {url: " + url + "}", "app.containers is empty"},
		{"job_that_never_ends", app + "workload: job\nlayout: classic", "would never be done"},
		{"too_little_time_for_drain_grace", app + "settings: {drain.grace: 1m59.5s}", "must be at least 125: settings.drain.grace (120 s)"},
		{"too_little_time_for_drain_grace_classic", app + "layout: classic\nsettings: {drain.grace: 40s}", "must be at least 65"},
		{"too_little_time", app + "drain: {terminationGracePeriodSeconds: 29}", "must be at least 30"},
		{"too_little_time_classic", app + "layout: classic\ndrain: {terminationGracePeriodSeconds: 49}", "must be at least 50"},
		{"monitor_of_nothing", app + "metrics: {enabled: false, podMonitor: true}", "needs metrics.enabled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := render(load(t, "../helm/ydb-sidecar"), tc.values)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v; want one that says %q", err, tc.want)
			}
		})
	}
}

// What the values have is what the sidecar reads, whatever Helm, YAML and a kubelet
// make of it on the way.
func TestChartSettings(t *testing.T) {
	for _, tc := range []struct{ name, setting, value, want string }{
		{"million", "api.max_rows", "1000000", "1000000"},
		{"million_as_a_float", "api.max_rows", "1e6", "1000000"},
		{"bytes", "api.max_body", "33554432", "32MiB"},
		{"with_a_unit", "api.max_body", "32MiB", "32MiB"},
		{"large", "api.max_bytes", "9007199254740991", "9007199254740991"},
		{"zero", "memory.headroom", "0", "0"},
		{"float", "tracing.ratio", "0.25", "0.25"},
		{"small_float", "tracing.ratio", "0.0000001", "1e-07"},
		{"whole_float", "tracing.ratio", "1.0", "1"},
		{"duration", "pool.idle", "5m", "5m"},
		{"duration_of_zero", "admin.held_long", "0", "0s"},
		{"switch", "admin.pprof", "on", "on"},
		{"switch_of_json", "admin.pprof", "true", "on"},
		{"switch_as_text", "admin.pprof", `"on"`, "on"},
		{"word_that_yaml_takes_for_a_switch", "log.access", "off", "off"},
		{"text_that_looks_like_a_number", "ydb.auth.user", "1000000", "1000000"},
		{"special_characters", "ydb.auth.user", `"a $(PATH) $$ \"b\" 'c' {{ d }} \\ # : ü"`, `a $(PATH) $$ "b" 'c' {{ d }} \ # : ü`},
		{"lines", "ydb.auth.user", `"a\n\tb"`, "a\n\tb"},
		{"list", "http.hosts", "[shop.local, \"shop.local:7401\"]", "shop.local,shop.local:7401"},
		{"list_as_text", "http.hosts", "\"shop.local, other.local\"", "shop.local,other.local"},
		{"empty_list", "http.hosts", "[]", ""},
		{"list_of_numbers", "apps.users", "[\"1000000=shop\"]", "1000000=shop"},
		{"tables", "kv.tables", `
    - users=app/users key=id:Uint64 value=profile:Json version=rev:Uint64
    - prices=app/prices key=id:Decimal(22,9) value=body:String media=text/html max_value=64KiB read_only`,
			"users=app/users key=id:Uint64 value=profile:Json version=rev:Uint64,prices=app/prices " +
				"key=id:Decimal(22,9) value=body:String media=text/html max_value=65536 read_only"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, all := renderAndCheck(t, load(t, "../helm/ydb-sidecar"), app+"settings:\n  "+tc.setting+": "+tc.value)
			template, _ := pod(all[0])
			text := checkSidecar(t, &template.Spec.InitContainers[0], template.Spec.TerminationGracePeriodSeconds)
			if got := printed(text, tc.setting); got != tc.want {
				t.Errorf("%s: %s in the values is %q for the sidecar; want %q", tc.setting, tc.value, got, tc.want)
			}
		})
	}
}

// The file of settings in docs/reference/kv.md may be copied into the values.
func TestChartTakesTheTablesOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/kv.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "    kv:\n      tables:\n")
	list, _, ok2 := strings.Cut(rest, "\n\n")
	if !ok || !ok2 || strings.Count(list, "\n") < 1 {
		t.Fatalf("no kv.tables in docs/reference/kv.md: %q", list)
	}
	renderAndCheck(t, load(t, "../helm/ydb-sidecar"), app+"settings:\n  kv.tables:\n"+list)
}

// Before 1.29 Kubernetes waits for an init container to end.
func TestChartKnowsWhichKubernetesHasNativeSidecars(t *testing.T) {
	shop := load(t, "testdata/shop")
	shop.AddDependency(load(t, "../helm/ydb-sidecar"))
	for _, tc := range []struct {
		name, kubernetes string
		chart            *chart.Chart
		values           string
		fits             bool
	}{
		{"native_too_old", "v1.28.15", load(t, "../helm/ydb-sidecar"), app, false},
		{"native_too_old_of_a_vendor", "v1.28.3-eks-4f4795d", load(t, "../helm/ydb-sidecar"), app, false},
		{"native", "v1.29.0", load(t, "../helm/ydb-sidecar"), app, true},
		{"native_of_a_vendor", "v1.29.0-eks-a5ec690", load(t, "../helm/ydb-sidecar"), app, true},
		{"classic", "v1.28.15", load(t, "../helm/ydb-sidecar"), app + "layout: classic", true},
		{"dependency_too_old", "v1.28.15", shop, "", false},
		{"dependency", "v1.29.0", shop, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := renderFor(tc.chart, tc.values, tc.kubernetes)
			if tc.fits && err != nil || !tc.fits && (err == nil || !strings.Contains(err.Error(), "set layout to classic")) {
				t.Errorf("with Kubernetes %s: %v; want it rendered: %v", tc.kubernetes, err, tc.fits)
			}
		})
	}
}

// An app's own chart takes the container from this one.
func TestChartAsADependency(t *testing.T) {
	shop := load(t, "testdata/shop")
	shop.AddDependency(load(t, "../helm/ydb-sidecar"))
	kinds, _ := renderAndCheck(t, shop, "ydb-sidecar: {settings: {pool.max: 7}}")
	if !slices.Equal(kinds, []string{"Deployment"}) {
		t.Errorf("kinds %v; want the shop's deployment alone", kinds)
	}
}

// The chart cannot reach files outside of it.
func TestChartHasTheSameAlertsAndDashboard(t *testing.T) {
	for inside, outside := range map[string]string{"alerts.yaml": "../prometheus/alerts.yaml",
		"dashboard.json": "../grafana/ydb-sidecar.json"} {
		a, err := os.ReadFile(filepath.Join("../helm/ydb-sidecar/files", inside))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(outside)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s and the chart's %s differ: cp %s ../helm/ydb-sidecar/files/%s", outside, inside, outside, inside)
		}
	}
}
