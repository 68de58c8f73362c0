package app

import (
	"os"
	"strconv"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// leastBuffered is enough for some large messages, in bytes.
const leastBuffered = 8 << 20

// bufferedFor is how many bytes may wait in the calls of each shard: an eighth of the memory limit in all, as far as
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

const (
	perPoolNode = 704 // what the pool of an identity takes for each node, in bytes: measured 665 to 680, and 5 KB beside them
	leastPools  = 16
)

// poolsFor returns how many pools identities may have if each knows that many nodes: what fits into 1/16 of the memory limit, between
// leastPools and virtual.MaxPools. A memory of 0 means no limit: MaxPools. As many pools again may be closing.
func poolsFor(memory int64, nodes int) int {
	if memory <= 0 {
		return virtual.MaxPools
	}
	return int(min(max(leastPools, memory/16/perPoolNode/int64(max(1, nodes))), virtual.MaxPools))
}

// warnClamped says what of connections.* is not in force.
func (a *App) warnClamped(b listen.Bounds, files uint64, memory int64) {
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
			a.log.Warn(
				"the limit of open files, or of memory, allows fewer connections than configured; raise it (ulimit "+
					"-n, LimitNOFILE=; GOMEMLIMIT, or the container's memory), or lower the setting",
				"setting", one.setting, "configured", one.wanted, "in_force", one.inForce, "open_files", files,
				"memory_mib", memory>>20,
			)
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
