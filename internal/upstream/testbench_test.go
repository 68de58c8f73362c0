package upstream

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/routing"
)

// openRouter routes every call to the owner and limits nothing.
type openRouter struct {
	mu     sync.Mutex
	picks  int
	picked func(n int) cluster.NodeID
	target func(owner cluster.NodeID, openTx bool) (cluster.NodeID, error)
	out    cluster.NodeID // around sends calls of transactions elsewhere
	full   map[cluster.NodeID]bool
	open   map[cluster.NodeID]int
}

func newOpenRouter() *openRouter {
	return &openRouter{full: map[cluster.NodeID]bool{}, open: map[cluster.NodeID]int{}}
}

func (r *openRouter) Pick() (cluster.ViewNode, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := cluster.NodeID(1)
	if r.picked != nil {
		id = r.picked(r.picks)
	}
	r.picks++
	return cluster.ViewNode{Node: cluster.Node{ID: id}}, nil
}

func (r *openRouter) Target(owner cluster.NodeID, openTx bool) (cluster.NodeID, error) {
	if r.target != nil {
		return r.target(owner, openTx)
	}
	return owner, nil
}

// around is a target: the owner, or node 2 in place of the one that is out.
func (r *openRouter) around(owner cluster.NodeID, openTx bool) (cluster.NodeID, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case owner != r.out:
		return owner, nil
	case openTx:
		return 2, nil
	}
	return 0, routing.ErrUnreachable
}

func (r *openRouter) Enter(id cluster.NodeID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.full[id] {
		return false
	}
	r.open[id]++
	return true
}

func (r *openRouter) Leave(o cluster.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[o.Node]--
}

// entered is the number of calls that entered and did not leave.
func (r *openRouter) entered() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.open {
		n += k
	}
	return n
}

// notes is a judge that remembers.
type notes struct {
	mu  sync.Mutex
	all []cluster.Outcome
}

func (n *notes) Report(o cluster.Outcome) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, o)
}

// take returns what was reported since the last take, as "kind blame detail".
func (n *notes) take() (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.all {
		out = append(out, fmt.Sprintf("%d %v %v %s", o.Node, o.Kind, o.Blame, o.Detail))
	}
	n.all = nil
	return out
}

// bench is a driver on a fake cluster.
type bench struct {
	*fakeCluster
	driver *Driver
	router *openRouter
	judge  *notes
}

// newBench starts a driver whose view is the cluster's topology.
func newBench(t *testing.T, size int, change func(*Config, *Deps)) *bench {
	t.Helper()
	c := newCluster(t, size)
	return benchOn(t, c, change)
}

func benchOn(t *testing.T, c *fakeCluster, change func(*Config, *Deps)) *bench {
	t.Helper()
	b := &bench{fakeCluster: c, router: newOpenRouter(), judge: &notes{}}
	config := shipped()
	config.URL = "grpc://node1:2136/local"
	deps := Deps{Ways: hop.Ways{Router: b.router, Health: b.judge}, Dial: c.dial, Version: "test"}
	if change != nil {
		change(&config, &deps)
	}
	d, err := New(config, deps)
	if err != nil {
		t.Fatal(err)
	}
	b.driver = d
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		d.Close()
		if n := b.router.entered(); n != 0 {
			t.Errorf("%d calls entered a node and never left", n)
		}
	})
	d.SetView(c.view())
	return b
}

// open opens a session and returns it with the reasons of its retirement.
func (b *bench) open(node cluster.NodeID) (*Session, *reasons, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 5*time.Second)
	defer cancel()
	r := &reasons{}
	res, err := b.driver.Open(ctx, node, r.add)
	if err != nil {
		return nil, r, err
	}
	s := res.(*Session)
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.Close(ctx)
	})
	return s, r, nil
}

func (b *bench) mustOpen(node cluster.NodeID) (*Session, *reasons) {
	b.t.Helper()
	s, r, err := b.open(node)
	if err != nil {
		b.t.Fatal(err)
	}
	b.judge.take()
	return s, r
}

type reasons struct {
	mu  sync.Mutex
	all []string
}

func (r *reasons) add(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, reason)
}

func (r *reasons) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

func statement(text string) Statement { return Statement{Text: text} }

// inTx says which transaction a statement belongs to.
func inTx(st Statement, begin *Ydb_Query.TransactionSettings, id string, commit bool) Statement {
	st.Begin, st.Within, st.TxID, st.Commit = begin, begin == nil, id, commit
	return st
}

var (
	serializable = &Ydb_Query.TransactionSettings{TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{}}
	snapshot     = &Ydb_Query.TransactionSettings{TxMode: &Ydb_Query.TransactionSettings_SnapshotReadOnly{}}
)

// run executes a statement and reads the answer to its end.
func run(ctx context.Context, s *Session, st Statement) (parts int, err error) {
	stream, err := s.Execute(ctx, st)
	if err != nil {
		return 0, err
	}
	for {
		if _, err := stream.Next(); err != nil {
			if isEOF(err) {
				return parts, nil
			}
			return parts, err
		}
		parts++
	}
}
