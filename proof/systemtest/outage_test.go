package systemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// ejection is a node that the sidecar took out of use.
type ejection struct {
	Time       time.Time
	Node       uint32
	To, Reason string
}

// ejections are those so far, by the sidecar's log.
func (s *sidecar) ejections() (all []ejection) {
	for line := range strings.Lines(s.Process.Log()) {
		var event ejection
		if json.Unmarshal([]byte(line), &event) == nil && event.To == "ejected" {
			all = append(all, event)
		}
	}
	return all
}

// stalls are the times at which the cluster, the sidecar or this test stood still.
type stalls struct {
	mu     sync.Mutex // guards all below
	rounds int
	seen   []stall
}

type stall struct{ from, to time.Time }

// watchStalls asks the cluster and the sidecar again and again how long an answer takes.
func watchStalls(t *testing.T, c *ydb, s *sidecar) *stalls {
	t.Helper()
	var w stalls
	call(t, 1, func(ctx context.Context, _ int) error {
		from := time.Now()
		if _, err := c.Control.Nodes(ctx); err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Admin+"/livez", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		_ = response.Body.Close() // nothing of it is wanted
		time.Sleep(20 * time.Millisecond)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.rounds++
		if to := time.Now(); to.Sub(from) > 500*time.Millisecond { // half of health.probe_timeout
			w.seen = append(w.seen, stall{from, to})
		}
		return nil
	})
	return &w
}

// explain reports whether a probe was not answered because something stood still.
func (w *stalls) explain(t *testing.T, e ejection) bool {
	t.Helper()
	if !strings.HasPrefix(e.Reason, "probe: ") {
		return false
	}
	first := -1
	eventually(t, patience, "a stall that goes on would be known", func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		if first < 0 {
			first = w.rounds
		}
		if w.rounds < first+2 {
			return "not yet"
		}
		return ""
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.seen, func(s stall) bool { return s.from.Before(e.Time) && e.Time.Before(s.to.Add(time.Second)) })
}

// A hot table, a full disk, a spent quota, a full resource pool: every node says so, and
// none of them is to blame. Calls that have nothing to do with it go on, and the sidecar
// names what it is.
func TestNoNodeIsBlamedForTheDatabase(t *testing.T) {
	const callers = 6
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "pool.max=30")
	db := openSDK(t, s.sdk())
	for _, table := range []string{"hot", "other"} {
		must(t, db, "CREATE TABLE "+table+" (id Uint64, PRIMARY KEY (id))")
	}
	var others, struck atomic.Int64
	call(t, callers, writesTo(s, db, "hot", &struck))
	call(t, 2, writesTo(s, db, "other", &others))
	still := watchStalls(t, c, s)
	for _, fault := range []struct {
		stand.Fault
		finding, says string
	}{
		{stand.Fault{Kind: "hot_shard", Table: "hot"}, "TABLE_OVERLOADED", "/local/hot"},
		{stand.Fault{Kind: "disk_full", Table: "hot"}, "DISK_FULL", "/local/hot"},
		{stand.Fault{Kind: "quota", Table: "hot", Delay: "1ms"}, "DATABASE_QUOTA", "quota"},
		{stand.Fault{Kind: "pool_full", Table: "hot"}, "RESOURCE_POOL_FULL", "default"},
		{stand.Fault{Kind: "shard_busy", Table: "hot"}, "TABLE_OVERLOADED", "/local/hot"},
		{stand.Fault{Kind: "compute_node", Table: "hot"}, "CLUSTER_OVERLOADED", "the cluster rejects calls"},
	} {
		for _, share := range []float64{1, 0.5} {
			t.Run(fmt.Sprintf("%s_%v", fault.Kind, share), func(t *testing.T) {
				before := s.ejections()
				fault.Share = share
				id, err := c.AddFault(t.Context(), fault.Fault)
				if err != nil {
					t.Fatal(err)
				}
				from, rest := struck.Load(), others.Load()
				eventually(t, patience, "the sidecar says what it is, and calls go on", func() string {
					var r report
					if status := callJSON(t, http.MethodGet, "http://"+s.Admin+"/state/findings", "", &r); status != http.StatusOK {
						return fmt.Sprint(status)
					}
					i := slices.Index(r.codes(), fault.finding)
					if i < 0 || !strings.Contains(r.Findings[i].Text, fault.says) {
						return fmt.Sprintf("%+v; ejections %v", r.Findings, s.ejections()[len(before):])
					}
					if struck.Load() < from+100 || others.Load() < rest+100 {
						return "few calls"
					}
					return ""
				})
				if err := c.RemoveFault(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				for _, ejected := range s.ejections()[len(before):] {
					if still.explain(t, ejected) { // none of the faults is the silence of a node
						t.Logf("ejected as the machine stood still: %+v", ejected)
						continue
					}
					t.Errorf("ejected: %+v", ejected)
				}
			})
		}
	}
}

// writesTo counts writes of one row, every other one by an SDK, that have 300 ms each. They may fail.
func writesTo(s *sidecar, db *ydbsdk.Driver, table string, count *atomic.Int64) func(context.Context, int) error {
	sql := "UPSERT INTO " + table + " (id) VALUES (1u)"
	return func(ctx context.Context, i int) error {
		if i%2 == 0 {
			_, _ = s.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: sql, Timeout: "300ms"})
		} else {
			one, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			_ = db.Query().Do(one, func(ctx context.Context, s query.Session) error {
				_ = s.Exec(ctx, sql)
				return nil // it is not repeated
			})
		}
		count.Add(1)
		return nil
	}
}
