package app

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ydb-sidecar/sidecar/internal/listen"
)

// TestTheHTTPServerIsBounded: the bounds of the server that listens, not of one that tests make.
func TestTheHTTPServerIsBounded(t *testing.T) {
	s := start(t, nowhere, "api.max_headers=8KiB", "api.max_open=21", "http.header_timeout=3s", "http.idle_timeout=4s")
	for size, want := range map[int]int{
		100: http.StatusOK, 9 << 10: http.StatusRequestEntityTooLarge, 1 << 20: http.StatusRequestHeaderFieldsTooLarge,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.at.HTTP+"/openapi.yaml", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Long", strings.Repeat("x", size))
		response, err := s.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		// What exceeds the setting a little is told so in the form of the API.
		if problem := response.Header.Get("Content-Type") == "application/problem+json"; response.StatusCode != want ||
			problem != (size == 9<<10) {
			t.Errorf("%d bytes of headers: %s, %s", size, response.Status, response.Header.Get("Content-Type"))
		}
	}
	server := s.newHTTP()
	if server.ReadHeaderTimeout != 3*time.Second || server.IdleTimeout != 4*time.Second ||
		server.HTTP2.MaxConcurrentStreams != 42 || server.ErrorLog == nil {
		t.Errorf("header timeout %v, idle timeout %v, %d streams", server.ReadHeaderTimeout, server.IdleTimeout,
			server.HTTP2.MaxConcurrentStreams)
	}
	if n := start(t, nowhere).newHTTP().HTTP2.MaxConcurrentStreams; n != listen.HTTPStreams {
		t.Errorf("%d streams by default; want %d", n, listen.HTTPStreams)
	}
}

// second speaks HTTP/2 to the HTTP port, frame by frame.
func second(t *testing.T, s *sidecar) (net.Conn, *http2.Framer) {
	t.Helper()
	conn, err := net.Dial("tcp", s.at.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	// At once: a connection beyond the bound is closed when the preface is here.
	greeting := bytes.NewBufferString(http2.ClientPreface)
	greets := http2.NewFramer(greeting, nil)
	err = errors.Join(greets.WriteSettings(), greets.WriteSettingsAck())
	if _, failed := conn.Write(greeting.Bytes()); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return conn, http2.NewFramer(conn, conn)
}

// request opens a request, whose body is still to come if it is a POST.
func request(t *testing.T, framer *http2.Framer, stream uint32, method, path string) {
	t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "localhost"},
		{Name: "content-type", Value: "application/json"},
	} {
		_ = encoder.WriteField(f)
	}
	if err := framer.WriteHeaders(
		http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: method == "GET"},
	); err != nil {
		t.Fatal(err)
	}
}

// A connection of HTTP/2 without requests is told to go, and closed. What comes meanwhile is answered.
func TestConnectionsOfHTTP2Rest(t *testing.T) {
	t.Parallel()
	s := start(t, nowhere, "http.idle_timeout=500ms")
	conn, framer := second(t, s)
	var away, answered time.Duration
	began := time.Now()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			break // it is closed
		}
		switch f := frame.(type) {
		case *http2.GoAwayFrame:
			if away == 0 {
				away = time.Since(began)
				request(t, framer, 1, "GET", "/v1/status")
			}
			if f.ErrCode != http2.ErrCodeNo {
				t.Errorf("told to go because of %v", f.ErrCode)
			}
		case *http2.HeadersFrame:
			answered = time.Since(began)
		}
	}
	_ = conn.Close()
	// What rests again does so from the end of its request, which its client sees later, and begins later than it.
	least := away + 500*time.Millisecond + listen.LeaveTaking
	if closed := time.Since(began); away < 500*time.Millisecond || answered < away || closed < least {
		t.Errorf("told to go after %v, answered after %v, closed after %v", away, answered, closed)
	}
}

// A connection of HTTP/2 that ends with open requests leaves nothing behind.
func TestConnectionsOfHTTP2AreForgotten(t *testing.T) {
	s := start(t, nowhere)
	conn, framer := second(t, s)
	for i := range uint32(50) {
		request(t, framer, 2*i+1, "POST", "/v1/query")
	}
	s.eventually("its requests are open", func() bool { return s.api.State().OpenCalls == 50 })
	g := weak.Make(s.listeners.HTTP.Conns.All()[0])
	_ = conn.Close()
	s.eventually("it is forgotten", func() bool {
		runtime.GC()
		return g.Value() == nil
	})
}

// Where there are as many connections of HTTP/2 as may be, a further one waits, and is closed; or one
// without requests is told to go, and closed.
func TestConnectionsOfHTTP2AreBounded(t *testing.T) {
	t.Parallel()
	s := start(t, nowhere)
	conns := s.listeners.HTTP.Conns
	conns.SetMost(1)
	conn, framer := second(t, s)
	if _, err := framer.ReadFrame(); err != nil {
		t.Fatal(err)
	}
	first := conns.All()[0]
	first.UnderWay(1)
	further, _ := second(t, s)
	began := time.Now()
	if came, _ := io.ReadAll(further); len(came) > 0 || time.Since(began) < listen.RoomWait || time.Since(began) > 5*listen.RoomWait {
		t.Errorf("a further connection was told %q, and closed after %v", came, time.Since(began))
	}
	first.UnderWay(-1)
	another, answers := second(t, s)
	if _, err := answers.ReadFrame(); err != nil {
		t.Errorf("there was no room: %v", err)
	}
	told := false
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			break // it is closed
		}
		if _, ok := frame.(*http2.GoAwayFrame); ok {
			told = true
			request(t, framer, 1, "POST", "/v1/query") // is no reason to stay
		}
	}
	if !told {
		t.Error("the one that made room was not told")
	}
	_ = errors.Join(conn.Close(), another.Close())
}
