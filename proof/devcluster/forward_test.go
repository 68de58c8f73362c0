package devcluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

func counts(n *Node) [3]int64 {
	c := n.Counters()
	return [3]int64{c.Owned, c.Forwarded, c.Received}
}

func TestAnyNodeTakesAnySession(t *testing.T) {
	cluster := startCluster(t, nil)
	owner, other := dial(t, cluster.Node(1).Address()), dial(t, cluster.Node(2).Address())
	created := owner.createSession()
	a := other.attach(created.GetSessionId()) // forwarded
	a.next()
	tx := a.begin(serializable()).GetTxMeta().GetId() // forwarded
	if got := a.commit(tx); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("commit through another node: %v", got)
	}
	if got := counts(cluster.Node(2)); got != [3]int64{0, 3, 0} {
		t.Errorf("the other node counts owned, forwarded, received %v", got)
	}
	if got := counts(cluster.Node(1)); got != [3]int64{0, 0, 3} {
		t.Errorf("the owner counts owned, forwarded, received %v", got)
	}
	if got := owner.delete(a.id); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("delete: %v", got)
	}
	a.ended()
	if got := counts(cluster.Node(1)); got != [3]int64{1, 0, 3} {
		t.Errorf("the owner counts owned, forwarded, received %v", got)
	}
}

func TestHopDelay(t *testing.T) {
	const delay = 30 * time.Millisecond
	cluster := startCluster(t, func(c *Config) { c.HopDelay = delay })
	id := dial(t, cluster.Node(1).Address()).tableSession()
	for node, want := range map[uint32]time.Duration{1: 0, 2: delay} {
		c := dial(t, cluster.Node(node).Address())
		c.tableSession() // connects
		start := time.Now()
		if _, err := c.table.KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: id}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < want {
			t.Errorf("through node %d: %v; want at least %v", node, took, want)
		}
	}
}

// What the network takes between clients and nodes, and between nodes. The distance of
// clients counts once, also of a call that goes on to another node.
func TestDistances(t *testing.T) {
	const far = time.Hour // what is not to wait would not come back
	cluster := startCluster(t, func(c *Config) { c.Locations = []string{"a", "a", "b"}; c.HopDelay = far })
	id := dial(t, cluster.Node(1).Address()).tableSession()
	through := make(map[uint32]*client)
	for node := range uint32(3) {
		through[node+1] = dial(t, cluster.Node(node+1).Address())
		through[node+1].tableSession() // connects
	}
	for _, c := range []struct {
		name     string
		owner    string // what is posted to the owner
		others   string // and to the nodes that forward
		answered map[uint32]bool
	}{
		{"all_as_configured", `/clear`, `/clear`, map[uint32]bool{1: true}},
		{"far_data_centres", `/clear`, `/hop {"delay":"1h","near":"0s"}`, map[uint32]bool{1: true, 2: true}},
		{"far_neighbours", `/clear`, `/hop {"near":"1h"}`, map[uint32]bool{1: true, 3: true}},
		{"near_is_delay_unless_said", `/clear`, `/hop {"delay":"0s"}`, map[uint32]bool{1: true, 2: true, 3: true}},
		{"a_delay_for_everybody", `/delay {"delay":"1h"}`, `/hop {}`, map[uint32]bool{}},
		{"a_delay_for_clients", `/delay {"delay":"1h","from":"clients"}`, `/hop {}`, map[uint32]bool{2: true, 3: true}},
	} {
		for node := range uint32(3) {
			action, body, _ := strings.Cut(c.others, " ")
			if node == 0 {
				action, body, _ = strings.Cut(c.owner, " ")
			}
			mustPost(t, cluster, fmt.Sprintf("/nodes/%d%s", node+1, action), body)
		}
		for node := range uint32(3) {
			wait := 50 * time.Millisecond // of a call that is not to be answered
			if c.answered[node+1] {
				wait = time.Minute
			}
			ctx, cancel := context.WithTimeout(testContext(t), wait)
			r, err := through[node+1].table.KeepAlive(ctx, &Ydb_Table.KeepAliveRequest{SessionId: id})
			cancel()
			// A node whose call to the owner ran out of time may say so before the client's own time is up.
			said := r.GetOperation().GetStatus()
			if got := err == nil && said == Ydb.StatusIds_SUCCESS; got != c.answered[node+1] {
				t.Errorf("%s, through node %d: %v, %v; want an answer: %v", c.name, node+1, said, err, c.answered[node+1])
			}
		}
	}
}

