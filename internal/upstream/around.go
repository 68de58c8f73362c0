package upstream

import (
	"errors"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// Why a call ends that goes around the owner of its session. The node that forwards it does not
// tell when the owner is lost.
var (
	errOwnerLeft  = errors.New("the node that owns the session left the cluster while another node forwarded the call to it")
	errUnanswered = errors.New("the node that owns the session gave no answer within routing.forward_silence to a call that another node forwarded to it")
)

// detours are the calls under way that go around the owners of their sessions.
type detours struct {
	mu    sync.Mutex // guards calls
	calls map[*trip]struct{}
}

// bound ends h when the owner of its session has left the cluster, or when it waits for too long.
func (d *Driver) bound(h *trip, owner cluster.NodeID) {
	h.owner = owner
	if limit := d.deps.ForwardSilence; limit > 0 {
		h.quiet = time.AfterFunc(limit, func() { h.cut(errUnanswered) })
	}
	d.detours.mu.Lock()
	d.detours.calls[h] = struct{}{}
	d.detours.mu.Unlock()
	if d.left(owner) { // the view that says so may have come before
		h.cut(errOwnerLeft)
	}
}

// unbound ends what bound began.
func (d *Driver) unbound(h *trip) {
	h.hush()
	d.detours.mu.Lock()
	defer d.detours.mu.Unlock()
	delete(d.detours.calls, h)
}

// cutDetours ends the calls around owners that have left.
func (d *Driver) cutDetours() {
	var all []*trip
	d.detours.mu.Lock()
	for h := range d.detours.calls {
		if d.left(h.owner) {
			all = append(all, h)
		}
	}
	d.detours.mu.Unlock()
	for _, h := range all { // some may be over by now
		h.cut(errOwnerLeft)
	}
}

// left tells whether discovery no longer lists a node, for sure.
func (d *Driver) left(node cluster.NodeID) bool {
	n, ok := d.view.Load().Find(node)
	return !ok || n.Gone
}

// listen begins to count silence anew, if the call is bounded.
func (h *trip) listen() {
	if h.quiet != nil {
		h.quiet.Reset(h.d.deps.ForwardSilence)
	}
}

// hush ends the count: something came, or nobody listens.
func (h *trip) hush() {
	if h.quiet != nil {
		h.quiet.Stop()
	}
}
