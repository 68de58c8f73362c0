package systemtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/ratelimiter"
	"github.com/ydb-platform/ydb-go-sdk/v3/table"
	"github.com/ydb-platform/ydb-go-sdk/v3/types"
)

// everyMode runs a test with calls passed through and on virtual sessions; through are the
// settings that make a sidecar serve YDB's own protocol so.
func everyMode(t *testing.T, run func(t *testing.T, through []string)) {
	t.Run("passthrough", func(t *testing.T) { run(t, []string{"wire.mode=passthrough"}) })
	t.Run("virtual", func(t *testing.T) { run(t, inMode("transaction")) })
}

// inMode are the settings for a mode in which sessions of SDKs are the sidecar's.
func inMode(mode string) []string {
	return []string{"wire.mode=" + mode, "pool.max=" + fmt.Sprint(virtualMax)}
}

const virtualMax = 60

// clean waits until no session is left, or, with virtual sessions, until those that are left rest
// in the pool with nothing open.
func (c *ydb) clean(t *testing.T, through []string) {
	t.Helper()
	if slices.Contains(through, "wire.mode=passthrough") {
		c.noSessions(t)
		return
	}
	eventually(t, patience, "nothing is left open", func() string {
		sessions, err := c.Sessions(t.Context())
		if err != nil {
			return err.Error()
		}
		for _, s := range sessions {
			if s.State != "idle" {
				return fmt.Sprintf("%+v", s)
			}
		}
		if n := c.sum(t, "open"); n != 0 {
			return fmt.Sprintf("%d transactions", n)
		}
		if len(sessions) > virtualMax {
			return fmt.Sprintf("%d sessions; at most %d are allowed", len(sessions), virtualMax)
		}
		return ""
	})
}

// The client gives up half a second after it asked for a session, or asked to delete one. On a
// machine that stalls for longer it leaves sessions behind that it knows nothing of any more: a
// test that finds none left has the client wait.
var (
	slowDeletes = ydbsdk.WithSessionPoolDeleteTimeout(20 * time.Second)
	slowCreates = ydbsdk.WithSessionPoolCreateSessionTimeout(20 * time.Second)
)

// openSDK connects the official Go client to an address as an application would.
func openSDK(t *testing.T, url string, options ...ydbsdk.Option) *ydbsdk.Driver {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	db, err := ydbsdk.Open(ctx, url, append([]ydbsdk.Option{slowDeletes}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSDK(t, db) })
	return db
}

func closeSDK(t *testing.T, db *ydbsdk.Driver) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := db.Close(ctx); err != nil {
		t.Errorf("close the client: %v", err)
	}
}

// sdk is the URL at which a client finds a sidecar that serves YDB's own protocol.
func (s *sidecar) sdk() string { return "grpc://" + s.GRPC + "/local" }

const declareID = "DECLARE $id AS Uint64; "

func idParam(id uint64) query.ExecuteOption {
	return query.WithParameters(ydbsdk.ParamsBuilder().Param("$id").Uint64(id).Build())
}

