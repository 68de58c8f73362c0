package pessimize

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Why explains what is thought of one node at one time: what was counted, what
// it is compared with, and what happens next.
// Wide: a document, whose fields are those of its JSON.
type Why struct {
	Node    cluster.NodeID `json:"node"`
	Address string         `json:"address"`
	Zone    string         `json:"zone,omitempty"`
	Summary string         `json:"summary"` // all below in sentences
	Parts   []string       `json:"parts"`   // sentences of Summary

	State       string    `json:"state"` // healthy, suspect, ejected, probing
	Since       time.Time `json:"since"`
	Reason      string    `json:"reason,omitempty"` // the sign that led to State
	Cause       string    `json:"cause,omitempty"`  // of the ejection: transport, silence, probe, refusals, latency
	Unreachable bool      `json:"unreachable"`
	Listed      bool      `json:"listed"` // by discovery
	// the newest answer of discovery lacks it, with many others: it is kept until that is sure
	Missing   bool      `json:"missing"`
	Draining  bool      `json:"leaving"`         // announced, gone from discovery, or drained
	Moved     string    `json:"moved,omitempty"` // why it leaves by itself, or stays after all
	Hinted    time.Time `json:"hinted,omitzero"` // newest announcement of its shutdown
	leaves    bool      // announced, or gone from discovery
	told      bool      // drained, says discovery
	unwell    bool      // unhealthy, says discovery
	Drained   bool      `json:"drained"` // by an operator
	Banned    bool      `json:"banned"`  // by an operator
	BanUntil  time.Time `json:"ban_until,omitzero"`
	BanReason string    `json:"ban_reason,omitempty"`
	Ramp      float32   `json:"share"` // part of its fair share of new load; 1 except in a slow start

	TransportRow Row            `json:"transport_row"` // transport errors in a row
	RefusalRow   Row            `json:"refusal_row"`   // refusals in a row
	RefusalShare RefusalShare   `json:"refusal_share"`
	Latency      []WhySlow      `json:"latency,omitempty"` // by kind of call, those seen lately
	SlowProbes   Row            `json:"slow_probes"`       // in a row, while its calls are slow
	LastSign     *LastSign      `json:"last_sign,omitempty"`
	Repeats      int            `json:"repeats"`   // ejections that are not forgiven yet
	Ejections    map[string]int `json:"ejections"` // by cause, since the node is known
	EjectedUntil time.Time      `json:"ejected_until,omitzero"`

	LastProbe *LastProbe `json:"last_probe,omitempty"`
	Answers   Row        `json:"answers"` // good probes in a row, of those that bring it back
	NextProbe time.Time  `json:"next_probe,omitzero"`
	Next      string     `json:"next"` // what happens next, and when
	History   []Event    `json:"history"`
}

// Row is a count and what it takes.
type Row struct {
	Count int `json:"count"`
	Limit int `json:"limit"`
}

// RefusalShare is the part of calls refused in the present window.
type RefusalShare struct {
	Refused   uint64  `json:"refused"`
	Calls     uint64  `json:"calls"`
	Limit     float64 `json:"limit"`      // share
	Least     int     `json:"least"`      // refusals that it takes besides
	WindowMS  int64   `json:"window_ms"`  // of the setting
	ElapsedMS int64   `json:"elapsed_ms"` // of the present window
}

// WhySlow compares the latencies of one kind of call with those of the other nodes.
type WhySlow struct {
	Kind     string  `json:"kind"`
	Calls    int     `json:"calls"`   // newest ones that count
	Least    int     `json:"least"`   // calls that it takes
	OverMS   int64   `json:"over_ms"` // time over which they came
	MedianMS float64 `json:"median_ms"`
	LowerMS  float64 `json:"lower_ms"` // what the median is at least, whatever chance did; 0: too few calls
	Busy     float64 `json:"busy"`     // calls under way at a time, on average

	Others        int       `json:"others"`          // nodes compared with
	OthersMS      float64   `json:"others_ms"`       // median of their medians
	OthersUpperMS float64   `json:"others_upper_ms"` // what that is at most, whatever chance did; 0: unknown
	Factor        float64   `json:"factor"`          // how many times that is too slow
	FloorMS       float64   `json:"floor_ms"`        // and the least that is
	LimitMS       float64   `json:"limit_ms"`        // the greater of both; 0: too few others to compare with
	SlowSince     time.Time `json:"slow_since,omitzero"`
	EjectedAfter  float64   `json:"ejected_after_s"` // seconds for which it must stay too slow
}

