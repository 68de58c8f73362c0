package systemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// bin is where TestMain builds the programs.
var bin string

func TestMain(m *testing.M) {
	standtest.Main(m, &bin, "sidecar", "devcluster", "devtrace")
}

// ydb is a running development cluster.
type ydb struct{ *stand.Cluster }

func startCluster(t *testing.T, env []string, args ...string) *ydb {
	t.Helper()
	args = append([]string{"-nodes", "3"}, args...)
	return &ydb{standtest.Cluster(t, stand.Spec{Path: filepath.Join(bin, "devcluster"), Args: args, Env: env})}
}

// do posts to one node and fails the test when that fails.
func (c *ydb) do(t *testing.T, node uint32, what string, body any) {
	t.Helper()
	if err := c.Do(t.Context(), node, what, body); err != nil {
		t.Fatal(err)
	}
}

// everywhere posts the same to every node.
func (c *ydb) everywhere(t *testing.T, what string, body any) {
	t.Helper()
	for _, node := range c.Nodes {
		c.do(t, node.ID, what, body)
	}
}

// state reads the nodes.
func (c *ydb) state(t *testing.T) []stand.Node {
	t.Helper()
	nodes, err := c.Control.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

// sum adds up a counter of all nodes.
func (c *ydb) sum(t *testing.T, counter string) (n int64) {
	t.Helper()
	for _, node := range c.state(t) {
		count, ok := node.Counters[counter]
		if !ok {
			t.Fatalf("node %d has no counter %q: %v", node.ID, counter, node.Counters)
		}
		n += count
	}
	return n
}

// perNode counts the live sessions of each node, nodes without any included.
func (c *ydb) perNode(t *testing.T) map[uint32]int {
	t.Helper()
	return c.count(t, func(stand.Session) bool { return true })
}

// attached is perNode without query sessions that have no stream: those being made, and those of
// the sidecar's probes, which belong to no pool.
func (c *ydb) attached(t *testing.T) map[uint32]int {
	t.Helper()
	return c.count(t, isAttached)
}

func isAttached(s stand.Session) bool { return s.State != "created" }

func (c *ydb) count(t *testing.T, what func(stand.Session) bool) map[uint32]int {
	t.Helper()
	sessions, err := c.Sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	count := map[uint32]int{}
	for _, node := range c.Nodes {
		count[node.ID] = 0
	}
	for _, session := range sessions {
		if what(session) {
			count[session.NodeID]++
		}
	}
	return count
}

// sidecar is a running sidecar.
type sidecar struct {
	*stand.Sidecar
	sidecarv1.SidecarClient
	socket string // "" unless it was started with one: see startXDS
}

func startSidecar(t *testing.T, c *ydb, env []string, settings ...string) *sidecar {
	t.Helper()
	return startSidecarAt(t, c.Endpoint(), env, settings...)
}

func startSidecarAt(t *testing.T, url string, env []string, settings ...string) *sidecar {
	t.Helper()
	s := standtest.Sidecar(t, stand.Serve{Program: filepath.Join(bin, "sidecar"), URL: url, Settings: settings, Env: env})
	return &sidecar{Sidecar: s, SidecarClient: s.Client}
}

// reach connects to a process that is a sidecar, once it is ready.
func reach(t *testing.T, p *stand.Process) *sidecar {
	t.Helper()
	s := standtest.Reach(t, p)
	return &sidecar{Sidecar: s, SidecarClient: s.Client}
}

// dial opens a gRPC connection of its own, for as long as the test.
func dial(t *testing.T, address string) (*grpc.ClientConn, sidecarv1.SidecarClient) {
	t.Helper()
	conn, err := stand.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, sidecarv1.NewSidecarClient(conn)
}

// patience bounds waits for what comes at once on a machine with nothing else to do.
const patience = time.Minute

// eventually asks until the answer is "" (as it should be), or fails with the
// last answer. The programs are other processes: there is no event to wait for.
func eventually(t *testing.T, within time.Duration, what string, ask func() (wrong string)) {
	t.Helper()
	if wrong := await.Within(within, ask); wrong != "" {
		t.Fatalf("%s: not within %v: %s", what, within, wrong)
	}
}

// officialPython is the interpreter that has YDB's SDK for Python.
func officialPython(t *testing.T) string {
	t.Helper()
	return filepath.Join(standtest.Root(t), ".cache", "official", "bin", "python")
}

// app is one of the example apps.
type app struct {
	name, url string
	spec      stand.Spec
}

// apps returns the four ways to run the shop against a sidecar.
func apps(t *testing.T, s *sidecar) []app {
	t.Helper()
	var all []app
	for _, url := range []string{"grpc://" + s.GRPC, "http://" + s.HTTP} {
		all = append(all, python(t, url), node(t, url))
	}
	return all
}

func python(t *testing.T, url string) app {
	t.Helper()
	dir := filepath.Join(standtest.Root(t), "examples", "python")
	return app{name: "python over " + url[:4], url: url,
		spec: stand.Spec{Path: filepath.Join(standtest.Root(t), ".venv", "bin", "python"),
			Args: []string{filepath.Join(dir, "app.py")}, Env: []string{"PYTHONDONTWRITEBYTECODE=1"}}}
}

func node(t *testing.T, url string) app {
	t.Helper()
	return app{name: "node over " + url[:4], url: url,
		spec: stand.Spec{Path: "node", Args: []string{filepath.Join(standtest.Root(t), "examples", "node", "app.mjs")}}}
}

// start starts a command of the app.
func (a app) start(t *testing.T, env []string, args ...string) *stand.Process {
	t.Helper()
	spec := a.spec
	spec.Args = append(append(append([]string{}, spec.Args...), args...), "--url", a.url)
	spec.Env = append(append([]string{}, spec.Env...), env...)
	return standtest.Start(t, spec)
}

// run runs a command of the app to its end and returns the JSON line it prints.
func (a app) run(t *testing.T, args ...string) map[string]any {
	t.Helper()
	return a.finish(t, a.start(t, nil, args...))
}

// finish waits for a command to end well and returns the JSON line it printed.
func (a app) finish(t *testing.T, p *stand.Process) map[string]any {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("%s: %v", a.name, err)
	}
	if code != 0 {
		t.Errorf("%s: exit code %d\n%s%s", a.name, code, stand.LastLines(p.Stdout(), 5), stand.LastLines(p.Log(), 20))
	}
	var said map[string]any
	if err := json.Unmarshal([]byte(stand.LastLines(p.Stdout(), 1)), &said); err != nil {
		t.Fatalf("%s: %v in %q\n%s", a.name, err, p.Stdout(), p.Log())
	}
	return said
}

