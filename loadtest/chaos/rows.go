package chaos

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// rows are all events, in the order of the report. It is a function so that no
// caller can change the table.
func rows() []row {
	return []row{
		{name: "kill", event: "one node SIGKILLed", do: kill},
		{name: "drain", event: "one node drained, its attach streams end", do: drain("streams"), sets: seldom},
		{name: "drain_silent", event: "one node drained silently", do: drain("silent"), sets: seldom},
		{name: "drain_hints", event: "one node drained with hints", do: drain("hints"), sets: seldom},
		{name: "rolling", event: "rolling restart of all nodes, their attach streams end", do: rolling("streams"), sets: seldom},
		{name: "rolling_silent", event: "rolling restart of all nodes, silently", do: rolling("silent"), sets: seldom},
		{name: "rolling_hints", event: "rolling restart of all nodes with hints", do: rolling("hints"), sets: seldom},
		{name: "slow", event: "one node 50x slower", do: slow},
		{name: "blackhole", event: "one node black-holed", do: silent("blackhole", "clear")},
		{name: "pause", event: "one node SIGSTOPped", do: silent("pause", "resume")},
		{name: "link", event: "only the link from the sidecar to one node swallows everything", do: unlinked, links: true},
		{name: "forward_lost", event: "the link to one node swallows everything, and then the node is SIGSTOPped",
			do: forwardLost, links: true, sets: []string{"routing.forward_silence=2s"}},
		{name: "refuse", event: "one node refuses fast (no resource)", do: refuse},
		{name: "hot_shard", event: "a table's shard overloaded, on all nodes",
			do: outageOf(stand.Fault{Kind: "hot_shard", Table: struckTable}, "TABLE_OVERLOADED", "/local/"+struckTable)},
		{name: "disk_full", event: "no disk space for a table, on all nodes",
			do: outageOf(stand.Fault{Kind: "disk_full", Table: struckTable}, "DISK_FULL", "disk space")},
		{name: "quota", event: "the database's quota used up by one table's calls",
			do: outageOf(stand.Fault{Kind: "quota", Table: struckTable}, "DATABASE_QUOTA", "quota")},
		{name: "pool_full", event: "a resource pool full for one table's calls",
			do: outageOf(stand.Fault{Kind: "pool_full", Table: struckTable}, "RESOURCE_POOL_FULL", "resource pool")},
		{name: "add", event: "node added", do: add},
		{name: "zone", event: "one whole zone and one more node killed", do: zone, cluster: []string{"-nodes", "9", "-locations", "a,b,c"}},
		{name: "outage", event: "all nodes down for 10 s, then up", do: outage},
		{name: "sigterm", event: "sidecar SIGTERM under load", do: sigterm},
		{name: "takeover", event: "sidecar replaced under load", do: replace, successor: true},
		{name: "sigkill", event: "sidecar SIGKILLed, and started again", do: murder},
		{name: "slow_after_kill", event: "one node 50x slower just after another one came back", do: slowAfterKill},
		{name: "merged", event: "all nodes behind one address: the owner of the sessions killed, then a rolling restart",
			do: merged, cluster: []string{"-endpoints", "merged"}, together: true,
			sets: []string{"discovery.interval=200ms"}},
		{name: "promotion", event: "another pile becomes the primary one", do: promotion,
			cluster: []string{"-nodes", "4", "-piles", "a=PRIMARY,b=SYNCHRONIZED"}, together: true},
		{name: "cancel_storm", event: "1,000 calls a second given up for 10 s", do: cancelStorm, sets: []string{"pool.max=150"}},
		{name: "mix", event: "everything in random order", do: mix, links: true, busy: true},
	}
}

// kill: idempotent calls do not fail, others only if they were in flight, and say what became of them.
func kill(r *script) func() {
	normal := r.normal()
	victim := r.victim()
	open := r.begin(30)
	r.underWay(50*time.Millisecond, 150*time.Millisecond)
	at, done := r.act(victim, "kill", nil)
	r.everywhere("clear", nil) // on the nodes that run
	e := r.ejected(victim, at)
	r.load.goOn(open)
	r.sleep(done + time.Second - r.rec.now())
	after := r.measure()
	return func() {
		r.outOfUse(e)
		r.idempotentWork(at)
		if r.o.Quick { // a busy machine may hold up the sidecar before it hears of the end of its connections
			r.onlyInFlight(at, max(done, at+e.after))
		} else {
			r.onlyInFlight(at, done)
		}
		kept, lost, untrue, elsewhere, first := sortOut(open, victim)
		r.figure("transactions lost", lost)
		r.goal("transactions open on it are lost with nothing kept, safe to begin again; others go on",
			lost > 0 && kept+untrue+elsewhere == 0,
			"%d lost, %d done all the same, %d lost in other words, %d on other nodes; %s", lost, kept, untrue, elsewhere, first)
		r.compare("p99 back to normal 1 s after", normal, after)
	}
}

