package chaos

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

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

// counted is what a draining node has of the sidecar's, except what runs or is open there.
func (r *script) counted(node uint32) (free int) {
	for _, s := range r.sessions() {
		if s.NodeID == node && s.Transactions == 0 && s.State != "busy" {
			free++
		}
	}
	return free
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
func (r *script) leave(node uint32, mode string, meanwhile func()) (f farewell) {
	f.node = node
	if f.at, _ = r.act(node, "drain", shutdown(mode)); r.err != nil {
		return f
	}
	watch := &script{run: r.run, ctx: r.ctx} // beside what happens meanwhile
	var watching sync.WaitGroup
	watching.Go(func() { watch.drained(&f) })
	meanwhile()
	watching.Wait()
	r.err = errors.Join(r.err, watch.err)
	r.sleep(f.at + drainHard - 500*time.Millisecond - r.rec.now())
	r.refusals(&f)
	r.stopped(node)
	return f
}

// drained watches what a draining node still has and refuses, until shortly before its hard limit.
func (r *script) drained(f *farewell) {
	var refused time.Duration // when it was last asked for that
	r.until(f.at, drainHard-time.Second, func() bool {
		n := r.counted(f.node)
		if r.err != nil {
			return false
		}
		if f.empty = n == 0; n > 0 {
			f.free = r.rec.now() - f.at
		}
		if now := r.rec.now(); now-refused > sampleEvery {
			refused = now
			r.refusals(f)
		}
		return false
	})
}

// refusals reads which creations of sessions the node has refused so far. One that has stopped
// by now, because this machine was busy, counts no more: what it said before holds.
func (r *script) refusals(f *farewell) {
	for _, n := range r.members() {
		if n.ID == f.node {
			f.refused, f.late = max(f.refused, n.Counters["drain_refused"]), max(f.late, n.Counters["drain_late_ms"])
		}
	}
}

// stopped waits until a node is stopped, which is an error if it does not come.
func (r *script) stopped(node uint32) {
	_, ok := r.until(r.rec.now(), drainHard+patience, func() bool {
		for _, n := range r.members() {
			if n.ID == node {
				return n.State == "stopped"
			}
		}
		return false
	})
	if r.err == nil && !ok {
		r.err = fmt.Errorf("node %d does not stop", node)
	}
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
	r.none("no statement outside a transaction fails", outside)
	r.none("no transaction fails that ends within 1 s of the drain", young)
	r.none("older ones end as lost with nothing kept, a commit in flight as unknown", untrue)
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
	r.goal("the node is asked for no session a second after the first sign", last <= 1000,
		"%v refused, the last after %v ms", refused, late)
	r.timed(fmt.Sprintf("the node is asked for no session later than %v after the first sign", drainSlack),
		last <= drainSlack.Milliseconds(), "%v refused, the last after %v ms", refused, late)
}

// drain: nothing fails but transactions that last too long.
func drain(mode string) func(*script) func() {
	return func(r *script) func() {
		r.normal()
		victim := r.victim()
		open := r.begin(30)
		young, old := open[:len(open)/2], open[len(open)/2:]
		var done time.Duration
		f := r.leave(victim, mode, func() {
			r.load.goOn(young)
			done = r.rec.now()
			r.sleep(drainSoft) // from now, which is after the drain began
			r.load.goOn(old)
		})
		r.sleep(time.Second)
		return func() {
			kept, lost, untrue, elsewhere, first := sortOut(young, victim)
			r.figure("transactions on the node that went on at once", kept)
			r.goal("transactions that go on at once are done", kept > 0 && lost+untrue+elsewhere == 0,
				"%d done by %v, %d lost, %d in untrue words, %d on other nodes; %s", kept, done-f.at, lost, untrue,
				elsewhere, first)
			kept, lost, untrue, elsewhere, first = sortOut(old, victim)
			r.figure("transactions on the node that went on after the soft limit", lost)
			r.goal("those that go on after the soft limit are lost with nothing kept",
				lost > 0 && kept+untrue+elsewhere == 0,
				"%d lost, %d done all the same, %d in untrue words, %d on other nodes; %s", lost, kept, untrue,
				elsewhere, first)
			r.farewells([]farewell{f})
		}
	}
}

// rolling: every node in turn is drained, stopped and started, and nothing fails but transactions that last too long.
func rolling(mode string) func(*script) func() {
	return func(r *script) func() {
		r.normal()
		nodes := r.up()
		var returns []float64
		var all []farewell
		for _, i := range r.random.Perm(len(nodes)) {
			id := nodes[i].ID
			f := r.leave(id, mode, func() {})
			all = append(all, f)
			_, up := r.act(id, "start", nil)
			after, ok := r.back(id, up, 20*time.Second)
			if ok {
				returns = append(returns, ms(after))
			}
		}
		r.sleep(time.Second)
		return func() {
			r.figure("sessions again, ms after each start", returns)
			r.goal("each node has sessions again within 6 s of its start",
				len(returns) == len(nodes) && slices.Max(returns) <= 6000, "%d of %d nodes have some, after %v ms",
				len(returns), len(nodes), returns)
			r.farewells(all)
		}
	}
}
