package pool

import (
	"slices"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// SetView tells the pool the nodes and what may be sent to them. Sessions are
// leased and opened on nodes that are cluster.UseNew only. On nodes that left
// the view, announced that they leave, or are cluster.UseNone, idle sessions are
// closed; on other nodes they are kept, as long as nobody needs their room.
func (p *Pool) SetView(v cluster.View) {
	p.mu.Lock()
	for _, n := range p.order {
		n.known = false
	}
	settled := p.size > 0
	for _, vn := range v.Nodes {
		n := p.nodes[vn.ID]
		if n == nil {
			n = &node{id: vn.ID}
			n.standing.Store(uint32(gone))
			p.nodes[vn.ID] = n
		}
		n.known = true
		is := standingOf(vn)
		if is == eligible && !n.is(eligible) {
			n.pace.restart()
			n.joining = settled
		}
		n.joining = n.joining && is == eligible
		n.standing.Store(uint32(is))
	}
	for id, n := range p.nodes {
		if !n.known {
			n.standing.Store(uint32(gone))
			n.joining = false
			if n.size == 0 {
				p.past.add(n.counts)
				delete(p.nodes, id)
			}
		}
	}
	p.orderLocked()

	t := newTable(slices.DeleteFunc(slices.Clone(p.order), func(n *node) bool { return !n.is(eligible) }))
	p.table.Store(t)
	p.fair.Store(t.fairLoad())
	// Those who lay sessions down look at the standing afterwards: what this
	// does not find, they do.
	p.strangers = false
	for _, n := range p.order {
		if n.is(eligible) {
			continue
		}
		p.strangers = true
		p.siftLocked(n, func(s *Session) bool { return n.is(gone) || !s.Valid() })
	}
	p.moveAt = p.began // look at the spread at once
	p.dueLocked(p.moveAt)
	p.growLocked()
	p.mu.Unlock()
	p.serve() // a node that became eligible again may have idle sessions
}

// orderLocked lists the nodes anew.
func (p *Pool) orderLocked() {
	p.order = p.order[:0]
	for _, n := range p.nodes {
		p.order = append(p.order, n)
	}
	slices.SortFunc(p.order, func(a, b *node) int { return int(a.id) - int(b.id) })
}
