package pessimize

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// node is the state machine of one node. Detector.mu guards it; only Run writes.
type node struct {
	cluster.Node
	signs   *signs
	journal *journal
	history []Event // the newest of this node

	condition cluster.Condition // of the machine: without what an operator orders
	overrides overrides         // as Run last saw them

	observed
	penalty
	slowStart
	departure
	probes
	slowness
}

// observed is what the signs showed up to the last look.
type observed struct {
	seen      counts // as of the last look
	window    window
	past      window // the one before
	heard     heard
	lastBad   time.Time // newest bad sign
	goodAtBad uint64    // calls that had succeeded by then
}

// penalty is what ejections cost a node.
type penalty struct {
	until        time.Time // Ejected: end of the ejection time
	repeats      int       // ejections in a row, less those forgiven
	healthySince time.Time // since the last return from Probing
	ejections    [cluster.CauseSize]uint64
}

// slowStart is the time in which the share of a node rises.
type slowStart struct {
	startedAt time.Time // its begin; zero: there was none
	joined    bool      // it is that of a node that discovery did not list before
}

// departure is how a node comes and goes.
type departure struct {
	hinted   time.Time // newest announcement of shutdown; zero: none
	departed time.Time // when it left discovery; zero: listed
	moved    string    // why it leaves, or stays after all, which does not explain its health; "": its health is the newer news
	missing  time.Time // when Node.Missing was set last
	left     bool      // it was leaving at the last look
	arrived  arrival   // since the last look
}

// probes are those of one node.
type probes struct {
	probing   bool // a probe is under way
	stood     bool // this process stood still during the newest probe that ended
	reference bool // a probe is wanted to see what is normal
	nextProbe time.Time
	answers   int // good probes in a row
	misses    int // Probing: probes that were not good
	lastProbe lastProbe
}

// counts is a copy of the counters in signs.
type counts struct{ succeeded, refused, broken, bad, hints, foreign, silent uint64 }

// arrival says how a node came into discovery.
type arrival uint8

const (
	arrivedNot   arrival = iota
	arrivedMoved         // it was listed at another address
	arrivedNew           // it was not listed
)

// window is the time over which the share of refusals is taken.
type window struct {
	began     time.Time
	succeeded uint64 // counter at its begin
	refused   uint64
}

// heard is when a node last showed a sign of any kind, and how long it may be
// silent before it gets a probe.
type heard struct {
	at      time.Time
	patient time.Duration
}

// lastProbe is the newest probe that ended.
type lastProbe struct {
	at   time.Time // when it ended; zero: none yet
	took time.Duration
	ok   bool   // answered, however slowly
	text string // what came of it
}

// slowness is what is known of a node that may be much slower than the others.
type slowness struct {
	recent    [timedKinds]recent
	timed     [2]uint64             // calls with a latency by the newest beat, and by the one before
	slowSince [timedKinds]time.Time // its calls are too slow since then; zero: they are not
	doubt
}

func newNode(n cluster.Node, c Config, j *journal, now time.Time) *node {
	s := new(signs)
	s.floor.Store(int64(c.LatencyFloor))
	return &node{
		Node:      n,
		signs:     s,
		journal:   j,
		condition: cluster.Condition{Since: now},
		penalty:   penalty{healthySince: now},
		observed:  observed{window: window{began: now}, heard: heard{now, jitter(c.IdleProbe)}},
	}
}

// leftDiscovery is why a node leaves that discovery does not list any more.
const leftDiscovery = "left discovery"

// drained is why a node leaves that discovery lists as leaving.
const drained = "drained, says who lists the nodes"

// unwell is why a node gets nothing new that discovery lists as unhealthy.
const unwell = "unhealthy, says who lists the nodes"

// shown is the verdict that is published: the machine's with the operator's orders, and
// with what discovery says of the node.
func (n *node) shown() cluster.Condition {
	v := n.condition
	why := make([]string, 0, 5)
	if n.overrides.banned {
		v.Banned, v.BanReason = true, n.overrides.reason
		why = append(why, strings.TrimSuffix("banned by an operator: "+n.overrides.reason, ": "))
	}
	if n.overrides.drained {
		v.Draining = true
		why = append(why, "drained by an operator")
	}
	if n.Draining {
		v.Draining = true
		why = append(why, drained)
	}
	if n.Unwell {
		why = append(why, unwell)
	}
	if n.moved != "" {
		why = append(why, n.moved)
	}
	if v.Reason != "" && (n.moved == "" || v.Health != cluster.Healthy) {
		why = append(why, v.Reason)
	}
	v.Reason = strings.Join(why, "; ")
	return v
}

