package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/routing"
)

// stack is a client on a real pool and a real router, over a fake cluster.
type stack struct {
	*fakeCluster
	driver *Driver
	judge  *notes
	router *routing.Router
	pool   *pool.Pool
	client *Client
}

type stackConfig struct {
	upstream Config
	deps     Deps
	pool     pool.Config
	routing  routing.Config
	retry    RetryConfig
	silent   bool // no view at the start
}

func newStack(t *testing.T, size int, change func(*stackConfig)) *stack {
	t.Helper()
	s := &stack{fakeCluster: newCluster(t, size), judge: &notes{}}
	c := stackConfig{upstream: Default(), pool: pool.Default(), routing: routing.Default(), retry: DefaultRetry()}
	c.upstream.URL = "grpc://node1:2136/local"
	c.pool.Max = 8
	c.deps = Deps{Ways: hop.Ways{Health: s.judge}, Dial: s.dial}
	if change != nil {
		change(&c)
	}
	s.router = routing.New(c.routing)
	c.deps.Router = s.router
	d, err := New(c.upstream, c.deps)
	if err != nil {
		t.Fatal(err)
	}
	s.driver = d
	s.pool = pool.New(c.pool, d, nil)
	if s.client, err = NewClient(d, s.pool, c.retry, c.pool.Max); err != nil {
		t.Fatal(err)
	}
	s.router.Subscribe(d.SetView)
	s.router.Subscribe(s.pool.SetView)
	if !c.silent {
		s.router.SetTopology(s.topology())
	}
	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	parts.Go(func() { d.Run(ctx) })
	parts.Go(func() { s.pool.Run(ctx) })
	t.Cleanup(func() {
		end, stop := context.WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		if err := s.pool.Close(end); err != nil {
			t.Errorf("close the pool: %v", err)
		}
		cancel()
		parts.Wait()
		d.Close()
		for _, n := range s.router.Stats().Nodes {
			if n.Calls != 0 {
				t.Errorf("%d calls are still counted on node %d", n.Calls, n.Node.ID)
			}
		}
		synctest.Wait()
		if n := s.sessions(); n != 0 {
			t.Errorf("%d sessions are left on the nodes", n)
		}
	})
	return s
}

// query runs one statement through Do.
func (s *stack) query(ctx context.Context, call Call, r func() Statement) (Report, error) {
	return s.client.Do(ctx, call, func(ctx context.Context, session *Session) error {
		_, err := run(ctx, session, r())
		return err
	})
}

func plain() Statement { return statement("SELECT 1") }

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// fail makes a node answer the first n statements with what f says.
func (n *fakeNode) fail(times int, f func(stream executeStream) error) *atomic.Int64 {
	var count atomic.Int64
	n.onExecute = func(r *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
		if count.Add(1) <= int64(times) {
			return f(stream)
		}
		return n.answer(r, stream)
	}
	return &count
}

func answers(s Ydb.StatusIds_StatusCode) func(executeStream) error {
	return func(stream executeStream) error { return stream.Send(part(s)) }
}

func breaks(stream executeStream) error { return status.Error(codes.Unavailable, "cut") }

func TestDoReusesTheSessionAndTellsWhereTheTimeWent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		for i := range 20 {
			r, err := s.query(within(t, time.Second), Call{}, plain)
			if err != nil {
				t.Fatal(err)
			}
			if r.Attempts != 1 || r.Node != 1 || r.Created != (i == 0) || len(r.Tries) != 1 || r.Tries[0].Failed() {
				t.Errorf("call %d: %+v", i, r)
			}
		}
		if n := len(s.node(1).seen("CreateSession")); n != 1 {
			t.Errorf("%d sessions for 20 calls in a row; want 1", n)
		}
	})
}

func TestTransactionsAreRetriedAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		commits := 0
		s.node(1).onCommit = func(context.Context) (Ydb.StatusIds_StatusCode, error) {
			if commits++; commits < 3 {
				return Ydb.StatusIds_ABORTED, nil
			}
			return Ydb.StatusIds_SUCCESS, nil
		}
		r, err := s.client.Do(within(t, time.Second), Call{}, func(ctx context.Context, session *Session) error {
			if err := session.Begin(ctx, serializable); err != nil {
				return err
			}
			if _, err := run(ctx, session, inTx(plain(), nil, session.TxID(), false)); err != nil {
				return err
			}
			return session.Commit(ctx)
		})
		if err != nil || r.Attempts != 3 || commits != 3 || len(r.Tries) != 9 || r.Tries[8].Attempt != 3 {
			t.Errorf("%v, %+v, %d commits", err, r, commits)
		}
		if n := len(s.node(1).seen("CreateSession")); n != 1 {
			t.Errorf("%d sessions; conflicts must not cost sessions", n)
		}
	})
}

// A commit whose answer got lost may have been kept, so it is not repeated.
func TestALostCommitIsNotRepeated(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		t.Run(fmt.Sprint("idempotent_", idempotent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStack(t, 1, nil)
				commits := 0
				s.node(1).onCommit = func(context.Context) (Ydb.StatusIds_StatusCode, error) {
					if commits++; commits == 1 {
						return 0, status.Error(codes.Unavailable, "cut")
					}
					return Ydb.StatusIds_SUCCESS, nil
				}
				_, err := s.client.Do(within(t, time.Second), Call{
					Idempotent: idempotent,
				}, func(ctx context.Context, session *Session) error {
					if err := session.Begin(ctx, serializable); err != nil {
						return err
					}
					return session.Commit(ctx)
				})
				if idempotent {
					if err != nil || commits != 2 {
						t.Errorf("%v after %d commits; want success by the second", err, commits)
					}
					return
				}
				if e := asError(t, err); !e.Sent || commits != 1 {
					t.Errorf("%v, may have run %t, %d commits", err, e.Sent, commits)
				}
			})
		})
	}
}

func TestAFailedStatementRollsBackAndKeepsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		s.node(1).fail(1, answers(Ydb.StatusIds_GENERIC_ERROR))
		_, err := s.client.Do(within(t, time.Second), Call{}, func(ctx context.Context, session *Session) error {
			if err := session.Begin(ctx, serializable); err != nil {
				return err
			}
			_, err := run(ctx, session, inTx(plain(), nil, session.TxID(), false))
			return err
		})
		if e := asError(t, err); e.Status != Ydb.StatusIds_GENERIC_ERROR {
			t.Error(err)
		}
		if a, b := len(s.node(1).seen("RollbackTransaction")), len(s.node(1).seen("DeleteSession")); a != 1 || b != 0 {
			t.Errorf("%d rollbacks, %d deletions; want 1, 0", a, b)
		}
	})
}

func TestWhatIsLeftOpenCostsTheSession(t *testing.T) {
	for name, f := range map[string]func(ctx context.Context, s *Session) error{
		"transaction": func(ctx context.Context, s *Session) error { return s.Begin(ctx, serializable) },
		"stream that begins a transaction": func(ctx context.Context, s *Session) error {
			r := plain()
			r.Begin = serializable
			_, err := s.Execute(ctx, r)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStack(t, 1, nil)
				if _, err := s.client.Do(within(t, time.Second), Call{}, f); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if n := s.sessions(); n != 0 {
					t.Errorf("%d sessions are kept", n)
				}
			})
		})
	}
}

