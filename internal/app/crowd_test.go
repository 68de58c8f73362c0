package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// holdsAtMost fails the test if more connections are open than may be, or if fewer
// were refused than came to each of four listeners beyond that.
func (s *sidecar) holdsAtMost(each, total, crowd int) {
	s.Helper()
	refused, apps := int64(0), 0
	for name, d := range s.doors() {
		n, most := d.Size(), each
		if name == "admin" || name == "probes" {
			most = listen.AdminConnections
		} else {
			apps += n
		}
		if n > most {
			s.Errorf("%d connections of %s; want %d at most", n, name, most)
		}
		refused += d.Refused()
	}
	if apps > total {
		s.Errorf("%d connections of apps; want %d at most", apps, total)
	}
	if refused < int64(4*crowd-200) {
		s.Errorf("%d refusals counted of %d connections", refused, 4*crowd)
	}
}

// Of a crowd of connections that never speak those that came first give way beyond the limit, and leave
// neither descriptors nor goroutines behind.
func TestManyConnectionsLeakNothing(t *testing.T) {
	short.Skip(t, "it counts goroutines of the whole process")
	const each, total, crowd = 20, 30, 2500
	s := start(t, nowhere, "connections.each=20", "connections.total=30", "admin.probes=127.0.0.1:0")
	if status, _ := s.get("/livez"); status != 200 {
		t.Fatal("it does not serve")
	}
	s.http.CloseIdleConnections()
	s.eventually("rest", func() bool { return s.listeners.Size() == 0 })
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return 0 // not on this system
		}
		return len(all)
	}
	goroutines, files := runtime.NumGoroutine(), descriptors()
	var open []net.Conn
	for _, to := range []struct {
		address string
		bound   int
	}{{s.at.GRPC, each}, {s.at.HTTP, each}, {s.at.Admin, listen.AdminConnections}, {s.at.Probes, listen.AdminConnections}} {
		if to.address == s.at.Admin {
			s.probed(t) // while the apps' listeners are full
		}
		for i := range crowd {
			conn, err := net.Dial("tcp", to.address)
			if err != nil {
				t.Fatal(err)
			}
			if i < 2*to.bound { // some of these stay
				open = append(open, conn)
				continue
			}
			// The oldest gives way.
			oldest := len(open) - to.bound
			open = append(open, conn)
			conn = open[oldest]
			open = slices.Delete(open, oldest, oldest+1)
			// Whoever is turned away is told at once.
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && (err == nil || !strings.Contains(err.Error(), "reset")) {
				t.Fatalf("a connection beyond the limit: %v; want it closed", err)
			}
			_ = conn.Close()
		}
	}
	s.holdsAtMost(each, total, crowd)
	for _, conn := range open {
		_ = conn.Close()
	}
	s.eventually("all of them gone", func() bool { return s.listeners.Size() == 0 })
	s.eventually("descriptors as before", func() bool { return descriptors() <= files+2 })
	s.eventually("goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines+4 })
	if status, text := s.get("/metrics"); status != 200 || !strings.Contains(text, "ydb_sidecar_connections_refused") {
		t.Errorf("after that: %d", status)
	}
}

// keepsComing connects, and says that, again whenever the connection is closed.
func keepsComing(t *testing.T, address, says string, stop <-chan struct{}) {
	for {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, says)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = conn.Read(make([]byte, 1))
		}()
		select {
		case <-gone:
			_ = conn.Close()
		case <-stop:
			_ = conn.Close()
			<-gone
			return
		}
	}
}

// Connections of which no request has come give way to new ones, and no other does: neither those who say nothing nor those
// whose headers do not end keep anybody out.
func TestNewcomersGiveWay(t *testing.T) {
	const each = 8
	s := start(t, nowhere, "connections.each=8", "connections.total=12", "http.header_timeout=1m")
	ask := func(client *http.Client) error {
		response, err := client.Post("http://"+s.at.HTTP+"/v1/query", "application/json", strings.NewReader(`{}`))
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			return fmt.Errorf("it answers %s", response.Status)
		}
		return nil
	}
	known := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{}} // its connection stays
	if err := ask(known); err != nil {
		t.Fatal(err)
	}
	opened := 0
	known.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		opened++
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	stop := make(chan struct{})
	var crowd sync.WaitGroup
	defer crowd.Wait()
	defer close(stop)
	for _, one := range []struct{ address, says string }{{s.at.HTTP, ""},
		{s.at.HTTP, "POST /v1/query HTTP/1.1\r\nHost: loc"}, {s.at.GRPC, ""}} {
		for range each {
			crowd.Go(func() { keepsComing(t, one.address, one.says, stop) })
		}
	}
	s.eventually("full", func() bool {
		return s.listeners.HTTP.Size()+s.listeners.GRPC.Size() >= 12 && s.listeners.HTTP.Refused() > 0
	})
	for range 5 {
		fresh := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		if err := ask(fresh); err != nil {
			t.Errorf("a new connection: %v", err)
		}
		conn, err := grpc.NewClient(s.at.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if _, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}); err != nil {
			t.Errorf("a new connection of gRPC: %v", err)
		}
		cancel()
		_ = conn.Close()
		if err := ask(known); err != nil || opened > 0 {
			t.Errorf("a connection that had asked before: %v, and %d were opened in its place", err, opened)
		}
	}
	known.CloseIdleConnections()
}

