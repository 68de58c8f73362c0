package yql

import (
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// The wide types with a time zone have no names in the published enum yet.
const (
	tzDate32      Ydb.Type_PrimitiveTypeId = 68
	tzDatetime64  Ydb.Type_PrimitiveTypeId = 69
	tzTimestamp64 Ydb.Type_PrimitiveTypeId = 70
)

// primitiveNames has the one name of each primitive type that is written.
var primitiveNames = map[Ydb.Type_PrimitiveTypeId]string{
	Ydb.Type_BOOL:          "Bool",
	Ydb.Type_INT8:          "Int8",
	Ydb.Type_UINT8:         "Uint8",
	Ydb.Type_INT16:         "Int16",
	Ydb.Type_UINT16:        "Uint16",
	Ydb.Type_INT32:         "Int32",
	Ydb.Type_UINT32:        "Uint32",
	Ydb.Type_INT64:         "Int64",
	Ydb.Type_UINT64:        "Uint64",
	Ydb.Type_FLOAT:         "Float",
	Ydb.Type_DOUBLE:        "Double",
	Ydb.Type_DATE:          "Date",
	Ydb.Type_DATETIME:      "Datetime",
	Ydb.Type_TIMESTAMP:     "Timestamp",
	Ydb.Type_INTERVAL:      "Interval",
	Ydb.Type_TZ_DATE:       "TzDate",
	Ydb.Type_TZ_DATETIME:   "TzDatetime",
	Ydb.Type_TZ_TIMESTAMP:  "TzTimestamp",
	Ydb.Type_DATE32:        "Date32",
	Ydb.Type_DATETIME64:    "Datetime64",
	Ydb.Type_TIMESTAMP64:   "Timestamp64",
	Ydb.Type_INTERVAL64:    "Interval64",
	tzDate32:               "TzDate32",
	tzDatetime64:           "TzDatetime64",
	tzTimestamp64:          "TzTimestamp64",
	Ydb.Type_STRING:        "String",
	Ydb.Type_UTF8:          "Utf8",
	Ydb.Type_YSON:          "Yson",
	Ydb.Type_JSON:          "Json",
	Ydb.Type_UUID:          "Uuid",
	Ydb.Type_JSON_DOCUMENT: "JsonDocument",
	Ydb.Type_DYNUMBER:      "DyNumber",
}

// aliases are the other names that YQL reads, in lower case.
var aliases = map[string]Ydb.Type_PrimitiveTypeId{
	"bytes":    Ydb.Type_STRING,
	"text":     Ydb.Type_UTF8,
	"tinyint":  Ydb.Type_INT8,
	"smallint": Ydb.Type_INT16,
	"int":      Ydb.Type_INT32,
	"integer":  Ydb.Type_INT32,
	"bigint":   Ydb.Type_INT64,
}

// foreignTypes are names that other languages and databases have for types of YQL, in lower case.
var foreignTypes = map[string]string{
	"array":    "List<...>, with the type of its items",
	"binary":   "String",
	"blob":     "String",
	"boolean":  "Bool",
	"bytea":    "String",
	"float32":  "Float",
	"float64":  "Double",
	"guid":     "Uuid",
	"jsonb":    "JsonDocument",
	"long":     "Int64",
	"map":      "Dict<...,...>, with the types of its keys and values",
	"number":   "Int64, Double or Decimal(22,9)",
	"numeric":  "Decimal(22,9)",
	"nullable": "Optional<...>, with the type of its values",
	"real":     "Double",
	"str":      "Utf8",
	"uint":     "Uint32",
	"varchar":  "Utf8",
}

// simpleTypes has every type without parameters by its name in lower case. The
// types are shared by everything that this package returns.
var simpleTypes = func() map[string]*Ydb.Type {
	types := map[string]*Ydb.Type{
		"void":      {Type: &Ydb.Type_VoidType{}},
		"null":      {Type: &Ydb.Type_NullType{}},
		"emptylist": {Type: &Ydb.Type_EmptyListType{}},
		"emptydict": {Type: &Ydb.Type_EmptyDictType{}},
	}
	for id, name := range primitiveNames {
		types[strings.ToLower(name)] = &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}}
	}
	for name, id := range aliases {
		types[name] = types[strings.ToLower(primitiveNames[id])]
	}
	return types
}()

