package yql

import (
	"encoding/base64"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// Ints says how JSON shows integers of 64 bits.
type Ints uint8

// The ways. A reader that takes JSON's numbers for Doubles loses the last
// digits of large integers, therefore the default.
const (
	IntsAsStrings Ints = iota
	IntsAsNumbers
)

// JSONOptions are the choices that a caller of the API has. The zero value is
// the default.
type JSONOptions struct {
	Ints Ints
}

// AppendJSON appends the JSON form of a value from the wire to dst. ParseJSON
// of it with the same type is the value again. It allocates only to make dst
// longer. A value that does not have the form that its type has on the wire is
// an error, and dst then ends anywhere inside the value.
func AppendJSON(dst []byte, v *Ydb.Value, t *Ydb.Type, o JSONOptions) ([]byte, error) {
	switch x := t.GetType().(type) {
	case *Ydb.Type_TypeId:
		return appendScalar(dst, v, t, x.TypeId, o)
	case *Ydb.Type_OptionalType:
		item := x.OptionalType.GetItem()
		inner, ok := justOf(v, item)
		if !ok {
			return append(dst, "null"...), nil
		}
		if !canBeNull(item) {
			return AppendJSON(dst, inner, item, o)
		}
		dst, err := AppendJSON(append(dst, '['), inner, item, o)
		return append(dst, ']'), err
	case *Ydb.Type_DecimalType:
		if low, ok := v.GetValue().(*Ydb.Value_Low_128); ok {
			dst = appendDecimal(append(dst, '"'), v.GetHigh_128(), low.Low_128, x.DecimalType.GetScale())
			return append(dst, '"'), nil
		}
	case *Ydb.Type_TaggedType:
		return AppendJSON(dst, v, x.TaggedType.GetType(), o)
	case *Ydb.Type_VoidType, *Ydb.Type_NullType:
		return append(dst, "null"...), nil
	case *Ydb.Type_PgType:
		switch x := v.GetValue().(type) {
		case nil, *Ydb.Value_NullFlagValue:
			return append(dst, "null"...), nil
		case *Ydb.Value_TextValue:
			return appendString(dst, x.TextValue), nil
		case *Ydb.Value_BytesValue:
			return appendBinary(dst, x.BytesValue), nil
		}
	case *Ydb.Type_EmptyListType, *Ydb.Type_EmptyDictType:
		return append(dst, "[]"...), nil
	case *Ydb.Type_ListType:
		return appendItems(dst, v.GetItems(), x.ListType.GetItem(), o)
	case *Ydb.Type_TupleType:
		return appendTuple(dst, v, t, x.TupleType.GetElements(), o)
	case *Ydb.Type_StructType:
		return appendStruct(dst, v, t, x.StructType.GetMembers(), o)
	case *Ydb.Type_DictType:
		return appendPairs(dst, v.GetPairs(), x.DictType, o)
	case *Ydb.Type_VariantType:
		return appendVariant(dst, v, t, x.VariantType, o)
	default:
		return dst, unknownType(t)
	}
	return dst, badEncoding(v, t)
}

func appendTuple(dst []byte, v *Ydb.Value, t *Ydb.Type, elements []*Ydb.Type, o JSONOptions) ([]byte, error) {
	if len(v.GetItems()) != len(elements) {
		return dst, itemsFault(v, t, len(elements))
	}
	dst = append(dst, '[')
	for i, item := range v.GetItems() {
		var err error
		if dst, err = AppendJSON(appendComma(dst, i), item, elements[i], o); err != nil {
			return dst, inItem(err, i)
		}
	}
	return append(dst, ']'), nil
}

func appendStruct(dst []byte, v *Ydb.Value, t *Ydb.Type, members []*Ydb.StructMember, o JSONOptions) ([]byte, error) {
	if len(v.GetItems()) != len(members) {
		return dst, itemsFault(v, t, len(members))
	}
	dst = append(dst, '{')
	for i, item := range v.GetItems() {
		var err error
		dst = append(appendString(appendComma(dst, i), members[i].GetName()), ':')
		if dst, err = AppendJSON(dst, item, members[i].GetType(), o); err != nil {
			return dst, inMember(err, members[i].GetName())
		}
	}
	return append(dst, '}'), nil
}

func appendItems(dst []byte, items []*Ydb.Value, t *Ydb.Type, o JSONOptions) ([]byte, error) {
	dst = append(dst, '[')
	for i, item := range items {
		var err error
		if dst, err = AppendJSON(appendComma(dst, i), item, t, o); err != nil {
			return dst, inItem(err, i)
		}
	}
	return append(dst, ']'), nil
}

// appendPairs writes a Dict as [[key,value],...] and a Set as [key,...]: an
// object's keys could only be texts.
func appendPairs(dst []byte, pairs []*Ydb.ValuePair, d *Ydb.DictType, o JSONOptions) ([]byte, error) {
	set := isVoid(d.GetPayload())
	dst = append(dst, '[')
	for i, pair := range pairs {
		dst = appendComma(dst, i)
		if !set {
			dst = append(dst, '[')
		}
		var err error
		if dst, err = AppendJSON(dst, pair.GetKey(), d.GetKey(), o); err != nil {
			return dst, inItem(At(err, "key"), i)
		}
		if set {
			continue
		}
		if dst, err = AppendJSON(append(dst, ','), pair.GetPayload(), d.GetPayload(), o); err != nil {
			return dst, inItem(At(err, "value"), i)
		}
		dst = append(dst, ']')
	}
	return append(dst, ']'), nil
}

// appendVariant writes {"tag":value}, or {"index":i,"value":value} where the
// alternatives have no names.
func appendVariant(dst []byte, v *Ydb.Value, t *Ydb.Type, variant *Ydb.VariantType, o JSONOptions) ([]byte, error) {
	nested, ok := v.GetValue().(*Ydb.Value_NestedValue)
	if !ok {
		return dst, badEncoding(v, t)
	}
	name, inner, err := alternative(variant, v.GetVariantIndex())
	if err != nil {
		return dst, err
	}
	dst = append(dst, '{')
	if overStruct(variant) {
		dst = append(appendString(dst, name), ':')
	} else {
		dst = strconv.AppendUint(append(dst, `"index":`...), uint64(v.GetVariantIndex()), 10)
		dst = append(dst, `,"value":`...)
	}
	if dst, err = AppendJSON(dst, nested.NestedValue, inner, o); err != nil {
		return dst, inAlternative(err, name, v.GetVariantIndex())
	}
	return append(dst, '}'), nil
}

func appendScalar(dst []byte, v *Ydb.Value, t *Ydb.Type, id Ydb.Type_PrimitiveTypeId, o JSONOptions) ([]byte, error) {
	switch field := fieldOf(id); field {
	case boolField:
		if x, ok := v.GetValue().(*Ydb.Value_BoolValue); ok {
			return strconv.AppendBool(dst, x.BoolValue), nil
		}
	case int32Field, int64Field, uint32Field, uint64Field:
		signed, unsigned, ok := protoInteger(v, field)
		if !ok {
			break
		}
		return appendIntegerJSON(dst, id, field, signed, unsigned, o), nil
	case floatField:
		if x, ok := v.GetValue().(*Ydb.Value_FloatValue); ok {
			return appendFloat(dst, float64(x.FloatValue), 32), nil
		}
	case doubleField:
		if x, ok := v.GetValue().(*Ydb.Value_DoubleValue); ok {
			return appendFloat(dst, x.DoubleValue, 64), nil
		}
	case textField:
		switch x := v.GetValue().(type) {
		case *Ydb.Value_TextValue:
			return appendString(dst, x.TextValue), nil
		case *Ydb.Value_BytesValue:
			if utf8.Valid(x.BytesValue) {
				return appendString(dst, x.BytesValue), nil
			}
		}
	case bytesField:
		switch x := v.GetValue().(type) {
		case *Ydb.Value_BytesValue:
			if id != Ydb.Type_YSON {
				return append(base64.StdEncoding.AppendEncode(append(dst, '"'), x.BytesValue), '"'), nil
			}
			if utf8.Valid(x.BytesValue) {
				return appendString(dst, x.BytesValue), nil
			}
			return appendBinary(dst, x.BytesValue), nil
		case *Ydb.Value_TextValue:
			if id == Ydb.Type_YSON {
				return appendString(dst, x.TextValue), nil
			}
			return append(base64.StdEncoding.AppendEncode(append(dst, '"'), []byte(x.TextValue)), '"'), nil
		}
	case uuidField:
		if low, ok := v.GetValue().(*Ydb.Value_Low_128); ok {
			return append(appendUUID(append(dst, '"'), low.Low_128, v.GetHigh_128()), '"'), nil
		}
	default:
		return dst, unknownType(t)
	}
	return dst, badEncoding(v, t)
}

// appendIntegerJSON writes what the wire has as an integer: a number, a date or a time.
func appendIntegerJSON(dst []byte, id Ydb.Type_PrimitiveTypeId, f field, signed int64, unsigned uint64, o JSONOptions) []byte {
	if !isInteger(id) {
		return append(appendTime(append(dst, '"'), id, signed, unsigned), '"')
	}
	quote := o.Ints == IntsAsStrings && (f == int64Field || f == uint64Field)
	if quote {
		dst = append(dst, '"')
	}
	if f == int32Field || f == int64Field {
		dst = strconv.AppendInt(dst, signed, 10)
	} else {
		dst = strconv.AppendUint(dst, unsigned, 10)
	}
	if quote {
		dst = append(dst, '"')
	}
	return dst
}

// appendBinary writes bytes where text is usual: Yson and PostgreSQL types may
// come in a binary form.
func appendBinary(dst, b []byte) []byte {
	dst = base64.StdEncoding.AppendEncode(append(dst, `{"base64":"`...), b)
	return append(dst, `"}`...)
}

// appendFloat writes the shortest number that reads back as the same one.
func appendFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(dst, `"-Infinity"`...)
	}
	format := byte('f')
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, f, format, -1, bits)
}

func appendComma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

// appendString writes a JSON string. Bytes that are no UTF-8, which no valid
// text of YDB has, become U+FFFD.
func appendString[T ~string | ~[]byte](dst []byte, s T) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	done := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			n := runeSize(s[i:])
			if n == 0 {
				dst = append(append(dst, s[done:i]...), "\ufffd"...)
				i++
				done = i
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[done:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
		i++
		done = i
	}
	return append(append(dst, s[done:]...), '"')
}

// runeSize is the length of the character that s begins with; 0 if it is none.
func runeSize[T ~string | ~[]byte](s T) int {
	var buf [utf8.UTFMax]byte
	n := copy(buf[:], s)
	if r, size := utf8.DecodeRune(buf[:n]); r != utf8.RuneError || size > 1 {
		return size
	}
	return 0
}
