package driver

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/proof/await"
)

// breaking is a router that panics where it is told to.
type breaking struct {
	toUpstreams
	where atomic.Value // string
}

func (r *breaking) broken(where string) {
	if r.where.Load() == where {
		panic("broken router")
	}
}

func (r *breaking) Route(c *h2.Call) (*h2.Conn, error) {
	r.broken("route")
	c.Observe(r)
	return r.toUpstreams.Route(c)
}

func (r *breaking) Answer(c *h2.Call) { r.broken("answer") }

func (r *breaking) Done(c *h2.Call, o *h2.Outcome) {
	r.toUpstreams.Done(c, o)
	r.broken("done")
}

// Observe implements h2.Observer.
func (r *breaking) Observe(client bool, _ []byte) error {
	if client {
		r.broken("request")
	} else {
		r.broken("response")
	}
	return nil
}

// broken starts a shard with such a router in front of a server of gRPC, and returns a client.
func broken(t *testing.T, apart bool) (r *breaking, s *Shard, address string) {
	panics.LogTo(slog.New(slog.DiscardHandler))
	behind := listen(t)
	serve(t, behind)
	r = &breaking{}
	r.where.Store("")
	config := patient()
	config.Names = []string{"grpc-status"}
	s = New(config, r)
	s.apart = apart
	r.all = []*Upstream{s.Upstream(dialTCP(behind.Addr().String()), nil)}
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() { accept(s, l, nil) })
	keep(t, s)
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return r, s, l.Addr().String()
}

func client(t *testing.T, address string) testpb.TestServiceClient {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// talk sends a message over an open call and reads one.
func talk(t *testing.T, call grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) {
	t.Helper()
	if err := call.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 1}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := call.Recv(); err != nil {
		t.Fatal(err)
	}
}

// at most this long does a call take that nobody holds up.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// A router that panics loses the call that it was asked about: others on the same
// connections go on, and nothing is left of it.
func TestARouterThatPanicsLosesItsCall(t *testing.T) {
	for where, want := range map[string]codes.Code{
		"route": codes.Internal, "answer": codes.Internal, "request": codes.Internal, "response": codes.Internal,
		"done": codes.OK,
	} {
		t.Run(where, func(t *testing.T) {
			r, s, address := broken(t, false)
			c := client(t, address)
			// Open before, and still open after.
			beside, err := c.FullDuplexCall(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			talk(t, beside)
			before := panics.Stats().Count
			r.where.Store(where)
			for range 3 {
				if _, err := c.EmptyCall(soon(t), &testpb.Empty{}); status.Code(err) != want {
					t.Errorf("%v; want %v", err, want)
				}
			}
			r.where.Store("")
			if n := panics.Stats().Count - before; n != 3 {
				t.Errorf("%d panics were counted; want 3", n)
			}
			if _, err := c.EmptyCall(soon(t), &testpb.Empty{}); err != nil {
				t.Errorf("after that: %v", err)
			}
			talk(t, beside)
			if err := beside.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if st := s.Stats(); st.Clients != 1 || st.Nodes != 1 || st.Held != 0 {
				t.Errorf("%+v; want the same connections and nothing held", st)
			}
			if err := s.Drain(soon(t), nil); err != nil {
				t.Errorf("Drain = %v", err)
			}
			if n := r.done.Load(); n != 5 {
				t.Errorf("%d calls are done; want 5", n)
			}
		})
	}
}

// A panic in the middle of a turn ends the connections of the shard, whose tables may be
// half changed; new ones work, every call has its end, and the lock is free.
func TestAPanicInATurnEndsItsConnections(t *testing.T) {
	for _, apart := range []bool{false, true} {
		r, s, address := broken(t, apart)
		c := client(t, address)
		calls := int64(0)
		for round := range 3 {
			var open grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
			await.Right(t, "a call gets through", func() string { // the node is not dialed without a pause
				var err error
				if open, err = c.FullDuplexCall(soon(t), grpc.WaitForReady(true)); err != nil {
					t.Fatal(err)
				}
				calls++
				_ = open.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 1}}})
				if _, err = open.Recv(); err != nil {
					return err.Error()
				}
				return ""
			})
			s.Do(func(*h2.Forwarder) { panic("broken turn") })
			if _, err := open.Recv(); status.Code(err) != codes.Unavailable {
				t.Errorf("round %d: the open call ended with %v; want Unavailable", round, err)
			}
			if n := r.done.Load(); n != calls {
				t.Errorf("round %d: %d calls are done; want %d", round, n, calls)
			}
		}
		await.True(t, "no client is left", func() bool { return s.Stats().Clients == 0 })
		if st := s.Stats(); st.Nodes != 0 || st.Held != 0 || st.Buffered != 0 || st.Ends[h2.Lost]+st.Ends[h2.Cancelled] == 0 {
			t.Errorf("%+v; want nothing left, and the ends counted", st)
		}
		if err := s.Drain(soon(t), nil); err != nil {
			t.Errorf("Drain = %v", err)
		}
	}
}

