package engine

import (
	"context"
	"fmt"
	"os"
	process "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// pairs gives two handles on one database: the same one in memory, and two that know of
// each other through a file only, as two node processes do.
func pairs(t *testing.T, f func(t *testing.T, a, b *DB)) {
	t.Run("memory", func(t *testing.T) {
		db := sampleDB(t, "")
		f(t, db, db)
	})
	t.Run("file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "data")
		a := sampleDB(t, path)
		f(t, a, openDB(t, path))
	})
}

// conflicts are pairs of transactions: first reads and writes, then second does so and
// commits, then first commits.
func TestConflicts(t *testing.T) {
	const keep = "UPSERT INTO series (id, rating) VALUES (100, 1.0)"
	for _, c := range []struct {
		name          string
		mode          Mode
		first, second string
		aborted       bool
	}{
		{"different keys", Serializable, "UPDATE series SET rating = 1.0 WHERE id = 1",
			"UPDATE series SET rating = 2.0 WHERE id = 2", false},
		{"the same key", Serializable, "UPDATE series SET rating = 1.0 WHERE id = 1", "UPDATE series SET rating = 2.0 WHERE id = 1", true},
		{"read and written", Serializable, "SELECT * FROM series WHERE id = 1; " + keep,
			"UPSERT INTO series (id, rating) VALUES (1, 2.0)", true},
		{"read by IN and written", Serializable, "SELECT * FROM series WHERE id IN (1, 2); " + keep,
			"UPSERT INTO series (id, rating) VALUES (2, 2.0)", true},
		{"read by IN, its neighbour written", Serializable, "SELECT * FROM series WHERE id IN (1, 3); " + keep,
			"UPSERT INTO series (id, rating) VALUES (2, 2.0)", false},
		{"blind writes of one key", Serializable, "UPSERT INTO series (id, rating) VALUES (1, 1.0)",
			"UPSERT INTO series (id, rating) VALUES (1, 2.0)", false},
		{"absent key appears", Serializable, "SELECT * FROM series WHERE id = 50; " + keep, "INSERT INTO series (id) VALUES (50)", true},
		{"two inserts of one key", Serializable, "INSERT INTO series (id) VALUES (50)", "INSERT INTO series (id) VALUES (50)", true},
		{"row appears in a range", Serializable, "SELECT COUNT(*) FROM episodes WHERE series = 1; " + keep,
			"INSERT INTO episodes (series, season, episode) VALUES (1, 9, 9)", true},
		{"row appears beside a range", Serializable, "SELECT COUNT(*) FROM episodes WHERE series = 1; " + keep,
			"INSERT INTO episodes (series, season, episode) VALUES (2, 9, 9)", false},
		{"row vanishes from a range", Serializable, "SELECT COUNT(*) FROM episodes WHERE series = 1; " + keep,
			"DELETE FROM episodes WHERE series = 1 AND season = 1", true},
		{"row behind a LIMIT", Serializable, "SELECT * FROM series ORDER BY id LIMIT 1; " + keep,
			"UPSERT INTO series (id, rating) VALUES (3, 1.0)", false},
		{"row before a LIMIT from behind", Serializable, "SELECT * FROM series ORDER BY id DESC LIMIT 1; " + keep,
			"UPSERT INTO series (id, rating) VALUES (1, 1.0)", false},
		{"row inside a LIMIT from behind", Serializable, "SELECT * FROM series ORDER BY id DESC LIMIT 1; " + keep,
			"UPSERT INTO series (id, rating) VALUES (9, 1.0)", true},
		{"whole table", Serializable, "SELECT COUNT(*) FROM series; " + keep, "UPSERT INTO series (id) VALUES (9)", true},
		{"other table", Serializable, "SELECT COUNT(*) FROM episodes; " + keep, "UPSERT INTO series (id) VALUES (9)", false},
		{"index range", Serializable, "SELECT id FROM series VIEW by_title WHERE title = 'New'; " + keep,
			"UPSERT INTO series (id, title) VALUES (9, 'New')", true},
		{"beside the index range", Serializable, "SELECT id FROM series VIEW by_title WHERE title = 'New'; " + keep,
			"UPSERT INTO series (id, title) VALUES (9, 'Newer')", false},
		{"row found by index", Serializable, "SELECT rating FROM series VIEW by_title WHERE title = 'IT Crowd'; " + keep,
			"UPSERT INTO series (id, rating) VALUES (1, 1.0)", true},
		{"joined by key", Serializable,
			"SELECT s.id FROM AS_TABLE([<|id: 1ul|>]) AS l LEFT JOIN series AS s ON s.id = l.id; " + keep,
			"UPSERT INTO series (id, rating) VALUES (2, 1.0)", false},
		{"reads only", Serializable, "SELECT COUNT(*) FROM series", "UPSERT INTO series (id) VALUES (9)", false},
		{"snapshot write: read and written", SnapshotRW, "SELECT * FROM series WHERE id = 1; " + keep,
			"UPSERT INTO series (id, rating) VALUES (1, 2.0)", false},
		{"snapshot write: written twice", SnapshotRW, "UPSERT INTO series (id, rating) VALUES (1, 1.0)",
			"UPSERT INTO series (id, rating) VALUES (1, 2.0)", true},
		{"snapshot read", SnapshotRO, "SELECT COUNT(*) FROM series", "UPSERT INTO series (id) VALUES (9)", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			pairs(t, func(t *testing.T, a, b *DB) {
				first, second := begin(t, a, c.mode), begin(t, b, Serializable)
				in(t, first, c.first)
				in(t, second, c.second)
				commit(t, second)
				err := first.Commit(context.Background())
				if !c.aborted && err != nil {
					t.Errorf("first: %v", err)
				}
				if c.aborted {
					wantStatus(t, err, Ydb.StatusIds_ABORTED, "Transaction locks invalidated")
					if e, ok := err.(*Error); ok && e.Issues[0].IssueCode != 2001 {
						t.Errorf("issue code %d", e.Issues[0].IssueCode)
					}
				}
			})
		})
	}
}

