package systemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"

	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// expressions are what the dashboard and the alerts ask Prometheus.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	open := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(standtest.Root(t), "deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(open("grafana/ydb-sidecar.json"), &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	var rules struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	if err := yaml.Unmarshal(open("prometheus/alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all = append(all, recorded.Replace(r.Expr))
		}
	}
	if len(all) < 50 {
		t.Fatalf("%d expressions; want those of the dashboard and the alerts", len(all))
	}
	return all
}

// recorded are the series that rules record, and a metric that has their labels.
var recorded = strings.NewReplacer(
	"ydb_sidecar:sidecars", "ydb_sidecar_finding", "ydb_sidecar:quorum", "ydb_sidecar_finding",
	"ydb_sidecar:finding:sidecars", "ydb_sidecar_finding", "ydb_sidecar:finding:paging", "ydb_sidecar_finding",
	"ydb_sidecar:error_budget", "up", "ydb_sidecar:job:calls:rate5m", "up", "ydb_sidecar:job:service_errors:rate5m", "up",
	"ydb_sidecar:job:error_ratio:paging", "up", "ydb_sidecar:job:error_ratio:rate5m", "up", "ydb_sidecar:job:error_ratio:rate30m", "up",
	"ydb_sidecar:job:error_ratio:rate1h", "up", "ydb_sidecar:job:error_ratio:rate6h", "up",
	"ydb_sidecar:calls:rate5m", "up", "ydb_sidecar:service_errors:rate5m", "up", "ydb_sidecar:caller_errors:rate5m", "up",
)

var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring) \(([^)]*)\)`)
	window   = regexp.MustCompile(`\[[^\]]*\]`)
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}`)
	word     = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\b(\s*\()?`)
	label    = regexp.MustCompile(`[a-zA-Z_][a-zA-Z0-9_]*`)
)

// asked takes an expression apart: the metrics in it with the labels that are wanted
// of each, and the labels that are grouped by.
func asked(expr string) (metrics map[string][]string, groups []string) {
	metrics = map[string][]string{}
	rest := quoted.ReplaceAllString(expr, "")
	for _, m := range grouping.FindAllStringSubmatch(rest, -1) {
		groups = append(groups, label.FindAllString(m[1], -1)...)
	}
	rest = window.ReplaceAllString(grouping.ReplaceAllString(rest, ""), "")
	for _, m := range selector.FindAllStringSubmatch(rest, -1) {
		metrics[m[1]] = append(metrics[m[1]], label.FindAllString(m[2], -1)...)
	}
	for _, w := range word.FindAllString(selector.ReplaceAllString(rest, ""), -1) {
		if !strings.HasSuffix(w, "(") && !slices.Contains([]string{"and", "or", "unless", "bool", "e15"}, w) {
			metrics[w] = append(metrics[w], "job") // it is named, without a selector
		}
	}
	return metrics, groups
}

// matched returns the values that an expression wants of a label of a metric: whole
// words only, since a pattern or a variable of the dashboard names none.
func matched(expr string) (all []wanted) {
	for _, m := range selected.FindAllStringSubmatch(expr, -1) {
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			for value := range strings.SplitSeq(l[2], "|") {
				if plain.MatchString(value) {
					all = append(all, wanted{m[1], l[1], value})
				}
			}
		}
	}
	return all
}

type wanted struct{ metric, label, value string }

var (
	selected = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:"[^"]*"|[^}"])*)\}`)
	matcher  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)=~?"([^"]*)"`)
	plain    = regexp.MustCompile(`^[A-Za-z0-9_./ -]+$`)
)

// sample is a line of /metrics.
type sample struct {
	name, labels string // as they stand there
	kind         string
	value        float64
}

func (s sample) has(label, value string) bool {
	return strings.Contains(","+s.labels, ","+label+`="`+value+`"`)
}

