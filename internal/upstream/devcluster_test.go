package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

func TestWholeKeepsToTheOwnersAndLeavesNothing(t *testing.T) {
	w := startWhole(t, nil)
	const calls = 1000
	failed := w.load(calls)
	owned, forwarded := w.counts()
	if failed != 0 || owned < calls || forwarded != 0 {
		t.Errorf("%d of %d calls failed; %d owned, %d forwarded; want none failed, none forwarded", failed, calls, owned, forwarded)
	}
	w.stop()
	if left := w.cluster.Sessions(); len(left) != 0 {
		t.Errorf("%d sessions left: %+v", len(left), left)
	}
}

func TestWholeWithoutAffinityIsForwarded(t *testing.T) {
	w := startWhole(t, func(_ *devcluster.Config, _ *Config, _ *pool.Config, r *routing.Config) { r.Affinity = false })
	calls := short.Of(4000, 500)
	failed := w.load(int64(calls))
	_, forwarded := w.counts()
	share := float64(forwarded) / float64(calls)
	bound := 6.7 * math.Sqrt(2./9/float64(calls)) // standard deviations; 0.05 of 4000 calls
	if failed != 0 || math.Abs(share-2./3) > bound {
		t.Errorf("%d of %d calls failed; %d forwarded: share %.3f; want 2/3 ± %.2f", failed, calls, forwarded, share, bound)
	}
}

func TestWholeSurvivesTheDeathAndReturnOfANode(t *testing.T) {
	w := startWhole(t, nil)
	w.until("three usable nodes", func(v cluster.View) bool {
		return use(v, 1) == cluster.UseNew && use(v, 2) == cluster.UseNew && use(v, 3) == cluster.UseNew
	})
	stop := make(chan struct{})
	wait := w.flood(12, stop)
	w.needs(2)
	w.cluster.Node(2).Kill()
	w.until("node 2 out of use", func(v cluster.View) bool { return use(v, 2) != cluster.UseNew })
	if err := w.cluster.Node(2).Start(); err != nil {
		t.Fatal(err)
	}
	w.found.Refresh()
	w.until("node 2 in use again", func(v cluster.View) bool { return use(v, 2) == cluster.UseNew })
	close(stop)
	if done, failed := wait(); failed != 0 {
		t.Errorf("%d of %d safe calls failed", failed, done)
	}
}

func TestWholeHeedsHints(t *testing.T) {
	w := startWhole(t, nil)
	w.until("three usable nodes", func(v cluster.View) bool { return use(v, 3) == cluster.UseNew })
	stop := make(chan struct{})
	wait := w.flood(12, stop)
	w.needs(3) // the hint goes to sessions
	w.cluster.Node(3).Drain(
		devcluster.Drain{Mode: devcluster.DrainHints, Limits: devcluster.Limits{Soft: 5 * time.Second, Hard: 5 * time.Second}},
	)
	w.until("node 3 leaving", func(v cluster.View) bool {
		n, ok := v.Find(3)
		return !ok || n.Condition.Draining
	})
	close(stop)
	if done, failed := wait(); failed != 0 {
		t.Errorf("%d of %d calls failed while a node left with notice", failed, done)
	}
}

// A node that stops is known by what it does to sessions, in every version of the server: no
// answer of discovery is needed, nothing fails, and nothing of ours stays on it.
func TestWholeSeesANodeStop(t *testing.T) {
	for _, mode := range []devcluster.DrainMode{devcluster.DrainStreams, devcluster.DrainSilent, devcluster.DrainHints} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel() // each looks for two seconds whether more comes
			seldom := discovery.Default()
			seldom.Interval = time.Hour
			w := startWholeAsking(t, seldom, nil)
			w.until("three usable nodes", func(v cluster.View) bool { return use(v, 3) == cluster.UseNew })
			stop := make(chan struct{})
			wait := w.flood(12, stop)
			w.needs(3)
			limits := devcluster.Limits{Soft: time.Minute, Hard: time.Hour}
			if mode == devcluster.DrainSilent {
				limits.Soft = 0 // before that nobody can know
			}
			leaver := w.cluster.Node(3)
			leaver.Drain(devcluster.Drain{Mode: mode, Limits: limits})
			w.until("node 3 leaving", func(v cluster.View) bool {
				n, ok := v.Find(3)
				return !ok || n.Condition.Draining
			})
			deadline := time.Now().Add(time.Minute)
			await.True(t, "no session stays on the node", func() bool { return len(leaver.Sessions()) == 0 })
			// Openings that were under way may still come; after them it is asked for none.
			refused, since := leaver.Counters().DrainRefused, time.Now()
			for time.Since(since) < 2*time.Second {
				if time.Now().After(deadline) {
					t.Fatalf("the node is still asked for sessions: it refused %d", refused)
				}
				w.load(10)
				if n := leaver.Counters().DrainRefused; n != refused {
					refused, since = n, time.Now()
				}
			}
			close(stop)
			if done, failed := wait(); failed != 0 {
				t.Errorf("%d of %d calls failed", failed, done)
			}
		})
	}
}

