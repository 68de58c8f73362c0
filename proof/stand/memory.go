package stand

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Descriptors returns how many files and sockets a process has open.
func Descriptors(pid int) (int, error) {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, fmt.Errorf("descriptors of process %d: %w", pid, err)
	}
	return len(all), nil
}

// Anonymous returns the resident memory of a process that no file is behind, in bytes. The
// kernel counts it for each of its processors, so it may be some pages behind.
func Anonymous(pid int) (int64, error) { return memory("status", "RssAnon", pid) }

// Peak returns the most memory that a process had resident, in bytes.
func Peak(pid int) (int64, error) { return memory("status", "VmHWM", pid) }

// Memory adds up the resident and the anonymous memory of processes, in bytes. It has the
// kernel walk their pages, which is exact and takes milliseconds.
func Memory(pids ...int) (resident, anonymous int64, err error) {
	for _, pid := range pids {
		all, residentErr := memory("smaps_rollup", "Rss", pid)
		own, ownErr := memory("smaps_rollup", "Anonymous", pid)
		if err := errors.Join(residentErr, ownErr); err != nil {
			return 0, 0, err
		}
		resident, anonymous = resident+all, anonymous+own
	}
	return resident, anonymous, nil
}

// memory reads a field of a file of /proc/PID that is in KiB.
func memory(file, field string, pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	_, rest, _ := strings.Cut(string(text), "\n"+field+":")
	line, _, _ := strings.Cut(rest, "\n")
	kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(line, "kB")), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: no %s in its %s: %w", pid, field, file, err)
	}
	return kib << 10, nil
}
