package engine

import (
	"fmt"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// plan is a compiled text. It is immutable and may run many times at once.
type plan struct {
	params   []param
	declared map[string]*value.Type
	cells    int // how many memory cells an execution needs
	steps    []step
	ddl      []ddlStep // instead of steps
	tables   []*table  // every table that the plan names
	filled   []string  // paths of those that it puts rows into
	writes   syntax.Pos
	changes  string // the verb of the first statement that writes, "" if none does
	kinds    []string
	warnings []*Ydb_Issue.IssueMessage
}

// step runs one statement.
type step func(e *exec) error

// param is a parameter that the text uses or declares.
type param struct {
	name string
	typ  *value.Type
	used bool // not only declared
}

// expr is a compiled expression. eval must not keep or change the row.
type expr struct {
	typ   *value.Type
	eval  func(e *exec, row []value.Value) (value.Value, error)
	konst *value.Value // of constants
	free  bool         // it needs no row
}

// column is one column of a row that flows between relations.
type column struct {
	table, name string
	typ         *value.Type
	konst       *value.Value // its value if it is a constant: literals convert more freely
}

// relation is a compiled source of rows.
type relation struct {
	cols []column
	run  func(e *exec, yield rowFunc) error
}

// named is what $name stands for.
type named struct {
	x    *expr
	rel  *relation // if it is a query
	cell int
}

// env is where an expression stands: the columns it may name, and, in a SELECT with
// aggregates, the grouping that they belong to.
type env struct {
	cols  []column
	group *grouping
}

// compiler turns one text into a plan. A fault of the text leaves it by panic(*Error),
// which compile catches.
type compiler struct {
	cat      *catalog
	database string
	prefix   string
	inferred bool
	given    map[string]*value.Type // types of the parameters that came with the request
	plan     *plan
	places   map[string]int // of plan.params
	named    map[string]*named
	subs     map[*syntax.Query]*named
	seen     map[*table]bool
}

// compile builds the plan of a parsed text. given are the types of the parameters that came
// with the request; they count only where parameters need not be declared.
func compile(script *syntax.Script, cat *catalog, database string, inferred bool, given map[string]*value.Type) (p *plan, err error) {
	c := &compiler{
		cat: cat, database: database, prefix: database, inferred: inferred, given: given,
		plan: &plan{declared: map[string]*value.Type{}}, places: map[string]int{}, named: map[string]*named{},
		subs: map[*syntax.Query]*named{}, seen: map[*table]bool{},
	}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			p, err = nil, e
		}
	}()
	for _, s := range script.Statements {
		c.statement(s)
	}
	for _, s := range script.Statements {
		if d, ok := s.(*syntax.Declare); ok && !c.plan.params[c.places[d.Name]].used {
			w := at(d.Pos, 0, issueUnused, "Symbol %s is not used", d.Name).Issues[0]
			w.Severity = severityWarning
			c.plan.warnings = append(c.plan.warnings, w)
		}
	}
	if len(c.plan.ddl) > 0 && len(c.plan.steps) > 0 {
		return nil, errorf(Ydb.StatusIds_GENERIC_ERROR, 0,
			"Queries with mixed data and scheme operations are not supported. Use separate queries for different types of operations.")
	}
	return c.plan, nil
}

func (c *compiler) fail(pos syntax.Pos, format string, args ...any) {
	panic(invalid(pos, format, args...))
}

// try compiles something that may not fit; it returns false instead of leaving.
func (c *compiler) try(f func()) (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, mine := r.(*Error); !mine {
				panic(r)
			}
			ok = false
		}
	}()
	f()
	return true
}

func (c *compiler) cell() int {
	c.plan.cells++
	return c.plan.cells - 1
}

func (c *compiler) statement(s syntax.Statement) {
	kind := strings.TrimPrefix(fmt.Sprintf("%T", s), "*syntax.")
	switch s := s.(type) {
	case *syntax.Pragma:
		if !strings.EqualFold(s.Name, "TablePathPrefix") {
			c.fail(s.Pos, "Unknown pragma: %s", s.Name)
		}
		c.prefix = absolute(c.database, s.Value)
		return
	case *syntax.Declare:
		if c.plan.declared[s.Name] != nil && !c.plan.declared[s.Name].Equal(s.Type) {
			c.fail(s.Pos, "Duplicate declaration of parameter %s", s.Name)
		}
		c.plan.declared[s.Name] = s.Type
		c.param(s.Name, s.Type)
		return
	case *syntax.Assign:
		c.assign(s)
		return
	case *syntax.SelectStmt:
		c.plan.steps = append(c.plan.steps, c.selectStmt(s))
	case *syntax.Write:
		kind = s.Verb.String()
		c.plan.steps = append(c.plan.steps, c.changing(s.Pos, verbs[s.Verb], s.Table).write(s))
	case *syntax.Update:
		c.plan.steps = append(c.plan.steps, c.changing(s.Pos, "Update", s.Table).update(s))
	case *syntax.Delete:
		c.plan.steps = append(c.plan.steps, c.changing(s.Pos, "Delete", s.Table).delete(s))
	case *syntax.CreateTable:
		c.plan.ddl = append(c.plan.ddl, c.createTable(s))
	case *syntax.DropTable:
		p := absolute(c.prefix, s.Table.Text)
		c.plan.ddl = append(c.plan.ddl, func(e *exec) error { return e.db.dropTable(e.ctx, p, s.IfExists) })
	case *syntax.AlterTable:
		c.plan.ddl = append(c.plan.ddl, c.alterTable(s))
	}
	c.plan.kinds = append(c.plan.kinds, kind)
}

