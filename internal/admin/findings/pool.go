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

// jammed reports whether callers wait, most of the time, because every session
// that may be in use is.
func (v *view) jammed() bool {
	part := fullPart
	if v.on(0, Overload, PoolSmall, SessionsHeld) {
		part = fullStays
	} else if v.Pool.Waiting == 0 && v.turnedAway() == 0 {
		return false // it is over
	}
	full, lately := 0, v.seen[max(0, len(v.seen)-jamPast):]
	for _, p := range lately {
		if p.Pool.Waiting > 0 && p.Pool.Busy >= min(p.Pool.Limit, p.Pool.Max) && !p.Pool.Paused {
			full++
		}
	}
	return float64(full) >= part*float64(len(lately))
}

// turnedAway is how many callers got no session in the past.
func (v *view) turnedAway() uint64 {
	return v.Pool.lost() - min(v.Pool.lost(), v.seen[0].Pool.lost())
}

// crowd says who waits, and which app most of them belong to, if several apps send calls.
func (v *view) crowd() (text, app string) {
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
		return text, ""
	}
	return text + fmt.Sprintf("; app %s sent %.0f %% of them", app, 100*float64(most)/float64(sum)), app
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
	if p.OpenError != "" && p.Failed > first.Failed && p.Created == first.Created {
		add(Finding{Code: SessionsFail}, "no session can be opened: %s", p.OpenError)
	}
	starved := p.Starved - min(p.Starved, first.Starved)
	crowd, app := v.crowd()
	now, jammed, worse := typical(v.Nodes, Node.latency), v.jammed(), v.worse()
	most := v.mostHeld()
	holds := most.sessions > 0 && float64(most.sessions) >= v.heldPart(most.app)*float64(max(1, min(p.Limit, p.Max)))
	switch {
	case refused >= v.least(ClusterOverloaded) && float64(refused) >= v.refusedBy()*float64(good+refused):
		add(Finding{Code: ClusterOverloaded, App: app}, "the cluster rejects calls: %d of %d in the last %d s; %s", refused,
			good+refused, v.seconds(), crowd)
	case holds && (jammed || p.Busy >= min(p.Limit, p.Max) || v.HeldLong > 0 && most.longest.Held >= v.HeldLong):
		add(Finding{Code: SessionsHeld, App: most.app, Node: most.longest.Node, Trace: most.longest.Trace},
			"app %s holds %d of %d sessions in open transactions, the longest for %s; %s", most.app, most.sessions,
			p.Max, Span(most.longest.Held), crowd)
	case starved > 0:
		add(Finding{Code: PoolSmall},
			"SDK sessions of wire.mode=session hold all sessions that pool.max (%d) allows, also between "+
				"statements: %s rejected in the last %d s; the pools of the SDKs are larger than pool.max",
			p.Max, number(int(starved), "call was", "calls were"), v.seconds())
	case !jammed:
		if worse {
			add(Finding{Code: ClusterSlow}, "all nodes are slower than usual: %s a call against %s", Span(now), Span(v.base))
		}
	case p.Limit < p.Max:
		add(Finding{Code: Overload, App: app},
			"more calls come than the cluster can do: %d at a time (pool.adaptive; pool.max is %d); %s", p.Limit, p.Max,
			crowd)
	case worse:
		add(Finding{Code: Overload, App: app},
			"more calls come than the cluster can do: a call takes %s, %.0f times as long as usual, and all %d sessions are in use; %s",
			Span(now), float64(now)/float64(v.base), p.Max, crowd)
	case now == 0: // whatever runs has run for longer than latencies are remembered
		add(Finding{Code: Overload, App: app}, "all %d sessions are in use, and no statement has ended lately; %s", p.Max, crowd)
	default:
		add(Finding{Code: PoolSmall, App: app},
			"all %d sessions are in use while the nodes are fast (%s a call): pool.max is too small for this load; %s",
			p.Max, Span(now), crowd)
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
