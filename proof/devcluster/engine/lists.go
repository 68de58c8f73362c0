package engine

import (
	"slices"
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// maxApplied bounds how often lambdas are compiled in one text: each use is compiled by itself.
const maxApplied = 1000

// lambda compiles the use of a lambda (or of the name of one) on arguments of the given types:
// where they are put when it runs, and its body.
func (c *compiler) lambda(env env, x syntax.Expr, types ...*value.Type) (cells []int, body *expr) {
	l, ok := x.(*syntax.Lambda)
	if p, named := x.(*syntax.Param); named && c.named[p.Name] != nil {
		l, ok = c.named[p.Name].lambda, c.named[p.Name].lambda != nil
		env.cols, env.group = nil, nil // it knows no columns
	}
	switch {
	case !ok:
		c.fail(x.At(), "Expected a lambda")
	case len(l.Params) != len(types):
		c.fail(x.At(), "The lambda takes %d arguments, but got %d", len(l.Params), len(types))
	}
	if c.applied++; c.applied > maxApplied {
		c.fail(x.At(), "Lambdas are used more than %d times", maxApplied)
	}
	before := map[string]*named{}
	bind := func(name string, n *named) {
		if _, again := before[name]; !again {
			before[name] = c.named[name]
		}
		c.named[name] = n
	}
	for i, p := range l.Params {
		cell := c.cell()
		cells = append(cells, cell)
		bind(p, &named{x: &expr{typ: types[i], free: true, eval: func(e *exec, _ []value.Value) (value.Value, error) {
			return e.cells[cell].(value.Value), nil
		}}})
	}
	c.lambdas++
	defer func() { // also when the body is refused
		c.lambdas--
		for name, n := range before {
			if c.named[name] = n; n == nil {
				delete(c.named, name)
			}
		}
	}()
	for _, let := range l.Lets {
		if inner, ok := let.X.(*syntax.Lambda); ok {
			bind(let.Name, &named{lambda: inner})
		} else {
			bind(let.Name, &named{x: c.expr(env, let.X)})
		}
	}
	return cells, c.expr(env, l.Body)
}

// apply compiles $lambda(arguments).
func (c *compiler) apply(env env, pos syntax.Pos, x syntax.Expr, args []*expr) *expr {
	switch x := x.(type) {
	case *syntax.Call:
		if made := c.makes(x); made != nil {
			return made(pos, args)
		}
		c.fail(pos, "%s does not make a function", x.Name)
	case *syntax.Param:
		if n := c.named[x.Name]; n != nil && n.made != nil {
			return n.made(pos, args)
		}
	}
	types := make([]*value.Type, len(args))
	free := true
	for i, a := range args {
		types[i] = a.typ
		free = free && a.free
	}
	cells, body := c.lambda(env, x, types...)
	return &expr{typ: body.typ, free: free && body.free, eval: func(e *exec, row []value.Value) (value.Value, error) {
		for i, a := range args {
			v, err := a.eval(e, row)
			if err != nil {
				return v, err
			}
			e.cells[cells[i]] = v
		}
		return body.eval(e, row)
	}}
}

// elem is the type of the elements of a list, which may be NULL as a whole.
func (c *compiler) elem(pos syntax.Pos, x *expr) *value.Type {
	switch t := value.Bare(x.typ); t.Kind {
	case value.List:
		return t.Elem
	case value.EmptyList:
		return value.TypeNull
	}
	c.fail(pos, "Expected a list, but got: %s", x.typ)
	return nil
}

// mapped is the result type of a function of a list: NULL of NULL.
func mapped(x *expr, t *value.Type) *value.Type {
	if x.typ.Kind == value.Optional {
		return value.OptionalOf(t)
	}
	return t
}

// listLambda compiles functions of a list and a lambda; sorts may do without one.
func (c *compiler) listLambda(env env, name string, call *syntax.Call) *expr {
	sorts := strings.HasPrefix(name, "listsort")
	if len(call.Args) != 2 && (!sorts && name != "listany" && name != "listall" || len(call.Args) != 1) {
		c.fail(call.Pos, "%s takes a list and a lambda", call.Name)
	}
	list := c.expr(env, call.Args[0])
	et := c.elem(call.Pos, list)
	cell := c.cell()
	body := &expr{typ: et, free: true, eval: func(e *exec, _ []value.Value) (value.Value, error) { return e.cells[cell].(value.Value), nil }}
	if len(call.Args) == 2 {
		var cells []int
		cells, body = c.lambda(env, call.Args[1], et)
		cell = cells[0]
	}
	out := list.typ
	switch {
	case sorts:
		if !value.Comparable(body.typ) {
			c.fail(call.Pos, "Cannot sort by type %s", body.typ)
		}
	case name == "listmap":
		out = mapped(list, c.checkType(call.Pos, value.ListOf(body.typ)))
	case name == "listflatmap":
		inner := value.Bare(body.typ)
		if inner.Kind == value.List {
			inner = inner.Elem
		}
		out = mapped(list, value.ListOf(inner))
	case name == "listfilter":
		c.truth(call.Pos, body)
	default:
		c.truth(call.Pos, body)
		out = mapped(list, value.TypeBool)
	}
	collect := collectors[strings.TrimSuffix(name, "asc")]
	return &expr{typ: out, free: list.free && body.free, eval: func(e *exec, row []value.Value) (value.Value, error) {
		v, err := list.eval(e, row)
		if err != nil || v.Null > 0 {
			return v, err
		}
		results := make([]value.Value, len(v.Items))
		size := 0
		for i, it := range v.Items {
			if err := e.tick(); err != nil {
				return v, err
			}
			e.cells[cell] = it
			if results[i], err = body.eval(e, row); err != nil {
				return v, err
			}
			if size += results[i].Size(); size > maxValue {
				return v, tooLarge(call.Pos)
			}
		}
		return collect(v.Items, results, body.typ), nil
	}}
}

// collectors make the result of the elements of a list and what the lambda made of each.
var collectors = map[string]func(items, results []value.Value, t *value.Type) value.Value{
	"listmap": func(_, results []value.Value, _ *value.Type) value.Value { return value.Value{Items: results} },
	"listfilter": func(items, results []value.Value, _ *value.Type) value.Value {
		var out []value.Value
		for i, r := range results {
			if r.Null == 0 && r.Lo != 0 {
				out = append(out, items[i])
			}
		}
		return value.Value{Items: out}
	},
	"listflatmap": func(_, results []value.Value, t *value.Type) value.Value {
		var out []value.Value
		for _, r := range results {
			switch {
			case r.IsNull():
			case value.Bare(t).Kind == value.List:
				out = append(out, r.Items...)
			case t.Kind == value.Optional:
				out = append(out, r.Unwrap())
			default:
				out = append(out, r)
			}
		}
		return value.Value{Items: out}
	},
	"listsort":     func(items, by []value.Value, t *value.Type) value.Value { return sortBy(items, by, t, 1) },
	"listsortdesc": func(items, by []value.Value, t *value.Type) value.Value { return sortBy(items, by, t, -1) },
	"listany": func(_, results []value.Value, _ *value.Type) value.Value {
		return value.Truth(slices.ContainsFunc(results, func(v value.Value) bool { return v.Null == 0 && v.Lo != 0 }))
	},
	"listall": func(_, results []value.Value, _ *value.Type) value.Value {
		return value.Truth(!slices.ContainsFunc(results, func(v value.Value) bool { return v.Null > 0 || v.Lo == 0 }))
	},
}

func sortBy(items, by []value.Value, t *value.Type, sign int) value.Value {
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return sign * value.Compare(t, by[a], by[b]) })
	out := make([]value.Value, len(items))
	for i, at := range order {
		out[i] = items[at]
	}
	return value.Value{Items: out}
}

