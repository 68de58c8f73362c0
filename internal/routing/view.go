package routing

import (
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Bounds of what is remembered about nodes that left.
const (
	maxDeparted = 64   // nodes that left and may still hold open transactions
	maxLoads    = 1024 // counters of nodes in and out of the view
)

// silentAfter is how long what the calls to a node showed is believed without a
// new call, at least: a node that was slow once would never be tried again.
const silentAfter = 30 * time.Second

// builder makes views. Router.mu guards it.
type builder struct {
	config   Config
	local    string    // zone of the first node that answered discovery: this host does not move
	listened time.Time // when forgetSilent last looked
	topology cluster.Topology
	verdicts cluster.Verdicts
	departed []departed // oldest first
	loads    map[cluster.NodeID]*load
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
	for _, n := range b.topology.Nodes {
		if !listed(t, func(m cluster.Node) bool { return m.ID == n.ID }) {
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
		return listed(t, func(m cluster.Node) bool { return m.ID == d.node.ID || m.Address == d.node.Address })
	})
	if surplus := len(b.departed) - maxDeparted; surplus > 0 {
		b.departed = slices.Delete(b.departed, 0, surplus)
	}
}

func (b *builder) setVerdicts(v cluster.Verdicts) {
	b.verdicts = v
	kept := b.departed[:0:0]
	for _, d := range b.departed {
		verdict, known := v[d.node.ID]
		if d.confirmed && !known {
			continue
		}
		d.confirmed = d.confirmed || verdict.Leaving
		kept = append(kept, d)
	}
	b.departed = kept
}

func listed(t cluster.Topology, is func(cluster.Node) bool) bool {
	return slices.ContainsFunc(t.Nodes, is)
}

// build makes the view of the present state.
func (b *builder) build() *view {
	type known struct {
		cluster.ViewNode
		gone bool
	}
	all := make([]known, 0, len(b.topology.Nodes)+len(b.departed))
	for _, n := range b.topology.Nodes {
		all = append(all, known{ViewNode: cluster.ViewNode{Node: n, Verdict: b.verdicts[n.ID]}})
	}
	for _, d := range b.departed {
		verdict := b.verdicts[d.node.ID]
		verdict.Leaving = true
		all = append(all, known{ViewNode: cluster.ViewNode{Node: d.node, Verdict: verdict}, gone: true})
	}
	slices.SortFunc(all, func(x, y known) int { return int(x.ID) - int(y.ID) })

	v := &view{
		View:  cluster.View{Nodes: make([]cluster.ViewNode, len(all))},
		loads: make([]*load, len(all)),
		gone:  make([]bool, len(all)),
	}
	for i, n := range all {
		v.Nodes[i], v.gone[i], v.loads[i] = n.ViewNode, n.gone, b.load(n.ID)
	}
	v.Panic = uses(v.Nodes, v.gone)
	v.preferred = b.config.preferred(b.local, b.topology.Nearest)
	v.part = weigh(v.Nodes, v.gone, v.preferred)
	for i := range v.Nodes {
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
		if _, ok := v.index(id); !ok && l.calls.Load() == 0 {
			delete(b.loads, id)
		}
	}
}

// rank orders nodes by how much sense it makes to send them something new.
type rank uint8

const (
	rankGood        rank = iota // healthy or suspect
	rankSoft                    // ejected because it refused; it answers
	rankLeaving                 // going away, but it answers
	rankUnreachable             // ejected because it could not be reached
	rankBanned                  // an operator's word outlives trouble on other nodes
	rankBannedLost              // banned, and it cannot be reached
	rankGone                    // not in discovery: never for anything new
)

func ejected(v cluster.Verdict) bool {
	return v.Health == cluster.Ejected || v.Health == cluster.Probing
}

func unreachable(v cluster.Verdict) bool { return ejected(v) && v.Unreachable }

func rankOf(v cluster.Verdict, gone bool) rank {
	switch {
	case gone:
		return rankGone
	case v.Banned && unreachable(v):
		return rankBannedLost
	case v.Banned:
		return rankBanned
	case unreachable(v):
		return rankUnreachable
	case v.Leaving:
		return rankLeaving
	case ejected(v):
		return rankSoft
	default:
		return rankGood
	}
}

// uses decides what may be sent to each node and reports whether more than half
// of those in discovery that no operator banned are ejected. The rules (I5):
//
//  1. Good nodes get new work. When more than half are ejected, those ejected
//     for soft signs get it as well.
//  2. Where that leaves nobody, the first rank that has a node gets new work:
//     ejected for soft signs, then leaving, then unreachable, then banned: as
//     long as any other node is listed, a banned one gets nothing new.
//  3. Everybody else: only what is open there may finish; and not even that if
//     it cannot be reached.
func uses(nodes []cluster.ViewNode, gone []bool) (panicking bool) {
	present, out, best := 0, 0, rankGone
	for i, n := range nodes {
		if gone[i] {
			continue
		}
		if !n.Verdict.Banned {
			present++
			if ejected(n.Verdict) {
				out++
			}
		}
		best = min(best, rankOf(n.Verdict, false))
	}
	panicking = out*2 > present
	for i := range nodes {
		n := &nodes[i]
		switch r := rankOf(n.Verdict, gone[i]); {
		case r == best && r != rankGone, r == rankSoft && panicking:
			n.Use = cluster.UseNew
		case unreachable(n.Verdict):
			n.Use = cluster.UseNone
		default:
			n.Use = cluster.UseOpen
		}
	}
	return panicking
}
