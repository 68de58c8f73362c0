package upstream

import (
	"testing"
	"testing/synctest"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
)

// TestAnAnswerWithoutAPartIsNoSuccess: YDB ends an answer with at least one part, which has its status.
func TestAnAnswerWithoutAPartIsNoSuccess(t *testing.T) {
	for name, c := range map[string]struct {
		request Statement
		unknown bool
	}{
		"implicit": {statement("UPSERT"), true},
		"commit":   {inTx(statement("UPSERT"), serializable, "", true), true},
		"undone":   {inTx(statement("UPSERT"), serializable, "", false), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1, nil)
				s, _ := b.mustOpen(1)
				b.node(1).onExecute = func(*Ydb_Query.ExecuteQueryRequest, executeStream) error { return nil }
				_, err := run(t.Context(), s, c.request)
				if e := asError(t, err); e.Verdict.Unknown != c.unknown {
					t.Errorf("%v, %+v; want the outcome unknown %t", e, e.Verdict, c.unknown)
				}
				if s.clean() {
					t.Error("the session is clean")
				}
			})
		})
	}
}
