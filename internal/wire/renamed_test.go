package wire

import (
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// A call without a session that waits at one pool goes on with that pool's session, although its app may have a pool of its own
// meanwhile. Else the session would be given to the other pool in the end.
func TestCallsThatWaitKeepTheirPool(t *testing.T) {
	all, err := apps.New(apps.Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var most atomic.Int64
	most.Store(1)
	h := newHouseWith(t, 1, all, func(c *Config, p *pool.Config) { c.Auth, p.Max = AuthCaller, 1 }, nil,
		func(d *Deps) { d.Names = func() int { return int(most.Load()) } })
	g := h.guest("a")
	h.limit = 3 // pools
	run := func(app, text string) chan string {
		done := make(chan string, 1)
		go func() {
			st, _, err := g.run(metadata.AppendToOutgoingContext(h.ctx, "x-ydb-application-name", app), "", text, nil)
			switch {
			case err != nil:
				done <- err.Error()
			case st != success:
				done <- st.String()
			default:
				done <- ""
			}
		}()
		return done
	}
	if fault := <-run("one", "select"); fault != "" { // the one pool with a name
		t.Fatal(fault)
	}
	first := run("two", "wait")
	<-h.hung
	second := run("two", "select")
	h.eventually("the second call waits", func() string {
		for _, p := range h.server.State().Virtual.Pools {
			if p.App == "" && p.Waiting == 1 {
				return ""
			}
		}
		return "it does not"
	})
	most.Store(2)
	close(h.proceed)
	for _, done := range []chan string{first, second, run("two", "select"), run("two", "select")} {
		if fault := <-done; fault != "" {
			t.Error(fault)
		}
	}
	h.eventually("all sessions are back in their pools", func() string {
		for _, p := range h.server.State().Virtual.Pools {
			if p.InUse > 0 || p.Waiting > 0 {
				return "one is not"
			}
		}
		return ""
	})
}
