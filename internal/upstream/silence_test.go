package upstream

import (
	"context"
	"net"
	"slices"
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
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

const (
	silence      = 2 * time.Second
	probeTimeout = time.Second
)

// holed is a bench whose node 1 lies behind a hole.
type holed struct {
	*bench
	hole *abyss
}

func newHoled(t *testing.T, size int, judge hop.HealthReporter) *holed {
	t.Helper()
	b := &holed{}
	c := newCluster(t, size)
	b.hole = newAbyss(c.dial)
	t.Cleanup(b.hole.end)
	b.bench = benchOn(t, c, func(_ *Config, d *Deps) {
		d.Silence, d.ProbeTimeout = silence, probeTimeout
		if judge != nil {
			d.Health = judge
		}
		d.Dial = func(ctx context.Context, address string) (conn net.Conn, err error) {
			if address == c.node(1).address {
				return b.hole.connect(ctx, address)
			}
			return c.dial(ctx, address)
		}
	})
	return b
}

// hang makes the statements of a node wait for their end; running counts them.
func (b *holed) hang(node cluster.NodeID, running *atomic.Int64) {
	b.node(node).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
		running.Add(1)
		defer running.Add(-1)
		<-stream.Context().Done()
		return stream.Context().Err()
	}
}

// Calls on a connection that falls silent fail, and nothing is left of them when the network is back.
//
// Long: it is one outage from its first moment to what is left behind it.
func TestASilentConnectionFailsItsCallsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHoled(t, 2, nil)
		write, _ := b.mustOpen(1)
		inside, gone := b.mustOpen(1)
		if err := inside.Begin(t.Context(), serializable); err != nil {
			t.Fatal(err)
		}
		b.judge.take()
		var running atomic.Int64
		b.hang(1, &running)
		type end struct {
			err  *Error
			took time.Duration
		}
		start := time.Now()
		ends := [2]end{}
		var calls sync.WaitGroup
		for i, c := range []struct {
			s   *Session
			req Statement
		}{{write, statement("write")}, {inside, inTx(statement("write"), nil, inside.TxID(), false)}} {
			calls.Go(func() {
				_, err := run(t.Context(), c.s, c.req)
				ends[i] = end{asError(t, err), time.Since(start)}
			})
		}
		synctest.Wait()
		b.hole.shut(false)
		calls.Wait()
		const limit = silence + probeTimeout + rulingTimeout
		for i, name := range []string{"the write", "the statement of a transaction"} {
			if ends[i].took > limit || ends[i].took < silence+probeTimeout || ends[i].err.Code != codes.Unavailable {
				t.Errorf("%s ended after %v with %v; want UNAVAILABLE after %v to %v", name, ends[i].took, ends[i].err,
					silence+probeTimeout, limit)
			}
		}
		if e := ends[0].err; !e.Sent || e.Verdict.Retry != ydbstatus.RetryIdempotent {
			t.Errorf("the write: may have run %t, %+v; want unknown", e.Sent, e.Verdict)
		}
		if e := ends[1].err; e.Sent {
			t.Error("the statement of a transaction may have been kept; want surely not")
		}
		synctest.Wait()
		if got := b.judge.take(); len(got) != 3 || got[0] != "1 probe transport SILENT" {
			t.Errorf("reported %q; want SILENT first, and the two calls", got)
		}
		if got := gone.list(); !slices.Equal(got, []string{"the connection to the node went silent"}) {
			t.Errorf("retired %q", got)
		}
		for _, s := range []*Session{write, inside} {
			if s.clean() {
				t.Error("a session on a dead connection is clean")
			}
			start = time.Now()
			if err := s.Close(t.Context()); err != nil || time.Since(start) != 0 {
				t.Errorf("Close: %v after %v; want nothing to be sent", err, time.Since(start))
			}
		}
		synctest.Wait()
		if n := b.hole.live(); n != 0 {
			t.Errorf("%d connections are left open", n)
		}

		// What arrives when the network is back ends everything on the node.
		b.hole.clear()
		synctest.Wait()
		if running.Load() != 0 || b.sessions() != 0 || len(b.node(1).seen("DeleteSession")) != 0 {
			t.Errorf("%d statements run, %d sessions live, %d deletions were sent; want none", running.Load(),
				b.sessions(), len(b.node(1).seen("DeleteSession")))
		}
		b.node(1).onExecute = nil
		fresh, _ := b.mustOpen(1)
		if _, err := run(t.Context(), fresh, statement("SELECT 1")); err != nil {
			t.Errorf("after the network came back: %v", err)
		}
	})
}

