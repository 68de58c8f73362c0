package pessimize

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// node is the state machine of one node. Only Run touches it.
type node struct {
	cluster.Node
	signs *signs

	verdict cluster.Verdict
	seen    counts // as of the last look
	window  window

	lastBad      time.Time // newest bad sign
	goodAtBad    uint64    // calls that had succeeded by then
	repeats      int       // ejections in a row, less those forgiven
	healthySince time.Time // since the last return from Probing
	until        time.Time // Ejected: end of the ejection time

	hinted    time.Time // newest announcement of shutdown; zero: none
	departed  time.Time // when it left discovery; zero: listed
	probing   bool      // a probe is under way
	nextProbe time.Time
	answers   int // good probes in a row
}

// counts is a copy of the counters in signs.
type counts struct{ succeeded, refused, broken, bad, hints, silent uint64 }

// window is the time over which the share of refusals is taken.
type window struct {
	began     time.Time
	succeeded uint64 // counter at its begin
	refused   uint64
}

func newNode(n cluster.Node, now time.Time) *node {
	return &node{
		Node:         n,
		signs:        new(signs),
		verdict:      cluster.Verdict{Since: now},
		healthySince: now,
		window:       window{began: now},
	}
}

// look reads the signs and steps the machine. It reports whether the verdict
// changed.
func (n *node) look(c Config, now time.Time) (changed bool) {
	before := n.verdict
	// Rows are read first: a success that comes in between then makes the
	// judgement milder by one look, never harsher.
	brokenRow, refusedRow := n.signs.brokenRow.Load(), n.signs.refusedRow.Load()
	at := counts{
		succeeded: n.signs.succeeded.Load(), refused: n.signs.refused.Load(),
		broken: n.signs.broken.Load(), bad: n.signs.bad.Load(), hints: n.signs.hints.Load(),
		silent: n.signs.silent.Load(),
	}
	last := n.seen
	n.seen = at
	if now.Sub(n.window.began) >= c.RefusalWindow {
		n.window = window{began: now, succeeded: last.succeeded, refused: last.refused}
	}

	if at.hints != last.hints {
		n.hinted = now
		n.verdict.Leaving = true
		n.verdict.Reason = "announced its shutdown"
	}
	if at.bad != last.bad {
		n.lastBad, n.goodAtBad = now, at.succeeded
		n.judge(c, now, brokenRow, refusedRow, at, at.silent != last.silent)
		if n.verdict.Health == cluster.Suspect {
			n.nextProbe = now.Add(c.ProbeInterval)
		}
	}
	if at.broken != last.broken && n.verdict.Health == cluster.Ejected || at.silent != last.silent && n.verdict.Health == cluster.Probing {
		n.verdict.Unreachable = true
	}
	switch {
	case n.verdict.Health != before.Health:
		// One step a look: what was read speaks of the time before it.
	case n.verdict.Health == cluster.Suspect:
		if now.Sub(n.lastBad) >= c.ProbeInterval && at.succeeded != n.goodAtBad {
			n.step(c, good, now, "calls succeed")
		}
	case n.verdict.Health == cluster.Ejected:
		// Somebody got through, as happens when no node answers and all are
		// tried: no reason to wait any longer with the probe.
		early := n.verdict.Unreachable && at.succeeded != last.succeeded
		if n.departed.IsZero() && (early || !now.Before(n.until)) {
			n.step(c, rested, now, n.verdict.Reason)
		}
	}
	n.signs.watched.Store(n.verdict.Health == cluster.Ejected && n.verdict.Unreachable)
	return n.verdict != before
}

