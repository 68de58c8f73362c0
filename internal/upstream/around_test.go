package upstream

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// forwardSilence is the limit in the tests.
const forwardSilence = 5 * time.Second

// detour is a bench with an open transaction on node 1, whose calls go through node 2.
func detour(t *testing.T, change func(*Deps)) (*bench, *Session) {
	t.Helper()
	b := newBench(t, 2, func(_ *Config, d *Deps) {
		d.ForwardSilence = forwardSilence
		if change != nil {
			change(d)
		}
	})
	s, _ := b.mustOpen(1)
	if err := s.Begin(t.Context(), serializable); err != nil {
		t.Fatal(err)
	}
	b.judge.take()
	b.router.target = func(cluster.NodeID, bool) (cluster.NodeID, error) { return 2, nil }
	return b, s
}

// see changes what discovery says of node 1.
func (b *bench) see(change func(*cluster.ViewNode)) {
	v := b.view()
	for i := range v.Nodes {
		if v.Nodes[i].ID == 1 {
			change(&v.Nodes[i])
		}
	}
	b.driver.SetView(v)
}

// lossOfOwner is how the owner of a session is lost, when that ends a call, and what its error says.
type lossOfOwner struct {
	name string
	lost func(*bench)
	took time.Duration
	text string
}

// callAround is a call around the owner, whether it may have been kept when it ends, and what is reported.
type callAround struct {
	name string
	call func(ctx context.Context, s *Session) error
	sent bool
	want string
}

// The owner dies after the call has reached it: the node that forwards it never answers.
func TestACallAroundALostOwnerEnds(t *testing.T) {
	leaves := func(b *bench) {
		time.Sleep(time.Second)
		b.see(func(n *cluster.ViewNode) { n.Missing = true }) // in doubt
		time.Sleep(time.Second)
		b.see(func(n *cluster.ViewNode) { n.Gone = true })
	}
	vanishes := func(b *bench) {
		time.Sleep(2 * time.Second)
		v := b.view()
		v.Nodes = v.Nodes[1:]
		b.driver.SetView(v)
	}
	for _, how := range []lossOfOwner{
		{"it_leaves_the_cluster", leaves, 2 * time.Second, "left the cluster"},
		{"another_node_has_its_address", vanishes, 2 * time.Second, "left the cluster"},
		{"it_stays_listed", func(*bench) {}, forwardSilence, "routing.forward_silence"},
	} {
		for _, c := range []callAround{
			{"statement", func(ctx context.Context, s *Session) error {
				_, err := run(ctx, s, inTx(statement("x"), nil, s.TxID(), false))
				return err
			}, false, "2 execute none UNAVAILABLE"},
			{"statement_that_commits", func(ctx context.Context, s *Session) error {
				_, err := run(ctx, s, inTx(statement("x"), nil, s.TxID(), true))
				return err
			}, true, "2 commit none UNAVAILABLE"},
			{"commit", func(ctx context.Context, s *Session) error { return s.Commit(ctx) }, true, "2 commit none UNAVAILABLE"},
			{"rollback", func(ctx context.Context, s *Session) error { return s.Rollback(ctx) }, false, "2 control none UNAVAILABLE"},
		} {
			t.Run(how.name+"/"+c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { c.ends(t, how) })
			})
		}
	}
}

// ends checks the end of the call.
func (c callAround) ends(t *testing.T, how lossOfOwner) {
	b, s := detour(t, nil)
	b.node(2).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	b.node(2).onCommit = func(ctx context.Context) (Ydb.StatusIds_StatusCode, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	b.node(2).onRollback = b.node(2).onCommit
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := time.Now()
	var err error
	var call sync.WaitGroup
	call.Go(func() { err = c.call(ctx, s) })
	how.lost(b)
	call.Wait()
	e := asError(t, err)
	if took := time.Since(start); took != how.took || e.Code != codes.Unavailable || !strings.Contains(e.Message(), how.text) {
		t.Errorf("it ended after %v with %s, %q; want UNAVAILABLE after %v", took, e.StatusName(), e.Message(), how.took)
	}
	if e.Sent != c.sent || s.clean() {
		t.Errorf("it may have been kept: %t; want %t. The session is clean: %t", e.Sent, c.sent, s.clean())
	}
	if got := b.judge.take(); !slices.Equal(got, []string{c.want}) {
		t.Errorf("reported %q; want %q: the node that forwards is not to blame", got, c.want)
	}
	if n := b.driver.detours.Len(); n != 0 {
		t.Errorf("%d calls are still watched", n)
	}
}

// Only silence ends a call around the owner of its session.
func TestACallAroundItsOwnerGoesOn(t *testing.T) {
	const parts, pause = 10, forwardSilence - time.Second
	slow := func(stream executeStream) error {
		for range parts {
			time.Sleep(pause)
			if err := stream.Send(part(Ydb.StatusIds_SUCCESS)); err != nil {
				return err
			}
		}
		return nil
	}
	late := func(stream executeStream) error {
		time.Sleep(time.Minute)
		return stream.Send(part(Ydb.StatusIds_SUCCESS))
	}
	for _, c := range []struct {
		name   string
		change func(*Deps)
		answer func(executeStream) error
		reader time.Duration // its pause after each part
		leaves bool
		parts  int
	}{
		{name: "while_parts_come", answer: slow, parts: parts},
		{name: "while_its_reader_is_slow", answer: slow, reader: time.Minute, parts: parts},
		{name: "without_a_limit", change: func(d *Deps) { d.ForwardSilence = 0 }, answer: late, parts: 1},
		{name: "with_affinity_off", change: func(d *Deps) { d.Scattered = true }, answer: late, leaves: true, parts: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, s := detour(t, c.change)
				b.node(2).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error { return c.answer(stream) }
				stream, err := s.Execute(t.Context(), inTx(statement("x"), nil, s.TxID(), false))
				if err != nil {
					t.Fatal(err)
				}
				if c.leaves {
					b.see(func(n *cluster.ViewNode) { n.Gone = true })
				}
				got := 0
				for ; err == nil; got++ {
					time.Sleep(c.reader)
					_, err = stream.Next()
				}
				if got--; !isEOF(err) || got != c.parts {
					t.Errorf("%d parts, then %v; want %d and the end", got, err, c.parts)
				}
			})
		})
	}
}

