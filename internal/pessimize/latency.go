package pessimize

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// How slowness is told from chance.
const (
	beat       = 250 * time.Millisecond // between two looks at the latencies
	slowFor    = time.Second            // how long calls must stay slow: a short stall is no fault
	thinFor    = 10 * time.Second       // how long they must stay slow where a single session can have made all the calls
	thin       = 1.5                    // calls under way at a time, on average, up to which one session can have made them
	fewNodes   = 3                      // nodes up to which it takes the larger margin
	fewFactor  = 10                     // the larger margin, at least
	minVoice   = 5                      // latencies below which a node says nothing about what is normal
	maxDoubted = 32                     // nodes compared at each beat, slowest first
	references = 3                      // other nodes probed to see what is normal
	freshAge   = time.Second            // how old their probes may be when a node is to be ejected
	knownAge   = 30 * time.Second       // and when it is to return
)

// voice is what one other node says about what is normal.
type voice struct {
	zone          string
	median, upper time.Duration
}

// norm is what the other nodes show, and what is too slow beside it.
type norm struct {
	nodes  int           // others with something to say
	median time.Duration // of their medians; the greater of two in the middle
	upper  time.Duration // median of their upper bounds
	factor float64       // how many times the median is too slow
	limit  time.Duration // too slow; 0: there are too few others to tell
}

// normOf needs two voices: with a single other node nobody knows which of the
// two is odd. The margin goes by the number of other nodes, of which some may
// have no voice. A node with others in its zone is held against these as well: what
// all of a zone show is its distance.
func (c Config) normOf(zone string, others []voice, nodes int) norm {
	n := norm{nodes: len(others)}
	if n.nodes < 2 {
		return n
	}
	n.factor = c.LatencyFactor
	if nodes < fewNodes {
		n.factor = max(n.factor, fewFactor)
	}
	n.median, n.upper = medians(others)
	if zone != "" {
		others = slices.DeleteFunc(slices.Clone(others), func(v voice) bool { return v.zone != zone })
		if len(others) > 0 {
			median, upper := medians(others)
			n.median, n.upper = max(n.median, median), max(n.upper, upper)
		}
	}
	n.limit = max(c.LatencyFloor, time.Duration(n.factor*float64(n.median)))
	return n
}

func medians(voices []voice) (median, upper time.Duration) {
	all := make([]time.Duration, len(voices))
	for i, v := range voices {
		all[i] = v.median
	}
	slices.Sort(all)
	median = all[len(all)/2]
	for i, v := range voices {
		all[i] = v.upper
	}
	slices.Sort(all)
	return median, all[len(all)/2]
}

// sits reports whether a node has a say in what is normal.
func (n *node) sits() bool {
	return n.departed.IsZero() && (n.condition.Health == cluster.Healthy || n.condition.Health == cluster.Suspect)
}

// normal is what the other nodes show for one kind of call. It is sure if they
// are enough that were seen for no longer than span: of two nodes that become
// slow together, the one with fewer calls still shows the fast ones before.
func (j *Detector) normal(x *node, kind int) (n norm, sure bool) {
	self := x.recent[kind].sum
	j.compared++
	var all, strict []voice
	for _, o := range j.nodes {
		s := &o.recent[kind].sum
		if o == x || !o.sits() || s.total < minVoice {
			continue
		}
		v := voice{zone: o.Zone, median: s.median, upper: s.upper}
		all = append(all, v)
		if s.total >= j.config.LatencyMin && s.span <= self.span {
			strict = append(strict, v)
		}
	}
	if len(strict) >= 2 && 2*len(strict) >= len(all) {
		return j.config.normOf(x.Zone, strict, len(all)), true
	}
	return j.config.normOf(x.Zone, all, len(all)), false
}

// weigh takes the newest latencies of all nodes and finds those that are much
// slower than the others.
func (j *Detector) weigh(now time.Time) {
	began := j.beatAt
	j.beatAt = now
	type suspicion struct {
		*node
		kind int
	}
	var slow []suspicion
	for _, n := range j.nodes {
		before := len(slow)
		read := n.heardLatencies()
		for kind := range n.recent {
			r := &n.recent[kind]
			if read {
				r.take(&n.signs.times[kind], began)
			}
			r.keep(now, j.config)
			switch {
			case !n.sits():
				r.forget()
			case r.sum.median >= j.config.LatencyFloor:
				slow = append(slow, suspicion{n, kind})
				continue
			}
			n.slowSince[kind] = time.Time{}
		}
		if len(slow) == before {
			n.doubt.step(calmed)
		}
	}
	slices.SortFunc(slow, func(a, b suspicion) int {
		return cmp.Compare(b.recent[b.kind].sum.median, a.recent[a.kind].sum.median)
	})
	slow = slow[:min(len(slow), maxDoubted)]
	var ordinary [timedKinds]time.Duration
	if len(slow) > 0 {
		for kind := range ordinary {
			voices, _ := j.voices(kind)
			ordinary[kind] = j.config.ordinary(voices)
		}
	}
	for _, s := range slow {
		sum := &s.recent[s.kind].sum
		switch {
		case !s.sits(): // ejected since, for another kind
		case sum.total >= j.config.LatencyMin && sum.median < ordinary[s.kind]:
			s.slowSince[s.kind] = time.Time{}
		default:
			j.weighOne(s.node, s.kind, now)
		}
	}
	j.setSlowOver()
}

