package listen

import (
	"net"
	"os"
	"syscall"
)

// acceptWaiting takes every connection that waits to be accepted, at this
// instant and without blocking.
func acceptWaiting(l syscall.Conn) (waiting []net.Conn) {
	raw, err := l.SyscallConn()
	if err != nil {
		return nil
	}
	var taken []int
	_ = raw.Control(func(fd uintptr) { // fails only when l is closed
		for {
			conn, _, err := syscall.Accept4(int(fd), syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
			switch err {
			case nil:
				taken = append(taken, conn)
			case syscall.EINTR, syscall.ECONNABORTED:
			default:
				return // nobody waits
			}
		}
	})
	for _, fd := range taken {
		file := os.NewFile(uintptr(fd), "accepted")
		conn, err := net.FileConn(file) // works on a copy of fd
		_ = file.Close()
		if err == nil {
			waiting = append(waiting, conn)
		}
	}
	return waiting
}
