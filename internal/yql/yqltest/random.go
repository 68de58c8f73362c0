// Package yqltest makes random YQL types and values for tests: every kind of
// type, with the ends of every range, in the form that the wire has. It depends
// on nothing of the code that it tests.
package yqltest

import (
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// Primitives are the ids of all primitive types, those included that the
// published enum does not name yet.
var Primitives = func() []Ydb.Type_PrimitiveTypeId {
	ids := []Ydb.Type_PrimitiveTypeId{68, 69, 70}
	for id := range Ydb.Type_PrimitiveTypeId_name {
		if id != 0 {
			ids = append(ids, Ydb.Type_PrimitiveTypeId(id))
		}
	}
	return ids
}()

// Type returns a random type that nests at most depth deep; depth is at least 1.
func Type(r *rand.Rand, depth int) *Ydb.Type {
	kinds := 15
	if depth <= 1 {
		kinds = 7
	}
	switch r.IntN(kinds) {
	default:
		return Primitive(Primitives[r.IntN(len(Primitives))])
	case 0:
		precision := 1 + r.Uint32N(35)
		return Decimal(precision, r.Uint32N(precision+1))
	case 1:
		return simple(r)
	case 2:
		return pg(r)
	case 7, 8:
		return Optional(Type(r, depth-1))
	case 9:
		return List(Type(r, depth-1))
	case 10:
		return &Ydb.Type{Type: &Ydb.Type_TupleType{TupleType: &Ydb.TupleType{Elements: elements(r, depth, 0)}}}
	case 11:
		return &Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: members(r, depth, 0)}}}
	case 12:
		payload := Type(r, depth-1)
		if r.IntN(3) == 0 {
			payload = Void()
		}
		return &Ydb.Type{Type: &Ydb.Type_DictType{DictType: &Ydb.DictType{Key: Type(r, depth-1), Payload: payload}}}
	case 13:
		v := &Ydb.VariantType{Type: &Ydb.VariantType_TupleItems{TupleItems: &Ydb.TupleType{Elements: elements(r, depth, 1)}}}
		if r.IntN(2) == 0 {
			v.Type = &Ydb.VariantType_StructItems{StructItems: &Ydb.StructType{Members: members(r, depth, 1)}}
		}
		return &Ydb.Type{Type: &Ydb.Type_VariantType{VariantType: v}}
	case 14:
		return &Ydb.Type{Type: &Ydb.Type_TaggedType{TaggedType: &Ydb.TaggedType{Tag: name(r), Type: Type(r, depth-1)}}}
	}
}

// Primitive returns a primitive type.
func Primitive(id Ydb.Type_PrimitiveTypeId) *Ydb.Type {
	return &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}}
}

// Decimal returns Decimal(precision,scale).
func Decimal(precision, scale uint32) *Ydb.Type {
	return &Ydb.Type{Type: &Ydb.Type_DecimalType{DecimalType: &Ydb.DecimalType{Precision: precision, Scale: scale}}}
}

// Optional returns Optional<t>.
func Optional(t *Ydb.Type) *Ydb.Type {
	return &Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: t}}}
}

// List returns List<t>.
func List(t *Ydb.Type) *Ydb.Type {
	return &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: t}}}
}

// Void returns Void.
func Void() *Ydb.Type { return &Ydb.Type{Type: &Ydb.Type_VoidType{}} }

func simple(r *rand.Rand) *Ydb.Type {
	switch r.IntN(4) {
	case 0:
		return Void()
	case 1:
		return &Ydb.Type{Type: &Ydb.Type_NullType{}}
	case 2:
		return &Ydb.Type{Type: &Ydb.Type_EmptyListType{}}
	}
	return &Ydb.Type{Type: &Ydb.Type_EmptyDictType{}}
}

func pg(r *rand.Rand) *Ydb.Type {
	t := []*Ydb.PgType{
		{Oid: 23, TypeName: "pgint4"},
		{Oid: 25, TypeName: "pgtext"},
		{Oid: 1007, TypeName: "_pgint4"},
		{Oid: 16_385}, // one that a user made has no name here
	}[r.IntN(4)]
	return &Ydb.Type{Type: &Ydb.Type_PgType{PgType: t}}
}

func elements(r *rand.Rand, depth, least int) []*Ydb.Type {
	var list []*Ydb.Type
	for range least + r.IntN(4) {
		list = append(list, Type(r, depth-1))
	}
	return list
}

func members(r *rand.Rand, depth, least int) []*Ydb.StructMember {
	var list []*Ydb.StructMember
	count := least + r.IntN(4)
	if r.IntN(8) == 0 {
		count += 10
	}
	seen := make(map[string]bool)
	for range count {
		n := name(r)
		for seen[n] {
			n += strconv.Itoa(r.IntN(10))
		}
		seen[n] = true
		list = append(list, &Ydb.StructMember{Name: n, Type: Type(r, depth-1)})
	}
	return list
}

func name(r *rand.Rand) string {
	names := []string{"id", "name", "_x", "A1", "value", "type", "index", "Int32", "a b", "", "'", `\`, "`", "\"",
		"ключ", "a\nb", "@@", "--", "$p", "7"}
	return names[r.IntN(len(names))]
}

