package driver

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// parkOne parks the server's side of a new connection.
func parkOne(t *testing.T, s *Shard, until time.Time) (client io.ReadWriteCloser, server *movable, p *Parked, ready chan bool) {
	t.Helper()
	near, far := socketPair(t)
	ready = make(chan bool, 2)
	if p = s.Park(far, until, func(came bool) { ready <- came }); p == nil {
		t.Fatal("it is not parked")
	}
	return near, far, p, ready
}

// A parked connection is given back once: when something comes, when its peer goes, when it is time, when the shard ends, or when it is wanted.
func TestParked(t *testing.T) {
	noLeaks(t)
	s := New(h2.Default(), &parking{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx)
	}()
	one := func(want bool, until time.Time, do func(client io.ReadWriteCloser)) *movable {
		t.Helper()
		client, server, p, ready := parkOne(t, s, until)
		do(client)
		if came := <-ready; came != want {
			t.Errorf("something came: %v; want %v", came, want)
		}
		if p.Stop() {
			t.Error("it is given back twice")
		}
		return server
	}
	server := one(true, time.Time{}, func(client io.ReadWriteCloser) { _, _ = io.WriteString(client, "ask") })
	said := make([]byte, 3)
	if _, err := io.ReadFull(server, said); err != nil || string(said) != "ask" {
		t.Errorf("it says %q, %v", said, err)
	}
	server = one(true, time.Now().Add(time.Hour), func(client io.ReadWriteCloser) { _ = client.Close() })
	if n, err := server.Read(said); n != 0 || err != io.EOF {
		t.Errorf("%d bytes, %v; want its end", n, err)
	}
	begun := time.Now()
	one(false, begun.Add(2*timeouts), func(io.ReadWriteCloser) {})
	if took := time.Since(begun); took < 2*timeouts {
		t.Errorf("its time is up after %v", took)
	}
	client, server, p, ready := parkOne(t, s, time.Time{})
	if !p.Stop() || p.Stop() {
		t.Error("it is wanted, and is not given back once")
	}
	_, _ = io.WriteString(client, "ask")
	if _, err := io.ReadFull(server, said); err != nil || len(ready) > 0 {
		t.Errorf("%v, and ready was called %d times", err, len(ready))
	}
	if n := s.polled(); n != 0 {
		t.Errorf("%d connections have a place with the poller", n)
	}
	one(false, time.Time{}, func(io.ReadWriteCloser) { stop() })
	<-ended
	near, far := socketPair(t)
	if p := s.Park(far, time.Time{}, func(bool) { t.Error("ready is called") }); p != nil {
		t.Error("a shard that has ended parks")
	}
	_ = near
}

// Nothing is lost of a connection that is taken back at the moment at which something comes.
func TestParkedIsGivenBackOnce(t *testing.T) {
	noLeaks(t)
	s := runShard(t, &parking{})
	for range 500 {
		client, _, p, ready := parkOne(t, s, time.Time{})
		go func() { _, _ = io.WriteString(client, "x") }()
		if !p.Stop() {
			<-ready
		}
		if len(ready) > 0 {
			t.Fatal("it is given back twice")
		}
	}
}
