package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// sortKey is one expression of ORDER BY.
type sortKey struct {
	x      *expr
	out    int // place in the output instead, if x is nil
	desc   bool
	typ    *value.Type
	source int // place in the source if it is a plain column, else -1
}

// query compiles a SELECT, or several with UNION ALL.
func (c *compiler) query(q *syntax.Query) *relation {
	limit := c.count(q.Limit)
	if len(q.Selects) == 1 {
		return c.selectOf(q.Selects[0], q.OrderBy, limit)
	}
	rel := c.union(q)
	var keys []sortKey
	for _, o := range q.OrderBy {
		x := c.expr(env{cols: rel.cols}, o.X)
		keys = append(keys, sortKey{x: x, desc: o.Desc, typ: c.sortable(o.X.At(), x.typ)})
	}
	return &relation{cols: rel.cols, run: func(e *exec, yield rowFunc) error {
		return cut(e, limit, yield, func(yield rowFunc) error {
			if len(keys) == 0 {
				return rel.run(e, yield)
			}
			s := sorter{keys: keys}
			if err := rel.run(e, func(row []value.Value) error { return s.add(e, row, row) }); err != nil {
				return err
			}
			return s.drain(e, yield)
		})
	}}
}

// union puts the rows of several SELECTs behind each other, by the names of the columns.
func (c *compiler) union(q *syntax.Query) *relation {
	var parts []*relation
	var cols []column
	place := map[string]int{}
	for _, s := range q.Selects {
		p := c.selectOf(s, nil, nil)
		parts = append(parts, p)
		for _, col := range p.cols {
			i, ok := place[col.name]
			if !ok {
				place[col.name] = len(cols)
				cols = append(cols, column{name: col.name, typ: col.typ})
				continue
			}
			t, ok := value.Common(cols[i].typ, col.typ)
			if !ok {
				c.fail(s.Pos, "Incompatible types of column %s in UNION ALL: %s and %s", col.name, cols[i].typ, col.typ)
			}
			cols[i].typ = t
		}
	}
	for _, p := range parts { // what a part lacks is NULL
		for i := range cols {
			if !slices.ContainsFunc(p.cols, func(col column) bool { return col.name == cols[i].name }) {
				cols[i].typ = value.Nullable(cols[i].typ)
			}
		}
	}
	runs := make([]func(e *exec, yield rowFunc) error, len(parts))
	for n, p := range parts {
		convs := make([]func(value.Value) value.Value, len(p.cols))
		to := make([]int, len(p.cols))
		for i, col := range p.cols {
			to[i] = place[col.name]
			convs[i], _ = value.Convert(col.typ, cols[to[i]].typ)
		}
		runs[n] = func(e *exec, yield rowFunc) error {
			return p.run(e, func(row []value.Value) error {
				out := make([]value.Value, len(cols))
				for i := range out {
					out[i] = value.NullValue
				}
				for i, v := range row {
					out[to[i]] = convs[i](v)
				}
				return yield(out)
			})
		}
	}
	return &relation{cols: cols, run: func(e *exec, yield rowFunc) error {
		for _, r := range runs {
			if err := r(e, yield); err != nil {
				return err
			}
		}
		return nil
	}}
}

// count compiles LIMIT; nil stays nil.
func (c *compiler) count(x syntax.Expr) *expr {
	if x == nil {
		return nil
	}
	e := c.expr(env{}, x)
	if k := value.Bare(e.typ).Kind; !value.IsInt(k) && k != value.Null {
		c.fail(x.At(), "LIMIT needs an integer, but got: %s", e.typ)
	}
	return e
}

