package engine

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

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
		"coalesce": {1, -1, func(c *compiler, call *syntax.Call, a []*expr) *expr { return c.coalesce(call.Pos, a) }},
		"nvl":      {2, -1, func(c *compiler, call *syntax.Call, a []*expr) *expr { return c.coalesce(call.Pos, a) }},
		"if":       {2, 3, ifOf},
		"just": {1, 1, func(_ *compiler, _ *syntax.Call, a []*expr) *expr {
			return pure1(value.OptionalOf(a[0].typ), a[0], value.Value.Just)
		}},
		"unwrap":  {1, 2, unwrap},
		"nanvl":   {2, 2, nanvl},
		"ensure":  {2, 3, ensure},
		"aslist":  {0, -1, func(c *compiler, call *syntax.Call, a []*expr) *expr { return c.list(call.Pos, a) }},
		"astuple": {0, -1, func(c *compiler, call *syntax.Call, a []*expr) *expr { return c.tuple(call.Pos, a) }},
		"asset":   {0, -1, func(c *compiler, call *syntax.Call, a []*expr) *expr { return c.dict(call.Pos, a, nil) }},
		"asdict":  {0, -1, asDict},
		"asstruct": {0, -1, func(c *compiler, call *syntax.Call, a []*expr) *expr {
			if len(call.Names) != len(a) {
				c.fail(call.Pos, "AsStruct needs a name for every member: AsStruct(1 AS a)")
			}
			return c.structOf(call.Pos, call.Names, a)
		}},
		"astagged": {2, 2, asTagged},
		"untag":    {2, 2, untag},

		"length": {1, 1, length}, "len": {1, 1, length},
		"string::length": {1, 1, length}, "unicode::getlength": {1, 1, runes},
		"substring": {2, 3, substring}, "unicode::substring": {2, 3, substring},
		"find": {2, 2, find}, "startswith": {2, 2, textTest(strings.HasPrefix)}, "endswith": {2, 2, textTest(strings.HasSuffix)},
		"string::contains": {2, 2, textTest(strings.Contains)}, "string::startswith": {2, 2, textTest(strings.HasPrefix)}, "string::endswith": {2, 2, textTest(strings.HasSuffix)},
		"string::asciitolower": {1, 1, textMap(value.TypeString, strings.ToLower)}, "string::asciitoupper": {1, 1, textMap(value.TypeString, strings.ToUpper)},
		"unicode::tolower": {1, 1, textMap(value.TypeUtf8, strings.ToLower)}, "unicode::toupper": {1, 1, textMap(value.TypeUtf8, strings.ToUpper)},
		"string::strip": {1, 1, textMap(value.TypeString, strings.TrimSpace)}, "unicode::strip": {1, 1, textMap(value.TypeUtf8, strings.TrimSpace)},
		"string::reverse": {1, 1, textMap(value.TypeString, reverseBytes)}, "unicode::reverse": {1, 1, textMap(value.TypeUtf8, reverseRunes)},
		"string::replaceall": {3, 3, replaceAll(value.TypeString)}, "unicode::replaceall": {3, 3, replaceAll(value.TypeUtf8)},
		"string::hexencode":    {1, 1, textMap(value.TypeString, func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) })},
		"string::jointostring": {2, 2, joinList}, "unicode::jointostring": {2, 2, joinList},
		"tobytes": {1, 1, func(c *compiler, call *syntax.Call, a []*expr) *expr {
			return c.cast(call.Pos, a[0], value.TypeString)
		}},

		"abs": {1, 1, abs}, "math::abs": {1, 1, abs},
		"math::floor": {1, 1, floatFunc(math.Floor)}, "math::ceil": {1, 1, floatFunc(math.Ceil)}, "math::round": {1, 1, floatFunc(math.Round)}, "math::trunc": {1, 1, floatFunc(math.Trunc)},
		"math::sqrt": {1, 1, floatFunc(math.Sqrt)}, "math::exp": {1, 1, floatFunc(math.Exp)}, "math::log": {1, 1, floatFunc(math.Log)},
		"min_of": {1, -1, extremeOf(-1)}, "max_of": {1, -1, extremeOf(1)}, "least": {1, -1, extremeOf(-1)}, "greatest": {1, -1, extremeOf(1)},

		"currentutcdate":      {0, -1, clock(value.TypeDate, func(t time.Time) uint64 { return uint64(t.Unix() / 86400) })},
		"currentutcdatetime":  {0, -1, clock(value.TypeDatetime, func(t time.Time) uint64 { return uint64(t.Unix()) })},
		"currentutctimestamp": {0, -1, clock(value.TypeTimestamp, func(t time.Time) uint64 { return uint64(t.UnixMicro()) })},
		"random":              {0, -1, random(value.TypeDouble, func() value.Value { return value.Real(rand.Float64()) })},
		"randomnumber":        {0, -1, random(value.TypeUint64, func() value.Value { return value.Uint(rand.Uint64()) })},
		"randomuuid":          {0, -1, random(value.TypeUuid, func() value.Value { return value.UUIDFromBytes(uuid.New()) })},
		"digest::numerichash": {1, 1, numericHash}, "digest::intdigest": {1, 1, numericHash},

		"listlength": {1, 1, listLength}, "listhas": {2, 2, func(c *compiler, call *syntax.Call, a []*expr) *expr { return c.inList(call.Pos, a[1], a[0]) }},
		"dictlength": {1, 1, dictLength}, "dictlookup": {2, 2, func(c *compiler, call *syntax.Call, a []*expr) *expr { return c.index(call.Pos, a[0], a[1]) }},
		"dictcontains":  {2, 2, dictContains},
		"listfromrange": {2, 3, listFromRange}, "listreplicate": {2, 2, listReplicate},
		"listhead": {1, 1, listEnd(0)}, "listlast": {1, 1, listEnd(-1)},
		"listreverse": {1, 1, listOp(func(v []value.Value, _ *value.Type) []value.Value { slices.Reverse(v); return v })},
		"listuniq":    {1, 1, listOp(listUniq)}, "listnotnull": {1, 1, listNotNull}, "listflatten": {1, 1, listFlatten},
		"listtake":   {2, 2, listPart(func(v []value.Value, n int) []value.Value { return v[:n] })},
		"listskip":   {2, 2, listPart(func(v []value.Value, n int) []value.Value { return v[n:] })},
		"listextend": {1, -1, listExtend}, "listzip": {2, -1, listZip}, "listenumerate": {1, 1, listEnumerate},
		"dictkeys": {1, 1, dictParts}, "dictpayloads": {1, 1, dictParts}, "dictvalues": {1, 1, dictParts}, "dictitems": {1, 1, dictParts},
		"todict": {1, 1, toDict},
		"json::isvalid": {1, 1, func(c *compiler, call *syntax.Call, a []*expr) *expr {
			c.text(call.Pos, a[0])
			return lift1(value.TypeBool, a[0], false, func(v value.Value) (value.Value, bool) { return value.Truth(json.Valid([]byte(v.S))), true })
		}},
	}
	maps.Copy(functions, dateTimeFunctions())
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
	if call.Star || call.Distinct {
		c.fail(call.Pos, "%s takes neither * nor DISTINCT", call.Name)
	}
	switch name {
	case "nothing", "listcreate", "setcreate", "dictcreate":
		return c.ofType(env, name, call)
	case "typeof", "varianttype", "optionaltype", "listtype", "dicttype", "tupletype", "structtype":
		return c.typeFunction(env, name, call)
	case "formattype":
		if len(call.Args) == 1 {
			return constant(value.TypeString, value.Text(c.typeOf(env, call.Args[0]).String()))
		}
	case "variant":
		return c.variant(env, call)
	case "listmap", "listfilter", "listflatmap", "listsort", "listsortasc", "listsortdesc", "listany", "listall":
		return c.listLambda(env, name, call)
	}
	if x := c.literalCall(call); x != nil {
		return x
	}
	f, ok := functions[name]
	if !ok {
		c.fail(call.Pos, "Unknown function: %s (or outside of the supported subset of YQL)", call.Name)
	}
	if len(call.Args) < f.min || f.max >= 0 && len(call.Args) > f.max {
		c.fail(call.Pos, "%s takes %d to %d arguments, but got %d", call.Name, f.min, f.max, len(call.Args))
	}
	return f.build(c, call, c.exprs(env, call.Args))
}

