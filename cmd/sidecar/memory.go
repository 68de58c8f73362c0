package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryShare is the part of the container's memory that Go may use before it
// collects harder; the rest is for what Go does not count.
const memoryShare = 0.9

// limitMemory tells Go's collector how much memory the container has, as Go
// itself does for CPUs but not for memory. GOMEMLIMIT wins.
func limitMemory(environ []string) {
	for _, variable := range environ {
		if strings.HasPrefix(variable, "GOMEMLIMIT=") {
			return
		}
	}
	if limit, ok := cgroupLimit(os.DirFS("/").(rootFS)); ok {
		debug.SetMemoryLimit(int64(float64(limit) * memoryShare))
	}
}

// rootFS is the file system from its root, names without the leading slash.
type rootFS interface {
	ReadFile(name string) ([]byte, error)
}

// cgroupLimit returns the lowest memory limit in bytes of this process's
// control group and those above it.
func cgroupLimit(fs rootFS) (limit int64, ok bool) {
	const root = "sys/fs/cgroup"
	lowest := int64(math.MaxInt64)
	take := func(file string) {
		text, err := fs.ReadFile(file)
		if err != nil {
			return // no such controller, or not in a group
		}
		// "max" is no limit; version 1 writes a number near 2^63 for that.
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && n > 0 && n < 1<<60 {
			lowest = min(lowest, n)
		}
	}
	groups, err := fs.ReadFile("proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(groups)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, found := strings.Cut(rest, ":")
		if !found {
			continue
		}
		dir, file := root, "memory.max"
		if controllers != "" {
			if !strings.Contains(","+controllers+",", ",memory,") {
				continue
			}
			dir, file = root+"/memory", "memory.limit_in_bytes"
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