// probed asks the probes, each over a connection of its own.
func (s *sidecar) probed(t *testing.T) {
	t.Helper()
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, address := range []string{s.at.Admin, s.at.Probes} {
		for _, probe := range []string{"/livez", "/readyz"} {
			for range 10 {
				response, err := client.Get("http://" + address + probe)
				if err != nil {
					t.Fatalf("during the flood: %v", err)
				}
				_ = response.Body.Close()
				if response.StatusCode != http.StatusOK {
					t.Errorf("during the flood %s answers %s", probe, response.Status)
				}
			}
		}
	}
}

// Streams of the plain API fit the memory.
func TestStreamsFitTheMemory(t *testing.T) {
	for _, tc := range []struct {
		allowed int
		memory  int64
		shards  int
		want    int
	}{
		{20_000, 0, 1, 20_000}, // no limit
		{20_000, 4 << 30, 1, 20_000},
		{20_000, 256 << 20, 1, 2048},
		{20_000, 256 << 20, 4, 512},
		{200, 256 << 20, 1, 200},
		{20_000, 8 << 20, 1, 128},
		{2, 0, 1, 128},
	} {
		if got := streamsInside(tc.allowed, tc.memory, tc.shards); got != tc.want {
			t.Errorf("%+v: got %d", tc, got)
		}
	}
}

// The pools of identities fit the memory, whatever tickets come.
func TestPoolsFitTheMemory(t *testing.T) {
	for _, tc := range []struct {
		memory int64
		nodes  int
		want   int
	}{
		{0, 16_384, 1000}, // no limit
		{256 << 20, 0, 1000},
		{256 << 20, 9, 1000},
		{256 << 20, 100, 238},
		{256 << 20, 1000, 23},
		{4 << 30, 1000, 381},
		{256 << 20, 16_384, 16},
		{1 << 20, 3, 31},
		{1, 1, 16},
		{math.MaxInt64, 1, 1000},
	} {
		if got := poolsFor(tc.memory, tc.nodes); got != tc.want {
			t.Errorf("%+v: got %d", tc, got)
		}
	}
}

// Limits of connections that are not in force are logged.
func TestClampedConnectionsAreLogged(t *testing.T) {
	for _, tc := range []struct {
		c    Connections
		want string
	}{
		{Connections{Each: 100, Total: 20_000}, "setting=connections.total configured=20000 in_force=144 open_files=256"},
		{Connections{Each: 100}, `setting="connections.each, all listeners together" configured=200 in_force=144 open_files=256`},
	} {
		log := new(lines)
		a := &App{config: Config{Connections: tc.c}, log: slog.New(slog.NewTextHandler(log, nil))}
		a.warnClamped(listen.BoundsOf(tc.c.Each, tc.c.total(), 256, 0), 256, 0)
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, tc.want) {
			t.Errorf("warned: %s; want %s", text, tc.want)
		}
	}
}

// Connections over Unix sockets are bounded as others are: those of apps with theirs, those
// of operators apart.
func TestUnixSocketsAreBounded(t *testing.T) {
	api, plain, admin := filepath.Join(t.TempDir(), "api"), filepath.Join(t.TempDir(), "grpc"), filepath.Join(t.TempDir(), "admin")
	s := start(t, nowhere, "http.socket="+api, "grpc.socket="+plain, "admin.socket="+admin, "connections.each=5", "connections.total=20",
		"api.timeout=300ms") // of the call at the end, which waits that long for nodes
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}()
	for path, bound := range map[string]int{api: 5, plain: 5, admin: listen.AdminConnections} { // the oldest gives way
		for i := range bound + 3 {
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, conn)
			if i < bound {
				continue
			}
			conn = open[len(open)-1-bound]
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("connection %d to %s: %v; want it closed", i, path, err)
			}
		}
	}
	await.Right(t, "what was refused is counted", func() string { // just after it was closed
		for name, d := range s.doors() {
			if n := d.Refused(); strings.HasSuffix(name, "_socket") != (n == 3) {
				return fmt.Sprintf("%s refused %d; want 3 of each socket", name, n)
			}
		}
		return ""
	})
	for _, conn := range open {
		_ = conn.Close()
	}
	s.eventually("all of them gone", func() bool {
		return s.doors()["http_socket"].Size() == 0 && s.doors()["grpc_socket"].Size() == 0 && s.doors()["admin_socket"].Size() == 0
	})
	if status, text := over(t, api, ""); status != http.StatusServiceUnavailable { // of a cluster that is away
		t.Errorf("after that: %d %s", status, text)
	}
}
