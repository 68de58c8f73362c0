package app

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// A client that connects and sends nothing, as a pool of connections does ahead of need,
// or no whole request, is owed no answer: the stop neither waits for it nor calls it a fault.
func TestSilentClientsDoNotHoldUpTheStop(t *testing.T) { soonStopped(t, stopWithSilentClients) }

// soonStopped has stop return what a stop took, once more if the machine may have paused: a
// stop that waits for clients is never sooner than closeServers.
func soonStopped(t *testing.T, stop func(*testing.T) time.Duration) {
	t.Helper()
	took := stop(t)
	for tries := 1; took > closeServers-time.Second && tries < 5; tries++ {
		took = min(took, stop(t))
	}
	if took > closeServers-time.Second {
		t.Errorf("the stop took %v at the least; want less than its limit of %v", took, closeServers)
	}
}

func stopWithSilentClients(t *testing.T) (took time.Duration) {
	c, err := devcluster.Start(devcluster.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	socket := filepath.Join(t.TempDir(), "api")
	s := start(t, c.Endpoint(), "http.socket="+socket)
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	var silent []net.Conn
	for _, at := range []struct{ network, address, text string }{
		{"tcp", s.at.GRPC, ""}, {"tcp", s.at.HTTP, ""}, {"tcp", s.at.HTTP, ask[:30]}, {"tcp", s.at.HTTP, "PRI * HTTP/2.0\r\n\r\nS"},
		{"unix", socket, ""}, {"unix", socket, ask[:30]},
	} {
		conn, err := net.Dial(at.network, at.address)
		if err == nil {
			_, err = io.WriteString(conn, at.text)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		silent = append(silent, conn)
	}
	s.eventually("the beginnings of requests have come", func() bool {
		heard := 0
		for _, g := range append(s.listeners.http.guests.all(), s.listeners.grpc.guests.all()...) {
			if g.heard.Load() {
				heard++
			}
		}
		return heard >= 2
	})
	begun := time.Now()
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	took = time.Since(begun)
	for _, conn := range silent {
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the connection to %v ended with %v; want a close", conn.RemoteAddr(), err)
		}
	}
	return took
}

// Connections move to another server exactly between two requests, without
// their clients noticing.
func TestGuestsMoveBetweenRequests(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before string // is sent first, and arrives
		answer string // of the first server to before; "": none is due yet
		rest   string // of the request, is sent once guests move; the first server answers
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
			guests := first.at.guests
			for len(guests.all()) == 0 || tc.before != "" && !guests.all()[0].heard.Load() ||
				guests.all()[0].rest.Load() != (tc.answer != "" || tc.before == "") {
				runtime.Gosched() // the server has not come so far
			}
			guests.moveTo(func(c *net.TCPConn) error {
				file, err := c.File()
				if err != nil {
					return err
				}
				defer file.Close()
				copied, err := net.FileConn(file)
				if err == nil && !second.door.pass(copied) {
					err = copied.Close()
				}
				return err
			})
			if tc.rest != "" {
				say(tc.rest, "1")
			}
			guests.empty(t.Context().Done()) // what is sent earlier may still be for the first
			if n := len(guests.all()); n != 0 {
				t.Errorf("%d guests are left", n)
			}
			say(ask, "2")
			say(ask+ask, "22")
		})
	}
}

const ask = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"

// moving is an HTTP server whose guests can move, and to which guests can.
type moving struct {
	at   *patient
	door *hatch
}

func newMoving(t *testing.T, answer string) *moving {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &moving{at: newPatient(l.(*net.TCPListener), newDoor("http.listen", slog.New(slog.DiscardHandler))), door: newHatch()}
	m.door.greet = func(c net.Conn) net.Conn { return m.at.guests.greet(c, time.Minute) }
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }),
		ConnState:         newClients().track,
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
func TestGuestsOfHTTP2StayWhereTheyAre(t *testing.T) {
	for text, mixed := range map[string]bool{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": true, "PR": true, "P": true, "POST / HTTP/1.1\r\n": false, "GET ": false} {
		g := &guest{of: newGuests()}
		g.note([]byte(text), false)
		g.settle()
		if g.mixed.Load() != mixed || g.rest.Load() == mixed {
			t.Errorf("%q: mixed %v, at rest %v; want %v, %v", text, g.mixed.Load(), g.rest.Load(), mixed, !mixed)
		}
	}
}

// A byte of the next request that net/http has read ahead must not be left behind.
func TestGuestWithAByteReadAheadIsNotAtRest(t *testing.T) {
	g := &guest{of: newGuests()}
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

// Headers that are not whole count on all connections together, and those that are short or whole do not.
func TestHeadersAreBounded(t *testing.T) {
	const most, each, clients = 64 << 10, 20 << 10, 20
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	all := newGuests()
	all.headers = memguard.OfBytes(most)
	server := &http.Server{ConnState: newClients().track, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if held := all.headers.State().Held; r.Header.Get("Alone") != "" && held != 0 {
			t.Errorf("%d bytes are held of a request whose headers are whole", held)
		}
	})}
	var run sync.WaitGroup
	run.Go(func() { _ = server.Serve(greeting{l, all}) })
	t.Cleanup(func() {
		_ = server.Close()
		run.Wait()
	})
	long := "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", each)
	ask := func(text string) error {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		for range 2 { // the second one on a connection counts anew
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
	if err := ask(long + "\r\nAlone: yes\r\n\r\n"); err != nil {
		t.Errorf("long headers: %v", err)
	}
	ended := make(chan error, clients)
	for range clients {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, long); err != nil {
			t.Fatal(err)
		}
		go func() { // until conn is closed
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}()
	}
	for range clients - most/(headTwice*(each-freeHead)) {
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("connections whose headers do not end are not closed: %+v", all.headers.State())
		}
	}
	if held := all.headers.State().Held; held > most {
		t.Errorf("%d bytes are held; want at most %d", held, most)
	}
	if err := ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Errorf("short headers meanwhile: %v", err)
	}
}

// greeting is a listener whose connections are guests.
type greeting struct {
	net.Listener
	guests *guests
}

func (g greeting) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return g.guests.greet(conn, 0), nil
}