// The types that the plain rule gives to untyped values, and those that the
// rule's own steps need.
var (
	typeBool      = simpleTypes["bool"]
	typeInt64     = simpleTypes["int64"]
	typeUint64    = simpleTypes["uint64"]
	typeDouble    = simpleTypes["double"]
	typeUtf8      = simpleTypes["utf8"]
	typeString    = simpleTypes["string"]
	typeVoid      = simpleTypes["void"]
	typeEmptyList = simpleTypes["emptylist"]
	typeEmptyDict = simpleTypes["emptydict"]
)

// FormatType returns the YQL name of a type, such as "Optional<Utf8>".
// ParseType reads it back. A type that this version does not know is written
// as Unknown(id), which nothing reads back.
func FormatType(t *Ydb.Type) string {
	if id, ok := t.GetType().(*Ydb.Type_TypeId); ok {
		if name, ok := primitiveNames[id.TypeId]; ok {
			return name
		}
	}
	return string(AppendType(nil, t))
}

// AppendType appends FormatType's result to dst.
func AppendType(dst []byte, t *Ydb.Type) []byte {
	switch t := t.GetType().(type) {
	case *Ydb.Type_TypeId:
		if name, ok := primitiveNames[t.TypeId]; ok {
			return append(dst, name...)
		}
		dst = append(dst, "Unknown("...)
		dst = strconv.AppendInt(dst, int64(t.TypeId), 10)
		return append(dst, ')')
	case *Ydb.Type_DecimalType:
		dst = append(dst, "Decimal("...)
		dst = strconv.AppendUint(dst, uint64(t.DecimalType.GetPrecision()), 10)
		dst = append(dst, ',')
		dst = strconv.AppendUint(dst, uint64(t.DecimalType.GetScale()), 10)
		return append(dst, ')')
	case *Ydb.Type_OptionalType:
		return appendContainer(dst, "Optional<", t.OptionalType.GetItem())
	case *Ydb.Type_ListType:
		return appendContainer(dst, "List<", t.ListType.GetItem())
	case *Ydb.Type_TupleType:
		return appendContainer(dst, "Tuple<", t.TupleType.GetElements()...)
	case *Ydb.Type_StructType:
		return appendMembers(dst, "Struct<", t.StructType.GetMembers())
	case *Ydb.Type_DictType:
		if isVoid(t.DictType.GetPayload()) {
			return appendContainer(dst, "Set<", t.DictType.GetKey())
		}
		return appendContainer(dst, "Dict<", t.DictType.GetKey(), t.DictType.GetPayload())
	case *Ydb.Type_VariantType:
		if s, ok := t.VariantType.GetType().(*Ydb.VariantType_StructItems); ok {
			return appendMembers(dst, "Variant<", s.StructItems.GetMembers())
		}
		return appendContainer(dst, "Variant<", t.VariantType.GetTupleItems().GetElements()...)
	case *Ydb.Type_TaggedType:
		dst = AppendType(append(dst, "Tagged<"...), t.TaggedType.GetType())
		return append(appendLiteral(append(dst, ','), t.TaggedType.GetTag()), '>')
	case *Ydb.Type_VoidType:
		return append(dst, "Void"...)
	case *Ydb.Type_NullType:
		return append(dst, "Null"...)
	case *Ydb.Type_EmptyListType:
		return append(dst, "EmptyList"...)
	case *Ydb.Type_EmptyDictType:
		return append(dst, "EmptyDict"...)
	case *Ydb.Type_PgType:
		return appendPg(dst, t.PgType)
	}
	return append(dst, "Unknown(0)"...)
}

func appendContainer(dst []byte, open string, items ...*Ydb.Type) []byte {
	dst = append(dst, open...)
	for i, item := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendType(dst, item)
	}
	return append(dst, '>')
}

func appendMembers(dst []byte, open string, members []*Ydb.StructMember) []byte {
	dst = append(dst, open...)
	for i, m := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		if isIdent(m.GetName()) {
			dst = append(dst, m.GetName()...)
		} else {
			dst = appendLiteral(dst, m.GetName())
		}
		dst = AppendType(append(dst, ':'), m.GetType())
	}
	return append(dst, '>')
}

