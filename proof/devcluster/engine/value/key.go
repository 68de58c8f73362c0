package value

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// KeyAllowed reports whether a column of the type may be part of a primary key or an index.
func KeyAllowed(t *Type) bool {
	switch t.Kind {
	case Float, Double, Yson, Json, JsonDocument, TzDate, TzDatetime, TzTimestamp:
		return false
	}
	return t.Primitive() || t.Kind == Decimal
}

// ColumnAllowed reports whether a column of the type may be stored.
func ColumnAllowed(t *Type) bool { return t.Primitive() || t.Kind == Decimal }

// AppendKey appends the bytes of one column of a key: they order as the values do, NULL
// first, and no value's bytes are a prefix of another's. t is the bare type.
func AppendKey(b []byte, t *Type, v Value) []byte {
	if v.Null > 0 {
		return append(b, 0)
	}
	b = append(b, 1)
	switch {
	case signed(t.Kind):
		return appendUint64(b, v.Lo^1<<63)
	case IsText(t.Kind):
		s := v.S
		if t.Kind == DyNumber {
			s = dyNumberKey(s)
		}
		for { // 0 becomes 0 255, and 0 1 ends the text
			i := strings.IndexByte(s, 0)
			if i < 0 {
				return append(append(b, s...), 0, 1)
			}
			b = append(append(b, s[:i]...), 0, 0xff)
			s = s[i+1:]
		}
	case t.Kind == Uuid:
		raw := uuidBytes(v)
		return append(b, raw[:]...)
	case t.Kind == Decimal:
		return appendUint64(appendUint64(b, v.Hi^1<<63), v.Lo)
	}
	return appendUint64(b, v.Lo)
}

// KeyEnd returns the first key after all keys that begin with prefix (nil: there is none).
func KeyEnd(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// Row forms: for every column that is not NULL its id, then the value. Fixed numbers take
// 8 bytes (16 for Decimal and Uuid), texts their length and bytes.

// AppendCell appends one column of a row; NULL appends nothing. t is the bare type.
func AppendCell(b []byte, id uint64, t *Type, v Value) []byte {
	if v.Null > 0 {
		return b
	}
	b = binary.AppendUvarint(b, id)
	switch {
	case IsText(t.Kind):
		b = append(b, 'T')
		return append(binary.AppendUvarint(b, uint64(len(v.S))), v.S...)
	case t.Kind == Uuid || t.Kind == Decimal:
		return appendUint64(appendUint64(append(b, 'W'), v.Lo), v.Hi)
	}
	return binary.AppendUvarint(append(b, 'N'), v.Lo)
}

var errRow = errors.New("damaged row")

// UnmarshalRow calls set for every column of a row form.
func UnmarshalRow(b []byte, set func(id uint64, v Value)) error {
	for len(b) > 0 {
		id, n := binary.Uvarint(b)
		if n <= 0 || n >= len(b) {
			return errRow
		}
		form := b[n]
		b = b[n+1:]
		switch form {
		case 'T':
			l, n := binary.Uvarint(b)
			if n <= 0 || l > uint64(len(b)-n) {
				return errRow
			}
			set(id, Value{S: string(b[n : n+int(l)])})
			b = b[n+int(l):]
		case 'W':
			if len(b) < 16 {
				return errRow
			}
			set(id, Value{Lo: binary.BigEndian.Uint64(b), Hi: binary.BigEndian.Uint64(b[8:])})
			b = b[16:]
		case 'N':
			u, n := binary.Uvarint(b)
			if n <= 0 {
				return errRow
			}
			set(id, Value{Lo: u})
			b = b[n:]
		default:
			return fmt.Errorf("%w: form %q", errRow, form)
		}
	}
	return nil
}