// typeOf is the type that an argument stands for.
func (c *compiler) typeOf(env env, x syntax.Expr) *value.Type {
	if t, ok := x.(*syntax.TypeArg); ok {
		return t.Type
	}
	e := c.expr(env, x)
	if e.is == nil {
		c.fail(x.At(), "Expected a type, but got a value of type: %s", e.typ)
	}
	return e.is
}

// typeFunction compiles functions that make types: TypeOf(x), OptionalType(T), VariantType(T).
func (c *compiler) typeFunction(env env, name string, call *syntax.Call) *expr {
	var types []*value.Type
	for _, a := range call.Args {
		if name == "typeof" {
			types = append(types, c.expr(env, a).typ)
		} else {
			types = append(types, c.typeOf(env, a))
		}
	}
	want := map[string]int{"typeof": 1, "varianttype": 1, "optionaltype": 1, "listtype": 1, "dicttype": 2}
	if n, ok := want[name]; ok && n != len(types) {
		c.fail(call.Pos, "%s takes %d arguments, but got %d", call.Name, n, len(types))
	}
	var t *value.Type
	var err error
	switch name {
	case "typeof":
		t = types[0]
	case "varianttype":
		t, err = value.VariantOf(types[0])
	case "optionaltype":
		t = value.OptionalOf(types[0])
	case "listtype":
		t = value.ListOf(types[0])
	case "dicttype":
		t = value.DictOf(types[0], types[1])
	case "tupletype":
		t = value.TupleOf(types...)
	default:
		if len(call.Names) != len(types) {
			c.fail(call.Pos, "StructType needs a name for every member: StructType(Int32 AS a)")
		}
		members := make([]value.Member, len(types))
		for i := range types {
			members[i] = value.Member{Name: call.Names[i], Type: types[i]}
		}
		t, err = value.StructOf(members...)
	}
	if err != nil {
		c.fail(call.Pos, "%v", err)
	}
	x := constant(value.TypeString, value.Text(c.checkType(call.Pos, t).String()))
	x.is = t
	return x
}

