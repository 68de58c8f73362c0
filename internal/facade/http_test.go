package facade

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/proof/contract"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func twoOfOneName(t *testing.T) *facadetest.Driver {
	return &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return []*Ydb_Query.ExecuteQueryResponsePart{
				facadetest.Part(t, 0, []string{"a Int64", "a Utf8?", "b Decimal(22,9)"}, []string{"9007199254740993", `"x\n"`, `"1.5"`}),
			}, nil
		},
	}
}

func TestHTTPForms(t *testing.T) {
	b := start(t, small(), twoOfOneName(t))
	const columns = `"columns":[{"name":"a","type":"Int64"},{"name":"a","type":"Optional<Utf8>"},{"name":"b","type":"Decimal(22,9)"}]`
	object := `{"a":"9007199254740993","a_2":"x\n","b":"1.5"}`
	array := `["9007199254740993","x\n","1.5"]`
	for _, c := range []struct {
		name, body string
		headers    []string
		want       string
	}{
		{"default", `{"sql":"S"}`, nil, object},
		{"arrays", `{"sql":"S","rows":"arrays"}`, nil, array},
		{"numbers", `{"sql":"S","ints":"number"}`, nil, strings.Replace(object, `"9007199254740993"`, `9007199254740993`, 1)},
		{"header", `{"sql":"S"}`, []string{"X-Ydb-Rows", "arrays", "X-Ydb-Ints", "number"},
			strings.Replace(array, `"9007199254740993"`, `9007199254740993`, 1)},
		{"accept", `{"sql":"S"}`, []string{"Accept", "application/json; rows=arrays; ints=string"}, array},
		{"body_wins", `{"sql":"S","rows":"objects"}`, []string{"X-Ydb-Rows", "arrays"}, object},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, h, got := facadetest.Send(t, "POST", b.base+"/v1/query", c.body, facadetest.Header(c.headers...))
			if status != 200 || !strings.HasPrefix(got, "{"+columns+`,"rows":[`+c.want+`],"truncated":false,"info":{`) {
				t.Errorf("%d %s\nwant rows %s", status, got, c.want)
			}
			if !regexp.MustCompile(`^queue;dur=[0-9.]+, acquire;dur=[0-9.]+, hop;dur=[0-9.]+, server;dur=[0-9.]+$`).MatchString(
				h.Get("Server-Timing"),
			) {
				t.Errorf("Server-Timing %q", h.Get("Server-Timing"))
			}
		})
	}
	t.Run("ndjson", func(t *testing.T) {
		_, h, got := facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S"}`, facadetest.Header("Accept", "application/x-ndjson"))
		lines := strings.Split(got, "\n")
		if lines[0] != "{"+columns+"}" || lines[1] != `{"row":`+array+`}` ||
			!strings.HasPrefix(lines[2], `{"end":{"rows":1,"truncated":false,"info":{`) || lines[3] != "" {
			t.Errorf("lines:\n%s", got)
		}
		if h.Get("Content-Type") != "application/x-ndjson" || !strings.HasPrefix(h.Get("Server-Timing"), "queue;dur=") {
			t.Errorf("type %q, trailer %q", h.Get("Content-Type"), h.Get("Server-Timing"))
		}
		_, _, got = facadetest.Send(
			t, "POST", b.base+"/v1/query", `{"sql":"S","rows":"objects"}`,
			facadetest.Header("Accept", "application/x-ndjson"),
		)
		if lines = strings.Split(got, "\n"); lines[1] != `{"row":`+object+`}` {
			t.Errorf("as object: %s", lines[1])
		}
	})
}

// TestAcceptHasWeights: rows come as lines only if Accept prefers JSON no more than lines.
func TestAcceptHasWeights(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	for accept, want := range map[string]string{
		"": "application/json", "*/*": "application/json", "application/json": "application/json",
		"application/x-ndjson": "application/x-ndjson", "application/json, application/x-ndjson": "application/x-ndjson",
		"application/json, application/x-ndjson;q=0":           "application/json",
		"application/x-ndjson; Q = 0":                          "application/json",
		"application/json, application/x-ndjson;q=0.9":         "application/json",
		"application/x-ndjson;q=0.9;v=1, application/json;q=0": "application/x-ndjson",
		"application/x-ndjson;q=0.5, application/json;q=0.5":   "application/x-ndjson",
		"application/x-ndjson;q=high":                          "application/x-ndjson",
	} {
		_, h, got := facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S"}`, facadetest.Header("Accept", accept))
		if h.Get("Content-Type") != want {
			t.Errorf("Accept %q: %s; want %s\n%s", accept, h.Get("Content-Type"), want, got)
		}
	}
}