// onlyInFlight judges the calls that failed because nodes died between at and done.
func (r *run) onlyInFlight(at, done time.Duration) { r.inFlight(r.failures(at), done) }

// inFlight judges the calls that failed because nodes died until done, except the idempotent ones, of which none may fail.
func (r *run) inFlight(failed []sample, done time.Duration) {
	var late, untrue []sample
	n := 0
	for _, s := range failed {
		if s.idempotent {
			continue // see idempotentWork
		}
		n++
		if s.sent > done+100*time.Millisecond {
			late = append(late, s)
		}
		// A write that commits itself may have run; a statement before the commit cannot have kept anything.
		if f := s.failed; s.kind == count && !f.unknown || s.kind != count && !f.unknown && !f.safe ||
			s.kind == pay && !s.commit && f.unknown {
			untrue = append(untrue, s)
		}
	}
	r.figure("calls lost", n)
	r.none("only calls in flight fail", late)
	r.none("autocommit writes and commits in flight fail as outcome unknown, the rest as lost with nothing kept", untrue)
}

// refuse: a node that refuses fast does not attract work.
func refuse(r *script) func() {
	normal := r.normal()
	victim := r.victim()
	at, _ := r.act(victim, "errors", map[string]any{"status": "grpc:RESOURCE_EXHAUSTED"})
	e := r.ejected(victim, at)
	r.sleep(at + 2*time.Second - r.rec.now())
	before := r.calls()
	after := r.measure()
	then := r.calls()
	var all int64
	for id := range then {
		all += then[id] - before[id]
	}
	share := float64(then[victim]-before[victim]) / float64(max(1, all))
	r.recovers(victim, "clear")
	return func() {
		r.figure("out of use after", e.after)
		r.figure("its share of calls after 2 s", round(share))
		r.goal("out of use", e.ok, "after %v: %s", e.after, e.reason)
		r.timed("out of use within 2 s", e.ok && e.after <= 2*time.Second, "after %v", e.after)
		r.timed("its share of new work is below 5 % after 2 s", share < 0.05, "%.1f %% of %d calls", 100*share, all)
		r.idempotentWork(at)
		r.show(normal, after)
	}
}

// calls counts the calls that reached each node.
func (r *script) calls() map[uint32]int64 {
	count := map[uint32]int64{}
	for _, n := range r.members() {
		count[n.ID] = n.Counters["calls"]
	}
	return count
}

// paced are the goals about how fast sessions are opened.
func (r *run) paced(from time.Duration) {
	node, all := r.line.creating(from, r.rec.now())
	burst := cmp.Or(r.number("pool.create_burst"), 16) // its default: a retired setting is listed only where it is set
	r.figure("most sessions opened in a second", r.line.pace(from, r.rec.now(), created))
	r.figure("most sessions being opened at a time, one node and all", []int{node, all})
	if burst > 0 {
		r.goal(fmt.Sprintf("no more than %d openings at a time on a node, and four times that in all", burst),
			node <= burst && all <= 4*burst, "%d on a node, %d in all", node, all)
	}
}

// add: a node that joins gets its share of the sessions, and no call fails.
func add(r *script) func() {
	r.normal()
	at := r.rec.now()
	r.event = at
	node := r.add()
	var last []judged
	fair, ok := r.until(at, 20*time.Second, func() bool {
		last = r.nodes()
		return len(last) == 4 && even(last, r.number("pool.min"), 0.2)
	})
	r.sleep(2 * time.Second)
	pace := r.line.pace(at, r.rec.now(), moved)
	return func() {
		r.figure("fair after", fair)
		r.figure("sessions", spread(last))
		r.goal("node 4 gets its fair share of the sessions, within 20 %", ok && node.ID == 4, "after %v: %v", fair, spread(last))
		r.timed("within 10 s", ok && fair <= 10*time.Second, "after %v", fair)
		r.noErrors("nothing fails", at)
		r.paced(at)
		if rate := cmp.Or(r.number("pool.move_rate"), 20); rate > 0 {
			most := int64(max(1, rate*r.number("pool.max")/100))
			r.goal("sessions move no faster than a fifth of pool.max a second", pace > 0 && pace <= most+1,
				"%d moved in a second; %d may", pace, most)
		}
	}
}

