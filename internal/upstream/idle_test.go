package upstream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// A connection that a probe made is not kept when nothing comes after it; one with a session is, and the next call
// has another one made.
func TestIdleConnectionsEnd(t *testing.T) {
	for _, client := range []string{ClientH2, ClientGRPC} {
		t.Run(client, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var conns dialled
				b := newBench(t, 2, func(c *Config, d *Deps) { c.Client, d.Dial = client, conns.over(d.Dial) })
				probe := func(node cluster.NodeID) {
					t.Helper()
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if err := b.driver.Probe(ctx, node); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				is := func(made, open int) {
					t.Helper()
					if m, o := conns.counts(); m != made || o != open {
						t.Errorf("%d connections made, %d open; want %d, %d", m, o, made, open)
					}
				}
				s, retired := b.mustOpen(1)
				probe(2)
				is(2, 2)
				idle := h2.Default().Idle
				time.Sleep(idle / 2)
				probe(2)
				time.Sleep(idle * 3 / 4)
				is(2, 2)
				time.Sleep(idle)
				synctest.Wait()
				is(2, 1)
				if got := retired.list(); len(got) > 0 {
					t.Errorf("the session was retired: %v", got)
				}
				probe(2)
				is(3, 2)
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
				time.Sleep(2 * idle)
				synctest.Wait()
				is(3, 0)
				if all := b.judge.take(); len(all) > 0 {
					t.Errorf("reported %v", all)
				}
			})
		})
	}
}
