package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// The tables. log names the rows that each version wrote: what range checks and the
// removal of old versions read.
var schema = []string{
	`CREATE TABLE IF NOT EXISTS meta (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, schema INTEGER NOT NULL, next INTEGER NOT NULL)`,
	`INSERT OR IGNORE INTO meta VALUES (1, 1, 1, 0)`,
	`CREATE TABLE IF NOT EXISTS entries (path TEXT PRIMARY KEY, def BLOB NOT NULL) WITHOUT ROWID`,
	`CREATE TABLE IF NOT EXISTS rows (t INTEGER, k BLOB, r INTEGER, v BLOB, PRIMARY KEY (t, k, r DESC)) WITHOUT ROWID`,
	`CREATE TABLE IF NOT EXISTS log (r INTEGER, t INTEGER, k BLOB, PRIMARY KEY (r, t, k)) WITHOUT ROWID`,
	`CREATE TABLE IF NOT EXISTS processes (id INTEGER PRIMARY KEY, horizon INTEGER NOT NULL, beat INTEGER NOT NULL)`,
}

// stmt is a statement with the space for its arguments. It is prepared when it is first
// used: to prepare all of them costs more than to open the database.
type stmt struct {
	driver.Stmt // nil until it is used
	sql         string
	args        []driver.NamedValue
}

// conn is one SQLite connection; one goroutine uses it at a time.
//
// Wide: it has a statement for each question to the file.
type conn struct {
	c                                          driver.Conn // nil: the database in memory was not used yet
	prepared                                   []*stmt
	begin, commit, rollback                    *stmt
	getMeta, setMeta                           *stmt
	get, scanUp, scanDown                      *stmt
	insert, insertLog, changed, changedRange   *stmt
	logOld, prune, pruneLog, dropRows, dropLog *stmt
	listEntries, putEntry, deleteEntry         *stmt
	show, oldest, forget, bury                 *stmt
	two                                        [2]driver.Value
	three                                      [3]driver.Value
}

const inMemory = ":memory:"