func TestSnapshotAndOwnWrites(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *DB) {
		tx := begin(t, a, Serializable)
		const all = "SELECT id, rating FROM series"
		before := in(t, tx, all)
		mustRun(t, b, "UPSERT INTO series (id, rating) VALUES (1, 0.0), (50, 0.0); DELETE FROM series WHERE id = 2; DELETE FROM episodes")
		if got := in(t, tx, all); got != before {
			t.Errorf("another's commit shows: %s", got)
		}
		if got := in(t, tx, "SELECT COUNT(*) AS n FROM episodes"); got != "n Uint64: (4)" {
			t.Errorf("another's deletions show: %s", got)
		}
		in(t, tx, "UPSERT INTO series (id, title) VALUES (2, 'Mine'), (7, 'New'); DELETE FROM series WHERE id = 3")
		want := `id Uint64, title Optional<Utf8>, rating Optional<Double>: (1, "IT Crowd", 8.5) (2, "Mine", 8.4) (7, "New", NULL)`
		if got := in(t, tx, "SELECT id, title, rating FROM series"); got != want {
			t.Errorf("own writes: %s", got)
		}
		for q, want := range map[string]string{
			"SELECT id FROM series ORDER BY id DESC":                                    "id Uint64: (7) (2) (1)",
			"SELECT id FROM series WHERE id > 1 ORDER BY id LIMIT 1":                    "id Uint64: (2)",
			"SELECT id FROM series VIEW by_title WHERE title = 'Mine'":                  "id Uint64: (2)",
			"SELECT id FROM series VIEW by_title WHERE title = 'Silicon Valley'":        "id Uint64:",
			"SELECT id FROM series VIEW by_title WHERE title > 'A' ORDER BY title":      "id Uint64: (1) (2) (7)",
			"SELECT id FROM series VIEW by_title WHERE title > 'A' ORDER BY title DESC": "id Uint64: (7) (2) (1)",
		} {
			if got := in(t, tx, q); got != want {
				t.Errorf("%s: %s; want %s", q, got, want)
			}
		}
		if got := mustRun(t, b, "SELECT title FROM series WHERE id = 7"); got != "title Optional<Utf8>:" {
			t.Errorf("uncommitted rows show: %s", got)
		}
		wantStatus(t, tx.Commit(context.Background()), Ydb.StatusIds_ABORTED, "locks invalidated")
		if got := mustRun(t, b, "SELECT id FROM series"); got != "id Uint64: (1) (3) (50)" {
			t.Errorf("after the abort: %s", got)
		}
	})
}

