package systemtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
)

// Callers' credentials go to the cluster, and each identity has a pool of its own, which
// a new ticket of the same user goes on with.
func TestPoolsOfIdentities(t *testing.T) {
	// more than calls wait on a busy machine
	c := startCluster(t, nil, "-user", "alice:1", "-user", "bob:2", "-token", "of the sidecar", "-ticket-life", "8s")
	s := startSidecar(t, c, nil, "wire.mode=transaction", "pool.min=0", "pool.max=3", "ydb.auth.kind=token",
		"ydb.auth.token=of the sidecar")
	alice := openSDK(t, s.sdk(), ydbsdk.WithStaticCredentials("alice", "1"))
	bob := openSDK(t, s.sdk(), ydbsdk.WithStaticCredentials("bob", "2"))
	must(t, alice, "CREATE TABLE of (id Uint64, PRIMARY KEY (id))")
	pools := func() string {
		text := ""
		for _, p := range s.virtualState(t).Pools {
			text += fmt.Sprintf("%s %v; ", p.Identity, p.Sessions > 0 && p.Sessions <= 3)
		}
		return text
	}
	work := call(t, 12, func(ctx context.Context, caller int) error {
		db := alice
		if caller%2 == 0 {
			db = bob
		}
		return db.Query().Do(ctx, func(ctx context.Context, s query.Session) error {
			return s.Exec(ctx, fmt.Sprintf("UPSERT INTO of (id) VALUES (%d)", caller))
		})
	})
	start := time.Now()
	eventually(t, patience, "work goes on past the life of a ticket", func() string {
		if took, n := time.Since(start), work.total(); took < 10*time.Second || n < 100 {
			return fmt.Sprint(took, n)
		}
		return ""
	})
	work.finish()
	if err := work.err(); err != nil {
		t.Error(err)
	}
	if got := pools(); got != "user alice true; user bob true; " && got != "user bob true; user alice true; " {
		t.Errorf("the pools: %s", got)
	}
	// A client with no ticket, or a wrong one, is told so, and nothing is opened for it.
	for name, option := range map[string]ydbsdk.Option{"none": ydbsdk.WithAnonymousCredentials(),
		"wrong": ydbsdk.WithAccessTokenCredentials("wrong")} {
		db, err := ydbsdk.Open(t.Context(), s.sdk(), option)
		if err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			err = db.Query().Exec(ctx, "SELECT 1")
			cancel()
			_ = db.Close(context.Background()) // its sessions are nowhere
		}
		if !ydbsdk.IsOperationError(err, Ydb.StatusIds_UNAUTHORIZED) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	closeSDK(t, alice)
	closeSDK(t, bob)
	c.clean(t, nil)
}

// The sidecar's own credentials are for everybody who reaches its port, if that is wanted.
func TestEverybodyWorksWithTheSidecarsCredentials(t *testing.T) {
	c := startCluster(t, nil, "-user", "alice:1", "-token", "of the sidecar")
	s := startSidecar(t, c, nil, "wire.mode=transaction", "wire.auth=own", "pool.min=0", "ydb.auth.kind=token",
		"ydb.auth.token=of the sidecar")
	for _, option := range []ydbsdk.Option{ydbsdk.WithAnonymousCredentials(), ydbsdk.WithAccessTokenCredentials("wrong")} {
		db := openSDK(t, s.sdk(), option)
		must(t, db, "SELECT 1")
		closeSDK(t, db)
	}
	c.clean(t, nil)
}

// All callers' pools together have no more sessions than allowed, and none of them starves.
func TestIdentitiesShareTheServerSessions(t *testing.T) {
	const most = 4
	c := startCluster(t, nil, "-user", "u0:1", "-user", "u1:1", "-user", "u2:1", "-token", "of the sidecar")
	s := startSidecar(t, c, nil, "wire.mode=transaction", "pool.min=0", "pool.max=10",
		fmt.Sprint("wire.max_server_sessions=", most), "ydb.auth.kind=token", "ydb.auth.token=of the sidecar")
	var clients []*ydbsdk.Driver
	for i := range 3 {
		clients = append(clients, openSDK(t, s.sdk(), ydbsdk.WithStaticCredentials(fmt.Sprint("u", i), "1")))
	}
	c.everywhere(t, "delay", map[string]any{"delay": "10ms", "methods": []string{"ExecuteQuery"}})
	work := call(t, 30, func(ctx context.Context, caller int) error {
		return clients[caller%3].Query().Do(ctx, func(ctx context.Context, s query.Session) error { return s.Exec(ctx, "SELECT 1") })
	})
	peak := 0
	eventually(t, patience, "everybody gets on", func() string {
		// The nodes are asked one after the other: what is there twice was there in between.
		before, both := map[string]bool{}, 0
		for range 2 {
			sessions, err := c.Sessions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			both = 0
			for _, session := range sessions {
				if before[session.ID] {
					both++
				}
				before[session.ID] = isAttached(session)
			}
		}
		peak = max(peak, both)
		for i := range work.good {
			if n := work.good[i].Load(); n < 20 {
				return fmt.Sprintf("caller %d: %d", i, n)
			}
		}
		return ""
	})
	work.finish()
	if err := work.err(); err != nil || peak > most {
		t.Errorf("%v; %d sessions; at most %d are allowed", err, peak, most)
	}
	for _, db := range clients {
		closeSDK(t, db)
	}
}

// For servers that refuse calls of the table service on sessions of the query service.
func TestTableSessionsOfTheirOwn(t *testing.T) {
	c := startCluster(t, nil, "-user", "alice:1", "-token", "of the sidecar")
	s := startSidecar(t, c, nil, "wire.mode=transaction", "wire.table_sessions=own", "pool.min=0", "ydb.auth.kind=token",
		"ydb.auth.token=of the sidecar")
	db := openSDK(t, s.sdk(), ydbsdk.WithStaticCredentials("alice", "1"))
	must(t, db, "CREATE TABLE own (id Uint64, PRIMARY KEY (id))")
	for range 10 {
		err := db.Table().DoTx(t.Context(), func(ctx context.Context, tx table.TransactionActor) error {
			r, err := tx.Execute(ctx, "UPSERT INTO own (id) VALUES (1)", nil)
			if err == nil {
				err = r.Close()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	kinds := map[bool]int{}
	for _, p := range s.virtualState(t).Pools {
		kinds[p.Table] += p.Sessions
	}
	if kinds[true] == 0 || kinds[false] == 0 {
		t.Errorf("sessions of the table service and not: %v", kinds)
	}
	closeSDK(t, db)
	s.endsWell(t)
	c.noSessions(t)
}
