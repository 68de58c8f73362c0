// Package value holds the types and values of YQL as the development cluster
// computes with them: their wire form (section by section as the Ydb.Type and
// Ydb.Value messages want it), text forms, order, conversions, and the byte
// forms of keys and rows.
//
// It is pure. A *Type is immutable and a Value does not know its type: every
// function that needs it takes it. Value and Type together always form a legal
// pair when they come from this package; input from outside enters by FromProto,
// Decode, Parse and UnmarshalRow only, and these return errors.
package value

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// Kind is the outermost shape of a type.
type Kind uint8

// The kinds; primitive ones first.
const (
	Bool Kind = iota + 1
	Int8
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float
	Double
	Date
	Datetime
	Timestamp
	Interval
	Date32
	Datetime64
	Timestamp64
	Interval64
	TzDate
	TzDatetime
	TzTimestamp
	String
	Utf8
	Yson
	Json
	JsonDocument
	Uuid
	DyNumber
	lastPrimitive
	Decimal
	Optional
	List
	Tuple
	Struct
	Dict
	Variant
	Tagged
	Void
	Null
	EmptyList
	EmptyDict
	Pg
)

// The bounds of a type.
const (
	MaxDepth = 64      // of types within each other (and so of values)
	MaxText  = 1 << 20 // bytes of its text
)

// primitives lists name and wire id of every primitive kind.
var primitives = [lastPrimitive]struct {
	name string
	id   Ydb.Type_PrimitiveTypeId
}{
	Bool: {"Bool", Ydb.Type_BOOL},
	Int8: {"Int8", Ydb.Type_INT8}, Int16: {"Int16", Ydb.Type_INT16}, Int32: {"Int32", Ydb.Type_INT32}, Int64: {"Int64", Ydb.Type_INT64},
	Uint8: {"Uint8", Ydb.Type_UINT8}, Uint16: {"Uint16", Ydb.Type_UINT16}, Uint32: {"Uint32", Ydb.Type_UINT32},
	Uint64: {"Uint64", Ydb.Type_UINT64},
	Float:  {"Float", Ydb.Type_FLOAT}, Double: {"Double", Ydb.Type_DOUBLE},
	Date: {"Date", Ydb.Type_DATE}, Datetime: {"Datetime", Ydb.Type_DATETIME},
	Timestamp: {"Timestamp", Ydb.Type_TIMESTAMP}, Interval: {"Interval", Ydb.Type_INTERVAL},
	Date32: {"Date32", Ydb.Type_DATE32}, Datetime64: {"Datetime64", Ydb.Type_DATETIME64},
	Timestamp64: {"Timestamp64", Ydb.Type_TIMESTAMP64}, Interval64: {"Interval64", Ydb.Type_INTERVAL64},
	TzDate: {"TzDate", Ydb.Type_TZ_DATE}, TzDatetime: {"TzDatetime", Ydb.Type_TZ_DATETIME},
	TzTimestamp: {"TzTimestamp", Ydb.Type_TZ_TIMESTAMP},
	String:      {"String", Ydb.Type_STRING}, Utf8: {"Utf8", Ydb.Type_UTF8}, Yson: {"Yson", Ydb.Type_YSON},
	Json: {"Json", Ydb.Type_JSON}, JsonDocument: {"JsonDocument", Ydb.Type_JSON_DOCUMENT},
	Uuid: {"Uuid", Ydb.Type_UUID}, DyNumber: {"DyNumber", Ydb.Type_DYNUMBER},
}

var (
	byID   = map[Ydb.Type_PrimitiveTypeId]*Type{}
	byName = map[string]*Type{}
	prims  [lastPrimitive]*Type
)

// The types without parameters.
var (
	TypeBool, TypeInt32, TypeInt64, TypeUint32, TypeUint64, TypeFloat, TypeDouble *Type
	TypeDate, TypeDatetime, TypeTimestamp, TypeInterval                           *Type
	TypeString, TypeUtf8, TypeYson, TypeJson, TypeJsonDocument, TypeUuid          *Type

	TypeVoid      = newType(Type{Kind: Void, text: "Void"}, &Ydb.Type{Type: &Ydb.Type_VoidType{}})
	TypeNull      = newType(Type{Kind: Null, text: "Null"}, &Ydb.Type{Type: &Ydb.Type_NullType{}})
	TypeEmptyList = newType(Type{Kind: EmptyList, text: "EmptyList"}, &Ydb.Type{Type: &Ydb.Type_EmptyListType{}})
	TypeEmptyDict = newType(Type{Kind: EmptyDict, text: "EmptyDict"}, &Ydb.Type{Type: &Ydb.Type_EmptyDictType{}})
)

