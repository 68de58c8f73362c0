package value

import (
	"fmt"
	"math"
)

// intSize is the width of integer kinds in bits.
var intSize = [lastPrimitive]int{Int8: 8, Int16: 16, Int32: 32, Int64: 64, Uint8: 8, Uint16: 16, Uint32: 32, Uint64: 64}

// lossless reports whether every value of integer kind a is one of integer kind b.
func lossless(a, b Kind) bool {
	if IsSigned(a) == IsSigned(b) {
		return intSize[a] <= intSize[b]
	}
	return IsSigned(b) && intSize[a] < intSize[b]
}

// timeRank orders the times by what they can express; the wide ones are 10 higher.
var timeRank = [lastPrimitive]int{Date: 1, Datetime: 2, Timestamp: 3, Date32: 11, Datetime64: 12, Timestamp64: 13}

var timeOfRank = map[int]Kind{1: Date, 2: Datetime, 3: Timestamp, 11: Date32, 12: Datetime64, 13: Timestamp64}

// Common returns the type that values of a and b both become when they meet (in
// arithmetic, comparisons, COALESCE, lists), or false if there is none.
func Common(a, b *Type) (*Type, bool) {
	if a.Equal(b) {
		return a, true
	}
	switch {
	case a.Kind == Null:
		return Nullable(b), true
	case b.Kind == Null:
		return Nullable(a), true
	case a.Kind == Optional || b.Kind == Optional:
		c, ok := Common(Bare(a), Bare(b))
		if !ok {
			return nil, false
		}
		return OptionalOf(c), true
	case a.Kind == EmptyList && b.Kind == List:
		return b, true
	case b.Kind == EmptyList && a.Kind == List:
		return a, true
	case a.Kind != b.Kind && (a.Kind >= lastPrimitive || b.Kind >= lastPrimitive) && a.Kind != Decimal && b.Kind != Decimal:
		return nil, false
	}
	switch a.Kind {
	case List:
		if e, ok := Common(a.Elem, b.Elem); ok {
			return ListOf(e), true
		}
		return nil, false
	case Tuple:
		if len(a.Members) != len(b.Members) {
			return nil, false
		}
		elems := make([]*Type, len(a.Members))
		for i := range elems {
			e, ok := Common(a.Members[i].Type, b.Members[i].Type)
			if !ok {
				return nil, false
			}
			elems[i] = e
		}
		return TupleOf(elems...), true
	case Struct:
		return commonStruct(a, b)
	}
	return commonPrimitive(a, b)
}

func commonStruct(a, b *Type) (*Type, bool) {
	if len(a.Members) != len(b.Members) {
		return nil, false
	}
	members := make([]Member, len(a.Members))
	for i := range members {
		e, ok := Common(a.Members[i].Type, b.Members[i].Type)
		if !ok || a.Members[i].Name != b.Members[i].Name {
			return nil, false
		}
		members[i] = Member{a.Members[i].Name, e}
	}
	t, err := StructOf(members...)
	return t, err == nil
}

func commonPrimitive(a, b *Type) (*Type, bool) {
	x, y := a.Kind, b.Kind
	switch {
	case x == Decimal && y == Decimal:
		whole := max(a.Precision-a.Scale, b.Precision-b.Scale)
		scale := max(a.Scale, b.Scale)
		t, err := DecimalOf(min(whole+scale, 35), scale)
		return t, err == nil
	case x == Decimal && IsInt(y):
		return a, true
	case y == Decimal && IsInt(x):
		return b, true
	case x == Decimal || y == Decimal:
		return nil, false
	case IsInt(x) && IsInt(y): // the wider one; of two as wide the unsigned one
		if intSize[x] > intSize[y] || intSize[x] == intSize[y] && !IsSigned(x) {
			return a, true
		}
		return b, true
	case IsFloat(x) && (IsFloat(y) || IsInt(y)), IsInt(x) && IsFloat(y):
		if x == Double || y == Double {
			return TypeDouble, true
		}
		return TypeFloat, true
	case x == String && y == Utf8 || x == Utf8 && y == String:
		return TypeString, true
	case IsTime(x) && IsTime(y):
		r := max(timeRank[x]%10, timeRank[y]%10)
		if timeRank[x] > 10 || timeRank[y] > 10 {
			r += 10
		}
		return prims[timeOfRank[r]], true
	case IsInterval(x) && IsInterval(y):
		return prims[Interval64], true
	}
	return nil, false
}

