package routing

import (
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Bounds of what is remembered about nodes that left and have nothing open.
const (
	minDeparted = 64   // so many nodes, or as many as discovery lists
	maxLoads    = 1024 // counters of nodes in and out of the view
)

// silentAfter is how long what the calls to a node showed is believed without a
// new call, at least: a node that was slow once would never be tried again.
const silentAfter = 30 * time.Second

// builder makes views. Router.mu guards it.
type builder struct {
	config     Config
	local      string    // zone of the first node that answered discovery: this host does not move
	listened   time.Time // when forgetSilent last looked
	topology   cluster.Topology
	conditions cluster.Conditions
	departed   []departed                // oldest first
	uses       func(cluster.NodeID) bool // whether a node has sessions; nil: nobody knows
	loads      map[cluster.NodeID]*load
	walked     int // nodes that were looked at; tests count them
}

// departed is a node that discovery no longer lists.
type departed struct {
	node cluster.Node
	// confirmed says that pessimize knows that it left. Until then its missing
	// verdict means that the news is on its way, and later that it is forgotten.
	confirmed bool
}

func newBuilder(c Config) builder {
	return builder{config: c, loads: make(map[cluster.NodeID]*load)}
}

func (b *builder) setTopology(t cluster.Topology) {
	if len(t.Nodes) == 0 {
		return
	}
	ids := make(map[cluster.NodeID]bool, len(t.Nodes))
	addresses := make(map[string]bool, len(t.Nodes))
	for _, n := range t.Nodes {
		b.walked++
		ids[n.ID], addresses[n.Address] = true, true
	}
	for _, n := range b.topology.Nodes {
		b.walked++
		if !ids[n.ID] {
			n.Missing, n.Unwell = false, false
			b.departed = append(b.departed, departed{node: n})
		}
	}
	b.topology = t
	if b.local == "" {
		b.local = t.Zone
	}
	b.forgetSilent()
	// A node that came back is no longer departed; one whose address now
	// belongs to another node no longer exists.
	b.departed = slices.DeleteFunc(b.departed, func(d departed) bool {
		b.walked++
		return ids[d.node.ID] || addresses[d.node.Address]
	})
	b.forgetDeparted()
	surplus := len(b.departed) - max(minDeparted, len(t.Nodes))
	b.departed = slices.DeleteFunc(b.departed, func(d departed) bool {
		b.walked++
		forget := surplus > 0 && !b.open(d.node.ID)
		if forget {
			surplus--
		}
		return forget
	})
}

func (b *builder) setConditions(v cluster.Conditions) {
	b.conditions = v
	for i := range b.departed {
		b.walked++
		d := &b.departed[i]
		d.confirmed = d.confirmed || v[d.node.ID].Draining
	}
	b.forgetDeparted()
}

// forgetDeparted drops nodes that pessimize has forgotten and on which nothing is open.
func (b *builder) forgetDeparted() {
	b.departed = slices.DeleteFunc(b.departed, func(d departed) bool {
		b.walked++
		_, known := b.conditions[d.node.ID]
		return d.confirmed && !known && !b.open(d.node.ID)
	})
}

// open reports whether calls or sessions are open on a node.
func (b *builder) open(id cluster.NodeID) bool {
	l := b.loads[id]
	return l != nil && l.calls.Load() > 0 || b.uses != nil && b.uses(id)
}

// build makes the view of the present state.
func (b *builder) build() *view {
	all := make([]cluster.ViewNode, 0, len(b.topology.Nodes)+len(b.departed))
	for _, n := range b.topology.Nodes {
		all = append(all, cluster.ViewNode{Node: n, Condition: b.conditions[n.ID]})
	}
	for _, d := range b.departed {
		verdict := b.conditions[d.node.ID]
		verdict.Draining = true
		all = append(all, cluster.ViewNode{Node: d.node, Condition: verdict, Gone: true})
	}
	slices.SortFunc(all, func(x, y cluster.ViewNode) int { return int(x.ID) - int(y.ID) })

	v := &view{
		View:  cluster.View{Nodes: all, Alone: len(b.topology.Nodes) == 1},
		loads: make([]*load, len(all)),
	}
	for i, n := range all {
		b.walked++
		v.loads[i] = b.load(n.ID)
		if (v.Alone || n.Shared) && !n.Gone {
			v.shared = append(v.shared, i)
		}
	}
	var reserve bool
	v.Panic, reserve = uses(v.Nodes)
	v.preferred = b.config.preferred(b.local, b.topology.Nearest)
	v.part = weigh(v.Nodes, v.preferred, reserve)
	for i := range v.Nodes {
		b.walked++
		n, l := &v.Nodes[i], v.loads[i]
		n.Load = &l.Load
		l.SetFactor(n.LoadFactor)
		if n.Use == cluster.UseNew {
			v.draw.add(i, n.Weight)
		} else {
			l.Forget() // it does not return as slow as it left
		}
	}
	b.forgetLoads(v)
	return v
}

func (b *builder) load(id cluster.NodeID) *load {
	l := b.loads[id]
	if l == nil {
		l = new(load)
		b.loads[id] = l
	}
	return l
}

// forgetSilent forgets what was observed of nodes that carried out no statement
// for a while.
func (b *builder) forgetSilent() {
	if time.Since(b.listened) < silentAfter {
		return
	}
	b.listened = time.Now()
	for _, l := range b.loads {
		b.walked++
		if !l.heard.Swap(false) {
			l.Forget()
		}
	}
}

// forgetLoads drops counters of nodes out of the view, but only when there are
// many: a call that began before its node left must still find its counter.
func (b *builder) forgetLoads(v *view) {
	if len(b.loads) <= maxLoads {
		return
	}
	for id, l := range b.loads {
		b.walked++
		if _, ok := v.index(id); !ok && l.calls.Load() == 0 {
			delete(b.loads, id)
		}
	}
}

// rank orders nodes by how much sense it makes to send them something new.
type rank uint8

const (
	rankGood        rank = iota // healthy or suspect
	rankMissing                 // the newest answer of discovery lacks it, and is in doubt
	rankBehind                  // of a pile that lacks data
	rankSoft                    // ejected because it refused, or listed as unhealthy; it may answer
	rankDraining                // going away, but it answers
	rankUnreachable             // ejected because it could not be reached
	rankBanned                  // an operator's word outlives trouble on other nodes
	rankBannedLost              // banned, and it cannot be reached
	rankDetached                // of a pile that cannot work: never for anything new
	rankGone                    // not in discovery: the same
)

func ejected(v cluster.Condition) bool {
	return v.Health == cluster.Ejected || v.Health == cluster.Probing
}

func unreachable(v cluster.Condition) bool { return ejected(v) && v.Unreachable }

func rankOf(n cluster.ViewNode) rank {
	switch v := n.Condition; {
	case n.Gone:
		return rankGone
	case n.Pile.State == cluster.PileDetached:
		return rankDetached
	case v.Banned && unreachable(v):
		return rankBannedLost
	case v.Banned:
		return rankBanned
	case unreachable(v):
		return rankUnreachable
	case v.Draining:
		return rankDraining
	case ejected(v), n.Unwell:
		return rankSoft
	case n.Pile.State == cluster.PileBehind:
		return rankBehind
	case n.Missing:
		return rankMissing
	default:
		return rankGood
	}
}

// uses decides what may be sent to each node. It reports whether more than half of
// those in discovery that no operator banned and no pile excludes are ejected or listed as
// unhealthy, and whether missing nodes are a reserve: not when more than half are ejected,
// listed so, or missing. The rules (I5):
//
//  1. Good nodes get new work, and so do missing ones: as a reserve, after the
//     others. When more than half are ejected or listed as unhealthy, those ejected for soft
//     signs or listed so get it as well.
//  2. Where that leaves nobody, the first rank that has a node gets new work:
//     of a pile that is not synchronized, then ejected for soft signs, then leaving,
//     then unreachable, then banned: as long as any other node is listed, a banned
//     one gets nothing new. One of a pile that is suspended or disconnected never does.
//  3. Everybody else: only what is open there may finish; and not even that if
//     it cannot be reached.
func uses(nodes []cluster.ViewNode) (panicking, reserve bool) {
	present, out, missing, best := 0, 0, 0, rankGone
	for _, n := range nodes {
		if n.Gone {
			continue
		}
		r := rankOf(n)
		if !n.Condition.Banned && r != rankDetached {
			present++
			if ejected(n.Condition) || n.Unwell {
				out++
			}
			if r == rankMissing {
				missing++
			}
		}
		best = min(best, r)
	}
	panicking = out*2 > present
	for i := range nodes {
		n := &nodes[i]
		switch r := rankOf(*n); {
		case r == best && r < rankDetached, r == rankMissing, r == rankSoft && panicking:
			n.Use = cluster.UseNew
		case unreachable(n.Condition):
			n.Use = cluster.UseNone
		default:
			n.Use = cluster.UseOpen
		}
	}
	return panicking, best == rankGood && (out+missing)*2 <= present
}
