package engine

import (
	"math"
	"slices"
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// grouping is a GROUP BY, or the one group of a SELECT with aggregates only. Its rows are
// the keys and then the aggregates.
type grouping struct {
	source env // what keys and arguments of aggregates are computed from
	keys   []groupKey
	aggs   []*aggregate
	single bool // no GROUP BY: there is exactly one group, also of no rows
}

type groupKey struct {
	ast  syntax.Expr
	name string // an alias
	col  int    // place of the column it is, or -1
	x    *expr
}

// aggregate is one call of an aggregation function.
type aggregate struct {
	arg      *expr // nil for COUNT(*)
	distinct bool
	typ      *value.Type
	start    func() fold
}

// fold takes the values that are not NULL and gives the result.
type fold interface {
	add(v value.Value)
	result() value.Value
}

// grouping compiles GROUP BY; nil if the SELECT has neither groups nor aggregates.
func (c *compiler) grouping(scope env, s *syntax.Select, order []syntax.OrderItem) *grouping {
	uses := s.Having != nil && hasAggregate(s.Having)
	for _, it := range s.Items {
		uses = uses || it.X != nil && hasAggregate(it.X)
	}
	for _, o := range order {
		uses = uses || hasAggregate(o.X)
	}
	if len(s.GroupBy) == 0 && !uses {
		return nil
	}
	g := &grouping{source: scope, single: len(s.GroupBy) == 0}
	for _, item := range s.GroupBy {
		k := groupKey{ast: item.X, name: item.As, col: -1}
		if col, ok := item.X.(*syntax.Column); ok {
			k.col = c.find(scope, col.Pos, col.Table, col.Name)
		}
		k.x = c.expr(scope, item.X)
		if !value.Comparable(k.x.typ) {
			c.fail(item.X.At(), "Cannot group by type %s", k.x.typ)
		}
		g.keys = append(g.keys, k)
	}
	return g
}

// match returns the expression of a group's key or aggregate, or nil if x is neither.
func (g *grouping) match(c *compiler, env env, x syntax.Expr) *expr {
	if col, ok := x.(*syntax.Column); ok {
		i := -1
		c.try(func() { i = c.find(g.source, col.Pos, col.Table, col.Name) })
		for n, k := range g.keys {
			if k.col >= 0 && k.col == i || col.Table == "" && k.name == col.Name {
				return slot(k.x.typ, n)
			}
		}
		return nil
	}
	for n, k := range g.keys {
		if k.col < 0 && syntax.Same(k.ast, x) {
			return slot(k.x.typ, n)
		}
	}
	call, ok := x.(*syntax.Call)
	if !ok || aggregates[strings.ToLower(call.Name)] == nil {
		return nil
	}
	a := c.aggregate(g, call)
	g.aggs = append(g.aggs, a)
	return slot(a.typ, len(g.keys)+len(g.aggs)-1)
}

// hasAggregate reports whether an aggregation function is called in x.
func hasAggregate(x syntax.Expr) bool {
	found := false
	syntax.Walk(x, func(x syntax.Expr) {
		if call, ok := x.(*syntax.Call); ok && aggregates[strings.ToLower(call.Name)] != nil {
			found = true
		}
	})
	return found
}

func (c *compiler) aggregate(g *grouping, call *syntax.Call) *aggregate {
	name := strings.ToLower(call.Name)
	a := &aggregate{distinct: call.Distinct}
	if call.Star {
		if name != "count" {
			c.fail(call.Pos, "%s(*) is not a function", call.Name)
		}
		a.typ, a.start = value.TypeUint64, func() fold { return new(counter) }
		return a
	}
	if len(call.Args) != 1 {
		c.fail(call.Pos, "%s takes 1 argument, but got %d", call.Name, len(call.Args))
	}
	if hasAggregate(call.Args[0]) {
		c.fail(call.Pos, "Aggregation functions cannot contain each other")
	}
	a.arg = c.expr(g.source, call.Args[0])
	bare := value.Bare(a.arg.typ)
	if a.distinct && !value.Comparable(bare) {
		c.fail(call.Pos, "DISTINCT of type %s", bare)
	}
	t, start := aggregates[name](bare)
	if start == nil {
		c.fail(call.Pos, "Cannot apply %s to %s", call.Name, a.arg.typ)
	}
	a.typ, a.start = t, start
	if (g.single || a.arg.typ.Kind == value.Optional || a.arg.typ.Kind == value.Null) && !never0[name] {
		a.typ = value.Nullable(t) // no values, no result
	}
	return a
}

// never0 are the aggregates that have a result without values.
var never0 = map[string]bool{"count": true, "count_if": true, "agg_list": true, "aggregate_list": true}

// aggregates gives, for the type of the argument, the type of the result and its fold.
var aggregates = map[string]func(t *value.Type) (*value.Type, func() fold){
	"count": func(*value.Type) (*value.Type, func() fold) {
		return value.TypeUint64, func() fold { return new(counter) }
	},
	"count_if": func(t *value.Type) (*value.Type, func() fold) {
		if t.Kind != value.Bool {
			return nil, nil
		}
		return value.TypeUint64, func() fold { return &counter{onlyTrue: true} }
	},
	"sum": sumOf,
	"avg": avgOf,
	"min": func(t *value.Type) (*value.Type, func() fold) { return extreme(t, -1) },
	"max": func(t *value.Type) (*value.Type, func() fold) { return extreme(t, 1) },
	"some": func(t *value.Type) (*value.Type, func() fold) {
		return t, func() fold { return &best{better: func(_, _ value.Value) bool { return false }} }
	},
	"agg_list":       listOfAll,
	"aggregate_list": listOfAll,
	"bool_and":       func(t *value.Type) (*value.Type, func() fold) { return boolFold(t, 0) },
	"bool_or":        func(t *value.Type) (*value.Type, func() fold) { return boolFold(t, 1) },
}

type counter struct {
	n        uint64
	onlyTrue bool
}

func (f *counter) add(v value.Value) {
	if !f.onlyTrue || v.Lo != 0 {
		f.n++
	}
}
func (f *counter) result() value.Value { return value.Uint(f.n) }

// best keeps the value that no other is better than.
type best struct {
	v      value.Value
	any    bool
	better func(a, b value.Value) bool
}

func (f *best) add(v value.Value) {
	if !f.any || f.better(v, f.v) {
		f.v, f.any = v, true
	}
}

func (f *best) result() value.Value {
	if !f.any {
		return value.NullValue
	}
	return f.v
}

func extreme(t *value.Type, sign int) (*value.Type, func() fold) {
	if !value.Comparable(t) {
		return nil, nil
	}
	return t, func() fold {
		return &best{better: func(a, b value.Value) bool { return value.Compare(t, a, b)*sign > 0 }}
	}
}

func boolFold(t *value.Type, decides uint64) (*value.Type, func() fold) {
	if t.Kind != value.Bool {
		return nil, nil
	}
	return t, func() fold { return &best{better: func(a, _ value.Value) bool { return a.Lo == decides }} }
}

// sum adds values of type t.
type sum struct {
	v   value.Value
	any bool
	t   *value.Type
	f   func(a, b value.Value) (value.Value, bool)
	c   func(value.Value) value.Value
}

func (f *sum) add(v value.Value) {
	v = f.c(v)
	if f.any {
		v, _ = f.f(f.v, v)
	}
	f.v, f.any = v, true
}

func (f *sum) result() value.Value {
	if !f.any {
		return value.NullValue
	}
	return f.v
}

func sumOf(t *value.Type) (*value.Type, func() fold) {
	to := t
	switch {
	case value.IsSigned(t.Kind):
		to = value.TypeInt64
	case value.IsInt(t.Kind):
		to = value.TypeUint64
	case value.IsFloat(t.Kind):
	case value.IsInterval(t.Kind):
		add := value.Arith('+', value.TypeInt64)
		return t, func() fold { return &sum{t: t, f: add, c: func(v value.Value) value.Value { return v }} }
	case t.Kind == value.Decimal:
		to, _ = value.DecimalOf(35, t.Scale)
	default:
		return nil, nil
	}
	conv, ok := value.Convert(t, to)
	if !ok {
		return nil, nil
	}
	return to, func() fold { return &sum{t: to, f: value.Arith('+', to), c: conv} }
}

// mean is AVG of numbers.
type mean struct {
	total float64
	n     float64
	conv  func(value.Value) value.Value
}

func (f *mean) add(v value.Value) { f.total, f.n = f.total+f.conv(v).Float(), f.n+1 }

func (f *mean) result() value.Value {
	if f.n == 0 {
		return value.NullValue
	}
	return value.Real(f.total / f.n)
}

// decimalMean is AVG of decimals.
type decimalMean struct {
	sum
	n int64
}

func (f *decimalMean) add(v value.Value) { f.sum.add(v); f.n++ }

func (f *decimalMean) result() value.Value {
	if f.n == 0 {
		return value.NullValue
	}
	n, _ := value.Parse(f.t, value.Format(value.TypeInt64, value.Int(min(f.n, math.MaxInt64))))
	return value.DecimalArith(f.t, '/', f.v, n)
}

func avgOf(t *value.Type) (*value.Type, func() fold) {
	if t.Kind == value.Decimal {
		to, start := sumOf(t)
		return to, func() fold { return &decimalMean{sum: *start().(*sum)} }
	}
	conv, ok := value.Convert(t, value.TypeDouble)
	if !ok || !value.IsInt(t.Kind) && !value.IsFloat(t.Kind) {
		return nil, nil
	}
	return value.TypeDouble, func() fold { return &mean{conv: conv} }
}

type collect struct{ items []value.Value }

func (f *collect) add(v value.Value)   { f.items = append(f.items, v) }
func (f *collect) result() value.Value { return value.Value{Items: f.items} }

func listOfAll(t *value.Type) (*value.Type, func() fold) {
	return value.ListOf(t), func() fold { return new(collect) }
}

// group is one group while its rows come.
type group struct {
	keys  []value.Value
	folds []fold
	seen  []map[string]struct{} // of aggregates with DISTINCT
}

// run groups the rows of a source.
func (g *grouping) run(source func(*exec, rowFunc) error) func(*exec, rowFunc) error {
	return func(e *exec, yield rowFunc) error {
		groups := map[string]*group{}
		var order []*group
		open := func(key string, vals []value.Value) *group {
			gr := &group{keys: vals, folds: make([]fold, len(g.aggs)), seen: make([]map[string]struct{}, len(g.aggs))}
			for i, a := range g.aggs {
				gr.folds[i] = a.start()
				if a.distinct {
					gr.seen[i] = map[string]struct{}{}
				}
			}
			groups[key] = gr
			order = append(order, gr)
			return gr
		}
		if g.single {
			open("", nil)
		}
		var buf []byte
		err := source(e, func(row []value.Value) error {
			buf = buf[:0]
			vals := make([]value.Value, len(g.keys))
			for i, k := range g.keys {
				v, err := k.x.eval(e, row)
				if err != nil {
					return err
				}
				vals[i] = v
				buf = value.AppendHash(buf, k.x.typ, v)
			}
			gr := groups[string(buf)]
			if gr == nil {
				gr = open(string(buf), vals)
				if err := e.hold(vals); err != nil {
					return err
				}
			}
			return g.add(e, gr, row)
		})
		if err != nil {
			return err
		}
		for _, gr := range order {
			out := slices.Clone(gr.keys)
			for _, f := range gr.folds {
				out = append(out, f.result())
			}
			if err := yield(out); err != nil {
				return err
			}
		}
		return nil
	}
}

func (g *grouping) add(e *exec, gr *group, row []value.Value) error {
	for i, a := range g.aggs {
		if a.arg == nil {
			gr.folds[i].add(value.Value{})
			continue
		}
		v, err := a.arg.eval(e, row)
		if err != nil {
			return err
		}
		if a.arg.typ.Kind == value.Optional || a.arg.typ.Kind == value.Null {
			if v.IsNull() {
				continue
			}
			v = v.Unwrap()
		}
		if a.distinct {
			k := string(value.AppendHash(nil, value.Bare(a.arg.typ), v))
			if _, again := gr.seen[i][k]; again {
				continue
			}
			gr.seen[i][k] = struct{}{}
			if err := e.holdBytes(len(k) + 48); err != nil {
				return err
			}
		}
		if _, keeps := gr.folds[i].(*collect); keeps {
			if err := e.hold([]value.Value{v}); err != nil {
				return err
			}
		}
		gr.folds[i].add(v)
	}
	return e.tick()
}
