package findings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Every is how often a Watch is to be shown a Picture.
const Every = time.Second

// past is how many Pictures the rules look back on: for what comes and goes
// within a second, such as a full pool.
const past = 10

// Watch finds what is wrong. Its methods may be called from any goroutine.
type Watch struct {
	mu     sync.Mutex // guards all below
	seen   []Picture  // the newest last, at most past
	base   base
	known  map[key]*standing
	report Report
}

// key tells findings of one code apart.
type key struct {
	code    Code
	node    uint32
	app     string
	session string
	digest  string
}

// standing is a finding that was seen lately.
type standing struct {
	since time.Time
	row   int // Pictures in a row that showed it
	told  bool
	last  Finding
}

// New returns a watch that has seen nothing.
func New() *Watch {
	return &Watch{known: map[key]*standing{}, report: Report{Summary: summaryOf(nil), Findings: []Finding{}}}
}

// Report returns the findings of the last Look.
func (w *Watch) Report() Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report
}

// Look takes one more Picture, and returns the findings that began and ended
// with it. It takes over p.
func (w *Watch) Look(p Picture) (began, ended []Finding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) == past {
		w.seen = slices.Delete(w.seen, 0, 1)
	}
	w.seen = append(w.seen, p)
	w.base.add(p)
	v := view{Picture: p, seen: w.seen, base: w.base.latency()}
	var all []Finding
	shown := map[key]bool{}
	for _, f := range v.findings() {
		k := key{f.Code, f.Node, f.App, f.Session, f.Digest}
		_, kind := kindOf(f.Code)
		s := w.known[k]
		if s == nil {
			s = &standing{since: p.At}
			w.known[k] = s
		}
		shown[k] = true
		s.row++
		if s.row < kind.hold {
			continue
		}
		f.Since, f.Severity, f.Do = s.since, kind.Severity, kind.Do
		if f.Node != 0 {
			f.Do = strings.ReplaceAll(f.Do, " NODE", " "+strconv.FormatUint(uint64(f.Node), 10))
		}
		if !s.told {
			began = append(began, f)
		}
		s.told, s.last = true, f
		all = append(all, f)
	}
	for k, s := range w.known {
		if !shown[k] {
			delete(w.known, k)
			if s.told {
				ended = append(ended, s.last)
			}
		}
	}
	all = sorted(all)
	if all == nil {
		all = []Finding{}
	}
	w.report = Report{At: p.At, Summary: summaryOf(all), Findings: all}
	return sorted(began), sorted(ended)
}

// base remembers what latency is usual: the least of all minutes of the last ten,
// each with the least that its Pictures showed.
type base struct {
	minute [10]time.Duration
	at     int64
}

func (b *base) add(p Picture) {
	latency := typical(p.Nodes, Node.latency)
	if now := p.At.Unix() / 60; now != b.at {
		for ; b.at < now && now-b.at <= int64(len(b.minute)); b.at++ {
			b.minute[(b.at+1)%int64(len(b.minute))] = 0
		}
		if b.at != now {
			*b = base{at: now}
		}
	}
	slot := &b.minute[b.at%int64(len(b.minute))]
	if latency > 0 && (*slot == 0 || latency < *slot) {
		*slot = latency
	}
}

