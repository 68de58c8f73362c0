package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/ydb-sidecar/sidecar/internal/app"
)

// deployment is what the tests read of a manifest. Decoding is not strict:
// Kubernetes knows more fields than are checked here.
type deployment struct {
	Kind string
	Spec struct {
		Template struct {
			Spec struct {
				TerminationGracePeriodSeconds int         `yaml:"terminationGracePeriodSeconds"`
				InitContainers                []container `yaml:"initContainers"`
				Containers                    []container
				Volumes                       []struct {
					Name     string
					EmptyDir *struct{}              `yaml:"emptyDir"`
					HostPath *struct{ Path string } `yaml:"hostPath"`
				}
			}
		}
	}
}

type container struct {
	Name          string
	RestartPolicy string `yaml:"restartPolicy"`
	Args          []string
	Env           []struct{ Name, Value string }
	Ports         []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
	Lifecycle struct {
		PreStop struct{ Exec struct{ Command []string } } `yaml:"preStop"`
	}
	StartupProbe    *probe `yaml:"startupProbe"`
	LivenessProbe   *probe `yaml:"livenessProbe"`
	ReadinessProbe  *probe `yaml:"readinessProbe"`
	Resources       struct{ Requests, Limits map[string]string }
	SecurityContext struct {
		RunAsNonRoot             bool `yaml:"runAsNonRoot"`
		RunAsUser                int  `yaml:"runAsUser"`
		ReadOnlyRootFilesystem   bool `yaml:"readOnlyRootFilesystem"`
		AllowPrivilegeEscalation bool `yaml:"allowPrivilegeEscalation"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

func read(t *testing.T, name string) deployment {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var d deployment
	if err := yaml.Unmarshal(data, &d); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if !slices.Contains([]string{"Deployment", "DaemonSet", "Job"}, d.Kind) {
		t.Fatalf("%s: kind %q; want one that runs pods", name, d.Kind)
	}
	return d
}

func find(t *testing.T, name string, list []container) container {
	t.Helper()
	i := slices.IndexFunc(list, func(c container) bool { return c.Name == "ydb-sidecar" })
	if i < 0 {
		t.Fatalf("%s: no container ydb-sidecar where one belongs", name)
	}
	return list[i]
}

func TestNativeSidecarStartsFirstAndStaysUntilTheEnd(t *testing.T) {
	for _, name := range []string{"native-sidecar.yaml", "job.yaml"} {
		d := read(t, name)
		if c := find(t, name, d.Spec.Template.Spec.InitContainers); c.RestartPolicy != "Always" {
			t.Errorf("%s: restartPolicy %q; want Always, which makes an init container a sidecar", name, c.RestartPolicy)
		}
	}
}

// The sockets that apps use lie in the directory of the machine that the pod mounts.
func TestDaemonSetServesOverHostSockets(t *testing.T) {
	d := read(t, "daemonset.yaml")
	c := find(t, "daemonset.yaml", d.Spec.Template.Spec.Containers)
	for _, name := range []string{"SIDECAR_HTTP_SOCKET", "SIDECAR_GRPC_SOCKET"} {
		i := slices.IndexFunc(c.Env, func(e struct{ Name, Value string }) bool { return e.Name == name })
		if i < 0 || len(c.VolumeMounts) != 1 || filepath.Dir(c.Env[i].Value) != c.VolumeMounts[0].MountPath {
			t.Fatalf("env %v, mounts %v; want %s in the volume", c.Env, c.VolumeMounts, name)
		}
	}
	if v := d.Spec.Template.Spec.Volumes[0]; v.HostPath == nil || v.HostPath.Path != c.VolumeMounts[0].MountPath {
		t.Errorf("volume %+v; want the directory of the machine, at the same path", v)
	}
}

// The hook finds the sidecar by its socket, which lies in a directory that the
// sidecar makes itself, on a volume that it may write to.
func TestNativeSidecarIsToldEarly(t *testing.T) {
	d := read(t, "native-sidecar.yaml")
	spec := d.Spec.Template.Spec
	c := find(t, "native-sidecar.yaml", spec.InitContainers)
	if got := c.Lifecycle.PreStop.Exec.Command; !slices.Equal(got, []string{"/sidecar", "drain", "-lameduck"}) {
		t.Errorf("preStop %q; want /sidecar drain -lameduck", got)
	}
	i := slices.IndexFunc(c.Env, func(e struct{ Name, Value string }) bool { return e.Name == "SIDECAR_ADMIN_SOCKET" })
	if i < 0 || len(c.VolumeMounts) != 1 || len(spec.Volumes) != 1 {
		t.Fatalf("env %v, mounts %v, volumes %v; want SIDECAR_ADMIN_SOCKET on a volume", c.Env, c.VolumeMounts, spec.Volumes)
	}
	if above := filepath.Dir(filepath.Dir(c.Env[i].Value)); above != c.VolumeMounts[0].MountPath {
		t.Errorf("SIDECAR_ADMIN_SOCKET %q; want it in a directory of its own below %q", c.Env[i].Value, c.VolumeMounts[0].MountPath)
	}
	if v := spec.Volumes[0]; v.Name != c.VolumeMounts[0].Name || v.EmptyDir == nil {
		t.Errorf("volume %+v; want an emptyDir called %q", v, c.VolumeMounts[0].Name)
	}
}

func TestClassicSidecarServesOnAfterSIGTERM(t *testing.T) {
	d := read(t, "classic-sidecar.yaml")
	c := find(t, "classic-sidecar.yaml", d.Spec.Template.Spec.Containers)
	if i := slices.IndexFunc(
		c.Env, func(e struct{ Name, Value string }) bool { return e.Name == "SIDECAR_DRAIN_DELAY" },
	); i < 0 || c.Env[i].Value == "0s" {
		t.Errorf("env %v; want SIDECAR_DRAIN_DELAY", c.Env)
	}
}

func TestManifests(t *testing.T) {
	for _, name := range []string{"native-sidecar.yaml", "classic-sidecar.yaml", "job.yaml", "daemonset.yaml"} {
		t.Run(name, func(t *testing.T) {
			d := read(t, name)
			spec := d.Spec.Template.Spec
			c := find(t, name, append(spec.InitContainers, spec.Containers...))
			checkProbes(t, c)
			checkSettings(t, c, spec.TerminationGracePeriodSeconds)
			if s := c.SecurityContext; !s.RunAsNonRoot || s.RunAsUser == 0 || !s.ReadOnlyRootFilesystem ||
				s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
				t.Errorf("security context %+v; want no root, a read-only file system and no capabilities", s)
			}
			if r := c.Resources; r.Requests["cpu"] == "" || r.Requests["memory"] == "" || r.Limits["memory"] == "" {
				t.Errorf("resources %+v; want requests and a limit of memory", r)
			}
			if !slices.Equal(c.Args, []string{"serve"}) {
				t.Errorf("args %v; want serve", c.Args)
			}
		})
	}
}

// checkProbes wants the probes on the port that a kubelet can reach, and none for readiness.
func checkProbes(t *testing.T, c container) {
	t.Helper()
	if c.StartupProbe == nil || c.StartupProbe.HTTPGet.Path != "/startupz" {
		t.Errorf("startup probe %+v; want /startupz", c.StartupProbe)
	}
	if c.LivenessProbe == nil || c.LivenessProbe.HTTPGet.Path != "/livez" {
		t.Errorf("liveness probe %+v; want /livez", c.LivenessProbe)
	}
	if c.ReadinessProbe != nil {
		t.Error("there is a readiness probe: a blip of the database would take the pod out of its service")
	}
	for _, p := range []*probe{c.StartupProbe, c.LivenessProbe} {
		if p != nil && p.HTTPGet.Port != "probes" {
			t.Errorf("a probe asks port %q; want probes", p.HTTPGet.Port)
		}
	}
	if len(c.Ports) != 1 || c.Ports[0].Name != "probes" || c.Ports[0].ContainerPort != 7404 {
		t.Errorf("ports %+v; want probes on 7404 and nothing else", c.Ports)
	}
	if i := slices.IndexFunc(c.Env,
		func(e struct{ Name, Value string }) bool { return e.Name == "SIDECAR_ADMIN_PROBES" }); i < 0 || c.Env[i].Value != "0.0.0.0:7404" {
		t.Errorf("env %v; want SIDECAR_ADMIN_PROBES = 0.0.0.0:7404", c.Env)
	}
}

func TestImageIsStaticWithoutShellOrRoot(t *testing.T) {
	data, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, final, ok := strings.Cut(string(data), "\nFROM scratch\n")
	if !ok || strings.Contains(final, "\nFROM ") {
		t.Fatal("the last stage is not FROM scratch")
	}
	for _, want := range []string{"\nUSER 65532:65532\n", "\nENTRYPOINT [\"/sidecar\"]\n", "\nCMD [\"serve\"]\n",
		"ca-certificates.crt", " CMD [\"/sidecar\", \"wait\", \"-timeout\", \"2s\"]\n", "\nsidecar:x:65532:65532:",
		"\nCOPY LICENSE THIRD_PARTY_NOTICES /licenses/\n"} {
		if !strings.Contains("\n"+final+"\n", want) {
			t.Errorf("the last stage lacks %q", strings.TrimSpace(want))
		}
	}
	context, err := os.ReadFile("Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"!LICENSE\n", "!THIRD_PARTY_NOTICES\n"} {
		if !strings.Contains(string(context), want) {
			t.Errorf("the build cannot copy what Dockerfile.dockerignore leaves out; it lacks %q", want)
		}
	}
	if strings.Contains(final, "RUN ") {
		t.Error("the last stage runs a command; it has no shell")
	}
	if !strings.Contains(string(data), "CGO_ENABLED=0 go build") {
		t.Error("the binary is not static: no CGO_ENABLED=0")
	}
}

// checkSettings hands the manifest's variables to the loader of the sidecar,
// which refuses what is no setting, and wants the pod to live long enough for
// the drain.
func checkSettings(t *testing.T, c container, grace int) {
	t.Helper()
	var environment []string
	for _, e := range c.Env {
		if strings.HasPrefix(e.Name, app.EnvPrefix) {
			environment = append(environment, e.Name+"="+e.Value)
		} else {
			t.Errorf("%s is no setting", e.Name)
		}
	}
	config, _, err := app.Load("", environment, nil)
	if err != nil {
		t.Fatalf("the sidecar would not start: %v", err)
	}
	if least := config.Drain.Delay + config.Drain.Grace; time.Duration(grace)*time.Second < least+5*time.Second {
		t.Errorf("terminationGracePeriodSeconds %d; want at least 5 s more than drain.delay and drain.grace, %v", grace, least)
	}
}
