package app

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// Bounds are how many connections may be open at a time.
type Bounds struct {
	Each, Total int // of apps, see Connections
	Admin       int // on each listener of operators and probes
}

const (
	AdminConnections = 64   // many more than probes, Prometheus and some operators need
	ownFiles         = 1024 // at most, for connections to nodes, files and what is refused
)

// perConnection is how much of the memory limit there must be for each connection of apps, in bytes: one at rest takes
// some 20 KB, and one that has begun something more.
const perConnection = 64 << 10

// BoundsOf are those that are asked for, as far as there are descriptors and memory: files and memory in bytes, 0 if
// that is not known. A quarter of the files, and ownFiles at most, is kept for the process itself, and some for the
// three listeners of operators and probes.
func BoundsOf(each, total int, files uint64, memory int64) Bounds {
	b := Bounds{Each: each, Total: total, Admin: AdminConnections}
	if memory > 0 {
		room := int(min(max(1, memory/perConnection), 1<<30))
		b.Each, b.Total = min(b.Each, room), min(b.Total, room)
	}
	if files == 0 {
		return b
	}
	n := int(min(files, 1<<30))
	b.Admin = max(1, min(b.Admin, n/16))
	room := max(1, n-min(n/4, ownFiles)-3*b.Admin)
	b.Each, b.Total = min(b.Each, room), min(b.Total, room)
	return b
}

// Hold has connections refused beyond b at these doors. Those of operators and probes have bounds of
// their own, so that apps cannot take their place; there an idle connection gives way to a
// new one, so that connections without requests cannot keep probes out. On the listeners of apps those
// give way of which no request has come yet.
func (b Bounds) Hold(apps, operators []*Door) {
	for _, d := range operators {
		d.full, d.idle = func() bool { return d.open() >= b.Admin }, newIdle()
		d.giveWay = d.idle.giveWay
	}
	all := func() (n int) {
		for _, d := range apps {
			n += d.open()
		}
		return n
	}
	for _, d := range apps {
		d.full = func() bool { return d.open() >= b.Each || all() >= b.Total }
		d.giveWay = func() (closed bool, wait time.Duration) {
			if d.open() >= b.Each {
				return newcomerGivesWay(d)
			}
			return newcomerGivesWay(apps...)
		}
	}
}

// leastBuffered is enough for some large messages, in bytes.
const leastBuffered = 8 << 20

// bufferedFor is how many bytes may wait in the calls of each of so many shards: an eighth of the memory limit in all, as far as
// h2.Default and leastBuffered allow. A memory of 0 is no limit.
func bufferedFor(memory int64, shards int) int {
	most := h2.Default().Buffered
	if memory > 0 {
		most = min(most, max(leastBuffered, int(memory/8)/shards))
	}
	return most
}

// textsFor is how many bytes the texts of prepared queries may take, and the caches of the plain API as many again: a 32nd
// of the memory limit. Without one, which is a memory of 0, it is 0, and those who ask have bounds of their own.
func textsFor(memory int64) int { return int(min(memory/32, 16<<20)) }

const (
	perStream    = 64 << 10 // of half of the memory limit that there must be for each stream of the plain API, in bytes
	leastStreams = 128
)

// streamsInside is how many calls of the plain API each of so many shards may have open that are not served where they arrive:
// as many as allowed, and as half of the memory limit has room for.
func streamsInside(allowed int, memory int64, shards int) int {
	if memory > 0 {
		allowed = min(allowed, int(memory/2/perStream)/shards)
	}
	return max(leastStreams, allowed)
}

// headersFor is how many bytes may wait for the rest of their headers, or of their handshake of TLS, on the connections of one listener: a sixteenth of
// the memory limit. Without one, which is a memory of 0, it is 64 MiB: as for a quarter of what is assumed elsewhere.
func headersFor(memory int64) int64 {
	if memory <= 0 {
		memory = memguard.Assumed / 4
	}
	return memory / 16
}

const (
	// perOpen is what a request of HTTP/2 takes until it is let in or refused, in bytes: measured 12 to 20 KB for each of 10,000 and
	// 100,000 at once.
	perOpen      = 32 << 10
	leastSeconds = 16
)

// secondsFor is how many connections of HTTP/2 one listener may have: net/http begins all their requests before any of them can be
// refused, and half of the memory limit has room for so many.
func secondsFor(memory int64) int {
	if memory <= 0 {
		memory = memguard.Assumed
	}
	return max(leastSeconds, int(memory/2/(HTTPStreams*perOpen)))
}

const (
	perPoolNode = 704 // what the pool of an identity takes for each node, in bytes: measured 665 to 680, and 5 KB beside them
	leastPools  = 16
)

// poolsFor is how many pools identities may have, each of which knows so many nodes: as a sixteenth of the memory limit has room for,
// 0 if there is none. As many again may be closing.
func poolsFor(memory int64, nodes int) int {
	if memory <= 0 {
		return virtual.MaxPools
	}
	return int(min(max(leastPools, memory/16/perPoolNode/int64(max(1, nodes))), virtual.MaxPools))
}

// warnClamped says what of connections.* is not in force.
func (a *App) warnClamped(b Bounds, files uint64, memory int64) {
	c := a.config.Connections
	together := "connections.total"
	if c.Total == 0 {
		together = "connections.each, all listeners together"
	}
	for _, one := range []struct {
		setting         string
		wanted, inForce int
	}{{"connections.each", c.Each, b.Each}, {together, c.total(), b.Total}} {
		if one.inForce < one.wanted {
			a.log.Warn("the limit of open files, or of memory, allows fewer connections than configured; raise it (ulimit -n, LimitNOFILE=; GOMEMLIMIT, or the container's memory), or lower the setting",
				"setting", one.setting, "configured", one.wanted, "in_force", one.inForce, "open_files", files, "memory_mib", memory>>20)
		}
	}
}

// memoryLimit is that of the runtime, in bytes; 0: there is none.
func memoryLimit() int64 {
	if limit, ok := memguard.Limit(); ok {
		return limit
	}
	return 0
}

// containerMemory is what this process's cgroup (version 2, seen from inside a
// container) may use and what of that is free, in bytes; not ok: there is no limit.
func containerMemory() (free, limit uint64, ok bool) {
	most, ok := memguard.OfContainer(os.DirFS("/"))
	text, err := os.ReadFile("/sys/fs/cgroup/memory.current")
	if !ok || err != nil {
		return 0, 0, false
	}
	used, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, 0, false
	}
	limit = uint64(most)
	return limit - min(used, limit), limit, true
}