// voices are those of all nodes, and how many nodes could have one.
func (j *Detector) voices(kind int) (voices []voice, sitting int) {
	voices = make([]voice, 0, len(j.nodes))
	for _, n := range j.nodes {
		if n.sits() {
			sitting++
			if s := &n.recent[kind].sum; s.total >= minVoice {
				voices = append(voices, voice{median: s.median})
			}
		}
	}
	return voices, sitting
}

// ordinary is a latency below which no node is too slow, whichever of the others normal
// compares it with: at least half of them, and then their upper median. Mostly all nodes are
// below it, and none needs to be compared one by one. 0: there are too few to tell.
func (c Config) ordinary(all []voice) time.Duration {
	if len(all) < 3 {
		return 0
	}
	medians := make([]time.Duration, len(all))
	for i, v := range all {
		medians[i] = v.median
	}
	slices.Sort(medians)
	return max(c.LatencyFloor, time.Duration(c.LatencyFactor*float64(medians[len(all)/2/2])))
}

// heardLatencies reports whether there may be latencies that weigh has not read. A call is counted
// before its latency is, so they are read once more after the last call.
func (n *node) heardLatencies() bool {
	was := n.timed
	n.timed = [2]uint64{n.signs.succeeded.Load() + n.signs.late.Load(), was[0]}
	return n.timed[0] != was[0] || was[0] != was[1]
}

// setSlowOver says from which latency a call counts as slow, everywhere.
func (j *Detector) setSlowOver() {
	for kind := range timedKinds {
		voices, sitting := j.voices(kind)
		over := time.Duration(0)
		if sitting >= fewNodes {
			over = j.config.normOf("", voices, sitting-1).limit
		}
		for _, n := range j.nodes {
			n.signs.slowOver[kind].Store(int64(over))
		}
	}
}

func (j *Detector) weighOne(n *node, kind int, now time.Time) {
	s := n.recent[kind].sum
	normal, sure := j.normal(n, kind)
	if normal.limit == 0 {
		return
	}
	switch {
	case s.total >= j.config.LatencyMin && s.median < normal.limit:
		n.slowSince[kind] = time.Time{}
	case !sure:
	case s.lower <= normal.upper:
		n.slowSince[kind] = time.Time{} // it may be chance
	case n.slowSince[kind].IsZero():
		// Calls that took long show that it was slow before.
		n.slowSince[kind] = now.Add(-min(s.lower, slowFor-2*beat))
	case now.Sub(n.slowSince[kind]) >= s.patience():
		j.tooSlow(n, now, fmt.Sprintf("%v calls take %v, %d other nodes %v: the limit is %v",
			cluster.CallKind(kind)+firstTimed, round(s.median), normal.nodes, round(normal.median), round(normal.limit)))
		return
	}
}

// patience is for how long calls must stay slow.
func (s summary) patience() time.Duration {
	if s.busy < thin {
		return thinFor
	}
	return slowFor
}

// census counts the listed nodes that no operator banned, as internal/routing
// does, those of them that are ejected or listed as unhealthy, and those ejected for soft signs.
func (j *Detector) census() (listed, out, soft int) {
	for _, n := range j.nodes {
		if !n.departed.IsZero() || n.overrides.banned {
			continue
		}
		listed++
		ejected := n.condition.Health == cluster.Ejected || n.condition.Health == cluster.Probing
		if ejected || n.Unwell {
			out++
		}
		if ejected && !n.condition.Unreachable {
			soft++
		}
	}
	return listed, out, soft
}

// probeNorm is what the probes of the other nodes show, none older than age.
func (j *Detector) probeNorm(x *node, now time.Time, age time.Duration) norm {
	var all []voice
	for _, o := range j.nodes {
		if p := o.lastProbe; o != x && o.sits() && !o.questioned() && p.ok && now.Sub(p.at) <= age {
			all = append(all, voice{o.Zone, p.took, p.took})
		}
	}
	return j.config.normOf(x.Zone, all, len(all))
}

// askOthers has some other nodes probed, those of the same zone first, to see
// what is normal. It reports whether there are enough.
func (j *Detector) askOthers(x *node, now time.Time, age time.Duration) bool {
	type candidate struct {
		*node
		rank float64
	}
	var all []candidate
	for _, o := range j.nodes {
		if o == x || !o.sits() || o.questioned() {
			continue
		}
		c := candidate{o, rand.Float64()}
		if o.Zone != x.Zone {
			c.rank++
		}
		if o.probing || o.reference || now.Sub(o.lastProbe.at) <= age {
			c.rank -= 2 // it has or will have something to say
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.rank, b.rank) })
	for _, c := range all[:min(len(all), references)] {
		if !c.probing && now.Sub(c.lastProbe.at) > age {
			c.reference = true
		}
	}
	return len(all) >= 2
}

// round shortens a duration for people.
func round(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= 100*time.Millisecond:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	default:
		return d.Round(10 * time.Microsecond)
	}
}
