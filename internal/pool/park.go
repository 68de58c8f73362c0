package pool

import (
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// parkMax is how long idle sessions of a node are parked, at most: about the longest
// ejection by default. A node that is ejected for longer is empty when it comes back.
const parkMax = time.Minute

// A node that is ejected for refusals or for its latency answers, and is often back after a
// second. To delete its sessions and to open them again is work that it can bear least. So
// its idle sessions are parked: set aside (see limit), where no caller gets them, until the
// node is eligible again. They are closed if the node is lost, or leaves, or after parkMax,
// and when their room or permits are needed; they are no part of Config.Min.

// soft reports whether a node gets nothing new only because of its own load, or because it is
// listed as unhealthy: it can be reached, stays in the cluster, and nobody banned it.
func soft(n cluster.ViewNode) bool {
	v := n.Condition
	return n.Use == cluster.UseOpen && (v.Health >= cluster.Ejected || n.Unwell) && !v.Unreachable && !v.Draining && !v.Banned &&
		!n.Gone && n.Pile.State < cluster.PileBehind
}

// parksLocked reports whether an idle session of a node that is not eligible is parked.
func (p *state) parksLocked(n *node, now time.Time) bool {
	return !p.closed && now.Before(n.parkUntil) && !p.overLocked()
}

// dropLocked parks or closes a session that is in the caller's hand and must not be checked out.
func (p *state) dropLocked(s *Session) {
	if s.Valid() && p.parksLocked(s.node, time.Now()) {
		p.asideLocked(s)
	} else {
		p.closeLocked(s)
	}
}

// unparkLocked closes parked sessions until so many sessions are being closed.
func (p *state) unparkLocked(n int) {
	for _, from := range p.order {
		if p.closing < n && from.parked() {
			p.siftLocked(from, func(*Session) bool { return p.closing < n })
		}
	}
}

// parkedLocked closes the sessions that were parked for long enough, and says when others
// will have been.
func (p *state) parkedLocked(now time.Time, due func(time.Time)) {
	if p.limit.parked.Load() == 0 {
		return
	}
	for _, n := range p.order {
		switch {
		case !n.parked():
		case now.Before(n.parkUntil):
			due(n.parkUntil)
		default:
			p.siftLocked(n, func(*Session) bool { return true })
		}
	}
}

// parked reports whether the node has parked sessions.
func (n *node) parked() bool { return len(n.aside) > 0 && !n.eligible.Load() }
