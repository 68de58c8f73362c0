package h2

import (
	"strconv"
	"time"
)

// parseTimeout reads a grpc-timeout: at most eight digits and a unit.
func parseTimeout(p []byte) (time.Duration, bool) {
	if len(p) < 2 || len(p) > 9 {
		return 0, false
	}
	n := time.Duration(0)
	for _, c := range p[:len(p)-1] {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + time.Duration(c-'0')
	}
	unit := time.Duration(0)
	switch p[len(p)-1] {
	case 'H':
		unit = time.Hour
	case 'M':
		unit = time.Minute
	case 'S':
		unit = time.Second
	case 'm':
		unit = time.Millisecond
	case 'u':
		unit = time.Microsecond
	case 'n':
		unit = time.Nanosecond
	default:
		return 0, false
	}
	const most = 1 << 62
	if n > most/unit {
		return most, true
	}
	return n * unit, true
}

// appendTimeout writes d in the finest unit that eight digits hold, rounded down so
// that the node does not wait longer than the client.
func appendTimeout(b []byte, d time.Duration) []byte {
	for _, u := range []struct {
		unit time.Duration
		name byte
	}{{time.Nanosecond, 'n'}, {time.Microsecond, 'u'}, {time.Millisecond, 'm'}, {time.Second, 'S'}, {time.Minute, 'M'}} {
		if n := d / u.unit; n < 1e8 {
			return append(strconv.AppendInt(b, int64(n), 10), u.name)
		}
	}
	return append(strconv.AppendInt(b, int64(min(d/time.Hour, 1e8-1)), 10), 'H')
}

// percentEncode encodes a grpc-message.
func percentEncode(s string) string {
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

// AppendField appends a length-delimited field of a protobuf message.
func AppendField[T string | []byte](b []byte, number int, value T) []byte {
	b = appendUvarint(b, uint64(number)<<3|2)
	return append(appendUvarint(b, uint64(len(value))), value...)
}

func appendUvarint(b []byte, v uint64) []byte {
	for ; v >= 0x80; v >>= 7 {
		b = append(b, byte(v)|0x80)
	}
	return append(b, byte(v))
}