// Convert returns the conversion from a type to a type it has in common with another
// (Common(from, to) is to): it cannot fail. ok is false if there is none.
func Convert(from, to *Type) (conv func(Value) Value, ok bool) {
	same := func(v Value) Value { return v }
	if from.Equal(to) {
		return same, true
	}
	switch {
	case to.Kind == Optional && from.Kind == Null:
		return func(Value) Value { return NullValue }, true
	case to.Kind == Optional && from.Kind != Optional:
		f, ok := Convert(from, to.Elem)
		return func(v Value) Value { return f(v).Just() }, ok
	case to.Kind == Optional:
		f, ok := Convert(from.Elem, to.Elem)
		return func(v Value) Value {
			if v.IsNull() {
				return v
			}
			return f(v.Unwrap()).Just()
		}, ok
	case from.Kind == EmptyList && to.Kind == List:
		return same, true
	}
	if c, ok := Common(from, to); !ok || !c.Equal(to) {
		return nil, false
	}
	switch to.Kind {
	case List, Tuple, Struct:
		return convertItems(from, to)
	}
	f, _, err := castScalar(from, to)
	if err != nil {
		return nil, false
	}
	if IsInt(from.Kind) && IsInt(to.Kind) { // a negative number wraps when unsigned wins
		bits := intSize[to.Kind]
		return func(v Value) Value {
			if bits < 64 && !IsSigned(to.Kind) {
				v.Lo &= 1<<bits - 1
			}
			return v
		}, true
	}
	return func(v Value) Value { r, _ := f(v); return r }, true
}

func convertItems(from, to *Type) (func(Value) Value, bool) {
	pairs := [][2]*Type{{from.Elem, to.Elem}}
	if to.Kind != List {
		pairs = nil
		for i := range to.Members {
			pairs = append(pairs, [2]*Type{from.Members[i].Type, to.Members[i].Type})
		}
	}
	var convs []func(Value) Value
	for _, p := range pairs {
		f, ok := Convert(p[0], p[1])
		if !ok {
			return nil, false
		}
		convs = append(convs, f)
	}
	return func(v Value) Value {
		items := make([]Value, len(v.Items))
		for i, it := range v.Items {
			items[i] = convs[i%len(convs)](it)
		}
		return Value{Items: items}
	}, true
}

// Lossless reports whether an expression of type from may stand where a value of type to
// is stored without CAST: no value is lost, and NULL only where to is Optional.
func Lossless(from, to *Type) bool {
	switch {
	case from.Equal(to):
		return true
	case to.Kind == Optional:
		return from.Kind == Null || Lossless(Bare(from), to.Elem)
	case from.Kind == Optional || from.Kind == Null:
		return false
	case IsInt(from.Kind) && IsInt(to.Kind):
		return lossless(from.Kind, to.Kind)
	case from.Kind == Double && to.Kind == Float:
		return false
	}
	c, ok := Common(from, to)
	return ok && c.Equal(to)
}

// Cast returns CAST(from AS to): the type of the result (Optional where the cast can fail)
// and the function.
func Cast(from, to *Type) (*Type, func(Value) Value, error) {
	if to.Kind == Optional {
		t, f, err := Cast(from, to.Elem)
		if err != nil {
			return nil, nil, err
		}
		if t.Kind == Optional || from.Equal(to.Elem) && t.Kind == Null {
			return t, f, nil
		}
		return OptionalOf(t), func(v Value) Value { return f(v).Just() }, nil
	}
	switch from.Kind {
	case Null:
		if to.Kind == Null {
			return to, func(v Value) Value { return v }, nil
		}
		return OptionalOf(to), func(Value) Value { return NullValue }, nil
	case Optional:
		t, f, err := Cast(from.Elem, to)
		if err != nil {
			return nil, nil, err
		}
		wrap := t.Kind != Optional
		return Nullable(t), func(v Value) Value {
			if v.IsNull() {
				return NullValue
			}
			if r := f(v.Unwrap()); !wrap {
				return r
			} else {
				return r.Just()
			}
		}, nil
	}
	if from.Equal(to) || from.Kind == EmptyList && to.Kind == List {
		return to, func(v Value) Value { return v }, nil
	}
	f, total, err := castScalar(from, to)
	if err != nil {
		return nil, nil, err
	}
	if total {
		return to, func(v Value) Value { r, _ := f(v); return r }, nil
	}
	return OptionalOf(to), func(v Value) Value {
		if r, ok := f(v); ok {
			return r.Just()
		}
		return NullValue
	}, nil
}

// caster converts one value; false means that it cannot be converted.
type caster func(Value) (Value, bool)

