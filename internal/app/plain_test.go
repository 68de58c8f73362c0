package app

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// httpAtWork is how many goroutines serve requests of HTTP: of net/http, and of a shard's.
func httpAtWork() int {
	stacks := make([]byte, 16<<20)
	text := string(stacks[:runtime.Stack(stacks, true)])
	return strings.Count(text, "net/http.(*conn).serve(") + strings.Count(text, "wire.(*visit).Serve(")
}

// ordinary is an ordinary request, and strange the same in a form that is for net/http.
func ordinary(method, path, body string, headers ...string) string {
	head := method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n"
	if body != "" {
		head += fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	for _, h := range headers {
		head += h + "\r\n"
	}
	return head + "\r\n" + body
}

func strange(request string) string {
	return strings.Replace(request, "Host: localhost\r\n", "Host: localhost\r\nX-Strange: \xc3\xa9\r\n", 1)
}

// kvSetting opens to the key-value API the tables that makeKV creates.
const kvSetting = contract.TurnTables

func (s *sidecar) makeKV() {
	s.Helper()
	for _, sql := range contract.TurnSQL {
		if _, err := s.query(sql); err != nil {
			s.Fatal(err)
		}
	}
}

// A query over HTTP/1.1, or a call of the key-value API, that waits for its node needs no goroutine, and ends as any other.
func TestOpenQueriesHoldNoGoroutine(t *testing.T) {
	short.Skip(t, "it counts goroutines of the whole process")
	if runtime.GOOS != "linux" {
		t.Log("connections are parked on Linux alone")
		return
	}
	const open = 20
	cluster := newCluster(t)
	s := start(t, cluster.Endpoint(), "pool.min=20", "pool.max=20", kvSetting)
	s.eventually("sessions are idle", func() bool { return s.core.pool.Stats().Idle == open })
	s.makeKV()
	requests := []struct {
		text   string
		status int
	}{
		{ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`), http.StatusOK},
		{ordinary("GET", "/v1/kv/rows?id=1", ""), http.StatusOK},
		{ordinary("PUT", "/v1/kv/rows?id=7", ""), http.StatusNoContent},
		{ordinary("DELETE", "/v1/kv/rows?id=8", ""), http.StatusNoContent},
		{ordinary("POST", "/v1/kv/rows:batchGet", `{"ids":[1,2,3]}`), http.StatusOK},
	}
	var all []*asker
	for range open {
		all = append(all, dialAsker(t, "tcp", s.at.HTTP))
	}
	for range 5 { // the shard has connections to all nodes then
		for i, a := range all {
			a.say(requests[i%len(requests)].text)
		}
		for i, a := range all {
			a.hears(requests[i%len(requests)].status)
		}
	}
	for id := uint32(1); id <= 3; id++ {
		if err := cluster.Node(id).Delay(devcluster.Delay{Delay: time.Hour, Share: 1, Methods: []string{"ExecuteQuery"}}); err != nil {
			t.Fatal(err)
		}
	}
	for i, a := range all {
		a.say(requests[i%len(requests)].text)
	}
	s.eventually("the queries are open", func() bool { return s.core.pool.Stats().InUse == open && s.api.State().OpenCalls == open })
	if n := httpAtWork(); n > 0 {
		t.Errorf("%d goroutines serve %d queries", n, open)
	}
	for _, a := range all[open/2:] { // the callers leave
		_ = a.Close()
	}
	s.eventually("half of them have ended", func() bool { return s.api.State().OpenCalls == open/2 })
	for id := uint32(1); id <= 3; id++ {
		cluster.Node(id).Kill()
	}
	for i, a := range all[:open/2] {
		if i%len(requests) == 0 {
			a.hears(http.StatusServiceUnavailable)
			continue
		}
		res, err := http.ReadResponse(a.answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode < 500 { // a write may have been kept, so its status is another one
			t.Errorf("%q is answered %s by nodes that were killed", requests[i%len(requests)].text, res.Status)
		}
	}
	s.eventually("nothing is left", func() bool { return s.core.pool.Stats().InUse == 0 && s.api.State().OpenCalls == 0 })
}

// changing is what two answers to the same request may differ in.
var changing = regexp.MustCompile(`"(trace_id|node_id|attempts|id|\w+_ms)":("[^"]*"|[\d.]+)`)

// An ordinary request is answered as net/http has it answered, byte for byte, except for the order of headers.
func TestOrdinaryRequestsAreAnsweredAlike(t *testing.T) {
	cluster := newCluster(t)
	s := start(t, cluster.Endpoint(), "api.max_rows=3", kvSetting)
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	s.makeKV()
	a, b := dialAsker(t, "tcp", s.at.HTTP), dialAsker(t, "tcp", s.at.HTTP)
	answer := func(to **asker, text string) (string, http.Header) {
		a := *to
		a.say(text)
		res, err := http.ReadResponse(a.answers, nil)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.Header.Get("Date") == "" {
			t.Errorf("%q: no date", text)
		}
		for _, name := range []string{
			"Date", "Server-Timing", "Content-Length", // of what changes
			"Connection", // net/http's connection ends when a body is not read, which here has come already
		} {
			res.Header.Del(name)
		}
		if res.Close {
			*to = dialAsker(t, "tcp", s.at.HTTP)
		}
		return res.Status + "\n" + changing.ReplaceAllString(string(body), "$1"), res.Header
	}
	for _, request := range []string{
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1 AS a, 'x' AS b"}`),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`, "X-Ydb-Rows: arrays"),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`, "X-Ydb-Rows: nonsense"),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`, "Request-Timeout: 5s"),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`, "Request-Timeout: soon"),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`, "X-Ydb-Priority: nonsense"),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`, "Accept: application/x-ndjson"),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`, "Origin: http://example.com"),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`, "Content-Encoding: gzip"),
		ordinary("POST", "/v1/query", `{"sql":`),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1","nonsense":1}`),
		ordinary("POST", "/v1/query", `{}`),
		ordinary("POST", "/v1/query", `{"sql":"SELEKT"}`),
		ordinary("POST", "/v1/query", `{"sql":"SELECT $a","params":{"a":1}}`),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1","mode":"nonsense"}`),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1","tx":{"id":"nonsense"}}`),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1","tx":{"begin":{},"commit":true}}`),
		ordinary("POST", "/v1/query", strings.Repeat(" ", 9000)),
		ordinary("POST", "/v1/query", ""),
		ordinary("GET", "/v1/query", ""),
		ordinary("POST", "/v1/tx/begin", `{}`),
		ordinary("POST", "/v1/tx/none/commit", `{}`),
		ordinary("POST", "/v1/batch", `{"statements":[{"sql":"SELECT 1"},{"sql":"SELEKT"}]}`),
		ordinary("POST", "/v1/explain", `{"sql":"SELECT 1"}`),
		ordinary("GET", "/openapi.yaml", ""),
		ordinary("GET", "/nothing", ""),
		ordinary("GET", "/v1/../v1/query", ""),
		ordinary("POST", "/v1/tx/begin", `{"mode":"snapshot_ro","timeout":"5s"}`),
		ordinary("POST", "/v1/tx/begin", `{"mode":"nonsense"}`),
		ordinary("POST", "/v1/tx/begin", `{"priority":"nonsense"}`),
		ordinary("POST", "/v1/tx/begin", `{"nonsense":1}`),
		ordinary("POST", "/v1/tx/begin", `{}`, "X-Ydb-Priority: nonsense"),
		ordinary("POST", "/v1/tx/begin", ""),
		ordinary("POST", "/v1/tx/none/commit", ""),
		ordinary("POST", "/v1/tx/none/rollback", ""),
		ordinary("POST", "/v1/tx/none/rollback", `{"timeout":"soon"}`),
		ordinary("POST", "/v1/tx/none/nonsense", `{}`),
		ordinary("POST", "/v1/tx/none", `{}`),
		ordinary("POST", "/v1/tx/./commit", `{}`),
		ordinary("POST", "/v1/tx//commit", `{}`),
		ordinary("POST", "/v1/tx/a%2Fb/commit", `{}`),
		ordinary("POST", "/v1/tx/a%20b/commit", `{}`),
		ordinary("GET", "/v1/tx/none", ""),
		ordinary("GET", "/v1/kv/rows?id=1", ""),
		ordinary("GET", "/v1/kv/rows?id=2", ""),
		ordinary("GET", "/v1/kv/rows?id=3", ""),
		ordinary("GET", "/v1/kv/rows?id=1", "", "Request-Timeout: 5s"),
		ordinary("GET", "/v1/kv/rows?id=1", "", "Request-Timeout: soon"),
		ordinary("GET", "/v1/kv/rows?id=1", "", "X-Ydb-Priority: nonsense"),
		ordinary("GET", "/v1/kv/rows?id=1", "", "Origin: http://example.com"),
		ordinary("GET", "/v1/kv/rows?id=x", ""),
		ordinary("GET", "/v1/kv/rows?id=1&id=2", ""),
		ordinary("GET", "/v1/kv/rows?nonsense=1", ""),
		ordinary("GET", "/v1/kv/rows?id=%zz", ""),
		ordinary("GET", "/v1/kv/rows", ""),
		ordinary("GET", "/v1/kv/rows/1", ""),
		ordinary("GET", "/v1/kv/", ""),
		ordinary("GET", "/v1/kv/closed?id=1", ""),
		ordinary("GET", "/v1/kv/none?id=1", ""),
		ordinary("GET", "/v1/kv/rows?id=1", "body"),
		ordinary("GET", "/v1/kv/versions?id=1", ""),
		ordinary("GET", "/v1/kv/versions?id=1", "", `If-None-Match: "5"`),
		ordinary("GET", "/v1/kv/versions?id=1", "", `If-Match: "4"`),
		ordinary("GET", "/v1/kv/versions?id=1", "", `If-Match: nonsense`),
		untyped("PUT", "/v1/kv/rows?id=10", "ten"),
		untyped("PUT", "/v1/kv/rows?id=10", "\xff"),
		untyped("PUT", "/v1/kv/rows?id=10", ""),
		ordinary("PUT", "/v1/kv/rows?id=10", "ten"),
		untyped("PUT", "/v1/kv/rows?id=1", "x", "If-None-Match: *"),
		untyped("PUT", "/v1/kv/versions?id=1", "x", `If-Match: "4"`),
		untyped("PUT", "/v1/kv/seen?id=1", "x"),
		untyped("PUT", "/v1/kv/rows?id=x", "x"),
		untyped("PUT", "/v1/kv/rows?id=1", "x", "X-Ydb-Priority: nonsense"),
		ordinary("DELETE", "/v1/kv/rows?id=10", ""),
		ordinary("DELETE", "/v1/kv/seen?id=10", ""),
		ordinary("DELETE", "/v1/kv/versions?id=1", "", `If-Match: "4"`),
		ordinary("DELETE", "/v1/kv/rows?id=10", "body"),
		ordinary("POST", "/v1/kv/rows:batchGet", `{"ids":[2,7,1,2]}`),
		ordinary("POST", "/v1/kv/rows:batchGet", `{"ids":[]}`),
		ordinary("POST", "/v1/kv/rows:batchGet", `{"ids":[1,"x"]}`),
		ordinary("POST", "/v1/kv/rows:batchGet", `{"ids":1}`),
		ordinary("POST", "/v1/kv/rows:batchGet", ""),
		ordinary("POST", "/v1/kv/closed:batchGet", `{"ids":[1]}`, "X-Ydb-Priority: nonsense"),
		ordinary("POST", "/v1/kv/rows", `{"ids":[1]}`),
		ordinary("PATCH", "/v1/kv/rows?id=1", ""),
	} {
		fast, fastHeader := answer(&a, request)
		slow, slowHeader := answer(&b, strange(request))
		if fast != slow {
			t.Errorf("%q:\n%s\nnet/http:\n%s", request, fast, slow)
		}
		for name, values := range slowHeader {
			if !slices.Equal(fastHeader[name], values) && name != "Retry-After" {
				t.Errorf("%q: %s is %q; by net/http %q", request, name, fastHeader[name], values)
			}
			delete(fastHeader, name)
		}
		if len(fastHeader) > 0 {
			t.Errorf("%q: %v is there alone", request, fastHeader)
		}
	}
}

// untyped is an ordinary request without Content-Type.
func untyped(method, path, body string, headers ...string) string {
	return strings.Replace(ordinary(method, path, body, headers...), "Content-Type: application/json\r\n", "", 1)
}

// The steps of a transaction are answered as net/http has them answered.
func TestTransactionsOverHTTPAreAnsweredAlike(t *testing.T) {
	cluster := newCluster(t)
	s := start(t, cluster.Endpoint(), "pool.min=6")
	s.eventually("sessions are idle", func() bool { return s.core.pool.Stats().Idle >= 6 }) // more, if a node was away for a moment
	if _, err := s.query("CREATE TABLE steps (id Int64, PRIMARY KEY (id))"); err != nil {
		t.Fatal(err)
	}
	s.reachNodes()
	ids := regexp.MustCompile(`"tx":\{"id":"([^"]+)"`)
	for _, steps := range []string{"commit", "rollback", "commit commit", "rollback rollback", "rollback commit",
		"commit rollback", "write commit", "write rollback", "write", "last commit", "last rollback", "fail commit",
		"fail rollback"} {
		var told [2][]string
		for i, form := range []func(string) string{func(text string) string { return text }, strange} {
			a := dialAsker(t, "tcp", s.at.HTTP)
			id := ""
			step := func(path, body string) {
				a.say(form(ordinary("POST", path, body)))
				res, err := http.ReadResponse(a.answers, nil)
				if err != nil {
					t.Fatalf("%s: %s: %v", steps, path, err)
				}
				defer res.Body.Close()
				answer, err := io.ReadAll(res.Body)
				if err != nil {
					t.Fatal(err)
				}
				if found := ids.FindSubmatch(answer); found != nil {
					id = string(found[1])
				}
				told[i] = append(told[i], res.Status+" "+changing.ReplaceAllString(string(answer), "$1"))
			}
			step("/v1/tx/begin", `{}`)
			for _, name := range strings.Fields(steps) {
				switch name {
				case "write", "last":
					step("/v1/query",
						fmt.Sprintf(`{"sql":"UPSERT INTO steps (id) VALUES (1)","tx":{"id":%q,"commit":%t}}`, id, name == "last"))
				case "fail":
					step("/v1/query", fmt.Sprintf(`{"sql":"INSERT INTO steps (id) VALUES (1)","tx":{"id":%q}}`, id))
				default:
					step("/v1/tx/"+id+"/"+name, "")
				}
			}
		}
		if !slices.Equal(told[0], told[1]) {
			t.Errorf("%s:\n%s\nnet/http:\n%s", steps, strings.Join(told[0], "\n"), strings.Join(told[1], "\n"))
		}
	}
}

// Requests that come in parts, several at once, or not to the end, are answered in their order.
func TestRequestsInAllForms(t *testing.T) {
	s := start(t, newCluster(t).Endpoint())
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	query := ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`)
	missing := ordinary("GET", "/nothing", "")
	for _, c := range []struct {
		name  string
		parts []string
		want  []int
	}{
		{"head and body apart", []string{query[:strings.Index(query, "{")], query[strings.Index(query, "{"):]}, []int{200}},
		{"byte for byte", strings.Split(query, ""), []int{200}},
		{"three at once", []string{query + missing + query}, []int{200, 404, 200}},
		{"one and a half", []string{query + query[:30], query[30:]}, []int{200, 200}},
		{"ordinary ones and others", []string{query, strange(query), query, strange(missing), missing}, []int{200, 200, 200, 404, 404}},
		{"a long body", []string{ordinary("POST", "/v1/query", `{"sql":"SELECT 1 -- `+strings.Repeat("x", 40000)+`"}`)}, []int{200}},
		{"one of 10 KB", []string{ordinary("POST", "/v1/query", `{"sql":"SELECT 1 -- `+strings.Repeat("x", 10000)+`"}`)}, []int{200}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := dialAsker(t, "tcp", s.at.HTTP)
			heard := 0
			for i, part := range c.parts {
				a.say(part)
				if len(c.parts) == len(c.want) {
					a.hears(c.want[i])
					heard++
				} else {
					time.Sleep(time.Millisecond) // it is to come apart
				}
			}
			for _, want := range c.want[heard:] {
				a.hears(want)
			}
			a.say(query)
			a.hears(http.StatusOK)
		})
	}
}

// A stop ends no query that is under way, whoever serves it, and tells its client to go.
func TestStopWaitsForQueries(t *testing.T) {
	cluster := newCluster(t)
	s := start(t, cluster.Endpoint())
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	query := ordinary("POST", "/v1/query", `{"sql":"SELECT 1"}`)
	busy, idle, silent := dialAsker(t, "tcp", s.at.HTTP), dialAsker(t, "tcp", s.at.HTTP), dialAsker(t, "tcp", s.at.HTTP)
	for _, a := range []*asker{busy, idle} {
		a.say(query)
		a.hears(http.StatusOK)
	}
	for id := uint32(1); id <= 3; id++ {
		if err := cluster.Node(id).Delay(
			devcluster.Delay{Delay: 700 * time.Millisecond, Share: 1, Methods: []string{"ExecuteQuery"}},
		); err != nil {
			t.Fatal(err)
		}
	}
	busy.say(query)
	s.eventually("it is open", func() bool { return s.api.State().OpenCalls == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	s.eventually("it drains", func() bool { return s.phase.get() >= draining })
	idle.say(ordinary("GET", "/openapi.yaml", ""))
	res, err := http.ReadResponse(idle.answers, nil)
	if err != nil || res.StatusCode != http.StatusOK || !res.Close {
		t.Errorf("a request after the beginning of the end: %v, %v", res, err)
	}
	if res, err = http.ReadResponse(busy.answers, nil); err != nil || res.StatusCode != http.StatusOK || !res.Close {
		t.Fatalf("the request under way: %v, %v", res, err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	for _, a := range []*asker{busy, silent} {
		if n, err := a.answers.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%d bytes, %v; want the end", n, err)
		}
	}
	if err := <-stopped; err != nil {
		t.Errorf("the stop: %v", err)
	}
}
