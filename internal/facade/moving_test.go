package facade

import (
	"context"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// A stream lasts longer than api.timeout while it moves, unless its caller gave a timeout.
func TestAStreamThatMovesLasts(t *testing.T) {
	t.Parallel() // it waits more than it works
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

// TestContractOfStreams has the contract's cases of streams, over nodes that are slow and nodes that fall silent.
func TestContractOfStreams(t *testing.T) {
	t.Parallel() // it waits more than it works
	cfg := Default()
	cfg.API.Timeout = time.Second
	w := newWorld(t, cfg, nil)
	w.lossy = true // what a silent node was asked for is answered by nobody
	each := func(do func(*devcluster.Node) error) error {
		for id := range uint32(3) {
			if err := do(w.cluster.Node(id + 1)); err != nil {
				return err
			}
		}
		return nil
	}
	w.target.Streams = &contract.Streams{
		Timeout: cfg.API.Timeout,
		Slow: func(speed int) error {
			return each(func(n *devcluster.Node) error { return n.Throttle(speed) })
		},
		Silent: func() error { return each((*devcluster.Node).Blackhole) },
		Clear:  func() error { return each((*devcluster.Node).Clear) },
	}
	contract.Run(t, w.target)
}
