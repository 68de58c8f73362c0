package upstream

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// An operator kills a session while a call begins on it, and its node is out of reach.
func TestKillBesideACallThatBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, nil)
		s, _ := b.mustOpen(1)
		b.use(1, cluster.UseNone)
		b.router.target = func(cluster.NodeID, bool) (cluster.NodeID, error) { return 2, nil }
		var both sync.WaitGroup
		both.Go(func() {
			for range 10 {
				_ = s.Begin(t.Context(), serializable) // it may fail
			}
		})
		both.Go(func() { _ = s.Kill(t.Context()) })
		both.Wait()
	})
}

func TestCallsThatWaitForCredentialsAreAtNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		b.driver.tickets.current.Store(nil) // and none comes
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var call sync.WaitGroup
		call.Go(func() {
			if err := s.Begin(ctx, serializable); err == nil {
				t.Error("a call without credentials was made")
			}
		})
		synctest.Wait()
		if n := b.router.entered(); n != 0 {
			t.Errorf("%d calls count for a node to which none was sent", n)
		}
		call.Wait()
		b.driver.tickets.store(token{})
	})
}
