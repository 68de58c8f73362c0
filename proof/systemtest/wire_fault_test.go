package systemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
)

// sdkLoad is callers of an official client, whose work is safe to repeat.
type sdkLoad struct {
	*callers
	longest atomic.Int64 // call, in nanoseconds
}

const sdkPatience = 20 * time.Second // deadline of each call

func loadSDK(t *testing.T, db *ydbsdk.Driver, n int) *sdkLoad {
	t.Helper()
	l := &sdkLoad{}
	l.callers = call(t, n, func(ctx context.Context, caller int) error {
		ctx, cancel := context.WithTimeout(ctx, sdkPatience)
		defer cancel()
		start := time.Now()
		err := oneSDKCall(ctx, db, caller)
		for took := int64(time.Since(start)); ; {
			if was := l.longest.Load(); was >= took || l.longest.CompareAndSwap(was, took) {
				return err
			}
		}
	})
	return l
}

// oneSDKCall is a statement on a session of the query service or the table service,
// or a call that is bound to no session.
func oneSDKCall(ctx context.Context, db *ydbsdk.Driver, caller int) error {
	switch caller % 4 {
	case 0, 1:
		_, err := number(ctx, db, "SELECT COUNT(*) FROM load", query.WithIdempotent())
		return err
	case 2:
		return db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
			_, r, err := s.Execute(ctx, table.DefaultTxControl(), "SELECT COUNT(*) FROM load", nil)
			if err != nil {
				return err
			}
			return r.Close()
		}, table.WithIdempotent())
	}
	_, err := db.Scheme().ListDirectory(ctx, "/local")
	return err
}

// goesOn waits until every caller has had n more good answers.
func (l *sdkLoad) goesOn(t *testing.T, n int64) {
	t.Helper()
	from := make([]int64, len(l.good))
	for i := range l.good {
		from[i] = l.good[i].Load()
	}
	eventually(t, patience, "every caller goes on", func() string {
		for i := range l.good {
			if got := l.good[i].Load() - from[i]; got < n {
				return fmt.Sprintf("caller %d has %d more answers; the first error is %v", i, got, l.err())
			}
		}
		return ""
	})
}

// allWell ends the load, of which no call may have failed or lasted longer.
func (l *sdkLoad) allWell(t *testing.T, longest time.Duration) {
	t.Helper()
	l.stop()
	if err := l.err(); err != nil {
		t.Errorf("a call, which is safe to repeat, failed: %v", err)
	}
	if took := time.Duration(l.longest.Load()); took > longest {
		t.Errorf("a call took %v; want at most %v", took, longest)
	}
	t.Logf("%d calls, the longest took %v", l.total(), time.Duration(l.longest.Load()).Round(time.Millisecond))
}

// awaitEjection waits until the sidecar has ejected a node, and said why, in a word
// of the reason, since its log was that long. What it says later comes of its probes.
func (s *sidecar) awaitEjection(t *testing.T, id uint32, reasons ...string) {
	t.Helper()
	start := time.Now()
	var why string
	eventually(t, patience, fmt.Sprintf("node %d is ejected for %q", id, reasons), func() string {
		for line := range strings.Lines(s.Process.Log()) {
			var event struct {
				Node       uint32
				To, Reason string
			}
			if json.Unmarshal([]byte(line), &event) != nil || event.Node != id || event.To != "ejected" {
				continue
			}
			why = event.Reason
			for _, reason := range reasons {
				if strings.Contains(why, reason) {
					return ""
				}
			}
		}
		nodes, _ := s.nodes(t)
		return fmt.Sprintf("%+v, last ejected for %q", nodes[id], why)
	})
	if nodes, _ := s.nodes(t); nodes[id].Reason == "" || nodes[id].Health == "healthy" {
		t.Errorf("node %d was ejected for %q, and the state is %+v", id, why, nodes[id])
	}
	t.Logf("node %d is ejected after %v: %s", id, time.Since(start).Round(10*time.Millisecond), why)
}

// getsCalls waits until a node serves clients on sessions of its own.
func (c *ydb) getsCalls(t *testing.T, id uint32, s *sidecar) {
	t.Helper()
	owned := func() int64 {
		for _, n := range c.state(t) {
			if n.ID == id {
				return n.Counters["owned"]
			}
		}
		return 0
	}
	before := owned()
	eventually(t, patience, fmt.Sprintf("node %d gets calls again", id), func() string {
		db := openSDK(t, s.sdk()) // with new sessions
		defer closeSDK(t, db)
		for range 10 {
			_ = db.Query().Do(t.Context(), func(ctx context.Context, s query.Session) error { return s.Exec(ctx, "SELECT 1") })
		}
		if owned() == before {
			return "none"
		}
		return ""
	})
}

