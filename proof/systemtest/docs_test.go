package systemtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/docstest"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// asPrinted names the variable that has `make run` run as it is, at the ports that documents print: tools/newcomer.sh sets it in a network
// of its own.
const asPrinted = "NEWCOMER_AS_PRINTED"

// makeRun runs what `make run` runs once the programs are built, for as long as the test.
func makeRun(t *testing.T) {
	t.Helper()
	p := standtest.Start(t, stand.Spec{Path: filepath.Join(standtest.Root(t), "tools", "run.sh")})
	eventually(t, 2*patience, "what make run prints", func() string {
		if text := p.Stdout(); !strings.Contains(text, "Ctrl-C stops all of it.") {
			return text + stand.LastLines(p.Log(), 20)
		}
		return ""
	})
}

// likeMakeRun starts what `make run` starts, at free ports, and returns what documents say of it with the addresses here, for
// docstest.Page.Replace. With asPrinted it is `make run` itself.
func likeMakeRun(t *testing.T) (replace []string) {
	t.Helper()
	if os.Getenv(asPrinted) != "" {
		makeRun(t)
		return nil
	}
	traces := standtest.Start(t, stand.Spec{
		Path: filepath.Join(bin, "devtrace"), Args: []string{"-otlp", "127.0.0.1:0", "-http", "127.0.0.1:0"},
	})
	at := standtest.Ready(t, traces)
	c := startCluster(t, nil)
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + at["otlp"], "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_BSP_SCHEDULE_DELAY=100"}
	s := startSidecar(t, c, env, "kv.tables=drafts=drafts key=id:Uint64 value=lines:Json")
	replace = []string{"127.0.0.1:2136", c.Nodes[0].Address}
	for port, here := range map[string]string{"7400": s.GRPC, "7401": s.HTTP, "7402": s.Admin, "4318": at["http"]} {
		replace = append(replace, "127.0.0.1:"+port, here, "localhost:"+port, here)
	}
	return replace
}

// TestTutorialForPython runs every block of the tutorial.
func TestTutorialForPython(t *testing.T) {
	wheel := pythonWheel(t)
	docstest.Run(t, docstest.Page{
		Path:    filepath.Join(standtest.Root(t), "docs", "tutorials", "python.md"),
		Started: []string{"make run", "make clients-python"},
		Replace: append(likeMakeRun(t), "dist/ydb_sidecar-*.whl", wheel),
	})
}

// TestReadme runs every block of README, with packages of the clients that were built and installed in empty directories.
func TestReadme(t *testing.T) {
	docstest.Run(t, docstest.Page{
		Path: filepath.Join(standtest.Root(t), "README.md"),
		Dir:  installNode(t),
		Started: []string{"make run     # a development cluster of three nodes and a sidecar, until Ctrl-C\n" +
			"make test    # lint, unit tests, official SDKs, Python and Node apps, killed nodes"},
		Replace: likeMakeRun(t),
		Programs: map[string][]string{
			"python": {emptyPython(t, "python3", "--no-index", pythonWheel(t))},
			"js":     {"node"},
		},
	})
}

// TestRetryLoop runs the loop of the how-to page, which needs no package.
func TestRetryLoop(t *testing.T) {
	docstest.Run(t, docstest.Page{
		Path:     filepath.Join(standtest.Root(t), "docs", "how-to", "retry-loop.md"),
		Replace:  likeMakeRun(t),
		Programs: map[string][]string{"python": {"python3"}},
	})
}

// TestNewcomerNeedsItsCaches runs the script of make newcomer where something is missing that it would link into the clone: it says so
// at once, in place of a test that fails minutes later.
func TestNewcomerNeedsItsCaches(t *testing.T) {
	newcomer := exec.Command(filepath.Join(standtest.Root(t), "tools", "newcomer.sh"))
	newcomer.Env = append(os.Environ(), "CACHES=.cache/not-installed")
	text, err := newcomer.CombinedOutput()
	var exit *exec.ExitError
	const says = "there is no .cache/not-installed; run make deps"
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(text), says) {
		t.Errorf("%v: %s", err, text)
	}
}
