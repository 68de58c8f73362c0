package discovery

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func TestAttention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		a := NewAttention(func() { asked++ })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		// after has the verdicts come, waits, and checks how often discovery was asked.
		after := func(what string, v cluster.Conditions, wait time.Duration, least, most int) {
			t.Helper()
			asked = 0
			a.Set(v)
			time.Sleep(wait)
			synctest.Wait()
			if asked < least || asked > most {
				t.Errorf("%s: asked %d times in %v; want %d to %d", what, asked, wait, least, most)
			}
		}
		gone, down := cluster.Condition{Draining: true}, cluster.Condition{Health: cluster.Ejected}
		after("all is well", cluster.Conditions{1: {}, 2: {}}, time.Hour, 0, 0)
		after("a node is down", cluster.Conditions{1: down, 2: {}}, time.Millisecond, 1, 1)
		after("the same news again", cluster.Conditions{1: down, 2: {}}, time.Millisecond, 0, 0)
		after("it stays down", cluster.Conditions{1: down, 2: {}}, 16*time.Second, 3, 4)
		after("for long", cluster.Conditions{1: down, 2: {}}, time.Hour, 95, 125)
		after("another leaves", cluster.Conditions{1: down, 2: gone}, 2*time.Second, 2, 2)
		after("one is back", cluster.Conditions{1: {}, 2: gone}, time.Minute, 2, 6)
		after("both are back", cluster.Conditions{1: {}, 2: {}}, time.Hour, 0, 0)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}