// must runs a statement that must succeed.
func must(t *testing.T, db *ydbsdk.Driver, sql string, options ...query.ExecuteOption) {
	t.Helper()
	if err := db.Query().Exec(t.Context(), sql, options...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// number reads the only value of the only row.
func number(ctx context.Context, db *ydbsdk.Driver, sql string, options ...query.ExecuteOption) (n uint64, err error) {
	row, err := db.Query().QueryRow(ctx, sql, options...)
	if err == nil {
		err = row.Scan(&n)
	}
	return n, err
}

// count reads how many rows a table has, or fails the test.
func count(t *testing.T, db *ydbsdk.Driver, table string) uint64 {
	t.Helper()
	n, err := number(t.Context(), db, "SELECT COUNT(*) FROM "+table, query.WithIdempotent())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// noSessions waits until no session is left on any node.
func (c *ydb) noSessions(t *testing.T) {
	t.Helper()
	eventually(t, patience, "no session is left", func() string {
		if count := c.perNode(t); sum(count) != 0 {
			return fmt.Sprint(count)
		}
		return ""
	})
}

// fillLarge makes a table of rows that are too many for one message.
func fillLarge(t *testing.T, db *ydbsdk.Driver, rows int) {
	t.Helper()
	must(t, db, "CREATE TABLE large (id Uint64, text Utf8, PRIMARY KEY (id))")
	text := string(make([]byte, 1000))
	var values []types.Value
	for id := range rows {
		values = append(values,
			types.StructValue(types.StructFieldValue("id", types.Uint64Value(uint64(id))),
				types.StructFieldValue("text", types.TextValue(text))))
	}
	if err := db.Table().BulkUpsert(t.Context(), "/local/large", table.BulkUpsertDataRows(types.ListValue(values...))); err != nil {
		t.Fatal(err)
	}
}

func TestGoClientThroughTheSidecar(t *testing.T) { everyMode(t, goClient) }

func TestGoClientInSessionMode(t *testing.T) { goClient(t, inMode("session")) }

func goClient(t *testing.T, through []string) {
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, through...)
	db, err := ydbsdk.Open(t.Context(), s.sdk(), slowCreates, slowDeletes)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		closeSDK(t, db)
		c.clean(t, through)
		if n := c.sum(t, "forwarded"); n != 0 {
			t.Errorf("%d calls did not go to the owner of their session", n)
		}
	}()
	for _, part := range []struct {
		name string
		run  func(*testing.T, *ydb, *ydbsdk.Driver)
	}{
		{"query", queryClient}, {"table", tableClient}, {"sql", databaseSQL}, {"streams", largeStreams}, {"cancelled", cancelledStream},
		{"conflicts", conflicts}, {"statuses", statuses}, {"large_messages", largeMessages},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, c, db) })
	}
	t.Run("discovery", func(t *testing.T) {
		found, err := db.Discovery().Discover(t.Context())
		if err != nil || len(found) != 1 || found[0].Address() != s.GRPC {
			t.Errorf("discovery tells %v, %v; want %s alone", found, err, s.GRPC)
		}
		if _, err := db.Discovery().WhoAmI(t.Context()); !ydbsdk.IsOperationError(err, Ydb.StatusIds_GENERIC_ERROR) {
			t.Errorf("WhoAmI is answered by a node, which can name no user: %v", err)
		}
	})
}

var errStop = errors.New("stop")

func queryClient(t *testing.T, _ *ydb, db *ydbsdk.Driver) {
	ctx := t.Context()
	must(t, db, "CREATE TABLE q (id Uint64, PRIMARY KEY (id))")
	// Statements without a session of the client's own, on one, and in transactions.
	must(t, db, declareID+"UPSERT INTO q (id) VALUES ($id)", idParam(1))
	err := db.Query().Do(ctx, func(ctx context.Context, s query.Session) error {
		return s.Exec(ctx, declareID+"UPSERT INTO q (id) VALUES ($id)", idParam(2))
	})
	if err != nil {
		t.Error(err)
	}
	write := func(ids []uint64, end error) error {
		return db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error {
			for _, id := range ids {
				if err := tx.Exec(ctx, declareID+"UPSERT INTO q (id) VALUES ($id)", idParam(id)); err != nil {
					return err
				}
				var n uint64 // its own row is there
				row, err := tx.QueryRow(ctx, declareID+"SELECT COUNT(*) FROM q WHERE id = $id", idParam(id))
				if err == nil {
					err = row.Scan(&n)
				}
				if err != nil || n != 1 {
					return fmt.Errorf("row %d of the transaction: %d, %w", id, n, err)
				}
			}
			return end
		})
	}
	if err := write([]uint64{3, 4}, nil); err != nil {
		t.Error(err)
	}
	if err := write([]uint64{5}, errStop); !errors.Is(err, errStop) {
		t.Error(err)
	}
	// An interactive one, step by step.
	err = db.Query().Do(ctx, func(ctx context.Context, s query.Session) error {
		tx, err := s.Begin(ctx, query.TxSettings(query.WithSerializableReadWrite()))
		if err != nil {
			return err
		}
		if err := tx.Exec(ctx, declareID+"UPSERT INTO q (id) VALUES ($id)", idParam(6)); err != nil {
			return err
		}
		return tx.CommitTx(ctx)
	})
	if err != nil {
		t.Error(err)
	}
	if n := count(t, db, "q"); n != 5 {
		t.Errorf("%d rows; want 5", n)
	}
}

