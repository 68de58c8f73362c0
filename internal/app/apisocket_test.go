package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/apps"
)

// over asks the HTTP face of a Unix socket.
func over(t *testing.T, path, name string) (int, string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/v1/query", strings.NewReader(`{"sql":"SELECT 1"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if name != "" {
		request.Header.Set("X-Sidecar-App", name)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// Over the Unix socket the kernel says who calls; nobody gets that name over TCP.
func TestHTTPSocketKnowsItsPeers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the kernel does not say who the peer is")
	}
	c := newCluster(t)
	path := filepath.Join(t.TempDir(), "api")
	s := start(t, c.Endpoint(), "http.socket="+path, fmt.Sprintf("apps.users=%d=web", os.Getuid()), "apps.token=batch=a-secret-of-sixteen-bytes")
	for name, want := range map[string]int{"": 200, "web": 200, "batch": 403, "other-name": 403} {
		if status, text := over(t, path, name); status != want {
			t.Errorf("claiming %q: %d %s; want %d", name, status, text, want)
		}
	}
	if status, text := s.fetch(http.MethodPost, "http://"+s.at.HTTP+"/v1/query", `{"sql":"SELECT 1"}`); status != http.StatusUnauthorized {
		t.Errorf("over TCP: %d %s; want 401", status, text)
	}
	var seen []apps.State
	s.state("/state/apps", &seen)
	served := uint64(0)
	for _, a := range seen {
		if a.App == "web" {
			for _, one := range a.Classes {
				served += one.Served
			}
		}
	}
	if served != 2 {
		t.Errorf("web was served %d times; want 2: %+v", served, seen)
	}
	if status, text := s.get("/metrics"); status != 200 || !strings.Contains(text, `ydb_sidecar_app="web"`) || strings.Contains(text, "secret-of") {
		t.Errorf("/metrics: %d, web: %v", status, strings.Contains(text, `ydb_sidecar_app="web"`))
	}
	if _, text := s.get("/config"); strings.Contains(text, "secret-of") {
		t.Error("/config shows a token")
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left behind")
	}
	if strings.Contains(s.log.String(), "secret-of") {
		t.Error("the log has a token")
	}
}

// The socket of a process that died is replaced, that of one that answers is not, and
// a successor gets the name when it serves.
func TestHTTPSocketNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api")
	first, err := openAPISocket(path, false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("clients find it before it serves")
	}
	if err := first.publish(); err != nil {
		t.Fatal(err)
	}
	if _, err := openAPISocket(path, false, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "a running process answers") {
		t.Errorf("a second one: %v", err)
	}
	accepted := make(chan struct{}, 9)
	serve := func(s *apiSocket) {
		for {
			conn, err := s.Accept()
			if err != nil {
				return
			}
			conn.Close()
			accepted <- struct{}{}
		}
	}
	// The name of the process is in that of the socket, so this stands for another process.
	next := &apiSocket{localDoor: newLocalDoor("http.socket", slog.New(slog.DiscardHandler)), path: path, made: path + ".next"}
	if next.UnixListener, err = net.ListenUnix("unix", &net.UnixAddr{Name: next.made, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	next.SetUnlinkOnClose(false)
	if next.ours, err = os.Lstat(next.made); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); serve(next) }()
	if err := next.publish(); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil { // must leave the name to the other
		t.Error(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("nobody is found: %v", err)
	}
	<-accepted
	conn.Close()
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	<-done
	if _, err := os.Lstat(path); err == nil {
		t.Error("the last one left its name")
	}

	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openAPISocket(path, true, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("in place of a file: %v", err)
	}
}
