package systemtest

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// bound waits until so many virtual sessions have a server session while they do nothing.
func (s *sidecar) bound(t *testing.T, what string, n int) {
	t.Helper()
	eventually(t, patience, fmt.Sprintf("%s: %d bound", what, n), func() string {
		if got := s.virtualState(t).Bound; got != n {
			return fmt.Sprintf("%+v", s.virtualState(t))
		}
		return ""
	})
}

// applications counts the sessions of the cluster by the application that they were made for.
func (c *ydb) applications(t *testing.T) map[string]int {
	t.Helper()
	var said struct {
		Sessions []struct{ Application string }
	}
	if code := callJSON(t, "GET", "http://"+c.Address+"/sessions", "", &said); code != 200 {
		t.Fatal(code)
	}
	count := map[string]int{}
	for _, session := range said.Sessions {
		count[session.Application]++
	}
	return count
}

// Applications have the mode that wire.apps names for them, side by side, by the name that the SDK sends, which
// their sessions bear on the cluster in each mode.
func TestModesByApplication(t *testing.T) {
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, append(inMode("transaction"), "wire.apps=batch=session,old=passthrough")...)
	type client struct {
		name   string
		bound  int
		atNode bool // its sessions are the cluster's
	}
	all := []client{{"", 0, false}, {"batch", 1, false}, {"old", 0, true}, {"shop", 0, false}}
	for _, app := range all {
		t.Run("go/"+app.name, func(t *testing.T) {
			db := openSDK(t, s.sdk(), ydbsdk.WithApplicationName(app.name))
			for range 3 {
				err := db.Query().Do(t.Context(), func(ctx context.Context, session query.Session) error {
					if atNode := session.NodeID() <= uint32(len(c.Nodes)); atNode != app.atNode {
						t.Errorf("the session is %s", session.ID())
					}
					return session.Exec(ctx, "SELECT 1")
				})
				if err != nil {
					t.Fatal(err)
				}
				s.bound(t, "after a statement", app.bound)
			}
			if names := c.applications(t); app.name != "" && names[app.name] == 0 {
				t.Errorf("sessions of the cluster by application: %v", names)
			}
			closeSDK(t, db)
			s.bound(t, "when the client has gone", 0)
		})
	}
	for _, app := range all[1:] {
		t.Run("python/"+app.name, func(t *testing.T) {
			p := standtest.Start(t, stand.Spec{
				Path: officialPython(t), Args: []string{filepath.Join("testdata", "python", "hold.py")},
				Env: []string{"YDB_URL=grpc://" + s.GRPC, "YDB_APPLICATION=" + app.name},
			})
			standtest.Ready(t, p)
			s.bound(t, "after a statement", app.bound)
			if names := c.applications(t); names[app.name] == 0 {
				t.Errorf("sessions of the cluster by application: %v", names)
			}
			if _, err := p.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			s.bound(t, "when the client has gone", 0)
		})
	}
	if n := c.sum(t, "forwarded"); n != 0 {
		t.Errorf("%d calls did not go to the owner of their session", n)
	}
	c.clean(t, nil)
}

// A statement that makes a temporary table binds its session, to the end of which the table would last. The
// development cluster has none; what counts is the text.
func TestTemporaryTablesBindTheSession(t *testing.T) {
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, inMode("transaction")...)
	db := openSDK(t, s.sdk())
	must(t, db, "SELECT 'temporary', 1 AS table")
	s.bound(t, "no such table", 0)
	must(t, db, "SELECT 1 -- create\tTemporary /* ! */ TABLE t")
	s.bound(t, "such a table", 1)
	sessions := sum(c.perNode(t))
	closeSDK(t, db)
	s.bound(t, "when the client has gone", 0)
	eventually(t, patience, "the session is deleted, and with it the table", func() string {
		if n := sum(c.perNode(t)); n >= sessions {
			return fmt.Sprintf("%d sessions; there were %d", n, sessions)
		}
		return ""
	})
}

// ofOperation reads the result of an operation that has succeeded.
func ofOperation(o *Ydb_Operations.Operation, err error, result proto.Message) error {
	if err == nil && o.GetStatus() != Ydb.StatusIds_SUCCESS {
		err = statusError{o.GetStatus(), fmt.Sprint(o.GetIssues())}
	}
	if err == nil && result != nil {
		err = o.GetResult().UnmarshalTo(result)
	}
	return err
}