// Value returns a random value of a type as the wire has it. Long: it is one flat
// list of the kinds of types.
func Value(r *rand.Rand, t *Ydb.Type) *Ydb.Value {
	switch x := t.GetType().(type) {
	case *Ydb.Type_TypeId:
		return scalar(r, x.TypeId)
	case *Ydb.Type_DecimalType:
		return decimal(r, x.DecimalType.GetPrecision())
	case *Ydb.Type_OptionalType:
		if r.IntN(3) == 0 {
			return null()
		}
		inner := Value(r, x.OptionalType.GetItem())
		// A null at the end is told by one nested value for each Just.
		end := inner
		for end.GetNestedValue() != nil {
			end = end.GetNestedValue()
		}
		if _, ok := end.GetValue().(*Ydb.Value_NullFlagValue); ok {
			return &Ydb.Value{Value: &Ydb.Value_NestedValue{NestedValue: inner}}
		}
		return inner
	case *Ydb.Type_TaggedType:
		return Value(r, x.TaggedType.GetType())
	case *Ydb.Type_VoidType, *Ydb.Type_NullType:
		return null()
	case *Ydb.Type_PgType:
		switch r.IntN(4) {
		case 0:
			return null()
		case 1:
			return &Ydb.Value{Value: &Ydb.Value_BytesValue{BytesValue: bytes(r)}}
		}
		return text(phrase(r))
	case *Ydb.Type_ListType:
		v := &Ydb.Value{}
		for range r.IntN(4) {
			v.Items = append(v.Items, Value(r, x.ListType.GetItem()))
		}
		return v
	case *Ydb.Type_TupleType:
		v := &Ydb.Value{}
		for _, e := range x.TupleType.GetElements() {
			v.Items = append(v.Items, Value(r, e))
		}
		return v
	case *Ydb.Type_StructType:
		v := &Ydb.Value{}
		for _, m := range x.StructType.GetMembers() {
			v.Items = append(v.Items, Value(r, m.GetType()))
		}
		return v
	case *Ydb.Type_DictType:
		v := &Ydb.Value{}
		for range r.IntN(4) {
			v.Pairs = append(v.Pairs, &Ydb.ValuePair{
				Key: Value(r, x.DictType.GetKey()), Payload: Value(r, x.DictType.GetPayload()),
			})
		}
		return v
	case *Ydb.Type_VariantType:
		var alternatives []*Ydb.Type
		alternatives = append(alternatives, x.VariantType.GetTupleItems().GetElements()...)
		for _, m := range x.VariantType.GetStructItems().GetMembers() {
			alternatives = append(alternatives, m.GetType())
		}
		i := r.IntN(len(alternatives))
		return &Ydb.Value{
			Value:        &Ydb.Value_NestedValue{NestedValue: Value(r, alternatives[i])},
			VariantIndex: uint32(i),
		}
	}
	return &Ydb.Value{} // the empty containers
}

// scalar returns a random value of a primitive type. Long: it is one flat list of
// the types, each with the range of its values.
func scalar(r *rand.Rand, id Ydb.Type_PrimitiveTypeId) *Ydb.Value {
	const day = 86_400_000_000
	switch id {
	case Ydb.Type_BOOL:
		return &Ydb.Value{Value: &Ydb.Value_BoolValue{BoolValue: r.IntN(2) == 0}}
	case Ydb.Type_INT8:
		return i32(r, math.MinInt8, math.MaxInt8)
	case Ydb.Type_INT16:
		return i32(r, math.MinInt16, math.MaxInt16)
	case Ydb.Type_INT32:
		return i32(r, math.MinInt32, math.MaxInt32)
	case Ydb.Type_DATE32:
		return i32(r, -53_375_809, 53_375_807)
	case Ydb.Type_UINT8:
		return u32(r, math.MaxUint8)
	case Ydb.Type_UINT16:
		return u32(r, math.MaxUint16)
	case Ydb.Type_UINT32:
		return u32(r, math.MaxUint32)
	case Ydb.Type_DATE:
		return u32(r, 49_672)
	case Ydb.Type_DATETIME:
		return u32(r, 49_673*86_400-1)
	case Ydb.Type_INT64:
		return i64(r, math.MinInt64, math.MaxInt64)
	case Ydb.Type_DATETIME64:
		return i64(r, -53_375_809*86_400, 53_375_808*86_400-1)
	case Ydb.Type_TIMESTAMP64:
		return i64(r, -53_375_809*day, 53_375_808*day-1)
	case Ydb.Type_INTERVAL:
		return i64(r, -49_673*day+1, 49_673*day-1)
	case Ydb.Type_INTERVAL64:
		return i64(r, -106_751_617*day+1, 106_751_617*day-1)
	case Ydb.Type_UINT64:
		return u64(r, math.MaxUint64)
	case Ydb.Type_TIMESTAMP:
		return u64(r, 49_673*day-1)
	case Ydb.Type_FLOAT:
		special := []float32{0, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32,
			math.SmallestNonzeroFloat32, 0.1, 1e21, 1e-7}
		f := special[r.IntN(len(special))]
		if g := math.Float32frombits(r.Uint32()); r.IntN(2) == 0 && g == g {
			f = g
		}
		return &Ydb.Value{Value: &Ydb.Value_FloatValue{FloatValue: f}}
	case Ydb.Type_DOUBLE:
		special := []float64{0, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64, 0.1,
			1e21, 1e-7, 1 << 53, 1<<60 + 1<<20}
		f := special[r.IntN(len(special))]
		if g := math.Float64frombits(r.Uint64()); r.IntN(2) == 0 && g == g {
			f = g
		}
		return &Ydb.Value{Value: &Ydb.Value_DoubleValue{DoubleValue: f}}
	case Ydb.Type_STRING, Ydb.Type_YSON:
		return &Ydb.Value{Value: &Ydb.Value_BytesValue{BytesValue: bytes(r)}}
	case Ydb.Type_UUID:
		return &Ydb.Value{Value: &Ydb.Value_Low_128{Low_128: r.Uint64()}, High_128: r.Uint64()}
	case Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT:
		return text([]string{`{"a":[1,null,"x"]}`, `[]`, `"text"`, `12.50`, `null`}[r.IntN(5)])
	case Ydb.Type_DYNUMBER:
		return text([]string{".1e1", "-.5e-3", "0", "123456789012345678901234567890", "1e-130"}[r.IntN(5)])
	case Ydb.Type_TZ_DATE, 68:
		return text([]string{"2024-01-31,Europe/Moscow", "1970-01-01,GMT"}[r.IntN(2)])
	case Ydb.Type_TZ_DATETIME, Ydb.Type_TZ_TIMESTAMP, 69, 70:
		return text([]string{"2024-01-31T10:00:00,Europe/Moscow", "2024-01-31T10:00:00.000001,America/New_York"}[r.IntN(2)])
	}
	return text(phrase(r))
}