func TestWhatACheckProves(t *testing.T) {
	const limit = time.Second
	for name, c := range map[string]struct {
		result checkResult
		alive  bool
	}{
		"answered":                     {checkResult{ended: true, heard: true, sent: true, ready: true, took: time.Millisecond}, true},
		"broke_by_itself":              {checkResult{ended: true, took: time.Millisecond}, true},
		"other_bytes_came":             {checkResult{heard: true, sent: true, ready: true, took: limit}, true},
		"nothing_came":                 {checkResult{sent: true, ready: true, took: limit}, false},
		"no_connection_comes_about":    {checkResult{took: limit}, false},
		"broken_and_not_dialled_again": {checkResult{sent: true, took: limit}, false},
		"no_more_streams_allowed":      {checkResult{ready: true, took: limit}, true},
		"this_process_stood_still":     {checkResult{sent: true, ready: true, took: 3 * limit}, true},
	} {
		if got := c.result.alive(limit); got != c.alive {
			t.Errorf("%s: alive %t; want %t", name, got, c.alive)
		}
	}
}

// A node that computes brings no byte either, but it answers.
func TestALongStatementOfALivingNodeSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHoled(t, 1, nil)
		s, _ := b.mustOpen(1)
		b.node(1).onExecute = func(req *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			time.Sleep(time.Minute)
			return b.node(1).answer(req, stream)
		}
		if _, err := run(t.Context(), s, statement("SELECT 1")); err != nil {
			t.Error(err)
		}
		if got := b.judge.take(); !slices.Equal(got, []string{"1 execute success SUCCESS"}) {
			t.Errorf("reported %q", got)
		}
		if asked := b.node(1).unknownCalls(); b.driver.config.Client == ClientGRPC && (asked < 20 || asked > 30) { // the other one pings
			t.Errorf("asked %d times in a minute; want once in %v", asked, silence)
		}
	})
}

func TestWithoutCallsNothingIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHoled(t, 1, nil)
		s, gone := b.mustOpen(1)
		time.Sleep(time.Hour)
		if asked := b.node(1).unknownCalls(); asked != 0 || gone.list() != nil {
			t.Errorf("asked %d times with nothing but an attach stream; retired %v", asked, gone.list())
		}
		// Calls that come and go keep the watcher awake, not busy.
		for range 100 {
			if _, err := run(t.Context(), s, statement("SELECT 1")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(silence / 3)
		}
		if asked := b.node(1).unknownCalls(); asked != 0 {
			t.Errorf("asked %d times although every call was answered at once", asked)
		}
	})
}

func TestAConnectionThatBringsBytesIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHoled(t, 1, nil)
		s, _ := b.mustOpen(1)
		b.node(1).onExecute = func(req *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			for range 100 {
				time.Sleep(silence / 3)
				if err := stream.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: Ydb.StatusIds_SUCCESS}); err != nil {
					return err
				}
			}
			return nil
		}
		if _, err := run(t.Context(), s, statement("SELECT 1")); err != nil {
			t.Error(err)
		}
		if asked := b.node(1).unknownCalls(); asked != 0 {
			t.Errorf("asked %d times while parts of an answer came", asked)
		}
	})
}

func TestNoCallerWaitsBeyondItsDeadline(t *testing.T) {
	for name, accepts := range map[string]bool{"black_hole": false, "stopped_process": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newHoled(t, 1, nil)
				s, _ := b.mustOpen(1)
				b.hole.shut(accepts)
				for i := range 20 {
					const limit = 700 * time.Millisecond
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					start := time.Now()
					_, err := run(ctx, s, statement("SELECT 1"))
					if took := time.Since(start); err == nil || took > limit {
						t.Errorf("call %d: %v after %v; want an error within %v", i, err, took, limit)
					}
					start = time.Now()
					if _, err := b.driver.Open(ctx, 1, func(string) {}); err == nil || time.Since(start) > limit {
						t.Errorf("open %d: %v after %v", i, err, time.Since(start))
					}
					cancel()
				}
				// That of the session, one given up over which a creation may still be answered, and the newest.
				if n := b.hole.live(); n > 3 {
					t.Errorf("%d connections are open; want no more than 3", n)
				}
			})
		})
	}
}

// Probes of a node that accepts connections and never speaks must end, and
// leave nothing behind that grows.
func TestProbesOfAStoppedNodeDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHoled(t, 1, nil)
		b.hole.shut(true)
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
			start := time.Now()
			if err := b.driver.Probe(ctx, 1); err == nil || time.Since(start) != probeTimeout {
				t.Fatalf("Probe: %v after %v; want an error after %v", err, time.Since(start), probeTimeout)
			}
			cancel()
		}
		b.driver.mu.Lock()
		conns := len(b.driver.all)
		b.driver.mu.Unlock()
		if n := b.hole.live(); n > 1 || conns != 1 {
			t.Errorf("%d sockets, %d connections; want 1 of each", n, conns)
		}
		b.hole.clear()
		ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
		defer cancel()
		if err := b.driver.Probe(ctx, 1); err != nil {
			t.Errorf("after it went on: %v", err)
		}
	})
}

