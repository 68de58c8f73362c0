package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Ends of the ranges of dates (exclusive above).
const (
	maxDate      = 49673 // 2106-01-01
	maxSeconds   = maxDate * 86400
	maxMicros    = maxSeconds * 1_000_000
	maxWideDate  = 53_375_808 // 148108-01-01
	minWideDate  = -53_375_809
	maxWideSecs  = maxWideDate * 86400
	minWideSecs  = minWideDate * 86400
	maxWideMicro = maxWideSecs * 1_000_000
	minWideMicro = minWideSecs * 1_000_000
)

var errForm = errors.New("the value does not have the form of its type")

// Decode returns the value v of type t. p is the type that came with the value: it
// matches t, but its structs may have another order of members.
func Decode(t *Type, p *Ydb.Type, v *Ydb.Value) (Value, error) {
	r, err := decode(t, p, v)
	if err != nil {
		return Value{}, fmt.Errorf("invalid value of type %s: %w", t, err)
	}
	return r, nil
}

func decode(t *Type, p *Ydb.Type, v *Ydb.Value) (Value, error) {
	if t.Kind < lastPrimitive {
		return decodePrimitive(t.Kind, v)
	}
	switch t.Kind {
	case Optional:
		return decodeOptional(t, p, v)
	case Decimal:
		lo, ok := v.GetValue().(*Ydb.Value_Low_128)
		if !ok {
			return Value{}, errForm
		}
		r := Value{Lo: lo.Low_128, Hi: v.GetHigh_128()}
		return r, checkDecimal(t, r)
	case List:
		r := Value{Items: make([]Value, len(v.GetItems()))}
		for i, it := range v.GetItems() {
			x, err := decode(t.Elem, p.GetListType().GetItem(), it)
			if err != nil {
				return Value{}, err
			}
			r.Items[i] = x
		}
		return r, nil
	case Tuple:
		return decodeTuple(t, p.GetTupleType(), v)
	case Struct:
		return decodeStruct(t, p.GetStructType(), v)
	case Dict:
		return decodeDict(t, p.GetDictType(), v)
	case Variant:
		return decodeVariant(t, p.GetVariantType(), v)
	case Tagged:
		return decode(t.Elem, p.GetTaggedType().GetType(), v)
	case Null:
		return NullValue, nil
	case Pg:
		switch w := v.GetValue().(type) {
		case *Ydb.Value_TextValue:
			return Value{S: w.TextValue, Lo: 1}, nil
		case *Ydb.Value_BytesValue:
			return Value{S: string(w.BytesValue)}, nil
		case *Ydb.Value_NullFlagValue:
			return NullValue, nil
		}
		return Value{}, errForm
	}
	return Value{}, nil // Void, EmptyList, EmptyDict
}

func decodeOptional(t *Type, p *Ydb.Type, v *Ydb.Value) (Value, error) {
	item := p.GetOptionalType().GetItem()
	switch w := v.GetValue().(type) {
	case *Ydb.Value_NullFlagValue:
		return NullValue, nil
	case *Ydb.Value_NestedValue: // a level of its own, unless it is the body of a Variant
		if endsInNull(v) || !endsInVariant(t.Elem) {
			x, err := decode(t.Elem, item, w.NestedValue)
			return x.Just(), err
		}
	}
	x, err := decode(t.Elem, item, v)
	return x.Just(), err
}

// endsInNull reports whether v is null_flag_value below any number of nested_values.
func endsInNull(v *Ydb.Value) bool {
	for {
		switch w := v.GetValue().(type) {
		case *Ydb.Value_NullFlagValue:
			return true
		case *Ydb.Value_NestedValue:
			v = w.NestedValue
		default:
			return false
		}
	}
}

// endsInVariant reports whether values of t are written as those of a Variant.
func endsInVariant(t *Type) bool {
	for t.Kind == Optional || t.Kind == Tagged {
		t = t.Elem
	}
	return t.Kind == Variant
}

