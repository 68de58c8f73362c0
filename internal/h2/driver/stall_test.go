package driver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/proof/await"
)

// A turn that does not end is seen, and what is asked of the shard meanwhile has an answer.
func TestStalledTurnIsSeen(t *testing.T) {
	s := runShard(t, nil)
	client, server := socketPair(t)
	s.Accept(server, nil)
	newCaller(client)
	<-server.heard
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	if st, ok := s.TryStats(t.Context()); !ok || st.Clients != 1 {
		t.Fatalf("%+v, %v", st, ok)
	}
	turned := s.turned.Load() // or later
	if polling := s.polling.Load(); polling != 0 {
		turned = min(turned, polling)
	}
	held, release := make(chan struct{}), make(chan struct{})
	go s.Do(func(*h2.Forwarder) { close(held); <-release })
	<-held
	await.True(t, "the shard is stalled", func() bool { return s.Stalled() > 0 })
	d := s.Stalled()
	if most := s.awake.Now() - time.Duration(turned); d < stallLimit || d > most {
		t.Errorf("stalled for %v; want %v at least and %v at most, since the turn before", d, stallLimit, most)
	}
	if st, ok := s.TryStats(soon()); ok || st.Clients != 1 {
		t.Errorf("%+v, %v; want the figures of before", st, ok)
	}
	if all, ok := s.Connections(soon(), 10); ok || all != nil {
		t.Errorf("%v, %v; want none", all, ok)
	}
	close(release)
	await.True(t, "the shard turns", func() bool { return s.Stalled() == 0 })
	if _, ok := s.TryStats(t.Context()); !ok {
		t.Error("no figures after that")
	}
}

// An idle shard turns.
func TestRestIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(h2.Default(), nil)
		time.Sleep(time.Minute)
		if d := s.Stalled(); d != 0 {
			t.Errorf("stalled for %v before it runs", d)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx) }()
		for range 10 {
			time.Sleep(time.Minute)
			if d := s.Stalled(); d != 0 {
				t.Errorf("stalled for %v at rest", d)
			}
		}
		stop()
		<-done
		time.Sleep(time.Minute)
		if d := s.Stalled(); d != 0 {
			t.Errorf("stalled for %v after its end", d)
		}
	})
}
