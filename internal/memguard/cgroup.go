package memguard

import (
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"strings"
)

// OfContainer returns the lowest memory limit in bytes of this process's control
// group and those above it. root is the file system from its root, names without
// the leading slash.
func OfContainer(root fs.FS) (limit int64, ok bool) {
	const groupsAt = "sys/fs/cgroup"
	lowest := int64(math.MaxInt64)
	take := func(file string) {
		text, err := fs.ReadFile(root, file)
		if err != nil {
			return // no such controller, or not in a group
		}
		// "max" is no limit; version 1 writes a number near 2^63 for that.
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && n > 0 && n < 1<<60 {
			lowest = min(lowest, n)
		}
	}
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(groups)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, found := strings.Cut(rest, ":")
		if !found {
			continue
		}
		dir, file := groupsAt, "memory.max"
		if controllers != "" {
			if !strings.Contains(","+controllers+",", ",memory,") {
				continue
			}
			dir, file = groupsAt+"/memory", "memory.limit_in_bytes"
		}
		for at := filepath.Clean("/" + path); ; at = filepath.Dir(at) {
			take(filepath.Join(dir, at, file))
			if at == "/" {
				break
			}
		}
	}
	return lowest, lowest != math.MaxInt64
}
