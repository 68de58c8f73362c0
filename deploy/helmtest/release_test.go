package helmtest

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
)

// The parts of a release that are quick are made twice, for this platform, and are what they say.
func TestRelease(t *testing.T) {
	const version = "9.8.7"
	platform := runtime.GOOS + "_" + runtime.GOARCH
	name := "ydb-sidecar_" + version + "_" + platform
	dist := []string{t.TempDir(), t.TempDir()}
	for i, parts := range [][]string{{"programs", "charts", "sbom", "notes", "sums"}, {"programs", "charts", "sums"}} {
		release := exec.Command("../../tools/release.sh", parts...)
		release.Env = append(os.Environ(), "VERSION="+version, "DIST="+dist[i], "PLATFORMS="+runtime.GOOS+"/"+runtime.GOARCH)
		if text, err := release.CombinedOutput(); err != nil {
			t.Fatalf("release.sh %q: %v\n%s", parts, err, text)
		}
	}
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = dist[0]
	if text, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	for _, file := range []string{name + ".tar.gz", "charts/ydb-sidecar-" + version + ".tgz",
		"charts/ydb-sidecar-monitoring-" + version + ".tgz"} {
		if a, b := contents(t, dist[0], file), contents(t, dist[1], file); !bytes.Equal(a, b) {
			t.Errorf("%s differs between two runs", file)
		}
		if !strings.Contains(string(contents(t, dist[0], "SHA256SUMS")), "  "+file+"\n") {
			t.Errorf("SHA256SUMS lacks %s", file)
		}
	}
	if !strings.Contains(string(contents(t, dist[0], "CHANGES.md")), "\n- ") {
		t.Error("CHANGES.md has no change")
	}
	ran(t, "tar", "-xzf", filepath.Join(dist[0], name+".tar.gz"), "-C", dist[0])
	program := filepath.Join(dist[0], name, "sidecar")
	if said := ran(t, program, "version"); !strings.HasPrefix(said, "ydb-sidecar "+version+", commit ") {
		t.Errorf("the program says %q; want version %s", said, version)
	}
	for _, file := range []string{"LICENSE", "THIRD_PARTY_NOTICES", "sidecar.yaml"} {
		if len(contents(t, dist[0], filepath.Join(name, file))) == 0 {
			t.Errorf("%s is empty", file)
		}
	}
	checkBill(t, contents(t, dist[0], name+".cdx.json"), program, version)
	for _, of := range []string{"ydb-sidecar", "ydb-sidecar-monitoring"} {
		c, err := loader.LoadFile(filepath.Join(dist[0], "charts", of+"-"+version+".tgz"))
		if err != nil {
			t.Errorf("%s: %v", of, err)
		} else if c.Metadata.Version != version || c.Metadata.AppVersion != version || c.Name() != of {
			t.Errorf("%s: %s %s, app %s; want %s", of, c.Name(), c.Metadata.Version, c.Metadata.AppVersion, version)
		}
	}
}

func contents(t *testing.T, dir, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// component is a module in an SBOM.
type component struct {
	Name, Version string
	Evidence      struct{ Licenses []any }
}

// checkBill wants an SBOM to list each module that the program is linked with, in the version of go.mod, and its licence.
func checkBill(t *testing.T, text []byte, program, version string) {
	t.Helper()
	var bill struct {
		BOMFormat string `json:"bomFormat"`
		Metadata  struct {
			Component struct{ Name, Version string }
		}
		Components []component
	}
	if err := json.Unmarshal(text, &bill); err != nil || bill.BOMFormat != "CycloneDX" || bill.Metadata.Component.Version != version {
		t.Fatalf("SBOM %s of %+v, %v; want CycloneDX's of version %s", bill.BOMFormat, bill.Metadata, err, version)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	mod := string(contents(t, "../..", "go.mod"))
	if len(info.Deps) < 10 {
		t.Fatalf("%d modules in the program", len(info.Deps))
	}
	for _, dep := range info.Deps {
		i := slices.IndexFunc(bill.Components, func(c component) bool { return c.Name == dep.Path })
		switch {
		case i < 0:
			t.Errorf("the SBOM lacks %s", dep.Path)
		case bill.Components[i].Version != dep.Version || !strings.Contains(mod, dep.Path+" "+dep.Version):
			t.Errorf("%s: SBOM %s, program %s; or go.mod has another one", dep.Path, bill.Components[i].Version, dep.Version)
		case len(bill.Components[i].Evidence.Licenses) == 0:
			t.Errorf("the SBOM has no licence of %s", dep.Path)
		}
	}
}

func TestReleaseRefuses(t *testing.T) {
	release := exec.Command("../../tools/release.sh", "everything")
	release.Env = append(os.Environ(), "VERSION=1.0.0", "DIST="+t.TempDir())
	if text, err := release.CombinedOutput(); err == nil || !strings.Contains(string(text), `no part "everything"; the parts are clients`) {
		t.Errorf("an unknown part: %v, %s", err, text)
	}
}

// The packages of the clients have the version and the directory of the release.
func TestReleaseOfTheClients(t *testing.T) {
	const version = "9.8.7"
	dist := t.TempDir()
	release := exec.Command("../../tools/release.sh", "clients", "sums")
	release.Env = append(os.Environ(), "VERSION="+version, "DIST="+dist)
	if text, err := release.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	sums := string(contents(t, dist, "SHA256SUMS"))
	for _, file := range []string{
		"ydb-sidecar-" + version + ".tgz", "ydb_sidecar-" + version + "-py3-none-any.whl", "ydb_sidecar-" + version + ".tar.gz",
	} {
		if !strings.Contains(sums, "  "+file+"\n") {
			t.Errorf("SHA256SUMS lacks %s:\n%s", file, sums)
		}
	}
}
