package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/proof/short"
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
		{"repeated_at_the_top", `{"sql":"SELECT 1","sql":"SELECT 2"}`, `"sql" appears twice`},
		{"repeated_inside", `{"params":{"a":{"x":1},"a":2}}`, `"a" appears twice`},
		{"repeated_behind_an_inner_object", `{"a":{"b":1},"c":{"b":1},"a":3}`, `"a" appears twice`},
		{"repeated_in_an_array", `[{"a":1},{"b":1,"b":1}]`, `"b" appears twice`},
		{"repeated_by_an_escape", `{"ab":1,"a\u0062":2}`, `appears twice`},
		{"quotes_in_names", `{"a\"":1,"a":2}`, ""},
		{"wide", "{" + wide.String() + `"d":1}`, ""},
		{"wide_and_repeated_late", "{" + wide.String() + `"c150":1}`, `"c150" appears twice`},
		{"wide_and_repeated_early", "{" + wide.String() + `"c3":1}`, `"c3" appears twice`},
		{"deep", strings.Repeat("[", 9), "api.max_depth"},
		{"no_json", `}]{,"":"\`, ""},
		{"of_a_request",
			`{"sql":"s","params":{"A":1},"types":{"B":"Utf8"},"tx":{"id":"x"},"statements":[{"sql":"s","params":{"X":{"Y":1}}}]}`,
			""},
		{"rows_of_a_request", `{"rows":[{"ID":1,"Tx":2}],"limits":{"rows":1}}`, ""},
		{"another_case", `{"Idempotent":true}`, `request: "Idempotent" is unknown`},
		{"another_case_by_an_escape", `{"\u0049dempotent":true}`, `request: "\u0049dempotent" is unknown`},
		{"another_case_beside_the_name", `{"idempotent":true,"Idempotent":false}`, `request: "Idempotent" is unknown`},
		{"a_letter_that_folds", `{"ſql":"S"}`, `request: "ſql" is unknown`},
		{"another_case_inside", `{"tx":{"Commit":true}}`, `request: "Commit" is unknown`},
		{"another_case_deep_inside", `{"statements":[{"sql":"s"},{"limits":{"Rows":1}}]}`, `request: "Rows" is unknown`},
		{"as_many_as_allowed", `{"params":{"a":[1,2,3,4],"b":2,"c":3},"statements":[{"types":{"a":"","b":"","c":""}},{"sql":"s"}]}`, ""},
		{"many_params", `{"params":{"a":1,"b":2,"c":3,"d":4}}`, "request: params: more than 3 (api.max_params)"},
		{"many_types_inside", `{"statements":[{"types":{"a":"","b":"","c":"","d":""}}]}`, "request: types: more than 3 (api.max_params)"},
		{"many_statements", `{"statements":[{},{},{}]}`, "request: statements: more than 2 (api.max_statements)"},
		{"behind_values", `{"params":{"tx":{"A":1}},"Mode":"x"}`, `request: "Mode" is unknown`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := checkShape([]byte(tt.json), 8, nil)
			if err == nil && !strings.HasPrefix(tt.name, "wide") && tt.name != "quotes_in_names" && tt.name != "no_json" {
				if _, err = checkRequest([]byte(tt.json), core.API{MaxDepth: 8, MaxParams: 3, MaxStatements: 2}, nil); err != nil {
					err = fmt.Errorf("request: %s", strings.TrimPrefix(err.(*core.Fault).Message, "the member "))
				}
			}
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("%s: %v", tt.json, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%s: %v; want %q", tt.json, err, tt.want)
			}
		})
	}
}

// TestNamesOfRequests: what checkRequest believes of the requests of the HTTP API.
func TestNamesOfRequests(t *testing.T) {
	inner, others := map[string]bool{}, map[string]bool{}
	for message, shape := range requests {
		for name, f := range shape.members {
			if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "" {
				t.Errorf("%s.%s would be refused", message, name)
			}
			if f.inner != nil {
				inner[name] = true
			} else {
				others[name] = true
			}
		}
	}
	for name := range inner {
		if others[name] || !withRequests[name] {
			t.Errorf("%s has members of requests in some places alone", name)
		}
	}
	if len(inner) != len(withRequests) || len(requests) < 10 {
		t.Errorf("%d requests, %v; want all of %v", len(requests), inner, withRequests)
	}
}

// What is kept of the names of an object with many members counts while it is kept, and no more of it is kept than there is memory.
func TestManyMembersTakeWhatIsCounted(t *testing.T) {
	short.Skip(t, "it measures the memory of the process")
	object := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"m%d":0,`, i)
		}
		return `{` + b.String() + `"m":0}`
	}
	const room = 20_000 * memberCost
	held, most := 0, 0
	take := func(n int) string {
		if held+n > room {
			return "there is no memory"
		}
		held += n
		most = max(most, held)
		return ""
	}
	for _, tt := range []struct {
		name, text string
		most       int // bytes
		want       *core.Code
	}{
		{"few", object(fewMembers - 1), 0, nil},
		{"rows of many columns", `[` + strings.Repeat(object(2*fewMembers-2)+`,`, 1000) + `0]`, 2 * fewMembers * memberCost, nil},
		{"many", object(5000), 8192 * memberCost, nil},
		{"one within the other", strings.Repeat(`{"a":`+object(40)+`,"b":`, 5), 5 * 2 * fewMembers * memberCost, nil},
		{"one after the other", `[` + object(9000) + `,{"a":` + object(9000) + `}]`, room, nil},
		{"within each other, more than there is memory for",
			strings.Repeat(object(5000)[:len(object(5000))-1]+`,"x":`, 3), room, core.CodeMemory},
		{"too many", object(mostMembers), mostMembers * memberCost, core.CodeLimit},
	} {
		most = 0
		_, err := checkShape([]byte(tt.text), 10, take)
		f, _ := err.(*core.Fault)
		if (f == nil) != (tt.want == nil) || f != nil && f.Code != tt.want || most > tt.most || held != 0 {
			t.Errorf("%s: %v, at most %d bytes (want %d), %d at the end", tt.name, err, most, tt.most, held)
		}
	}
}
