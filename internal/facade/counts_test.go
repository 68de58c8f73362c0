package facade

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// troubled answers some statements with trouble, and all others with their number.
func troubled(t *testing.T) *facadetest.Driver {
	f := facadetest.Numbered(t)
	good := f.Answer
	f.Answer = func(
		ctx context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
	) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
		switch req.GetQueryContent().GetText() {
		case "CONFLICT":
			return nil, facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_ABORTED)
		case "LOST":
			return nil, facadetest.Broke(cluster.CallExecute, true)
		case "LOST COMMIT":
			return nil, facadetest.Broke(cluster.CallCommit, false)
		case "BAD SESSION":
			return nil, facadetest.Failed(cluster.CallExecute, Ydb.StatusIds_BAD_SESSION)
		case "UNSURE":
			return nil, facadetest.Broke(cluster.CallExecute, false)
		case "ENDLESS":
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return good(ctx, s, req)
	}
	return f
}

// Each transaction that ends is counted once, by how it ended.
func TestEndsOfTransactionsAreCounted(t *testing.T) {
	for want, test := range map[string]struct {
		set func(*Config)
		do  func(c txCase, id string)
	}{
		"committed": {nil, func(c txCase, id string) {
			for range 2 { // the second is a repeat
				_ = c.face.Commit(c.Context(), id)
			}
		}},
		"rolled_back": {nil, func(c txCase, id string) { _ = c.face.Rollback(c.Context(), id) }},
		"failed":      {nil, func(c txCase, id string) { _, _ = c.run("CONFLICT", contract.TxSelector{ID: id}) }},
		"lost":        {nil, func(c txCase, id string) { _, _ = c.run("LOST", contract.TxSelector{ID: id}) }},
		"timeout": {nil, func(c txCase, id string) {
			_, _ = c.face.Execute(c.Context(), contract.Statement{SQL: "ENDLESS", Tx: &contract.TxSelector{ID: id}, Timeout: "20ms"})
		}},
		"cancelled": {nil, func(c txCase, id string) {
			ctx, cancel := context.WithTimeout(c.Context(), 20*time.Millisecond)
			defer cancel()
			_, _ = c.face.Execute(ctx, contract.Statement{SQL: "ENDLESS", Tx: &contract.TxSelector{ID: id}})
		}},
		"idle":    {func(cfg *Config) { cfg.Tx.Idle = 20 * time.Millisecond }, func(txCase, string) {}},
		"expired": {func(cfg *Config) { cfg.Tx.Max = 20 * time.Millisecond }, func(txCase, string) {}},
		"drained": {nil, func(c txCase, id string) { c.s.EndUnused(time.Millisecond) }},
	} {
		t.Run(want, func(t *testing.T) {
			cfg := small()
			if test.set != nil {
				test.set(&cfg)
			}
			for i, name := range []string{"grpc", "http"} {
				t.Run(name, func(t *testing.T) {
					b := start(t, cfg, troubled(t))
					c := txCase{t, b, b.faces()[i]}
					test.do(c, c.begin())
					ended := func() (all map[string]uint64) {
						all = b.s.State().Ended
						maps.DeleteFunc(all, func(_ string, n uint64) bool { return n == 0 })
						return all
					}
					await.True(t, "it has ended", func() bool { return len(ended()) > 0 })
					// A caller over gRPC that goes away has told the sidecar when its time is up.
					if got := ended(); want == "cancelled" && got["timeout"] == 1 {
						return
					} else if len(got) != 1 || got[want] != 1 {
						t.Errorf("%v; want one that is %s", got, want)
					}
				})
			}
		})
	}
}

// A statement that runs into tx.max ends the transaction for its age.
func TestTheAgeOfATransactionIsCountedInAStatement(t *testing.T) {
	cfg := small()
	cfg.Tx.Max = 60 * time.Millisecond
	b := start(t, cfg, troubled(t))
	c := txCase{t, b, b.http}
	_, _ = c.run("ENDLESS", contract.TxSelector{ID: c.begin()})
	await.True(t, "it has ended by its age", func() bool { return b.s.State().Ended["expired"] == 1 })
}

// Calls are counted that got less than they asked for, or do not know what came of them.
func TestRepliesAreCounted(t *testing.T) {
	for name, test := range map[string]struct {
		do                           func(c txCase)
		replayed, truncated, unknown uint64
	}{
		"nothing": {func(c txCase) { _, _ = c.face.Execute(c.Context(), contract.Statement{SQL: "A"}) }, 0, 0, 0},
		"a repeated statement": {func(c txCase) {
			id := c.begin()
			for range 3 {
				c.must("A", contract.TxSelector{ID: id, Seq: 1})
			}
		}, 2, 0, 0},
		"a repeated commit": {func(c txCase) {
			id := c.begin()
			for range 2 {
				_ = c.face.Commit(c.Context(), id)
			}
		}, 1, 0, 0},
		"an unknown outcome": {func(c txCase) {
			_, _ = c.face.Execute(c.Context(), contract.Statement{SQL: "UNSURE"})
		}, 0, 0, 1},
		"a known failure": {func(c txCase) {
			_, _ = c.face.Execute(c.Context(), contract.Statement{SQL: "CONFLICT"})
		}, 0, 0, 0},
		"an unknown outcome in a batch": {func(c txCase) {
			_, _ = c.face.Batch(c.Context(), []contract.Statement{{SQL: "A"}, {SQL: "UNSURE"}, {SQL: "UNSURE"}})
		}, 0, 0, 2},
		"a reply that is cut": {func(c txCase) {
			_, _ = c.face.Execute(c.Context(), contract.Statement{SQL: "MANY"})
		}, 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for i, face := range []string{"grpc", "http"} {
				t.Run(face, func(t *testing.T) {
					f := troubled(t)
					answer := f.Answer
					f.Answer = func(
						ctx context.Context, s *facadetest.Session, req *Ydb_Query.ExecuteQueryRequest,
					) ([]*Ydb_Query.ExecuteQueryResponsePart, error) {
						parts, err := answer(ctx, s, req)
						if req.GetQueryContent().GetText() == "MANY" {
							parts[0].ResultSet.Truncated = true
						}
						return parts, err
					}
					b := start(t, small(), f)
					test.do(txCase{t, b, b.faces()[i]})
					got := b.s.State().Counts
					if got.Replayed != test.replayed || got.Truncated != test.truncated || got.Unknown != test.unknown {
						t.Errorf("%d replayed, %d truncated, %d unknown; want %d, %d, %d",
							got.Replayed, got.Truncated, got.Unknown, test.replayed, test.truncated, test.unknown)
					}
				})
			}
		})
	}
}
