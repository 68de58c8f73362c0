package listen

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/certtest"
)

// Connections move to another server exactly between two requests, without
// their clients noticing.
func TestConnectionsMoveBetweenRequests(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before string // is sent first, and arrives
		answer string // of the first server to before; "": none is due yet
		rest   string // of the request, is sent once connections move; the first server answers
	}{
		{"nothing was sent", "", "", ""},
		{"at rest", ask, "1", ""},
		{"in a request", ask[:9], "", ask[9:]},
		{"two letters of a request", ask[:2], "", ask[2:]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			first, second := newMoving(t, "1"), newMoving(t, "2")
			conn, err := net.Dial("tcp", first.at.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			answers := bufio.NewReader(conn)
			say := func(text, want string) {
				t.Helper()
				if _, err := io.WriteString(conn, text); err != nil {
					t.Fatal(err)
				}
				for _, server := range want {
					response, err := http.ReadResponse(answers, nil)
					if err != nil {
						t.Fatalf("after %q: %v; want an answer of %c", text, err, server)
					}
					body, err := io.ReadAll(response.Body)
					if err != nil || string(body) != string(server) {
						t.Errorf("answered by %q, %v; want %c", body, err, server)
					}
				}
			}
			say(tc.before, tc.answer)
			conns := first.at.Conns
			for len(conns.All()) == 0 || tc.before != "" && !conns.All()[0].heard.Load() ||
				conns.All()[0].rest.Load() != (tc.answer != "" || tc.before == "") {
				runtime.Gosched() // the server has not come so far
			}
			conns.MoveTo(second.take)
			if tc.rest != "" {
				say(tc.rest, "1")
			}
			conns.Empty(t.Context().Done()) // what is sent earlier may still be for the first
			if n := len(conns.All()); n != 0 {
				t.Errorf("%d connections are left", n)
			}
			say(ask, "2")
			say(ask+ask, "22")
		})
	}
}

const ask = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"

// moving is an HTTP server whose connections can move, and to which connections can.
type moving struct {
	at   *Listener
	door *Channel
}

// take is a mover: the server gets a copy of the connection.
func (m *moving) take(c Stream) error {
	file, err := c.(*net.TCPConn).File()
	if err != nil {
		return err
	}
	defer file.Close()
	copied, err := net.FileConn(file)
	if err == nil && !m.door.Pass(copied) {
		err = copied.Close()
	}
	return err
}

func newMoving(t *testing.T, answer string) *moving {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &moving{at: newListener(l.(*net.TCPListener), newDoor("http.listen", slog.New(slog.DiscardHandler)), 0), door: NewChannel()}
	m.door.Greet = func(c net.Conn) net.Conn { return m.at.Conns.Welcome(c, time.Minute) }
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }),
		ConnState:         NewClients().Track,
		ReadHeaderTimeout: time.Minute,
	}
	var serving sync.WaitGroup
	for _, l := range []net.Listener{m.at, m.door} {
		serving.Go(func() { _ = server.Serve(l) })
	}
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return m
}

// What HTTP/2 has agreed on with one server another one does not know.
func TestConnectionsOfHTTP2StayWhereTheyAre(t *testing.T) {
	for text, mixed := range map[string]bool{
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": true, "PR": true, "P": true, "POST / HTTP/1.1\r\n": false, "GET ": false,
	} {
		g := &Conn{of: NewConns(0)}
		g.note([]byte(text), false)
		g.settle()
		if g.mixed.Load() != mixed || g.rest.Load() == mixed {
			t.Errorf("%q: mixed %v, at rest %v; want %v, %v", text, g.mixed.Load(), g.rest.Load(), mixed, !mixed)
		}
	}
}

// A byte of the next request that net/http has read ahead must not be left behind.
func TestConnectionWithAByteReadAheadIsNotAtRest(t *testing.T) {
	g := &Conn{of: NewConns(0)}
	g.note([]byte(ask), false)
	g.note([]byte("P"), true)
	if g.settle(); g.rest.Load() {
		t.Error("at rest with a byte that was read ahead")
	}
	g.note([]byte(ask[1:]), false)
	if g.settle(); !g.rest.Load() {
		t.Error("not at rest after the request")
	}
}

// serveHeaders serves HTTP/1.1 and HTTP/2 on a listener until the test ends. Its
// handler fails the test if bytes are held of a request whose headers are whole.
func serveHeaders(t *testing.T, l net.Listener, all *Conns, secure bool) {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP2(true)
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelWarn)
	track := NewClients().Track
	server := &http.Server{ReadHeaderTimeout: time.Minute, Protocols: &protocols, ErrorLog: quiet, ConnState: track}
	server.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if held := all.Headers.State().Held; r.Header.Get("Alone") != "" && held != 0 {
			t.Errorf("%d bytes are held of a request whose headers are whole", held)
		}
	})
	if secure {
		server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certtest.Of(t).Pair()}}
	}
	var run sync.WaitGroup
	run.Go(func() { _ = ServeHTTP(server, greeting{l, all}, secure) })
	t.Cleanup(func() {
		_ = server.Close()
		run.Wait()
	})
}

