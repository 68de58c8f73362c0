package engine

import (
	"context"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"
)

// TableStats says what one execution did to one table.
type TableStats struct {
	Path                               string // absolute
	Reads, Updates, Deletes            uint64 // rows
	ReadBytes, UpdateBytes, DeleteRows uint64
}

// Stats says what one execution did and what it cost.
type Stats struct {
	Compiled    bool // false: the plan came from the cache
	CompileTime time.Duration
	Duration    time.Duration
	Tables      []TableStats
	Plan, AST   string // for Explain and Plan
}

// Proto returns the stats in their wire form.
func (s Stats) Proto() *Ydb_TableStats.QueryStats { return &Ydb_TableStats.QueryStats{} }

// PlanCache keeps compiled texts by text and parameter types and forgets the
// least recently used. A node has its own, so that it compiles like a node.
type PlanCache struct{}

// NewPlanCache returns a cache of at most size plans.
func NewPlanCache(size int) *PlanCache { return &PlanCache{} }

// Compilations returns how many texts were compiled through this cache.
func (c *PlanCache) Compilations() uint64 { return 0 }

// DB is an open database.
type DB struct{}

// Tx is an open transaction. It is used by one goroutine at a time and needs no
// clean-up beyond Commit or Rollback; after an error of Execute only Rollback is left.
type Tx struct{}

var errPending = errorf(Ydb.StatusIds_UNSUPPORTED, 0, "not built yet")

// Open opens the database in the file at path, or one in memory if path is empty.
// Several processes may open one file.
func Open(path string) (*DB, error) { return &DB{}, nil }

// Close ends the database; one in memory is gone.
func (db *DB) Close() error { return nil }

// Begin opens a transaction. Its snapshot is taken when it first reads a table.
func (db *DB) Begin(ctx context.Context, m Mode) (*Tx, error) { return &Tx{}, nil }

// Execute runs the statements of the request in the transaction. DDL is refused.
func (tx *Tx) Execute(ctx context.Context, req Request, emit Emit) (Stats, error) {
	return Stats{}, errPending
}

// Commit applies the transaction's writes, or fails with ABORTED (issue 2001) when
// something it read was changed by another. Either way the transaction is over.
func (tx *Tx) Commit(ctx context.Context) error { return nil }

// Rollback forgets the transaction. It may be called at any time, also twice.
func (tx *Tx) Rollback() {}

// Execute runs a request without transaction control: DDL, or statements as one
// serializable transaction that is committed before Execute returns. (Parts may
// have been emitted when the commit fails.)
func (db *DB) Execute(ctx context.Context, req Request, emit Emit) (Stats, error) {
	return Stats{}, errPending
}

// IsSchema says whether the text holds DDL (which runs only without a transaction).
func (db *DB) IsSchema(req Request) (bool, error) { return false, errPending }

// Prepare compiles the request and returns the types of the parameters it declares, by name with '$'.
func (db *DB) Prepare(ctx context.Context, req Request) (map[string]*Ydb.Type, error) {
	return nil, errPending
}

// BulkUpsert writes rows (a List<Struct<...>>) outside of any transaction; columns
// that the rows lack keep their values.
func (db *DB) BulkUpsert(ctx context.Context, path string, rows *Ydb.TypedValue) error {
	return errPending
}

// ReadRows returns the rows of the given keys (List<Struct<all key columns>>) that
// exist, with the given columns (none: all).
func (db *DB) ReadRows(ctx context.Context, path string, keys *Ydb.TypedValue, columns []string) (*Ydb.ResultSet, error) {
	return nil, errPending
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

// ReadTable streams a table's rows from one snapshot.
func (db *DB) ReadTable(ctx context.Context, r TableRead, emit Emit) error { return errPending }

// EntryKind is the kind of a schema entry.
type EntryKind uint8

// The kinds of entries.
const (
	Directory EntryKind = iota + 1
	Table
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
}

// Entry is a directory or a table.
type Entry struct {
	Path    string // absolute
	Kind    EntryKind
	Created time.Time
	Table   *TableSpec // of tables
	Rows    uint64     // of tables, from Describe
}

// Describe returns the entry at the absolute path, or SCHEME_ERROR.
func (db *DB) Describe(ctx context.Context, path string) (Entry, error) { return Entry{}, errPending }

// List returns the entry at path and, if it is a directory, its children by name.
func (db *DB) List(ctx context.Context, path string) (Entry, []Entry, error) {
	return Entry{}, nil, errPending
}

// MakeDirectory makes the directory and its missing parents; an existing one is fine.
func (db *DB) MakeDirectory(ctx context.Context, path string) error { return errPending }

// RemoveDirectory removes an empty directory. SCHEME_ERROR if it is missing or not empty.
func (db *DB) RemoveDirectory(ctx context.Context, path string) error { return errPending }

// CreateTable makes a table (and missing parent directories). An existing table of
// that name is left as it is and counts as success, as the server's own call does.
func (db *DB) CreateTable(ctx context.Context, path string, spec TableSpec) error { return errPending }

// DropTable removes a table with its rows, or fails with SCHEME_ERROR.
func (db *DB) DropTable(ctx context.Context, path string) error { return errPending }
