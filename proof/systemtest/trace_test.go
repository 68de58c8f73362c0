package systemtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// span is one received span.
type span struct {
	service, name     string
	id, parent, trace string
	links             []string // ids of spans
	failed            bool
	attributes        map[string]string
	start, took       time.Duration // since 1970
}

// collector is an OpenTelemetry collector and the file of what it got.
type collector struct {
	grpc, http, file string
}

// startCollector builds and starts one: its module is not the product's.
func startCollector(t *testing.T) *collector {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "otelcollector"), ".")
	build.Dir = filepath.Join(standtest.Root(t), "proof", "systemtest", "otelcollector")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the collector: %v\n%s", err, out)
	}
	c := &collector{grpc: standtest.FreeAddress(t), http: standtest.FreeAddress(t), file: filepath.Join(dir, "spans.json")}
	standtest.Ready(t,
		standtest.Start(t,
			stand.Spec{Path: filepath.Join(dir, "otelcollector"), Args: []string{"-grpc", c.grpc, "-http", c.http, "-out", c.file}}))
	return c
}

// overGRPC and overHTTP are the environments that send a program's spans there.
func (c *collector) overGRPC() []string { return c.env("grpc", c.grpc) }
func (c *collector) overHTTP() []string { return c.env("http/protobuf", c.http) }

func (c *collector) env(protocol, address string) []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + address, "OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol,
		"OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_TRACES_SAMPLER=parentbased_always_on",
	}
}

// The parts of OTLP JSON that are looked at.
type (
	otlpLine struct {
		ResourceSpans []struct {
			Resource   struct{ Attributes []otlpAttribute }
			ScopeSpans []struct{ Spans []otlpSpan }
		}
	}
	otlpSpan struct {
		TraceID, SpanID, ParentSpanID, Name string
		StartTimeUnixNano, EndTimeUnixNano  string
		Attributes                          []otlpAttribute
		Links                               []struct{ SpanID string }
		Status                              struct{ Code int }
	}
	otlpAttribute struct {
		Key   string
		Value map[string]any
	}
)

func attributes(list []otlpAttribute) map[string]string {
	all := map[string]string{}
	for _, a := range list {
		for _, v := range a.Value {
			all[a.Key] = fmt.Sprint(v)
		}
	}
	return all
}

// spans reads all that came so far.
func (c *collector) spans(t *testing.T) map[string]span {
	t.Helper()
	text, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]span{}
	lines := strings.SplitAfter(string(text), "\n")
	for _, line := range lines[:len(lines)-1] { // what follows the last end of a line is not whole yet
		var got otlpLine
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%v in %.200q", err, line)
		}
		for _, from := range got.ResourceSpans {
			service := attributes(from.Resource.Attributes)["service.name"]
			for _, scope := range from.ScopeSpans {
				for _, s := range scope.Spans {
					begin, _ := strconv.ParseInt(s.StartTimeUnixNano, 10, 64)
					end, _ := strconv.ParseInt(s.EndTimeUnixNano, 10, 64)
					one := span{service: service, name: s.Name, id: s.SpanID, parent: s.ParentSpanID, trace: s.TraceID,
						failed:     s.Status.Code == 2,
						attributes: attributes(s.Attributes), start: time.Duration(begin), took: time.Duration(end - begin)}
					for _, l := range s.Links {
						one.links = append(one.links, l.SpanID)
					}
					all[s.SpanID] = one
				}
			}
		}
	}
	return all
}

// request is one request of the app, as its spans tell it.
type request struct {
	app, server span
	tries       []try
	lease       *span // span that its own is linked to
}

// try is one attempt.
type try struct {
	span
	got, queue *span
	hops       []hop
}

type hop struct {
	span
	node *span // the node's own
}

