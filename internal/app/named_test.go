package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/snapshot/kill"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// knowsNodes waits until calls can be sent to nodes: one without a name is.
func (s *sidecar) knowsNodes() {
	s.Helper()
	s.eventually("nodes are known", func() bool { return s.sdk(s.Context(), "").run("", "SELECT 1") == nil })
}

// sdk is a client of YDB's own protocol that names itself.
type sdk struct {
	*sidecar
	ctx context.Context
}

func (s *sidecar) sdk(ctx context.Context, app string) sdk {
	pairs := []string{"x-ydb-database", "/local", "x-ydb-client-pid", "4711"}
	if app != "" {
		pairs = append(pairs, "x-ydb-application-name", app)
	}
	return sdk{s, metadata.AppendToOutgoingContext(ctx, pairs...)}
}

// run runs a statement, on a session if one is named.
func (c sdk) run(session, text string) error {
	return c.send(&Ydb_Query.ExecuteQueryRequest{
		SessionId: session, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: text}},
	})
}

// send sends a statement and reads its answer.
func (c sdk) send(r *Ydb_Query.ExecuteQueryRequest) error {
	stream, err := Ydb_Query_V1.NewQueryServiceClient(c.conn).ExecuteQuery(c.ctx, r)
	var failed error
	for err == nil { // to the end: until then the session is busy
		var part *Ydb_Query.ExecuteQueryResponsePart
		if part, err = stream.Recv(); err == nil && part.Status != Ydb.StatusIds_SUCCESS {
			failed = fmt.Errorf("%v %v", part.Status, part.Issues)
		}
	}
	if errors.Is(err, io.EOF) {
		return failed
	}
	return err
}

// must runs a statement.
func (c sdk) must(session string) {
	c.Helper()
	if err := c.run(session, "SELECT 1"); err != nil {
		c.Fatal(err)
	}
}

// session makes a session of the query service and attaches to it.
func (c sdk) session() string {
	c.Helper()
	client := Ydb_Query_V1.NewQueryServiceClient(c.conn)
	made, err := client.CreateSession(c.ctx, &Ydb_Query.CreateSessionRequest{})
	if err != nil || made.Status != Ydb.StatusIds_SUCCESS {
		c.Fatal(made, err)
	}
	stream, err := client.AttachSession(c.ctx, &Ydb_Query.AttachSessionRequest{SessionId: made.SessionId})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		c.Fatal(err)
	}
	return made.SessionId
}

// tableQuery runs a statement on a session of the table service.
func (c sdk) tableQuery() {
	c.Helper()
	client := Ydb_Table_V1.NewTableServiceClient(c.conn)
	made, err := client.CreateSession(c.ctx, &Ydb_Table.CreateSessionRequest{})
	if err != nil {
		c.Fatal(err)
	}
	var session Ydb_Table.CreateSessionResult
	if err := made.GetOperation().GetResult().UnmarshalTo(&session); err != nil {
		c.Fatal(err)
	}
	r, err := client.ExecuteDataQuery(c.ctx, &Ydb_Table.ExecuteDataQueryRequest{
		SessionId: session.SessionId, Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_YqlText{YqlText: "SELECT 1"}},
		TxControl: &Ydb_Table.TransactionControl{CommitTx: true,
			TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{
				TxMode: &Ydb_Table.TransactionSettings_SerializableReadWrite{
					SerializableReadWrite: &Ydb_Table.SerializableModeSettings{},
				}}}},
	})
	if err != nil || r.GetOperation().GetStatus() != Ydb.StatusIds_SUCCESS {
		c.Fatal(r, err)
	}
}

// byApp counts the sessions of a cluster by the application that they were made for.
func byApp(c *devcluster.Cluster) map[string]int {
	count := map[string]int{}
	for _, s := range c.Sessions() {
		count[s.Application]++
	}
	return count
}

// poolsByApp are the pools of callers by their apps.
func (s *sidecar) poolsByApp() map[string]int {
	var st struct {
		Virtual struct {
			Pools []struct {
				App      string `json:"app"`
				Sessions int    `json:"sessions"`
			} `json:"pools"`
			Unnamed int `json:"unnamed"`
		} `json:"virtual_sessions"`
	}
	s.state("/state/connections", &st)
	all := map[string]int{}
	for _, p := range st.Virtual.Pools {
		all[p.App] += p.Sessions
	}
	return all
}