// A connection whose path was forgotten by something in between is of no use to
// the next probe.
func TestAProbeWithoutAnswerCostsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHoled(t, 1, nil)
		s, gone := b.mustOpen(1)
		b.hole.shut(false)
		b.hole.renew()
		probe := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
			defer cancel()
			return b.driver.Probe(ctx, 1)
		}
		if err := probe(); err == nil {
			t.Error("a probe over a dead connection succeeded")
		}
		time.Sleep(probeTimeout + rulingTimeout)
		synctest.Wait()
		if len(gone.list()) != 1 || !s.conn.wire.abandoned.Load() {
			t.Errorf("retired %v; want the session of the dead connection retired", gone.list())
		}
		if got := b.judge.take(); !slices.Equal(got, []string{"1 probe transport SILENT"}) {
			t.Errorf("reported %q", got)
		}
		if err := probe(); err != nil {
			t.Errorf("the next probe: %v", err)
		}
	})
}

// A slow node is not a dead one: its creation of sessions takes longer than a
// probe may, but it answers on the connection.
func TestAProbeThatIsOnlySlowCostsNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHoled(t, 1, nil)
		s, gone := b.mustOpen(1)
		b.node(1).onCreate = func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
			time.Sleep(5 * time.Second)
			return nil, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
		defer cancel()
		if err := b.driver.Probe(ctx, 1); err == nil {
			t.Error("the probe succeeded")
		}
		time.Sleep(10 * time.Second)
		if gone.list() != nil || s.conn.wire.abandoned.Load() {
			t.Errorf("retired %v", gone.list())
		}
	})
}

// Its answer may come when the network is back. Nobody else knows of the session.
func TestASessionCreatedOverAGivenUpConnectionIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHoled(t, 1, nil)
		s, _ := b.mustOpen(1) // so that there is a connection
		b.hole.shut(false)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := b.driver.Open(ctx, 1, func(string) {}); err == nil {
			t.Error("opened")
		}
		if !s.conn.wire.abandoned.Load() {
			t.Error("the connection was not given up")
		}
		time.Sleep(cleanupTimeout / 2)
		b.hole.clear()
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(cleanupTimeout)
		synctest.Wait()
		if n := b.node(1).last; n != 2 || b.sessions() != 0 {
			t.Errorf("%d sessions created, %d left; want 2 and none", n, b.sessions())
		}
	})
}

// verdicts is a judge that takes a silent node out of use, as pessimize and
// routing do.
type verdicts struct {
	notes
	b *bench
}

func (v *verdicts) Report(o cluster.Outcome) {
	v.notes.Report(o)
	if o.Detail == "SILENT" {
		go v.b.use(o.Node, cluster.UseNone)
	}
}

// use publishes a view in which one node is used that way, and routes calls of
// transactions around it.
func (b *bench) use(node cluster.NodeID, use cluster.Use) {
	view := b.view()
	for i := range view.Nodes {
		if view.Nodes[i].ID == node {
			view.Nodes[i].Use = use
		}
	}
	b.router.mu.Lock()
	b.router.out = node
	if use != cluster.UseNone {
		b.router.out = 0
	}
	b.router.mu.Unlock()
	b.driver.SetView(view)
}

