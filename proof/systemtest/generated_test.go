package systemtest

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"

	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// TestGeneratedClients makes clients from the description that a sidecar serves,
// with a generator for Python and one for TypeScript, checks programs against their
// types, strictly, and runs them.
func TestGeneratedClients(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "kv.tables=names=names key=id:Uint64 value=name:Utf8")
	if _, err := s.Execute(
		t.Context(), &sidecarv1.ExecuteRequest{Sql: "CREATE TABLE names (id Uint64, name Utf8, PRIMARY KEY (id))"},
	); err != nil {
		t.Fatal(err)
	}
	url := "http://" + s.HTTP
	t.Run("python", func(t *testing.T) {
		dir := workshop(t, url, "python", "check.py")
		programs := filepath.Join(standtest.Root(t), ".cache", "generated", "bin")
		command(t, dir, filepath.Join(programs, "openapi-python-client"), "generate", "--path", "openapi.yaml", "--meta",
			"none", "--output-path", "sidecar_client")
		command(t, dir, filepath.Join(programs, "mypy"), "--strict", "--no-warn-redundant-casts", "check.py")
		command(t, dir, filepath.Join(programs, "python"), "check.py", url)
	})
	t.Run("typescript", func(t *testing.T) {
		dir := workshop(t, url, "node", "check.ts", "package.json", "tsconfig.json")
		modules := filepath.Join(standtest.Root(t), "proof", "systemtest", "testdata", "generated", "node", "node_modules")
		if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
			t.Fatal(err)
		}
		command(t, dir, "node_modules/.bin/openapi-typescript", "openapi.yaml", "-o", "sidecar.d.ts")
		command(t, dir, "node_modules/.bin/tsc")
		command(t, dir, "node", "out/check.js", url)
	})
}

// workshop is a directory with the sidecar's openapi.yaml and files of testdata/generated.
func workshop(t *testing.T, url, from string, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	_, described := askHTTP(t, http.MethodGet, url+"/openapi.yaml", "")
	err := os.WriteFile(filepath.Join(dir, "openapi.yaml"), []byte(described), 0o600)
	for _, name := range names {
		var text []byte
		if err == nil {
			text, err = os.ReadFile(filepath.Join("testdata", "generated", from, name))
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// command runs a program in dir to its end, which must be a good one.
func command(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", filepath.Base(name), args, err, text)
	}
}
