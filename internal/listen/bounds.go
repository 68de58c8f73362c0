package listen

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/memguard"
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

// perConnection is how much of the memory limit there must be for each connection of apps, in bytes: an idle one takes
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

// headersFor is how many bytes may wait for the rest of their headers, or of their handshake of TLS, on the connections
// of one listener: a sixteenth of the memory limit. Without one, which is a memory of 0, it is 64 MiB.
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
// refused, and half of the memory limit has room for them.
func secondsFor(memory int64) int {
	if memory <= 0 {
		memory = memguard.Assumed
	}
	return max(leastSeconds, int(memory/2/(HTTPStreams*perOpen)))
}
