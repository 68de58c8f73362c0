package upstream

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func TestOpenCreatesAndAttachesOnTheGivenNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3, nil)
		s, gone, err := b.open(2)
		if err != nil {
			t.Fatal(err)
		}
		if s.Node() != 2 || !slices.Equal(b.node(2).live(), []string{s.ID()}) {
			t.Errorf("session %q on node %d; live there: %v", s.ID(), s.Node(), b.node(2).live())
		}
		create := b.node(2).seen("CreateSession")
		if len(create) != 1 || !create[0].deadline {
			t.Fatalf("CreateSession seen as %+v; want one, with a deadline", create)
		}
		for key, want := range map[string]string{
			"x-ydb-database": "/local", "x-ydb-sdk-build-info": "ydb-sidecar/test",
		} {
			if got := create[0].md.Get(key); !slices.Equal(got, []string{want}) {
				t.Errorf("CreateSession has %s = %q; want %q", key, got, want)
			}
		}
		if got := create[0].md.Get("x-ydb-client-capabilities"); got != nil {
			t.Errorf("the cluster is offered to close sessions: %q", got)
		}
		if got := create[0].md.Get("x-ydb-auth-ticket"); got != nil {
			t.Errorf("anonymous, but a ticket %q is sent", got)
		}
		if attach := b.node(2).seen("AttachSession"); len(attach) != 1 || attach[0].deadline {
			t.Errorf("AttachSession seen as %+v; want one, without a deadline", attach)
		}
		if got := b.judge.take(); !slices.Equal(got, []string{"2 open success SUCCESS"}) {
			t.Errorf("reported %v", got)
		}
		time.Sleep(time.Hour) // the stream outlives Open's context
		if got := gone.list(); got != nil {
			t.Errorf("retired: %v", got)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		synctest.Wait()
		if n := b.sessions(); n != 0 || len(b.node(2).seen("DeleteSession")) != 1 {
			t.Errorf("%d sessions after Close", n)
		}
		if got := gone.list(); got != nil {
			t.Errorf("retired by its own Close: %v", got)
		}
	})
}

func TestTheSessionBalancerIsASetting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, func(c *Config, _ *Deps) { c.SessionBalancer = true })
		b.mustOpen(1)
		if got := b.node(1).seen("CreateSession")[0].md.Get("x-ydb-client-capabilities"); !slices.Equal(got, []string{"session-balancer"}) {
			t.Errorf("capabilities %q", got)
		}
	})
}

func TestHintsAndTheEndOfTheStreamRetire(t *testing.T) {
	for _, c := range []struct {
		name    string
		act     func(n *fakeNode, id string)
		reason  string
		reports []string
		deletes int // by Close
	}{
		{"session_shutdown", func(n *fakeNode, id string) {
			n.session(id).hints <- &Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS,
				SessionHint: &Ydb_Query.SessionState_SessionShutdown{}}
		}, "the node asked for the session to be closed", nil, 1},
		{"node_shutdown", func(n *fakeNode, id string) {
			n.session(id).hints <- &Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS,
				SessionHint: &Ydb_Query.SessionState_NodeShutdown{}}
		}, "the node announced its shutdown", []string{"1 control leaving node_shutdown"}, 1},
		{"bad_state", func(n *fakeNode, id string) {
			n.session(id).hints <- &Ydb_Query.SessionState{Status: Ydb.StatusIds_UNAVAILABLE}
		}, "the node reported UNAVAILABLE", []string{"1 control none UNAVAILABLE"}, 1},
		{"clean_end", func(n *fakeNode, id string) { n.forget(id) }, "the node asked for the session to be closed", nil, 1},
		{"killed_node", func(n *fakeNode, id string) { n.kill() }, "the connection to the node broke",
			[]string{"1 control transport UNAVAILABLE"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1, nil)
				s, gone := b.mustOpen(1)
				c.act(b.node(1), s.ID())
				synctest.Wait()
				if got := gone.list(); !slices.Equal(got, []string{c.reason}) {
					t.Errorf("retired %q; want %q", got, c.reason)
				}
				if got := b.judge.take(); !slices.Equal(got, c.reports) {
					t.Errorf("reported %q; want %q", got, c.reports)
				}
				if err := s.Close(t.Context()); err != nil {
					t.Errorf("Close: %v", err)
				}
				synctest.Wait()
				if got := len(b.node(1).seen("DeleteSession")); got != c.deletes {
					t.Errorf("%d DeleteSession; want %d", got, c.deletes)
				}
			})
		})
	}
}

