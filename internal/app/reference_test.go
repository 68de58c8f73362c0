package app

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/telemetry"
)

// TestReference holds docs/reference.md to the tables of the code, and both to a
// running sidecar: what it measures and serves has its line. After a change:
// go test ./internal/app -run TestReference -update
func TestReference(t *testing.T) {
	const path = "../../docs/reference.md"
	s := everything(t)
	instruments := s.telemetry.Instruments()
	want := reference(t, instruments)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(strings.Split(want, "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s is out of date (-code +page); run go test ./internal/app -run TestReference -update:\n%s", path, diff)
	}
	s.eventually("calls are measured", func() bool {
		_, text := s.get("/metrics")
		return strings.Contains(text, "http_server_request_duration_seconds_count")
	})
	_, text := s.get("/metrics")
	for _, fault := range unlisted(text, instruments) {
		t.Error(fault)
	}
	for path := range s.endpoints() {
		if !strings.Contains(string(got), "`"+path+"`") {
			t.Errorf("the admin address serves %s, which the page does not have", path)
		}
	}
}

// spanNames are the names of spans and of their attributes, as the code has them.
func spanNames(t *testing.T) map[string]bool {
	t.Helper()
	names := regexp.MustCompile(`attribute\.\w+\("([a-z_.]+)"|(?m)^\t[A-Z]\w+ += "(ydb\.[\w.]+)"$`)
	found := map[string]bool{}
	for _, path := range []string{"../tracing/names.go", "../facade/spans.go", "../wire/spans.go", "../hop/span.go"} {
		code, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range names.FindAllStringSubmatch(string(code), -1) {
			found[m[1]+m[2]] = true
		}
	}
	return found
}

// spans explains them.
var spans = map[string]string{
	"db.collection.name":           "the table",
	"db.operation.name":            "the call",
	"db.response.returned_rows":    "rows of the answer",
	"db.response.status_code":      "why it failed: a status of YDB, or gRPC's code",
	"db.system.name":               "`ydb`",
	"error.type":                   "why it failed",
	"http.request.method":          "of HTTP",
	"http.response.status_code":    "of HTTP",
	"http.route":                   "template of the path",
	"rpc.method":                   "`package.Service/Method`",
	"rpc.system.name":              "`grpc`",
	"server.address":               "of the node",
	"server.port":                  "of the node",
	"url.path":                     "path of a request over HTTP; `{id}` stands for the id of a transaction",
	"url.scheme":                   "`http` or `https`",
	"ydb.CreateSession":            "span: opening one",
	"ydb.GetSession":               "span: getting a session",
	"ydb.Try":                      "span: one attempt",
	"ydb.node.dc":                  "zone of the node",
	"ydb.node.id":                  "the node",
	"ydb.retry.backoff_ms":         "pause before the attempt",
	"ydb.sidecar.answer_bytes":     "size of the answer",
	"ydb.sidecar.app":              "the app that called",
	"ydb.sidecar.attempt":          "number of the attempt, from 1",
	"ydb.sidecar.attempts":         "how many there were",
	"ydb.sidecar.commit":           "the statement also commits",
	"ydb.sidecar.created":          "a session was opened for it",
	"ydb.sidecar.first_part_ms":    "to the first part of the answer",
	"ydb.sidecar.handed_over":      "another process of this sidecar did it",
	"ydb.sidecar.network_ms":       "of the hop, what is not the server's own",
	"ydb.sidecar.owner":            "the node owns the session",
	"ydb.sidecar.priority":         "the class of the line",
	"ydb.sidecar.queue":            "span: waiting in line",
	"ydb.sidecar.queue_ms":         "time in line",
	"ydb.sidecar.request_bytes":    "size of the request",
	"ydb.sidecar.server_ms":        "the server's own time",
	"ydb.sidecar.session":          "short hash of the session",
	"ydb.sidecar.shed_reason":      "why it was turned away",
	"ydb.sidecar.transaction":      "span: an interactive transaction, linked from its calls",
	"ydb.sidecar.transaction.end":  "how the transaction ended",
	"ydb.sidecar.transaction.mode": "its mode",
	"ydb.sidecar.waited":           "it had to wait",
}

