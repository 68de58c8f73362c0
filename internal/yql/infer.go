package yql

import (
	"slices"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The plain rule gives a type to a value that nobody gave a type: an integer is
// Int64 (Uint64 beyond its range, and each uint64_value), any other number Double,
// text Utf8, bytes String, true and false Bool, a list List of what its items
// have in common, an object Struct with its members in the order of their names,
// an empty list EmptyList. Items that differ only in nulls make an Optional, and
// integers among numbers are numbers. What is only ever null has no type.

// Infer returns the type that the plain rule gives to a value of the gRPC API.
// A typed_value has its own type; a variant has none and is an error.
func Infer(v *sidecarv1.Value) (*Ydb.Type, error) {
	return complete(infer(v, 1))
}

// InferJSON returns the type that the plain rule gives to a JSON value.
func InferJSON(raw []byte) (*Ydb.Type, error) {
	s := scanner{data: raw}
	t, err := s.infer(1)
	if err == nil {
		err = s.end()
	}
	return complete(t, err)
}

// complete refuses a type with a null in it whose type nobody knows.
func complete(t *Ydb.Type, err error) (*Ydb.Type, error) {
	if err != nil {
		return nil, err
	}
	return t, knowsNulls(t, t)
}

// untypedNull is told from the Null that somebody asked for by its address.
var untypedNull = &Ydb.Type{Type: &Ydb.Type_NullType{}}

// knowsNulls looks for a null without a type in t, which is the type whole or a part of it.
func knowsNulls(t, whole *Ydb.Type) error {
	if t == untypedNull {
		return needsType("a null", FormatType(nullsAsText(whole)))
	}
	switch x := t.GetType().(type) {
	case *Ydb.Type_OptionalType:
		return knowsNulls(x.OptionalType.GetItem(), whole)
	case *Ydb.Type_ListType:
		return knowsNulls(x.ListType.GetItem(), whole)
	case *Ydb.Type_DictType:
		if err := knowsNulls(x.DictType.GetKey(), whole); err != nil {
			return err
		}
		return knowsNulls(x.DictType.GetPayload(), whole)
	case *Ydb.Type_StructType:
		for _, m := range x.StructType.GetMembers() {
			if err := knowsNulls(m.GetType(), whole); err != nil {
				return inMember(err, m.GetName())
			}
		}
	}
	return nil
}

func infer(v *sidecarv1.Value, level int) (*Ydb.Type, error) {
	if level > MaxTypeDepth {
		return nil, errorf("the value nests more than %d deep", MaxTypeDepth)
	}
	switch x := v.GetKind().(type) {
	case *sidecarv1.Value_NullValue:
		return untypedNull, nil
	case *sidecarv1.Value_BoolValue:
		return typeBool, nil
	case *sidecarv1.Value_Int64Value:
		return typeInt64, nil
	case *sidecarv1.Value_Uint64Value:
		return typeUint64, nil
	case *sidecarv1.Value_DoubleValue:
		return typeDouble, nil
	case *sidecarv1.Value_TextValue:
		return typeUtf8, nil
	case *sidecarv1.Value_BytesValue:
		return typeString, nil
	case *sidecarv1.Value_TypedValue:
		return ParseType(x.TypedValue.GetType())
	case *sidecarv1.Value_ListValue:
		var item *Ydb.Type
		for i, one := range x.ListValue.GetItems() {
			t, err := infer(one, level+1)
			if err == nil {
				item, err = common(item, t)
			}
			if err != nil {
				return nil, inItem(err, i)
			}
		}
		return listOf(item), nil
	case *sidecarv1.Value_StructValue:
		list := make([]*Ydb.StructMember, len(x.StructValue.GetFields()))
		for i, f := range x.StructValue.GetFields() {
			t, err := infer(f.GetValue(), level+1)
			if err != nil {
				return nil, inMember(err, f.GetName())
			}
			list[i] = &Ydb.StructMember{Name: f.GetName(), Type: t}
		}
		return structOf(list)
	case *sidecarv1.Value_DictValue:
		return inferDict(x.DictValue, level)
	}
	if v.GetVariantValue() != nil {
		return nil, needsType("a variant", "Variant<a:Int64,b:Utf8>")
	}
	return nil, errorf("%s needs a type; set a member of the Value, such as null_value or text_value", kindName(v))
}

func inferDict(d *sidecarv1.DictValue, level int) (*Ydb.Type, error) {
	if len(d.GetPairs()) == 0 {
		return typeEmptyDict, nil
	}
	var key, payload *Ydb.Type
	for i, pair := range d.GetPairs() {
		k, err := infer(pair.GetKey(), level+1)
		if err == nil {
			key, err = common(key, k)
		}
		if err != nil {
			return nil, inItem(At(err, "key"), i)
		}
		p := typeVoid
		if pair.GetValue() != nil {
			if p, err = infer(pair.GetValue(), level+1); err != nil {
				return nil, inItem(At(err, "value"), i)
			}
		}
		if payload, err = common(payload, p); err != nil {
			return nil, inItem(At(err, "value"), i)
		}
	}
	return dict(key, payload), nil
}

func (s *scanner) infer(level int) (*Ydb.Type, error) {
	if level > MaxTypeDepth {
		return nil, errorf("the value nests more than %d deep", MaxTypeDepth)
	}
	switch c := s.peek(); {
	case c == '"':
		_, err := s.str()
		return typeUtf8, err
	case c == '-' || isDigit(c):
		text, err := s.number()
		if err != nil {
			return nil, err
		}
		return inferNumber(string(text))
	case c == '[':
		var item *Ydb.Type
		err := s.list(func(i int) error {
			t, err := s.infer(level + 1)
			if err == nil {
				item, err = common(item, t)
			}
			return inItem(err, i)
		})
		return listOf(item), err
	case c == '{':
		var list []*Ydb.StructMember
		err := s.object(func(name string) error {
			t, err := s.infer(level + 1)
			list = append(list, &Ydb.StructMember{Name: name, Type: t})
			return inMember(err, name)
		})
		if err != nil {
			return nil, err
		}
		return structOf(list)
	}
	w, err := s.word()
	if err == nil && w == "null" {
		return untypedNull, nil
	}
	return typeBool, err
}

func inferNumber(text string) (*Ydb.Type, error) {
	if strings.ContainsAny(text, ".eE") {
		return typeDouble, nil
	}
	if _, err := fromNumber(Ydb.Type_INT64, text); err == nil {
		return typeInt64, nil
	}
	if _, err := fromNumber(Ydb.Type_UINT64, text); err == nil {
		return typeUint64, nil
	}
	return nil, needsType("the integer "+cut(text)+", which fits neither Int64 nor Uint64,", "Decimal(35,0)")
}

// listOf is the type of a list with such items; of one without is EmptyList.
func listOf(item *Ydb.Type) *Ydb.Type {
	if item == nil {
		return typeEmptyList
	}
	return &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: item}}}
}