func TestForwardedCallsAreNotSentRound(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	ctx := metadata.AppendToOutgoingContext(testContext(t), headerFrom, "3")
	r, err := c.query.RollbackTransaction(ctx, &Ydb_Query.RollbackTransactionRequest{SessionId: newSessionID(2), TxId: "x"})
	if err != nil || r.GetStatus() != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestSessionsOfADeadNode(t *testing.T) {
	cluster := startCluster(t, nil)
	other := dial(t, cluster.Node(2).Address())
	a := other.attach(dial(t, cluster.Node(1).Address()).createSession().GetSessionId())
	a.next()
	tx := a.begin(serializable()).GetTxMeta().GetId()
	cluster.Node(1).Kill()
	if s := a.next(); s.GetStatus() != Ydb.StatusIds_UNAVAILABLE {
		t.Errorf("attach stream through another node: %v", s)
	}
	if got := a.commit(tx); got != Ydb.StatusIds_BAD_SESSION {
		t.Errorf("commit: %v", got)
	}
	if n := len(other.endpoints()); n != 2 {
		t.Errorf("discovery lists %d nodes", n)
	}
}

// A call that reached its owner has no answer when that dies, until its own time is over.
func TestCallsOfAnOwnerThatDiedAreNotAnswered(t *testing.T) {
	params := &Ydb_Operations.OperationParams{OperationTimeout: durationpb.New(2 * time.Second)}
	forQuery := func(ctx context.Context, c *client, id string) (Ydb.StatusIds_StatusCode, error) {
		r, err := c.query.CommitTransaction(ctx, &Ydb_Query.CommitTransactionRequest{SessionId: id, TxId: "x"})
		return r.GetStatus(), err
	}
	for name, c := range map[string]struct {
		call  func(context.Context, *client, string) (Ydb.StatusIds_StatusCode, error)
		after func(*Cluster, context.CancelFunc) // the owner died
		want  Ydb.StatusIds_StatusCode
		code  codes.Code
	}{
		"a_commit_by_its_operation_timeout": {call: func(ctx context.Context, c *client, id string) (Ydb.StatusIds_StatusCode, error) {
			r, err := c.table.CommitTransaction(ctx, &Ydb_Table.CommitTransactionRequest{SessionId: id, TxId: "x", OperationParams: params})
			return r.GetOperation().GetStatus(), err
		}, want: Ydb.StatusIds_TIMEOUT},
		"a_statement_by_its_operation_timeout": {call: func(ctx context.Context, c *client, id string) (Ydb.StatusIds_StatusCode, error) {
			r, err := c.table.ExecuteDataQuery(ctx, &Ydb_Table.ExecuteDataQueryRequest{SessionId: id, OperationParams: params})
			return r.GetOperation().GetStatus(), err
		}, want: Ydb.StatusIds_TIMEOUT},
		"a_call_that_its_client_gives_up": {call: forQuery,
			after: func(_ *Cluster, giveUp context.CancelFunc) { giveUp() }, code: codes.Canceled},
		"a_call_on_a_node_that_stops_next": {call: forQuery,
			after: func(cluster *Cluster, _ context.CancelFunc) { cluster.Node(2).Stop() },
			want:  Ydb.StatusIds_UNAVAILABLE},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := startCluster(t, func(c *Config) { c.StopGrace = time.Minute })
			other := dial(t, cluster.Node(2).Address())
			id := dial(t, cluster.Node(1).Address()).tableSession()
			watch := other.attach(dial(t, cluster.Node(1).Address()).createSession().GetSessionId())
			watch.next()
			if err := cluster.Node(1).Delay(Delay{Delay: time.Hour, Share: 1}); err != nil {
				t.Fatal(err)
			}
			type outcome struct {
				status Ydb.StatusIds_StatusCode
				err    error
			}
			done := make(chan outcome, 1)
			ctx, giveUp := context.WithCancel(testContext(t))
			defer giveUp()
			before := cluster.Node(1).Counters().Calls
			go func() {
				status, err := c.call(ctx, other, id)
				done <- outcome{status, err}
			}()
			await.True(t, "the call arrives", func() bool { return cluster.Node(1).Counters().Calls > before || len(done) > 0 })
			cluster.Node(1).Kill()
			// The connection between the nodes is lost when its attach streams end.
			if s := watch.next(); s.GetStatus() != Ydb.StatusIds_UNAVAILABLE {
				t.Errorf("attach stream through another node: %v", s)
			}
			if c.after != nil {
				c.after(cluster, giveUp)
			}
			if got := <-done; got.status != c.want || status.Code(got.err) != c.code {
				t.Errorf("got %v; want %v, %v", got, c.want, c.code)
			}
		})
	}
}

func TestBalancedSessions(t *testing.T) {
	cluster := startCluster(t, func(c *Config) { c.Balance = true })
	c := dial(t, cluster.Node(1).Address())
	able := metadata.AppendToOutgoingContext(testContext(t), "x-ydb-client-capabilities", "session-balancer")
	for range 6 {
		r, err := c.query.CreateSession(able, &Ydb_Query.CreateSessionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if owner, err := ownerOf(r.GetSessionId()); err != nil || int64(owner) != r.GetNodeId() {
			t.Errorf("session %v", r)
		}
		c.createSession() // without the capability it stays here
	}
	for id, want := range map[uint32]int{1: 8, 2: 2, 3: 2} {
		if got := len(cluster.Node(id).Sessions()); got != want {
			t.Errorf("node %d has %d sessions; want %d", id, got, want)
		}
	}
	info := cluster.Node(2).Sessions()[0]
	if len(info.Capabilities) != 1 || info.Capabilities[0] != "session-balancer" {
		t.Errorf("capabilities of the client were lost on the way: %+v", info)
	}
}
