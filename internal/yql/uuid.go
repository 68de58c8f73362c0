package yql

import "encoding/binary"

// uuidOrder gives the place on the wire of each byte of the text: the first
// three groups are little-endian there.
var uuidOrder = [16]int{3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15}

// appendUUID writes 8-4-4-4-12 digits in lower case.
func appendUUID(dst []byte, low, high uint64) []byte {
	const digits = "0123456789abcdef"
	var wire [16]byte
	binary.LittleEndian.PutUint64(wire[:8], low)
	binary.LittleEndian.PutUint64(wire[8:], high)
	for i, at := range uuidOrder {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, digits[wire[at]>>4], digits[wire[at]&15])
	}
	return dst
}

// parseUUID reads 8-4-4-4-12 digits in any case.
func parseUUID(s string) (low, high uint64, ok bool) {
	if len(s) != 36 {
		return 0, 0, false
	}
	var wire [16]byte
	for i, at := range uuidOrder {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			if s[0] != '-' {
				return 0, 0, false
			}
			s = s[1:]
		}
		a, b := fromHex(s[0]), fromHex(s[1])
		if a > 15 || b > 15 {
			return 0, 0, false
		}
		wire[at] = a<<4 | b
		s = s[2:]
	}
	return binary.LittleEndian.Uint64(wire[:8]), binary.LittleEndian.Uint64(wire[8:]), true
}

// fromHex returns 255 for a character that is no hexadecimal digit.
func fromHex(c byte) byte {
	switch {
	case isDigit(c):
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}