// fragile is a connection that panics when something is written to it, once it is told to.
type fragile struct {
	net.Conn
	full, broken *atomic.Bool // it takes nothing at once; it panics
}

func (f *fragile) TryWrite(p []byte) int {
	if f.full.Load() {
		return 0
	}
	n, _ := f.Write(p)
	return n
}

func (f *fragile) Write(p []byte) (int, error) {
	if f.broken.Load() {
		panic("broken connection")
	}
	return f.Conn.Write(p)
}

// A panic while bytes are written ends the connection that they are for: calls of others go on.
func TestAPanicInAWriteEndsItsConnection(t *testing.T) {
	for name, later := range map[string]bool{"at once": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			r, s, address := broken(t, false)
			beside, err := client(t, address).FullDuplexCall(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			talk(t, beside)
			var full, broken atomic.Bool
			l := listen(t)
			var wg sync.WaitGroup
			wg.Go(func() {
				if nc, err := l.Accept(); err == nil {
					s.Accept(&fragile{nc, &full, &broken}, nil)
				}
			})
			t.Cleanup(func() { l.Close(); wg.Wait() })
			c := client(t, l.Addr().String())
			if _, err := c.EmptyCall(soon(t), &testpb.Empty{}); err != nil {
				t.Fatal(err)
			}
			dying, err := c.FullDuplexCall(soon(t)) // before: the answer to a PING may be the write that panics
			if err != nil {
				t.Fatal(err)
			}
			talk(t, dying)
			before := panics.Stats().Count
			full.Store(later)
			broken.Store(true)
			_ = dying.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 1}}})
			if _, err := dying.Recv(); status.Code(err) != codes.Unavailable {
				t.Errorf("%v; want Unavailable", err)
			}
			if n := panics.Stats().Count - before; n != 1 {
				t.Errorf("%d panics; want 1", n)
			}
			talk(t, beside)
			if err := beside.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if err := s.Drain(soon(t), nil); err != nil {
				t.Errorf("Drain = %v; %+v", err, s.Stats())
			}
			if n := r.done.Load(); n != 3 {
				t.Errorf("%d calls are done; want 3", n)
			}
		})
	}
}

// A drain ends although the choice of clients to keep panics: none is kept.
func TestADrainEndsWhenTheChoicePanics(t *testing.T) {
	for name, clients := range map[string]int{"no clients": 0, "one client": 1} {
		t.Run(name, func(t *testing.T) {
			_, s, address := broken(t, false)
			for range clients {
				if _, err := client(t, address).EmptyCall(soon(t), &testpb.Empty{}); err != nil {
					t.Fatal(err)
				}
			}
			before := panics.Stats().Count
			if err := s.Drain(soon(t), func() map[*h2.Conn]bool { panic("broken choice") }); err != nil {
				t.Errorf("Drain = %v", err)
			}
			if n := panics.Stats().Count - before; n != 1 {
				t.Errorf("%d panics; want 1", n)
			}
		})
	}
}

// A handshake that panics ends its connection, and no other.
func TestAPanicInAHandshakeEndsItsConnection(t *testing.T) {
	broken := &tls.Config{NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { panic("broken") }}
	synctest.Test(t, func(t *testing.T) {
		s := runShard(t, nil)
		peer, here := newPipe()
		s.Accept(here, broken)
		if err := tls.Client(peer, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).Handshake(); err == nil {
			t.Error("the handshake succeeded")
		}
		peer.Close()
	})
}

// brokenCache is called for what a server sends after the handshake.
type brokenCache struct{}

func (brokenCache) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (brokenCache) Put(string, *tls.ClientSessionState)        { panic("broken cache") }

// A panic in TLS after the handshake ends the connection that it is for: those of others go on.
func TestAPanicInTLSEndsItsConnection(t *testing.T) {
	panics.LogTo(slog.New(slog.DiscardHandler))
	certificate, roots := selfSigned(t)
	for name, apart := range map[string]bool{"poller": false, "goroutine": true} {
		t.Run(name, func(t *testing.T) {
			behind := listen(t)
			serve(t, behind, grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
			addr, s, _ := forward(t, nil, func(s *Shard) []*Upstream {
				s.apart = apart
				return []*Upstream{
					s.Upstream(dialTCP(behind.Addr().String()),
						&tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"h2"},
							ClientSessionCache: brokenCache{}}),
				}
			})
			before := panics.Stats().Count
			c := client(t, addr)
			for panics.Stats().Count == before {
				if _, err := c.EmptyCall(soon(t), &testpb.Empty{}); status.Code(err) != codes.Unavailable {
					t.Fatalf("%v; want Unavailable", err)
				}
			}
			if st := s.Stats(); st.Clients != 1 || st.Accepted != 1 {
				t.Errorf("%+v; want the client's connection as before", st)
			}
		})
	}
}
