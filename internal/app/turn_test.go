package app

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// atWork is how many goroutines serve unary calls of the gRPC port.
func atWork() int {
	stacks := make([]byte, 4<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "unary.(*Call).serve(")
}

// reachNodes returns when the shard has connections to all nodes.
func (s *sidecar) reachNodes() {
	s.Helper()
	for range 30 {
		if _, err := s.query("SELECT 1"); err != nil {
			s.Fatal(err)
		}
	}
}

// Statements that wait for their node need no goroutine, and end as any other.
func TestOpenStatementsHoldNoGoroutine(t *testing.T) {
	short.Skip(t, "it counts goroutines of the whole process")
	const open = 20
	for _, c := range []struct {
		name string
		end  func(cluster *devcluster.Cluster, leave context.CancelFunc)
		code codes.Code
		ask  *sidecarv1.ExecuteRequest
	}{
		{"the_caller_leaves", func(_ *devcluster.Cluster, leave context.CancelFunc) { leave() }, codes.Canceled,
			&sidecarv1.ExecuteRequest{Sql: "SELECT 1"}},
		{"the_time_is_up", func(*devcluster.Cluster, context.CancelFunc) {}, codes.DeadlineExceeded,
			&sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "3s"}},
		{"the_nodes_die", func(c *devcluster.Cluster, _ context.CancelFunc) {
			for id := uint32(1); id <= 3; id++ {
				c.Node(id).Kill()
			}
		}, codes.Unknown, &sidecarv1.ExecuteRequest{Sql: "UPSERT INTO t (a) VALUES (1)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := newCluster(t)
			s := start(t, cluster.Endpoint(), "pool.min=20", "pool.max=20")
			s.eventually("sessions are idle", func() bool { return s.core.pool.Stats().Idle == open })
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			all := func(req *sidecarv1.ExecuteRequest) <-chan error {
				ended := make(chan error, open)
				for range open {
					go func() {
						_, err := s.client.Execute(ctx, req)
						ended <- err
					}()
				}
				return ended
			}
			for range 5 { // the shard has connections to all nodes then
				ended := all(&sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
				for range open {
					if err := <-ended; err != nil {
						t.Fatal(err)
					}
				}
			}
			for id := uint32(1); id <= 3; id++ {
				if err := cluster.Node(id).Delay(
					devcluster.Delay{Delay: time.Hour, Share: 1, Methods: []string{"ExecuteQuery"}},
				); err != nil {
					t.Fatal(err)
				}
			}
			ended := all(c.ask)
			s.eventually("the statements are open",
				func() bool { return s.core.pool.Stats().InUse == open && s.api.State().OpenCalls == open })
			if n := atWork(); n > 0 {
				t.Errorf("%d goroutines serve %d calls", n, open)
			}
			c.end(cluster, leave)
			for range open {
				if err := <-ended; status.Code(err) != c.code {
					t.Errorf("%v; want %s", err, c.code)
				}
			}
			s.eventually("nothing is left",
				func() bool { return s.core.pool.Stats().InUse == 0 && s.api.State().OpenCalls == 0 && atWork() == 0 })
		})
	}
}

// delayAll has the nodes of a cluster answer late.
func delayAll(t *testing.T, c *devcluster.Cluster, d devcluster.Delay) {
	t.Helper()
	for id := uint32(1); id <= 3; id++ {
		if err := c.Node(id).Delay(d); err != nil {
			t.Fatal(err)
		}
	}
}

