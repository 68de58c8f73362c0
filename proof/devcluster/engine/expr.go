package engine

import (
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// constant returns the expression of a value known now.
func constant(t *value.Type, v value.Value) *expr {
	return &expr{typ: t, konst: &v, free: true, eval: func(*exec, []value.Value) (value.Value, error) { return v, nil }}
}

// slot returns the expression of a place of the row.
func slot(t *value.Type, i int) *expr {
	return &expr{typ: t, eval: func(_ *exec, row []value.Value) (value.Value, error) { return row[i], nil }}
}

// pure returns the expression of a function of others. It is computed now if they are
// constants; so f must depend on nothing else.
func pure(t *value.Type, args []*expr, f func(args []value.Value) (value.Value, error)) *expr {
	free, konst := true, true
	for _, a := range args {
		free, konst = free && a.free, konst && a.konst != nil
	}
	run := func(e *exec, row []value.Value) (value.Value, error) {
		vals := make([]value.Value, len(args))
		for i, a := range args {
			v, err := a.eval(e, row)
			if err != nil {
				return v, err
			}
			vals[i] = v
		}
		return f(vals)
	}
	if konst {
		if v, err := run(nil, nil); err == nil {
			return constant(t, v)
		}
	}
	return &expr{typ: t, eval: run, free: free}
}

// pure1 and pure2 are pure for one and two arguments, without a slice.
func pure1(t *value.Type, a *expr, f func(value.Value) value.Value) *expr {
	if a.konst != nil {
		return constant(t, f(*a.konst))
	}
	return &expr{typ: t, free: a.free, eval: func(e *exec, row []value.Value) (value.Value, error) {
		v, err := a.eval(e, row)
		if err != nil {
			return v, err
		}
		return f(v), nil
	}}
}

func pure2(t *value.Type, a, b *expr, f func(x, y value.Value) value.Value) *expr {
	if a.konst != nil && b.konst != nil {
		return constant(t, f(*a.konst, *b.konst))
	}
	return &expr{typ: t, free: a.free && b.free, eval: func(e *exec, row []value.Value) (value.Value, error) {
		x, err := a.eval(e, row)
		if err != nil {
			return x, err
		}
		y, err := b.eval(e, row)
		if err != nil {
			return y, err
		}
		return f(x, y), nil
	}}
}

// lift1 applies f below an Optional; if f fails, or the argument is NULL, so is the result.
func lift1(t *value.Type, a *expr, mayFail bool, f func(value.Value) (value.Value, bool)) *expr {
	opt := a.typ.Kind == value.Optional
	if !opt && !mayFail {
		return pure1(t, a, func(v value.Value) value.Value { r, _ := f(v); return r })
	}
	return pure1(value.Nullable(t), a, func(v value.Value) value.Value {
		if opt {
			if v.IsNull() {
				return value.NullValue
			}
			v = v.Unwrap()
		}
		if r, ok := f(v); ok {
			return r
		}
		return value.NullValue
	})
}

// lift2 is lift1 for two arguments.
func lift2(t *value.Type, a, b *expr, mayFail bool, f func(x, y value.Value) (value.Value, bool)) *expr {
	ao, bo := a.typ.Kind == value.Optional, b.typ.Kind == value.Optional
	if !ao && !bo && !mayFail {
		return pure2(t, a, b, func(x, y value.Value) value.Value { r, _ := f(x, y); return r })
	}
	return pure2(value.Nullable(t), a, b, func(x, y value.Value) value.Value {
		if ao && x.IsNull() || bo && y.IsNull() {
			return value.NullValue
		}
		if ao {
			x = x.Unwrap()
		}
		if bo {
			y = y.Unwrap()
		}
		if r, ok := f(x, y); ok {
			return r
		}
		return value.NullValue
	})
}

// convert returns x as type t, to which its type converts (value.Convert).
func (c *compiler) convert(pos syntax.Pos, x *expr, t *value.Type) *expr {
	if x.typ.Equal(t) {
		return x
	}
	f, ok := value.Convert(x.typ, t)
	if !ok {
		c.fail(pos, "Cannot convert %s to %s", x.typ, t)
	}
	return pure1(t, x, f)
}

// common brings expressions to one type.
func (c *compiler) common(pos syntax.Pos, xs []*expr) (*value.Type, []*expr) {
	t := xs[0].typ
	for _, x := range xs[1:] {
		u, ok := value.Common(t, x.typ)
		if !ok {
			c.fail(pos, "Incompatible types: %s and %s", t, x.typ)
		}
		t = u
	}
	out := make([]*expr, len(xs))
	for i, x := range xs {
		out[i] = c.convert(pos, x, t)
	}
	return t, out
}

// expr compiles an expression.
func (c *compiler) expr(env env, x syntax.Expr) *expr {
	if env.group != nil {
		if e := env.group.match(c, x); e != nil {
			return e
		}
	}
	switch x := x.(type) {
	case *syntax.Literal:
		return constant(x.Type, x.Value)
	case *syntax.Param:
		return c.paramExpr(x)
	case *syntax.Column:
		return c.column(env, x)
	case *syntax.Unary:
		return c.unary(x, c.expr(env, x.X))
	case *syntax.Binary:
		return c.binary(x, c.expr(env, x.L), c.expr(env, x.R))
	case *syntax.Logic:
		return c.logic(env, x)
	case *syntax.IsNull:
		a := c.expr(env, x.X)
		return pure1(value.TypeBool, a, func(v value.Value) value.Value {
			null := v.IsNull()
			return value.Truth(null != x.Not)
		})
	case *syntax.Between:
		v, lo, hi := c.expr(env, x.X), c.expr(env, x.Lo), c.expr(env, x.Hi)
		both := chain([]*expr{c.compare(x.Pos, ">=", v, lo), c.compare(x.Pos, "<=", v, hi)}, 0)
		return c.negate(x.Pos, both, x.Not)
	case *syntax.In:
		return c.negate(x.Pos, c.in(env, x), x.Not)
	case *syntax.Call:
		return c.call(env, x)
	case *syntax.Cast:
		return c.cast(x.Pos, c.expr(env, x.X), x.Type)
	case *syntax.Sub:
		return c.scalar(x.Pos, c.sub(x.Query))
	case *syntax.ListOf:
		return c.list(x.Pos, c.exprs(env, x.Items))
	case *syntax.TupleOf:
		return c.tuple(x.Pos, c.exprs(env, x.Items))
	case *syntax.StructOf:
		return c.structOf(x.Pos, x.Names, c.exprs(env, x.Items))
	}
	c.fail(x.At(), "A type cannot stand here")
	return nil
}

func (c *compiler) exprs(env env, xs []syntax.Expr) []*expr {
	out := make([]*expr, len(xs))
	for i, x := range xs {
		out[i] = c.expr(env, x)
	}
	return out
}

// paramExpr resolves $name: a named expression, a declared parameter, or, in the query
// service, a parameter whose type came with it.
func (c *compiler) paramExpr(x *syntax.Param) *expr {
	if n := c.named[x.Name]; n != nil {
		if n.rel != nil {
			return c.scalar(x.Pos, n)
		}
		return n.x
	}
	t := c.plan.declared[x.Name]
	if t == nil && c.inferred {
		t = c.given[x.Name]
	}
	if t == nil {
		c.fail(x.Pos, "Unknown name: %s", x.Name)
	}
	i := c.param(x.Name, t)
	c.plan.params[i].used = true
	return &expr{typ: t, free: true, eval: func(e *exec, _ []value.Value) (value.Value, error) { return e.params[i], nil }}
}

// find returns the place of a column, -1 if there is none; two of the name are an error.
func (c *compiler) find(env env, pos syntax.Pos, tab, name string) int {
	found := -1
	for i, col := range env.cols {
		if col.name != name || tab != "" && col.table != tab {
			continue
		}
		if found >= 0 {
			c.fail(pos, "Column reference is ambiguous: %s", name)
		}
		found = i
	}
	return found
}

func (c *compiler) column(env env, x *syntax.Column) *expr {
	i := c.find(env, x.Pos, x.Table, x.Name)
	if i < 0 {
		c.fail(x.Pos, "Column %s is not in scope", strings.TrimPrefix(x.Table+"."+x.Name, "."))
	}
	return c.columnAt(env, x, i)
}

func (c *compiler) columnAt(env env, x *syntax.Column, i int) *expr {
	if env.group != nil {
		c.fail(x.Pos, "Column `%s` must either be a key column in GROUP BY or it should be used in aggregation function", x.Name)
	}
	return slot(env.cols[i].typ, i)
}

// scalar is the first column of the first row of a query, NULL if it has none.
func (c *compiler) scalar(pos syntax.Pos, n *named) *expr {
	if len(n.rel.cols) != 1 {
		c.fail(pos, "A query that is used as a value must have one column, not %d", len(n.rel.cols))
	}
	from := n.rel.cols[0].typ
	t := value.Nullable(from)
	return &expr{typ: t, free: true, eval: func(e *exec, _ []value.Value) (value.Value, error) {
		out := value.NullValue
		err := n.rel.run(e, func(row []value.Value) error {
			out = row[0]
			return errStop
		})
		if err == errStop {
			err = nil
		}
		return out, err
	}}
}

func (c *compiler) cast(pos syntax.Pos, x *expr, to *value.Type) *expr {
	if x.konst != nil && x.typ.Kind == value.Int32 && value.IsInt(to.Kind) && value.InRange(to.Kind, int64(x.konst.Lo)) {
		return constant(to, *x.konst) // a literal that surely fits
	}
	t, f, err := value.Cast(x.typ, to)
	if err != nil {
		c.fail(pos, "Cannot cast type %s into %s", x.typ, to)
	}
	return pure1(t, x, f)
}

// items makes a container of its items. Values share their parts in memory, but not on the
// wire, so the size is that of the parts.
func items(pos syntax.Pos) func([]value.Value) (value.Value, error) {
	return func(vals []value.Value) (value.Value, error) {
		v := value.Value{Items: vals}
		if v.Size() > maxValue {
			return v, tooLarge(pos)
		}
		return v, nil
	}
}

func (c *compiler) checkType(pos syntax.Pos, t *value.Type) *value.Type {
	if t.TooLarge() {
		c.fail(pos, "Type of more than %d levels or %d bytes", value.MaxDepth, value.MaxText)
	}
	return t
}

func (c *compiler) list(pos syntax.Pos, xs []*expr) *expr {
	if len(xs) == 0 {
		return constant(value.TypeEmptyList, value.Value{})
	}
	t, xs := c.common(pos, xs)
	return pure(c.checkType(pos, value.ListOf(t)), xs, items(pos))
}

func (c *compiler) tuple(pos syntax.Pos, xs []*expr) *expr {
	types := make([]*value.Type, len(xs))
	for i, x := range xs {
		types[i] = x.typ
	}
	return pure(c.checkType(pos, value.TupleOf(types...)), xs, items(pos))
}

func (c *compiler) structOf(pos syntax.Pos, names []string, xs []*expr) *expr {
	members := make([]value.Member, len(xs))
	byName := map[string]*expr{}
	for i, x := range xs {
		members[i] = value.Member{Name: names[i], Type: x.typ}
		byName[names[i]] = x
	}
	t, err := value.StructOf(members...)
	if err != nil {
		c.fail(pos, "%v", err)
	}
	sorted := make([]*expr, len(xs))
	for i, m := range t.Members {
		sorted[i] = byName[m.Name]
	}
	return pure(c.checkType(pos, t), sorted, items(pos))
}