// An open transaction with reads and writes stops no other, however many there are.
func TestOpenTransactionsHoldNoLock(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *DB) {
		for i := range 50 {
			tx := begin(t, a, Serializable)
			in(t, tx, fmt.Sprintf("SELECT COUNT(*) FROM series; UPSERT INTO series (id) VALUES (%d)", 1000+i))
		}
		mustRun(t, b, "UPDATE series SET rating = 9.9 WHERE id = 1; INSERT INTO series (id) VALUES (4)")
		if got := mustRun(
			t, a, "SELECT id, rating FROM series WHERE id IN (1, 4, 1000)",
		); got != "id Uint64, rating Optional<Double>: (1, 9.9) (4, NULL)" {
			t.Error(got)
		}
	})
}

// Two patches of one row by transactions that did not read it both stay.
func TestBlindPatchesMerge(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *DB) {
		x, y := begin(t, a, Serializable), begin(t, b, Serializable)
		in(t, x, "UPSERT INTO series (id, rating) VALUES (1, 1.0)")
		in(t, y, "UPSERT INTO series (id, title) VALUES (1, 'T')")
		commit(t, x)
		commit(t, y)
		if got := mustRun(
			t, a, "SELECT title, rating FROM series VIEW by_title WHERE title = 'T'",
		); got != `title Optional<Utf8>, rating Optional<Double>: ("T", 1)` {
			t.Error(got)
		}
	})
}

func TestModes(t *testing.T) {
	db := sampleDB(t, "")
	ctx := context.Background()
	for _, m := range []Mode{SnapshotRO, StaleRO, OnlineRO} {
		tx := begin(t, db, m)
		_, err := tx.Execute(
			ctx, Request{Text: "SELECT 1; UPSERT INTO series (id) VALUES (1)", Database: "/local"},
			func(int, *Ydb.ResultSet) error { return nil },
		)
		wantStatus(t, err, Ydb.StatusIds_GENERIC_ERROR, "1:11: Operation 'Upsert' can't be performed in read only transaction")
	}
	online, snapshot := begin(t, db, OnlineRO), begin(t, db, SnapshotRO)
	in(t, online, "SELECT COUNT(*) FROM series")
	in(t, snapshot, "SELECT COUNT(*) FROM series")
	mustRun(t, db, "DELETE FROM series")
	if got := in(t, online, "SELECT COUNT(*) AS n FROM series"); got != "n Uint64: (0)" {
		t.Errorf("online: %s", got)
	}
	if got := in(t, snapshot, "SELECT COUNT(*) AS n FROM series"); got != "n Uint64: (3)" {
		t.Errorf("snapshot: %s", got)
	}
	tx := begin(t, db, Serializable)
	_, err := tx.Execute(ctx, Request{Text: "DROP TABLE series", Database: "/local"}, nil)
	wantStatus(t, err, Ydb.StatusIds_PRECONDITION_FAILED, "Scheme operations cannot be executed inside transaction")
	wantStatus(t, tx.Commit(ctx), Ydb.StatusIds_NOT_FOUND, "Transaction not found")
	_, err = tx.Execute(ctx, Request{Text: "SELECT 1"}, nil)
	wantStatus(t, err, Ydb.StatusIds_NOT_FOUND, "Transaction not found")
}

func TestSchemaChangeEndsTransactions(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *DB) {
		ctx := context.Background()
		writer, reader, other := begin(t, a, Serializable), begin(t, a, Serializable), begin(t, a, Serializable)
		in(t, writer, "UPSERT INTO series (id) VALUES (9)")
		in(t, reader, "SELECT COUNT(*) FROM series")
		in(t, other, "UPSERT INTO episodes (series, season, episode) VALUES (9, 9, 9)")
		mustRun(t, b, "ALTER TABLE series ADD COLUMN extra Int32")
		wantStatus(t, writer.Commit(ctx), Ydb.StatusIds_ABORTED, "scheme was changed")
		_, err := reader.Execute(ctx, Request{Text: "SELECT * FROM series", Database: "/local"}, gather(new([]string)))
		wantStatus(t, err, Ydb.StatusIds_ABORTED, "scheme was changed")
		commit(t, other)
		if got := mustRun(t, a, "SELECT id, extra FROM series WHERE id = 1"); got != "id Uint64, extra Optional<Int32>: (1, NULL)" {
			t.Error(got)
		}
		mustRun(t, b, "DROP TABLE series; "+strings.SplitN(sample, ";", 2)[0])
		if got := mustRun(t, a, "SELECT * FROM series"); !strings.HasSuffix(got, "title Optional<Utf8>:") {
			t.Errorf("the new table: %s", got)
		}
	})
}