// decimal makes a whole number below 10^precision, or none.
func decimal(r *rand.Rand, precision uint32) *Ydb.Value {
	digits := uint32(r.IntN(int(precision) + 1))
	var hi, lo uint64
	for range digits {
		hi, lo = times10(hi, lo, uint64(r.IntN(10)))
	}
	switch r.IntN(6) {
	case 0: // the largest one
		hi, lo = 0, 0
		for range precision {
			hi, lo = times10(hi, lo, 9)
		}
	case 1: // infinity, and behind it not a number
		hi, lo = 0, 1
		for range 35 {
			hi, lo = times10(hi, lo, 0)
		}
		if r.IntN(2) == 0 {
			return low128(hi, lo+1)
		}
	}
	if r.IntN(2) == 0 {
		hi, lo = ^hi, ^lo+1
		if lo == 0 {
			hi++
		}
	}
	return low128(hi, lo)
}

func times10(hi, lo, digit uint64) (uint64, uint64) {
	// In halves of 32 bits: slow, plain, and not the tested code's way.
	parts := [4]uint64{lo & math.MaxUint32, lo >> 32, hi & math.MaxUint32, hi >> 32}
	carry := digit
	for i := range parts {
		parts[i] = parts[i]*10 + carry
		carry = parts[i] >> 32
		parts[i] &= math.MaxUint32
	}
	return parts[3]<<32 | parts[2], parts[1]<<32 | parts[0]
}

func low128(hi, lo uint64) *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_Low_128{Low_128: lo}, High_128: hi}
}

// between favours the ends of the range and what lies around 0.
func between(r *rand.Rand, low, high int64) int64 {
	near := []int64{low, low + 1, high, high - 1, max(low, -1), 0, 1}
	if i := r.IntN(2 * len(near)); i < len(near) {
		return near[i]
	}
	size := uint64(high) - uint64(low)
	if size == math.MaxUint64 {
		return int64(r.Uint64())
	}
	return int64(uint64(low) + r.Uint64N(size+1))
}

func i32(r *rand.Rand, low, high int64) *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_Int32Value{Int32Value: int32(between(r, low, high))}}
}

func i64(r *rand.Rand, low, high int64) *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_Int64Value{Int64Value: between(r, low, high)}}
}

func u32(r *rand.Rand, high int64) *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_Uint32Value{Uint32Value: uint32(between(r, 0, high))}}
}

func u64(r *rand.Rand, high uint64) *Ydb.Value {
	v := []uint64{0, 1, high, high - 1, 1<<53 + 1}[r.IntN(5)]
	if r.IntN(2) == 0 {
		v = r.Uint64()
	}
	if v > high {
		v = high
	}
	return &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: v}}
}

func null() *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_NullFlagValue{}}
}

func text(s string) *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}}
}

func phrase(r *rand.Rand) string {
	return []string{"", "text", "\"quoted\\\"", "a\x00b\x1f\n\t", "Привет, 世界 🙂", "\u2028<&>", "null", "1", "\ufffd"}[r.IntN(9)]
}

func bytes(r *rand.Rand) []byte {
	b := make([]byte, r.IntN(12))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	if r.IntN(3) == 0 {
		return []byte(phrase(r))
	}
	return b
}
