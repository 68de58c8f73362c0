package engine

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

func (c *compiler) unary(x *syntax.Unary, a *expr) *expr {
	t := value.Bare(a.typ)
	number := value.IsInt(t.Kind) || value.IsFloat(t.Kind) || t.Kind == value.Decimal || value.IsInterval(t.Kind)
	switch {
	case x.Op == "NOT":
		return c.negate(x.Pos, a, true)
	case a.typ.Kind == value.Null:
		return a
	case x.Op == "-" && number:
		return lift1(t, a, false, func(v value.Value) (value.Value, bool) { return value.Neg(t, v), true })
	case x.Op == "+" && number:
		return a
	case x.Op == "~" && value.IsInt(t.Kind) && !value.IsSigned(t.Kind):
		return lift1(t, a, false, func(v value.Value) (value.Value, bool) { return value.Bits('^', t.Kind, v.Lo, ^uint64(0)), true })
	}
	c.fail(x.Pos, "Cannot apply %s to %s", x.Op, a.typ)
	return nil
}

func (c *compiler) binary(x *syntax.Binary, a, b *expr) *expr {
	switch x.Op {
	case "=", "!=", "<", "<=", ">", ">=":
		return c.compare(x.Pos, x.Op, a, b)
	case "||":
		return c.concat(x.Pos, a, b)
	case "??":
		return c.coalesce(x.Pos, []*expr{a, b})
	case "&", "|", "^", "<<", ">>":
		return c.bits(x, a, b)
	}
	return c.arith(x, a, b)
}

func (c *compiler) arith(x *syntax.Binary, a, b *expr) *expr {
	if a.typ.Kind == value.Null || b.typ.Kind == value.Null {
		return constant(value.TypeNull, value.NullValue)
	}
	ta, tb := value.Bare(a.typ), value.Bare(b.typ)
	if e := c.timeArith(x.Op, a, b, ta, tb); e != nil {
		return e
	}
	t, ok := value.Common(ta, tb)
	if !ok || !(value.IsInt(t.Kind) || value.IsFloat(t.Kind) || t.Kind == value.Decimal) {
		c.fail(x.Pos, "Cannot apply %s to %s and %s", x.Op, a.typ, b.typ)
	}
	ca, _ := value.Convert(ta, t)
	cb, _ := value.Convert(tb, t)
	f := value.Arith(x.Op[0], t)
	mayFail := value.IsInt(t.Kind) && (x.Op == "/" || x.Op == "%")
	return lift2(t, a, b, mayFail, func(x, y value.Value) (value.Value, bool) { return f(ca(x), cb(y)) })
}

// timeArith computes with dates and intervals; what leaves their range is NULL.
func (c *compiler) timeArith(op string, a, b *expr, ta, tb *value.Type) *expr {
	switch {
	case value.IsTime(ta.Kind) && value.IsInterval(tb.Kind) && (op == "+" || op == "-"):
		sign := int64(1)
		if op == "-" {
			sign = -1
		}
		return lift2(ta, a, b, true, func(x, y value.Value) (value.Value, bool) { return value.AddTime(ta.Kind, x, sign*int64(y.Lo)) })
	case value.IsInterval(ta.Kind) && value.IsTime(tb.Kind) && op == "+":
		return lift2(tb, a, b, true, func(x, y value.Value) (value.Value, bool) { return value.AddTime(tb.Kind, y, int64(x.Lo)) })
	case value.IsTime(ta.Kind) && value.IsTime(tb.Kind) && op == "-":
		t, _ := value.Common(ta, tb)
		ca, _ := value.Convert(ta, t)
		cb, _ := value.Convert(tb, t)
		out := value.TypeInterval
		if t.Kind == value.Date32 || t.Kind == value.Datetime64 || t.Kind == value.Timestamp64 {
			out = value.Primitive(value.Interval64)
		}
		return lift2(out, a, b, false, func(x, y value.Value) (value.Value, bool) { return value.SubTimes(t.Kind, ca(x), cb(y)), true })
	case value.IsInterval(ta.Kind) && value.IsInterval(tb.Kind) && (op == "+" || op == "-"):
		t, _ := value.Common(ta, tb)
		return lift2(t, a, b, true, func(x, y value.Value) (value.Value, bool) {
			r := int64(x.Lo) + int64(y.Lo)
			if op == "-" {
				r = int64(x.Lo) - int64(y.Lo)
			}
			return value.Int(r), value.InRange(t.Kind, r)
		})
	case value.IsInterval(ta.Kind) && value.IsInt(tb.Kind) && (op == "*" || op == "/"):
		return lift2(ta, a, b, true, func(x, y value.Value) (value.Value, bool) {
			switch {
			case op == "*":
				return value.MulInterval(ta.Kind, int64(x.Lo), int64(y.Lo))
			case y.Lo == 0:
				return value.Value{}, false
			}
			return value.Int(int64(x.Lo) / int64(y.Lo)), true
		})
	case value.IsInt(ta.Kind) && value.IsInterval(tb.Kind) && op == "*":
		return lift2(tb, a, b, true, func(x, y value.Value) (value.Value, bool) {
			return value.MulInterval(tb.Kind, int64(y.Lo), int64(x.Lo))
		})
	}
	return nil
}