// ofType compiles functions of types: Nothing(Int32?), ListCreate(Int32).
func (c *compiler) ofType(env env, name string, call *syntax.Call) *expr {
	var types []*value.Type
	for _, a := range call.Args {
		types = append(types, c.typeOf(env, a))
	}
	want := map[string]int{"nothing": 1, "listcreate": 1, "setcreate": 1, "dictcreate": 2}[name]
	if len(types) != want {
		c.fail(call.Pos, "%s takes %d types, but got %d", call.Name, want, len(types))
	}
	switch name {
	case "nothing":
		if types[0].Kind != value.Optional {
			c.fail(call.Pos, "Nothing needs an Optional type, but got: %s", types[0])
		}
		return constant(types[0], value.NullValue)
	case "listcreate":
		return constant(value.ListOf(types[0]), value.Value{})
	case "setcreate":
		return constant(value.DictOf(types[0], value.TypeVoid), value.Value{})
	}
	return constant(value.DictOf(types[0], types[1]), value.Value{})
}

// variant compiles Variant(value, 'member', type), or with the number of an element.
func (c *compiler) variant(env env, call *syntax.Call) *expr {
	if len(call.Args) != 3 {
		c.fail(call.Pos, "Variant takes 3 arguments, but got %d", len(call.Args))
	}
	x, which, t := c.expr(env, call.Args[0]), c.expr(env, call.Args[1]), c.typeOf(env, call.Args[2])
	if t.Kind != value.Variant || which.konst == nil || !value.IsText(which.typ.Kind) {
		c.fail(call.Pos, "Variant needs a value, a literal name and a Variant type")
	}
	i := -1
	for n, m := range t.Elem.Members {
		if m.Name == which.konst.S && t.Elem.Kind == value.Struct || t.Elem.Kind == value.Tuple && strconv.Itoa(n) == which.konst.S {
			i = n
		}
	}
	if i < 0 {
		c.fail(call.Args[1].At(), "No alternative %s in %s", which.konst.S, t)
	}
	member := t.Elem.Members[i].Type
	if x.konst != nil {
		if v, ok := literalAs(x.typ, *x.konst, member); ok {
			x = constant(member, v)
		}
	}
	if !value.Lossless(x.typ, member) {
		c.fail(call.Args[0].At(), "Expected %s, but got: %s", member, x.typ)
	}
	return pure1(t, c.convert(call.Pos, x, member), func(v value.Value) value.Value {
		return value.Value{Lo: uint64(i), Items: []value.Value{v}}
	})
}

