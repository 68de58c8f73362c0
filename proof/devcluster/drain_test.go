package devcluster

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

// With a notice a node that drains leaves discovery first, and serves as before until the notice is over.
func TestDrainAfterANotice(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	open := c.open()
	mustPost(t, cluster, "/nodes/1/drain", `{"notice":"1h"}`)
	if n := len(c.endpoints()); n != 2 {
		t.Errorf("discovery lists %d nodes", n)
	}
	if got := c.createSession().GetStatus(); got != ok {
		t.Errorf("new session: %v", got)
	}
	mustPost(t, cluster, "/nodes/1/start", "") // takes it back, and the notice with it
	mustPost(t, cluster, "/nodes/1/drain", `{"notice":"1ms"}`)
	open.ended()
	if _, err := c.query.CreateSession(testContext(t), &Ydb_Query.CreateSessionRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("new session after the notice: %v", err)
	}
}

// wantNoNewSessions asks for sessions of a node that drains.
func wantNoNewSessions(t *testing.T, c *client) {
	t.Helper()
	_, err := c.query.CreateSession(testContext(t), &Ydb_Query.CreateSessionRequest{})
	if s := status.Convert(err); s.Code() != codes.ResourceExhausted || s.Message() != textShutdown {
		t.Errorf("new session: %v", err)
	}
	_, err = c.table.CreateSession(testContext(t), &Ydb_Table.CreateSessionRequest{})
	if s := status.Convert(err); s.Code() != codes.ResourceExhausted || s.Message() != textShutdown {
		t.Errorf("new session of the table service: %v", err)
	}
	e := c.execute(&Ydb_Query.ExecuteQueryRequest{Query: text("SELECT 1")})
	if e.err != nil || e.status != Ydb.StatusIds_OVERLOADED || e.parts[0].GetIssues()[0].GetMessage() != textShutdown {
		t.Errorf("without a session: %+v", e)
	}
}

// What clients see of a drain, in the order of a session's life: the stream, refusals of new
// sessions, open transactions, the soft limit, the hard one.
func TestDrain(t *testing.T) {
	for _, mode := range []DrainMode{DrainStreams, DrainSilent, DrainHints, ""} {
		t.Run("mode "+string(mode), func(t *testing.T) {
			cluster := startCluster(t, nil)
			c := dial(t, cluster.Node(1).Address())
			open, other, table := c.open(), c.open(), c.tableSession()
			unattached := c.createSession().GetSessionId()
			tx := open.begin(serializable()).GetTxMeta().GetId()
			body := `{"soft":"1h","hard":"2h"}`
			if mode != "" {
				body = `{"mode":"` + string(mode) + `","soft":"1h","hard":"2h"}`
			}
			mustPost(t, cluster, "/nodes/1/drain", body)
			for _, a := range []*attached{open, other} {
				switch mode {
				case DrainSilent:
				case DrainHints:
					if s := a.next(); s.GetNodeShutdown() == nil || s.GetStatus() != ok || a.next() != nil {
						t.Errorf("state %v; want the node's shutdown, and the end", s)
					}
				default:
					a.ended()
				}
			}
			wantNoNewSessions(t, c)
			if s := c.attach(unattached).next(); s.GetStatus() != Ydb.StatusIds_NOT_FOUND {
				t.Errorf("attach of a session that closes: %v", s)
			}
			if n := len(c.endpoints()); n != 2 {
				t.Errorf("discovery lists %d nodes", n)
			}
			if got := cluster.Node(1).Sessions(); len(got) != 4 || !got[0].Hint || !got[2].Hint || got[2].ID != table {
				t.Errorf("sessions %+v", got)
			}
			if n := cluster.Node(1).Counters(); n.DrainRefused != 2 || n.Failures < 4 {
				t.Errorf("counters %+v", n)
			}
			if mode == DrainSilent { // its stream is still there, and its client gives it up
				other.detach()
			} else if got := c.delete(other.id); got != ok {
				t.Errorf("delete: %v", got)
			}
			await.True(t, "the session is gone", func() bool { return len(cluster.Node(1).Sessions()) == 3 })
			open.must(ok, "SELECT 1", inside(tx, false))
			if got := open.commit(tx); got != ok {
				t.Errorf("commit before the soft limit: %v", got)
			}
			mustPost(t, cluster, "/nodes/1/start", "") // takes it back
			if got := c.createSession().GetStatus(); got != ok {
				t.Errorf("new session after start: %v", got)
			}
		})
	}
}