// Statuses that end sessions, and their streams, take no node for one that stops, whoever ends first.
func TestWholeOutlivesSessionsThatEndWithAStatus(t *testing.T) {
	for _, status := range []string{"INTERNAL_ERROR", "BAD_SESSION"} {
		t.Run(status, func(t *testing.T) {
			w := startWhole(t, nil)
			w.until("three usable nodes", func(v cluster.View) bool { return use(v, 3) == cluster.UseNew })
			for id := range uint32(3) {
				if err := w.cluster.Node(id + 1).Errors(
					devcluster.Errors{Status: status, Share: 1, Methods: []string{"ExecuteQuery"}},
				); err != nil {
					t.Fatal(err)
				}
			}
			var failed atomic.Int64
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					for range 10 {
						if _, err := w.exec(false, statement("SELECT 1")); err != nil {
							failed.Add(1)
						}
					}
				})
			}
			wg.Wait()
			if got := failed.Load(); got != 60 {
				t.Errorf("%d of 60 statements failed; want all", got)
			}
			for id := range uint32(3) {
				if err := w.cluster.Node(id + 1).Clear(); err != nil {
					t.Fatal(err)
				}
			}
			if failed := w.load(100); failed != 0 {
				t.Errorf("%d of 100 statements failed afterwards", failed)
			}
			for _, n := range w.router.View().Nodes { // a hint would stay for a minute
				if n.Condition.Draining {
					t.Errorf("node %d is taken for one that stops: %s", n.Node.ID, n.Condition.Reason)
				}
			}
			created := int64(0)
			for id := range uint32(3) {
				created += w.cluster.Node(id + 1).Counters().SessionsCreated
			}
			if created < 60 {
				t.Errorf("%d sessions were made; want one for each that a status ended", created)
			}
		})
	}
}

// Behind one address the connection leads to one node, and sessions are made there. When that node
// shuts down, they are made on another connection, which leads to another node.
func TestWholeLeavesANodeBehindASharedAddress(t *testing.T) {
	for _, mode := range []devcluster.DrainMode{devcluster.DrainStreams, devcluster.DrainSilent, devcluster.DrainHints} {
		t.Run(string(mode), func(t *testing.T) {
			w := startWhole(t, func(n *devcluster.Config, _ *Config, p *pool.Config, _ *routing.Config) {
				n.Endpoints, p.Min = devcluster.EndpointsMerged, 4
			})
			on := func(n *devcluster.Node) (attached int) {
				for _, s := range n.Sessions() {
					if s.Attached {
						attached++
					}
				}
				return attached
			}
			var home *devcluster.Node
			await.True(t, "the pool has sessions", func() bool {
				for id := range uint32(3) {
					if n := w.cluster.Node(id + 1); on(n) >= 4 {
						home = n
					}
				}
				return home != nil
			})
			limits := devcluster.Limits{Soft: time.Hour, Hard: time.Hour}
			if mode == devcluster.DrainSilent {
				limits.Soft = 0 // before that nobody can know
			}
			home.Drain(devcluster.Drain{Mode: mode, Limits: limits})
			await.True(t, "sessions are on another node", func() bool {
				_, err := w.exec(true, statement("SELECT 1"))
				others := 0
				for id := range uint32(3) {
					if n := w.cluster.Node(id + 1); n != home {
						others += on(n)
					}
				}
				if mode == devcluster.DrainSilent { // sessions that are not used stay
					return err == nil && others > 0
				}
				return err == nil && others >= 4 && on(home) == 0
			})
		})
	}
}

