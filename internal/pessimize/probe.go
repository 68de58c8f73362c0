package pessimize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

const (
	maxProbes = 512                   // under way: half of them of lost nodes, half of others
	fewProbes = 32                    // of each half, where that is enough for a turn
	turn      = 10 * time.Second      // in which all nodes of a half that are due get a probe, as far as maxProbes allows
	fresh     = 3                     // probes without an answer after which a node has been lost for long
	heldGap   = 50 * time.Millisecond // between probes of missing nodes, which may be most of the cluster
	idleGap   = time.Second           // between probes of idle nodes: many sidecars with many nodes must not make a load of them
)

// ErrRefused is to be wrapped by a Prober's error when the node answered the
// probe but refused it. Every other error means that it could not be reached.
var ErrRefused = errors.New("the node refused the probe")

// ErrNothing is to be wrapped by a Prober's error when this process ended the probe: it says nothing of the node.
var ErrNothing = errors.New("this process ended the probe")

// Prober makes one cheap call to one node. It returns nil if the node answered
// and honours ctx, which carries Config.ProbeTimeout.
type Prober interface {
	Probe(ctx context.Context, id cluster.NodeID) error
}

type probeResult struct {
	node      *node
	lost      bool // it was when the probe began
	began     time.Time
	succeeded uint64 // calls to the node by then
	timeout   time.Duration
	took      time.Duration
	err       error
}

// stoodStill reports whether this process stood still during the probe: it was not ended in time, so its answer may
// wait to be read.
func (r probeResult) stoodStill() bool { return r.err != nil && r.took > r.timeout*5/4 }

func (r probeResult) refused() bool { return errors.Is(r.err, ErrRefused) }

// reason is one line of bounded length.
func (r probeResult) reason() string { return "probe: " + line(r.err.Error()) }

// line makes one line of bounded length.
func line(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return text
}

const maxText = 200 // bytes

// wantsProbe says when a probe is due, and whether only because the node is
// idle; the zero time means never, as things are.
func (n *node) wantsProbe(c Config, now time.Time) (due time.Time, idle bool) {
	if n.probing || !n.departed.IsZero() {
		return time.Time{}, false
	}
	switch {
	case n.condition.Health == cluster.Ejected:
		return time.Time{}, false
	case n.condition.Draining && n.condition.Health != cluster.Probing:
		// It refuses sessions, which is what a probe asks for: whatever else is held against it can wait.
		return later(n.hinted.Add(c.Leaving), n.nextProbe), false
	case n.condition.Health == cluster.Probing || n.condition.Health == cluster.Suspect || n.doubt.doubts():
		due = n.nextProbe
	}
	if n.reference {
		return now, false
	}
	if n.doubtful() {
		return n.missing, false
	}
	if c.IdleProbe > 0 {
		if at := n.heard.at.Add(n.heard.patient); due.IsZero() || at.Before(due) {
			return at, true
		}
	}
	return due, false
}

// doubtful reports whether the node is missing and gave no sign since: a probe shows
// whether it is gone.
func (n *node) doubtful() bool {
	return n.Missing && n.heard.at.Before(n.missing) && n.condition.Health != cluster.Ejected && n.condition.Health != cluster.Probing
}

// lost reports whether the newest that is known of the node is that it cannot be reached.
// Each probe of such a node may take all of Config.ProbeTimeout.
func (n *node) lost() bool { return n.condition.Health == cluster.Probing && n.condition.Unreachable }

// rank orders the probes that are due: the lower ones are first. Lost nodes have an order of
// their own: those that were lost just now are before those that are lost for long.
func (n *node) rank() int {
	switch {
	case n.lost():
		return min(n.misses, fresh)
	case n.doubt.doubts(), n.reference, n.condition.Health == cluster.Suspect:
		return 0 // in use, and in question
	case n.condition.Health == cluster.Probing:
		return 1 // it answers, and is to return
	default:
		return 2
	}
}

// underWay is how many probes are under way.
type underWay struct{ lost, others int }

func (u *underWay) of(lost bool) *int {
	if lost {
		return &u.lost
	}
	return &u.others
}

// workers is how many probes of a half may be under way when so many are or should be.
func workers(wanted int, timeout time.Duration) int {
	return min(maxProbes/2, max(fewProbes, int(time.Duration(wanted)*timeout/turn)))
}

// dueProbe is a probe that may begin now.
type dueProbe struct {
	*node
	since time.Time
	rank  int
}

func (p dueProbe) compare(o dueProbe) int {
	return cmp.Or(cmp.Compare(p.rank, o.rank), p.since.Compare(o.since))
}

// startProbes starts what is due and returns when to look again.
func (j *Detector) startProbes(ctx context.Context, running *sync.WaitGroup, now time.Time) (next time.Time) {
	next = j.beatAt.Add(beat)
	soonest := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	for id, o := range j.overrides {
		if j.nodes[id] != nil && o.banned {
			soonest(o.until)
		}
	}
	var lost, others, idle, held []dueProbe
	for _, n := range j.nodes {
		if n.condition.Health == cluster.Ejected && n.departed.IsZero() {
			soonest(n.until)
		}
		soonest(n.nextRamp(j.config, now))
		due, quiet := n.wantsProbe(j.config, now)
		if due.IsZero() {
			continue
		}
		p := dueProbe{node: n, since: due, rank: n.rank()}
		to := &others
		switch {
		case n.lost():
			to = &lost
		case quiet:
			to, due = &idle, later(due, j.idleFrom)
		case n.doubtful():
			to, due = &held, later(due, j.heldFrom)
		}
		if due.After(now) {
			soonest(due)
		} else {
			*to = append(*to, p)
		}
	}
	j.startThose(ctx, running, lost, now)
	j.startThose(ctx, running, others, now)
	for _, slow := range []struct {
		all  []dueProbe
		from *time.Time
		gap  time.Duration
	}{{held, &j.heldFrom, heldGap}, {idle, &j.idleFrom, idleGap}} {
		if len(slow.all) == 0 {
			continue
		}
		// One of them begins now, and the next one after the gap.
		if j.startThose(ctx, running, []dueProbe{slices.MinFunc(slow.all, dueProbe.compare)}, now) == 1 {
			*slow.from = now.Add(slow.gap)
			soonest(*slow.from)
		}
	}
	return next
}