// One stream that ends cleanly says little about its node; two within a second say that it leaves.
// Discovery is asked each time.
func TestStreamsThatEndTogetherSayThatTheNodeLeaves(t *testing.T) {
	for _, c := range []struct {
		name   string
		pauses []time.Duration // before each stream ends
		asked  int
		leaves int
	}{
		{"one", []time.Duration{0}, 1, 0},
		{"two_together", []time.Duration{0, 900 * time.Millisecond}, 2, 1},
		{"two_apart", []time.Duration{0, 1100 * time.Millisecond}, 2, 0},
		{"four", []time.Duration{0, 0, 0, 0}, 4, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1, nil)
				asked := atomic.Int64{}
				b.driver.deps.Refresh = func() { asked.Add(1) }
				var all []*Session
				for range c.pauses {
					s, _ := b.mustOpen(1)
					all = append(all, s)
				}
				synctest.Wait()
				b.judge.take()
				for i, pause := range c.pauses {
					time.Sleep(pause)
					b.node(1).forget(all[i].ID())
					synctest.Wait()
					if err := all[i].Close(t.Context()); err != nil { // as the pool does, which was told
						t.Error(err)
					}
				}
				leaves := 0
				for _, said := range b.judge.take() {
					if said == "1 control leaving streams ended" {
						leaves++
					}
				}
				if leaves != c.leaves || int(asked.Load()) != c.asked {
					t.Errorf("%d reports that it leaves, discovery asked %d times; want %d, %d", leaves, asked.Load(), c.leaves, c.asked)
				}
				s, _ := b.mustOpen(1)
				s.Forget() // the node knows it no more
				if int(asked.Load()) != c.asked+1 {
					t.Error("discovery was not asked when a session was gone")
				}
				for _, s := range append(all, s) {
					_ = s.Close(t.Context())
				}
			})
		})
	}
}

// A status that ends a session ends its stream as well, before or after the answer: that says nothing about the node.
func TestStreamsThatEndWithAStatusSayNothingAboutTheNode(t *testing.T) {
	for name, c := range map[string]struct {
		status      Ydb.StatusIds_StatusCode
		streamFirst bool
		leaves      int
	}{
		"internal error":               {Ydb.StatusIds_INTERNAL_ERROR, false, 0},
		"internal error, stream first": {Ydb.StatusIds_INTERNAL_ERROR, true, 0},
		"bad session":                  {Ydb.StatusIds_BAD_SESSION, false, 0},
		"bad session, stream first":    {Ydb.StatusIds_BAD_SESSION, true, 0},
		"another status":               {Ydb.StatusIds_UNAVAILABLE, true, 2}, // which ends no session: the node has another reason
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1, nil)
				b.node(1).onExecute = func(r *Ydb_Query.ExecuteQueryRequest, stream executeStream) error {
					if c.streamFirst {
						b.node(1).forget(r.GetSessionId())
						time.Sleep(time.Millisecond)
					}
					err := stream.Send(&Ydb_Query.ExecuteQueryResponsePart{Status: c.status})
					if !c.streamFirst {
						b.node(1).forget(r.GetSessionId())
					}
					return err
				}
				leaves := 0
				for range 3 {
					s, gone := b.mustOpen(1)
					if _, err := run(t.Context(), s, statement("x")); asError(t, err).Status != c.status {
						t.Fatalf("%v; want %v", err, c.status)
					}
					synctest.Wait()
					if got := gone.list(); len(got) != 1 {
						t.Errorf("retired %q; want it once", got)
					}
					if err := s.Close(t.Context()); err != nil {
						t.Error(err)
					}
					for _, said := range b.judge.take() {
						if strings.Contains(said, "leaving") {
							leaves++
						}
					}
				}
				if leaves != c.leaves {
					t.Errorf("%d reports that the node leaves; want %d", leaves, c.leaves)
				}
			})
		})
	}
}

