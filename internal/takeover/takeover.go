// Package takeover lets a process take the place of a running one without
// closing a port in between: descriptors go from one to the other over a Unix
// socket.
//
// It owns that socket, the first words of the two and the passing of
// descriptors; it does not know what listens or who calls. What always holds:
//
//   - Both ends are processes of one user: each asks the kernel who the other is.
//   - A socket that was published replaces its forerunner in one step, and Close
//     removes only what is its own.
//   - A message and its descriptors arrive together or not at all, and what
//     arrives is closed by somebody: its reader, or here when it cannot be used.
//   - A version that is not spoken here is refused in words, not in silence.
//
// It works on Linux.
package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Config is the section "takeover" of the configuration.
type Config struct {
	// Path of a Unix socket for hot restarts: "serve -takeover" replaces this process over it. Empty: off
	Socket string `yaml:"socket"`
}

// maxPath leaves room for the suffix of a socket that is not published, in bytes.
const maxPath = 90

// Validate returns all faults, joined.
func (c Config) Validate() error {
	switch {
	case c.Socket == "":
		return nil
	case !filepath.IsAbs(c.Socket) || filepath.Clean(c.Socket) != c.Socket:
		return errors.Join(config.Faultf("socket", " = %q; must be an absolute path of a file, or empty", c.Socket))
	case len(c.Socket) > maxPath:
		return errors.Join(config.Faultf("socket", " = %.40q...; must be at most %d bytes long", c.Socket, maxPath))
	}
	return nil
}

// protocol is the version of what the two say to each other.
const protocol = 1

// The bounds of one message. The kernel takes at most 253 descriptors.
const (
	maxBytes = 64 << 10
	maxFiles = 64
)

// MaxNotes bounds Process.Notes, so that a message has room for it. Notes are JSON, which within JSON is at
// most twice as long.
const MaxNotes = 16 << 10

// helloLimit bounds the wait for the first words.
const helloLimit = 5 * time.Second

// ErrNobody is the error of Dial when no process offers its place.
var ErrNobody = errors.New("takeover: no process answers")

// RefusedError says why the other process does not give way.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return "the running process refuses: " + e.Why }

// Process is what a process says of itself.
type Process struct {
	PID      int    `json:"pid"`
	Version  string `json:"version"`            // of the program
	Instance string `json:"instance,omitempty"` // names the process in the ids it gives out; "" before it is ready

	// Notes is what a process that gives its place away wants the next one to know, at most
	// MaxNotes bytes. It means nothing here.
	Notes string `json:"notes,omitempty"`

	// Wait is how long a process that asks may wait for others before it is ready; 0: it does not say.
	Wait time.Duration `json:"wait,omitempty"`
}

// Listener is a listening descriptor under the name it has in the configuration.
type Listener struct {
	Setting string // "grpc.listen"
	Listen  string // its value, as configured
	net.Listener
}

// message is all that goes over a link. Exactly one of its parts is set.
type message struct {
	Hello   *hello   `json:"hello,omitempty"`
	Refused string   `json:"refused,omitempty"`
	Ready   *Process `json:"ready,omitempty"`
	Conn    string   `json:"conn,omitempty"` // one descriptor comes with it: a connection for the place of this name
}

type hello struct {
	Protocol int `json:"protocol"`
	Process
	Listeners []listener `json:"listeners,omitempty"` // one descriptor for each
}

type listener struct {
	Setting string `json:"setting"`
	Listen  string `json:"listen"`
}

// Link joins two processes. Its methods may be called from any goroutine, but
// one alone receives.
type Link struct{ conn *net.UnixConn }

// Dial reaches the process that offers its place at path. The error is
// ErrNobody if there is none.
func Dial(ctx context.Context, path string) (*Link, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, ErrNobody
	case err != nil:
		return nil, fmt.Errorf("takeover: reach the running process: %w", err)
	}
	return trusted(conn.(*net.UnixConn))
}

// trusted makes a link of a connection if the other end is a process of this user.
func trusted(conn *net.UnixConn) (*Link, error) {
	uid, err := PeerUser(conn)
	if err == nil && uid != uint32(os.Geteuid()) {
		err = fmt.Errorf("it runs as user %d; this one is user %d", uid, os.Geteuid())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("takeover: who is at the other end: %w", err), conn.Close())
	}
	return &Link{conn: conn}, nil
}

// Close ends the link, which the other end sees.
func (l *Link) Close() error { return l.conn.Close() }