// scrape reads what a running sidecar measures.
func scrape(t *testing.T, url string) (all []sample) {
	t.Helper()
	status, text := askHTTP(t, http.MethodGet, url, "")
	if status != http.StatusOK {
		t.Fatalf("GET %s: %d", url, status)
	}
	kinds := map[string]string{}
	for line := range strings.Lines(text) {
		if kind := strings.Fields(line); len(kind) == 4 && kind[1] == "TYPE" {
			kinds[kind[2]] = kind[3]
		}
		m := exposition.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		value, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		kind := kinds[m[1]]
		if base := suffix.ReplaceAllString(m[1], ""); kind == "" && kinds[base] == "histogram" {
			kind = "counter" // its buckets, sum and count
		}
		all = append(all, sample{m[1], m[2], kind, value})
	}
	return all
}

var (
	exposition = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)\n$`)
	suffix     = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// labels are those of each metric.
func labels(samples []sample) map[string][]string {
	all := map[string][]string{"up": nil} // Prometheus' own
	for _, s := range samples {
		all[s.name] = append(all[s.name], label.FindAllString(quoted.ReplaceAllString(s.labels, ""), -1)...)
	}
	return all
}

// failing is a sidecar that has served calls over each API, good and bad ones, and
// whose nodes then went away.
type failing struct {
	before, after []sample
}

func startFailing(t *testing.T) failing {
	t.Helper()
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "xds.enabled=true", "xds.address=127.0.0.1:0") // which has metrics of its own
	sdk := Ydb_Query_V1.NewQueryServiceClient(s.Conn)
	const calls = 5
	for range calls {
		for _, sql := range []string{"SELECT 1", "SELECT nothing"} {
			_, _ = s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: sql}) // the second fails, for the sake of its status
			_ = callJSON(t, "POST", "http://"+s.HTTP+"/v1/query", `{"sql":"`+sql+`"}`, &struct{}{})
		}
		if status := native(t, sdk); status != Ydb.StatusIds_SUCCESS {
			t.Fatalf("SELECT 1 over YDB's own protocol: %v", status)
		}
	}
	url := "http://" + s.Admin + "/metrics"
	var f failing
	eventually(t, patience, "all calls are counted, and what was wrong at the start is no longer said", func() string {
		f.before = scrape(t, url)
		for _, s := range f.before {
			if s.name == "ydb_sidecar_finding" && s.value != 0 {
				return s.labels
			}
		}
		for _, api := range apis {
			if n := api.count(f.before, ""); n < calls {
				return fmt.Sprintf("%v calls over %s; want %d", n, api.name, calls)
			}
		}
		return ""
	})
	// Without a node such a call waits for one as long as its caller does, so it is to fail before.
	for _, want := range []Ydb.StatusIds_StatusCode{Ydb.StatusIds_OVERLOADED, Ydb.StatusIds_UNAVAILABLE} {
		c.everywhere(t, "errors", map[string]any{"status": want.String(), "methods": []string{"ExecuteQuery"}})
		if status := native(t, sdk); status != want {
			t.Fatalf("SELECT 1 over YDB's own protocol: %v; want %v", status, want)
		}
	}
	c.everywhere(t, "kill", nil)
	for range calls {
		_, _ = s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "200ms"})
		_ = callJSON(t, "POST", "http://"+s.HTTP+"/v1/query", `{"sql":"SELECT 1","timeout":"200ms"}`, &struct{}{})
	}
	eventually(t, patience, "the sidecar says that all nodes are away", func() string {
		f.after = scrape(t, url)
		for _, s := range f.after {
			if s.name == "ydb_sidecar_finding" && s.has("ydb_sidecar_code", "NO_NODE") && s.value == 1 {
				return ""
			}
		}
		return "no NO_NODE"
	})
	return f
}

// native runs a statement over YDB's own protocol, without a session.
func native(t *testing.T, sdk Ydb_Query_V1.QueryServiceClient) Ydb.StatusIds_StatusCode {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-ydb-database", "/local"), 10*time.Second)
	defer cancel()
	stream, err := sdk.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{
		ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{
			Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: "SELECT 1",
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	part, err := stream.Recv()
	for err == nil { // to the end: a call that its client gives up is counted as that
		_, err = stream.Recv()
	}
	return part.GetStatus()
}

// api is one of those that apps may call, and how its calls are counted.
type api struct {
	name, metric, label, value string
}

var apis = []api{
	{"HTTP", "http_server_request_duration_seconds_count", "http_route", "/v1/query"},
	{"gRPC", "rpc_server_call_duration_seconds_count", "rpc_method", "sidecar.v1.Sidecar/Execute"},
	{"YDB's own protocol", "rpc_server_call_duration_seconds_count", "rpc_method", "Ydb.Query.V1.QueryService/ExecuteQuery"},
}

func (a api) counts(s sample) bool { return s.name == a.metric && s.has(a.label, a.value) }

// count is how many calls ended with an error; "" is all.
func (a api) count(samples []sample, code string) (n float64) {
	for _, s := range samples {
		if a.counts(s) && (code == "" || s.has("error_type", code)) {
			n += s.value
		}
	}
	return n
}

// Nothing on the dashboard is empty and no alert is silent for ever because a metric,
// a label or the value of a label has another name by now; and the unit tests of the
// alerts invent none.
func TestDashboardAndAlertsNameWhatThereIs(t *testing.T) {
	there := startFailing(t).after
	reference, err := os.ReadFile(filepath.Join(standtest.Root(t), "docs", "reference", "errors.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := labels(there)
	documented(t, known)
	own := []string{"job", "instance"}
	free := []string{"db_namespace", "db_client_connection_pool_name", "ydb_node_id", "ydb_node_address", "ydb_sidecar_app",
		"ydb_sidecar_settings"}
	for _, expr := range slices.Concat(expressions(t), inputs(t)) {
		metrics, groups := asked(expr)
		if len(metrics) == 0 && !strings.HasPrefix(expr, "vector(") { // the objective is a number
			t.Errorf("no metric in %s", expr)
		}
		grouped := slices.Clone(own)
		for name, labels := range metrics {
			has, ok := known[name]
			if !ok {
				t.Errorf("%s is no metric: %s", name, expr)
			}
			grouped = append(grouped, has...)
			for _, l := range labels {
				if !slices.Contains(has, l) && !slices.Contains(own, l) {
					t.Errorf("%s has no label %s: %s", name, l, expr)
				}
			}
		}
		for _, l := range groups {
			if !slices.Contains(grouped, l) {
				t.Errorf("nothing has the label %s: %s", l, expr)
			}
		}
		for _, w := range matched(expr) {
			// Errors are many, and some have no simple cause: docs/reference/errors.md is held to the code,
			// and calls of YDB's own protocol end with YDB's statuses.
			_, status := Ydb.StatusIds_StatusCode_value[w.value]
			var ofGRPC codes.Code
			status = status || ofGRPC.UnmarshalJSON([]byte(`"`+w.value+`"`)) == nil
			code := w.label == "error_type" && (status || strings.Contains(string(reference), "\n### "+w.value+"\n"))
			measured := slices.ContainsFunc(there, func(s sample) bool { return s.name == w.metric })
			if measured && !code && !slices.Contains(own, w.label) && !slices.Contains(free, w.label) &&
				!slices.ContainsFunc(there, func(s sample) bool { return s.name == w.metric && s.has(w.label, w.value) }) {
				t.Errorf("%s never has %s=%q: %s", w.metric, w.label, w.value, expr)
			}
		}
	}
}

// documented adds what docs/reference/metrics.md lists, which a test holds to the code: some metrics need TLS, a limit
// of memory or a retry, and not every finding is about an app.
func documented(t *testing.T, known map[string][]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(standtest.Root(t), "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := metricRow.FindAllStringSubmatch(string(text), -1)
	if len(rows) < 100 {
		t.Fatalf("%d metrics in docs/reference/metrics.md; want all", len(rows))
	}
	for _, row := range rows {
		for _, name := range documentedLabel.FindAllStringSubmatch(row[2], -1) {
			known[row[1]] = append(known[row[1]], strings.ReplaceAll(name[1], ".", "_"))
		}
	}
}

var (
	metricRow       = regexp.MustCompile("(?m)^\\| `[^`]+` \\| `([a-z0-9_]+)` \\| [a-z]+ \\| [^|]* \\| ([^|]*) \\|")
	documentedLabel = regexp.MustCompile("`([^`]+)`")
)