// askTwice sends a request twice over one connection.
func askTwice(dial func() (net.Conn, error), text string) error {
	conn, err := dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	for range 2 { // the second one on a connection counts from zero
		if _, err := io.WriteString(conn, text); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		_ = answer.Body.Close()
	}
	return nil
}

// longHandshake makes a long handshake, which counts no more once it is done.
func longHandshake(t *testing.T, address string, config *tls.Config, all *Conns) (hangUp func() error) {
	t.Helper()
	long := config.Clone()
	for i := range 60 {
		long.NextProtos = append(long.NextProtos, strings.Repeat(string(rune('A'+i)), 200))
	}
	long.NextProtos = append(long.NextProtos, "http/1.1")
	conn, err := tls.Dial("tcp", address, long)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	await.True(t, "no byte is held for a handshake that is done", func() bool { return all.Headers.State().Held == 0 })
	return conn.Close
}

// manyHeaders makes requests over one connection of HTTP/2, whose headers in all
// are more than there is memory for.
func manyHeaders(t *testing.T, address string, config *tls.Config, overTLS bool, each int) {
	t.Helper()
	var second http.Protocols
	second.SetHTTP2(overTLS)
	second.SetUnencryptedHTTP2(!overTLS)
	transport := &http.Transport{Protocols: &second, TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	url := "http://" + address
	if overTLS {
		url = "https://" + address
	}
	for i := range 10 {
		r, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X", strings.Repeat(string(rune('a'+i)), each))
		answer, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatalf("HTTP/2 meanwhile, request %d: %v", i, err)
		}
		if _ = answer.Body.Close(); answer.ProtoMajor != 2 {
			t.Errorf("it is %s", answer.Proto)
		}
	}
}

// Headers that are not whole count on all connections together, and those that are short or whole do not.
func TestHeadersAreBounded(t *testing.T) {
	const most, each, clients = 64 << 10, 20 << 10, 20
	long := "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", each)
	for name, tc := range map[string]struct {
		tls    bool
		pieces []string // of headers that do not end
	}{
		"plaintext":           {false, []string{long}},
		"TLS":                 {true, []string{long}},
		"P":                   {false, []string{"P", "OST" + long[3:]}},
		"PR":                  {false, []string{"PR", "OPFIND" + long[3:]}},
		"almost HTTP/2":       {false, []string{"PRI * HTTP/2.0\r\n", long[16:]}},
		"a preface afterward": {false, []string{long[:30], "PRI * HTTP/2.0\r\n" + long}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			all := NewConns(0)
			all.Headers = memguard.OfBytes(most)
			secure := &tls.Config{InsecureSkipVerify: true}
			serveHeaders(t, l, all, tc.tls)
			dial := func() (net.Conn, error) {
				if tc.tls {
					return tls.Dial("tcp", l.Addr().String(), secure)
				}
				return net.Dial("tcp", l.Addr().String())
			}
			ask := func(text string) error { return askTwice(dial, text) }
			if err := ask(long + "\r\nAlone: yes\r\n\r\n"); err != nil {
				t.Errorf("long headers: %v", err)
			}
			if tc.tls {
				defer longHandshake(t, l.Addr().String(), secure, all)()
			}
			ended := make(chan error, clients)
			for range clients {
				conn, err := dial()
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				for _, piece := range tc.pieces {
					_, _ = io.WriteString(conn, piece) // fails when it has ended
					time.Sleep(time.Millisecond)       // mostly they come apart
				}
				go func() { // until conn is closed
					_, err := conn.Read(make([]byte, 1))
					ended <- err
				}()
			}
			for range clients - most/(HeadTwice*(each-freeHead)) {
				select {
				case <-ended:
				case <-time.After(10 * time.Second):
					t.Fatalf("connections whose headers do not end are not closed: %+v", all.Headers.State())
				}
			}
			if held := all.Headers.State().Held; held > most {
				t.Errorf("%d bytes are held; want at most %d", held, most)
			}
			if err := ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Errorf("short headers meanwhile: %v", err)
			}
			manyHeaders(t, l.Addr().String(), secure, tc.tls, each)
		})
	}
}

