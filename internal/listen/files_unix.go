//go:build unix

package listen

import "syscall"

// OpenFiles is how many files this process may have open. Go raised the soft limit to the
// hard one at the start.
func OpenFiles() (n uint64, ok bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return uint64(limit.Cur), true
}
