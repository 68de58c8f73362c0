package listen

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpenAdminSocket(t *testing.T) {
	dir := t.TempDir()
	open := func(path string) error {
		s, err := OpenAdminSocket(path, func(uint32) bool { return true }, slog.New(slog.DiscardHandler))
		if s != nil {
			s.Close()
		}
		return err
	}
	path := filepath.Join(dir, "admin")
	// A process that died leaves its socket behind.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	if err := open(path); err != nil {
		t.Errorf("over the socket of a dead process: %v", err)
	}

	alive, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	if err := open(path); err == nil || !strings.Contains(err.Error(), "a running process answers") {
		t.Errorf("over the socket of a living process: %v", err)
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("the socket of the living process is gone: %v", err)
	} else {
		conn.Close()
	}

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(file); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("over a file: %v", err)
	}
	everybody := filepath.Join(dir, "everybody")
	if err := os.Mkdir(everybody, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(everybody, 0o777); err != nil { // whatever umask says
		t.Fatal(err)
	}
	if err := open(filepath.Join(everybody, "admin")); err == nil || !strings.Contains(err.Error(), "others may write") {
		t.Errorf("in a directory of everybody: %v", err)
	}
	if err := open(filepath.Join(everybody, "own", "admin")); err != nil {
		t.Errorf("in a directory inside it, as in an emptyDir: %v", err)
	}
}
