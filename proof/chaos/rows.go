package chaos

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/proc"
)

// rows are all events, in the order of the report. A function of its own: the
// table is built for each use and nobody can change it.
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
		{name: "forward_lost", event: "the link to one node swallows everything, and then the node is SIGSTOPped", do: forwardLost, links: true, sets: []string{"routing.forward_silence=2s"}},
		{name: "refuse", event: "one node refuses fast (no resource)", do: refuse},
		{name: "hot_shard", event: "a table's shard overloaded, on all nodes", do: outageOf(proc.Fault{Kind: "hot_shard", Table: struckTable}, "TABLE_OVERLOADED", "/local/"+struckTable)},
		{name: "disk_full", event: "no disk space for a table, on all nodes", do: outageOf(proc.Fault{Kind: "disk_full", Table: struckTable}, "DISK_FULL", "disk space")},
		{name: "quota", event: "the database's quota used up by one table's calls", do: outageOf(proc.Fault{Kind: "quota", Table: struckTable}, "DATABASE_QUOTA", "quota")},
		{name: "pool_full", event: "a resource pool full for one table's calls", do: outageOf(proc.Fault{Kind: "pool_full", Table: struckTable}, "RESOURCE_POOL_FULL", "resource pool")},
		{name: "add", event: "node added", do: add},
		{name: "zone", event: "one whole zone and one more node killed", do: zone, cluster: []string{"-nodes", "9", "-locations", "a,b,c"}},
		{name: "outage", event: "all nodes down for 10 s, then up", do: outage},
		{name: "sigterm", event: "sidecar SIGTERM under load", do: sigterm},
		{name: "takeover", event: "sidecar replaced under load", do: replace, heir: true},
		{name: "sigkill", event: "sidecar SIGKILLed, and started again", do: murder},
		{name: "slow_after_kill", event: "one node 50x slower just after another one came back", do: slowAfterKill},
		{name: "merged", event: "all nodes behind one address: the owner of the sessions killed, then a rolling restart", do: merged, cluster: []string{"-endpoints", "merged"}, together: true, sets: []string{"discovery.interval=200ms"}},
		{name: "promotion", event: "another pile becomes the primary one", do: promotion, cluster: []string{"-nodes", "4", "-piles", "a=PRIMARY,b=SYNCHRONIZED"}, together: true},
		{name: "cancel_storm", event: "1,000 calls a second given up for 10 s", do: cancelStorm, sets: []string{"pool.max=150"}},
		{name: "mix", event: "everything in random order", do: mix, links: true, busy: true},
	}
}

// kill: idempotent calls do not fail, others only if they were in flight, and say what became of them.
func kill(ctx context.Context, r *run) (func(), error) {
	normal, err := r.normal(ctx)
	if err != nil {
		return nil, err
	}
	victim, err := r.victim(ctx)
	if err != nil {
		return nil, err
	}
	open, err := r.load.begin(30)
	if err != nil {
		return nil, err
	}
	if err := r.underWay(ctx, 50*time.Millisecond, 150*time.Millisecond); err != nil {
		return nil, err
	}
	at, done, err := r.act(ctx, victim, "kill", nil)
	if err != nil {
		return nil, err
	}
	if err := r.everywhere(ctx, "clear", nil); err != nil { // of those that are left
		return nil, err
	}
	out, ejected, _, err := r.ejected(ctx, victim, at)
	if err != nil {
		return nil, err
	}
	r.load.goOn(open)
	if err := sleep(ctx, done+time.Second-r.rec.now()); err != nil {
		return nil, err
	}
	after, err := r.measure(ctx)
	if err != nil {
		return nil, err
	}
	return func() {
		r.figure("out of use after", out)
		r.goal("the node is out of use", ejected, "after %v", out)
		r.idempotentWork(at)
		if r.o.Quick { // a busy machine may hold up the sidecar before it hears of the end of its connections
			r.onlyInFlight(at, max(done, at+out))
		} else {
			r.onlyInFlight(at, done)
		}
		kept, lost, untrue, elsewhere, first := sortOut(open, victim)
		r.figure("transactions lost", lost)
		r.goal("transactions open on it are lost with nothing kept, safe to begin again; others go on", lost > 0 && kept+untrue+elsewhere == 0,
			"%d lost, %d done all the same, %d lost in other words, %d on other nodes; %s", lost, kept, untrue, elsewhere, first)
		r.compare("p99 back to normal 1 s after", normal, after)
	}, nil
}

