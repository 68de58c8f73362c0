package helmtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
)

// The images that the Compose file builds have what their Dockerfiles copy, and the programs take the arguments that they get.
func TestComposeRunsWhatIsThere(t *testing.T) {
	project := compose(t, "")
	built := 0
	for name, service := range project.Services {
		if service.Build != nil {
			built++
			checkBuild(t, name, service.Build)
		}
		for on, how := range service.DependsOn {
			if how.Condition == types.ServiceConditionHealthy && project.Services[on].HealthCheck == nil &&
				!strings.Contains(dockerfile(t, project.Services[on].Build), "\nHEALTHCHECK ") {
				t.Errorf("%s waits until %s is healthy, which has no health check", name, on)
			}
		}
	}
	if built != 3 {
		t.Errorf("%d services are built; want the sidecar, the shop and the development cluster", built)
	}
	cluster := filepath.Join(t.TempDir(), "devcluster")
	t.Setenv("CGO_ENABLED", "0") // as make build builds it, and so from the same cache
	ran(t, "go", "build", "-C", "../..", "-trimpath", "-o", cluster, "./proof/cmd/devcluster")
	// The flags are read from left to right: one that does not exist is an error before the last one asks for help.
	ran(t, cluster, append(slices.Clone(project.Services["ydb"].Command), "-h")...)
	help := ran(t, "../../.venv/bin/python", "../../examples/python/app.py", "--help")
	flag := regexp.MustCompile(`--[a-z]+`)
	has, flags := flag.FindAllString(help, -1), flag.FindAllString(strings.Join(project.Services["shop"].Command, " "), -1)
	for _, flag := range flags {
		if !slices.Contains(has, flag) {
			t.Errorf("the shop is run with %s, which it does not have", flag)
		}
	}
	if len(flags) == 0 {
		t.Error("the shop is run without flags; want those of a run without end")
	}
	board, err := os.ReadFile("../grafana/ydb-sidecar.json")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`Grafana \(dashboard ([^)]+)\)`).FindStringSubmatch(string(text)); m == nil ||
		!strings.Contains(string(board), `"title": "`+m[1]+`"`) {
		t.Errorf("the first comment names the dashboard %q, and deploy/grafana has another", m)
	}
}

func dockerfile(t *testing.T, build *types.BuildConfig) string {
	t.Helper()
	if build == nil {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(build.Context, build.Dockerfile))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkBuild wants what a Dockerfile copies to exist and to be sent to the builder, and the packages that pip installs from a directory to be
// where requirements.txt says.
func checkBuild(t *testing.T, name string, build *types.BuildConfig) {
	t.Helper()
	ignore, err := os.ReadFile(filepath.Join(build.Context, build.Dockerfile+".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	var sent []string // everything else is ignored
	for line := range strings.Lines(string(ignore)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "!"); ok {
			sent = append(sent, path)
			if _, err := os.Stat(filepath.Join(build.Context, path)); err != nil {
				t.Errorf("%s: %s.dockerignore: %v", name, build.Dockerfile, err)
			}
		}
	}
	text := dockerfile(t, build)
	copied := map[string]string{} // where a path of the context is in the image
	for _, m := range regexp.MustCompile(`(?m)^COPY ([^-<].*) (\S+)$`).FindAllStringSubmatch(text, -1) {
		for from := range strings.FieldsSeq(m[1]) {
			copied[from] = m[2]
			if from != "." && !slices.Contains(sent, from) {
				t.Errorf("%s: %s copies %s, which its .dockerignore leaves out: %q", name, build.Dockerfile, from, sent)
			}
		}
	}
	if !strings.Contains(text, "-r requirements.txt") {
		return
	}
	packages, err := os.ReadFile(filepath.Join(build.Context, "requirements.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:-e )?\./([^\s\[]+)`).FindAllStringSubmatch(string(packages), -1) {
		if copied[m[1]] != "./"+m[1] || copied["requirements.txt"] != "./" {
			t.Errorf("%s: requirements.txt installs ./%s, which is not beside it in the image: %v", name, m[1], copied)
		}
	}
}
