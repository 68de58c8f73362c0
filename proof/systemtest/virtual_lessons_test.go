package systemtest

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
)

// implicit runs a statement without a session, as anybody can who has YDB's protos.
func implicit(ctx context.Context, client Ydb_Query_V1.QueryServiceClient, sql string,
	control *Ydb_Query.TransactionControl) (st Ydb.StatusIds_StatusCode, tx string, err error) {
	stream, err := client.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{
		ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, TxControl: control,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: sql},
		},
	})
	for err == nil {
		var part *Ydb_Query.ExecuteQueryResponsePart
		if part, err = stream.Recv(); err == nil {
			st = part.GetStatus()
			if part.TxMeta != nil {
				tx = part.GetTxMeta().GetId()
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return st, tx, err
}

// counter reads a counter of one node.
func (c *ydb) counter(t *testing.T, node uint32, name string) int64 {
	t.Helper()
	for _, n := range c.state(t) {
		if n.ID == node {
			return n.Counters[name]
		}
	}
	t.Fatalf("no node %d", node)
	return 0
}

// knowsNodes waits until the sidecar uses every node: a client that is no SDK does not try again.
func (s *sidecar) knowsNodes(t *testing.T, c *ydb) {
	t.Helper()
	for _, n := range c.Nodes {
		s.awaitUse(t, n.ID, "new")
	}
}

// A node that goes down in good order asks for its sessions back, each version of the server in its
// own way, forgets those that are left, and takes no new ones. Clients notice nothing, and the node is
// not asked for sessions meanwhile; when it is back it is used.
func TestLeavingNodeIsNotAskedForSessions(t *testing.T) {
	for _, mode := range []string{"streams", "silent", "hints"} {
		t.Run(mode, func(t *testing.T) { leavingNode(t, mode) })
	}
}

func leavingNode(t *testing.T, mode string) {
	c, s, db := startWire(t, inMode("transaction"))
	load, python := loadSDK(t, db, 12), loadPython(t, s)
	goesOn := func() {
		t.Helper()
		load.goesOn(t, 10)
		python.goesOn(t, 30)
	}
	goesOn()
	const leaver = 2
	c.do(t, leaver, "drain", map[string]any{"mode": mode, "soft": "1s", "hard": "5s"})
	s.awaitUse(t, leaver, "open")
	goesOn() // what was on its way there when that was found out has ended
	refused := c.counter(t, leaver, "failures")
	goesOn()
	if n := c.counter(t, leaver, "failures") - refused; n != 0 {
		t.Errorf("the node refused %d calls after it was known to leave", n)
	}
	eventually(t, patience, "the node is down", func() string {
		for _, n := range c.state(t) {
			if n.ID == leaver {
				if n.State == "stopped" {
					return ""
				}
				return n.State
			}
		}
		return "not there"
	})
	goesOn()
	c.do(t, leaver, "start", nil)
	s.awaitUse(t, leaver, "new")
	c.getsCalls(t, leaver, s)
	load.allWell(t, sdkPatience)
	python.allWell(t)
}

// Sessions of the pool are made with the capability that ydb.session_balancer asks for, whatever the client says that
// they are for; clients' own sessions are made as the client says.
func TestSessionsAreMadeWithTheCapabilities(t *testing.T) {
	for _, of := range []struct {
		mode, balancer string
		want           []string
	}{{"transaction", "false", nil}, {"transaction", "true", []string{"session-balancer"}}, {"passthrough", "true", nil}} {
		mode, want := of.mode, of.want
		t.Run(mode+" "+of.balancer, func(t *testing.T) {
			c := startCluster(t, nil)
			s := startSidecar(t, c, nil, "wire.mode="+mode, "pool.min=0", "ydb.session_balancer="+of.balancer)
			client := Ydb_Query_V1.NewQueryServiceClient(s.Conn)
			s.knowsNodes(t, c)
			if mode == "transaction" {
				if st, _, err := implicit(t.Context(), client, "SELECT 1", nil); st != Ydb.StatusIds_SUCCESS || err != nil {
					t.Fatal(st, err)
				}
			} else if r, err := client.CreateSession(t.Context(), &Ydb_Query.CreateSessionRequest{}); err != nil ||
				r.GetStatus() != Ydb.StatusIds_SUCCESS {
				t.Fatal(r, err)
			}
			var said struct {
				Sessions []struct{ Capabilities []string }
			}
			if code := callJSON(t, "GET", "http://"+c.Address+"/sessions", "", &said); code != 200 || len(said.Sessions) == 0 {
				t.Fatalf("%d, %+v", code, said)
			}
			for _, session := range said.Sessions {
				if !slices.Equal(session.Capabilities, want) {
					t.Errorf("a session was made with the capabilities %q; want %q", session.Capabilities, want)
				}
			}
		})
	}
}

// A session that its node has forgotten is let go without another call: a statement that finds it so costs
// that call, and the two that make and attach the next session.
func TestForgottenSessionsAreNotDeleted(t *testing.T) {
	const statements = 20
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "wire.mode=transaction", "pool.min=0", "pool.max=1")
	s.knowsNodes(t, c)
	client := Ydb_Query_V1.NewQueryServiceClient(s.Conn)
	c.everywhere(t, "errors", map[string]any{"status": "BAD_SESSION", "methods": []string{"ExecuteQuery"}})
	before := c.sum(t, "calls")
	for range statements {
		if st, _, err := implicit(t.Context(), client, "SELECT 1", nil); st != Ydb.StatusIds_BAD_SESSION || err != nil {
			t.Fatal(st, err)
		}
	}
	c.everywhere(t, "clear", nil)
	const beside = 8 // discovery and probes
	if n := c.sum(t, "calls") - before; n > 3*statements+beside {
		t.Errorf("%d calls for %d statements; want 3 for each", n, statements)
	}
}

// Streams that callers cancel in the middle, and deadlines of theirs, say nothing about a node.
func TestCancelledStreamsBlameNoNode(t *testing.T) {
	const callers, rounds = 6, 10
	c, s, db := startWire(t, inMode("transaction"))
	fillLarge(t, db, 5000)
	client := Ydb_Query_V1.NewQueryServiceClient(s.Conn)
	var work sync.WaitGroup
	for caller := range callers {
		work.Go(func() {
			for range rounds {
				ctx, cancel := context.WithCancel(t.Context())
				stream, err := client.ExecuteQuery(ctx, &Ydb_Query.ExecuteQueryRequest{ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
					Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
						QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: "SELECT id, text FROM large"},
					}})
				if err == nil && caller%2 == 0 { // the others before the answer begins
					_, err = stream.Recv()
				}
				if err != nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	work.Wait()
	nodes, _ := s.nodes(t)
	for id, n := range nodes {
		if n.Health != "healthy" || n.Use != "new" {
			t.Errorf("node %d: %+v", id, n)
		}
	}
	c.clean(t, nil)
	must(t, db, "SELECT 1")
	if n := s.virtualState(t).InDoubt; n < callers*rounds/4 { // a call that is cancelled at once may never have had a session
		t.Errorf("%d sessions were given up: the streams had ended before they were cancelled, this proves nothing", n)
	}
}