// look reads the signs and steps the machine.
func (n *node) look(j *Detector, now time.Time) {
	c := j.config
	before := n.condition.Health
	// Rows are read first: a success that comes in between then makes the
	// judgement milder by one look, never harsher.
	brokenRow, refusedRow := n.signs.brokenRow.Load(), n.signs.refusedRow.Load()
	at := counts{
		succeeded: n.signs.succeeded.Load(), refused: n.signs.refused.Load(),
		broken: n.signs.broken.Load(), bad: n.signs.bad.Load(), hints: n.signs.hints.Load(), foreign: n.signs.foreign.Load(),
		silent: n.signs.silent.Load(),
	}
	last := n.seen
	n.seen = at
	if at.bad == last.bad {
		n.seen.silent = last.silent // signs.add counts it before the bad sign, and both are judged together
	}
	if at != last {
		n.heard = heard{now, n.heard.patient}
	}
	if now.Sub(n.window.began) >= c.RefusalWindow {
		n.past, n.window = n.window, window{began: now, succeeded: last.succeeded, refused: last.refused}
	}

	if at.hints != last.hints {
		n.hinted = now
		n.leave(now, "announced its shutdown")
	}
	if at.foreign != last.foreign {
		n.hinted = now
		n.leave(now, "serves another database")
	}
	if at.bad != last.bad {
		n.lastBad, n.goodAtBad = now, at.succeeded
		n.judge(j, now, brokenRow, refusedRow, at, at.silent != last.silent)
		if n.condition.Health == cluster.Suspect && !n.doubt.doubts() {
			n.nextProbe = now.Add(c.ProbeInterval)
		}
	}
	if at.broken != last.broken && n.condition.Health == cluster.Ejected ||
		at.silent != last.silent && n.condition.Health == cluster.Probing {
		n.condition.Unreachable = true
	}
	switch {
	case n.condition.Health != before:
		// One step a look: what was read speaks of the time before it.
	case n.condition.Health == cluster.Suspect:
		if now.Sub(n.lastBad) >= c.ProbeInterval && at.succeeded != n.goodAtBad {
			n.step(c, good, now, "calls succeed")
		}
	case n.condition.Health == cluster.Ejected:
		// Somebody got through, as happens when no node answers and all are
		// tried: no reason to wait any longer with the probe.
		early := n.condition.Unreachable && at.succeeded != last.succeeded
		if n.departed.IsZero() && (early || !now.Before(n.until)) {
			n.step(c, rested, now, n.condition.Reason)
		}
	}
	n.setRamp(n.ramp(c, now), now)
	n.signs.watched.Store(n.condition.Health == cluster.Ejected && n.condition.Unreachable)
}

// judge weighs new bad signs.
func (n *node) judge(j *Detector, now time.Time, brokenRow, refusedRow int64, at counts, silent bool) {
	c := j.config
	o := n.signs.last.Load()
	refused := at.refused - n.window.refused
	total := refused + at.succeeded - n.window.succeeded
	switch {
	case silent:
		n.answers = 0
		n.eject(c, failed, cluster.CauseSilence, now,
			fmt.Sprintf("%s on %v; a connection with calls outstanding is dead", o.Detail, o.Kind))
	case brokenRow >= int64(c.TransportFailures):
		n.eject(c, hard, cluster.CauseTransport, now, fmt.Sprintf("%s on %v; %d transport errors in a row", o.Detail, o.Kind, brokenRow))
	case refusedRow >= int64(c.Refusals):
		j.refuses(n, now, fmt.Sprintf("%s on %v; %d refusals in a row", o.Detail, o.Kind, refusedRow))
	case refused >= uint64(c.RefusalMin) && float64(refused) >= c.RefusalShare*float64(total):
		j.refuses(n, now, fmt.Sprintf("%s on %v; %d of %d calls refused within %v", o.Detail, o.Kind, refused, total, c.RefusalWindow))
	default:
		n.step(c, sign, now, fmt.Sprintf("%s on %v", o.Detail, o.Kind))
	}
}

