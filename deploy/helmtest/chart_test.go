package helmtest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestChart(t *testing.T) {
	for _, tc := range []struct {
		name, values string
		want         []string // kinds
	}{
		{"defaults", app, []string{"ConfigMap", "Deployment"}},
		{"classic", app + "layout: classic", []string{"ConfigMap", "Deployment"}},
		{"network_policy_of_a_machine_account",
			app + "config: {ydb.auth.kind: metadata}\nnetworkPolicy: {enabled: true}",
			[]string{"ConfigMap", "Deployment", "NetworkPolicy"}},
		{"less_grace", app + "config: {drain.grace: 0}\ndrain: {terminationGracePeriodSeconds: 10}", []string{"ConfigMap", "Deployment"}},
		{"job", app + "workload: job", []string{"ConfigMap", "Job"}},
		{"daemonset",
			"ydb: {url: " + url +
				"}\nworkload: daemonset\nconfig: {pool.max: 200}\npodAnnotations: {a: b}\ntolerations: " +
				"[{operator: Exists}]\nnodeSelector: {kubernetes.io/os: linux}",
			[]string{"ConfigMap", "DaemonSet"}},
		{"nothing", "ydb: {url: " + url + "}\nworkload: none", []string{"ConfigMap"}},
		{"everything", `
ydb: {url: "` + url + `"}
image: {repository: registry.example/ydb-sidecar, digest: "sha256:` + strings.Repeat("a", 64) + `"}
imagePullSecrets: [{name: registry}]
config: {pool: {max: 20, adaptive: on}, wire.mode: session, ydb: {auth.kind: token_file}, drain.idle: 5s}
configRollout: true
nameOverride: front
commonLabels: {owner: team}
secretSettings: [{setting: apps.token, secret: shop, key: app}]
secretFiles: [{setting: ydb.auth.token_file, secret: ydb, key: token}, {setting: admin.token_file, secret: admin, key: token}]
app:
  containers: [{name: shop, image: "shop:1", volumeMounts: [{name: data, mountPath: /data}]}]
  initContainers: [{name: migrate, image: "shop:1"}]
  volumes: [{name: data, emptyDir: {}}]
  labels: {team: shop}
  annotations: {a: b}
podAnnotations: {c: d}
extraEnv: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: "http://collector:4317"}, {name: SIDECAR_ROUTING_ZONE, valueFrom: {fieldRef: {fieldPath: "metadata.labels['zone']"}}}]
extraArgs: [-log, text]
extraVolumes: [{name: ca, secret: {secretName: ca}}]
extraVolumeMounts: [{name: ca, mountPath: /etc/ca, readOnly: true}]
podSecurityContext: {fsGroup: 1000}
serviceAccountName: shop
priorityClassName: high
strategy: {type: Recreate}
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}]
podLabels: {a: b}
networkPolicy: {enabled: true, appPorts: [8080], ydbCIDRs: [10.0.0.0/8, "fd00::/8"], extraEgress: [{ports: [{port: 4317}]}]}
`, []string{"ConfigMap", "Deployment", "NetworkPolicy"}},
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
	settings := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		known, foreign := objects(t, name, files[name])
		for _, o := range known {
			kinds = append(kinds, o.GetObjectKind().GroupVersionKind().Kind)
			if m, ok := o.(*corev1.ConfigMap); ok {
				settings[m.Name] = m.Data["sidecar.yaml"]
			}
			check(t, o, settings)
			if p, ok := o.(*networkingv1.NetworkPolicy); ok && len(p.Spec.PolicyTypes) != 2 {
				t.Errorf("policy for %v; want both directions", p.Spec.PolicyTypes)
			}
		}
		all = append(all, known...)
		for _, o := range foreign {
			kinds = append(kinds, fmt.Sprint(o["kind"]))
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
		{"section_without_settings", app + "config: {pool: 5}", "/config/pool"},
		{"nested_setting_misspelt", app + "config: {pool: {mx: 5}}", "'mx'"},
		{"word_for_a_number_nested", app + "config: {pool: {max: lots}}", "/config/pool/max"},
		{"setting_twice", app + "config: {pool.max: 5, pool: {max: 6}}", "pool.max is there twice"},
		{"nested_secret_in_the_open", app + "config: {ydb: {auth: {token: abc}}}", "ydb.auth.token is a secret: use secretSettings"},
		{"setting_in_the_environment", app + "extraEnv: [{name: SIDECAR_POOL_MAX, value: \"5\"}]", "put it into config"},
		{"old_name_of_config", app + "settings: {pool.max: 5}", "settings is called config now"},
		{"socket_of_the_daemonset", "ydb: {url: " + url + "}\nworkload: daemonset\nconfig: {http.socket: /a/b}", "from hostSocket.path"},
		{"setting_misspelt", app + "config: {pool.mx: 5}", "'pool.mx'"},
		{"setting_that_is_a_list", app + "config: {pool.max: [1]}", "/config/pool.max"},
		{"setting_that_is_a_map", app + "config: {http.hosts: {a: b}}", "/config/http.hosts"},
		{"setting_that_is_nothing", app + "config: {pool.max: null}", "/config/pool.max"},
		{"word_for_a_number", app + "config: {pool.max: lots}", "/config/pool.max"},
		{"fraction_for_a_whole_number", app + "config: {pool.max: 5.5}", "/config/pool.max"},
		{"duration_in_words", app + "config: {pool.idle: 5 minutes}", "/config/pool.idle"},
		{"duration_without_a_unit", app + "config: {pool.idle: 300}", "/config/pool.idle"},
		{"number_for_a_switch", app + "config: {pool.adaptive: 1}", "/config/pool.adaptive"},
		{"comma_in_an_entry", app + "config: {http.hosts: [\"a,b\"]}", "http.hosts has the entry a,b"},
		{"secret_setting_misspelt", app + "secretSettings: [{setting: apps.tken, secret: a, key: b}]", "/secretSettings/0/setting"},
		{"secret_file_of_no_setting", app + "secretFiles: [{setting: foo.bar, secret: a, key: b}]", "/secretFiles/0/setting"},
		{"secret_in_the_open_of_xds", app + "config: {xds.token: 0123456789abcdef}", "xds.token is a secret: use secretSettings"},
		{"setting_of_the_chart", app + "config: {admin.probes: \"0.0.0.0:1\"}", "admin.probes is set by the chart"},
		{"secret_in_the_open", app + "config: {ydb.auth.token: abc}", "ydb.auth.token is a secret: use secretSettings"},
		{"secret_without_a_key", app + "secretFiles: [{setting: ydb.ca_file, secret: a}]", "key"},
		{"no_limit_of_memory", app + "resources: {limits: {memory: null}}", "memory"},
		{"digest", app + "image: {digest: sha256:1}", "digest"},
		{"port", app + "networkPolicy: {ydbPorts: [99999]}", "ydbPorts"},
		{"no_app", "ydb: {url: " + url + "}", "app.containers is empty"},
		{"job_that_never_ends", app + "workload: job\nlayout: classic", "would never be done"},
		{"too_little_time_for_drain_grace",
			app + "drain: {terminationGracePeriodSeconds: 124}\nconfig: {drain: {grace: 1m59.5s}}",
			"must be at least 125 for drain.grace"},
		{"too_little_time_for_drain_grace_classic",
			app + "layout: classic\ndrain: {terminationGracePeriodSeconds: 60}\nconfig: {drain.grace: 40s}",
			"must be at least 65"},
		{"too_little_time", app + "drain: {terminationGracePeriodSeconds: 29}", "must be at least 30"},
		{"too_little_time_classic", app + "layout: classic\ndrain: {terminationGracePeriodSeconds: 49}", "must be at least 50"},
		{"monitor_of_the_other_chart", app + "metrics: {podMonitor: true}", "'podMonitor'"},
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
			_, all := renderAndCheck(t, load(t, "../helm/ydb-sidecar"), app+"config:\n  "+tc.setting+": "+tc.value)
			template, _ := pod(all[1])
			text := checkSidecar(t, &template.Spec.InitContainers[0], template.Spec.TerminationGracePeriodSeconds,
				all[0].(*corev1.ConfigMap).Data["sidecar.yaml"])
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
	_, rest, ok := strings.Cut(string(text), "```yaml\nkv:\n  tables:\n")
	list, _, ok2 := strings.Cut(rest, "```\n")
	if !ok || !ok2 || strings.Count(list, "\n") < 1 {
		t.Fatalf("no kv.tables in docs/reference/kv.md: %q", list)
	}
	renderAndCheck(t, load(t, "../helm/ydb-sidecar"), app+"config:\n  kv.tables:\n"+list)
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
	kinds, _ := renderAndCheck(t, shop, "ydb-sidecar: {config: {pool.max: 7}}")
	if !slices.Equal(kinds, []string{"ConfigMap", "Deployment"}) {
		t.Errorf("kinds %v; want the shop's deployment and the sidecar's settings", kinds)
	}
}
