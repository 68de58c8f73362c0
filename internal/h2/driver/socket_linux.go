package driver

import (
	"syscall"
	"unsafe"
)

// Sockets never block, so the runtime need not be told of the calls, as package
// syscall does: for a process that is idle between calls, that wakes the runtime's
// monitor each time, which was a third of the CPU of a lone call
// (docs/data-path-profile.md). A garbage collection waits for a call under way: some
// microseconds.

func readSocket(fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), err
}

func writeSocket(fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), err
}
