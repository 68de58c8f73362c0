package pool

import (
	"context"
	"flag"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

func TestMain(m *testing.M) {
	flag.Parse()
	manyNodes, manySessions = short.Of(1000, 250), short.Of(10_000, 2500)
	goleak.VerifyTestMain(m)
}

// servers is a fake cluster: it keeps the rules of the nodes and the ledger of
// what is open where.
type servers struct {
	mu     sync.Mutex
	nodes  map[cluster.NodeID]*server
	opened []cluster.NodeID // in order
	begun  []time.Time      // calls of Open
	most   int              // sessions at a time, being opened included
	total  int
	oldest time.Duration // the longest life of a session that was deleted
	twice  int           // deletions of a session that was deleted or is being deleted

	all *tally // with other clusters; nil: of none

	stillborn func() bool // the session's stream ends before Open returns; nil: no
}

// tally counts the sessions of several clusters together.
type tally struct {
	mu        sync.Mutex
	now, most int
}

func (a *tally) add(n int) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now += n
	a.most = max(a.most, a.now)
}

type server struct {
	behave   func(ctx context.Context) error // nil: opens at once
	onDelete func(ctx context.Context) error // nil: deletes at once
	live     map[*remote]struct{}
	opening  int
	deleting int
	most     int // sessions at a time, being opened included
	opens    int

	mostOpening, mostDeleting int // at a time
	undeleted                 int // sessions whose deletion failed
}

// remote is a session in the eyes of its node.
type remote struct {
	servers *servers
	node    cluster.NodeID
	retire  func(string)
	born    time.Time
	inUse   atomic.Bool // for tests that use sessions
	closing bool        // guarded by servers.mu
}

func newServers(nodes ...cluster.NodeID) *servers {
	f := &servers{nodes: make(map[cluster.NodeID]*server)}
	for _, id := range nodes {
		f.nodes[id] = &server{live: make(map[*remote]struct{})}
	}
	return f
}

