package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/store"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// EntryKind is the kind of a schema entry.
type EntryKind uint8

// The kinds of entries.
const (
	Directory EntryKind = iota + 1
	Table
	TopicEntry
)

// Column is a table's column. Type is the bare type: a column that is not NotNull
// shows itself to clients as Optional<Type>.
type Column struct {
	Name    string
	Type    *Ydb.Type
	NotNull bool
}

// Index is a table's secondary index.
type Index struct {
	Name    string
	Columns []string
	Data    []string // covered columns; reading others works as well
	Async   bool     // kept as declared; served as a synchronous one
}

// TableSpec describes a table.
type TableSpec struct {
	Columns []Column
	Key     []string
	Indexes []Index

	KeyBloomFilter Ydb.FeatureFlag_Status // kept to be described, of no effect here
}

// Entry is a directory, a table or a topic.
type Entry struct {
	Path    string // absolute
	Kind    EntryKind
	Created time.Time
	Table   *TableSpec // of tables
}

func (e *entry) public() Entry {
	out := Entry{Path: e.path, Kind: Directory, Created: e.created}
	t := e.table
	switch {
	case e.topic != nil:
		out.Kind = TopicEntry
		return out
	case t == nil:
		return out
	}
	out.Kind, out.Table = Table, &TableSpec{KeyBloomFilter: t.bloom}
	for _, c := range t.columns {
		out.Table.Columns = append(out.Table.Columns, Column{Name: c.name, Type: c.bare.Proto(), NotNull: c.notNull})
	}
	for _, k := range t.key {
		out.Table.Key = append(out.Table.Key, t.columns[k].name)
	}
	for _, ix := range t.indexes {
		pub := Index{Name: ix.name, Data: ix.data, Async: ix.async}
		for _, k := range ix.key[:ix.cols] {
			pub.Columns = append(pub.Columns, t.columns[k].name)
		}
		out.Table.Indexes = append(out.Table.Indexes, pub)
	}
	return out
}

func noPath(p string) *Error {
	return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Path does not exist: %s", p)
}

// current returns the newest catalog.
func (db *DB) current(ctx context.Context) (*catalog, error) {
	v, err := db.store.Schema(ctx)
	if err != nil {
		return nil, storeError(err)
	}
	c, err := db.catalogAt(ctx, v)
	return c, storeError(err)
}

// Describe returns the entry at the absolute path, or SCHEME_ERROR.
func (db *DB) Describe(ctx context.Context, p string) (Entry, error) {
	p = absolute("", p)
	c, err := db.current(ctx)
	if err != nil {
		return Entry{}, err
	}
	e := c.entries[p]
	switch {
	case e == nil && c.isDir(p):
		return Entry{Path: p, Kind: Directory}, nil
	case e == nil:
		return Entry{}, noPath(p)
	}
	return e.public(), nil
}

// CountRows returns how many rows the table at the absolute path has; it stops at a
// million.
func (db *DB) CountRows(ctx context.Context, path string) (uint64, error) {
	t, err := db.tableAt(ctx, path)
	if err != nil {
		return 0, err
	}
	sn, err := db.store.Snapshot(ctx)
	if err != nil {
		return 0, storeError(err)
	}
	defer sn.Release()
	sc := store.Range{Table: t.id, Rows: 4096, Bytes: math.MaxInt}
	n := uint64(0)
	for n < 1_000_000 {
		rows, more, err := sn.Scan(ctx, sc)
		if err != nil {
			return 0, storeError(err)
		}
		n += uint64(len(rows))
		if !more || len(rows) == 0 {
			break
		}
		sc.From = append(rows[len(rows)-1].Key, 0)
	}
	return n, nil
}

