package value

import (
	"math"
	"math/bits"
	"strings"
)

// Value is one value of a type that stands elsewhere. The fields in use:
//
//	integers, dates, intervals, Bool   Lo (signed ones as two's complement of 64 bits)
//	Float, Double                      Lo: the bits of a float64
//	Decimal, Uuid                      Lo, Hi
//	texts, bytes, Tz*, Json, DyNumber  S
//	Optional                           Null, else the value of the item itself
//	List, Tuple, Struct                Items
//	Dict                               Items: key, payload, key, payload ..., sorted by key
//	Variant                            Lo: index; Items: the one value
//	Tagged                             as its item
//	Pg                                 S; Lo 1: it came as text, 0: as bytes
//	Null                               Null = 1
//
// Null counts, from outside, the level of Optional that holds nothing: 1 is NULL,
// 2 is Just(NULL). 0 means that the value is there.
type Value struct {
	Lo, Hi uint64
	S      string
	Items  []Value
	Null   uint8
}

// NullValue is the NULL of every Optional type, and the one value of Null.
var NullValue = Value{Null: 1}

// IsNull reports whether the outermost Optional holds nothing.
func (v Value) IsNull() bool { return v.Null == 1 }

// Just wraps v into one more Optional.
func (v Value) Just() Value {
	if v.Null > 0 {
		v.Null++
	}
	return v
}

// Unwrap takes the outermost Optional off; v must not be NULL.
func (v Value) Unwrap() Value {
	if v.Null > 0 {
		v.Null--
	}
	return v
}

// Int returns a value of a signed integer, date or interval type.
func Int(i int64) Value { return Value{Lo: uint64(i)} }

// Uint returns a value of an unsigned integer or date type.
func Uint(u uint64) Value { return Value{Lo: u} }

// Real returns a value of Double (or of Float if f is one).
func Real(f float64) Value { return Value{Lo: math.Float64bits(f)} }

// Text returns a value of a text or bytes type.
func Text(s string) Value { return Value{S: s} }

// Truth returns a Bool.
func Truth(b bool) Value {
	if b {
		return Value{Lo: 1}
	}
	return Value{}
}

// Float returns the number of a Float or Double.
func (v Value) Float() float64 { return math.Float64frombits(v.Lo) }

// Size is roughly the bytes that the value holds in memory.
func (v Value) Size() int {
	n := 64 + len(v.S)
	for _, it := range v.Items {
		n += it.Size()
	}
	return n
}

// signed reports whether values of k are signed 64-bit numbers in Lo.
func signed(k Kind) bool {
	switch k {
	case Int8, Int16, Int32, Int64, Interval, Date32, Datetime64, Timestamp64, Interval64:
		return true
	}
	return false
}

// IsInt reports whether k is an integer kind.
func IsInt(k Kind) bool { return k >= Int8 && k <= Uint64 }

// IsSigned reports whether k is a signed integer kind.
func IsSigned(k Kind) bool { return k >= Int8 && k <= Int64 }

// IsFloat reports whether k is Float or Double.
func IsFloat(k Kind) bool { return k == Float || k == Double }

// IsText reports whether k holds text or bytes in S.
func IsText(k Kind) bool {
	return k >= String && k <= JsonDocument || k >= TzDate && k <= TzTimestamp || k == DyNumber
}

// IsTime reports whether k is a date or a time (with or without wide range).
func IsTime(k Kind) bool {
	return k >= Date && k <= Timestamp || k >= Date32 && k <= Timestamp64
}

// IsInterval reports whether k is an interval.
func IsInterval(k Kind) bool { return k == Interval || k == Interval64 }

// Comparable reports whether values of t have an order.
func Comparable(t *Type) bool {
	switch t.Kind {
	case Json, JsonDocument, Yson, Variant, Dict, Pg:
		return false
	case Optional, List, Tagged:
		return Comparable(t.Elem)
	case Tuple, Struct:
		for _, m := range t.Members {
			if !Comparable(m.Type) {
				return false
			}
		}
	}
	return true
}

