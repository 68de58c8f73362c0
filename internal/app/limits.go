package app

import (
	"os"
	"strconv"
	"strings"
)

// bounds are how many connections may be open at a time.
type bounds struct {
	each, total int // of apps, see Connections
	admin       int // on each listener of operators and probes
}

const (
	adminConnections = 64   // many more than probes, Prometheus and some operators need
	ownFiles         = 1024 // at most, for connections to nodes, files and what is refused
)

// boundsOf are those of connections.*, as far as there are descriptors: files, 0 if that is
// not known. A quarter is kept for the process itself, and some for operators and probes.
func boundsOf(c Connections, files uint64) bounds {
	b := bounds{each: c.Each, total: c.Total, admin: adminConnections}
	if files == 0 {
		return b
	}
	n := int(min(files, 1<<30))
	b.admin = max(1, min(b.admin, n/16))
	room := max(1, n-min(n/4, ownFiles)-3*b.admin)
	b.each, b.total = min(b.each, room), min(b.total, room)
	return b
}

// warnClamped says what of connections.* is not in force.
func (a *App) warnClamped(b bounds, files uint64) {
	c := a.config.Connections
	for _, one := range []struct {
		setting         string
		wanted, inForce int
	}{{"connections.each", c.Each, b.each}, {"connections.total", c.Total, b.total}} {
		if one.inForce < one.wanted {
			a.log.Warn("the limit of open files allows fewer connections than configured; raise it (ulimit -n, LimitNOFILE=), or lower the setting",
				"setting", one.setting, "configured", one.wanted, "in_force", one.inForce, "open_files", files)
		}
	}
}

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
