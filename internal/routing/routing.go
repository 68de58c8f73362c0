// Package routing makes one view of the cluster out of what discovery and
// pessimize say, and picks nodes from it.
//
// It owns the current cluster.View, the panic rules and the count of open calls
// of each node. What always holds:
//
//   - As long as discovery lists a node, some node has UseNew: see uses for the
//     order in which worse nodes are let in when no better one is left.
//   - Target sends a call to the owner of its session or, unless affinity is
//     off, refuses. The one exception is counted (Stats.Forwarded).
//   - No node has more than Config.MaxCallsPerNode calls between Enter and Leave.
//   - Pick, Target, Enter and Leave take no lock and do not allocate.
package routing

import (
	"errors"
	"math/rand/v2"
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
	loads []*load // parallel to Nodes
	fresh []int   // indices of the nodes with UseNew
	gone  []bool  // parallel to Nodes: no longer in discovery
}

// load is what the calls to one node show. It survives views, so that every
// Leave meets its Enter; alone on its cache lines, because every call writes it.
type load struct {
	calls   atomic.Int64 // open now
	refused atomic.Uint64
	_       [48]byte
	cluster.Load
}

// New returns a router that knows no node yet.
func New(config Config) *Router {
	r := &Router{config: config, builder: newBuilder()}
	r.current.Store(&view{})
	return r
}

// SetTopology takes the newest answer of discovery. Nodes that it no longer
// lists stay in the view, for what is open there, until pessimize forgets them.
// An empty topology is no answer and is ignored.
func (r *Router) SetTopology(t cluster.Topology) {
	r.update(func(b *builder) { b.setTopology(t) })
}

// SetVerdicts takes the newest verdicts.
func (r *Router) SetVerdicts(v cluster.Verdicts) {
	r.update(func(b *builder) { b.setVerdicts(v) })
}

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

// Pick names a node for a call that is bound to no session: the one with fewer
// open calls of two random nodes with UseNew. A node at the cap is passed over.
// Errors: ErrNoNode, ErrBusy.
func (r *Router) Pick() (cluster.ViewNode, error) {
	v := r.current.Load()
	i, err := r.pick(v, -1)
	if err != nil {
		return cluster.ViewNode{}, err
	}
	return v.Nodes[i], nil
}

// pick returns the index of a node other than except.
func (r *Router) pick(v *view, except int) (int, error) {
	n := len(v.fresh)
	if n == 0 {
		return 0, ErrNoNode
	}
	limit := int64(r.config.MaxCallsPerNode)
	a := rand.IntN(n)
	b := a
	if n > 1 {
		b = (a + 1 + rand.IntN(n-1)) % n
	}
	best, least := -1, limit
	for _, k := range [2]int{v.fresh[a], v.fresh[b]} {
		if calls := v.loads[k].calls.Load(); k != except && calls < least {
			best, least = k, calls
		}
	}
	if best >= 0 {
		return best, nil
	}
	// Both are full, or the exception: any other will do, but fairly, so from a.
	usable := false
	for step := range n {
		k := v.fresh[(a+step)%n]
		if k == except {
			continue
		}
		usable = true
		if v.loads[k].calls.Load() < limit {
			return k, nil
		}
	}
	if !usable {
		return 0, ErrNoNode
	}
	return 0, ErrBusy
}

// Target names the node that a call on a session of owner goes to: the owner.
// openTx says that the call belongs to an open transaction. Exceptions:
//
//   - affinity off: a random node with UseNew, which forwards the call;
//   - the owner cannot be reached from here while another node can, discovery
//     still lists it, openTx, and Config.OwnerUnreachable is Forward: another
//     node, which forwards the call; Stats.Forwarded counts it.
//
// Errors: ErrUnreachable (the owner has UseNone), ErrGone (it is not known, or
// no longer), ErrBusy and ErrNoNode (only from an exception).
func (r *Router) Target(owner cluster.NodeID, openTx bool) (cluster.NodeID, error) {
	v := r.current.Load()
	if !r.config.Affinity && len(v.fresh) > 0 {
		r.scattered.Add(1)
		return v.Nodes[v.fresh[rand.IntN(len(v.fresh))]].ID, nil
	}
	i, ok := v.index(owner)
	switch {
	case !ok:
		return 0, ErrGone
	case v.Nodes[i].Use != cluster.UseNone:
		return owner, nil
	case !openTx || v.gone[i] || r.config.OwnerUnreachable != Forward:
		return 0, ErrUnreachable
	}
	k, err := r.pick(v, i)
	if err != nil {
		return 0, err
	}
	r.forwarded.Add(1)
	return v.Nodes[k].ID, nil
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
		l.calls.Add(-1)
		l.refused.Add(1)
		return false
	}
	return true
}

// Leave ends what Enter began, and takes note of how long the node took if the
// call was a statement that it carried out. A refusal says nothing: it is fast.
func (r *Router) Leave(o cluster.Outcome) {
	v := r.current.Load()
	i, ok := v.index(o.Node)
	if !ok {
		r.leaveGone(o.Node)
		return
	}
	l := v.loads[i]
	l.calls.Add(-1)
	if o.Kind == cluster.CallExecute && o.Blame == cluster.BlameSuccess {
		l.Observe(o.Latency)
	}
}

// leaveGone is Leave for a node that went out of the view in the meantime.
func (r *Router) leaveGone(id cluster.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.builder.loads[id]; l != nil {
		l.calls.Add(-1)
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
	Panic     bool        // more than half of the nodes are ejected
	Forwarded uint64      // calls of open transactions sent through another node than the owner
	Scattered uint64      // calls sent to a random node because affinity is off
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
		Nodes:     make([]NodeStats, len(v.Nodes)),
	}
	for i, n := range v.Nodes {
		s.Nodes[i] = NodeStats{Node: n, Calls: v.loads[i].calls.Load(), Refused: v.loads[i].refused.Load()}
	}
	return s
}
