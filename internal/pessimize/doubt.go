package pessimize

import (
	"fmt"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// questioned reports whether a node may be slow itself: its probes do not show
// what is normal.
func (n *node) questioned() bool {
	return n.doubted || n.spared || n.slowSince != [timedKinds]time.Time{}
}

// How a doubt is settled.
const (
	slowProbes = 3                      // slow probes in a row that eject a node whose calls are slow
	doubtGap   = 150 * time.Millisecond // between probes that settle a doubt
	// doubtRest passes between two doubts about a node that probes settled in its favour. It doubles up to doubtMax
	// until a call is fast.
	doubtRest = 2 * time.Second
	doubtMax  = 30 * time.Second
	clearly   = 2 // times what is normal, below which a probe is good without a question
	patience  = 6 // probes that did not settle it, after which the node has the benefit of the doubt
)

// doubt has nodes probed whose last calls were slow.
func (j *Judge) doubt(now time.Time) {
	for _, n := range j.nodes {
		if n.doubted || !n.sits() {
			continue
		}
		longest := int64(0)
		for kind := range n.signs.slowRow {
			row := n.signs.slowRow[kind].Load()
			longest = max(longest, row)
			if row >= few && !now.Before(n.doubtFrom) {
				n.doubted, n.doubtKind, n.slowRow, n.unsure, n.nextProbe = true, kind, 0, 0, now
				break
			}
		}
		if longest == 0 {
			n.unfounded = 0
		}
	}
}

// clear ends a doubt in favour of the node.
func (n *node) clear(now time.Time) {
	n.doubted, n.slowRow, n.unsure = false, 0, 0
	n.doubtFrom = now.Add(jitter(min(doubtRest<<n.unfounded, doubtMax)))
	n.unfounded = min(n.unfounded+1, 10)
}

// tooSlow ejects a node, if it may.
func (j *Judge) tooSlow(n *node, now time.Time, reason string) {
	if j.mayEject() {
		n.eject(j.config, slow, cluster.CauseLatency, now, reason)
		return
	}
	if !n.spared {
		n.spared = true
		j.stats.Spared++
		j.journal.add(now, n, EventSpared, "", "", reason+"; but so many nodes are ejected already that this one stays")
	}
}

// mayEject reports whether one more node may be ejected for its latency: the cap.
func (j *Judge) mayEject() bool {
	listed, out, soft := j.census()
	return (out+1)*2 <= listed && soft+1 <= max(1, int(j.config.SoftMax*float64(listed)))
}

// probedSlow judges how long an answered probe took. It reports whether the
// answer counts as slow, and as a good one: neither, while it is not known what
// is normal, or the probe lies between the two.
func (j *Judge) probedSlow(n *node, took time.Duration, now time.Time) (slow, good bool, normal norm) {
	age := freshAge
	if n.verdict.Health == cluster.Probing {
		age = knownAge
	}
	if took < j.config.LatencyFloor {
		return false, true, normal
	}
	normal = j.probeNorm(n, now, age)
	switch {
	case normal.limit != 0 && took >= normal.limit:
		return true, false, normal
	case normal.limit != 0 && took < clearly*normal.median:
		return false, true, normal
	case n.unsure < patience && j.askOthers(n, now, age/4): // again: theirs may have been the odd ones
		n.unsure++
		return false, false, normal
	default:
		return false, true, normal
	}
}

// probeSlow takes a probe that was answered too late to be a good one.
func (j *Judge) probeSlow(n *node, normal norm, r probeResult, now time.Time) {
	n.answers = 0
	reason := fmt.Sprintf("a probe took %v, on %d other nodes %v: the limit is %v",
		round(r.took), normal.nodes, round(normal.median), round(normal.limit))
	n.lastProbe.text = "slow: " + reason
	if n.verdict.Health == cluster.Probing {
		n.verdict.Reason = reason
		n.nextProbe = now.Add(jitter(j.config.ProbeInterval))
		return
	}
	if n.signs.slowRow[n.doubtKind].Load() == 0 {
		// A call was fast since: the node is not slow throughout, and the calls
		// that are will tell.
		n.clear(now)
		return
	}
	n.lastBad, n.goodAtBad = now, n.signs.succeeded.Load()
	n.slowRow++
	if n.slowRow >= slowProbes {
		j.tooSlow(n, now, reason+", and its calls are slow as well")
		n.slowRow = 0 // if it was spared
		return
	}
	n.step(j.config, sign, now, reason)
}

// settle ends all doubts about the node's speed.
func (n *node) settle(now time.Time) {
	n.clear(now)
	n.unfounded, n.spared = 0, false
	n.slowSince = [timedKinds]time.Time{}
	for i := range n.recent {
		n.recent[i].forget()
		n.signs.slowRow[i].Store(0)
	}
}
