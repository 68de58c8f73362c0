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

func newWorld(t *testing.T, cfg Config, tracer *tracing.Tracer) *world {
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

	s, err := New(cfg, core.Deps{Driver: core.NewDriver(client), Database: driver.Database(), Tracer: tracer, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{s: s, cluster: nodes}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{driver.Run, judge.Run, finder.Run, sessions.Run, s.Run} {
		wg.Go(func() { _ = run(ctx) })
	}
	server, web := grpc.NewServer(s.ServerOptions()...), s.HTTPServer()
	s.Register(server)
	for where, serve := range map[*string]func(net.Listener) error{&w.target.GRPC: server.Serve, &w.target.HTTP: web.Serve} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		*where = l.Addr().String()
		wg.Go(func() { _ = serve(l) })
	}
	w.target.HTTP = "http://" + w.target.HTTP
	t.Cleanup(func() {
		end, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Drain(end); err != nil {
			t.Errorf("drain: %v", err)
		}
		server.Stop()
		_ = web.Close()
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

// client is a face of the world.
func (w *world) client(t *testing.T) contract.Client {
	t.Helper()
	c := contract.OverHTTP(w.target.HTTP)
	t.Cleanup(c.Close)
	return c
}

func TestContract(t *testing.T) {
	cfg := Default()
	cfg.API.Timeout = 5 * time.Minute // no call is to fail of its own time, however slow the machine
	settings, err := config.Bind(&cfg)
	if err == nil {
		err = settings.Assign("kv.tables="+contract.KVTables(""), "test")
	}
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, cfg, nil)
	w.target.KV = true
	contract.Run(t, w.target)
}

// TestReadsWhoseAnswersAreCut: what only reads is repeated, or may be, in the default mode too.
// What was handed on of a stream before it was cut is never repeated silently.
func TestReadsWhoseAnswersAreCut(t *testing.T) {
	config := Default()
	config.API.Timeout = time.Minute // no call is to fail of its own time, however slow the machine
	w := newWorld(t, config, nil)
	conn, err := grpc.NewClient("dns:///"+w.target.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	faces := []contract.Client{contract.OverGRPC(conn), w.client(t)}
	t.Cleanup(faces[0].Close)
	long := strings.Repeat("x", 1000)
	if _, err := faces[0].Execute(
		t.Context(), contract.Statement{SQL: "CREATE TABLE cut (id Int64 NOT NULL, v Utf8, PRIMARY KEY (id))"},
	); err != nil {
		t.Fatal(err)
	}
	const rows = 1500 // some parts of an answer
	for from := 0; from < rows; from += 500 {
		batch := contract.Bulk{Table: "cut"}
		for i := range 500 {
			batch.Rows = append(batch.Rows, map[string]any{"id": from + i, "v": long})
		}
		if _, err := faces[0].BulkUpsert(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	cut := func(share float64) {
		for id := range uint32(3) {
			if err := w.cluster.Node(id + 1).Cut(share); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(what string, err error) bool {
		if err == nil {
			return true
		}
		if e, ok := errors.AsType[*contract.Error](err); !ok || e.Unknown || !e.Safe || e.Code == "OUTCOME_UNKNOWN" {
			t.Errorf("%s: %v; want an answer, or to be told that it is safe to retry", what, err)
		}
		return false
	}
	w.lossy = true
	cut(0.35)
	interactive := func(face contract.Client, statement contract.Statement, inline bool) error {
		tx, err := face.Begin(t.Context(), "")
		if err != nil {
			return err
		}
		defer func() { _ = face.Rollback(t.Context(), tx.ID) }()
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
	}
	answered, streams, broken, transactions := 0, 0, 0, 0
	calls := short.Of(200, 60)
	for i := range calls {
		face := faces[i%2]
		if n := w.cluster.Node(uint32(i/20)%3 + 1); i%20 == 10 {
			n.Kill()
		} else if i%20 == 19 {
			if err := errors.Join(n.Start(), n.Cut(0.35)); err != nil {
				t.Fatal(err)
			}
		}
		if i%20 == 5 {
			r, err := face.Stream(t.Context(), contract.Statement{SQL: "SELECT id, v FROM cut ORDER BY id"})
			streams++
			if !check("stream", err) {
				broken++
			} else if len(r.Rows) != rows {
				t.Errorf("a stream that ended well has %d rows; want %d", len(r.Rows), rows)
			}
			if r != nil {
				for at, row := range r.Rows {
					if row[0] != fmt.Sprint(at) {
						t.Fatalf("row %d of a stream is %v", at, row[0])
					}
				}
			}
			continue
		}
		statement := contract.Statement{SQL: "DECLARE $id AS Int64; SELECT id FROM cut WHERE id = $id", Params: map[string]any{"id": i}}
		var r *contract.Reply
		switch i % 5 {
		case 1:
			var list []*contract.Reply
			twice := contract.Transaction{Statements: []contract.Statement{statement, statement}}
			if list, err = face.Transact(t.Context(), twice); err == nil {
				r = list[1]
			}
		case 3:
			transactions++
			check("transaction", interactive(face, statement, i%4 < 2))
			continue
		default:
			r, err = face.Execute(t.Context(), statement)
		}
		if check("query", err) {
			answered++
			if len(r.Rows) != 1 || r.Rows[0][0] != fmt.Sprint(i) {
				t.Errorf("%v; want the row %d", r.Rows, i)
			}
		}
	}
	t.Logf("%d of %d queries were answered, %d of %d streams cut", answered, calls-streams-transactions, broken, streams)
	if answered < calls/4 {
		t.Errorf("%d queries were answered", answered)
	}
	cut(0)
}

// TestTextsInParts: what YDB does not roll back is not sent again, and nobody is told that nothing was kept.
func TestTextsInParts(t *testing.T) {
	w := newWorld(t, Default(), nil)
	conn, err := grpc.NewClient("dns:///"+w.target.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	faces := []contract.Client{contract.OverGRPC(conn), w.client(t)}
	t.Cleanup(faces[0].Close)
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
		for id := range uint32(3) {
			if err := w.cluster.Node(id + 1).Errors(
				devcluster.Errors{Status: status, Share: 1, Methods: []string{"ExecuteQuery"}, After: true},
			); err != nil {
				t.Fatal(err)
			}
		}
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
	c := w.client(t)
	compiled := func() (n int64) {
		for id := range uint32(3) {
			n += w.cluster.Node(id + 1).Counters().Compilations
		}
		return n
	}
	var wg sync.WaitGroup
	for at := range 10 {
		wg.Go(func() {
			for i := range 100 {
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
	if n := compiled(); n < 1 || n > 3 {
		t.Errorf("%d compilations for 1000 calls on 3 nodes; want at most one each", n)
	}
}
