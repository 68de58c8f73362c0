package sdktest

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

var (
	full   = flag.Bool("full", false, "every mode, also with a node killed, and a large table")
	large  = flag.Int("rows", 100_000, "rows of the large table, with -full")
	engine = flag.String("client", "h2", "ydb.client of the sidecars")
	report = flag.String("report", "", "the file that the table of results goes to")
	given  = flag.String("ydb", "",
		"an endpoint from outside in place of development clusters: grpc[s]://host:port/database. Its ticket is in "+
			"SIDECAR_TEST_TICKET, the sidecar's settings in SIDECAR_YDB_...")
	within = flag.String("directory", "", "the directory of that database for all tables, which must exist")
)

// bin is where TestMain builds the programs.
var bin string

func TestMain(m *testing.M) {
	standtest.Main(m, &bin, "sidecar", "devcluster")
}

// where a client runs: "direct", or a value of wire.mode.
var everywhere = []string{"direct", "passthrough", "transaction", "session"}

// oneAddress is mode transaction with all nodes behind one address.
const oneAddress = "transaction, one address"

// poolMax is pool.max in the modes in which sessions of clients are the sidecar's own. In mode
// transaction it is less than the clients hold; in mode session each of theirs needs one.
var poolMax = map[string]int{"transaction": 8, oneAddress: 8, "session": 60}

// place is a way to run a client.
type place struct {
	where  string
	killed bool // a node is killed in the middle
}

// mode is that of the sidecar.
func (p place) mode() string {
	mode, _, _ := strings.Cut(p.where, ",")
	return mode
}

func (p place) String() string {
	if p.killed {
		return p.where + ", node killed"
	}
	return p.where
}

// places are those of this run.
func places() (list []place) {
	if *given != "" { // its nodes cannot be killed
		for _, where := range everywhere {
			list = append(list, place{where, false})
		}
		return list
	}
	if !*full {
		return []place{{"direct", false}, {"transaction", false}}
	}
	for _, killed := range []bool{false, true} {
		for _, where := range everywhere {
			list = append(list, place{where, killed})
		}
	}
	return append(list, place{oneAddress, false})
}

func rows() int {
	if *full {
		return *large
	}
	return 2000
}

// outcome is what every client must print.
func outcome(killed bool) []string {
	n := rows()
	all := []string{
		"write: ok",
		"read: [[1 0] [2 0] [3 0]] ok",
		fmt.Sprintf("bulk: %d rows ok", n),
		fmt.Sprintf("stream: %d rows sum %d", n, n*(n-1)/2),
		"commit: 4 inside 4 after ok",
		"rollback: 5 inside 4 after true",
		"error inside: PRECONDITION_FAILED 4 after",
		"conflict: [[2]] retried true ok",
		"prepared: [2 0 0] ok",
		"cancel in the middle: true then 4 rows",
	}
	lines := append([]string{"connect: ok", "create: ok", "create: ok"}, all...)
	lines = append(lines, "load: 100 rows ok streams whole")
	if killed { // while the load ran
		lines = append(append(lines, "clean: ok"), all...)
	}
	return append(lines, "drop: ok", "drop: ok", "close: ok")
}

// result is what came of one run.
type result struct {
	wrong []string // nothing, when all went well
	took  time.Duration
	most  int   // sessions that the cluster had at a time
	hops  int64 // calls that did not go to the owner of their session
}