// The owner is alive, but cannot be reached from here: the transaction goes on
// through another node, and back when the owner is in reach again.
//
// Long: it is one transaction from its begin to its end.
func TestAnOpenTransactionSurvivesTheLossOfTheLinkToItsOwner(t *testing.T) {
	for name, back := range map[string]time.Duration{
		"for_good": 0, "for_a_moment": time.Second,
		"for_longer_than_gRPC_waits_for_its_pings": time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				judge := &verdicts{}
				b := newHoled(t, 2, judge)
				judge.b = b.bench
				b.router.picked = func(int) cluster.NodeID { return 2 }
				b.router.target = b.router.around
				b.node(2).forwards(b.node(1))
				idle, _ := b.mustOpen(1)
				busy, _ := b.mustOpen(1)
				s, gone := b.mustOpen(1)
				step := func(what string, commit bool) {
					t.Helper()
					if _, err := run(t.Context(), s, inTx(statement(what), nil, s.TxID(), commit)); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
				}
				if err := s.Begin(t.Context(), serializable); err != nil {
					t.Fatal(err)
				}
				step("before", false)

				var running atomic.Int64
				b.hang(1, &running)
				var call sync.WaitGroup
				call.Go(func() { run(t.Context(), busy, statement("SELECT 1")) })
				synctest.Wait()
				b.hole.shut(false)
				start := time.Now()
				call.Wait()
				if took := time.Since(start); took != silence+probeTimeout {
					t.Errorf("the other call ended after %v; want %v", took, silence+probeTimeout)
				}
				b.node(1).onExecute = nil
				synctest.Wait()
				if got := gone.list(); len(got) != 1 {
					t.Errorf("retired %q", got)
				}
				for _, other := range []*Session{idle, busy} {
					if err := other.Close(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if n := len(b.node(2).seen("DeleteSession")); n != 0 {
					t.Errorf("%d deletions of sessions that nobody needs were sent around the owner", n)
				}
				step("around", false)
				if back > 0 {
					time.Sleep(back)
					b.hole.clear()
					b.use(1, cluster.UseNew)
					step("directly", false)
				}
				step("commit", true)
				if s.clean() {
					t.Error("a session without its attach stream is clean")
				}
				around, direct := len(b.node(2).seen("ExecuteQuery")), len(b.node(1).seen("ExecuteQuery"))
				if want := map[bool][2]int{false: {2, 2}, true: {1, 4}}[back > 0]; [2]int{around, direct} != want {
					t.Errorf("%d calls around and %d directly; want %v", around, direct, want)
				}
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if n := len(b.node(2).seen("DeleteSession")); back == 0 && n != 1 {
					t.Errorf("%d deletions sent around; want that of the session", n)
				}
				if back == 0 {
					b.hole.clear()
					synctest.Wait()
				}
				if left := b.node(1).live(); len(left) != 0 {
					t.Errorf("left on the node: %v", left)
				}
			})
		})
	}
}

// Nothing of a call went out, so the transaction may still go on elsewhere.
func TestACallOfATransactionThatReachedNoNodeIsRoutedAgain(t *testing.T) {
	for _, c := range []struct {
		name string
		call func(ctx context.Context, s *Session) error
		want string
	}{
		{"statement", func(ctx context.Context, s *Session) error {
			_, err := run(ctx, s, inTx(statement("x"), nil, s.TxID(), false))
			return err
		}, "ExecuteQuery"},
		{"commit", func(ctx context.Context, s *Session) error { return s.Commit(ctx) }, "CommitTransaction"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 2, nil)
				b.node(2).forwards(b.node(1))
				s, _ := b.mustOpen(1)
				if err := s.Begin(t.Context(), serializable); err != nil {
					t.Fatal(err)
				}
				b.refuse(1)
				synctest.Wait()
				asked := 0
				b.router.target = func(owner cluster.NodeID, openTx bool) (cluster.NodeID, error) {
					if asked++; asked < 3 || !openTx {
						return owner, nil
					}
					return 2, nil
				}
				if err := c.call(t.Context(), s); err != nil {
					t.Error(err)
				}
				if n := len(b.node(2).seen(c.want)); n != 1 || asked != 3 {
					t.Errorf("%d calls at the other node after asking %d times; want 1 after 3", n, asked)
				}
				// Without a way around it ends, and soon.
				b.router.target = nil
				s.tx = "tx-begun"
				start := time.Now()
				e := asError(t, c.call(t.Context(), s))
				if e.Sent || s.clean() || time.Since(start) > time.Second {
					t.Errorf("%v, may have run %t, clean %t, after %v", e, e.Sent, s.clean(), time.Since(start))
				}
			})
		})
	}
}

func TestARefusalBehindAForwarderIsNotItsFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, nil)
		s, _ := b.mustOpen(1)
		b.router.target = func(cluster.NodeID, bool) (cluster.NodeID, error) { return 2, nil }
		b.node(2).onExecute = func(_ *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
			return stream.Send(part(Ydb.StatusIds_UNAVAILABLE))
		}
		if _, err := run(t.Context(), s, statement("x")); err == nil {
			t.Error("it succeeded")
		}
		if got := b.judge.take(); !slices.Equal(got, []string{"2 execute none UNAVAILABLE"}) {
			t.Errorf("reported %q", got)
		}
	})
}

// A node that is not even asked to finish what is open gets no DeleteSession:
// the end of the attach stream does the same, if it gets there.
func TestNoDeletionIsSentToANodeOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, nil)
		s, _ := b.mustOpen(1)
		b.use(1, cluster.UseNone)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(b.node(1).seen("DeleteSession")) + len(b.node(2).seen("DeleteSession")); n != 0 || b.sessions() != 0 {
			t.Errorf("%d deletions sent, %d sessions left; want the node to end it with its stream", n, b.sessions())
		}
		// A node that leaves, but answers, is told.
		b.use(2, cluster.UseOpen)
		s, _ = b.mustOpen(2)
		if err := s.Close(t.Context()); err != nil || len(b.node(2).seen("DeleteSession")) != 1 {
			t.Errorf("%v; %d deletions on a leaving node; want 1", err, len(b.node(2).seen("DeleteSession")))
		}
	})
}