func spansReference(t *testing.T) string {
	t.Helper()
	found := spanNames(t)
	var b strings.Builder
	b.WriteString("| name | what |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(spans)) {
		if !found[name] {
			t.Errorf("spans in reference_test.go explains %s, which the code does not have", name)
		}
		row(&b, "`"+name+"`", spans[name])
	}
	for name, yes := range found {
		if yes && spans[name] == "" {
			t.Errorf("spans in reference_test.go does not explain %s", name)
		}
	}
	return b.String()
}

// everything is a sidecar with all that can be switched on, after some calls.
func everything(t *testing.T) *sidecar {
	t.Helper()
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(collector.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_METRICS_EXPORTER", "otlp")
	limit := debug.SetMemoryLimit(16 << 30) // else there may be no guard of memory
	t.Cleanup(func() { debug.SetMemoryLimit(limit) })
	c := newCluster(t)
	s := start(t, c.Endpoint(), "pool.min=3", "pool.adaptive=on", "wire.mode=transaction", "admin.pprof=on", "log.access=all", "xds.enabled=on", "xds.address=127.0.0.1:0")
	if _, err := s.query("SELECT 1"); err != nil {
		t.Fatal(err)
	}
	s.fetch(http.MethodPost, "http://"+s.at.HTTP+"/v1/query", `{"sql":"SELECT 1"}`)
	s.fetch(http.MethodPost, "http://"+s.at.HTTP+"/v1/query", `{`)
	s.fetch(http.MethodGet, "http://"+s.at.HTTP+"/nothing", "")
	return s
}

// endpoints is what the index of the admin address lists: method and path.
func (s *sidecar) endpoints() map[string]bool {
	_, text := s.get("/")
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(GET|POST) +(/\S*)`).FindAllStringSubmatch(text, -1) {
		out[m[1]+" "+m[2]] = true
	}
	if len(out) < 20 {
		s.Errorf("the index lists %d endpoints:\n%s", len(out), text)
	}
	return out
}

// labels of all metrics that have some, in the order of the page. A metric gets a
// label here before it shows it: TestReference fails on any other.
var labels = map[string][]string{
	"ydb.sidecar.config.reloads":            {"ydb.sidecar.result"},
	"db.client.connection.count":            {"db.client.connection.pool.name", "db.client.connection.state"},
	"db.client.connection.create_time":      {"db.system.name", "db.client.connection.pool.name"},
	"db.client.connection.idle.min":         {"db.client.connection.pool.name"},
	"db.client.connection.max":              {"db.client.connection.pool.name"},
	"db.client.connection.pending_requests": {"db.client.connection.pool.name", "ydb.sidecar.priority"},
	"db.client.connection.timeouts":         {"db.client.connection.pool.name"},
	"db.client.connection.use_time":         {"db.system.name", "db.client.connection.pool.name"},
	"db.client.connection.wait_time":        {"db.system.name", "db.client.connection.pool.name", "error.type"},
	"db.client.operation.duration":          {"db.system.name", "db.namespace", "db.operation.name", "db.response.status_code", "error.type", "ydb.node.id"},
	"http.server.request.duration":          {"http.request.method", "http.route", "http.response.status_code", "url.scheme", "error.type"},
	"ydb.client.retry.attempts":             {"database", "operation.name"},
	"ydb.client.retry.duration":             {"database", "operation.name"},
	"ydb.query.session.pending_requests":    {"ydb.query.session.pool.name"},
	"ydb.sidecar.api.connections":           {"ydb.sidecar.face"},
	"ydb.sidecar.connections.failed":        {"ydb.sidecar.face"},
	"ydb.sidecar.connections.refused":       {"ydb.sidecar.face"},
	"ydb.sidecar.app.consumed_units":        {"ydb.sidecar.app"},
	"ydb.sidecar.app.lowered":               {"ydb.sidecar.app"},
	"ydb.sidecar.app.open":                  {"ydb.sidecar.app"},
	"ydb.sidecar.app.refused":               {"ydb.sidecar.app", "ydb.sidecar.priority", "ydb.sidecar.reason"},
	"ydb.sidecar.app.served":                {"ydb.sidecar.app", "ydb.sidecar.priority"},
	"ydb.sidecar.app.sessions":              {"ydb.sidecar.app", "ydb.sidecar.priority", "ydb.sidecar.state"},
	"ydb.sidecar.app.wait":                  {"ydb.sidecar.app", "ydb.sidecar.priority", "ydb.sidecar.quantile"},
	"ydb.sidecar.build.info":                {"ydb.sidecar.version", "process.runtime.version"},
	"ydb.sidecar.drain.stage":               {"ydb.sidecar.stage"},
	"ydb.sidecar.forward.abuses":            {"ydb.sidecar.abuse"},
	"ydb.sidecar.forward.bytes":             {"ydb.sidecar.peer", "ydb.sidecar.direction"},
	"ydb.sidecar.forward.calls":             {"ydb.sidecar.end"},
	"ydb.sidecar.forward.connections":       {"ydb.sidecar.peer"},
	"ydb.sidecar.forward.duration":          {"db.system.name", "db.operation.name", "db.response.status_code", "ydb.node.id"},
	"ydb.sidecar.forward.wait":              {"db.system.name", "db.operation.name", "db.response.status_code", "ydb.node.id"},
	"ydb.sidecar.finding":                   {"ydb.sidecar.code"},
	"ydb.sidecar.health.ejections":          {"ydb.sidecar.cause"},
	"ydb.sidecar.health.probes":             {"ydb.sidecar.result"},
	"ydb.sidecar.ingest.batches":            {"ydb.sidecar.result"},
	"ydb.sidecar.ingest.rows":               {"ydb.sidecar.result"},
	"ydb.sidecar.memory":                    {"ydb.sidecar.kind"},
	"ydb.sidecar.memory.requests":           {"ydb.sidecar.kind"},
	"ydb.sidecar.memory.requests.refused":   {"ydb.sidecar.reason"},
	"ydb.sidecar.node.calls":                {"ydb.node.id"},
	"ydb.sidecar.node.health":               {"ydb.node.id", "ydb.sidecar.health"},
	"ydb.sidecar.node.latency":              {"ydb.node.id"},
	"ydb.sidecar.node.mark":                 {"ydb.node.id", "ydb.sidecar.mark"},
	"ydb.sidecar.node.refused":              {"ydb.node.id"},
	"ydb.sidecar.node.sessions":             {"ydb.node.id", "db.client.connection.state"},
	"ydb.sidecar.node.weight":               {"ydb.node.id"},
	"ydb.sidecar.pool.closed":               {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.created":              {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.failed":               {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.limit":                {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.limit.changes":        {"ydb.sidecar.reason"},
	"ydb.sidecar.pool.moved":                {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.moving":               {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.paced":                {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.refused":              {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.shed":                 {"db.client.connection.pool.name", "ydb.sidecar.reason"},
	"ydb.sidecar.retry.decisions":           {"outcome"},
	"ydb.sidecar.telemetry.pushes":          {"ydb.sidecar.result"},
	"ydb.sidecar.tracing.spans":             {"outcome"},
	"ydb.sidecar.tls.reloads":               {"ydb.sidecar.settings", "ydb.sidecar.result"},
	"ydb.sidecar.xds.nodes":                 {"ydb.sidecar.state"},
	"ydb.sidecar.xds.streams":               {"ydb.sidecar.flavor"},
	"ydb.sidecar.virtual.sessions":          {"ydb.sidecar.bound"},
}

// meanings of labels, and how many values there can be.
var meanings = []struct{ name, meaning, bound string }{
	{"database", "the database: of YDB's family", "1"},
	{"db.client.connection.pool.name", "the database, or `callers`: all pools of callers' own identities together", "2"},
	{"db.client.connection.state", "of a session: `idle`, `used`, `creating`, `closing`", "4"},
	{"db.namespace", "the database", "1"},
	{"db.operation.name", "the call of YDB, without its service; `other` if it is none that is known", "about 100"},
	{"db.response.status_code", "why it failed: YDB's status, or gRPC's code if none came; left out when it went well", "about 40"},
	{"db.system.name", "`ydb`", "1"},
	{"endpoint", "the first address of `ydb.url`: of YDB's family", "1"},
	{"error.type", "why it failed: an error code of this page, YDB's status or gRPC's code; `not_acquired`: no session was to be had. A row that is not there and a condition that does not hold are no errors", "about 100"},
	{"http.request.method", "the method; `_OTHER` if it is none of HTTP's", "10"},
	{"http.response.status_code", "of HTTP", "about 20"},
	{"http.route", "the template of the path, such as `/v1/tx/{id}/commit`, never the path; left out if there is none", "about 20"},
	{"operation.name", "the call, in the words of YDB's family; of retries: the call of the plain API", "about 20"},
	{"outcome", "of a retry: `sent`, `budget_empty`; of a span: `exported`, `lost`, `dropped`", "3"},
	{"process.runtime.version", "of Go", "1"},
	{"rpc.method", "`package.Service/Method`; `_OTHER` if it is none that is known", "about 120"},
	{"rpc.response.status_code", "gRPC's code; a status of YDB comes with `OK`", "17"},
	{"rpc.system.name", "`grpc`", "1"},
	{"status_code", "why it failed: of YDB's family", "about 40"},
	{"url.scheme", "`http` or `https`", "2"},
	{"ydb.node.id", "number of a node of the cluster", "the nodes; histograms have 1,024 series with it, 256 of them of calls that failed"},
	{"ydb.query.session.pool.name", "as `db.client.connection.pool.name`", "2"},
	{"ydb.query.session.state", "as `db.client.connection.state`", "4"},
	{"ydb.sidecar.abuse", "what a peer did", "9"},
	{"ydb.sidecar.app", "the app that called", "`apps.max` and 2"},
	{"ydb.sidecar.bound", "whether a session of the pool is bound to it", "2"},
	{"ydb.sidecar.cause", "of an ejection (docs/health.md)", "5"},
	{"ydb.sidecar.code", "of a finding (docs/runbook.md)", "20"},
	{"ydb.sidecar.direction", "`in`, `out`", "2"},
	{"ydb.sidecar.end", "how a forwarded call ended", "7"},
	{"ydb.sidecar.face", "`grpc`, `http`", "2"},
	{"ydb.sidecar.flavor", "of a client of xDS: `envoy` or `grpc`", "2"},
	{"ydb.sidecar.health", "of a node: `healthy`, `suspect`, `ejected`, `probing`", "4"},
	{"ydb.sidecar.kind", "`used`, `limit`", "2"},
	{"ydb.sidecar.mark", "of a node: `banned`, `leaving`, `unreachable`", "3"},
	{"ydb.sidecar.peer", "`client`, `node`", "2"},
	{"ydb.sidecar.priority", "the class of the line", "4"},
	{"ydb.sidecar.quantile", "`0.5`, `0.99`", "2"},
	{"ydb.sidecar.reason", "why it was refused, or why the limit changed", "about 10"},
	{"ydb.sidecar.result", "`good`, `failed`, `slow`; of rows: `written`, `refused`, `merged`; of reloads: `ok`, `failed`", "3"},
	{"ydb.sidecar.settings", "the section of settings that names the files", "about 5"},
	{"ydb.sidecar.stage", "of the life of the process", "7"},
	{"ydb.sidecar.state", "`waiting`, `used`; of nodes over xDS: `healthy`, `degraded`, `draining`, `unhealthy`", "6"},
	{"ydb.sidecar.version", "of the sidecar", "1"},
}

// labelsOf are those of an instrument.
func labelsOf(i telemetry.Instrument) []string {
	if i.Labels != nil {
		return i.Labels
	}
	return labels[i.Name]
}

// scraped is the name of a metric at /metrics.
func scraped(i telemetry.Instrument) string {
	name := strings.ReplaceAll(i.Name, ".", "_")
	switch {
	case i.Unit == "s":
		name += "_seconds"
	case i.Unit == "By" && !strings.HasSuffix(name, "_bytes"):
		name += "_bytes"
	case i.Unit == "1" && i.Kind == "gauge":
		name += "_ratio"
	}
	if i.Kind == "counter" {
		name += "_total"
	}
	return name
}

// foreign are the families of Prometheus' own collectors.
var foreign = []string{"go_", "process_", "target_info", "promhttp_"}

// unlisted says which series of a scrape the page does not tell of.
func unlisted(text string, instruments []telemetry.Instrument) (faults []string) {
	known := map[string][]string{}
	for _, i := range instruments {
		known[scraped(i)] = labelsOf(i)
	}
	said := map[string]bool{}
	say := func(fault string) {
		if !said[fault] {
			said[fault] = true
			faults = append(faults, fault)
		}
	}
	label := regexp.MustCompile(`([a-z_]+)="`)
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, "{")
		if name == line {
			name, rest, _ = strings.Cut(line, " ")
		}
		base := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if cut, ok := strings.CutSuffix(name, suffix); ok && known[name] == nil && !slices.ContainsFunc(instruments, func(i telemetry.Instrument) bool { return scraped(i) == name }) {
				base = cut
			}
		}
		if strings.HasPrefix(line, "#") || slices.ContainsFunc(foreign, func(p string) bool { return strings.HasPrefix(line, p) }) && !isKnown(known, base) {
			continue
		}
		if !isKnown(known, base) {
			say(base + " is at /metrics and not on the page")
			continue
		}
		rest, _, _ = strings.Cut(rest, "} ")
		for _, m := range label.FindAllStringSubmatch(rest, -1) {
			if m[1] != "le" && !slices.ContainsFunc(known[base], func(l string) bool { return strings.ReplaceAll(l, ".", "_") == m[1] }) {
				say(fmt.Sprintf("%s has the label %s, which its row does not have (labels in reference_test.go)", base, m[1]))
			}
		}
	}
	return faults
}

