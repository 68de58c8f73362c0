package yql

import (
	"strconv"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// FromValue converts a value of the gRPC API to the wire's form of type t.
//
// Every number, date, Uuid and Decimal may come as text; integers of either
// sign may become any type that they fit; dates and times take integers in
// their wire's unit. What does not fit is an error, with one exception that
// every reader of decimal numbers makes: Float and Double take the nearest
// value. A typed_value must have exactly the type t.
func FromValue(v *sidecarv1.Value, t *Ydb.Type) (*Ydb.Value, error) {
	b := budgetOf(MaxValues)
	return b.fromValue(v, t)
}

// fromValue is FromValue within a budget. Long: it is one flat list of the kinds
// of types.
func (b *budget) fromValue(v *sidecarv1.Value, t *Ydb.Type) (*Ydb.Value, error) {
	if err := knownValue(v); err != nil {
		return nil, err
	}
	v, err := untyped(v, t)
	if err != nil {
		return nil, err
	}
	if err := b.spend(); err != nil {
		return nil, err
	}
	switch v.GetKind().(type) {
	case nil:
		return nil, errorf("an empty value; null is null_value")
	case *sidecarv1.Value_TypedValue:
		return nil, errorf("a typed_value inside a typed_value")
	}
	_, null := v.GetKind().(*sidecarv1.Value_NullValue)
	switch x := t.GetType().(type) {
	case *Ydb.Type_TypeId:
		return fromScalar(v, x.TypeId)
	case *Ydb.Type_DecimalType:
		return fromScalarDecimal(v, t)
	case *Ydb.Type_OptionalType:
		if null {
			return nullValue(), nil
		}
		return b.fromOptional(v, t, x.OptionalType.GetItem())
	case *Ydb.Type_TaggedType:
		return b.fromValue(v, x.TaggedType.GetType())
	case *Ydb.Type_VoidType, *Ydb.Type_NullType:
		if null {
			return nullValue(), nil
		}
	case *Ydb.Type_PgType:
		return fromPg(v, t)
	case *Ydb.Type_ListType:
		if list, ok := v.GetKind().(*sidecarv1.Value_ListValue); ok {
			return b.fromItems(list.ListValue.GetItems(), func(int) *Ydb.Type { return x.ListType.GetItem() })
		}
	case *Ydb.Type_EmptyListType:
		if list, ok := v.GetKind().(*sidecarv1.Value_ListValue); ok && len(list.ListValue.GetItems()) == 0 {
			return &Ydb.Value{}, nil
		}
	case *Ydb.Type_TupleType:
		if list, ok := v.GetKind().(*sidecarv1.Value_ListValue); ok {
			return b.fromTuple(list.ListValue.GetItems(), x.TupleType.GetElements())
		}
	case *Ydb.Type_StructType:
		if s, ok := v.GetKind().(*sidecarv1.Value_StructValue); ok {
			return b.fromFields(s.StructValue.GetFields(), x.StructType.GetMembers())
		}
	case *Ydb.Type_DictType:
		if d, ok := v.GetKind().(*sidecarv1.Value_DictValue); ok {
			return b.fromPairs(d.DictValue.GetPairs(), x.DictType)
		}
	case *Ydb.Type_EmptyDictType:
		if d, ok := v.GetKind().(*sidecarv1.Value_DictValue); ok && len(d.DictValue.GetPairs()) == 0 {
			return &Ydb.Value{}, nil
		}
	case *Ydb.Type_VariantType:
		if variant, ok := v.GetKind().(*sidecarv1.Value_VariantValue); ok {
			return b.fromVariant(variant.VariantValue, x.VariantType)
		}
	default:
		return nil, unknownType(t)
	}
	return nil, mismatch(v, t)
}

// knownValue is Known for a value and what holds the values inside it.
func knownValue(v *sidecarv1.Value) error {
	if err := Known(v.ProtoReflect()); err != nil {
		return err
	}
	switch x := v.GetKind().(type) {
	case *sidecarv1.Value_ListValue:
		return Known(x.ListValue.ProtoReflect())
	case *sidecarv1.Value_StructValue:
		return Known(x.StructValue.ProtoReflect())
	case *sidecarv1.Value_DictValue:
		return Known(x.DictValue.ProtoReflect())
	case *sidecarv1.Value_VariantValue:
		return Known(x.VariantValue.ProtoReflect())
	case *sidecarv1.Value_TypedValue:
		if err := Known(x.TypedValue.ProtoReflect()); err != nil {
			return err
		}
		return Known(x.TypedValue.GetValue().ProtoReflect())
	}
	return nil
}

// untyped returns the value inside a typed_value, which must have the type t, and
// any other value as it is.
func untyped(v *sidecarv1.Value, t *Ydb.Type) (*sidecarv1.Value, error) {
	typed := v.GetTypedValue()
	if typed == nil {
		return v, nil
	}
	own, err := ParseType(typed.GetType())
	if err != nil {
		return nil, err
	}
	if !EqualTypes(own, t) {
		return nil, typeConflict(own, t)
	}
	return typed.GetValue(), nil
}

// fromOptional converts a value that is not null to the Optional type t of item.
func (b *budget) fromOptional(v *sidecarv1.Value, t, item *Ydb.Type) (*Ydb.Value, error) {
	if canBeNull(item) {
		list, ok := v.GetKind().(*sidecarv1.Value_ListValue)
		if !ok || len(list.ListValue.GetItems()) != 1 {
			return nil, notNested(t)
		}
		v = list.ListValue.GetItems()[0]
	}
	inner, err := b.fromValue(v, item)
	if err != nil {
		return nil, err
	}
	return just(inner), nil
}

func (b *budget) fromTuple(items []*sidecarv1.Value, elements []*Ydb.Type) (*Ydb.Value, error) {
	if len(items) != len(elements) {
		return nil, errorf("%d items for a Tuple of %d%s", len(items), len(elements), writeTuple(elements))
	}
	return b.fromItems(items, func(i int) *Ydb.Type { return elements[i] })
}

func (b *budget) fromItems(items []*sidecarv1.Value, typeOf func(int) *Ydb.Type) (*Ydb.Value, error) {
	out := &Ydb.Value{}
	if len(items) > 0 && len(items) <= b.left {
		out.Items = make([]*Ydb.Value, 0, len(items))
	}
	for i, item := range items {
		v, err := b.fromValue(item, typeOf(i))
		if err != nil {
			return nil, inItem(err, i)
		}
		out.Items = append(out.Items, v)
	}
	return out, nil
}

func (b *budget) fromFields(fields []*sidecarv1.Field, list []*Ydb.StructMember) (*Ydb.Value, error) {
	if len(list) > b.left {
		return nil, b.exhausted()
	}
	items := make([]*Ydb.Value, len(list))
	known := members{list: list}
	for _, f := range fields {
		i := known.find(f.GetName())
		if i < 0 {
			return nil, noMember(f.GetName(), list)
		}
		if items[i] != nil {
			return nil, inMember(errorf("the member appears twice"), f.GetName())
		}
		err := Known(f.ProtoReflect())
		var v *Ydb.Value
		if err == nil {
			v, err = b.fromValue(f.GetValue(), list[i].GetType())
		}
		if err != nil {
			return nil, inMember(err, f.GetName())
		}
		items[i] = v
	}
	return structValue(items), b.fill(items, list)
}

// structValue leaves an empty struct's items unset, as the wire does.
func structValue(items []*Ydb.Value) *Ydb.Value {
	if len(items) == 0 {
		return &Ydb.Value{}
	}
	return &Ydb.Value{Items: items}
}

func (b *budget) fromPairs(pairs []*sidecarv1.Pair, d *Ydb.DictType) (*Ydb.Value, error) {
	out := &Ydb.Value{}
	set := isVoid(d.GetPayload())
	for i, pair := range pairs {
		if err := Known(pair.ProtoReflect()); err != nil {
			return nil, inItem(err, i)
		}
		key, err := b.fromValue(pair.GetKey(), d.GetKey())
		if err != nil {
			return nil, inItem(At(err, "key"), i)
		}
		payload := nullValue()
		switch {
		case !set:
			if payload, err = b.fromValue(pair.GetValue(), d.GetPayload()); err != nil {
				return nil, inItem(At(err, "value"), i)
			}
		case pair.GetValue() != nil && !isNullValue(pair.GetValue()):
			return nil, inItem(errorf("a value in a Set, which has keys only"), i)
		}
		out.Pairs = append(out.Pairs, &Ydb.ValuePair{Key: key, Payload: payload})
	}
	return out, nil
}

func isNullValue(v *sidecarv1.Value) bool {
	_, ok := v.GetKind().(*sidecarv1.Value_NullValue)
	return ok
}

func (b *budget) fromVariant(v *sidecarv1.VariantValue, t *Ydb.VariantType) (*Ydb.Value, error) {
	index := v.GetIndex()
	var inner *Ydb.Type
	var err error
	if overStruct(t) {
		index, inner, err = tagged(t, v.GetTag())
	} else if v.GetTag() != "" {
		err = errorf("the tag %s for a Variant over a Tuple, which has an index", clip(v.GetTag()))
	} else {
		_, inner, err = alternative(t, index)
	}
	if err != nil {
		return nil, err
	}
	nested, err := b.fromValue(v.GetValue(), inner)
	if err != nil {
		return nil, inAlternative(err, v.GetTag(), index)
	}
	return variantValue(index, nested), nil
}

func variantValue(index uint32, nested *Ydb.Value) *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_NestedValue{NestedValue: nested}, VariantIndex: index}
}

