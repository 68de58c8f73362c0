package grpcapi

import (
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
)

// A call with a header twice that may be there once is not begun in a turn: where it runs otherwise, it is rejected.
func TestHeadersTwiceAreNotForTurns(t *testing.T) {
	type headers struct {
		list []string // names and values in turn
		ok   bool
	}
	cases := []headers{
		{[]string{"x-ydb-priority", "batch", "x-sidecar-app", "a"}, true},
		{[]string{"x-ydb-priority", "", "x-ydb-priority", "batch"}, false},
		{[]string{"x-ydb-application-name", "a", "x-ydb-application-name", "a", "priority", "u=1", "priority", "i"}, true},
	}
	for _, name := range core.OnceHeaders {
		name = strings.ToLower(name)
		cases = append(cases, headers{[]string{name, "batch", name, "batch"}, false})
	}
	for _, c := range cases {
		caller := Caller{Headers: func(each func(name, value []byte)) bool {
			for i := 0; i < len(c.list); i += 2 {
				each([]byte(c.list[i]), []byte(c.list[i+1]))
			}
			return true
		}}
		if _, _, ok := greet(t.Context(), new(core.Call), caller); ok != c.ok {
			t.Errorf("%q: %v; want %v", c.list, ok, c.ok)
		}
	}
}

// The look for headers that came twice costs calls without such headers no memory.
func TestLookForRepeatedHeadersIsFree(t *testing.T) {
	md := metadata.Pairs("x-ydb-priority", "batch", "x-sidecar-app", "a", "user-agent", "b")
	if n := testing.AllocsPerRun(100, func() {
		if err := repeated(md); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
	for _, name := range core.OnceHeaders {
		if err := repeated(metadata.Pairs(name, "a", name, "a")); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s twice: %v; want an error with its name", name, err)
		}
	}
}
