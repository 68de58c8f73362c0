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

// each is how many calls of each caller succeeded.
func (c *callers) each() []int64 {
	all := make([]int64, len(c.good))
	for i := range c.good {
		all[i] = c.good[i].Load()
	}
	return all
}

func (c *callers) err() error {
	if err := c.bad.Load(); err != nil {
		return *err
	}
	return nil
}

// hasNoTimeFor checks that callers with little time are told so while many others wait, and that one leaves that is cancelled.
func (s *sidecar) hasNoTimeFor(t *testing.T) {
	for _, short := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		begun := time.Now()
		_, err := s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: short.String()})
		took := time.Since(begun)
		// All who wait before it need about ten seconds.
		if said := code(err); said != "SHED_DEADLINE" && (said != "POOL_TIMEOUT" || took < short) || took > short+5*time.Second {
			t.Errorf("with %v of patience: %v after %v; want SHED_DEADLINE by then, or POOL_TIMEOUT then", short, err, took)
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
	// A caller that starves never catches up; one that was not scheduled for a while does, because all others wait their turn.
	eventually(t, 60*time.Second, "every caller is served 10 times on average, by all sessions, and nobody starves", func() string {
		count := c.attached(t)
		sum := 0
		for _, n := range count {
			sum, mostOnNode = sum+n, max(mostOnNode, n)
		}
		most = max(most, sum)
		served := busy.each()
		if least, greatest := slices.Min(served), slices.Max(served); busy.total() < 10*clients || most < pool ||
			float64(least) < 0.7*float64(greatest) {
			return fmt.Sprintf("%d calls on up to %d sessions; callers were served between %d and %d times",
				busy.total(), most, least, greatest)
		}
		return ""
	})
	if most != pool || mostOnNode > perNode {
		t.Errorf("the nodes held up to %d sessions, one node up to %d; want %d, and at most %d", most, mostOnNode, pool, perNode)
	}

	// All 200 still call: a caller with little time is told at once, or after that time, if it is not known how long the wait is.
	c.everywhere(t, "delay", map[string]any{"delay": "1s", "methods": []string{"ExecuteQuery"}})
	eventually(t, patience, "a long line", func() string {
		state, err := s.Status(t.Context(), &sidecarv1.StatusRequest{})
		if err != nil {
			return err.Error()
		}
		if state.Pool.Waiting < clients-pool-10 {
			return fmt.Sprintf("%d wait", state.Pool.Waiting)
		}
		return ""
	})
	s.hasNoTimeFor(t)
	c.everywhere(t, "clear", nil)
	if err := busy.err(); err != nil {
		t.Errorf("a patient caller got %v", err)
	}
	busy.stop()
	eventually(t, patience, "the line is empty when nobody calls", func() string {
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

// A node from which nothing comes back holds the callers that are on it and few more,
// until it is found out: each call that waits there makes the node the worse choice.
//
// Long: it is one outage, from a warm pool to the node's return.
func TestABlackholedNodeHoldsNobodyElseUp(t *testing.T) {
	const clients = 24
	slow := map[string]any{"delay": "50ms", "methods": []string{"ExecuteQuery"}}
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "pool.max=60")
	c.everywhere(t, "delay", slow)
	steady := call(t, clients, func(ctx context.Context, _ int) error {
		_, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "5s"})
		return err
	})
	eventually(t, patience, "the pool is warm", func() string {
		if n := steady.total(); n < 20*clients {
			return fmt.Sprintf("%d calls", n)
		}
		return ""
	})
	victim := c.Nodes[2].ID
	c.do(t, victim, "blackhole", nil)
	before := steady.each()
	most, held, served := uint32(0), clients, int64(0)
	eventually(t, patience, "the other nodes serve, or the dead one is found out", func() string {
		state, err := s.Status(t.Context(), &sidecarv1.StatusRequest{})
		if err != nil {
			return err.Error()
		}
		found := true
		for _, node := range state.Nodes {
			if node.NodeId == victim {
				most, found = max(most, node.Busy), node.Use != "new"
			}
		}
		held, served = 0, 0
		for caller, n := range steady.each() {
			if served += n - before[caller]; n == before[caller] {
				held++
			}
		}
		// Callers that were not scheduled since the node is dead have nothing to tell.
		if served < 20*clients && !(found && served >= 2*clients) {
			return fmt.Sprintf("%d calls are served", served)
		}
		return ""
	})
	t.Logf("node %d, black-holed, held at most %d sessions; of %d callers %d were not served while %d calls were",
		victim, most, clients, held, served)
	// Its share is a third.
	if most > clients/2 || held > clients/2 {
		t.Errorf("the dead node held %d sessions and %d callers; want at most half of %d", most, held, clients)
	}
	// Once the first calls have died of it, the judge acts, and no call loses time there any more.
	eventually(t, patience, "the dead node is found out", func() string {
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