func isKnown(known map[string][]string, name string) bool { _, ok := known[name]; return ok }

// reference is the page.
func reference(t *testing.T, instruments []telemetry.Instrument) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Reference\n\nWritten by `go test ./internal/app -run TestReference -update` from the tables of the code; a test compares it with them and with a running sidecar.\n\n" +
		"[Settings](#settings) · [Bounds](#bounds) · [Metrics](#metrics) · [Labels](#labels) · [Access log](#access-log) · [Spans](#spans) · [Admin endpoints](#admin-endpoints) · [Findings](#findings) · [Error codes](#error-codes)\n\n")
	b.WriteString("## Settings\n\nIn the file (`-config`), the environment (`SIDECAR_POOL_MAX` for `pool.max`) and the command line (`-set pool.max=50`), the last wins. new value: live: counts after a reload (SIGHUP, `POST /reload`, or when the file changes); restart: at the next start.\n\n")
	b.WriteString(settingsReference(t))
	measured := map[string]bool{}
	for _, i := range instruments {
		measured[i.Name] = true
	}
	b.WriteString("\n## Bounds\n\nWhat callers and peers can make the sidecar keep or do, and what happens beyond. A name is that of a setting, with its default.\n")
	b.WriteString(boundsReference(t, measured))
	b.WriteString("\n## Metrics\n\n" + metricsText)
	b.WriteString(metricsReference(t, instruments))
	b.WriteString("\n## Labels\n\nNo label has a caller's own words but `ydb.sidecar.app`, whose number `apps.max` bounds. What exceeds a bound is counted without the label, or as `other`.\n\n")
	b.WriteString(labelsReference(t, instruments))
	b.WriteString("\n## Access log\n\n" + accessText)
	b.WriteString("\n## Spans\n\n[tracing.md](tracing.md) has the tree of spans, their names and attributes, and which calls are recorded. The call itself has the name of its method, a call to a node that of YDB's SDKs (`ydb.ExecuteQuery`, `ydb.Commit`). The names of attributes:\n\n" + spansReference(t))
	b.WriteString("\n## Admin endpoints\n\nAt `admin.listen` and `admin.socket`; those of the role probe at `admin.probes` too. probe: anybody who can connect. reader: every program that reaches the address; web pages are turned away. control: the peer of `admin.socket`, and over TCP whom `admin.control` admits.\n\n")
	b.WriteString("| endpoint | role | what it shows or does | parameters |\n|---|---|---|---|\n")
	for _, e := range admin.Endpoints {
		var parameters []string
		for _, p := range e.Parameters {
			parameters = append(parameters, fmt.Sprintf("`%s`: %s", p.Name, p.Text))
		}
		text := e.Text
		if e.Pprof {
			text += " (`admin.pprof`)"
		}
		row(&b, "`"+e.Method+" "+strings.TrimSuffix(e.Path, "{$}")+"`", string(e.Role), text, strings.Join(parameters, "; "))
	}
	b.WriteString("\n## Findings\n\n`GET /state/findings`, `sidecar top`, `sidecar doctor` and the page say what is wrong by these codes.\n\n| code | severity | meaning | what to do |\n|---|---|---|---|\n")
	for _, k := range findings.Kinds {
		row(&b, "`"+string(k.Code)+"`", string(k.Severity), k.Meaning, k.Do)
	}
	b.WriteString("\n## Error codes\n\nOver HTTP in `code`, over gRPC in the details (`ErrorInfo.reason`); in metrics `error.type`, in the access log `reason`. safe: usually nothing was kept and the same call may be sent again; each error says it of itself in `safe_to_retry`. How statuses of the database are judged: [statuses.md](statuses.md).\n\n| code | HTTP | gRPC | safe | meaning | what to do |\n|---|---|---|---|---|---|\n")
	for _, c := range facade.Codes() {
		row(&b, "`"+c.Name+"`", fmt.Sprint(c.HTTP), c.GRPC.String(), map[bool]string{true: "yes", false: "no"}[c.Safe], c.Title, c.Hint)
	}
	return b.String()
}