// judge weighs new bad signs.
func (n *node) judge(c Config, now time.Time, brokenRow, refusedRow int64, at counts, silent bool) {
	o := n.signs.last.Load()
	refused := at.refused - n.window.refused
	total := refused + at.succeeded - n.window.succeeded
	switch {
	case silent:
		n.answers = 0
		n.step(c, failed, now, fmt.Sprintf("%s on %v; a connection with calls outstanding is dead", o.Detail, o.Kind))
	case brokenRow >= int64(c.TransportFailures):
		n.step(c, hard, now, fmt.Sprintf("%s on %v; %d transport errors in a row", o.Detail, o.Kind, brokenRow))
	case refusedRow >= int64(c.Refusals):
		n.step(c, soft, now, fmt.Sprintf("%s on %v; %d refusals in a row", o.Detail, o.Kind, refusedRow))
	case refused >= uint64(c.RefusalMin) && float64(refused) >= c.RefusalShare*float64(total):
		n.step(c, soft, now, fmt.Sprintf("%s on %v; %d of %d calls refused within %v", o.Detail, o.Kind, refused, total, c.RefusalWindow))
	default:
		n.step(c, sign, now, fmt.Sprintf("%s on %v", o.Detail, o.Kind))
	}
}

// step takes one edge of the table.
func (n *node) step(c Config, e event, now time.Time, reason string) {
	from := n.verdict.Health
	to := table[from][e]
	if to == from {
		return
	}
	n.verdict.Health, n.verdict.Since, n.verdict.Reason = to, now, reason
	switch to {
	case cluster.Ejected:
		n.verdict.Unreachable = e == hard || e == failed
		n.repeats = max(0, n.repeats-int(now.Sub(n.healthySince)/c.Forgive)) + 1
		n.until = now.Add(jitter(ejection(c, n.repeats)))
	case cluster.Probing:
		n.answers = 0
		n.nextProbe = now
	case cluster.Healthy:
		if from == cluster.Probing {
			n.healthySince = now
		}
		n.signs.clear()
		n.window = window{began: now, succeeded: n.seen.succeeded, refused: n.seen.refused}
		n.verdict.Unreachable = false
		if n.departed.IsZero() && e == answered {
			n.stay()
		}
	}
}

// stay takes back that the node is leaving.
func (n *node) stay() {
	n.hinted = time.Time{}
	n.verdict.Leaving = false
}

// wantsProbe reports whether a probe is due, and otherwise when to ask again;
// the zero time means never, as things are.
func (n *node) wantsProbe(c Config) (due time.Time) {
	switch {
	case n.probing || !n.departed.IsZero():
		return time.Time{}
	case n.verdict.Health == cluster.Probing || n.verdict.Health == cluster.Suspect:
		return n.nextProbe
	case n.verdict.Health == cluster.Healthy && n.verdict.Leaving:
		return later(n.hinted.Add(c.Leaving), n.nextProbe)
	default:
		return time.Time{}
	}
}

// probed takes the result of a probe. It reports whether the verdict changed.
func (n *node) probed(c Config, result probeResult, now time.Time) (changed bool) {
	before := n.verdict
	n.probing = false
	if result.err != nil {
		n.answers = 0
		n.nextProbe = now.Add(jitter(c.ProbeInterval))
		n.step(c, failed, now, result.reason())
		if n.verdict.Health != cluster.Healthy {
			n.verdict.Unreachable = !result.refused()
			n.verdict.Reason = result.reason()
		}
		return n.verdict != before
	}
	n.answers++
	n.nextProbe = now.Add(jitter(c.ProbeInterval / 4))
	switch n.verdict.Health {
	case cluster.Probing:
		n.verdict.Unreachable = false
		if n.answers >= c.Probes {
			n.step(c, answered, now, fmt.Sprintf("%d probes answered", n.answers))
		}
	case cluster.Suspect:
		// An answered probe outweighs the bad sign only if no newer one came
		// while it was under way.
		if result.began.After(n.lastBad) {
			n.step(c, answered, now, "probe answered")
		}
	case cluster.Healthy:
		if result.began.Sub(n.hinted) >= c.Leaving {
			n.stay()
			n.verdict.Reason = "still there after it announced its shutdown"
		}
	}
	return n.verdict != before
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
