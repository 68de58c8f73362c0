package chaos

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/loadtest/traffic"
	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// script is what a row does to a run, step by step. The first error of a step is kept in err, and
// the steps after it do nothing and return zero values: a row reads as a list of steps, and what
// repeats them or lasts looks at err itself.
type script struct {
	*run
	ctx context.Context
	err error
}

// try is one step.
func (s *script) try(step func(ctx context.Context) error) {
	if s.err == nil {
		s.err = step(s.ctx)
	}
}

// ask is a step that returns something.
func ask[T any](s *script, step func(ctx context.Context) (T, error)) (answer T) {
	if s.err == nil {
		answer, s.err = step(s.ctx)
	}
	return answer
}

func (s *script) sleep(d time.Duration) {
	s.try(func(ctx context.Context) error { return traffic.Pause(ctx, d) })
}

// normal measures the window without fault, which is part of every row.
func (s *script) normal() span { return ask(s, s.run.normal) }

// measure lets enough operations go by for a latency window.
func (s *script) measure() span { return ask(s, s.run.measure) }

// nodes are what the sidecar thinks of the nodes.
func (s *script) nodes() []judged { return ask(s, s.sidecar.nodes) }

// sessions are those that live on the nodes.
func (s *script) sessions() []stand.Session { return ask(s, s.stack.control.Sessions) }

// add has one more node join the cluster.
func (s *script) add() stand.Node {
	s.line.event("add node 4")
	return ask(s, func(ctx context.Context) (stand.Node, error) { return s.stack.control.Add(ctx, "") })
}

// wait waits for the end of a sidecar and returns its exit code.
func (s *script) wait(p *stand.Process) int {
	return ask(s, func(ctx context.Context) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return p.Wait(ctx)
	})
}

// serve starts another sidecar with the settings of the one under test and puts it in its place.
func (s *script) serve(flags ...string) {
	old := s.sidecar
	next := ask(s, func(ctx context.Context) (*sidecar, error) { return s.stack.sidecar(ctx, s.flags(), flags...) })
	if s.err != nil {
		return
	}
	next.close() // callers keep the connections that they have, or come back by themselves
	next.apis = old.apis
	if next.GRPC != old.GRPC || next.HTTP != old.HTTP {
		s.err = fmt.Errorf("the new sidecar listens on %s and %s; want the same as before, %s and %s", next.GRPC,
			next.HTTP, old.GRPC, old.HTTP)
		return
	}
	s.sidecar = next
	s.line.watch(next)
}

// signal sends a signal to the sidecar, whose state cannot be read any more.
func (s *script) signal(signal syscall.Signal, name string) {
	s.line.event(name + " to the sidecar")
	s.log("%s to the sidecar", name)
	s.line.watch(nil)
	s.try(func(context.Context) error { return s.sidecar.Signal(signal) })
}

// pool is what the pool did so far.
func (s *script) pool() counts { return ask(s, s.sidecar.pool) }

// members are the nodes as the cluster reports them.
func (s *script) members() []stand.Node { return ask(s, s.stack.control.Nodes) }

// up are the nodes that run.
func (s *script) up() (up []stand.Node) {
	for _, n := range s.members() {
		if n.State == "up" {
			up = append(up, n)
		}
	}
	return up
}

// victim is a random node that runs.
func (s *script) victim() uint32 {
	nodes := s.up()
	if s.err == nil && len(nodes) == 0 {
		s.err = errors.New("no node runs")
	}
	if s.err != nil {
		return 0
	}
	return nodes[s.random.IntN(len(nodes))].ID
}

// begin opens interactive transactions, each with one statement that writes.
func (s *script) begin(n int) []opened {
	return ask(s, func(context.Context) ([]opened, error) { return s.load.begin(n) })
}

// act does something to a node and returns when it began and when it was done.
func (s *script) act(node uint32, what string, body any) (at, done time.Duration) {
	s.try(func(ctx context.Context) (err error) {
		at, done, err = s.run.act(ctx, node, what, body)
		return err
	})
	return at, done
}

