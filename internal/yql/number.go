package yql

import (
	"math/bits"
	"strings"
)

// number is a decimal number as a text wrote it:
// (-1)^neg * (whole followed by fraction) * 10^(exp - len(fraction)).
type number struct {
	neg             bool
	whole, fraction string
	exp             int
}

// maxExponent is where exponents are cut: far beyond every type, and no sum of
// it and a length overflows.
const maxExponent = 1 << 30

// parseNumber reads [+-] digits [. digits] [e [+-] digits] with at least one
// digit before the exponent. It allocates nothing.
func parseNumber(s string) (n number, ok bool) {
	if s != "" && (s[0] == '-' || s[0] == '+') {
		n.neg = s[0] == '-'
		s = s[1:]
	}
	n.whole, s = cutDigits(s)
	if s != "" && s[0] == '.' {
		n.fraction, s = cutDigits(s[1:])
	}
	if n.whole == "" && n.fraction == "" {
		return number{}, false
	}
	if s != "" && (s[0] == 'e' || s[0] == 'E') {
		s = s[1:]
		negative := s != "" && s[0] == '-'
		if s != "" && (s[0] == '-' || s[0] == '+') {
			s = s[1:]
		}
		var digits string
		if digits, s = cutDigits(s); digits == "" {
			return number{}, false
		}
		for i := range len(digits) {
			n.exp = min(n.exp*10+int(digits[i]-'0'), maxExponent)
		}
		if negative {
			n.exp = -n.exp
		}
	}
	return n, s == ""
}

func cutDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

// scaled returns the magnitude of n * 10^scale. exact is false when that is no
// integer, fits when it has at most 38 digits.
func (n number) scaled(scale int) (v uint128, exact, fits bool) {
	whole := strings.TrimLeft(n.whole, "0")
	fraction := n.fraction
	if whole == "" {
		trimmed := strings.TrimLeft(fraction, "0")
		n.exp -= len(fraction) - len(trimmed)
		fraction = trimmed
	}
	size := len(whole) + len(fraction)
	if size == 0 {
		return uint128{}, true, true
	}
	// The digits that stay are those before the point, once it is moved.
	keep := len(whole) + n.exp + scale
	digit := func(i int) byte {
		if i < len(whole) {
			return whole[i]
		}
		return fraction[i-len(whole)]
	}
	for i := size - 1; i >= max(keep, 0); i-- {
		if digit(i) != '0' {
			return uint128{}, false, true
		}
	}
	if keep > 38 {
		return uint128{}, true, false
	}
	for i := range max(keep, 0) {
		d := byte('0')
		if i < size {
			d = digit(i)
		}
		v = v.times10(uint64(d - '0'))
	}
	return v, true, true
}

// uint128 is an unsigned integer of 128 bits.
type uint128 struct{ hi, lo uint64 }

// times10 returns 10*v + d; the caller sees to it that it fits.
func (v uint128) times10(d uint64) uint128 {
	hi, lo := bits.Mul64(v.lo, 10)
	lo, carry := bits.Add64(lo, d, 0)
	return uint128{v.hi*10 + hi + carry, lo}
}

func (v uint128) neg() uint128 {
	lo, borrow := bits.Sub64(0, v.lo, 0)
	hi, _ := bits.Sub64(0, v.hi, borrow)
	return uint128{hi, lo}
}

func (v uint128) less(w uint128) bool {
	return v.hi < w.hi || v.hi == w.hi && v.lo < w.lo
}

// div19 returns v / 10^19 and the rest.
func (v uint128) div19() (uint128, uint64) {
	const e19 = 1e19
	hi, rest := v.hi/e19, v.hi%e19
	lo, rest := bits.Div64(rest, v.lo, e19)
	return uint128{hi, lo}, rest
}

// pow10 has the powers of ten from 10^0 to 10^38.
var pow10 = func() (p [39]uint128) {
	p[0].lo = 1
	for i := 1; i < len(p); i++ {
		p[i] = p[i-1].times10(0)
	}
	return p
}()
