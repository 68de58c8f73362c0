package sdktest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// client is one client of an SDK.
type client struct {
	sdk, name string
	version   pin
	spec      func(t *testing.T) stand.Spec
	needs     string           // what its installation leaves there, in the repository; "": nothing
	offers    string           // what is not as with the others
	known     map[place]string // where it fails, and why: faults of its own
}

// pin is where the version of an SDK stands: the first group of the pattern in the file.
type pin struct{ file, pattern string }

func (p pin) read(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(standtest.Root(t), p.file))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(p.pattern).FindSubmatch(data)
	if m == nil {
		t.Fatalf("no %s in %s", p.pattern, p.file)
	}
	return string(m[1])
}

const (
	pythonPins = "proof/sdktest/testdata/python/requirements.txt"
	nodePins   = "proof/sdktest/testdata/node/package.json"

	pythonHere = ".cache/sdktest/.installed"
	nodeHere   = "proof/sdktest/testdata/node/node_modules/.installed"
	javaHere   = ".cache/java/.installed"
	jdbcHere   = ".cache/jdbc/.installed"
	rustHere   = ".cache/rust/.installed" // by make sdks only: the build takes minutes
)

var (
	goSDK      = pin{"go.mod", `ydb-platform/ydb-go-sdk/v3 v(\S+)`}
	ydbPython  = pin{pythonPins, `(?m)^ydb==(\S+)`}
	dbapi      = pin{pythonPins, `(?m)^ydb-dbapi==(\S+)`}
	sqlalchemy = pin{pythonPins, `(?m)^ydb-sqlalchemy==(\S+)`}
	ydbjs      = pin{nodePins, `"@ydbjs/query": "(\S+)"`}
	ydbSDK     = pin{nodePins, `"ydb-sdk": "(\S+)"`}
	javaSDK    = pin{"proof/systemtest/testdata/java/pom.xml", `ydb-sdk-query</artifactId>\s*<version>(.+)</version>`}
	jdbc       = pin{"proof/sdktest/testdata/jdbc/pom.xml", `ydb-jdbc-driver</artifactId>\s*<version>(.+)</version>`}
	crate      = pin{"proof/sdktest/testdata/rust/Cargo.toml", `(?m)^ydb = "=?(.+)"`}
)

// cancelled: not always, but when a call finds the connection broken while another is under way there.
var cancelled = map[place]string{
	{
		"direct", true,
	}: "the SDK closes a connection that broke, and calls that are under way there end by CancelledError, which its retries do not repeat",
}