func (c *compiler) bits(x *syntax.Binary, a, b *expr) *expr {
	ta, tb := value.Bare(a.typ), value.Bare(b.typ)
	t := ta
	ok := value.IsInt(ta.Kind) && value.IsInt(tb.Kind)
	if ok && x.Op != "<<" && x.Op != ">>" {
		t, ok = value.Common(ta, tb)
	}
	if !ok {
		c.fail(x.Pos, "Cannot apply %s to %s and %s", x.Op, a.typ, b.typ)
	}
	return lift2(t, a, b, false, func(v, w value.Value) (value.Value, bool) { return value.Bits(x.Op[0], t.Kind, v.Lo, w.Lo), true })
}

func (c *compiler) concat(pos syntax.Pos, a, b *expr) *expr {
	ta, tb := value.Bare(a.typ), value.Bare(b.typ)
	t, ok := value.Common(ta, tb)
	if !ok || value.Bare(t).Kind != value.String && value.Bare(t).Kind != value.Utf8 {
		c.fail(pos, "Cannot apply || to %s and %s", a.typ, b.typ)
	}
	if a.typ.Kind == value.Null || b.typ.Kind == value.Null {
		return constant(value.Nullable(t), value.NullValue)
	}
	out := t
	if a.typ.Kind == value.Optional || b.typ.Kind == value.Optional {
		out = value.Nullable(t)
	}
	return pure(out, []*expr{a, b}, func(v []value.Value) (value.Value, error) {
		if v[0].Null > 0 || v[1].Null > 0 {
			return value.NullValue, nil
		}
		if len(v[0].S)+len(v[1].S) > maxValue {
			return v[0], tooLarge(pos)
		}
		return value.Text(v[0].S + v[1].S), nil
	})
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
	if !ok1 || !ok2 || !value.Comparable(t) && t.Kind != value.Dict {
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
	switch x.Op {
	case "AND":
		return c.and(x.Pos, args)
	case "OR":
		return chain(args, 1)
	}
	out := args[0]
	for _, a := range args[1:] {
		out = lift2(value.TypeBool, out, a, false, func(v, w value.Value) (value.Value, bool) { return value.Truth(v.Lo != w.Lo), true })
	}
	return out
}

func (c *compiler) and(_ syntax.Pos, args []*expr) *expr { return chain(args, 0) }

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

// in compiles x IN (a, b), and x IN over a list, a dict, a tuple or a query.
func (c *compiler) in(env env, x *syntax.In) *expr {
	a := c.expr(env, x.X)
	if x.Over == nil {
		if len(x.List) == 0 {
			return constant(value.TypeBool, value.Truth(false))
		}
		if len(x.List) == 1 { // x IN ($list) means the list
			if one := c.expr(env, x.List[0]); isCollection(one.typ) && !isCollection(a.typ) {
				return c.inList(x.Pos, a, one)
			}
		}
		t, list := c.common(x.Pos, c.exprs(env, x.List))
		return c.inList(x.Pos, a, pure(value.ListOf(t), list, items(x.Pos)))
	}
	var n *named
	switch over := x.Over.(type) {
	case *syntax.Sub:
		n = c.sub(over.Query)
	case *syntax.Param:
		if m := c.named[over.Name]; m != nil && m.rel != nil {
			n = m
		}
	}
	if n != nil {
		return c.inList(x.Pos, a, c.listOfQuery(x.Pos, n))
	}
	return c.inList(x.Pos, a, c.expr(env, x.Over))
}

func isCollection(t *value.Type) bool {
	k := value.Bare(t).Kind
	return k == value.List || k == value.Dict || k == value.EmptyList || k == value.EmptyDict
}

// listOfQuery is the list of the one column of a query.
func (c *compiler) listOfQuery(pos syntax.Pos, n *named) *expr {
	if len(n.rel.cols) != 1 {
		c.fail(pos, "A query after IN must have one column, not %d", len(n.rel.cols))
	}
	return c.once(&expr{typ: value.ListOf(n.rel.cols[0].typ), free: true, eval: func(e *exec, _ []value.Value) (value.Value, error) {
		var out []value.Value
		err := n.rel.run(e, func(row []value.Value) error { out = append(out, row[0]); return nil })
		return value.Value{Items: out}, err
	}})
}

// inSet is a list prepared for lookups.
type inSet struct {
	keys map[string]struct{}
	null bool // it has a NULL, so a miss is unknown
}

func (c *compiler) inList(pos syntax.Pos, a, list *expr) *expr {
	lt := value.Bare(list.typ)
	var et *value.Type
	stride := 1
	switch lt.Kind {
	case value.EmptyList, value.EmptyDict:
		return constant(value.TypeBool, value.Truth(false))
	case value.List:
		et = lt.Elem
	case value.Dict:
		et, stride = lt.Key, 2
	case value.Tuple:
		if len(lt.Members) == 0 {
			return constant(value.TypeBool, value.Truth(false))
		}
		et = lt.Members[0].Type
		for _, m := range lt.Members[1:] {
			u, ok := value.Common(et, m.Type)
			if !ok {
				c.fail(pos, "Cannot compare %s and %s", et, m.Type)
			}
			et = u
		}
		list = c.convert(pos, list, value.TupleOf(repeat(et, len(lt.Members))...))
	default:
		c.fail(pos, "IN needs a list, but got: %s", list.typ)
	}
	t, ok := value.Common(a.typ, et)
	if !ok || !value.Comparable(t) {
		c.fail(pos, "Cannot compare %s and %s", a.typ, et)
	}
	conv, okA := exactCast(a.typ, t)
	convE, okE := exactCast(et, t)
	if !okA || !okE {
		c.fail(pos, "Cannot compare %s and %s", a.typ, et)
	}
	maybe := func(t *value.Type) bool { return t.Kind == value.Optional || t.Kind == value.Null }
	nullable := maybe(a.typ) || maybe(et) || maybe(list.typ)
	out := value.TypeBool
	if nullable {
		out = value.OptionalOf(out)
	}
	cell := c.cell()
	build := func(v value.Value) *inSet {
		s := &inSet{keys: make(map[string]struct{}, len(v.Items)/stride)}
		for i := 0; i < len(v.Items); i += stride {
			r, ok := convE(v.Items[i])
			switch {
			case ok && r.Null > 0:
				s.null = true
			case ok:
				s.keys[string(value.AppendHash(nil, value.Bare(t), r))] = struct{}{}
			}
		}
		return s
	}
	var always *inSet // of a constant list
	if list.konst != nil && !list.konst.IsNull() {
		always = build(*list.konst)
	}
	return &expr{typ: out, free: a.free && list.free, eval: func(e *exec, row []value.Value) (value.Value, error) {
		v, err := a.eval(e, row)
		if err != nil {
			return v, err
		}
		set := always
		if set == nil && list.free {
			set, _ = e.cells[cell].(*inSet)
		}
		if set == nil {
			l, err := list.eval(e, row)
			if err != nil {
				return l, err
			}
			if l.IsNull() {
				return value.NullValue, nil
			}
			set = build(l)
			if list.free {
				e.cells[cell] = set
			}
		}
		r, ok := conv(v)
		switch {
		case ok && r.Null > 0:
			return value.NullValue, nil
		case ok:
			if _, hit := set.keys[string(value.AppendHash(nil, value.Bare(t), r))]; hit {
				return value.Truth(true), nil
			}
		}
		if set.null {
			return value.NullValue, nil
		}
		return value.Truth(false), nil
	}}
}

func repeat(t *value.Type, n int) []*value.Type {
	out := make([]*value.Type, n)
	for i := range out {
		out[i] = t
	}
	return out
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

// like compiles LIKE and ILIKE.
func (c *compiler) like(env env, x *syntax.Like) *expr {
	a, p := c.expr(env, x.X), c.expr(env, x.Pattern)
	for _, e := range []*expr{a, p} {
		if k := value.Bare(e.typ).Kind; k != value.String && k != value.Utf8 {
			c.fail(x.Pos, "LIKE needs texts, but got: %s", e.typ)
		}
	}
	escape := rune(-1)
	if x.Escape != nil {
		esc := c.expr(env, x.Escape)
		if esc.konst == nil || utf8.RuneCountInString(esc.konst.S) != 1 {
			c.fail(x.Escape.At(), "ESCAPE needs one character")
		}
		escape, _ = utf8.DecodeRuneInString(esc.konst.S)
	}
	out := value.TypeBool
	if a.typ.Kind == value.Optional || p.typ.Kind == value.Optional {
		out = value.OptionalOf(out)
	}
	return pure(out, []*expr{a, p}, func(v []value.Value) (value.Value, error) {
		if v[0].Null > 0 || v[1].Null > 0 {
			return value.NullValue, nil
		}
		s, pat := v[0].S, v[1].S
		if len(s)*len(pat) > 1<<30 { // the steps that a match may take
			return v[0], tooLarge(x.Pos)
		}
		if x.Fold {
			s, pat = strings.ToLower(s), strings.ToLower(pat)
		}
		return value.Truth(likeMatch([]rune(s), likePattern(pat, escape))), nil
	})
}

// regexp compiles REGEXP, RLIKE and MATCH, with Go's regular expressions.
func (c *compiler) regexp(env env, x *syntax.Regexp) *expr {
	a, p := c.expr(env, x.X), c.expr(env, x.Pattern)
	if k := value.Bare(a.typ).Kind; k != value.String && k != value.Utf8 {
		c.fail(x.Pos, "REGEXP needs a text, but got: %s", a.typ)
	}
	if k := value.Bare(p.typ).Kind; k != value.String && k != value.Utf8 {
		c.fail(x.Pattern.At(), "REGEXP needs a pattern, but got: %s", p.typ)
	}
	out := value.TypeBool
	if a.typ.Kind == value.Optional || p.typ.Kind == value.Optional {
		out = value.OptionalOf(out)
	}
	return pure(out, []*expr{a, p}, func(v []value.Value) (value.Value, error) {
		if v[0].Null > 0 || v[1].Null > 0 {
			return value.NullValue, nil
		}
		pattern := v[1].S
		if x.Whole {
			pattern = "^(?:" + pattern + ")$"
		}
		re, err := regexp.Compile(pattern)
		if err != nil {
			return v[0], invalidRuntime(x.Pattern.At(), "Not a regular expression: %v", err)
		}
		return value.Truth(re.MatchString(v[0].S)), nil
	})
}

const (
	anyRunes rune = -1 - iota // %
	anyRune                   // _
)

func likePattern(p string, escape rune) []rune {
	var out []rune
	escaped := false
	for _, r := range p {
		switch {
		case escaped:
			out, escaped = append(out, r), false
		case r == escape:
			escaped = true
		case r == '%':
			out = append(out, anyRunes)
		case r == '_':
			out = append(out, anyRune)
		default:
			out = append(out, r)
		}
	}
	return out
}

// likeMatch goes back to the last % only, so it takes at most len(s)·len(p) steps.
func likeMatch(s, p []rune) bool {
	i, j, star, from := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case j < len(p) && p[j] == anyRunes:
			star, from = j, i
			j++
		case j < len(p) && (p[j] == anyRune || p[j] == s[i]):
			i, j = i+1, j+1
		case star >= 0:
			from++
			i, j = from, star+1
		default:
			return false
		}
	}
	for j < len(p) && p[j] == anyRunes {
		j++
	}
	return j == len(p)
}

