package yql

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// The ranges of dates and times. The old types begin with 1970 and end before
// 2106; the wide ones reach from 144169 BC to the year 148107. Intervals are
// as long as the distance between two such points in time.
const (
	endDate        = 49_673 // exclusive
	minDate32      = -53_375_809
	maxDate32      = 53_375_807
	maxInterval    = endDate*microsPerDay - 1
	minTimestamp64 = minDate32 * microsPerDay
	maxTimestamp64 = (maxDate32+1)*microsPerDay - 1
	maxInterval64  = (maxDate32+1-minDate32)*microsPerDay - 1
)

// field says in which field of Ydb.Value a primitive type travels.
type field uint8

const (
	noField field = iota // a type that this version does not know
	boolField
	int32Field
	uint32Field
	int64Field
	uint64Field
	floatField
	doubleField
	textField
	bytesField
	uuidField
)

func fieldOf(id Ydb.Type_PrimitiveTypeId) field {
	switch id {
	case Ydb.Type_BOOL:
		return boolField
	case Ydb.Type_INT8, Ydb.Type_INT16, Ydb.Type_INT32, Ydb.Type_DATE32:
		return int32Field
	case Ydb.Type_UINT8, Ydb.Type_UINT16, Ydb.Type_UINT32, Ydb.Type_DATE, Ydb.Type_DATETIME:
		return uint32Field
	case Ydb.Type_INT64, Ydb.Type_INTERVAL, Ydb.Type_DATETIME64, Ydb.Type_TIMESTAMP64, Ydb.Type_INTERVAL64:
		return int64Field
	case Ydb.Type_UINT64, Ydb.Type_TIMESTAMP:
		return uint64Field
	case Ydb.Type_FLOAT:
		return floatField
	case Ydb.Type_DOUBLE:
		return doubleField
	case Ydb.Type_UTF8, Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT, Ydb.Type_DYNUMBER,
		Ydb.Type_TZ_DATE, Ydb.Type_TZ_DATETIME, Ydb.Type_TZ_TIMESTAMP,
		tzDate32, tzDatetime64, tzTimestamp64:
		return textField
	case Ydb.Type_STRING, Ydb.Type_YSON:
		return bytesField
	case Ydb.Type_UUID:
		return uuidField
	}
	return noField
}

// rangeOf returns the bounds of a type whose wire form is an integer.
func rangeOf(id Ydb.Type_PrimitiveTypeId) (low int64, high uint64) {
	switch id {
	case Ydb.Type_INT8:
		return math.MinInt8, math.MaxInt8
	case Ydb.Type_INT16:
		return math.MinInt16, math.MaxInt16
	case Ydb.Type_INT32:
		return math.MinInt32, math.MaxInt32
	case Ydb.Type_INT64:
		return math.MinInt64, math.MaxInt64
	case Ydb.Type_UINT8:
		return 0, math.MaxUint8
	case Ydb.Type_UINT16:
		return 0, math.MaxUint16
	case Ydb.Type_UINT32:
		return 0, math.MaxUint32
	case Ydb.Type_UINT64:
		return 0, math.MaxUint64
	case Ydb.Type_DATE:
		return 0, endDate - 1
	case Ydb.Type_DATETIME:
		return 0, endDate*secondsPerDay - 1
	case Ydb.Type_TIMESTAMP:
		return 0, endDate*microsPerDay - 1
	case Ydb.Type_INTERVAL:
		return -maxInterval, maxInterval
	case Ydb.Type_DATE32:
		return minDate32, maxDate32
	case Ydb.Type_DATETIME64:
		return minDate32 * secondsPerDay, (maxDate32+1)*secondsPerDay - 1
	case Ydb.Type_TIMESTAMP64:
		return minTimestamp64, maxTimestamp64
	case Ydb.Type_INTERVAL64:
		return -maxInterval64, maxInterval64
	}
	return 0, 0
}

// isInteger reports whether the type is a number without a fraction, and no
// date that merely travels as one.
func isInteger(id Ydb.Type_PrimitiveTypeId) bool {
	switch id {
	case Ydb.Type_INT8, Ydb.Type_INT16, Ydb.Type_INT32, Ydb.Type_INT64,
		Ydb.Type_UINT8, Ydb.Type_UINT16, Ydb.Type_UINT32, Ydb.Type_UINT64:
		return true
	}
	return false
}

// nameOf is a primitive type's name for messages.
func nameOf(id Ydb.Type_PrimitiveTypeId) string {
	if name, ok := primitiveNames[id]; ok {
		return name
	}
	return "Unknown(" + strconv.Itoa(int(id)) + ")"
}

func unknownType(t *Ydb.Type) error {
	return errorf("the type %s is not known to this version", FormatType(t))
}