func (b *base) latency() (least time.Duration) {
	for _, d := range b.minute {
		if d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}

func (n Node) latency() time.Duration { return n.Latency }
func (n Node) median() time.Duration  { return n.Median }

// typical is the median of what the nodes in use take, by that measure; 0: none is known.
func typical(nodes []Node, measure func(Node) time.Duration) time.Duration {
	var all []time.Duration
	for _, n := range nodes {
		if took := measure(n); took > 0 && !n.out() {
			all = append(all, took)
		}
	}
	return median(all)
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// What the rules go by.
const (
	slowTimes = 3                    // a node is slow at three times the median of the others,
	slowFloor = 5 * time.Millisecond // and so much more,
	slowAdded = 2                    // while statements were added so often to what is measured
	heldLeast = 2 * time.Second      // a transaction that is as old counts as held
	heldPart  = 0.4                  // of the sessions in use that one app may hold
	jamPast   = 5                    // Pictures that tell whether the pool is jammed,
	fullPart  = 0.6                  // by the part of them that show a line in front of a pool without a free session
	refusedBy = 0.02                 // part of calls that the cluster refuses
	lostLeast = 3                    // callers turned away
	worseBy   = 3                    // times the usual latency

	panicShown = 10 * time.Minute // a panic that was caught
)

// view is a Picture and its past.
type view struct {
	Picture
	seen []Picture // with this one
	base time.Duration
}

func (v *view) findings() (all []Finding) {
	add := func(f Finding, format string, args ...any) {
		f.Text = fmt.Sprintf(format, args...)
		all = append(all, f)
	}
	if v.Stage != "serving" {
		add(Finding{Code: NotServing}, "the sidecar is not ready: %s", v.Stage)
	}
	if v.Stalled != "" {
		add(Finding{Code: ShardStalled}, "the data path stands still: %s", v.Stalled)
	}
	good, refused := v.answers()
	switch denied := v.Denied - min(v.Denied, v.seen[0].Denied); {
	case v.Credentials != "":
		add(Finding{Code: CredentialsBad}, "the sidecar's credentials do not work: %s", v.Credentials)
	case denied >= lostLeast && denied > good:
		// Fewer may be statements that the account has no right to.
		add(Finding{Code: CredentialsBad}, "the cluster refuses the sidecar's credentials: %d calls in the last %d s", denied, v.seconds())
	}
	if v.Panics.Count > 0 && v.At.Sub(v.Panics.At) < panicShown {
		add(Finding{Code: Panicked}, "%s so far, the last one in %s: the log has its stack",
			number(int(v.Panics.Count), "panic", "panics"), v.Panics.Where)
	}
	if v.MemoryTight {
		add(Finding{Code: MemoryShort}, "memory is short: large work is refused")
	}
	v.nodes(add)
	v.congestion(good, add)
	v.pool(good, refused, add)
	v.sessionUses(add)
	v.statements(add)
	for _, a := range v.Apps {
		if n := a.Limited - v.before(a.Name).Limited; n > 0 {
			add(Finding{Code: QuotaReached, App: a.Name},
				"app %s reached its limit (%s): %d calls refused in the last %d s", a.Name, a.Limit, n, v.seconds())
		}
	}
	return all
}

type adder = func(f Finding, format string, args ...any)

// seconds is the time that the past covers, at least 1.
func (v *view) seconds() int {
	return max(1, int(v.At.Sub(v.seen[0].At).Round(time.Second)/time.Second))
}

// before is what was known of an app at the beginning of the past.
func (v *view) before(app string) App {
	for _, a := range v.seen[0].Apps {
		if a.Name == app {
			return a
		}
	}
	return App{}
}

func (v *view) nodes(add adder) {
	usable, missing := 0, 0
	for _, n := range v.Nodes {
		if n.Missing {
			missing++
		}
		if n.Usable && !n.out() && !n.Unwell {
			usable++
		}
		v.node(n, add)
	}
	switch {
	case len(v.Nodes) == 0 && v.Discovery.Error != "":
		add(Finding{Code: NoNode}, "no node is known: %s", v.Discovery.Error)
	case len(v.Nodes) == 0:
		add(Finding{Code: NoNode}, "no node is known yet")
	case usable == 0:
		add(Finding{Code: NoNode}, "none of %d nodes is healthy", len(v.Nodes))
	case v.Panic:
		add(Finding{Code: NodePanic}, "only %d of %d nodes are healthy", usable, len(v.Nodes))
	}
	if missing > 0 {
		add(Finding{Code: NodesMissing},
			"the newest answer of discovery lacks %d of %d nodes: they keep their sessions and transactions for %s, "+
				"and get new work after the others",
			missing, len(v.Nodes), Span(v.Discovery.Grace))
	}
	if v.Discovery.Failures >= 2 && v.Credentials == "" {
		add(Finding{Code: DiscoveryFails}, "the list of nodes could not be read %d times in a row: %s",
			v.Discovery.Failures, v.Discovery.Error)
	}
}

func (v *view) node(n Node, add adder) {
	who := fmt.Sprintf("node %d (%s)", n.ID, n.Address)
	since := "" // the verdict's own clock; that of the finding begins later
	if d := v.At.Sub(n.Since); n.out() && !n.Since.IsZero() && d >= time.Second {
		since = " for " + Span(d)
	}
	switch {
	case n.out() && n.Cause == "latency":
		add(Finding{Code: NodeSlow, Node: n.ID}, "%s is slow, and gets no new work%s: %s", who, since, n.Reason)
	case n.out() && n.Cause == "refusals":
		add(Finding{Code: NodeRefuses, Node: n.ID}, "%s refuses calls, and gets no new work%s: %s", who, since, n.Reason)
	case n.out() && (!n.Draining || n.Unreachable):
		add(Finding{Code: NodeDead, Node: n.ID}, "%s does not answer%s: %s", who, since, n.Reason)
	case v.staysSlow(n.ID):
		others := v.others(n.ID, Node.latency)
		add(Finding{Code: NodeSlow, Node: n.ID}, "%s is %.0f times slower than the others (%s against %s)", who,
			float64(n.Latency)/float64(others), Span(n.Latency), Span(others))
	}
	if n.Banned {
		add(Finding{Code: NodeBanned, Node: n.ID}, "%s is banned: %s", who, strings.TrimPrefix(n.Reason, "banned by an operator: "))
	}
	switch {
	case n.Gone && !n.out():
		add(Finding{Code: NodeDead, Node: n.ID}, "%s is gone from the list of nodes, which it did not announce: %s", who, n.Reason)
	case n.Draining && !n.out():
		add(Finding{Code: NodeDraining, Node: n.ID}, "%s is leaving: %s", who, n.Reason)
	}
}

// others is the median of what the other nodes in use take, by that measure; 0: unknown.
func (p *Picture) others(but uint32, measure func(Node) time.Duration) time.Duration {
	return typical(slices.DeleteFunc(slices.Clone(p.Nodes), func(n Node) bool { return n.ID == but }), measure)
}

// isSlow reports whether a Picture shows a node in use as much slower than the others, by the decayed
// latency and by the median of its newest statements. One statement that a busy machine held up raises
// the first for many calls; it does not raise the second.
func (p *Picture) isSlow(n Node) bool {
	for _, measure := range []func(Node) time.Duration{Node.latency, Node.median} {
		took, others := measure(n), p.others(n.ID, measure)
		if n.out() || others == 0 || took <= slowTimes*others || took <= others+slowFloor {
			return false
		}
	}
	return true
}

// staysSlow reports whether a node is slow now, and has been since statements were added to what is
// measured more than once. A few slow statements in one moment are no slow node.
func (v *view) staysSlow(id uint32) bool {
	added, timed := 0, uint64(0)
	for _, p := range slices.Backward(v.seen) {
		i := slices.IndexFunc(p.Nodes, func(n Node) bool { return n.ID == id })
		if i < 0 || !p.isSlow(p.Nodes[i]) {
			return false
		}
		if n := p.Nodes[i]; n.Timed < timed {
			added++
		}
		timed = p.Nodes[i].Timed
		if added == slowAdded {
			return true
		}
	}
	return false
}

// held are the sessions in transactions by one app, those as old as counts.
type held struct {
	app      string
	sessions int
	longest  SessionUse
}

// mostHeld is the app that holds most.
func (v *view) mostHeld() (most held) {
	byApp := map[string]*held{}
	for _, h := range v.SessionUses {
		if !h.Transaction || h.Held < heldLeast {
			continue
		}
		one := byApp[h.App]
		if one == nil {
			one = &held{app: h.App}
			byApp[h.App] = one
		}
		one.sessions++
		if h.Held > one.longest.Held {
			one.longest = h
		}
		if one.sessions > most.sessions || one.sessions == most.sessions && one.app < most.app {
			most = *one
		}
	}
	return most
}

// jammed reports whether callers wait, most of the time, because every session
// that may be in use is.
func (v *view) jammed() bool {
	full, lately := 0, v.seen[max(0, len(v.seen)-jamPast):]
	for _, p := range lately {
		if p.Pool.Waiting > 0 && p.Pool.Busy >= min(p.Pool.Limit, p.Pool.Max) && !p.Pool.Paused {
			full++
		}
	}
	return float64(full) >= fullPart*float64(len(lately))
}

// answers are the calls that did their work and those that nodes refused, in the past.
func (v *view) answers() (good, refused uint64) {
	for _, n := range v.Nodes {
		was := Node{}
		if i := slices.IndexFunc(v.seen[0].Nodes, func(o Node) bool { return o.ID == n.ID }); i >= 0 {
			was = v.seen[0].Nodes[i]
		}
		good += n.Succeeded - min(n.Succeeded, was.Succeeded)
		refused += n.Refused - min(n.Refused, was.Refused)
	}
	return good, refused
}

// congestion finds what rejects calls on all nodes alike: no node is to blame for it.
func (v *view) congestion(good uint64, add adder) {
	for _, kind := range []struct {
		code Code
		text string
		of   func(*Node) *Congested
	}{
		{DiskFull, "the database has no disk space left%s: %d of %d calls were rejected in the last %d s",
			func(n *Node) *Congested { return &n.Disk }},
		{DatabaseQuota,
			"the database's quota of request units is used up%s: %d of %d calls were rejected in the last %d s",
			func(n *Node) *Congested { return &n.Quota }},
		{ResourcePoolFull, "the queue of a resource pool is full%s: %d of %d calls were rejected in the last %d s",
			func(n *Node) *Congested { return &n.Pools }},
		{TableOverloaded, "a table is overloaded%s: %d of %d calls were rejected in the last %d s",
			func(n *Node) *Congested { return &n.Tables }},
	} {
		rejected, subject := uint64(0), ""
		for _, n := range v.Nodes {
			was := uint64(0)
			if i := slices.IndexFunc(v.seen[0].Nodes, func(o Node) bool { return o.ID == n.ID }); i >= 0 {
				was = kind.of(&v.seen[0].Nodes[i]).Calls
			}
			now := kind.of(&n)
			if more := now.Calls - min(now.Calls, was); more > 0 {
				rejected += more
				if now.Subject != "" {
					subject = " (" + now.Subject + ")"
				}
			}
		}
		if rejected >= lostLeast {
			add(Finding{Code: kind.code}, kind.text, subject, rejected, good+rejected, v.seconds())
		}
	}
}

func (v *view) pool(good, refused uint64, add adder) {
	p, first := v.Pool, v.seen[0].Pool
	if p.Paused {
		add(Finding{Code: PoolPaused}, "the pool is paused by an operator; %s in the queue",
			number(p.Waiting, "caller waits", "callers wait"))
	}
	if p.OpenError != "" && p.Failed > first.Failed && p.Created == first.Created {
		add(Finding{Code: SessionsFail}, "no session can be opened: %s", p.OpenError)
	}
	lost := p.lost() - min(p.lost(), first.lost())
	starved := p.Starved - min(p.Starved, first.Starved)
	crowd := number(p.Waiting, "caller waits", "callers wait")
	if p.Oldest >= 10*time.Millisecond {
		crowd += ", the first for " + Span(p.Oldest)
	}
	if lost > 0 {
		crowd += fmt.Sprintf("; %d turned away in the last %d s", lost, v.seconds())
	}
	now, jammed := typical(v.Nodes, Node.latency), v.jammed()
	worse := v.base > 0 && now > worseBy*v.base && now > v.base+slowFloor
	most := v.mostHeld()
	holds := most.sessions > 0 && float64(most.sessions) >= heldPart*float64(max(1, min(p.Limit, p.Max)))
	switch {
	case refused >= lostLeast && float64(refused) >= refusedBy*float64(good+refused):
		add(Finding{Code: ClusterOverloaded}, "the cluster refuses calls: %d of %d in the last %d s; %s", refused,
			good+refused, v.seconds(), crowd)
	case holds && (jammed || p.Busy >= min(p.Limit, p.Max) || v.HeldLong > 0 && most.longest.Held >= v.HeldLong):
		add(Finding{Code: SessionsHeld, App: most.app, Node: most.longest.Node, Trace: most.longest.Trace, Session: ""},
			"app %s holds %d of %d sessions in open transactions, the longest for %s; %s", most.app, most.sessions,
			p.Max, Span(most.longest.Held), crowd)
	case starved > 0:
		add(Finding{Code: PoolSmall},
			"sessions of wire.mode=session keep all sessions that pool.max (%d) allows, also between their "+
				"statements: %s told so in the last %d s; the pools of the SDKs are larger than pool.max",
			p.Max, number(int(starved), "call was", "calls were"), v.seconds())
	case !jammed:
		if worse {
			add(Finding{Code: ClusterSlow}, "all nodes are slower than they were: %s against %s", Span(now), Span(v.base))
		}
	case p.Limit < p.Max:
		add(Finding{Code: Overload},
			"the cluster bears %d calls at a time (pool.adaptive; pool.max is %d), and more come: %s", p.Limit, p.Max,
			crowd)
	case worse:
		add(Finding{Code: Overload},
			"more work comes than the cluster does: calls take %s, %.0f times as long as before, all %d sessions are in use; %s",
			Span(now), float64(now)/float64(v.base), p.Max, crowd)
	case now == 0: // whatever runs has run for longer than latencies are remembered
		add(Finding{Code: Overload}, "all %d sessions are in use, and no statement has ended lately; %s", p.Max, crowd)
	default:
		add(Finding{Code: PoolSmall},
			"all %d sessions are in use while the nodes are fast (%s a call): pool.max is too small for this load; %s",
			p.Max, Span(now), crowd)
	}
}

// What is named one by one: the longest of each app, and so many in all.
const (
	maxLong    = 20
	maxLongApp = 2
)

func (v *view) sessionUses(add adder) {
	if v.HeldLong <= 0 {
		return
	}
	n, of, more := 0, map[string]int{}, map[string]int{}
	for _, h := range v.SessionUses {
		if h.Held >= v.HeldLong {
			more[h.App]++
		}
	}
	for _, h := range v.SessionUses {
		if h.Held < v.HeldLong || n == maxLong || of[h.App] == maxLongApp {
			continue
		}
		n++
		of[h.App]++
		what, trace := "a call", ""
		if h.Transaction && h.Busy {
			what = "a transaction"
		} else if h.Transaction {
			what = "a transaction, in which nothing runs now"
		}
		if h.Trace != "" {
			trace = ", trace " + h.Trace
		}
		app := h.App
		if app == "" {
			app = "unknown"
		}
		others := ""
		if k := more[h.App] - maxLongApp; k > 0 && of[h.App] == maxLongApp {
			others = fmt.Sprintf("; %d more of its sessions likewise", k)
		}
		add(Finding{Code: HeldLong, App: h.App, Node: h.Node, Trace: h.Trace, Session: h.Session},
			"app %s has held session %s on node %d for %s, with %s%s%s", app, h.Session, h.Node, Span(h.Held), what, trace, others)
	}
}

func number(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Span writes a duration for people: two or three digits that count.
func Span(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.2g ms", max(0.01, float64(d)/float64(time.Millisecond)))
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	default:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
}