// underWay makes all calls slow for a while, so that some surely are under way when
// something happens next; not for long enough to be taken for a fault.
func (r *run) underWay(ctx context.Context, delay, span time.Duration) error {
	if err := r.everywhere(ctx, "delay", map[string]any{"delay": delay.String(), "methods": []string{"ExecuteQuery"}}); err != nil {
		return err
	}
	return sleep(ctx, span)
}

// everywhere does the same to every node that runs.
func (r *run) everywhere(ctx context.Context, what string, body any) error {
	nodes, err := r.up(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if _, _, err := r.act(ctx, n.ID, what, body); err != nil {
			return err
		}
	}
	return nil
}

// onlyInFlight judges the calls that failed because nodes died between at and done.
func (r *run) onlyInFlight(at, done time.Duration) { r.inFlight(r.failures(at), done) }

// inFlight judges the calls that failed because nodes died until done, but for the idempotent ones, of which none may fail.
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
		if f := s.failed; s.kind == count && !f.unknown || s.kind != count && !f.unknown && !f.safe || s.kind == pay && !s.commit && f.unknown {
			untrue = append(untrue, s)
		}
	}
	r.figure("calls lost", n)
	r.goal("only calls in flight fail", len(late) == 0, "%s", describe(late))
	r.goal("autocommit writes and commits in flight fail as outcome unknown, the rest as lost with nothing kept", len(untrue) == 0, "%s", describe(untrue))
}

// The limits of a drain in the rows: the soft one is the server's default, and longer than any stream of
// the load takes.
const (
	drainSoft  = 2 * time.Second
	drainHard  = 6 * time.Second
	drainYoung = time.Second            // transactions that end within it are not lost
	drainSlack = 100 * time.Millisecond // after the first sign for the last creation of a session
	emptySlack = 250 * time.Millisecond // after the soft limit, by which alone a silent drain is seen
)

// seldom leaves it to the sidecar to see that a node leaves: the next regular question to discovery is far.
var seldom = []string{"discovery.interval=1m"}

func shutdown(mode string) map[string]any {
	return map[string]any{"mode": mode, "soft": drainSoft.String(), "hard": drainHard.String()}
}

// counted is what a draining node has of the sidecar's, but for what runs or is open there.
func (r *run) counted(ctx context.Context, node uint32) (free int, err error) {
	sessions, err := r.stack.control.Sessions(ctx)
	for _, s := range sessions {
		if s.NodeID == node && s.Transactions == 0 && s.State != "busy" {
			free++
		}
	}
	return free, err
}

// farewell is what a node saw of the sidecar while it drained.
type farewell struct {
	node          uint32
	at            time.Duration
	free          time.Duration // when it last held a session that was not in use
	empty         bool          // it holds none at the end
	refused, late int64         // creations of sessions, and ms from the first sign to the last
}

// leave drains a node and watches it until it is about to stop.
func (r *run) leave(ctx context.Context, node uint32, mode string, meanwhile func() error) (f farewell, err error) {
	f.node = node
	if f.at, _, err = r.act(ctx, node, "drain", shutdown(mode)); err != nil {
		return f, err
	}
	var watch sync.WaitGroup
	var failed error
	var refused time.Duration // when it was last asked for that
	watch.Go(func() {
		_, _, failed = r.until(ctx, f.at, drainHard-time.Second, func() (bool, error) {
			n, err := r.counted(ctx, node)
			if f.empty = n == 0; n > 0 {
				f.free = r.rec.now() - f.at
			}
			if now := r.rec.now(); err == nil && now-refused > sampleEvery {
				refused, err = now, r.refusals(ctx, &f)
			}
			return false, err
		})
	})
	err = meanwhile()
	watch.Wait()
	if err = errors.Join(err, failed); err != nil {
		return f, err
	}
	if err := sleep(ctx, f.at+drainHard-500*time.Millisecond-r.rec.now()); err != nil {
		return f, err
	}
	if err := r.refusals(ctx, &f); err != nil {
		return f, err
	}
	return f, r.stopped(ctx, node)
}