func tableClient(t *testing.T, _ *ydb, db *ydbsdk.Driver) {
	ctx := t.Context()
	err := db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
		if err := s.ExecuteSchemeQuery(ctx, "CREATE TABLE tt (id Uint64, PRIMARY KEY (id))"); err != nil {
			return err
		}
		if err := s.KeepAlive(ctx); err != nil {
			return err
		}
		statement, err := s.Prepare(ctx, declareID+"UPSERT INTO tt (id) VALUES ($id)")
		if err != nil {
			return err
		}
		_, r, err := statement.Execute(
			ctx, table.DefaultTxControl(), table.NewQueryParameters(table.ValueParam("$id", types.Uint64Value(7))),
		)
		if err != nil {
			return err
		}
		return r.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Table().DoTx(ctx, func(ctx context.Context, tx table.TransactionActor) error {
		r, err := tx.Execute(ctx, "UPSERT INTO tt (id) VALUES (8ul)", nil)
		if err != nil {
			return err
		}
		return r.Close()
	})
	if err != nil {
		t.Error(err)
	}
	seen := 0
	err = db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
		seen = 0
		r, err := s.StreamExecuteScanQuery(ctx, "SELECT id FROM tt", nil)
		if err != nil {
			return err
		}
		defer r.Close()
		for r.NextResultSet(ctx) {
			for r.NextRow() {
				seen++
			}
		}
		return r.Err()
	})
	if err != nil || seen != 2 {
		t.Errorf("a scan query: %d rows, %v; want 2", seen, err)
	}
}

func databaseSQL(t *testing.T, _ *ydb, db *ydbsdk.Driver) {
	ctx := t.Context()
	for name, option := range map[string]ydbsdk.ConnectorOption{"query": ydbsdk.WithQueryService(true),
		"table": ydbsdk.WithQueryService(false)} {
		connector, err := ydbsdk.Connector(db, option, ydbsdk.WithAutoDeclare(), ydbsdk.WithNumericArgs())
		if err != nil {
			t.Fatal(err)
		}
		pool := sql.OpenDB(connector)
		defer pool.Close()
		if _, err := pool.ExecContext(
			ydbsdk.WithQueryMode(ctx, ydbsdk.SchemeQueryMode),
			"CREATE TABLE sql_"+name+" (id Uint64, v Utf8, PRIMARY KEY (id))",
		); err != nil {
			t.Fatal(name, err)
		}
		tx, err := pool.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(name, err)
		}
		for id := range uint64(3) {
			if _, err := tx.ExecContext(ctx, "UPSERT INTO sql_"+name+" (id, v) VALUES ($1, $2)", id, "text"); err != nil {
				t.Error(name, err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Error(name, err)
		}
		var n uint64
		if err := pool.QueryRowContext(ctx, "SELECT COUNT(*) FROM sql_"+name).Scan(&n); err != nil || n != 3 {
			t.Errorf("%s: %d rows, %v; want 3", name, n, err)
		}
		if err := connector.Close(); err != nil {
			t.Error(err)
		}
	}
}

const largeRows = 20000

func largeStreams(t *testing.T, _ *ydb, db *ydbsdk.Driver) {
	fillLarge(t, db, largeRows)
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			seen := 0
			err := db.Query().Do(t.Context(), func(ctx context.Context, s query.Session) error {
				seen = 0
				return eachRow(ctx, s, "SELECT id, text FROM large", func() error { seen++; return nil })
			})
			if err != nil || seen != largeRows {
				t.Errorf("%d rows, %v; want %d", seen, err, largeRows)
			}
		})
	}
	seen := 0
	err := db.Table().Do(t.Context(), func(ctx context.Context, s table.Session) error {
		seen = 0
		r, err := s.StreamReadTable(ctx, "/local/large")
		if err != nil {
			return err
		}
		defer r.Close()
		for r.NextResultSet(ctx) {
			for r.NextRow() {
				seen++
			}
		}
		return r.Err()
	})
	if err != nil || seen != largeRows {
		t.Errorf("the table read as a stream: %d rows, %v; want %d", seen, err, largeRows)
	}
	readers.Wait()
}

