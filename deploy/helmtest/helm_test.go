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
	all, err := chartutil.ToRenderValues(
		c, v, chartutil.ReleaseOptions{Name: "shop", Namespace: "production", IsInstall: true, Revision: 1},
		capabilities,
	)
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

// check wants of an object what the types cannot say. files are the settings in ConfigMaps, by name.
func check(t *testing.T, object runtime.Object, files map[string]string) {
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
			file := ""
			for _, v := range template.Spec.Volumes {
				if v.ConfigMap != nil {
					text, ok := files[v.ConfigMap.Name]
					if !ok {
						t.Errorf("no ConfigMap %s; there are %v", v.ConfigMap.Name, slices.Sorted(maps.Keys(files)))
					}
					file += text
				}
			}
			checkSidecar(t, &c, template.Spec.TerminationGracePeriodSeconds, file)
		}
	}
	if !found {
		t.Error("no container ydb-sidecar")
	}
}

// checkSidecar returns what check-config prints. file is the text of the file of settings; "" without one.
func checkSidecar(t *testing.T, c *corev1.Container, grace *int64, file string) string {
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
	run := exec.Command(sidecar, append([]string{"check-config", "-print"}, arguments(t, c)...)...)
	for _, e := range c.Env {
		value := e.Value
		switch {
		case e.Name == fileVariable:
			value = settingsFile(t, c, value, file)
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
		if strings.HasPrefix(e.Name, "SIDECAR_") && e.Name != fileVariable && !bytes.Contains(text, []byte("# "+e.Name+"\n")) {
			t.Errorf("%s is no setting of the sidecar:\n%s", e.Name, text)
		}
	}
	return string(text)
}

// fileVariable names the file of settings, for the sidecar and for commands beside it.
const fileVariable = "SIDECAR_CONFIG"

// arguments are those of serve.
func arguments(t *testing.T, c *corev1.Container) []string {
	t.Helper()
	if len(c.Args) == 0 || c.Args[0] != "serve" {
		t.Fatalf("arguments %q; want serve", c.Args)
	}
	return c.Args[1:]
}

// settingsFile returns a file that can be read here, in place of the mounted one at path.
func settingsFile(t *testing.T, c *corev1.Container, path, content string) string {
	t.Helper()
	mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.MountPath == filepath.Dir(path) && m.SubPath == "" // a kubelet never changes what a subPath names
	})
	if !mounted || filepath.Base(path) != "sidecar.yaml" {
		t.Errorf("%s=%s; want sidecar.yaml in a mounted directory: %v", fileVariable, path, c.VolumeMounts)
	}
	readable := filepath.Join(t.TempDir(), "sidecar.yaml")
	if err := os.WriteFile(readable, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return readable
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
	names = slices.DeleteFunc(names, func(name string) bool { return name == "../sidecar.yaml" }) // a file of settings
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
			check(t, known[0], nil)
		})
	}
}

const app = `
ydb: {url: "` + url + `"}
app: {containers: [{name: shop, image: "shop:1"}]}
`
