package helmtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

// promtool is Debian's, which `make deps` unpacks.
const promtool = "../../.cache/prometheus/usr/bin/promtool"

func ran(t *testing.T, name string, args ...string) string {
	t.Helper()
	text, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, text)
	}
	return string(text)
}

func TestAlertRules(t *testing.T) {
	ran(t, promtool, "check", "rules", "../prometheus/alerts.yaml")
	ran(t, promtool, "test", "rules", "../prometheus/alerts_test.yaml")
}

// Each alert has a unit test: a rule that nobody tried is a guess.
func TestEachAlertIsTested(t *testing.T) {
	tests, err := os.ReadFile("../prometheus/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range alerts(t) {
		if !strings.Contains(string(tests), "alertname: "+name+"\n") || !strings.Contains(string(tests), "alertname: "+name+"}") {
			t.Errorf("%s has no test that it comes, and that it does not come at once", name)
		}
	}
}

func alerts(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile("../prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			names = append(names, r.Alert)
		}
	}
	if len(names) < 20 {
		t.Fatalf("alerts %v; want those of all findings and more", names)
	}
	return names
}

func compose(t *testing.T) *types.Project {
	t.Helper()
	dir, err := filepath.Abs("../compose")
	if err != nil {
		t.Fatal(err)
	}
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestCompose(t *testing.T) {
	project := compose(t)
	if got := project.ServiceNames(); !slices.Equal(got, []string{"grafana", "jaeger", "prometheus", "shop", "sidecar", "ydb"}) {
		t.Errorf("services %v", got)
	}
	for name, service := range project.Services {
		for _, p := range service.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %s on %q; want 127.0.0.1", name, p.Published, p.HostIP)
			}
		}
		for _, v := range service.Volumes {
			if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly {
				t.Errorf("%s mounts %s (%v), read-only: %v; want a file that is there, read-only", name, v.Source, err, v.ReadOnly)
			}
		}
		if service.Build == nil && !strings.Contains(service.Image, ":") {
			t.Errorf("%s runs %s; want a version", name, service.Image)
		}
		checkHosts(t, project, service)
	}
	sidecar := project.Services["sidecar"]
	if _, err := os.Stat(
		filepath.Join(sidecar.Build.Context, sidecar.Build.Dockerfile),
	); err != nil || !sidecar.ReadOnly || !slices.Equal(sidecar.CapDrop, []string{"ALL"}) {
		t.Errorf("the sidecar is built from %s (%v), read-only: %v, drops %v", sidecar.Build.Dockerfile, err,
			sidecar.ReadOnly, sidecar.CapDrop)
	}
	if project.Services["shop"].NetworkMode != "service:sidecar" {
		t.Error("the shop is in another network than the sidecar, which it calls at 127.0.0.1")
	}
	// The calls in README.md work from the host.
	for setting, port := range map[string]string{"GRPC": "7400", "HTTP": "7401", "ADMIN": "7402"} {
		listen := sidecar.Environment["SIDECAR_"+setting+"_LISTEN"]
		published := slices.ContainsFunc(sidecar.Ports, func(p types.ServicePortConfig) bool {
			return p.HostIP == "127.0.0.1" && p.Published == port && fmt.Sprint(p.Target) == port
		})
		if listen == nil || *listen != "0.0.0.0:"+port || !published {
			t.Errorf("%s is not published at 127.0.0.1:%s: %v; or listens on the container's loopback", setting, port, sidecar.Ports)
		}
	}
	checkEnvironment(t, sidecar)
}

// checkHosts wants the hosts in URLs of a service's environment to be services, at ports
// that they serve.
func checkHosts(t *testing.T, project *types.Project, service types.ServiceConfig) {
	t.Helper()
	ports := map[string]string{"ydb": "2136", "jaeger": "4317"}
	for name, value := range service.Environment {
		_, rest, ok := strings.Cut(*value, "://")
		host, port, found := strings.Cut(rest, ":")
		if !ok || !found || host == "127.0.0.1" {
			continue
		}
		port, _, _ = strings.Cut(port, "/")
		if _, ok := project.Services[host]; !ok || ports[host] != port {
			t.Errorf("%s of %s names %s:%s; want %v", name, service.Name, host, port, ports)
		}
	}
}

