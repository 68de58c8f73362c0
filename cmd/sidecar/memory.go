package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
)

const (
	// memoryShare is the part of the container's memory that Go may use before it
	// collects harder; the rest is for what Go does not count.
	memoryShare = 0.9
	// gcPercent stands in for Go's default of 100. What lives for long is a few
	// megabytes, which would be collected many times a second: 8 MiB more of memory
	// save a fifth of the CPU of a small call.
	gcPercent = 300
	// headroom is how much garbage gcPercent is good for, in bytes. When more lives,
	// the percentage falls, to leastPercent in the end: with thousands of connections or
	// of calls under way four times as much as lives would be hundreds of megabytes.
	headroom     = 32 << 20
	leastPercent = 100
)

// tuneMemory sets the collector's pace, and tells it how much memory the
// container has, as Go itself does for CPUs but not for memory. GOGC and
// GOMEMLIMIT win.
func tuneMemory(environ []string) {
	if !isSet(environ, "GOGC") {
		keepPace()
	}
	if isSet(environ, "GOMEMLIMIT") {
		return
	}
	if limit, ok := cgroupLimit(os.DirFS("/").(rootFS)); ok {
		debug.SetMemoryLimit(int64(float64(limit) * memoryShare))
	}
}

// paceFor is the collector's percentage when so many bytes are to be marked.
func paceFor(marked uint64) int {
	percent := int(headroom * 100 / max(marked, 1))
	return min(max(percent/25*25, leastPercent), gcPercent) // in steps, because a change stops the world for a moment
}

// keepPace has the collector's percentage follow what lives, from now on: each collection
// ends with the finalizer of an object that nobody refers to, which is then used again.
func keepPace() {
	percent := gcPercent
	debug.SetGCPercent(percent)
	marked := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	type mark struct{ _ *int } // with a pointer, or it would share its place with others
	var collected func(*mark)
	collected = func(m *mark) {
		metrics.Read(marked)
		var sum uint64
		for _, one := range marked {
			sum += one.Value.Uint64()
		}
		if now := paceFor(sum); now != percent {
			percent = now
			debug.SetGCPercent(percent)
		}
		runtime.SetFinalizer(m, collected)
	}
	runtime.SetFinalizer(new(mark), collected)
}

func isSet(environ []string, name string) bool {
	return slices.ContainsFunc(environ, func(variable string) bool { return strings.HasPrefix(variable, name+"=") })
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
