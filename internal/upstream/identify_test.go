package upstream

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// creating answers CreateSession.
func creating(r *Ydb_Query.CreateSessionResponse, err error) func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
	return func(context.Context) (*Ydb_Query.CreateSessionResponse, error) { return r, err }
}

// A node that is not known tells its id by a session, which is deleted. Nothing is reported of it.
func TestIdentify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, nil)
		var reached []string
		b.driver.OnConnect(func(address string) { reached = append(reached, address) })
		b.driver.SetView(cluster.View{}) // it need not be known
		b.node(2).onCreate = func(ctx context.Context) (*Ydb_Query.CreateSessionResponse, error) {
			if md, _ := metadata.FromIncomingContext(ctx); md.Get("x-ydb-client-capabilities") != nil {
				t.Error("the cluster was told that it may place the session elsewhere")
			}
			return nil, nil // go on as usual
		}
		if id, err := b.driver.Identify(t.Context(), "node2:2136", ""); id != 2 || err != nil {
			t.Errorf("%d, %v; want 2", id, err)
		}
		synctest.Wait()
		if n := b.sessions(); n != 0 || len(b.node(2).seen("CreateSession")) != 1 {
			t.Errorf("%d sessions left; want one made and deleted", n)
		}
		if open := len(b.driver.all); open != 0 {
			t.Errorf("%d connections left", open)
		}
		if got := b.judge.take(); len(got) != 0 || len(reached) != 0 {
			t.Errorf("reported %q, connections told %q; want nothing", got, reached)
		}
	})
}

// An identification that fails names the address and the reason in time, and leaves neither sessions nor connections.
func TestIdentifyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, nil)
		b.driver.SetView(cluster.View{})
		fails := func(name, want string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			began := time.Now()
			if id, err := b.driver.Identify(
				ctx, "node2:2136", "",
			); id != 0 || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "node2:2136") {
				t.Errorf("%s: %d, %v; want %s", name, id, err, want)
			}
			if took := time.Since(began); took > Default().ConnectTimeout {
				t.Errorf("%s: took %v", name, took)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n, open := b.sessions(), len(b.driver.all); n != 0 || open != 0 {
				t.Errorf("%s: %d sessions and %d connections left", name, n, open)
			}
		}
		b.node(2).onCreate = creating(&Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_OVERLOADED}, nil)
		fails("a node that refuses", "OVERLOADED")
		b.node(2).onCreate = creating(nil, status.Error(codes.Unimplemented, "unknown service"))
		fails("a server without sessions", "UNIMPLEMENTED: unknown service")
		b.node(2).onCreate = creating(&Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_SUCCESS, SessionId: "bare"}, nil)
		fails("a session of nobody", "names a node")
		b.node(2).onCreate = func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
			time.Sleep(Default().ConnectTimeout + time.Second)
			return nil, nil // go on as usual, late
		}
		fails("a slow node", "deadline")
		b.node(2).onCreate = nil
		b.node(2).kill()
		fails("a dead node", "connection refused")
	})
}

// A listener of OnConnect hears of each new connection to it,
// whoever made it.
func TestConnectionsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		var reached []string
		b.driver.OnConnect(func(address string) { reached = append(reached, address) })
		want := func(what string, addresses ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(reached, addresses) {
				t.Errorf("%s: told %q; want %q", what, reached, addresses)
			}
			reached = nil
		}
		if _, err := b.driver.ListEndpoints(t.Context()); err != nil {
			t.Fatal(err)
		}
		want("discovery")
		b.mustOpen(1)
		want("the first session", "node1:2136")
		b.mustOpen(1)
		want("the second session, on the same connection")
		b.node(1).kill()
		time.Sleep(10 * time.Second)
		want("a dead node")
		b.node(1).revive()
		time.Sleep(10 * time.Second)
		b.mustOpen(1)
		want("a node that came back", "node1:2136")
		c, err := b.driver.Dial(t.Context(), cluster.Node{ID: 1, Address: "node1:2136"})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		want("the data path", "node1:2136")
	})
}
