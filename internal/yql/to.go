package yql

import (
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// ToValue converts a value from the wire to the gRPC API's form. FromValue of
// the result with the same type is the value again. A value that does not have
// the form that its type has on the wire is an error.
func ToValue(v *Ydb.Value, t *Ydb.Type) (*sidecarv1.Value, error) {
	switch x := t.GetType().(type) {
	case *Ydb.Type_TypeId:
		return toScalar(v, t, x.TypeId)
	case *Ydb.Type_DecimalType:
		if low, ok := v.GetValue().(*Ydb.Value_Low_128); ok {
			return toText(appendDecimal(nil, v.GetHigh_128(), low.Low_128, x.DecimalType.GetScale())), nil
		}
	case *Ydb.Type_OptionalType:
		item := x.OptionalType.GetItem()
		inner, ok := justOf(v, item)
		if !ok {
			return toNull(), nil
		}
		out, err := ToValue(inner, item)
		if err == nil && canBeNull(item) {
			out = toList([]*sidecarv1.Value{out})
		}
		return out, err
	case *Ydb.Type_TaggedType:
		return ToValue(v, x.TaggedType.GetType())
	case *Ydb.Type_VoidType, *Ydb.Type_NullType:
		return toNull(), nil
	case *Ydb.Type_PgType:
		switch x := v.GetValue().(type) {
		case nil, *Ydb.Value_NullFlagValue:
			return toNull(), nil
		case *Ydb.Value_TextValue:
			return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: x.TextValue}}, nil
		case *Ydb.Value_BytesValue:
			return &sidecarv1.Value{Kind: &sidecarv1.Value_BytesValue{BytesValue: x.BytesValue}}, nil
		}
	case *Ydb.Type_EmptyListType:
		return toList(nil), nil
	case *Ydb.Type_ListType:
		return toItems(v, x.ListType.GetItem())
	case *Ydb.Type_TupleType:
		return toTuple(v, t, x.TupleType.GetElements())
	case *Ydb.Type_StructType:
		return toStruct(v, t, x.StructType.GetMembers())
	case *Ydb.Type_EmptyDictType:
		return &sidecarv1.Value{Kind: &sidecarv1.Value_DictValue{DictValue: &sidecarv1.DictValue{}}}, nil
	case *Ydb.Type_DictType:
		return toDict(v.GetPairs(), x.DictType)
	case *Ydb.Type_VariantType:
		return toVariant(v, t, x.VariantType)
	default:
		return nil, unknownType(t)
	}
	return nil, badEncoding(v, t)
}

func toItems(v *Ydb.Value, t *Ydb.Type) (*sidecarv1.Value, error) {
	items := make([]*sidecarv1.Value, len(v.GetItems()))
	for i, item := range v.GetItems() {
		var err error
		if items[i], err = ToValue(item, t); err != nil {
			return nil, inItem(err, i)
		}
	}
	return toList(items), nil
}

func toTuple(v *Ydb.Value, t *Ydb.Type, elements []*Ydb.Type) (*sidecarv1.Value, error) {
	if len(v.GetItems()) != len(elements) {
		return nil, itemsFault(v, t, len(elements))
	}
	items := make([]*sidecarv1.Value, len(elements))
	for i, item := range v.GetItems() {
		var err error
		if items[i], err = ToValue(item, elements[i]); err != nil {
			return nil, inItem(err, i)
		}
	}
	return toList(items), nil
}

func toStruct(v *Ydb.Value, t *Ydb.Type, members []*Ydb.StructMember) (*sidecarv1.Value, error) {
	if len(v.GetItems()) != len(members) {
		return nil, itemsFault(v, t, len(members))
	}
	fields := make([]*sidecarv1.Field, len(members))
	for i, item := range v.GetItems() {
		out, err := ToValue(item, members[i].GetType())
		if err != nil {
			return nil, inMember(err, members[i].GetName())
		}
		fields[i] = &sidecarv1.Field{Name: members[i].GetName(), Value: out}
	}
	return &sidecarv1.Value{Kind: &sidecarv1.Value_StructValue{
		StructValue: &sidecarv1.StructValue{Fields: fields},
	}}, nil
}

func toDict(pairs []*Ydb.ValuePair, d *Ydb.DictType) (*sidecarv1.Value, error) {
	out := make([]*sidecarv1.Pair, len(pairs))
	for i, pair := range pairs {
		key, err := ToValue(pair.GetKey(), d.GetKey())
		if err != nil {
			return nil, inItem(At(err, "key"), i)
		}
		out[i] = &sidecarv1.Pair{Key: key}
		if isVoid(d.GetPayload()) {
			continue
		}
		if out[i].Value, err = ToValue(pair.GetPayload(), d.GetPayload()); err != nil {
			return nil, inItem(At(err, "value"), i)
		}
	}
	return &sidecarv1.Value{Kind: &sidecarv1.Value_DictValue{DictValue: &sidecarv1.DictValue{Pairs: out}}}, nil
}