// List returns the entry at path and, if it is a directory, its children by name.
func (db *DB) List(ctx context.Context, p string) (Entry, []Entry, error) {
	p = absolute("", p)
	c, err := db.current(ctx)
	if err != nil {
		return Entry{}, nil, err
	}
	if e := c.entries[p]; e != nil && !c.isDir(p) {
		return e.public(), nil, nil
	}
	if !c.isDir(p) {
		return Entry{}, nil, noPath(p)
	}
	self := Entry{Path: p, Kind: Directory}
	if e := c.entries[p]; e != nil {
		self = e.public()
	}
	var children []Entry
	for _, e := range c.children(p) {
		children = append(children, e.public())
	}
	slices.SortFunc(children, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return self, children, nil
}

// change runs f on the newest schema inside one write. f returns an *Error to refuse.
func (db *DB) change(ctx context.Context, f func(w *store.Writer, c *catalog) error) error {
	err := db.store.Write(ctx, func(w *store.Writer) error {
		c, err := catalogOf(w, db.catalog.Load())
		if err != nil {
			return err
		}
		return f(w, c)
	})
	return storeError(err)
}

// putEntry stores an entry. One that was stored before keeps the time when it was made.
func putEntry(w *store.Writer, p string, st storedEntry) error {
	if st.Created.IsZero() {
		st.Created = time.Now().UTC().Truncate(time.Millisecond)
	}
	def, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return w.PutEntry(store.Entry{Path: p, Def: def})
}

// makeDirs makes p and its missing parents.
func makeDirs(w *store.Writer, c *catalog, p string) error {
	for ; !c.isDir(p); p = path.Dir(p) {
		if c.entries[p] != nil {
			return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Path is not a directory: %s", p)
		}
		if err := putEntry(w, p, storedEntry{}); err != nil {
			return err
		}
	}
	return nil
}

func checkPath(p string) error {
	if len(p) > 1024 || strings.Count(p, "/") < 2 || strings.ContainsAny(p, "\x00\n") {
		return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Invalid path: %q", p)
	}
	return nil
}

// MakeDirectory makes the directory and its missing parents; an existing one is fine.
func (db *DB) MakeDirectory(ctx context.Context, p string) error {
	p = absolute("", p)
	return db.change(ctx, func(w *store.Writer, c *catalog) error {
		if c.isDir(p) {
			return nil
		}
		if err := checkPath(p); err != nil {
			return err
		}
		return makeDirs(w, c, p)
	})
}

// RemoveDirectory removes an empty directory. SCHEME_ERROR if it is missing or not empty.
func (db *DB) RemoveDirectory(ctx context.Context, p string) error {
	p = absolute("", p)
	return db.change(ctx, func(w *store.Writer, c *catalog) error {
		e := c.entries[p]
		switch {
		case e == nil:
			return noPath(p)
		case !c.isDir(p):
			return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Path is not a directory: %s", p)
		case len(c.children(p)) > 0:
			return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Directory is not empty: %s", p)
		}
		return w.DeleteEntry(p)
	})
}

// CreateTable makes a table and its missing parent directories. A table that is there
// already is left as it is and counts as success, as the server's own call does.
func (db *DB) CreateTable(ctx context.Context, p string, spec TableSpec) error {
	return db.createTable(ctx, absolute("", p), spec, true)
}

func (db *DB) createTable(ctx context.Context, p string, spec TableSpec, ifNotExists bool) error {
	if err := checkPath(p); err != nil {
		return err
	}
	return db.change(ctx, func(w *store.Writer, c *catalog) error {
		switch e := c.entries[p]; {
		case e != nil && e.table != nil && ifNotExists:
			return nil
		case e != nil:
			return pathExists(p)
		}
		st, err := spec.stored(w)
		if err != nil {
			return errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Cannot create table %s: %v", p, err)
		}
		if err := makeDirs(w, c, path.Dir(p)); err != nil {
			return err
		}
		return putEntry(w, p, storedEntry{Table: st})
	})
}

// stored checks the description and turns it into what is stored, with new ids.
func (s TableSpec) stored(w *store.Writer) (*storedTable, error) {
	st := &storedTable{ID: w.NewTable(), Key: s.Key, KeyBloomFilter: s.KeyBloomFilter}
	types := map[string]*value.Type{}
	for _, c := range s.Columns {
		sc, err := c.stored(st)
		if err != nil {
			return nil, err
		}
		if types[c.Name] != nil {
			return nil, fmt.Errorf("duplicated column %s", c.Name)
		}
		types[c.Name], _ = value.FromProto(c.Type)
		st.Columns = append(st.Columns, sc)
	}
	if err := keyed("the primary key", s.Key, types); err != nil {
		return nil, err
	}
	for _, ix := range s.Indexes {
		if err := st.addIndex(w, ix, types); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// keyed checks the columns of a key or an index.
func keyed(what string, names []string, types map[string]*value.Type) error {
	seen := map[string]bool{}
	for _, n := range names {
		switch {
		case types[n] == nil:
			return fmt.Errorf("%s has the unknown column %s", what, n)
		case !value.KeyAllowed(types[n]):
			return fmt.Errorf("column %s of type %s cannot be part of %s", n, types[n], what)
		case seen[n]:
			return fmt.Errorf("%s has the column %s twice", what, n)
		}
		seen[n] = true
	}
	if len(names) == 0 {
		return fmt.Errorf("%s has no columns", what)
	}
	return nil
}

func (st *storedTable) addIndex(w *store.Writer, ix Index, types map[string]*value.Type) error {
	if err := keyed("index "+ix.Name, ix.Columns, types); err != nil {
		return err
	}
	for _, d := range ix.Data {
		if types[d] == nil {
			return fmt.Errorf("index %s covers the unknown column %s", ix.Name, d)
		}
	}
	if ix.Name == "" || slices.ContainsFunc(st.Indexes, func(have storedIndex) bool { return have.Name == ix.Name }) {
		return fmt.Errorf("duplicated or empty name of an index: %q", ix.Name)
	}
	st.Indexes = append(st.Indexes, storedIndex{ID: w.NewTable(), Name: ix.Name, Columns: ix.Columns, Data: ix.Data, Async: ix.Async})
	return nil
}

func (c Column) stored(st *storedTable) (storedColumn, error) {
	t, err := value.FromProto(c.Type)
	if err != nil {
		return storedColumn{}, fmt.Errorf("column %s: %w", c.Name, err)
	}
	if !value.ColumnAllowed(t) {
		return storedColumn{}, fmt.Errorf("column %s: type %s cannot be stored", c.Name, t)
	}
	if c.Name == "" {
		return storedColumn{}, fmt.Errorf("a column without a name")
	}
	st.NextCol++
	return storedColumn{ID: st.NextCol, Name: c.Name, Type: t.String(), NotNull: c.NotNull}, nil
}

// DropTable removes a table with its rows, or fails with SCHEME_ERROR.
func (db *DB) DropTable(ctx context.Context, p string) error {
	return db.dropTable(ctx, absolute("", p), false)
}

func (db *DB) dropTable(ctx context.Context, p string, ifExists bool) error {
	return db.change(ctx, func(w *store.Writer, c *catalog) error {
		t := c.table(p)
		switch {
		case t == nil && ifExists:
			return nil
		case t == nil:
			return noPath(p)
		}
		return dropEntry(w, t)
	})
}

// dropEntry removes a table with its rows and indexes.
func dropEntry(w *store.Writer, t *table) error {
	for _, ix := range t.indexes {
		if err := w.DropRows(ix.id); err != nil {
			return err
		}
	}
	if err := w.DropRows(t.id); err != nil {
		return err
	}
	return w.DeleteEntry(t.path)
}
