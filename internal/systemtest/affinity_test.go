package systemtest

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// load runs the same work through a sidecar: statements by themselves,
// interactive transactions and reads, by a number of callers. It returns the
// results in order.
func load(t *testing.T, s *sidecar, callers, rounds int) []string {
	t.Helper()
	results := make([]string, callers*rounds)
	var work sync.WaitGroup
	for caller := range callers {
		work.Go(func() {
			for round := range rounds {
				id := caller*rounds + round
				got, err := oneRound(t, s, uint64(id))
				if err != nil {
					t.Errorf("caller %d, round %d: %v", caller, round, err)
					return
				}
				results[id] = got
			}
		})
	}
	work.Wait()
	return results
}

// oneRound makes five calls of its own keys: a write, a transaction of two
// statements and a commit, a read. It returns what the reads said.
func oneRound(t *testing.T, s *sidecar, id uint64) (string, error) {
	ctx := t.Context()
	key := map[string]*sidecarv1.Value{"id": unsigned(id)}
	const declare = "DECLARE $id AS Uint64; "
	if _, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{
		Sql: declare + "UPSERT INTO load (id, value) VALUES ($id, 1)", Params: key}); err != nil {
		return "", fmt.Errorf("write: %w", err)
	}
	begun, err := s.Begin(ctx, &sidecarv1.BeginRequest{})
	if err != nil {
		return "", fmt.Errorf("begin: %w", err)
	}
	seen, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: declare + "SELECT value FROM load WHERE id = $id", Params: key,
		Tx: &sidecarv1.TxSelector{Id: begun.Tx.Id, Seq: 1}})
	if err != nil {
		return "", fmt.Errorf("read in the transaction: %w", err)
	}
	if _, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: declare + "UPSERT INTO load (id, value) VALUES ($id, 2)", Params: key,
		Tx: &sidecarv1.TxSelector{Id: begun.Tx.Id, Seq: 2, Commit: true}}); err != nil {
		return "", fmt.Errorf("write in the transaction: %w", err)
	}
	kept, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: declare + "SELECT id, value FROM load WHERE id = $id", Params: key})
	if err != nil {
		return "", fmt.Errorf("read: %w", err)
	}
	return fmt.Sprint(seen.Rows, kept.Rows), nil
}

func unsigned(n uint64) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: n}}
}

func TestCallsGoToTheNodeThatOwnsTheSession(t *testing.T) {
	c := startCluster(t, nil)
	const pool, callers, rounds = 30, 40, 25
	on := startSidecar(t, c, nil, fmt.Sprintf("pool.max=%d", pool))
	if _, err := on.Execute(t.Context(), &sidecarv1.ExecuteRequest{
		Sql: "CREATE TABLE load (id Uint64, value Int32, PRIMARY KEY (id))"}); err != nil {
		t.Fatal(err)
	}
	spread := watchSpread(t, c)
	want := load(t, on, callers, 2) // the pool grows
	if sizes, worst := spread(); len(sizes) < 2 || worst > 1 {
		t.Errorf("while the pool grew through %v sessions, they differed by up to %d between nodes; want at most 1", sizes, worst)
	}

	owned, forwarded := c.sum(t, "owned"), c.sum(t, "forwarded")
	want = load(t, on, callers, rounds)
	if owned, forwarded := c.sum(t, "owned")-owned, c.sum(t, "forwarded")-forwarded; forwarded != 0 || owned < callers*rounds*5 {
		t.Errorf("affinity on: %d calls reached their owner and %d were forwarded; want at least %d and 0", owned, forwarded, callers*rounds*5)
	}
	if count := c.perNode(t); difference(count) > 1 {
		t.Errorf("after the load the sessions are %v; want them to differ by at most 1", count)
	}

	off := startSidecar(t, c, nil, fmt.Sprintf("pool.max=%d", pool), "routing.affinity=off")
	load(t, off, callers, 2)
	owned, forwarded = c.sum(t, "owned"), c.sum(t, "forwarded")
	got := load(t, off, callers, rounds)
	owned, forwarded = c.sum(t, "owned")-owned, c.sum(t, "forwarded")-forwarded
	n := float64(len(c.nodes))
	if share := float64(forwarded) / float64(owned+forwarded); math.Abs(share-(n-1)/n) > 0.05 {
		t.Errorf("affinity off: %d of %d calls were forwarded, a share of %.3f; want %.3f ± 0.05", forwarded, owned+forwarded, share, (n-1)/n)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("round %d: affinity off gave %s; on gave %s", i, got[i], want[i])
		}
	}
}

func difference(count map[uint32]int) int {
	least, most := math.MaxInt, 0
	for _, n := range count {
		least, most = min(least, n), max(most, n)
	}
	return most - least
}

// watchSpread samples the sessions of the nodes until the returned function is
// called, which says at which sizes it saw the cluster and the greatest difference.
func watchSpread(t *testing.T, c *ydb) func() (sizes []int, worst int) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	var sizes []int
	var worst int
	go func() {
		defer close(done)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			sessions, err := c.Sessions(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			count := map[uint32]int{}
			for _, node := range c.nodes {
				count[node.ID] = 0
			}
			for _, session := range sessions {
				count[session.NodeID]++
			}
			if n := len(sessions); len(sizes) == 0 || sizes[len(sizes)-1] != n {
				sizes = append(sizes, n)
			}
			worst = max(worst, difference(count))
		}
	}()
	return func() ([]int, int) {
		close(stop)
		<-done
		return sizes, worst
	}
}
