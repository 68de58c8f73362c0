// Package routing makes one view of the cluster out of what discovery and
// pessimize say, and picks nodes from it.
//
// It owns the current cluster.View, the panic rules, the weights of nodes and
// zones, and what the calls to each node show: how many are open and how long
// they take. What always holds:
//
//   - As long as discovery lists a node, some node has UseNew and a weight above
//     0: see uses for the order in which worse nodes are let in when no better
//     one is left, and weigh for what other zones get.
//   - Subscribers hear of a view only if it differs from the one before.
//   - Target sends a call to the owner of its session or, unless affinity is
//     off, refuses. The one exception is counted (Stats.Forwarded). Owners behind
//     an address that nodes share are reached through it.
//   - No node has more than Config.MaxCallsPerNode calls between Enter and Leave.
//   - Pick, Target, Enter and Leave take no lock and do not allocate.
package routing

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Why no node was named. In all three cases nothing was sent.
var (
	ErrNoNode      = errors.New("routing: no node is known")
	ErrBusy        = errors.New("routing: every usable node has routing.max_calls_per_node calls open")
	ErrUnreachable = errors.New("routing: the node that owns the session cannot be reached")
	ErrGone        = errors.New("routing: the node that owns the session left the cluster")
)

// Router is safe for use by any number of goroutines.
type Router struct {
	config    Config
	current   atomic.Pointer[view] // never nil
	forwarded atomic.Uint64
	scattered atomic.Uint64

	mu       sync.Mutex // guards all below; never held while a subscriber runs
	builder  builder
	feed     feed
	feedBusy bool // a goroutine is telling the subscribers
}

// view is immutable once stored.
type view struct {
	cluster.View
	loads     []*load // parallel to Nodes
	draw      draw    // of the nodes with UseNew
	shared    []int   // indices in View.Nodes: addresses behind which an owner may stand that is not known
	preferred []string
	part      float64 // of new load that stays in the preferred zones
}

// New returns a router that knows no node yet.
func New(config Config) *Router {
	r := &Router{config: config, builder: newBuilder(config)}
	r.current.Store(&view{})
	return r
}

// SetTopology takes the newest answer of discovery. Nodes that it no longer
// lists stay in the view until pessimize forgets them and nothing is open there: see
// KeepWhile.
// An empty topology is no answer and is ignored.
func (r *Router) SetTopology(t cluster.Topology) {
	r.update(func(b *builder) { b.setTopology(t) })
}

// SetConditions takes the newest conditions.
func (r *Router) SetConditions(v cluster.Conditions) {
	r.update(func(b *builder) { b.setConditions(v) })
}

// KeepWhile has nodes that left discovery stay in the view, for what is open there,
// while f reports that they have sessions; calls between Enter and Leave count as
// well. f must not block and must not call the router. Call it before SetTopology.
func (r *Router) KeepWhile(f func(cluster.NodeID) bool) { r.builder.uses = f }

// View returns the current view.
func (r *Router) View() cluster.View { return r.current.Load().View }

// Subscribe calls f with the current view, if there is one, and with every
// later one: in order, never two calls at a time, possibly leaving out views
// that are already outdated. f may call the router, but must not block.
func (r *Router) Subscribe(f func(cluster.View)) {
	r.mu.Lock()
	r.feed.add(f)
	r.mu.Unlock()
	r.tell()
}

func (r *Router) update(change func(*builder)) {
	r.mu.Lock()
	change(&r.builder)
	next := r.builder.build()
	r.current.Store(next)
	r.feed.publish(next.View)
	r.mu.Unlock()
	r.tell()
}

// tell brings all subscribers up to date, unless another goroutine is at it:
// that one will then see this change as well.
func (r *Router) tell() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.feedBusy {
		return
	}
	r.feedBusy = true
	defer func() { r.feedBusy = false }()
	for {
		f, v, ok := r.feed.next()
		if !ok {
			return
		}
		r.mu.Unlock()
		f(v)
		r.mu.Lock()
	}
}

