package helmtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// sidecar is the built program.
var sidecar string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "helmtest")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		sidecar = filepath.Join(dir, "sidecar")
		build := exec.Command("go", "build", "-trimpath", "-o", sidecar, "./cmd/sidecar")
		build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if text, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the sidecar: %v: %s", err, text)
			return 1
		}
		return m.Run()
	}())
}

const url = "grpcs://ydb.example:2135/production/shop"

func load(t *testing.T, dir string) *chart.Chart {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render renders a chart with values as helm install does; values are YAML.
func render(c *chart.Chart, values string) (map[string]string, error) {
	return renderFor(c, values, "v1.34.1")
}

func renderFor(c *chart.Chart, values, kubernetes string) (map[string]string, error) {
	v, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependenciesWithMerge(c, v); err != nil {
		return nil, err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	version, err := chartutil.ParseKubeVersion(kubernetes)
	if err != nil {
		return nil, err
	}
	capabilities.KubeVersion = *version
	all, err := chartutil.ToRenderValues(c, v, chartutil.ReleaseOptions{Name: "shop", Namespace: "production", IsInstall: true, Revision: 1}, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Engine{Strict: true}.Render(c, all)
}

// objects decodes documents into the types of Kubernetes: a field that does not
// exist, is there twice or has another type is an error. Objects of operators come
// back as maps.
func objects(t *testing.T, name, text string) (known []runtime.Object, foreign []map[string]any) {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	r := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return known, foreign
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var plain map[string]any
		if err := yaml.UnmarshalStrict(document, &plain); err != nil {
			t.Fatalf("%s: %v in\n%s", name, err, document)
		}
		switch version, _ := plain["apiVersion"].(string); {
		case len(plain) == 0:
		case version == "monitoring.coreos.com/v1":
			foreign = append(foreign, plain)
		default:
			object, _, err := decoder.Decode(document, nil, nil)
			if err != nil {
				t.Fatalf("%s: %v in\n%s", name, err, document)
			}
			known = append(known, object)
		}
	}
}

// pods are what runs in an object: the template, and the labels it is found by.
func pod(object runtime.Object) (template *corev1.PodTemplateSpec, selector *metav1.LabelSelector) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template, o.Spec.Selector
	case *appsv1.DaemonSet:
		return &o.Spec.Template, o.Spec.Selector
	case *batchv1.Job:
		return &o.Spec.Template, nil
	}
	return nil, nil
}

// check wants of an object what the types cannot say.
func check(t *testing.T, object runtime.Object) {
	t.Helper()
	template, selector := pod(object)
	if template == nil {
		return
	}
	if selector != nil {
		for name, value := range selector.MatchLabels {
			if template.Labels[name] != value {
				t.Errorf("the selector wants %s=%s; the pod has %v", name, value, template.Labels)
			}
		}
	}
	volumes := map[string]bool{}
	for _, v := range template.Spec.Volumes {
		if volumes[v.Name] {
			t.Errorf("two volumes %q", v.Name)
		}
		volumes[v.Name] = true
	}
	all := slices.Concat(template.Spec.InitContainers, template.Spec.Containers)
	found := false
	for _, c := range all {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s mounts %q, which is no volume: %v", c.Name, m.Name, volumes)
			}
		}
		if c.Name == "ydb-sidecar" {
			found = true
			checkSidecar(t, &c, template.Spec.TerminationGracePeriodSeconds)
		}
	}
	if !found {
		t.Error("no container ydb-sidecar")
	}
}

