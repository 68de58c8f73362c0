package facade

import (
	"context"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// resting answers with rows, of which only the first ones come before its call ends.
func resting(t *testing.T) *facadetest.Driver {
	var over <-chan struct{}
	asked := 0
	return &facadetest.Driver{
		Answer: func(ctx context.Context, _ *facadetest.Session, _ *Ydb_Query.ExecuteQueryRequest) (
			[]*Ydb_Query.ExecuteQueryResponsePart, error) {
			over, asked = ctx.Done(), 0
			return facadetest.RowsOf(t, 30), nil
		},
		OnNext: func() {
			if asked++; asked == 2 {
				<-over
			}
		},
	}
}

// TestStreamsSayWhoEndedThem: a stream whose head has gone out says in its last line what a call without one says in its answer.
func TestStreamsSayWhoEndedThem(t *testing.T) {
	for i := range 2 {
		for _, c := range []struct {
			code, message string
			end           func(*bench)
		}{
			{"CANCELLED", "ended by an operator", (*bench).endAll},
			{"OUTCOME_UNKNOWN", "the sidecar stopped before the call", (*bench).stop}, // was done, or the caller had read all
		} {
			b := start(t, small(), resting(t))
			face := b.faces()[i]
			t.Run(face.Name()+"_"+c.code, func(t *testing.T) {
				rows := 0
				err := face.Each(t.Context(), contract.Statement{SQL: "S"}, func(n int) {
					if rows += n; rows == n { // the first ones
						c.end(b)
					}
				})
				if e := refused(t, err, c.code, false, true); !strings.HasPrefix(e.Message, c.message) || rows == 0 {
					t.Errorf("after %d rows: %q; want %q", rows, e.Message, c.message)
				}
			})
		}
	}
}

// endAll ends all calls as operators do.
func (b *bench) endAll() {
	list, _ := b.s.Calls("", 0, 10)
	for _, call := range list {
		b.s.EndCalls(call.ID)
	}
}

// stop cuts all calls off.
func (b *bench) stop() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = b.s.Drain(now) // says how many it cut off
}
