package h2

import "encoding/binary"

// huffmanBits is the length of each symbol's code, RFC 7541 appendix B; 256 is
// the end of the string. The code is canonical, so the lengths say it all.
var huffmanBits = [257]uint8{
	13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
	28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
	6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
	5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
	13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
	7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
	15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
	6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
	20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
	24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
	22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
	21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
	26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
	19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
	20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
	26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
	30,
}

const (
	huffmanPeek = 12 // bits looked up at once: about two symbols
	huffmanMax  = 30 // bits of the longest code
	endOfString = 256

	briefSymbols = 2 // bits for the number of symbols, of at least 5 bits each
)

// step is what the next huffmanPeek bits hold. All is 0 where the first code is
// longer than that, as those of every control character are.
type step struct {
	bits, symbols    uint8 // of the whole codes among them, of which there are at most two
	firstBits, first uint8 // of the first code
	second           uint8 // the other's symbol
}

var huffman = buildHuffman()

type huffmanTables struct {
	steps   [1 << huffmanPeek]step
	brief   [1 << huffmanPeek]uint8 // bits and symbols of a step, a quarter of its size: little of the first cache
	symbols [257]uint16             // in order of their codes
	first   [huffmanMax + 1]uint32  // the first code of each length
	offset  [huffmanMax + 1]uint32  // where its symbol is in symbols
	count   [huffmanMax + 1]uint32  // how many there are
}

func buildHuffman() *huffmanTables {
	t := &huffmanTables{}
	code, at := uint32(0), uint32(0)
	for bits := 1; bits <= huffmanMax; bits++ {
		code <<= 1
		t.first[bits], t.offset[bits] = code, at
		for symbol, b := range huffmanBits {
			if int(b) == bits {
				t.symbols[at] = uint16(symbol)
				at++
				code++
				t.count[bits]++
			}
		}
	}
	for i := range t.steps {
		s, left := &t.steps[i], huffmanPeek
		for {
			symbol, bits := t.long(uint64(i)<<(64-left), left)
			if bits == 0 {
				break
			}
			if s.symbols == 0 {
				s.first, s.firstBits = uint8(symbol), uint8(bits)
			} else {
				s.second = uint8(symbol)
			}
			s.symbols++
			s.bits += uint8(bits)
			left -= bits
		}
		t.brief[i] = s.bits<<briefSymbols | s.symbols
	}
	return t
}

// long finds the code at the top of acc, of which n bits are valid. No bits: there
// is no whole one.
func (t *huffmanTables) long(acc uint64, n int) (symbol, bits int) {
	for bits := 5; bits <= min(n, huffmanMax); bits++ {
		if i := uint32(acc>>(64-bits)) - t.first[bits]; i < t.count[bits] {
			return int(t.symbols[t.offset[bits]+i]), bits
		}
	}
	return 0, 0
}

// huffmanLen returns how many bytes p decodes to, or false where p is no valid
// string of a header: bad padding, or a control character in it.
func huffmanLen(p []byte) (int, bool) {
	t, acc, n, symbols := huffman, uint64(0), 0, 0
	for {
		acc, n, p = refill(acc, n, p)
		for n >= huffmanPeek {
			s := t.brief[acc>>(64-huffmanPeek)]
			if s == 0 {
				break
			}
			acc <<= s >> briefSymbols
			n -= int(s >> briefSymbols)
			symbols += int(s & (1<<briefSymbols - 1))
		}
		if n < huffmanMax && len(p) > 0 {
			continue
		}
		s := &t.steps[acc>>(64-huffmanPeek)]
		switch {
		case s.firstBits > 0 && int(s.firstBits) <= n: // near the end
			acc <<= s.firstBits
			n -= int(s.firstBits)
			symbols++
		default:
			symbol, bits := t.long(acc, n)
			if bits == 0 {
				return symbols, padding(acc, n)
			}
			if symbol < ' ' && symbol != '\t' || symbol == 0x7f || symbol == endOfString {
				return 0, false
			}
			acc <<= bits
			n -= bits
			symbols++
		}
	}
}

// appendHuffman appends what p decodes to; huffmanLen has found it valid.
func appendHuffman(b, p []byte) []byte {
	t, acc, n := huffman, uint64(0), 0
	for {
		acc, n, p = refill(acc, n, p)
		for n >= huffmanPeek {
			s := &t.steps[acc>>(64-huffmanPeek)]
			if s.symbols == 0 {
				break
			}
			b = append(b, s.first, s.second)[:len(b)+int(s.symbols)]
			acc <<= s.bits
			n -= int(s.bits)
		}
		if n < huffmanMax && len(p) > 0 {
			continue
		}
		s := &t.steps[acc>>(64-huffmanPeek)]
		if s.firstBits > 0 && int(s.firstBits) <= n {
			b = append(b, s.first)
			acc <<= s.firstBits
			n -= int(s.firstBits)
			continue
		}
		symbol, bits := t.long(acc, n)
		if bits == 0 {
			return b
		}
		b = append(b, byte(symbol))
		acc <<= bits
		n -= bits
	}
}

// refill puts bits of p at the end of the n bits that acc holds at its top, until there are at least
// 56 or p ends. What acc holds beyond n comes again, the same.
func refill(acc uint64, n int, p []byte) (uint64, int, []byte) {
	if n > 56 {
		return acc, n, p
	}
	if len(p) >= 8 {
		return acc | binary.BigEndian.Uint64(p)>>n, n | 56, p[(63-n)>>3:]
	}
	for n <= 56 && len(p) > 0 {
		acc |= uint64(p[0]) << (56 - n)
		n += 8
		p = p[1:]
	}
	return acc, n, p
}

// padding reports whether the n bits at the top of acc are a string's proper end:
// less than an byte of ones.
func padding(acc uint64, n int) bool { return n < 8 && ^acc>>(64-n) == 0 }