func TestLimitsOfADrain(t *testing.T) {
	for _, mode := range []DrainMode{DrainStreams, DrainSilent} {
		t.Run(string(mode), func(t *testing.T) {
			cluster := startCluster(t, nil)
			c := dial(t, cluster.Node(1).Address())
			a, used := c.open(), c.open()
			a.must(ok, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))", nil)
			tx := a.begin(serializable()).GetTxMeta().GetId()
			a.must(ok, "UPSERT INTO t (id) VALUES (1u)", inside(tx, false))
			mustPost(t, cluster, "/nodes/1/drain", `{"mode":"`+string(mode)+`","soft":"1ms","hard":"1h"}`)
			await.True(t, "statements are refused", func() bool {
				e := used.run("SELECT 1", nil)
				return e.status == Ydb.StatusIds_BAD_SESSION && strings.Contains(e.parts[0].GetIssues()[0].GetMessage(), textSoft)
			})
			await.True(t, "the other session is past its soft limit, too", func() bool {
				s, err := cluster.Node(1).running().sessions.find(a.id)
				if err != nil {
					t.Fatal(err)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.soft
			})
			if got := a.commit(tx); got != Ydb.StatusIds_BAD_SESSION {
				t.Errorf("commit after the soft limit: %v", got)
			}
			if n := len(cluster.Node(1).Sessions()); n != 0 {
				t.Errorf("%d sessions after their last call", n)
			}
			b := dial(t, cluster.Node(2).Address()).open()
			if n := b.must(ok, "SELECT COUNT(*) FROM t", nil).number(t); n != 0 {
				t.Errorf("%d rows; the transaction was to be rolled back", n)
			}
		})
	}
}

// At the hard limit statements in sessions are cancelled by YDB, everything else by gRPC.
func TestEndOfADrain(t *testing.T) {
	cluster := startCluster(t, func(c *Config) { c.StopGrace = patience })
	c := dial(t, cluster.Node(1).Address())
	a, idle := c.open(), c.open()
	fill(t, a, 80, 100_000)
	stream, err := dial(t, cluster.Node(1).Address()).query.ExecuteQuery(testContext(t), &Ydb_Query.ExecuteQueryRequest{
		SessionId: a.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, Query: text("SELECT * FROM t"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	mustPost(t, cluster, "/nodes/1/delay", `{"delay":"1h","methods":["WhoAmI"]}`)
	calls := cluster.Node(1).Counters().Calls
	done := make(chan error, 1)
	go func() {
		_, err := dial(t, cluster.Node(1).Address()).discovery.WhoAmI(testContext(t), &Ydb_Discovery.WhoAmIRequest{})
		done <- err
	}()
	await.True(t, "the call arrives", func() bool { return cluster.Node(1).Counters().Calls == calls+1 })
	mustPost(t, cluster, "/nodes/1/drain", `{"mode":"silent","soft":"0s","hard":"1ms"}`)
	var last Ydb.StatusIds_StatusCode
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last = part.GetStatus()
	}
	if last != Ydb.StatusIds_CANCELLED {
		t.Errorf("the statement ended with %v", last)
	}
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Errorf("the call without a session: %v", err)
	}
	idle.ended()
	await.True(t, "the node stops", func() bool { return cluster.Node(1).State() == Stopped })
}

// The names that a drain's body had before.
func TestDrainByItsOldNames(t *testing.T) {
	cluster := startCluster(t, nil)
	a := dial(t, cluster.Node(1).Address()).open()
	mustPost(t, cluster, "/nodes/1/drain", `{"hints":true,"grace":"1h"}`)
	if s := a.next(); s.GetNodeShutdown() == nil || a.next() != nil {
		t.Errorf("state %v; want the node's shutdown, and the end", s)
	}
	mustPost(t, cluster, "/nodes/2/drain", `{"grace":"1ms"}`)
	await.True(t, "the node stops", func() bool { return cluster.Node(2).State() == Stopped })
}

func TestKickOfOneSession(t *testing.T) {
	cluster := startCluster(t, func(c *Config) { c.HintGrace = time.Millisecond })
	c := dial(t, cluster.Node(1).Address())
	hinted, kicked, table := c.open(), c.open(), c.tableSession()
	mustPost(t, cluster, "/nodes/1/hint", `{"session":"`+hinted.id+`"}`)
	if s := hinted.next(); s.GetSessionShutdown() == nil || hinted.next() != nil {
		t.Errorf("state %v; want the session's shutdown, and the end", s)
	}
	mustPost(t, cluster, "/nodes/1/kick", `{"session":"`+kicked.id+`"}`)
	kicked.ended()
	mustPost(t, cluster, "/nodes/1/kick", `{"session":"`+table+`","mode":"silent","hard":"1ms"}`)
	await.True(t, "the sessions are gone", func() bool { return len(cluster.Node(1).Sessions()) == 0 })
}
