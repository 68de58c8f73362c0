package facade

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// The same from without: bodies with long statements leave nothing behind, and one whose types were learnt is known again.
func TestLongStatementsAreNotKept(t *testing.T) {
	config := Default()
	b := start(t, config, &facadetest.Driver{Answer: typedTable}, func(d *core.Deps) { d.Caches = 1 << 20 })
	comment := " -- " + strings.Repeat("x", 64<<10)
	for i := range 32 {
		sql := fmt.Sprint("UPSERT INTO t (id) VALUES ($id); -- ", i, comment)
		if _, err := b.http.Transact(
			t.Context(),
			contract.Transaction{Statements: []contract.Statement{{SQL: sql, Params: map[string]any{"id": 1}}}},
		); err != nil {
			t.Fatal(err)
		}
	}
	if n, bytes := b.s.core.Cached.Statements(); n != 32 || bytes > n<<10 {
		t.Errorf("%d statements of %d bytes are known", n, bytes)
	}
	b.Taken()
	sql := "UPSERT INTO t (id) VALUES ($id)" + comment
	for i, want := range []int{2, 1} {
		if _, err := b.http.Execute(t.Context(), contract.Statement{SQL: sql, Params: map[string]any{"id": 1}}); err != nil {
			t.Fatal(err)
		}
		if n := len(b.Taken()); n != want {
			t.Errorf("call %d: %d requests; want %d", i+1, n, want)
		}
	}
}

// What is learnt of a statement counts for the call that it was learnt from, although the caches have no room for it.
func TestLearntTypesNeedNoCache(t *testing.T) {
	b := start(t, small(), &facadetest.Driver{Answer: typedTable}, func(d *core.Deps) { d.Caches = 1 << 10 })
	for i := range 2 {
		if _, err := b.http.Execute(
			t.Context(), contract.Statement{SQL: "UPSERT INTO t (id) VALUES ($id)", Params: map[string]any{"id": 1}},
		); err != nil {
			t.Fatal(err)
		}
		known, _ := b.s.core.Cached.Statements()
		if n := len(b.Taken()); n != 2 || known != 0 {
			t.Errorf("call %d: %d requests, %d statements are known; want 2 and none", i+1, n, known)
		}
		b.s.core.Cached.Forget()
	}
}
