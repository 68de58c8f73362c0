package listen

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// local opens a socket of clients as an app does, and serves there until it is closed: whoever comes is told so.
func local(t *testing.T, path string, take func(setting, address string) net.Listener) (l *Listener, accepted <-chan struct{}) {
	t.Helper()
	var on Set
	const port = "127.0.0.1:0"
	at := Addresses{GRPC: port, HTTP: port, Admin: port, HTTPSocket: path, Take: take}
	if err := on.Bind(at, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, other := range []*Listener{on.GRPC, on.HTTP, on.Admin} {
		_ = other.Close()
	}
	l = on.HTTPSocket
	came, done := make(chan struct{}, 9), make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			came <- struct{}{}
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l, came
}

// The socket of a process that died is replaced, that of one that answers is not, and a successor gets the name when it serves,
// or has the socket itself. Long: one name goes from process to process.
func TestSocketNames(t *testing.T) {
	found := func(path string, by <-chan struct{}) {
		t.Helper()
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("nobody is found: %v", err)
		}
		defer conn.Close()
		<-by
	}
	path := filepath.Join(t.TempDir(), "api")
	first, came := local(t, path, nil)
	if _, err := os.Lstat(path); err == nil {
		t.Error("clients find it before it serves")
	}
	if err := first.name.publish(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openAPISocket(path, false); err == nil || !strings.Contains(err.Error(), "a running process answers") {
		t.Errorf("a second one: %v", err)
	}
	<-came // the second one looked

	// The descriptor goes to the next process, and the name with it.
	file, err := first.socket.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	copied, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	next, came := local(t, path, func(setting, address string) net.Listener {
		if setting == "http.socket" && address == path {
			return copied
		}
		return nil
	})
	if err := first.Close(); err != nil { // must leave the name to the other
		t.Error(err)
	}
	<-came // it looked whether anybody is there
	if err := next.name.publish(); err != nil {
		t.Fatal(err)
	}
	found(path, came)

	// A process whose successor does not want the socket does not leave the name behind.
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the last one left its name")
	}

	// One that could not serve after all has no other name.
	early, _ := local(t, path, nil)
	if err := early.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}

	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openAPISocket(path, true); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("in place of a file: %v", err)
	}
}
