package app

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
)

// When a listener of operators is full, the connection that has been idle longest gives way;
// one with a request under way never does.
func TestIdleConnectionsGiveWay(t *testing.T) {
	const a, b, c = 0, 1, 2
	type step struct {
		conn  int
		state http.ConnState
	}
	for name, tc := range map[string]struct {
		steps  []step
		closed []int // by two new connections, in this order
		taken  bool  // the second of them
	}{
		"silent": {[]step{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew}}, []int{a, b}, true},
		"a request is under way": {[]step{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew}, {a, http.StateActive}},
			[]int{b, c}, true},
		"after a request": {[]step{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew}, {a, http.StateActive}, {a, http.StateIdle}, {b, http.StateActive}},
			[]int{c, a}, true},
		"one idle": {[]step{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew}, {a, http.StateActive}, {c, http.StateActive}},
			[]int{b}, false},
		"one has closed": {[]step{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew}, {a, http.StateClosed}, {b, http.StateActive}},
			[]int{c}, false},
		"all busy": {[]step{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew}, {a, http.StateActive}, {b, http.StateActive}, {c, http.StateActive}},
			nil, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDoor("admin.listen", slog.New(slog.DiscardHandler))
			d.idle = newIdle()
			d.giveWay = d.idle.giveWay
			var conns []net.Conn
			var closed []int
			for n := range 3 {
				conn, _ := net.Pipe()
				conns = append(conns, &closing{conn, func() { closed = append(closed, n) }})
			}
			for _, s := range tc.steps {
				d.idle.track(conns[s.conn], s.state)
				time.Sleep(time.Millisecond)
			}
			began := time.Now()
			var taken bool
			for n := range 2 {
				d.full = func() bool { return len(closed) <= n }
				taken = d.room()
			}
			if !slices.Equal(closed, tc.closed) || taken != tc.taken {
				t.Errorf("%s: closed %v, the second was taken: %v; want %v, %v", name, closed, taken, tc.closed, tc.taken)
			}
			if d := time.Since(began); d > idleLeast || d < idleLeast-10*time.Millisecond && closed != nil {
				t.Errorf("%s: it took %v; want up to %v, and none if all are busy", name, d, idleLeast)
			}
		})
	}
}

// closing is a connection that reports its Close.
type closing struct {
	net.Conn
	closed func()
}

func (c *closing) Close() error {
	c.closed()
	return c.Conn.Close()
}

// Idle connections, and requests whose body does not come, which come again whenever they are
// closed, keep neither probes nor operators out, and requests under way go on.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin")
	s := start(t, nowhere, "admin.probes=127.0.0.1:0", "admin.socket="+socket)
	for _, to := range []struct {
		network, address string
		events           bool
	}{{"tcp", s.at.Probes, false}, {"tcp", s.at.Admin, true}, {"unix", socket, true}} {
		t.Run(to.network+" "+filepath.Base(to.address), func(t *testing.T) {
			client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, to.network, to.address)
				}}}
			var stream *bufio.Reader
			if to.events {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/events", nil)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("Accept", "text/event-stream")
				response, err := (&http.Client{Transport: client.Transport}).Do(request) // for as long as the test
				if err != nil || response.StatusCode != http.StatusOK {
					t.Fatalf("/events: %v, %v", response, err)
				}
				defer response.Body.Close()
				stream = bufio.NewReader(response.Body)
			}
			for _, sent := range []string{"", "GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"} {
				stop := crowd(t, to.network, to.address, sent, AdminConnections+16)
				defer stop()
				for n := range 20 {
					response, err := client.Get("http://localhost/livez")
					// On a busy machine a request may come later than idleLeast after its connection,
					// which has then given way to others: who comes again is let in.
					for last := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(last); {
						response, err = client.Get("http://localhost/livez")
					}
					if err != nil {
						t.Fatalf("after %q: /livez %d: %v", sent, n, err)
					}
					text, _ := io.ReadAll(response.Body)
					_ = response.Body.Close()
					if response.StatusCode != http.StatusOK {
						t.Errorf("/livez %d: %s %s", n, response.Status, text)
					}
				}
				stop()
			}
			if stream == nil {
				return
			}
			reason := "still here over " + to.network
			s.events.Add(admin.Event{Kind: "finding", Reason: reason})
			for {
				line, err := stream.ReadString('\n')
				if err != nil {
					t.Fatalf("the stream of events was cut: %v", err)
				}
				if strings.Contains(line, reason) {
					return
				}
			}
		})
	}
}

// crowd holds n connections that send no more than text, and makes each again when it is closed.
func crowd(t *testing.T, network, address, text string, n int) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var here sync.WaitGroup
	for range n {
		here.Add(1)
		wg.Go(func() {
			first := sync.OnceFunc(here.Done)
			defer first()
			for ctx.Err() == nil {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				if err != nil {
					continue // the backlog of a Unix socket is full
				}
				first()
				free := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = io.WriteString(conn, text)
				_, _ = conn.Read(make([]byte, 1))
				free()
				_ = conn.Close()
			}
		})
	}
	here.Wait()
	return func() { cancel(); wg.Wait() }
}

// A body that comes is read over and changes nothing, and one that does not come, or is too
// large, is waited for no longer than a head.
func TestBodiesOfOperators(t *testing.T) {
	for _, tc := range []struct {
		name, sent, then string
		answer           string
		after            time.Duration
	}{
		{"small", "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n", "{}", "200 OK", 0},
		{"chunked", "POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n0\r\n\r\n", "200 OK", 0},
		{"never", "GET /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n", "{", "408 Request Timeout", adminLimit},
		{"large", "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n", strings.Repeat("x", adminBody+1), "413 Request Entity Too Large", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDoor("admin.listen", slog.New(slog.DiscardHandler))
				d.idle = newIdle()
				server := AdminServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(2 * adminLimit) // longer than any deadline for the body
					if r.Context().Err() != nil {
						t.Errorf("the request ended early: %v", context.Cause(r.Context()))
					}
				}), d)
				conn, accepted := net.Pipe()
				one := make(chan net.Conn, 1)
				one <- accepted
				served := make(chan error)
				go func() { served <- server.Serve(pipes(one)) }()
				go func() { _, _ = io.WriteString(conn, tc.sent+tc.then) }()
				began := time.Now()
				response, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				if response.StatusCode == http.StatusOK {
					took -= 2 * adminLimit
				}
				if response.Status != tc.answer || took != tc.after {
					t.Errorf("%s after %v; want %s after %v", response.Status, took, tc.answer, tc.after)
				}
				_ = conn.Close()
				_ = server.Close()
				<-served
				time.Sleep(time.Second) // net/http ends a connection half a second after its answer
			})
		})
	}
}

// pipes is a listener of connections within this process.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p) // net/http calls it once
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }
