package yql

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"
)

// IsKey reports whether YDB takes values of the type into a primary key. An
// Optional is none here: a null in a key has no text.
func IsKey(t *Ydb.Type) bool {
	switch x := t.GetType().(type) {
	case *Ydb.Type_DecimalType:
		return true
	case *Ydb.Type_TypeId:
		switch x.TypeId {
		case Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT, Ydb.Type_YSON,
			Ydb.Type_TZ_DATE, Ydb.Type_TZ_DATETIME, Ydb.Type_TZ_TIMESTAMP, tzDate32, tzDatetime64, tzTimestamp64:
			return false
		}
		f := fieldOf(x.TypeId)
		return f != noField && f != floatField && f != doubleField
	}
	return false
}

// ParseKey reads a value of a key's type from bare text, as it stands in an
// address. It is stricter than the JSON form: integers are digits with at most
// a minus, without leading zeros; a Decimal has no exponent and no plus; Bool is
// true or false. String takes every byte as it is. Dates, intervals, Uuid and
// DyNumber are as in JSON.
func ParseKey(s string, t *Ydb.Type) (*Ydb.Value, error) {
	if !IsKey(t) {
		return nil, errorf("%s cannot be in a key", article(FormatType(t)))
	}
	if d := t.GetDecimalType(); d != nil {
		if !plainDecimal(s) {
			return nil, errorf("%s is not a Decimal, which looks like -12.5 in a key", clip(s))
		}
		return parseDecimal(s, d)
	}
	id := t.GetTypeId()
	switch {
	case id == Ydb.Type_STRING:
		return bytesValue([]byte(s)), nil
	case id == Ydb.Type_UTF8 && !utf8.ValidString(s):
		return nil, errorf("%s is not valid UTF-8", clip(s))
	case id == Ydb.Type_BOOL && s != "true" && s != "false":
		return nil, errorf("%s is not a Bool, which is true or false", clip(s))
	case isInteger(id) && !shortInteger(s):
		return nil, errorf("%s is not %s, which has digits and at most a minus in a key", clip(s), article(nameOf(id)))
	}
	return fromText(id, s)
}

// shortInteger reads -?(0|[1-9][0-9]*), except -0.
func shortInteger(s string) bool {
	digits, rest := cutDigits(strings.TrimPrefix(s, "-"))
	return digits != "" && rest == "" && s != "-0" && (digits == "0" || digits[0] != '0')
}

// plainDecimal reads -?[0-9]+(.[0-9]+)?, inf, -inf and nan.
func plainDecimal(s string) bool {
	switch s {
	case "inf", "-inf", "nan":
		return true
	}
	whole, rest := cutDigits(strings.TrimPrefix(s, "-"))
	if fraction, ok := strings.CutPrefix(rest, "."); ok {
		digits, after := cutDigits(fraction)
		return whole != "" && digits != "" && after == ""
	}
	return whole != "" && rest == ""
}

// AppendKey appends bytes that are equal for two values of a key's type if, and
// only if, they are one key to YDB; the bytes of no value begin those of
// another. t may be an Optional, whose null is a key of its own.
func AppendKey(dst []byte, v *Ydb.Value, t *Ydb.Type) ([]byte, error) {
	if o := t.GetOptionalType(); o != nil {
		inner, ok := justOf(v, o.GetItem())
		if !ok {
			return append(dst, 0), nil
		}
		v, t = inner, o.GetItem()
	}
	dst = append(dst, 1)
	if !IsKey(t) {
		return dst, errorf("%s cannot be in a key", article(FormatType(t)))
	}
	if t.GetDecimalType() != nil || t.GetTypeId() == Ydb.Type_UUID {
		low, ok := v.GetValue().(*Ydb.Value_Low_128)
		if !ok {
			return dst, badEncoding(v, t)
		}
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, v.GetHigh_128()), low.Low_128), nil
	}
	switch f := fieldOf(t.GetTypeId()); f {
	case boolField:
		if b, ok := v.GetValue().(*Ydb.Value_BoolValue); ok {
			if b.BoolValue {
				return append(dst, 1), nil
			}
			return append(dst, 0), nil
		}
	case textField, bytesField:
		if s, ok := protoText(v); ok {
			if t.GetTypeId() == Ydb.Type_DYNUMBER {
				s = oneSpelling(s)
			}
			return append(binary.AppendUvarint(dst, uint64(len(s))), s...), nil
		}
	default:
		if signed, unsigned, ok := protoInteger(v, f); ok {
			return binary.BigEndian.AppendUint64(dst, uint64(signed)|unsigned), nil // one of them is 0
		}
	}
	return dst, badEncoding(v, t)
}

// oneSpelling writes equal decimal numbers alike: digits without zeros at
// either end, and the exponent of the last one.
func oneSpelling(s string) string {
	n, ok := parseNumber(s)
	if !ok {
		return s
	}
	digits := strings.TrimLeft(n.whole+n.fraction, "0")
	if digits == "" {
		return "0"
	}
	exp := n.exp - len(n.fraction) + len(digits)
	digits = strings.TrimRight(digits, "0")
	exp -= len(digits)
	sign := ""
	if n.neg {
		sign = "-"
	}
	return sign + digits + "e" + integerText(exp < 0, magnitudeOf(int64(exp)))
}

// IsBytes reports whether values of the type are bytes or text: String, Utf8,
// Json, JsonDocument, Yson.
func IsBytes(t *Ydb.Type) bool {
	switch t.GetType().(type) {
	case *Ydb.Type_TypeId:
		switch t.GetTypeId() {
		case Ydb.Type_STRING, Ydb.Type_UTF8, Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT, Ydb.Type_YSON:
			return true
		}
	}
	return false
}

// AppendRaw appends the bytes of a value of a type for which IsBytes is true, given the bytes that it is to have. Text must be
// valid UTF-8.
func AppendRaw(dst, b []byte, t *Ydb.Type) ([]byte, error) {
	switch t.GetTypeId() {
	case Ydb.Type_STRING, Ydb.Type_YSON:
		return appendBytes(dst, b), nil
	}
	if !utf8.Valid(b) {
		return dst, errorf("the bytes are not valid UTF-8, which %s requires", article(FormatType(t)))
	}
	return appendText(dst, b), nil
}

// RawOf returns the text or bytes in an encoded Ydb.Value. ok is false if its form is unusual: then decode it.
func RawOf(value []byte, t *Ydb.Type) (b []byte, null, ok bool) {
	if o := t.GetOptionalType(); o != nil {
		if len(value) == 2 && value[0] == tagNull && value[1] == 0 {
			return nil, true, true
		}
		t = o.GetItem()
	}
	if !IsBytes(t) || len(value) == 0 {
		return nil, false, false
	}
	text, size := protowire.ConsumeBytes(value[1:])
	switch {
	case size != len(value)-1:
		return nil, false, false
	case value[0] == tagBytes, value[0] == tagText && utf8.Valid(text):
		return text, false, true
	}
	return nil, false, false
}

// RowItems returns the items of a Ydb.Value that is a row, as parts of its bytes.
func RowItems(row []byte, items [][]byte) ([][]byte, error) {
	for {
		item, rest, ok, err := nextItem(row)
		if err != nil || !ok {
			return items, err
		}
		items, row = append(items, item), rest
	}
}

// RawBytes is AppendRaw's inverse. t may be an Optional; null says that the
// value is its null. The bytes may be the value's own.
func RawBytes(v *Ydb.Value, t *Ydb.Type) (b []byte, null bool, err error) {
	if o := t.GetOptionalType(); o != nil {
		inner, ok := justOf(v, o.GetItem())
		if !ok {
			return nil, true, nil
		}
		v, t = inner, o.GetItem()
	}
	if IsBytes(t) {
		if b, ok := protoBytes(v); ok {
			return b, false, nil
		}
	}
	return nil, false, badEncoding(v, t)
}