// Statements of transactions need none either: neither those that begin one nor those that go on.
func TestOpenTransactionsHoldNoGoroutine(t *testing.T) {
	short.Skip(t, "it counts goroutines of the whole process")
	const open = 10
	cluster := newCluster(t)
	s := start(t, cluster.Endpoint(), "pool.min=20", "pool.max=20")
	s.eventually("sessions are idle", func() bool { return s.core.pool.Stats().Idle == 20 })
	for range 5 { // the shard has connections to all nodes then
		if _, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1"}); err != nil {
			t.Fatal(err)
		}
	}
	begin := &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{}}
	txs := s.openTransactions(t, open)
	delayAll(t, cluster, devcluster.Delay{Delay: time.Hour, Share: 1, Methods: []string{"ExecuteQuery"}})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ended, before := make(chan error, 2*open), callsAt(cluster)
	execute := func(tx *sidecarv1.TxSelector) {
		_, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 3", Tx: tx})
		ended <- err
	}
	for i := range open {
		go execute(begin)
		go execute(txs[i])
	}
	s.open(2*open, cluster, before)
	if n := atWork(); n > 0 {
		t.Errorf("%d goroutines serve %d calls", n, 2*open)
	}
	// A second call for a transaction that is busy is refused.
	if _, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 3", Tx: txs[0]}); status.Code(err) != codes.Aborted {
		t.Errorf("a second statement beside one that runs: %v", err)
	}
	leave()
	for range 2 * open {
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("%v; want %s", err, codes.Canceled)
		}
	}
	delayAll(t, cluster, devcluster.Delay{})
	s.eventually("nothing is left", func() bool {
		return s.core.pool.Stats().InUse == 0 && s.api.State().OpenCalls == 0 && len(s.api.Transactions()) == 0 && atWork() == 0
	})
	for i := range txs {
		if _, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 4", Tx: txs[i]}); err == nil ||
			!strings.Contains(err.Error(), "the transaction has ended") {
			t.Errorf("a transaction whose caller left in a statement: %v", err)
		}
	}
}

// openTransactions begins transactions of two statements each, which stay open.
func (s *sidecar) openTransactions(t *testing.T, many int) (txs []*sidecarv1.TxSelector) {
	t.Helper()
	for range many {
		res, err := s.client.Execute(
			t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Tx: &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{}}},
		)
		if err != nil {
			t.Fatal(err)
		}
		if res, err = s.client.Execute(
			t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 2", Tx: &sidecarv1.TxSelector{Id: res.Tx.Id, Seq: 2}},
		); err != nil {
			t.Fatal(err)
		}
		txs = append(txs, &sidecarv1.TxSelector{Id: res.Tx.Id})
	}
	return txs
}

// open waits until n calls are open, and at their nodes, to which so many had come before: a caller
// that leaves before its call has come to a node leaves its transaction open.
func (s *sidecar) open(n int, c *devcluster.Cluster, before int64) {
	s.Helper()
	s.eventually("the calls are open", func() bool {
		return s.core.pool.Stats().InUse == n && s.api.State().OpenCalls == n && callsAt(c) >= before+int64(n)
	})
}

// callsAt is how many calls have come to the nodes.
func callsAt(c *devcluster.Cluster) (n int64) {
	for id := uint32(1); id <= 3; id++ {
		n += c.Node(id).Counters().Calls
	}
	return n
}

// endsOverGRPC begins a transaction, commits another one and rolls back a third, each
// in a call of its own.
func (s *sidecar) endsOverGRPC(ctx context.Context, commit, rollback string, left, rolledBack chan<- error) {
	go func() {
		_, err := s.client.Begin(ctx, &sidecarv1.BeginRequest{})
		left <- err
	}()
	go func() {
		_, err := s.client.Commit(ctx, &sidecarv1.CommitRequest{Id: commit})
		left <- err
	}()
	go func() {
		_, err := s.client.Rollback(s.Context(), &sidecarv1.RollbackRequest{Id: rollback, Timeout: "3s"})
		rolledBack <- err
	}()
}

// endsOverHTTP does what endsOverGRPC does over HTTP.
func (s *sidecar) endsOverHTTP(ctx context.Context, t *testing.T, commit, rollback string, left, rolledBack chan<- error) {
	for path, body := range map[string]string{
		"/v1/tx/begin": "{}", "/v1/tx/" + commit + "/commit": "", "/v1/tx/" + rollback + "/rollback": `{"timeout":"3s"}`,
	} {
		a := dialAsker(t, "tcp", s.at.HTTP)
		a.say(ordinary("POST", path, body))
		if strings.HasSuffix(path, "rollback") {
			go func() {
				res, err := http.ReadResponse(a.answers, nil)
				if err == nil && res.StatusCode != http.StatusOK {
					err = errors.New(res.Status)
				}
				rolledBack <- err
			}()
			continue
		}
		context.AfterFunc(ctx, func() {
			_ = a.Close()
			left <- status.FromContextError(ctx.Err()).Err()
		})
	}
}