func castScalar(from, to *Type) (f caster, total bool, err error) {
	a, b := from.Kind, to.Kind
	if !(from.Primitive() || a == Decimal) || !(to.Primitive() || b == Decimal) {
		return nil, false, fmt.Errorf("cannot cast %s to %s", from, to)
	}
	isText := a == String || a == Utf8
	switch {
	case b == Utf8 && a != String && a != Yson || b == String:
		return func(v Value) (Value, bool) { return Text(Format(from, v)), true }, true, nil
	case isText || a == Yson && b == Utf8 || a == Json && b == JsonDocument || a == JsonDocument && b == Json:
		return func(v Value) (Value, bool) {
			r, err := Parse(to, v.S)
			return r, err == nil
		}, false, nil
	case a == Decimal || b == Decimal:
		return castDecimal(from, to)
	case IsTime(a) && IsTime(b):
		f, total := castTime(a, b)
		return f, total, nil
	case IsInterval(a) && IsInterval(b):
		return func(v Value) (Value, bool) { return v, InRange(b, int64(v.Lo)) }, b == Interval64, nil
	}
	numeric := func(k Kind) bool { return IsInt(k) || IsFloat(k) || k == Bool }
	number := func(k Kind) bool { return IsInt(k) || IsTime(k) || IsInterval(k) }
	switch {
	case numeric(a) && b == Bool:
		return func(v Value) (Value, bool) {
			return Truth(v.Lo != 0 && v.Float() != 0 || v.Lo != 0 && !IsFloat(a)), true
		}, true, nil
	case a == Bool && IsInt(b):
		return func(v Value) (Value, bool) { return v, true }, true, nil
	case a == Bool && IsFloat(b):
		return func(v Value) (Value, bool) { return Real(float64(v.Lo)), true }, true, nil
	case IsInt(a) && IsFloat(b):
		return func(v Value) (Value, bool) { return roundTo(b, toFloat(a, v)), true }, true, nil
	case IsFloat(a) && IsFloat(b):
		return func(v Value) (Value, bool) { return roundTo(b, v.Float()), true }, true, nil
	case IsFloat(a) && IsInt(b):
		return func(v Value) (Value, bool) { return floatToInt(b, v.Float()) }, false, nil
	case number(a) && number(b) && (IsInt(a) || IsInt(b)):
		return castInt(a, b), IsInt(a) && IsInt(b) && lossless(a, b), nil
	}
	return nil, false, fmt.Errorf("cannot cast %s to %s", from, to)
}

func toFloat(k Kind, v Value) float64 {
	if signed(k) {
		return float64(int64(v.Lo))
	}
	return float64(v.Lo)
}

func roundTo(k Kind, f float64) Value {
	if k == Float {
		f = float64(float32(f))
	}
	return Real(f)
}

func floatToInt(k Kind, f float64) (Value, bool) {
	f = math.Trunc(f)
	switch {
	case f != f || f >= 1<<64 || f < -(1<<63):
		return Value{}, false
	case f >= 1<<63:
		return Uint(uint64(f)), k == Uint64
	}
	return Int(int64(f)), InRange(k, int64(f))
}

// castInt goes between integers, and between integers and the numbers below dates.
func castInt(a, b Kind) caster {
	return func(v Value) (Value, bool) {
		if !signed(a) && v.Lo > math.MaxInt64 {
			return v, b == Uint64
		}
		return v, InRange(b, int64(v.Lo))
	}
}

// micros per unit of a time by rank%10.
var timeUnit = [4]int64{0, 86_400_000_000, 1_000_000, 1}

func castTime(a, b Kind) (caster, bool) {
	ua, ub := timeUnit[timeRank[a]%10], timeUnit[timeRank[b]%10]
	return func(v Value) (Value, bool) {
		n := int64(v.Lo)
		if ua >= ub {
			n *= ua / ub
		} else {
			n, _ = floorDiv(n, ub/ua)
		}
		return Int(n), InRange(b, n)
	}, timeRank[b] > 10 || timeRank[a] < 10
}

func castDecimal(from, to *Type) (caster, bool, error) {
	a, b := from.Kind, to.Kind
	switch {
	case a == Decimal && b == Decimal:
		return func(v Value) (Value, bool) {
			n := decBig(v)
			if decSpecial(n) {
				return v, true
			}
			return clampDec(to, rescale(n, int(to.Scale)-int(from.Scale))), true
		}, true, nil
	case a == Decimal && IsFloat(b):
		return func(v Value) (Value, bool) {
			r, err := Parse(to, formatDecimal(from, v))
			return r, err == nil
		}, true, nil
	case a == Decimal && IsInt(b):
		return func(v Value) (Value, bool) {
			n := decBig(v)
			if decSpecial(n) {
				return Value{}, false
			}
			n.Quo(n, pow10(from.Scale))
			switch {
			case n.IsInt64():
				return Int(n.Int64()), InRange(b, n.Int64())
			case n.IsUint64():
				return Uint(n.Uint64()), b == Uint64
			}
			return Value{}, false
		}, false, nil
	case IsInt(a) || IsFloat(a):
		return func(v Value) (Value, bool) {
			r, err := parseDecimal(to, Format(from, v))
			return r, err == nil
		}, IsInt(a), nil
	}
	return nil, false, fmt.Errorf("cannot cast %s to %s", from, to)
}