// kill ends the processes of nodes at once: the control API would take its time for each.
func (s *script) kill(nodes []stand.Node) {
	for _, n := range nodes {
		s.try(func(context.Context) error {
			if err := syscall.Kill(n.Pid, syscall.SIGKILL); err != nil {
				return fmt.Errorf("kill node %d: %w", n.ID, err)
			}
			return nil
		})
	}
}

// everywhere does the same to every node that runs.
func (s *script) everywhere(what string, body any) {
	for _, n := range s.up() {
		s.act(n.ID, what, body)
	}
}

// underWay makes all calls slow for a while, so that some surely are under way when
// something happens next; not for long enough to be taken for a fault.
func (s *script) underWay(delay, span time.Duration) {
	s.everywhere("delay", map[string]any{"delay": delay.String(), "methods": []string{"ExecuteQuery"}})
	s.sleep(span)
}

// until asks again and again, and returns how long after at it was so; ok is false
// when that took longer than within.
func (s *script) until(at, within time.Duration, is func() bool) (after time.Duration, ok bool) {
	for s.err == nil {
		yes := is()
		now := s.rec.now() - at
		if s.err != nil || yes || now > within {
			return now, yes && s.err == nil
		}
		s.sleep(20 * time.Millisecond)
	}
	return s.rec.now() - at, false
}

// ejection is whether the sidecar gave a node no new work, how long after the fault, and why.
type ejection struct {
	after  time.Duration
	ok     bool
	reason string
}

// found are the goals about a node that is to be ejected, and within a time if the machine is fast.
func (r *run) found(goal string, e ejection, within time.Duration, timed string) {
	r.figure("ejected after", e.after)
	r.goal(goal, e.ok, "after %v: %s", e.after, e.reason)
	r.timed(timed, e.ok && e.after <= within, "after %v", e.after)
}

// outOfUse is the goal about a node that is to get no new work, however soon.
func (r *run) outOfUse(e ejection) {
	r.figure("out of use after", e.after)
	r.goal("the node is out of use", e.ok, "after %v", e.after)
}

// ejected waits until the sidecar gives a node no new work; at is when the fault began.
func (s *script) ejected(node uint32, at time.Duration) (e ejection) {
	within := ejectionWait
	switch {
	case s.o.Quick && s.o.Break == "health":
		within /= 2
	case s.o.Quick: // it comes, on a busy machine late
		within = patience
	}
	since := time.Duration(-1) // by the sidecar's own clock, which is this machine's
	e.after, e.ok = s.until(at, within, func() bool {
		for _, n := range s.nodes() {
			if n.ID != node {
				continue
			}
			if e.reason = n.Reason; n.out() {
				since = n.Since.Sub(s.rec.begun) - at
			}
			return n.out()
		}
		return true // it is not listed any more
	})
	if e.ok && since > 0 {
		e.after = since
	}
	s.log("node %d out of use: %v, after %v: %s", node, e.ok, e.after.Round(time.Millisecond), e.reason)
	return e
}

// back waits until the sidecar has sessions on a node again.
func (s *script) back(node uint32, at, within time.Duration) (after time.Duration, ok bool) {
	return s.until(at, within, func() bool {
		for _, n := range s.nodes() {
			if n.ID == node && !n.out() && n.Sessions > 0 {
				return true
			}
		}
		return false
	})
}

// recovers takes a fault back and tells how soon the node has sessions again.
func (s *script) recovers(node uint32, what string) {
	at, _ := s.act(node, what, nil)
	after, ok := s.back(node, at, 30*time.Second)
	s.figure("sessions again after", after)
	s.goal("the node gets sessions again", ok, "after %v", after)
}

// strike notes the first fault of a row that act does not make, and when it began.
func (s *script) strike(format string, args ...any) (at time.Duration) {
	what := fmt.Sprintf(format, args...)
	s.event = s.rec.now()
	s.line.event(what)
	s.log("%s", what)
	return s.event
}