// eachRow calls f for every row of a statement until that fails.
func eachRow(ctx context.Context, s query.Session, sql string, f func() error) error {
	r, err := s.Query(ctx, sql)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close(ctx) }()
	for {
		set, err := r.NextResultSet(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for {
			if _, err := set.NextRow(ctx); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return err
			}
			if err := f(); err != nil {
				return err
			}
		}
	}
}

// cancelledStream: a stream that is given up in the middle, by its context, ends on
// the node, which would else wait for ever for the client to read.
func cancelledStream(t *testing.T, c *ydb, db *ydbsdk.Driver) {
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		err := db.Query().Do(ctx, func(ctx context.Context, s query.Session) error {
			// More than all buffers on the way hold, however long the reader is away.
			return eachRow(ctx, s, "SELECT a.id, a.text, a.text AS b, a.text AS c, a.text AS d FROM large AS a", func() error {
				if busy(t, c) == 0 {
					t.Error("the stream has ended before it was read: this proves nothing")
				}
				cancel()
				return ctx.Err()
			})
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled stream: %v", err)
		}
		eventually(t, patience, "the node has ended the stream", func() string {
			if n := busy(t, c); n != 0 {
				return fmt.Sprintf("%d sessions are busy", n)
			}
			return ""
		})
	}
	must(t, db, "SELECT 1")
}

// busy counts the sessions that run something.
func busy(t *testing.T, c *ydb) (n int) {
	t.Helper()
	sessions, err := c.Sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sessions {
		if s.State == "busy" {
			n++
		}
	}
	return n
}

