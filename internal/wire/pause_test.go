package wire

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// TestIdleSessionsCountOnce: while calls come and go that wait for the end of a pause, a session whose transaction is open
// never seems to be idle, because another one counts twice.
func TestIdleSessionsCountOnce(t *testing.T) {
	hold := new(hop.Hold)
	h := newHouseWith(t, 2, nil, func(c *Config, _ *pool.Config) { c.Mode = ModeSession }, nil,
		func(d *Deps) { d.Hold = hold })
	g := h.guest("a")
	busy, idle := g.session(), g.session()
	tx := busy.must(success, "select", beginTx)
	idle.must(success, "select", nil)
	hold.Set(true)
	ended, waited := make(chan struct{}), 0
	go func() {
		defer close(ended)
		for range short.Of(300, 100) {
			ctx, cancel := context.WithTimeout(h.ctx, 3*time.Millisecond)
			_, _, _ = idle.run(ctx, idle.id, "select", nil)
			cancel()
		}
	}()
	for over := false; !over; {
		select {
		case <-ended:
			over = true
		default:
		}
		if n := h.server.IdleSessions(); n > 1 {
			t.Fatalf("%d idle sessions; want at most 1: a transaction is open on the other", n)
		}
		if n, _ := h.server.keptCalls(); n > 0 {
			waited++
		}
	}
	if waited == 0 {
		t.Error("no call waited on its session")
	}
	h.eventually("the session is idle", func() string {
		if n := h.server.IdleSessions(); n != 1 {
			return fmt.Sprintf("%d idle", n)
		}
		return ""
	})
	hold.Set(false)
	h.server.Resume()
	busy.must(success, "select", inTx(tx, true))
}
