package store

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func put(t testing.TB, s *Store, kv ...string) {
	t.Helper()
	if err := s.Write(context.Background(), func(w *Writer) error {
		for i := 0; i < len(kv); i += 2 {
			var err error
			if kv[i+1] == "" {
				err = w.Delete(1, []byte(kv[i]))
			} else {
				err = w.Put(1, []byte(kv[i]), []byte(kv[i+1]))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func snapshot(t testing.TB, s *Store) *Snapshot {
	t.Helper()
	sn, err := s.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sn.Release)
	return sn
}

// all scans in parts of two rows, so that every part's end is passed.
func all(t testing.TB, sn *Snapshot, reverse bool) string {
	t.Helper()
	var out []string
	sc := Range{Table: 1, Reverse: reverse, Rows: 2, Bytes: 1 << 20}
	for {
		rows, more, err := sn.Scan(context.Background(), sc)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			out = append(out, string(r.Key)+"="+string(r.Val))
		}
		if !more {
			return strings.Join(out, " ")
		}
		last := rows[len(rows)-1].Key
		if reverse {
			sc.To = last
		} else {
			sc.From = append(last, 0)
		}
	}
}

func TestSnapshotsKeepWhatTheySaw(t *testing.T) {
	for _, path := range []string{"", filepath.Join(t.TempDir(), "db")} {
		s := open(t, path)
		put(t, s, "\x01a", "1", "\x01b", "1", "\x01c", "1")
		old := snapshot(t, s)
		for i := range 50 {
			put(t, s, "\x01b", fmt.Sprint(i), "\x01c", "", "\x01d", "1")
		}
		now := snapshot(t, s)
		for _, c := range []struct {
			sn      *Snapshot
			reverse bool
			want    string
		}{
			{old, false, "\x01a=1 \x01b=1 \x01c=1"}, {old, true, "\x01c=1 \x01b=1 \x01a=1"},
			{now, false, "\x01a=1 \x01b=49 \x01d=1"}, {now, true, "\x01d=1 \x01b=49 \x01a=1"},
		} {
			if got := all(t, c.sn, c.reverse); got != c.want {
				t.Errorf("path %q version %d reverse %v: %q; want %q", path, c.sn.Version, c.reverse, got, c.want)
			}
		}
		if v, err := now.Get(context.Background(), 1, []byte("\x01c")); v != nil || err != nil {
			t.Errorf("deleted row: %q, %v", v, err)
		}
	}
}

// Most clusters of tests have no table: they are to cost no database.
func TestMemoryIsOpenedByItsFirstWrite(t *testing.T) {
	s := open(t, "")
	sn := snapshot(t, s)
	if entries, schema, err := s.Catalog(t.Context()); len(entries) > 0 || schema != sn.Schema || err != nil {
		t.Errorf("an empty database has %v at %d, %v; its snapshot is at %d", entries, schema, err, sn.Schema)
	}
	c := <-s.writer
	if c.c != nil || len(c.prepared) > 0 {
		t.Errorf("it was opened before a row was written; %d statements are prepared", len(c.prepared))
	}
	s.writer <- c
	put(t, s, "\x01a", "1")
	if later := snapshot(t, s); later.Version != sn.Version+1 || later.Schema != sn.Schema {
		t.Errorf("after the first write at %d: version %d, schema %d", sn.Version, later.Version, later.Schema)
	}
	if v, err := sn.Get(t.Context(), 1, []byte("\x01a")); v != nil || err != nil {
		t.Errorf("the snapshot of before sees %q, %v", v, err)
	}
}

func TestOldVersionsGo(t *testing.T) {
	s := open(t, "")
	count := func() (rows, log int64) {
		c := <-s.writer
		defer func() { s.writer <- c }()
		for q, to := range map[string]*int64{"SELECT count(*) FROM rows": &rows, "SELECT count(*) FROM log": &log} {
			var err error
			if *to, err = c.number(&stmt{sql: q}); err != nil {
				t.Fatal(err)
			}
		}
		return rows, log
	}
	const enough = 3 * collectAt
	for i := range enough {
		put(t, s, "\x01a", fmt.Sprint(i), "\x01b", "")
	}
	if rows, log := count(); rows > 2*collectAt || log > 2*collectAt {
		t.Errorf("%d rows and %d log entries are left of one row", rows, log)
	}
	sn := snapshot(t, s)
	for i := range enough {
		put(t, s, "\x01z", fmt.Sprint(i))
	}
	if rows, _ := count(); rows < enough {
		t.Errorf("%d rows although a snapshot is open", rows)
	}
	sn.Release()
	for i := range enough {
		put(t, s, "\x01y", fmt.Sprint(i))
	}
	if rows, log := count(); rows > 2*collectAt || log > 2*collectAt {
		t.Errorf("%d rows and %d log entries after the snapshot was released", rows, log)
	}
}

func TestTwoHandlesOnOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	a, b := open(t, path), open(t, path)
	put(t, a, "\x01k", "a")
	sn := snapshot(t, b)
	if v, err := sn.Get(context.Background(), 1, []byte("\x01k")); string(v) != "a" || err != nil {
		t.Fatalf("b reads %q, %v", v, err)
	}
	// a's commits must not remove what b's snapshot sees, and b must see that they happened.
	for i := range 3 * collectAt {
		put(t, a, "\x01k", fmt.Sprint(i))
	}
	if v, err := sn.Get(context.Background(), 1, []byte("\x01k")); string(v) != "a" || err != nil {
		t.Errorf("b's snapshot reads %q, %v", v, err)
	}
	if err := b.Write(context.Background(), func(w *Writer) error {
		for _, q := range []struct {
			what string
			f    func() (bool, error)
			want bool
		}{
			{"key", func() (bool, error) { return w.Changed(1, []byte("\x01k"), sn.Version) }, true},
			{"other key", func() (bool, error) { return w.Changed(1, []byte("\x01j"), sn.Version) }, false},
			{"range", func() (bool, error) { return w.ChangedRange(1, []byte("\x01"), nil, sn.Version) }, true},
			{"range before", func() (bool, error) { return w.ChangedRange(1, nil, []byte("\x01k"), sn.Version) }, false},
			{"other table", func() (bool, error) { return w.ChangedRange(2, nil, nil, sn.Version) }, false},
		} {
			if got, err := q.f(); got != q.want || err != nil {
				t.Errorf("%s changed: %v, %v; want %v", q.what, got, err, q.want)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A process that was stopped for long must not trust its snapshots: others may have
// removed what they need.
func TestSnapshotsOfASilentProcess(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "db"))
	put(t, s, "\x01k", "1")
	old := snapshot(t, s)
	get := func(sn *Snapshot) error {
		_, err := sn.Get(context.Background(), 1, []byte("\x01k"))
		return err
	}
	if err := get(old); err != nil {
		t.Fatal(err)
	}
	s.beat.Add(-int64(trustTime + time.Second)) // as if nothing had run for that long
	if err := get(old); err != ErrSnapshotLost {
		t.Errorf("while silent: %v", err)
	}
	if err := s.show(); err != nil {
		t.Fatal(err)
	}
	if err := get(old); err != ErrSnapshotLost {
		t.Errorf("after the silence: %v", err)
	}
	if err := get(snapshot(t, s)); err != nil {
		t.Errorf("a new snapshot: %v", err)
	}
	if old.Check() != ErrSnapshotLost {
		t.Error("a commit would go through")
	}
}

// A killed process holds old versions back for the time of its lease only.
func TestDeadProcessIsForgotten(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "db"))
	number := func(sql string) int64 {
		c := <-s.writer
		defer func() { s.writer <- c }()
		n, err := c.number(&stmt{sql: sql})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	number(fmt.Sprintf("INSERT INTO processes VALUES (7, 1, %d) RETURNING 1", time.Now().UnixNano()))
	fill := func() {
		for i := range 3 * collectAt {
			put(t, s, "\x01k", fmt.Sprint(i))
		}
	}
	fill()
	if n := number("SELECT count(*) FROM rows"); n < 3*collectAt {
		t.Errorf("%d rows although another process may need them", n)
	}
	number(fmt.Sprintf("UPDATE processes SET beat = %d WHERE id = 7 RETURNING 1", time.Now().Add(-leaseTime-time.Second).UnixNano()))
	if err := s.show(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		fill()
	}
	if n := number("SELECT count(*) FROM rows"); n > 3*collectAt {
		t.Errorf("%d rows after the other process is gone", n)
	}
	if n := number("SELECT count(*) FROM processes"); n != 1 {
		t.Errorf("%d processes", n)
	}
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	s := open(t, "")
	boom := fmt.Errorf("boom")
	before := snapshot(t, s)
	err := s.Write(context.Background(), func(w *Writer) error {
		if err := w.Put(1, []byte("\x01a"), []byte("1")); err != nil {
			return err
		}
		return boom
	})
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("error %v", err)
	}
	after := snapshot(t, s)
	put(t, s, "\x01b", "2") // has the version that the failed write would have had
	if got := all(t, snapshot(t, s), false); got != "\x01b=2" {
		t.Errorf("rows after the next write: %q", got)
	}
	if got := all(t, after, false); got != "" || after.Version != before.Version {
		t.Errorf("rows %q, version %d then %d", got, before.Version, after.Version)
	}
}

func BenchmarkGet(b *testing.B) {
	s := open(b, "")
	for i := range 100 {
		put(b, s, fmt.Sprintf("\x01%05d", i), strings.Repeat("x", 100))
	}
	sn := snapshot(b, s)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if v, err := sn.Get(context.Background(), 1, fmt.Appendf(nil, "\x01%05d", i%100)); v == nil || err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	s := open(b, "")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		put(b, s, fmt.Sprintf("\x01%05d", i%1000), strings.Repeat("x", 100))
	}
}
