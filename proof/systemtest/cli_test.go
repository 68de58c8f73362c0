package systemtest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// What an operator at night sees of a session that leaks, of a paused pool and of
// a node that dies, with the program alone.
func TestOperatorFindsAndKillsALeak(t *testing.T) {
	c := startCluster(t, nil)
	socket := filepath.Join(t.TempDir(), "own", "admin")
	s := startSidecar(t, c, nil, "pool.max=4", "admin.held_long=1s", "admin.socket="+socket)

	doctorLeavesNothing(t, c, socket)
	killLeak(t, c, s, socket)
	pauseLosesNoCaller(t, s, socket)
	findDeadNode(t, c, s, socket)
	if said := operate(t, socket, "shutdown"); !strings.HasSuffix(said, "stopped\n") {
		t.Errorf("shutdown says %q", said)
	}
}

// doctorLeavesNothing has the doctor look at the cluster, and waits until the sessions that it opened are gone.
func doctorLeavesNothing(t *testing.T, c *ydb, socket string) {
	t.Helper()
	said := operate(t, socket, "doctor", "-ydb", c.Endpoint())
	for _, want := range []string{"discovery    3 nodes", "session      opened on node", "query        SELECT 1 in"} {
		if !strings.Contains(said, want) {
			t.Errorf("doctor does not say %q:\n%s", want, said)
		}
	}
	eventually(t, patience, "the doctor leaves no session", func() string {
		if count := c.perNode(t); sum(count) != 0 { // a probe of the sidecar's may have one for a moment
			return fmt.Sprint(count)
		}
		return ""
	})
}

// killLeak leaves a transaction open, finds its session as an operator does, and kills it.
func killLeak(t *testing.T, c *ydb, s *sidecar, socket string) {
	t.Helper()
	begin := &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Tx: &sidecarv1.TxSelector{Begin: &sidecarv1.BeginTx{}}}
	opened, err := s.Execute(t.Context(), begin)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "top names the leak", func() string {
		said := operate(t, socket, "top", "-n", "1")
		if !strings.Contains(said, "HELD_LONG") || !strings.Contains(said, "idle transaction") {
			return said
		}
		return ""
	})
	var state struct {
		Sessions []struct {
			Session string `json:"session"`
			App     string `json:"app"`
			Kind    string `json:"kind"`
			HeldMS  int64  `json:"held_ms"`
		} `json:"sessions"`
	}
	if err := json.Unmarshal([]byte(operate(t, socket, "sessions", "-o", "json")), &state); err != nil {
		t.Fatal(err)
	}
	leak := state.Sessions[0]
	if leak.Kind != "transaction" || leak.App != "default" || leak.HeldMS < 1000 || leak.Session == "" {
		t.Errorf("sessions begins with %+v; want the transaction", leak)
	}
	eventually(t, patience, "the log names the leak once", func() string {
		if n := strings.Count(s.Process.Log(), `"finding":"HELD_LONG"`); n != 1 {
			return fmt.Sprint(n, " times")
		}
		return ""
	})
	if said := operate(t, socket, "kill", leak.Session); !strings.Contains(said, "is killed; app default had it for") {
		t.Errorf("kill says %q", said)
	}
	_, err = s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 2", Tx: &sidecarv1.TxSelector{Id: opened.GetTx().GetId()}})
	if err == nil || !strings.Contains(err.Error(), "killed by an operator") {
		t.Errorf("the holder of a killed session is told: %v", err)
	}
	eventually(t, patience, "the session is gone from the nodes", func() string {
		if n := sum(c.perNode(t)); n != 0 {
			return operate(t, socket, "sessions", "-idle")
		}
		return ""
	})
}

// pauseLosesNoCaller pauses the pool: a caller waits, and is served after the pause.
func pauseLosesNoCaller(t *testing.T, s *sidecar, socket string) {
	t.Helper()
	operate(t, socket, "pause")
	answered := make(chan error, 1)
	go func() {
		_, err := s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: patience.String()})
		answered <- err
	}()
	eventually(t, patience, "the caller waits", func() string {
		said := operate(t, socket, "queue")
		if !strings.Contains(said, "default") {
			return said
		}
		return ""
	})
	select {
	case err := <-answered:
		t.Errorf("a paused pool served: %v", err)
	default:
	}
	operate(t, socket, "resume")
	if err := <-answered; err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

// findDeadNode kills a node and waits until the findings name it.
func findDeadNode(t *testing.T, c *ydb, s *sidecar, socket string) {
	t.Helper()
	c.do(t, 2, "kill", nil)
	eventually(t, patience, "findings name the dead node", func() string {
		_, _ = s.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Idempotent: true})
		said := operate(t, socket, "findings")
		if !strings.Contains(said, "node 2") || !strings.Contains(said, "NODE_DEAD") {
			return said
		}
		return ""
	})
	if said := operate(t, socket, "doctor", "-ydb", c.Endpoint()); !strings.Contains(said, "warn  sidecar      node 2 ") {
		t.Errorf("the doctor does not name the dead node:\n%s", said)
	}
}
