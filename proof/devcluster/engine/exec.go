package engine

import (
	"context"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// maxHeld bounds what one execution keeps in memory to sort, group, join and remember.
const maxHeld = 256 << 20

// exec is one execution of a plan.
type exec struct {
	ctx    context.Context
	db     *DB
	tx     *Tx
	req    *Request
	params []value.Value
	cells  []any // what is computed once: see compiler.cell
	held   int
	ticks  int
	emit   Emit
	sets   int
	access []*TableStats
}

// tick is called for every row that passes anywhere: it notices the end of the context.
func (e *exec) tick() error {
	if e.ticks++; e.ticks%256 == 0 {
		return storeError(e.ctx.Err())
	}
	return nil
}

// hold counts the memory of rows that are kept.
func (e *exec) hold(row []value.Value) error {
	n := 24
	for i := range row {
		n += row[i].Size()
	}
	return e.holdBytes(n)
}

func (e *exec) holdBytes(n int) error {
	if e.held += n; e.held > maxHeld {
		return errorf(Ydb.StatusIds_PRECONDITION_FAILED, 0, "Memory limit exceeded: the query keeps more than %d bytes", maxHeld)
	}
	return nil
}

// stats returns the counters of the table.
func (e *exec) stats(t *table) *TableStats {
	for _, s := range e.access {
		if s.Path == t.path {
			return s
		}
	}
	s := &TableStats{Path: t.path}
	e.access = append(e.access, s)
	return s
}

// run executes the steps in order.
func (e *exec) run(p *plan) error {
	if p.changes != "" && e.tx.mode.ReadOnly() {
		return at(p.writes, Ydb.StatusIds_GENERIC_ERROR, issueReadOnly,
			"Operation '%s' can't be performed in read only transaction", p.changes)
	}
	if p.cells > 0 {
		e.cells = make([]any, p.cells)
	}
	for _, s := range p.steps {
		if err := s(e); err != nil {
			return err
		}
	}
	return nil
}

// results sends the rows of one result set in parts.
type results struct {
	e       *exec
	set     int
	cols    []column
	wire    []*Ydb.Column
	rows    []*Ydb.Value
	bytes   int
	total   int
	started bool
}

// newResults opens the next result set; wire are its columns, which parts share.
func (e *exec) newResults(cols []column, wire []*Ydb.Column) *results {
	e.sets++
	return &results{e: e, set: e.sets - 1, cols: cols, wire: wire}
}

func wireColumns(cols []column) []*Ydb.Column {
	out := make([]*Ydb.Column, len(cols))
	for i, c := range cols {
		out[i] = &Ydb.Column{Name: c.name, Type: c.typ.Proto()}
	}
	return out
}

func (r *results) add(row []value.Value) error {
	req := r.e.req
	if req.MaxRows > 0 && r.total == req.MaxRows {
		if err := r.flush(true); err != nil {
			return err
		}
		return errStop
	}
	r.total++
	items := make([]*Ydb.Value, len(row))
	for i, v := range row {
		items[i] = value.Proto(r.cols[i].typ, v)
		r.bytes += 16 + len(v.S)
		if v.Items != nil {
			r.bytes += v.Size()
		}
	}
	r.rows = append(r.rows, &Ydb.Value{Items: items})
	partRows, partBytes := req.PartRows, req.PartBytes
	if partRows <= 0 {
		partRows = 1000
	}
	if partBytes <= 0 {
		partBytes = 1 << 20
	}
	if len(r.rows) >= partRows || r.bytes >= partBytes {
		return r.flush(false)
	}
	return nil
}

// flush sends what is there. It is called at least once for every set.
func (r *results) flush(truncated bool) error {
	rs := &Ydb.ResultSet{Columns: r.wire, Rows: r.rows, Truncated: truncated}
	r.rows, r.bytes, r.started = nil, 0, true
	if err := r.e.emit(r.set, rs); err != nil {
		return emitError{err}
	}
	return nil
}

// close sends the last part; err is how the rows ended.
func (r *results) close(err error) error {
	if err == errStop {
		return nil // truncated: the last part is out
	}
	if err != nil {
		return err
	}
	if len(r.rows) > 0 || !r.started {
		return r.flush(false)
	}
	return nil
}

func (c *compiler) selectStmt(s *syntax.SelectStmt) step {
	rel := c.query(s.Query)
	wire := wireColumns(rel.cols)
	return func(e *exec) error {
		r := e.newResults(rel.cols, wire)
		return r.close(rel.run(e, r.add))
	}
}
