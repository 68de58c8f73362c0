package engine

import (
	"slices"
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// source is what a FROM makes: rows of all its items side by side.
type source struct {
	cols []column
	run  func(e *exec, yield rowFunc) error
	scan *access // of a FROM with a single table: how it is read
}

// item is one item of a FROM. run gets the row of the items to its left.
type item struct {
	cols []column
	run  func(e *exec, outer []value.Value, yield rowFunc) error
	scan *access // of tables
}

// from compiles FROM; where helps to find the ranges of keys that tables are read by.
func (c *compiler) from(f *syntax.From, where syntax.Expr) *source {
	if f == nil {
		return &source{run: func(_ *exec, yield rowFunc) error { return yield(nil) }, cols: nil}
	}
	first, joins := flatten(f)
	it := c.item(first, nil, where)
	src := &source{cols: it.cols, scan: it.scan, run: func(e *exec, yield rowFunc) error { return it.run(e, nil, yield) }}
	for _, j := range joins {
		src = c.join(src, j, where)
	}
	return src
}

// flatten takes the tree of joins, which leans to the left, apart.
func flatten(f *syntax.From) (first *syntax.From, joins []*syntax.From) {
	for ; f.Join != syntax.NoJoin; f = f.Left {
		joins = append(joins, f)
	}
	slices.Reverse(joins)
	return f, joins
}

// aliasOf is the name that columns of the item may be qualified with.
func aliasOf(f *syntax.From) string {
	if f.Alias == "" && f.Table != nil {
		return f.Table.Text[strings.LastIndexByte(f.Table.Text, '/')+1:]
	}
	return f.Alias
}

// item compiles one item of a FROM; left are the columns to its left.
func (c *compiler) item(f *syntax.From, left []column, filters ...syntax.Expr) *item {
	switch {
	case f.Table != nil:
		return c.tableItem(f, left, filters)
	case f.Rows != nil:
		return c.rowsItem(f)
	}
	n := c.named[f.Param]
	if n == nil || n.rel == nil {
		x := c.paramExpr(&syntax.Param{Pos: f.Pos, Name: f.Param})
		return c.listItem(f.Pos, x, f.Alias)
	}
	return relationItem(n.rel, f.Alias)
}

func relationItem(rel *relation, alias string) *item {
	cols := slices.Clone(rel.cols)
	for i := range cols {
		cols[i].table = alias
	}
	return &item{cols: cols, run: func(e *exec, _ []value.Value, yield rowFunc) error { return rel.run(e, yield) }}
}

func (c *compiler) rowsItem(f *syntax.From) *item {
	return c.listItem(f.Rows.At(), c.expr(env{}, f.Rows), f.Alias)
}

// listItem makes rows of a list of structs.
func (c *compiler) listItem(pos syntax.Pos, x *expr, alias string) *item {
	lt := value.Bare(x.typ)
	if lt.Kind == value.EmptyList {
		return &item{run: func(*exec, []value.Value, rowFunc) error { return nil }}
	}
	if lt.Kind != value.List || lt.Elem.Kind != value.Struct {
		c.fail(pos, "Expected a list of structs, but got: %s", x.typ)
	}
	var cols []column
	for _, m := range lt.Elem.Members {
		cols = append(cols, column{table: alias, name: m.Name, typ: m.Type})
	}
	return &item{cols: cols, run: func(e *exec, _ []value.Value, yield rowFunc) error {
		v, err := x.eval(e, nil)
		if err != nil || v.IsNull() {
			return err
		}
		for _, row := range v.Items {
			if err := e.tick(); err != nil {
				return err
			}
			if err := yield(row.Items); err != nil {
				return err
			}
		}
		return nil
	}}
}

func (c *compiler) tableItem(f *syntax.From, left []column, filters []syntax.Expr) *item {
	t := c.table(*f.Table)
	alias := aliasOf(f)
	var ix *index
	if f.View != nil {
		if ix = t.index(f.View.Text); ix == nil {
			c.fail(f.View.Pos, "Required global index not found, index name: %s", f.View.Text)
		}
	}
	cols := tableColumns(t, alias)
	acc := c.access(t, ix, alias, left, filters)
	return &item{cols: cols, scan: acc, run: func(e *exec, outer []value.Value, yield rowFunc) error {
		ranges, err := acc.ranges(e, outer)
		if err != nil {
			return err
		}
		st := e.stats(t)
		return e.tx.scan(e.ctx, scanSpec{t, ix, ranges, acc.reverse}, func(row []value.Value) error {
			st.Reads++
			if err := e.tick(); err != nil {
				return err
			}
			return yield(row)
		})
	}}
}

func tableColumns(t *table, alias string) []column {
	cols := make([]column, len(t.columns))
	for i, col := range t.columns {
		cols[i] = column{table: alias, name: col.name, typ: col.typ}
	}
	return cols
}

// join puts an item to the right of a source.
func (c *compiler) join(left *source, j *syntax.From, where syntax.Expr) *source {
	outer := j.Join == syntax.LeftJoin
	if outer { // there a WHERE would turn rows into missing ones
		where = nil
	}
	right := c.item(j.Right, left.cols, j.On, where)
	cols := slices.Concat(left.cols, right.cols)
	on := c.truth(j.Pos, c.expr(env{cols: cols}, j.On))
	keys := c.equalities(conjuncts(j.On), left.cols, right.cols)
	if outer {
		for i := len(left.cols); i < len(cols); i++ {
			cols[i].typ, cols[i].konst = value.Nullable(cols[i].typ), nil
		}
	}
	run := &joinRun{outer: outer, left: left, right: right, on: on, keys: keys, lookup: right.scan != nil && right.scan.bound()}
	return &source{cols: cols, run: run.run}
}

// joinRun executes a join.
type joinRun struct {
	outer  bool // rows of the left side without a match come out as well
	left   *source
	right  *item
	on     *expr
	keys   []equality
	lookup bool // the right side is read by key for every row on the left
}

func (j *joinRun) run(e *exec, yield rowFunc) error {
	var hashed *hashRows
	return j.left.run(e, func(l []value.Value) (err error) {
		matched := false
		try := func(r []value.Value) error {
			row := slices.Concat(l, r)
			v, err := j.on.eval(e, row)
			if err != nil || v.Null > 0 || v.Lo == 0 {
				return err
			}
			matched = true
			return yield(row)
		}
		if !j.lookup && hashed == nil {
			if hashed, err = hashOf(e, j.right, j.keys); err != nil {
				return err
			}
		}
		if j.lookup {
			err = j.right.run(e, l, try)
		} else {
			err = hashed.match(e, j.keys, l, try)
		}
		if err != nil || matched || !j.outer {
			return err
		}
		return yield(slices.Concat(l, nulls(len(j.right.cols))))
	})
}

func nulls(n int) []value.Value {
	row := make([]value.Value, n)
	for i := range row {
		row[i] = value.NullValue
	}
	return row
}

// conjuncts returns the parts of a chain of AND.
func conjuncts(x syntax.Expr) []syntax.Expr {
	if x == nil {
		return nil
	}
	if l, ok := x.(*syntax.Logic); ok && l.Op == "AND" {
		var out []syntax.Expr
		for _, a := range l.Args {
			out = append(out, conjuncts(a)...)
		}
		return out
	}
	return []syntax.Expr{x}
}

// equality is a condition of a join that a hash can serve.
type equality struct {
	left, right *expr // on the rows of either side, of one type
	typ         *value.Type
}

// equalities finds conditions left = right among the parts of an ON.
func (c *compiler) equalities(parts []syntax.Expr, left, right []column) []equality {
	var out []equality
	for _, x := range parts {
		b, ok := x.(*syntax.Binary)
		if !ok || b.Op != "=" {
			continue
		}
		for _, sides := range [][2]syntax.Expr{{b.L, b.R}, {b.R, b.L}} {
			var l, r *expr
			if !c.try(func() { l = c.expr(env{cols: left}, sides[0]) }) ||
				!c.try(func() { r = c.expr(env{cols: right}, sides[1]) }) || r.free {
				continue
			}
			lt, rt := value.Bare(l.typ), value.Bare(r.typ)
			if lt.Equal(rt) && value.Comparable(lt) && !value.IsFloat(lt.Kind) {
				out = append(out, equality{l, r, lt})
				break
			}
		}
	}
	return out
}

// hashRows are the rows of the right side of a join, by the values of its equalities.
type hashRows struct {
	rows   [][]value.Value
	byHash map[string][]int // places in rows; unused without equalities
}

// hashOf reads the right side once for the whole join. Rows that can match nothing are left out.
func hashOf(e *exec, right *item, keys []equality) (*hashRows, error) {
	h := &hashRows{byHash: map[string][]int{}}
	err := right.run(e, nil, func(row []value.Value) error {
		if len(keys) > 0 {
			k, ok, err := hashKey(e, keys, row, func(q equality) *expr { return q.right })
			if !ok {
				return err
			}
			h.byHash[k] = append(h.byHash[k], len(h.rows))
		}
		h.rows = append(h.rows, row)
		return e.hold(row)
	})
	return h, err
}

// hashKey returns the key of a row; false if one of its values is NULL, which equals nothing.
func hashKey(e *exec, keys []equality, row []value.Value, side func(equality) *expr) (string, bool, error) {
	var b []byte
	for _, q := range keys {
		v, err := side(q).eval(e, row)
		if err != nil || v.Null > 0 {
			return "", false, err
		}
		b = value.AppendHash(b, q.typ, v)
	}
	return string(b), true, nil
}

// match tries the rows that may match a row on the left.
func (h *hashRows) match(e *exec, keys []equality, left []value.Value, try rowFunc) error {
	one := func(i int) error {
		if err := e.tick(); err != nil {
			return err
		}
		return try(h.rows[i])
	}
	if len(keys) == 0 {
		for i := range h.rows {
			if err := one(i); err != nil {
				return err
			}
		}
		return nil
	}
	k, ok, err := hashKey(e, keys, left, func(q equality) *expr { return q.left })
	if !ok {
		return err
	}
	for _, i := range h.byHash[k] {
		if err := one(i); err != nil {
			return err
		}
	}
	return nil
}