func init() { // fills the tables above once; nothing changes them afterwards
	for k := Bool; k < lastPrimitive; k++ {
		p := primitives[k]
		t := newType(Type{Kind: k, text: p.name}, &Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: p.id}})
		prims[k], byID[p.id], byName[strings.ToLower(p.name)] = t, t, t
	}
	byName["text"], byName["bytes"] = prims[Utf8], prims[String]
	for _, t := range []*Type{TypeVoid, TypeNull, TypeEmptyList, TypeEmptyDict} {
		byName[strings.ToLower(t.text)] = t
	}
	TypeBool, TypeInt32, TypeInt64, TypeUint32, TypeUint64 = prims[Bool], prims[Int32], prims[Int64], prims[Uint32], prims[Uint64]
	TypeFloat, TypeDouble, TypeDate, TypeDatetime = prims[Float], prims[Double], prims[Date], prims[Datetime]
	TypeTimestamp, TypeInterval, TypeString, TypeUtf8 = prims[Timestamp], prims[Interval], prims[String], prims[Utf8]
	TypeYson, TypeJson, TypeJsonDocument, TypeUuid = prims[Yson], prims[Json], prims[JsonDocument], prims[Uuid]
}

// Member is one member of a struct (sorted by name) or one element of a tuple (no name).
type Member struct {
	Name string
	Type *Type
}

// Type is an immutable YQL type. Two types are equal when their texts are.
type Type struct {
	Kind             Kind
	Elem             *Type // of Optional, List, Tagged; payload of Dict; the Tuple or Struct of Variant
	Key              *Type // of Dict
	Members          []Member
	Tag              string
	Precision, Scale uint32
	text             string
	wire             *Ydb.Type
	depth            int
}

func newType(t Type, wire *Ydb.Type) *Type {
	t.wire = wire
	for _, in := range []*Type{t.Elem, t.Key} {
		if in != nil {
			t.depth = max(t.depth, in.depth+1)
		}
	}
	for _, m := range t.Members {
		t.depth = max(t.depth, m.Type.depth+1)
	}
	return &t
}

// Primitive returns the type of a primitive kind.
func Primitive(k Kind) *Type { return prims[k] }

// Named returns the parameterless type of that name (any case), or nil.
func Named(name string) *Type { return byName[strings.ToLower(name)] }

// String returns the type in YQL.
func (t *Type) String() string { return t.text }

// Proto returns the wire form, which must not be changed.
func (t *Type) Proto() *Ydb.Type { return t.wire }

// Equal reports whether both are the same type.
func (t *Type) Equal(o *Type) bool { return t == o || t.text == o.text }

// Primitive reports whether the type is a primitive one (Decimal is not).
func (t *Type) Primitive() bool { return t.Kind < lastPrimitive }

// TooLarge reports whether the type nests deeper than MaxDepth or takes more than MaxText
// bytes to write. Code that builds types step by step must ask before the next step.
func (t *Type) TooLarge() bool { return t.depth > MaxDepth || len(t.text) > MaxText }

// OptionalOf returns Optional<t>.
func OptionalOf(t *Type) *Type {
	return newType(Type{Kind: Optional, Elem: t, text: "Optional<" + t.text + ">"},
		&Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: t.wire}}})
}

// Nullable returns t if it is Optional already (or Null, Pg), and Optional<t> if not.
func Nullable(t *Type) *Type {
	if t.Kind == Optional || t.Kind == Null || t.Kind == Pg {
		return t
	}
	return OptionalOf(t)
}

// Bare returns the type below one Optional, or t itself.
func Bare(t *Type) *Type {
	if t.Kind == Optional {
		return t.Elem
	}
	return t
}

// ListOf returns List<t>.
func ListOf(t *Type) *Type {
	return newType(Type{Kind: List, Elem: t, text: "List<" + t.text + ">"},
		&Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: t.wire}}})
}

