package chaos

import (
	"context"
	"fmt"
	"time"
)

// slowAfterKill: a node that turns slow is found also while another one has just come back.
func slowAfterKill(r *script) func() {
	normal := r.normal()
	killed := r.victim()
	r.act(killed, "kill", nil)
	r.sleep(2 * time.Second)
	victim := r.victim() // another one, which runs
	_, up := r.act(killed, "start", nil)
	returned, ok := r.back(killed, up, 20*time.Second)
	at, _ := r.act(victim, "delay", map[string]any{"delay": (50 * r.rec.typical(normal)).String()})
	e := r.ejected(victim, at)
	r.recovers(victim, "clear")
	return func() {
		r.figure("the killed node has sessions again after", returned)
		r.goal("the killed node comes back", ok, "after %v", returned)
		r.found("the slow one is ejected", e, 3*time.Second, "ejected within 3 s")
		r.noErrors("nothing fails once the killed node is back", at)
	}
}

// merged: with all nodes behind one address sessions rest where they are, a node that dies costs what is
// in flight on it, and a rolling restart fails nothing but transactions that last too long.
func merged(r *script) func() {
	before := r.pool()
	r.normal()
	quiet := r.pool()
	owner := r.owner()
	at, done := r.act(owner, "kill", nil)
	moved, ok := r.until(at, 20*time.Second, func() bool {
		now := r.owner()
		return now != 0 && now != owner
	})
	r.sleep(2 * time.Second)
	r.act(owner, "start", nil)
	r.sleep(time.Second)
	nodes := r.up()
	var all []farewell
	for _, i := range r.random.Perm(len(nodes)) {
		f := r.leave(nodes[i].ID, "streams", func() {})
		all = append(all, f)
		r.act(f.node, "start", nil)
	}
	r.sleep(time.Second)
	return func() {
		r.figure("sessions opened and closed while nothing was broken",
			[]int64{quiet.Created - before.Created, quiet.Closed - before.Closed})
		r.goal("no session is replaced while nothing is broken", quiet.Closed == before.Closed, "%d closed", quiet.Closed-before.Closed)
		r.figure("sessions on another node after", moved)
		r.goal("sessions are opened on another node", ok, "after %v", moved)
		drain := all[0].at
		r.idempotentWork(at)
		r.inFlight(r.rec.find(func(s sample) bool { return s.failed != nil && s.ended >= at && s.ended < drain }), done)
		r.losses(all)
	}
}

// promotion: new work goes to the pile that has become the primary one.
func promotion(r *script) func() {
	r.normal()
	primary, first := r.primary()
	other := map[string]string{"a": "b", "b": "a"}[primary]
	at := r.strike("pile %s is promoted", other)
	r.try(func(ctx context.Context) error {
		return r.stack.control.SetPiles(ctx, map[string]string{primary: "SYNCHRONIZED", other: "PRIMARY"})
	})
	known, ok := r.until(at, 20*time.Second, func() bool {
		now, _ := r.primary()
		return now == other
	})
	moved, all := r.until(at, 60*time.Second, func() bool {
		_, share := r.primary()
		return share >= first
	})
	return func() {
		r.figure("part of the sessions in the primary pile before", round(first))
		r.figure("followed after", known)
		r.figure("as many sessions in the new primary pile after", moved)
		r.goal("the promotion is followed", ok, "after %v", known)
		r.timed("within 1 s", ok && known <= time.Second, "after %v", known)
		r.goal("the sessions follow", all, "after %v", moved)
		r.noErrors("nothing fails", at)
	}
}

// owner is the node with the most sessions; 0: none has any.
func (r *script) owner() (owner uint32) {
	n := map[uint32]int{}
	for _, s := range r.sessions() {
		if n[s.NodeID]++; owner == 0 || n[s.NodeID] > n[owner] {
			owner = s.NodeID
		}
	}
	return owner
}

// primary is the pile that the sidecar takes for the primary one, and the part of the sessions that it has.
func (r *script) primary() (pile string, share float64) {
	nodes := r.nodes()
	in, all := 0, 0
	for _, n := range nodes {
		all += n.Sessions
		if n.PileState == "primary" {
			pile, in = n.Pile, in+n.Sessions
		}
	}
	if r.err == nil && pile == "" {
		r.err = fmt.Errorf("no primary pile among %+v", nodes)
	}
	return pile, float64(in) / float64(max(all, 1))
}