func row(b *strings.Builder, cells ...string) {
	for _, c := range cells {
		b.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
	}
	b.WriteString("|\n")
}

// describedSettings returns all settings at their defaults, with the comment and the type of each.
func describedSettings(t *testing.T) (settings *config.Settings, docs, types map[string]string) {
	t.Helper()
	c := Default()
	settings, err := config.Bind(&c)
	if err != nil {
		t.Fatal(err)
	}
	docs, types = map[string]string{}, map[string]string{}
	collectDocs(t, "", reflect.TypeFor[Config](), docs)
	collectTypes("", reflect.TypeFor[Config](), types)
	return settings, docs, types
}

func settingsReference(t *testing.T) string {
	t.Helper()
	settings, docs, types := describedSettings(t)
	var b strings.Builder
	b.WriteString("| setting | type | default | new value | what |\n|---|---|---|---|---|\n")
	for _, s := range settings.List() {
		value := ""
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		effect, known := EffectOf(s.Name)
		if !known {
			t.Errorf("%s: effects does not say when another value counts", s.Name)
		}
		row(&b, "`"+s.Name+"`", types[s.Name], value, effect.String(), docs[s.Name])
	}
	return b.String()
}

// collectTypes finds the type of every setting, in people's words.
func collectTypes(section string, structure reflect.Type, types map[string]string) {
	for i := range structure.NumField() {
		field := structure.Field(i)
		key, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			collectTypes(section, field.Type, types)
		case field.Type.Kind() == reflect.Struct:
			collectTypes(section+key+".", field.Type, types)
		default:
			types[section+key] = typeName(field.Type)
		}
	}
}

