package engine

import (
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// builder compiles a call whose arguments are compiled already.
type builder func(c *compiler, call *syntax.Call, args []*expr) *expr

// function is a builder with the number of arguments it takes; max -1 is any number.
type function struct {
	min, max int
	build    builder
}

// functions are the functions by name in lower case.
var functions map[string]function

func init() { // builders refer to the compiler, which refers to this table
	functions = map[string]function{
		"coalesce":            {1, -1, func(c *compiler, call *syntax.Call, a []*expr) *expr { return c.coalesce(call.Pos, a) }},
		"unwrap":              {1, 2, unwrap},
		"digest::numerichash": {1, 1, numericHash},
	}
}

// literalCall compiles types whose name is a function of a literal text: Date("2020-01-01").
func (c *compiler) literalCall(call *syntax.Call) *expr {
	t := value.Named(call.Name)
	args := call.Args
	if strings.EqualFold(call.Name, "decimal") {
		if len(args) != 3 {
			c.fail(call.Pos, "Decimal needs a text, a precision and a scale")
		}
		p, ok1 := args[1].(*syntax.Literal)
		s, ok2 := args[2].(*syntax.Literal)
		if !ok1 || !ok2 || p.Type.Kind != value.Int32 || s.Type.Kind != value.Int32 {
			c.fail(call.Pos, "Decimal needs literals")
		}
		var err error
		if t, err = value.DecimalOf(uint32(p.Value.Lo), uint32(s.Value.Lo)); err != nil {
			c.fail(call.Pos, "%v", err)
		}
		args = args[:1]
	}
	if t == nil || !t.Primitive() && t.Kind != value.Decimal {
		return nil
	}
	if len(args) != 1 {
		c.fail(call.Pos, "%s takes 1 argument, but got %d", call.Name, len(args))
	}
	lit, ok := args[0].(*syntax.Literal)
	if !ok || lit.Type.Kind != value.String && lit.Type.Kind != value.Utf8 {
		c.fail(args[0].At(), "%s needs a literal text; use CAST for expressions", call.Name)
	}
	v, err := value.Parse(t, lit.Value.S)
	if err != nil {
		c.fail(lit.Pos, "Invalid value %q for type %s: %v", lit.Value.S, t, err)
	}
	return constant(t, v)
}

func (c *compiler) call(env env, call *syntax.Call) *expr {
	name := strings.ToLower(call.Name)
	if aggregates[name] != nil {
		c.fail(call.Pos, "Aggregation function %s cannot be used here", call.Name)
	}
	if call.Star {
		c.fail(call.Pos, "%s takes no *", call.Name)
	}
	if name == "nothing" {
		return c.nothing(call)
	}
	if x := c.literalCall(call); x != nil {
		return x
	}
	f, ok := functions[name]
	if !ok {
		c.fail(call.Pos, "Unknown function: %s (or outside of the subset of YQL that the development cluster knows)", call.Name)
	}
	if len(call.Args) < f.min || f.max >= 0 && len(call.Args) > f.max {
		c.fail(call.Pos, "%s takes %d to %d arguments, but got %d", call.Name, f.min, f.max, len(call.Args))
	}
	return f.build(c, call, c.exprs(env, call.Args))
}

// nothing compiles Nothing(T?).
func (c *compiler) nothing(call *syntax.Call) *expr {
	if len(call.Args) != 1 {
		c.fail(call.Pos, "%s takes 1 type, but got %d", call.Name, len(call.Args))
	}
	t, ok := call.Args[0].(*syntax.TypeArg)
	if !ok || t.Type.Kind != value.Optional {
		c.fail(call.Args[0].At(), "Nothing needs an Optional type")
	}
	return constant(t.Type, value.NullValue)
}

func unwrap(c *compiler, call *syntax.Call, a []*expr) *expr {
	if a[0].typ.Kind != value.Optional {
		c.fail(call.Pos, "Unwrap needs an Optional, but got: %s", a[0].typ)
	}
	return pure(a[0].typ.Elem, a[:1], func(v []value.Value) (value.Value, error) {
		if v[0].IsNull() {
			return v[0], invalidRuntime(call.Pos, "Failed to unwrap empty optional")
		}
		return v[0].Unwrap(), nil
	})
}

// numericHash spreads a number over 64 bits. It is a hash of this cluster: a real one may
// compute another.
func numericHash(c *compiler, call *syntax.Call, a []*expr) *expr {
	if !value.IsInt(value.Bare(a[0].typ).Kind) {
		c.fail(call.Pos, "Expected an integer, but got: %s", a[0].typ)
	}
	return lift1(value.TypeUint64, a[0], false, func(v value.Value) (value.Value, bool) {
		h := v.Lo
		h ^= h >> 33
		h *= 0xff51afd7ed558ccd
		h ^= h >> 33
		h *= 0xc4ceb9fe1a85ec53
		return value.Uint(h ^ h>>33), true
	})
}
