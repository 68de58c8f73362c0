package systemtest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"

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
	load(t, on, callers, 2) // warms up

	owned, forwarded := c.sum(t, "owned"), c.sum(t, "forwarded")
	want := load(t, on, callers, rounds)
	if owned, forwarded := c.sum(t, "owned")-owned, c.sum(t, "forwarded")-forwarded; forwarded != 0 || owned < callers*rounds*5 {
		t.Errorf("affinity on: %d calls reached their owner and %d were forwarded; want at least %d and 0", owned,
			forwarded, callers*rounds*5)
	}
	if count := c.perNode(t); difference(count) > 1 {
		t.Errorf("after the load the sessions are %v; want them to differ by at most 1", count)
	}

	off := startSidecar(t, c, nil, fmt.Sprintf("pool.max=%d", pool), "routing.affinity=off")
	load(t, off, callers, 2)
	owned, forwarded = c.sum(t, "owned"), c.sum(t, "forwarded")
	got := load(t, off, callers, rounds)
	owned, forwarded = c.sum(t, "owned")-owned, c.sum(t, "forwarded")-forwarded
	n := float64(len(c.Nodes))
	if share := float64(forwarded) / float64(owned+forwarded); math.Abs(share-(n-1)/n) > 0.05 {
		t.Errorf("affinity off: %d of %d calls were forwarded, a share of %.3f; want %.3f ± 0.05", forwarded,
			owned+forwarded, share, (n-1)/n)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("round %d: affinity off gave %s; on gave %s", i, got[i], want[i])
		}
	}
}

// A pool that grows one by one is even from the first session to the last, in
// the eyes of the nodes. One that grows in a rush is even in its own eyes: what
// it is opening counts.
func TestSessionsAreSpreadEvenlyWhileThePoolGrows(t *testing.T) {
	const pool = 20
	c := startCluster(t, nil)
	slowly := startSidecar(t, c, nil, fmt.Sprintf("pool.max=%d", pool), "drain.grace=0s") // its transactions are left open
	for held := range pool {
		if _, err := slowly.Begin(t.Context(), &sidecarv1.BeginRequest{}); err != nil {
			t.Fatalf("hold session %d: %v", held+1, err)
		}
		// Sessions that are held stay where they are. One more, which the pool opens when another takes long, comes late.
		eventually(t, patience, fmt.Sprintf("with %d sessions held the nodes' numbers differ by at most 1", held+1), func() string {
			if count := c.perNode(t); sum(count) < held+1 || difference(count) > 1 {
				return fmt.Sprint(count)
			}
			return ""
		})
	}

	rush := startSidecar(t, c, nil, fmt.Sprintf("pool.max=%d", pool), "drain.grace=0s")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var begun sync.WaitGroup
	for range pool {
		begun.Go(func() {
			if _, err := rush.Begin(ctx, &sidecarv1.BeginRequest{}); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, patience, "the pool is full", func() string {
		state, err := rush.Status(t.Context(), &sidecarv1.StatusRequest{})
		if err != nil {
			return err.Error()
		}
		count := map[uint32]int{}
		for _, node := range state.Nodes {
			count[node.NodeId] = int(node.Sessions)
		}
		if len(count) == len(c.Nodes) && difference(count) > 1 {
			t.Errorf("in a rush the pool has %v; want them to differ by at most 1", count)
		}
		if sum(count) < pool {
			return fmt.Sprint(count)
		}
		return ""
	})
	begun.Wait()
	if count := c.perNode(t); difference(count) > 2 { // of two pools
		t.Errorf("after all the nodes have %v; want each pool's to differ by at most 1", count)
	}
}

func difference(count map[uint32]int) int {
	least, most := math.MaxInt, 0
	for _, n := range count {
		least, most = min(least, n), max(most, n)
	}
	return most - least
}