func decodeTuple(t *Type, p *Ydb.TupleType, v *Ydb.Value) (Value, error) {
	if len(v.GetItems()) != len(t.Members) {
		return Value{}, fmt.Errorf("%d elements instead of %d", len(v.GetItems()), len(t.Members))
	}
	r := Value{Items: make([]Value, len(t.Members))}
	for i, m := range t.Members {
		x, err := decode(m.Type, p.GetElements()[i], v.GetItems()[i])
		if err != nil {
			return Value{}, err
		}
		r.Items[i] = x
	}
	return r, nil
}

func decodeStruct(t *Type, p *Ydb.StructType, v *Ydb.Value) (Value, error) {
	if len(v.GetItems()) != len(t.Members) {
		return Value{}, fmt.Errorf("%d members instead of %d", len(v.GetItems()), len(t.Members))
	}
	r := Value{Items: make([]Value, len(t.Members))}
	for i, pm := range p.GetMembers() {
		to := i
		if t.Members[i].Name != pm.GetName() {
			var ok bool
			if to, ok = t.Member(pm.GetName()); !ok {
				return Value{}, errForm
			}
		}
		x, err := decode(t.Members[to].Type, pm.GetType(), v.GetItems()[i])
		if err != nil {
			return Value{}, fmt.Errorf("member %s: %w", pm.GetName(), err)
		}
		r.Items[to] = x
	}
	return r, nil
}

// Member returns the place of the struct's member of that name.
func (t *Type) Member(name string) (int, bool) {
	return slices.BinarySearchFunc(t.Members, name, func(m Member, n string) int { return strings.Compare(m.Name, n) })
}

func decodeDict(t *Type, p *Ydb.DictType, v *Ydb.Value) (Value, error) {
	items := make([]Value, 0, 2*len(v.GetPairs()))
	for _, pair := range v.GetPairs() {
		k, err := decode(t.Key, p.GetKey(), pair.GetKey())
		if err != nil {
			return Value{}, fmt.Errorf("key: %w", err)
		}
		e, err := decode(t.Elem, p.GetPayload(), pair.GetPayload())
		if err != nil {
			return Value{}, fmt.Errorf("payload: %w", err)
		}
		items = append(items, k, e)
	}
	return NewDict(t, items), nil
}

// NewDict returns the dict of the given key, payload, key, payload ...; the first
// payload of a key that comes twice stays.
func NewDict(t *Type, items []Value) Value {
	type pair struct{ k, v Value }
	pairs := make([]pair, 0, len(items)/2)
	for i := 0; i+1 < len(items); i += 2 {
		pairs = append(pairs, pair{items[i], items[i+1]})
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return Compare(t.Key, a.k, b.k) })
	pairs = slices.CompactFunc(pairs, func(a, b pair) bool { return Compare(t.Key, a.k, b.k) == 0 })
	out := make([]Value, 0, 2*len(pairs))
	for _, q := range pairs {
		out = append(out, q.k, q.v)
	}
	return Value{Items: out}
}

func decodeVariant(t *Type, p *Ydb.VariantType, v *Ydb.Value) (Value, error) {
	i := int(v.GetVariantIndex())
	nested, ok := v.GetValue().(*Ydb.Value_NestedValue)
	if !ok || i >= len(t.Elem.Members) {
		return Value{}, errForm
	}
	var wire *Ydb.Type
	if t.Elem.Kind == Tuple {
		wire = p.GetTupleItems().GetElements()[i]
	} else {
		m := p.GetStructItems().GetMembers()[i]
		wire = m.GetType()
		if i, ok = t.Elem.Member(m.GetName()); !ok {
			return Value{}, errForm
		}
	}
	x, err := decode(t.Elem.Members[i].Type, wire, nested.NestedValue)
	if err != nil {
		return Value{}, err
	}
	return Value{Lo: uint64(i), Items: []Value{x}}, nil
}

