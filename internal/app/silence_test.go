package app

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
)

// With health.silence off, a connection whose node needs a while for its first bytes is not cut.
func TestWithoutSilenceASlowGreetingIsWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	slow := newSlow(t, c.Node(1).Address(), 1500*time.Millisecond)
	s := start(t, c.Endpoint(), "wire.mode=passthrough", "health.silence=0", "discovery.mode=static", "discovery.nodes=1="+slow)
	sdk := Ydb_Query_V1.NewQueryServiceClient(s.conn)
	s.eventually("a session is made", func() bool {
		made, err := sdk.CreateSession(t.Context(), &Ydb_Query.CreateSessionRequest{})
		return err == nil && made.GetStatus() == Ydb.StatusIds_SUCCESS
	})
}

// newSlow forwards connections to the node at to until the test ends. The first bytes of the node
// come so much later.
func newSlow(t *testing.T, to string, late time.Duration) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var forwarding sync.WaitGroup
	forward := func(in net.Conn) {
		defer in.Close()
		out, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer out.Close()
		forwarding.Go(func() {
			_, _ = io.Copy(out, in)
			_ = out.Close()
		})
		select {
		case <-time.After(late):
		case <-ended:
		}
		_, _ = io.Copy(in, out)
	}
	forwarding.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			forwarding.Go(func() { forward(in) })
		}
	})
	t.Cleanup(func() {
		close(ended)
		_ = l.Close()
		forwarding.Wait()
	})
	return l.Addr().String()
}