// requests returns every request of the Python app.
func requests(all map[string]span) (found []request) {
	children := map[string][]span{}
	for _, s := range all {
		children[s.parent] = append(children[s.parent], s)
	}
	for _, list := range children {
		slices.SortFunc(list, func(a, b span) int { return int(a.start - b.start) })
	}
	for _, server := range all {
		app, ok := all[server.parent]
		if !ok || app.service != "shop-python" || !strings.HasPrefix(server.name, "sidecar.v1.Sidecar/") {
			continue
		}
		q := request{app: app, server: server}
		for _, id := range server.links {
			if lease, ok := all[id]; ok && lease.name == "ydb.sidecar.transaction" {
				q.lease = &lease
			}
		}
		for _, one := range children[server.id] {
			if one.name != "ydb.Try" {
				continue
			}
			attempt := try{span: one}
			for _, below := range children[one.id] {
				if below.name == "ydb.GetSession" {
					attempt.got = &below
					for _, wait := range children[below.id] {
						if wait.name == "ydb.sidecar.queue" {
							attempt.queue = &wait
						}
					}
					continue
				}
				h := hop{span: below}
				for _, node := range children[below.id] {
					if node.service == "ydb-devcluster" {
						h.node = &node
					}
				}
				attempt.hops = append(attempt.hops, h)
			}
			q.tries = append(q.tries, attempt)
		}
		found = append(found, q)
	}
	return found
}

// good says whether an attempt leads to the node in one trace, and tells what an
// operator asks for.
func (a try) good(trace string) bool {
	if a.failed || len(a.hops) == 0 {
		return false
	}
	for _, h := range a.hops {
		if h.node == nil || h.node.trace != trace || h.trace != trace || h.node.attributes["ydb.node.id"] != h.attributes["ydb.node.id"] ||
			h.attributes["ydb.node.id"] == "" || h.attributes["server.address"] == "" || h.attributes["ydb.sidecar.owner"] != "true" ||
			len(h.attributes["ydb.sidecar.session"]) != 12 || h.took < h.node.took {
			return false
		}
	}
	return a.got == nil || a.got.trace == trace && a.got.attributes["ydb.node.id"] == a.hops[0].attributes["ydb.node.id"]
}

func (q request) only() (try, bool) {
	if len(q.tries) != 1 || !q.tries[0].good(q.app.trace) || q.server.trace != q.app.trace {
		return try{}, false
	}
	return q.tries[0], true
}

