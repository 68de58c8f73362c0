package facade

import (
	"fmt"
	"strings"
	"testing"
)

func TestShapeOfJSON(t *testing.T) {
	var wide strings.Builder
	for i := range 200 {
		fmt.Fprintf(&wide, `"c%d":%d,`, i, i)
	}
	tests := []struct {
		name, json, want string // want: part of the error; "" is none
	}{
		{"distinct", `{"a":1,"b":{"a":2},"c":[{"a":1},{"a":2}]}`, ""},
		{"a_value_like_a_name", `{"a":"b","b":"a","c":["a","a"]}`, ""},
		{"case_counts", `{"params":{"a":1,"A":2}}`, ""},
		{"repeated_at_the_top", `{"sql":"SELECT 1","sql":"SELECT 2"}`, `"sql" stands twice`},
		{"repeated_inside", `{"params":{"a":{"x":1},"a":2}}`, `"a" stands twice`},
		{"repeated_behind_an_inner_object", `{"a":{"b":1},"c":{"b":1},"a":3}`, `"a" stands twice`},
		{"repeated_in_an_array", `[{"a":1},{"b":1,"b":1}]`, `"b" stands twice`},
		{"repeated_by_an_escape", `{"ab":1,"a\u0062":2}`, `stands twice`},
		{"quotes_in_names", `{"a\"":1,"a":2}`, ""},
		{"wide", "{" + wide.String() + `"d":1}`, ""},
		{"wide_and_repeated_late", "{" + wide.String() + `"c150":1}`, `"c150" stands twice`},
		{"wide_and_repeated_early", "{" + wide.String() + `"c3":1}`, `"c3" stands twice`},
		{"deep", strings.Repeat("[", 9), "api.max_depth"},
		{"no_json", `}]{,"":"\`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := checkShape([]byte(tt.json), 8)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("%s: %v", tt.json, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%s: %v; want %q", tt.json, err, tt.want)
			}
		})
	}
}