// Queries that the table service has prepared on one session work by their ids wherever their calls go to: a
// node knows only those that were prepared there.
func TestPreparedQueriesGoAnywhere(t *testing.T) {
	const callers, rounds = 6, 20
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "wire.mode=transaction", "pool.max=6")
	db := openSDK(t, s.sdk())
	must(t, db, "CREATE TABLE prepared (id Uint64, PRIMARY KEY (id))")
	client := Ydb_Table_V1.NewTableServiceClient(s.Conn)
	work := func(ctx context.Context, caller uint64) error {
		var session Ydb_Table.CreateSessionResult
		created, err := client.CreateSession(ctx, &Ydb_Table.CreateSessionRequest{})
		if err := ofOperation(created.GetOperation(), err, &session); err != nil {
			return err
		}
		var query Ydb_Table.PrepareQueryResult // each text is prepared once
		prepared, err := client.PrepareDataQuery(ctx, &Ydb_Table.PrepareDataQueryRequest{SessionId: session.GetSessionId(),
			YqlText: fmt.Sprint(declareID, "UPSERT INTO prepared (id) VALUES ($id) -- ", caller)})
		if err := ofOperation(prepared.GetOperation(), err, &query); err != nil {
			return err
		}
		for round := range uint64(rounds) {
			r, err := client.ExecuteDataQuery(ctx, &Ydb_Table.ExecuteDataQueryRequest{
				SessionId: session.GetSessionId(), Query: &Ydb_Table.Query{Query: &Ydb_Table.Query_Id{Id: query.GetQueryId()}},
				TxControl: &Ydb_Table.TransactionControl{CommitTx: true,
					TxSelector: &Ydb_Table.TransactionControl_BeginTx{BeginTx: &Ydb_Table.TransactionSettings{
						TxMode: &Ydb_Table.TransactionSettings_SerializableReadWrite{
							SerializableReadWrite: &Ydb_Table.SerializableModeSettings{},
						}}}},
				Parameters: map[string]*Ydb.TypedValue{"$id": uint64Value(caller<<32 | round)},
			})
			if err := ofOperation(r.GetOperation(), err, nil); err != nil {
				return err
			}
		}
		return nil
	}
	var all sync.WaitGroup
	for caller := range uint64(callers) {
		all.Go(func() {
			if err := work(t.Context(), caller); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := count(t, db, "prepared"); n != callers*rounds {
		t.Errorf("%d rows; want %d", n, callers*rounds)
	}
	used := 0
	for _, n := range c.state(t) {
		if n.Counters["commits"] > 0 {
			used++
		}
	}
	if used < 2 {
		t.Errorf("all went to %d node: this proves nothing", used)
	}
}

// A client with YDB's protos needs no session: each statement takes one of the pool, at the price of its own call.
func TestStatementsWithoutASession(t *testing.T) {
	const callers, rounds, most = 16, 10, 4
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "wire.mode=transaction", "pool.min=0", fmt.Sprint("pool.max=", most))
	s.knowsNodes(t, c)
	client := Ydb_Query_V1.NewQueryServiceClient(s.Conn)
	run := func(sql string, control *Ydb_Query.TransactionControl) {
		if st, _, err := implicit(t.Context(), client, sql, control); st != Ydb.StatusIds_SUCCESS || err != nil {
			t.Errorf("%s: %v, %v", sql, st, err)
		}
	}
	run("CREATE TABLE implicit (id Uint64, PRIMARY KEY (id))", nil)
	calls := c.sum(t, "calls")
	var work sync.WaitGroup
	for caller := range callers {
		work.Go(func() {
			for round := range rounds {
				run(fmt.Sprintf("UPSERT INTO implicit (id) VALUES (%dul)", caller*rounds+round),
					&Ydb_Query.TransactionControl{CommitTx: true, TxSelector: serializable})
			}
		})
	}
	work.Wait()
	const beside = 2*most + 5 // sessions are made and attached to; discovery and probes
	if n := c.sum(t, "calls") - calls; n > callers*rounds+beside {
		t.Errorf("%d calls for %d statements", n, callers*rounds)
	}
	if n := sum(c.attached(t)); n > most {
		t.Errorf("%d sessions; at most %d are allowed", n, most)
	}
	// A transaction that is left open has no caller that could end it.
	run("UPSERT INTO implicit (id) VALUES (1000000ul)", &Ydb_Query.TransactionControl{TxSelector: serializable})
	c.clean(t, nil)
	db := openSDK(t, s.sdk())
	if n := count(t, db, "implicit"); n != callers*rounds {
		t.Errorf("%d rows; want %d", n, callers*rounds)
	}
	if n := c.sum(t, "forwarded"); n != 0 {
		t.Errorf("%d calls did not go to the owner of their session", n)
	}
}
