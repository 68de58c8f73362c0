package chaos

import (
	"context"
	"fmt"
	"time"
)

// slowAfterKill: a node that turns slow is found also while another one has just come back.
func slowAfterKill(ctx context.Context, r *run) (func(), error) {
	normal, err := r.normal(ctx)
	if err != nil {
		return nil, err
	}
	killed, err := r.victim(ctx)
	if err != nil {
		return nil, err
	}
	if _, _, err := r.act(ctx, killed, "kill", nil); err != nil {
		return nil, err
	}
	if err := sleep(ctx, 2*time.Second); err != nil {
		return nil, err
	}
	victim, err := r.victim(ctx) // of those that run
	if err != nil {
		return nil, err
	}
	_, up, err := r.act(ctx, killed, "start", nil)
	if err != nil {
		return nil, err
	}
	returned, ok, err := r.back(ctx, killed, up, 20*time.Second)
	if err != nil {
		return nil, err
	}
	at, _, err := r.act(ctx, victim, "delay", map[string]any{"delay": (50 * r.rec.typical(normal)).String()})
	if err != nil {
		return nil, err
	}
	out, ejected, reason, err := r.ejected(ctx, victim, at)
	if err != nil {
		return nil, err
	}
	if err := r.recovers(ctx, victim, "clear"); err != nil {
		return nil, err
	}
	return func() {
		r.figure("the killed node has sessions again after", returned)
		r.figure("ejected after", out)
		r.goal("the killed node comes back", ok, "after %v", returned)
		r.goal("the slow one is ejected", ejected, "after %v: %s", out, reason)
		r.timed("ejected within 3 s", ejected && out <= 3*time.Second, "after %v", out)
		r.noErrors("nothing fails once the killed node is back", at)
	}, nil
}

// merged: with all nodes behind one address sessions rest where they are, a node that dies costs what is
// in flight on it, and a rolling restart fails nothing but transactions that last too long.
func merged(ctx context.Context, r *run) (func(), error) {
	before, err := r.sidecar.pool(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	quiet, err := r.sidecar.pool(ctx)
	if err != nil {
		return nil, err
	}
	owner, err := r.owner(ctx)
	if err != nil {
		return nil, err
	}
	at, done, err := r.act(ctx, owner, "kill", nil)
	if err != nil {
		return nil, err
	}
	moved, ok, err := r.until(ctx, at, 20*time.Second, func() (bool, error) {
		now, err := r.owner(ctx)
		return now != 0 && now != owner, err
	})
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, 2*time.Second); err != nil {
		return nil, err
	}
	if _, _, err := r.act(ctx, owner, "start", nil); err != nil {
		return nil, err
	}
	if err := sleep(ctx, time.Second); err != nil {
		return nil, err
	}
	nodes, err := r.up(ctx)
	if err != nil {
		return nil, err
	}
	var all []farewell
	for _, i := range r.random.Perm(len(nodes)) {
		f, err := r.leave(ctx, nodes[i].ID, "streams", func() error { return nil })
		if err != nil {
			return nil, err
		}
		all = append(all, f)
		if _, _, err := r.act(ctx, f.node, "start", nil); err != nil {
			return nil, err
		}
	}
	if err := sleep(ctx, time.Second); err != nil {
		return nil, err
	}
	return func() {
		r.figure("sessions opened and closed while nothing was broken", []int64{quiet.Created - before.Created, quiet.Closed - before.Closed})
		r.goal("no session is replaced while nothing is broken", quiet.Closed == before.Closed, "%d closed", quiet.Closed-before.Closed)
		r.figure("sessions on another node after", moved)
		r.goal("sessions are opened on another node", ok, "after %v", moved)
		drain := all[0].at
		r.idempotentWork(at)
		r.inFlight(r.rec.find(func(s sample) bool { return s.failed != nil && s.ended >= at && s.ended < drain }), done)
		r.losses(all)
	}, nil
}

// promotion: new work goes to the pile that has become the primary one.
func promotion(ctx context.Context, r *run) (func(), error) {
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	primary, first, err := r.primary(ctx)
	if err != nil {
		return nil, err
	}
	other := map[string]string{"a": "b", "b": "a"}[primary]
	at := r.rec.now()
	r.event = at
	r.line.event("pile " + other + " is promoted")
	r.log("pile %s is promoted", other)
	if err := r.stack.control.SetPiles(ctx, map[string]string{primary: "SYNCHRONIZED", other: "PRIMARY"}); err != nil {
		return nil, err
	}
	known, ok, err := r.until(ctx, at, 20*time.Second, func() (bool, error) {
		now, _, err := r.primary(ctx)
		return now == other, err
	})
	if err != nil {
		return nil, err
	}
	moved, all, err := r.until(ctx, at, 60*time.Second, func() (bool, error) {
		_, share, err := r.primary(ctx)
		return share >= first, err
	})
	if err != nil {
		return nil, err
	}
	return func() {
		r.figure("part of the sessions in the primary pile before", round(first))
		r.figure("followed after", known)
		r.figure("as many sessions in the new primary pile after", moved)
		r.goal("the promotion is followed", ok, "after %v", known)
		r.timed("within 1 s", ok && known <= time.Second, "after %v", known)
		r.goal("the sessions follow", all, "after %v", moved)
		r.noErrors("nothing fails", at)
	}, nil
}

// owner is the node with the most sessions; 0: none has any.
func (r *run) owner(ctx context.Context) (owner uint32, err error) {
	sessions, err := r.stack.control.Sessions(ctx)
	n := map[uint32]int{}
	for _, s := range sessions {
		if n[s.NodeID]++; owner == 0 || n[s.NodeID] > n[owner] {
			owner = s.NodeID
		}
	}
	return owner, err
}

// primary is the pile that the sidecar takes for the primary one, and the part of the sessions that it has.
func (r *run) primary(ctx context.Context) (pile string, share float64, err error) {
	nodes, err := r.sidecar.nodes(ctx)
	in, all := 0, 0
	for _, n := range nodes {
		all += n.Sessions
		if n.PileState == "primary" {
			pile, in = n.Pile, in+n.Sessions
		}
	}
	if err == nil && pile == "" {
		err = fmt.Errorf("no primary pile among %+v", nodes)
	}
	return pile, float64(in) / float64(max(all, 1)), err
}