func toVariant(v *Ydb.Value, t *Ydb.Type, variant *Ydb.VariantType) (*sidecarv1.Value, error) {
	nested, ok := v.GetValue().(*Ydb.Value_NestedValue)
	if !ok {
		return nil, badEncoding(v, t)
	}
	name, inner, err := alternative(variant, v.GetVariantIndex())
	if err != nil {
		return nil, err
	}
	value, err := ToValue(nested.NestedValue, inner)
	if err != nil {
		return nil, inAlternative(err, name, v.GetVariantIndex())
	}
	out := &sidecarv1.VariantValue{Tag: name, Value: value}
	if !overStruct(variant) {
		out.Index = v.GetVariantIndex()
	}
	return &sidecarv1.Value{Kind: &sidecarv1.Value_VariantValue{VariantValue: out}}, nil
}

func toScalar(v *Ydb.Value, t *Ydb.Type, id Ydb.Type_PrimitiveTypeId) (*sidecarv1.Value, error) {
	switch field := fieldOf(id); field {
	case boolField:
		if x, ok := v.GetValue().(*Ydb.Value_BoolValue); ok {
			return &sidecarv1.Value{Kind: &sidecarv1.Value_BoolValue{BoolValue: x.BoolValue}}, nil
		}
	case int32Field, int64Field, uint32Field, uint64Field:
		signed, unsigned, ok := protoInteger(v, field)
		switch {
		case !ok:
		case !isInteger(id):
			return toText(appendTime(nil, id, signed, unsigned)), nil
		case field == int32Field || field == int64Field:
			return &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: signed}}, nil
		default:
			return &sidecarv1.Value{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: unsigned}}, nil
		}
	case floatField:
		if x, ok := v.GetValue().(*Ydb.Value_FloatValue); ok {
			return &sidecarv1.Value{Kind: &sidecarv1.Value_DoubleValue{DoubleValue: float64(x.FloatValue)}}, nil
		}
	case doubleField:
		if x, ok := v.GetValue().(*Ydb.Value_DoubleValue); ok {
			return &sidecarv1.Value{Kind: &sidecarv1.Value_DoubleValue{DoubleValue: x.DoubleValue}}, nil
		}
	case textField:
		if s, ok := protoText(v); ok && utf8.ValidString(s) {
			return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: s}}, nil
		}
	case bytesField:
		b, ok := protoBytes(v)
		if ok && id == Ydb.Type_YSON && utf8.Valid(b) {
			return toText(b), nil
		}
		if ok {
			return &sidecarv1.Value{Kind: &sidecarv1.Value_BytesValue{BytesValue: b}}, nil
		}
	case uuidField:
		if low, ok := v.GetValue().(*Ydb.Value_Low_128); ok {
			return toText(appendUUID(nil, low.Low_128, v.GetHigh_128())), nil
		}
	default:
		return nil, unknownType(t)
	}
	return nil, badEncoding(v, t)
}

// protoInteger returns the integer in the field of Ydb.Value where its type has
// it; of the two results only the one of the field's sign counts.
func protoInteger(v *Ydb.Value, f field) (signed int64, unsigned uint64, ok bool) {
	switch x := v.GetValue().(type) {
	case *Ydb.Value_Int32Value:
		return int64(x.Int32Value), 0, f == int32Field
	case *Ydb.Value_Int64Value:
		return x.Int64Value, 0, f == int64Field
	case *Ydb.Value_Uint32Value:
		return 0, uint64(x.Uint32Value), f == uint32Field
	case *Ydb.Value_Uint64Value:
		return 0, x.Uint64Value, f == uint64Field
	}
	return 0, 0, false
}

// appendTime writes a type of dates or times in ISO 8601.
func appendTime(dst []byte, id Ydb.Type_PrimitiveTypeId, signed int64, unsigned uint64) []byte {
	switch id {
	case Ydb.Type_DATE:
		return appendDate(dst, int64(unsigned))
	case Ydb.Type_DATE32:
		return appendDate(dst, signed)
	case Ydb.Type_DATETIME:
		return appendDatetime(dst, int64(unsigned), 0)
	case Ydb.Type_DATETIME64:
		return appendDatetime(dst, signed, 0)
	case Ydb.Type_TIMESTAMP:
		return appendTimestamp(dst, int64(unsigned))
	case Ydb.Type_TIMESTAMP64:
		return appendTimestamp(dst, signed)
	}
	return appendInterval(dst, signed)
}

func itemsFault(v *Ydb.Value, t *Ydb.Type, want int) error {
	return errorf("the server sent %d items as %s of %d", len(v.GetItems()), article(FormatType(t)), want)
}

func toNull() *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_NullValue{NullValue: true}}
}

func toText(b []byte) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_TextValue{TextValue: string(b)}}
}

func toList(items []*sidecarv1.Value) *sidecarv1.Value {
	return &sidecarv1.Value{Kind: &sidecarv1.Value_ListValue{ListValue: &sidecarv1.ListValue{Items: items}}}
}