// listOp is a function from a list to one of its type; it may change its argument.
func listOp(f func([]value.Value, *value.Type) []value.Value) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		et := c.elem(call.Pos, a[0])
		if !value.Comparable(et) && !strings.EqualFold(call.Name, "ListReverse") {
			c.fail(call.Pos, "Cannot compare %s", et)
		}
		return lift1(value.Bare(a[0].typ), a[0], false, func(v value.Value) (value.Value, bool) {
			return value.Value{Items: f(slices.Clone(v.Items), et)}, true
		})
	}
}

func listUniq(v []value.Value, t *value.Type) []value.Value {
	seen := map[string]bool{}
	return slices.DeleteFunc(v, func(it value.Value) bool {
		k := string(value.AppendHash(nil, t, it))
		again := seen[k]
		seen[k] = true
		return again
	})
}

func listFromRange(c *compiler, call *syntax.Call, a []*expr) *expr {
	t, a := c.common(call.Pos, a)
	if !value.IsInt(t.Kind) {
		c.fail(call.Pos, "ListFromRange needs integers, but got: %s", t)
	}
	return pure(value.ListOf(t), a, func(v []value.Value) (value.Value, error) {
		from, to, step := int64(v[0].Lo), int64(v[1].Lo), int64(1)
		if len(v) == 3 {
			step = int64(v[2].Lo)
		}
		if !value.IsSigned(t.Kind) && (v[0].Lo > 1<<62 || v[1].Lo > 1<<62) || from < -1<<62 || to < -1<<62 || from > 1<<62 || to > 1<<62 {
			return v[0], tooLarge(call.Pos)
		}
		if step == 0 || (to-from)/step >= maxValue/64 || step > 1<<62 || step < -1<<62 {
			return v[0], tooLarge(call.Pos)
		}
		var out []value.Value
		for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
			out = append(out, value.Int(i))
		}
		return value.Value{Items: out}, nil
	})
}