var clients = []client{
	{sdk: "ydb-go-sdk", name: "go query", version: goSDK, spec: golang("query")},
	{sdk: "ydb-go-sdk", name: "go table", version: goSDK, spec: golang("table")},
	{sdk: "ydb-go-sdk", name: "go database-sql over query", version: goSDK, spec: golang("sql-query"),
		known: map[place]string{{"direct", true}: "its statements go to any node, which sends them on; one whose " +
			"owner is killed then gets no answer until its deadline, in some runs"}},
	{sdk: "ydb-go-sdk", name: "go database-sql over table", version: goSDK, spec: golang("sql-table")},
	{sdk: "ydb (PyPI)", name: "python query", version: ydbPython, spec: python("sync.Query"), needs: pythonHere,
		known: map[place]string{{"transaction", true}: "if the killed node was in the middle of a message, the call " +
			"ends by a transport error and the SDK closes its connection; other calls there end as Cancelled, which " +
			"its retries do not repeat: in about one run of fifty"}},
	{sdk: "ydb (PyPI)", name: "python table", version: ydbPython, spec: python("sync.Table"), needs: pythonHere},
	{sdk: "ydb (PyPI)", name: "python aio query", version: ydbPython, spec: python("asynchronous.Query"),
		needs: pythonHere, known: cancelled},
	{sdk: "ydb (PyPI)", name: "python aio table", version: ydbPython, spec: python("asynchronous.Table"),
		needs: pythonHere, known: cancelled},
	{sdk: "ydb-dbapi", name: "python dbapi", version: dbapi, spec: python("pep249.DBAPI"), needs: pythonHere,
		offers: "reads a result whole; a cancel is a deadline"},
	{sdk: "ydb-sqlalchemy", name: "python sqlalchemy", version: sqlalchemy, spec: python("pep249.SQLAlchemy"), needs: pythonHere,
		offers: "as ydb-dbapi; no bulk upsert (rows as one parameter); its tables are made and found by reflection"},
	{sdk: "@ydbjs/core, query", name: "node ydbjs", version: ydbjs, spec: node("ydbjs.mjs", ""), needs: nodeHere,
		offers: "a session for each statement, no pool; reads a result whole; no bulk upsert (rows as one parameter)",
		known: map[place]string{
			{"direct", true}:      "the process ends by a rejected RollbackTransaction or DeleteSession of the SDK that nobody handles",
			{"passthrough", true}: "the SDK repeats a statement on the session that was lost, for ever",
			{"session", true}:     "as in passthrough, if the killed node was running one of its statements: in about one run of ten",
			{
				"transaction", true,
			}: "as in passthrough, if one of its transactions was open on the killed node, in about one run of ten: " +
				"it repeats the statement, thousands of times, although each answer is BAD_SESSION",
		}},
	{sdk: "ydb-sdk (npm)", name: "node ydb-sdk query", version: ydbSDK, spec: node("ydb-sdk.mjs", "query"), needs: nodeHere,
		known: map[place]string{{"direct", true}: "a call that finds the node gone may end by " +
			"TRANSPORT_UNAVAILABLE, which its retries do not repeat"}},
	{sdk: "ydb-sdk (npm)", name: "node ydb-sdk table", version: ydbSDK, spec: node("ydb-sdk.mjs", "table"), needs: nodeHere,
		offers: "a scan query cannot be cancelled: its consumer throws; no retry of a whole transaction: the script has it"},
	{sdk: "tech.ydb (Maven)", name: "java query", version: javaSDK, spec: java("query"), needs: javaHere},
	{sdk: "tech.ydb (Maven)", name: "java table", version: javaSDK, spec: java("table"), needs: javaHere},
	{sdk: "tech.ydb (Maven)", name: "java table over query", version: javaSDK, spec: java("table-over-query"), needs: javaHere},
	{sdk: "tech.ydb.jdbc (Maven)", name: "java jdbc", version: jdbc, spec: javaJDBC, needs: jdbcHere,
		offers: "no retries: the script has them",
		known: map[place]string{
			{"direct", true}:      "a table session or two that it does not delete stay until they expire, in some runs",
			{"passthrough", true}: "as directly",
		}},
	{sdk: "ydb (crates.io)", name: "rust query", version: crate, spec: rust, needs: rustHere,
		offers: "reads a result set whole; does not repeat a transaction whose commit failed: the script has it"},
}

var buildGo, buildJava, buildJDBC sync.Once

func golang(name string) func(t *testing.T) stand.Spec {
	return func(t *testing.T) stand.Spec {
		path := filepath.Join(bin, "goclient")
		buildGo.Do(func() { build(t, "go", "build", "-trimpath", "-o", path, "./proof/sdktest/goclient") })
		return stand.Spec{Path: path, Env: []string{"CLIENT=" + name}}
	}
}

func python(name string) func(t *testing.T) stand.Spec {
	return func(t *testing.T) stand.Spec {
		return stand.Spec{
			Path: filepath.Join(standtest.Root(t), ".cache", "sdktest", "bin", "python"),
			Args: []string{filepath.Join("testdata", "python", "main.py")},
			Env:  []string{"CLIENT=" + name, "PYTHONDONTWRITEBYTECODE=1"},
		}
	}
}

func node(script, name string) func(t *testing.T) stand.Spec {
	return func(t *testing.T) stand.Spec {
		return stand.Spec{Path: "node", Args: []string{filepath.Join("testdata", "node", script)}, Env: []string{"CLIENT=" + name}}
	}
}

func java(name string) func(t *testing.T) stand.Spec {
	return func(t *testing.T) stand.Spec { return javaOf(t, &buildJava, "java", name, "java/Steps.java") }
}

// javaJDBC has the jars that the driver names: an older SDK than Steps.java has otherwise.
func javaJDBC(t *testing.T) stand.Spec {
	return javaOf(t, &buildJDBC, "jdbc", "jdbc", "java/Steps.java", "jdbc/Jdbc.java")
}

// javaOf runs the steps with the jars that are in a directory of .cache.
func javaOf(t *testing.T, once *sync.Once, dir, name string, sources ...string) stand.Spec {
	jars, classes := filepath.Join(standtest.Root(t), ".cache", dir, "*"), filepath.Join(bin, dir)
	once.Do(func() {
		args := []string{"-cp", jars, "-d", classes}
		for _, source := range sources {
			args = append(args, filepath.Join("proof", "sdktest", "testdata", source))
		}
		build(t, "javac", args...)
	})
	return stand.Spec{Path: "java", Args: []string{"-cp", jars + string(filepath.ListSeparator) + classes, "Steps"},
		Env: []string{"CLIENT=" + name}}
}