// A node that has started and does not serve the database yet makes no session. The others take the work, and it gets its
// part when it is ready.
func TestWholeGoesRoundANodeThatIsNotReady(t *testing.T) {
	w := startWhole(t, nil)
	fault, err := w.cluster.AddFault(t.Context(), devcluster.Fault{Kind: devcluster.NotReady, Node: 2, Share: 1})
	if err != nil {
		t.Fatal(err)
	}
	if failed := w.load(300); failed > 0 {
		t.Errorf("%d calls failed", failed)
	}
	// it is asked less and less often
	if n, refused := len(w.cluster.Node(2).Sessions()), w.cluster.Node(2).Counters().Failures; n > 0 || refused < 1 || refused > 25 {
		t.Errorf("%d sessions, %d calls refused; want none, and 1 to 25", n, refused)
	}
	if err := w.cluster.RemoveFault(t.Context(), fault.ID); err != nil {
		t.Fatal(err)
	}
	w.until("the node", func(v cluster.View) bool { return use(v, 2) == cluster.UseNew })
	if failed := w.load(300); failed > 0 {
		t.Errorf("%d calls failed when it was ready", failed)
	}
}

// openAtTheLimit has another client open a session on a node that is at its limit.
func openAtTheLimit(t *testing.T, nodes devcluster.Config) {
	conn, err := grpc.NewClient(
		"passthrough:node:1", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(nodes.Dial),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	other := Ydb_Query_V1.NewQueryServiceClient(conn)
	for tries := 1; ; tries++ {
		r, err := other.CreateSession(t.Context(), &Ydb_Query.CreateSessionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if r.GetStatus() == Ydb.StatusIds_SUCCESS {
			if _, err := other.AttachSession(t.Context(), &Ydb_Query.AttachSessionRequest{SessionId: r.GetSessionId()}); err != nil {
				t.Fatal(err)
			}
			return
		}
		if r.GetStatus() != Ydb.StatusIds_OVERLOADED || tries == 120 {
			t.Fatalf("try %d of another client: %v", tries, r)
		}
		time.Sleep(time.Second)
	}
}

// A node that is at its limit of sessions asks for the one back that was unused for longest: that is one of the minimum, which
// nobody uses. Another client gets its place, and the pool does not take part in a race for it.
func TestWholeGivesWayAtTheLimitOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 4
		var nodes devcluster.Config
		memory := map[string]*bufconn.Listener{} // the node's alone, from before it runs
		w := startWhole(t, func(c *devcluster.Config, _ *Config, p *pool.Config, _ *routing.Config) {
			c.Nodes, c.Sessions, c.Evict = 1, limit, true
			c.Listen = func(string) (net.Listener, error) {
				l := bufconn.Listen(1 << 20)
				memory["node:1"] = l
				return named{l, "node:1"}, nil
			}
			c.Dial = func(ctx context.Context, address string) (net.Conn, error) { return memory[address].DialContext(ctx) }
			p.Min, p.Age, nodes = limit, 0, *c
		})
		seen := map[string]bool{} // the attached ones: probes have sessions of their own, for a moment
		watch := func(d time.Duration) (attached, added int) {
			before := len(seen)
			const step = 10 * time.Second
			for range d / step {
				time.Sleep(step)
				attached = 0
				for _, s := range w.cluster.Sessions() {
					if s.Attached {
						attached, seen[s.ID] = attached+1, true
					}
				}
			}
			return attached, len(seen) - before
		}
		if attached, _ := watch(time.Minute); attached != limit {
			t.Fatalf("%d sessions; want %d", attached, limit)
		}
		watch(nodes.SessionIdle)

		openAtTheLimit(t, nodes)
		if _, added := watch(nodes.SessionIdle - time.Minute); added != 1 {
			t.Errorf("%d sessions were opened since the eviction; want the other client's one", added)
		}
		hours := short.Of(6, 1) // every ten minutes the pool tries whether there is room again
		if _, added := watch(time.Duration(hours) * time.Hour); added > hours*6+6 {
			t.Errorf("%d sessions were opened in %d hours without work", added, hours)
		}
	})
}

