package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/store"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// Alteration is what changes of a table.
type Alteration struct {
	Add         []Column // nullable ones
	Drop        []string
	AddIndexes  []Index // filled from the rows before AlterTable returns
	DropIndexes []string

	KeyBloomFilter Ydb.FeatureFlag_Status // UNSPECIFIED: as it is
}

// AlterTable changes a table, or fails with SCHEME_ERROR and changes nothing.
func (db *DB) AlterTable(ctx context.Context, p string, a Alteration) error {
	p = absolute("", p)
	return db.change(ctx, func(w *store.Writer, c *catalog) error {
		t := c.table(p)
		if t == nil {
			return noPath(p)
		}
		st, err := c.entries[p].stored()
		if err != nil {
			return err
		}
		if err := st.Table.alter(w, t, a); err != nil {
			return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Cannot alter table %s: %v", p, err)
		}
		if err := putEntry(w, p, st); err != nil || len(a.AddIndexes) == 0 {
			return err
		}
		if c, err = catalogOf(w, c); err != nil {
			return err
		}
		return c.table(p).fill(w, a.AddIndexes)
	})
}

// stored reads the stored form again.
func (e *entry) stored() (st storedEntry, err error) {
	err = json.Unmarshal(e.def, &st)
	return st, err
}

// catalogOf is the catalog as the write sees it now.
func catalogOf(w *store.Writer, old *catalog) (*catalog, error) {
	entries, err := w.Entries()
	if err != nil {
		return nil, err
	}
	return newCatalog(entries, w.Schema(), old)
}

func (st *storedTable) alter(w *store.Writer, t *table, a Alteration) error {
	if a.KeyBloomFilter != Ydb.FeatureFlag_STATUS_UNSPECIFIED {
		st.KeyBloomFilter = a.KeyBloomFilter
	}
	for _, d := range a.DropIndexes {
		ix := t.index(d)
		if ix == nil {
			return fmt.Errorf("no index %s", d)
		}
		st.Indexes = slices.DeleteFunc(st.Indexes, func(s storedIndex) bool { return s.Name == d })
		if err := w.DropRows(ix.id); err != nil {
			return err
		}
	}
	for _, d := range a.Drop {
		i, ok := t.byName[d]
		if !ok {
			return fmt.Errorf("no column %s", d)
		}
		if t.isKey(i) {
			return fmt.Errorf("column %s is part of the primary key", d)
		}
		for _, ix := range st.Indexes {
			if slices.Contains(ix.Columns, d) || slices.Contains(ix.Data, d) {
				return fmt.Errorf("column %s is part of index %s", d, ix.Name)
			}
		}
		st.Columns = slices.DeleteFunc(st.Columns, func(c storedColumn) bool { return c.Name == d })
	}
	for _, c := range a.Add {
		sc, err := c.stored(st)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(st.Columns, func(have storedColumn) bool { return have.Name == c.Name }) {
			return fmt.Errorf("column %s exists", c.Name)
		}
		if c.NotNull {
			return fmt.Errorf("an added column cannot be NOT NULL: %s", c.Name)
		}
		st.Columns = append(st.Columns, sc)
	}
	types := map[string]*value.Type{}
	for _, c := range t.columns {
		types[c.name] = c.bare
	}
	for _, ix := range a.AddIndexes {
		if err := st.addIndex(w, ix, types); err != nil {
			return err
		}
	}
	return nil
}

// fill writes the rows of new indexes.
func (t *table) fill(w *store.Writer, indexes []Index) error {
	return eachRow(w, t.id, func(r store.Row) error {
		row, err := t.decode(r.Val)
		if err != nil {
			return err
		}
		for _, ix := range indexes {
			if err := t.index(ix.Name).apply(w, t, r.Key, nil, row); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachRow calls f for the newest rows of a table, or of an index.
func eachRow(w *store.Writer, id uint64, f func(store.Row) error) error {
	r := store.Range{Table: id, Rows: 1000, Bytes: 1 << 20}
	for {
		rows, more, err := w.Scan(r)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if err := f(row); err != nil {
				return err
			}
		}
		if !more || len(rows) == 0 {
			return nil
		}
		r.From = append(rows[len(rows)-1].Key, 0)
	}
}

// Move is one table of CopyTables or RenameTables, by absolute paths.
type Move struct {
	From, To    string
	OmitIndexes bool // of a copy
	Replace     bool // a table at To is dropped before
}

// CopyTables makes copies of tables with their rows: all, or none on an error.
func (db *DB) CopyTables(ctx context.Context, moves []Move) error {
	return db.move(ctx, moves, func(w *store.Writer, m Move, from *entry) error {
		st, err := from.stored()
		if err != nil {
			return err
		}
		st.Created = time.Time{}
		ids := map[uint64]uint64{from.table.id: w.NewTable()}
		st.Table.ID = ids[from.table.id]
		if m.OmitIndexes {
			st.Table.Indexes = nil
		}
		for i := range st.Table.Indexes {
			ix := &st.Table.Indexes[i]
			ids[ix.ID] = w.NewTable()
			ix.ID = ids[ix.ID]
		}
		for old, id := range ids {
			err := eachRow(w, old, func(r store.Row) error { return w.Put(id, r.Key, r.Val) })
			if err != nil {
				return err
			}
		}
		return putEntry(w, m.To, st)
	})
}

// RenameTables gives tables other paths: all, or none on an error.
func (db *DB) RenameTables(ctx context.Context, moves []Move) error {
	return db.move(ctx, moves, func(w *store.Writer, m Move, from *entry) error {
		st, err := from.stored()
		if err != nil {
			return err
		}
		if err := w.DeleteEntry(m.From); err != nil {
			return err
		}
		st.Created = time.Time{} // it is of the path
		return putEntry(w, m.To, st)
	})
}

func (db *DB) move(ctx context.Context, moves []Move, each func(*store.Writer, Move, *entry) error) error {
	if len(moves) == 0 {
		return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "no tables are named")
	}
	return db.change(ctx, func(w *store.Writer, c *catalog) error {
		for _, m := range moves {
			m.From, m.To = absolute("", m.From), absolute("", m.To)
			if err := checkPath(m.To); err != nil {
				return err
			}
			if c.table(m.From) == nil {
				return noPath(m.From)
			}
			from, to := c.entries[m.From], c.entries[m.To]
			switch {
			case to != nil && to.table != nil && m.Replace && m.From != m.To:
				if err := dropEntry(w, to.table); err != nil {
					return err
				}
			case to != nil:
				return pathExists(m.To)
			}
			if err := makeDirs(w, c, path.Dir(m.To)); err != nil {
				return err
			}
			if err := each(w, m, from); err != nil {
				return err
			}
			var err error
			if c, err = catalogOf(w, c); err != nil {
				return err
			}
		}
		return nil
	})
}

func pathExists(p string) *Error {
	return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Check failed: path: '%s', error: path exist", p)
}