// TupleOf returns Tuple<...>.
func TupleOf(elems ...*Type) *Type {
	var b strings.Builder
	b.WriteString("Tuple<")
	wire := make([]*Ydb.Type, len(elems))
	members := make([]Member, len(elems))
	for i, e := range elems {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(e.text)
		wire[i], members[i] = e.wire, Member{Type: e}
	}
	b.WriteByte('>')
	return newType(Type{Kind: Tuple, Members: members, text: b.String()},
		&Ydb.Type{Type: &Ydb.Type_TupleType{TupleType: &Ydb.TupleType{Elements: wire}}})
}

// StructOf returns Struct<...> with the members sorted by name; a name given twice is an error.
func StructOf(members ...Member) (*Type, error) {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	b.WriteString("Struct<")
	wire := make([]*Ydb.StructMember, len(members))
	for i, m := range members {
		if i > 0 {
			if members[i-1].Name == m.Name {
				return nil, fmt.Errorf("duplicated member of a struct: %s", m.Name)
			}
			b.WriteByte(',')
		}
		b.WriteString(memberName(m.Name))
		b.WriteByte(':')
		b.WriteString(m.Type.text)
		wire[i] = &Ydb.StructMember{Name: m.Name, Type: m.Type.wire}
	}
	b.WriteByte('>')
	return newType(Type{Kind: Struct, Members: members, text: b.String()},
		&Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: wire}}}), nil
}

// memberName quotes a name that is not a plain identifier, so that two types of
// equal text are equal types.
func memberName(s string) string {
	for i, c := range s {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
		}
	}
	if s == "" {
		return "''"
	}
	return s
}

// DictOf returns Dict<key, payload>; a set is a Dict whose payload is Void.
func DictOf(key, payload *Type) *Type {
	return newType(Type{Kind: Dict, Key: key, Elem: payload, text: "Dict<" + key.text + "," + payload.text + ">"},
		&Ydb.Type{Type: &Ydb.Type_DictType{DictType: &Ydb.DictType{Key: key.wire, Payload: payload.wire}}})
}

// VariantOf returns the variant over a tuple or a struct.
func VariantOf(over *Type) (*Type, error) {
	wire := &Ydb.VariantType{}
	switch over.Kind {
	case Tuple:
		wire.Type = &Ydb.VariantType_TupleItems{TupleItems: over.wire.GetTupleType()}
	case Struct:
		wire.Type = &Ydb.VariantType_StructItems{StructItems: over.wire.GetStructType()}
	default:
		return nil, fmt.Errorf("a Variant is over a Tuple or a Struct, not %s", over)
	}
	if len(over.Members) == 0 {
		return nil, fmt.Errorf("a Variant needs at least one alternative")
	}
	inner := over.text[strings.IndexByte(over.text, '<'):]
	return newType(Type{Kind: Variant, Elem: over, text: "Variant" + inner},
		&Ydb.Type{Type: &Ydb.Type_VariantType{VariantType: wire}}), nil
}

// TaggedOf returns Tagged<t, tag>.
func TaggedOf(t *Type, tag string) *Type {
	return newType(Type{Kind: Tagged, Elem: t, Tag: tag, text: "Tagged<" + t.text + "," + strconv.Quote(tag) + ">"},
		&Ydb.Type{Type: &Ydb.Type_TaggedType{TaggedType: &Ydb.TaggedType{Tag: tag, Type: t.wire}}})
}

// DecimalOf returns Decimal(precision, scale); precision is 1 to 35, scale 0 to precision.
func DecimalOf(precision, scale uint32) (*Type, error) {
	if precision < 1 || precision > 35 || scale > precision {
		return nil, fmt.Errorf("Decimal(%d,%d): precision must be 1 to 35 and scale 0 to the precision", precision, scale)
	}
	return newType(Type{Kind: Decimal, Precision: precision, Scale: scale, text: fmt.Sprintf("Decimal(%d,%d)", precision, scale)},
		&Ydb.Type{Type: &Ydb.Type_DecimalType{DecimalType: &Ydb.DecimalType{Precision: precision, Scale: scale}}}), nil
}

// FromProto returns the type of a wire form.
func FromProto(p *Ydb.Type) (*Type, error) { return fromProto(p, 0) }