// Target names the node that a call on a session of owner goes to: the owner.
// openTx says that the call belongs to an open transaction. Exceptions:
//
//   - affinity off: a random node by weight, which forwards the call;
//   - the owner cannot be reached from here while another node can, discovery
//     still lists it, openTx, and Config.OwnerUnreachable is Forward: another
//     node, which forwards the call; Stats.Forwarded counts it;
//   - the owner is not known, and stands behind an address that several nodes share,
//     or may do so because discovery lists one node: that address.
//
// Errors: ErrUnreachable (the owner has UseNone), ErrGone (it is not known, or
// no longer), ErrBusy and ErrNoNode (only from an exception).
func (r *Router) Target(owner cluster.NodeID, openTx bool) (cluster.NodeID, error) {
	v := r.current.Load()
	if !r.config.Affinity && v.draw.total > 0 {
		r.scattered.Add(1)
		return v.Nodes[v.draw.node(rand.Uint64N(v.draw.total))].ID, nil
	}
	i, ok := v.index(owner)
	switch {
	case !ok && len(v.shared) > 0:
		return v.Nodes[v.behind()].ID, nil
	case !ok:
		return 0, ErrGone
	case v.Nodes[i].Use != cluster.UseNone:
		return owner, nil
	case !openTx || v.Nodes[i].Gone || r.config.OwnerUnreachable != Forward:
		return 0, ErrUnreachable
	}
	k, err := r.pick(v, i)
	if err != nil {
		return 0, err
	}
	r.forwarded.Add(1)
	return v.Nodes[k].ID, nil
}

// behind returns the index of a shared address, one that can be reached if there is one. Any node
// behind it forwards what is not its own.
func (v *view) behind() int {
	first := rand.IntN(len(v.shared))
	for step := range v.shared {
		if i := v.shared[(first+step)%len(v.shared)]; v.Nodes[i].Use != cluster.UseNone {
			return i
		}
	}
	return v.shared[first]
}

// Enter counts a call to the node as open. It returns false, and counts
// nothing, for a node that is not known and above Config.MaxCallsPerNode. Each
// true needs one Leave.
func (r *Router) Enter(id cluster.NodeID) bool {
	v := r.current.Load()
	i, ok := v.index(id)
	if !ok {
		return false
	}
	l := v.loads[i]
	if l.calls.Add(1) > int64(r.config.MaxCallsPerNode) {
		l.left()
		l.refused.Add(1)
		return false
	}
	return true
}

// Leave ends what Enter began, and takes note of how long the node took if the
// call was a statement that it carried out, or was silent about for longer than
// usual. A refusal says nothing: it is fast.
func (r *Router) Leave(o cluster.Outcome) {
	v := r.current.Load()
	i, ok := v.index(o.Node)
	if !ok {
		r.leaveGone(o.Node)
		return
	}
	l := v.loads[i]
	l.left()
	switch {
	case o.Kind != cluster.CallExecute, o.Waits:
	case o.Blame == cluster.BlameSuccess:
		l.observe(o.Latency)
	case o.Waited > l.Latency():
		l.observe(o.Waited)
	}
}

// leaveGone is Leave for a node that went out of the view in the meantime.
func (r *Router) leaveGone(id cluster.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.builder.loads[id]; l != nil {
		l.left()
	}
}

// index is View.Find without copying the node.
func (v *view) index(id cluster.NodeID) (int, bool) {
	low, high := 0, len(v.Nodes)
	for low < high {
		if middle := (low + high) / 2; v.Nodes[middle].ID < id {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, low < len(v.Nodes) && v.Nodes[low].ID == id
}

// Stats is what the router counted since its start.
type Stats struct {
	Panic     bool        // more than half of the nodes are ejected or listed as unhealthy
	Forwarded uint64      // calls of open transactions sent through another node than the owner
	Scattered uint64      // calls sent to a random node because affinity is off
	Preferred []string    // zones that get new load first; none: all are alike
	Local     float64     // part of new load that stays in them, 0 to 1; 1 if there are none
	Departed  int         // nodes that discovery no longer lists and that are kept for what is open there
	Nodes     []NodeStats // in ascending order of ID
}

// NodeStats is what the router counted for one node.
type NodeStats struct {
	Node    cluster.ViewNode
	Calls   int64  // open now
	Refused uint64 // not let in because of routing.max_calls_per_node
}

// Stats returns the counts as they are now.
func (r *Router) Stats() Stats {
	v := r.current.Load()
	s := Stats{
		Panic:     v.Panic,
		Forwarded: r.forwarded.Load(),
		Scattered: r.scattered.Load(),
		Preferred: slices.Clone(v.preferred),
		Local:     v.part,
		Nodes:     make([]NodeStats, len(v.Nodes)),
	}
	for i, n := range v.Nodes {
		if n.Gone {
			s.Departed++
		}
		s.Nodes[i] = NodeStats{Node: n, Calls: v.loads[i].calls.Load(), Refused: v.loads[i].refused.Load()}
	}
	return s
}