// transfer moves money between accounts; it is what every client does: read, compute, write.
func transfer(db *DB, from, to int) error {
	tx, err := db.Begin(context.Background(), Serializable)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	text := fmt.Sprintf(`$from = (SELECT money FROM accounts WHERE id = %d); $to = (SELECT money FROM accounts WHERE id = %d);
		UPSERT INTO accounts (id, money) VALUES (%d, $from - 1), (%d, $to + 1)`, from, to, from, to)
	if _, err := tx.Execute(context.Background(), Request{Text: text, Database: "/local"}, nil); err != nil {
		return err
	}
	return tx.Commit(context.Background())
}

const accounts = 5

func transfers(db *DB, seed, n int) (done int, err error) {
	for i := 0; done < n; i++ {
		err := transfer(db, (seed+i)%accounts, (seed+2*i+1)%accounts+accounts)
		if e, ok := err.(*Error); ok && e.Status == Ydb.StatusIds_ABORTED {
			continue
		}
		if err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

func makeAccounts(t testing.TB, db *DB) {
	mustRun(t, db, "CREATE TABLE accounts (id Int32 NOT NULL, money Int64, PRIMARY KEY (id))")
	for i := range 2 * accounts {
		mustRun(t, db, fmt.Sprintf("UPSERT INTO accounts (id, money) VALUES (%d, 100)", i))
	}
}

// checkAccounts: no transfer is lost or half done.
func checkAccounts(t testing.TB, db *DB, moved int) {
	t.Helper()
	want := [2]int64{int64(100*accounts - moved), int64(100*accounts + moved)}
	var got [2]int64
	text := fmt.Sprintf("SELECT money FROM accounts WHERE id < %d; SELECT money FROM accounts WHERE id >= %d", accounts, accounts)
	_, err := db.Execute(context.Background(), Request{Text: text, Database: "/local"}, func(set int, rs *Ydb.ResultSet) error {
		for _, row := range rs.Rows {
			got[set] += row.Items[0].GetInt64Value()
		}
		return nil
	})
	if err != nil || got != want {
		t.Errorf("after %d transfers: %v, %v; want %v", moved, got, err, want)
	}
}

func TestTransfers(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *DB) {
		makeAccounts(t, a)
		var wg sync.WaitGroup
		const each, workers = 40, 6
		for w := range workers {
			wg.Go(func() {
				db := a
				if w%2 == 1 {
					db = b
				}
				if _, err := transfers(db, w, each); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		checkAccounts(t, b, each*workers)
	})
}

// TestTwoProcesses runs transfers in two processes on one file at a time, and shows that a
// transaction of one does not stop the other.
func TestTwoProcesses(t *testing.T) {
	const env, n = "ENGINE_TEST_FILE", 60
	if path := os.Getenv(env); path != "" { // the other process
		db := openDB(t, path)
		if _, err := transfers(db, 1, n); err != nil {
			t.Error(err)
		}
		return
	}
	path := filepath.Join(t.TempDir(), "data")
	db := openDB(t, path)
	makeAccounts(t, db)
	open := begin(t, db, Serializable)
	in(t, open, "SELECT money FROM accounts; UPSERT INTO accounts (id, money) VALUES (0, 0)")
	cmd := process.Command(os.Args[0], "-test.run", "^TestTwoProcesses$")
	cmd.Env = append(os.Environ(), env+"="+path)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done, err := transfers(db, 3, n)
	if err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the other process: %v\n%s", err, &out)
	}
	checkAccounts(t, db, done+n)
	wantStatus(t, open.Commit(context.Background()), Ydb.StatusIds_ABORTED, "accounts")
	checkAccounts(t, db, done+n)
}