func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t.Kind() == reflect.Slice:
		return "list of " + typeName(t.Elem())
	case t.Kind() == reflect.Bool:
		return "on or off"
	case t.Kind() == reflect.Float64 || t.Kind() == reflect.Float32:
		return "number"
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 && t.PkgPath() == "":
		return "whole number"
	}
	return "text"
}

func metricsReference(t *testing.T, instruments []telemetry.Instrument) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| metric | at /metrics | kind | unit | labels | what |\n|---|---|---|---|---|---|\n")
	seen := map[string]bool{}
	for _, i := range instruments {
		seen[i.Name] = true
		if i.Description == "" {
			t.Errorf("%s has no description", i.Name)
		}
		row(&b, "`"+i.Name+"`", "`"+scraped(i)+"`", i.Kind, "`"+i.Unit+"`", quoted(labelsOf(i)), i.Description)
	}
	for name := range labels {
		if !seen[name] {
			t.Errorf("labels in reference_test.go has %s, which nobody measures", name)
		}
	}
	return b.String()
}

func quoted(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = "`" + n + "`"
	}
	return strings.Join(out, ", ")
}

func labelsReference(t *testing.T, instruments []telemetry.Instrument) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| label | what | how many values |\n|---|---|---|\n")
	known := map[string]bool{}
	for _, m := range meanings {
		known[m.name] = true
		row(&b, "`"+m.name+"`", m.meaning, m.bound)
	}
	used := map[string]bool{}
	for _, i := range instruments {
		for _, l := range labelsOf(i) {
			used[l] = true
			if !known[l] {
				t.Errorf("%s has the label %s, which meanings in reference_test.go does not explain", i.Name, l)
			}
		}
	}
	for l := range known {
		if !used[l] {
			t.Errorf("meanings in reference_test.go explains %s, which no metric has", l)
		}
	}
	if !slices.IsSortedFunc(meanings, func(a, b struct{ name, meaning, bound string }) int { return cmp.Compare(a.name, b.name) }) {
		t.Error("meanings in reference_test.go are not in order")
	}
	return b.String()
}

