package httpapi

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ydb-sidecar/sidecar/internal/facade/kv"
)

func TestTags(t *testing.T) {
	for _, c := range []struct {
		lines  []string
		how    int
		want   *kv.Versions
		refuse bool
	}{
		{lines: nil, want: nil},
		{lines: []string{"*"}, want: &kv.Versions{Any: true}},
		{lines: []string{" * "}, want: &kv.Versions{Any: true}},
		{lines: []string{`"5"`}, want: &kv.Versions{List: []string{"5"}}},
		{lines: []string{`"5" , W/"6",,"7"`, `""`}, how: strong, want: &kv.Versions{List: []string{"5", "7", ""}}},
		{lines: []string{`"5", W/"6"`}, how: weak, want: &kv.Versions{List: []string{"5", "6"}}},
		{lines: []string{`W/"6"`}, how: strong, want: &kv.Versions{}},
		{lines: []string{""}, want: &kv.Versions{}},
		{lines: []string{`"a,b"`}, want: &kv.Versions{List: []string{"a,b"}}},
		{lines: []string{"5"}, refuse: true}, {lines: []string{`"5`}, refuse: true},
		{lines: []string{`5"`}, refuse: true}, {lines: []string{`"5" "6"`}, refuse: true},
		{lines: []string{"W/"}, refuse: true}, {lines: []string{`w/"5"`}, refuse: true},
		{lines: []string{`*, "5"`}, refuse: true}, {lines: []string{`"5", *`}, refuse: true},
	} {
		got, err := tags(http.Header{"If-Match": c.lines}, "If-Match", c.how)
		if (err != nil) != c.refuse {
			t.Errorf("%q: %v", c.lines, err)
		} else if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(kv.Versions{})); diff != "" && !c.refuse {
			t.Errorf("%q (-want +got):\n%s", c.lines, diff)
		}
	}
}