// Ask is the first word of a process that wants to take over. It returns who
// is there and what it listens on; the caller owns the listeners.
func (l *Link) Ask(self Process) (Process, []Listener, error) {
	_ = l.conn.SetDeadline(time.Now().Add(helloLimit)) // fails only when closed
	defer l.conn.SetDeadline(time.Time{})
	if err := l.send(message{Hello: &hello{Protocol: protocol, Process: self}}); err != nil {
		return Process{}, nil, err
	}
	m, files, err := l.receive()
	if err != nil {
		return Process{}, nil, err
	}
	defer closeAll(files)
	switch {
	case m.Refused != "":
		return Process{}, nil, &RefusedError{Why: m.Refused}
	case m.Hello == nil || m.Hello.Protocol != protocol || len(m.Hello.Listeners) != len(files):
		return Process{}, nil, fmt.Errorf("takeover: the answer is not of protocol %d", protocol)
	}
	var all []Listener
	for i, named := range m.Hello.Listeners {
		opened, err := net.FileListener(files[i]) // works on a copy
		if err != nil {
			for _, l := range all {
				_ = l.Close()
			}
			return Process{}, nil, fmt.Errorf("takeover: the descriptor of %s: %w", named.Setting, err)
		}
		all = append(all, Listener{Setting: named.Setting, Listen: named.Listen, Listener: opened})
	}
	return m.Hello.Process, all, nil
}

// Ready says that the process that asked is about to serve. A RefusedError says that it must not:
// the other one has waited for too long, and serves on. Receive may return that as well, if both
// happened at the same time.
func (l *Link) Ready(self Process) error {
	err := l.send(message{Ready: &self})
	if err == nil {
		return nil
	}
	m, files, failed := l.receive() // what it said before it closed the link
	closeAll(files)
	if failed == nil && m.Refused != "" {
		return &RefusedError{Why: m.Refused}
	}
	return err
}

// Asked reads the first word of a process that came over a Socket. A process
// that speaks another version gets a refusal, and its error is a RefusedError.
func (l *Link) Asked() (Process, error) {
	_ = l.conn.SetReadDeadline(time.Now().Add(helloLimit)) // fails only when closed
	defer l.conn.SetReadDeadline(time.Time{})
	m, files, err := l.receive()
	closeAll(files) // none is due
	if err != nil {
		return Process{}, err
	}
	if m.Hello == nil || m.Hello.Protocol != protocol {
		spoken := 0
		if m.Hello != nil {
			spoken = m.Hello.Protocol
		}
		return Process{}, l.Refuse(fmt.Sprintf("it speaks takeover protocol %d and the new process %d; stop it and "+
			"start the new one", protocol, spoken))
	}
	return m.Hello.Process, nil
}

// Refuse answers Ask with a reason, and returns it as a RefusedError.
func (l *Link) Refuse(why string) error {
	return errors.Join(&RefusedError{Why: why}, l.send(message{Refused: why}))
}

// Offer answers Ask with copies of listeners, which stay the caller's as well,
// and waits until the other process is ready, or for limit. An error means that it is not, and
// that nothing has changed; the other process is told so if it is too late.
func (l *Link) Offer(self Process, listeners []Listener, limit time.Duration) (Process, error) {
	m := message{Hello: &hello{Protocol: protocol, Process: self}}
	var shared []syscall.Conn
	for _, one := range listeners {
		m.Hello.Listeners = append(m.Hello.Listeners, listener{Setting: one.Setting, Listen: one.Listen})
		conn, ok := one.Listener.(syscall.Conn)
		if !ok {
			return Process{}, fmt.Errorf("takeover: %s has no descriptor", one.Setting)
		}
		shared = append(shared, conn)
	}
	if err := l.send(m, shared...); err != nil {
		return Process{}, err
	}
	_ = l.conn.SetReadDeadline(time.Now().Add(limit)) // fails only when closed
	answer, files, err := l.receive()
	closeAll(files)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.deafen()
		return Process{}, l.Refuse(fmt.Sprintf("the new process was not ready within %v", limit))
	}
	if err != nil {
		return Process{}, err
	}
	_ = l.conn.SetReadDeadline(time.Time{})
	if answer.Ready == nil {
		return Process{}, errors.New("takeover: the new process says something else than that it is ready")
	}
	return *answer.Ready, nil
}

// deafen has the other process fail to say anything more. What it said last is thrown away: unread, it
// would keep that process from reading what it is told now.
func (l *Link) deafen() {
	_ = l.conn.CloseRead()                  // fails only when closed
	_ = l.conn.SetReadDeadline(time.Time{}) // it fails only on a closed connection
	for {
		_, files, err := l.receive()
		if closeAll(files); err != nil {
			return
		}
	}
}

