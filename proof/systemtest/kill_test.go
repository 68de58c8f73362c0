package systemtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Four apps place and process orders while every node process in turn is
// killed. The stock is small, so that orders also fail for want of it.
func TestBooksBalanceWhileAnyNodeIsKilled(t *testing.T) {
	const quantity, products = 40, 30
	c := startCluster(t, nil, "-processes", "-data", filepath.Join(t.TempDir(), "data"))
	s := startSidecar(t, c, nil, "pool.max=30")
	python(t, "grpc://"+s.GRPC).run(t, "init", "--quantity", fmt.Sprint(quantity), "--products", fmt.Sprint(products))

	running := startApps(t, s, products)
	reads := readAlways(t, s)
	for _, victim := range c.Nodes {
		running.placeMore(t, 15)
		// so that transactions are surely lost
		c.everywhere(t, "delay", map[string]any{"delay": "200ms", "methods": []string{"ExecuteQuery"}})
		openOn(t, c, victim.ID)
		kill(t, c, victim.ID)
		for _, node := range c.Nodes {
			if node.ID != victim.ID {
				c.do(t, node.ID, "clear", nil)
			}
		}
		running.placeMore(t, 15) // with the node gone
		c.do(t, victim.ID, "start", nil)
		eventually(t, patience, fmt.Sprintf("node %d gets sessions again", victim.ID), func() string {
			if count := c.perNode(t); count[victim.ID] == 0 {
				return fmt.Sprint(count)
			}
			return ""
		})
	}
	running.placeMore(t, 15)
	if done, failed := reads.stop(); len(failed) > 0 || done < 20 {
		t.Errorf("of %d reads, which are safe to repeat, %d failed: %v", done, len(failed), failed)
	}
	met := running.finish(t)
	maps.DeleteFunc(met, func(kind string, _ int) bool { return strings.Contains(kind, "YDB_ABORTED") }) // conflicts of the apps themselves
	if len(met) == 0 {
		t.Error("no app met an error: the kills proved nothing")
	}
	checkBooks(t, s, quantity, running.ledgers)
}

// openOn waits until a node has an open transaction.
func openOn(t *testing.T, c *ydb, id uint32) {
	t.Helper()
	eventually(t, patience, fmt.Sprintf("a transaction is open on node %d", id), func() string {
		sessions, err := c.Sessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sessions {
			if s.NodeID == id && s.Transactions > 0 {
				return ""
			}
		}
		return fmt.Sprintf("%+v", sessions)
	})
}

// kill ends a node's process the hard way and waits until it is gone.
func kill(t *testing.T, c *ydb, id uint32) {
	t.Helper()
	for _, node := range c.state(t) {
		if node.ID != id {
			continue
		}
		if node.Pid == 0 || node.Pid == c.Process.Pid() {
			t.Fatalf("node %d has no process of its own: pid %d", id, node.Pid)
		}
		if err := syscall.Kill(node.Pid, syscall.SIGKILL); err != nil {
			t.Fatalf("kill node %d: %v", id, err)
		}
	}
	eventually(t, patience, fmt.Sprintf("node %d is seen to be dead", id), func() string {
		for _, node := range c.state(t) {
			if node.ID == id && node.State == "up" {
				return node.State
			}
		}
		return ""
	})
}

// shop is all four apps at work.
type shop struct {
	apps      []app
	processes []*stand.Process
	ledgers   []string
}

func startApps(t *testing.T, s *sidecar, products int) *shop {
	t.Helper()
	r := &shop{apps: apps(t, s)}
	for i, a := range r.apps {
		ledger := filepath.Join(t.TempDir(), fmt.Sprintf("ledger%d", i))
		r.ledgers = append(r.ledgers, ledger)
		r.processes = append(r.processes, a.start(t, nil, "run", "--seconds", "300", "--workers", "3",
			"--pause", "0.02", "--products", fmt.Sprint(products), "--ledger", ledger))
	}
	return r
}

// placeMore waits until every app has placed n more orders.
func (r *shop) placeMore(t *testing.T, n int) {
	t.Helper()
	before := r.placed(t)
	eventually(t, 60*time.Second, fmt.Sprintf("every app places %d more orders", n), func() string {
		now := r.placed(t)
		for i := range now {
			if now[i] < before[i]+n {
				return fmt.Sprintf("%v after %v", now, before)
			}
		}
		return ""
	})
}

func (r *shop) placed(t *testing.T) []int {
	t.Helper()
	count := make([]int, len(r.ledgers))
	for i, ledger := range r.ledgers {
		data, err := os.ReadFile(ledger)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		count[i] = strings.Count(string(data), `"placed"`)
	}
	return count
}

// finish stops the apps and returns which failed tries they met. The apps
// themselves fail when they met an error that was neither safe to repeat nor of
// unknown outcome.
func (r *shop) finish(t *testing.T) met {
	t.Helper()
	all := met{}
	for i, p := range r.processes {
		if err := p.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		said := r.apps[i].finish(t, p)
		t.Logf("%s: %v", r.apps[i].name, said)
		for kind, count := range said["errors"].(map[string]any) {
			all[kind] += int(count.(float64))
		}
		for _, key := range []string{"order missing in history", "gone"} {
			if said[key] != nil {
				t.Errorf("%s: %v times %q", r.apps[i].name, said[key], key)
			}
		}
	}
	return all
}

// met counts failed tries: "what code class", the class being safe, unknown or final.
type met map[string]int

func (m met) has(prefix string) bool {
	for kind := range m {
		if strings.HasPrefix(kind, prefix) {
			return true
		}
	}
	return false
}

// reads is a loop of idempotent reads.
type reads struct {
	cancel context.CancelFunc
	ended  chan struct{}
	done   int
	failed []error
}

func readAlways(t *testing.T, s *sidecar) *reads {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &reads{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		for ctx.Err() == nil {
			_, err := s.Execute(ctx, &sidecarv1.ExecuteRequest{
				Sql: "SELECT COUNT(*) AS n FROM stock", Idempotent: true, Timeout: "10s"})
			if ctx.Err() != nil {
				return
			}
			r.done++
			if err != nil {
				r.failed = append(r.failed, err)
			}
		}
	}()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *reads) stop() (done int, failed []error) {
	r.cancel()
	<-r.ended
	return r.done, r.failed
}
