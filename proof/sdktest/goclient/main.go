// Command goclient takes one of ydb-go-sdk's clients through the steps of package sdktest: CLIENT is query,
// table, sql-query or sql-table (database/sql over either service). The other variables are those of every script.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
)

// tables is the directory of the tables, with a slash after it, or "".
var tables = os.Getenv("TABLES")

// The statements of the steps. All numbers are Uint64.
var (
	few, big  = "`" + tables + "few`", "`" + tables + "big`"
	createFew = "CREATE TABLE " + few + " (id Uint64, n Uint64, PRIMARY KEY (id))"
	createBig = "CREATE TABLE " + big + " (id Uint64, text Utf8, PRIMARY KEY (id))"
	upsert    = "DECLARE $id AS Uint64; DECLARE $n AS Uint64; UPSERT INTO " + few + " (id, n) VALUES ($id, $n)"
	insert    = "DECLARE $id AS Uint64; DECLARE $n AS Uint64; INSERT INTO " + few + " (id, n) VALUES ($id, $n)"
	selectFew = "SELECT id, n FROM " + few + " WHERE id < 100ul ORDER BY id"
	selectOne = "DECLARE $id AS Uint64; SELECT n FROM " + few + " WHERE id = $id"
	countFew  = "SELECT COUNT(*) AS n FROM " + few + " WHERE id < 100ul"
	countLoad = "SELECT COUNT(*) AS n FROM " + few + " WHERE id >= 100ul"
	countBig  = "SELECT COUNT(*) AS n FROM " + big
	selectBig = "SELECT id, text FROM " + big
	deleteFew = "DELETE FROM " + few
)

const (
	batches  = 20 // bulk upserts of table big
	writers  = 4
	loadRows = 25               // rows of each writer
	patience = 60 * time.Second // for one call, tried again as often as that takes
	bigBytes = 20 << 20         // of the texts in table big: too much for any buffer on the way
)

// param is a parameter of a statement, without the dollar.
type param struct {
	name  string
	value uint64
}

func id(n uint64) param { return param{"id", n} }
func n(n uint64) param  { return param{"n", n} }

// transaction is open until its commit or rollback.
type transaction interface {
	exec(ctx context.Context, sql string, params ...param) error
	rows(ctx context.Context, sql string, params ...param) ([][]uint64, error)
}

// client is one of the SDK's. Whatever it does is safe to repeat, and it is told so.
type client interface {
	transaction // each statement on its own
	scheme(ctx context.Context, sql string) error
	bulk(ctx context.Context, from, to uint64, text string) error
	// stream calls begin for each try and each for each row of it.
	stream(ctx context.Context, sql string, begin func(), each func(id uint64) error) error
	tx(ctx context.Context, body func(ctx context.Context, tx transaction) error) error
	// prepared reads n of a few rows by one prepared statement.
	prepared(ctx context.Context, ids []uint64) ([]uint64, error)
	close() error
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	total, err := strconv.ParseUint(os.Getenv("ROWS"), 10, 64)
	if err != nil {
		return fmt.Errorf("ROWS: %w", err)
	}
	credentials := ydbsdk.WithAnonymousCredentials()
	if token := os.Getenv("YDB_TOKEN"); token != "" {
		credentials = ydbsdk.WithAccessTokenCredentials(token)
	}
	// By default the client gives up after half a second, and leaves sessions behind on a machine that stalls for longer.
	db, err := ydbsdk.Open(ctx, os.Getenv("YDB_URL"), credentials, ydbsdk.WithDialTimeout(10*time.Second),
		ydbsdk.WithSessionPoolCreateSessionTimeout(10*time.Second), ydbsdk.WithSessionPoolDeleteTimeout(10*time.Second))
	if err != nil {
		return err
	}
	s := &steps{large: total}
	switch name := os.Getenv("CLIENT"); name {
	case "query":
		s.client = queryClient{db}
	case "table":
		s.client = tableClient{db}
	case "sql-query", "sql-table":
		if s.client, err = newSQLClient(db, name == "sql-query"); err != nil {
			return err
		}
	default:
		return fmt.Errorf("CLIENT is %q", name)
	}
	say("connect", "ok")
	s.must("create", s.scheme(ctx, createFew))
	s.must("create", s.scheme(ctx, createBig))
	s.all(ctx)
	s.load(ctx)
	if os.Getenv("KILL") != "" {
		s.must("clean", s.exec(ctx, deleteFew))
		s.all(ctx)
	}
	s.must("drop", s.scheme(ctx, "DROP TABLE "+few))
	s.must("drop", s.scheme(ctx, "DROP TABLE "+big))
	err = errors.Join(s.close(), db.Close(ctx))
	s.must("close", err)
	return nil
}

// say prints the outcome of a step.
func say(step string, outcome ...any) {
	fmt.Print(step, ": ", fmt.Sprintln(outcome...))
}

type steps struct {
	client
	large uint64 // rows of table big
}

// must prints ok, or what is wrong.
func (s *steps) must(step string, err error) {
	if err != nil {
		say(step, status(err))
		fmt.Fprintln(os.Stderr, step, err)
		return
	}
	say(step, "ok")
}

// status is the name of YDB's status in an error.
func status(err error) string {
	for code, name := range Ydb.StatusIds_StatusCode_name {
		if ydbsdk.IsOperationError(err, Ydb.StatusIds_StatusCode(code)) {
			return name
		}
	}
	return err.Error()
}

