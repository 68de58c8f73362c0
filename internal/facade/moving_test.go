package facade

import (
	"context"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// A stream lasts longer than api.timeout while it moves, unless its caller gave a timeout.
func TestAStreamThatMovesLasts(t *testing.T) {
	const parts, timeout = 12, time.Second
	cfg := small()
	cfg.API.Timeout = timeout
	f := &facadetest.Driver{OnNext: func() { time.Sleep(timeout / 8) }}
	f.Answer = func(
		context.Context, *facadetest.Session, *Ydb_Query.ExecuteQueryRequest,
	) (all []*Ydb_Query.ExecuteQueryResponsePart, _ error) {
		for range parts {
			all = append(all, facadetest.Part(t, 0, []string{"n Int32"}, []string{"1"}))
		}
		return all, nil
	}
	b := start(t, cfg, f)
	b.each(t, func(t *testing.T, face contract.Client) {
		if r, err := face.Stream(t.Context(), contract.Statement{SQL: "SELECT 1"}); err != nil || len(r.Rows) != parts {
			t.Errorf("%v; want all rows", err)
		}
		if _, err := face.Stream(t.Context(), contract.Statement{SQL: "SELECT 1", Timeout: timeout.String()}); err == nil {
			t.Error("a stream outlasted the timeout of its caller")
		}
	})
}
