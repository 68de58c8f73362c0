package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
)

// kvReply is an answer to a call by key.
type kvReply struct {
	status int
	header http.Header
	body   string
}

// TestKVOverHTTP is what only HTTP has: methods, headers and addresses.
func TestKVOverHTTP(t *testing.T) {
	f := facadetest.Shelf(t)
	b := compose(t, facadetest.Small(), core.Deps{Driver: f},
		facadetest.Entry(t, "versions=t key=id:Uint64 value=v:String version=rev:Uint64"),
		facadetest.Entry(t, "read=t key=id:Uint64 value=v:String media=image/png read_only")).serve(t, f)
	at := b.base + "/v1/kv/"
	do := func(method, path, body string, header ...string) kvReply {
		t.Helper()
		status, h, got := facadetest.Send(t, method, at+path, body, func(r *http.Request) {
			r.Header.Del("Content-Type")
			for i := 0; i < len(header); i += 2 {
				r.Header.Add(header[i], header[i+1])
			}
		})
		return kvReply{status, h, got}
	}
	made := do("PUT", "versions?id=1", "hi")
	tag := made.header.Get("Etag")
	if made.status != 201 || made.body != "" || len(tag) < 18 {
		t.Fatalf("put: %+v", made)
	}
	knownAndMissing(t, do, tag)
	for _, c := range []struct {
		method, path, body string
		header             []string
		status             int
		code               string
	}{
		{"PUT", "versions?id=1", "x", []string{"Content-Type", "application/octet-stream"}, 204, ""},
		{"PUT", "versions?id=1", "x", []string{"Content-Type", "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"PUT", "versions?id=1", "x", []string{"Content-Type", ";"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"PUT", "versions?id=1", "x", []string{"Content-Encoding", "gzip"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"PUT", "versions?id=1", "x", []string{"If-Match", "W/" + tag}, 412, "CONDITION_FAILED"},
		{"PUT", "versions?id=1", "x", []string{"If-Match", "nonsense"}, 400, "BAD_REQUEST"},
		{"GET", "versions?id=1", "x", nil, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"GET", "versions", "", nil, 400, "BAD_REQUEST"},
		{"GET", "versions?id=1&id=2", "", nil, 400, "BAD_REQUEST"},
		{"GET", "versions?id=1&mode=stale_ro", "", nil, 400, "BAD_REQUEST"},
		{"GET", "versions?id=1;id=2", "", nil, 400, "BAD_REQUEST"},
		{"GET", "versions?id=%zz", "", nil, 400, "BAD_REQUEST"},
		{"GET", "versions?id=1", "", []string{"Request-Timeout", "soon"}, 400, "BAD_REQUEST"},
		{"GET", "versions?id=1", "", []string{"X-Ydb-Priority", "first"}, 400, "BAD_REQUEST"},
		{"PUT", "versions?id=1", "x", []string{"Content-Range", "bytes 0-1/9"}, 400, "BAD_REQUEST"},
		{"GET", "versions?id=1", "", []string{"Request-Timeout", "1s", "Request-Timeout", "1s"}, 400, "BAD_REQUEST"},
		{"GET", "versions?id=1", "", []string{"X-Ydb-Priority", "batch", "X-Ydb-Priority", "nope"}, 400, "BAD_REQUEST"},
		{"GET", "versions?id=1", "", []string{"X-Sidecar-App", "a", "X-Sidecar-App", "b"}, 400, "BAD_REQUEST"},
		{"GET", "versions?id=1", "", []string{"Origin", "http://evil.example"}, 403, "FORBIDDEN"},
		{"GET", "versions?id=1", "", []string{"Sec-Fetch-Site", "cross-site"}, 403, "FORBIDDEN"},
		{"PUT", "read?id=1", "x", nil, 405, "TABLE_READ_ONLY"},
		{"DELETE", "read?id=1", "", nil, 405, "TABLE_READ_ONLY"},
		{"POST", "versions?id=1", "{}", []string{"Content-Type", core.MediaJSON}, 405, "METHOD_NOT_ALLOWED"},
		{"PATCH", "versions?id=1", "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"GET", "versions:batchGet?id=1", "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"DELETE", "versions:batchGet?id=1", "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"PATCH", "versions%3AbatchGet", "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"POST", "versions:batchGet", `{"ids":[1],"id":1}`, []string{"Content-Type", core.MediaJSON}, 400, "BAD_REQUEST"},
		{"POST", "versions:batchGet", `{"ids":[1]}`, nil, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"GET", "versions/more?id=1", "", nil, 404, "NO_SUCH_ROUTE"},
		{"GET", "nothing?id=1", "", nil, 403, "TABLE_NOT_OPEN"},
	} {
		r := do(c.method, c.path, c.body, c.header...)
		if r.status != c.status || c.code != "" && !strings.Contains(r.body, `"code":"`+c.code+`"`) {
			t.Errorf("%s %s %q: %d %s; want %d %s", c.method, c.path, c.header, r.status, r.body, c.status, c.code)
		}
		want := map[string]string{"TABLE_READ_ONLY": "GET, HEAD", "METHOD_NOT_ALLOWED": "GET, HEAD, PUT, DELETE"}[c.code]
		if c.status == 405 && strings.Contains(c.path, "batchGet") {
			want = "POST"
		}
		if got := r.header.Get("Allow"); want != "" && got != want {
			t.Errorf("%s %s: Allow %q; want %q", c.method, c.path, got, want)
		}
	}
	for _, text := range [][]string{
		{"Content-Type", "text/plain", "send application/octet-stream, or leave it out"},
		{"Content-Range", "bytes 0-1/9", "send the whole value"},
	} {
		if r := do("PUT", "versions?id=1", "x", text[0], text[1]); !strings.Contains(r.body, text[2]) {
			t.Errorf("%s: %s; want %q", text[0], r.body, text[2])
		}
	}
	if r := do("GET", "read?id=1", ""); r.header.Get("Content-Type") != "image/png" {
		t.Errorf("the media of the table: %+v", r)
	}
	checkBatchGet(t, do("POST", "read:batchGet", `{"ids":["7"],"timeout":"1s"}`, "Content-Type", core.MediaJSON))
}

// knownAndMissing reads a value that there is, one whose version the caller has, and one that there is not.
func knownAndMissing(t *testing.T, do func(method, path, body string, header ...string) kvReply, tag string) {
	t.Helper()
	for _, method := range []string{"GET", "HEAD"} {
		r := do(method, "versions?id=1", "")
		want := map[string]string{"Etag": tag, "Content-Type": core.MediaOctets, "Content-Length": "2", "X-Content-Type-Options": "nosniff",
			"Content-Security-Policy": "sandbox", "Cache-Control": "no-cache"}
		for name, v := range want {
			if r.header.Get(name) != v {
				t.Errorf("%s: %s is %q; want %q", method, name, r.header.Get(name), v)
			}
		}
		if r.status != 200 || r.body != map[string]string{"GET": "hi"}[method] {
			t.Errorf("%s: %d %q", method, r.status, r.body)
		}
		if r := do(
			method, "versions?id=1", "", "If-None-Match", `"1", W/`+tag,
		); r.status != 304 || r.header.Get("Etag") != tag || r.body != "" {
			t.Errorf("%s of what is known: %+v", method, r)
		}
		if r := do(method, "versions?id=2", ""); r.status != 404 {
			t.Errorf("%s of a missing row: %+v", method, r)
		}
	}
}

// checkBatchGet fails unless an answer is as the document has it.
func checkBatchGet(t *testing.T, r kvReply) {
	t.Helper()
	var batch map[string]any
	d := read(t)
	if err := json.Unmarshal([]byte(r.body), &batch); err != nil || r.status != 200 {
		t.Fatalf("batch get: %+v, %v", r, err)
	}
	for _, fault := range d.faults(schema{Ref: "#/components/schemas/KvBatchGetResponse"}, batch, "reply") {
		t.Error(fault)
	}
}