func TestHTTPRefusals(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	port := b.base[strings.LastIndex(b.base, ":"):]
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code                     string
	}{
		{"foreign_origin", "POST", "/v1/query", `{"sql":"S"}`, []string{"Origin", "https://evil.example"}, 403, "FORBIDDEN"},
		{"foreign_origin_of_a_get", "GET", "/v1/status", "", []string{"Origin", "http://localhost:3000"}, 403, "FORBIDDEN"},
		{"opaque_origin", "GET", "/v1/status", "", []string{"Origin", "null"}, 403, "FORBIDDEN"},
		{"foreign_host", "GET", "/v1/status", "", []string{"Host", "rebound.example" + port}, 403, "FORBIDDEN"},
		{"foreign_host_of_openapi", "GET", "/openapi.yaml", "", []string{"Host", "rebound.example"}, 403, "FORBIDDEN"},
		{"own_origin", "GET", "/v1/status", "", []string{"Origin", b.base}, 200, ""},
		{"local_name", "GET", "/v1/status", "", []string{"Host", "LOCALHOST" + port}, 200, ""},
		{"form", "POST", "/v1/query", "sql=S", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415,
			"UNSUPPORTED_MEDIA_TYPE"},
		{"text", "POST", "/v1/query", `{"sql":"S"}`, []string{"Content-Type", "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"no_type", "POST", "/v1/query", `{"sql":"S"}`, []string{"Content-Type", ""}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"ndjson_for_a_query", "POST", "/v1/query", `{"sql":"S"}`, []string{"Content-Type", "application/x-ndjson"}, 415,
			"UNSUPPORTED_MEDIA_TYPE"},
		{"json_with_charset", "POST", "/v1/query", `{"sql":"S"}`, []string{"Content-Type", "Application/JSON; charset=utf-8"}, 200, ""},
		{"compressed", "POST", "/v1/query", `{"sql":"S"}`, []string{"Content-Encoding", "gzip"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"no_path", "GET", "/v2/query", "", nil, 404, "NO_SUCH_ROUTE"},
		{"root", "GET", "/", "", nil, 404, "NO_SUCH_ROUTE"},
		{"get_of_a_query", "GET", "/v1/query", "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"delete", "DELETE", "/v1/status", "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"begin_is_no_id", "GET", "/v1/tx/begin", "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"no_body", "POST", "/v1/query", "", nil, 400, "BAD_REQUEST"},
		{"not_json", "POST", "/v1/query", `{"sql":`, nil, 400, "BAD_REQUEST"},
		{"a_list", "POST", "/v1/query", `[]`, nil, 400, "BAD_REQUEST"},
		{"unknown_member", "POST", "/v1/query", `{"sql":"S","idempotant":true}`, nil, 400, "BAD_REQUEST"},
		{"two_bodies", "POST", "/v1/query", `{"sql":"S"}{"sql":"S"}`, nil, 400, "BAD_REQUEST"},
		{"not_utf8", "POST", "/v1/query", "{\"sql\":\"\xff\"}", nil, 400, "BAD_REQUEST"},
		{"rows", "POST", "/v1/query", `{"sql":"S","rows":"tables"}`, nil, 400, "BAD_REQUEST"},
		{"ints", "POST", "/v1/query", `{"sql":"S","ints":"roman"}`, nil, 400, "BAD_REQUEST"},
		{"bytes", "POST", "/v1/query", `{"sql":"S","limits":{"bytes":"8 miles"}}`, nil, 400, "BAD_REQUEST"},
		{"good_bytes", "POST", "/v1/query", `{"sql":"S","limits":{"bytes":"8MiB"}}`, nil, 200, ""},
		{"most_bytes", "POST", "/v1/query", `{"sql":"S","limits":{"bytes":18446744073709551615}}`, nil, 200, ""},
		{"body", "POST", "/v1/query", `{"sql":"` + strings.Repeat("x", 64<<10) + `"}`, nil, 413, "LIMIT_EXCEEDED"},
		{"headers", "GET", "/v1/status", "", []string{"X-Long", strings.Repeat("x", 5<<10)}, 413, "LIMIT_EXCEEDED"},
		{"depth", "POST", "/v1/query",
			`{"sql":"S","params":{"a":` + strings.Repeat("[", 9) + strings.Repeat("]", 9) + `}}`, nil, 413,
			"LIMIT_EXCEEDED"},
		{"depth_in_text", "POST", "/v1/query", `{"sql":"[[[[[[[[[[[\"[[[["}`, nil, 200, ""},
		{"body_of_a_get", "GET", "/v1/status", `{}`, nil, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"header_timeout", "POST", "/v1/query", `{"sql":"S"}`, []string{"Request-Timeout", "soon"}, 400, "BAD_REQUEST"},
		{"header_priority", "POST", "/v1/query", `{"sql":"S"}`, []string{"X-Ydb-Priority", "batch"}, 200, ""},
		{"bad_row", "POST", "/v1/bulk?table=t", "{}\n5\n", []string{"Content-Type", "application/x-ndjson"}, 400, "BAD_REQUEST"},
		{"two_tables", "POST", "/v1/bulk?table=t&table=u", "{}\n", []string{"Content-Type", "application/x-ndjson"}, 400, "BAD_REQUEST"},
		{"two_offsets", "POST", "/v1/ingest/t?offset=1&offset=2", "{}\n", []string{"Content-Type", "application/x-ndjson"}, 400,
			"BAD_REQUEST"},
		{"two_streams", "POST", "/v1/ingest/t?stream=a&stream=b", "{}\n", []string{"Content-Type", "application/x-ndjson"}, 400,
			"BAD_REQUEST"},
		{"null_row", "POST", "/v1/bulk?table=t", "null", []string{"Content-Type", "application/x-ndjson"}, 400, "BAD_REQUEST"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, h, got := facadetest.Send(t, c.method, b.base+c.path, c.body, facadetest.Header(c.headers...))
			if status != c.status {
				t.Fatalf("%d %s; want %d", status, got, c.status)
			}
			if c.code == "" {
				return
			}
			var p struct{ Code, Hint, Title, Detail string }
			if err := json.Unmarshal([]byte(got), &p); err != nil || p.Code != c.code || p.Hint == "" || p.Title == "" || p.Detail == "" {
				t.Errorf("%s (%v); want code %s with title, detail and hint", got, err, c.code)
			}
			if h.Get("Content-Type") != mediaProblem {
				t.Errorf("type %q; want %s", h.Get("Content-Type"), mediaProblem)
			}
			if c.name == "header_timeout" && !strings.Contains(p.Detail, "Request-Timeout") {
				t.Errorf("%q does not name the header", p.Detail)
			}
		})
	}
}

func TestPriorityHeaders(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: facadetest.Echo})
	for _, c := range []struct {
		headers []string
		status  int
		class   pool.Class
	}{
		{nil, 200, pool.Normal},
		{[]string{"X-Ydb-Priority", "batch"}, 200, pool.Batch},
		{[]string{"Priority", "interactive"}, 200, pool.Interactive},
		{[]string{"Priority", "u=1, i"}, 200, pool.Normal},
		{[]string{"Priority", "urgent"}, 400, 0},
	} {
		status, _, got := facadetest.Send(t, "POST", b.base+"/v1/query", `{"sql":"S"}`, facadetest.Header(c.headers...))
		if status != c.status {
			t.Fatalf("%v: %d %s; want %d", c.headers, status, got, c.status)
		}
		b.Mu.Lock()
		if last := b.Calls[len(b.Calls)-1]; status == 200 && last.Class != c.class {
			t.Errorf("%v made it %v; want %v", c.headers, last.Class, c.class)
		}
		b.Mu.Unlock()
	}
}

