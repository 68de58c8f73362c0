package driver

import (
	"crypto/tls"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

// gathered sends what was written when an answer is waited for.
type gathered struct {
	net.Conn
	out []byte
}

func (c *gathered) Write(p []byte) (int, error) {
	c.out = append(c.out, p...)
	return len(p), nil
}

func (c *gathered) Read(p []byte) (int, error) {
	if _, err := c.Conn.Write(c.out); err != nil {
		return 0, err
	}
	c.out = c.out[:0]
	return c.Conn.Read(p)
}

// trickling sends one byte at a time.
type trickling struct{ net.Conn }

func (c trickling) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := c.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

// Connections with TLS are read as others are, however their records come: also what came together with
// the end of the handshake, and what is not whole.
func TestTLSIsReadByThePoller(t *testing.T) {
	certificate, roots := selfSigned(t)
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"as_it_comes": func(c net.Conn) net.Conn { return c },
		"gathered":    func(c net.Conn) net.Conn { return &gathered{Conn: c} },
		"trickling":   func(c net.Conn) net.Conn { return trickling{c} },
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(name+" "+tls.VersionName(version), func(t *testing.T) {
				config := patient()
				config.HandshakeTimeout = time.Hour
				s := New(config, nil)
				keep(t, s)
				l := listen(t)
				var wg sync.WaitGroup
				wg.Go(func() {
					accept(s, l, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}, MaxVersion: version})
				})
				t.Cleanup(func() { l.Close(); wg.Wait() })
				const clients = 20
				before := runtime.NumGoroutine()
				for range clients {
					nc, err := net.Dial("tcp", l.Addr().String())
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { nc.Close() })
					c := newCaller(tls.Client(wrap(nc), &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"h2"}}))
					for i := range byte(3) {
						c.WritePing(false, [8]byte{i})
						for {
							fr, err := c.ReadFrame()
							if err != nil {
								t.Fatal(err)
							}
							if p, ok := fr.(*http2.PingFrame); ok {
								if !p.IsAck() || p.Data[0] != i {
									t.Errorf("%v", p)
								}
								break
							}
						}
					}
				}
				// goroutines of the connections end when the poller has them
				for s.polled() != clients || runtime.NumGoroutine() > before+clients/2 {
					runtime.Gosched()
				}
			})
		}
	}
}

// startCallers runs a shard and returns clients that its poller reads: plain ones, and after them as many with TLS if mixed.
func startCallers(t *testing.T, clients int, mixed bool) (s *Shard, all []*caller) {
	s = New(patient(), nil)
	keep(t, s)
	certificate, roots := selfSigned(t)
	serve := func(secure *tls.Config) (addr string) {
		l := listen(t)
		var wg sync.WaitGroup
		wg.Go(func() { accept(s, l, secure) })
		t.Cleanup(func() { l.Close(); wg.Wait() })
		return l.Addr().String()
	}
	plain := serve(nil)
	for range clients {
		all = append(all, dialCaller(t, plain))
	}
	if mixed {
		sealed := serve(&tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}})
		for range clients {
			nc, err := net.Dial("tcp", sealed)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { nc.Close() })
			all = append(all, newCaller(tls.Client(nc, &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"h2"}})))
		}
	}
	for i, c := range all { // a connection with TLS goes to the poller when something has come after its handshake
		c.WritePing(false, [8]byte{byte(i)})
		c.pong(t, [8]byte{byte(i)})
	}
	await.True(t, "the poller reads all connections", func() bool { return s.polled() == len(all) })
	return s, all
}

// pong reads until a ping is answered, which must be that one.
func (c *caller) pong(t *testing.T, want [8]byte) {
	t.Helper()
	for {
		fr, err := c.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := fr.(*http2.PingFrame); ok {
			if !p.IsAck() || p.Data != want {
				t.Fatalf("%v; want the answer to %v", p, want)
			}
			return
		}
	}
}

// Of more connections with something to say than one question to the kernel tells, all are read, and all are answered.
func TestMoreSocketsThanEvents(t *testing.T) {
	const clients, pings = 600, 3
	s, all := startCallers(t, clients, false)
	s.mu.Lock()
	p := s.poller
	most, readFn := 0, p.readFn
	write := func(i int) {
		for k := range byte(pings) {
			all[i].WritePing(false, [8]byte{byte(i), k})
		}
	}
	rest := sync.OnceFunc(func() { // while the first is read, and nothing else
		for i := range all[1:] {
			write(i + 1)
		}
	})
	p.readFn = func(fd uintptr) {
		most = max(most, len(p.ready)+len(p.heavy))
		readFn(fd)
		rest()
	}
	s.mu.Unlock()
	write(0)
	for i, c := range all {
		for k := range byte(pings) {
			c.pong(t, [8]byte{byte(i), k})
		}
	}
	s.mu.Lock()
	p.readFn = readFn
	s.mu.Unlock()
	if most < len(p.events) { // more, if some had to wait for the turn after theirs
		t.Errorf("at most %d had their turn together; want %d", most, len(p.events))
	}
}

// What comes by TLS and what comes plain is read in one turn, into the same buffers, and is not mixed up.
func TestTLSBesidePlainOnOnePoller(t *testing.T) {
	const clients, rounds, pings = 10, 5, 20
	s, all := startCallers(t, clients, true)
	s.mu.Lock()
	p := s.poller
	mixed, readFn := false, p.readFn
	p.readFn = func(fd uintptr) {
		sealed, plain := false, false
		for _, l := range p.ready {
			sealed = sealed || l != nil && l.tls != nil
			plain = plain || l != nil && l.tls == nil
		}
		mixed = mixed || sealed && plain
		readFn(fd)
	}
	s.mu.Unlock()
	for round := range byte(rounds) {
		s.mu.Lock()
		for i, c := range all {
			for k := range byte(pings) {
				c.WritePing(false, [8]byte{byte(i), round, k})
			}
		}
		s.mu.Unlock()
		for i, c := range all {
			for k := range byte(pings) {
				c.pong(t, [8]byte{byte(i), round, k})
			}
		}
	}
	s.mu.Lock()
	p.readFn = readFn
	s.mu.Unlock()
	if !mixed {
		t.Error("never had both something")
	}
}