// structOf sorts the members, as the server does.
func structOf(list []*Ydb.StructMember) (*Ydb.Type, error) {
	slices.SortFunc(list, func(a, b *Ydb.StructMember) int { return strings.Compare(a.GetName(), b.GetName()) })
	for i := 1; i < len(list); i++ {
		if list[i].GetName() == list[i-1].GetName() {
			return nil, inMember(errorf("the member appears twice"), list[i].GetName())
		}
	}
	return &Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: list}}}, nil
}

// common returns the type that holds the values of both a and b. The nil type
// has no values.
func common(a, b *Ydb.Type) (*Ydb.Type, error) {
	if a == nil || EqualTypes(a, b) {
		return b, nil
	}
	if rank(b) < rank(a) {
		a, b = b, a
	}
	switch x := a.GetType().(type) {
	case *Ydb.Type_NullType:
		if isOptional(b) {
			return b, nil
		}
		return optional(b), nil
	case *Ydb.Type_OptionalType:
		if isOptional(b) {
			b = b.GetOptionalType().GetItem()
		}
		item, err := common(x.OptionalType.GetItem(), b)
		return optional(item), err
	case *Ydb.Type_EmptyListType:
		if b.GetListType() != nil {
			return b, nil
		}
	case *Ydb.Type_EmptyDictType:
		if b.GetDictType() != nil {
			return b, nil
		}
	case *Ydb.Type_ListType:
		if b.GetListType() != nil {
			item, err := common(x.ListType.GetItem(), b.GetListType().GetItem())
			return listOf(item), err
		}
	case *Ydb.Type_DictType:
		if d := b.GetDictType(); d != nil {
			key, err := common(x.DictType.GetKey(), d.GetKey())
			if err != nil {
				return nil, err
			}
			payload, err := common(x.DictType.GetPayload(), d.GetPayload())
			return dict(key, payload), err
		}
	case *Ydb.Type_StructType:
		if s := b.GetStructType(); s != nil {
			return commonStruct(x.StructType.GetMembers(), s.GetMembers())
		}
	case *Ydb.Type_TypeId:
		if y, ok := b.GetType().(*Ydb.Type_TypeId); ok && widens(x.TypeId) && widens(y.TypeId) {
			if x.TypeId == Ydb.Type_DOUBLE || y.TypeId == Ydb.Type_DOUBLE {
				return typeDouble, nil
			}
			return typeUint64, nil
		}
	}
	return nil, errorf("one list holds both %s and %s; write all items in the same form", FormatType(a), FormatType(b))
}

// rank orders types by how little they say; common looks from the side of the
// type that says less.
func rank(t *Ydb.Type) int {
	switch t.GetType().(type) {
	case *Ydb.Type_NullType:
		return 0
	case *Ydb.Type_OptionalType:
		return 1
	case *Ydb.Type_EmptyListType, *Ydb.Type_EmptyDictType:
		return 2
	}
	return 3
}

// widens reports whether the rule joins a type with the other types of numbers.
func widens(id Ydb.Type_PrimitiveTypeId) bool {
	return id == Ydb.Type_INT64 || id == Ydb.Type_UINT64 || id == Ydb.Type_DOUBLE
}

func commonStruct(a, b []*Ydb.StructMember) (*Ydb.Type, error) {
	if len(a) != len(b) {
		return nil, errorf(
			"one list holds structs with %d and with %d members; write the same members in each, null where there is no value",
			len(a), len(b),
		)
	}
	list := make([]*Ydb.StructMember, len(a))
	for i := range a {
		name := a[i].GetName()
		if name != b[i].GetName() {
			return nil, errorf(
				"one list holds structs with and without %[1]s; write the member %[1]s in each, as null where there is no value",
				clip(name),
			)
		}
		t, err := common(a[i].GetType(), b[i].GetType())
		if err != nil {
			return nil, inMember(err, name)
		}
		list[i] = &Ydb.StructMember{Name: name, Type: t}
	}
	return &Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: list}}}, nil
}
