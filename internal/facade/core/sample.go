package core

import (
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/types/known/structpb"
)

// samples makes some value of each type. To explain a statement the server needs
// the types of parameters that it does not declare; they travel with values only.
func samples(types map[string]*Ydb.Type) map[string]*Ydb.TypedValue {
	if len(types) == 0 {
		return nil
	}
	params := make(map[string]*Ydb.TypedValue, len(types))
	for name, t := range types {
		params["$"+name] = &Ydb.TypedValue{Type: t, Value: sample(t)}
	}
	return params
}

var null = &Ydb.Value{Value: &Ydb.Value_NullFlagValue{NullFlagValue: structpb.NullValue_NULL_VALUE}}

// sample is the plainest value of a type: nulls, empty containers, zeros.
func sample(t *Ydb.Type) *Ydb.Value {
	switch x := t.GetType().(type) {
	case *Ydb.Type_TypeId:
		return sampleOf(x.TypeId)
	case *Ydb.Type_DecimalType:
		return &Ydb.Value{Value: &Ydb.Value_Low_128{}}
	case *Ydb.Type_ListType, *Ydb.Type_DictType, *Ydb.Type_EmptyListType, *Ydb.Type_EmptyDictType:
		return &Ydb.Value{}
	case *Ydb.Type_TupleType:
		return sampleItems(x.TupleType.GetElements())
	case *Ydb.Type_StructType:
		items := make([]*Ydb.Type, len(x.StructType.GetMembers()))
		for i, m := range x.StructType.GetMembers() {
			items[i] = m.GetType()
		}
		return sampleItems(items)
	case *Ydb.Type_VariantType:
		return sampleVariant(x.VariantType)
	case *Ydb.Type_TaggedType:
		return sample(x.TaggedType.GetType())
	}
	return null // Optional, Null, Void, Pg
}

func sampleItems(types []*Ydb.Type) *Ydb.Value {
	v := &Ydb.Value{Items: make([]*Ydb.Value, len(types))}
	for i, t := range types {
		v.Items[i] = sample(t)
	}
	return v
}

func sampleVariant(t *Ydb.VariantType) *Ydb.Value {
	var first *Ydb.Type
	if m := t.GetStructItems().GetMembers(); len(m) > 0 {
		first = m[0].GetType()
	} else if e := t.GetTupleItems().GetElements(); len(e) > 0 {
		first = e[0]
	}
	return &Ydb.Value{Value: &Ydb.Value_NestedValue{NestedValue: sample(first)}}
}

func sampleOf(id Ydb.Type_PrimitiveTypeId) *Ydb.Value {
	text := func(s string) *Ydb.Value { return &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}} }
	switch id {
	case Ydb.Type_BOOL:
		return &Ydb.Value{Value: &Ydb.Value_BoolValue{}}
	case Ydb.Type_INT8, Ydb.Type_INT16, Ydb.Type_INT32, Ydb.Type_DATE32:
		return &Ydb.Value{Value: &Ydb.Value_Int32Value{}}
	case Ydb.Type_UINT8, Ydb.Type_UINT16, Ydb.Type_UINT32, Ydb.Type_DATE, Ydb.Type_DATETIME:
		return &Ydb.Value{Value: &Ydb.Value_Uint32Value{}}
	case Ydb.Type_INT64, Ydb.Type_INTERVAL, Ydb.Type_DATETIME64, Ydb.Type_TIMESTAMP64, Ydb.Type_INTERVAL64:
		return &Ydb.Value{Value: &Ydb.Value_Int64Value{}}
	case Ydb.Type_UINT64, Ydb.Type_TIMESTAMP:
		return &Ydb.Value{Value: &Ydb.Value_Uint64Value{}}
	case Ydb.Type_FLOAT:
		return &Ydb.Value{Value: &Ydb.Value_FloatValue{}}
	case Ydb.Type_DOUBLE:
		return &Ydb.Value{Value: &Ydb.Value_DoubleValue{}}
	case Ydb.Type_STRING:
		return &Ydb.Value{Value: &Ydb.Value_BytesValue{}}
	case Ydb.Type_YSON:
		return &Ydb.Value{Value: &Ydb.Value_BytesValue{BytesValue: []byte("#")}}
	case Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT:
		return text("null")
	case Ydb.Type_DYNUMBER:
		return text("0")
	case Ydb.Type_UUID:
		return &Ydb.Value{Value: &Ydb.Value_Low_128{}}
	case Ydb.Type_TZ_DATE:
		return text("1970-01-01,UTC")
	case Ydb.Type_TZ_DATETIME, Ydb.Type_TZ_TIMESTAMP:
		return text("1970-01-01T00:00:00,UTC")
	}
	return text("")
}
