package app

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/telemetry"
)

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
	"db.client.operation.duration": {"db.system.name", "db.namespace", "db.operation.name",
		"db.response.status_code", "error.type", "ydb.node.id"},
	"http.server.request.duration":       {"http.request.method", "http.route", "http.response.status_code", "url.scheme", "error.type"},
	"ydb.client.retry.attempts":          {"database", "operation.name"},
	"ydb.client.retry.duration":          {"database", "operation.name"},
	"ydb.query.session.pending_requests": {"ydb.query.session.pool.name"},
	"ydb.sidecar.api.connections":        {"ydb.sidecar.face"},
	"ydb.sidecar.connections.failed":     {"ydb.sidecar.face"},
	"ydb.sidecar.connections.refused":    {"ydb.sidecar.face"},
	"ydb.sidecar.app.consumed_units":     {"ydb.sidecar.app"},
	"ydb.sidecar.app.denied":             {"ydb.sidecar.app", "ydb.sidecar.grant"},
	"ydb.sidecar.app.duration":           {"ydb.sidecar.app", "ydb.sidecar.face", "error.type"},
	"ydb.sidecar.app.lowered":            {"ydb.sidecar.app"},
	"ydb.sidecar.app.open":               {"ydb.sidecar.app"},
	"ydb.sidecar.app.refused":            {"ydb.sidecar.app", "ydb.sidecar.priority", "ydb.sidecar.reason"},
	"ydb.sidecar.app.served":             {"ydb.sidecar.app", "ydb.sidecar.priority"},
	"ydb.sidecar.app.sessions":           {"ydb.sidecar.app", "ydb.sidecar.priority", "ydb.sidecar.state"},
	"ydb.sidecar.app.wait":               {"ydb.sidecar.app", "ydb.sidecar.priority", "ydb.sidecar.quantile"},
	"ydb.sidecar.app.wait_time":          {"ydb.sidecar.app", "ydb.sidecar.priority"},
	"ydb.sidecar.build.info":             {"ydb.sidecar.version", "process.runtime.version"},
	"ydb.sidecar.drain.stage":            {"ydb.sidecar.stage"},
	"ydb.sidecar.forward.abuses":         {"ydb.sidecar.abuse"},
	"ydb.sidecar.forward.bytes":          {"ydb.sidecar.peer", "ydb.sidecar.direction"},
	"ydb.sidecar.forward.calls":          {"ydb.sidecar.end"},
	"ydb.sidecar.forward.connections":    {"ydb.sidecar.peer"},
	"ydb.sidecar.forward.duration":       {"db.system.name", "db.operation.name", "db.response.status_code", "ydb.node.id"},
	"ydb.sidecar.forward.wait":           {"db.system.name", "db.operation.name", "db.response.status_code", "ydb.node.id"},
	"ydb.sidecar.finding": {"ydb.sidecar.code", "ydb.sidecar.severity", "db.namespace", "ydb.node.id",
		"ydb.node.address", "ydb.sidecar.app"},
	"ydb.sidecar.health.ejections":        {"ydb.sidecar.cause"},
	"ydb.sidecar.health.probes":           {"ydb.sidecar.result"},
	"ydb.sidecar.ingest.batches":          {"ydb.sidecar.result"},
	"ydb.sidecar.ingest.rows":             {"ydb.sidecar.result"},
	"ydb.sidecar.memory":                  {"ydb.sidecar.kind"},
	"ydb.sidecar.memory.requests":         {"ydb.sidecar.kind"},
	"ydb.sidecar.memory.requests.refused": {"ydb.sidecar.reason"},
	"ydb.sidecar.node.calls":              {"ydb.node.id"},
	"ydb.sidecar.node.health":             {"ydb.node.id", "ydb.sidecar.health"},
	"ydb.sidecar.node.latency":            {"ydb.node.id"},
	"ydb.sidecar.node.mark":               {"ydb.node.id", "ydb.sidecar.mark"},
	"ydb.sidecar.node.refused":            {"ydb.node.id"},
	"ydb.sidecar.node.sessions":           {"ydb.node.id", "db.client.connection.state"},
	"ydb.sidecar.node.weight":             {"ydb.node.id"},
	"ydb.sidecar.pool.closed":             {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.created":            {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.failed":             {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.limit":              {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.limit.floor":        {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.limit.changes":      {"ydb.sidecar.reason"},
	"ydb.sidecar.pool.moved":              {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.moving":             {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.paced":              {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.refused":            {"db.client.connection.pool.name"},
	"ydb.sidecar.pool.shed":               {"db.client.connection.pool.name", "ydb.sidecar.reason"},
	"ydb.sidecar.retry.decisions":         {"outcome"},
	"ydb.sidecar.telemetry.pushes":        {"ydb.sidecar.result"},
	"ydb.sidecar.tracing.spans":           {"outcome"},
	"ydb.sidecar.transactions.ended":      {"ydb.sidecar.reason"},
	"ydb.sidecar.tls.expires":             {"ydb.sidecar.settings"},
	"ydb.sidecar.tls.reloads":             {"ydb.sidecar.settings", "ydb.sidecar.result"},
	"ydb.sidecar.statement.bytes":         {"ydb.sidecar.digest"},
	"ydb.sidecar.statement.calls":         {"ydb.sidecar.digest"},
	"ydb.sidecar.statement.failed":        {"ydb.sidecar.digest"},
	"ydb.sidecar.statement.retries":       {"ydb.sidecar.digest"},
	"ydb.sidecar.statement.rows":          {"ydb.sidecar.digest"},
	"ydb.sidecar.statement.time":          {"ydb.sidecar.digest", "ydb.sidecar.phase"},
	"ydb.sidecar.xds.nodes":               {"ydb.sidecar.state"},
	"ydb.sidecar.xds.streams":             {"ydb.sidecar.flavor"},
	"ydb.sidecar.virtual.sessions":        {"ydb.sidecar.bound"},
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
	{"error.type",
		"why it failed: an error code of this page, YDB's status or gRPC's code; `not_acquired`: no session was to " +
			"be had; `_OTHER`: an app failed for more than 12 reasons. A row that is not there and a condition that does not " +
			"hold are no errors",
		"about 100"},
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
	{"ydb.node.address", "host and port of the node that a finding is about; left out if it is about none",
		"the nodes, at most 50 at a time"},
	{"ydb.node.id", "number of a node of the cluster", "the nodes; histograms have 1,024 series with it, 256 of them of calls that failed"},
	{"ydb.query.session.pool.name", "as `db.client.connection.pool.name`", "2"},
	{"ydb.query.session.state", "as `db.client.connection.state`", "4"},
	{"ydb.sidecar.abuse", "what a peer did", "9"},
	{"ydb.sidecar.app", "the app that called", "`apps.max` and 2"},
	{"ydb.sidecar.bound", "whether a session of the pool is bound to it", "2"},
	{"ydb.sidecar.cause", "of an ejection (docs/concepts/health.md)", "5"},
	{"ydb.sidecar.code", "of a finding (docs/operations/runbook.md)", "40"},
	{"ydb.sidecar.digest", "of a statement (docs/operations/operating.md), or `other`: those that have no series of their own", "51"},
	{"ydb.sidecar.direction", "`in`, `out`", "2"},
	{"ydb.sidecar.end", "how a forwarded call ended", "7"},
	{"ydb.sidecar.face", "`grpc`, `http`; of calls of apps also `ydb`, the SDK proxy", "3"},
	{"ydb.sidecar.flavor", "of a client of xDS: `envoy` or `grpc`", "2"},
	{"ydb.sidecar.grant", "what denied a call: `calls`, `read_only`, `tables`, `timeout`, `rows`, `class` (docs/how-to/grants.md)", "6"},
	{"ydb.sidecar.health", "of a node: `healthy`, `suspect`, `ejected`, `probing`", "4"},
	{"ydb.sidecar.kind", "`used`, `limit`", "2"},
	{"ydb.sidecar.mark", "of a node: `banned`, `leaving`, `unreachable`", "3"},
	{"ydb.sidecar.peer", "`client`, `node`", "2"},
	{"ydb.sidecar.phase", "of a call's time: `acquire`, `hop`, `rest`", "3"},
	{"ydb.sidecar.priority", "the class of the line", "4"},
	{"ydb.sidecar.quantile", "`0.5`, `0.99`", "2"},
	{"ydb.sidecar.reason", "why it was refused, why the limit changed, or how the transaction ended", "about 10"},
	{"ydb.sidecar.result", "`good`, `failed`, `slow`; of rows: `written`, `refused`, `merged`; of reloads: `ok`, `failed`", "3"},
	{"ydb.sidecar.settings", "the section of settings that names the files", "about 5"},
	{"ydb.sidecar.severity", "of a finding: `problem`, `warning`, `note`", "3"},
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
			if cut, ok := strings.CutSuffix(name, suffix); ok && known[name] == nil &&
				!slices.ContainsFunc(instruments, func(i telemetry.Instrument) bool { return scraped(i) == name }) {
				base = cut
			}
		}
		if strings.HasPrefix(line, "#") ||
			slices.ContainsFunc(foreign, func(p string) bool { return strings.HasPrefix(line, p) }) && !isKnown(known, base) {
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