func (c *compiler) caseOf(env env, x *syntax.Case) *expr {
	var conds, results []*expr
	for _, w := range x.When {
		cond := c.expr(env, w.When)
		if x.Operand != nil {
			cond = c.compare(w.When.At(), "=", c.expr(env, x.Operand), cond)
		}
		conds = append(conds, c.truth(w.When.At(), cond))
		results = append(results, c.expr(env, w.Then))
	}
	if x.Else != nil {
		results = append(results, c.expr(env, x.Else))
	} else {
		results = append(results, constant(value.TypeNull, value.NullValue))
	}
	return c.choose(x.Pos, conds, results)
}

// choose is the first result whose condition is true, else the last one.
func (c *compiler) choose(pos syntax.Pos, conds, results []*expr) *expr {
	t, results := c.common(pos, results)
	free := true
	for _, x := range append(append([]*expr(nil), conds...), results...) {
		free = free && x.free
	}
	return &expr{typ: t, free: free, eval: func(e *exec, row []value.Value) (value.Value, error) {
		for i, cond := range conds {
			v, err := cond.eval(e, row)
			if err != nil {
				return v, err
			}
			if v.Null == 0 && v.Lo != 0 {
				return results[i].eval(e, row)
			}
		}
		return results[len(conds)].eval(e, row)
	}}
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
