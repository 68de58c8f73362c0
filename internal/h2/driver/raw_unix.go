//go:build unix

package driver

import (
	"net"
	"syscall"
)

// raw reaches the socket below a connection, to read and write without blocking.
type raw struct {
	sys   syscall.RawConn // nil: there is no socket
	try   tryWriter       // nil: it is none
	spare []byte

	// What a write in hand needs, here so that it allocates nothing.
	out     []byte
	n       int
	writeFn func(fd uintptr) bool
}

func (r *raw) use(nc net.Conn) {
	r.try, _ = nc.(tryWriter)
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return
	}
	sys, err := sc.SyscallConn()
	if err != nil {
		return
	}
	r.sys = sys
	r.writeFn = func(fd uintptr) bool {
		for r.n < len(r.out) {
			n, err := writeSocket(fd, r.out[r.n:])
			if err == syscall.EINTR {
				continue
			}
			if err != 0 {
				if err != syscall.EAGAIN {
					r.n = len(r.out) // the reader will see it
				}
				break
			}
			r.n += n
		}
		return true
	}
}

// write returns how many octets the socket took.
func (r *raw) write(b []byte) int {
	if r.try != nil {
		return r.try.TryWrite(b)
	}
	if r.sys == nil {
		return 0
	}
	r.out, r.n = b, 0
	if r.sys.Write(r.writeFn) != nil {
		r.n = len(b) // closed
	}
	r.out = nil
	return r.n
}

// read calls received with what arrives until the connection ends. A buffer is held
// only while there is something to read. False: there is no socket.
func (r *raw) read(received func([]byte)) (bool, error) {
	if r.sys == nil {
		return false, nil
	}
	return true, r.sys.Read(func(fd uintptr) bool {
		b := readBuffers.Get().(*[readSize]byte)
		defer readBuffers.Put(b)
		for {
			n, err := readSocket(fd, b[:])
			switch {
			case n > 0:
				received(b[:n])
			case err == syscall.EINTR:
			case err == syscall.EAGAIN:
				return false
			default:
				return true
			}
		}
	})
}
