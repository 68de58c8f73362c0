package officialtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/balancers"
	"github.com/ydb-platform/ydb-go-sdk/v3/config"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
	"github.com/ydb-platform/ydb-go-sdk/v3/table/options"
	"github.com/ydb-platform/ydb-go-sdk/v3/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// Rule 8: sessions are made in well under the client's 500 ms, also many at once. A busy machine
// may stall for that long now and then; a cluster that is slow always is.
func TestRule08SessionsAreMadeFast(t *testing.T) {
	const callers, tries = 40, 3
	once := func() int {
		cluster := startCluster(t, nil)
		db := open(t, cluster.Endpoint())
		ctx := testContext(t)
		var inside, all sync.WaitGroup
		inside.Add(callers)
		for range callers { // all at once, each on a session of its own
			all.Go(func() {
				first := true
				err := db.Query().Do(ctx, func(ctx context.Context, s query.Session) error {
					if first {
						first = false
						inside.Done()
						inside.Wait()
					}
					return s.Exec(ctx, "SELECT 1")
				})
				if err != nil {
					t.Error(err)
				}
				if first { // no caller waits for this one
					inside.Done()
				}
			})
		}
		all.Wait()
		return len(cluster.Sessions())
	}
	for try := 1; ; try++ {
		got := once()
		if got == callers {
			return
		}
		if try == tries {
			t.Fatalf("%d sessions; want one of each caller and none orphaned", got)
		}
		t.Logf("%d sessions", got)
	}
}

// Rules 9 and 10: the first state of an attach stream comes at once; the stream
// stays open and silent, and ends with SUCCESS and OK when the session is deleted.
func TestRule09And10LifeOfTheAttachStream(t *testing.T) {
	cluster := startCluster(t, nil)
	var r recorder
	db := open(t, cluster.Endpoint(), r.option())
	execute(t, db, "SELECT 1")
	states := r.of("AttachSession")
	if len(states) != 2 || states[1].message.(*Ydb_Query.SessionState).GetStatus() != Ydb.StatusIds_SUCCESS {
		t.Fatalf("attach stream of a used session: %v; want the request and one state", states)
	}
	// Another client deletes the client's session.
	session := cluster.Sessions()[0]
	conn, err := grpc.NewClient(cluster.Node(session.NodeID).Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	deleted, err := Ydb_Query_V1.NewQueryServiceClient(conn).DeleteSession(
		testContext(t), &Ydb_Query.DeleteSessionRequest{SessionId: session.ID},
	)
	if err != nil || deleted.GetStatus() != Ydb.StatusIds_SUCCESS {
		t.Fatalf("delete: %v, %v", deleted, err)
	}
	await.True(t, "the stream ends", func() bool { return len(r.of("AttachSession")) == 4 })
	states = r.of("AttachSession")
	if last := states[2].message.(*Ydb_Query.SessionState); last.GetStatus() != Ydb.StatusIds_SUCCESS || !errors.Is(states[3].err, io.EOF) {
		t.Errorf("the stream ended with %v, %v; want SUCCESS and OK", states[2].message, states[3].err)
	}
	execute(t, db, "SELECT 1") // on a new session
}

// Rule 11: a client that only drops its attach stream has deleted its session
// and rolled back its transaction. (Closed so, the driver has no time to say more.)
func TestRule11DroppedAttachStream(t *testing.T) {
	cluster := startCluster(t, nil)
	db, err := ydb.Open(testContext(t), cluster.Endpoint(), ydb.WithSessionPoolDeleteTimeout(time.Nanosecond))
	if err != nil {
		t.Fatal(err)
	}
	execute(t, db, "SELECT 1")
	_ = db.Close(testContext(t)) // says that it could not delete its session
	await.True(t, "the session is deleted", func() bool { return len(cluster.Sessions()) == 0 })
}

// A session ends with INTERNAL_ERROR and with BAD_SESSION, which an eleventh open transaction is:
// the client takes another one.
func TestFatalStatusesEndTheSession(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) { c.Nodes = 1 })
	db := open(t, cluster.Endpoint())
	ctx := testContext(t)
	for what, fail := range map[string]func(query.Session) error{
		"INTERNAL_ERROR": func(s query.Session) error {
			if err := cluster.Node(1).Errors(
				devcluster.Errors{Status: "INTERNAL_ERROR", Share: 1, Methods: []string{"ExecuteQuery"}},
			); err != nil {
				return err
			}
			return errors.Join(s.Exec(ctx, "SELECT 1"), cluster.Node(1).Clear())
		},
		"an eleventh transaction": func(s query.Session) error {
			for range 10 {
				if _, err := s.Begin(ctx, query.TxSettings(query.WithSerializableReadWrite())); err != nil {
					return fmt.Errorf("one of ten: %v", err)
				}
			}
			_, err := s.Begin(ctx, query.TxSettings(query.WithSerializableReadWrite()))
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			var ids []string
			err := db.Query().Do(ctx, func(_ context.Context, s query.Session) error {
				ids = append(ids, s.ID())
				if len(ids) > 1 {
					return nil
				}
				err := fail(s)
				if what == "INTERNAL_ERROR" {
					wantStatus(t, what, err, Ydb.StatusIds_INTERNAL_ERROR)
				} else {
					wantStatus(t, what, err, Ydb.StatusIds_BAD_SESSION)
				}
				return err
			}, query.WithIdempotent())
			if err != nil && !ydb.IsOperationError(err, Ydb.StatusIds_INTERNAL_ERROR) { // which the client does not retry
				t.Error(err)
			}
			for _, s := range cluster.Sessions() {
				if s.ID == ids[0] {
					t.Errorf("the session lives: %+v", s)
				}
			}
			if got := one[int32](t, db, "SELECT 1"); got != 1 {
				t.Errorf("%d; want 1 in another session", got)
			}
		})
	}
}

