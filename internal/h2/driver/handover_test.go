package driver

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// movable is a connection that goes to another process when it is closed and nothing
// has come over it.
type movable struct {
	*net.TCPConn
	heard  chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (m *movable) Heard() { m.heard <- struct{}{} }

func (m *movable) Close() error {
	m.once.Do(func() { close(m.closed) })
	return nil
}

func socketPair(t *testing.T) (client net.Conn, server *movable) {
	l := listen(t)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server = &movable{TCPConn: nc.(*net.TCPConn), heard: make(chan struct{}, 10), closed: make(chan struct{})}
	t.Cleanup(func() { client.Close(); server.TCPConn.Close() })
	return client, server
}

// runShard runs a shard until the test ends.
func runShard(t *testing.T, r h2.Router) *Shard {
	s := New(h2.Default(), r)
	keep(t, s)
	return s
}

func keep(t *testing.T, s *Shard) {
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait() })
}

// A connection over which nothing came leaves as it is when somebody sets a deadline
// on it, also in a drain, also where TLS was to begin.
func TestUnheardConnectionIsHandedOver(t *testing.T) {
	certificate, _ := selfSigned(t)
	for name, secure := range map[string]*tls.Config{"plain": nil,
		"tls": {Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}} {
		t.Run(name, func(t *testing.T) {
			s := runShard(t, nil)
			client, server := socketPair(t)
			s.Accept(server, secure)
			stop, cancel := context.WithCancel(t.Context())
			cancel()
			s.Drain(stop, nil) // returns at once, and goes on
			server.SetReadDeadline(time.Now())
			<-server.closed
			// The next process: the client's first bytes are for it, and its own the first to come.
			if err := s.Drain(t.Context(), nil); err != nil {
				t.Error(err)
			}
			server.SetDeadline(time.Time{})
			b := make([]byte, 1)
			for _, c := range [][2]net.Conn{{client, server.TCPConn}, {server.TCPConn, client}} {
				if _, err := c[0].Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(c[1], b); err != nil || b[0] != 'x' {
					t.Fatalf("%q, %v", b, err)
				}
			}
			if len(server.heard) != 0 {
				t.Error("something was heard")
			}
		})
	}
}

// One over which something came stays, whoever sets a deadline.
func TestHeardConnectionStays(t *testing.T) {
	s := runShard(t, nil)
	client, server := socketPair(t)
	s.Accept(server, nil)
	client.Write([]byte(http2.ClientPreface))
	<-server.heard
	f := http2.NewFramer(client, client)
	f.WriteSettings()
	for pings := 0; pings < 20; { // each answer comes after reading has gone on
		server.SetReadDeadline(time.Now())
		fr, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if fr, ok := fr.(*http2.SettingsFrame); ok && !fr.IsAck() {
			continue
		}
		pings++
		f.WritePing(false, [8]byte{})
	}
	client.Close()
	<-server.closed
	if len(server.heard) != 0 {
		t.Error("it was heard twice")
	}
}

// parking is a router that sends nothing anywhere.
type parking struct{ asked chan struct{} }

func (r *parking) Route(*h2.Call) (*h2.Conn, error) {
	r.asked <- struct{}{}
	return nil, h2.ErrPark
}
func (r *parking) Answer(*h2.Call)            {}
func (r *parking) Done(*h2.Call, *h2.Outcome) {}

// A call that was not sent is refused before its connection is closed.
func TestStopRefusesWhatWasNotSent(t *testing.T) {
	r := &parking{make(chan struct{}, 1)}
	s := New(patient(), r)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { s.Run(ctx) })
	client, server := socketPair(t)
	s.Accept(server, nil)
	c := newCaller(client)
	c.call(true)
	<-r.asked
	stop()
	<-server.closed
	server.TCPConn.Close()
	if got := c.endings(t, 1); got["REFUSED_STREAM"] != 1 {
		t.Errorf("the call ended so: %v", got)
	}
}

// A node's connection that is no longer wanted when it is made, is closed.
func TestUpstreamIsClosedWhileItConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runShard(t, nil)
		node, here := newPipe()
		u := s.Upstream(func(context.Context) (net.Conn, error) {
			time.Sleep(time.Second)
			return here, nil
		}, nil)
		s.Do(func(*h2.Forwarder) {
			if _, err := u.Conn(); err != nil {
				t.Error(err)
			}
			u.Close()
		})
		if n, err := io.Copy(io.Discard, node); err != nil { // until it is closed
			t.Errorf("after %d bytes: %v", n, err)
		}
	})
}

// A client has a bounded time to shake hands, with TLS or without.
func TestSlowHandshakes(t *testing.T) {
	certificate, _ := selfSigned(t)
	for name, secure := range map[string]*tls.Config{"plain": nil,
		"tls": {Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := runShard(t, nil)
				peer, here := newPipe()
				began := time.Now()
				s.Accept(here, secure)
				if n, err := io.Copy(io.Discard, peer); n > 0 || err != nil {
					t.Errorf("%d bytes, %v", n, err)
				}
				if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
					t.Errorf("it took %v", took)
				}
				synctest.Wait()
				if got := s.Stats().Abuses[h2.SlowHandshake]; got != 1 {
					t.Errorf("counted %d times", got)
				}
			})
		})
	}
}