// cut applies LIMIT to what run yields; NULL and negative numbers are none.
func cut(e *exec, limit *expr, yield rowFunc, run func(rowFunc) error) error {
	if limit == nil {
		return run(yield)
	}
	v, err := limit.eval(e, nil)
	switch {
	case err != nil:
		return err
	case v.Null > 0 || value.IsSigned(value.Bare(limit.typ).Kind) && int64(v.Lo) < 0:
		return run(yield)
	case v.Lo == 0:
		return nil
	}
	left := v.Lo
	err = run(func(row []value.Value) error {
		if err := yield(row); err != nil {
			return err
		}
		if left--; left == 0 {
			return errStop
		}
		return nil
	})
	if left == 0 && err == errStop {
		return nil
	}
	return err
}

func (c *compiler) sortable(pos syntax.Pos, t *value.Type) *value.Type {
	if !value.Comparable(t) {
		c.fail(pos, "Cannot order by type %s", t)
	}
	return t
}

// selected is a compiled SELECT list.
type selected struct {
	cols []column
	out  []*expr
}

// items compiles a SELECT list over the columns; with a star all columns come by name.
func (c *compiler) items(env env, list []syntax.SelectItem) selected {
	var s selected
	star := false
	add := func(pos syntax.Pos, name string, x *expr) {
		for _, col := range s.cols {
			if col.name == name {
				c.fail(pos, "Duplicate column name: %s", name)
			}
		}
		s.cols = append(s.cols, column{name: name, typ: x.typ, konst: x.konst})
		s.out = append(s.out, x)
	}
	for i, it := range list {
		if !it.Star {
			x := c.expr(env, it.X)
			add(it.Pos, c.outName(it, i), x)
			continue
		}
		star = true
		if env.group != nil {
			c.fail(it.Pos, "* cannot be used with aggregation functions")
		}
		found := false
		for j, col := range env.cols {
			if it.Table == "" || col.table == it.Table {
				found = true
				add(it.Pos, col.name, slot(col.typ, j))
			}
		}
		if !found {
			c.fail(it.Pos, "No columns for *")
		}
	}
	if star { // the rows of a star have no order of their own
		order := make([]int, len(s.cols))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(s.cols[a].name, s.cols[b].name) })
		var sorted selected
		for _, i := range order {
			sorted.cols, sorted.out = append(sorted.cols, s.cols[i]), append(sorted.out, s.out[i])
		}
		return sorted
	}
	return s
}

// outName is the name of an item: its alias, its column's own, or columnN.
func (c *compiler) outName(it syntax.SelectItem, i int) string {
	if it.As != "" {
		return it.As
	}
	if col, ok := it.X.(*syntax.Column); ok {
		return col.Name
	}
	return fmt.Sprintf("column%d", i)
}

// selectOf compiles one SELECT with the order and limit that belong to it.
func (c *compiler) selectOf(s *syntax.Select, order []syntax.OrderItem, limit *expr) *relation {
	src := c.from(s.From, s.Where)
	scope := env{cols: src.cols}
	var where *expr
	if s.Where != nil {
		where = c.truth(s.Where.At(), c.expr(scope, s.Where))
	}
	run := src.run
	if where != nil {
		run = filtered(run, where)
	}
	g := c.grouping(scope, s, order)
	if g != nil {
		scope.group = g
	}
	list := c.items(scope, s.Items)
	keys := c.sortKeys(scope, s, list, order)
	if g != nil {
		run = g.run(run)
	} else if src.scan.sorted(keys) {
		keys = nil
	}
	return &relation{cols: list.cols, run: func(e *exec, yield rowFunc) error {
		return cut(e, limit, yield, func(yield rowFunc) error {
			return list.produce(e, run, keys, yield)
		})
	}}
}

func filtered(run func(*exec, rowFunc) error, cond *expr) func(*exec, rowFunc) error {
	return func(e *exec, yield rowFunc) error {
		return run(e, func(row []value.Value) error {
			v, err := cond.eval(e, row)
			if err != nil || v.Null > 0 || v.Lo == 0 {
				return err
			}
			return yield(row)
		})
	}
}