func TestMatrix(t *testing.T) {
	results := map[string]map[place]result{}
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			c.here(t)
			results[c.name] = map[place]result{}
			for _, p := range places() {
				t.Run(p.String(), func(t *testing.T) {
					if *given != "" {
						if wrong := c.runAt(t, p, *given); len(wrong) > 0 {
							t.Error(strings.Join(wrong, "\n"))
						}
						return
					}
					r := c.run(t, p)
					results[c.name][p] = r
					t.Logf("%v, at most %d sessions, %d forwarded calls", r.took.Round(10*time.Millisecond), r.most, r.hops)
					if known := c.known[p]; len(r.wrong) > 0 && known != "" {
						t.Logf("known: %s\n%s", known, strings.Join(r.wrong, "\n"))
					} else if len(r.wrong) > 0 {
						t.Error(strings.Join(r.wrong, "\n"))
					}
				})
			}
		})
	}
	if *report != "" {
		if err := os.WriteFile(*report, []byte(table(t, results)), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// ticket is what all clients come with. The cluster enforces none and can name no user of it.
const ticket = "of no user"

// here skips the test of a client that is not installed.
func (c client) here(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(standtest.Root(t), c.needs)); err != nil && c.needs != "" {
		if *full {
			t.Fatalf("it is not installed: %v", err)
		}
		t.Skip("it is not installed (make sdks)")
	}
}

// limit is how long the client may take.
func (c client) limit(p place) time.Duration {
	if c.known[p] != "" {
		return time.Minute // it may hang
	}
	return 5 * time.Minute
}

// runAt runs the client at an endpoint outside of this test's control, and returns what is wrong. Sessions and hops are not counted there.
func (c client) runAt(t *testing.T, p place, endpoint string) (wrong []string) {
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal("-ydb is no URL")
	}
	host, _, _ := strings.Cut(u.Host, ",")
	database := cmp.Or(u.Query().Get("database"), u.Path)
	at := "grpc://" + host + database
	var sidecar *stand.Process
	if p.where != "direct" {
		sidecar = startSidecar(t, endpoint, p, access()...)
		at = "grpc://" + standtest.Ready(t, sidecar)["grpc"] + database
	} else if u.Scheme != "grpc" {
		t.Skip("the programs speak plaintext")
	}
	// One directory for each run: what one leaves is not in the way of the next.
	tables := strings.Trim(*within, "/") + "/" + strings.NewReplacer(" ", "_", "-", "_").Replace(c.name) + "_" + p.where + "/"
	spec := c.spec(t)
	spec.Env = append(spec.Env, "YDB_URL="+at, "YDB_TOKEN="+os.Getenv("SIDECAR_TEST_TICKET"), "TABLES="+tables, fmt.Sprint("ROWS=", rows()))
	program := start(t, spec)
	wrong = c.await(t, p, program)
	if sidecar != nil {
		wrong = append(wrong, stop(sidecar)...)
	}
	if len(wrong) > 0 {
		wrong = append(wrong, "its log: "+stand.LastLines(program.Log(), 15))
	}
	return wrong
}

// access are the settings by which a sidecar gets into the endpoint, which programs started here do not get otherwise.
func access() (env []string) {
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "SIDECAR_YDB_") {
			env = append(env, v)
		}
	}
	return env
}

func startSidecar(t *testing.T, upstream string, p place, env ...string) *stand.Process {
	t.Helper()
	return start(t, stand.Serve{Program: filepath.Join(bin, "sidecar"), URL: upstream, Env: env, Settings: []string{
		"wire.mode=" + p.mode(), fmt.Sprint("pool.max=", cmp.Or(poolMax[p.where], 50)), "ydb.client=" + *engine}}.Spec())
}

// await waits for the program and says what is wrong with what it printed.
func (c client) await(t *testing.T, p place, program *stand.Process) (wrong []string) {
	ctx, cancel := context.WithTimeout(t.Context(), c.limit(p))
	defer cancel()
	code, err := program.Wait(ctx)
	if err != nil {
		wrong = append(wrong, "it does not end")
		_ = program.Signal(os.Kill)
	} else if code != 0 {
		wrong = append(wrong, fmt.Sprint("exit code ", code))
	}
	return append(wrong, differences(strings.Split(strings.TrimSpace(program.Stdout()), "\n"), outcome(p.killed))...)
}

// stop stops the sidecar and says what is wrong with that.
func stop(sidecar *stand.Process) []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if code, err := sidecar.Stop(ctx); code != 0 || err != nil {
		return []string{fmt.Sprintf("the sidecar ends with exit code %d, %v", code, err)}
	}
	return nil
}

// run runs the client there and says what is wrong.
func (c client) run(t *testing.T, p place) (r result) {
	cluster := startCluster(t, p)
	at := "grpc://" + cluster.endpoint + "/local"
	var sidecar *stand.Process
	if p.where != "direct" {
		sidecar = startSidecar(t, at, p)
		at = "grpc://" + standtest.Ready(t, sidecar)["grpc"] + "/local"
	}
	spec := c.spec(t)
	spec.Env = append(spec.Env, "YDB_URL="+at, "YDB_TOKEN="+ticket, fmt.Sprint("ROWS=", rows()))
	if p.killed {
		spec.Env = append(spec.Env, "KILL=http://"+cluster.Address+"/nodes/2/kill")
	}
	most := cluster.watch(t)
	began := time.Now()
	program := start(t, spec)
	r.wrong = c.await(t, p, program)
	r.took = time.Since(began)
	r.most = most()
	if limit := poolMax[p.where]; limit > 0 && r.most > limit {
		r.wrong = append(r.wrong, fmt.Sprintf("the cluster had %d sessions; at most %d are allowed", r.most, limit))
	}
	left := await.Within(time.Minute, func() string { return cluster.unclean(t, p.where) })
	r.hops = cluster.sum(t, "forwarded")
	allowed := int64(0)
	if p.killed { // until discovery drops the node, calls of transactions that are open there are sent through another
		allowed = 10
	}
	if p.where != "direct" && p.where != oneAddress && r.hops > allowed { // behind one address a client cannot choose the node
		r.wrong = append(r.wrong, fmt.Sprintf("%d calls did not go to the owner of their session", r.hops))
	}
	if sidecar != nil {
		r.wrong = append(r.wrong, stop(sidecar)...)
		left = cmp.Or(left, await.Within(5*time.Second, func() string { return cluster.unclean(t, "direct") }))
	}
	if left != "" {
		r.wrong = append(r.wrong, "left behind: "+left)
	}
	if len(r.wrong) > 0 {
		r.wrong = append(r.wrong, "its log: "+stand.LastLines(program.Log(), 15))
	}
	return r
}