func listReplicate(c *compiler, call *syntax.Call, a []*expr) *expr {
	if !value.IsInt(a[1].typ.Kind) {
		c.fail(call.Pos, "ListReplicate needs a number, but got: %s", a[1].typ)
	}
	return pure(c.checkType(call.Pos, value.ListOf(a[0].typ)), a, func(v []value.Value) (value.Value, error) {
		if v[1].Lo > maxValue/64 || int(v[1].Lo)*v[0].Size() > maxValue {
			return v[0], tooLarge(call.Pos)
		}
		return value.Value{Items: slices.Repeat([]value.Value{v[0]}, int(v[1].Lo))}, nil
	})
}

// listEnd is the first or, if at is -1, the last element; NULL of an empty list.
func listEnd(at int) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		et := c.elem(call.Pos, a[0])
		return lift1(value.Nullable(et), a[0], true, func(v value.Value) (value.Value, bool) {
			if len(v.Items) == 0 {
				return v, false
			}
			return v.Items[(at+len(v.Items))%len(v.Items)], true
		})
	}
}

// listPart cuts a list at a number of elements.
func listPart(cut func([]value.Value, int) []value.Value) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		c.elem(call.Pos, a[0])
		if !value.IsInt(value.Bare(a[1].typ).Kind) {
			c.fail(call.Pos, "%s needs a number, but got: %s", call.Name, a[1].typ)
		}
		return lift2(value.Bare(a[0].typ), a[0], a[1], false, func(v, n value.Value) (value.Value, bool) {
			return value.Value{Items: cut(v.Items, int(min(n.Lo, uint64(len(v.Items)))))}, true
		})
	}
}

func listNotNull(c *compiler, call *syntax.Call, a []*expr) *expr {
	et := c.elem(call.Pos, a[0])
	return lift1(value.ListOf(value.Bare(et)), a[0], false, func(v value.Value) (value.Value, bool) {
		if et.Kind != value.Optional {
			return v, true
		}
		var out []value.Value
		for _, it := range v.Items {
			if !it.IsNull() {
				out = append(out, it.Unwrap())
			}
		}
		return value.Value{Items: out}, true
	})
}