// refusals reads which creations of sessions the node has refused so far. One that has stopped
// by now, because this machine was busy, counts no more: what it said before holds.
func (r *run) refusals(ctx context.Context, f *farewell) error {
	nodes, err := r.stack.control.Nodes(ctx)
	for _, n := range nodes {
		if n.ID == f.node {
			f.refused, f.late = max(f.refused, n.Counters["drain_refused"]), max(f.late, n.Counters["drain_late_ms"])
		}
	}
	return err
}

func (r *run) stopped(ctx context.Context, node uint32) error {
	_, ok, err := r.until(ctx, r.rec.now(), drainHard+patience, func() (bool, error) {
		nodes, err := r.stack.control.Nodes(ctx)
		for _, n := range nodes {
			if n.ID == node {
				return n.State == "stopped", err
			}
		}
		return false, err
	})
	if err == nil && !ok {
		err = fmt.Errorf("node %d does not stop", node)
	}
	return err
}

// losses judges what failed while nodes drained one after the other.
func (r *run) losses(all []farewell) {
	var outside, young, untrue []sample
	for _, s := range r.failures(all[0].at) {
		f := all[0]
		for _, next := range all[1:] {
			if s.ended >= next.at {
				f = next
			}
		}
		switch {
		case s.kind != pay:
			outside = append(outside, s)
		case s.ended <= f.at+drainYoung:
			young = append(young, s)
		case !s.failed.safe && !(s.commit && s.failed.unknown):
			untrue = append(untrue, s)
		}
	}
	r.goal("no statement outside a transaction fails", len(outside) == 0, "%s", describe(outside))
	r.goal("no transaction fails that ends within 1 s of the drain", len(young) == 0, "%s", describe(young))
	r.goal("older ones end as lost with nothing kept, a commit in flight as unknown", len(untrue) == 0, "%s", describe(untrue))
}

// farewells judges nodes that drained one after the other.
func (r *run) farewells(all []farewell) {
	r.losses(all)
	var free []float64
	var refused, late []int64
	empty, within, last := true, true, int64(0)
	for _, f := range all {
		free, refused, late = append(free, ms(f.free)), append(refused, f.refused), append(late, f.late)
		empty, within, last = empty && f.empty, within && f.free <= drainSoft+emptySlack, max(last, f.late)
	}
	r.figure("idle sessions on the node until, ms", free)
	r.figure("sessions refused", refused)
	r.figure("last of them after the first sign, ms", late)
	r.goal("no idle session stays on the node", empty, "until %v ms", free)
	r.timed(fmt.Sprintf("none from %v after the soft limit on", emptySlack), within, "until %v ms, limit %v", free, drainSoft)
	// What is asked for because nothing was seen comes again and again for seconds.
	r.goal("the node is asked for no session a second after the first sign", last <= 1000, "%v refused, the last after %v ms", refused, late)
	r.timed(fmt.Sprintf("the node is asked for no session later than %v after the first sign", drainSlack), last <= drainSlack.Milliseconds(), "%v refused, the last after %v ms", refused, late)
}

