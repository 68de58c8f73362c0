package officialtest

import (
	"bytes"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// runClient runs the tests of another language against a cluster that asks for tickets.
// Their output must match proof: that many of them ran.
func runClient(t *testing.T, nodes int, dir, proof string, command ...string) {
	t.Helper()
	if _, err := os.Stat(command[0]); errors.Is(err, fs.ErrNotExist) {
		if _, err := exec.LookPath(command[0]); err != nil {
			t.Fatalf("%s is not installed: run make deps", command[0])
		}
	}
	cluster := startCluster(t, func(c *devcluster.Config) {
		c.Nodes, c.Control = nodes, "127.0.0.1:0"
		c.Users, c.Tokens = map[string]string{"root": "1234"}, []string{"fixed"}
	})
	endpoint, err := url.Parse(cluster.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "YDB_ENDPOINT="+endpoint.Host, "YDB_CONTROL="+cluster.Control(),
		"YDB_USER=root", "YDB_PASSWORD=1234", "PYTHONDONTWRITEBYTECODE=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("%v: %v\n%s", command, err, &out)
	}
	if !regexp.MustCompile(proof).Match(out.Bytes()) {
		t.Errorf("no %q in the output:\n%s", proof, &out)
	}
	// The node may learn later than this test that a client has gone.
	await.True(t, "no session is left", func() bool { return len(cluster.Sessions()) == 0 })
}

// The Python client: its synchronous and asynchronous sides, query and table.
func TestPythonClient(t *testing.T) {
	python, err := filepath.Abs("../../../.cache/official/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	runClient(t, devcluster.MaxNodes, "testdata/python", `Ran 1\d tests`, python, "-W", "error::ResourceWarning", "-m",
		"unittest", "-v", "test_official")
}

// The Node clients, new and old.
func TestNodeClients(t *testing.T) {
	if _, err := os.Stat("testdata/node/node_modules/@ydbjs/query"); err != nil {
		t.Fatal("the Node clients are not installed: run make deps")
	}
	runClient(t, 3, "testdata/node", `# pass 5`, "node", "--test", "official.test.mjs")
}
