package facade

import (
	"context"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// A SELECT that does not surely only read may have an unknown outcome. Its hint names the mode in which it has none.
func TestHintOfASelectNamesSnapshotRO(t *testing.T) {
	f := &facadetest.Driver{Answer: func(
		context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		return nil, facadetest.Broke(cluster.CallExecute, false)
	}}
	b := start(t, small(), f)
	for _, c := range []struct {
		sql, mode   string
		safe, named bool
	}{
		{"SELECT Own::Function(id) FROM t", "", false, true},
		{"DECLARE $a AS Int32; SELECT Own::Function($a)", "serializable_rw", false, true},
		{"SELECT Own::Function(id) FROM t", "snapshot_ro", true, false},
		{"SELECT id FROM t", "", true, false},
		{"UPDATE t SET a = Own::Function(id)", "", false, false},
	} {
		b.each(t, func(t *testing.T, face contract.Client) {
			_, err := face.Execute(t.Context(), contract.Statement{SQL: c.sql, Mode: c.mode})
			e := refused(t, err, "OUTCOME_UNKNOWN", c.safe, true)
			if strings.Contains(e.Hint, `"mode": "snapshot_ro"`) != c.named {
				t.Errorf("%s in mode %q: hint %q", c.sql, c.mode, e.Hint)
			}
		})
	}
}