func TestAPanicInTheCallersFunctionGivesTheSessionBack(t *testing.T) {
	broken := func(ctx context.Context, session *Session) error {
		_, _ = session.Execute(ctx, plain())
		panic("caller's bug")
	}
	for name, call := range map[string]func(t *testing.T, c *Client) error{
		"do": func(t *testing.T, c *Client) error {
			_, err := c.Do(within(t, time.Second), Call{Idempotent: true}, broken)
			return err
		},
		"do_without_a_call": func(t *testing.T, c *Client) error {
			_, err := c.Do(within(t, time.Second), Call{}, func(context.Context, *Session) error { panic("caller's bug") })
			return err
		},
		"the_beginning_of_a_lease": func(t *testing.T, c *Client) error {
			_, _, err := c.BeginTx(within(t, time.Second), Call{}, broken)
			return err
		},
		"a_leased_session": func(t *testing.T, c *Client) error {
			l, _, err := c.BeginTx(within(t, time.Second), Call{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = l.Run(within(t, time.Second), Call{}, broken)
			l.Release(true)
			return err
		},
		"any": func(t *testing.T, c *Client) error {
			_, err := c.Any(
				within(t, time.Second), Call{Method: bulkUpsert},
				func(context.Context, grpc.ClientConnInterface) error { panic("caller's bug") },
			)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStack(t, 1, func(c *stackConfig) { c.pool.Max = 1 })
				if _, ok := errors.AsType[*panics.Error](call(t, s.client)); !ok {
					t.Error("the panic is not told as an error")
				}
				synctest.Wait()
				if n := s.sessions(); n != 0 {
					t.Errorf("%d sessions are kept that were in use by what panicked", n)
				}
				if _, err := s.query(within(t, time.Second), Call{}, plain); err != nil {
					t.Errorf("the pool of one is empty: %v", err)
				}
			})
		})
	}
}

// A session on which a call was given up, or ran out of time, serves others once its node is done with it.
func TestACallGivenUpKeepsItsSession(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(t *testing.T, s *stack)
		says  []Ydb.StatusIds_StatusCode // answers to the question whether the session is idle
		after time.Duration
		kept  bool
	}{
		"half-read, and at rest": {halfRead, []Ydb.StatusIds_StatusCode{Ydb.StatusIds_NOT_FOUND}, 25 * time.Millisecond, true},
		"cancelled, and busy": {cancelled,
			[]Ydb.StatusIds_StatusCode{Ydb.StatusIds_SESSION_BUSY, Ydb.StatusIds_NOT_FOUND}, 75 * time.Millisecond, true},
		"cancelled, and gone":      {cancelled, []Ydb.StatusIds_StatusCode{Ydb.StatusIds_BAD_SESSION}, 25 * time.Millisecond, false},
		"cancelled, and not known": {cancelled, []Ydb.StatusIds_StatusCode{Ydb.StatusIds_UNAVAILABLE}, 25 * time.Millisecond, false},
		"out of time, and busy first": {outOfTime,
			[]Ydb.StatusIds_StatusCode{Ydb.StatusIds_SESSION_BUSY, Ydb.StatusIds_NOT_FOUND}, 75 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStack(t, 1, nil)
				var asked atomic.Int64
				s.node(1).onNoTx = func() Ydb.StatusIds_StatusCode { return c.says[asked.Add(1)-1] }
				c.end(t, s)
				time.Sleep(c.after)
				synctest.Wait()
				st := s.pool.Stats()
				if int(asked.Load()) != len(c.says) || st.Recovering != 0 || (st.Idle == 1) != c.kept || (s.sessions() == 1) != c.kept {
					t.Errorf("%d questions, %+v, %d sessions on the node; want %d, kept: %v", asked.Load(), st,
						s.sessions(), len(c.says), c.kept)
				}
				if deleted := len(s.node(1).seen("DeleteSession")); deleted != 0 && c.says[0] == Ydb.StatusIds_BAD_SESSION {
					t.Error("what the node had forgotten was deleted")
				}
			})
		})
	}
}

func halfRead(t *testing.T, s *stack) {
	if _, err := s.client.Do(within(t, time.Second), Call{}, func(ctx context.Context, s *Session) error {
		_, err := s.Execute(ctx, plain())
		return err
	}); err != nil {
		t.Error(err)
	}
}