func listFlatten(c *compiler, call *syntax.Call, a []*expr) *expr {
	et := c.elem(call.Pos, a[0])
	if et.Kind != value.List {
		c.fail(call.Pos, "ListFlatten needs a list of lists, but got: %s", a[0].typ)
	}
	return lift1(et, a[0], false, func(v value.Value) (value.Value, bool) {
		var out []value.Value
		for _, it := range v.Items {
			out = append(out, it.Items...)
		}
		return value.Value{Items: out}, true
	})
}

func listExtend(c *compiler, call *syntax.Call, a []*expr) *expr {
	for _, x := range a {
		c.elem(call.Pos, x)
	}
	t, a := c.common(call.Pos, a)
	return pure(t, a, func(v []value.Value) (value.Value, error) {
		var out []value.Value
		for _, l := range v {
			if l.Null > 0 {
				return value.NullValue, nil
			}
			out = append(out, l.Items...)
		}
		return items(call.Pos)(out)
	})
}

// listZip ends with the shortest list.
func listZip(c *compiler, call *syntax.Call, a []*expr) *expr {
	var types []*value.Type
	for _, x := range a {
		if x.typ.Kind != value.List {
			c.fail(call.Pos, "ListZip needs lists, but got: %s", x.typ)
		}
		types = append(types, x.typ.Elem)
	}
	return pure(c.checkType(call.Pos, value.ListOf(value.TupleOf(types...))), a, func(v []value.Value) (value.Value, error) {
		n := len(v[0].Items)
		for _, l := range v {
			n = min(n, len(l.Items))
		}
		out := make([]value.Value, n)
		for i := range out {
			for _, l := range v {
				out[i].Items = append(out[i].Items, l.Items[i])
			}
		}
		return items(call.Pos)(out)
	})
}

func listEnumerate(c *compiler, call *syntax.Call, a []*expr) *expr {
	t := value.ListOf(value.TupleOf(value.TypeUint64, c.elem(call.Pos, a[0])))
	return lift1(c.checkType(call.Pos, t), a[0], false, func(v value.Value) (value.Value, bool) {
		out := make([]value.Value, len(v.Items))
		for i, it := range v.Items {
			out[i].Items = []value.Value{value.Uint(uint64(i)), it}
		}
		return value.Value{Items: out}, true
	})
}

// dictParts is DictKeys, DictPayloads and DictItems, in the order of the keys.
func dictParts(c *compiler, call *syntax.Call, a []*expr) *expr {
	t := value.Bare(a[0].typ)
	if t.Kind != value.Dict {
		c.fail(call.Pos, "Expected a dict, but got: %s", a[0].typ)
	}
	name := strings.ToLower(call.Name)
	out := map[string]*value.Type{"dictkeys": t.Key, "dictitems": value.TupleOf(t.Key, t.Elem)}[name]
	if out == nil {
		out = t.Elem
	}
	return lift1(c.checkType(call.Pos, value.ListOf(out)), a[0], false, func(v value.Value) (value.Value, bool) {
		var list []value.Value
		for i := 0; i+1 < len(v.Items); i += 2 {
			switch name {
			case "dictkeys":
				list = append(list, v.Items[i])
			case "dictitems":
				list = append(list, value.Value{Items: v.Items[i : i+2 : i+2]})
			default:
				list = append(list, v.Items[i+1])
			}
		}
		return value.Value{Items: list}, true
	})
}

// toDict makes a dict of a list of pairs; of two with one key the first one stays.
func toDict(c *compiler, call *syntax.Call, a []*expr) *expr {
	et := c.elem(call.Pos, a[0])
	if et.Kind != value.Tuple || len(et.Members) != 2 || !value.Comparable(et.Members[0].Type) {
		c.fail(call.Pos, "ToDict needs a list of pairs, but got: %s", a[0].typ)
	}
	t := c.checkType(call.Pos, value.DictOf(et.Members[0].Type, et.Members[1].Type))
	return lift1(t, a[0], false, func(v value.Value) (value.Value, bool) {
		var pairs []value.Value
		for _, it := range v.Items {
			pairs = append(pairs, it.Items...)
		}
		return value.NewDict(t, pairs), true
	})
}
