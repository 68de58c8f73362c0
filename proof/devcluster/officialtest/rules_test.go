package officialtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Bridge"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/balancers"
	"github.com/ydb-platform/ydb-go-sdk/v3/config"
	"github.com/ydb-platform/ydb-go-sdk/v3/coordination"
	"github.com/ydb-platform/ydb-go-sdk/v3/meta"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/ratelimiter"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
	"github.com/ydb-platform/ydb-go-sdk/v3/table/options"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicoptions"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topictypes"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicwriter"
	"github.com/ydb-platform/ydb-go-sdk/v3/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// Rule 2: large messages pass, both ways, but none of more than 64,000,000 bytes. (A server's default is 4 MiB.)
func TestRule02LargeMessages(t *testing.T) {
	db := open(t, startCluster(t, nil).Endpoint())
	const most = 64_000_000
	one[int32](t, db, "SELECT 1", query.WithParameters(ydb.ParamsBuilder().Param("$p").Bytes(make([]byte, most-1000)).Build()))
	err := db.Query().Exec(testContext(t), "DECLARE $p AS String; SELECT 1", query.WithParameters(ydb.ParamsBuilder().Param("$p").Bytes(make([]byte, most)).Build()))
	if !ydb.IsTransportError(err, codes.ResourceExhausted) {
		t.Errorf("a larger message: %v; want RESOURCE_EXHAUSTED", err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 20<<20/16)
	got := one[[]byte](t, db, "DECLARE $p AS String; SELECT $p", query.WithParameters(
		ydb.ParamsBuilder().Param("$p").Bytes(large).Build()))
	if !bytes.Equal(got, large) {
		t.Errorf("got %d bytes; want the %d sent", len(got), len(large))
	}
}

// Rule 3: what is not supported is a YDB status, which bans no node.
func TestRule03UnsupportedIsAStatus(t *testing.T) {
	var r recorder
	db := open(t, startCluster(t, nil).Endpoint(), r.option())
	ctx := testContext(t)
	wantStatus(t, "coordination", db.Coordination().CreateNode(ctx, "/local/node", coordination.NodeConfig{}), Ydb.StatusIds_UNSUPPORTED)
	wantStatus(t, "rate limiter", db.Ratelimiter().CreateResource(ctx, "/local/node", ratelimiter.Resource{}), Ydb.StatusIds_UNSUPPORTED)
	for _, e := range r.events {
		if e.message == nil && e.err != nil && !errors.Is(e.err, io.EOF) {
			t.Errorf("%s ended with the transport error %v", e.method, e.err)
		}
	}
}

// Rule 4: endpoints are listed with the security that the client dialled; this
// client drops the others. TestRule04Security has the TLS side.
// Rule 5: each endpoint is one node, each node one endpoint.
// Rule 6: no addresses besides host and port.
func TestRule04To06Endpoints(t *testing.T) {
	cluster := startCluster(t, nil)
	var r recorder
	db := open(t, cluster.Endpoint(), r.option())
	found, err := db.Discovery().Discover(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	ids, addresses := map[uint32]bool{}, map[string]bool{}
	for _, e := range found {
		ids[e.NodeID()], addresses[e.Address()] = true, true
		if cluster.Node(e.NodeID()).Address() != e.Address() {
			t.Errorf("node %d is listed as %s", e.NodeID(), e.Address())
		}
	}
	if len(found) != 3 || len(ids) != 3 || len(addresses) != 3 {
		t.Errorf("the client keeps %v", found)
	}
	for _, e := range r.of("ListEndpoints") {
		response, ok := e.message.(*Ydb_Discovery.ListEndpointsResponse)
		if !ok {
			continue
		}
		result := &Ydb_Discovery.ListEndpointsResult{}
		if err := response.GetOperation().GetResult().UnmarshalTo(result); err != nil {
			t.Fatal(err)
		}
		for _, endpoint := range result.GetEndpoints() {
			if len(endpoint.GetIpV4())+len(endpoint.GetIpV6()) > 0 || endpoint.GetSsl() {
				t.Errorf("endpoint %v", endpoint)
			}
		}
	}
}

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
				if first { // nobody waits for this one
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
	// Somebody else deletes the client's session.
	session := cluster.Sessions()[0]
	conn, err := grpc.NewClient(cluster.Node(session.NodeID).Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	deleted, err := Ydb_Query_V1.NewQueryServiceClient(conn).DeleteSession(testContext(t), &Ydb_Query.DeleteSessionRequest{SessionId: session.ID})
	if err != nil || deleted.GetStatus() != Ydb.StatusIds_SUCCESS {
		t.Fatalf("delete: %v, %v", deleted, err)
	}
	eventually(t, "the stream ends", func() bool { return len(r.of("AttachSession")) == 4 })
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
	eventually(t, "the session is deleted", func() bool { return len(cluster.Sessions()) == 0 })
}

// Rule 13: there is at least one part, also when there is no result.
func TestRule13AtLeastOnePart(t *testing.T) {
	var r recorder
	db := open(t, startCluster(t, nil).Endpoint(), r.option())
	execute(t, db, "CREATE TABLE t (id Uint64, v Utf8, PRIMARY KEY (id))")
	execute(t, db, "UPSERT INTO t (id, v) VALUES (1ul, 'a'u)")
	if err := db.Query().Exec(testContext(t), "SELECT id FROM t", query.WithExecMode(query.ExecModeExplain)); err != nil {
		t.Error(err)
	}
	parts := 0
	for _, e := range r.of("ExecuteQuery") {
		if _, ok := e.message.(*Ydb_Query.ExecuteQueryResponsePart); ok {
			parts++
		}
	}
	if parts != 3 {
		t.Errorf("%d parts of 3 statements", parts)
	}
}

// Rule 14: the client knows from tx_meta whether its transaction is open.
func TestRule14TransactionMeta(t *testing.T) {
	for name, lazy := range map[string]bool{"begin": false, "lazy": true} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			db := open(t, startCluster(t, nil).Endpoint(), ydb.WithLazyTx(lazy), r.option())
			execute(t, db, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
			write := func(sql string, end error, options ...query.ExecuteOption) error {
				return db.Query().DoTx(testContext(t), func(ctx context.Context, tx query.TxActor) error {
					if err := tx.Exec(ctx, sql, options...); err != nil {
						return err
					}
					return end
				})
			}
			stop := errors.New("stop")
			if err := write("UPSERT INTO t (id) VALUES (1ul)", nil); err != nil {
				t.Error(err)
			}
			if err := write("UPSERT INTO t (id) VALUES (2ul)", nil, query.WithCommit()); err != nil {
				t.Error(err)
			}
			if err := write("UPSERT INTO t (id) VALUES (3ul)", stop); !errors.Is(err, stop) {
				t.Error(err)
			}
			if got := one[uint64](t, db, "SELECT COUNT(*) FROM t"); got != 2 {
				t.Errorf("%d rows; two transactions were committed", got)
			}
			if got := len(r.of("DeleteSession")); got != 0 {
				t.Errorf("the client gave up %d sessions: it did not understand its transactions", got)
			}
			var metas []string
			for _, e := range r.of("ExecuteQuery") {
				part, ok := e.message.(*Ydb_Query.ExecuteQueryResponsePart)
				if !ok || part.GetTxMeta() == nil {
					continue
				}
				metas = append(metas, strconv.FormatBool(part.GetTxMeta().GetId() != ""))
			}
			if got := strings.Join(metas, " "); got != "true false true" {
				t.Errorf("open transactions after each part: %s; want true false true", got)
			}
		})
	}
}

// Rule 14, of an answer of many parts: only the last one has the id of the transaction.
func TestRule14LargeAnswers(t *testing.T) {
	for name, lazy := range map[string]bool{"begin": false, "lazy": true} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			db := open(t, startCluster(t, nil).Endpoint(), ydb.WithLazyTx(lazy), r.option())
			execute(t, db, "CREATE TABLE t (id Uint64, v String, PRIMARY KEY (id))")
			execute(t, db, "DECLARE $v AS String; UPSERT INTO t (id, v) VALUES (1ul, $v), (2ul, $v), (3ul, $v)",
				query.WithParameters(ydb.ParamsBuilder().Param("$v").Bytes(make([]byte, 10_000)).Build()))
			err := db.Query().DoTx(testContext(t), func(ctx context.Context, tx query.TxActor) error {
				result, err := tx.Query(ctx, "SELECT id, v FROM t", query.WithResponsePartLimitSizeBytes(10_000))
				if err != nil {
					return err
				}
				rows := 0
				for set, err := range result.ResultSets(ctx) {
					if err != nil {
						return err
					}
					for _, err := range set.Rows(ctx) {
						if err != nil {
							return err
						}
						rows++
					}
				}
				if rows != 3 {
					t.Errorf("%d rows; want 3", rows)
				}
				if err := result.Close(ctx); err != nil {
					return err
				}
				return tx.Exec(ctx, "UPSERT INTO t (id) VALUES (4ul)")
			})
			if err != nil {
				t.Error(err)
			}
			if got := one[uint64](t, db, "SELECT COUNT(*) FROM t"); got != 4 {
				t.Errorf("%d rows; want the three and the one of the transaction", got)
			}
			if got := len(r.of("DeleteSession")); got != 0 {
				t.Errorf("the client gave up %d sessions: it did not understand its transactions", got)
			}
			var metas []string // of the parts of the answers in the transaction
			for _, e := range r.of("ExecuteQuery") {
				if part, ok := e.message.(*Ydb_Query.ExecuteQueryResponsePart); ok {
					metas = append(metas, strconv.FormatBool(part.GetTxMeta().GetId() != ""))
				}
			}
			if got := strings.Join(metas, " "); !strings.Contains(got, "false false true true") {
				t.Errorf("parts with the id of an open transaction: %s; want it in the last of the three", got)
			}
		})
	}
}