// refusalFactor is how many times the others' share of refusals a node's own must be.
const refusalFactor = 5

// refuses ejects a node that refuses calls, if it does so much more than the others, and
// if not too many are ejected already.
func (j *Detector) refuses(n *node, now time.Time, reason string) {
	switch {
	case !j.refusesAlone(n):
		n.step(j.config, sign, now, reason+"; other nodes refuse as much")
	case !j.mayEject():
		n.step(j.config, sign, now, reason+"; but so many nodes are ejected already that this one stays")
	default:
		n.eject(j.config, soft, cluster.CauseRefusals, now, reason)
	}
}

// refusesAlone reports whether a node refuses several times the share of its calls that the
// others refuse, by the median, and as many times in a row. Without another node that is
// in use nobody knows, and there is nowhere else to go.
func (j *Detector) refusesAlone(n *node) bool {
	if j.refusing == nil {
		j.refusing = j.refusals()
	}
	share, row := n.refusalShare(), float64(n.signs.refusedRow.Load())
	others, known := middleBut(j.refusing.shares, share, n.sits())
	rows, _ := middleBut(j.refusing.rows, row, n.sits())
	return known && share >= refusalFactor*others && row >= refusalFactor*rows
}

// refusing are the shares and the rows of refusals of all nodes in use, in ascending order.
type refusing struct{ shares, rows []float64 }

// refusals is what refusesAlone compares with. One look makes it once: when a whole cluster
// refuses, all nodes are compared with it.
func (j *Detector) refusals() *refusing {
	j.compared++
	r := new(refusing)
	for _, o := range j.nodes {
		if o.sits() {
			r.shares, r.rows = append(r.shares, o.refusalShare()), append(r.rows, float64(o.signs.refusedRow.Load()))
		}
	}
	slices.Sort(r.shares)
	slices.Sort(r.rows)
	return r
}

// middleBut returns the lower median of sorted values; without own, if that is one of them. It is
// false if no value is left.
func middleBut(sorted []float64, own float64, within bool) (float64, bool) {
	if !within {
		return middleOf(sorted)
	}
	if len(sorted) < 2 {
		return 0, false
	}
	middle := (len(sorted) - 2) / 2
	if at, _ := slices.BinarySearch(sorted, own); at <= middle {
		middle++
	}
	return sorted[middle], true
}

func middleOf(sorted []float64) (float64, bool) {
	if len(sorted) == 0 {
		return 0, false
	}
	return sorted[(len(sorted)-1)/2], true
}

// refusalShare is the part of its calls that a node refused in the present window and the one before.
func (n *node) refusalShare() float64 {
	refused, succeeded := n.signs.refused.Load()-n.past.refused, n.signs.succeeded.Load()-n.past.succeeded
	return float64(refused) / float64(max(1, refused+succeeded))
}

// eject takes an edge that may lead to Ejected.
func (n *node) eject(c Config, e event, cause cluster.Cause, now time.Time, reason string) {
	from := n.condition.Health
	if table[from][e] == cluster.Ejected && from != cluster.Ejected {
		n.condition.Cause = cause
		n.condition.Unreachable = e == hard || e == failed
		n.repeats = n.owed(c, now) + 1
		n.until = now.Add(jitter(ejection(c, n.repeats)))
		n.ejections[cause]++
		n.journal.ejections[cause]++
		n.forgetSlowness(now)
		n.condition.Ramp, n.condition.Joined = 0, false
	}
	n.step(c, e, now, reason)
}

// owed is how many repeats are not forgiven yet.
func (n *node) owed(c Config, now time.Time) int {
	if n.condition.Health == cluster.Ejected || n.condition.Health == cluster.Probing {
		return n.repeats
	}
	return max(0, n.repeats-int(now.Sub(n.healthySince)/c.Forgive))
}