// withTrailers tells note the trailer of each call.
func withTrailers(note func(method string, md metadata.MD)) ydb.Option {
	return ydb.With(config.WithGrpcOptions(
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, response any,
			cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			var md metadata.MD
			err := invoke(ctx, method, request, response, cc, append(options, grpc.Trailer(&md))...)
			note(method, md)
			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			stream grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := stream(ctx, d, cc, method, options...)
			return &endedStream{s, func(md metadata.MD) { note(method, md) }}, err
		}),
	))
}

// The trailer of calls in a session that was asked to close says so, also those of the query service that begin and end
// transactions. KeepAlive and ExecuteQuery say nothing.
func TestTrailerOfClosingSessions(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) { c.Nodes = 1 })
	var mu sync.Mutex // guards hints
	hints := map[string]bool{}
	db := open(t, cluster.Endpoint(), withTrailers(func(method string, md metadata.MD) {
		mu.Lock()
		defer mu.Unlock()
		hints[strings.TrimPrefix(method, "/Ydb.")] = slices.Contains(md.Get("x-ydb-server-hints"), "session-close")
	}))
	ctx := testContext(t)
	kick := func(id string) {
		if err := cluster.Node(1).Kick(id,
			devcluster.Drain{Mode: devcluster.DrainSilent, Limits: devcluster.Limits{Soft: time.Hour, Hard: time.Hour}}); err != nil {
			t.Error(err)
		}
	}
	for _, asked := range []bool{false, true} {
		err := db.Query().Do(ctx, func(ctx context.Context, s query.Session) error {
			if asked {
				kick(s.ID())
			}
			for _, end := range []func(query.Transaction) error{
				func(tx query.Transaction) error { return tx.CommitTx(ctx) }, func(tx query.Transaction) error { return tx.Rollback(ctx) },
			} {
				tx, err := s.Begin(ctx, query.TxSettings(query.WithSerializableReadWrite()))
				if err != nil {
					return err
				}
				if err := tx.Exec(ctx, "SELECT 1"); err != nil {
					return err
				}
				if err := end(tx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		err = db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
			if asked {
				kick(s.ID())
			}
			if err := s.KeepAlive(ctx); err != nil {
				return err
			}
			_, _, err := s.Execute(ctx, table.SerializableReadWriteTxControl(table.CommitTx()), "SELECT 1", nil)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		for method, want := range map[string]bool{
			"Query.V1.QueryService/BeginTransaction": true, "Query.V1.QueryService/CommitTransaction": true,
			"Query.V1.QueryService/RollbackTransaction": true,
			"Query.V1.QueryService/ExecuteQuery":        false, "Table.V1.TableService/KeepAlive": false,
			"Table.V1.TableService/ExecuteDataQuery": true,
		} {
			if got, called := hints[method]; !called || got != (asked && want) {
				t.Errorf("asked to close %v: %s: called %v, hint %v; want %v", asked, method, called, got, asked && want)
			}
		}
		mu.Unlock()
	}
}

// endedStream tells the trailer at the end of the stream.
type endedStream struct {
	grpc.ClientStream
	note func(metadata.MD)
}

func (s *endedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.note(s.Trailer())
	}
	return err
}

// Rule 15: any node takes any session. The cluster places the sessions of this
// client on all nodes, and the client sends every call to the one it knows.
func TestRule15AnyNodeTakesAnySession(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) { c.Balance = true })
	db := open(t, cluster.Endpoint(), ydb.WithBalancer(balancers.SingleConn()))
	execute(t, db, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
	ctx := testContext(t)
	for id := range uint64(6) {
		err := db.Query().Do(ctx, func(ctx context.Context, outer query.Session) error { // holds one session and uses another
			return db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error {
				return tx.Exec(ctx, "DECLARE $id AS Uint64; UPSERT INTO t (id) VALUES ($id)",
					query.WithParameters(ydb.ParamsBuilder().Param("$id").Uint64(id).Build()))
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Table().Do(ctx, func(ctx context.Context, s table.Session) error { return s.KeepAlive(ctx) }); err != nil {
			t.Fatal(err)
		}
	}
	if got := one[uint64](t, db, "SELECT COUNT(*) FROM t"); got != 6 {
		t.Errorf("%d rows", got)
	}
	first := cluster.Node(1).Counters()
	if first.Forwarded == 0 || len(cluster.Node(2).Sessions())+len(cluster.Node(3).Sessions()) == 0 {
		t.Errorf("nothing was forwarded: %+v", first)
	}
	for id := uint32(2); id <= 3; id++ {
		if c := cluster.Node(id).Counters(); c.Owned+c.Forwarded != 0 {
			t.Errorf("the client called node %d itself: %+v", id, c)
		}
	}
}

// Rule 16: the client's affinity works, so the id names a listed node.
func TestRule16SessionIDsNameANode(t *testing.T) {
	cluster := startCluster(t, nil)
	db := open(t, cluster.Endpoint())
	ctx := testContext(t)
	err := db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
		u, err := url.Parse(s.ID())
		if err != nil {
			return err
		}
		if u.Scheme != "ydb" || u.Host != "session" || u.Path != "/3" || u.Query().Get("id") == "" {
			t.Errorf("id %s", s.ID())
		}
		if cluster.Node(s.NodeID()) == nil {
			t.Errorf("the client reads node %d out of %s", s.NodeID(), s.ID())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 30 {
		if err := db.Query().Do(ctx, func(ctx context.Context, s query.Session) error { return s.Exec(ctx, "SELECT 1") }); err != nil {
			t.Fatal(err)
		}
	}
	for id := uint32(1); id <= 3; id++ {
		if got := cluster.Node(id).Counters().Forwarded; got != 0 {
			t.Errorf("node %d forwarded %d calls of a client with affinity", id, got)
		}
	}
}

// createLarge creates a table of rows of 256 KiB: many are more than connections take in ahead of a reader.
func createLarge(t *testing.T, db *ydb.Driver, rows int) {
	t.Helper()
	execute(t, db, "CREATE TABLE large (id Uint64, v Bytes, PRIMARY KEY (id))")
	large := make([]types.Value, rows)
	for i := range large {
		large[i] = types.StructValue(types.StructFieldValue("id", types.Uint64Value(uint64(i))),
			types.StructFieldValue("v", types.BytesValue(make([]byte, 256<<10))))
	}
	if err := db.Table().BulkUpsert(testContext(t), "/local/large", table.BulkUpsertDataRows(types.ListValue(large...))); err != nil {
		t.Fatal(err)
	}
}

// The session's id in calls that describe, change, copy, rename or read a table is not looked at: the calls run beside
// a statement of the session, and after its end.
func TestCallsThatIgnoreTheSession(t *testing.T) {
	cluster := startCluster(t, nil)
	db := open(t, cluster.Endpoint())
	ctx := testContext(t)
	const rows = 48
	createLarge(t, db, rows)
	var needs error
	err := db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
		stream, err := s.StreamReadTable(ctx, "/local/large")
		if err != nil {
			return err
		}
		read := 0
		next := func() bool {
			more := stream.NextResultSet(ctx)
			for more && stream.NextRow() {
				read++
			}
			return more
		}
		next()
		if _, _, err := s.Execute(ctx, table.SerializableReadWriteTxControl(table.CommitTx()), "SELECT 1", nil); err != nil {
			t.Errorf("a statement beside a table that is read: %v", err)
		}
		if err := deleteAtItsNode(ctx, cluster, s); err != nil {
			return err
		}
		for next() {
		}
		if err := errors.Join(stream.Err(), stream.Close()); err != nil || read != rows {
			t.Errorf("%d rows of a table that is read while the session ends: %v", read, err)
		}
		for name, err := range map[string]error{
			"CreateTable": s.CreateTable(ctx, "/local/t", options.WithColumn("id", types.TypeUint64), options.WithPrimaryKeyColumn("id")),
			"AlterTable":  s.AlterTable(ctx, "/local/t", options.WithAddColumn("n", types.Optional(types.TypeInt32))),
			//lint:ignore SA1019 the RPC of this name is what is shown
			"CopyTable":    s.CopyTable(ctx, "/local/copy", "/local/t"),
			"CopyTables":   s.CopyTables(ctx, options.CopyTablesItem("/local/t", "/local/second", true)),
			"RenameTables": s.RenameTables(ctx, options.RenameTablesItem("/local/copy", "/local/third", false)),
			"DropTable":    s.DropTable(ctx, "/local/t"),
		} {
			if err != nil {
				t.Errorf("%s on a session that has ended: %v", name, err)
			}
		}
		if _, err := s.DescribeTable(ctx, "/local/third"); err != nil {
			t.Errorf("DescribeTable on a session that has ended: %v", err)
		}
		//lint:ignore SA1019 the call on a session is what is shown
		if _, err := s.ReadRows(
			ctx, "/local/large", types.ListValue(types.StructValue(types.StructFieldValue("id", types.Uint64Value(1)))),
		); err != nil {
			t.Errorf("ReadRows on a session that has ended: %v", err)
		}
		needs = s.KeepAlive(ctx)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, "a call that needs the session", needs, Ydb.StatusIds_BAD_SESSION)
}

// deleteAtItsNode deletes a session beside the SDK, which goes on to use it.
func deleteAtItsNode(ctx context.Context, cluster *devcluster.Cluster, s table.Session) error {
	conn, err := grpc.NewClient(cluster.Node(s.NodeID()).Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = Ydb_Table_V1.NewTableServiceClient(conn).DeleteSession(
		ctx, &Ydb_Table.DeleteSessionRequest{SessionId: s.ID()},
	)
	return err
}