func fromScalar(v *sidecarv1.Value, id Ydb.Type_PrimitiveTypeId) (*Ydb.Value, error) {
	if fieldOf(id) == noField {
		return nil, unknownType(&Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}})
	}
	switch x := v.GetKind().(type) {
	case *sidecarv1.Value_BoolValue:
		if id == Ydb.Type_BOOL {
			return boolValue(x.BoolValue), nil
		}
	case *sidecarv1.Value_Int64Value:
		return fromInteger(id, x.Int64Value < 0, magnitudeOf(x.Int64Value))
	case *sidecarv1.Value_Uint64Value:
		return fromInteger(id, false, x.Uint64Value)
	case *sidecarv1.Value_DoubleValue:
		if id == Ydb.Type_DOUBLE {
			return floating(id, x.DoubleValue), nil
		}
		return fromNumber(id, doubleText(x.DoubleValue))
	case *sidecarv1.Value_TextValue:
		if id == Ydb.Type_STRING {
			return bytesValue([]byte(x.TextValue)), nil
		}
		return fromText(id, x.TextValue)
	case *sidecarv1.Value_BytesValue:
		if id == Ydb.Type_STRING || id == Ydb.Type_YSON {
			return bytesValue(x.BytesValue), nil
		}
	}
	switch {
	case isNullValue(v):
		return nil, noNull(&Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}})
	case id == Ydb.Type_STRING:
		return nil, errorf("%s is not a String; send it as bytes_value", kindName(v))
	}
	return nil, notA(id, kindName(v))
}

