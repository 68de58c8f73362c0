package app

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// parksAfter has connections parked after a rest of d while the test runs. It is to be called before start.
func parksAfter(t *testing.T, d time.Duration) {
	t.Helper()
	was := parkAfter
	parkAfter = d
	t.Cleanup(func() { parkAfter = was })
}

// asker is a client of HTTP/1.1 that keeps its connection.
type asker struct {
	testing.TB
	net.Conn
	answers *bufio.Reader
}

func dialAsker(t *testing.T, network, address string) *asker {
	t.Helper()
	conn, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &asker{t, conn, bufio.NewReader(conn)}
}

func (a *asker) say(text string) {
	a.Helper()
	if _, err := io.WriteString(a.Conn, text); err != nil {
		a.Fatal(err)
	}
}

func (a *asker) hears(want int) {
	a.Helper()
	res, err := http.ReadResponse(a.answers, nil)
	if err != nil {
		a.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != want {
		a.Errorf("answered %d, %v; want %d", res.StatusCode, err, want)
	}
}

// servedConnections is how many goroutines net/http has for connections.
func servedConnections() int {
	stacks := make([]byte, 16<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "net/http.(*conn).serve(")
}

const askStatus = "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"

// asksIn sends a request whole, in three parts, or with a body.
func (a *asker) asksIn(way int) {
	switch way {
	case 0:
		a.say(askStatus)
	case 1:
		a.say(askStatus[:1])
		a.say(askStatus[1:20])
		a.say(askStatus[20:])
	default:
		body := `{"sql":"SELECT 1"}`
		a.say(fmt.Sprintf("POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
			"application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	}
}

// An idle connection has no goroutine, and goes on where it was when something comes, whole or in parts, again and again.
func TestConnectionsAtRestAreParked(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("connections are parked on Linux alone")
		return
	}
	parksAfter(t, 50*time.Millisecond)
	c, err := devcluster.Start(devcluster.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	socket := filepath.Join(t.TempDir(), "api")
	s := start(t, c.Endpoint(), "http.socket="+socket)
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	for _, way := range []struct {
		network, address string
		at               *listen.Conns
	}{{"tcp", s.at.HTTP, s.listeners.HTTP.Conns}, {"unix", socket, s.listeners.HTTPSocket.Conns}} {
		const clients = 60
		s.http.CloseIdleConnections()
		s.eventually("others are gone", func() bool { return way.at.Size() == 0 })
		var all []*asker
		for range clients {
			a := dialAsker(t, way.network, way.address)
			all = append(all, a)
			a.say(askStatus)
			a.hears(http.StatusOK)
		}
		for round := range 3 {
			s.eventually("all are parked", func() bool { return way.at.Parked() == clients })
			s.eventually("no goroutine is left of them", func() bool { return servedConnections() == 0 })
			if n := way.at.Size(); n != clients {
				t.Errorf("%d connections count; want %d", n, clients)
			}
			for i, a := range all {
				a.asksIn((i + round) % 3)
			}
			for _, a := range all {
				a.hears(http.StatusOK)
			}
		}
		s.eventually("all are parked at last", func() bool { return way.at.Parked() == clients })
		for _, a := range all[clients/2:] {
			_ = a.Close()
		}
		s.eventually("those that went are forgotten", func() bool { return way.at.Size() == clients/2 })
	}
	begun := time.Now()
	if err := s.stop(); err != nil {
		t.Errorf("the stop: %v", err)
	}
	if took := time.Since(begun); took > closeServers {
		t.Errorf("the stop took %v", took)
	}
	for _, l := range s.listeners.OfHTTP() {
		if n := l.Conns.Size(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	}
}

// A parked connection is closed when its server would have closed it.
func TestParkedConnectionsHaveTheirTime(t *testing.T) {
	parksAfter(t, 50*time.Millisecond)
	const most = 700 * time.Millisecond
	s := start(t, nowhere, "http.idle_timeout=700ms")
	a := dialAsker(t, "tcp", s.at.HTTP)
	begun := time.Now()
	a.say(askStatus)
	res, err := http.ReadResponse(a.answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	if n, err := a.answers.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("%d bytes, %v; want the end", n, err)
	}
	if took := time.Since(begun); took < most {
		t.Errorf("it was closed after %v; want %v", took, most)
	}
	s.eventually("it is forgotten", func() bool { return s.listeners.HTTP.Conns.Size() == 0 })
}

// newSecond is another HTTP server, which answers "2". It takes a copy of each connection that is given to it.
func newSecond(t *testing.T) listen.Mover {
	t.Helper()
	conns, channel := listen.NewConns(0), listen.NewChannel()
	channel.Greet = func(c net.Conn) net.Conn { return conns.Welcome(c, time.Minute) }
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "2") }),
		ConnState:         listen.NewClients().Track,
		ReadHeaderTimeout: time.Minute,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(channel) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return func(c listen.Stream) error {
		file, err := c.(*net.TCPConn).File()
		if err != nil {
			return err
		}
		defer file.Close()
		copied, err := net.FileConn(file)
		if err == nil && !channel.Pass(copied) {
			err = copied.Close()
		}
		return err
	}
}

// A parked connection moves to another process as one does that its server reads.
func TestParkedConnectionsMove(t *testing.T) {
	parksAfter(t, 20*time.Millisecond)
	s := start(t, nowhere)
	second := newSecond(t)
	const clients = 20
	var all []*asker
	for range clients {
		a := dialAsker(t, "tcp", s.at.HTTP)
		all = append(all, a)
		a.say("GET /openapi.yaml HTTP/1.1\r\nHost: localhost\r\n\r\n")
		a.hears(http.StatusOK)
	}
	at := s.listeners.HTTP.Conns
	if runtime.GOOS == "linux" {
		s.eventually("all are parked", func() bool { return at.Parked() == clients })
	}
	at.MoveTo(second)
	at.Empty(t.Context().Done())
	if n := at.Size(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	for _, a := range all {
		a.say(ask)
		res, err := http.ReadResponse(a.answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(res.Body); err != nil || string(body) != "2" {
			t.Errorf("answered by %q, %v; want 2", body, err)
		}
	}
}