// LastSign is the newest bad sign that calls showed.
type LastSign struct {
	Kind   string `json:"kind"`
	Blame  string `json:"blame"`
	Detail string `json:"detail"`
}

// LastProbe is the newest probe that ended.
type LastProbe struct {
	At     time.Time `json:"at"`
	TookMS float64   `json:"took_ms"`
	Result string    `json:"result"`
}

// Why explains a node; false if it is not known.
func (j *Detector) Why(id cluster.NodeID) (Why, bool) {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	n := j.nodes[id]
	if n == nil {
		return Why{}, false
	}
	// Orders as they are, which Run may have yet to see.
	o, c := j.overrides[id], j.config
	w := Why{
		Node: n.ID, Address: n.Address, Zone: n.Zone,
		State: n.condition.Health.String(), Since: n.condition.Since, Reason: n.condition.Reason,
		Unreachable: n.condition.Unreachable, Listed: n.listed(), Missing: n.Missing, Moved: n.moved,
		Draining: n.condition.Draining || o.drained || n.Draining, Hinted: n.hinted, Drained: o.drained,
		leaves: n.condition.Draining, told: n.Draining, unwell: n.Unwell,
		Banned: o.banned, BanUntil: o.until, BanReason: o.reason,
		Ramp:         cmpOr(n.condition.Ramp, 1),
		TransportRow: Row{int(n.signs.brokenRow.Load()), c.TransportFailures},
		RefusalRow:   Row{int(n.signs.refusedRow.Load()), c.Refusals},
		SlowProbes:   Row{n.doubt.slowRow, slowProbes},
		Repeats:      n.owed(c, now),
		Ejections:    make(map[string]int),
		Answers:      Row{n.answers, c.Probes},
		History:      slices.Clone(n.history),
	}
	refused := n.signs.refused.Load() - n.window.refused
	w.RefusalShare = RefusalShare{
		Refused: refused, Calls: refused + n.signs.succeeded.Load() - n.window.succeeded,
		Limit: c.RefusalShare, Least: c.RefusalMin,
		WindowMS: c.RefusalWindow.Milliseconds(), ElapsedMS: now.Sub(n.window.began).Milliseconds(),
	}
	if n.condition.Cause != cluster.CauseNone {
		w.Cause = n.condition.Cause.String()
	}
	for cause, count := range n.ejections {
		if count > 0 {
			w.Ejections[cluster.Cause(cause).String()] = int(count)
		}
	}
	if s := n.signs.last.Load(); s != nil {
		w.LastSign = &LastSign{s.Kind.String(), s.Blame.String(), s.Detail}
	}
	w.EjectedUntil = n.ejectedUntil()
	if p := n.lastProbe; !p.at.IsZero() {
		w.LastProbe = &LastProbe{p.at, ms(p.took), p.text}
	}
	if due, _ := n.wantsProbe(c, now); n.condition.Health != cluster.Ejected {
		w.NextProbe = due
	}
	w.Latency = j.whySlow(n)
	w.Next = n.next(c, o, now)
	w.Parts = w.sentences(now)
	w.Summary = strings.Join(w.Parts, " ")
	return w, true
}

// Next is what happens next with a node.
type Next struct {
	EjectedUntil time.Time // zero: it is not ejected
	Drained      bool      // by an operator
	Text         string    // Why.Next
}

// Nexts are those of all known nodes.
func (j *Detector) Nexts() map[cluster.NodeID]Next {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	all := make(map[cluster.NodeID]Next, len(j.nodes))
	for id, n := range j.nodes {
		all[id] = Next{EjectedUntil: n.ejectedUntil(), Drained: j.overrides[id].drained, Text: n.next(j.config, j.overrides[id], now)}
	}
	return all
}

