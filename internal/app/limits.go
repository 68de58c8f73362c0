package app

import (
	"os"
	"strconv"
	"strings"
)

// containerMemory is what this process's cgroup (version 2, seen from inside a
// container) may use and what of that is free, in bytes; not ok: there is no limit.
func containerMemory() (free, limit uint64, ok bool) {
	read := func(name string) (uint64, bool) {
		text, err := os.ReadFile("/sys/fs/cgroup/" + name)
		if err != nil {
			return 0, false
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		return n, err == nil // "max" is none
	}
	limit, ok = read("memory.max")
	used, known := read("memory.current")
	if !ok || !known {
		return 0, 0, false
	}
	return limit - min(used, limit), limit, true
}
