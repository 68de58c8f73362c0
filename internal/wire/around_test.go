package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/routing"
)

// detoured is a house with a transaction whose node cannot be reached from here.
type detoured struct {
	*house
	s      *session
	tx     string
	owner  cluster.NodeID
	router *routing.Router
}

func newDetoured(t *testing.T, limit time.Duration) *detoured {
	t.Helper()
	h := newHouseOn(t, 1, nil, nil)
	h.server.shards[0].shard.Do(func(*h2.Forwarder) { h.server.deps.ForwardSilence = limit })
	h.mu.Lock()
	h.forwards = true
	h.mu.Unlock()
	d := &detoured{house: h, s: h.guest("a").session(), router: h.server.deps.Router.(brokenRouter).Router}
	d.tx = d.s.must(success, "select", beginTx)
	d.owner = h.ownerOf(d.s)
	d.router.SetConditions(cluster.Conditions{d.owner: {Health: cluster.Ejected, Unreachable: true}})
	return d
}

// nothingLeft waits until no call has a way of its own.
func (d *detoured) nothingLeft() {
	d.Helper()
	d.resting()
	d.eventually("the ways around are closed", func() (fault string) {
		d.server.shards[0].shard.Do(func(e *h2.Forwarder) {
			if n := d.server.shards[0].detours.Len(); n > 0 || e.Stats().Nodes > 3 {
				fault = fmt.Sprintf("%d ways, %d connections", n, e.Stats().Nodes)
			}
		})
		return fault
	})
}

// lostOwner is a call whose owner dies, and what its client is told.
type lostOwner struct {
	name  string
	call  func(*detoured) (Ydb.StatusIds_StatusCode, string, error)
	stuck bool
	want  Ydb.StatusIds_StatusCode
	text  string
}

// The owner dies after the call has reached it: the node that forwards it never answers.
func TestACallAroundALostOwnerEnds(t *testing.T) {
	text := func(issues []*Ydb_Issue.IssueMessage) string {
		if len(issues) == 0 {
			return ""
		}
		return issues[0].GetMessage()
	}
	statement := func(word string, commit bool) func(*detoured) (Ydb.StatusIds_StatusCode, string, error) {
		return func(d *detoured) (Ydb.StatusIds_StatusCode, string, error) {
			out, err := d.s.query.ExecuteQuery(
				d.s.with(d.ctx), &Ydb_Query.ExecuteQueryRequest{SessionId: d.s.id, TxControl: inTx(d.tx, commit),
					Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: word}}},
			)
			if err != nil {
				return 0, "", err
			}
			part, err := out.Recv()
			return part.GetStatus(), text(part.GetIssues()), err
		}
	}
	for _, c := range []lostOwner{
		{"statement", statement("hang", false), false, Ydb.StatusIds_UNAVAILABLE, "nothing of it was kept"},
		{"statement_too_long_to_be_looked_at_first", statement("hang "+strings.Repeat("x", 1<<20), false), false, 0, "left the cluster"},
		{"statement_that_commits", statement("hang", true), false, Ydb.StatusIds_UNDETERMINED, "may have been executed"},
		{"commit", func(d *detoured) (Ydb.StatusIds_StatusCode, string, error) {
			r, err := d.s.query.CommitTransaction(d.s.with(d.ctx), &Ydb_Query.CommitTransactionRequest{SessionId: d.s.id, TxId: d.tx})
			return r.GetStatus(), text(r.GetIssues()), err
		}, true, Ydb.StatusIds_UNDETERMINED, "may have been executed"},
		{"rollback", func(d *detoured) (Ydb.StatusIds_StatusCode, string, error) {
			r, err := d.s.query.RollbackTransaction(d.s.with(d.ctx), &Ydb_Query.RollbackTransactionRequest{SessionId: d.s.id, TxId: d.tx})
			return r.GetStatus(), text(r.GetIssues()), err
		}, true, Ydb.StatusIds_UNAVAILABLE, "nothing of it was kept"},
	} {
		for _, listed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/listed_%t", c.name, listed), func(t *testing.T) {
				c.ends(t, listed)
			})
		}
	}
}

// ends checks the end of the call. listed: the owner stays listed.
func (c lostOwner) ends(t *testing.T, listed bool) {
	t.Parallel()
	limit := time.Hour
	if listed {
		limit = time.Second
	}
	d := newDetoured(t, limit)
	d.mu.Lock()
	d.stuck = c.stuck
	d.mu.Unlock()
	type end struct {
		status Ydb.StatusIds_StatusCode
		text   string
		err    error
	}
	done := make(chan end, 1)
	go func() {
		st, text, err := c.call(d)
		done <- end{st, text, err}
	}()
	var got end
	select {
	case <-d.hung:
		if !listed {
			var left []cluster.Node
			for _, n := range d.router.View().Nodes {
				if n.ID != d.owner {
					left = append(left, n.Node)
				}
			}
			d.router.SetTopology(cluster.NewTopology(left, ""))
		}
		got = <-done
	case got = <-done: // late, on a loaded machine
	}
	if got.err != nil || c.want != 0 && got.status != c.want || !strings.Contains(got.text, c.text) {
		t.Errorf("it ended with %v, %q, %v; want %v, %q", got.status, got.text, got.err, c.want, c.text)
	}
	d.nothingLeft()
	judge := d.server.deps.Health.(brokenReporter).outcomes
	judge.mu.Lock()
	all := slices.Clone(judge.all)
	judge.mu.Unlock()
	if slices.ContainsFunc(all, func(o cluster.Outcome) bool { return o.Blame == cluster.BlameTransport }) {
		t.Errorf("reported %v; want nobody blamed", all)
	}
	d.s.must(success, "select", nil)
}