// param returns the place of the parameter among the values of an execution.
func (c *compiler) param(name string, t *value.Type) int {
	i, ok := c.places[name]
	if !ok {
		i = len(c.plan.params)
		c.places[name] = i
		c.plan.params = append(c.plan.params, param{name: name, typ: t})
	}
	return i
}

func (c *compiler) assign(s *syntax.Assign) {
	if q, ok := s.X.(*syntax.Sub); ok {
		c.named[s.Name] = c.sub(q.Query)
		return
	}
	c.named[s.Name] = &named{x: c.once(c.expr(env{}, s.X))}
}

// once makes an expression that is computed at most once in an execution.
func (c *compiler) once(x *expr) *expr {
	if x.konst != nil {
		return x
	}
	cell := c.cell()
	return &expr{typ: x.typ, free: true, eval: func(e *exec, _ []value.Value) (value.Value, error) {
		if v, ok := e.cells[cell].(value.Value); ok {
			return v, nil
		}
		v, err := x.eval(e, nil)
		if err == nil {
			e.cells[cell] = v
		}
		return v, err
	}}
}

// sub compiles a query whose rows are computed at most once in an execution.
func (c *compiler) sub(q *syntax.Query) *named {
	if n := c.subs[q]; n != nil {
		return n
	}
	rel := c.query(q)
	n := &named{cell: c.cell()}
	n.rel = &relation{cols: rel.cols, run: func(e *exec, yield rowFunc) error {
		rows, err := e.rowsOf(n.cell, rel)
		for i := 0; err == nil && i < len(rows); i++ {
			err = yield(rows[i])
		}
		return err
	}}
	c.subs[q] = n
	return n
}

// rowsOf returns the rows of the relation, from the cell if they are there already.
func (e *exec) rowsOf(cell int, rel *relation) ([][]value.Value, error) {
	if rows, ok := e.cells[cell].([][]value.Value); ok {
		return rows, nil
	}
	rows := [][]value.Value{}
	err := rel.run(e, func(row []value.Value) error {
		rows = append(rows, row)
		return e.hold(row)
	})
	if err != nil {
		return nil, err
	}
	e.cells[cell] = rows
	return rows, nil
}

// table finds the table of a name, or fails with SCHEME_ERROR.
func (c *compiler) table(n syntax.Name) *table {
	p := absolute(c.prefix, n.Text)
	t := c.cat.table(p)
	if t == nil {
		panic(at(n.Pos, Ydb.StatusIds_SCHEME_ERROR, issueScheme,
			"Cannot find table 'db.[%s]' because it does not exist or you do not have access permissions. Please "+
				"check correctness of table path and user permissions.",
			p))
	}
	if !c.seen[t] {
		c.seen[t] = true
		c.plan.tables = append(c.plan.tables, t)
	}
	return t
}

// ddlStep runs one schema statement.
type ddlStep func(e *exec) error

func (c *compiler) createTable(s *syntax.CreateTable) ddlStep {
	p := absolute(c.prefix, s.Table.Text)
	spec := TableSpec{Columns: columnDefs(s.Columns), Key: texts(s.Key)}
	if len(s.Key) == 0 {
		c.fail(s.Pos, "CREATE TABLE needs a PRIMARY KEY")
	}
	spec.Indexes, spec.KeyBloomFilter = indexDefs(s.Indexes), feature(s.KeyBloom)
	return func(e *exec) error { return e.db.createTable(e.ctx, p, spec, s.IfNotExists) }
}

func (c *compiler) alterTable(s *syntax.AlterTable) ddlStep {
	p := absolute(c.prefix, s.Table.Text)
	a := Alteration{Add: columnDefs(s.Add), KeyBloomFilter: feature(s.KeyBloom)}
	return func(e *exec) error { return e.db.AlterTable(e.ctx, p, a) }
}

func feature(on *bool) Ydb.FeatureFlag_Status {
	switch {
	case on == nil:
		return Ydb.FeatureFlag_STATUS_UNSPECIFIED
	case *on:
		return Ydb.FeatureFlag_ENABLED
	}
	return Ydb.FeatureFlag_DISABLED
}

func columnDefs(defs []syntax.ColumnDef) []Column {
	var out []Column
	for _, d := range defs {
		bare, notNull := d.Type, d.NotNull
		if bare.Kind == value.Optional {
			bare = bare.Elem
		}
		out = append(out, Column{Name: d.Name.Text, Type: bare.Proto(), NotNull: notNull})
	}
	return out
}

func indexDefs(defs []syntax.IndexDef) []Index {
	var out []Index
	for _, d := range defs {
		out = append(out, Index{Name: d.Name.Text, Columns: texts(d.Columns), Data: texts(d.Cover), Async: d.Async})
	}
	return out
}

func texts(names []syntax.Name) []string {
	var out []string
	for _, n := range names {
		out = append(out, n.Text)
	}
	return out
}
