package findings

import (
	"fmt"
	"slices"
	"time"
)

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

// jammed reports whether callers wait, most of the time, because every session that may be in use is; byLoad,
// whether they do so at times when no app holds sessions. Callers of such a time wait on when the app has gone.
func (v *view) jammed() (is, byLoad bool) {
	return v.jam(func(*Picture) bool { return true }, Overload, PoolSmall, SessionsHeld),
		v.jam(func(p *Picture) bool { return !p.held }, Overload, PoolSmall)
}

// jam looks at the Pictures that count; it takes less if one of those findings is on.
func (v *view) jam(counts func(*Picture) bool, on ...Code) bool {
	part := fullPart
	if v.on(0, on...) {
		part = fullStays
	} else if v.Pool.Waiting == 0 && v.turnedAway() == 0 {
		return false // it is over
	}
	full, lately := 0, v.seen[max(0, len(v.seen)-jamPast):]
	for _, p := range lately {
		if counts(&p) && p.Pool.Waiting > 0 && p.Pool.Busy >= min(p.Pool.Limit, p.Pool.Max) && !p.Pool.Paused {
			full++
		}
	}
	return float64(full) >= part*float64(len(lately))
}

// turnedAway is how many callers got no session in the past.
func (v *view) turnedAway() uint64 {
	return v.Pool.lost() - min(v.Pool.lost(), v.seen[0].Pool.lost())
}

// crowd says who waits, and which app most of them belong to, with its part of them, if several apps send calls.
func (v *view) crowd() (text, app string, part float64) {
	p := v.Pool
	text = "no caller waits now"
	if p.Waiting > 0 {
		text = number(p.Waiting, "caller waits", "callers wait")
	}
	if p.Oldest >= 10*time.Millisecond {
		text += ", the first for " + Span(p.Oldest)
	}
	if lost := v.turnedAway(); lost > 0 {
		text += fmt.Sprintf("; %d were rejected in the last %d s", lost, v.seconds())
	}
	sum, most := uint64(0), uint64(0)
	for _, a := range v.Apps {
		n := uint64(max(0, a.Waiting)) + a.Lost - min(a.Lost, v.before(a.Name).Lost)
		if sum += n; n > most {
			most, app = n, a.Name
		}
	}
	if len(v.Apps) < 2 || app == "" || float64(most) < crowdPart*float64(sum) {
		return text, "", 0
	}
	return text, app, float64(most) / float64(sum)
}

// holds describes the app that has most sessions, and apart from it the callers in the queue.
func (v *view) holds(most held, crowd, app string, part float64) string {
	idle := ""
	if !most.longest.Busy {
		idle = ", and no call runs in it"
	}
	text := fmt.Sprintf("app %s holds %s in open transactions, the longest for %s on node %d%s", most.app,
		v.outOf(most.sessions), Span(most.longest.Held), most.longest.Node, idle)
	if most.longest.Trace != "" {
		text += " (trace " + most.longest.Trace + ")"
	}
	text += "; " + crowd
	switch {
	case app == "":
		return text
	case app == most.app:
		return text + fmt.Sprintf("; %.0f %% of these calls are its own", 100*part)
	}
	return text + fmt.Sprintf("; %.0f %% of these calls are of app %s, which is not to blame", 100*part, app)
}

// outOf is so many of the sessions that there may be, or of those that there still are, because pool.max was lowered.
func (v *view) outOf(n int) string {
	p := v.Pool
	if p.Sessions > p.Max {
		return fmt.Sprintf("%d of %d sessions (shrinking to pool.max, %d)", n, p.Sessions, p.Max)
	}
	return fmt.Sprintf("%d of %d sessions", n, p.Max)
}

// full says that all sessions are in use.
func (v *view) full() string {
	p := v.Pool
	if p.Sessions > p.Max {
		return fmt.Sprintf("%d sessions are in use, and the pool is shrinking from %d to %d (pool.max)", p.Busy, p.Sessions, p.Max)
	}
	return fmt.Sprintf("all %d sessions are in use", p.Max)
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
		if rejected >= v.least(kind.code) {
			add(Finding{Code: kind.code}, kind.text, subject, rejected, good+rejected, v.seconds())
		}
	}
}