// drain: nothing fails but transactions that last too long.
func drain(mode string) func(context.Context, *run) (func(), error) {
	return func(ctx context.Context, r *run) (func(), error) {
		if _, err := r.normal(ctx); err != nil {
			return nil, err
		}
		victim, err := r.victim(ctx)
		if err != nil {
			return nil, err
		}
		open, err := r.load.begin(30)
		if err != nil {
			return nil, err
		}
		young, old := open[:15], open[15:]
		var done time.Duration
		f, err := r.leave(ctx, victim, mode, func() error {
			r.load.goOn(young)
			done = r.rec.now()
			if err := sleep(ctx, drainSoft); err != nil { // from now, which is after the drain began
				return err
			}
			r.load.goOn(old)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
		return func() {
			kept, lost, untrue, elsewhere, first := sortOut(young, victim)
			r.figure("transactions on the node that went on at once", kept)
			r.goal("transactions that go on at once are done", kept > 0 && lost+untrue+elsewhere == 0, "%d done by %v, %d lost, %d in untrue words, %d on other nodes; %s", kept, done-f.at, lost, untrue, elsewhere, first)
			kept, lost, untrue, elsewhere, first = sortOut(old, victim)
			r.figure("transactions on the node that went on after the soft limit", lost)
			r.goal("those that go on after the soft limit are lost with nothing kept", lost > 0 && kept+untrue+elsewhere == 0, "%d lost, %d done all the same, %d in untrue words, %d on other nodes; %s", lost, kept, untrue, elsewhere, first)
			r.farewells([]farewell{f})
		}, nil
	}
}

// rolling: every node in turn is drained, stopped and started, and nothing fails but transactions that last too long.
func rolling(mode string) func(context.Context, *run) (func(), error) {
	return func(ctx context.Context, r *run) (func(), error) {
		if _, err := r.normal(ctx); err != nil {
			return nil, err
		}
		nodes, err := r.up(ctx)
		if err != nil {
			return nil, err
		}
		var returns []float64
		var all []farewell
		for _, i := range r.random.Perm(len(nodes)) {
			id := nodes[i].ID
			f, err := r.leave(ctx, id, mode, func() error { return nil })
			if err != nil {
				return nil, err
			}
			all = append(all, f)
			_, up, err := r.act(ctx, id, "start", nil)
			if err != nil {
				return nil, err
			}
			after, ok, err := r.back(ctx, id, up, 20*time.Second)
			if err != nil {
				return nil, err
			}
			if ok {
				returns = append(returns, ms(after))
			}
		}
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
		return func() {
			r.figure("sessions again, ms after each start", returns)
			r.goal("each node has sessions again within 6 s of its start", len(returns) == len(nodes) && slices.Max(returns) <= 6000, "%d of %d nodes have some, after %v ms", len(returns), len(nodes), returns)
			r.farewells(all)
		}, nil
	}
}

// slow: a node that takes 50 times as long is found by its latency.
func slow(ctx context.Context, r *run) (func(), error) {
	normal, err := r.normal(ctx)
	if err != nil {
		return nil, err
	}
	victim, err := r.victim(ctx)
	if err != nil {
		return nil, err
	}
	delay := 50 * r.rec.typical(normal)
	at, _, err := r.act(ctx, victim, "delay", map[string]any{"delay": delay.String()})
	if err != nil {
		return nil, err
	}
	out, ejected, reason, err := r.ejected(ctx, victim, at)
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, 200*time.Millisecond); err != nil { // what it had in hand
		return nil, err
	}
	after, err := r.measure(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.recovers(ctx, victim, "clear"); err != nil {
		return nil, err
	}
	return func() {
		r.figure("delay", delay)
		r.figure("ejected after", out)
		r.goal("ejected", ejected, "after %v: %s", out, reason)
		r.timed("ejected within 3 s", ejected && out <= 3*time.Second, "after %v", out)
		r.noErrors("nothing fails", at)
		r.compare("p99 of all calls once it is ejected", normal, after)
	}, nil
}

// typical is the median latency of a window, at least a millisecond.
func (r *recorder) typical(s span) time.Duration {
	return max(time.Millisecond, time.Duration(r.window(s.from, s.to).P50*float64(time.Millisecond)))
}

// recovers takes a fault back and tells how soon the node has sessions again.
func (r *run) recovers(ctx context.Context, node uint32, what string) error {
	at, _, err := r.act(ctx, node, what, nil)
	if err != nil {
		return err
	}
	after, ok, err := r.back(ctx, node, at, 30*time.Second)
	r.figure("sessions again after", after)
	r.goal("the node gets sessions again", ok, "after %v", after)
	return err
}

// silent: a node that swallows everything is found by its silence.
func silent(what, undo string) func(context.Context, *run) (func(), error) {
	return func(ctx context.Context, r *run) (func(), error) {
		normal, err := r.normal(ctx)
		if err != nil {
			return nil, err
		}
		victim, err := r.victim(ctx)
		if err != nil {
			return nil, err
		}
		at, done, err := r.act(ctx, victim, what, nil)
		if err != nil {
			return nil, err
		}
		out, ejected, reason, err := r.ejected(ctx, victim, at)
		if err != nil {
			return nil, err
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
		after, err := r.measure(ctx)
		if err != nil {
			return nil, err
		}
		if err := r.recovers(ctx, victim, undo); err != nil {
			return nil, err
		}
		limit := r.duration("health.silence") + r.duration("health.probe_timeout")
		const first = 100 * time.Millisecond // until the first call is sent into the silence
		return func() {
			r.figure("ejected after", out)
			r.goal("ejected", ejected, "after %v: %s", out, reason)
			r.timed(fmt.Sprintf("ejected within health.silence + health.probe_timeout = %v of the first call into the silence", limit),
				ejected && out <= limit+(done-at)+first, "after %v", out)
			r.figure("longest wait beyond the deadline", max(0, r.rec.most.over))
			r.idempotentWork(at)
			r.show(normal, after)
		}, nil
	}
}

// unlinked: only the link to a node carries nothing any more. Transactions that are
// open on it go on through another node, which forwards their calls. (Were its
// connections reset, the node would end their sessions itself.)
func unlinked(ctx context.Context, r *run) (func(), error) {
	normal, err := r.normal(ctx)
	if err != nil {
		return nil, err
	}
	victim, err := r.victim(ctx)
	if err != nil {
		return nil, err
	}
	// Transactions that are open before and go on after: some on every node.
	open, err := r.load.begin(30)
	if err != nil {
		return nil, err
	}
	at, _, err := r.act(ctx, victim, "freeze the link to", nil)
	if err != nil {
		return nil, err
	}
	out, ejected, _, err := r.ejected(ctx, victim, at)
	if err != nil {
		return nil, err
	}
	_, before := r.line.sums()
	r.load.goOn(open)
	if err := sleep(ctx, time.Second); err != nil {
		return nil, err
	}
	_, then := r.line.sums()
	after, err := r.measure(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.recovers(ctx, victim, "mend the link to"); err != nil {
		return nil, err
	}
	return func() {
		r.figure("out of use after", out)
		r.goal("the node is out of use", ejected, "after %v", out)
		done, lost, untrue, elsewhere, first := sortOut(open, victim)
		r.goal("transactions that are open on it go on through another node", done > 0 && lost+untrue+elsewhere == 0 && then > before,
			"%d done, %d lost, %d in untrue words, %d on other nodes, %d calls forwarded; %s", done, lost, untrue, elsewhere, then-before, first)
		r.idempotentWork(at)
		r.onlyInFlight(at, at+out)
		r.show(normal, after)
	}, nil
}

// forwardLost: the owner of open transactions is out of reach, and falls silent itself. The nodes that
// forward their calls do not tell, and discovery lists it as before.
func forwardLost(ctx context.Context, r *run) (func(), error) {
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	victim, err := r.victim(ctx)
	if err != nil {
		return nil, err
	}
	open, err := r.load.begin(30)
	if err != nil {
		return nil, err
	}
	var there, elsewhere []opened
	for _, o := range open {
		if o.node == victim {
			there = append(there, o)
		} else {
			elsewhere = append(elsewhere, o)
		}
	}
	at, _, err := r.act(ctx, victim, "freeze the link to", nil)
	if err != nil {
		return nil, err
	}
	_, ejected, _, err := r.ejected(ctx, victim, at)
	if err != nil {
		return nil, err
	}
	r.load.goOn(elsewhere) // not before: a node with all the open work gets no other, and is found later
	for i := range there { // now the nodes that forward have connections to it
		if err := there[i].read(false); err != nil {
			return nil, fmt.Errorf("a statement through another node: %w", err)
		}
	}
	if _, _, err := r.act(ctx, victim, "pause", nil); err != nil {
		return nil, err
	}
	began := r.rec.now()
	var calls sync.WaitGroup
	for i := range there {
		calls.Go(func() { r.load.goOn(there[i : i+1]) })
	}
	calls.Wait()
	took := r.rec.now() - began
	if _, _, err := r.act(ctx, victim, "resume", nil); err != nil {
		return nil, err
	}
	if err := r.recovers(ctx, victim, "mend the link to"); err != nil {
		return nil, err
	}
	return func() {
		unknown, lost, first := 0, 0, "none failed"
		for _, o := range there {
			switch {
			case o.failed != nil && o.failed.unknown:
				unknown++
			case o.failed != nil && o.failed.safe: // a node that forwards may have had no connection to it: then it tells at once
				lost++
			case o.failed != nil:
				first = o.failed.Error()
			}
		}
		r.figure("commits ended after", took)
		r.goal("the node is out of use", ejected, "at once")
		late := 0
		for _, o := range there {
			if o.failed != nil && o.failed.code == "DEADLINE_EXCEEDED" {
				late++
			}
		}
		r.goal("no commit around the silent node waits until its deadline", late == 0 && took < r.load.timeout, "%d of %d did, all ended after %v", late, len(there), took)
		r.goal("their outcome is unknown, or they are lost with nothing kept", unknown > 0 && unknown+lost == len(there), "of %d %d unknown, %d lost; of the others %s", len(there), unknown, lost, first)
		r.idempotentWork(at)
	}, nil
}

// duration is a setting of the sidecar; 0 if there is no such setting.
func (r *run) duration(name string) time.Duration {
	d, _ := time.ParseDuration(r.settings[name])
	return d
}

func (r *run) number(name string) int {
	n, _ := strconv.Atoi(r.settings[name])
	return n
}

// refuse: a node that refuses fast does not attract work.
func refuse(ctx context.Context, r *run) (func(), error) {
	normal, err := r.normal(ctx)
	if err != nil {
		return nil, err
	}
	victim, err := r.victim(ctx)
	if err != nil {
		return nil, err
	}
	at, _, err := r.act(ctx, victim, "errors", map[string]any{"status": "grpc:RESOURCE_EXHAUSTED"})
	if err != nil {
		return nil, err
	}
	out, ejected, reason, err := r.ejected(ctx, victim, at)
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, at+2*time.Second-r.rec.now()); err != nil {
		return nil, err
	}
	before, err := r.calls(ctx)
	if err != nil {
		return nil, err
	}
	after, err := r.measure(ctx)
	if err != nil {
		return nil, err
	}
	then, err := r.calls(ctx)
	if err != nil {
		return nil, err
	}
	var all int64
	for id := range then {
		all += then[id] - before[id]
	}
	share := float64(then[victim]-before[victim]) / float64(max(1, all))
	if err := r.recovers(ctx, victim, "clear"); err != nil {
		return nil, err
	}
	return func() {
		r.figure("out of use after", out)
		r.figure("its share of calls after 2 s", round(share))
		r.goal("out of use", ejected, "after %v: %s", out, reason)
		r.timed("out of use within 2 s", ejected && out <= 2*time.Second, "after %v", out)
		r.timed("its share of new work is below 5 % after 2 s", share < 0.05, "%.1f %% of %d calls", 100*share, all)
		r.idempotentWork(at)
		r.show(normal, after)
	}, nil
}

// calls counts the calls that reached each node.
func (r *run) calls(ctx context.Context) (map[uint32]int64, error) {
	nodes, err := r.stack.control.Nodes(ctx)
	count := map[uint32]int64{}
	for _, n := range nodes {
		count[n.ID] = n.Counters["calls"]
	}
	return count, err
}

// paced are the goals about how fast sessions are opened.
func (r *run) paced(from time.Duration) {
	node, all := r.line.creating(from, r.rec.now())
	burst := r.number("pool.create_burst")
	r.figure("most sessions opened in a second", r.line.pace(from, r.rec.now(), created))
	r.figure("most sessions being opened at a time, one node and all", []int{node, all})
	if burst > 0 {
		r.goal(fmt.Sprintf("no more than pool.create_burst = %d openings at a time on a node, and four times that in all", burst),
			node <= burst && all <= 4*burst, "%d on a node, %d in all", node, all)
	}
}

// add: a node that joins gets its share of the sessions, and nobody notices.
func add(ctx context.Context, r *run) (func(), error) {
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	at := r.rec.now()
	r.event = at
	r.line.event("add node 4")
	node, err := r.stack.control.Add(ctx, "")
	if err != nil {
		return nil, err
	}
	var last []judged
	fair, ok, err := r.until(ctx, at, 20*time.Second, func() (bool, error) {
		nodes, err := r.stack.nodes(ctx, r.sidecar)
		last = nodes
		return err == nil && len(nodes) == 4 && even(nodes, r.number("pool.min"), 0.2), err
	})
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, 2*time.Second); err != nil {
		return nil, err
	}
	pace := r.line.pace(at, r.rec.now(), moved)
	return func() {
		r.figure("fair after", fair)
		r.figure("sessions", spread(last))
		r.goal("node 4 gets its fair share of the sessions, within 20 %", ok && node.ID == 4, "after %v: %v", fair, spread(last))
		r.timed("within 10 s", ok && fair <= 10*time.Second, "after %v", fair)
		r.noErrors("nothing fails", at)
		r.paced(at)
		if rate := r.number("pool.move_rate"); rate > 0 {
			most := int64(max(1, rate*r.number("pool.max")/100))
			r.goal("sessions move no faster than pool.move_rate", pace > 0 && pace <= most+1, "%d moved in a second; %d may", pace, most)
		}
	}, nil
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
func zone(ctx context.Context, r *run) (func(), error) {
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	nodes, err := r.up(ctx)
	if err != nil {
		return nil, err
	}
	before := len(nodes)
	lost := r.random.IntN(3) // nodes of one zone have the same number modulo 3
	other := (lost + 1) % 3
	var victims []proc.Node
	for _, n := range nodes {
		if int(n.ID)%3 == lost {
			victims = append(victims, n)
		} else if int(n.ID)%3 == other {
			victims, other = append(victims, n), -1
		}
	}
	at := r.rec.now()
	r.event = at
	r.line.event(fmt.Sprintf("kill %d of %d nodes", len(victims), len(nodes)))
	for _, n := range victims { // at once: the control API would take its time for each
		if err := syscall.Kill(n.Pid, syscall.SIGKILL); err != nil {
			return nil, fmt.Errorf("kill node %d: %w", n.ID, err)
		}
	}
	done := r.rec.now()
	var last []judged
	levelled, ok, err := r.until(ctx, at, 20*time.Second, func() (bool, error) {
		nodes, err := r.stack.nodes(ctx, r.sidecar)
		last = nodes
		return err == nil && usable(nodes) == before-len(victims) && even(nodes, r.number("pool.min"), 0.2), err
	})
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, at+4*time.Second-r.rec.now()); err != nil {
		return nil, err
	}
	return func() {
		r.idempotentWork(at)
		r.onlyInFlight(at, done)
		r.fullService(at)
		r.figure("sessions even after", levelled)
		r.figure("sessions", spread(last))
		r.goal("sessions are even on the rest, within 20 %", ok, "after %v: %v", levelled, spread(last))
		r.paced(at)
	}, nil
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
func outage(ctx context.Context, r *run) (func(), error) {
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	nodes, err := r.up(ctx)
	if err != nil {
		return nil, err
	}
	at := r.rec.now()
	r.event = at
	r.line.event("kill all nodes")
	r.log("kill all nodes")
	for _, n := range nodes {
		if err := syscall.Kill(n.Pid, syscall.SIGKILL); err != nil {
			return nil, fmt.Errorf("kill node %d: %w", n.ID, err)
		}
	}
	if err := sleep(ctx, 10*time.Second); err != nil {
		return nil, err
	}
	var first time.Duration
	for i, n := range nodes {
		_, up, err := r.act(ctx, n.ID, "start", nil)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			first = up
		}
	}
	if err := sleep(ctx, first+5*time.Second-r.rec.now()); err != nil {
		return nil, err
	}
	return func() {
		clear := map[string]bool{"NO_HEALTHY_NODE": true, "POOL_TIMEOUT": true, "QUEUE_FULL": true, "SHED_DEADLINE": true, "SHED_DELAY": true, "DEADLINE_EXCEEDED": true, "UPSTREAM_LOST": true,
			"OUTCOME_UNKNOWN": true, "TX_LOST": true, "TOO_MANY_OPEN": true, "YDB_UNAVAILABLE": true}
		var vague []sample
		waited := 0
		for _, s := range r.failures(at) {
			if !clear[s.failed.code] {
				vague = append(vague, s)
			}
		}
		for _, s := range r.rec.find(func(s sample) bool { return s.failed == nil && s.sent >= at && s.sent < first && s.ended >= first }) {
			if s.kind != stream {
				waited++
			}
		}
		r.figure("calls that succeeded by waiting", waited)
		r.goal("calls succeed by waiting, or fail clearly", len(vague) == 0, "%s", describe(vague))
		r.fullService(first)
		r.paced(first)
	}, nil
}

// sigterm: the sidecar is told to stop under load.
func sigterm(ctx context.Context, r *run) (func(), error) {
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	delay := 50 * time.Millisecond
	if r.o.Quick { // fewer calls: some that are no reads must be among those under way
		delay = 300 * time.Millisecond
	}
	if err := r.underWay(ctx, delay, 500*time.Millisecond); err != nil {
		return nil, err
	}
	at := r.rec.now()
	r.over = true
	r.line.event("SIGTERM to the sidecar")
	r.log("SIGTERM to the sidecar")
	r.line.watch(nil)
	if err := r.sidecar.process.Signal(syscall.SIGTERM); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	code, err := r.sidecar.process.Wait(wait)
	if err != nil {
		return nil, err
	}
	took := r.rec.now() - at
	if err := r.noSessions(ctx, 0); err != nil {
		return nil, err
	}
	said := lastLines(r.sidecar.process.Log(), 5)
	if err := sleep(ctx, 500*time.Millisecond); err != nil {
		return nil, err
	}
	return func() {
		r.figure("exit after", took)
		r.exits(code, said)
		var cut []sample
		for _, s := range r.failures(at) {
			switch s.failed.code {
			case "DRAINING", absent, unread: // the books show whether what was unread did run
			default:
				cut = append(cut, s)
			}
		}
		r.goal("no answer is cut", len(cut) == 0, "%s", describe(cut))
	}, nil
}

// replace: another sidecar takes the place of the one that runs, twice.
func replace(ctx context.Context, r *run) (func(), error) {
	normal, err := r.normal(ctx)
	if err != nil {
		return nil, err
	}
	at := r.rec.now()
	r.event = at
	var codes []int
	var took []float64
	var said string
	for range 2 {
		begun := r.rec.now()
		r.line.event("serve -takeover")
		r.log("serve -takeover")
		old := r.sidecar
		heir, err := r.stack.sidecar(ctx, r.flags(), append([]string{"-takeover"}, freePorts...)...)
		if err != nil {
			return nil, err
		}
		heir.close() // callers keep the connections that they have
		heir.faces = old.faces
		if heir.grpc != old.grpc || heir.http != old.http {
			return nil, fmt.Errorf("the new sidecar listens on %s and %s; want the same as before, %s and %s", heir.grpc, heir.http, old.grpc, old.http)
		}
		r.sidecar = heir
		r.line.watch(heir)
		wait, cancel := context.WithTimeout(ctx, patience)
		code, err := old.process.Wait(wait)
		cancel()
		if err != nil {
			return nil, err
		}
		codes, took, said = append(codes, code), append(took, ms(r.rec.now()-begun)), lastLines(old.process.Log(), 3)
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	after, err := r.measure(ctx)
	if err != nil {
		return nil, err
	}
	return func() {
		r.figure("from the start of the new one to the end of the old one, ms", took)
		r.noErrors("no call fails", at)
		r.goal("the old sidecars exit 0", codes[0] == 0 && codes[1] == 0, "%v %s", codes, said)
		r.show(normal, after)
	}, nil
}

// murder: a sidecar that is killed leaves nothing on the nodes, and the next one starts
// clean. Callers lose what was in flight.
func murder(ctx context.Context, r *run) (func(), error) {
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	at := r.rec.now()
	r.event, r.deaf = at, true
	r.load.ledger.kill()
	r.line.event("SIGKILL to the sidecar")
	r.line.watch(nil)
	old := r.sidecar
	if err := old.process.Signal(syscall.SIGKILL); err != nil {
		return nil, err
	}
	gone, clean, err := r.until(ctx, at, 10*time.Second, func() (bool, error) {
		sessions, err := r.stack.control.Sessions(ctx)
		return len(sessions) == 0, err
	})
	if err != nil {
		return nil, err
	}
	begun := r.rec.now()
	r.line.event("serve")
	next, err := r.stack.sidecar(ctx, r.flags(), "-grpc", old.grpc, "-http", old.http, "-admin", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	next.close() // callers come back by themselves
	next.faces = old.faces
	r.sidecar = next
	r.line.watch(next)
	ready := r.rec.now()
	if err := sleep(ctx, 3*time.Second); err != nil {
		return nil, err
	}
	return func() {
		r.figure("sessions gone after", gone)
		r.figure("ready after", ready-begun)
		r.goal("no session of the dead process is left", clean, "after %v", gone)
		r.timed("within 1 s", clean && gone <= time.Second, "after %v", gone)
		r.fullService(ready)
	}, nil
}