// Hand gives a copy of a connection to the other process, for the place of that
// name. The caller then closes its own without having written or read.
func (l *Link) Hand(place string, conn syscall.Conn) error {
	return l.send(message{Conn: place}, conn)
}

// Connect makes a connection between the two processes; the other one gets its
// end for the place of that name.
func (l *Link) Connect(place string) (net.Conn, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, fmt.Errorf("takeover: make a connection: %w", err)
	}
	defer theirs.Close()
	defer ours.Close()
	if err := l.send(message{Conn: place}, theirs); err != nil {
		return nil, err
	}
	return net.FileConn(ours) // works on a copy
}

// Receive hands on what comes by Hand and Connect of the other end until that
// closes the link or ends (nil), or the link fails, or the other end refuses (see Ready). take owns
// the connection.
func (l *Link) Receive(take func(place string, conn net.Conn)) error {
	for {
		m, files, err := l.receive()
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.Refused != "" {
			closeAll(files)
			return &RefusedError{Why: m.Refused}
		}
		if m.Conn != "" && len(files) == 1 {
			conn, err := net.FileConn(files[0]) // works on a copy
			if err == nil {
				take(m.Conn, conn)
			}
		}
		closeAll(files)
	}
}

func (l *Link) send(m message, with ...syscall.Conn) error {
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("takeover: %w", err)
	}
	// A descriptor stays open as long as the function that gets it runs.
	var files []int
	var next func(i int) error
	next = func(i int) error {
		if i == len(with) {
			var rights []byte
			if len(files) > 0 {
				rights = syscall.UnixRights(files...)
			}
			_, _, err := l.conn.WriteMsgUnix(body, rights, nil)
			return err
		}
		raw, err := with[i].SyscallConn()
		if err != nil {
			return err
		}
		var inner error
		err = raw.Control(func(fd uintptr) {
			files = append(files, int(fd))
			inner = next(i + 1)
		})
		return errors.Join(err, inner)
	}
	if err := next(0); err != nil {
		return fmt.Errorf("takeover: tell the other process: %w", err)
	}
	return nil
}

func (l *Link) receive() (m message, files []*os.File, err error) {
	body, rights := make([]byte, maxBytes), make([]byte, syscall.CmsgSpace(4*maxFiles))
	n, nrights, flags, _, err := l.conn.ReadMsgUnix(body, rights)
	if err != nil {
		return message{}, nil, fmt.Errorf("takeover: hear the other process: %w", err)
	}
	files = filesOf(rights[:nrights])
	if flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 {
		// Also when this process may not open as many files.
		err = errors.New("a message is too large, or brings more files than may be open here")
	} else {
		err = json.Unmarshal(body[:n], &m)
	}
	if err != nil {
		closeAll(files)
		return message{}, nil, fmt.Errorf("takeover: understand the other process: %w", err)
	}
	return m, files, nil
}

// filesOf takes the descriptors out of the control messages, which are closed on
// exec already.
func filesOf(rights []byte) (files []*os.File) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	for i := range messages {
		fds, _ := syscall.ParseUnixRights(&messages[i]) // not rights: none
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "taken over"))
		}
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// Socket is where a process offers its place.
type Socket struct {
	*net.UnixListener
	path string
	own  fs.FileInfo
}

// Listen makes a socket beside path, in a directory that is made for this user
// alone if it is missing. Nobody finds it before Publish.
func Listen(path string) (*Socket, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	hidden := path + "." + strconv.Itoa(os.Getpid())
	_ = os.Remove(hidden) // of a process that had this number and died
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: hidden, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	s := &Socket{UnixListener: l, path: hidden}
	if s.own, err = os.Lstat(hidden); err == nil {
		err = os.Chmod(hidden, 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Publish puts the socket at path, in place of what is there.
func (s *Socket) Publish(path string) error {
	if err := os.Rename(s.path, path); err != nil {
		return err
	}
	s.path = path
	return nil
}

// Accept returns the next process that comes, if it is of this user. After any
// other error than net.ErrClosed the next call may succeed.
func (s *Socket) Accept() (*Link, error) {
	conn, err := s.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return trusted(conn)
}

// Close removes the socket, unless another process has put its own there.
func (s *Socket) Close() error {
	if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.own) {
		_ = os.Remove(s.path) // what is left of it does no harm
	}
	if err := s.UnixListener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