func (v *view) pool(good, refused uint64, add adder) {
	p, first := v.Pool, v.seen[0].Pool
	if p.Paused {
		add(Finding{Code: PoolPaused}, "an operator paused calls; %s in the queue",
			number(p.Waiting, "caller waits", "callers wait"))
	}
	if p.OpenError != "" && p.Failed > first.Failed && p.Created == first.Created && !v.cameBack() {
		add(Finding{Code: SessionsFail}, "no session can be opened: %s", p.OpenError)
	}
	starved := p.Starved - min(p.Starved, first.Starved)
	waits, app, part := v.crowd()
	crowd := waits
	if app != "" {
		crowd += fmt.Sprintf("; app %s sent %.0f %% of them", app, 100*part)
	}
	now, worse := typical(v.Nodes, Node.latency), v.worse()
	jammed, byLoad := v.jammed()
	most := v.mostHeld()
	holds := most.sessions > 0 && float64(most.sessions) >= v.heldPart(most.app)*float64(max(1, min(p.Limit, p.Max)))
	switch {
	case refused >= v.least(ClusterOverloaded) && float64(refused) >= v.refusedBy()*float64(good+refused):
		add(Finding{Code: ClusterOverloaded, App: app}, "the cluster rejects calls: %d of %d in the last %d s; %s", refused,
			good+refused, v.seconds(), crowd)
	case holds && (jammed || p.Busy >= min(p.Limit, p.Max) || v.HeldLong > 0 && most.longest.Held >= v.HeldLong):
		add(Finding{Code: SessionsHeld, App: most.app, Node: most.longest.Node, Trace: most.longest.Trace}, "%s",
			v.holds(most, waits, app, part))
	case starved > 0:
		add(Finding{Code: PoolSmall},
			"SDK sessions of wire.mode=session hold all sessions that pool.max (%d) allows, also between "+
				"statements: %s rejected in the last %d s; the pools of the SDKs are larger than pool.max",
			p.Max, number(int(starved), "call was", "calls were"), v.seconds())
	case !byLoad:
		if worse {
			add(Finding{Code: ClusterSlow}, "calls take longer than usual on all nodes: %s against %s%s", Span(now), Span(v.base),
				v.sizes())
		}
	case p.Limit < p.Max:
		add(Finding{Code: Overload, App: app},
			"more calls come than the cluster can do: %d at a time (pool.adaptive; pool.max is %d); %s", p.Limit, p.Max,
			crowd)
	case worse:
		add(Finding{Code: Overload, App: app},
			"more calls come than the cluster can do: a call takes %s, %.0f times as long as usual, and %s; %s",
			Span(now), float64(now)/float64(v.base), v.full(), crowd)
	case now == 0: // whatever runs has run for longer than latencies are remembered
		add(Finding{Code: Overload, App: app}, "%s, and no statement has ended lately; %s", v.full(), crowd)
	default:
		add(Finding{Code: PoolSmall, App: app},
			"%s while the nodes are fast (%s a call): pool.max is too small for this load; %s", v.full(), Span(now), crowd)
	}
}

// cameBack reports whether a node came into use since the last try to open a session failed. That failure says nothing of
// the node, and there is no other try until a session is wanted.
func (v *view) cameBack() bool {
	last := slices.IndexFunc(v.seen, func(p Picture) bool { return p.Pool.Failed == v.Pool.Failed })
	before := v.seen[max(0, last-1)].Nodes // the try failed between this Picture and the next
	return slices.ContainsFunc(v.Nodes, func(n Node) bool {
		used := func(o Node) bool { return o.ID == n.ID && !o.out() }
		return n.Usable && !n.out() && !slices.ContainsFunc(before, used)
	})
}

// sizes says how large answers are and were, which no latency tells apart from slow nodes; "": unknown.
func (v *view) sizes() string {
	if v.size == 0 || v.usual == 0 {
		return ""
	}
	return fmt.Sprintf("; an answer has %s on average against %s", bytesText(v.size), bytesText(v.usual))
}

// bytesText writes a number of bytes for people.
func bytesText(n uint64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	default:
		return fmt.Sprintf("%d MiB", n>>20)
	}
}

// worse reports whether the nodes are much slower than usual.
func (v *view) worse() bool {
	now, times, floor := typical(v.Nodes, Node.latency), time.Duration(worseBy), slowFloor
	if v.on(0, Overload, ClusterSlow) {
		times, floor = worseStays, slowKeeps
	}
	return v.base > 0 && now > times*v.base && now > v.base+floor
}

// heldPart is the part of the sessions that an app may hold.
func (v *view) heldPart(app string) float64 {
	for k, s := range v.known {
		if s.told && k.code == SessionsHeld && k.app == app {
			return heldStays
		}
	}
	return heldPart
}

// refusedBy is the part of the calls that the cluster may reject.
func (v *view) refusedBy() float64 {
	if v.on(0, ClusterOverloaded) {
		return refStays
	}
	return refusedBy
}
