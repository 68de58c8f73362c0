package app

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/listen"
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

const ask = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"

func stopWithSilentClients(t *testing.T) (took time.Duration) {
	c, err := devcluster.Start(devcluster.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	socket := filepath.Join(t.TempDir(), "api")
	s := start(t, c.Endpoint(), "http.socket="+socket, "grpc.socket="+socket+".grpc")
	s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
	var silent []net.Conn
	for _, at := range []struct{ network, address, text string }{
		{"tcp", s.at.GRPC, ""}, {"tcp", s.at.HTTP, ""}, {"tcp", s.at.HTTP, ask[:30]}, {"tcp", s.at.HTTP, "PRI * HTTP/2.0\r\n\r\nS"},
		{"unix", socket, ""}, {"unix", socket, ask[:30]}, {"unix", socket + ".grpc", ""},
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
		for _, g := range append(s.listeners.HTTP.Conns.All(), s.listeners.GRPC.Conns.All()...) {
			if !g.Silent() {
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

// Requests that are over, and what is no HTTP/1, keep no memory for headers on any listener.
func TestHeadersAreForgotten(t *testing.T) {
	for _, mode := range []string{"session", "off"} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
			selfSigned(t, cert, key)
			s := start(t, nowhere, "wire.mode="+mode, "grpc.cert_file="+cert, "grpc.key_file="+key)
			secure := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
			conn, err := grpc.NewClient("passthrough:///"+s.at.GRPC, grpc.WithTransportCredentials(secure))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for range 20 {
				long := &healthv1.HealthCheckRequest{Service: strings.Repeat("x", 1000)}
				if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), long); status.Code(err) != codes.NotFound {
					t.Fatal(err)
				}
				answer, err := s.http.Get("http://" + s.at.Admin + "/livez?" + strings.Repeat("x", 1000))
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
			for name, l := range map[string]*listen.Listener{"grpc": s.listeners.GRPC, "admin": s.listeners.Admin} {
				if held := l.Conns.Headers.State().Held; held != 0 {
					t.Errorf("%s: %d bytes of headers are held", name, held)
				}
			}
		})
	}
}
