package yql

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"
)

// AppendScalar does what Param and AppendValue do, without messages, given the bytes of a
// sidecarv1.Value: for scalars of the very kind of the declared type, or of the item of an Optional.
// declared nil stands for the plain rule. False: nothing was appended; use Param.
func AppendScalar(dst, value []byte, declared *Ydb.Type) (out []byte, t *Ydb.Type, ok bool) {
	if len(value) == 0 {
		return dst, nil, false
	}
	tag, body := value[0], value[1:]
	switch tag {
	case tagPlainBool:
		if t, ok = scalarType(declared, typeBool); ok && len(body) == 1 && body[0] <= 1 {
			return append(dst, tagBool, body[0]), t, true
		}
	case tagPlainInt, tagPlainUint:
		if v, size := protowire.ConsumeVarint(body); size == len(body) {
			return appendInteger(dst, v, tag == tagPlainInt, declared)
		}
	case tagPlainFloat:
		if t, ok = scalarType(declared, typeDouble); ok && len(body) == 8 {
			return append(append(dst, tagDouble), body...), t, true
		}
	case tagPlainText:
		if text, size := protowire.ConsumeBytes(body); size == len(body) && utf8.Valid(text) {
			if t, ok = scalarType(declared, typeUtf8); ok {
				return protowire.AppendBytes(append(dst, tagText), text), t, true
			}
		}
	case tagPlainBytes:
		if octets, size := protowire.ConsumeBytes(body); size == len(body) {
			if t, ok = scalarType(declared, typeString); ok {
				return protowire.AppendBytes(append(dst, tagBytes), octets), t, true
			}
		}
	}
	return dst, nil, false
}

// IsScalar reports whether the bytes of a sidecarv1.Value are those of a scalar that is no null.
func IsScalar(value []byte) bool {
	if len(value) == 0 {
		return false
	}
	body, size := value[1:], -1
	switch value[0] {
	case tagPlainBool, tagPlainInt, tagPlainUint:
		_, size = protowire.ConsumeVarint(body)
	case tagPlainFloat:
		size = 8
	case tagPlainText:
		text, n := protowire.ConsumeBytes(body)
		if size = n; !utf8.Valid(text) {
			return false
		}
	case tagPlainBytes:
		_, size = protowire.ConsumeBytes(body)
	}
	return size == len(body)
}

// scalarType is the type of a scalar: the plain one if none is declared, or else the declared one, if it is that, or an Optional of it.
func scalarType(declared, plain *Ydb.Type) (*Ydb.Type, bool) {
	if declared == nil {
		return plain, true
	}
	return declared, primitiveOf(declared) == plain.GetTypeId()
}

// primitiveOf is the primitive type of a scalar, which may be optional; zero: it has none.
func primitiveOf(t *Ydb.Type) Ydb.Type_PrimitiveTypeId {
	if o, ok := t.GetType().(*Ydb.Type_OptionalType); ok {
		t = o.OptionalType.GetItem()
	}
	return t.GetTypeId()
}

// appendInteger is AppendScalar for an integer. v has its sign in two's complement.
func appendInteger(dst []byte, v uint64, signed bool, declared *Ydb.Type) ([]byte, *Ydb.Type, bool) {
	t := declared
	if t == nil {
		if t = typeUint64; signed {
			t = typeInt64
		}
	}
	id := primitiveOf(t)
	low, high := rangeOf(id)
	if neg := signed && int64(v) < 0; !isInteger(id) || neg && int64(v) < low || !neg && v > high {
		return dst, nil, false
	}
	switch fieldOf(id) {
	case int32Field:
		return binary.LittleEndian.AppendUint32(append(dst, tagInt32), uint32(v)), t, true
	case uint32Field:
		return binary.LittleEndian.AppendUint32(append(dst, tagUint32), uint32(v)), t, true
	case int64Field:
		return binary.LittleEndian.AppendUint64(append(dst, tagInt64), v), t, true
	default:
		return binary.LittleEndian.AppendUint64(append(dst, tagUint64), v), t, true
	}
}
