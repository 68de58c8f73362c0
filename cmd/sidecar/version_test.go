package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/ydb-sidecar/sidecar/internal/app"
)

func TestVersionOf(t *testing.T) {
	const revision = "0123456789abcdef0123"
	for _, c := range []struct{ set, module, sources, revision, want string }{
		{"1.2.3", "v1.0.0", "2.0.0-dev", revision, "1.2.3"},
		{"", "v1.2.3", "2.0.0-dev", "", "1.2.3"},
		{"", "v1.2.3-rc.1", "2.0.0-dev", "", "1.2.3-rc.1"},
		{"", "v0.0.0-20261122000000-0123456789ab", "2.0.0-dev", revision, "2.0.0-dev.g0123456789ab"},
		{"", "v1.2.4-0.20261122000000-0123456789ab+dirty", "2.0.0-dev", revision, "2.0.0-dev.g0123456789ab"},
		{"", "(devel)", "2.0.0-dev", "", "2.0.0-dev"},
		{"", "(devel)", "2.0.0", revision, "2.0.0"}, // a release commit without its tag
	} {
		if got := versionOf(c.set, c.module, c.sources, c.revision); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestPrintVersion(t *testing.T) {
	app.Commit = "0123456789abcdef"
	defer func() { app.Commit = "" }()
	for _, args := range [][]string{{"version"}, {"--version"}, {"-version"}} {
		code, stdout, stderr := call(t, nil, args...)
		want := regexp.MustCompile(
			`^ydb-sidecar ` + regexp.QuoteMeta(programVersion()) + `, commit 0123456789abcdef, ` +
				regexp.QuoteMeta(runtime.Version()+", "+runtime.GOOS+"/"+runtime.GOARCH) + "\n$",
		)
		if code != 0 || !want.MatchString(stdout) || stderr != "" {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
}

// The charts, the changelog, the script and the program have one version.
func TestVersionsAgree(t *testing.T) {
	changelog, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	newest := regexp.MustCompile(`(?m)^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$`).FindStringSubmatch(string(changelog))
	if newest == nil {
		t.Fatal("CHANGELOG.md has no released version")
	}
	for _, name := range []string{"ydb-sidecar", "ydb-sidecar-monitoring"} {
		text, err := os.ReadFile("../../deploy/helm/" + name + "/Chart.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var chart struct {
			Version    string
			AppVersion string `yaml:"appVersion"`
		}
		if err := yaml.Unmarshal(text, &chart); err != nil || chart.AppVersion != newest[1] {
			t.Errorf("appVersion of the chart %s %q, %v; CHANGELOG.md: %s", name, chart.AppVersion, err, newest[1])
		}
	}
	if got := printed(t, string(changelog)); got != sources {
		t.Errorf("tools/version.sh: %s; the program says %s", got, sources)
	}
	const released = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-01-02\n\n### Added\n\n- A line.\n"
	if got := printed(t, released); got != "0.3.0" {
		t.Errorf("nothing unreleased: %s", got)
	}
	const who = "-c user.name=a -c user.email=a@b -c commit.gpgsign=false "
	commit := []string{"init -q", "add .", who + "commit -q -m one"}
	if got := printed(
		t, strings.Replace(released, "\n\n## [0", "\n\n- More.\n\n## [0", 1), commit...,
	); !regexp.MustCompile(`^0\.4\.0-dev\.g[0-9a-f]{12}$`).MatchString(got) {
		t.Errorf("without a tag: %s", got)
	}
	if got := printed(t, released, commit...); got != "0.3.0" {
		t.Errorf("a release commit without a tag: %s", got)
	}
	tagged := append(commit, who+"tag -a -m one v1.2.3")
	if got := printed(t, released, tagged...); got != "1.2.3" {
		t.Errorf("with a tag: %s", got)
	}
	if got := printed(t, strings.Replace(released, "\n\n## [0", "\n\n- More.\n\n## [0", 1),
		append(tagged, who+"commit -q --allow-empty -m two")...); !regexp.MustCompile(`^0\.4\.0-dev\.g[0-9a-f]{12}$`).MatchString(got) {
		t.Errorf("one commit after the tag: %s", got)
	}
}

// printed runs tools/version.sh in a directory of its own with a changelog,
// after the commands of git.
func printed(t *testing.T, changelog string, git ...string) string {
	t.Helper()
	script, err := os.ReadFile("../../tools/version.sh")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for name, content := range map[string]string{"tools/version.sh": string(script), "CHANGELOG.md": changelog} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), name, args...)
		c.Dir = root
		c.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(root), "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v, %s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for _, args := range git {
		run("git", strings.Fields(args)...)
	}
	return run("sh", "tools/version.sh")
}
