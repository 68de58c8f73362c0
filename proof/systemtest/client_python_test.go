package systemtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/docstest"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// TestPythonClient builds the Python client, installs the package that was built in empty environments, and uses it there as an app would:
// its own tests, the contract over each API, and every block of its README.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	socket := filepath.Join(t.TempDir(), "http.sock")
	tables := contract.KVTables("") + ",drafts=drafts key=id:Uint64 value=lines:Json"
	s := startSidecar(t, c, nil, "http.socket="+socket, "kv.tables="+tables)
	root := standtest.Root(t)
	tests := filepath.Join(root, "clients", "python", "tests")
	wheel := pythonWheel(t)
	web, grpc := "http://"+s.HTTP, "grpc://"+s.GRPC

	plain := emptyPython(t, "python3", "--no-index", wheel) // without an index: it needs no other package
	full := emptyPython(t, "python3", wheel+"[grpc]")
	t.Run("own tests", func(t *testing.T) {
		ownTests(t, full, tests, web, "unix://"+socket, grpc)
	})
	t.Run("own tests on other Pythons", func(t *testing.T) {
		for _, name := range []string{"python3.9", "python3.10", "python3.12", "python3.13", "python3.14"} {
			if exec.Command(name, "-c", "import venv").Run() == nil {
				ownTests(t, emptyPython(t, name, "--no-index", wheel), tests, web)
			}
		}
	})
	t.Run("without grpc", func(t *testing.T) {
		const program = `
import ydb_sidecar
assert ydb_sidecar.connect("WEB").query("SELECT 1 AS a").first().a == 1
try:
    ydb_sidecar.connect("GRPC")
except ImportError as error:
    assert "pip install 'ydb-sidecar[grpc]'" in str(error), error
else:
    raise AssertionError("gRPC works without its packages")`
		command(t, "", plain, "-c", strings.NewReplacer("WEB", web, "GRPC", grpc).Replace(program))
	})
	driver := func(name, python, url string) contract.Client {
		t.Helper()
		d, err := contract.OverDriver("python_"+name, python, filepath.Join(tests, "driver.py"), url)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	contract.Run(t, contract.Target{KV: true, Drivers: []contract.Client{
		driver("http", plain, web), driver("unix", plain, "unix://"+socket), driver("grpc", full, grpc),
	}})
	hasty := startSidecar(t, c, nil, "api.timeout="+streamTimeout.String())
	contract.Run(t, contract.Target{Streams: c.streams(), Drivers: []contract.Client{
		driver("streams_http", plain, "http://"+hasty.HTTP), driver("streams_grpc", full, "grpc://"+hasty.GRPC),
	}})
	operated, operator := startOperated(t, c)
	contract.Run(t, contract.Target{Operator: operator, Drivers: []contract.Client{
		driver("operated_http", plain, "http://"+operated.HTTP), driver("operated_grpc", full, "grpc://"+operated.GRPC),
	}})
	t.Run("README", func(t *testing.T) {
		docstest.Run(t, docstest.Page{
			Path: filepath.Join(root, "clients", "python", "README.md"), Replace: []string{"127.0.0.1:7401", s.HTTP},
			Programs: map[string][]string{"python": {plain}},
		})
	})
}

// pythonWheel builds the Python client and returns the path of its wheel.
func pythonWheel(t *testing.T) string {
	t.Helper()
	root := standtest.Root(t)
	command(t, root, "make", "clients-python")
	built := func(kind string) string {
		found, err := filepath.Glob(filepath.Join(root, "dist", "ydb_sidecar-*"+kind))
		if err != nil || len(found) != 1 {
			t.Fatalf("the %s in dist: %v, %v; want one", kind, found, err)
		}
		carriesLicence(t, found[0])
		return found[0]
	}
	built(".tar.gz")
	return built(".whl")
}

// emptyPython makes an environment with nothing but what pip installs by these arguments, and returns its interpreter. The pip is that of
// .venv: one in each environment takes longer than the tests.
func emptyPython(t *testing.T, python string, install ...string) string {
	t.Helper()
	dir := t.TempDir()
	command(t, dir, python, "-m", "venv", "--without-pip", dir)
	program := filepath.Join(dir, "bin", "python")
	pip := filepath.Join(standtest.Root(t), ".venv", "bin", "pip")
	command(t, dir, pip, append([]string{"--python", program, "install", "--quiet", "--disable-pip-version-check"}, install...)...)
	return program
}

// ownTests runs the package's tests at the given addresses, with the package that is installed.
func ownTests(t *testing.T, python, tests string, urls ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, "-W", "error::RuntimeWarning", "-m", "unittest", "discover", "-s", tests)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "YDB_SIDECAR_URLS="+strings.Join(urls, " "))
	cmd.Dir = t.TempDir()
	text, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(text), "skipped") {
		t.Errorf("%s: %v\n%s", fmt.Sprint(python, urls), err, text)
	}
}
