package yql

import (
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// maxPrecision is the most digits that a Decimal has. The integers from
// 10^maxPrecision on stand for the values that are no numbers.
const maxPrecision = 35

var (
	decimalInf = pow10[maxPrecision]
	decimalNaN = uint128{decimalInf.hi, decimalInf.lo + 1}
)

func decimalValue(v uint128, neg bool) *Ydb.Value {
	if neg {
		v = v.neg()
	}
	return &Ydb.Value{Value: &Ydb.Value_Low_128{Low_128: v.lo}, High_128: v.hi}
}

// parseDecimal reads a number, inf, -inf or nan. Digits that the scale cannot
// hold are an error, not a rounding.
func parseDecimal(s string, d *Ydb.DecimalType) (*Ydb.Value, error) {
	bare := s
	if s != "" && (s[0] == '-' || s[0] == '+') {
		bare = s[1:]
	}
	switch strings.ToLower(bare) {
	case "inf", "infinity":
		return decimalValue(decimalInf, s[0] == '-'), nil
	case "nan":
		return decimalValue(decimalNaN, false), nil
	}
	n, ok := parseNumber(s)
	if !ok {
		return nil, errorf("%s is not a Decimal%s", clip(s), writeIt(&Ydb.Type{Type: &Ydb.Type_DecimalType{DecimalType: d}}))
	}
	precision, scale := min(d.GetPrecision(), maxPrecision), d.GetScale()
	if scale > precision {
		return nil, errorf("there is no Decimal(%d,%d)", d.GetPrecision(), scale)
	}
	v, exact, fits := n.scaled(int(scale))
	switch {
	case !exact:
		return nil, errorf("%s has more than the %d decimal places of a Decimal(%d,%d)", clip(s), scale, precision, scale)
	case !fits || !v.less(pow10[precision]):
		return nil, errorf("%s does not fit a Decimal(%d,%d)", clip(s), precision, scale)
	}
	return decimalValue(v, n.neg), nil
}

// appendDecimal writes the shortest text of the same value: no exponent, no
// zeros at the end of a fraction.
func appendDecimal(dst []byte, hi, lo uint64, scale uint32) []byte {
	v := uint128{hi, lo}
	if neg := int64(hi) < 0; neg {
		dst = append(dst, '-')
		v = v.neg()
	} else if v == decimalNaN {
		return append(dst, "nan"...)
	}
	if v == decimalInf {
		return append(dst, "inf"...)
	}
	var buf [64]byte
	digits := appendUint128(buf[:0], v)
	if int(scale) >= len(digits) {
		// Bounded: a scale beyond the digits of 128 bits is no Decimal.
		pad := min(int(scale), 39) + 1 - len(digits)
		var padded [64]byte
		n := copy(padded[:], "0000000000000000000000000000000000000000"[:max(pad, 0)])
		n += copy(padded[n:], digits)
		digits = append(buf[:0], padded[:n]...)
	}
	point := len(digits) - min(int(scale), len(digits)-1)
	end := len(digits)
	for end > point && digits[end-1] == '0' {
		end--
	}
	dst = append(dst, digits[:point]...)
	if end > point {
		dst = append(append(dst, '.'), digits[point:end]...)
	}
	return dst
}

func appendUint128(dst []byte, v uint128) []byte {
	if v.hi == 0 {
		return strconv.AppendUint(dst, v.lo, 10)
	}
	quotient, rest := v.div19()
	dst = appendUint128(dst, quotient)
	for limit := uint64(1e18); limit > rest && limit > 1; limit /= 10 {
		dst = append(dst, '0')
	}
	return strconv.AppendUint(dst, rest, 10)
}