// In every mode, and whosever the credentials are, the cluster's sessions bear the names of the apps that they are
// made for; what comes without a name uses sessions without one.
func TestSessionsBearTheNamesOfApps(t *testing.T) {
	for _, mode := range []string{"transaction", "session", "passthrough"} {
		for _, auth := range []string{"caller", "own"} {
			if mode == "passthrough" && auth == "own" {
				continue
			}
			t.Run(mode+" "+auth, func(t *testing.T) {
				c := newCluster(t)
				s := start(t, c.Endpoint(), "wire.mode="+mode, "wire.auth="+auth, "apps.sessions=wire")
				s.knowsNodes()
				for _, app := range []string{"", "shop", "reports"} {
					one := s.sdk(t.Context(), app)
					one.must(one.session())
					if mode != "passthrough" {
						one.must("") // without a session
						one.tableQuery()
					}
				}
				s.eventually("each app has sessions, and nobody else has", func() bool {
					got := byApp(c)
					return len(got) == 3 && got[""] > 0 && got["shop"] > 0 && got["reports"] > 0
				})
				for _, one := range c.Sessions() {
					if one.Application == "" { // nodes may be probed
						continue
					}
					if want := map[bool]string{true: "4711"}[mode == "passthrough"]; one.ClientPID != want {
						t.Errorf("client pid %q of a session of %q; want %q", one.ClientPID, one.Application, want)
					}
				}
			})
		}
	}
}

// A session keeps the name that it was created with, whatever later calls on it say.
func TestASessionKeepsItsName(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "wire.auth=caller", "apps.sessions=wire")
	s.knowsNodes()
	shop := s.sdk(t.Context(), "shop")
	id := shop.session()
	for _, app := range []string{"", "reports", "shop"} {
		s.sdk(t.Context(), app).must(id)
	}
	unnamed := s.sdk(t.Context(), "").session()
	shop.must(unnamed)
	if got := byApp(c); len(got) != 2 || got["shop"] == 0 || got[""] == 0 {
		t.Errorf("sessions by application: %v; want some of shop, and some without a name", got)
	}
	other := sdk{s, metadata.AppendToOutgoingContext(shop.ctx, "x-ydb-auth-ticket", "somebody else")}
	if err := other.run(id, "SELECT 1"); err == nil || !strings.Contains(err.Error(), "BAD_SESSION") {
		t.Errorf("another identity on the session: %v; want BAD_SESSION", err)
	}
}

// With apps.sessions=none all share sessions that bear no name, and so does an app whose name is none.
func TestSessionsWithoutNames(t *testing.T) {
	for setting, app := range map[string]string{"apps.sessions=none": "shop", "apps.sessions=wire": "a name with blanks"} {
		t.Run(setting, func(t *testing.T) {
			c := newCluster(t)
			s := start(t, c.Endpoint(), setting)
			s.knowsNodes()
			one := s.sdk(t.Context(), app)
			one.must(one.session())
			if got := byApp(c); got[""] == 0 || len(got) != 1 {
				t.Errorf("sessions by application: %v", got)
			}
		})
	}
}

// All apps of an identity have together as many sessions as pool.max, which a reload changes.
func TestAppsShareTheLimitOfTheirIdentity(t *testing.T) {
	for _, auth := range []string{"caller", "own"} {
		t.Run(auth, func(t *testing.T) {
			c := newCluster(t)
			file := t.TempDir() + "/sidecar.yaml"
			write(t, file, "reload.interval: 0s\npool.max: 8\n")
			s := startWith(t, file, c.Endpoint(), "wire.auth="+auth, "pool.shed=off", "apps.sessions=wire")
			s.knowsNodes()
			ctx, cancel := context.WithCancel(t.Context())
			var load sync.WaitGroup
			defer load.Wait()
			defer cancel()
			for _, app := range []string{"", "shop", "reports"} {
				for range 8 {
					load.Go(func() {
						one := s.sdk(ctx, app)
						for ctx.Err() == nil {
							if err := one.run("", "SELECT 1"); err != nil && ctx.Err() == nil {
								t.Errorf("%q: %v", app, err)
								return
							}
						}
					})
				}
			}
			reach := func(want int) {
				t.Helper()
				s.eventually(fmt.Sprint("all have ", want, " sessions"), func() bool {
					got, sum := byApp(c), 0
					for _, n := range got {
						sum += n
					}
					return sum == want && got[""] > 0 && got["shop"] > 0 && got["reports"] > 0
				})
			}
			reach(8)
			write(t, file, "reload.interval: 0s\npool.max: 16\n")
			if _, err := s.Reload("test", false); err != nil {
				t.Fatal(err)
			}
			reach(16)
			write(t, file, "reload.interval: 0s\npool.max: 9\n")
			if _, err := s.Reload("test", false); err != nil {
				t.Fatal(err)
			}
			reach(9)
		})
	}
}

