package wire

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/memguard"
)

// While memory is short large requests are refused with a status that SDKs retry, and
// neither small ones nor those of open transactions.
func TestShortMemory(t *testing.T) {
	g := memguard.WithLimit(memguard.Config{Headroom: 10, Large: 32 << 10}, 1<<20, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	found := make(chan struct{}, 1)
	g.Watch(func(bool) { found <- struct{}{} })
	var run sync.WaitGroup
	run.Go(func() { _ = g.Run(ctx) })
	defer run.Wait()
	defer cancel()
	<-found

	h := newHouse(t, nil)
	h.server.deps.Memory = g
	h.server.Tight(true)
	a := h.guest("a")
	long := "select " + strings.Repeat("long ", 20_000)
	for range 3 {
		if st, _, err := a.run(h.ctx, "", "select", nil); st != success || err != nil {
			t.Errorf("a small statement: %v, %v", st, err)
		}
		if st, _, err := a.run(h.ctx, "", long, nil); st != Ydb.StatusIds_OVERLOADED || err != nil {
			t.Errorf("a large statement: %v, %v; want OVERLOADED", st, err)
		}
	}
	r, err := a.table.BulkUpsert(a.with(h.ctx), &Ydb_Table.BulkUpsertRequest{Table: "t", Data: make([]byte, 100<<10)})
	if err != nil || r.GetOperation().GetStatus() != Ydb.StatusIds_OVERLOADED {
		t.Errorf("a large BulkUpsert: %v, %v", r, err)
	}
	if text := r.GetOperation().GetIssues()[0].GetMessage(); !strings.Contains(text, "memory.headroom") ||
		!strings.Contains(text, "GOMEMLIMIT") {
		t.Errorf("%q does not say which limit", text)
	}
	s := a.session()
	tx := s.must(success, "select", beginTx)
	s.must(success, long, inTx(tx, true))
	if st := g.State(); st.Refused != 4 {
		t.Errorf("%+v; want 4 refusals", st)
	}
	h.server.Tight(false)
}
