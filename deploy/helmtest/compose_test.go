package helmtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// compose loads the Compose file with the variable YDB; "" leaves it unset.
func compose(t *testing.T, ydb string) *types.Project {
	t.Helper()
	environment := map[string]string{}
	if ydb != "" {
		environment["YDB"] = ydb
	}
	dir, err := filepath.Abs("../compose")
	if err != nil {
		t.Fatal(err)
	}
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  dir,
		Environment: environment,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestCompose(t *testing.T) {
	for _, ydb := range []string{"", "devcluster", "local-ydb"} {
		t.Run("ydb_"+ydb, func(t *testing.T) { testCompose(t, compose(t, ydb), ydb == "local-ydb") })
	}
}

func testCompose(t *testing.T, project *types.Project, real bool) {
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
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly {
				t.Errorf("%s mounts %s (%v), read-only: %v; want a file that is there, read-only", name, v.Source, err, v.ReadOnly)
			}
		}
		if service.Build == nil && !strings.Contains(service.Image, ":") {
			t.Errorf("%s runs %s; want a version", name, service.Image)
		}
		if service.Build != nil {
			if _, err := os.Stat(filepath.Join(service.Build.Context, service.Build.Dockerfile)); err != nil {
				t.Errorf("%s is built from %v", name, err)
			}
		}
		checkHosts(t, project, service)
	}
	if ydb := project.Services["ydb"]; (ydb.Build == nil) != real || ydb.Hostname != "ydb" ||
		real != strings.HasPrefix(ydb.Image, "ydbplatform/local-ydb:") {
		t.Errorf("ydb runs %s, host %s; want YDB itself: %v", ydb.Image, ydb.Hostname, real)
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
	link := sidecar.Environment["SIDECAR_ADMIN_TRACE_LINK"]
	jaeger := project.Services["jaeger"].Ports
	if link == nil || len(jaeger) != 1 || *link != "http://127.0.0.1:"+jaeger[0].Published+"/trace/{trace_id}" {
		t.Errorf("the page's trace ids do not lead to Jaeger, which is at %v: %v", jaeger, link)
	}
	checkEnvironment(t, sidecar)
}

// What the first comment says to open or to call is there, and its first query is one.
func TestComposeSaysWhereThingsAre(t *testing.T) {
	text, err := os.ReadFile("../compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	comment, _, _ := strings.Cut(string(text), "\nname:")
	published := map[string]bool{}
	for _, ydb := range []string{"devcluster", "local-ydb"} {
		if !strings.Contains(comment, "YDB="+ydb+" ") && ydb != "devcluster" {
			t.Errorf("the first comment does not say how to run with %s", ydb)
		}
		for _, service := range compose(t, ydb).Services {
			for _, p := range service.Ports {
				published[p.Published] = true
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?:127\.0\.0\.1|localhost):(\d+)`).FindAllStringSubmatch(comment, -1) {
		if !published[m[1]] {
			t.Errorf("the first comment names port %s, which is not published: %v", m[1], published)
		}
	}
	for port := range published {
		if !strings.Contains(comment, ":"+port) {
			t.Errorf("port %s is published, and the first comment does not say what for", port)
		}
	}
	query := regexp.MustCompile(`curl -s localhost:7401/v1/query .* -d '(.*)'`).FindStringSubmatch(comment)
	var body struct {
		SQL    string
		Params map[string]int
	}
	if query == nil {
		t.Fatal("the first comment has no query")
	}
	if err := json.Unmarshal([]byte(query[1]), &body); err != nil || !strings.Contains(body.SQL, "$a") || body.Params["a"] == 0 {
		t.Errorf("the first query %s: %v", query[1], err)
	}
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
	project := compose(t, "")
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