// One app for each four sessions of pool.max has sessions of its own. Further ones share those without a name, which
// is counted, and logged once.
func TestMoreAppsThanMayHaveSessions(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "pool.max=9", "apps.sessions=wire")
	s.knowsNodes()
	for i := range 5 {
		one := s.sdk(t.Context(), "app-"+strconv.Itoa(i))
		one.must(one.session())
		one.must("")
	}
	got := s.poolsByApp()
	if len(got) != 3 || got["app-0"] == 0 || got["app-1"] == 0 || got[""] == 0 {
		t.Errorf("pools by app: %v", got)
	}
	s.eventually("the cluster has the same", func() bool { return maps.Equal(byApp(c), s.poolsByApp()) })
	if n := strings.Count(s.log.String(), "more apps than may have sessions of their own"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	if unnamed := s.wire.Stats().Virtual.Unnamed; unnamed < 3 {
		t.Errorf("%d callers counted as without a name; want at least 3", unnamed)
	}
}

// Operators pause, resize, list and end the sessions of apps with the sidecar's own credentials as those of the plain API.
func TestOperatorsReachTheSessionsOfApps(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "wire.auth=own", "pool.max=8", "apps.sessions=wire")
	s.knowsNodes()
	shop := s.sdk(t.Context(), "shop")
	shop.must("")
	hashes := func() (all []string) {
		for _, l := range s.views.SessionLines(0) {
			all = append(all, l.Session)
		}
		return all
	}
	if n := byApp(c)["shop"]; n == 0 {
		t.Fatal("the app has no session")
	}
	s.eventually("it is killed", func() bool {
		for _, hash := range hashes() {
			_, _ = kill.Killer{Views: &s.views.Source, Log: s.App.log}.Session(hash) // it may have gone
		}
		return byApp(c)["shop"] == 0
	})
	if err := (pools{s.App}).Pause(true); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 2)
	late := s.sdk(t.Context(), "late") // its pool is made meanwhile
	go func() { done <- shop.run("", "SELECT 1") }()
	go func() { done <- late.run("", "SELECT 1") }()
	waiting := func() (n int) {
		for _, p := range s.wire.Stats().Virtual.Pools {
			n += p.Waiting
		}
		return n
	}
	s.eventually("both wait", func() bool { return waiting() == 2 })
	if err := (pools{s.App}).Pause(false); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := (pools{s.App}).Resize(12, -1); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.core.ownPools() {
		if p.Config().Max != 12 {
			t.Errorf("a pool has at most %d sessions; want 12", p.Config().Max)
		}
	}
}

// A stop resumes the pools of apps that are paused: what waits is served.
func TestStopResumesPausedApps(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "wire.auth=own", "apps.sessions=wire")
	s.knowsNodes()
	shop := s.sdk(context.Background(), "shop")
	shop.must("")
	if err := (pools{s.App}).Pause(true); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- shop.run("", "SELECT 1") }()
	s.eventually("it waits", func() bool {
		for _, p := range s.wire.Stats().Virtual.Pools {
			if p.Waiting > 0 {
				return true
			}
		}
		return false
	})
	s.signal()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("what waited was not served")
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	s.eventually("no session is left", func() bool { return len(c.Sessions()) == 0 })
}

// Sessions of mode session that keep all that the apps of an identity may have are told as such to another app.
func TestOneAppKeepsTheSessionsOfAll(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := start(t, c.Endpoint(), "wire.mode=session", "pool.max=4", "apps.sessions=wire")
	s.knowsNodes()
	shop := s.sdk(t.Context(), "shop")
	for range 4 {
		shop.must(shop.session())
	}
	if err := s.sdk(t.Context(), "").run("", "SELECT 1"); err == nil || !strings.Contains(err.Error(), "wire.mode=session") {
		t.Errorf("%v; want it to name wire.mode=session", err)
	}
}