// A call around its owner that gets its answer is like any other, however slowly the answer comes.
func TestCallsAroundTheirOwnerGoOn(t *testing.T) {
	d := newDetoured(t, time.Minute)
	d.s.must(success, "select", inTx(d.tx, false))
	d.s.must(success, "large 3000000", inTx(d.tx, false))
	d.s.must(success, "select", inTx(d.tx, true))
	d.nothingLeft()
}

// ejecting is a judge that says a node cannot be reached after a number of signs of that.
type ejecting struct {
	hop.HealthReporter
	router *routing.Router
	signs  atomic.Int64
	after  int64
}

func (j *ejecting) Report(o cluster.Outcome) {
	j.HealthReporter.Report(o)
	if o.Blame == cluster.BlameTransport && j.signs.Add(1) == j.after {
		go j.router.SetConditions(cluster.Conditions{o.Node: {Health: cluster.Ejected, Unreachable: true}})
	}
}

// unreachable is the nodes, of which one cannot be connected to.
type unreachable struct {
	network
	node atomic.Uint32
}

func (n *unreachable) Dial(ctx context.Context, node cluster.Node) (net.Conn, error) {
	if uint32(node.ID) == n.node.Load() {
		return nil, errors.New("connection refused")
	}
	return n.network.Dial(ctx, node)
}

// The link to the owner breaks, and nobody knows yet: the statement that finds out waits for the verdict.
func TestATransactionOutlivesTheVerdictOnItsNode(t *testing.T) {
	for _, c := range []struct {
		name  string
		after int64
		want  Ydb.StatusIds_StatusCode
	}{
		{"the_node_is_ejected", 2, success},
		{"it_never_is", 1000, Ydb.StatusIds_BAD_SESSION},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes, judge := new(unreachable), &ejecting{after: c.after}
			h := newHouseWith(t, 1, nil, nil, nil, func(d *Deps) {
				nodes.network = d.Nodes.(network)
				judge.HealthReporter, judge.router = d.Health, d.Router.(brokenRouter).Router
				d.Nodes, d.Health = nodes, judge
			})
			h.mu.Lock()
			h.forwards = true
			h.mu.Unlock()
			s := h.guest("a").session()
			tx := s.must(success, "select", beginTx)
			owner := h.ownerOf(s)
			nodes.node.Store(uint32(owner))
			f := h.server.shards[0]
			f.shard.Do(func(*h2.Forwarder) {
				conn, err := f.nodes[owner].up.Conn()
				if err != nil {
					t.Error(err)
					return
				}
				conn.Close()
			})
			s.must(c.want, "select", inTx(tx, true))
			h.resting()
		})
	}
}

// A call that was to go around its node goes there after all, and the node is lost: then it is to blame.
func TestNothingIsLeftOfAWayAroundThatWasNotTaken(t *testing.T) {
	d := newDetoured(t, time.Hour)
	f, nodes := d.server.shards[0], &refusing{Nodes: d.server.deps.Nodes}
	nodes.refused = func() { d.router.SetConditions(cluster.Conditions{}) } // the owner is within reach again
	f.shard.Do(func(*h2.Forwarder) { d.server.deps.Nodes = nodes })
	done := make(chan *Ydb_Query.ExecuteQueryResponsePart, 1)
	go func() {
		out, err := d.s.query.ExecuteQuery(d.s.with(d.ctx), &Ydb_Query.ExecuteQueryRequest{SessionId: d.s.id, TxControl: inTx(d.tx, false),
			Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "hang"}}})
		var part *Ydb_Query.ExecuteQueryResponsePart
		if err == nil {
			part, err = out.Recv()
		}
		if err != nil {
			t.Error(err)
		}
		done <- part
	}()
	<-d.hung
	var direct *h2.Conn
	f.shard.Do(func(*h2.Forwarder) { direct, _ = f.nodes[d.owner].up.Conn() })
	var left []cluster.Node
	for _, n := range d.router.View().Nodes {
		if n.ID != d.owner {
			left = append(left, n.Node)
		}
	}
	d.router.SetTopology(cluster.NewTopology(left, ""))
	f.shard.Do(func(*h2.Forwarder) { direct.Close() })
	if part := <-done; part.GetStatus() != Ydb.StatusIds_UNDETERMINED {
		t.Errorf("%v; want UNDETERMINED, as of any call whose node is lost", part)
	}
	d.server.deps.Health.(brokenReporter).outcomes.wait(t, "the owner is to blame", func(o cluster.Outcome) bool {
		return o.Node == d.owner && o.Blame == cluster.BlameTransport
	})
	d.nothingLeft()
}

// refusing is the nodes, to which no new connection can be made.
type refusing struct {
	Nodes
	refused func()
}

func (n *refusing) Dial(context.Context, cluster.Node) (net.Conn, error) {
	n.refused()
	return nil, errors.New("connection refused")
}
