package store

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Writer is the view of one Write: it sees the newest version and its own changes.
type Writer struct {
	c       *conn
	version uint64
	schema  uint64
	next    uint64 // the next id of a table
	changes int
	meta    bool // meta must be written
	beat    bool // the process shows itself
}

// Write runs f with SQLite's write lock and commits what it wrote, or nothing if f fails.
// f must be short and must not call the store.
func (s *Store) Write(ctx context.Context, f func(*Writer) error) error {
	c, err := take(ctx, s, s.writer)
	if err != nil {
		return err
	}
	defer func() { s.writer <- c }()
	if err := c.run(c.begin); err != nil {
		return fmt.Errorf("begin a write: %w", err)
	}
	w := &Writer{c: c}
	if err := s.write(w, f); err != nil {
		_ = c.run(c.rollback) // fails only where SQLite has rolled back by itself
		return err
	}
	if w.meta {
		s.mu.Lock()
		if w.version > s.seen {
			s.seen, s.schema = w.version, w.schema
		}
		s.mu.Unlock()
	}
	return nil
}

// Hold keeps this process from writing until release is called, which must be once:
// a process that is stopped meanwhile holds no lock that others wait for.
func (s *Store) Hold(ctx context.Context) (release func(), err error) {
	c, err := take(ctx, s, s.writer)
	if err != nil {
		return nil, err
	}
	return func() { s.writer <- c }, nil
}

func (s *Store) write(w *Writer, f func(*Writer) error) error {
	c := w.c
	var err error
	if w.version, w.schema, w.next, err = c.metaNext(); err != nil {
		return err
	}
	w.version++
	if err := f(w); err != nil {
		return err
	}
	if w.meta = w.meta || w.changes > 0; w.meta {
		if err := c.run(c.setMeta, int64(w.version), int64(w.schema), int64(w.next)); err != nil {
			return err
		}
	}
	now := time.Now()
	if s.shared && (w.beat || w.meta && now.UnixNano()-s.beat.Load() > int64(beatEvery/2)) {
		if err := c.run(c.show, s.id, int64(s.horizon()), now.UnixNano()); err != nil {
			return err
		}
		if err := c.run(c.bury, now.Add(-leaseTime).UnixNano()); err != nil {
			return err
		}
		w.beat = true
	}
	if s.garbage += w.changes; s.garbage >= collectAt || w.beat {
		if err := s.collect(w, now); err != nil {
			return fmt.Errorf("remove old versions: %w", err)
		}
		s.garbage = 0
	}
	if err := c.run(c.commit); err != nil {
		if isBusy(err) {
			return fmt.Errorf("commit: %w", err)
		}
		return fmt.Errorf("%w: %w", ErrUndetermined, err)
	}
	if w.beat {
		if last := s.beat.Load(); last != 0 && now.UnixNano()-last > int64(trustTime) {
			s.lapses.Add(1) // before the beat: Check reads them in the other order
		}
		s.beat.Store(now.UnixNano())
	}
	return nil
}

// collect removes versions that no snapshot can see any more, somewhat faster than new
// ones come.
func (s *Store) collect(w *Writer, now time.Time) error {
	c := w.c
	horizon := s.horizon()
	if s.shared {
		others, err := c.number(c.oldest, now.Add(-leaseTime).UnixNano(), s.id)
		if err != nil {
			return err
		}
		horizon = min(horizon, uint64(others))
	}
	old, err := c.logBefore(horizon, 2*s.garbage+collectAt)
	if err != nil || len(old) == 0 {
		return err
	}
	for _, e := range old {
		if err := c.run(c.prune, int64(e.table), e.key, int64(e.version)); err != nil {
			return err
		}
	}
	last := old[len(old)-1]
	return c.run(c.pruneLog, int64(last.version), int64(last.table), last.key)
}

// Version returns the version that this write makes.
func (w *Writer) Version() uint64 { return w.version }

// Schema returns the version of the schema.
func (w *Writer) Schema() uint64 { return w.schema }

// Get returns the newest row, or nil.
func (w *Writer) Get(table uint64, key []byte) ([]byte, error) {
	return w.c.row(table, key, math.MaxInt64)
}

// Scan returns the next newest rows of the range in order, and whether there may be more after them.
func (w *Writer) Scan(r Range) (rows []Row, more bool, err error) { return w.c.scan(r, math.MaxInt64) }

// Changed reports whether the row was written after version since.
func (w *Writer) Changed(table uint64, key []byte, since uint64) (bool, error) {
	n, err := w.c.number(w.c.changed, int64(table), key, int64(since))
	return n > 0, err
}

// ChangedRange reports whether a row from from to before to (nil: the end) was written after since.
func (w *Writer) ChangedRange(table uint64, from, to []byte, since uint64) (bool, error) {
	n, err := w.c.number(w.c.changedRange, int64(since), int64(table), lower(from), upper(to))
	return n > 0, err
}

// Put writes a row.
func (w *Writer) Put(table uint64, key, val []byte) error {
	return w.put(table, key, val)
}

// Delete removes a row.
func (w *Writer) Delete(table uint64, key []byte) error { return w.put(table, key, nil) }

func (w *Writer) put(table uint64, key []byte, val any) error {
	w.changes++
	if b, ok := val.([]byte); ok && b == nil {
		val = []byte{}
	}
	if err := w.c.run(w.c.insert, int64(table), key, int64(w.version), val); err != nil {
		return err
	}
	return w.c.run(w.c.insertLog, int64(w.version), int64(table), key)
}

// NewTable returns an id that no table had before.
func (w *Writer) NewTable() uint64 {
	w.meta = true
	w.next++
	return w.next
}

// Entries returns the schema.
func (w *Writer) Entries() ([]Entry, error) { return w.c.entries() }

// PutEntry writes an entry of the schema.
func (w *Writer) PutEntry(e Entry) error {
	w.touchSchema()
	return w.c.run(w.c.putEntry, e.Path, e.Def)
}

// DeleteEntry removes an entry of the schema.
func (w *Writer) DeleteEntry(path string) error {
	w.touchSchema()
	return w.c.run(w.c.deleteEntry, path)
}

// touchSchema gives the schema the version of this write.
func (w *Writer) touchSchema() { w.schema, w.meta = w.version, true }

// DropRows removes all rows of a table in all versions.
func (w *Writer) DropRows(table uint64) error {
	w.meta = true
	if err := w.c.run(w.c.dropRows, int64(table)); err != nil {
		return err
	}
	return w.c.run(w.c.dropLog, int64(table))
}