// even says whether there are at least so many sessions and those of every usable node
// are within a part of the fair share, or one session from it.
func even(nodes []judged, least int, part float64) bool {
	usable, all := 0, 0
	for _, n := range nodes {
		if !n.out() {
			usable, all = usable+1, all+n.Sessions
		}
	}
	if usable == 0 || all < least {
		return false
	}
	fair := float64(all) / float64(usable)
	for _, n := range nodes {
		if !n.out() && math.Abs(float64(n.Sessions)-fair) > max(1, part*fair) {
			return false
		}
	}
	return true
}

func spread(nodes []judged) map[string]int {
	out := map[string]int{}
	for _, n := range nodes {
		out[fmt.Sprintf("node %d", n.ID)] = n.Sessions
	}
	return out
}

// zone: a whole zone dies, and one node more.
func zone(r *script) func() {
	r.normal()
	nodes := r.up()
	before := len(nodes)
	lost := r.random.IntN(3) // nodes of one zone have the same number modulo 3
	other := (lost + 1) % 3
	var victims []stand.Node
	for _, n := range nodes {
		if int(n.ID)%3 == lost {
			victims = append(victims, n)
		} else if int(n.ID)%3 == other {
			victims, other = append(victims, n), -1
		}
	}
	at := r.strike("kill %d of %d nodes", len(victims), len(nodes))
	r.kill(victims)
	done := r.rec.now()
	var last []judged
	levelled, ok := r.until(at, 20*time.Second, func() bool {
		last = r.nodes()
		return usable(last) == before-len(victims) && even(last, r.number("pool.min"), 0.2)
	})
	r.sleep(at + 4*time.Second - r.rec.now())
	return func() {
		r.idempotentWork(at)
		r.onlyInFlight(at, done)
		r.fullService(at)
		r.figure("sessions even after", levelled)
		r.figure("sessions", spread(last))
		r.goal("sessions are even on the rest, within 20 %", ok, "after %v: %v", levelled, spread(last))
		r.paced(at)
	}
}

func usable(nodes []judged) (n int) {
	for _, one := range nodes {
		if !one.out() {
			n++
		}
	}
	return n
}

// fullService is the goal that everything works again 2 s after an instant: every
// operation that was due then succeeds, and none waits.
func (r *run) fullService(at time.Duration) {
	var bad []sample
	last := at
	for _, s := range r.failures(at) {
		last = max(last, s.due)
		if s.due >= at+2*time.Second {
			bad = append(bad, s)
		}
	}
	r.figure("last failing call was due after", last-at)
	r.timed("full service within 2 s", len(bad) == 0, "%s", describe(bad))
	w := r.rec.window(at+2*time.Second, at+4*time.Second)
	r.figure("p99 from 2 s after, ms", w.P99)
}

// outage: all nodes are down for 10 s.
func outage(r *script) func() {
	r.normal()
	nodes := r.up()
	at := r.strike("kill all nodes")
	r.kill(nodes)
	r.sleep(10 * time.Second)
	var first time.Duration
	for i, n := range nodes {
		_, up := r.act(n.ID, "start", nil)
		if i == 0 {
			first = up
		}
	}
	r.sleep(first + 5*time.Second - r.rec.now())
	return func() {
		clear := map[string]bool{"NO_HEALTHY_NODE": true, "POOL_TIMEOUT": true, "QUEUE_FULL": true,
			"SHED_DEADLINE": true, "SHED_DELAY": true, "DEADLINE_EXCEEDED": true, "UPSTREAM_LOST": true,
			"OUTCOME_UNKNOWN": true, "TX_LOST": true, "TOO_MANY_OPEN": true, "YDB_UNAVAILABLE": true}
		waited := r.rec.find(func(s sample) bool {
			return s.kind != stream && s.failed == nil && s.sent >= at && s.sent < first && s.ended >= first
		})
		r.figure("calls that succeeded by waiting", len(waited))
		r.none("calls succeed by waiting, or fail clearly", r.failing(at, func(s sample) bool { return !clear[s.failed.code] }))
		r.fullService(first)
		r.paced(first)
	}
}
