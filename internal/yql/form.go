package yql

import (
	"strconv"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// An error about a value ends with what to write instead, as an example in JSON. Over
// gRPC the same text is a text_value, and the same number an int64_value.

// scalarForms has an example of each primitive type that is no integer, as a request may have it.
var scalarForms = map[Ydb.Type_PrimitiveTypeId]string{
	Ydb.Type_BOOL:          `true`,
	Ydb.Type_FLOAT:         `1.5`,
	Ydb.Type_DOUBLE:        `1.5`,
	Ydb.Type_DATE:          `"2024-01-31"`,
	Ydb.Type_DATETIME:      `"2024-01-31T10:00:00Z"`,
	Ydb.Type_TIMESTAMP:     `"2024-01-31T10:00:00.123456Z"`,
	Ydb.Type_INTERVAL:      `"P1DT2H3M4.5S"`,
	Ydb.Type_TZ_DATE:       `"2024-01-31,Europe/Moscow"`,
	Ydb.Type_TZ_DATETIME:   `"2024-01-31T10:00:00,Europe/Moscow"`,
	Ydb.Type_TZ_TIMESTAMP:  `"2024-01-31T10:00:00.5,Europe/Moscow"`,
	Ydb.Type_DATE32:        `"1900-01-31"`,
	Ydb.Type_DATETIME64:    `"1900-01-31T10:00:00Z"`,
	Ydb.Type_TIMESTAMP64:   `"1900-01-31T10:00:00.123456Z"`,
	Ydb.Type_INTERVAL64:    `"P1DT2H3M4.5S"`,
	tzDate32:               `"1900-01-31,Europe/Moscow"`,
	tzDatetime64:           `"1900-01-31T10:00:00,Europe/Moscow"`,
	tzTimestamp64:          `"1900-01-31T10:00:00.5,Europe/Moscow"`,
	Ydb.Type_STRING:        `{"base64":"AP/+"}`,
	Ydb.Type_UTF8:          `"text"`,
	Ydb.Type_YSON:          `"{a=1}"`,
	Ydb.Type_JSON:          `"{\"a\":1}"`,
	Ydb.Type_JSON_DOCUMENT: `"{\"a\":1}"`,
	Ydb.Type_UUID:          `"5ca32c22-841b-11e8-adc0-fa7ae01bbebc"`,
	Ydb.Type_DYNUMBER:      `"1.5e-30"`,
}

// longestForm is how long an example may be, in bytes; a longer one is cut to its kind.
const longestForm = 160

// writeIt is the end of an error about a value of type t: what to write.
func writeIt(t *Ydb.Type) string {
	form := exampleOf(t)
	if form == "" {
		return ""
	}
	return "; write it like " + form
}

// writeScalar is writeIt of a primitive type.
func writeScalar(id Ydb.Type_PrimitiveTypeId) string {
	return writeIt(&Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}})
}

// exampleOf returns the JSON of a value of type t, or the outline of one that is too large to
// show; "" if the type is not known.
func exampleOf(t *Ydb.Type) string {
	b, ok := appendExample(nil, t)
	switch {
	case !ok:
		return ""
	case len(b) <= longestForm:
		return string(b)
	case b[0] == '[':
		return "[...]"
	default:
		return "{...}"
	}
}

// appendExample adds an example of type t. It stops after more than longestForm bytes: types may be
// large. Long: it is one flat list of the kinds of types.
func appendExample(b []byte, t *Ydb.Type) (_ []byte, ok bool) {
	if len(b) > longestForm {
		return b, true
	}
	switch x := t.GetType().(type) {
	case *Ydb.Type_TypeId:
		if isInteger(x.TypeId) {
			return append(b, '5'), true
		}
		return append(b, scalarForms[x.TypeId]...), scalarForms[x.TypeId] != ""
	case *Ydb.Type_DecimalType:
		return append(b, decimalForm(x.DecimalType)...), true
	case *Ydb.Type_OptionalType:
		if canBeNull(x.OptionalType.GetItem()) {
			return appendExamples(b, "[]", x.OptionalType.GetItem())
		}
		return appendExample(b, x.OptionalType.GetItem())
	case *Ydb.Type_TaggedType:
		return appendExample(b, x.TaggedType.GetType())
	case *Ydb.Type_VoidType, *Ydb.Type_NullType:
		return append(b, "null"...), true
	case *Ydb.Type_PgType:
		return append(b, `"5"`...), true
	case *Ydb.Type_EmptyListType, *Ydb.Type_EmptyDictType:
		return append(b, "[]"...), true
	case *Ydb.Type_ListType:
		return appendExamples(b, "[]", x.ListType.GetItem())
	case *Ydb.Type_TupleType:
		return appendExamples(b, "[]", x.TupleType.GetElements()...)
	case *Ydb.Type_StructType:
		return appendExampleOf(b, x.StructType.GetMembers())
	case *Ydb.Type_DictType:
		if isVoid(x.DictType.GetPayload()) {
			return appendExamples(b, "[]", x.DictType.GetKey())
		}
		b, ok = appendExamples(append(b, '['), "[]", x.DictType.GetKey(), x.DictType.GetPayload())
		return append(b, ']'), ok
	case *Ydb.Type_VariantType:
		if members := x.VariantType.GetStructItems().GetMembers(); len(members) > 0 {
			return appendExampleOf(b, members[:1])
		}
		if elements := x.VariantType.GetTupleItems().GetElements(); len(elements) > 0 {
			b, ok = appendExample(append(b, `{"index":0,"value":`...), elements[0])
			return append(b, '}'), ok
		}
	}
	return b, false
}

