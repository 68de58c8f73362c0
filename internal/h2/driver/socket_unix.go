//go:build unix && !linux

package driver

import (
	"errors"
	"syscall"
)

func readSocket(fd uintptr, b []byte) (int, syscall.Errno) {
	n, err := syscall.Read(int(fd), b)
	return n, errno(err)
}

// writeSocket writes from bufs[0][at:] on, one of them or more.
func writeSocket(fd uintptr, bufs [][]byte, at int) (int, syscall.Errno) {
	n, err := syscall.Write(int(fd), bufs[0][at:])
	return n, errno(err)
}

func errno(err error) syscall.Errno {
	if e, ok := errors.AsType[syscall.Errno](err); ok || err == nil {
		return e
	}
	return syscall.EIO
}