// bounds gives the legal values of the integer-like kinds.
var bounds = [lastPrimitive]struct{ min, max int64 }{
	Int8: {math.MinInt8, math.MaxInt8}, Int16: {math.MinInt16, math.MaxInt16}, Int32: {math.MinInt32, math.MaxInt32},
	Int64: {math.MinInt64, math.MaxInt64},
	Uint8: {0, math.MaxUint8}, Uint16: {0, math.MaxUint16}, Uint32: {0, math.MaxUint32},
	Date: {0, maxDate - 1}, Datetime: {0, maxSeconds - 1}, Timestamp: {0, maxMicros - 1}, Interval: {-maxMicros + 1, maxMicros - 1},
	Date32: {minWideDate, maxWideDate - 1}, Datetime64: {minWideSecs, maxWideSecs - 1}, Timestamp64: {minWideMicro, maxWideMicro - 1},
	Interval64: {minWideMicro - maxWideMicro, maxWideMicro - minWideMicro},
}

// InRange reports whether i is a value of the integer, date or interval kind k (Uint64 takes all from 0).
func InRange(k Kind, i int64) bool {
	if k == Uint64 {
		return i >= 0
	}
	return i >= bounds[k].min && i <= bounds[k].max
}

func decodePrimitive(k Kind, v *Ydb.Value) (Value, error) {
	switch w := v.GetValue().(type) {
	case *Ydb.Value_BoolValue:
		if k == Bool {
			return Truth(w.BoolValue), nil
		}
	case *Ydb.Value_Int32Value:
		if k == Int8 || k == Int16 || k == Int32 || k == Date32 {
			return ranged(k, int64(w.Int32Value))
		}
	case *Ydb.Value_Uint32Value:
		if k == Uint8 || k == Uint16 || k == Uint32 || k == Date || k == Datetime {
			return ranged(k, int64(w.Uint32Value))
		}
	case *Ydb.Value_Int64Value:
		if k == Int64 || k == Interval || k == Datetime64 || k == Timestamp64 || k == Interval64 {
			return ranged(k, w.Int64Value)
		}
	case *Ydb.Value_Uint64Value:
		switch {
		case k == Uint64:
			return Uint(w.Uint64Value), nil
		case k == Timestamp && w.Uint64Value < maxMicros:
			return Uint(w.Uint64Value), nil
		case k == Timestamp:
			return Value{}, fmt.Errorf("%d is out of range", w.Uint64Value)
		}
	case *Ydb.Value_FloatValue:
		if k == Float {
			return Real(float64(w.FloatValue)), nil
		}
	case *Ydb.Value_DoubleValue:
		if k == Double {
			return Real(w.DoubleValue), nil
		}
	case *Ydb.Value_Low_128:
		if k == Uuid {
			return Value{Lo: w.Low_128, Hi: v.GetHigh_128()}, nil
		}
	case *Ydb.Value_BytesValue:
		if k == String || k == Yson {
			return Text(string(w.BytesValue)), nil
		}
	case *Ydb.Value_TextValue:
		if k == Yson {
			return Text(w.TextValue), nil
		}
		if IsText(k) && k != String {
			return checkedText(k, w.TextValue)
		}
	}
	return Value{}, errForm
}

func ranged(k Kind, i int64) (Value, error) {
	if !InRange(k, i) {
		return Value{}, fmt.Errorf("%d is out of range", i)
	}
	return Int(i), nil
}

// checkedText returns a value of a text kind after checking the text itself.
func checkedText(k Kind, s string) (Value, error) {
	if !utf8.ValidString(s) {
		return Value{}, errors.New("not UTF-8")
	}
	switch k {
	case Json, JsonDocument:
		if !json.Valid([]byte(s)) {
			return Value{}, errors.New("not JSON")
		}
	case DyNumber:
		if _, err := parseDyNumber(s); err != nil {
			return Value{}, err
		}
	case TzDate, TzDatetime, TzTimestamp:
		if err := checkTz(k, s); err != nil {
			return Value{}, err
		}
	}
	return Text(s), nil
}