// integer makes a value of a type that travels as an integer. shown is what the
// caller wrote.
func integer(id Ydb.Type_PrimitiveTypeId, neg bool, magnitude uint64, shown string) (*Ydb.Value, error) {
	low, high := rangeOf(id)
	if neg && magnitude > uint64(-low) || !neg && magnitude > high {
		return nil, outOfRange(id, shown)
	}
	signed := int64(magnitude)
	if neg {
		signed = -signed
	}
	switch fieldOf(id) {
	case int32Field:
		return &Ydb.Value{Value: &Ydb.Value_Int32Value{Int32Value: int32(signed)}}, nil
	case uint32Field:
		return &Ydb.Value{Value: &Ydb.Value_Uint32Value{Uint32Value: uint32(signed)}}, nil
	case int64Field:
		return &Ydb.Value{Value: &Ydb.Value_Int64Value{Int64Value: signed}}, nil
	default:
		return &Ydb.Value{Value: &Ydb.Value_Uint64Value{Uint64Value: magnitude}}, nil
	}
}

func outOfRange(id Ydb.Type_PrimitiveTypeId, shown string) error {
	name := nameOf(id)
	if isInteger(id) {
		low, high := rangeOf(id)
		return errorf("%s is out of range for %s (%d to %d)", shown, article(name), low, high)
	}
	switch fieldOf(id) {
	case floatField:
		return errorf("%s is out of range for %s; a Double holds more", shown, article(name))
	case doubleField:
		return errorf("%s is out of range for %s", shown, article(name))
	}
	return errorf("%s is out of range for %s (%s)", shown, article(name), rangeText(id))
}

// fromInteger converts an integer to a primitive type. Types of dates and
// times take it in the unit of their wire form.
func fromInteger(id Ydb.Type_PrimitiveTypeId, neg bool, magnitude uint64) (*Ydb.Value, error) {
	shown := integerText(neg, magnitude)
	switch fieldOf(id) {
	case int32Field, uint32Field, int64Field, uint64Field:
		return integer(id, neg, magnitude, shown)
	}
	return fromNumber(id, shown)
}

func integerText(neg bool, magnitude uint64) string {
	s := strconv.FormatUint(magnitude, 10)
	if neg && magnitude != 0 {
		return "-" + s
	}
	return s
}

// fromNumber converts a decimal number as it was written, such as 12, 1.5e3.
func fromNumber(id Ydb.Type_PrimitiveTypeId, s string) (*Ydb.Value, error) {
	switch fieldOf(id) {
	case int32Field, uint32Field, int64Field, uint64Field:
		neg, magnitude, ok := plainInteger(s)
		if !ok {
			n, isNumber := parseNumber(s)
			if !isNumber {
				return nil, notA(id, clip(s))
			}
			v, exact, fits := n.scaled(0)
			if !exact && !isInteger(id) {
				return nil, notA(id, theNumber+cut(s))
			}
			if !exact {
				return nil, errorf("%s is not an integer, which %s requires", clip(s), article(nameOf(id)))
			}
			if !fits || v.hi != 0 {
				return nil, outOfRange(id, clip(s))
			}
			neg, magnitude = n.neg, v.lo
		}
		return integer(id, neg, magnitude, s)
	case floatField, doubleField:
		return fromFloatText(id, s)
	}
	if id == Ydb.Type_DYNUMBER {
		return fromText(id, s)
	}
	return nil, notA(id, theNumber+cut(s))
}

// plainInteger reads digits with an optional minus, the form nearly all
// integers have.
func plainInteger(s string) (neg bool, magnitude uint64, ok bool) {
	if s != "" && s[0] == '-' {
		neg, s = true, s[1:]
	}
	if s == "" || len(s) > 19 {
		return false, 0, false
	}
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false, 0, false
		}
		magnitude = magnitude*10 + uint64(s[i]-'0')
	}
	return neg, magnitude, true
}

// fromFloatText takes the nearest binary fraction of a decimal number; NaN and
// the infinities have names.
func fromFloatText(id Ydb.Type_PrimitiveTypeId, s string) (*Ydb.Value, error) {
	switch strings.ToLower(strings.TrimLeft(s, "+-")) {
	case "nan", "inf", "infinity":
	default:
		if _, ok := parseNumber(s); !ok {
			return nil, notA(id, clip(s))
		}
	}
	size := 64
	if id == Ydb.Type_FLOAT {
		size = 32
	}
	f, err := strconv.ParseFloat(s, size)
	if err != nil && math.IsInf(f, 0) {
		return nil, outOfRange(id, clip(s))
	} else if err != nil {
		return nil, notA(id, clip(s))
	}
	return floating(id, f), nil
}

func floating(id Ydb.Type_PrimitiveTypeId, f float64) *Ydb.Value {
	if id == Ydb.Type_FLOAT {
		return &Ydb.Value{Value: &Ydb.Value_FloatValue{FloatValue: float32(f)}}
	}
	return &Ydb.Value{Value: &Ydb.Value_DoubleValue{DoubleValue: f}}
}