// Streams of sessions that stay in use tell that the node leaves, without an answer to wait for.
func TestStreamsOfSessionsInUseEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		first, _ := b.mustOpen(1)
		second, _ := b.mustOpen(1)
		b.node(1).forget(first.ID())
		b.node(1).forget(second.ID())
		synctest.Wait()
		if got := b.judge.take(); len(got) != 0 {
			t.Errorf("reported %q at once, although the answers to calls may be about to come", got)
		}
		time.Sleep(answerBehind)
		synctest.Wait()
		want := []string{"1 control leaving streams ended"}
		if got := b.judge.take(); !slices.Equal(got, want) {
			t.Errorf("reported %q; want %q", got, want)
		}
		for _, s := range []*Session{first, second} {
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if got := b.judge.take(); len(got) != 0 {
			t.Errorf("reported %q; want nothing more", got)
		}
	})
}

func TestOpenFailures(t *testing.T) {
	state := func(s *Ydb_Query.SessionState) func(grpc.ServerStream) (bool, error) {
		return func(stream grpc.ServerStream) (bool, error) { return true, stream.SendMsg(s) }
	}
	for _, c := range []struct {
		name    string
		act     func(n *fakeNode)
		want    string
		reports []string
		deletes int
	}{
		{"session_limit", func(n *fakeNode) {
			n.onCreate = func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
				return &Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_OVERLOADED}, nil
			}
		}, "OVERLOADED", []string{"1 open refusal OVERLOADED"}, 0},
		{"draining", func(n *fakeNode) {
			n.onCreate = func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
				return nil, status.Error(codes.ResourceExhausted, "draining")
			}
		}, "draining", []string{"1 open refusal RESOURCE_EXHAUSTED"}, 0},
		{"shutting_down", func(n *fakeNode) {
			n.onCreate = func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
				return nil, status.Error(codes.ResourceExhausted, "Cannot create session: system shutdown requested.")
			}
		}, "shutdown requested", []string{"1 open leaving RESOURCE_EXHAUSTED"}, 0},
		{"attach_of_a_session_that_closes", func(n *fakeNode) {
			n.onAttach = state(&Ydb_Query.SessionState{Status: Ydb.StatusIds_NOT_FOUND})
		}, "NOT_FOUND", []string{"1 open none NOT_FOUND"}, 1},
		{"refused_connection", func(n *fakeNode) { n.kill() }, "connection refused", []string{"1 open transport UNAVAILABLE"}, 0},
		{"attach_says_bad_session", func(n *fakeNode) {
			n.onAttach = state(&Ydb_Query.SessionState{Status: Ydb.StatusIds_BAD_SESSION})
		}, "BAD_SESSION", []string{"1 open none BAD_SESSION"}, 1},
		{"attach_ends_at_once", func(n *fakeNode) {
			n.onAttach = func(grpc.ServerStream) (bool, error) { return true, nil }
		}, "BAD_SESSION", []string{"1 open none BAD_SESSION"}, 1},
		{"first_state_is_a_hint", func(n *fakeNode) {
			n.onAttach = state(&Ydb_Query.SessionState{Status: Ydb.StatusIds_SUCCESS, SessionHint: &Ydb_Query.SessionState_NodeShutdown{}})
		}, "UNAVAILABLE", []string{"1 control leaving node_shutdown", "1 open refusal UNAVAILABLE"}, 1},
		{"first_state_too_late", func(n *fakeNode) {
			n.onAttach = func(s grpc.ServerStream) (bool, error) { <-s.Context().Done(); return true, nil }
		}, "AttachSession on node 1: no answer in time", []string{"1 open transport DEADLINE_EXCEEDED"}, 1},
		{"placed_elsewhere", func(n *fakeNode) {
			n.onCreate = func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
				return &Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_SUCCESS,
					SessionId: "ydb://session/3?node_id=9&id=1", NodeId: 9}, nil
			}
		}, "placed the session on another node", nil, 2},
		{"placed_elsewhere_by_its_id_alone", func(n *fakeNode) {
			n.onCreate = func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
				return &Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_SUCCESS, SessionId: "ydb://session/3?node_id=9&id=1"}, nil
			}
		}, "placed the session on another node", nil, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1, nil)
				c.act(b.node(1))
				synctest.Wait()
				_, gone, err := b.open(1)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("Open: %v; want %q", err, c.want)
				}
				synctest.Wait()
				if got := b.judge.take(); !slices.Equal(got, c.reports) {
					t.Errorf("reported %q; want %q", got, c.reports)
				}
				if got := len(b.node(1).seen("DeleteSession")); got != c.deletes {
					t.Errorf("%d DeleteSession; want %d", got, c.deletes)
				}
				if gone.list() != nil {
					t.Errorf("retired %v", gone.list())
				}
				if b.sessions() != 0 {
					t.Errorf("sessions left: %v", b.node(1).live())
				}
			})
		})
	}
}