// sortKeys compiles ORDER BY: names of the SELECT list first, then the columns below it.
func (c *compiler) sortKeys(scope env, s *syntax.Select, list selected, order []syntax.OrderItem) []sortKey {
	var keys []sortKey
	for _, o := range order {
		k := sortKey{desc: o.Desc, source: -1, out: -1}
		col, plain := o.X.(*syntax.Column)
		if plain && col.Table == "" {
			k.out = slices.IndexFunc(list.cols, func(lc column) bool { return lc.name == col.Name })
		}
		if k.out >= 0 {
			k.typ = list.cols[k.out].typ
			if plain && c.isColumn(s, col.Name) {
				c.try(func() { k.source = c.find(scope, o.X.At(), "", col.Name) })
			}
		} else {
			k.x = c.expr(scope, o.X)
			k.typ = k.x.typ
			if plain && scope.group == nil {
				k.source = c.find(scope, o.X.At(), col.Table, col.Name)
			}
		}
		c.sortable(o.X.At(), k.typ)
		keys = append(keys, k)
	}
	return keys
}

// isColumn reports whether the output of that name is the source's column of that name.
func (c *compiler) isColumn(s *syntax.Select, name string) bool {
	for i, it := range s.Items {
		if !it.Star && c.outName(it, i) == name {
			col, ok := it.X.(*syntax.Column)
			return ok && col.Name == name
		}
	}
	return true // from a star
}

// sorted reports whether reading the table yields the order of the keys, and turns the
// reading around where that helps. Columns bound to one value need no order.
func (a *access) sorted(keys []sortKey) bool {
	if a == nil || len(keys) == 0 {
		return false
	}
	constant := map[int]bool{}
	if len(a.alts) == 1 {
		for i, b := range a.alts[0] {
			if b.eq != nil {
				constant[a.key[i]] = true
			}
		}
	}
	n := 0
	desc := -1 // not known yet
	for _, k := range keys {
		if k.source < 0 {
			return false
		}
		if constant[k.source] {
			continue
		}
		for n < len(a.key) && constant[a.key[n]] {
			n++
		}
		if n == len(a.key) || a.key[n] != k.source {
			return false
		}
		n++
		d := 0
		if k.desc {
			d = 1
		}
		if desc >= 0 && desc != d {
			return false
		}
		desc = d
	}
	a.reverse = desc == 1
	return true
}

// produce computes the list for every row, with ORDER BY.
func (s selected) produce(e *exec, run func(*exec, rowFunc) error, keys []sortKey, yield rowFunc) error {
	sort := sorter{keys: keys}
	var source []value.Value // the row that the list is computed from
	take := yield
	if keys != nil {
		take = func(out []value.Value) error { return sort.add(e, source, out) }
	}
	err := run(e, func(row []value.Value) error {
		out := make([]value.Value, len(s.out))
		for i, x := range s.out {
			v, err := x.eval(e, row)
			if err != nil {
				return err
			}
			out[i] = v
		}
		source = row
		return take(out)
	})
	if err != nil || keys == nil {
		return err
	}
	return sort.drain(e, yield)
}

// sorter collects rows and yields them in order.
type sorter struct {
	keys []sortKey
	rows []sortRow
}

type sortRow struct{ by, out []value.Value }

func (s *sorter) add(e *exec, row, out []value.Value) error {
	by := make([]value.Value, len(s.keys))
	for i, k := range s.keys {
		if k.x == nil {
			by[i] = out[k.out]
			continue
		}
		v, err := k.x.eval(e, row)
		if err != nil {
			return err
		}
		by[i] = v
	}
	s.rows = append(s.rows, sortRow{by, out})
	if err := e.hold(out); err != nil {
		return err
	}
	return e.tick()
}

func (s *sorter) drain(e *exec, yield rowFunc) error {
	slices.SortStableFunc(s.rows, func(a, b sortRow) int {
		for i, k := range s.keys {
			if c := value.Compare(k.typ, a.by[i], b.by[i]); c != 0 {
				if k.desc {
					return -c
				}
				return c
			}
		}
		return 0
	})
	for _, r := range s.rows {
		if err := yield(r.out); err != nil {
			return err
		}
	}
	return nil
}