func fromProto(p *Ydb.Type, depth int) (*Type, error) {
	if depth > MaxDepth {
		return nil, fmt.Errorf("type nested deeper than %d", MaxDepth)
	}
	of := func(q *Ydb.Type, outer func(*Type) *Type) (*Type, error) {
		t, err := fromProto(q, depth+1)
		if err != nil {
			return nil, err
		}
		return outer(t), nil
	}
	switch w := p.GetType().(type) {
	case *Ydb.Type_TypeId:
		if t := byID[w.TypeId]; t != nil {
			return t, nil
		}
		return nil, fmt.Errorf("unknown primitive type id %d", w.TypeId)
	case *Ydb.Type_DecimalType:
		return DecimalOf(w.DecimalType.GetPrecision(), w.DecimalType.GetScale())
	case *Ydb.Type_OptionalType:
		return of(w.OptionalType.GetItem(), OptionalOf)
	case *Ydb.Type_ListType:
		return of(w.ListType.GetItem(), ListOf)
	case *Ydb.Type_TupleType:
		return tupleFromProto(w.TupleType, depth)
	case *Ydb.Type_StructType:
		return structFromProto(w.StructType, depth)
	case *Ydb.Type_DictType:
		k, err := fromProto(w.DictType.GetKey(), depth+1)
		if err != nil {
			return nil, err
		}
		return of(w.DictType.GetPayload(), func(v *Type) *Type { return DictOf(k, v) })
	case *Ydb.Type_VariantType:
		return variantFromProto(w.VariantType, depth)
	case *Ydb.Type_TaggedType:
		return of(w.TaggedType.GetType(), func(t *Type) *Type { return TaggedOf(t, w.TaggedType.GetTag()) })
	case *Ydb.Type_VoidType:
		return TypeVoid, nil
	case *Ydb.Type_NullType:
		return TypeNull, nil
	case *Ydb.Type_EmptyListType:
		return TypeEmptyList, nil
	case *Ydb.Type_EmptyDictType:
		return TypeEmptyDict, nil
	case *Ydb.Type_PgType:
		g := w.PgType
		return newType(
			Type{Kind: Pg,
				text: fmt.Sprintf("Pg(%q,%q,%d,%d,%d)", g.GetTypeName(), g.GetTypeModifier(), g.GetOid(), g.GetTyplen(), g.GetTypmod())},
			&Ydb.Type{Type: &Ydb.Type_PgType{PgType: g}},
		), nil
	}
	return nil, fmt.Errorf("a type without a kind")
}

func variantFromProto(p *Ydb.VariantType, depth int) (over *Type, err error) {
	switch v := p.GetType().(type) {
	case *Ydb.VariantType_TupleItems:
		over, err = tupleFromProto(v.TupleItems, depth)
	case *Ydb.VariantType_StructItems:
		over, err = structFromProto(v.StructItems, depth)
	default:
		err = fmt.Errorf("a Variant without alternatives")
	}
	if err != nil {
		return nil, err
	}
	return VariantOf(over)
}

func tupleFromProto(p *Ydb.TupleType, depth int) (*Type, error) {
	elems := make([]*Type, len(p.GetElements()))
	for i, e := range p.GetElements() {
		t, err := fromProto(e, depth+1)
		if err != nil {
			return nil, err
		}
		elems[i] = t
	}
	return TupleOf(elems...), nil
}

func structFromProto(p *Ydb.StructType, depth int) (*Type, error) {
	members := make([]Member, len(p.GetMembers()))
	for i, m := range p.GetMembers() {
		t, err := fromProto(m.GetType(), depth+1)
		if err != nil {
			return nil, err
		}
		members[i] = Member{Name: m.GetName(), Type: t}
	}
	return StructOf(members...)
}

// Matches reports whether the wire type p is exactly t, without building it.
// Struct members may come in any order.
func (t *Type) Matches(p *Ydb.Type) bool {
	switch w := p.GetType().(type) {
	case *Ydb.Type_TypeId:
		return t.Kind < lastPrimitive && primitives[t.Kind].id == w.TypeId
	case *Ydb.Type_OptionalType:
		return t.Kind == Optional && t.Elem.Matches(w.OptionalType.GetItem())
	case *Ydb.Type_ListType:
		return t.Kind == List && t.Elem.Matches(w.ListType.GetItem())
	case *Ydb.Type_StructType:
		m := w.StructType.GetMembers()
		if t.Kind != Struct || len(m) != len(t.Members) {
			return false
		}
		for i := range m {
			if m[i].GetName() != t.Members[i].Name { // another order: the slow way
				o, err := FromProto(p)
				return err == nil && t.Equal(o)
			}
			if !t.Members[i].Type.Matches(m[i].GetType()) {
				return false
			}
		}
		return true
	}
	o, err := FromProto(p)
	return err == nil && t.Equal(o)
}
