package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/memguard"
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
	if limit, ok := memguard.OfContainer(os.DirFS("/")); ok {
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