// step takes one edge of the table.
func (n *node) step(c Config, e event, now time.Time, reason string) {
	from := n.condition.Health
	to := table[from][e]
	if to == from {
		return
	}
	n.journal.add(now, n, EventState, from.String(), to.String(), reason)
	n.condition.Health, n.condition.Since, n.condition.Reason = to, now, reason
	switch to {
	case cluster.Probing:
		n.answers, n.misses = 0, 0
		n.nextProbe = now
	case cluster.Healthy:
		n.signs.clear()
		n.window = window{began: now, succeeded: n.seen.succeeded, refused: n.seen.refused}
		n.past = n.window
		n.condition.Unreachable, n.condition.Cause = false, cluster.CauseNone
		if from == cluster.Probing {
			n.healthySince, n.startedAt, n.joined = now, now, false
			n.forgetSlowness(now)
			n.setRamp(n.ramp(c, now), now)
		}
		if n.departed.IsZero() && e == answered {
			n.stay(now, "answers probes")
		}
	}
	if !n.condition.Draining {
		n.moved = "" // its health is the newer news, also of a node that stays because of it
	}
}

// leave notes that the node is going away.
func (n *node) leave(now time.Time, reason string) {
	if !n.condition.Draining {
		n.journal.add(now, n, EventDraining, "", "leaving", reason)
	}
	n.condition.Draining, n.moved = true, reason
}

// stay takes back that the node is leaving.
func (n *node) stay(now time.Time, reason string) {
	if n.condition.Draining {
		n.journal.add(now, n, EventDraining, "leaving", "", reason)
	}
	n.hinted = time.Time{}
	n.condition.Draining, n.moved = false, reason
}

// leaves reports whether the node gets nothing new because it is going away, for whatever reason.
func (n *node) leaves() bool { return n.condition.Draining || n.overrides.drained || n.Draining }

// begin gives a slow start to nodes that joined, or stay after all: they may be processes that
// have just started, with cold caches, and all sidecars learn of them at once. When most of the
// nodes are new at a time, they have none: the few others could not carry the load meanwhile.
func (j *Detector) begin(now time.Time) {
	var fresh []*node
	listed, coming := 0, 0 // coming: those that are still in a slow start because they joined
	for _, n := range j.nodes {
		left := n.left
		n.left = n.leaves()
		if n.departed.IsZero() {
			listed++
		}
		if n.condition.Joined {
			coming++
		}
		if !n.left && (left || n.arrived != arrivedNot) {
			fresh = append(fresh, n)
			n.joined = n.arrived == arrivedNew
		}
		n.arrived = arrivedNot
	}
	if 2*(len(fresh)+coming) > listed { // also if a cluster comes back piece by piece
		for _, n := range j.nodes {
			if n.condition.Joined {
				n.startedAt = time.Time{}
			}
		}
		return
	}
	for _, n := range fresh {
		n.startedAt = now
	}
}

// The slow start: the share of a node that returned or joined, in this many steps.
const (
	rampSteps = 5
	rampFirst = 0.1
)

// ramp is what a node gets of its fair share at this time; 0 for all of it.
func (n *node) ramp(c Config, now time.Time) float32 {
	passed := now.Sub(n.startedAt)
	if n.startedAt.IsZero() || passed >= c.SlowStart || n.condition.Health == cluster.Ejected || n.condition.Health == cluster.Probing {
		return 0
	}
	return max(rampFirst, float32(rampSteps*passed/c.SlowStart)/rampSteps)
}

func (n *node) setRamp(share float32, now time.Time) {
	if n.condition.Ramp != share {
		n.journal.add(now, n, EventRamp, rampText(n.condition.Ramp), rampText(share), "slow start")
		n.condition.Ramp = share
	}
	n.condition.Joined = share != 0 && n.joined
}

func rampText(share float32) string {
	if share == 0 {
		share = 1
	}
	return fmt.Sprintf("%.0f%%", 100*share)
}

// nextRamp is when the share grows; zero: it does not.
func (n *node) nextRamp(c Config, now time.Time) time.Time {
	if n.condition.Ramp == 0 {
		return time.Time{}
	}
	step := c.SlowStart / rampSteps
	return n.startedAt.Add((now.Sub(n.startedAt)/step + 1) * step)
}

// ejection is the time without calls after the given number of repeats, from 1.
func ejection(c Config, repeats int) time.Duration {
	d := c.Ejection
	for i := 1; i < repeats && d < c.EjectionMax; i++ {
		d *= 2
	}
	return min(d, c.EjectionMax)
}

// jitter spreads d by a fifth to either side, so that many sidecars do not
// come back to a node together.
func jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(d*2/5+1)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