// conflicts: transactions that conflict are repeated by the client, and none is lost.
func conflicts(t *testing.T, c *ydb, db *ydbsdk.Driver) {
	const callers, each = 6, 5
	must(t, db, "CREATE TABLE counter (id Uint64, n Uint64, PRIMARY KEY (id))")
	must(t, db, "UPSERT INTO counter (id, n) VALUES (1ul, 0ul)")
	before := c.sum(t, "conflicts")
	var work sync.WaitGroup
	for range callers {
		work.Go(func() {
			for range each {
				err := db.Query().DoTx(t.Context(), func(ctx context.Context, tx query.TxActor) error {
					var n uint64
					row, err := tx.QueryRow(ctx, "SELECT n FROM counter WHERE id = 1ul")
					if err == nil {
						err = row.Scan(&n)
					}
					if err != nil {
						return err
					}
					return tx.Exec(ctx, declareID+"UPDATE counter SET n = $id WHERE id = 1ul", idParam(n+1))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	n, err := number(t.Context(), db, "SELECT n FROM counter")
	if err != nil || n != callers*each {
		t.Errorf("the counter is %d, %v; want %d", n, err, callers*each)
	}
	if c.sum(t, "conflicts") == before {
		t.Error("there was no conflict: this proves nothing")
	}
}

// statuses: what YDB says reaches the client as it is.
func statuses(t *testing.T, _ *ydb, db *ydbsdk.Driver) {
	ctx := t.Context()
	for sql, want := range map[string]Ydb.StatusIds_StatusCode{
		"SELEKT 1":                         Ydb.StatusIds_GENERIC_ERROR,
		"SELECT * FROM missing":            Ydb.StatusIds_SCHEME_ERROR,
		"INSERT INTO once (id) VALUES (1)": Ydb.StatusIds_PRECONDITION_FAILED,
	} {
		if want == Ydb.StatusIds_PRECONDITION_FAILED {
			must(t, db, "CREATE TABLE once (id Int32, PRIMARY KEY (id))")
			must(t, db, sql)
		}
		err := db.Query().Exec(ctx, sql)
		if !ydbsdk.IsOperationError(err, want) || ydbsdk.IsTransportError(err) {
			t.Errorf("%s: %v; want %v", sql, err, want)
		}
	}
	if err := db.Ratelimiter().CreateResource(
		ctx, "node", ratelimiter.Resource{ResourcePath: "r"},
	); !ydbsdk.IsOperationError(err, Ydb.StatusIds_UNSUPPORTED) {
		t.Errorf("a rate limiter: %v", err)
	}
}

// largeMessages pass both ways.
func largeMessages(t *testing.T, _ *ydb, db *ydbsdk.Driver) {
	large := make([]byte, 20<<20)
	for i := range large {
		large[i] = byte(i * 7 >> 3)
	}
	row, err := db.Query().QueryRow(
		t.Context(), "DECLARE $p AS String; SELECT $p",
		query.WithParameters(ydbsdk.ParamsBuilder().Param("$p").Bytes(large).Build()),
	)
	var got []byte
	if err == nil {
		err = row.Scan(&got)
	}
	if err != nil || string(got) != string(large) {
		t.Errorf("%d bytes came back, %v; want the %d sent", len(got), err, len(large))
	}
}

// Many clients, each with a pool of its own: all calls go to the owners of their
// sessions, which are spread over the nodes. Without affinity they do not.
func TestSDKCallsReachTheOwner(t *testing.T) {
	const clients, callers, rounds = 4, 8, 20
	everyMode(t, func(t *testing.T, through []string) {
		c := startCluster(t, nil)
		run := func(s *sidecar) (owned, forwarded int64) {
			t.Helper()
			owned, forwarded = c.sum(t, "owned"), c.sum(t, "forwarded")
			var work sync.WaitGroup
			for range clients {
				db := openSDK(t, s.sdk())
				for range callers {
					work.Go(func() {
						for range rounds {
							if err := sdkRound(t.Context(), db); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
			}
			work.Wait()
			if count := c.perNode(t); sum(count) < clients || least(count) == 0 {
				t.Errorf("the sessions are on %v; want some on every node", count)
			}
			return c.sum(t, "owned") - owned, c.sum(t, "forwarded") - forwarded
		}
		const calls = clients * callers * rounds * 4
		if owned, forwarded := run(startSidecar(t, c, nil, through...)); forwarded != 0 || owned < calls {
			t.Errorf("%d calls reached the owner and %d were forwarded; want at least %d and 0", owned, forwarded, calls)
		}
		owned, forwarded := run(startSidecar(t, c, nil, append(through, "routing.affinity=off")...))
		if share := float64(forwarded) / float64(owned+forwarded); math.Abs(share-2./3) > 0.1 {
			t.Errorf("affinity off: %d of %d calls were forwarded, a share of %.2f; want two thirds", forwarded, owned+forwarded, share)
		}
	})
}

func least(count map[uint32]int) int {
	n := math.MaxInt
	for _, k := range count {
		n = min(n, k)
	}
	return n
}

// sdkRound makes at least four calls that are bound to a session.
func sdkRound(ctx context.Context, db *ydbsdk.Driver) error {
	err := db.Query().Do(ctx, func(ctx context.Context, s query.Session) error { return s.Exec(ctx, "SELECT 1") }, query.WithIdempotent())
	if err != nil {
		return err
	}
	err = db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error { return tx.Exec(ctx, "SELECT 2") },
		query.WithIdempotent())
	if err != nil {
		return err
	}
	return db.Table().Do(ctx, func(ctx context.Context, s table.Session) error {
		_, r, err := s.Execute(ctx, table.DefaultTxControl(), "SELECT 3", nil)
		if err != nil {
			return err
		}
		return r.Close()
	}, table.WithIdempotent())
}