func checkEnvironment(t *testing.T, service types.ServiceConfig) {
	t.Helper()
	run := exec.Command(sidecar, "check-config")
	run.Env = []string{"PATH=/"}
	for name, value := range service.Environment {
		if strings.HasPrefix(name, "SIDECAR_") {
			run.Env = append(run.Env, name+"="+*value)
		}
	}
	if text, err := run.CombinedOutput(); err != nil {
		t.Errorf("the sidecar would not start: %s", text)
	}
}

func TestComposeMonitoring(t *testing.T) {
	// promtool wants the rules beside the configuration, as in the container.
	dir := t.TempDir()
	for from, to := range map[string]string{"../compose/prometheus.yaml": "prometheus.yaml", "../prometheus/alerts.yaml": "alerts.yaml"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ran(t, promtool, "check", "config", filepath.Join(dir, "prometheus.yaml"))
	project := compose(t)
	var scrape struct {
		Configs []struct {
			Job    string                       `json:"job_name"`
			Static []struct{ Targets []string } `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	read(t, "../compose/prometheus.yaml", &scrape)
	host, port, _ := strings.Cut(scrape.Configs[0].Static[0].Targets[0], ":")
	if probes := project.Services[host].Environment["SIDECAR_ADMIN_PROBES"]; probes == nil || !strings.HasSuffix(*probes, ":"+port) {
		t.Errorf("Prometheus asks %s:%s; want the sidecar's admin.probes", host, port)
	}
	if !strings.Contains(scrape.Configs[0].Job, "ydb-sidecar") {
		t.Errorf("job %q; the alerts know sidecars by ydb-sidecar in it", scrape.Configs[0].Job)
	}
	var source struct{ Datasources []struct{ Type, URL string } }
	read(t, "../compose/grafana/provisioning/datasources/prometheus.yaml", &source)
	if s := source.Datasources[0]; s.Type != "prometheus" || s.URL != "http://prometheus:9090" {
		t.Errorf("data source %+v", s)
	}
	var boards struct {
		Providers []struct {
			Options struct{ Path string }
		}
	}
	read(t, "../compose/grafana/provisioning/dashboards/ydb-sidecar.yaml", &boards)
	if !slices.ContainsFunc(project.Services["grafana"].Volumes, func(v types.ServiceVolumeConfig) bool {
		return v.Target == boards.Providers[0].Options.Path
	}) {
		t.Errorf("Grafana looks for dashboards in %s, where nothing is mounted", boards.Providers[0].Options.Path)
	}
}

func read(t *testing.T, name string, to any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err == nil {
		err = yaml.Unmarshal(text, to)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// maxExposure is of systemd's measure, 0 to 10 with one digit, times ten: what is called OK, with room for nothing.
const maxExposure = 18

func TestSystemdUnit(t *testing.T) {
	text, err := os.ReadFile("../systemd/ydb-sidecar@.service")
	if err != nil {
		t.Fatal(err)
	}
	// Both names: verify wants a template's instance to be possible, security one that is.
	unit := strings.ReplaceAll(string(text), "/usr/bin/sidecar", sidecar)
	dir := t.TempDir()
	for _, name := range []string{"ydb-sidecar@.service", "ydb-sidecar@a.service"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(unit), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// It warns of unknown words and goes on, so what it says counts as well.
	verify := exec.Command("systemd-analyze", "verify", "--man=no", filepath.Join(dir, "ydb-sidecar@.service"))
	said, err := verify.CombinedOutput()
	if err != nil || strings.Contains(string(said), "ydb-sidecar@") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, said)
	}
	ran(t, "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+strconv.Itoa(maxExposure),
		filepath.Join(dir, "ydb-sidecar@a.service"))
}
