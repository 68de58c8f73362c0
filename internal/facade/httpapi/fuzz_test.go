package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
)

// FuzzBodies sends any body to any path: the answer is JSON that says what came of it.
func FuzzBodies(f *testing.F) {
	db := &facadetest.Driver{Answer: facadetest.Echo}
	db.Table = func(string) (*Ydb_Table.DescribeTableResult, error) { return facadetest.Items(f), nil }
	db.Bulk = func(*Ydb_Table.BulkUpsertRequest) error {
		return facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_ABORTED)
	}
	handler := compose(f, facadetest.Small(), core.Deps{Driver: db}).api.Handler()
	for i, body := range []string{
		`{"sql":"DECLARE $id AS Uint64; SELECT $id","params":{"id":42,"$x":{"type":"Decimal(22,9)","value":"1.5"}},` +
			`"types":{"y":"List<Int32>?"}}`,
		`{"sql":"S","tx":{"begin":{"mode":"snapshot_ro"},"seq":1,"commit":true},` +
			`"limits":{"rows":1,"bytes":"8MiB"},"rows":"arrays","ints":"number"}`,
		`{"statements":[{"sql":"A","params":{"a":[1,2.5,null]}},{"sql":"B"}],"mode":"serializable_rw","idempotent":true,"timeout":"1s"}`,
		`{"table":"items","rows":[{"id":1,"name":"a"},{"id":2,"n":null}],"types":{"id":"Uint64"}}`,
		`{"sql":"SELECT $a","types":{"a":"Struct<a:Int32,b:Variant<Int32,Utf8>>"}}`,
		"{\"id\":1}\n{\"id\":2,\"name\":null}\n",
		`[[[[[[[[[[[[`, `{"sql":"\u0000\ud800"}`, `null`, ``, "\xff",
	} {
		f.Add(uint8(i), body)
	}
	f.Fuzz(func(t *testing.T, path uint8, body string) {
		rt := &routes[int(path)%8] // the routes that take a body, and a few that do not
		target := strings.NewReplacer("{id}", "tx_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "{path...}", "items").Replace(rt.Path)
		req := httptest.NewRequestWithContext(context.Background(), rt.Method, "http://localhost"+target+"?table=items",
			strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		if path >= 128 { // the other form of the request, or of the reply
			req.Header.Set("Accept", mediaNDJSON)
			if len(rt.body) > 0 {
				req.Header.Set("Content-Type", rt.body[len(rt.body)-1])
			}
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%s %q: %s", target, body, w.Body)
		}
		if w.Header().Get("Content-Type") == mediaYAML {
			return
		}
		lines := bytes.Split(bytes.TrimSuffix(w.Body.Bytes(), []byte("\n")), []byte("\n"))
		for _, line := range lines {
			if !json.Valid(line) {
				t.Errorf("%s %q was answered with %q", target, body, line)
			}
		}
	})
}

// FuzzStartsOfRequests: what the start of a request may not have, all of it may not, unless it is no JSON at all.
func FuzzStartsOfRequests(f *testing.F) {
	for _, text := range []string{
		`{"sql":"s","params":{"a":1,"b\u0062":2,"a":3},"Mode":1}`,
		`{"statements":[{},{},{"sql":"\"s"}],"limits":{"Rows":1}}`, `[[[[[[[[[[`, `{"\u00`, `{"a":1,"a`,
	} {
		f.Add(text, len(text)/2)
	}
	f.Fuzz(func(t *testing.T, text string, at int) {
		api := core.API{MaxDepth: 8, MaxParams: 3, MaxStatements: 2}
		start := text[:max(0, min(at, len(text)))]
		if _, err := checkRequest([]byte(start), api, nil); err == nil {
			return
		}
		if _, err := checkRequest([]byte(text), api, nil); err == nil && json.Valid([]byte(text)) {
			t.Errorf("%q is refused, and %q is not", start, text)
		}
	})
}

func FuzzByteSize(f *testing.F) {
	for _, s := range []string{`8`, `"8MiB"`, `"8 kB"`, `"18446744073709551615GiB"`, `-1`, `"`, `null`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if !json.Valid([]byte(raw)) {
			return
		}
		if n, err := sizeOf([]byte(raw)); err == nil && n > 1<<63-1 {
			t.Errorf("%q is %d bytes", raw, n)
		}
	})
}