// checkBooks lets both apps compare the tables with the ledgers.
func checkBooks(t *testing.T, s *sidecar, quantity int, ledgers []string) {
	t.Helper()
	args := []string{"check", "--complete", "--quantity", fmt.Sprint(quantity)}
	for _, ledger := range ledgers {
		args = append(args, "--ledger", ledger)
	}
	for _, a := range []app{python(t, "grpc://"+s.GRPC), node(t, "http://"+s.HTTP)} {
		said := a.run(t, args...)
		if said["ok"] != true {
			t.Errorf("%s says of the books: %v", a.name, said["wrong"])
		}
		t.Logf("%s: %v orders, %v processed, %v sold", a.name, said["orders"], said["processed"], said["sold"])
	}
}

// askHTTP makes a call over HTTP with headers, each "name: value".
func askHTTP(t *testing.T, method, url, body string, headers ...string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

// callJSON makes one HTTP call, reads the JSON answer into answer and returns the status.
func callJSON(t *testing.T, method, url, body string, answer any) int {
	t.Helper()
	status, text := askHTTP(t, method, url, body)
	if err := json.NewDecoder(strings.NewReader(text)).Decode(answer); err != nil {
		t.Fatalf("%s %s: %v in %s", method, url, err, text)
	}
	return status
}

// knowsANode waits until the sidecar has a node for new calls.
func (s *sidecar) knowsANode(t *testing.T) {
	t.Helper()
	eventually(t, patience, "a node to send to", func() string {
		var nodes struct{ Nodes []struct{ Use string } }
		if s.read(t, "/state/nodes", &nodes); len(nodes.Nodes) == 0 || nodes.Nodes[0].Use != "new" {
			return "no node"
		}
		return ""
	})
}