var nullWire = &Ydb.Value{Value: &Ydb.Value_NullFlagValue{NullFlagValue: structpb.NullValue_NULL_VALUE}}

// Proto returns the wire form of v, a value of t.
func Proto(t *Type, v Value) *Ydb.Value {
	switch t.Kind {
	case Bool:
		return &Ydb.Value{Value: &Ydb.Value_BoolValue{BoolValue: v.Lo != 0}}
	case Int8, Int16, Int32, Date32:
		return &Ydb.Value{Value: &Ydb.Value_Int32Value{Int32Value: int32(v.Lo)}}
	case Uint8, Uint16, Uint32, Date, Datetime:
		return &Ydb.Value{Value: &Ydb.Value_Uint32Value{Uint32Value: uint32(v.Lo)}}
	case Int64, Interval, Datetime64, Timestamp64, Interval64:
		return &Ydb.Value{Value: &Ydb.Value_Int64Value{Int64Value: int64(v.Lo)}}
	case Uint64, Timestamp:
		return &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: v.Lo}}
	case Float:
		return &Ydb.Value{Value: &Ydb.Value_FloatValue{FloatValue: float32(v.Float())}}
	case Double:
		return &Ydb.Value{Value: &Ydb.Value_DoubleValue{DoubleValue: v.Float()}}
	case String, Yson:
		return &Ydb.Value{Value: &Ydb.Value_BytesValue{BytesValue: []byte(v.S)}}
	case Uuid, Decimal:
		return &Ydb.Value{Value: &Ydb.Value_Low_128{Low_128: v.Lo}, High_128: v.Hi}
	case Optional:
		return optionalProto(t, v)
	case List:
		return &Ydb.Value{Items: protos(v.Items, func(int) *Type { return t.Elem })}
	case Tuple, Struct:
		return &Ydb.Value{Items: protos(v.Items, func(i int) *Type { return t.Members[i].Type })}
	case Dict:
		r := &Ydb.Value{Pairs: make([]*Ydb.ValuePair, 0, len(v.Items)/2)}
		for i := 0; i+1 < len(v.Items); i += 2 {
			r.Pairs = append(r.Pairs, &Ydb.ValuePair{Key: Proto(t.Key, v.Items[i]), Payload: Proto(t.Elem, v.Items[i+1])})
		}
		return r
	case Variant:
		return &Ydb.Value{
			Value:        &Ydb.Value_NestedValue{NestedValue: Proto(t.Elem.Members[v.Lo].Type, v.Items[0])},
			VariantIndex: uint32(v.Lo),
		}
	case Tagged:
		return Proto(t.Elem, v)
	case Void, Null:
		return nullWire
	case EmptyList, EmptyDict:
		return &Ydb.Value{}
	case Pg:
		switch {
		case v.Null > 0:
			return nullWire
		case v.Lo == 1:
			return &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: v.S}}
		}
		return &Ydb.Value{Value: &Ydb.Value_BytesValue{BytesValue: []byte(v.S)}}
	}
	return &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: v.S}}
}

// optionalProto writes the item itself; only what would look like NULL at this
// level goes one level down.
func optionalProto(t *Type, v Value) *Ydb.Value {
	if v.Null == 1 {
		return nullWire
	}
	in := Proto(t.Elem, v.Unwrap())
	if endsInNull(in) {
		return &Ydb.Value{Value: &Ydb.Value_NestedValue{NestedValue: in}}
	}
	return in
}

func protos(items []Value, t func(int) *Type) []*Ydb.Value {
	out := make([]*Ydb.Value, len(items))
	for i, it := range items {
		out[i] = Proto(t(i), it)
	}
	return out
}