// rust is built where it is installed.
func rust(t *testing.T) stand.Spec {
	return stand.Spec{Path: filepath.Join(standtest.Root(t), ".cache", "rust", "release", "steps")}
}

// table is docs/reference/sdk-matrix.md. Lines of clients that did not run here are those of the file that is there.
func table(t *testing.T, results map[string]map[place]result) string {
	old := map[string]string{} // lines by what stands in their first column
	if data, err := os.ReadFile(*report); err == nil {
		for line := range strings.Lines(string(data)) {
			if first, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok {
				old[first] = line
			}
		}
	}
	var text strings.Builder
	header := func(names ...string) {
		fmt.Fprintf(&text, "| %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	}
	text.WriteString(preface)
	columns, short := []string{"client", "version"}, []string{"client alone"}
	for _, p := range places() {
		columns = append(columns, p.String())
		if !p.killed {
			short = append(short, p.where)
		}
	}
	header(append(columns, "remarks")...)
	for _, c := range clients {
		text.WriteString(passes(t, c, results[c.name], old))
	}
	text.WriteString(behind)
	header(short...)
	for _, c := range clients {
		text.WriteString(counted(c.name, results[c.name], old))
	}
	return text.String()
}

// counted is the line of a client in the table of sessions and hops.
func counted(name string, results map[place]result, old map[string]string) string {
	if len(results) == 0 {
		return old[name]
	}
	line := "| " + name + " |"
	for _, p := range places() {
		if r := results[p]; !p.killed {
			line += fmt.Sprintf(" %d, %d |", r.most, r.hops)
		}
	}
	return line + "\n"
}

// passes is the line of a client in the matrix.
func passes(t *testing.T, c client, results map[place]result, old map[string]string) string {
	first := c.sdk + ": " + c.name
	if len(results) == 0 {
		return old[first]
	}
	line, remarks := fmt.Sprintf("| %s | %s |", first, c.version.read(t)), c.offers
	if n := rows(); n != 100_000 {
		remarks = strings.TrimSuffix(fmt.Sprintf("%d rows; %s", n, remarks), "; ")
	}
	for _, p := range places() {
		r := results[p]
		switch {
		case len(r.wrong) == 0:
			line += fmt.Sprintf(" passes, %.1f s |", r.took.Seconds())
		case c.known[p] != "":
			remarks = strings.TrimPrefix(fmt.Sprintf("%s. Fails %v: %s", remarks, p, c.known[p]), ". ")
			line += " fails, see remarks |"
		default:
			line += " **fails** |"
		}
	}
	return line + fmt.Sprintf(" %s |\n", remarks)
}

const preface = `# SDKs, directly and through the sidecar

Written by ` + "`make test-sdk`" + `: its last result. Unmodified clients, from their registries, against the development cluster
of three nodes, directly and through a sidecar in each mode. Every client prints the same lines wherever it runs, and these
are compared with one list; the times are those of the whole program on two shared CPUs, while the runner watches the cluster.

The steps: connect; create two tables; write; read; write 100,000 rows (20 MiB) in bulk; stream them; a transaction with commit,
with rollback, with an error inside (PRECONDITION_FAILED); two writers of one row, of which one is ABORTED and repeated by the client; a
prepared statement, or where the client has none the same by parameters; a stream given up in the middle; a load of four writers,
two of them in transactions, and a reader that streams the large table all the while; drop; close. "Node killed": in the middle of the
load one node's process is killed (SIGKILL), the load must be complete nevertheless, and all steps are done again. "One address": all nodes
stand behind one address, as with a load balancer (` + "`docs/concepts/routing.md`" + `), so calls may take a hop inside the cluster.

Afterwards the cluster must be clean: no session and no transaction left (in modes ` + "`transaction` and `session`" +
	` those of the pool may
rest until the sidecar stops), no call that did not go to the owner of its session (with a node killed: at most 10, of transactions that were open there), never more sessions than ` + "`pool.max`" + ` (8 in mode ` + "`transaction`" + `, 60
in mode ` + "`session`" + `), and the sidecar stops with exit code 0.

`

const behind = `
How many sessions the cluster had at most, and how many calls were sent on by the node they came to, which is a hop inside the
cluster; without a node killed:

`
