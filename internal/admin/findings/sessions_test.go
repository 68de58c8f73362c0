package findings

import "testing"

// What failed before a node came back says nothing of the node: SESSIONS_FAIL ends with its return, although nothing was
// opened since, and goes on if a try fails afterwards.
func TestSessionsFailUntilANodeComesBack(t *testing.T) {
	for name, tc := range map[string]struct {
		returns, fails int // the seconds of the return and of the last failure
		want           Code
	}{
		"no try since":                   {20, 19, ""},
		"a try at the time":              {20, 20, ""},
		"tries that fail afterwards":     {20, 30, SessionsFail},
		"one that failed and no other":   {20, 24, SessionsFail},
		"tries on nodes that never left": {0, 30, SessionsFail},
	} {
		w := New()
		for i := range 28 {
			p := calm(i)
			p.Pool.Failed, p.Pool.OpenError = uint64(min(i, tc.fails)), "connection refused"
			if i < tc.returns {
				lost(&p)
			}
			w.Look(p)
		}
		all := w.Report().Findings
		if (tc.want == "") != (len(all) == 0) || tc.want != "" && all[0].Code != tc.want {
			t.Errorf("%s: %v; want %q", name, all, tc.want)
		}
	}
}