func magnitudeOf(v int64) uint64 {
	if v < 0 {
		return -uint64(v)
	}
	return uint64(v)
}

// doubleText is the shortest decimal number that means the same Double; it is
// what the caller wrote before it became one.
func doubleText(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func fromScalarDecimal(v *sidecarv1.Value, t *Ydb.Type) (*Ydb.Value, error) {
	d := t.GetDecimalType()
	switch x := v.GetKind().(type) {
	case *sidecarv1.Value_TextValue:
		return parseDecimal(x.TextValue, d)
	case *sidecarv1.Value_Int64Value:
		return parseDecimal(strconv.FormatInt(x.Int64Value, 10), d)
	case *sidecarv1.Value_Uint64Value:
		return parseDecimal(strconv.FormatUint(x.Uint64Value, 10), d)
	case *sidecarv1.Value_DoubleValue:
		return parseDecimal(doubleText(x.DoubleValue), d)
	}
	return nil, mismatch(v, t)
}

// fromPg keeps PostgreSQL's own text, and its binary form in bytes.
func fromPg(v *sidecarv1.Value, t *Ydb.Type) (*Ydb.Value, error) {
	switch x := v.GetKind().(type) {
	case *sidecarv1.Value_NullValue:
		return nullValue(), nil
	case *sidecarv1.Value_TextValue:
		return textValue(x.TextValue), nil
	case *sidecarv1.Value_BytesValue:
		return bytesValue(x.BytesValue), nil
	case *sidecarv1.Value_BoolValue:
		return textValue(strconv.FormatBool(x.BoolValue)), nil
	case *sidecarv1.Value_Int64Value:
		return textValue(strconv.FormatInt(x.Int64Value, 10)), nil
	case *sidecarv1.Value_Uint64Value:
		return textValue(strconv.FormatUint(x.Uint64Value, 10)), nil
	case *sidecarv1.Value_DoubleValue:
		return textValue(doubleText(x.DoubleValue)), nil
	}
	return nil, mismatch(v, t)
}

// kindName names what a value is, for messages.
func kindName(v *sidecarv1.Value) string {
	switch x := v.GetKind().(type) {
	case *sidecarv1.Value_NullValue:
		return "null"
	case *sidecarv1.Value_BoolValue:
		return strconv.FormatBool(x.BoolValue)
	case *sidecarv1.Value_Int64Value:
		return theNumber + strconv.FormatInt(x.Int64Value, 10)
	case *sidecarv1.Value_Uint64Value:
		return theNumber + strconv.FormatUint(x.Uint64Value, 10)
	case *sidecarv1.Value_DoubleValue:
		return theNumber + doubleText(x.DoubleValue)
	case *sidecarv1.Value_TextValue:
		return clip(x.TextValue)
	case *sidecarv1.Value_BytesValue:
		return "bytes"
	case *sidecarv1.Value_ListValue:
		return "a list"
	case *sidecarv1.Value_StructValue:
		return "a struct"
	case *sidecarv1.Value_DictValue:
		return "a dict"
	case *sidecarv1.Value_VariantValue:
		return "a variant"
	case *sidecarv1.Value_TypedValue:
		return "a typed value"
	}
	return "an empty value"
}

// mismatch is the error for a value of the gRPC API of the wrong kind.
func mismatch(v *sidecarv1.Value, t *Ydb.Type) error {
	if isNullValue(v) {
		return noNull(t)
	}
	if member := kindOf(t); member != "" {
		return errorf("%s is not %s; send it as %s", kindName(v), article(FormatType(t)), member)
	}
	return errorf("%s is not %s%s", kindName(v), article(FormatType(t)), writeIt(t))
}

// kindOf names the member of a Value that holds values of a type that is made of others.
func kindOf(t *Ydb.Type) string {
	switch t.GetType().(type) {
	case *Ydb.Type_ListType, *Ydb.Type_TupleType:
		return "list_value"
	case *Ydb.Type_EmptyListType:
		return "list_value without items"
	case *Ydb.Type_StructType:
		return "struct_value"
	case *Ydb.Type_DictType:
		return "dict_value"
	case *Ydb.Type_EmptyDictType:
		return "dict_value without pairs"
	case *Ydb.Type_VariantType:
		return "variant_value"
	case *Ydb.Type_VoidType, *Ydb.Type_NullType:
		return "null_value"
	}
	return ""
}

func typeConflict(own, known *Ydb.Type) error {
	return errorf("the value is typed %s, but %s is expected; name the same type in both places, or only in one",
		FormatType(own), FormatType(known))
}

func (b *budget) exhausted() error {
	b.left = 0
	return b.spend()
}