// statementsOf sends statements as an SDK does for an app, which name a resource pool
// or none: without a session, on one, and in a transaction. It returns which failed.
func (s *sidecar) statementsOf(t *testing.T, app, session, pool string) (failed []string) {
	t.Helper()
	c := s.sdk(t.Context(), app)
	q := Ydb_Query_V1.NewQueryServiceClient(c.conn)
	begun, err := q.BeginTransaction(
		c.ctx, &Ydb_Query.BeginTransactionRequest{SessionId: session, TxSettings: &Ydb_Query.TransactionSettings{
			TxMode: &Ydb_Query.TransactionSettings_SerializableReadWrite{SerializableReadWrite: &Ydb_Query.SerializableModeSettings{}},
		}},
	)
	if err != nil || begun.Status != Ydb.StatusIds_SUCCESS {
		t.Fatal(begun, err)
	}
	for what, r := range map[string]*Ydb_Query.ExecuteQueryRequest{
		"without a session": {},
		"on a session":      {SessionId: session},
		"in a transaction": {SessionId: session, TxControl: &Ydb_Query.TransactionControl{CommitTx: true,
			TxSelector: &Ydb_Query.TransactionControl_TxId{TxId: begun.TxMeta.Id}}},
	} {
		r.ExecMode, r.PoolId = Ydb_Query.ExecMode_EXEC_MODE_EXECUTE, pool
		r.Query = &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}}
		if err := c.send(r); err != nil {
			failed = append(failed, what)
		}
	}
	return failed
}

// fillPool has a resource pool refuse statements until empty is called.
func fillPool(t *testing.T, c *devcluster.Cluster, pool string) (empty func()) {
	t.Helper()
	fault, err := c.AddFault(t.Context(), devcluster.Fault{Kind: devcluster.PoolFull, Pool: pool, Share: 1})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := c.RemoveFault(t.Context(), fault.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// Statements of an app with pool_id in apps.limits run in that resource pool, over both APIs, alone and in transactions,
// and those of other apps do not, nor those that name a pool. A reload changes it.
func TestStatementsInTheResourcePoolOfTheirApp(t *testing.T) {
	c := newCluster(t)
	file := t.TempDir() + "/sidecar.yaml"
	write(t, file, "reload.interval: 0s\napps.limits: [reports pool_id=olap]\n")
	s := startWith(t, file, c.Endpoint())
	s.knowsNodes()
	run := func(app, timeout string, tx *sidecarv1.TxSelector) error {
		_, err := s.client.Execute(
			metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", app),
			&sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: timeout, Tx: tx},
		)
		return err
	}
	// With and without a session, in a transaction of its own and in one that was begun before.
	sessions := map[string]string{}
	for _, app := range []string{"reports", "shop"} {
		sessions[app] = s.sdk(t.Context(), app).session()
	}
	runSDK := func(app, pool string) []string { return s.statementsOf(t, app, sessions[app], pool) }
	// What is struck is sent again until its time is up.
	check := func(what string, works, fails string) {
		t.Helper()
		if err := run(works, "1m", nil); err != nil {
			t.Errorf("%s: %s: %v", what, works, err)
		}
		if err := run(fails, "300ms", nil); err == nil {
			t.Errorf("%s: %s ran in the full pool", what, fails)
		}
		if failed := runSDK(works, ""); len(failed) != 0 {
			t.Errorf("%s: %s over YDB's protocol fails %v", what, works, failed)
		}
		if failed := runSDK(fails, ""); len(failed) != 3 {
			t.Errorf("%s: %s over YDB's protocol fails only %v", what, fails, failed)
		}
		if failed := runSDK(fails, "another"); len(failed) != 0 {
			t.Errorf("%s: %s over YDB's protocol, in a pool that it names, fails %v", what, fails, failed)
		}
	}
	empty := fillPool(t, c, "")
	check("the default pool is full", "reports", "shop")
	begun, err := s.client.Begin(metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", "reports"), &sidecarv1.BeginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := run("reports", "1m", &sidecarv1.TxSelector{Id: begun.Tx.Id, Seq: 1, Commit: true}); err != nil {
		t.Errorf("in a transaction: %v", err)
	}
	empty()
	empty = fillPool(t, c, "olap")
	check("the pool of the app is full", "shop", "reports")
	write(t, file, "reload.interval: 0s\napps.limits: [shop pool_id=olap]\n")
	if _, err := s.Reload("test", false); err != nil {
		t.Fatal(err)
	}
	check("after a reload", "reports", "shop")
	empty()
}

// A name has sessions of its own for each four of pool.max.
func TestNamesForAPool(t *testing.T) {
	for most, want := range map[int]int{1: 0, 3: 0, 4: 1, 9: 2, 50: 12} {
		if got := namesFor(pool.Config{Max: most}); got != want {
			t.Errorf("pool.max=%d: %d apps; want %d", most, got, want)
		}
	}
}
