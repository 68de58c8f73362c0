package driver

import (
	"syscall"
	"unsafe"
)

// Sockets never block, so the runtime need not be told of the calls, as package
// syscall does: for a process that is idle between calls, that wakes the runtime's
// monitor each time, which was a third of the CPU of a lone call
// (docs/dev/data-path-profile.md). A garbage collection waits for a call under way: some
// microseconds.

func readSocket(fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), err
}

// writeSocket writes from bufs[0][at:] on, one of them or more.
func writeSocket(fd uintptr, bufs [][]byte, at int) (int, syscall.Errno) {
	b := bufs[0][at:]
	if len(bufs) == 1 {
		n, _, err := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		return int(n), err
	}
	return writeVectors(fd, b, bufs[1:])
}

// writeVectors is writeSocket for several.
func writeVectors(fd uintptr, b []byte, more [][]byte) (int, syscall.Errno) {
	var all [16]syscall.Iovec
	n := 1
	all[0].Base = unsafe.SliceData(b)
	all[0].SetLen(len(b))
	for ; n < len(all) && n <= len(more); n++ {
		all[n].Base = unsafe.SliceData(more[n-1])
		all[n].SetLen(len(more[n-1]))
	}
	wrote, _, err := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&all)), uintptr(n))
	return int(wrote), err
}
