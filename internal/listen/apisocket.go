package listen

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"sync"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/takeover"
)

// socketName is the name of a Unix socket of clients. The socket is made under a name of its own and gets the one that
// clients know when this process serves: until then another process may have that. A nil one is of no socket.
type socketName struct {
	path string // the one that clients know

	mu   sync.Mutex
	here string // the name it has now; "": none
}

// openAPISocket listens for the sake of path. Whether others may connect is a matter of the directory, which must exist.
// replaces: another process serves there until this one takes its place.
func openAPISocket(path string, replaces bool) (*net.UnixListener, *socketName, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, nil, fmt.Errorf("%s is there and is not a socket", path)
	}
	if !replaces {
		if err := removeStale(path); err != nil {
			return nil, nil, err
		}
	}
	n := &socketName{path: path, here: fmt.Sprintf("%s.%d", path, os.Getpid())}
	if err := os.Remove(n.here); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err // left by a process of the same number
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.here, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(n.here, 0o666); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, n, nil
}

// publish gives the socket the name that clients know, in place of another one.
func (n *socketName) publish() error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.here == n.path {
		return nil // it came with the socket
	}
	if err := os.Rename(n.here, n.path); err != nil {
		return err
	}
	n.here = n.path
	return nil
}

// unlink removes the name, whoever listens.
func (n *socketName) unlink() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.here != "" {
		_ = os.Remove(n.here) // the next process would
		n.here = ""
	}
}

// remove removes the name unless somebody listens: a process that has taken over the socket, or the name.
func (n *socketName) remove() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.here != "" {
		_ = removeStale(n.here) // the next process would
		n.here = ""
	}
}

// UserAddr is the address of a client that came over a Unix socket.
type UserAddr struct {
	uid    uint32
	known  bool   // the kernel has said it
	number uint64 // tells clients of one user apart
}

func newUserAddr(conn *net.UnixConn) *UserAddr {
	uid, err := takeover.PeerUser(conn)
	return &UserAddr{uid, err == nil, h2.NextNumber()}
}

// Network is "unix".
func (a *UserAddr) Network() string { return "unix" }

// String names the user, and the connection.
func (a *UserAddr) String() string {
	if !a.known {
		return "connection " + strconv.FormatUint(a.number, 10)
	}
	return fmt.Sprintf("user %d, connection %d", a.uid, a.number)
}

// User is the user that the client's program runs as; false: nobody knows.
func (a *UserAddr) User() (uint32, bool) { return a.uid, a.known }
