package helmtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

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
			if r.Alert != "" { // it is no recording
				names = append(names, r.Alert)
			}
		}
	}
	if len(names) < 20 {
		t.Fatalf("alerts %v; want those of all findings and more", names)
	}
	return names
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