func (n *node) listed() bool { return n.departed.IsZero() && !n.Missing }

func (n *node) ejectedUntil() time.Time {
	if n.condition.Health != cluster.Ejected {
		return time.Time{}
	}
	return n.until
}

func (j *Detector) whySlow(n *node) (all []WhySlow) {
	for kind := range n.recent {
		s := n.recent[kind].sum
		if s.total == 0 {
			continue
		}
		normal, _ := j.normal(n, kind)
		w := WhySlow{
			Kind: (cluster.CallKind(kind) + firstTimed).String(), Calls: s.total, Least: j.config.LatencyMin, OverMS: s.span.Milliseconds(),
			MedianMS: ms(s.median), LowerMS: ms(s.lower), Busy: math.Round(100*s.busy) / 100,
			Others: normal.nodes, OthersMS: ms(normal.median), Factor: normal.factor,
			FloorMS: ms(j.config.LatencyFloor), LimitMS: ms(normal.limit),
			SlowSince: n.slowSince[kind], EjectedAfter: s.patience().Seconds(),
		}
		if normal.upper < time.Hour {
			w.OthersUpperMS = ms(normal.upper)
		}
		all = append(all, w)
	}
	return all
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func cmpOr(share, full float32) float32 {
	if share == 0 {
		return full
	}
	return share
}

// next says what happens next, if nothing else comes.
func (n *node) next(c Config, o overrides, now time.Time) string {
	in := func(t time.Time) string {
		if d := t.Sub(now); d > 0 {
			return "in " + seconds(d)
		}
		return "now"
	}
	var all []string
	back := fmt.Sprintf("%d good answers in a row bring it back", c.Probes)
	if c.SlowStart > 0 {
		back += fmt.Sprintf(", then %v of slow start", c.SlowStart)
	}
	due, _ := n.wantsProbe(c, now)
	switch {
	case !n.departed.IsZero():
		all = append(all, "forgotten "+in(n.departed.Add(c.Forget))+" unless discovery lists it again")
	case n.condition.Health == cluster.Ejected:
		all = append(all, "probes begin "+in(n.until)+"; "+back)
	case n.condition.Health == cluster.Probing && n.probing:
		all = append(all, "a probe is under way; "+back)
	case n.condition.Health == cluster.Probing:
		all = append(all, "probe "+in(due)+"; "+back)
	case n.doubt.doubts():
		all = append(all,
			fmt.Sprintf("probe %s, because its calls are slow; %d slow ones in a row eject it, a fast one clears it", in(due), slowProbes))
	case n.condition.Health == cluster.Suspect:
		all = append(all,
			fmt.Sprintf("healthy after %v without a bad sign if calls succeed, else a probe %s settles it", c.ProbeInterval, in(due)))
	case n.condition.Draining:
		all = append(all, "probe "+in(due)+", if discovery still lists it then; an answer takes the announcement back")
	case n.condition.Ramp != 0:
		all = append(all, "full share of load "+in(n.startedAt.Add(c.SlowStart)))
	case !due.IsZero():
		all = append(all, "probe "+in(due)+" if no call comes before")
	}
	if o.banned {
		if o.until.IsZero() {
			all = append(all, "banned until an operator takes it back")
		} else {
			all = append(all, "the ban ends "+in(o.until))
		}
	}
	if o.drained {
		all = append(all, "drained until an operator takes it back")
	}
	if len(all) == 0 {
		return "nothing is due"
	}
	return strings.Join(all, "; ")
}

// seconds is a time for people: tenths below 10 s.
func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// sentences says in words what the other fields hold, from what is to what comes next.
func (w *Why) sentences(now time.Time) (all []string) {
	add := func(when bool, format string, args ...any) {
		if when {
			all = append(all, fmt.Sprintf(format+".", args...))
		}
	}
	is := fmt.Sprintf("Node %d is %s since %s", w.Node, w.State, seconds(now.Sub(w.Since)))
	add(w.Reason == "", "%s", is)
	add(w.Reason != "", "%s: %s", is, w.Reason)
	add(w.Cause != "" && w.Repeats == 1, "The cause is %s", w.Cause)
	add(w.Cause != "" && w.Repeats > 1,
		"The cause is %s; with earlier ejections that are not forgiven yet it is number %d", w.Cause, w.Repeats)
	add(w.Unreachable, "It cannot be reached")
	add(!w.Listed && !w.Missing, "Discovery does not list it")
	add(w.Missing, "The newest answer of discovery lacks it, with many others: it is kept until that is sure")
	add(w.leaves && w.Moved != leftDiscovery, "It %s", w.Moved)
	add(!w.leaves && w.Moved != "", "It is %s", w.Moved)
	add(w.told, "The source of the list of nodes drains it")
	add(w.unwell, "The source of the list of nodes says that it is unhealthy")
	add(w.Drained, "An operator drains it")
	add(w.Banned && w.BanReason == "", "An operator banned it")
	add(w.Banned && w.BanReason != "", "An operator banned it: %s", w.BanReason)
	add(w.Ramp < 1, "It gets %s of its share of load", rampText(w.Ramp))
	for _, s := range w.Latency {
		add(!s.SlowSince.IsZero(), "Its %s calls take %v ms, those of %d other nodes %v ms: the limit is %v ms", s.Kind,
			s.MedianMS, s.Others, s.OthersMS, s.LimitMS)
	}
	add(true, "Next: %s", w.Next)
	return all
}

// Stats are counts since the start, and how things are.
type Stats struct {
	Nodes        []NodeStats               // known nodes in order of ID
	Ejections    [cluster.CauseSize]uint64 // by cause, also of nodes that are forgotten
	Panic        bool                      // more than half of the nodes are ejected
	Panics       uint64                    // how often that began
	Spared       uint64                    // nodes that were too slow but stayed: so many were ejected already
	Probes       uint64                    // probes that ended
	ProbesFailed uint64                    // refused or not answered
	ProbesSlow   uint64                    // answered too late to be good
	Events       uint64                    // number of the newest event
	Looks        uint64                    // at the signs of all nodes
}

// NodeStats is one node.
type NodeStats struct {
	Node      cluster.NodeID
	Condition cluster.Condition
	Listed    bool                           // by discovery
	Drained   bool                           // by an operator
	Hinted    time.Time                      // newest announcement of its shutdown; zero: none
	Ejections [cluster.CauseSize]uint64      // by cause, since the node is known
	Succeeded uint64                         // calls that did their work
	Refused   uint64                         // calls that it refused for itself
	Congested [cluster.CongestionSize]uint64 // calls that ended because something had too much to do, by what it was
	Subjects  [cluster.CongestionSize]string // its newest name
	Recent    int                            // newest statements that its latency is taken from, none older than Config.LatencyWindow
	Median    time.Duration                  // of the latencies of those; 0: there are none
	Timed     uint64                         // statements whose latency counted, since the node is known
}

// Stats returns counts for metrics.
func (j *Detector) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.stats
	s.Panic, s.Events, s.Ejections = j.panicking, j.journal.last, j.journal.ejections
	s.Nodes = make([]NodeStats, 0, len(j.nodes))
	for _, n := range j.nodes {
		one := NodeStats{
			Node: n.ID, Condition: n.shown(), Listed: n.listed(), Drained: j.overrides[n.ID].drained, Hinted: n.hinted,
			Ejections: n.ejections, Succeeded: n.signs.succeeded.Load(), Refused: n.signs.refused.Load(),
			Recent: n.recent[0].sum.total,
			Median: n.recent[0].sum.median, Timed: n.recent[0].timed,
		}
		for c := range one.Congested {
			one.Congested[c] = n.signs.congested[c].Load()
			if subject := n.signs.subjects[c].Load(); subject != nil {
				one.Subjects[c] = *subject
			}
		}
		s.Nodes = append(s.Nodes, one)
	}
	slices.SortFunc(s.Nodes, func(a, b NodeStats) int { return int(a.Node) - int(b.Node) })
	return s
}
