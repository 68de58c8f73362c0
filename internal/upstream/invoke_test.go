package upstream

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

func TestInvoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, func(c *Config, _ *Deps) { c.Auth = Auth{Kind: authToken, Token: "the sidecar's own"} })
		b.node(2).onCreate = func(ctx context.Context) (*Ydb_Query.CreateSessionResponse, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			if got := md.Get("x-ydb-auth-ticket"); len(got) != 1 || got[0] != "a client's" {
				t.Errorf("the node was told the tickets %q", got)
			}
			return nil, status.Error(codes.NotFound, "no such partition")
		}
		const method = protocol.QueryService + "CreateSession"
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.Pairs("x-ydb-auth-ticket", "a client's"))
		out := new(Ydb_Query.CreateSessionResponse)
		if s, err := b.driver.Invoke(
			ctx, 2, method, new(Ydb_Query.CreateSessionRequest), out,
		); status.Code(err) != codes.NotFound || s.Code != codes.NotFound {
			t.Errorf("%v; want the node's own status", err)
		}
		if n := len(b.node(2).seen("CreateSession")); n != 1 {
			t.Errorf("the node had %d calls", n)
		}
		if s, err := b.driver.Invoke(
			ctx, 3, method, new(Ydb_Query.CreateSessionRequest), out,
		); status.Code(err) != codes.Unavailable || !s.Unrouted {
			t.Errorf("a node that is not in the view: %v", err)
		}
		if got := b.judge.take(); len(got) != 0 || b.driver.Uses(2) {
			t.Errorf("reported %q, in use %v", got, b.driver.Uses(2))
		}
	})
}