// TestOneTraceFromTheAppToTheNode sends the spans of a Python app, of the sidecar and of
// the nodes to an OpenTelemetry collector, over both protocols, and reads the trees.
func TestOneTraceFromTheAppToTheNode(t *testing.T) {
	to := startCollector(t)
	c := startCluster(t, to.overGRPC(), "-processes", "-data", filepath.Join(t.TempDir(), "data"))
	// Two sessions for six workers: they wait in the queue for one another.
	s := startSidecar(t, c, to.overHTTP(), "pool.max=2")
	shop := python(t, "grpc://"+s.GRPC)
	shop.run(t, "init")
	// Some statements are refused: what is safe to send again is sent again.
	c.everywhere(t, "errors",
		map[string]any{"status": "UNAVAILABLE", "share": 0.2, "methods": []string{"ExecuteQuery", "BeginTransaction"}})
	web := python(t, "http://"+s.HTTP)

	wanted := map[string]func(request) bool{
		"a query over gRPC": func(q request) bool {
			one, ok := q.only()
			return ok && q.app.name == "history" && len(one.hops) == 1 && one.hops[0].name == "ydb.ExecuteQuery" && one.got != nil &&
				one.hops[0].attributes["ydb.sidecar.answer_bytes"] != "0" && q.server.attributes["http.route"] == ""
		},
		"a query over HTTP": func(q request) bool {
			one, ok := q.only()
			return ok && q.app.name == "history" && len(one.hops) == 1 && q.server.attributes["http.route"] == "/v1/query"
		},
		"a statement of a transaction": func(q request) bool {
			one, ok := q.only()
			return ok && q.app.name == "place order" && q.lease != nil && one.got == nil &&
				q.lease.attributes["ydb.node.id"] == one.hops[0].attributes["ydb.node.id"] &&
				!q.lease.failed && q.lease.start <= q.server.start && q.lease.start+q.lease.took >= one.start+one.took
		},
		"a commit": func(q request) bool {
			one, ok := q.only()
			return ok && q.lease != nil && one.hops[0].attributes["ydb.sidecar.commit"] == "true" &&
				q.lease.attributes["ydb.sidecar.transaction.end"] == "committed"
		},
		"a wait in line": func(q request) bool {
			one, ok := q.only()
			return ok && one.queue != nil && one.got.attributes["ydb.sidecar.waited"] == "true" &&
				one.queue.took > time.Millisecond && one.got.took >= one.queue.took
		},
		"a call sent again": func(q request) bool {
			if len(q.tries) < 2 || len(q.tries[0].hops) == 0 {
				return false
			}
			first, last := q.tries[0], q.tries[len(q.tries)-1]
			return first.failed && first.hops[0].attributes["db.response.status_code"] == "UNAVAILABLE" &&
				first.hops[0].attributes["error.type"] == "ydb_error" &&
				last.good(q.app.trace) && last.attributes["ydb.retry.backoff_ms"] != "" &&
				last.attributes["ydb.sidecar.attempt"] == fmt.Sprint(len(q.tries)) && last.start >= first.start+first.took
		},
	}
	// what there was no time for may come in the next run
	eventually(t, 2*patience, "the spans of every kind of request", func() (wrong string) {
		overGRPC, overHTTP := shop.start(
			t, to.overGRPC(), "run", "--seconds", "3", "--workers", "4",
		), web.start(t, to.overGRPC(), "run", "--seconds", "3", "--workers", "2")
		shop.finish(t, overGRPC)
		web.finish(t, overHTTP)
		for exported := time.Now().Add(20 * time.Second); time.Now().Before(exported); { // programs export their spans after the fact
			if wrong = lacking(requests(to.spans(t)), wanted); wrong == "" {
				return ""
			}
		}
		return wrong
	})
	c.everywhere(t, "clear", nil)

	killAtWork(t, c, to, shop)
}

// killAtWork kills nodes until a span shows a call that met one that was killed.
func killAtWork(t *testing.T, c *ydb, to *collector, shop app) {
	t.Helper()
	// Six workers keep both sessions busy.
	c.everywhere(t, "delay", map[string]any{"delay": "100ms", "methods": []string{"ExecuteQuery"}})
	before := c.sum(t, "statements")
	running := shop.start(t, to.overGRPC(), "run", "--seconds", "300", "--workers", "6")
	eventually(t, patience, "a statement of the app", func() string {
		if c.sum(t, "statements") <= before+4 {
			return "none yet"
		}
		return ""
	})
	var victim uint32
	var killed time.Time
	eventually(t, 2*patience, "a call that met the killed node", func() string {
		if time.Since(killed) > 20*time.Second { // the sessions there were between two calls: another node
			if victim != 0 {
				c.do(t, victim, "start", nil)
			}
			for id, sessions := range c.perNode(t) {
				if sessions > 0 {
					victim = id
				}
			}
			kill(t, c, victim)
			killed = time.Now()
		}
		all := requests(to.spans(t))
		for _, q := range all {
			for _, one := range q.tries {
				for _, h := range one.hops {
					if one.failed && h.failed && h.attributes["error.type"] == "transport_error" &&
						h.attributes["ydb.node.id"] == fmt.Sprint(victim) {
						return ""
					}
				}
			}
		}
		return fmt.Sprintf("node %d was killed %v ago: none among %d requests", victim, time.Since(killed).Round(time.Second), len(all))
	})
	if err := running.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	shop.finish(t, running)
}

// lacking names the kinds of which there is no request.
func lacking(all []request, wanted map[string]func(request) bool) string {
	missing := maps.Clone(wanted)
	for _, q := range all {
		for kind, is := range missing {
			if is(q) {
				delete(missing, kind)
			}
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("none of %v among %d requests, such as %+v", slices.Sorted(maps.Keys(missing)), len(all), all[:min(2, len(all))])
}
