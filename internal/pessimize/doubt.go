package pessimize

import (
	"fmt"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// doubtState says what is held against the speed of one node.
type doubtState uint8

const (
	undoubted     doubtState = iota // nothing
	doubted                         // its last calls were slow: probes settle whether the node is
	spared                          // it is too slow, and stays only because too many nodes are ejected
	sparedDoubted                   // both
	doubtStates   = int(sparedDoubted) + 1
)

func (s doubtState) String() string {
	return [...]string{"undoubted", "doubted", "spared", "spared, doubted"}[s]
}

// doubtEvent is what can happen to a doubt.
type doubtEvent uint8

const (
	suspected   doubtEvent = iota // enough slow calls in a row, and the rest after the last doubt is over
	settled                       // a good probe, or a fast call beside slow probes
	capped                        // too slow, but no more nodes may be ejected for that
	calmed                        // no kind of its calls is slow
	over                          // the node is ejected, or back from Probing
	doubtEvents = int(over) + 1
)

func (e doubtEvent) String() string {
	return [...]string{
		"two calls in a row are too slow, and the last doubt ended long enough ago",
		"a probe is good, or a probe is too slow and the last call was fast",
		"the node is too slow, but no more nodes may be ejected",
		"no kind of its calls has a median of `health.latency_floor` or more",
		"the node is ejected, or returns to healthy from probing",
	}[e]
}

// doubtTable has the next state for each state and event. It is the whole machine; docs/concepts/health.md shows it.
var doubtTable = [doubtStates][doubtEvents]doubtState{
	undoubted: {
		suspected: doubted, settled: undoubted, capped: spared, calmed: undoubted, over: undoubted,
	},
	doubted: {
		suspected: doubted, settled: undoubted, capped: sparedDoubted, calmed: doubted, over: undoubted,
	},
	spared: {
		suspected: sparedDoubted, settled: spared, capped: spared, calmed: undoubted, over: undoubted,
	},
	sparedDoubted: {
		suspected: sparedDoubted, settled: spared, capped: sparedDoubted, calmed: doubted, over: undoubted,
	},
}

// doubt is the machine of one node, with what its probes have come to. Only step writes the state.
type doubt struct {
	state     doubtState
	kind      int       // kind of call that raised the doubt
	from      time.Time // no new doubt before
	unfounded int       // doubts in a row that probes settled in its favour, without a fast call between
	slowRow   int       // slow probes in a row
	unsure    int       // slow probes while it was not known what is normal
}

// doubts reports whether probes are to settle if the node is slow.
func (d *doubt) doubts() bool { return d.state == doubted || d.state == sparedDoubted }

// step takes one edge of the table, and reports whether it leads to another state.
func (d *doubt) step(e doubtEvent) (moved bool) {
	from := d.state
	d.state = doubtTable[from][e]
	if testHookDoubt != nil {
		testHookDoubt(d, from, e)
	}
	return d.state != from
}

// testHookDoubt is called after each step.
var testHookDoubt func(d *doubt, from doubtState, e doubtEvent)

// suspect has probes settle whether calls of a kind are slow.
func (d *doubt) suspect(kind int) {
	d.step(suspected)
	d.kind, d.slowRow, d.unsure = kind, 0, 0
}

// settle ends a doubt in favour of the node.
func (d *doubt) settle(now time.Time) {
	d.step(settled)
	d.rest(now)
}

// end forgets all that is held against the node.
func (d *doubt) end(now time.Time) {
	d.step(over)
	d.rest(now)
	d.unfounded = 0
}

// rest has no doubt come for a while: longer each time that no call was fast between.
func (d *doubt) rest(now time.Time) {
	d.slowRow, d.unsure = 0, 0
	d.from = now.Add(jitter(min(doubtRest<<d.unfounded, doubtMax)))
	d.unfounded = min(d.unfounded+1, 10)
}

// questioned reports whether a node may be slow itself: its probes do not show
// what is normal.
func (n *node) questioned() bool {
	return n.doubt.state != undoubted || n.slowSince != [timedKinds]time.Time{}
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

// suspect has nodes probed whose last calls were slow.
func (j *Detector) suspect(now time.Time) {
	for _, n := range j.nodes {
		if n.doubt.doubts() || !n.sits() {
			continue
		}
		longest := int64(0)
		for kind := range n.signs.slowRow {
			row := n.signs.slowRow[kind].Load()
			longest = max(longest, row)
			if row >= few && !now.Before(n.doubt.from) {
				n.doubt.suspect(kind)
				n.nextProbe = now
				break
			}
		}
		if longest == 0 {
			n.doubt.unfounded = 0
		}
	}
}

// tooSlow ejects a node, if it may.
func (j *Detector) tooSlow(n *node, now time.Time, reason string) {
	if j.mayEject() {
		n.eject(j.config, slow, cluster.CauseLatency, now, reason)
		return
	}
	if n.doubt.step(capped) {
		j.stats.Spared++
		j.journal.add(now, n, EventSpared, "", "", reason+"; but so many nodes are ejected already that this one stays")
	}
}

// mayEject reports whether one more node may be ejected for its latency: the cap.
func (j *Detector) mayEject() bool {
	listed, out, soft := j.census()
	return (out+1)*2 <= listed && soft+1 <= max(1, int(j.config.SoftMax*float64(listed)))
}

// probedSlow judges how long an answered probe took. It reports whether the
// answer counts as slow, and as a good one: neither, while it is not known what
// is normal, or the probe lies between the two.
func (j *Detector) probedSlow(n *node, took time.Duration, now time.Time) (slow, good bool, normal norm) {
	age := freshAge
	if n.condition.Health == cluster.Probing {
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
	case n.doubt.unsure < patience && j.askOthers(n, now, age/4): // again: theirs may have been the odd ones
		n.doubt.unsure++
		return false, false, normal
	default:
		return false, true, normal
	}
}

// probeSlow takes a probe that was answered too late to be a good one.
func (j *Detector) probeSlow(n *node, normal norm, r probeResult, now time.Time) {
	n.answers = 0
	reason := fmt.Sprintf("a probe took %v, on %d other nodes %v: the limit is %v",
		round(r.took), normal.nodes, round(normal.median), round(normal.limit))
	n.lastProbe.text = "slow: " + reason
	if n.condition.Health == cluster.Probing {
		n.condition.Reason = reason
		n.nextProbe = now.Add(jitter(j.config.ProbeInterval))
		return
	}
	if n.signs.slowRow[n.doubt.kind].Load() == 0 {
		// A call was fast since: the node is not slow throughout, and the calls
		// that are will tell.
		n.doubt.settle(now)
		return
	}
	n.lastBad, n.goodAtBad = now, n.signs.succeeded.Load()
	n.doubt.slowRow++
	if n.doubt.slowRow >= slowProbes {
		j.tooSlow(n, now, reason+", and its calls are slow as well")
		n.doubt.slowRow = 0 // if it was spared
		return
	}
	n.step(j.config, sign, now, reason)
}

// forgetSlowness forgets all that its calls and probes have shown of the node's speed.
func (n *node) forgetSlowness(now time.Time) {
	n.doubt.end(now)
	n.slowSince = [timedKinds]time.Time{}
	for i := range n.recent {
		n.recent[i].forget()
		n.signs.slowRow[i].Store(0)
	}
}
