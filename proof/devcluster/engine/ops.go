package engine

import (
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

func (c *compiler) unary(x *syntax.Unary, a *expr) *expr {
	t := value.Bare(a.typ)
	number := value.IsInt(t.Kind) || value.IsFloat(t.Kind)
	switch {
	case x.Op == "NOT":
		return c.negate(x.Pos, a, true)
	case a.typ.Kind == value.Null:
		return a
	case x.Op == "-" && number:
		return lift1(t, a, false, func(v value.Value) (value.Value, bool) { return value.Neg(t, v), true })
	case x.Op == "+" && number:
		return a
	}
	c.fail(x.Pos, "Cannot apply %s to %s", x.Op, a.typ)
	return nil
}

func (c *compiler) binary(x *syntax.Binary, a, b *expr) *expr {
	switch x.Op {
	case "=", "!=", "<", "<=", ">", ">=":
		return c.compare(x.Pos, x.Op, a, b)
	}
	return c.arith(x, a, b)
}

func (c *compiler) arith(x *syntax.Binary, a, b *expr) *expr {
	if a.typ.Kind == value.Null || b.typ.Kind == value.Null {
		return constant(value.TypeNull, value.NullValue)
	}
	ta, tb := value.Bare(a.typ), value.Bare(b.typ)
	t, ok := value.Common(ta, tb)
	if !ok || !value.IsInt(t.Kind) && !value.IsFloat(t.Kind) {
		c.fail(x.Pos, "Cannot apply %s to %s and %s", x.Op, a.typ, b.typ)
	}
	ca, _ := value.Convert(ta, t)
	cb, _ := value.Convert(tb, t)
	f := value.Arith(x.Op[0], t)
	mayFail := value.IsInt(t.Kind) && (x.Op == "/" || x.Op == "%")
	return lift2(t, a, b, mayFail, func(x, y value.Value) (value.Value, bool) { return f(ca(x), cb(y)) })
}

// maxValue bounds the bytes of a value that the text itself makes.
const maxValue = 64 << 20

func tooLarge(pos syntax.Pos) error {
	return invalidRuntime(pos, "The value becomes larger than %d bytes", maxValue)
}

// comparer returns the order of two values of types that may meet, or nil.
func comparer(ta, tb *value.Type) func(x, y value.Value) int {
	if value.IsInt(ta.Kind) && value.IsInt(tb.Kind) {
		return func(x, y value.Value) int { return value.CompareNumbers(ta.Kind, x, tb.Kind, y) }
	}
	t, ok := value.Common(ta, tb)
	if !ok {
		return nil
	}
	ca, ok1 := value.Convert(ta, t)
	cb, ok2 := value.Convert(tb, t)
	if !ok1 || !ok2 || !value.Comparable(t) {
		return nil
	}
	if ta.Equal(t) && tb.Equal(t) {
		return func(x, y value.Value) int { return value.Compare(t, x, y) }
	}
	return func(x, y value.Value) int { return value.Compare(t, ca(x), cb(y)) }
}

func (c *compiler) compare(pos syntax.Pos, op string, a, b *expr) *expr {
	if a.typ.Kind == value.Null || b.typ.Kind == value.Null {
		return constant(value.OptionalOf(value.TypeBool), value.NullValue)
	}
	ta, tb := value.Bare(a.typ), value.Bare(b.typ)
	f := comparer(ta, tb)
	if f == nil {
		c.fail(pos, "Cannot compare %s and %s", a.typ, b.typ)
	}
	nan := value.IsFloat(ta.Kind) || value.IsFloat(tb.Kind) // NaN is unequal to everything
	return lift2(value.TypeBool, a, b, false, func(x, y value.Value) (value.Value, bool) {
		if nan && (value.IsFloat(ta.Kind) && x.Float() != x.Float() || value.IsFloat(tb.Kind) && y.Float() != y.Float()) {
			return value.Truth(op == "!="), true
		}
		return value.Truth(holds(op, f(x, y))), true
	})
}

func holds(op string, c int) bool {
	switch op {
	case "=":
		return c == 0
	case "!=":
		return c != 0
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

// truth returns x as a Bool or an Optional<Bool>.
func (c *compiler) truth(pos syntax.Pos, x *expr) *expr {
	if x.typ.Kind == value.Null {
		return constant(value.OptionalOf(value.TypeBool), value.NullValue)
	}
	if value.Bare(x.typ).Kind != value.Bool {
		c.fail(pos, "Expected Bool, but got: %s", x.typ)
	}
	return x
}

func (c *compiler) negate(pos syntax.Pos, x *expr, not bool) *expr {
	x = c.truth(pos, x)
	if !not {
		return x
	}
	return lift1(value.TypeBool, x, false, func(v value.Value) (value.Value, bool) { return value.Truth(v.Lo == 0), true })
}

func (c *compiler) logic(env env, x *syntax.Logic) *expr {
	args := c.exprs(env, x.Args)
	for i, a := range args {
		args[i] = c.truth(x.Args[i].At(), a)
	}
	if x.Op == "AND" {
		return chain(args, 0)
	}
	return chain(args, 1)
}

// chain is AND (decided by 0) or OR (decided by 1) with NULL as the third truth.
func chain(args []*expr, decides uint64) *expr {
	if len(args) == 1 {
		return args[0]
	}
	t, free := value.TypeBool, true
	for _, a := range args {
		free = free && a.free
		if a.typ.Kind == value.Optional {
			t = value.OptionalOf(value.TypeBool)
		}
	}
	return &expr{typ: t, free: free, eval: func(e *exec, row []value.Value) (value.Value, error) {
		out := value.Uint(1 - decides)
		for _, a := range args {
			v, err := a.eval(e, row)
			switch {
			case err != nil:
				return v, err
			case v.Null > 0:
				out = value.NullValue
			case v.Lo == decides:
				return v, nil
			}
		}
		return out, nil
	}}
}

// in compiles x IN (a, b), and x IN over a list.
func (c *compiler) in(env env, x *syntax.In) *expr {
	a := c.expr(env, x.X)
	if x.Over != nil {
		return c.inList(x.Pos, a, c.expr(env, x.Over))
	}
	if len(x.List) == 0 {
		return constant(value.TypeBool, value.Truth(false))
	}
	if len(x.List) == 1 { // x IN ($list) means the list
		if one := c.expr(env, x.List[0]); isList(one.typ) && !isList(a.typ) {
			return c.inList(x.Pos, a, one)
		}
	}
	t, list := c.common(x.Pos, c.exprs(env, x.List))
	return c.inList(x.Pos, a, pure(value.ListOf(t), list, items(x.Pos)))
}

func isList(t *value.Type) bool {
	k := value.Bare(t).Kind
	return k == value.List || k == value.EmptyList
}

// inSet is a list prepared for lookups.
type inSet struct {
	keys map[string]struct{}
	null bool // it has a NULL, so a miss is unknown
}

func (c *compiler) inList(pos syntax.Pos, a, list *expr) *expr {
	lt := value.Bare(list.typ)
	switch lt.Kind {
	case value.EmptyList:
		return constant(value.TypeBool, value.Truth(false))
	case value.List:
	default:
		c.fail(pos, "IN needs a list, but got: %s", list.typ)
	}
	t, ok := value.Common(a.typ, lt.Elem)
	if !ok || !value.Comparable(t) {
		c.fail(pos, "Cannot compare %s and %s", a.typ, lt.Elem)
	}
	conv, okA := exactCast(a.typ, t)
	convE, okE := exactCast(lt.Elem, t)
	if !okA || !okE {
		c.fail(pos, "Cannot compare %s and %s", a.typ, lt.Elem)
	}
	maybe := func(t *value.Type) bool { return t.Kind == value.Optional || t.Kind == value.Null }
	out := value.TypeBool
	if maybe(a.typ) || maybe(lt.Elem) || maybe(list.typ) {
		out = value.OptionalOf(out)
	}
	set := &setOf{cell: c.cell(), list: list, typ: value.Bare(t), conv: convE}
	if list.konst != nil && !list.konst.IsNull() {
		set.always = set.build(*list.konst)
	}
	return &expr{typ: out, free: a.free && list.free, eval: func(e *exec, row []value.Value) (value.Value, error) {
		v, err := a.eval(e, row)
		if err != nil {
			return v, err
		}
		s, err := set.get(e, row)
		if err != nil || s == nil {
			return value.NullValue, err
		}
		r, ok := conv(v)
		switch {
		case ok && r.Null > 0:
			return value.NullValue, nil
		case ok && s.has(set.typ, r):
			return value.Truth(true), nil
		case s.null:
			return value.NullValue, nil
		}
		return value.Truth(false), nil
	}}
}

// setOf is the list of an IN, which becomes a set once in an execution if it needs no row.
type setOf struct {
	list   *expr
	typ    *value.Type                           // what its elements and the left side are compared as
	conv   func(value.Value) (value.Value, bool) // makes an element one of typ
	cell   int                                   // keeps the set of an execution
	always *inSet                                // of a constant list
}

// get returns the set of the list, nil if the list is NULL.
func (s *setOf) get(e *exec, row []value.Value) (*inSet, error) {
	if s.always != nil {
		return s.always, nil
	}
	if s.list.free {
		if set, ok := e.cells[s.cell].(*inSet); ok {
			return set, nil
		}
	}
	l, err := s.list.eval(e, row)
	if err != nil || l.IsNull() {
		return nil, err
	}
	set := s.build(l)
	if s.list.free {
		e.cells[s.cell] = set
	}
	return set, nil
}

func (s *setOf) build(list value.Value) *inSet {
	set := &inSet{keys: make(map[string]struct{}, len(list.Items))}
	for _, item := range list.Items {
		r, ok := s.conv(item)
		switch {
		case ok && r.Null > 0:
			set.null = true
		case ok:
			set.keys[string(value.AppendHash(nil, s.typ, r))] = struct{}{}
		}
	}
	return set
}

func (s *inSet) has(t *value.Type, v value.Value) bool {
	_, ok := s.keys[string(value.AppendHash(nil, t, v))]
	return ok
}

// exactCast converts to the type of a comparison; false for a value that has no equal
// there (a negative number among unsigned ones).
func exactCast(from, to *value.Type) (func(value.Value) (value.Value, bool), bool) {
	bf, bt := value.Bare(from), value.Bare(to)
	if value.IsInt(bf.Kind) && value.IsInt(bt.Kind) {
		return func(v value.Value) (value.Value, bool) {
			if v.Null > 0 {
				return v, true
			}
			negative := value.IsSigned(bf.Kind) && int64(v.Lo) < 0
			return v, !negative || value.IsSigned(bt.Kind)
		}, true
	}
	f, ok := value.Convert(from, to)
	return func(v value.Value) (value.Value, bool) { return f(v), true }, ok
}

// coalesce is the first argument that is not NULL.
func (c *compiler) coalesce(pos syntax.Pos, xs []*expr) *expr {
	t, conv := c.common(pos, xs)
	out := t
	if last := xs[len(xs)-1].typ; last.Kind != value.Optional && last.Kind != value.Null && t.Kind == value.Optional {
		out = t.Elem // the last one is always there
	}
	free := true
	for _, x := range conv {
		free = free && x.free
	}
	return &expr{typ: out, free: free, eval: func(e *exec, row []value.Value) (value.Value, error) {
		v := value.NullValue
		for _, x := range conv {
			var err error
			if v, err = x.eval(e, row); err != nil {
				return v, err
			}
			if !v.IsNull() {
				break
			}
		}
		if out != t && !v.IsNull() {
			v = v.Unwrap()
		}
		return v, nil
	}}
}
