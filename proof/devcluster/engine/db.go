package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/store"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// DB is an open database. All methods may be called from any goroutine.
type DB struct {
	store   *store.Store
	plans   *PlanCache
	catalog atomic.Pointer[catalog]
	loading sync.Mutex // one goroutine loads the catalog at a time
	topics  bell       // rings when a topic changes
}

// bell tells those who wait that something happened.
type bell struct {
	mu sync.Mutex    // guards c
	c  chan struct{} // closed by the next tell; nil: there is no waiter
}

func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

func (b *bell) tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}

// Open opens the database in the file at path, or one in memory if path is empty.
// Several processes may open one file.
func Open(path string) (*DB, error) {
	s, err := store.Open(path)
	if err != nil {
		return nil, err
	}
	db := &DB{store: s, plans: NewPlanCache(1000)}
	if _, err := db.catalogAt(context.Background(), 0); err != nil {
		return nil, errors.Join(fmt.Errorf("read the schema of %q: %w", path, err), s.Close())
	}
	return db, nil
}

// Close ends the database after the calls under way; one in memory is gone.
func (db *DB) Close() error { return db.store.Close() }

// Hold keeps this process from writing until release is called, which must be once.
// Close waits until it was called.
func (db *DB) Hold(ctx context.Context) (release func(), err error) { return db.store.Hold(ctx) }

// Begin opens a transaction. Its snapshot is taken when it first touches a table.
func (db *DB) Begin(_ context.Context, m Mode) (*Tx, error) { return &Tx{db: db, mode: m}, nil }

// Mode returns the mode that the transaction was begun with.
func (tx *Tx) Mode() Mode { return tx.mode }

// Execute runs the statements of the request in the transaction and emits the result
// sets. DDL is refused. Any error ends the transaction and rolls it back.
func (tx *Tx) Execute(ctx context.Context, req Request, emit Emit) (st Stats, err error) {
	if tx.over {
		return Stats{}, errOver()
	}
	defer func() {
		if err != nil {
			tx.Rollback()
		}
	}()
	start := time.Now()
	p, st, err := tx.db.prepare(ctx, tx, &req)
	if err != nil {
		return st, err
	}
	if len(p.ddl) > 0 {
		return st, errorf(Ydb.StatusIds_PRECONDITION_FAILED, issueBadOperation, "Scheme operations cannot be executed inside transaction")
	}
	return tx.db.execute(ctx, tx, p, &req, emit, st, start)
}

// Execute runs a request without transaction control: DDL, or statements as one
// serializable transaction that is committed before Execute returns. (Parts may have
// been emitted when the commit fails.)
func (db *DB) Execute(ctx context.Context, req Request, emit Emit) (Stats, error) {
	tx := &Tx{db: db, mode: Serializable}
	defer tx.Rollback()
	start := time.Now()
	p, st, err := db.prepare(ctx, tx, &req)
	if err != nil {
		return st, err
	}
	st, err = db.execute(ctx, tx, p, &req, emit, st, start)
	if err == nil && !req.Explain {
		err = tx.Commit(ctx)
		st.Duration = time.Since(start)
	}
	return st, err
}

// execute runs a plan in the transaction.
func (db *DB) execute(ctx context.Context, tx *Tx, p *plan, req *Request, emit Emit, st Stats, start time.Time) (Stats, error) {
	if req.Warn != nil && len(p.warnings) > 0 {
		req.Warn(p.warnings)
	}
	if req.Explain || req.Plan {
		st.Plan, st.AST = p.explain()
	}
	if req.Explain {
		st.Duration = time.Since(start)
		return st, nil
	}
	params, err := p.bind(req.Params)
	if err != nil {
		return st, err
	}
	if req.Touch != nil && len(p.tables) > 0 {
		named := make([]string, len(p.tables))
		for i, t := range p.tables {
			named[i] = t.path
		}
		if err := req.Touch(named, p.filled); err != nil {
			return st, err
		}
	}
	e := &exec{ctx: ctx, db: db, tx: tx, req: req, params: params, emit: emit}
	for _, s := range p.ddl {
		if err = s(e); err != nil {
			break
		}
	}
	if err == nil {
		err = e.run(p)
	}
	for _, a := range e.access {
		st.Tables = append(st.Tables, *a)
	}
	st.Duration = time.Since(start)
	if ee, ok := errors.AsType[emitError](err); ok {
		return st, ee.err
	}
	return st, storeError(err)
}

// bind decodes the parameters of the plan.
func (p *plan) bind(given map[string]*Ydb.TypedValue) ([]value.Value, error) {
	if len(p.params) == 0 {
		return nil, nil
	}
	out := make([]value.Value, len(p.params))
	for i, par := range p.params {
		tv := given[par.name]
		switch {
		case tv == nil && (par.typ.Kind == value.Optional || !par.used):
			out[i] = value.NullValue
			continue
		case tv == nil:
			return nil, errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "Missing value for parameter: %s", par.name)
		case !par.typ.Matches(tv.GetType()):
			actual := "an invalid type"
			if t, err := value.FromProto(tv.GetType()); err == nil {
				actual = t.String()
			}
			return nil, errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest,
				"Parameter %s type mismatch, expected: %s, actual: %s", par.name, par.typ, actual)
		}
		v, err := value.Decode(par.typ, tv.GetType(), tv.GetValue())
		if err != nil {
			return nil, errorf(Ydb.StatusIds_BAD_REQUEST, issueBadRequest, "Parameter %s: %v", par.name, err)
		}
		out[i] = v
	}
	return out, nil
}

// IsSchema reports whether the text holds DDL, which runs only without a transaction. It
// reads the text and nothing else.
func (db *DB) IsSchema(req Request) (bool, error) {
	script, err := syntax.Parse(req.Text)
	if err != nil {
		return false, parseError(err)
	}
	for _, s := range script.Statements {
		switch s.(type) {
		case *syntax.CreateTable, *syntax.DropTable, *syntax.AlterTable:
			return true, nil
		}
	}
	return false, nil
}

// Prepare compiles the request and returns the types of the parameters it declares, by
// name with '$'.
func (db *DB) Prepare(ctx context.Context, req Request) (map[string]*Ydb.Type, error) {
	tx := &Tx{db: db}
	defer tx.Rollback()
	p, _, err := db.prepare(ctx, tx, &req)
	if err != nil {
		return nil, err
	}
	out := make(map[string]*Ydb.Type, len(p.declared))
	for name, t := range p.declared {
		out[name] = t.Proto()
	}
	return out, nil
}