// TestABrokenConnectionLeavesNoSessionBehind: what breaks the attach stream breaks the first
// deletion as well.
func TestABrokenConnectionLeavesNoSessionBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		n := b.node(1)
		n.onAttach = func(grpc.ServerStream) (bool, error) { return true, status.Error(codes.Unavailable, "cut") }
		var deletions atomic.Int64
		n.onDelete = func(context.Context) error {
			if deletions.Add(1) < 3 {
				return status.Error(codes.Unavailable, "cut")
			}
			return nil
		}
		if _, _, err := b.open(1); err == nil {
			t.Error("Open succeeded without its stream")
		}
		time.Sleep(cleanupTimeout)
		if left := n.live(); len(left) != 0 || deletions.Load() != 3 {
			t.Errorf("sessions left: %v, after %d deletions; want none after 3", left, deletions.Load())
		}
	})
}

func TestDeletionIsBoundedAndABlackHoleEndsWithTheKeepalive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		s, _ := b.mustOpen(1)
		b.node(1).onDelete = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		err := s.Close(ctx)
		if took := time.Since(start); err == nil || took != 2*time.Second {
			t.Errorf("Close: %v after %v; want an error after 2s", err, took)
		}
		synctest.Wait()
		if b.sessions() != 0 {
			t.Error("the end of the attach stream did not end the session")
		}
	})
}

func TestTheConnectionOfANodeThatLeftClosesAfterItsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, nil)
		s, gone := b.mustOpen(2)
		v := b.view()
		b.driver.SetView(cluster.View{Nodes: v.Nodes[:1]})
		if _, err := run(t.Context(), s, statement("SELECT 1")); err != nil {
			t.Errorf("a call on a session of a node that left: %v", err)
		}
		if gone.list() != nil {
			t.Errorf("retired %v; want the stream to live on", gone.list())
		}
		c := s.conn
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		synctest.Wait()
		if c.refs.Load() != 0 || c.hold() {
			t.Errorf("the connection has %d references; want it closed", c.refs.Load())
		}
		b.driver.mu.Lock()
		defer b.driver.mu.Unlock()
		if _, ok := b.driver.all[c]; ok {
			t.Error("the closed connection is still listed")
		}
	})
}

// A node that takes its leave ends its connection when the last stream on it has ended. Close does not wait for that.
func TestCloseWithAConnectionThatDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		_, gone := b.mustOpen(1)
		stopped := make(chan struct{})
		go func() { b.node(1).server.GracefulStop(); close(stopped) }() // says GOAWAY, and waits for the attach stream
		synctest.Wait()
		if n := b.unanswered(); n == nil {
			t.Error("a session was opened on a node that takes no calls")
		}
		done := make(chan struct{})
		go func() { _ = b.driver.Close(); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("Close waits")
		}
		<-stopped
		if len(gone.list()) != 1 {
			t.Errorf("retired %v", gone.list())
		}
	})
}

// unanswered asks for a session, and has the driver look for another connection.
func (b *bench) unanswered() error {
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
	defer cancel()
	_, err := b.driver.Open(ctx, 1, func(string) {})
	return err
}
