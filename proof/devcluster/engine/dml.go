package engine

import (
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
func (c *compiler) assignTo(pos syntax.Pos, x *expr, konst *value.Value, col tableColumn) *expr {
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
	case value.IsInt(from.Kind) && (value.IsFloat(to.Kind) || to.Kind == value.Decimal), from.Kind == value.Double && to.Kind == value.Float:
		_, f, err := value.Cast(from, to)
		if err != nil {
			return v, false
		}
		return f(v), true
	case from.Kind == value.String && (to.Kind == value.Utf8 || to.Kind == value.Json || to.Kind == value.JsonDocument || to.Kind == value.Yson):
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
func (c *compiler) writerOf(t *table, names []syntax.Name, src *syntax.Source, pos syntax.Pos) *writer {
	w := &writer{target: target{t: t}}
	seen := map[int]bool{}
	add := func(n syntax.Name) {
		i := c.place(t, n)
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
func (c *compiler) values(to target, rows [][]syntax.Expr) *relation {
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
func (c *compiler) needs(pos syntax.Pos, to target, notNull bool) {
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

// collect computes all rows before the first one is written, so that a statement does not
// read what it writes.
func (w *writer) collect(e *exec) ([][]value.Value, error) {
	var rows [][]value.Value
	err := w.rel.run(e, func(src []value.Value) error {
		row, err := w.row(e, src)
		if err != nil {
			return err
		}
		rows = append(rows, row)
		return e.hold(row)
	})
	return rows, err
}

func tableColumns(t *table, alias string) []column {
	cols := make([]column, len(t.columns))
	for i, col := range t.columns {
		cols[i] = column{table: alias, name: col.name, typ: col.typ}
	}
	return cols
}

// write compiles INSERT, UPSERT and REPLACE.
func (c *compiler) write(s *syntax.Write) step {
	t := c.table(s.Table)
	c.changesData(s.Pos, map[syntax.Verb]string{syntax.Insert: "Insert", syntax.Upsert: "Upsert", syntax.Replace: "Replace"}[s.Verb], t)
	w := c.writerOf(t, s.Columns, s.Source, s.Pos)
	c.needs(s.Pos, w.target, true)
	has := w.has()
	if s.Verb != syntax.Upsert {
		has = nil // what is not given is NULL
	}
	return func(e *exec) error {
		rows, err := w.collect(e)
		if err != nil {
			return err
		}
		if err := e.begin(); err != nil {
			return err
		}
		for _, row := range rows {
			key := t.keyOf(row)
			if s.Verb == syntax.Insert {
				old, err := e.tx.get(e.ctx, t, key)
				if err != nil {
					return err
				}
				if old != nil {
					return existing(t)
				}
			}
			if err := e.put(t, key, &op{row: row, has: has}); err != nil {
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

// matching compiles the rows of a table that a WHERE selects.
func (c *compiler) matching(name syntax.Name, where syntax.Expr) (*table, *source) {
	src := c.from(&syntax.From{Pos: name.Pos, Table: &name}, where)
	if where != nil {
		src.run = filtered(src.run, c.truth(where.At(), c.expr(env{cols: src.cols}, where)))
	}
	return c.table(name), src
}

// update compiles UPDATE.
func (c *compiler) update(s *syntax.Update) step {
	if s.On != nil {
		return c.updateOn(s)
	}
	t, src := c.matching(s.Table, s.Where)
	c.changesData(s.Pos, "Update", t)
	to := target{t: t}
	var exprs []*expr
	for _, set := range s.Set {
		i := c.place(t, set.Column)
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
	return func(e *exec) error {
		var keys [][]byte
		var ops []*op
		err := src.run(e, func(row []value.Value) error {
			o := &op{row: nullRow(t), has: has}
			for n, i := range to.cols {
				v, err := exprs[n].eval(e, row)
				if err != nil {
					return err
				}
				o.row[i] = v
			}
			keys, ops = append(keys, t.keyOf(row)), append(ops, o)
			return e.hold(o.row)
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

// updateOn compiles UPDATE table ON rows: it changes the rows that exist.
func (c *compiler) updateOn(s *syntax.Update) step {
	t := c.table(s.Table)
	c.changesData(s.Pos, "Update", t)
	w := c.writerOf(t, s.OnColumns, s.On, s.Pos)
	c.needs(s.Pos, w.target, false)
	return func(e *exec) error {
		rows, err := w.collect(e)
		if err != nil {
			return err
		}
		if err := e.begin(); err != nil {
			return err
		}
		for _, row := range rows {
			key := t.keyOf(row)
			old, err := e.tx.get(e.ctx, t, key)
			if err != nil {
				return err
			}
			if old == nil {
				continue
			}
			if err := e.put(t, key, &op{row: row, has: w.has()}); err != nil {
				return err
			}
		}
		return nil
	}
}

// delete compiles DELETE.
func (c *compiler) delete(s *syntax.Delete) step {
	if s.On != nil {
		return c.deleteOn(s)
	}
	t, src := c.matching(s.Table, s.Where)
	c.changesData(s.Pos, "Delete", t)
	return func(e *exec) error {
		var rows [][]value.Value
		err := src.run(e, func(row []value.Value) error {
			rows = append(rows, row)
			return e.hold(row)
		})
		if err != nil {
			return err
		}
		for _, row := range rows {
			if err := e.put(t, t.keyOf(row), &op{del: true}); err != nil {
				return err
			}
		}
		return nil
	}
}

// deleteOn compiles DELETE FROM table ON rows of keys.
func (c *compiler) deleteOn(s *syntax.Delete) step {
	t := c.table(s.Table)
	c.changesData(s.Pos, "Delete", t)
	w := c.writerOf(t, s.OnColumns, s.On, s.Pos)
	c.needs(s.Pos, w.target, false)
	for _, i := range w.cols {
		if !t.isKey(i) {
			c.fail(s.Pos, "DELETE ON takes key columns only, but got: %s", t.columns[i].name)
		}
	}
	return func(e *exec) error {
		rows, err := w.collect(e)
		if err != nil {
			return err
		}
		if err := e.begin(); err != nil {
			return err
		}
		for _, row := range rows {
			if err := e.put(t, t.keyOf(row), &op{del: true}); err != nil {
				return err
			}
		}
		return nil
	}
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
			return nil, nil, errorf(Ydb.StatusIds_SCHEME_ERROR, issueScheme, "Type mismatch, got type %s for column %s, but expected %s", m.Type, m.Name, col.typ)
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