// Clients that hang do not hold up a drain: one that says nothing, one that does not
// finish the TLS handshake, one that does not answer.
func TestDrainOfClientsThatHang(t *testing.T) {
	certificate, _ := selfSigned(t)
	secure := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}
	for name, client := range map[string]func(s *Shard, client, server net.Conn){
		"says_nothing": func(s *Shard, _, server net.Conn) { s.Accept(server, nil) },
		"says_nothing_tls": func(s *Shard, _, server net.Conn) {
			s.Accept(server, secure)
		},
		"does_not_answer": func(s *Shard, client, server net.Conn) {
			s.Accept(server, nil)
			client.Write([]byte(http2.ClientPreface))
			f := http2.NewFramer(client, client)
			f.WriteSettings()
			f.WriteSettingsAck()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := runShard(t, nil)
				peer, here := newPipe()
				client(s, peer, here)
				synctest.Wait()
				began := time.Now()
				if err := s.Drain(t.Context(), nil); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took < 5*time.Second || took > 7*time.Second {
					t.Errorf("it took %v", took)
				}
				if _, err := io.Copy(io.Discard, peer); err != nil && !errors.Is(err, io.EOF) {
					t.Error(err)
				}
			})
		})
	}
}

// hasty is a connection on which no time is given for the rest of what is to be written.
type hasty struct{ *movable }

func (h *hasty) SetWriteDeadline(time.Time) error { return h.TCPConn.SetWriteDeadline(time.Now()) }

// A connection that ends is closed although its peer takes nothing any more.
func TestLastWordsAreGivenUp(t *testing.T) {
	config := h2.Default()
	config.Page = string(make([]byte, 32<<20)) // more than sockets hold
	s := New(config, nil)
	keep(t, s)
	client, server := socketPair(t)
	s.Accept(&hasty{server}, nil)
	c := newCaller(client)
	c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	c.WriteWindowUpdate(0, 1<<30)
	c.get()
	for { // until the socket is full
		blocked := false
		s.Do(func(*h2.Forwarder) {
			for l := range s.links {
				blocked = l.writing && l.conn.State().Buffered > 0
			}
		})
		if blocked {
			break
		}
		runtime.Gosched()
	}
	c.WriteRawFrame(http2.FramePing, 0, 1, nil)
	<-server.heard
	<-server.closed
}

// noted is a connection that notes how long the rest of what is to be written may take.
type noted struct {
	*movable
	left chan time.Duration
}

func (n *noted) SetWriteDeadline(at time.Time) error {
	select {
	case n.left <- time.Until(at):
	default:
	}
	return n.TCPConn.SetWriteDeadline(at)
}

// A connection that is ended for the memory that its unread bytes take does not keep it for its last words.
func TestExpelledConnectionsAreCut(t *testing.T) {
	config := h2.Default()
	config.Page = string(make([]byte, 32<<20)) // more than sockets hold
	config.Output, config.Buffered = 64<<20, 64<<20
	s := New(config, nil)
	keep(t, s)
	client, server := socketPair(t)
	n := &noted{server, make(chan time.Duration, 1)}
	s.Accept(n, nil)
	c := newCaller(client)
	c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	c.WriteWindowUpdate(0, 1<<30)
	c.get()
	<-server.heard
	if left := <-n.left; left > 0 {
		t.Errorf("%v are left for the rest", left)
	}
	<-server.closed
}

// A shard that ends waits for the write after the one that was under way, however many come then: a
// connection that always has something to write does not hold it up.
func TestStopWaitsForOneWriteMore(t *testing.T) {
	for name, c := range map[string]struct {
		then link
		busy bool
	}{
		"the same write":            {link{writing: true, writes: 3}, true},
		"the next one":              {link{writing: true, writes: 4}, true},
		"the one after that":        {link{writing: true, writes: 5}, false},
		"nothing more":              {link{writes: 3}, false},
		"the socket takes no more":  {link{writing: true, blocked: true, writes: 3}, false},
		"the next one was the last": {link{writes: 4}, false},
	} {
		s := New(patient(), nil)
		l := &link{writing: true, writes: 3}
		s.links[l], s.links[&link{writing: true, blocked: true}], s.links[&link{}] = struct{}{}, struct{}{}, struct{}{}
		busy := s.busy()
		if len(busy) != 1 {
			t.Fatalf("%s: %d connections are busy; want one", name, len(busy))
		}
		l.writing, l.blocked, l.writes = c.then.writing, c.then.blocked, c.then.writes
		if got := s.stillBusy(busy); got != c.busy {
			t.Errorf("%s: busy %v; want %v", name, got, c.busy)
		}
	}
}
