package systemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// written is what writers were told of the rows that they wrote.
type written struct {
	mu    sync.Mutex
	told  map[uint64]bool // they are there
	doubt map[uint64]bool // the outcome is unknown
	first error           // of the calls in doubt
}

func (w *written) add(id uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.told[id] = true
		return
	}
	w.doubt[id] = true
	if w.first == nil {
		w.first = err
	}
}

// pythonWriter is the number of the first writer of books.py; those of the Go client come before it.
const pythonWriter, pythonWriters = 100, 3

// bookWriters is callers of the official Go client of which each inserts rows with ids of its own
// and counts them in a row of its own, in one transaction.
type bookWriters struct {
	*callers
	written
	last []uint64 // id, of each caller; its own
}

func writeRows(t *testing.T, db *ydbsdk.Driver, n int) *bookWriters {
	t.Helper()
	must(t, db, "CREATE TABLE written (id Uint64, writer Uint64, PRIMARY KEY (id))")
	must(t, db, "CREATE TABLE counters (id Uint64, n Uint64, PRIMARY KEY (id))")
	for id := range uint64(pythonWriter + pythonWriters) {
		if id < uint64(n) || id >= pythonWriter {
			must(t, db, declareID+"UPSERT INTO counters (id, n) VALUES ($id, 0ul)", idParam(id))
		}
	}
	w := &bookWriters{written: written{told: map[uint64]bool{}, doubt: map[uint64]bool{}}, last: make([]uint64, n)}
	w.callers = call(t, n, func(ctx context.Context, caller int) error {
		w.last[caller]++
		id := uint64(caller)<<32 | w.last[caller]
		ctx, cancel := context.WithTimeout(ctx, sdkPatience)
		defer cancel()
		// Half of them say that it may be repeated: it is an insert, so what an earlier try had
		// written without an answer is found out.
		err := db.Query().DoTx(ctx, func(ctx context.Context, tx query.TxActor) error { return writeRow(ctx, tx, uint64(caller), id) },
			query.WithIdempotent(caller%2 == 0))
		if ydbsdk.IsOperationError(err, Ydb.StatusIds_PRECONDITION_FAILED) {
			err = nil
		}
		w.add(id, err)
		if err != nil {
			time.Sleep(20 * time.Millisecond) // as an application would, that is told to come again
			if caller%2 != 0 && ydbsdk.IsTransportError(err) {
				err = nil // the SDK does not repeat that, and no process listened
			}
		}
		return err
	})
	return w
}

func writeRow(ctx context.Context, tx query.TxActor, writer, id uint64) error {
	parameters := func(n uint64) query.ExecuteOption {
		return query.WithParameters(
			ydbsdk.ParamsBuilder().Param("$writer").Uint64(writer).Param("$id").Uint64(id).Param("$n").Uint64(n).Build(),
		)
	}
	const declare = "DECLARE $writer AS Uint64; DECLARE $id AS Uint64; DECLARE $n AS Uint64; "
	one := func(sql string) (n uint64, err error) {
		row, err := tx.QueryRow(ctx, declare+sql, parameters(0))
		if err == nil {
			err = row.Scan(&n)
		}
		return n, err
	}
	n, err := one("SELECT n FROM counters WHERE id = $writer AND $id >= $n")
	if err != nil {
		return err
	}
	if err := tx.Exec(ctx, declare+"INSERT INTO written (id, writer) VALUES ($id, $writer)", parameters(0)); err != nil {
		return err
	}
	if own, err := one("SELECT COUNT(*) FROM written WHERE id = $id AND writer = $writer AND $id >= $n"); err != nil || own != 1 {
		return fmt.Errorf("the row of the transaction is there %d times: %w", own, err)
	}
	return tx.Exec(ctx, declare+"UPDATE counters SET n = $n WHERE id = $writer AND $id > 0ul", parameters(n+1))
}

// goesOn waits until every writer has written n more rows.
func (w *bookWriters) goesOn(t *testing.T, n int64) { (&sdkLoad{callers: w.callers}).goesOn(t, n) }

// check compares the tables with what the writers were told.
func (w *written) check(t *testing.T, db *ydbsdk.Driver) {
	t.Helper()
	rows, counters := map[uint64]uint64{}, map[uint64]uint64{}
	read := func(sql string, into map[uint64]uint64) {
		err := db.Query().Do(t.Context(), func(ctx context.Context, s query.Session) error {
			clear(into)
			return eachPair(ctx, s, sql, func(a, b uint64) { into[a] = b })
		}, query.WithIdempotent())
		if err != nil {
			t.Fatal(err)
		}
	}
	read("SELECT id, writer FROM written", rows)
	read("SELECT id, n FROM counters", counters)
	per := map[uint64]uint64{}
	for id, writer := range rows {
		per[writer]++
		if !w.told[id] && !w.doubt[id] {
			t.Errorf("row %x is there, and its writer was told that it is not, or never wrote it", id)
		}
	}
	for id := range w.told {
		if _, ok := rows[id]; !ok {
			t.Errorf("row %x was acknowledged and is lost", id)
		}
	}
	for writer, n := range counters {
		if per[writer] != n {
			t.Errorf("writer %d has %d rows and counted %d", writer, per[writer], n)
		}
	}
	t.Logf("%d rows acknowledged, %d in doubt (first: %v), %d there", len(w.told), len(w.doubt), w.first, len(rows))
}