// HTTP/2's preface counts for what it is only when all of it came first.
func TestPrefaceIsGathered(t *testing.T) {
	for _, tc := range []struct {
		pieces []string
		want   bool
	}{
		{[]string{http2Preface}, true},
		{[]string{http2Preface + "more"}, true},
		{[]string{"P", "RI * HTTP/2.0", "\r\n\r\nSM\r\n\r\nmore"}, true},
		{[]string{"P", "OST / HTTP/1.1"}, false},
		{[]string{"PRI * HTTP/2.0\r\nX: y"}, false},
		{[]string{"x", http2Preface}, false},
		{[]string{http2Preface[:23]}, false},
	} {
		g, got := &Conn{of: NewConns(0)}, false
		for _, piece := range tc.pieces {
			got = g.prefaced([]byte(piece))
		}
		if got != tc.want {
			t.Errorf("%q: %v; want %v", tc.pieces, got, tc.want)
		}
	}
}

// greeting is a listener whose connections are connections.
type greeting struct {
	net.Listener
	conns *Conns
}

func (g greeting) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return g.conns.Greet(conn), nil
}

// mute is a connection as the kernel has them, whose client has room for nothing until it reads.
type mute struct{ net.Conn }

func (mute) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }
func (mute) CloseWrite() error                     { return nil }

// offered is a listener of such connections.
type offered chan net.Conn

func (o offered) Accept() (net.Conn, error) {
	if conn, ok := <-o; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (o offered) Close() error                          { close(o); return nil }
func (o offered) Addr() net.Addr                        { return &net.TCPAddr{} }
func (o offered) SetDeadline(time.Time) error           { return nil }
func (o offered) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

// Clients over TLS that read nothing do not hold up the end of their server, one after the other: neither idle ones nor
// those whose requests are cut.
func TestTLSThatIsNotReadDoesNotHoldUpTheStop(t *testing.T) {
	pair := certtest.Of(t).Pair()
	for name, tc := range map[string]struct {
		path string
		err  error
		took time.Duration
	}{
		"at rest": {"/", nil, goodbyes},
		"asking":  {"/slow", context.DeadlineExceeded, 3 * time.Second},
	} {
		for _, clients := range []int{1, 5} {
			synctest.Test(t, func(t *testing.T) {
				conns := make(offered, clients)
				p := newListener(conns, newDoor("http.listen", slog.New(slog.DiscardHandler)), 0)
				secure := &tls.Config{Certificates: []tls.Certificate{pair}}
				server := &http.Server{TLSConfig: secure, ConnState: heads, ErrorLog: log.New(io.Discard, "", 0)}
				server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/slow" {
						w.(http.Flusher).Flush()
						<-r.Context().Done()
					}
				})
				served := make(chan error)
				go func() { served <- ServeHTTP(server, p, true) }()
				for range clients {
					client, there := net.Pipe()
					conns <- mute{there}
					secure := tls.Client(client, &tls.Config{InsecureSkipVerify: true})
					if _, err := io.WriteString(secure, "GET "+tc.path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
						t.Fatal(err)
					}
					if _, err := http.ReadResponse(bufio.NewReader(secure), nil); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				began := time.Now()
				if err := Shutdown(ctx, server, p.Conns); !errors.Is(err, tc.err) {
					t.Errorf("%d clients %s: shutdown = %v; want %v", clients, name, err, tc.err)
				}
				if took := time.Since(began); took > tc.took {
					t.Errorf("%d clients %s: it took %v; want %v at most", clients, name, took, tc.took)
				}
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
			if t.Failed() {
				break // with more of them time would stand still: synctest waits for goroutines that wait for the server's lock
			}
		}
	}
}

// A connection that pauses has nothing read, until it goes on or is closed.
func TestConnectionsPause(t *testing.T) {
	for name, close := range map[string]bool{"goes on": false, "closed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				g := NewConns(0).Greet(pipeStream{near}).(*Conn)
				go func() { _, _ = far.Write([]byte("PRI")) }()
				g.PauseUntil(time.Now().Add(3 * time.Second))
				g.PauseUntil(time.Now().Add(2 * time.Second)) // the later one counts
				began := time.Now()
				if close {
					time.AfterFunc(time.Second, func() { _ = g.Close() })
				}
				n, err := g.Read(make([]byte, 3))
				if took := time.Since(began); close && (err == nil || took != time.Second) || !close && (n != 3 || took != 3*time.Second) {
					t.Errorf("%d bytes after %v: %v", n, took, err)
				}
				_ = g.Close()
			})
		})
	}
}

// pipeStream is a connection within the process.
type pipeStream struct{ net.Conn }

func (pipeStream) CloseWrite() error                     { return nil }
func (pipeStream) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

// comes is a connection within the process that has just come.
func comes(t *testing.T, s *Conns) *Conn {
	near, far := net.Pipe()
	t.Cleanup(func() { _ = far.Close() })
	return s.Greet(pipeStream{near}).(*Conn)
}