// theNumber stands before a number in a message.
const theNumber = "the number "

// notA is the error for a value that is none of the primitive type id.
func notA(id Ydb.Type_PrimitiveTypeId, shown string) error {
	write := writeScalar(id)
	switch id {
	case Ydb.Type_UTF8, Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT: // the text of the value itself will do
		if digits, ok := strings.CutPrefix(shown, theNumber); ok {
			write = "; write it like " + strconv.Quote(digits)
		} else if shown == "true" || shown == "false" {
			write = "; write it like " + strconv.Quote(shown)
		}
	}
	return errorf("%s is not %s%s", shown, article(nameOf(id)), write)
}

// fromText converts text to a primitive type other than String, whose text
// differs between the forms.
func fromText(id Ydb.Type_PrimitiveTypeId, s string) (*Ydb.Value, error) {
	switch id {
	case Ydb.Type_UTF8, Ydb.Type_JSON, Ydb.Type_JSON_DOCUMENT:
		return textValue(s), nil
	case Ydb.Type_YSON:
		return bytesValue([]byte(s)), nil
	case Ydb.Type_BOOL:
		switch strings.ToLower(s) {
		case "true":
			return boolValue(true), nil
		case "false":
			return boolValue(false), nil
		}
	case Ydb.Type_DATE, Ydb.Type_DATE32:
		if days, rest, ok := parseDate(s); ok && rest == "" {
			return inUnits(id, days, s)
		}
	case Ydb.Type_DATETIME, Ydb.Type_DATETIME64:
		if seconds, micros, ok := parseDatetime(s); ok {
			if micros != 0 {
				return nil, errorf("%s has a fraction, which %s cannot hold%s", clip(s), article(nameOf(id)), writeScalar(id))
			}
			return inUnits(id, seconds, s)
		}
	case Ydb.Type_TIMESTAMP, Ydb.Type_TIMESTAMP64:
		if seconds, micros, ok := parseDatetime(s); ok {
			return inUnits(id, seconds*microsPerSecond+micros, s)
		}
	case Ydb.Type_INTERVAL, Ydb.Type_INTERVAL64:
		if micros, ok := parseInterval(s); ok {
			return inUnits(id, micros, s)
		}
	case Ydb.Type_TZ_DATE, Ydb.Type_TZ_DATETIME, Ydb.Type_TZ_TIMESTAMP, tzDate32, tzDatetime64, tzTimestamp64:
		if local, zone, ok := strings.Cut(s, ","); ok && local != "" && zone != "" {
			return textValue(s), nil
		}
	case Ydb.Type_DYNUMBER:
		if _, ok := parseNumber(s); ok {
			return textValue(s), nil
		}
	case Ydb.Type_UUID:
		if low, high, ok := parseUUID(s); ok {
			return &Ydb.Value{Value: &Ydb.Value_Low_128{Low_128: low}, High_128: high}, nil
		}
	default:
		if fieldOf(id) != noField {
			return fromNumber(id, s)
		}
		return nil, unknownType(&Ydb.Type{Type: &Ydb.Type_TypeId{TypeId: id}})
	}
	return nil, notA(id, clip(s))
}

func inUnits(id Ydb.Type_PrimitiveTypeId, v int64, s string) (*Ydb.Value, error) {
	magnitude := uint64(v)
	if v < 0 {
		magnitude = -magnitude
	}
	return integer(id, v < 0, magnitude, clip(s))
}

// fromBase64 reads both alphabets, padded or not.
func fromBase64(s string) (*Ydb.Value, error) {
	bare := s
	if len(s)%4 == 0 {
		bare = strings.TrimSuffix(strings.TrimSuffix(s, "="), "=")
	}
	encoding := base64.RawStdEncoding
	if strings.ContainsAny(bare, "-_") {
		encoding = base64.RawURLEncoding
	}
	b, err := encoding.Strict().DecodeString(bare)
	// The decoder passes over line ends; here nothing may be passed over.
	if err != nil || encoding.EncodedLen(len(b)) != len(bare) {
		if len(s) <= clipAt && utf8.ValidString(s) {
			return nil, errorf(`%s is not base64, the form of bytes in JSON; for the bytes of this text write "%s"`,
				clip(s), base64.StdEncoding.EncodeToString([]byte(s)))
		}
		return nil, errorf("%s is not base64, the form of bytes in JSON%s", clip(s), writeScalar(Ydb.Type_STRING))
	}
	return bytesValue(b), nil
}

func boolValue(b bool) *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_BoolValue{BoolValue: b}}
}

func textValue(s string) *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_TextValue{TextValue: s}}
}

func bytesValue(b []byte) *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_BytesValue{BytesValue: b}}
}

func nullValue() *Ydb.Value {
	return &Ydb.Value{Value: &Ydb.Value_NullFlagValue{}}
}
