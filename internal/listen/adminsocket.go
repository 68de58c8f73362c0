package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/takeover"
)

// AdminSocket is the Unix socket of the admin API. Only programs of users that are trusted come in.
type AdminSocket struct {
	*net.UnixListener
	*localDoor
	trusted func(uid uint32) bool // whether programs of a user may come in
}

func NewAdminSocket(l *net.UnixListener, trusted func(uid uint32) bool, log *slog.Logger) *AdminSocket {
	return &AdminSocket{UnixListener: l, localDoor: newLocalDoor("admin.socket", log), trusted: trusted}
}

// OpenAdminSocket listens at path, in a directory that only this user may enter
// and that is made if it is missing; nil if path is "". The socket of a process
// that died is replaced, that of one that answers is not.
func OpenAdminSocket(path string, trusted func(uid uint32) bool, log *slog.Logger) (*AdminSocket, error) {
	if path == "" {
		return nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, err
	} else if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return nil, fmt.Errorf("others may write to %s and so put a socket of theirs there; "+
			"name a directory inside it, which is then made for this user alone", filepath.Dir(path))
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// The moment before this is covered by the directory, and by the look at peers.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return NewAdminSocket(l, trusted, log), nil
}

// removeStale removes a socket on which nobody answers.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there and is not a socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		conn.Close()
		return fmt.Errorf("a running process answers at %s; stop it, or give this one another path", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil // its owner just ended
	default:
		return err
	}
}

// Accept passes over connections of other users.
func (s *AdminSocket) Accept() (net.Conn, error) {
	for {
		conn, err := s.accept(s.UnixListener)
		if err != nil {
			return nil, err
		}
		uid, err := takeover.PeerUser(conn.UnixConn)
		// Where the kernel does not say who it is, the modes of the socket and its directory do.
		if errors.Is(err, errors.ErrUnsupported) || err == nil && s.trusted(uid) {
			return conn, nil
		}
		s.log.Warn("the admin socket is for this process's user and root", "uid", uid, "err", err)
		conn.Close()
	}
}

// PeerOf is the user and the process at the other end of a connection over an AdminSocket, by the context of a request
// that an AdminServer serves.
func PeerOf(ctx context.Context) (uid uint32, pid int32, err error) {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	local, ok := conn.(*localConn)
	if !ok {
		return 0, 0, errors.ErrUnsupported
	}
	return takeover.Peer(local.UnixConn)
}

// Close closes the socket. Its name goes with it, see UnixListener.SetUnlinkOnClose.
func (s *AdminSocket) Close() error {
	s.shut()
	return s.UnixListener.Close()
}
