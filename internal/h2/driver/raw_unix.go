//go:build unix

package driver

import (
	"math"
	"net"
	"sync"
	"syscall"
)

// raw reaches the socket below a connection, to read and write without blocking.
type raw struct {
	sys   syscall.RawConn // nil: there is no socket
	try   tryWriter       // nil: it is none
	spare [1][]byte       // room for what TLS makes

	// What a write in hand needs, here so that it allocates nothing.
	out     [][]byte
	n       int // bytes written
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
		at := 0
		for len(r.out) > 0 {
			n, err := writeSocket(fd, r.out, at)
			if err == syscall.EINTR {
				continue
			}
			if err != 0 {
				if err != syscall.EAGAIN {
					r.n = math.MaxInt // the reader will see it
				}
				break
			}
			r.n += n
			for at += n; len(r.out) > 0 && at >= len(r.out[0]); r.out = r.out[1:] {
				at -= len(r.out[0])
			}
		}
		return true
	}
}

// isSocket reports whether there is a socket.
func (r *raw) isSocket() bool { return r.sys != nil }

// write returns what the socket did not take.
func (r *raw) write(bufs [][]byte) net.Buffers {
	r.n = 0
	switch {
	case r.try != nil:
		for _, b := range bufs {
			n := r.try.TryWrite(b)
			if r.n += n; n < len(b) {
				break
			}
		}
	case r.sys != nil:
		if r.out = bufs; r.sys.Write(r.writeFn) != nil {
			r.n = math.MaxInt // closed
		}
		r.out = nil
	}
	return left(bufs, r.n)
}

// read calls received with what arrives until the connection ends. A buffer is held
// only while there is something to read, and only with gate. Once: or until something has arrived. False: there
// is no socket.
func (r *raw) read(gate sync.Locker, received func([]byte), once bool) (bool, error) {
	if r.sys == nil {
		return false, nil
	}
	some := func(fd uintptr) (n int, err syscall.Errno) {
		gate.Lock()
		defer gate.Unlock()
		b := readBuffers.Get().(*[readSize]byte)
		defer readBuffers.Put(b)
		if n, err = readSocket(fd, b[:]); n > 0 {
			received(b[:n])
		}
		return n, err
	}
	return true, r.sys.Read(func(fd uintptr) bool {
		for {
			switch n, err := some(fd); {
			case n > 0:
				if once {
					return true
				}
			case err == syscall.EINTR:
			case err == syscall.EAGAIN:
				return false
			default:
				return true
			}
		}
	})
}
