package hop

import (
	"errors"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// Why a call ends that goes around the owner of its session.
var (
	ErrHomeNodeLeft = errors.New("the node that owns the session left the cluster while another node forwarded the call to it")
	ErrUnanswered   = errors.New("the node that owns the session gave no answer within routing.forward_silence to a " +
		"call that another node forwarded to it")
)

// Detours are the calls under way that go around the owners of their sessions. The node that forwards such a call does
// not tell when the owner is lost, so the call is ended here: when the owner has left the cluster, or after a time in
// which nothing of its answer came. The zero one is ready.
type Detours struct {
	mu   sync.Mutex // guards what follows; not held while a call is cut, which writes to sockets
	view cluster.View
	all  map[*Detour]struct{}
}

// Detour is a call around a lost owner.
type Detour struct {
	of       *Detours
	homeNode cluster.NodeID
	cut      func(why error)
	silence  time.Duration
	timer    *time.Timer // nil: no limit
}

// Begin watches a call around owner until End. cut is to end the call, with ErrUnanswered after silence (0: no limit) on a
// goroutine of its own, with ErrHomeNodeLeft on that of SetView. It may be called more than once, and just after End.
// left: the owner has left before, and cut is not called for that.
func (d *Detours) Begin(owner cluster.NodeID, silence time.Duration, cut func(why error)) (t *Detour, left bool) {
	t = &Detour{of: d, homeNode: owner, cut: cut, silence: silence}
	if silence > 0 {
		t.timer = time.AfterFunc(silence, func() {
			defer panics.Go("the end of a call around a lost owner")
			cut(ErrUnanswered)
		})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[*Detour]struct{}{}
	}
	d.all[t] = struct{}{}
	return t, hasLeft(d.view, owner)
}

// SetView ends the calls around owners that v says have left.
func (d *Detours) SetView(v cluster.View) {
	var all []*Detour
	d.mu.Lock()
	d.view = v
	for t := range d.all {
		if hasLeft(v, t.homeNode) {
			all = append(all, t)
		}
	}
	d.mu.Unlock()
	for _, t := range all { // some may be over by now
		t.cut(ErrHomeNodeLeft)
	}
}

// hasLeft tells whether discovery no longer lists a node, for sure.
func hasLeft(v cluster.View, node cluster.NodeID) bool {
	n, ok := v.Find(node)
	return !ok || n.Gone
}

// Len is how many calls are watched.
func (d *Detours) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all)
}

// Heard has silence counted from now on: something came, or somebody begins to wait.
func (t *Detour) Heard() { t.Wait(t.silence) }

// Wait sets how long silence lasts from now on.
func (t *Detour) Wait(silence time.Duration) {
	if t.timer != nil {
		t.timer.Reset(silence)
	}
}

// Hush stops to count silence: nobody waits for what comes next.
func (t *Detour) Hush() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

// End ends what Begin began.
func (t *Detour) End() {
	t.Hush()
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	delete(t.of.all, t)
}