func TestHostsOfTheSetting(t *testing.T) {
	cfg := small()
	cfg.HTTP.Hosts = []string{"sidecar.local"}
	b := start(t, cfg, &facadetest.Driver{Answer: facadetest.Echo})
	if status, _, got := facadetest.Get(t, b.base+"/v1/status", facadetest.Header("Host", "sidecar.local:80")); status != 200 {
		t.Errorf("a host of http.hosts: %d %s", status, got)
	}
}

func TestBulkOverNDJSON(t *testing.T) {
	f := &facadetest.Driver{}
	f.Table = func(string) (*Ydb_Table.DescribeTableResult, error) { return facadetest.Items(t), nil }
	rows := 0
	f.Bulk = func(req *Ydb_Table.BulkUpsertRequest) error {
		rows += len(req.Rows.Value.Items)
		return nil
	}
	b := start(t, small(), f)
	status, _, got := facadetest.Send(
		t, "POST", b.base+"/v1/bulk?table=items", "{\"id\":1,\"name\":\"a\"}\n\n{\"id\":2,\"name\":null}\r\n",
		facadetest.Header("Content-Type", "application/x-ndjson"),
	)
	if status != 200 || !strings.HasPrefix(got, `{"rows":2,`) || rows != 2 {
		t.Errorf("%d %s; %d rows were written; want 2", status, got, rows)
	}
	for query, want := range map[string]int{"": 200, "?table=items": 200, "?table=other": 400} {
		status, _, got := facadetest.Send(t, "POST", b.base+"/v1/bulk"+query, `{"table":"items","rows":[{"id":1}]}`, nil)
		if status != want || want == 400 && !strings.Contains(got, "only the body names the table") {
			t.Errorf("JSON for items with %q: %d %s; want %d", query, status, got, want)
		}
	}
}

