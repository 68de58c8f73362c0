package officialtest

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// inBubble runs a cluster and the official client where time is not real. One thread at a time runs Go
// code: the race detector of Go 1.26 has one context for the timers of a bubble, whichever thread runs
// them, and two threads that run timers of one instant make it crash.
func inBubble(t *testing.T, change func(*devcluster.Config), f func(*testing.T, *devcluster.Cluster, *ydb.Driver), options ...ydb.Option) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := devcluster.Default()
		n.use(&c)
		if change != nil {
			change(&c)
		}
		cluster, err := devcluster.Start(c)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := cluster.Close(); err != nil {
				t.Errorf("close the cluster: %v", err)
			}
		}()
		db, err := ydb.Open(t.Context(), cluster.Endpoint(), append(options, n.option())...)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := db.Close(t.Context()); err != nil {
				t.Errorf("close the driver: %v", err)
			}
		}()
		f(t, cluster, db)
	})
}

// Rule 1: the client pings every 10 s, with and without a call in flight; a
// server with gRPC's defaults breaks the connection after a minute and with it
// the attach streams. Rule 9 again: the attach stream stays open for hours.
func TestRule01KeepalivePings(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, cluster *devcluster.Cluster, db *ydb.Driver) {
		if err := db.Query().Exec(t.Context(), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		before := cluster.Sessions()
		time.Sleep(6 * time.Hour)
		after := cluster.Sessions()
		if len(before) != 1 || len(after) != 1 || before[0].ID != after[0].ID || !after[0].Attached {
			t.Errorf("the client's session was %+v; six hours later it is %+v", before, after)
		}
		if err := db.Query().Exec(t.Context(), "SELECT 1"); err != nil {
			t.Error(err)
		}
		if got := cluster.Sessions(); got[0].ID != before[0].ID {
			t.Error("the client uses another session")
		}
	})
}

// Table sessions end when no call uses them; the client makes another one.
func TestIdleTableSessions(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, cluster *devcluster.Cluster, db *ydb.Driver) {
		use := func() {
			err := db.Table().Do(t.Context(), func(ctx context.Context, s table.Session) error {
				_, r, err := s.Execute(ctx, table.DefaultTxControl(), "SELECT 1", nil)
				if err != nil {
					return err
				}
				return r.Close()
			})
			if err != nil {
				t.Error(err)
			}
		}
		use()
		time.Sleep(devcluster.Default().SessionIdle + time.Second)
		if got := cluster.Sessions(); len(got) != 0 {
			t.Errorf("sessions left: %+v", got)
		}
		use()
	}, ydb.WithSessionPoolIdleThreshold(0))
}

// Rule 19 again: the client reads the expiry of its ticket and logs in again.
func TestRule19TicketsExpire(t *testing.T) {
	users := func(c *devcluster.Config) { c.Users, c.TicketLife = map[string]string{"root": "1234"}, time.Hour }
	inBubble(t, users, func(t *testing.T, _ *devcluster.Cluster, db *ydb.Driver) {
		for range 5 {
			if err := db.Query().Exec(t.Context(), "SELECT 1"); err != nil {
				t.Error(err)
			}
			time.Sleep(50 * time.Minute)
		}
	}, ydb.WithStaticCredentials("root", "1234"))
}
