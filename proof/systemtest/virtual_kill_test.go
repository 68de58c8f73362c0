package systemtest

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-sdk/v3/query"

	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/internal/wire"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// virtualState asks the sidecar for its virtual sessions.
func (s *sidecar) virtualState(t *testing.T) virtual.State {
	t.Helper()
	var state wire.State
	if code := callJSON(t, "GET", "http://"+s.Admin+"/state/connections", "", &state); code != 200 || state.Virtual == nil {
		t.Fatalf("/state/connections: %d, %+v", code, state)
	}
	return *state.Virtual
}

// inLine waits until n calls wait for a session of the pools of clients.
func (s *sidecar) inLine(t *testing.T, n int) {
	t.Helper()
	eventually(t, patience, fmt.Sprintf("%d calls wait for a session", n), func() string {
		state, waiting := s.virtualState(t), 0
		for _, p := range state.Pools {
			waiting += p.Waiting
		}
		if waiting != n {
			return fmt.Sprintf("%+v", state)
		}
		return ""
	})
}

// A client is killed in the middle of a transaction, and the only server session is its: it is
// rolled back, and who waits for a session has one at once.
func TestKilledClientFreesItsSession(t *testing.T) {
	const longest = 5 * time.Second // the goal is 1 s, on a machine that does nothing else
	for _, mode := range []string{"transaction", "session"} {
		for _, service := range []string{"query", "table"} {
			t.Run(mode+"/"+service, func(t *testing.T) {
				c := startCluster(t, nil)
				s := startSidecar(t, c, nil, "wire.mode="+mode, "pool.max=1", "pool.min=0")
				db := openSDK(t, s.sdk())
				must(t, db, "CREATE TABLE held (id Uint64, PRIMARY KEY (id))")
				closeSDK(t, db)
				victim := standtest.Start(t, stand.Spec{
					Path: officialPython(t), Args: []string{filepath.Join("testdata", "python", "hold.py")},
					Env: []string{"YDB_URL=grpc://" + s.GRPC, "YDB_SERVICE=" + service},
				})
				standtest.Ready(t, victim)
				s.bound(t, "in a transaction", 1) // from the end of the call on, of which the client hears first
				if open := c.sum(t, "open"); open != 1 {
					t.Fatalf("%d transactions are open; want 1", open)
				}
				db = openSDK(t, s.sdk())
				type served struct {
					at   time.Time
					rows uint64
					err  error
				}
				waiter := make(chan served, 1)
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), sdkPatience)
					defer cancel()
					rows, err := number(ctx, db, "SELECT COUNT(*) FROM held", query.WithIdempotent())
					waiter <- served{time.Now(), rows, err}
				}()
				s.inLine(t, 1)
				killed := time.Now()
				if err := victim.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				got := <-waiter
				took := got.at.Sub(killed)
				t.Logf("who waited was served %v after the kill", took.Round(100*time.Microsecond))
				if got.err != nil || got.rows != 0 || took > longest {
					t.Errorf("who waited was served after %v: %d rows, %v; want at most %v and 0", took, got.rows, got.err, longest)
				}
				if open, sessions := c.sum(t, "open"), sum(c.attached(t)); open != 0 || sessions > 1 {
					t.Errorf("%d transactions are open, and there are %d sessions; want 0 and at most 1", open, sessions)
				}
			})
		}
	}
}
