package devcluster

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/await"
)

func TestCutConnections(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	a := c.open()
	mustPost(t, cluster, "/nodes/1/cut", `{"share":1}`)
	if _, err := c.table.CreateSession(testContext(t), &Ydb_Table.CreateSessionRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("call: %v; want a broken connection", err)
	}
	if _, err := a.states.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("attach stream of the same connection: %v", err)
	}
	await.True(t, "the attached session is deleted", func() bool { return len(cluster.Sessions()) == 1 })
	mustPost(t, cluster, "/nodes/1/clear", "")
	await.True(t, "calls work again", func() bool {
		_, err := c.table.CreateSession(testContext(t), &Ydb_Table.CreateSessionRequest{})
		return err == nil
	})
}

// A stream is cut after its first part, also one that another node answers.
func TestCutStreams(t *testing.T) {
	cluster := startCluster(t, nil)
	id := dial(t, cluster.Node(1).Address()).createSession().GetSessionId()
	mustPost(t, cluster, "/nodes/2/cut", `{"share":1}`)
	a := dial(t, cluster.Node(2).Address()).attach(id)
	a.next() // and then silence: the first part passes, and there is no other
	e := dial(t, cluster.Node(2).Address()).execute(&Ydb_Query.ExecuteQueryRequest{SessionId: id, Query: text("SELECT 1; SELECT 2")})
	if status.Code(e.err) != codes.Unavailable || len(e.parts) > 1 {
		t.Errorf("got %v; want at most one part and a broken connection", e)
	}
	e = dial(t, cluster.Node(2).Address()).execute(&Ydb_Query.ExecuteQueryRequest{SessionId: newSessionID(2), Query: text("SELECT 1")})
	if status.Code(e.err) != codes.Unavailable {
		t.Errorf("got %v; an answer that is an error is cut as well", e)
	}
}

func TestBlackhole(t *testing.T) {
	cluster := startCluster(t, nil)
	c, other := dial(t, cluster.Node(1).Address()), dial(t, cluster.Node(2).Address())
	id := c.tableSession()
	mustPost(t, cluster, "/nodes/1/blackhole", "")
	ctx, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
	defer cancel()
	if _, err := c.table.CreateSession(ctx, &Ydb_Table.CreateSessionRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("call into the hole: %v", err)
	}
	alive := func(c *client) Ydb.StatusIds_StatusCode {
		r, err := c.table.KeepAlive(testContext(t), &Ydb_Table.KeepAliveRequest{SessionId: id})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetOperation().GetStatus()
	}
	if got := alive(other); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("through another node: %v", got)
	}
	if n := len(other.endpoints()); n != 3 {
		t.Errorf("discovery lists %d nodes", n)
	}
	mustPost(t, cluster, "/nodes/1/clear", "")
	if got := alive(c); got != Ydb.StatusIds_SUCCESS {
		t.Errorf("after the hole closed: %v", got)
	}
}

func TestThrottle(t *testing.T) {
	cluster := startCluster(t, nil)
	c := dial(t, cluster.Node(1).Address())
	a := c.open()
	answer := func() int {
		e := a.must(Ydb.StatusIds_SUCCESS, "SELECT '"+strings.Repeat("0123456789", 600)+"'", nil)
		size := 0
		for _, part := range e.parts {
			size += proto.Size(part)
		}
		return size
	}
	mustPost(t, cluster, "/nodes/1/throttle", `{"bytes_per_second":50000}`)
	begun := time.Now()
	size := answer()
	if least := time.Duration(size) * time.Second / 50000; size < 6000 || time.Since(begun) < least {
		t.Errorf("%d bytes came after %v; want at least 6000 bytes, and %v", size, time.Since(begun), least)
	}

	// Clear ends it also for what is under way: this answer would take hours.
	mustPost(t, cluster, "/nodes/1/throttle", `{"bytes_per_second":1}`)
	done := make(chan struct{})
	go func() {
		defer close(done)
		answer()
	}()
	await.True(t, "the call is under way", func() bool { return c.ClientConn.GetState() == connectivity.Ready })
	mustPost(t, cluster, "/nodes/1/clear", "")
	<-done
}
