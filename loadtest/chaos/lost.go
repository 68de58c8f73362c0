package chaos

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// slow: a node that takes 50 times as long is found by its latency.
func slow(r *script) func() {
	normal := r.normal()
	victim := r.victim()
	delay := 50 * r.rec.typical(normal)
	at, _ := r.act(victim, "delay", map[string]any{"delay": delay.String()})
	e := r.ejected(victim, at)
	r.sleep(200 * time.Millisecond) // what it had in hand
	after := r.measure()
	r.recovers(victim, "clear")
	return func() {
		r.figure("delay", delay)
		r.found("ejected", e, 3*time.Second, "ejected within 3 s")
		r.noErrors("nothing fails", at)
		r.compare("p99 of all calls once it is ejected", normal, after)
	}
}

// typical is the median latency of a window, at least a millisecond.
func (r *recorder) typical(s span) time.Duration {
	return max(time.Millisecond, time.Duration(r.window(s.from, s.to).P50*float64(time.Millisecond)))
}

// silent: a node that swallows everything is found by its silence.
func silent(what, undo string) func(*script) func() {
	return func(r *script) func() {
		normal := r.normal()
		victim := r.victim()
		at, done := r.act(victim, what, nil)
		e := r.ejected(victim, at)
		r.sleep(200 * time.Millisecond)
		after := r.measure()
		r.recovers(victim, undo)
		limit := r.duration("health.silence") + r.duration("health.probe_timeout")
		const first = 100 * time.Millisecond // until the first call is sent into the silence
		return func() {
			r.found("ejected", e, limit+(done-at)+first,
				fmt.Sprintf("ejected within health.silence + health.probe_timeout = %v of the first call into the silence", limit))
			r.figure("longest wait beyond the deadline", max(0, r.rec.most.over))
			r.idempotentWork(at)
			r.show(normal, after)
		}
	}
}

// unlinked: only the link to a node carries nothing any more. Transactions that are
// open on it go on through another node, which forwards their calls. (Were its
// connections reset, the node would end their sessions itself.)
func unlinked(r *script) func() {
	normal := r.normal()
	victim := r.victim()
	// Transactions that are open before and go on after: some on every node.
	open := r.begin(30)
	at, _ := r.act(victim, "freeze the link to", nil)
	e := r.ejected(victim, at)
	_, before := r.line.sums()
	r.load.goOn(open)
	r.sleep(time.Second)
	_, then := r.line.sums()
	after := r.measure()
	r.recovers(victim, "mend the link to")
	return func() {
		r.outOfUse(e)
		done, lost, untrue, elsewhere, first := sortOut(open, victim)
		r.goal("transactions that are open on it go on through another node", done > 0 && lost+untrue+elsewhere == 0 && then > before,
			"%d done, %d lost, %d in untrue words, %d on other nodes, %d calls forwarded; %s", done, lost, untrue,
			elsewhere, then-before, first)
		r.idempotentWork(at)
		r.onlyInFlight(at, at+e.after)
		r.show(normal, after)
	}
}

// forwardLost: the owner of open transactions is out of reach, and falls silent itself. The nodes that
// forward their calls do not tell, and discovery lists it as before.
func forwardLost(r *script) func() {
	r.normal()
	victim := r.victim()
	open := r.begin(30)
	var there, elsewhere []opened
	for _, o := range open {
		if o.node == victim {
			there = append(there, o)
		} else {
			elsewhere = append(elsewhere, o)
		}
	}
	at, _ := r.act(victim, "freeze the link to", nil)
	e := r.ejected(victim, at)
	r.load.goOn(elsewhere) // not before: a node with all the open work gets no other, and is found later
	for i := range there { // now the nodes that forward have connections to it
		r.try(func(context.Context) error {
			if err := there[i].read(false); err != nil {
				return fmt.Errorf("a statement through another node: %w", err)
			}
			return nil
		})
	}
	r.act(victim, "pause", nil)
	began := r.rec.now()
	var calls sync.WaitGroup
	for i := range there {
		calls.Go(func() { r.load.goOn(there[i : i+1]) })
	}
	calls.Wait()
	took := r.rec.now() - began
	r.act(victim, "resume", nil)
	r.recovers(victim, "mend the link to")
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
		r.goal("the node is out of use", e.ok, "at once")
		late := 0
		for _, o := range there {
			if o.failed != nil && o.failed.code == "DEADLINE_EXCEEDED" {
				late++
			}
		}
		r.goal("no commit around the silent node waits until its deadline", late == 0 && took < r.load.timeout,
			"%d of %d did, all ended after %v", late, len(there), took)
		r.goal("their outcome is unknown, or they are lost with nothing kept", unknown > 0 && unknown+lost == len(there),
			"of %d %d unknown, %d lost; of the others %s", len(there), unknown, lost, first)
		r.idempotentWork(at)
	}
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