func cancelled(t *testing.T, s *stack) {
	s.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := s.query(ctx, Call{}, plain); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func outOfTime(t *testing.T, s *stack) {
	s.node(1).fail(1, answers(Ydb.StatusIds_TIMEOUT))
	if _, err := s.query(within(t, time.Second), Call{}, plain); asError(t, err).Status != Ydb.StatusIds_TIMEOUT {
		t.Error(err)
	}
}

// A call in a transaction that its caller gives up may leave the transaction open.
func TestACancelledCallInATransactionDeletesItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		s.node(1).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		start := time.Now()
		r, err := s.client.Do(within(t, time.Second), Call{Idempotent: true}, func(ctx context.Context, session *Session) error {
			if err := session.Begin(ctx, serializable); err != nil {
				return err
			}
			_, err := run(ctx, session, inTx(plain(), nil, session.TxID(), false))
			return err
		})
		if !errors.Is(err, context.DeadlineExceeded) || r.Attempts != 1 || time.Since(start) != time.Second {
			t.Errorf("%v, %d attempts, after %v", err, r.Attempts, time.Since(start))
		}
		synctest.Wait()
		if n := s.sessions(); n != 0 {
			t.Errorf("%d sessions left", n)
		}
		for _, report := range s.judge.take() {
			if !strings.Contains(report, "none") && !strings.Contains(report, "success") {
				t.Errorf("reported %q", report)
			}
		}
	})
}

func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, nil)
		begins := 0
		s.node(1).onBegin = func() (Ydb.StatusIds_StatusCode, error) {
			if begins++; begins == 1 {
				return Ydb.StatusIds_BAD_SESSION, nil
			}
			return Ydb.StatusIds_SUCCESS, nil
		}
		l, r, err := s.client.BeginTx(within(t, time.Second), Call{}, func(ctx context.Context, session *Session) error {
			return session.Begin(ctx, serializable)
		})
		if err != nil || r.Attempts != 2 || l.Session().TxID() == "" || !l.Valid() {
			t.Fatalf("%v, %+v", err, r)
		}
		// A statement is not repeated here, whatever the verdict.
		count := s.node(1).fail(1, answers(Ydb.StatusIds_UNAVAILABLE))
		r, err = l.Run(within(t, time.Second), Call{Idempotent: true}, func(ctx context.Context, session *Session) error {
			_, err := run(ctx, session, inTx(plain(), nil, session.TxID(), false))
			return err
		})
		if e := asError(t, err); e.Status != Ydb.StatusIds_UNAVAILABLE || count.Load() != 1 || r.Attempts != 1 || len(r.Tries) != 1 {
			t.Errorf("%v, %+v, %d statements", err, r, count.Load())
		}
		if _, err := l.Run(
			within(t, time.Second), Call{},
			func(ctx context.Context, session *Session) error { return session.Rollback(ctx) },
		); err != nil {
			t.Error(err)
		}
		l.Release(true)
		synctest.Wait()
		if n := s.sessions(); n != 1 {
			t.Errorf("%d sessions after a clean end; want 1", n)
		}
		l, _, err = s.client.BeginTx(within(t, time.Second), Call{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.node(1).forget(l.Session().ID())
		synctest.Wait()
		if l.Valid() {
			t.Error("valid after the node ended it")
		}
		l.Release(false)
		synctest.Wait()
		if n := s.sessions(); n != 0 {
			t.Errorf("%d sessions after an unclean end; want 0", n)
		}
	})
}

func bulk(ctx context.Context, conn grpc.ClientConnInterface) error {
	r, err := Ydb_Table_V1.NewTableServiceClient(conn).BulkUpsert(ctx, &Ydb_Table.BulkUpsertRequest{})
	if err != nil {
		return err
	}
	return CheckOperation(r.GetOperation())
}

var bulkUpsert = protocol.Named(protocol.TableService + "BulkUpsert")

func TestAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 3, nil)
		calls := 0
		for _, n := range s.nodes {
			n.onBulk = func() (Ydb.StatusIds_StatusCode, error) {
				switch calls++; calls {
				case 1:
					return Ydb.StatusIds_OVERLOADED, nil
				case 2:
					return 0, status.Error(codes.Unavailable, "cut")
				}
				return Ydb.StatusIds_SUCCESS, nil
			}
		}
		call := Call{Name: "BulkUpsert", Method: bulkUpsert, Idempotent: true}
		r, err := s.client.Any(within(t, 10*time.Second), call, bulk)
		if err != nil || r.Attempts != 3 || r.Tries[0].Result() != "OVERLOADED" || r.Tries[1].Result() != "UNAVAILABLE" ||
			r.Tries[2].Op() != "BulkUpsert" {
			t.Errorf("%v, %+v", err, r)
		}
		if s.sessions() != 0 {
			t.Error("a call without a session took one")
		}
		for _, o := range s.judge.all {
			if !o.Waits {
				t.Errorf("%+v: want it told that the server may wait inside", o)
			}
		}
		for _, n := range s.nodes {
			for _, c := range n.seen("BulkUpsert") {
				if !c.deadline || !slices.Equal(c.md.Get("x-ydb-database"), []string{"/local"}) {
					t.Errorf("seen %+v", c)
				}
			}
		}
		calls = 1 // the next one is cut
		call.Idempotent = false
		if _, err := s.client.Any(within(t, 10*time.Second), call, bulk); !asError(t, err).Sent {
			t.Errorf("%v; want an unknown outcome", err)
		}
	})
}

// What exceeds a node's cap goes elsewhere, and nothing queues behind it.
func TestAnyPassesOverAFullNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 2, func(c *stackConfig) { c.routing.MaxCallsPerNode = 1 })
		if !s.router.Enter(1) {
			t.Fatal("cannot fill the node")
		}
		for range 10 {
			if r, err := s.client.Any(
				within(t, time.Second), Call{Name: "BulkUpsert", Method: bulkUpsert}, bulk,
			); err != nil || r.Node != 2 {
				t.Errorf("%v on node %d; want node 2", err, r.Node)
			}
		}
		s.router.Enter(2)
		start := time.Now()
		_, err := s.client.Any(within(t, 100*time.Millisecond), Call{Name: "BulkUpsert", Method: bulkUpsert}, bulk)
		if !errors.Is(err, routing.ErrBusy) || time.Since(start) > 100*time.Millisecond {
			t.Errorf("%v after %v; want ErrBusy", err, time.Since(start))
		}
		s.router.Leave(cluster.Outcome{Node: 1})
		s.router.Leave(cluster.Outcome{Node: 2})
	})
}

// A node may fill up between the choice and the call.
func TestAnyTriesAnotherNodeWhenTheChosenOneFillsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, nil)
		b.router.full[1] = true
		b.router.picked = func(n int) cluster.NodeID { return cluster.NodeID(1 + n%2) }
		c, err := NewClient(b.driver, nil, RetryConfig{}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := c.Any(
			within(t, time.Second), Call{Name: "BulkUpsert", Method: bulkUpsert}, bulk,
		); err != nil || r.Node != 2 || r.Attempts != 1 {
			t.Errorf("%v, %+v; want node 2 in the first attempt", err, r)
		}
	})
}

func TestTheListOfTriesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 1, func(c *stackConfig) { c.retry.Burst = 100 })
		s.node(1).fail(1<<30, answers(Ydb.StatusIds_ABORTED))
		r, _ := s.query(within(t, 10*time.Second), Call{}, plain)
		if r.Attempts <= maxTries || len(r.Tries) != maxTries {
			t.Errorf("%d tries of %d attempts", len(r.Tries), r.Attempts)
		}
	})
}

func TestAffinityOffScattersCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStack(t, 2, func(c *stackConfig) { c.routing.Affinity = false; c.pool.Max = 1 })
		for _, n := range s.nodes { // the real cluster forwards; here every node answers
			n.onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
				return stream.Send(part(Ydb.StatusIds_SUCCESS))
			}
		}
		for range 100 {
			if _, err := s.query(within(t, time.Second), Call{}, plain); err != nil {
				t.Fatal(err)
			}
		}
		one, two := len(s.node(1).seen("ExecuteQuery")), len(s.node(2).seen("ExecuteQuery"))
		if one < 25 || two < 25 || len(s.node(1).seen("CreateSession"))+len(s.node(2).seen("CreateSession")) != 1 {
			t.Errorf("%d and %d of 100 calls of one session", one, two)
		}
	})
}
