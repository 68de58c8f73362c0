package officialtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
	"github.com/ydb-platform/ydb-go-sdk/v3/types"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// What a client hears of a hot table, a full disk, a spent quota, a full resource pool and
// the like: the statuses, texts and issue codes of the server, on every node alike.
func TestFaultsOfTheDatabase(t *testing.T) {
	cluster := startCluster(t, nil)
	db := open(t, cluster.Endpoint())
	execute(t, db, "CREATE TABLE t (id Uint64, PRIMARY KEY (id))")
	execute(t, db, "CREATE TABLE other (id Uint64, PRIMARY KEY (id))")
	const (
		overloaded  = Ydb.StatusIds_OVERLOADED
		unavailable = Ydb.StatusIds_UNAVAILABLE
	)
	for _, c := range []struct {
		fault  devcluster.Fault
		status Ydb.StatusIds_StatusCode
		code   uint32
		text   string
		read   bool // reads are struck as well
		bulk   Ydb.StatusIds_StatusCode
	}{
		{devcluster.Fault{Kind: devcluster.HotShard, Table: "t"}, overloaded, 2006,
			"Tablet 72075186224037888 is overloaded. Table `/local/t`.", true, 0},
		{devcluster.Fault{Kind: devcluster.DiskFull}, unavailable, 2033, "Disk space exhausted. Table `/local/t`.", false, unavailable},
		{devcluster.Fault{Kind: devcluster.Quota}, overloaded, 200803, "Throughput limit exceeded", true, overloaded},
		{devcluster.Fault{Kind: devcluster.PoolFull}, overloaded, 0,
			"Query failed during adding/waiting in workload pool default", true, Ydb.StatusIds_SUCCESS},
		{devcluster.Fault{Kind: devcluster.ShardBusy, Table: "t"}, unavailable, 2005, "Wrong shard state. Table `/local/t`.", true, 0},
		{devcluster.Fault{Kind: devcluster.ComputeNode, Table: "t"}, unavailable, 2005, "Compute node is unavailable",
			true, Ydb.StatusIds_SUCCESS},
	} {
		t.Run(string(c.fault.Kind), func(t *testing.T) {
			c.fault.Share = 1
			f, err := cluster.AddFault(t.Context(), c.fault)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := cluster.RemoveFault(context.Background(), f.ID); err != nil {
					t.Error(err)
				}
				execute(t, db, "UPSERT INTO t (id) VALUES (1u)") // it is over
			}()
			for _, sql := range []string{"UPSERT INTO t (id) VALUES (1u)", "SELECT * FROM t"} {
				for range 6 { // on the sessions of different nodes
					err := onSession(t, db, sql)
					if sql[0] == 'S' && !c.read {
						if err != nil {
							t.Errorf("%s: %v", sql, err)
						}
						continue
					}
					wantStatus(t, sql, err, c.status)
					if !hasIssue(err, c.code, c.text) {
						t.Errorf("%s: %v; want an issue %d %q", sql, err, c.code, c.text)
					}
				}
			}
			if c.fault.Table != "" {
				if err := onSession(t, db, "UPSERT INTO other (id) VALUES (1u)"); err != nil {
					t.Errorf("another table: %v", err)
				}
			}
			if c.bulk != 0 {
				err := db.Table().Do(testContext(t), func(ctx context.Context, s table.Session) error {
					//lint:ignore SA1019 one attempt is what is shown; the client's own repeats it
					err := s.BulkUpsert(ctx, "/local/t",
						types.ListValue(types.StructValue(types.StructFieldValue("id", types.Uint64Value(7)))))
					return once{err}
				})
				if c.bulk == Ydb.StatusIds_SUCCESS {
					if e, ok := errors.AsType[once](err); !ok || e.err != nil {
						t.Errorf("bulk upsert: %v", err)
					}
				} else if e, _ := errors.AsType[once](err); !ydb.IsOperationError(e.err, c.bulk) {
					t.Errorf("bulk upsert: %v; want %v", err, c.bulk)
				}
			}
		})
	}
}

// once ends Do without a repeat.
type once struct{ err error }

func (e once) Error() string { return fmt.Sprint(e.err) }

// onSession runs a statement that is not repeated.
func onSession(t *testing.T, db *ydb.Driver, sql string) error {
	t.Helper()
	var failed error
	if err := db.Query().Do(testContext(t), func(ctx context.Context, s query.Session) error {
		failed = s.Exec(ctx, sql)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return failed
}

func hasIssue(err error, code uint32, text string) bool {
	found := false
	ydb.IterateByIssues(err, func(message string, c Ydb.StatusIds_StatusCode, _ uint32) {
		found = found || uint32(c) == code && strings.Contains(message, text)
	})
	return found
}

// What a client hears of one node that is overloaded with compilations, has yet to join the
// database, or belongs to another one now.
func TestFaultsOfOneNode(t *testing.T) {
	cluster := startCluster(t, func(c *devcluster.Config) { c.Nodes = 1 })
	var r recorder
	db := open(t, cluster.Endpoint(), r.option())
	during := func(kind devcluster.FaultKind, f func()) {
		t.Helper()
		fault, err := cluster.AddFault(t.Context(), devcluster.Fault{Kind: kind, Node: 1, Share: 1})
		if err != nil {
			t.Fatal(err)
		}
		f()
		if err := cluster.RemoveFault(context.Background(), fault.ID); err != nil {
			t.Fatal(err)
		}
	}
	during(devcluster.CompileQueue, func() {
		err := onSession(t, db, "SELECT 1")
		wantStatus(t, "with a full compile queue", err, Ydb.StatusIds_OVERLOADED)
		if !hasIssue(err, 0, "Exceeded maximum number of requests in compile service queue.") {
			t.Errorf("with a full compile queue: %v", err)
		}
	})
	during(devcluster.WrongTenant, func() {
		err := onSession(t, db, "SELECT 1")
		wantStatus(t, "on a node of another tenant", err, Ydb.StatusIds_UNAUTHORIZED)
		if !hasIssue(err, 200000, "Unexpected node to perform query on database: /local, domain: ") {
			t.Errorf("on a node of another tenant: %v", err)
		}
	})
	other := open(t, cluster.Endpoint(), r.option())
	during(devcluster.NotReady, func() {
		if err := onSession(t, db, "SELECT 1"); err != nil {
			t.Errorf("a session that there was before: %v", err)
		}
		ctx, cancel := context.WithCancel(testContext(t))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = other.Query().Exec(ctx, "SELECT 1") // it is repeated until the context ends
		}()
		await.True(t, "a session is refused", func() bool {
			return slices.ContainsFunc(r.of("CreateSession"), func(e event) bool {
				a, ok := e.message.(*Ydb_Query.CreateSessionResponse)
				return ok && a.GetStatus() == Ydb.StatusIds_UNAVAILABLE &&
					a.GetIssues()[0].GetMessage() == "Node isn't ready to serve database requests."
			})
		})
		cancel()
		<-ended
	})
	execute(t, other, "SELECT 1")
}
