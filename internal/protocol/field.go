package protocol

import "google.golang.org/protobuf/encoding/protowire"

// Fields that are added to a request, or replaced in it.
const (
	PoolIDOfExecuteQuery    = 10 // ExecuteQueryRequest.pool_id
	QueryOfExecuteQuery     = 4  // ExecuteQueryRequest.query_content, which holds a text = 2
	QueryOfExecuteDataQuery = 3  // ExecuteDataQueryRequest.query, which holds a text = 1 or an id = 2
	TextOfPrepareDataQuery  = 2  // PrepareDataQueryRequest.yql_text
)

// MaxQueryID is the most bytes of the id of a prepared query that is looked at.
const MaxQueryID = 1024

// Field finds the last occurrence of a length-delimited field at the top of a
// protobuf message, of which the end may be missing: message[from:to] is the whole
// field, value what it holds. No value: it is not there, or not whole yet.
func Field(message []byte, number int) (value []byte, from, to int) {
	for at := 0; at < len(message); {
		tag, n := uvarint(message[at:])
		if n == 0 {
			return
		}
		start := at
		at += n
		switch tag & 7 {
		case 0:
			_, n = uvarint(message[at:])
			if n == 0 {
				return
			}
			at += n
		case 1:
			at += 8
		case 5:
			at += 4
		case 2:
			size, n := uvarint(message[at:])
			if n == 0 || size > uint64(len(message)-at-n) {
				return
			}
			at += n
			if tag>>3 == uint64(number) {
				value, from, to = message[at:at+int(size)], start, at+int(size)
			}
			at += int(size)
		default:
			return
		}
	}
	return
}

func uvarint(p []byte) (v uint64, n int) {
	for i := 0; i < len(p) && i < 10; i++ {
		v |= uint64(p[i]&0x7f) << (7 * i)
		if p[i] < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}

// EachField calls f with the fields of a message that may be cut off: of bytes the value, of
// the last one what is there of it; of others the bytes of the number.
func EachField(message []byte, f func(number protowire.Number, value []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		if kind == protowire.BytesType {
			size, n := protowire.ConsumeVarint(message)
			if n < 0 {
				return
			}
			message = message[n:]
			value := message[:min(uint64(len(message)), size)]
			f(number, value)
			message = message[len(value):]
			continue
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return
		}
		f(number, message[:n])
		message = message[n:]
	}
}

// MapField returns a message with what f makes of each field of that number.
func MapField(message []byte, which protowire.Number, f func([]byte) []byte) []byte {
	var out []byte
	for rest := message; len(rest) > 0; {
		number, kind, n := protowire.ConsumeField(rest)
		if n < 0 {
			return message
		}
		if number == which && kind == protowire.BytesType {
			_, _, head := protowire.ConsumeTag(rest)
			value, _ := protowire.ConsumeBytes(rest[head:])
			out = protowire.AppendBytes(protowire.AppendTag(out, number, kind), f(value))
		} else {
			out = append(out, rest[:n]...)
		}
		rest = rest[n:]
	}
	return out
}

// FieldStart returns what is here of a length-delimited field at the top of a message.
func FieldStart(message []byte, number int) (value []byte, ok bool) {
	for len(message) > 0 {
		tag, n := uvarint(message)
		if n == 0 {
			return nil, false
		}
		message = message[n:]
		size := uint64(0)
		switch tag & 7 {
		case typeVarint, typeBytes:
			v, n := uvarint(message)
			if n == 0 {
				return nil, false
			}
			if message = message[n:]; tag&7 == typeVarint {
				continue
			}
			if size = v; tag>>3 == uint64(number) {
				return message[:min(size, uint64(len(message)))], true
			}
		case typeFixed64:
			size = 8
		case typeFixed32:
			size = 4
		default:
			return nil, false
		}
		if size > uint64(len(message)) {
			return nil, false
		}
		message = message[size:]
	}
	return nil, false
}