// checkSidecar returns what check-config prints.
func checkSidecar(t *testing.T, c *corev1.Container, grace *int64) string {
	t.Helper()
	s := c.SecurityContext
	if s == nil || !*s.RunAsNonRoot || *s.RunAsUser == 0 || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation ||
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("security context %+v; want no root, a read-only root, no capabilities", s)
	}
	if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
		t.Errorf("resources %v; want a request of CPU and a limit of memory", c.Resources)
	}
	if c.ReadinessProbe != nil {
		t.Error("there is a readiness probe: a blip of the database would take the pod out of its service")
	}
	for what, p := range map[string]*corev1.Probe{"/startupz": c.StartupProbe, "/livez": c.LivenessProbe} {
		if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != what || p.HTTPGet.Port != intstr.FromString(c.Ports[0].Name) {
			t.Errorf("probe %+v; want %s at port %s", p, what, c.Ports[0].Name)
		}
	}
	if restart := c.RestartPolicy; (restart != nil) != (c.Lifecycle != nil) {
		t.Errorf("restartPolicy %v, lifecycle %v; want the hook with a native sidecar, and only there", restart, c.Lifecycle)
	}
	run := exec.Command(sidecar, "check-config", "-print")
	for _, e := range c.Env {
		value := e.Value
		switch {
		case e.ValueFrom != nil:
			value = "shop=an-example-of-a-token"
		case strings.HasPrefix(value, "/etc/ydb-sidecar/"): // of a Secret, which is not there
			value = filepath.Join(t.TempDir(), "secret")
			if err := os.WriteFile(value, []byte("an-example-of-a-token"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		run.Env = append(run.Env, e.Name+"="+expanded(t, value))
	}
	text, err := run.CombinedOutput()
	if err != nil {
		t.Errorf("the sidecar would not start: %s", text)
		return ""
	}
	needs := 5 * time.Second
	for _, name := range []string{"drain.delay", "drain.grace"} {
		d, err := time.ParseDuration(printed(string(text), name))
		if err != nil {
			t.Error(err)
		}
		needs += d
	}
	if grace == nil || time.Duration(*grace)*time.Second < needs {
		t.Errorf("terminationGracePeriodSeconds %v; want drain.delay, drain.grace and 5 s, %v, at least", grace, needs)
	}
	for _, e := range c.Env {
		if !strings.HasPrefix(e.Name, "SIDECAR_") || !bytes.Contains(text, []byte("# "+e.Name+"\n")) {
			t.Errorf("%s is no setting of the sidecar:\n%s", e.Name, text)
		}
	}
	return string(text)
}

// printed is the value of a setting as check-config -print shows it.
func printed(text, name string) string {
	_, rest, _ := strings.Cut("\n"+text, "\n"+name+": ")
	var value string
	if json.NewDecoder(strings.NewReader(rest)).Decode(&value) != nil {
		return "(not printed)"
	}
	return value
}

// expanded is what a kubelet makes of a variable: $(NAME) becomes the variable of
// that name, which none of the chart's values means, and $$ is $.
func expanded(t *testing.T, value string) string {
	t.Helper()
	parts := strings.Split(value, "$$")
	for _, p := range parts {
		if strings.Contains(p, "$(") {
			t.Errorf("a kubelet would look for variables in %q", value)
		}
	}
	return strings.Join(parts, "$")
}

func TestManifestsAreStrict(t *testing.T) {
	names, err := filepath.Glob("../*.yaml")
	if err != nil || len(names) != 5 {
		t.Fatalf("manifests %v, %v; want five", names, err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			known, foreign := objects(t, name, string(text))
			if len(known) != 1 || len(foreign) > 0 {
				t.Fatalf("%d objects; want one", len(known))
			}
			check(t, known[0])
		})
	}
}

const app = `
ydb: {url: "` + url + `"}
app: {containers: [{name: shop, image: "shop:1"}]}
`

func TestChart(t *testing.T) {
	for _, tc := range []struct {
		name, values string
		want         []string // kinds
	}{
		{"defaults", app, []string{"Deployment"}},
		{"classic", app + "layout: classic", []string{"Deployment"}},
		{"less_grace", app + "settings: {drain.grace: 0}\ndrain: {terminationGracePeriodSeconds: 10}", []string{"Deployment"}},
		{"job", app + "workload: job", []string{"Job"}},
		{"daemonset", "ydb: {url: " + url + "}\nworkload: daemonset\nsettings: {pool.max: 200}\npodAnnotations: {a: b}\ntolerations: [{operator: Exists}]\nnodeSelector: {kubernetes.io/os: linux}", []string{"DaemonSet"}},
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
		{"large", "memory.large", "9007199254740991", "9007199254740991"},
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
			"users=app/users key=id:Uint64 value=profile:Json version=rev:Uint64,prices=app/prices key=id:Decimal(22,9) value=body:String media=text/html max_value=65536 read_only"},
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

// The file of settings in docs/kv.md may be copied into the values.
func TestChartTakesTheTablesOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/kv.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "    kv:\n      tables:\n")
	list, _, ok2 := strings.Cut(rest, "\n\n")
	if !ok || !ok2 || strings.Count(list, "\n") < 1 {
		t.Fatalf("no kv.tables in docs/kv.md: %q", list)
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
	for inside, outside := range map[string]string{"alerts.yaml": "../prometheus/alerts.yaml", "dashboard.json": "../grafana/ydb-sidecar.json"} {
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