// set changes how a node behaves from now on.
func (f *servers) set(id cluster.NodeID, open, del func(context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[id].behave, f.nodes[id].onDelete = open, del
}

func (f *servers) Open(ctx context.Context, id cluster.NodeID, retire func(string)) (Resource, error) {
	f.mu.Lock()
	n := f.nodes[id]
	behave := n.behave
	n.opening++
	n.opens++
	n.mostOpening = max(n.mostOpening, n.opening)
	f.begun = append(f.begun, time.Now())
	f.total++
	f.all.add(1)
	f.most = max(f.most, f.total)
	n.most = max(n.most, n.opening+len(n.live))
	f.mu.Unlock()
	var err error
	if behave != nil {
		err = behave(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n.opening--
	if err != nil {
		f.total--
		f.all.add(-1)
		return nil, err
	}
	r := &remote{servers: f, node: id, retire: retire, born: time.Now()}
	if f.stillborn != nil && f.stillborn() {
		retire("stream ended")
	}
	n.live[r] = struct{}{}
	f.opened = append(f.opened, id)
	return r, nil
}

func (r *remote) Close(ctx context.Context) error {
	f := r.servers
	f.mu.Lock()
	n := f.nodes[r.node]
	del := n.onDelete
	if r.closing {
		f.twice++
	}
	r.closing = true
	n.deleting++
	n.mostDeleting = max(n.mostDeleting, n.deleting)
	f.mu.Unlock()
	var err error
	if del != nil {
		err = del(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(n.live, r)
	n.deleting--
	if err != nil {
		n.undeleted++
	}
	f.total--
	f.all.add(-1)
	f.oldest = max(f.oldest, time.Since(r.born))
	return err
}

// live returns the number of open sessions on each node, in order of ID.
func (f *servers) live() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := make([]cluster.NodeID, 0, len(f.nodes))
	for id := range f.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	out := make([]int, len(ids))
	for i, id := range ids {
		out[i] = len(f.nodes[id].live)
	}
	return out
}

// sum returns the number of open sessions.
func (f *servers) sum() (n int) {
	for _, k := range f.live() {
		n += k
	}
	return n
}

// node returns what there is to know of a node now.
func (f *servers) node(id cluster.NodeID) server {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *f.nodes[id]
}

// forget starts a new record of openings.
func (f *servers) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun = nil
	for _, n := range f.nodes {
		n.opens, n.mostOpening = 0, 0
	}
}

// any returns an open session of a node.
func (f *servers) any(id cluster.NodeID) *remote {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.nodes[id].live {
		return r
	}
	return nil
}

func after(d time.Duration, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// blackHole answers nothing.
func blackHole(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func viewOf(uses map[cluster.NodeID]cluster.Use) cluster.View {
	var v cluster.View
	for id, use := range uses {
		v.Nodes = append(v.Nodes, cluster.ViewNode{Node: cluster.Node{ID: id}, Use: use})
	}
	slices.SortFunc(v.Nodes, func(a, b cluster.ViewNode) int { return int(a.ID) - int(b.ID) })
	return v
}

// weights makes all nodes eligible, from 1 on.
func weights(w ...float32) cluster.View {
	var v cluster.View
	for i := range w {
		v.Nodes = append(v.Nodes, cluster.ViewNode{Node: cluster.Node{ID: cluster.NodeID(i + 1)}, Weight: w[i]})
	}
	return v
}

// busiest returns the largest number of openings begun within a time.
func (f *servers) busiest(within time.Duration) (most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, first := 0, 0; i < len(f.begun); i++ {
		for f.begun[i].Sub(f.begun[first]) >= within {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// view makes all nodes eligible.
func view(ids ...cluster.NodeID) cluster.View {
	uses := make(map[cluster.NodeID]cluster.Use)
	for _, id := range ids {
		uses[id] = cluster.UseNew
	}
	return viewOf(uses)
}

// start runs a pool until the test ends, which checks that it left nothing.
func start(tb testing.TB, cfg Config, f *servers, v cluster.View) *Pool {
	tb.Helper()
	return startWithin(tb, nil, cfg, f, v)
}

func startWithin(tb testing.TB, b *Budget, cfg Config, f *servers, v cluster.View) *Pool {
	tb.Helper()
	return startPool(tb, f, f, v, cfg, func(p *Pool) *Pool { return p.WithinGroup(b, "", weightOne) })
}

// startPool runs a pool that join, if there is one, has put into a budget. opener opens sessions on f.
func startPool(tb testing.TB, opener Opener, f *servers, v cluster.View, cfg Config, join func(*Pool) *Pool) *Pool {
	tb.Helper()
	if err := cfg.Validate(); err != nil {
		tb.Fatal(err)
	}
	p := New(cfg, opener, nil)
	if join != nil {
		p = join(p)
	}
	p.SetView(v)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(func() {
		patience, end := context.WithTimeout(ctx, time.Minute)
		defer end()
		if err := p.Close(patience); err != nil {
			tb.Errorf("Close: %v", err)
		}
		cancel()
		wg.Wait()
		if left := f.live(); slices.Max(left) > 0 {
			tb.Errorf("sessions left by node: %v", left)
		}
		if f.twice > 0 {
			tb.Errorf("%d sessions were deleted twice", f.twice)
		}
	})
	return p
}

// warmPool has all its sessions open, on a number of nodes.
func warmPool(tb testing.TB, sessions, nodes int) *Pool {
	tb.Helper()
	ids := make([]cluster.NodeID, nodes)
	for i := range ids {
		ids[i] = cluster.NodeID(i + 1)
	}
	cfg := Default()
	cfg.Max, cfg.Min, cfg.Queue = sessions, sessions, 10_000
	p := start(tb, cfg, newServers(ids...), view(ids...))
	checkOut(tb, p, sessions)()
	return p
}

// checkOut takes sessions and returns what gives them back.
func checkOut(tb testing.TB, p *Pool, n int) func() {
	tb.Helper()
	held := make([]*Session, n)
	for i := range held {
		g, err := p.Acquire(context.Background(), Ask{Class: Normal})
		if err != nil {
			tb.Fatal(err)
		}
		held[i] = g.Session
	}
	return func() {
		for _, s := range held {
			p.Release(s)
		}
	}
}

// useFor waits for a session and has it for a while.
func useFor(t *testing.T, p *Pool, d time.Duration) {
	g, err := p.Acquire(t.Context(), Ask{Class: Normal})
	if err != nil {
		t.Error(err)
		return
	}
	time.Sleep(d)
	p.Release(g.Session)
}