func TestWholeTransactionsAndStatistics(t *testing.T) {
	w := startWhole(t, nil)
	if _, err := w.exec(true, statement("CREATE TABLE t (id Uint64, v Utf8, PRIMARY KEY (id))")); err != nil {
		t.Fatal(err)
	}
	r, err := w.do(false, func(ctx context.Context, s *Session) error {
		if err := s.Begin(ctx, serializable); err != nil {
			return err
		}
		for i := range 3 {
			if _, err := run(
				ctx, s,
				inTx(statement(fmt.Sprintf("UPSERT INTO t (id, v) VALUES (%du, \"x\")", i)), nil, s.TxID(), false),
			); err != nil {
				return err
			}
		}
		return s.Commit(ctx)
	})
	if err != nil || len(r.Tries) != 5 {
		t.Fatalf("%v, %+v", err, r)
	}
	_, err = w.do(false, func(ctx context.Context, s *Session) error {
		req := statement("SELECT COUNT(*) AS n FROM t")
		req.Stats = Ydb_Query.StatsMode_STATS_MODE_BASIC
		stream, err := s.Execute(ctx, req)
		if err != nil {
			return err
		}
		var rows uint64
		for {
			p, err := stream.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			for _, raw := range p.Rows {
				var row Ydb.Value
				if err := proto.Unmarshal(raw, &row); err != nil {
					t.Error(err)
				}
				rows = row.GetItems()[0].GetUint64Value()
			}
		}
		if rows != 3 {
			t.Errorf("%d rows; want 3", rows)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := w.exec(false, statement("SELEC 1")); err == nil {
		t.Error("bad SQL succeeded")
	}
}

func TestWholeWithPasswordAndBalancer(t *testing.T) {
	w := startWhole(t, func(n *devcluster.Config, u *Config, _ *pool.Config, _ *routing.Config) {
		n.Users, n.Balance, u.SessionBalancer = map[string]string{"root": secret}, true, true
		u.Auth.Kind, u.Auth.User, u.Auth.Password = authStatic, "root", secret
	})
	if failed := w.load(200); failed != 0 {
		t.Errorf("%d of 200 calls failed", failed)
	}
	if _, forwarded := w.counts(); forwarded != 0 {
		t.Errorf("%d calls forwarded", forwarded)
	}
}

// A session that nobody waits for any more is deleted over a connection to the node that the
// cluster placed it on, too.
func TestALateSessionIsDeletedWhereItWasPlaced(t *testing.T) {
	w := startWhole(t, func(n *devcluster.Config, u *Config, p *pool.Config, _ *routing.Config) {
		n.Balance, u.SessionBalancer, p.Min = true, true, 0
	})
	w.until("all nodes", func(v cluster.View) bool { return len(v.Nodes) == 3 })
	created := func() (n int64) {
		for id := range uint32(3) {
			n += w.cluster.Node(id + 1).Counters().SessionsCreated
		}
		return n
	}
	for id := range uint32(3) {
		if err := w.cluster.Node(id + 1).Delay(
			devcluster.Delay{Delay: 100 * time.Millisecond, Share: 1, Methods: []string{"CreateSession"}, From: devcluster.Clients},
		); err != nil {
			t.Fatal(err)
		}
	}
	before := created()
	for range 6 { // the cluster places them in turn
		ctx, cancel := context.WithCancel(t.Context())
		calls := w.cluster.Node(1).Counters().Calls
		opened := make(chan error, 1)
		go func() {
			_, err := w.driver.Open(ctx, 1, func(string) {})
			opened <- err
		}()
		await.True(t, "the node is asked", func() bool { return w.cluster.Node(1).Counters().Calls > calls })
		cancel()
		if err := <-opened; err == nil {
			t.Fatal("a session was opened although nobody waits")
		}
	}
	await.True(t, "all sessions are deleted", func() bool { return created() >= before+6 && len(w.cluster.Sessions()) == 0 })
	if _, forwarded := w.counts(); forwarded != 0 {
		t.Errorf("%d calls forwarded", forwarded)
	}
}

// A probe is of one node: its session is not placed on another one.
func TestAProbeStaysOnItsNode(t *testing.T) {
	w := startWhole(t, func(n *devcluster.Config, u *Config, p *pool.Config, _ *routing.Config) {
		n.Balance, u.SessionBalancer, p.Min = true, true, 0
	})
	w.until("all nodes", func(v cluster.View) bool { return len(v.Nodes) == 3 })
	const probes = 6
	for range probes {
		if err := w.driver.Probe(t.Context(), 1); err != nil {
			t.Error(err)
		}
	}
	await.True(t, "the sessions are deleted", func() bool { return len(w.cluster.Sessions()) == 0 })
	if _, forwarded := w.counts(); forwarded != 0 {
		t.Errorf("%d calls forwarded", forwarded)
	}
	if n := w.cluster.Node(1).Counters().SessionsCreated; n < probes {
		t.Errorf("%d of %d sessions are the node's own", n, probes)
	}
}
