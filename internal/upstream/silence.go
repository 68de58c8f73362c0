package upstream

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

const (
	// minWatch is the shortest sleep of the watcher.
	minWatch = time.Millisecond

	// rulingTimeout bounds the wait for the verdict on a node found silent.
	rulingTimeout = 250 * time.Millisecond

	// checkMethod is the call that checks a connection. gRPC libraries answer it
	// themselves, or say UNIMPLEMENTED: either way at once, however busy the node
	// is with statements. A PING of HTTP/2 would do the same, but servers close
	// connections on which they come more often than they like.
	checkMethod = "/grpc.health.v1.Health/Check"
)

// guard is what the watcher of silent connections needs.
type guard struct {
	asleep atomic.Bool   // the watcher sees nothing to watch: the first call wakes it
	wake   chan struct{} // capacity 1

	mu      sync.Mutex    // guards changed
	changed chan struct{} // closed by the next view
}

func newGuard() guard {
	return guard{wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// nudge makes the watcher look.
func (g *guard) nudge() {
	select {
	case g.wake <- struct{}{}:
	default: // it has yet to come to the last one
	}
}

// viewChanged wakes those who wait for another view.
func (g *guard) viewChanged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.changed)
	g.changed = make(chan struct{})
}

// nextView is closed when the next view is there.
func (g *guard) nextView() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// enter counts a call over c from now on, if it is watched here; nodeConn.leave ends it. See wire.enter.
func (d *Driver) enter(c *nodeConn, f *flight, now time.Time) {
	if c.watched && c.wire.enter(f, now) && d.guard.asleep.Load() {
		d.guard.nudge()
	}
}

// leave ends what Driver.enter began.
func (c *nodeConn) leave(f *flight) {
	if c.watched {
		c.wire.leave(f)
	}
}

// watchSilence looks for connections with calls under way that bring no byte,
// until ctx ends. It sleeps while no call is under way.
func (d *Driver) watchSilence(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.guard.wake:
		case <-timer.C:
		}
		d.guard.asleep.Store(false)
		next, busy := d.lookForSilence()
		if !busy {
			d.guard.asleep.Store(true)
			// Whoever came in between has not seen that the watcher sleeps.
			next, busy = d.lookForSilence()
		}
		timer.Stop()
		if busy {
			d.guard.asleep.Store(false)
			timer.Reset(max(next, minWatch))
		}
	}
}

// lookForSilence starts what checks are due and tells when to look again, at the
// latest; busy is false while no connection has calls under way.
func (d *Driver) lookForSilence() (next time.Duration, busy bool) {
	next = d.deps.Silence
	var due []*nodeConn
	d.mu.Lock()
	for c := range d.all {
		quiet, calls := c.wire.quiet()
		if !calls {
			continue
		}
		busy = true
		if quiet < d.deps.Silence {
			next = min(next, d.deps.Silence-quiet)
		} else if !c.wire.checking.Load() {
			due = append(due, c)
		}
	}
	d.mu.Unlock()
	for _, c := range due {
		d.check(c)
	}
	return next, busy
}

// check finds out in the background whether the connection still works, and
// gives it up if not. One check runs at a time for each connection.
func (d *Driver) check(c *nodeConn) {
	if d.deps.ProbeTimeout <= 0 || !c.wire.checking.CompareAndSwap(false, true) {
		return
	}
	began := d.background(c, func() {
		if !d.answers(c) {
			d.giveUp(c)
		}
		c.wire.checked()
	})
	if !began {
		c.wire.checking.Store(false)
	}
}

// answers tells whether the connection brings any byte while it is asked for one.
func (d *Driver) answers(c *nodeConn) bool {
	began, before := time.Now(), c.wire.heard.Load()
	ctx, cancel := context.WithTimeout(context.Background(), d.deps.ProbeTimeout)
	defer cancel()
	var r checkResult
	cc := c.cc.(grpcLine)
	stream, err := cc.NewStream(ctx, new(grpc.StreamDesc), checkMethod)
	if err == nil {
		r.sent = stream.SendMsg(new(healthpb.HealthCheckRequest)) == nil && stream.CloseSend() == nil
		err = stream.RecvMsg(new(healthpb.HealthCheckResponse))
	}
	r.ended = err == nil || ctx.Err() == nil
	r.heard = c.wire.heard.Load() != before
	r.ready = cc.GetState() == connectivity.Ready
	r.took = time.Since(began)
	return r.alive(d.deps.ProbeTimeout)
}

// checkResult is what came of a check.
type checkResult struct {
	ended bool // before its time was over: answered, or the connection broke by itself, and its calls with it
	heard bool // any byte came meanwhile
	sent  bool
	ready bool // there is a connection
	took  time.Duration
}

// alive is the verdict. What cannot be known counts as life: giving a connection
// up fails the calls on it.
func (r checkResult) alive(limit time.Duration) bool {
	switch {
	case r.ended, r.heard:
		return true
	case r.ready && !r.sent:
		return true // the node allows no more calls at a time than there are
	case r.took > limit*5/4:
		return true // this process stood still itself: the answer may wait to be read
	}
	return false
}

// giveUp tells the judge that the connection is dead, cuts off every call on it,
// and puts a new connection in its place. Sessions keep the old one, and the
// node's idea of them, until they are closed.
func (d *Driver) giveUp(c *nodeConn) {
	d.log.Warn("a connection brings no byte; it is given up", "node", c.node.ID, "address", c.node.Address)
	d.deps.Silent(c.node.ID)
	// Calls that fail now look for another node at once. The verdict comes first,
	// else they would pick this one again and hang while it is dialled.
	d.awaitRuling(c.node.ID)
	replaced := d.replace(c)
	c.wire.giveUp()
	c.cc.shelve()
	if replaced {
		c.drop()
	}
}

// awaitRuling waits, not long, until the node is out of use.
func (d *Driver) awaitRuling(node cluster.NodeID) {
	limit := time.NewTimer(rulingTimeout)
	defer limit.Stop()
	for {
		next := d.guard.nextView()
		if d.outOfUse(node) {
			return
		}
		select {
		case <-next:
		case <-limit.C: // it may be the only node, which is tried whatever its state
			return
		}
	}
}

// outOfUse tells whether not even what is open on the node may be sent to it.
func (d *Driver) outOfUse(node cluster.NodeID) bool {
	n, ok := d.view.Load().Find(node)
	return ok && n.Use == cluster.UseNone
}

// replace puts a new connection in the place of c; false if c has none any more.
func (d *Driver) replace(c *nodeConn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.conns.Load()
	if d.closed || old[c.node.ID] != c {
		return false
	}
	fresh, err := d.connectLocked(c.node)
	if err != nil {
		d.log.Error("cannot prepare the connection to a node", "node", c.node.ID, "err", err)
		return false
	}
	fresh.several.Store(c.several.Load()) // the address is the same
	next := maps.Clone(old)
	next[c.node.ID] = fresh
	d.conns.Store(&next)
	return true
}
