package app

import (
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

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/telemetry"
	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

// TestReference holds the generated pages of docs/reference to the tables of the code, and both to a
// running sidecar: what it measures and serves has its row. After a change:
// go test ./internal/app -run TestReference -update
func TestReference(t *testing.T) {
	s := everything(t)
	instruments := s.telemetry.Instruments()
	pages := referencePages(t, instruments)
	for _, page := range pages {
		doctable.Whole(t, *update, "../../docs/reference/"+page.file, doctable.Link("docs/reference/"+page.file, page.text))
	}
	s.eventually("calls are measured", func() bool {
		_, text := s.get("/metrics")
		return strings.Contains(text, "http_server_request_duration_seconds_count")
	})
	_, text := s.get("/metrics")
	for _, fault := range unlisted(text, instruments) {
		t.Error(fault)
	}
	endpoints := adminReference()
	for path := range s.endpoints() {
		if !strings.Contains(endpoints, "`"+path+"`") {
			t.Errorf("the admin address serves %s, which the page does not have", path)
		}
	}
}

// spanNames are the names of spans and of their attributes, as the code has them.
func spanNames(t *testing.T) map[string]bool {
	t.Helper()
	names := regexp.MustCompile(`attribute\.\w+\("([a-z_.]+)"|(?m)^\t[A-Z]\w+ += "(ydb\.[\w.]+)"$`)
	found := map[string]bool{}
	for _, path := range []string{"../tracing/names.go", "../facade/core/spans.go", "../wire/spans.go", "../hop/span.go"} {
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

// spans explains the names of spans and their attributes.
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
	"ydb.sidecar.queue":            "span: waiting in the queue",
	"ydb.sidecar.queue_ms":         "time in the queue",
	"ydb.sidecar.request_bytes":    "size of the request",
	"ydb.sidecar.server_ms":        "the server's own time",
	"ydb.sidecar.session":          "short hash of the session",
	"ydb.sidecar.shed_reason":      "why it was turned away",
	"ydb.sidecar.transaction":      "span: an interactive transaction, linked from its calls",
	"ydb.sidecar.transaction.end":  "how the transaction ended: a reason of `ydb.sidecar.transactions.ended`",
	"ydb.sidecar.transaction.mode": "mode of the transaction, or of a call that is one by itself",
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
	s := start(t, c.Endpoint(), "pool.min=3", "pool.adaptive=on", "wire.mode=transaction", "admin.pprof=on",
		"log.access=all", "xds.enabled=on", "xds.address=127.0.0.1:0")
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

// A referencePage is a page of docs/reference that is written from the tables of the code.
type referencePage struct{ file, text string }

const writtenBy = "Written by `go test ./internal/app -run TestReference -update` from the tables of the code; a test compares it " +
	"with them and with a running sidecar.\n\n"

// referencePages are the generated pages of docs/reference.
func referencePages(t *testing.T, instruments []telemetry.Instrument) []referencePage {
	t.Helper()
	measured := map[string]bool{}
	for _, i := range instruments {
		measured[i.Name] = true
	}
	return []referencePage{
		{"settings.md",
			"# Settings\n\nSet them in the file (`-config`, or the variable `SIDECAR_CONFIG`), the environment " +
				"(`SIDECAR_POOL_MAX` for `pool.max`) or on " +
				"the command line (`-set pool.max=50`); the last of these wins. new value: *live* counts after a reload (SIGHUP, " +
				"`POST /reload`, or when the file changes); *restart* counts at the next start.\n\n" + writtenBy + settingsReference(t)},
		{"limits.md", "# Limits\n\nWhat callers and peers can make the sidecar keep or do, and what happens beyond. " +
			"A name is that of a [setting](settings.md), with its default.\n\n" + writtenBy + boundsReference(t, measured)},
		{"metrics.md", "# Metrics\n\n" + writtenBy + metricsText + metricsReference(t, instruments) +
			"\n## Labels\n\nNo label has a caller's own words except `ydb.sidecar.app`, whose number `apps.max` " +
			"bounds. What exceeds a bound is counted without the label, or as `other`.\n\n" + labelsReference(t, instruments)},
		{"logs-and-traces.md", "# Logs and traces\n\n" + writtenBy + "## Access log\n\n" + accessText +
			"\n## Spans\n\n[Tracing](../operations/tracing.md) has the tree of spans, their names and attributes, and " +
			"which calls are recorded. The call itself has the name of its method, a call to a node that of YDB's SDKs " +
			"(`ydb.ExecuteQuery`, `ydb.Commit`). The names of attributes:\n\n" + spansReference(t)},
		{"admin.md", "# Admin endpoints and findings\n\n" + writtenBy + adminReference() + findingsReference()},
	}
}

// adminReference lists the endpoints of the admin address.
func adminReference() string {
	var b strings.Builder
	b.WriteString("## Admin endpoints\n\nAt `admin.listen` and `admin.socket`; those of the role probe at " +
		"`admin.probes` too. probe: anybody who can connect. reader: every program that reaches the address; web " +
		"pages are turned away. control: the peer of `admin.socket`, and over TCP whom `admin.control` admits.\n\n")
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
	return b.String()
}

// findingsReference lists the findings.
func findingsReference() string {
	var b strings.Builder
	b.WriteString("\n## Findings\n\n`GET /state/findings`, `sidecar top`, `sidecar doctor` and the page report what is " +
		"wrong by these codes; the [runbook](../operations/runbook.md) has a section for each.\n\n" +
		"| code | severity | meaning | what to do |\n|---|---|---|---|\n")
	for _, k := range findings.Kinds {
		row(&b, "`"+string(k.Code)+"`", string(k.Severity), k.Meaning, k.Do)
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
	settings, err := bound(&c)
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
	b.WriteString("\n### Retired settings\n\nThis version accepts these names with a warning, and the next one rejects them. " +
		"A value that is set still counts in this version, except for names marked \"no effect\".\n\n| setting | without it |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(retired)) {
		note := ""
		if types[name] == "" {
			note = " (no effect)"
		}
		row(&b, "`"+name+"`"+note, retired[name])
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

const metricsText = "`GET /metrics` has them all in Prometheus' form, beside those of the Go runtime and the " +
	"process (`go_*`, `process_*`). A push over OTLP: `OTEL_METRICS_EXPORTER=otlp`, or " +
	"`OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`; the standard's other variables rule it (endpoint, protocol `grpc` or " +
	"`http/protobuf`, headers, compression, TLS, `OTEL_METRIC_EXPORT_INTERVAL`, temporality).\n\n" +
	"`telemetry.names` chooses between `db.client.*` of OpenTelemetry and the `ydb.client.*` and `ydb.query.*` of " +
	"YDB's own SDKs; both are made of one measurement. They differ in one name: " +
	"`db.client.connection.pending_requests` is how many callers wait now, `ydb.query.session.pending_requests` counts all " +
	"callers that ever joined the queue.\n\n" +
	"Histograms in seconds have bounds from 10 µs to 30 s. updown: a level that goes up and down; over OTLP a sum " +
	"that is not monotonic.\n\n"

const accessText = "With `log.access` each call that is worth it gets a line with `msg=call`: level WARN if it " +
	"failed, else INFO. What is empty is left out.\n\n" +
	"| field | what |\n|---|---|\n" +
	"| `face` | `grpc` or `http`: the plain API; `ydb`: a forwarded call of an SDK |\n" +
	"| `method` | of gRPC, as `package.Service/Method` |\n| `route` | of HTTP: the method and the template of the path |\n" +
	"| `status` | what the caller was told: HTTP's status, gRPC's code, or YDB's status |\n| `reason` | why it " +
	"failed: an [error code](errors.md), or of a forwarded call YDB's status, gRPC's code, or how it ended |\n" +
	"| `app`, `class` | who called, and the class of the line |\n| `mode` | of a call of the plain API that is a " +
	"transaction by itself, or of a batch whose statements all have it |\n" +
	"| `node`, `attempts` | the last node, and how often it was tried |\n" +
	"| `total_ms` | all of it |\n| `queue_ms`, `acquire_ms`, `hop_ms`, `server_ms` | of the plain API: in the queue, to " +
	"get a session with that, at the node and on the way, of that the server's own (for texts that may change rows, and with `stats`) |\n" +
	"| `wait_ms`, `first_part_ms` | of forwarded calls: here, before it went on; then to the first part of the answer |\n" +
	"| `request_bytes`, `answer_bytes` | of forwarded calls |\n| `trace_id` | of the caller's trace |\n| `sql` | " +
	"with `log.access_statements` alone |\n"
