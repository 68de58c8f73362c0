package officialtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Bridge"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/balancers"
	"github.com/ydb-platform/ydb-go-sdk/v3/coordination"
	"github.com/ydb-platform/ydb-go-sdk/v3/meta"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/ratelimiter"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
	"github.com/ydb-platform/ydb-go-sdk/v3/table/options"
	"github.com/ydb-platform/ydb-go-sdk/v3/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// Rule 2: large messages pass, both ways, but none of more than 64,000,000 bytes. (A server's default is 4 MiB.)
func TestRule02LargeMessages(t *testing.T) {
	db := open(t, startCluster(t, nil).Endpoint())
	const most = 64_000_000
	one[int32](t, db, "SELECT 1", query.WithParameters(ydb.ParamsBuilder().Param("$p").Bytes(make([]byte, most-1000)).Build()))
	err := db.Query().Exec(testContext(t), "DECLARE $p AS String; SELECT 1",
		query.WithParameters(ydb.ParamsBuilder().Param("$p").Bytes(make([]byte, most)).Build()))
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
					return types.StructValue(types.StructFieldValue("id", types.Uint64Value(id)),
						types.StructFieldValue("v", types.OptionalValue(types.TextValue("x"))))
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
	db := open(t, startCluster(t, func(c *devcluster.Config) { c.Auth = devcluster.AuthOff }).Endpoint(),
		ydb.WithAccessTokenCredentials("any"))
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