// text fails unless x is a text; NULL passes.
func (c *compiler) text(pos syntax.Pos, x *expr) {
	switch value.Bare(x.typ).Kind {
	case value.String, value.Utf8, value.Json, value.Yson, value.JsonDocument, value.Null:
		return
	}
	c.fail(pos, "Expected a text, but got: %s", x.typ)
}

func ifOf(c *compiler, call *syntax.Call, a []*expr) *expr {
	if len(a) == 2 {
		a = append(a, constant(value.TypeNull, value.NullValue))
	}
	return c.choose(call.Pos, []*expr{c.truth(call.Args[0].At(), a[0])}, a[1:])
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

func ensure(c *compiler, call *syntax.Call, a []*expr) *expr {
	cond := c.truth(call.Pos, a[1])
	return pure(a[0].typ, []*expr{a[0], cond}, func(v []value.Value) (value.Value, error) {
		if v[1].Null > 0 || v[1].Lo == 0 {
			return v[0], invalidRuntime(call.Pos, "Condition violated")
		}
		return v[0], nil
	})
}

func nanvl(c *compiler, call *syntax.Call, a []*expr) *expr {
	t, a := c.common(call.Pos, a)
	if !value.IsFloat(value.Bare(t).Kind) {
		c.fail(call.Pos, "NANVL needs floating point numbers, but got: %s", t)
	}
	return pure2(t, a[0], a[1], func(x, y value.Value) value.Value {
		if x.Null == 0 && math.IsNaN(x.Float()) {
			return y
		}
		return x
	})
}

func asDict(c *compiler, call *syntax.Call, a []*expr) *expr {
	var keys, vals []*expr
	for _, x := range a {
		if x.typ.Kind != value.Tuple || len(x.typ.Members) != 2 {
			c.fail(call.Pos, "AsDict needs tuples of a key and a value, but got: %s", x.typ)
		}
		keys, vals = append(keys, c.member(call.Pos, x, "0")), append(vals, c.member(call.Pos, x, "1"))
	}
	return c.dict(call.Pos, keys, vals)
}

func asTagged(c *compiler, call *syntax.Call, a []*expr) *expr {
	if a[1].konst == nil || value.Bare(a[1].typ).Kind != value.String {
		c.fail(call.Pos, "AsTagged needs a literal tag")
	}
	return pure1(value.TaggedOf(a[0].typ, a[1].konst.S), a[0], func(v value.Value) value.Value { return v })
}

func untag(c *compiler, call *syntax.Call, a []*expr) *expr {
	if a[0].typ.Kind != value.Tagged {
		c.fail(call.Pos, "Untag needs a tagged value, but got: %s", a[0].typ)
	}
	return pure1(a[0].typ.Elem, a[0], func(v value.Value) value.Value { return v })
}

func length(c *compiler, call *syntax.Call, a []*expr) *expr {
	c.text(call.Pos, a[0])
	return lift1(value.TypeUint32, a[0], false, func(v value.Value) (value.Value, bool) { return value.Uint(uint64(len(v.S))), true })
}

func runes(c *compiler, call *syntax.Call, a []*expr) *expr {
	c.text(call.Pos, a[0])
	return lift1(value.TypeUint64, a[0], false, func(v value.Value) (value.Value, bool) {
		return value.Uint(uint64(utf8.RuneCountInString(v.S))), true
	})
}

func abs(c *compiler, call *syntax.Call, a []*expr) *expr {
	t := value.Bare(a[0].typ)
	if !value.IsInt(t.Kind) && !value.IsFloat(t.Kind) && t.Kind != value.Decimal && !value.IsInterval(t.Kind) {
		c.fail(call.Pos, "Expected a number, but got: %s", a[0].typ)
	}
	return lift1(t, a[0], false, func(v value.Value) (value.Value, bool) {
		if value.Compare(t, v, value.Value{}) < 0 {
			v = value.Neg(t, v)
		}
		return v, true
	})
}

func floatFunc(f func(float64) float64) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		t := value.Bare(a[0].typ)
		conv, ok := value.Convert(t, value.TypeDouble)
		if !ok {
			c.fail(call.Pos, "Expected a number, but got: %s", a[0].typ)
		}
		return lift1(value.TypeDouble, a[0], false, func(v value.Value) (value.Value, bool) { return value.Real(f(conv(v).Float())), true })
	}
}

