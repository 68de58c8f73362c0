package systemtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/docstest"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// nodePackage builds the npm package and returns its path.
func nodePackage(t *testing.T) string {
	t.Helper()
	root := standtest.Root(t)
	command(t, root, "make", "clients-node")
	found, err := filepath.Glob(filepath.Join(root, "dist", "ydb-sidecar-*.tgz"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the package in dist: %v, %v; want one", found, err)
	}
	carriesLicence(t, found[0])
	return found[0]
}

// alone has npm install what is in a file and ask nobody else.
var alone = []string{"npm_config_offline=true", "npm_config_audit=false", "npm_config_fund=false"}

// installNode installs the built npm package in an empty directory, as an app does, and returns the directory.
func installNode(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private":true,"type":"module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, dir, "env", append(alone, "npm", "install", "--loglevel=error", nodePackage(t))...)
	return dir
}

// withModules lets the programs of a directory import packages that the tests of the npm package have.
func withModules(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		from := filepath.Join(standtest.Root(t), "clients", "node", "node_modules", name)
		if err := os.Symlink(from, filepath.Join(dir, "node_modules", name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNodeClient installs the npm package without anything else and runs its suite against a sidecar: over HTTP, TLS aside, and a Unix
// socket first, then over gRPC with the packages that this needs. The contract table runs through it as well.
func TestNodeClient(t *testing.T) {
	t.Parallel()
	dir := installNode(t)
	socket := filepath.Join(t.TempDir(), "s")
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "http.socket="+socket+".http", "grpc.socket="+socket+".grpc",
		"kv.tables="+contract.KVTables("")+
			",notes=notes key=id:Utf8 value=note:Json version=rev:Uint64,drafts=drafts key=id:Uint64 value=lines:Json")
	conn := contract.OverHTTP("http://" + s.HTTP)
	defer conn.Close()
	if _, err := conn.Execute(t.Context(), contract.Statement{
		SQL: "CREATE TABLE notes (id Utf8, note Json, rev Uint64, PRIMARY KEY (id))", Idempotent: true,
	}); err != nil {
		t.Fatal(err)
	}
	command(t, filepath.Join(standtest.Root(t), "clients", "node"), "npm", "test", "--silent")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(standtest.Root(t), "clients", "node", "test", "installed"))); err != nil {
		t.Fatal(err)
	}
	modules, err := filepath.Glob(filepath.Join(dir, "node_modules", "[^.]*"))
	if err != nil || len(modules) != 1 {
		t.Fatalf("installed are %v, %v; want ydb-sidecar alone", modules, err)
	}
	live := func(t *testing.T, env string, addresses ...string) {
		t.Helper()
		command(t, dir, "env", env, "ADDRESSES="+strings.Join(addresses, ","), "node", "--test", "live.test.mjs")
	}
	t.Run("http", func(t *testing.T) { live(t, "WITH_GRPC=0", "http://"+s.HTTP, "unix:"+socket+".http") })
	withModules(t, dir, "@grpc", "@types", "undici-types")
	t.Run("grpc", func(t *testing.T) { live(t, "WITH_GRPC=1", "grpc://"+s.GRPC, "grpc+unix:"+socket+".grpc") })
	t.Run("types", func(t *testing.T) {
		command(t, dir, filepath.Join(standtest.Root(t), "clients", "node", "node_modules", ".bin", "tsc"), "-p", ".")
	})
	t.Run("README", func(t *testing.T) {
		docstest.Run(t, docstest.Page{
			Path: filepath.Join(standtest.Root(t), "clients", "node", "README.md"), Env: alone,
			Replace:  []string{"127.0.0.1:7401", s.HTTP, "path/to/sidecar", standtest.Root(t)},
			Programs: map[string][]string{"js": {"node"}},
		})
	})
	drivers := func(s *sidecar) (all []contract.Client) {
		t.Helper()
		for name, url := range map[string]string{"node over http": "http://" + s.HTTP, "node over grpc": "grpc://" + s.GRPC} {
			node, err := exec.LookPath("node")
			if err != nil {
				t.Fatal(err)
			}
			driver, err := contract.OverDriver(name, node, filepath.Join(dir, "driver.mjs"), url)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, driver)
		}
		return all
	}
	contract.Run(t, contract.Target{Drivers: drivers(s), KV: true})
	hasty := startSidecar(t, c, nil, "api.timeout="+streamTimeout.String())
	contract.Run(t, contract.Target{Drivers: drivers(hasty), Streams: c.streams()})
	operated, operator := startOperated(t, c)
	contract.Run(t, contract.Target{Drivers: drivers(operated), Operator: operator})
}
