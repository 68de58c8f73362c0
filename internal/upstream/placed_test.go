package upstream

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/hop"
)

// A cluster that balances sessions itself places one here when it is not invited to.
func TestASessionPlacedElsewhereIsAskedForAgainWithoutBalancing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, func(c *Config, _ *Deps) { c.SessionBalancer = true })
		b.node(1).onCreate = func(ctx context.Context) (*Ydb_Query.CreateSessionResponse, error) {
			if md, _ := metadata.FromIncomingContext(ctx); md.Get("x-ydb-client-capabilities") == nil {
				return nil, nil // go on as usual
			}
			return &Ydb_Query.CreateSessionResponse{Status: Ydb.StatusIds_SUCCESS,
				SessionId: "ydb://session/3?node_id=9&id=1", NodeId: 9}, nil
		}
		s, _, err := b.open(1)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s.Node() != 1 || len(b.node(1).seen("DeleteSession")) != 1 {
			t.Errorf("on node %d, %d deleted; want the misplaced one deleted", s.Node(), len(b.node(1).seen("DeleteSession")))
		}
	})
}

// A session that names another node than the one that was asked is misplaced where nodes have
// addresses of their own, and as good as any where several share the address, or may.
func TestASessionThatNamesAnotherNode(t *testing.T) {
	for name, tc := range map[string]struct {
		size     int
		balancer bool
		shared   bool
		created  int // in all
		err      error
	}{
		"several_addresses":                  {size: 2, created: 2, err: ErrMisplaced},
		"a_shared_one_among_several":         {size: 2, shared: true, created: 1},
		"the_only_address":                   {size: 1, created: 1},
		"the_only_one_with_balancing":        {size: 1, balancer: true, created: 2},
		"a_shared_one_with_balancing":        {size: 1, balancer: true, shared: true, created: 1},
		"several_addresses_with_balancing":   {size: 2, balancer: true, created: 2, err: ErrMisplaced},
		"a_shared_one_of_two_with_balancing": {size: 2, balancer: true, shared: true, created: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, tc.size, func(c *Config, _ *Deps) { c.SessionBalancer = tc.balancer })
				v := b.view()
				v.Nodes[0].ID, v.Nodes[0].Shared, v.Alone = 9, tc.shared, tc.size == 1 // it names itself 1
				slices.SortFunc(v.Nodes, func(x, y cluster.ViewNode) int { return int(x.ID) - int(y.ID) })
				b.driver.SetView(v)
				s, gone, err := b.open(9)
				if !errors.Is(err, tc.err) {
					t.Fatalf("Open = %v; want %v", err, tc.err)
				}
				synctest.Wait()
				if got := len(b.node(1).seen("CreateSession")); got != tc.created {
					t.Errorf("%d sessions were made; want %d", got, tc.created)
				}
				want := 0
				if tc.err == nil {
					want = 1
					if s.Node() != 9 || !strings.Contains(s.ID(), "node_id=1&") {
						t.Errorf("session %s of node %d; want one of node 9 that names node 1", s.ID(), s.Node())
					}
					if _, err := run(t.Context(), s, statement("SELECT 1")); err != nil {
						t.Errorf("a statement: %v", err)
					}
					if got := gone.list(); got != nil {
						t.Errorf("retired: %v", got)
					}
				}
				if got := b.sessions(); got != want {
					t.Errorf("%d sessions are there; want %d", got, want)
				}
				if s != nil {
					if err := s.Close(t.Context()); err != nil {
						t.Errorf("Close: %v", err)
					}
					synctest.Wait()
				}
				if got := b.sessions(); got != 0 {
					t.Errorf("%d sessions are left", got)
				}
			})
		})
	}
}

func TestOpenOnAnUnknownNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, nil)
		if _, _, err := b.open(7); !errors.Is(err, hop.ErrUnknownNode) {
			t.Errorf("Open: %v; want hop.ErrUnknownNode", err)
		}
	})
}

// A slow node must leave no session behind that nobody knows of, whether the
// time was over or the pool closed.
func TestASessionThatComesTooLateIsDeleted(t *testing.T) {
	for _, how := range []string{"deadline", "cancel"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1, nil)
				b.node(1).onCreate = func(context.Context) (*Ydb_Query.CreateSessionResponse, error) {
					time.Sleep(1500 * time.Millisecond)
					return nil, nil // go on as usual
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if how == "cancel" {
					time.AfterFunc(100*time.Millisecond, cancel)
				}
				start := time.Now()
				_, err := b.driver.Open(ctx, 1, func(string) {})
				if err == nil || time.Since(start) > 1100*time.Millisecond {
					t.Errorf("Open: %v after %v; want an error when ctx ends", err, time.Since(start))
				}
				want := []string{"1 open transport DEADLINE_EXCEEDED"}
				if how == "cancel" {
					want = []string{"1 open none CANCELLED"}
				}
				if got := b.judge.take(); !slices.Equal(got, want) {
					t.Errorf("reported %q; want %q", got, want)
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if b.node(1).last != 1 || b.sessions() != 0 {
					t.Errorf("%d created, %d left; want the late one deleted", b.node(1).last, b.sessions())
				}
			})
		})
	}
}
