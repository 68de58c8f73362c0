package findings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (v *view) nodes(add adder) {
	usable, missing := 0, 0
	for _, n := range v.Nodes {
		if n.Missing {
			missing++
		}
		if n.Usable && !n.out() && !n.Unwell {
			usable++
		}
		v.node(n, add)
	}
	switch {
	case len(v.Nodes) == 0 && v.Discovery.Error != "":
		add(Finding{Code: NoNode}, "no node is known: %s%s", v.Discovery.Error, v.stuck())
	case len(v.Nodes) == 0:
		add(Finding{Code: NoNode}, "no node is known yet%s", v.stuck())
	case usable == 0:
		add(Finding{Code: NoNode}, "none of %d nodes is healthy%s%s%s", len(v.Nodes), v.dead(), v.listless(), v.stuck())
	case v.Panic:
		add(Finding{Code: NodePanic}, "only %d of %d nodes are healthy", usable, len(v.Nodes))
	}
	if missing > 0 {
		add(Finding{Code: NodesMissing},
			"the newest answer of discovery lacks %d of %d nodes: they keep their sessions and transactions for %s, "+
				"and get new work only after the other nodes",
			missing, len(v.Nodes), Span(v.Discovery.Grace))
	}
	if v.Discovery.Failures >= 2 && v.Credentials == "" {
		add(Finding{Code: DiscoveryFails}, "the list of nodes could not be read, %d times in a row: %s",
			v.Discovery.Failures, v.Discovery.Error)
	}
}

// dead names the nodes that do not answer, with the reason of the first; "": all answer.
func (v *view) dead() string {
	first, others, more := "", []string{}, 0
	for _, n := range v.Nodes {
		switch {
		case !n.dead():
		case first == "":
			first = fmt.Sprintf(": node %d (%s) has not answered%s: %s", n.ID, n.Address, v.outFor(&n), n.Reason)
		case len(others) == maxDead:
			more++
		default:
			others = append(others, strconv.FormatUint(uint64(n.ID), 10))
		}
	}
	if more > 0 {
		others = append(others, fmt.Sprintf("%d more", more))
	}
	if len(others) > 0 {
		first += "; the same holds for " + strings.Join(others, ", ")
	}
	return first
}

// maxDead is how many nodes without an answer are named, besides the first.
const maxDead = 5

// listless says that the list of nodes cannot be read; "": it can.
func (v *view) listless() string {
	if v.Discovery.Failures < 2 {
		return ""
	}
	return fmt.Sprintf("; the list of nodes could not be read, %d times in a row", v.Discovery.Failures)
}

// stuck says how many callers wait; "": none.
func (v *view) stuck() string {
	if v.Pool.Waiting == 0 {
		return ""
	}
	return "; " + number(v.Pool.Waiting, "caller waits", "callers wait")
}

// dead reports whether the node is out of use because it does not answer.
func (n *Node) dead() bool {
	return n.out() && n.Cause != "latency" && n.Cause != "refusals" && (!n.Draining || n.Unreachable)
}

// outFor says for how long a node has been out of use; "": it is in use, or has been out for less than a second. The
// clock is the detector's: that of the finding begins later.
func (v *view) outFor(n *Node) string {
	if d := v.At.Sub(n.Since); n.out() && !n.Since.IsZero() && d >= time.Second {
		return " for " + Span(d)
	}
	return ""
}

func (v *view) node(n Node, add adder) {
	who := fmt.Sprintf("node %d (%s)", n.ID, n.Address)
	of := func(code Code) Finding { return Finding{Code: code, Node: n.ID, Address: n.Address} }
	since := v.outFor(&n)
	switch {
	case n.out() && n.Cause == "latency":
		add(of(NodeSlow), "%s is slow and has had no new work%s: %s", who, since, n.Reason)
	case n.out() && n.Cause == "refusals":
		add(of(NodeRefuses), "%s rejects calls and has had no new work%s: %s", who, since, n.Reason)
	case n.dead():
		add(of(NodeDead), "%s has not answered%s: %s", who, since, n.Reason)
	case v.staysSlow(n.ID):
		others := v.others(n.ID, Node.latency)
		f := of(NodeSlow)
		f.Severity = Warning // until it is sure, and the node is ejected
		add(f, "%s is %.0f times slower than the others (%s against %s on average)", who,
			float64(n.Latency)/float64(others), Span(n.Latency), Span(others))
	}
	if n.Banned {
		add(of(NodeBanned), "%s", strings.TrimSuffix(who+" is banned by an operator: "+n.BanReason, ": "))
	}
	switch {
	case n.Gone && !n.out():
		add(of(NodeDead), "%s vanished from discovery without announcing its shutdown: %s", who, n.Reason)
	case n.Draining && !n.out():
		add(of(NodeDraining), "%s is draining: %s", who, n.Reason)
	}
}

// others is the median of what the other nodes in use take, by that measure; 0: unknown.
func (p *Picture) others(but uint32, measure func(Node) time.Duration) time.Duration {
	return typical(slices.DeleteFunc(slices.Clone(p.Nodes), func(n Node) bool { return n.ID == but }), measure)
}

// isSlow reports whether a Picture shows a node in use as that many times slower than the others, and by
// more than the floor, by the decayed latency and by the median of its newest statements. One statement that
// a busy machine held up raises the first for many calls; it does not raise the second.
func (p *Picture) isSlow(n Node, times, floor time.Duration) bool {
	for _, measure := range []func(Node) time.Duration{Node.latency, Node.median} {
		took, others := measure(n), p.others(n.ID, measure)
		if n.out() || others == 0 || took <= times*others || took <= others+floor {
			return false
		}
	}
	return true
}

// staysSlow reports whether a node is slow now, and has been since statements were added to what is
// measured more than once. A few slow statements in one moment are no slow node. A node that was reported
// as slow stays so until it is much less slow.
func (v *view) staysSlow(id uint32) bool {
	if v.on(id, NodeSlow) {
		i := slices.IndexFunc(v.Nodes, func(n Node) bool { return n.ID == id })
		return i >= 0 && v.isSlow(v.Nodes[i], slowStays, slowKeeps)
	}
	added, timed := 0, uint64(0)
	for _, p := range slices.Backward(v.seen) {
		i := slices.IndexFunc(p.Nodes, func(n Node) bool { return n.ID == id })
		if i < 0 || !p.isSlow(p.Nodes[i], slowTimes, slowFloor) {
			return false
		}
		if n := p.Nodes[i]; n.Timed < timed {
			added++
		}
		timed = p.Nodes[i].Timed
		if added == slowAdded {
			return true
		}
	}
	return false
}

func (n Node) latency() time.Duration { return n.Latency }
func (n Node) median() time.Duration  { return n.Median }

// typical is the median of what the nodes in use take, by that measure; 0: none is known.
func typical(nodes []Node, measure func(Node) time.Duration) time.Duration {
	var all []time.Duration
	for _, n := range nodes {
		if took := measure(n); took > 0 && !n.out() {
			all = append(all, took)
		}
	}
	return median(all)
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}