// startThose starts as many of the probes as there are places, all of lost nodes or none, and
// returns how many. The result of the next one that ends brings Run back for the others.
func (j *Detector) startThose(ctx context.Context, running *sync.WaitGroup, due []dueProbe, now time.Time) (started int) {
	if len(due) == 0 {
		return 0
	}
	lost := due[0].lost()
	underWay := j.probes.of(lost)
	room := min(len(due), workers(*underWay+len(due), j.config.ProbeTimeout)-*underWay)
	if room <= 0 {
		return 0
	}
	if room < len(due) {
		slices.SortFunc(due, dueProbe.compare)
	}
	for _, p := range due[:room] {
		*underWay++
		n := p.node
		n.probing, n.reference = true, false
		r := probeResult{node: n, lost: lost, began: now, succeeded: n.signs.succeeded.Load(), timeout: j.config.ProbeTimeout}
		id := n.ID // n is Run's: a topology may replace it meanwhile
		running.Go(func() {
			limited, cancel := context.WithTimeout(ctx, r.timeout)
			defer cancel()
			began := time.Now()
			r.err = panics.Call("a probe", func() error { return j.prober.Probe(limited, id) })
			r.took = time.Since(began)
			j.results <- r
		})
	}
	return room
}

// probed takes the result of a probe.
func (j *Detector) probed(r probeResult, now time.Time) {
	n, c := r.node, j.config
	n.probing = false
	if n.stood = r.stoodStill() && !n.stood; n.stood { // once: on a machine as busy as that the next one counts
		n.nextProbe = now
		return
	}
	if errors.Is(r.err, ErrNothing) {
		n.nextProbe = now.Add(jitter(c.ProbeInterval))
		return
	}
	n.heard = heard{now, jitter(c.IdleProbe)}
	n.lastProbe = lastProbe{at: now, took: r.took, ok: r.err == nil, text: "answered"}
	j.stats.Probes++
	switch {
	case r.err == nil:
		j.probeAnswered(r, now)
	default:
		n.lastProbe.text = line(r.err.Error())
		j.stats.ProbesFailed++
		n.probeFailed(c, r, now)
	}
}

// probeFailed takes a probe that was refused or not answered. Neither ejects a
// node that takes no more sessions, or whose calls succeed meanwhile.
func (n *node) probeFailed(c Config, r probeResult, now time.Time) {
	n.answers = 0
	n.nextProbe = now.Add(jitter(c.ProbeInterval))
	n.lastBad, n.goodAtBad = now, n.signs.succeeded.Load()
	switch {
	case n.condition.Health == cluster.Probing:
		n.misses++
		n.condition.Unreachable = !r.refused()
		n.condition.Reason = r.reason()
	case r.refused() || n.signs.succeeded.Load() != r.succeeded:
		n.step(c, sign, now, r.reason())
	default:
		n.eject(c, failed, cluster.CauseProbe, now, r.reason())
	}
}

func (j *Detector) probeAnswered(r probeResult, now time.Time) {
	n, c := r.node, j.config
	if n.condition.Health == cluster.Probing && r.began.Before(n.condition.Since) {
		return // it says nothing of the time after the ejection: the next one begins now
	}
	n.nextProbe = now.Add(jitter(c.ProbeInterval / 4))
	timed := n.doubt.doubts() || n.condition.Health == cluster.Probing && n.condition.Cause == cluster.CauseLatency
	if n.doubt.doubts() {
		n.nextProbe = now.Add(jitter(doubtGap))
	}
	if timed {
		slow, good, normal := j.probedSlow(n, r.took, now)
		if slow {
			j.stats.ProbesSlow++
			j.probeSlow(n, normal, r, now)
		}
		if !good {
			if !slow && n.doubt.doubts() && normal.limit == 0 {
				n.nextProbe = now.Add(jitter(doubtGap / 3)) // others are asked: their answers take no longer
			}
			n.condition.Unreachable = n.condition.Unreachable && n.condition.Health != cluster.Probing
			return
		}
		n.doubt.settle(now)
	}
	n.answers++
	switch n.condition.Health {
	case cluster.Probing:
		n.condition.Unreachable = false
		if n.answers >= c.Probes {
			n.step(c, answered, now, fmt.Sprintf("%d probes answered", n.answers))
		}
	case cluster.Suspect:
		// An answered probe outweighs the bad sign only if no newer one came
		// while it was under way.
		if r.began.After(n.lastBad) {
			n.step(c, answered, now, "probe answered")
		}
	case cluster.Healthy:
		// One that left discovery was asked before: its answer says nothing of its return.
		if n.condition.Draining && n.departed.IsZero() && r.began.Sub(n.hinted) >= c.Leaving {
			n.stay(now, "still there after it announced its shutdown")
			if !n.leaves() { // else begin gives it its slow start when it stays
				n.startedAt, n.joined = now, false // it may have been restarted
				n.setRamp(n.ramp(c, now), now)
			}
		}
	}
}
