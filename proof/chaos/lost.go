package chaos

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
)

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