// Compare orders two values of type t. NULL comes first, NaN is equal to itself and
// greater than numbers: the order of keys and of ORDER BY.
func Compare(t *Type, a, b Value) int {
	switch {
	case t.Kind == Optional:
		return compareOptional(t, a, b)
	case signed(t.Kind):
		return cmp(int64(a.Lo), int64(b.Lo))
	case IsFloat(t.Kind):
		return compareFloat(a.Float(), b.Float())
	case IsText(t.Kind):
		if t.Kind == DyNumber {
			return strings.Compare(dyNumberKey(a.S), dyNumberKey(b.S))
		}
		return strings.Compare(a.S, b.S)
	}
	switch t.Kind {
	case Decimal:
		if c := cmp(int64(a.Hi), int64(b.Hi)); c != 0 {
			return c
		}
	case Uuid: // by the 16 bytes as they lie in memory
		if c := cmp(bits.ReverseBytes64(a.Lo), bits.ReverseBytes64(b.Lo)); c != 0 {
			return c
		}
		return cmp(bits.ReverseBytes64(a.Hi), bits.ReverseBytes64(b.Hi))
	case Tagged:
		return Compare(t.Elem, a, b)
	case List:
		return compareItems(a, b, func(int) *Type { return t.Elem })
	case Tuple, Struct:
		return compareItems(a, b, func(i int) *Type { return t.Members[i].Type })
	case Dict:
		return compareItems(a, b, func(i int) *Type { return [2]*Type{t.Key, t.Elem}[i%2] })
	case Variant:
		if c := cmp(a.Lo, b.Lo); c != 0 {
			return c
		}
		return Compare(t.Elem.Members[a.Lo].Type, a.Items[0], b.Items[0])
	case Pg:
		return strings.Compare(a.S, b.S)
	case Void, Null, EmptyList, EmptyDict:
		return 0
	}
	return cmp(a.Lo, b.Lo)
}

func compareOptional(t *Type, a, b Value) int {
	switch {
	case a.Null == 1 && b.Null == 1:
		return 0
	case a.Null == 1:
		return -1
	case b.Null == 1:
		return 1
	}
	return Compare(t.Elem, a.Unwrap(), b.Unwrap())
}

// compareItems orders two containers by their items, and by their number if one begins with the other.
func compareItems(a, b Value, typ func(i int) *Type) int {
	for i := 0; i < len(a.Items) && i < len(b.Items); i++ {
		if c := Compare(typ(i), a.Items[i], b.Items[i]); c != 0 {
			return c
		}
	}
	return cmp(len(a.Items), len(b.Items))
}

func cmp[T int | int64 | uint64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func compareFloat(a, b float64) int {
	an, bn := math.IsNaN(a), math.IsNaN(b)
	switch {
	case an && bn:
		return 0
	case an:
		return 1
	case bn:
		return -1
	}
	return cmp(a, b)
}

// AppendHash appends bytes that are equal exactly for equal values of t: keys of
// joins and of IN.
func AppendHash(b []byte, t *Type, v Value) []byte {
	if t.Kind == Optional {
		if v.Null == 1 {
			return append(b, 0)
		}
		return AppendHash(append(b, 1), t.Elem, v.Unwrap())
	}
	switch t.Kind {
	case Float, Double:
		f := v.Float()
		if f == 0 {
			f = 0 // -0 and 0 are one value
		}
		return appendUint64(b, math.Float64bits(f))
	case Decimal, Uuid:
		return appendUint64(appendUint64(b, v.Hi), v.Lo)
	case Tagged:
		return AppendHash(b, t.Elem, v)
	case List:
		b = appendUint64(b, uint64(len(v.Items)))
		for _, it := range v.Items {
			b = AppendHash(b, t.Elem, it)
		}
		return b
	case Tuple, Struct:
		for i, m := range t.Members {
			b = AppendHash(b, m.Type, v.Items[i])
		}
		return b
	case Dict:
		b = appendUint64(b, uint64(len(v.Items)))
		for i := 0; i+1 < len(v.Items); i += 2 {
			b = AppendHash(AppendHash(b, t.Key, v.Items[i]), t.Elem, v.Items[i+1])
		}
		return b
	case Variant:
		return AppendHash(appendUint64(b, v.Lo), t.Elem.Members[v.Lo].Type, v.Items[0])
	case Void, Null, EmptyList, EmptyDict:
		return b
	}
	if t.Kind == DyNumber {
		v.S = dyNumberKey(v.S)
	}
	if IsText(t.Kind) || t.Kind == Pg {
		return append(appendUint64(b, uint64(len(v.S))), v.S...)
	}
	return appendUint64(b, v.Lo)
}

func appendUint64(b []byte, u uint64) []byte {
	return append(b, byte(u>>56), byte(u>>48), byte(u>>40), byte(u>>32), byte(u>>24), byte(u>>16), byte(u>>8), byte(u))
}