// appendExamples adds examples of types between brackets.
func appendExamples(b []byte, brackets string, types ...*Ydb.Type) (_ []byte, ok bool) {
	b, ok = append(b, brackets[0]), true
	for i, t := range types {
		if i > 0 {
			b = append(b, ',')
		}
		if b, ok = appendExample(b, t); !ok || len(b) > longestForm {
			break
		}
	}
	return append(b, brackets[1]), ok
}

// appendExampleOf adds an object with an example of each member.
func appendExampleOf(b []byte, members []*Ydb.StructMember) (_ []byte, ok bool) {
	b, ok = append(b, '{'), true
	for i, m := range members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, m.GetName()), ':')
		if b, ok = appendExample(b, m.GetType()); !ok || len(b) > longestForm {
			break
		}
	}
	return append(b, '}'), ok
}

// decimalForm is a Decimal with as many places as fit the type, at most two.
func decimalForm(d *Ydb.DecimalType) string {
	form := "1"
	if d.GetPrecision() == d.GetScale() {
		form = "0"
	}
	if places := min(d.GetScale(), 2); places > 0 {
		form += "." + "50"[:places]
	}
	return strconv.Quote(form)
}

var optionalUtf8 = optional(typeUtf8)

// noNull is the error for a null where type t has none. For a whole parameter the caller's type
// was the mistake, so the error names the type that would do.
func noNull(t *Ydb.Type) error {
	name := FormatType(t)
	return &Error{
		Msg:   "null is not " + article(name) + "; only Optional<" + name + "> allows null",
		Wants: "Optional<" + name + ">",
	}
}

// needsType is the error for a value from which no type can be told, with a type that would do.
func needsType(what, wants string) error {
	return &Error{Msg: what + " needs a type", Wants: wants}
}

// nullsAsText is a type with Optional<Utf8> for each null whose type is unknown, as an example of a type that the
// caller may name.
func nullsAsText(t *Ydb.Type) *Ydb.Type {
	if t == untypedNull {
		return optionalUtf8
	}
	switch x := t.GetType().(type) {
	case *Ydb.Type_OptionalType:
		if x.OptionalType.GetItem() == untypedNull {
			return optionalUtf8
		}
		return optional(nullsAsText(x.OptionalType.GetItem()))
	case *Ydb.Type_ListType:
		return listOf(nullsAsText(x.ListType.GetItem()))
	case *Ydb.Type_DictType:
		return dict(nullsAsText(x.DictType.GetKey()), nullsAsText(x.DictType.GetPayload()))
	case *Ydb.Type_StructType:
		list := make([]*Ydb.StructMember, 0, len(x.StructType.GetMembers()))
		for _, m := range x.StructType.GetMembers() {
			list = append(list, &Ydb.StructMember{Name: m.GetName(), Type: nullsAsText(m.GetType())})
		}
		return &Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: list}}}
	}
	return t
}

// rangeText is the range of a type of dates or times.
func rangeText(id Ydb.Type_PrimitiveTypeId) string {
	low, high := rangeOf(id)
	var first, last []byte
	switch id {
	case Ydb.Type_DATE, Ydb.Type_DATE32:
		first, last = appendDate(nil, low), appendDate(nil, int64(high))
	case Ydb.Type_DATETIME, Ydb.Type_DATETIME64:
		first, last = appendDatetime(nil, low, 0), appendDatetime(nil, int64(high), 0)
	case Ydb.Type_TIMESTAMP, Ydb.Type_TIMESTAMP64:
		first, last = appendTimestamp(nil, low), appendTimestamp(nil, int64(high))
	case Ydb.Type_INTERVAL, Ydb.Type_INTERVAL64:
		first, last = appendInterval(nil, low), appendInterval(nil, int64(high))
	}
	return string(first) + " to " + string(last)
}

// notNested is the error for a value of an Optional t of what can be null itself, which needs a list around it.
func notNested(t *Ydb.Type) error {
	return errorf("%s must be null or a list of one%s", article(FormatType(t)), writeIt(t))
}

// writeTuple is writeIt of a Tuple with such elements.
func writeTuple(elements []*Ydb.Type) string {
	return writeIt(&Ydb.Type{Type: &Ydb.Type_TupleType{TupleType: &Ydb.TupleType{Elements: elements}}})
}

// writeVariant is writeIt of a Variant.
func writeVariant(t *Ydb.VariantType) string {
	return writeIt(&Ydb.Type{Type: &Ydb.Type_VariantType{VariantType: t}})
}

// noMember is the error for a member that a Struct does not have.
func noMember(name string, list []*Ydb.StructMember) error {
	return errorf("the Struct has no member %s; %s", clip(name), itHas(list))
}

// mostMembers is how many members an error lists.
const mostMembers = 8

// itHas lists the names of members.
func itHas(list []*Ydb.StructMember) string {
	if len(list) == 0 {
		return "it has none"
	}
	text := "it has "
	for i, m := range list[:min(len(list), mostMembers)] {
		if i > 0 {
			text += ", "
		}
		text += clip(m.GetName())
	}
	if len(list) > mostMembers {
		text += ", ..."
	}
	return text
}
