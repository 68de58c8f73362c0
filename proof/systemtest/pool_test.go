package systemtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// code returns the sidecar's code of a gRPC error; "" when it was not the sidecar that spoke.
func code(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

// callers runs a number of callers that each make calls until stopped, and
// counts the good calls of each.
type callers struct {
	cancel context.CancelFunc
	work   sync.WaitGroup
	over   atomic.Bool // no further calls
	good   []atomic.Int64
	bad    atomic.Pointer[error] // the first one
}

func call(t *testing.T, n int, one func(ctx context.Context, caller int) error) *callers {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &callers{cancel: cancel, good: make([]atomic.Int64, n)}
	for caller := range n {
		c.work.Go(func() {
			for ctx.Err() == nil && !c.over.Load() {
				err := one(ctx, caller)
				switch {
				case ctx.Err() != nil: // cut off by stop
				case err != nil:
					c.bad.CompareAndSwap(nil, &err)
				default:
					c.good[caller].Add(1)
				}
			}
		})
	}
	t.Cleanup(c.stop)
	return c
}

// stop cuts off the calls that are under way.
func (c *callers) stop() {
	c.cancel()
	c.work.Wait()
}

// finish lets the calls that are under way end.
func (c *callers) finish() {
	c.over.Store(true)
	c.work.Wait()
}

func (c *callers) total() (n int64) {
	for i := range c.good {
		n += c.good[i].Load()
	}
	return n
}

func (c *callers) err() error {
	if err := c.bad.Load(); err != nil {
		return *err
	}
	return nil
}

func TestTwoHundredCallersShareTwentySessions(t *testing.T) {
	const clients, pool, perNode = 200, 20, 10
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, fmt.Sprintf("pool.max=%d", pool))
	c.everywhere(t, "delay", map[string]any{"delay": "10ms", "methods": []string{"ExecuteQuery"}})

	busy := call(t, clients, func(ctx context.Context, _ int) error {
		_, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "30s"})
		return err
	})
	most, mostOnNode := 0, 0
	eventually(t, 60*time.Second, "every caller is served 10 times on average", func() string {
		count := c.perNode(t)
		sum := 0
		for _, n := range count {
			sum, mostOnNode = sum+n, max(mostOnNode, n)
		}
		most = max(most, sum)
		if n := busy.total(); n < 10*clients {
			return fmt.Sprintf("%d calls", n)
		}
		return ""
	})
	if most != pool || mostOnNode > perNode {
		t.Errorf("the nodes held up to %d sessions, one node up to %d; want %d, and at most %d", most, mostOnNode, pool, perNode)
	}
	served := make([]int64, clients)
	for i := range served {
		served[i] = busy.good[i].Load()
	}
	if least, greatest := slices.Min(served), slices.Max(served); float64(least) < 0.7*float64(greatest) {
		t.Errorf("callers were served between %d and %d times; want nobody to starve", least, greatest)
	}

	// All 200 still call: a caller with little time is told at once, or after that time, if nobody knows how long the wait is.
	c.everywhere(t, "delay", map[string]any{"delay": "1s", "methods": []string{"ExecuteQuery"}})
	eventually(t, 10*time.Second, "a long line", func() string {
		state, err := s.Status(t.Context(), &sidecarv1.StatusRequest{})
		if err != nil {
			return err.Error()
		}
		if state.Pool.Waiting < clients-pool-10 {
			return fmt.Sprintf("%d wait", state.Pool.Waiting)
		}
		return ""
	})
	for _, patience := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		begun := time.Now()
		_, err := s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: patience.String()})
		took := time.Since(begun)
		if said := code(err); said != "SHED_DEADLINE" && (said != "POOL_TIMEOUT" || took < patience) || took > patience+300*time.Millisecond {
			t.Errorf("with %v of patience: %v after %v; want SHED_DEADLINE by then, or POOL_TIMEOUT then", patience, err, took)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "30s"})
		gone <- err
	}()
	cancel()
	if err := <-gone; err == nil {
		t.Error("a cancelled call succeeded")
	}
	c.everywhere(t, "clear", nil)
	if err := busy.err(); err != nil {
		t.Errorf("a patient caller got %v", err)
	}
	busy.stop()
	eventually(t, 10*time.Second, "the line is empty when nobody calls", func() string {
		state, err := s.Status(t.Context(), &sidecarv1.StatusRequest{})
		if err != nil {
			return err.Error()
		}
		if state.Pool.Waiting != 0 || state.Pool.Busy != 0 {
			return state.Pool.String()
		}
		return ""
	})
}

func TestABlackholedNodeHoldsNobodyElseUp(t *testing.T) {
	const clients, span = 24, 2 * time.Second
	slow := map[string]any{"delay": "50ms", "methods": []string{"ExecuteQuery"}}
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "pool.max=60")
	// Slow enough that the machine is not the limit. Callers who got stuck make no
	// more calls, so every one that the dead node holds beyond its share shows.
	c.everywhere(t, "delay", slow)
	steady := call(t, clients, func(ctx context.Context, _ int) error {
		_, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "5s"})
		return err
	})
	eventually(t, 30*time.Second, "the pool is warm", func() string {
		if n := steady.total(); n < 20*clients {
			return fmt.Sprintf("%d calls", n)
		}
		return ""
	})
	victim := c.nodes[2].ID
	before := perSecond(t, c, victim, span)
	c.do(t, victim, "blackhole", nil)
	during := perSecond(t, c, victim, span)
	if during < 0.9*before {
		t.Errorf("the other nodes served %.0f statements a second with a black-holed one, %.0f before; want at least 90 %%", during, before)
	}
	state, err := s.Status(t.Context(), &sidecarv1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range state.Nodes {
		if node.NodeId == victim {
			if limit := uint32(30); node.Busy > limit {
				t.Errorf("the dead node holds %d sessions in use; want at most %d (pool.max_per_node)", node.Busy, limit)
			}
			t.Logf("%.0f/s before, %.0f/s with node %d black-holed; it is %s (%s) and holds %d sessions", before, during, victim, node.Health, node.Reason, node.Busy)
		}
	}
	// Once the first calls have died of it, the judge acts, and nobody loses time there any more.
	eventually(t, 40*time.Second, "the dead node is found out", func() string {
		state, err := s.Status(t.Context(), &sidecarv1.StatusRequest{})
		if err != nil {
			return err.Error()
		}
		for _, node := range state.Nodes {
			if node.NodeId == victim && node.Use == "new" {
				return node.Health
			}
		}
		return ""
	})
	c.do(t, victim, "clear", nil)
	c.everywhere(t, "delay", slow)
	eventually(t, 60*time.Second, "the node is used again", func() string {
		if count := c.perNode(t); count[victim] == 0 {
			return fmt.Sprint(count)
		}
		return ""
	})
	steady.stop()
}

// perSecond measures how many statements the nodes other than one serve.
func perSecond(t *testing.T, c *ydb, except uint32, span time.Duration) float64 {
	t.Helper()
	count := func() (n int64) {
		for _, node := range c.state(t) {
			if node.ID != except {
				n += node.Counters["statements"]
			}
		}
		return n
	}
	begun, before := time.Now(), count()
	<-time.After(span) // a rate is measured over a time; nothing is waited for
	return float64(count()-before) / time.Since(begun).Seconds()
}