// eachPair calls f for every row of a statement that gives two numbers.
func eachPair(ctx context.Context, s query.Session, sql string, f func(a, b uint64)) error {
	r, err := s.Query(ctx, sql)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close(ctx) }()
	for set, err := range r.ResultSets(ctx) {
		if err != nil {
			return err
		}
		for row, err := range set.Rows(ctx) {
			if err != nil {
				return err
			}
			var a, b uint64
			if err := row.Scan(&a, &b); err != nil {
				return err
			}
			f(a, b)
		}
	}
	return nil
}

// pythonBooks is the writers of testdata/python/books.py.
func pythonBooks(t *testing.T, s *sidecar) *pythonLoad {
	t.Helper()
	l := &pythonLoad{app: app{name: "python"}, count: filepath.Join(t.TempDir(), "count")}
	l.process = standtest.Start(t, stand.Spec{
		Path: officialPython(t), Args: []string{filepath.Join("testdata", "python", "books.py")},
		Env: []string{"YDB_URL=" + "grpc://" + s.GRPC, "YDB_COUNT=" + l.count, "YDB_WRITER=" + fmt.Sprint(pythonWriter)},
	})
	return l
}

// books ends the Python writers and adds what they were told.
func (l *pythonLoad) books(t *testing.T, w *written) {
	t.Helper()
	if err := l.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	said, err := json.Marshal(l.finish(t, l.process))
	var ids struct {
		Told, Doubt []uint64
		Failed      []string
	}
	if err == nil {
		err = json.Unmarshal(said, &ids)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(ids.Failed) > 0 {
		t.Errorf("the Python client: %v", ids.Failed)
	}
	for _, id := range ids.Told {
		w.told[id] = true
	}
	for _, id := range ids.Doubt {
		w.doubt[id] = true
	}
}

// again starts a sidecar at the addresses of one that has ended.
func (s *sidecar) again(t *testing.T, c *ydb, settings ...string) {
	t.Helper()
	s.Process = standtest.Start(t, stand.Serve{Program: filepath.Join(bin, "sidecar"), URL: c.Endpoint(), Settings: settings,
		Flags: []string{"-grpc", s.GRPC, "-http", s.HTTP, "-admin", s.Admin}}.Spec())
	standtest.Ready(t, s.Process)
}

// The sidecar is rolled while clients read, write, and run transactions that look at their own
// rows: by a successor that takes its place, and by a stop and a start. They go on, no row that was
// acknowledged is lost, none is there twice, and no session is left.
func TestRolledUnderVirtualSessions(t *testing.T) {
	for _, mode := range []string{"transaction", "session"} {
		for _, way := range []string{"takeover", "restart"} {
			t.Run(mode+"/"+way, func(t *testing.T) {
				c := startCluster(t, nil)
				settings := append(inMode(mode), "drain.grace=4s")
				if way == "takeover" {
					settings = append(settings, "takeover.socket="+filepath.Join(t.TempDir(), "takeover.sock"))
				}
				var s *sidecar
				if way == "takeover" {
					s = startSidecar(t, c, nil, settings...)
				} else { // it comes back at its addresses
					s = &sidecar{
						Sidecar: &stand.Sidecar{GRPC: standtest.FreeAddress(t), HTTP: standtest.FreeAddress(t),
							Admin: standtest.FreeAddress(t)},
					}
					s.again(t, c, settings...)
				}
				db := openSDK(t, s.sdk())
				must(t, db, "CREATE TABLE load (id Uint64, PRIMARY KEY (id))")
				writing := writeRows(t, db, 6)
				reading, python := loadSDK(t, db, 4), pythonBooks(t, s)
				goesOn := func() {
					t.Helper()
					writing.goesOn(t, 10)
					reading.goesOn(t, 10)
					python.goesOn(t, 20)
				}
				goesOn()
				for range 2 {
					if way == "takeover" {
						old := s.replace(t, c, settings...)
						goesOn()
						exited(t, old)
					} else {
						s.endsWell(t)
						c.noSessions(t)
						s.again(t, c, settings...)
					}
					goesOn()
				}
				writing.finish()
				if err := writing.err(); err != nil {
					t.Errorf("a transaction, which may be repeated, failed: %v", err)
				}
				reading.allWell(t, sdkPatience)
				python.books(t, &writing.written)
				writing.check(t, db)
				if way == "takeover" && len(writing.doubt) > 0 {
					t.Errorf("%d transactions failed while somebody was there all the time", len(writing.doubt))
				}
				if n := c.sum(t, "forwarded"); n != 0 {
					t.Errorf("%d calls did not go to the owner of their session", n)
				}
				closeSDK(t, db)
				s.endsWell(t)
				c.noSessions(t)
			})
		}
	}
}