// A statement without text does not reach the session: the client's transaction goes on.
func TestRefusedRequestsLeaveTheTransactionOpen(t *testing.T) {
	var r recorder
	db := open(t, startCluster(t, nil).Endpoint(), r.option())
	execute(t, db, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
	err := db.Query().DoTx(testContext(t), func(ctx context.Context, tx query.TxActor) error {
		if err := tx.Exec(ctx, "UPSERT INTO t (id) VALUES (1ul)"); err != nil {
			return err
		}
		wantStatus(t, "an empty text", tx.Exec(ctx, ""), Ydb.StatusIds_BAD_REQUEST)
		return tx.Exec(ctx, "UPSERT INTO t (id) VALUES (2ul)")
	})
	if err != nil {
		t.Error(err)
	}
	if got := one[uint64](t, db, "SELECT COUNT(*) FROM t"); got != 2 {
		t.Errorf("%d rows; want both of the transaction", got)
	}
	if got := len(r.of("BeginTransaction")); got > 3 { // request, answer, end
		t.Errorf("%d events of BeginTransaction: the client began again", got)
	}
}

// A text that is longer than the cluster's limit does not reach the session: the client's transaction goes on.
func TestTextsLongerThanTheLimit(t *testing.T) {
	const most = 10_240
	db := open(t, startCluster(t, func(c *devcluster.Config) { c.QueryLimit = most }).Endpoint())
	long := func(n int) string { return "SELECT 1" + strings.Repeat(" ", n-len("SELECT 1")) }
	if got := one[int32](t, db, long(most)); got != 1 {
		t.Errorf("a text of %d bytes: %d", most, got)
	}
	err := db.Query().DoTx(testContext(t), func(ctx context.Context, tx query.TxActor) error {
		if err := tx.Exec(ctx, "SELECT 1"); err != nil {
			return err
		}
		err := tx.Exec(ctx, long(most+1))
		wantStatus(t, "a longer text", err, Ydb.StatusIds_BAD_REQUEST)
		if err != nil && !strings.Contains(err.Error(), "Query text size exceeds limit (10241b > 10240b)") {
			t.Errorf("a longer text: %v", err)
		}
		return tx.Exec(ctx, "SELECT 1")
	})
	if err != nil {
		t.Error(err)
	}
	err = db.Table().Do(testContext(t), func(ctx context.Context, s table.Session) error {
		_, _, err := s.Execute(ctx, table.DefaultTxControl(), long(most+1), nil)
		wantStatus(t, "a longer text of the table service", err, Ydb.StatusIds_BAD_REQUEST)
		_, err = s.Explain(ctx, long(most+1))
		wantStatus(t, "a longer text to explain", err, Ydb.StatusIds_BAD_REQUEST)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if got := one[int32](t, open(t, startCluster(t, nil).Endpoint()), long(100*most)); got != 1 { // there is none by default
		t.Errorf("a text of %d bytes: %d", 100*most, got)
	}
}

// A session ends with INTERNAL_ERROR and with BAD_SESSION, which an eleventh open transaction is:
// the client takes another one.
func TestFatalStatusesEndTheSession(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) { c.Nodes = 1 })
	db := open(t, cluster.Endpoint())
	ctx := testContext(t)
	for what, fail := range map[string]func(query.Session) error{
		"INTERNAL_ERROR": func(s query.Session) error {
			if err := cluster.Node(1).Errors(devcluster.Errors{Status: "INTERNAL_ERROR", Share: 1, Methods: []string{"ExecuteQuery"}}); err != nil {
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

// The trailer of calls in a session that was asked to close says so, also those of the query service that begin and end
// transactions. KeepAlive and ExecuteQuery say nothing.
func TestTrailerOfClosingSessions(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) { c.Nodes = 1 })
	var mu sync.Mutex // guards hints
	hints := map[string]bool{}
	note := func(method string, md metadata.MD) {
		mu.Lock()
		defer mu.Unlock()
		hints[strings.TrimPrefix(method, "/Ydb.")] = slices.Contains(md.Get("x-ydb-server-hints"), "session-close")
	}
	db := open(t, cluster.Endpoint(), ydb.With(config.WithGrpcOptions(
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, response any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			var md metadata.MD
			err := invoke(ctx, method, request, response, cc, append(options, grpc.Trailer(&md))...)
			note(method, md)
			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := stream(ctx, d, cc, method, options...)
			return &endedStream{s, func(md metadata.MD) { note(method, md) }}, err
		}),
	)))
	ctx := testContext(t)
	kick := func(id string) {
		if err := cluster.Node(1).Kick(id, devcluster.Drain{Mode: devcluster.DrainSilent, Limits: devcluster.Limits{Soft: time.Hour, Hard: time.Hour}}); err != nil {
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
			"Query.V1.QueryService/BeginTransaction": true, "Query.V1.QueryService/CommitTransaction": true, "Query.V1.QueryService/RollbackTransaction": true,
			"Query.V1.QueryService/ExecuteQuery": false, "Table.V1.TableService/KeepAlive": false, "Table.V1.TableService/ExecuteDataQuery": true,
		} {
			if got, called := hints[method]; !called || got != (asked && want) {
				t.Errorf("asked to close %v: %s: called %v, hint %v; want %v", asked, method, called, got, asked && want)
			}
		}
		mu.Unlock()
	}
}

// Answers report the request units that a call consumed in their trailer, if the cluster is told to.
func TestConsumedUnits(t *testing.T) {
	const rows = 3
	for _, on := range []bool{false, true} {
		cluster := startCluster(t, func(c *devcluster.Config) { c.ConsumedUnits = on })
		db := open(t, cluster.Endpoint())
		execute(t, db, "CREATE TABLE units (id Uint64 NOT NULL, v Text, PRIMARY KEY (id))")
		// cost runs f and returns the units of each call that reported some, in the order of their ends.
		cost := func(f func(ctx context.Context) error) (all []uint64) {
			var mu sync.Mutex // guards all
			ctx := meta.WithTrailerCallback(testContext(t), func(md metadata.MD) {
				mu.Lock()
				defer mu.Unlock()
				if len(md.Get("x-ydb-consumed-units")) > 0 {
					all = append(all, meta.ConsumedUnits(md))
				}
			})
			if err := f(ctx); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		for _, c := range []struct {
			name string
			run  func(context.Context) error
			want []uint64
		}{
			{"upsert of three rows", func(ctx context.Context) error {
				return db.Query().Exec(ctx, `UPSERT INTO units (id, v) VALUES (1ul, "a"u), (2ul, "b"u), (3ul, "c"u)`)
			}, []uint64{2 * rows}},
			{"select of three rows", func(ctx context.Context) error {
				return db.Query().Exec(ctx, "SELECT * FROM units")
			}, []uint64{rows}},
			{"select of none", func(ctx context.Context) error { return db.Query().Exec(ctx, "SELECT 1") }, []uint64{1}},
			{"transaction of the query service", func(ctx context.Context) error {
				return db.Query().Do(ctx, func(ctx context.Context, s query.Session) error {
					tx, err := s.Begin(ctx, query.TxSettings(query.WithSerializableReadWrite()))
					if err != nil {
						return err
					}
					if err := tx.Exec(ctx, "SELECT * FROM units WHERE id = 1ul"); err != nil {
						return err
					}
					return tx.CommitTx(ctx)
				})
			}, []uint64{0, 1, 0}},
			{"statement of the table service", func(ctx context.Context) error {
				return db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
					_, _, err := s.Execute(ctx, table.SerializableReadWriteTxControl(table.CommitTx()), "SELECT * FROM units", nil)
					return err
				})
			}, []uint64{rows}},
			{"bulk upsert", func(ctx context.Context) error {
				row := func(id uint64) types.Value {
					return types.StructValue(types.StructFieldValue("id", types.Uint64Value(id)), types.StructFieldValue("v", types.OptionalValue(types.TextValue("x"))))
				}
				return db.Table().BulkUpsert(ctx, "/local/units", table.BulkUpsertDataRows(types.ListValue(row(1), row(2), row(3))))
			}, []uint64{2}},
			{"rows by their keys", func(ctx context.Context) error {
				key := func(id uint64) types.Value {
					return types.StructValue(types.StructFieldValue("id", types.Uint64Value(id)))
				}
				r, err := db.Table().ReadRows(ctx, "/local/units", types.ListValue(key(1), key(2)), nil)
				if err == nil {
					err = r.Close()
				}
				return err
			}, []uint64{2}},
		} {
			want := c.want
			if !on {
				want = nil
			}
			if got := cost(c.run); !slices.Equal(got, want) {
				t.Errorf("reports %v: %s: %v; want %v", on, c.name, got, want)
			}
		}
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

// All nodes behind one address: the client finds one endpoint, whose id changes, and its sessions
// and transactions go on.
func TestMergedEndpoints(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) {
		c.Endpoints, c.Locations = devcluster.EndpointsMerged, []string{"a", "b"}
	})
	db := open(t, cluster.Endpoint())
	ctx := testContext(t)
	execute(t, db, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
	seen := map[uint32]bool{}
	for id := range uint64(6) {
		err := db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error {
			found, err := db.Discovery().Discover(ctx)
			if err != nil {
				return err
			}
			if len(found) != 1 || len(strings.Split(found[0].Location(), "/")) != 2 {
				t.Errorf("endpoints %v", found)
			}
			for _, e := range found {
				seen[e.NodeID()] = true
			}
			return tx.Exec(ctx, "DECLARE $id AS Uint64; UPSERT INTO t (id) VALUES ($id)",
				query.WithParameters(ydb.ParamsBuilder().Param("$id").Uint64(id).Build()))
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Table().Do(ctx, func(ctx context.Context, s table.Session) error { return s.KeepAlive(ctx) }); err != nil {
			t.Fatal(err)
		}
	}
	if got := one[uint64](t, db, "SELECT COUNT(*) FROM t"); got != 6 || len(seen) != 3 {
		t.Errorf("%d rows, ids %v; want 6 rows and the ids of three nodes", got, seen)
	}
}

// The client sends its sessions to the primary pile, and to the other one when that is promoted.
func TestPiles(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) {
		c.Nodes = 4
		c.Piles = []devcluster.Pile{{Name: "a", State: Ydb_Bridge.PileState_PRIMARY}, {Name: "b", State: Ydb_Bridge.PileState_SYNCHRONIZED}}
	})
	sessions := func() (ids []uint32) {
		db := open(t, cluster.Endpoint(), ydb.WithBalancer(balancers.PreferPrimaryPile(balancers.RandomChoice())))
		var eight func(context.Context, table.Session) error // at a time
		eight = func(ctx context.Context, s table.Session) error {
			if ids = append(ids, s.NodeID()); len(ids) == 8 {
				return nil
			}
			return db.Table().Do(ctx, eight)
		}
		if err := db.Table().Do(testContext(t), eight); err != nil {
			t.Fatal(err)
		}
		return ids
	}
	if ids := sessions(); slices.ContainsFunc(ids, func(id uint32) bool { return id%2 != 1 }) {
		t.Errorf("pile a, of nodes 1 and 3, is primary: sessions on %v", ids)
	}
	if err := cluster.SetPiles(t.Context(), map[string]string{"a": "SYNCHRONIZED", "b": "PRIMARY"}); err != nil {
		t.Fatal(err)
	}
	if ids := sessions(); slices.ContainsFunc(ids, func(id uint32) bool { return id%2 != 0 }) {
		t.Errorf("pile b, of nodes 2 and 4, is primary: sessions on %v", ids)
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

// Rule 17: session ids travel inside Topic messages as well. Whatever node takes the stream, messages
// and offsets join the transaction, which lives on the node of its session.
func TestRule17TransactionsWithTopics(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) { c.Balance = true })
	db := open(t, cluster.Endpoint(), ydb.WithBalancer(balancers.SingleConn())) // always node 1, with sessions everywhere
	ctx := testContext(t)
	execute(t, db, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
	if err := db.Topic().Create(ctx, "topic", topicoptions.CreateWithConsumer(topictypes.Consumer{Name: "c"})); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	for i := range 9 {
		err := db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error {
			// In this order: the writer of ydb-go-sdk 3.156 reads the transaction's id while a statement may set it.
			if err := tx.Exec(ctx, "UPSERT INTO t (id) VALUES ("+strconv.Itoa(i)+"ul)"); err != nil {
				return err
			}
			w, err := db.Topic().StartTransactionalWriter(tx, "topic", topicoptions.WithWriterWaitServerAck(true))
			if err != nil {
				return err
			}
			if err := w.Write(ctx, topicwriter.Message{Data: strings.NewReader(strconv.Itoa(i))}); err != nil {
				return err
			}
			if i%3 == 2 {
				return stop
			}
			return nil
		})
		if err != nil && !errors.Is(err, stop) {
			t.Fatal(err)
		}
	}
	if got := one[uint64](t, db, "SELECT COUNT(*) FROM t"); got != 6 {
		t.Errorf("%d rows", got)
	}
	reader, err := db.Topic().StartReader("c", topicoptions.ReadTopic("topic"))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for read < 6 {
		more := 0
		err := db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error {
			batch, err := reader.PopMessagesBatchTx(ctx, tx)
			if more = 0; err == nil { // the client may repeat it
				more = len(batch.Messages)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		read += more
	}
	if err := reader.Close(ctx); err != nil {
		t.Error(err)
	}
	d, err := db.Topic().DescribeTopicConsumer(ctx, "topic", "c", topicoptions.IncludeConsumerStats())
	if err != nil || read != 6 || d.Partitions[0].PartitionConsumerStats.CommittedOffset != 6 {
		t.Errorf("%d messages, %+v, %v", read, d, err)
	}
	if c := cluster.Node(1).Counters(); c.Relayed == 0 {
		t.Errorf("nothing was relayed: %+v", c)
	}
}

// Rule 18: operations are ready and hold a result of the right type.
func TestRule18Operations(t *testing.T) {
	var r recorder
	db := open(t, startCluster(t, nil).Endpoint(), r.option())
	ctx := testContext(t)
	if err := db.Scheme().MakeDirectory(ctx, "/local/dir"); err != nil {
		t.Error(err)
	}
	if d, err := db.Scheme().ListDirectory(ctx, "/local"); err != nil || len(d.Children) == 0 {
		t.Errorf("list: %+v, %v", d, err)
	}
	if _, err := db.Scheme().DescribePath(ctx, "/local/missing"); !ydb.IsOperationErrorSchemeError(err) {
		t.Errorf("describe a missing path: %v", err)
	}
	err := db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
		err := s.CreateTable(ctx, "/local/dir/t",
			options.WithColumn("id", types.TypeUint64), options.WithColumn("v", types.Optional(types.TypeText)),
			options.WithPrimaryKeyColumn("id"))
		if err != nil {
			return err
		}
		d, err := s.DescribeTable(ctx, "/local/dir/t")
		if err == nil && (len(d.Columns) != 2 || d.PrimaryKey[0] != "id") {
			t.Errorf("description %+v", d)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	seen := 0
	for _, e := range r.events {
		response, ok := e.message.(interface {
			GetOperation() *Ydb_Operations.Operation
		})
		if !ok || e.sent {
			continue
		}
		seen++
		o := response.GetOperation()
		if !o.GetReady() || o.GetId() != "" {
			t.Errorf("%s: %v", e.method, o)
		}
		if o.GetResult() != nil && !strings.HasPrefix(o.GetResult().GetTypeUrl(), "type.googleapis.com/Ydb.") {
			t.Errorf("%s: result of type %s", e.method, o.GetResult().GetTypeUrl())
		}
	}
	if seen < 7 {
		t.Errorf("%d operations seen", seen)
	}
}

// Rule 19: tickets of Login are JWTs; this client refuses others.
func TestRule19Login(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) { c.Users = map[string]string{"root": "1234"} })
	db := open(t, cluster.Endpoint(), ydb.WithStaticCredentials("root", "1234"))
	if got := one[int32](t, db, "SELECT 1"); got != 1 {
		t.Errorf("got %d", got)
	}
	who, err := db.Discovery().WhoAmI(testContext(t))
	if err != nil || who.User != "root" {
		t.Errorf("WhoAmI: %v, %v", who, err)
	}
	for name, option := range map[string]ydb.Option{
		"wrong password": ydb.WithStaticCredentials("root", "12345"),
		"anonymous":      ydb.WithAnonymousCredentials(),
		"wrong token":    ydb.WithAccessTokenCredentials("token"),
	} {
		ctx, cancel := context.WithTimeout(testContext(t), 5*time.Second)
		db, err := ydb.Open(ctx, cluster.Endpoint(), option)
		cancel()
		if err == nil {
			_ = db.Close(testContext(t))
		}
		if name == "wrong password" && !ydb.IsOperationError(err, Ydb.StatusIds_UNAUTHORIZED) ||
			name != "wrong password" && !ydb.IsTransportError(err, codes.Unauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A cluster that enforces no tickets accepts any, and has no name for their users.
func TestAnyTicketWithoutEnforcement(t *testing.T) {
	db := open(t, startCluster(t, func(c *devcluster.Config) { c.Auth = devcluster.AuthOff }).Endpoint(), ydb.WithAccessTokenCredentials("any"))
	if got := one[int32](t, db, "SELECT 1"); got != 1 {
		t.Errorf("got %d", got)
	}
	_, err := db.Discovery().WhoAmI(testContext(t))
	wantStatus(t, "WhoAmI", err, Ydb.StatusIds_GENERIC_ERROR)
}

// The database in the header is looked at in calls with a ticket, before the ticket, and in all calls where tickets are enforced.
func TestUnknownDatabase(t *testing.T) {
	enforced := func(c *devcluster.Config) { c.Users = map[string]string{"root": "1234"} }
	for name, c := range map[string]struct {
		config  func(*devcluster.Config)
		option  ydb.Option
		unknown bool // by the header; by the request of discovery otherwise
	}{
		"a ticket":           {nil, ydb.WithAccessTokenCredentials("any"), true},
		"no ticket":          {nil, ydb.WithAnonymousCredentials(), false},
		"enforced, a ticket": {enforced, ydb.WithStaticCredentials("root", "1234"), true},
		"enforced, none":     {enforced, ydb.WithAnonymousCredentials(), true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(testContext(t), 5*time.Second)
			defer cancel()
			db, err := ydb.Open(ctx, strings.Replace(startCluster(t, c.config).Endpoint(), "/local", "/other", 1), c.option)
			if err == nil {
				_ = db.Close(testContext(t))
			}
			if c.unknown && !(ydb.IsTransportError(err, codes.Unauthenticated) && strings.Contains(err.Error(), "Unknown database")) {
				t.Errorf("%v; want UNAUTHENTICATED for the database", err)
			}
			if !c.unknown && !ydb.IsOperationError(err, Ydb.StatusIds_NOT_FOUND) {
				t.Errorf("%v; want NOT_FOUND from discovery", err)
			}
		})
	}
	db := open(t, startCluster(t, nil).Endpoint(), ydb.WithAccessTokenCredentials("any"))
	if got := one[int32](t, db, "SELECT 1"); got != 1 {
		t.Errorf("got %d in the database that is there", got)
	}
}

// Rule 20: an empty ticket is none. This client sends one when it is anonymous.
func TestRule20EmptyTicket(t *testing.T) {
	db := open(t, startCluster(t, nil).Endpoint(), ydb.WithAnonymousCredentials())
	if got := one[int32](t, db, "SELECT 1"); got != 1 {
		t.Errorf("got %d", got)
	}
}

// The session's id in calls that describe, change, copy, rename or read a table is not looked at: the calls run beside
// a statement of the session, and after its end.
func TestCallsThatIgnoreTheSession(t *testing.T) {
	cluster := startCluster(t, nil)
	db := open(t, cluster.Endpoint())
	ctx := testContext(t)
	execute(t, db, "CREATE TABLE large (id Uint64, v Bytes, PRIMARY KEY (id))")
	const rows, size = 48, 256 << 10 // more than connections take in ahead of a reader
	large := make([]types.Value, rows)
	for i := range large {
		large[i] = types.StructValue(types.StructFieldValue("id", types.Uint64Value(uint64(i))), types.StructFieldValue("v", types.BytesValue(make([]byte, size))))
	}
	if err := db.Table().BulkUpsert(ctx, "/local/large", table.BulkUpsertDataRows(types.ListValue(large...))); err != nil {
		t.Fatal(err)
	}
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
		conn, err := grpc.NewClient(cluster.Node(s.NodeID()).Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := Ydb_Table_V1.NewTableServiceClient(conn).DeleteSession(ctx, &Ydb_Table.DeleteSessionRequest{SessionId: s.ID()}); err != nil {
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
		if _, err := s.ReadRows(ctx, "/local/large", types.ListValue(types.StructValue(types.StructFieldValue("id", types.Uint64Value(1))))); err != nil {
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