// TestStreamSaysHowItEnded: what was sent is not taken back, so the error is the
// last line, or comes with the trailers.
func TestStreamSaysHowItEnded(t *testing.T) {
	f := &facadetest.Driver{}
	f.Answer = func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		return facadetest.RowsOf(t, 10), facadetest.Failed(0, Ydb.StatusIds_ABORTED)
	}
	b := start(t, small(), f)
	b.each(t, func(t *testing.T, face contract.Client) {
		r, err := face.Stream(t.Context(), contract.Statement{SQL: "S", Idempotent: true})
		refused(t, err, "YDB_ABORTED", true, false)
		if len(r.Rows) != 10 {
			t.Errorf("%d rows came before the error; want 10", len(r.Rows))
		}
		if n := len(b.Taken()); n != 1 {
			t.Errorf("it was tried %d times; once rows were sent, it must not be again", n)
		}
	})
}

// TestSlowReaderSlowsTheDatabase: parts are asked for as the caller reads, and a
// caller that leaves ends the statement.
func TestSlowReaderSlowsTheDatabase(t *testing.T) {
	const parts, partBytes = 400, 200 << 10 // 80 MB: far more than all buffers on the way
	var asked, peak int
	gone := make(chan struct{})
	f := &facadetest.Driver{}
	row := facadetest.Part(t, 0, []string{"v Utf8"}, []string{`"` + strings.Repeat("x", partBytes) + `"`})
	f.Answer = func(
		ctx context.Context, _ *facadetest.Session, _ *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		asked = 0
		context.AfterFunc(ctx, func() { close(gone) })
		all := make([]*Ydb_Query.ExecuteQueryResponsePart, parts)
		for i := range all {
			all[i] = row
		}
		return all, nil
	}
	f.OnNext = func() { f.Mu.Lock(); asked++; peak = max(peak, asked); f.Mu.Unlock() }
	b := start(t, small(), f)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", b.base+"/v1/query", strings.NewReader(`{"sql":"S","timeout":"1h"}`))
	if err != nil {
		t.Fatal(err)
	}
	facadetest.Header("Content-Type", "application/json", "Accept", "application/x-ndjson")(req)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReaderSize(res.Body, 16)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, lines, 1<<20); err != nil {
		t.Fatal(err)
	}
	cancel() // leaves with most of it unread
	<-gone
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if peak > parts/2 {
		t.Errorf("%d of %d parts were read for a caller that took five", peak, parts)
	}
}

// TestReaderThatHangs: a caller that neither reads nor leaves holds nothing
// beyond its deadline.
func TestReaderThatHangs(t *testing.T) {
	row := facadetest.Part(t, 0, []string{"v Utf8"}, []string{`"` + strings.Repeat("x", 500<<10) + `"`})
	f := &facadetest.Driver{
		Answer: func(context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
			return slices.Repeat([]*Ydb_Query.ExecuteQueryResponsePart{row}, 200), nil
		},
	}
	f.TakenBack = make(chan struct{}, 1)
	b := start(t, small(), f)
	const sql, timeout = "S", "100ms"

	t.Run("http", func(t *testing.T) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		body := `{"sql":"` + sql + `","timeout":"` + timeout + `"}`
		_, err = fmt.Fprintf(
			conn,
			"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: "+
				"application/x-ndjson\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body,
		)
		if err != nil {
			t.Fatal(err)
		}
		<-f.TakenBack // the session is free, although nothing was read
	})
	t.Run("grpc", func(t *testing.T) {
		stream, err := b.api.ExecuteStream(t.Context(), &sidecarv1.ExecuteRequest{Sql: sql, Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		<-f.TakenBack
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("the stream ended with %v; want DeadlineExceeded", err)
		}
	})
}
