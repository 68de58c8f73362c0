package engine

import (
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// grouping makes one row of all rows of a SELECT with aggregates: its columns are the aggregates.
type grouping struct {
	source env // what the arguments of the aggregates are computed from
	aggs   []*aggregate
}

// aggregate is one call of an aggregation function.
type aggregate struct {
	arg   *expr // nil for COUNT(*)
	typ   *value.Type
	start func() fold
}

// fold takes the values that are not NULL and gives the result.
type fold interface {
	add(v value.Value)
	result() value.Value
}

// grouping returns the grouping of a SELECT, nil if it has no aggregates.
func (c *compiler) grouping(scope env, s *syntax.Select, order []syntax.OrderItem) *grouping {
	uses := false
	for _, it := range s.Items {
		uses = uses || it.X != nil && hasAggregate(it.X)
	}
	for _, o := range order {
		uses = uses || hasAggregate(o.X)
	}
	if !uses {
		return nil
	}
	return &grouping{source: scope}
}

// match returns the expression of an aggregate, or nil if x is none.
func (g *grouping) match(c *compiler, x syntax.Expr) *expr {
	call, ok := x.(*syntax.Call)
	if !ok || aggregates[strings.ToLower(call.Name)] == nil {
		return nil
	}
	a := g.aggregate(c, call)
	g.aggs = append(g.aggs, a)
	return slot(a.typ, len(g.aggs)-1)
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

func (g *grouping) aggregate(c *compiler, call *syntax.Call) *aggregate {
	name := strings.ToLower(call.Name)
	a := &aggregate{}
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
	a.typ, a.start = aggregates[name](value.Bare(a.arg.typ))
	if a.start == nil {
		c.fail(call.Pos, "Cannot apply %s to %s", call.Name, a.arg.typ)
	}
	return a
}

// aggregates gives, for the type of the argument, the type of the result and its fold.
var aggregates = map[string]func(t *value.Type) (*value.Type, func() fold){
	"count": func(*value.Type) (*value.Type, func() fold) {
		return value.TypeUint64, func() fold { return new(counter) }
	},
	"min": func(t *value.Type) (*value.Type, func() fold) { return extreme(t, -1) },
	"max": func(t *value.Type) (*value.Type, func() fold) { return extreme(t, 1) },
}

type counter struct{ n uint64 }

func (f *counter) add(value.Value)     { f.n++ }
func (f *counter) result() value.Value { return value.Uint(f.n) }

// best keeps the value that no other is better than; without a value its result is NULL.
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
	return value.Nullable(t), func() fold {
		return &best{better: func(a, b value.Value) bool { return value.Compare(t, a, b)*sign > 0 }}
	}
}

// run folds the rows of a source.
func (g *grouping) run(source func(*exec, rowFunc) error) func(*exec, rowFunc) error {
	return func(e *exec, yield rowFunc) error {
		folds := make([]fold, len(g.aggs))
		for i, a := range g.aggs {
			folds[i] = a.start()
		}
		if err := source(e, func(row []value.Value) error { return g.add(e, folds, row) }); err != nil {
			return err
		}
		out := make([]value.Value, len(folds))
		for i, f := range folds {
			out[i] = f.result()
		}
		return yield(out)
	}
}

func (g *grouping) add(e *exec, folds []fold, row []value.Value) error {
	for i, a := range g.aggs {
		if a.arg == nil {
			folds[i].add(value.Value{})
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
		folds[i].add(v)
	}
	return e.tick()
}
