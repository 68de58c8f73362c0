package takeover

import (
	"net"
	"os"
	"syscall"
)

// PeerUser returns the user of the program at the other end, as it was when that
// connected (unix(7), SO_PEERCRED). Elsewhere than on Linux it is errors.ErrUnsupported.
func PeerUser(conn *net.UnixConn) (uid uint32, err error) {
	uid, _, err = Peer(conn)
	return uid, err
}

// Peer is PeerUser with the number of the process, as this process sees it: 0 from another namespace.
func Peer(conn *net.UnixConn) (uid uint32, pid int32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var who *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		who, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return 0, 0, err
	}
	if failed != nil {
		return 0, 0, os.NewSyscallError("getsockopt", failed)
	}
	return who.Uid, who.Pid, nil
}

// pair returns the two ends of a new connection.
func pair() (a, b *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "pair"), os.NewFile(uintptr(fds[1]), "pair"), nil
}
