package value

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// The special decimals are the same at every scale: ±10^35 and 10^35 + 1.
var (
	decInf    = new(big.Int).Exp(big.NewInt(10), big.NewInt(35), nil)
	decNegInf = new(big.Int).Neg(decInf)
	decNaN    = new(big.Int).Add(decInf, big.NewInt(1))
)

func pow10(n uint32) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// decBig returns the 128-bit number of a Decimal.
func decBig(v Value) *big.Int {
	b := new(big.Int).SetInt64(int64(v.Hi))
	b.Lsh(b, 64)
	return b.Add(b, new(big.Int).SetUint64(v.Lo))
}

func bigDec(b *big.Int) Value {
	lo := new(big.Int).And(b, new(big.Int).SetUint64(^uint64(0)))
	hi := new(big.Int).Rsh(b, 64)
	return Value{Lo: lo.Uint64(), Hi: uint64(hi.Int64())}
}

func decSpecial(b *big.Int) bool { return b.CmpAbs(decInf) >= 0 }

// clampDec turns what exceeds the precision into an infinity.
func clampDec(t *Type, b *big.Int) Value {
	if b.CmpAbs(pow10(t.Precision)) >= 0 {
		if b.Sign() < 0 {
			return bigDec(decNegInf)
		}
		return bigDec(decInf)
	}
	return bigDec(b)
}

func checkDecimal(t *Type, v Value) error {
	b := decBig(v)
	if b.Cmp(decNaN) == 0 || b.CmpAbs(decInf) == 0 || b.CmpAbs(pow10(t.Precision)) < 0 {
		return nil
	}
	return fmt.Errorf("the number does not fit %s", t)
}

// formatDecimal writes a Decimal without trailing zeros.
func formatDecimal(t *Type, v Value) string {
	b := decBig(v)
	switch {
	case b.Cmp(decNaN) == 0:
		return "nan"
	case b.Cmp(decInf) == 0:
		return "inf"
	case b.Cmp(decNegInf) == 0:
		return "-inf"
	}
	s := new(big.Int).Abs(b).String()
	if n := int(t.Scale) + 1 - len(s); n > 0 {
		s = strings.Repeat("0", n) + s
	}
	whole, frac := s[:len(s)-int(t.Scale)], strings.TrimRight(s[len(s)-int(t.Scale):], "0")
	if b.Sign() < 0 {
		whole = "-" + whole
	}
	if frac == "" {
		return whole
	}
	return whole + "." + frac
}

// splitNumber takes a decimal text apart: digits without a dot and the power of ten
// that they are multiplied by. The exponent is bounded, so no huge number is built.
func splitNumber(s string) (neg bool, digits string, exp int, err error) {
	bad := errors.New("not a decimal number")
	switch {
	case strings.HasPrefix(s, "-"):
		neg, s = true, s[1:]
	case strings.HasPrefix(s, "+"):
		s = s[1:]
	}
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		if exp, err = strconv.Atoi(s[i+1:]); err != nil || exp > 1000 || exp < -1000 {
			return false, "", 0, bad
		}
		s = s[:i]
	}
	whole, frac, _ := strings.Cut(s, ".")
	digits = whole + frac
	if digits == "" || len(digits) > 200 || strings.Trim(digits, "0123456789") != "" {
		return false, "", 0, bad
	}
	return neg, digits, exp - len(frac), nil
}

// parseDecimal reads a decimal text; digits beyond the scale are rounded half to even.
func parseDecimal(t *Type, s string) (Value, error) {
	switch strings.ToLower(s) {
	case "nan":
		return bigDec(decNaN), nil
	case "inf", "+inf":
		return bigDec(decInf), nil
	case "-inf":
		return bigDec(decNegInf), nil
	}
	neg, digits, exp, err := splitNumber(s)
	if err != nil {
		return Value{}, err
	}
	b, _ := new(big.Int).SetString(digits, 10)
	b = rescale(b, exp+int(t.Scale))
	if neg {
		b.Neg(b)
	}
	return clampDec(t, b), nil
}

// rescale multiplies by 10^by; a negative power rounds half to even.
func rescale(b *big.Int, by int) *big.Int {
	if by >= 0 {
		return b.Mul(b, pow10(uint32(by)))
	}
	return divRound(b, pow10(uint32(-by)))
}

func divRound(a, d *big.Int) *big.Int {
	q, r := new(big.Int).QuoRem(a, d, new(big.Int))
	twice := new(big.Int).Lsh(new(big.Int).Abs(r), 1)
	if c := twice.CmpAbs(d); c > 0 || c == 0 && q.Bit(0) == 1 {
		one := int64(1)
		if (a.Sign() < 0) != (d.Sign() < 0) {
			one = -1
		}
		q.Add(q, big.NewInt(one))
	}
	return q
}

// dyNumber is a parsed DyNumber: 0.digits · 10^exp.
type dyNumber struct {
	neg    bool
	digits string // no zero at either end; "" is zero
	exp    int
}

func parseDyNumber(s string) (dyNumber, error) {
	neg, digits, exp, err := splitNumber(s)
	if err != nil {
		return dyNumber{}, err
	}
	exp += len(digits)
	trimmed := strings.TrimLeft(digits, "0")
	exp -= len(digits) - len(trimmed)
	trimmed = strings.TrimRight(trimmed, "0")
	if trimmed == "" {
		return dyNumber{}, nil
	}
	if len(trimmed) > 38 || exp > 126 || exp < -129 {
		return dyNumber{}, errors.New("DyNumber takes 38 digits and exponents from -130 to 125")
	}
	return dyNumber{neg, trimmed, exp}, nil
}

// dyNumberKey returns bytes that order as the numbers do.
func dyNumberKey(s string) string {
	n, err := parseDyNumber(s)
	if err != nil || n.digits == "" {
		return "\x01" // zero
	}
	b := append([]byte{2, byte(n.exp + 130)}, n.digits...)
	if n.neg {
		b[0] = 0
		for i := 1; i < len(b); i++ {
			b[i] = ^b[i]
		}
		b = append(b, 0xff)
	}
	return string(b)
}