// differences are the first lines in which what was printed is not what is wanted.
func differences(got, want []string) (list []string) {
	for i := range max(len(got), len(want)) {
		var g, w string
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			list = append(list, fmt.Sprintf("%q; want %q", g, w))
		}
		if g == "" {
			break
		}
	}
	return list
}

// TestDifferences: the comparison finds what differs, and what is missing.
func TestDifferences(t *testing.T) {
	want := outcome(true)
	if d := differences(want, want); len(d) != 0 {
		t.Errorf("of the same: %v", d)
	}
	for i := range want {
		bad := append([]string{}, want...)
		bad[i] += "!"
		if d := differences(bad, want); len(d) != 1 {
			t.Errorf("line %d: %v", i, d)
		}
		if d := differences(want[:i], want); len(d) != 1 {
			t.Errorf("only %d lines: %v", i, d)
		}
	}
	if d := differences(append(want, "more"), want); len(d) != 1 {
		t.Errorf("a line too many: %v", d)
	}
}

// ydb is a running development cluster.
type ydb struct {
	stand.Control
	endpoint string // of its first node, which is not killed, or of all
}

func startCluster(t *testing.T, p place) *ydb {
	t.Helper()
	args := []string{"-nodes", "3", "-port", "0", "-control", "127.0.0.1:0"}
	switch {
	case p.where == oneAddress: // not with processes
		args = append(args, "-endpoints", "merged")
	case p.killed:
		args = append(args, "-processes", "-data", filepath.Join(t.TempDir(), "data"))
	}
	at := standtest.Ready(t, start(t, stand.Spec{Path: filepath.Join(bin, "devcluster"), Args: args}))
	return &ydb{Control: stand.Control{Address: at["control"]}, endpoint: at["endpoint"]}
}

// sum adds up a counter of the nodes that live.
func (c *ydb) sum(t *testing.T, counter string) (n int64) {
	t.Helper()
	nodes, err := c.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		n += node.Counters[counter]
	}
	return n
}

// unclean says what is left behind, or "". Idle sessions of the sidecar's pool may stay.
func (c *ydb) unclean(t *testing.T, where string) string {
	sessions, err := c.Sessions(t.Context())
	if err != nil {
		return err.Error()
	}
	for _, s := range sessions {
		if poolMax[where] == 0 || s.State != "idle" {
			return fmt.Sprintf("%d sessions, one of them %+v", len(sessions), s)
		}
	}
	if n := c.sum(t, "open"); n != 0 {
		return fmt.Sprintf("%d transactions", n)
	}
	return ""
}

// watch counts the sessions of the cluster until the returned function is called, which
// tells how many there were at a time.
func (c *ydb) watch(t *testing.T) (most func() int) {
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	n := 0
	watching.Go(func() {
		// The nodes are asked one after the other: what is there twice was there in between.
		before := map[string]bool{}
		for ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
			sessions, err := c.Sessions(ctx)
			if err != nil {
				continue // a node is just being killed, or the end
			}
			now, both := map[string]bool{}, 0
			for _, s := range sessions {
				now[s.ID] = s.State != "created" // no client is attached: a probe's, which belongs to no pool, or one being made
				if before[s.ID] {
					both++
				}
			}
			n, before = max(n, both), now
		}
	})
	end := sync.OnceFunc(func() { stop(); watching.Wait() })
	t.Cleanup(end)
	return func() int { end(); return n }
}

// start starts a program for as long as the test.
func start(t *testing.T, spec stand.Spec) *stand.Process {
	t.Helper()
	p, err := stand.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, _ = p.Stop(ctx)
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(spec.Path), strings.Join(spec.Args, " "), stand.LastLines(p.Log(), 40))
		}
	})
	return p
}

// build makes a program once: what it says, if it fails, fails every test that needs it.
func build(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = standtest.Root(t), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