// Begin, Commit and Rollback that wait for their node hold no goroutine, over either API. A rollback
// whose node does not answer succeeds when its time is up.
func TestOpenBeginsAndEndsHoldNoGoroutine(t *testing.T) {
	short.Skip(t, "it counts goroutines of the whole process")
	const open = 5
	for _, api := range []string{"gRPC", "HTTP"} {
		t.Run(api, func(t *testing.T) {
			if api == "HTTP" && runtime.GOOS != "linux" {
				t.Log("connections are parked on Linux alone")
				return
			}
			cluster := newCluster(t)
			s := start(t, cluster.Endpoint(), "pool.min=20", "pool.max=20")
			s.eventually("sessions are idle", func() bool { return s.core.pool.Stats().Idle == 20 })
			s.reachNodes()
			var txs [2 * open]string
			for i := range txs {
				res, err := s.client.Begin(t.Context(), &sidecarv1.BeginRequest{})
				if err != nil {
					t.Fatal(err)
				}
				txs[i] = res.Tx.Id
			}
			steps := []string{"BeginTransaction", "CommitTransaction", "RollbackTransaction"}
			delayAll(t, cluster, devcluster.Delay{Delay: time.Hour, Share: 1, Methods: steps})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			left, rolledBack, before := make(chan error, 2*open), make(chan error, open), callsAt(cluster)
			for i := range open {
				if api == "gRPC" {
					s.endsOverGRPC(ctx, txs[i], txs[open+i], left, rolledBack)
				} else {
					s.endsOverHTTP(ctx, t, txs[i], txs[open+i], left, rolledBack)
				}
			}
			s.open(3*open, cluster, before)
			if n := atWork() + httpAtWork(); n > 0 {
				t.Errorf("%d goroutines serve %d calls", n, 3*open)
			}
			leave()
			for range 2 * open {
				if err := <-left; status.Code(err) != codes.Canceled {
					t.Errorf("%v; want %s", err, codes.Canceled)
				}
			}
			for range open {
				if err := <-rolledBack; err != nil {
					t.Errorf("a rollback whose node does not answer: %v", err)
				}
			}
			s.eventually("nothing is left", func() bool {
				return s.core.pool.Stats().InUse == 0 && s.api.State().OpenCalls == 0 && len(s.api.Transactions()) == 0 && atWork() == 0
			})
		})
	}
}

// TestLostCommitsInATurn: a statement that commits a transaction of which all only reads keeps nothing, if its answer is lost as well.
func TestLostCommitsInATurn(t *testing.T) {
	cluster := newCluster(t)
	s := start(t, cluster.Endpoint())
	write := "UPSERT INTO lost (id) VALUES (1)"
	for _, sql := range []string{"CREATE TABLE lost (id Int64 NOT NULL, PRIMARY KEY (id))", "SELECT 1", "SELECT 1",
		"SELECT 1", "SELECT 1"} {
		if _, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: sql}); err != nil {
			t.Fatal(err)
		}
	}
	lose := func(share float64) {
		t.Helper()
		for id := uint32(1); id <= 3; id++ {
			e := devcluster.Errors{Status: "grpc:CANCELLED", Share: share, Methods: []string{"ExecuteQuery"}, After: true}
			if err := cluster.Node(id).Errors(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		begin, commit string
		code          codes.Code
	}{
		{"SELECT 1", "SELECT 2", codes.Aborted},
		{"SELECT 1", write, codes.Unknown},
		{write, "SELECT 2", codes.Unknown},
	} {
		tx := &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{}}
		res, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: c.begin, Tx: tx})
		if err != nil {
			t.Fatal(err)
		}
		lose(1)
		tx = &sidecarv1.TxSelector{Id: res.Tx.Id, Commit: true}
		_, err = s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: c.commit, Tx: tx})
		if status.Code(err) != c.code {
			t.Errorf("%q and %q: %v; want %s", c.begin, c.commit, err, c.code)
		}
		lose(0)
	}
}