// inputs are the series that the unit tests of the alerts give to promtool.
func inputs(t *testing.T) (all []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(standtest.Root(t), "deploy", "prometheus", "alerts_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			Inputs []struct{ Series string } `yaml:"input_series"`
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for _, test := range file.Tests {
		for _, i := range test.Inputs {
			all = append(all, i.Series)
		}
	}
	if len(all) < 50 {
		t.Fatalf("%d series; want those of each alert", len(all))
	}
	return all
}

// What a sidecar without nodes measures, repeated for a while, makes the alerts come:
// by calls of each API alone. What it measured before does not.
func TestAlertsComeOfWhatIsMeasured(t *testing.T) {
	f := startFailing(t)
	fired := map[string]int{"YdbSidecarErrors": 1, "YdbSidecarNoNode": 1} // and not one more for each dead node
	tests := []map[string]any{ruleTest("quiet", f.before, f.before, nil)}
	for _, a := range apis {
		others := func(s sample) bool {
			return slices.ContainsFunc(apis, func(o api) bool { return o.metric == s.name }) && !a.counts(s)
		}
		before, after := slices.DeleteFunc(slices.Clone(f.before), others), slices.DeleteFunc(slices.Clone(f.after), others)
		tests = append(tests, ruleTest(a.name, before, after, fired))
	}
	text, err := yaml.Marshal(map[string]any{
		"rule_files":          []string{filepath.Join(standtest.Root(t), "deploy", "prometheus", "alerts.yaml")},
		"evaluation_interval": "30s",
		"tests":               tests,
	})
	name := filepath.Join(t.TempDir(), "test.yaml")
	if err == nil {
		err = os.WriteFile(name, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	command(t, ".", filepath.Join(standtest.Root(t), ".cache", "prometheus", "usr", "bin", "promtool"), "test", "rules", name)
}

// ruleTest is a test of promtool's in which a sidecar goes on as it did between two
// scrapes: gauges stay, counters grow by as much every half minute.
func ruleTest(name string, before, after []sample, fired map[string]int) map[string]any {
	was := map[string]float64{}
	for _, s := range before {
		was[s.name+s.labels] = s.value
	}
	var series []map[string]string
	for _, s := range after {
		if strings.HasSuffix(s.name, "_bucket") {
			continue // of no alert, and many
		}
		grow := 0.0
		if s.kind == "counter" {
			grow = s.value - was[s.name+s.labels]
		}
		all := strings.TrimSuffix(`job="ydb-sidecar",instance="a",`+s.labels, ",")
		series = append(series, map[string]string{"series": s.name + "{" + all + "}", "values": fmt.Sprintf("%f+%fx40", s.value, grow)})
	}
	series = append(series, map[string]string{"series": `up{job="ydb-sidecar",instance="a"}`, "values": "1x40"})
	expected := []map[string]any{}
	for alert, count := range fired {
		expected = append(expected, map[string]any{"labels": `{alertname="` + alert + `"}`, "value": count})
	}
	expr := `count by (alertname) (ALERTS{alertstate="firing"})`
	if len(fired) > 0 {
		expr = `count by (alertname) (ALERTS{alertstate="firing",alertname=~"` + strings.Join(slices.Collect(maps.Keys(fired)), "|") + `"})`
	}
	return map[string]any{
		"name": name, "interval": "30s", "input_series": series,
		"promql_expr_test": []map[string]any{{"expr": expr, "eval_time": "18m", "exp_samples": expected}},
	}
}
