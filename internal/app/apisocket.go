package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"

	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/takeover"
)

// apiSocket is a Unix socket of the HTTP face. It is made under a name of its own and
// gets the one that clients know when this process serves: until then another
// process may have that.
type apiSocket struct {
	*net.UnixListener
	*localDoor
	path  string      // that clients know
	made  string      // where it was made
	ours  os.FileInfo // of the socket itself
	known bool        // it has the name that clients know
}

// openAPISocket listens for the sake of path; nil if that is "". Whether others may
// connect is a matter of the directory, which must exist. replaces: another process
// serves there until this one takes its place.
func openAPISocket(path string, replaces bool, log *slog.Logger) (*apiSocket, error) {
	if path == "" {
		return nil, nil
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s is there and is not a socket", path)
	}
	if !replaces {
		if err := removeStale(path); err != nil {
			return nil, err
		}
	}
	s := &apiSocket{localDoor: newLocalDoor("http.socket", log), path: path, made: fmt.Sprintf("%s.%d", path, os.Getpid())}
	if err := os.Remove(s.made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err // left by a process of the same number
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	s.UnixListener = l
	if err := os.Chmod(s.made, 0o666); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.ours, err = os.Lstat(s.made); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// publish gives the socket the name that clients know, in place of another one.
func (s *apiSocket) publish() error {
	if s == nil {
		return nil
	}
	if err := os.Rename(s.made, s.path); err != nil {
		return err
	}
	s.known = true
	return nil
}

// Accept returns the next connection, see door.
func (s *apiSocket) Accept() (net.Conn, error) {
	conn, err := s.accept(s.UnixListener)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// Close closes the socket and removes its name, unless that is another's by now.
func (s *apiSocket) Close() error {
	s.shut()
	at := s.made
	if s.known {
		at = s.path
	}
	if now, err := os.Lstat(at); err == nil && (s.ours == nil || os.SameFile(now, s.ours)) {
		_ = os.Remove(at) // the next process would
	}
	return s.UnixListener.Close()
}

// peerOf numbers a connection, and notes the user of a program that has come over a Unix socket.
func peerOf(ctx context.Context, conn net.Conn) context.Context {
	ctx = facade.WithConnection(ctx, h2.NextNumber())
	if local, ok := conn.(*localConn); ok {
		if uid, err := takeover.PeerUser(local.UnixConn); err == nil {
			return facade.WithUser(ctx, uid)
		}
	}
	return ctx
}