func startWire(t *testing.T, through []string, args ...string) (*ydb, *sidecar, *ydbsdk.Driver) {
	t.Helper()
	c := startCluster(t, nil, args...)
	s := startSidecar(t, c, nil, through...)
	db := openSDK(t, s.sdk())
	must(t, db, "CREATE TABLE load (id Uint64, PRIMARY KEY (id))")
	return c, s, db
}

// Node after node is killed while a client works: what is safe to repeat succeeds.
func TestSDKGoesOnWhileNodesAreKilled(t *testing.T) {
	everyMode(t, func(t *testing.T, through []string) {
		c, s, db := startWire(t, through, "-processes", "-data", filepath.Join(t.TempDir(), "data"))
		load, python := loadSDK(t, db, 12), loadPython(t, s)
		goesOn := func() {
			t.Helper()
			load.goesOn(t, 10)
			python.goesOn(t, 50)
		}
		for _, victim := range c.Nodes[1:] {
			goesOn()
			kill(t, c, victim.ID)
			s.awaitEjection(t, victim.ID, "UNAVAILABLE")
			goesOn()
			c.do(t, victim.ID, "start", nil)
			s.awaitUse(t, victim.ID, "new")
			c.getsCalls(t, victim.ID, s)
		}
		goesOn()
		load.allWell(t, sdkPatience)
		python.allWell(t)
	})
}

// A node that is swallowed by the network: calls there end long before their
// deadline, and the sidecar knows why.
func TestSDKGoesOnWhileANodeIsSilent(t *testing.T) {
	everyMode(t, func(t *testing.T, through []string) {
		c, s, db := startWire(t, through)
		load, python := loadSDK(t, db, 16), loadPython(t, s)
		load.goesOn(t, 10)
		python.goesOn(t, 50)
		c.do(t, 2, "blackhole", nil)
		s.awaitEjection(t, 2, "a connection with calls outstanding is dead", "probe: ")
		load.goesOn(t, 10)
		python.goesOn(t, 50)
		c.do(t, 2, "clear", nil)
		s.awaitUse(t, 2, "new")
		c.getsCalls(t, 2, s)
		python.allWell(t)
		load.allWell(t, sdkPatience/2) // the node is found after health.silence + health.probe_timeout, 3 s
	})
}

// A node that refuses, and quickly so, gets nothing that another node can do: its
// status is read from the answers, of which the sidecar decodes none. Calls on
// sessions that clients have there still go there: the client decides.
func TestSDKGoesOnWhileANodeRefuses(t *testing.T) {
	everyMode(t, func(t *testing.T, through []string) {
		c, s, db := startWire(t, through)
		unbound := call(t, 4, func(ctx context.Context, _ int) error {
			_, err := db.Scheme().ListDirectory(ctx, "/local")
			return err
		})
		fresh := func() error { // a client that makes its first session
			db := openSDK(t, s.sdk())
			defer closeSDK(t, db)
			ctx, cancel := context.WithTimeout(t.Context(), sdkPatience)
			defer cancel()
			return db.Query().Do(ctx,
				func(ctx context.Context, s query.Session) error { return s.Exec(ctx, "SELECT 1") },
				query.WithIdempotent())
		}
		c.do(t, 3, "errors", map[string]any{"status": "grpc:RESOURCE_EXHAUSTED", "methods": []string{"CreateSession", "ListDirectory"}})
		s.awaitEjection(t, 3, "RESOURCE_EXHAUSTED")
		unbound.stop() // some were refused by the node
		failures := func() (n int64) {
			for _, node := range c.state(t) {
				if node.ID == 3 {
					n = node.Counters["failures"]
				}
			}
			return n
		}
		before := failures()
		for range 20 {
			if _, err := db.Scheme().ListDirectory(t.Context(), "/local"); err != nil {
				t.Errorf("with the node ejected: %v", err)
			}
			if err := fresh(); err != nil {
				t.Errorf("with the node ejected: %v", err)
			}
		}
		if n := failures() - before; n > 15 { // of probes
			t.Errorf("the node refused %d calls after it was ejected", n)
		}
		c.do(t, 3, "clear", nil)
		s.awaitUse(t, 3, "new")
		c.getsCalls(t, 3, s)
	})
}
