package grpcapi

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
)

// A call with a header twice that may be there once is not begun in a turn: where it runs otherwise, it is rejected.
func TestHeadersTwiceAreNotForTurns(t *testing.T) {
	for _, c := range []struct {
		headers []string
		ok      bool
	}{
		{[]string{"x-ydb-priority", "batch", "x-sidecar-app", "a"}, true},
		{[]string{"x-ydb-priority", "batch", "x-ydb-priority", "batch"}, false},
		{[]string{"x-ydb-priority", "", "x-ydb-priority", "batch"}, false},
		{[]string{"x-sidecar-app", "a", "x-sidecar-app", "a"}, false},
		{[]string{"x-ydb-application-name", "a", "x-ydb-application-name", "a", "priority", "u=1", "priority", "i"}, true},
	} {
		caller := Caller{Headers: func(each func(name, value []byte)) bool {
			for i := 0; i < len(c.headers); i += 2 {
				each([]byte(c.headers[i]), []byte(c.headers[i+1]))
			}
			return true
		}}
		if _, _, ok := greet(t.Context(), new(core.Call), caller); ok != c.ok {
			t.Errorf("%q: %v; want %v", c.headers, ok, c.ok)
		}
	}
}
