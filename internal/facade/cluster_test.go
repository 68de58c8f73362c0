package facade

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/discovery"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/routing"
	"github.com/ydb-sidecar/sidecar/internal/tracing"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/proof/contract"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// world is a service over the real driver and a cluster in this process, with
// real sockets everywhere.
type world struct {
	s       *Service
	cluster *devcluster.Cluster
	target  contract.Target
	lossy   bool // answers of CreateSession get lost, and nobody knows what to delete
}

type late struct{ driver *upstream.Driver }

func (l *late) Probe(ctx context.Context, id cluster.NodeID) error { return l.driver.Probe(ctx, id) }

func newWorld(t *testing.T, cfg Config, tracer *tracing.Tracer, more ...func(*core.Deps)) *world {
	t.Helper()
	nodes, err := devcluster.Start(devcluster.Default())
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	prober := new(late)
	router := routing.New(routing.Default())
	judge := pessimize.New(pessimize.Default(), prober, log)
	driverConfig := upstream.Default()
	driverConfig.URL = nodes.Endpoint()
	driver, err := upstream.New(driverConfig, upstream.Deps{Ways: hop.Ways{Router: router, Health: judge}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	prober.driver = driver
	finder := discovery.New(discovery.Default(), driver, log)
	sessions := pool.New(pool.Default(), driver, log)
	client, err := upstream.NewClient(driver, sessions, upstream.DefaultRetry(), pool.Default().Max)
	if err != nil {
		t.Fatal(err)
	}
	finder.Subscribe(judge.SetTopology)
	finder.Subscribe(router.SetTopology)
	judge.Subscribe(router.SetConditions)
	router.Subscribe(driver.SetView)
	router.Subscribe(sessions.SetView)

	s, err := New(cfg, changed(core.Deps{Driver: core.NewDriver(client), Database: driver.Database(), Tracer: tracer, Log: log}, more))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{s: s, cluster: nodes}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{driver.Run, judge.Run, finder.Run, sessions.Run, s.Run} {
		wg.Go(func() { _ = run(ctx) })
	}
	hangUp := w.listen(t)
	t.Cleanup(func() {
		end, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Drain(end); err != nil {
			t.Errorf("drain: %v", err)
		}
		hangUp()
		err := sessions.Close(end)
		if left := nodes.Sessions(); len(left) > 0 && !w.lossy {
			t.Errorf("%d sessions are left on the nodes: %v", len(left), left)
		}
		stop()
		wg.Wait()
		if err = errors.Join(err, driver.Close(), nodes.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// changed returns what a service needs, after changes by a test.
func changed(deps core.Deps, changes []func(*core.Deps)) core.Deps {
	for _, change := range changes {
		change(&deps)
	}
	return deps
}

// listen serves both APIs until what it returns is called.
func (w *world) listen(t *testing.T) (hangUp func()) {
	t.Helper()
	server, web := grpc.NewServer(w.s.ServerOptions()...), w.s.HTTPServer()
	w.s.Register(server)
	var wg sync.WaitGroup
	for where, serve := range map[*string]func(net.Listener) error{&w.target.GRPC: server.Serve, &w.target.HTTP: web.Serve} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		*where = l.Addr().String()
		wg.Go(func() { _ = serve(l) })
	}
	w.target.HTTP = "http://" + w.target.HTTP
	return func() {
		server.Stop()
		_ = web.Close()
		wg.Wait()
	}
}

// faces are clients of the gRPC API and of the HTTP API.
func (w *world) faces(t *testing.T) []contract.Client {
	t.Helper()
	conn, err := grpc.NewClient("dns:///"+w.target.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	faces := []contract.Client{contract.OverGRPC(conn), contract.OverHTTP(w.target.HTTP)}
	for _, c := range faces {
		t.Cleanup(c.Close)
	}
	return faces
}

// onNodes does something to every node of the cluster.
func (w *world) onNodes(t *testing.T, do func(*devcluster.Node) error) {
	t.Helper()
	for id := range uint32(3) {
		if err := do(w.cluster.Node(id + 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// contractWorld is a world with what the contract's cases need.
func contractWorld(t *testing.T, change func(*Config)) *world {
	t.Helper()
	cfg := Default()
	cfg.API.Timeout = 5 * time.Minute // no call is to fail of its own time, however slow the machine
	settings, err := config.Bind(&cfg)
	if err == nil {
		err = settings.Assign("kv.tables="+contract.KVTables(""), "test")
	}
	if err != nil {
		t.Fatal(err)
	}
	change(&cfg)
	known, err := apps.New(apps.Config{Max: 20, Quotas: strings.Split(contract.AppLimits(""), ",")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, cfg, nil, func(d *core.Deps) { d.Apps = known })
	w.target.KV, w.target.Apps = true, true
	return w
}

func TestContract(t *testing.T) {
	contract.Run(t, contractWorld(t, func(*Config) {}).target)
}

// TestContractOfOldStatuses has the contract's cases for api.statuses=old.
func TestContractOfOldStatuses(t *testing.T) {
	w := contractWorld(t, func(c *Config) { c.API.Statuses = "old" })
	w.target.Old = true
	contract.Run(t, w.target)
}

// TestContractOfDeprecatedParts has the contract's cases of deprecated parts, which no sidecar has today.
func TestContractOfDeprecatedParts(t *testing.T) {
	w := contractWorld(t, func(*Config) {})
	since := time.Date(2027, 1, 2, 0, 0, 0, 0, time.UTC)
	w.s.core.Deprecated = core.Deprecated{}
	for _, part := range contract.DeprecatedParts {
		w.s.core.Deprecated[part] = core.Deprecation{Since: since, Sunset: since.AddDate(1, 0, 0), Instead: "https://example.org/instead"}
	}
	w.target.Deprecated = &contract.Told{
		Deprecation: "@1798848000", Link: `<https://example.org/instead>; rel="deprecation"`, Sunset: "Sun, 02 Jan 2028 00:00:00 GMT",
	}
	contract.Run(t, w.target)
}

// cutReads reads a table over connections that break, and counts what came of it.
type cutReads struct {
	rows                                        int // of the table
	answered, streams, cutStreams, transactions int
}

// fill creates the table.
func (r *cutReads) fill(t *testing.T, face contract.Client) {
	t.Helper()
	if _, err := face.Execute(
		t.Context(), contract.Statement{SQL: "CREATE TABLE cut (id Int64 NOT NULL, v Utf8, PRIMARY KEY (id))"},
	); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 7500)
	for from := 0; from < r.rows; from += 50 {
		batch := contract.Bulk{Table: "cut"}
		for i := range 50 {
			batch.Rows = append(batch.Rows, map[string]any{"id": from + i, "v": long})
		}
		if _, err := face.BulkUpsert(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
}

// row is a statement that reads one row.
func (r *cutReads) row(id int) contract.Statement {
	return contract.Statement{SQL: "DECLARE $id AS Int64; SELECT id FROM cut WHERE id = $id", Params: map[string]any{"id": id}}
}

// safe reports whether a call was answered, and fails unless it was, or may be repeated.
func (r *cutReads) safe(t *testing.T, what string, err error) bool {
	t.Helper()
	if err == nil {
		return true
	}
	if e, ok := errors.AsType[*contract.Error](err); !ok || e.Unknown || !e.Safe || e.Code == "OUTCOME_UNKNOWN" {
		t.Errorf("%s: %v; want an answer, or to be told that it is safe to retry", what, err)
	}
	return false
}

// stream reads the whole table. What comes before a cut is the beginning of the table.
func (r *cutReads) stream(t *testing.T, face contract.Client) {
	t.Helper()
	reply, err := face.Stream(t.Context(), contract.Statement{SQL: "SELECT id, v FROM cut ORDER BY id"})
	r.streams++
	if !r.safe(t, "stream", err) {
		r.cutStreams++
	} else if len(reply.Rows) != r.rows {
		t.Errorf("a stream that ended well has %d rows; want %d", len(reply.Rows), r.rows)
	}
	if reply != nil {
		for at, row := range reply.Rows {
			if row[0] != fmt.Sprint(at) {
				t.Fatalf("row %d of a stream is %v", at, row[0])
			}
		}
	}
}

// transaction reads a row in a transaction, which ends in a call of its own or with its second statement.
func (r *cutReads) transaction(t *testing.T, face contract.Client, id int, inline bool) {
	t.Helper()
	r.transactions++
	r.safe(t, "transaction", func() error {
		tx, err := face.Begin(t.Context(), "")
		if err != nil {
			return err
		}
		defer func() { _ = face.Rollback(t.Context(), tx.ID) }()
		statement := r.row(id)
		statement.Tx = &contract.TxSelector{ID: tx.ID}
		if _, err = face.Execute(t.Context(), statement); err != nil {
			return err
		}
		if !inline {
			return face.Commit(t.Context(), tx.ID)
		}
		statement.Tx.Commit = true
		_, err = face.Execute(t.Context(), statement)
		return err
	}())
}

// query reads a row with one statement, or with two of a list.
func (r *cutReads) query(t *testing.T, face contract.Client, id int, list bool) {
	t.Helper()
	var replies []*contract.Reply
	var err error
	if list {
		replies, err = face.Transact(t.Context(), contract.Transaction{Statements: []contract.Statement{r.row(id), r.row(id)}})
	} else {
		replies = make([]*contract.Reply, 1)
		replies[0], err = face.Execute(t.Context(), r.row(id))
	}
	if !r.safe(t, "query", err) {
		return
	}
	r.answered++
	if rows := replies[len(replies)-1].Rows; len(rows) != 1 || rows[0][0] != fmt.Sprint(id) {
		t.Errorf("%v; want the row %d", rows, id)
	}
}

// TestReadsWhoseAnswersAreCut: what only reads is repeated, or may be, in the default mode too.
// What was handed on of a stream before it was cut is never repeated silently.
func TestReadsWhoseAnswersAreCut(t *testing.T) {
	t.Parallel() // it waits more than it works
	config := Default()
	config.API.Timeout = time.Minute // no call is to fail of its own time, however slow the machine
	w := newWorld(t, config, nil)
	faces := w.faces(t)
	r := &cutReads{rows: 200} // some parts of an answer
	r.fill(t, faces[0])
	w.lossy = true
	w.onNodes(t, func(n *devcluster.Node) error { return n.Cut(0.35) })
	calls := short.Of(200, 40)
	for i := range calls {
		face := faces[i%2]
		if n := w.cluster.Node(uint32(i/20)%3 + 1); i%20 == 10 {
			n.Kill()
		} else if i%20 == 19 {
			if err := errors.Join(n.Start(), n.Cut(0.35)); err != nil {
				t.Fatal(err)
			}
		}
		switch {
		case i%20 == 5:
			r.stream(t, face)
		case i%5 == 3:
			r.transaction(t, face, i, i%4 < 2)
		default:
			r.query(t, face, i, i%5 == 1)
		}
	}
	queries := calls - r.streams - r.transactions
	t.Logf("%d of %d queries were answered, %d of %d streams cut", r.answered, queries, r.cutStreams, r.streams)
	if r.answered < calls/4 {
		t.Errorf("%d queries were answered", r.answered)
	}
	w.onNodes(t, func(n *devcluster.Node) error { return n.Cut(0) })
}

// TestTextsInParts: what YDB does not roll back is not sent again, and nobody is told that nothing was kept.
func TestTextsInParts(t *testing.T) {
	w := newWorld(t, Default(), nil)
	faces := w.faces(t)
	// The second statement fails by itself, after the table of the first one is there.
	if _, err := faces[0].Execute(
		t.Context(), contract.Statement{SQL: "CREATE TABLE is_there (id Int64 NOT NULL, PRIMARY KEY (id))"},
	); err != nil {
		t.Fatal(err)
	}
	for _, face := range faces {
		table := "kept_" + face.Name()
		_, err := face.Execute(
			t.Context(),
			contract.Statement{SQL: "CREATE TABLE " + table + " (id Int64 NOT NULL, PRIMARY KEY (id)); CREATE TABLE " +
				"is_there (id Int64 NOT NULL, PRIMARY KEY (id))"},
		)
		if e, ok := errors.AsType[*contract.Error](err); !ok || e.Safe || !e.Unknown {
			t.Errorf("the second statement of two: %v; want that the outcome is unknown", err)
		}
		_, err = face.Execute(t.Context(), contract.Statement{SQL: "CREATE TABLE is_there (id Int64 NOT NULL, PRIMARY KEY (id))"})
		if e, ok := errors.AsType[*contract.Error](err); !ok || e.Safe || e.Unknown {
			t.Errorf("a table that is there: %v; want that nothing was kept", err)
		}
		if _, err := face.Execute(t.Context(), contract.Statement{SQL: "SELECT id FROM " + table}); err != nil {
			t.Errorf("the table of the first statement: %v", err)
		}
	}
	for _, status := range []string{"ABORTED", "UNAVAILABLE", "OVERLOADED"} {
		w.onNodes(t, func(n *devcluster.Node) error {
			return n.Errors(devcluster.Errors{Status: status, Share: 1, Methods: []string{"ExecuteQuery"}, After: true})
		})
		for _, face := range faces {
			name := strings.ToLower(status + "_" + face.Name())
			_, err := face.Execute(
				t.Context(),
				contract.Statement{
					SQL: "CREATE TABLE " + name + "_a (id Int64 NOT NULL, PRIMARY KEY (id)); CREATE TABLE " + name +
						"_b (id Int64 NOT NULL, PRIMARY KEY (id))",
				},
			)
			refused(t, err, "YDB_"+status, false, true)
			_, err = face.Execute(t.Context(), contract.Statement{SQL: "CREATE TABLE " + name + " (id Int64 NOT NULL, PRIMARY KEY (id))"})
			refused(t, err, "YDB_"+status, false, true)
		}
	}
}

// TestOneCompilationPerNode: parameters never change the text, so the server's
// cache of plans works.
func TestOneCompilationPerNode(t *testing.T) {
	w := newWorld(t, Default(), nil)
	c, each := w.faces(t)[1], short.Of(100, 25)
	var wg sync.WaitGroup
	for at := range 10 {
		wg.Go(func() {
			for i := range each {
				r, err := c.Execute(t.Context(), contract.Statement{
					SQL: "DECLARE $id AS Uint64; SELECT $id AS id, 'compiled once' AS what", Params: map[string]any{"id": at*100 + i},
				})
				if err != nil || r.Rows[0][0] != fmt.Sprint(at*100+i) {
					t.Errorf("call %d: %v, %v", i, r, err)
				}
			}
		})
	}

	wg.Wait()
	n := int64(0)
	w.onNodes(t, func(node *devcluster.Node) error {
		n += node.Counters().Compilations
		return nil
	})
	if n < 1 || n > 3 {
		t.Errorf("%d compilations for %d calls on 3 nodes; want at most one each", n, 10*each)
	}
}
