package engine

import (
	"context"
	"errors"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// bulkRows is how many rows of a bulk upsert share one write section.
const bulkRows = 1000

// tableAt returns the table at an absolute path.
func (db *DB) tableAt(ctx context.Context, p string) (*table, error) {
	c, err := db.current(ctx)
	if err != nil {
		return nil, err
	}
	if t := c.table(absolute("", p)); t != nil {
		return t, nil
	}
	return nil, noPath(p)
}

// Between is called once by a bulk upsert, after the first half of its rows is written; its
// error ends it there. nil writes all rows at once.
type Between func() error

// BulkUpsert writes rows (a List<Struct<...>>) outside of any transaction; columns that the
// rows lack keep their values. It is not atomic: an error may leave the first rows written.
func (db *DB) BulkUpsert(ctx context.Context, path string, rows *Ydb.TypedValue, between Between) error {
	t, err := db.tableAt(ctx, path)
	if err != nil {
		return err
	}
	cols, all, err := t.rowsOfProto(rows)
	if err != nil {
		return err
	}
	return db.bulk(ctx, t, cols, all, between)
}

// bulk writes rows that have the given columns.
func (db *DB) bulk(ctx context.Context, t *table, cols []int, all [][]value.Value, between Between) error {
	if err := missingColumns(t, cols, true); err != nil {
		return err
	}
	if between != nil {
		first := len(all) / 2
		if err := db.bulk(ctx, t, cols, all[:first], nil); err != nil {
			return err
		}
		if err := between(); err != nil {
			return err
		}
		all = all[first:]
	}
	has := target{t, cols}.has()
	for len(all) > 0 {
		n := min(len(all), bulkRows)
		tx := &Tx{db: db, mode: Serializable}
		if _, err := tx.open(ctx); err != nil {
			return err
		}
		for _, row := range all[:n] {
			if err := tx.stage(t, t.keyOf(row), &op{row: row, has: has}); err != nil {
				tx.Rollback()
				return err
			}
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// projection is some columns of a table for results.
type projection struct {
	places []int
	types  []*value.Type
	wire   []*Ydb.Column
}

// project picks columns by name (none: all).
func (t *table) project(names []string, optional bool) (*projection, error) {
	p := &projection{}
	if len(names) == 0 {
		for _, c := range t.columns {
			names = append(names, c.name)
		}
	}
	for _, n := range names {
		i, ok := t.byName[n]
		if !ok {
			return nil, errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Unknown column: %s", n)
		}
		typ := t.columns[i].typ
		if optional {
			typ = value.Nullable(typ)
		}
		p.places, p.types = append(p.places, i), append(p.types, typ)
		p.wire = append(p.wire, &Ydb.Column{Name: n, Type: typ.Proto()})
	}
	return p, nil
}

func (p *projection) cols() []column {
	out := make([]column, len(p.types))
	for i, t := range p.types {
		out[i].typ = t
	}
	return out
}

func (p *projection) row(row []value.Value) []value.Value {
	out := make([]value.Value, len(p.places))
	for i, at := range p.places {
		out[i] = row[at]
	}
	return out
}

// ReadRows returns the rows of the given keys (List<Struct<all key columns>>) that exist,
// with the given columns (none: all), from one snapshot.
func (db *DB) ReadRows(ctx context.Context, path string, keys *Ydb.TypedValue, columns []string) (*Ydb.ResultSet, error) {
	t, err := db.tableAt(ctx, path)
	if err != nil {
		return nil, err
	}
	p, err := t.project(columns, false)
	if err != nil {
		return nil, err
	}
	cols, rows, err := t.rowsOfProto(keys)
	if err != nil {
		return nil, err
	}
	if err := missingColumns(t, cols, false); err != nil {
		return nil, err
	}
	if len(cols) != len(t.key) {
		return nil, errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "keys must have the key columns of %s and no others", path)
	}
	tx := &Tx{db: db, mode: SnapshotRO}
	defer tx.Rollback()
	if _, err := tx.open(ctx); err != nil {
		return nil, err
	}
	rs := &Ydb.ResultSet{Columns: p.wire}
	for _, k := range rows {
		row, err := tx.get(ctx, t, t.keyOf(k))
		if err != nil {
			return nil, err
		}
		if row == nil {
			continue
		}
		out := &Ydb.Value{}
		for i, v := range p.row(row) {
			out.Items = append(out.Items, value.Proto(p.types[i], v))
		}
		rs.Rows = append(rs.Rows, out)
	}
	return rs, nil
}

// TableRead asks for a table's rows in the order of its key.
type TableRead struct {
	Path                string // absolute
	Range               *Ydb_Table.KeyRange
	Columns             []string // none: all
	Limit               uint64   // rows; 0 means all
	PartRows, PartBytes int      // as in Request
	NotNullAsOptional   bool     // NOT NULL columns come as Optional too
}

// ReadTable streams a table's rows from one snapshot, always ordered by the key.
func (db *DB) ReadTable(ctx context.Context, r TableRead, emit Emit) error {
	t, err := db.tableAt(ctx, r.Path)
	if err != nil {
		return err
	}
	p, err := t.project(r.Columns, r.NotNullAsOptional)
	if err != nil {
		return err
	}
	kr, err := t.keyRange(r.Range)
	if err != nil {
		return err
	}
	tx := &Tx{db: db, mode: SnapshotRO}
	defer tx.Rollback()
	if _, err := tx.open(ctx); err != nil {
		return err
	}
	e := &exec{ctx: ctx, db: db, tx: tx, req: &Request{PartRows: r.PartRows, PartBytes: r.PartBytes}, emit: emit}
	out := e.newResults(p.cols(), p.wire)
	left := r.Limit
	err = tx.scan(ctx, scanSpec{t: t, ranges: []keyRange{kr}}, func(row []value.Value) error {
		if err := e.tick(); err != nil {
			return err
		}
		if err := out.add(p.row(row)); err != nil {
			return err
		}
		if left--; left == 0 { // never, if there is no limit
			return errStop
		}
		return nil
	})
	if err == errStop {
		err = nil
	}
	err = out.close(err)
	if ee, ok := errors.AsType[emitError](err); ok {
		return ee.err
	}
	return storeError(err)
}

// keyRange turns the wire form of a range into keys. A bound may give leading columns only:
// it then speaks of all keys that begin with them.
func (t *table) keyRange(r *Ydb_Table.KeyRange) (keyRange, error) {
	var out keyRange
	bound := func(tv *Ydb.TypedValue, after bool) ([]byte, error) {
		bad := func(err any) error {
			return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "key range of %s: %v", t.path, err)
		}
		tt, err := value.FromProto(tv.GetType())
		if err != nil {
			return nil, bad(err)
		}
		if tt.Kind != value.Tuple || len(tt.Members) > len(t.key) {
			return nil, bad("a bound must be a tuple of key columns, but got: " + tt.String())
		}
		v, err := value.Decode(tt, tv.GetType(), tv.GetValue())
		if err != nil {
			return nil, bad(err)
		}
		var key []byte
		for i, m := range tt.Members {
			col := t.columns[t.key[i]]
			if !value.Bare(m.Type).Equal(col.bare) {
				return nil, bad("column " + col.name + " has type " + col.typ.String())
			}
			key = value.AppendKey(key, col.bare, v.Items[i])
		}
		if after {
			return value.KeyEnd(key), nil
		}
		return key, nil
	}
	var err error
	switch from := r.GetFromBound().(type) {
	case *Ydb_Table.KeyRange_Greater:
		out.from, err = bound(from.Greater, true)
	case *Ydb_Table.KeyRange_GreaterOrEqual:
		out.from, err = bound(from.GreaterOrEqual, false)
	}
	if err != nil {
		return out, err
	}
	switch to := r.GetToBound().(type) {
	case *Ydb_Table.KeyRange_Less:
		out.to, err = bound(to.Less, false)
	case *Ydb_Table.KeyRange_LessOrEqual:
		out.to, err = bound(to.LessOrEqual, true)
	}
	return out, err
}

// rowsOfProto decodes List<Struct<...>> for BulkUpsert and ReadRows: the places of the
// members among the table's columns, and the rows with all columns.
func (t *table) rowsOfProto(tv *Ydb.TypedValue) (cols []int, rows [][]value.Value, err error) {
	bad := func(format string, args ...any) error {
		return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, format, args...)
	}
	lt, err := value.FromProto(tv.GetType())
	if err != nil {
		return nil, nil, bad("rows: %v", err)
	}
	if lt.Kind != value.List || lt.Elem.Kind != value.Struct {
		return nil, nil, bad("rows must be a List<Struct<...>>, but got: %s", lt)
	}
	v, err := value.Decode(lt, tv.GetType(), tv.GetValue())
	if err != nil {
		return nil, nil, bad("rows: %v", err)
	}
	var convs []func(value.Value) value.Value
	for _, m := range lt.Elem.Members {
		i, ok := t.byName[m.Name]
		if !ok {
			return nil, nil, errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Unknown column: %s", m.Name)
		}
		col := t.columns[i]
		conv, ok := value.Convert(m.Type, value.OptionalOf(col.bare)) // NULL is looked for below
		if !ok || !value.Lossless(value.Bare(m.Type), col.bare) && m.Type.Kind != value.Null {
			return nil, nil, errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme,
				"Type mismatch, got type %s for column %s, but expected %s", m.Type, m.Name, col.typ)
		}
		cols, convs = append(cols, i), append(convs, conv)
	}
	for _, item := range v.Items {
		row := nullRow(t)
		for n, i := range cols {
			row[i] = convs[n](item.Items[n])
			if err := t.columns[i].allows(row[i]); err != nil {
				return nil, nil, err
			}
		}
		rows = append(rows, row)
	}
	return cols, rows, nil
}

// allows fails if the column cannot hold NULL and the value is.
func (c tableColumn) allows(v value.Value) error {
	if c.notNull && v.Null > 0 {
		return errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "NULL for the NOT NULL column %s", c.name)
	}
	return nil
}

func missingColumns(t *table, cols []int, notNull bool) error {
	has := map[int]bool{}
	for _, i := range cols {
		has[i] = true
	}
	for i, col := range t.columns {
		if !has[i] && (t.isKey(i) || notNull && col.notNull) {
			return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Missing column %s of table %s", col.name, t.path)
		}
	}
	return nil
}