func extremeOf(sign int) builder {
	return func(c *compiler, call *syntax.Call, a []*expr) *expr {
		t, a := c.common(call.Pos, a)
		if !value.Comparable(t) {
			c.fail(call.Pos, "Cannot compare %s", t)
		}
		return pure(t, a, func(v []value.Value) (value.Value, error) {
			best := v[0]
			for _, x := range v[1:] {
				if best.IsNull() || !x.IsNull() && value.Compare(t, x, best)*sign > 0 {
					best = x
				}
			}
			return best, nil
		})
	}
}

// clock reads the time of the execution: the same in all its statements.
func clock(t *value.Type, f func(time.Time) uint64) builder {
	return func(*compiler, *syntax.Call, []*expr) *expr {
		return &expr{typ: t, free: true, eval: func(e *exec, _ []value.Value) (value.Value, error) { return value.Uint(f(e.now)), nil }}
	}
}

// random is computed anew for every row if it has arguments, and once if not, as in YQL.
func random(t *value.Type, f func() value.Value) builder {
	return func(c *compiler, _ *syntax.Call, args []*expr) *expr {
		free := true
		for _, a := range args {
			free = free && a.free
		}
		x := &expr{typ: t, free: free, eval: func(*exec, []value.Value) (value.Value, error) { return f(), nil }}
		if free && c.lambdas == 0 {
			return c.once(x)
		}
		return x
	}
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

func listLength(c *compiler, call *syntax.Call, a []*expr) *expr {
	if k := value.Bare(a[0].typ).Kind; k != value.List && k != value.EmptyList {
		c.fail(call.Pos, "Expected a list, but got: %s", a[0].typ)
	}
	return lift1(value.TypeUint64, a[0], false, func(v value.Value) (value.Value, bool) { return value.Uint(uint64(len(v.Items))), true })
}

func dictLength(c *compiler, call *syntax.Call, a []*expr) *expr {
	if k := value.Bare(a[0].typ).Kind; k != value.Dict && k != value.EmptyDict {
		c.fail(call.Pos, "Expected a dict, but got: %s", a[0].typ)
	}
	return lift1(value.TypeUint64, a[0], false, func(v value.Value) (value.Value, bool) { return value.Uint(uint64(len(v.Items) / 2)), true })
}

func dictContains(c *compiler, call *syntax.Call, a []*expr) *expr {
	t := value.Bare(a[0].typ)
	if t.Kind != value.Dict {
		c.fail(call.Pos, "Expected a dict, but got: %s", a[0].typ)
	}
	key := c.convert(call.Pos, a[1], t.Key)
	return lift2(value.TypeBool, a[0], key, false, func(d, k value.Value) (value.Value, bool) {
		_, ok := lookup(t, d, k)
		return value.Truth(ok), true
	})
}
