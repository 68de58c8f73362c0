package listen

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
		"after a request": {[]step{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew},
			{a, http.StateActive}, {a, http.StateIdle}, {b, http.StateActive}},
			[]int{c, a}, true},
		"one idle": {[]step{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew}, {a, http.StateActive}, {c, http.StateActive}},
			[]int{b}, false},
		"one has closed": {[]step{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew}, {a, http.StateClosed}, {b, http.StateActive}},
			[]int{c}, false},
		"all busy": {[]step{{a, http.StateNew}, {b, http.StateNew}, {c, http.StateNew},
			{a, http.StateActive}, {b, http.StateActive}, {c, http.StateActive}},
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
		{"large", "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
			strings.Repeat("x", adminBody+1), "413 Request Entity Too Large", 0},
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