// appendLiteral writes a string literal of YQL.
func appendLiteral(dst []byte, s string) []byte {
	dst = append(dst, '\'')
	for i := range len(s) {
		if s[i] == '\'' || s[i] == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, s[i])
	}
	return append(dst, '\'')
}

func isVoid(t *Ydb.Type) bool {
	_, ok := t.GetType().(*Ydb.Type_VoidType)
	return ok
}

// EqualTypes reports whether a and b are the same type. Struct members count in
// their order; of a PostgreSQL type only which one it is counts.
func EqualTypes(a, b *Ydb.Type) bool {
	switch a := a.GetType().(type) {
	case nil:
		return b.GetType() == nil
	case *Ydb.Type_TypeId:
		b, ok := b.GetType().(*Ydb.Type_TypeId)
		return ok && a.TypeId == b.TypeId
	case *Ydb.Type_DecimalType:
		b, ok := b.GetType().(*Ydb.Type_DecimalType)
		return ok && a.DecimalType.GetPrecision() == b.DecimalType.GetPrecision() &&
			a.DecimalType.GetScale() == b.DecimalType.GetScale()
	case *Ydb.Type_OptionalType:
		b, ok := b.GetType().(*Ydb.Type_OptionalType)
		return ok && EqualTypes(a.OptionalType.GetItem(), b.OptionalType.GetItem())
	case *Ydb.Type_ListType:
		b, ok := b.GetType().(*Ydb.Type_ListType)
		return ok && EqualTypes(a.ListType.GetItem(), b.ListType.GetItem())
	case *Ydb.Type_TupleType:
		b, ok := b.GetType().(*Ydb.Type_TupleType)
		return ok && equalElements(a.TupleType.GetElements(), b.TupleType.GetElements())
	case *Ydb.Type_StructType:
		b, ok := b.GetType().(*Ydb.Type_StructType)
		return ok && equalMembers(a.StructType.GetMembers(), b.StructType.GetMembers())
	case *Ydb.Type_DictType:
		b, ok := b.GetType().(*Ydb.Type_DictType)
		return ok && EqualTypes(a.DictType.GetKey(), b.DictType.GetKey()) &&
			EqualTypes(a.DictType.GetPayload(), b.DictType.GetPayload())
	case *Ydb.Type_VariantType:
		b, ok := b.GetType().(*Ydb.Type_VariantType)
		if !ok {
			return false
		}
		_, named := a.VariantType.GetType().(*Ydb.VariantType_StructItems)
		if _, also := b.VariantType.GetType().(*Ydb.VariantType_StructItems); named != also {
			return false
		}
		return equalMembers(a.VariantType.GetStructItems().GetMembers(), b.VariantType.GetStructItems().GetMembers()) &&
			equalElements(a.VariantType.GetTupleItems().GetElements(), b.VariantType.GetTupleItems().GetElements())
	case *Ydb.Type_TaggedType:
		b, ok := b.GetType().(*Ydb.Type_TaggedType)
		return ok && a.TaggedType.GetTag() == b.TaggedType.GetTag() &&
			EqualTypes(a.TaggedType.GetType(), b.TaggedType.GetType())
	case *Ydb.Type_PgType:
		b, ok := b.GetType().(*Ydb.Type_PgType)
		return ok && equalPg(a.PgType, b.PgType)
	case *Ydb.Type_VoidType:
		_, ok := b.GetType().(*Ydb.Type_VoidType)
		return ok
	case *Ydb.Type_NullType:
		_, ok := b.GetType().(*Ydb.Type_NullType)
		return ok
	case *Ydb.Type_EmptyListType:
		_, ok := b.GetType().(*Ydb.Type_EmptyListType)
		return ok
	case *Ydb.Type_EmptyDictType:
		_, ok := b.GetType().(*Ydb.Type_EmptyDictType)
		return ok
	}
	return false
}

func equalElements(a, b []*Ydb.Type) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !EqualTypes(a[i], b[i]) {
			return false
		}
	}
	return true
}

func equalMembers(a, b []*Ydb.StructMember) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].GetName() != b[i].GetName() || !EqualTypes(a[i].GetType(), b[i].GetType()) {
			return false
		}
	}
	return true
}