const metricsText = "`GET /metrics` has them all in Prometheus' form, beside those of the Go runtime and the process (`go_*`, `process_*`). A push over OTLP: `OTEL_METRICS_EXPORTER=otlp`, or " +
	"`OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`; the standard's other variables rule it (endpoint, protocol `grpc` or `http/protobuf`, headers, compression, TLS, `OTEL_METRIC_EXPORT_INTERVAL`, temporality).\n\n" +
	"`telemetry.names` chooses between `db.client.*` of OpenTelemetry and the `ydb.client.*` and `ydb.query.*` of YDB's own SDKs; both are made of one measurement. They differ in one name: " +
	"`db.client.connection.pending_requests` is how many wait now, `ydb.query.session.pending_requests` counts all who ever came to the line.\n\n" +
	"Histograms in seconds have bounds from 10 µs to 30 s. updown: a level that goes up and down; over OTLP a sum that is not monotonic.\n\n"

const accessText = "With `log.access` each call that is worth it gets a line with `msg=call`: level WARN if it failed, else INFO. What is empty is left out.\n\n" +
	"| field | what |\n|---|---|\n" +
	"| `face` | `grpc` or `http`: the plain API; `ydb`: a forwarded call of an SDK |\n" +
	"| `method` | of gRPC, as `package.Service/Method` |\n| `route` | of HTTP: the method and the template of the path |\n" +
	"| `status` | what the caller was told: HTTP's status, gRPC's code, or YDB's status |\n| `reason` | why it failed: an [error code](#error-codes), or of a forwarded call YDB's status, gRPC's code, or how it ended |\n" +
	"| `app`, `class` | who called, and the class of the line |\n| `node`, `attempts` | the last node, and how often it was tried |\n" +
	"| `total_ms` | all of it |\n| `queue_ms`, `acquire_ms`, `hop_ms`, `server_ms` | of the plain API: in line, to get a session with that, at the node and on the way, of that the server's own (with `stats`) |\n" +
	"| `wait_ms`, `first_part_ms` | of forwarded calls: here, before it went on; then to the first part of the answer |\n" +
	"| `request_bytes`, `answer_bytes` | of forwarded calls |\n| `trace_id` | of the caller's trace |\n| `sql` | with `log.access_statements` alone |\n"
