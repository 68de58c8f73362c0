package engine

import (
	"slices"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// target is a table with the columns that a statement gives, in the order it gives them.
type target struct {
	t    *table
	cols []int
}

// assignTo returns x as a value of the column. Beyond what converts without loss, literals
// convert when they fit.
func (c *change) assignTo(pos syntax.Pos, x *expr, konst *value.Value, col tableColumn) *expr {
	if konst != nil && x.typ.Kind != value.Optional {
		if v, ok := literalAs(x.typ, *konst, col.bare); ok {
			return constant(col.typ, v)
		}
	}
	if col.notNull && (x.typ.Kind == value.Optional || x.typ.Kind == value.Null) {
		c.fail(pos, "Can't set NULL or optional value to not null column: %s. All not null columns should be initialized", col.name)
	}
	if !value.Lossless(x.typ, col.typ) {
		c.fail(pos, "Failed to convert '%s': %s to %s", col.name, x.typ, col.typ)
	}
	return c.convert(pos, x, col.typ)
}

// literalAs returns a literal as a value of another type that it surely is one of.
func literalAs(from *value.Type, v value.Value, to *value.Type) (value.Value, bool) {
	switch {
	case value.IsInt(from.Kind) && value.IsInt(to.Kind):
		return keyValue(v, from, to)
	case value.IsInt(from.Kind) && (value.IsFloat(to.Kind) || to.Kind == value.Decimal),
		from.Kind == value.Double && to.Kind == value.Float:
		_, f, err := value.Cast(from, to)
		if err != nil {
			return v, false
		}
		return f(v), true
	case from.Kind == value.String &&
		(to.Kind == value.Utf8 || to.Kind == value.Json || to.Kind == value.JsonDocument || to.Kind == value.Yson):
		r, err := value.Parse(to, v.S)
		return r, err == nil
	}
	return v, false
}

// writer turns the rows of a source into writes.
type writer struct {
	target
	conv []*expr // for target.cols, over the rows of the source
	rel  *relation
}

// writerOf compiles the source of a write; names, if any, say which columns it gives.
func (c *change) writerOf(names []syntax.Name, src *syntax.Source, pos syntax.Pos) *writer {
	t := c.t
	w := &writer{target: target{t: t}}
	seen := map[int]bool{}
	add := func(n syntax.Name) {
		i := c.place(n)
		if seen[i] {
			c.fail(n.Pos, "Duplicate column: %s", n.Text)
		}
		seen[i] = true
		w.cols = append(w.cols, i)
	}
	for _, n := range names {
		add(n)
	}
	if src.Query == nil {
		if len(names) == 0 {
			c.fail(pos, "VALUES needs the names of the columns after the table")
		}
		w.rel = c.values(w.target, src.Values)
		for i, col := range w.cols {
			w.conv = append(w.conv, slot(t.columns[col].typ, i))
		}
		return w
	}
	w.rel = c.query(src.Query)
	if len(names) > 0 && len(names) != len(w.rel.cols) {
		c.fail(pos, "The source has %d columns, but %d are named", len(w.rel.cols), len(names))
	}
	for i, col := range w.rel.cols {
		if len(names) == 0 {
			add(syntax.Name{Pos: src.Query.Pos, Text: col.name})
		}
		w.conv = append(w.conv, c.assignTo(src.Query.Pos, slot(col.typ, i), col.konst, t.columns[w.cols[i]]))
	}
	return w
}

// values compiles VALUES (...), (...) to rows that fit the columns already.
func (c *change) values(to target, rows [][]syntax.Expr) *relation {
	all := make([][]*expr, len(rows))
	for n, row := range rows {
		if len(row) != len(to.cols) {
			c.fail(row[0].At(), "VALUES has %d values in a row, but %d columns are named", len(row), len(to.cols))
		}
		for i, ast := range row {
			x := c.expr(env{}, ast)
			all[n] = append(all[n], c.assignTo(ast.At(), x, x.konst, to.t.columns[to.cols[i]]))
		}
	}
	return &relation{run: func(e *exec, yield rowFunc) error {
		for _, row := range all {
			out := make([]value.Value, len(row))
			for i, x := range row {
				v, err := x.eval(e, nil)
				if err != nil {
					return err
				}
				out[i] = v
			}
			if err := yield(out); err != nil {
				return err
			}
		}
		return nil
	}}
}

// needs fails unless the target has all columns of the key and, if asked, all NOT NULL ones.
func (c *change) needs(pos syntax.Pos, to target, notNull bool) {
	has := map[int]bool{}
	for _, i := range to.cols {
		has[i] = true
	}
	for i, col := range to.t.columns {
		switch {
		case has[i]:
		case to.t.isKey(i):
			c.fail(pos, "Missing key column in input: %s for table: %s", col.name, to.t.path)
		case notNull && col.notNull:
			c.fail(pos, "Missing not null column in input: %s. All not null columns should be initialized", col.name)
		}
	}
}

// row places the values of one source row.
func (w *writer) row(e *exec, src []value.Value) (row []value.Value, err error) {
	row = nullRow(w.t)
	for i, col := range w.cols {
		if row[col], err = w.conv[i].eval(e, src); err != nil {
			return nil, err
		}
	}
	return row, nil
}

// has returns the columns that the target gives, nil if it gives all.
func (to target) has() []bool {
	if len(to.cols) == len(to.t.columns) {
		return nil
	}
	has := make([]bool, len(to.t.columns))
	for _, i := range to.cols {
		has[i] = true
	}
	return has
}

// step returns the step that passes every row with its key to put. All rows are computed
// before the first one is written, so that a statement does not read what it writes.
func (w *writer) step(put func(e *exec, key []byte, row []value.Value) error) step {
	return func(e *exec) error {
		var rows [][]value.Value
		err := w.rel.run(e, func(src []value.Value) error {
			row, err := w.row(e, src)
			if err != nil {
				return err
			}
			rows = append(rows, row)
			return e.hold(row)
		})
		if err == nil {
			err = e.begin()
		}
		for i := 0; err == nil && i < len(rows); i++ {
			err = put(e, w.t.keyOf(rows[i]), rows[i])
		}
		return err
	}
}

// verbs are the names of the verbs in errors.
var verbs = map[syntax.Verb]string{syntax.Insert: "Insert", syntax.Upsert: "Upsert", syntax.Replace: "Replace"}

// change compiles one statement that changes the rows of a table.
type change struct {
	*compiler
	t *table
}

// changing begins to compile a statement that changes the table; read-only transactions refuse it.
func (c *compiler) changing(pos syntax.Pos, verb string, name syntax.Name) *change {
	t := c.table(name)
	if verb != "Delete" && !slices.Contains(c.plan.filled, t.path) {
		c.plan.filled = append(c.plan.filled, t.path)
	}
	if c.plan.changes == "" {
		c.plan.changes, c.plan.writes = verb, pos
	}
	return &change{c, t}
}

// place returns the place of a column of the table, or fails.
func (c *change) place(n syntax.Name) int {
	i, ok := c.t.byName[n.Text]
	if !ok {
		c.fail(n.Pos, "No such column: %s in table %s", n.Text, c.t.path)
	}
	return i
}

// write compiles INSERT, UPSERT and REPLACE.
func (c *change) write(s *syntax.Write) step {
	t, w := c.t, c.writerOf(s.Columns, s.Source, s.Pos)
	c.needs(s.Pos, w.target, true)
	has := w.has()
	if s.Verb != syntax.Upsert {
		has = nil // what is not given is NULL
	}
	return w.step(func(e *exec, key []byte, row []value.Value) error {
		if s.Verb == syntax.Insert {
			old, err := e.tx.get(e.ctx, t, key)
			if err != nil {
				return err
			}
			if old != nil {
				return existing(t)
			}
		}
		return e.put(t, key, &op{row: row, has: has})
	})
}

// update compiles UPDATE.
func (c *change) update(s *syntax.Update) step {
	if s.On != nil {
		return c.updateOn(s)
	}
	t, src := c.t, c.matching(s.Table, s.Where)
	to := target{t: t}
	var exprs []*expr
	for _, set := range s.Set {
		i := c.place(set.Column)
		if t.isKey(i) {
			c.fail(set.Column.Pos, "Cannot update primary key column: %s", set.Column.Text)
		}
		x := c.expr(env{cols: src.cols}, set.X)
		exprs = append(exprs, c.assignTo(set.X.At(), x, x.konst, t.columns[i]))
		to.cols = append(to.cols, i)
	}
	has := make([]bool, len(t.columns))
	for _, i := range to.cols {
		if has[i] {
			c.fail(s.Pos, "Duplicate column: %s", t.columns[i].name)
		}
		has[i] = true
	}
	return c.stepOf(src, func(e *exec, row []value.Value) (*op, error) {
		o := &op{row: nullRow(t), has: has}
		for n, i := range to.cols {
			v, err := exprs[n].eval(e, row)
			if err != nil {
				return nil, err
			}
			o.row[i] = v
		}
		return o, e.hold(o.row)
	})
}

// updateOn compiles UPDATE table ON rows: it changes the rows that exist.
func (c *change) updateOn(s *syntax.Update) step {
	t, w := c.t, c.writerOf(s.OnColumns, s.On, s.Pos)
	c.needs(s.Pos, w.target, false)
	has := w.has()
	return w.step(func(e *exec, key []byte, row []value.Value) error {
		old, err := e.tx.get(e.ctx, t, key)
		if err != nil || old == nil {
			return err
		}
		return e.put(t, key, &op{row: row, has: has})
	})
}

// delete compiles DELETE.
func (c *change) delete(s *syntax.Delete) step {
	if s.On != nil {
		return c.deleteOn(s)
	}
	return c.stepOf(c.matching(s.Table, s.Where), func(e *exec, row []value.Value) (*op, error) {
		return &op{del: true}, e.hold(row)
	})
}

// deleteOn compiles DELETE FROM table ON rows of keys.
func (c *change) deleteOn(s *syntax.Delete) step {
	t, w := c.t, c.writerOf(s.OnColumns, s.On, s.Pos)
	c.needs(s.Pos, w.target, false)
	for _, i := range w.cols {
		if !t.isKey(i) {
			c.fail(s.Pos, "DELETE ON takes key columns only, but got: %s", t.columns[i].name)
		}
	}
	return w.step(func(e *exec, key []byte, _ []value.Value) error { return e.put(t, key, &op{del: true}) })
}

// matching compiles the rows of the table that a WHERE selects.
func (c *change) matching(name syntax.Name, where syntax.Expr) *source {
	src := c.from(&syntax.From{Pos: name.Pos, Table: &name}, where)
	if where != nil {
		src.run = filtered(src.run, c.truth(where.At(), c.expr(env{cols: src.cols}, where)))
	}
	return src
}

// stepOf returns the step that makes a write of every row of the source. All rows are read
// before the first write, so that a statement does not read what it writes.
func (c *change) stepOf(src *source, of func(e *exec, row []value.Value) (*op, error)) step {
	t := c.t
	return func(e *exec) error {
		var keys [][]byte
		var ops []*op
		err := src.run(e, func(row []value.Value) error {
			o, err := of(e, row)
			keys, ops = append(keys, t.keyOf(row)), append(ops, o)
			return err
		})
		if err != nil {
			return err
		}
		for i, key := range keys {
			if err := e.put(t, key, ops[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// begin makes sure that the transaction has its snapshot: a write without a read needs it
// for the checks at commit.
func (e *exec) begin() error {
	if e.tx.snapshot != nil {
		return nil
	}
	_, err := e.tx.open(e.ctx)
	return err
}

func existing(t *table) *Error {
	e := errorf(Ydb.StatusIds_PRECONDITION_FAILED, issueConstraint, "Constraint violated. Table: `%s`", t.path)
	e.Issues[0].Issues = []*Ydb_Issue.IssueMessage{{Message: "Conflict with existing key.", IssueCode: issueConstraint, Severity: 1}}
	return e
}

// put stages a write and counts it.
func (e *exec) put(t *table, key []byte, o *op) error {
	st := e.stats(t)
	if o.del {
		st.Deletes++
	} else {
		st.Updates++
		for i := range o.row {
			st.UpdateBytes += uint64(8 + len(o.row[i].S))
		}
	}
	return e.tx.stage(t, key, o)
}