// The same over real sockets: the node that forwards keeps the call when the owner dies, as YDB's nodes do.
func TestACallAroundAnOwnerThatDiesEnds(t *testing.T) {
	nodes, err := devcluster.Start(devcluster.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nodes.Close() })
	for _, c := range []struct {
		name  string
		limit time.Duration // of silence; the owner leaves discovery if it is longer than any test
	}{{"it_leaves_discovery", time.Hour}, {"it_stays_listed", 2 * time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			aroundAnOwnerThatDies(t, nodes, c.limit)
		})
	}
}

func aroundAnOwnerThatDies(t *testing.T, nodes *devcluster.Cluster, limit time.Duration) {
	owner := nodes.Node(1)
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	config := shipped()
	config.URL = "grpc://" + nodes.Node(3).Address() + "/local"
	router := newOpenRouter()
	d, err := New(config, Deps{Ways: hop.Ways{Router: router, Health: &notes{}, ForwardSilence: limit}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	see := func() {
		t.Helper()
		topology, err := d.ListEndpoints(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var v cluster.View
		for _, n := range topology.Nodes {
			v.Nodes = append(v.Nodes, cluster.ViewNode{Node: n})
		}
		d.SetView(v)
	}
	see()
	res, err := d.Open(ctx, 1, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	s := res.(*Session)
	defer s.Close(ctx)
	if err := s.Begin(ctx, serializable); err != nil {
		t.Fatal(err)
	}
	router.target = func(cluster.NodeID, bool) (cluster.NodeID, error) { return 2, nil }
	if err := owner.Delay(devcluster.Delay{Delay: time.Hour, Share: 1, Methods: []string{"CommitTransaction"}}); err != nil {
		t.Fatal(err)
	}
	arrived := owner.Counters().Calls
	done := make(chan error, 1)
	go func() { done <- s.Commit(ctx) }()
	await.True(t, "the commit reaches the owner, or is over", func() bool {
		return owner.Counters().Calls > arrived || len(done) > 0
	})
	sent := owner.Counters().Calls > arrived // else the silence was over before, on a loaded machine
	owner.Kill()
	if limit == time.Hour {
		see()
	}
	if e := asError(t, <-done); e.Code != codes.Unavailable || sent && !e.Sent || s.clean() {
		t.Errorf("%v, may have been kept %t, clean %t; want UNAVAILABLE with an unknown outcome", e, e.Sent, s.clean())
	}
}

// The node that is to forward a call cannot be connected to, which takes longer than the limit of silence: the call was
// not sent, and goes another way.
func TestACallAroundItsOwnerThatWasNotSentIsMadeAgain(t *testing.T) {
	for _, how := range []string{ClientH2, ClientGRPC} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 2)
				b := benchOn(t, c, func(config *Config, d *Deps) {
					config.Client = how
					d.ForwardSilence = time.Second
					d.Dial = func(ctx context.Context, address string) (net.Conn, error) {
						if address == c.node(2).address {
							<-ctx.Done()
							return nil, ctx.Err()
						}
						return c.dial(ctx, address)
					}
				})
				s, _ := b.mustOpen(1)
				if err := s.Begin(t.Context(), serializable); err != nil {
					t.Fatal(err)
				}
				var tries atomic.Int64
				b.router.target = func(owner cluster.NodeID, _ bool) (cluster.NodeID, error) {
					if tries.Add(1) == 1 {
						return 2, nil
					}
					return owner, nil
				}
				if err := s.Commit(t.Context()); err != nil || tries.Load() != 2 {
					t.Errorf("after %d tries: %v; want 2", tries.Load(), err)
				}
			})
		})
	}
}