func (s *steps) all(ctx context.Context) {
	var err error
	for i := uint64(1); i <= 3 && err == nil; i++ {
		err = s.exec(ctx, upsert, id(i), n(0))
	}
	s.must("write", err)
	read, err := s.rows(ctx, selectFew)
	say("read", read, orStatus(err))
	text := strings.Repeat("x", int(bigBytes/s.large))
	err = nil
	for i := uint64(0); i < batches && err == nil; i++ {
		err = s.bulk(ctx, i*s.large/batches, (i+1)*s.large/batches, text)
	}
	say("bulk", s.count(ctx, s, countBig), "rows", orStatus(err))
	say("stream", s.whole(ctx))
	s.transactions(ctx)
	s.conflict(ctx)
	found, err := s.prepared(ctx, []uint64{1, 2, 4})
	say("prepared", found, orStatus(err))
	s.cancel(ctx)
}

func orStatus(err error) string {
	if err == nil {
		return "ok"
	}
	fmt.Fprintln(os.Stderr, err)
	return status(err)
}

// count reads the only number of a statement.
func (s *steps) count(ctx context.Context, on transaction, sql string) string {
	rows, err := on.rows(ctx, sql)
	if err != nil {
		return orStatus(err)
	}
	return fmt.Sprint(rows[0][0])
}

// whole streams table big.
func (s *steps) whole(ctx context.Context) string {
	var seen, sum uint64
	err := s.stream(ctx, selectBig, func() { seen, sum = 0, 0 }, func(id uint64) error {
		seen, sum = seen+1, sum+id
		return nil
	})
	if err != nil {
		return orStatus(err)
	}
	return fmt.Sprintf("%d rows sum %d", seen, sum)
}

var errUndo = errors.New("undo")

func (s *steps) transactions(ctx context.Context) {
	write := func(row uint64, end error) (inside string, err error) {
		err = s.tx(ctx, func(ctx context.Context, tx transaction) error {
			if err := tx.exec(ctx, upsert, id(row), n(0)); err != nil {
				return err
			}
			inside = s.count(ctx, tx, countFew)
			return end
		})
		return inside, err
	}
	inside, err := write(4, nil)
	say("commit", inside, "inside", s.count(ctx, s, countFew), "after", orStatus(err))
	inside, err = write(5, errUndo)
	say("rollback", inside, "inside", s.count(ctx, s, countFew), "after", errors.Is(err, errUndo))
	err = s.tx(ctx, func(ctx context.Context, tx transaction) error {
		if err := tx.exec(ctx, upsert, id(6), n(0)); err != nil {
			return err
		}
		return tx.exec(ctx, insert, id(1), n(0))
	})
	say("error inside", status(err), s.count(ctx, s, countFew), "after")
}

// conflict has two transactions read the same row before either writes it.
func (s *steps) conflict(ctx context.Context) {
	var work, both sync.WaitGroup
	var tries atomic.Int64
	both.Add(2)
	var errs [2]error
	for i := range errs {
		work.Go(func() {
			first := true
			errs[i] = s.tx(ctx, func(ctx context.Context, tx transaction) error {
				tries.Add(1)
				rows, err := tx.rows(ctx, selectOne, id(1))
				if first {
					first = false
					both.Done()
					both.Wait()
				}
				if err != nil {
					return err
				}
				return tx.exec(ctx, upsert, id(1), n(rows[0][0]+1))
			})
		})
	}
	work.Wait()
	rows, err := s.rows(ctx, selectOne, id(1))
	say("conflict", rows, "retried", tries.Load() > 2, orStatus(errors.Join(errs[0], errs[1], err)))
}

// cancel gives up a stream in the middle.
func (s *steps) cancel(ctx context.Context) {
	part, stop := context.WithCancel(ctx)
	defer stop()
	seen := uint64(0)
	err := s.stream(part, selectBig, func() { seen = 0 }, func(uint64) error {
		if seen++; seen == 1 {
			stop()
		}
		return part.Err()
	})
	say("cancel in the middle", err != nil && 0 < seen && seen < s.large, "then", s.count(ctx, s, countFew), "rows")
}

// load writes rows, each on its own and in transactions, and streams beside that. In the
// middle of it KILL is called.
func (s *steps) load(ctx context.Context) {
	var work sync.WaitGroup
	var done atomic.Int64
	var failed atomic.Pointer[error]
	for w := range uint64(writers) {
		work.Go(func() {
			for i := range uint64(loadRows) {
				row := 100 + w*loadRows + i
				var err error
				if w%2 == 0 {
					err = s.exec(ctx, upsert, id(row), n(row))
				} else {
					err = s.tx(ctx, func(ctx context.Context, tx transaction) error {
						if err := tx.exec(ctx, upsert, id(row), n(row)); err != nil {
							return err
						}
						_, err := tx.rows(ctx, selectOne, id(row))
						return err
					})
				}
				if err != nil {
					failed.Store(&err)
				}
				if done.Add(1) == writers*loadRows/2 {
					kill()
				}
			}
		})
	}
	want := fmt.Sprintf("%d rows sum %d", s.large, s.large*(s.large-1)/2)
	streams := "streams whole"
	for written := false; !written; {
		written = done.Load() == writers*loadRows // one more after the last row
		if got := s.whole(ctx); got != want {
			streams = "a stream has " + got
		}
	}
	work.Wait()
	var err error
	if e := failed.Load(); e != nil {
		err = *e
	}
	say("load", s.count(ctx, s, countLoad), "rows", orStatus(err), streams)
}

func kill() {
	url := os.Getenv("KILL")
	if url == "" {
		return
	}
	answer, err := http.Post(url, "application/json", nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kill:", err)
		return
	}
	_ = answer.Body.Close()
}
