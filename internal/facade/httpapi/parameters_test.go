package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
)

// TestQueryParametersAreKnown: each path rejects a query parameter that it does not take, by name, and says which it takes.
func TestQueryParametersAreKnown(t *testing.T) {
	b := start(t, facadetest.Small(), facadetest.NewWriter(t).Driver)
	takes := map[string]string{
		"BulkUpsert": `only \"table\" is allowed`, core.CallIngest: `only \"offset\" and \"stream\" are allowed`,
		core.CallKVGet: `only \"id\" is allowed`, core.CallKVPut: `only \"id\" is allowed`, core.CallKVDelete: `only \"id\" is allowed`,
	}
	values := strings.NewReplacer("{table...}", "dir/items", "{path...}", "dir/items", "{table}", "items", "{id}", "tx_1")
	for _, rt := range routes {
		path := values.Replace(rt.Path)
		ask := func(query string) (int, string) {
			status, _, text := facadetest.Send(t, rt.Method, b.base+path+query, "", func(r *http.Request) {
				if len(rt.body) > 0 {
					r.Header.Set("Content-Type", rt.body[0])
				}
			})
			return status, text
		}
		if rt.call == callOpenAPI {
			if status, text := ask("?v=2"); status != http.StatusOK {
				t.Errorf("%s: %d %.200s; want the document, which caches may have to be asked for so", path, status, text)
			}
			continue
		}
		want := takes[rt.call]
		if want == "" {
			want = "this path takes none"
		}
		status, text := ask("?zz=1&x%22=1")
		if status != http.StatusBadRequest || !strings.Contains(text, `"code":"BAD_REQUEST"`) ||
			!strings.Contains(text, `unknown query parameter \"x\\\"\"; `+want) {
			t.Errorf("%s %s: %d %s; want the parameter named, and %s", rt.Method, path, status, text, want)
		}
		if status, text = ask("?a=%zz"); status != http.StatusBadRequest || !strings.Contains(text, "the query of the URL cannot be read") {
			t.Errorf("%s %s: %d %s; want that the query cannot be read", rt.Method, path, status, text)
		}
	}
}
