package grpcapi

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/rows"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// A stream of rows that panics leaves no sender behind, which a stop would wait for.
func TestAPanicInAStreamOfRowsEndsItsSender(t *testing.T) {
	panics.LogTo(slog.New(slog.DiscardHandler))
	defer panics.LogTo(slog.Default())
	synctest.Test(t, func(t *testing.T) {
		s := compose(t, core.DefaultAPI(), core.Deps{})
		if panics.Call("a stream of rows", func() error {
			return ingestServer{api: &s.grpc}.rows(t.Context(), nil, rows.Request{Table: "t"}, nil)
		}) == nil {
			t.Error("it did not panic")
		}
		s.Core.Senders.Wait()
	})
}
