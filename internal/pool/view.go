package pool

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// SetView tells the pool the nodes and what may be sent to them. Sessions are
// checked out and opened on nodes that are cluster.UseNew only, in proportion to their
// weights; if none has one, in equal parts. On other nodes and on those that left
// the view, idle sessions are closed at once and those in use at their release, or parked
// if the node is ejected for its own load. What is being opened there is given up.
// Missing nodes without a weight keep their sessions, which are checked out when no other node
// has an idle one.
func (p *Pool) SetView(v cluster.View) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.viewLocked(v)
}

func (p *state) viewLocked(v cluster.View) {
	p.viewed = v
	p.targets = targets{}
	for _, n := range p.order {
		n.view.known = false
	}
	others := p.applyAllLocked(v) // nodes that are new here, or gone
	for id, n := range p.nodes {
		if !n.view.known {
			p.applyLocked(n, nodeView{}, cluster.UseNone)
			if n.size == 0 {
				p.past.add(n.counts)
				p.stock.forget(n)
				delete(p.nodes, id)
				others = true
			}
		}
	}
	if others {
		p.walked += len(p.nodes)
		p.orderLocked()
	}
	p.walked += len(p.openings)
	p.giveUpLocked()
	t := newTable(slices.DeleteFunc(slices.Clone(p.order), func(n *node) bool { return !n.eligible.Load() }), slices.Clip(p.stock.words))
	p.table.Store(t)
	p.walked += 2*len(v.Nodes) + 3*len(p.order) + 8*len(t.nodes) // newTable looks at each so often
	p.begun = p.begun || len(t.nodes) > 0
	// Those who lay sessions down look at their nodes afterwards: what this does
	// not find, they do. Run brings back what was parked.
	now := time.Now()
	for _, n := range p.order {
		if !n.eligible.Load() {
			p.siftLocked(n, func(*Session) bool { return !p.parksLocked(n, now) })
		}
	}
	p.spread.at = p.began // look at it at once
	p.dueLocked(p.began)
	p.growLocked()
}

// applyAllLocked notes what a view says of its nodes. It reports whether some are new.
func (p *state) applyAllLocked(v cluster.View) (others bool) {
	eligible, sum, weight := 0, 0.0, weightOf
	for _, vn := range v.Nodes {
		if vn.Use == cluster.UseNew {
			eligible++
			sum += weight(vn)
		}
	}
	if sum == 0 {
		sum, weight = float64(eligible), func(cluster.ViewNode) float64 { return 1 }
	}
	for _, vn := range v.Nodes {
		n := p.nodes[vn.ID]
		if n == nil {
			n = &node{id: vn.ID}
			n.shelf = p.shelf
			p.nodes[vn.ID], others = n, true
		}
		to := nodeView{known: true, bad: vn.Condition.Health >= cluster.Ejected || vn.Condition.Unreachable, load: vn.Load, parks: soft(vn)}
		if vn.Use == cluster.UseNew {
			to.weight = weight(vn)
			to.cap = p.cfg.nodeCap(eligible, to.weight/sum)
			to.keeps = vn.Missing && to.weight == 0
			to.starts = vn.Condition.Ramp > 0
			to.part = partOf(vn)
		}
		p.applyLocked(n, to, vn.Use)
	}
	return others
}

// weightOf is the weight of a node for the spread of sessions, made a finite number that is not
// negative. A node that joined has its sessions at once, at the pace of moves: it is their use that rises.
func weightOf(n cluster.ViewNode) float64 {
	if n.Weight > 0 {
		return min(float64(n.Weight), 1e6) / partOf(n)
	}
	return 0
}

// partOf is the part of its weight by which the sessions of a node are chosen: less than 1 while a node
// that joined is in its slow start.
func partOf(n cluster.ViewNode) float64 {
	if s := n.Condition.Ramp; n.Condition.Joined && s > 0 && s < 1 {
		return float64(s)
	}
	return 1
}

// applyLocked notes what a new view says of a node.
func (p *state) applyLocked(n *node, to nodeView, use cluster.Use) {
	was, is := n.eligible.Load(), use == cluster.UseNew
	switch {
	case is && !was:
		if p.begun {
			// It came, or came back: one try at first.
			n.pace = pace{window: 1}
			p.spread.moving = true
		}
		to.givesUp = stalledOpenings
	case is && n.view.bad && !to.bad:
		n.pace.until = p.began // it can be reached again: what failed before says nothing
		p.pace.until = p.began
		to.givesUp = stalledOpenings
	case is && to.weight != n.view.weight:
		p.spread.drifted = p.began.Add(-driftEvery) // new weights are known to last
	case !is:
		// What came of it would be closed at once, and until then it takes room.
		to.givesUp = allOpenings
	}
	n.view = to
	n.eligible.Store(is)
	switch {
	case is && !was:
		p.limit.parked.Add(-int32(len(n.aside)))
	case !is && was:
		p.limit.parked.Add(int32(len(n.aside)))
	}
	switch {
	case is || !to.parks:
		n.parkUntil = time.Time{}
	case was:
		n.parkUntil = time.Now().Add(parkMax)
	}
	if !is {
		n.balance.owed = 0
		n.balance.surplus = math.Inf(1) // what it has goes first
	}
}

// What nodeView.givesUp says besides 0, no openings.
const (
	stalledOpenings = iota + 1
	allOpenings
)

// giveUpLocked ends openings for which the view has no use. They say nothing of their nodes any more.
func (p *growth) giveUpLocked() {
	for o := range p.openings {
		if up := o.node.view.givesUp; up == allOpenings || up == stalledOpenings && o.stalled {
			o.givenUp = true
			o.cancel()
		}
	}
}

// indexOf returns where in order a node is, or would be.
func (p *roster) indexOf(id cluster.NodeID) int {
	i, _ := slices.BinarySearchFunc(p.order, id, func(n *node, id cluster.NodeID) int { return cmp.Compare(n.id, id) })
	return i
}

// orderLocked lists the nodes again.
func (p *roster) orderLocked() {
	p.order = p.order[:0]
	for _, n := range p.nodes {
		p.order = append(p.order, n)
	}
	slices.SortFunc(p.order, func(a, b *node) int { return cmp.Compare(a.id, b.id) })
	if len(p.order) > fewNodes {
		for _, n := range p.order {
			p.stock.number(n)
		}
	}
}
