package app

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A crowd of connections that never speak is kept out beyond the limit, and leaves
// neither descriptors nor goroutines behind.
func TestManyConnectionsLeakNothing(t *testing.T) {
	const each, crowd = 20, 2500
	s := start(t, nowhere, "connections.each=20", "connections.total=50", "admin.probes=127.0.0.1:0")
	if status, _ := s.get("/livez"); status != 200 {
		t.Fatal("it does not serve")
	}
	s.http.CloseIdleConnections()
	s.eventually("rest", func() bool { return s.listeners.size() == 0 })
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return 0 // not on this system
		}
		return len(all)
	}
	goroutines, files := runtime.NumGoroutine(), descriptors()
	var open []net.Conn
	for _, address := range []string{s.at.GRPC, s.at.HTTP, s.at.Admin, s.at.Probes} {
		for i := range crowd {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if i < 2*each { // some of these stay
				open = append(open, conn)
				continue
			}
			// Whoever is turned away is told at once.
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && (err == nil || !strings.Contains(err.Error(), "reset")) {
				t.Fatalf("a connection beyond the limit: %v; want it closed", err)
			}
			_ = conn.Close()
		}
	}
	for _, l := range s.listeners.all() {
		if n := l.guests.size(); n > each {
			t.Errorf("%d connections of one listener; want %d at most", n, each)
		}
	}
	if n := s.listeners.size(); n > 50 {
		t.Errorf("%d connections; want 50 at most", n)
	}
	refused := int64(0)
	for _, l := range s.listeners.all() {
		refused += l.refused.Load()
	}
	if refused < 4*crowd-200 {
		t.Errorf("%d refusals counted of %d connections", refused, 4*crowd)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
	s.eventually("all of them gone", func() bool { return s.listeners.size() == 0 })
	s.eventually("descriptors as before", func() bool { return descriptors() <= files+2 })
	s.eventually("goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines+4 })
	if status, text := s.get("/metrics"); status != 200 || !strings.Contains(text, "ydb_sidecar_connections_refused") {
		t.Errorf("after that: %d", status)
	}
}