// openConn opens a connection and executes first over it. One to a database in memory
// is opened when it is first used: few tests write a row.
func openConn(dsn string, first []string) (*conn, error) {
	c := new(conn)
	if dsn != inMemory {
		err := c.connect(dsn, first)
		for wait := time.Millisecond; isBusy(err) && wait < 5*time.Second; wait *= 2 {
			time.Sleep(wait) // the switch to WAL does not wait for other processes by itself
			err = c.connect(dsn, first)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, p := range []struct {
		to  **stmt
		sql string
	}{
		{&c.begin, `BEGIN IMMEDIATE`}, {&c.commit, `COMMIT`}, {&c.rollback, `ROLLBACK`},
		{&c.getMeta, `SELECT version, schema, next FROM meta WHERE id = 1`},
		{&c.setMeta, `UPDATE meta SET version = ?, schema = ?, next = ? WHERE id = 1`},
		{&c.get, `SELECT v FROM rows WHERE t = ? AND k = ? AND r <= ? ORDER BY r DESC LIMIT 1`},
		{&c.scanUp, `SELECT k, v FROM rows WHERE t = ? AND k >= ? AND k < ? AND r <= ? ORDER BY k, r DESC`},
		{&c.scanDown, `SELECT k, v FROM rows WHERE t = ? AND k >= ? AND k < ? AND r <= ? ORDER BY k DESC, r`},
		{&c.insert, `INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)`},
		{&c.insertLog, `INSERT OR IGNORE INTO log VALUES (?, ?, ?)`},
		{&c.changed, `SELECT 1 FROM rows WHERE t = ? AND k = ? AND r > ? LIMIT 1`},
		{&c.changedRange, `SELECT 1 FROM log WHERE r > ? AND t = ? AND k >= ? AND k < ? LIMIT 1`},
		{&c.logOld, `SELECT r, t, k FROM log WHERE r <= ? ORDER BY r, t, k LIMIT ?`},
		{&c.prune, `DELETE FROM rows WHERE t = ?1 AND k = ?2 AND (r < ?3 OR r = ?3 AND v IS NULL)`},
		{&c.pruneLog, `DELETE FROM log WHERE (r, t, k) <= (?, ?, ?)`},
		{&c.dropRows, `DELETE FROM rows WHERE t = ?`}, {&c.dropLog, `DELETE FROM log WHERE t = ?`},
		{&c.listEntries, `SELECT path, def FROM entries ORDER BY path`},
		{&c.putEntry, `INSERT OR REPLACE INTO entries VALUES (?, ?)`},
		{&c.deleteEntry, `DELETE FROM entries WHERE path = ?`},
		{&c.show, `INSERT OR REPLACE INTO processes VALUES (?, ?, ?)`},
		{&c.oldest, `SELECT coalesce(min(horizon), 9223372036854775807) FROM processes WHERE beat > ? AND id <> ?`},
		{&c.forget, `DELETE FROM processes WHERE id = ?`},
		{&c.bury, `DELETE FROM processes WHERE beat <= ?`},
	} {
		*p.to = &stmt{sql: p.sql}
	}
	return c, nil
}

func (c *conn) connect(dsn string, first []string) error {
	raw, err := (&sqlite.Driver{}).Open(dsn)
	if err != nil {
		return err
	}
	c.c = raw
	for _, q := range first {
		if err := c.run(&stmt{sql: q}); err != nil {
			return errors.Join(err, c.close())
		}
	}
	return nil
}

// IsBusy reports whether SQLite's write lock could not be had in time.
func IsBusy(err error) bool { return isBusy(err) }

func isBusy(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_BUSY
}

// prepare prepares a statement that was not used yet.
func (c *conn) prepare(s *stmt) error {
	if s.Stmt != nil {
		return nil
	}
	if c.c == nil {
		if err := c.connect(inMemory, schema); err != nil {
			return fmt.Errorf("open the database in memory: %w", err)
		}
	}
	st, err := c.c.Prepare(s.sql)
	if err != nil {
		return fmt.Errorf("prepare %q: %w", s.sql, err)
	}
	s.Stmt = st
	c.prepared = append(c.prepared, s)
	return nil
}

func (c *conn) close() error {
	if c.c == nil {
		return nil
	}
	var err error
	for _, s := range c.prepared {
		err = errors.Join(err, s.Close())
	}
	err = errors.Join(err, c.c.Close())
	c.c, c.prepared = nil, nil
	return err
}

func (s *stmt) bind(args []any) []driver.NamedValue {
	s.args = s.args[:0]
	for i, a := range args {
		s.args = append(s.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return s.args
}

// run executes a statement without rows.
func (c *conn) run(s *stmt, args ...any) error {
	if err := c.prepare(s); err != nil {
		return err
	}
	_, err := s.Stmt.(driver.StmtExecContext).ExecContext(context.Background(), s.bind(args))
	return err
}

// rows executes a query and calls f for every row until it returns false.
func (c *conn) rows(s *stmt, dest []driver.Value, f func() bool, args ...any) (err error) {
	if err := c.prepare(s); err != nil {
		return err
	}
	r, err := s.Stmt.(driver.StmtQueryContext).QueryContext(context.Background(), s.bind(args))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for {
		if err := r.Next(dest); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if !f() {
			return nil
		}
	}
}

// number returns the first column of the first row, 0 if there is none.
func (c *conn) number(s *stmt, args ...any) (n int64, err error) {
	dest := c.two[:1]
	err = c.rows(s, dest, func() bool { n, _ = dest[0].(int64); return false }, args...)
	return n, err
}

func (c *conn) metaNext() (version, schema, next uint64, err error) {
	d := c.three[:]
	found := false
	err = c.rows(c.getMeta, d, func() bool {
		found = true
		version, schema, next = uint64(d[0].(int64)), uint64(d[1].(int64)), uint64(d[2].(int64))
		return false
	})
	if err == nil && !found {
		err = errors.New("the database has no meta row")
	}
	return version, schema, next, err
}

func (c *conn) meta() (version, schema uint64, err error) {
	version, schema, _, err = c.metaNext()
	return version, schema, err
}

// row returns the row as of version, nil if there is none.
func (c *conn) row(table uint64, key []byte, version uint64) (val []byte, err error) {
	d := c.two[:1]
	err = c.rows(c.get, d, func() bool { val = blob(d[0]); return false }, int64(table), key, int64(version))
	return val, err
}

// blob is nil for NULL only.
func blob(v driver.Value) []byte {
	b, ok := v.([]byte)
	if ok && b == nil {
		return []byte{}
	}
	return b
}

func lower(from []byte) []byte {
	if from == nil {
		return []byte{}
	}
	return from
}

func upper(to []byte) []byte {
	if to == nil {
		return []byte(infiniteTo)
	}
	return to
}

// scan reads versions in the order of keys: upwards the newest version of a key comes
// first, downwards last.
func (c *conn) scan(sc Range, version uint64) (rows []Row, more bool, err error) {
	st, d := c.scanUp, c.two[:]
	if sc.Reverse {
		st = c.scanDown
	}
	bytes := 0
	var cur Row // of the key that is being passed; Val nil if deleted
	flush := func() bool {
		if cur.Val != nil {
			rows = append(rows, cur)
			bytes += len(cur.Key) + len(cur.Val)
		}
		cur = Row{}
		return len(rows) < sc.Rows && bytes < sc.Bytes
	}
	err = c.rows(st, d, func() bool {
		k := blob(d[0])
		same := cur.Key != nil && string(cur.Key) == string(k)
		switch {
		case same && !sc.Reverse: // an older version
			return true
		case !same && cur.Key != nil && !flush():
			more = true
			return false
		}
		cur = Row{Key: k, Val: blob(d[1])}
		return true
	}, int64(sc.Table), lower(sc.From), upper(sc.To), int64(min(version, math.MaxInt64)))
	if err == nil && !more {
		flush()
	}
	return rows, more, err
}

type logEntry struct {
	version, table uint64
	key            []byte
}

func (c *conn) logBefore(horizon uint64, limit int) (out []logEntry, err error) {
	d := c.three[:]
	err = c.rows(c.logOld, d, func() bool {
		out = append(out, logEntry{uint64(d[0].(int64)), uint64(d[1].(int64)), blob(d[2])})
		return true
	}, int64(min(horizon, math.MaxInt64)), int64(limit))
	return out, err
}

func (c *conn) entries() (out []Entry, err error) {
	d := c.two[:]
	err = c.rows(c.listEntries, d, func() bool {
		p, _ := d[0].(string)
		out = append(out, Entry{Path: p, Def: blob(d[1])})
		return true
	})
	return out, err
}
