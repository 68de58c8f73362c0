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

func writeSocket(fd uintptr, b []byte) (int, syscall.Errno) {
	n, err := syscall.Write(int(fd), b)
	return n, errno(err)
}

func errno(err error) syscall.Errno {
	if e, ok := errors.AsType[syscall.Errno](err); ok || err == nil {
		return e
	}
	return syscall.EIO
}
