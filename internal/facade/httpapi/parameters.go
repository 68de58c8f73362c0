package httpapi

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
)

// parametersOf are the query parameters that a path takes, by the call that it makes. No other path takes any.
var parametersOf = map[string][]string{
	"BulkUpsert": {"table"}, core.CallIngest: {"offset", "stream"},
	core.CallKVGet: {"id"}, core.CallKVPut: {"id"}, core.CallKVDelete: {"id"},
}

// readQuery reads the query of the URL. It refuses a parameter that the path does not take: what that asks for would not be done.
func (x *exchange) readQuery(rt *route) (err error) {
	if x.r.URL.RawQuery == "" || rt.call == callOpenAPI { // whoever fetches a document may add one against caches
		return nil
	}
	if x.query, err = url.ParseQuery(x.r.URL.RawQuery); err != nil {
		return core.BadRequest("the query of the URL cannot be read: %v", err)
	}
	allowed := parametersOf[rt.call]
	for _, name := range slices.Sorted(maps.Keys(x.query)) {
		if !slices.Contains(allowed, name) {
			return core.BadRequest("unknown query parameter %.64q; %s", name, onlyAllowed(allowed))
		}
	}
	return nil
}

// onlyAllowed says which query parameters a path takes.
func onlyAllowed(names []string) string {
	switch len(names) {
	case 0:
		return "this path takes none"
	case 1:
		return "only " + strconv.Quote(names[0]) + " is allowed"
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = strconv.Quote(name)
	}
	return "only " + strings.Join(quoted, " and ") + " are allowed"
}

// parameter returns a parameter of the URL, which may be there once; "": it is not there.
func (x *exchange) parameter(name string) (string, error) {
	all := x.query[name]
	if len(all) > 1 {
		return "", core.BadRequest("the query parameter %q is there %d times; send it once", name, len(all))
	}
	return strings.Join(all, ""), nil
}
